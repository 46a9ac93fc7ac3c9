//! The finalizer of twins: added while a twin lives, removed when it may be deleted.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use super::Site;
use crate::{
    cluster::{self, ApiError, Cluster, unless_conflict},
    observe::crash::{self, Step},
    volume::{VolumeName, mark::TWIN_FINALIZER},
};

/// Adds the finalizer to the twin of a volume if it is missing: the twin was created before the rights
/// for it were granted or known, or another client removed the finalizer.
pub async fn add_finalizer(site: &Site, volume: &VolumeName) -> Result<(), ApiError> {
    let twins = site.twins();
    let found = twins.get(site.name()).await?;
    let ours = found.filter(|twin| site.is_twin(volume, twin));
    let Some(twin) = ours.filter(|twin| twin.metadata.deletion_timestamp.is_none() && !has_finalizer(twin))
    else {
        return Ok(());
    };
    let added = twins.set_finalizer(&twin, TWIN_FINALIZER, true);
    let added = crash::around(Step::AddFinalizer, added).await;
    if unless_conflict(added)?.is_none() {
        // The view reports the concurrent change, which triggers another attempt.
        return Ok(());
    }
    tracing::info!(volume = %volume, twin = site.place(), cluster = site.cluster_name(), "added the finalizer to the twin");
    Ok(())
}

/// Removes the finalizer from a twin that is being deleted; false if the twin has changed since it was
/// read.
pub async fn remove_finalizer(cluster: &Cluster, twin: &PersistentVolumeClaim) -> Result<bool, ApiError> {
    if !has_finalizer(twin) || twin.metadata.deletion_timestamp.is_none() {
        return Ok(true);
    }
    let twins = cluster.within::<PersistentVolumeClaim>(&twin.namespace().unwrap_or_default());
    let removed = twins.set_finalizer(twin, TWIN_FINALIZER, false);
    match crash::around(Step::RemoveFinalizer, removed).await {
        Err(error) if error.is_conflict() => Ok(false),
        other => other.map(|_| true),
    }
}

#[must_use]
pub fn has_finalizer(twin: &PersistentVolumeClaim) -> bool {
    cluster::has_finalizer(twin, TWIN_FINALIZER)
}
