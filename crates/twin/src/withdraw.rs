//! Deletes a twin that was never handed over, and clears the reservation of a static PV for it.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;

use super::{CreateError, finalizer::remove_finalizer};
use crate::{
    cluster::{ApiError, Cluster, Precondition, held_by},
    observe::crash::{self, Step},
    volume::mark,
};

const RECHECK: Duration = Duration::from_secs(2);

/// Clears the reservation of a static PV for this twin, deletes exactly this version of the twin unless
/// it is being deleted already, and waits until it is deleted. In this order: after a crash in between,
/// the twin still shows what to do. False if the twin has changed: it stays, and the caller observes and
/// decides again.
///
/// Only for twins that were never handed over, or that another client is deleting and no volume uses: the
/// caller has checked that, and the version guarantees that it is still true.
pub async fn withdraw(
    cluster: &Cluster,
    twin: &PersistentVolumeClaim,
    deadline: Instant,
) -> Result<bool, CreateError> {
    match release_reserved(cluster, &twin.name_any()).await {
        Err(error) if error.is_conflict() => return Ok(false),
        other => other?,
    }
    if !delete_exactly(cluster, twin).await? {
        return Ok(false);
    }
    if !wait_until_deleted(cluster, twin, deadline).await? {
        let found = within(cluster, twin).get(&twin.name_any()).await.ok().flatten();
        return Err(CreateError::StillWaiting {
            twin: format!("{}/{}", twin.namespace().unwrap_or_default(), twin.name_any()),
            cluster: cluster.id().to_string(),
            awaited: "gone",
            why: found.as_ref().and_then(held_by),
        });
    }
    Ok(true)
}

/// Deletes the twin in exactly this version; false if it has another one.
async fn delete_exactly(cluster: &Cluster, twin: &PersistentVolumeClaim) -> Result<bool, ApiError> {
    if twin.metadata.deletion_timestamp.is_some() {
        // In a namespace that is being deleted this driver may have lost its right to delete.
        return remove_finalizer(cluster, twin).await;
    }
    let exactly = Precondition {
        uid: twin.uid().unwrap_or_default(),
        resource_version: twin.resource_version(),
    };
    let twins = within(cluster, twin);
    match crash::around(Step::Withdraw, twins.delete(&twin.name_any(), exactly)).await {
        Err(error) if error.is_conflict() => Ok(false),
        other => other.map(|()| true),
    }
}

/// Waits until the twin is deleted, and removes the driver's finalizer; false when the deadline has passed.
pub(super) async fn wait_until_deleted(
    cluster: &Cluster,
    twin: &PersistentVolumeClaim,
    deadline: Instant,
) -> Result<bool, ApiError> {
    let name = twin.name_any();
    let mut changes = cluster
        .twins_in(&twin.namespace().unwrap_or_default())
        .subscribe(&name);
    loop {
        let found = within(cluster, twin).get(&name).await?;
        match found.filter(|found| found.uid() == twin.uid()) {
            None => return Ok(true),
            Some(found) if !remove_finalizer(cluster, &found).await? => continue,
            Some(_) => {}
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        changes.next(left.min(RECHECK)).await;
    }
}

/// Clears the reservations of static PVs for a twin that were never bound.
pub async fn release_reserved(cluster: &Cluster, twin: &str) -> Result<(), ApiError> {
    for seen in cluster.views().volumes.of_twin(twin) {
        clear_claim_ref(cluster, &seen.name, twin).await?;
    }
    Ok(())
}

/// Clears the reservation of a PV for a twin. A `claimRef` with a uid is not a reservation: the PV was
/// bound, and Kubernetes decides what happens to it.
pub(super) async fn clear_claim_ref(cluster: &Cluster, volume: &str, twin: &str) -> Result<(), ApiError> {
    let volumes = cluster.all::<PersistentVolume>();
    let Some(found) = volumes.get(volume).await? else {
        return Ok(());
    };
    if !is_reservation(&found, cluster.storage_namespace(), twin) {
        return Ok(());
    }
    let patch = json!({
        "metadata": {"resourceVersion": found.resource_version()},
        "spec": {"claimRef": null},
    });
    let outcome = crash::around(Step::ReleasePrebind, volumes.merge(volume, &patch)).await;
    outcome.map(|_| ())
}

/// Whether a PV is reserved for this twin and not bound. A PV that is being imported or released holds a
/// user's data, and must never become available to other claims.
pub(super) fn is_reservation(volume: &PersistentVolume, namespace: &str, twin: &str) -> bool {
    let marked = |key| volume.annotations().contains_key(key);
    if marked(mark::IMPORT) || marked(mark::ADOPT_FOR) || marked(mark::RELEASE) {
        return false;
    }
    let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    claim.is_some_and(|claim| {
        claim.namespace.as_deref() == Some(namespace)
            && claim.name.as_deref() == Some(twin)
            && claim.uid.as_deref().is_none_or(str::is_empty)
    })
}

fn within(cluster: &Cluster, twin: &PersistentVolumeClaim) -> crate::cluster::Objects<PersistentVolumeClaim> {
    cluster.within(&twin.namespace().unwrap_or_default())
}
