//! Keeps the labels and annotations that a twin carries equal to those of its claim.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use serde_json::json;

use crate::{
    cluster::ApiError,
    observe::crash::{self, Step},
    twin::Site,
    volume::{ClaimMark, VolumeName},
};

/// How often a write is retried after a conflict.
const ATTEMPTS: usize = 3;

/// Updates labels and annotations of a twin, from a live read of both.
pub(super) async fn sync(site: &Site, volume: &VolumeName, claim: &ClaimMark) -> Result<(), ApiError> {
    for _ in 0..ATTEMPTS {
        if attempt(site, volume, claim).await? {
            break;
        }
    }
    Ok(())
}

/// False if the twin has changed since it was read.
async fn attempt(site: &Site, volume: &VolumeName, claim: &ClaimMark) -> Result<bool, ApiError> {
    let twins = site.twins();
    let claims = site.home().within::<PersistentVolumeClaim>(&claim.namespace);
    let (twin, source) = tokio::try_join!(twins.get(site.name()), claims.get(&claim.name))?;
    let Some(twin) = twin.filter(|twin| site.is_twin(volume, twin)) else {
        return Ok(true);
    };
    let Some(source) = source.filter(|source| source.uid().as_deref() == Some(&claim.uid)) else {
        return Ok(true);
    };
    let rules = site.home().carried_annotations();
    let carried = rules.carried(source.labels(), source.annotations());
    let changes = carried.changes(twin.labels(), twin.annotations());
    if changes.is_empty() {
        return Ok(true);
    }
    let patch = json!({"metadata": {
        "uid": twin.uid(),
        "resourceVersion": twin.resource_version(),
        "labels": changes.labels,
        "annotations": changes.annotations,
    }});
    let synced = crash::around(Step::Sync, twins.merge(&twin.name_any(), &patch)).await;
    match synced {
        Err(error) if error.is_conflict() => Ok(false),
        other => other.map(|_| true),
    }
}
