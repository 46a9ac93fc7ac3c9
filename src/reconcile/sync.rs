//! Keeps what a twin carries of its claim as the claim has it now.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use serde_json::json;

use crate::{
    cluster::ApiError,
    observe::crash::{self, Step},
    twin::Site,
    volume::{ClaimMark, VolumeName},
};

/// Brings labels and annotations of a twin up to date, from what both are now.
pub(super) async fn sync(site: &Site, volume: &VolumeName, claim: &ClaimMark) -> Result<(), ApiError> {
    let twins = site.twins();
    let claims = site.home().within::<PersistentVolumeClaim>(&claim.namespace);
    let (twin, source) = tokio::try_join!(twins.get(site.name()), claims.get(&claim.name))?;
    let owner = site.owner(volume);
    let is_its_twin =
        |twin: &PersistentVolumeClaim| owner.recognise(twin.labels(), twin.annotations()).is_ok();
    let Some(twin) = twin.filter(is_its_twin) else {
        return Ok(());
    };
    let Some(source) = source.filter(|source| source.uid().as_deref() == Some(&claim.uid)) else {
        return Ok(());
    };
    let rules = site.home().carried_annotations();
    let carried = rules.carried(source.labels(), source.annotations());
    let changes = carried.changes(twin.labels(), twin.annotations());
    if changes.is_empty() {
        return Ok(());
    }
    let patch = json!({"metadata": {
        "uid": twin.uid(),
        "resourceVersion": twin.resource_version(),
        "labels": changes.labels,
        "annotations": changes.annotations,
    }});
    let synced = crash::around(Step::Sync, twins.merge(&twin.name_any(), &patch)).await;
    match synced {
        // The next round looks at what it has become.
        Err(error) if error.is_conflict() => Ok(()),
        other => other.map(|_| ()),
    }
}
