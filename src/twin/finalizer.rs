//! The finalizer of twins: put on while a twin lives, taken off once it may go.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use serde_json::json;

use super::Site;
use crate::{
    cluster::{ApiError, Cluster},
    observe::crash::{self, Step},
    volume::{VolumeName, mark::TWIN_FINALIZER},
};

/// Puts our finalizer on the twin of a volume if it lacks it: it was made before the rights
/// to protect it were granted or known, or somebody took it off.
pub async fn add_finalizer(site: &Site, volume: &VolumeName) -> Result<(), ApiError> {
    let (twins, owner) = (site.twins(), site.owner(volume));
    let found = twins.get(site.name()).await?;
    let ours = found.filter(|twin| owner.recognise(twin.labels(), twin.annotations()).is_ok());
    let Some(twin) = ours.filter(|twin| twin.metadata.deletion_timestamp.is_none() && !has_finalizer(twin))
    else {
        return Ok(());
    };
    let mut finalizers = twin.finalizers().to_vec();
    finalizers.push(TWIN_FINALIZER.to_owned());
    let outcome = crash::around(Step::AddFinalizer, write(site.cluster(), &twin, &finalizers)).await;
    match outcome {
        // The change that came between is looked at in turn.
        Err(error) if error.is_conflict() => return Ok(()),
        other => other?,
    }
    tracing::info!(volume = %volume, twin = site.place(), cluster = site.cluster_name(), "the twin has its finalizer now");
    Ok(())
}

/// Takes our finalizer off a twin that is being deleted; false if the twin has
/// changed meanwhile and has to be looked at again.
pub async fn remove_finalizer(cluster: &Cluster, twin: &PersistentVolumeClaim) -> Result<bool, ApiError> {
    if !has_finalizer(twin) || twin.metadata.deletion_timestamp.is_none() {
        return Ok(true);
    }
    let mut finalizers = twin.finalizers().to_vec();
    finalizers.retain(|finalizer| finalizer != TWIN_FINALIZER);
    let outcome = crash::around(Step::RemoveFinalizer, write(cluster, twin, &finalizers)).await;
    match outcome {
        Err(error) if error.is_conflict() => Ok(false),
        other => other.map(|()| true),
    }
}

/// Whether the twin has our finalizer.
#[must_use]
pub fn has_finalizer(twin: &PersistentVolumeClaim) -> bool {
    twin.finalizers()
        .iter()
        .any(|finalizer| finalizer == TWIN_FINALIZER)
}

/// Writes the finalizers of exactly this version of the twin.
async fn write(
    cluster: &Cluster,
    twin: &PersistentVolumeClaim,
    finalizers: &[String],
) -> Result<(), ApiError> {
    let patch = json!({"metadata": {
        "uid": twin.uid(),
        "resourceVersion": twin.resource_version(),
        "finalizers": finalizers,
    }});
    let twins = cluster.within::<PersistentVolumeClaim>(&twin.namespace().unwrap_or_default());
    twins.merge(&twin.name_any(), &patch).await.map(drop)
}
