//! Taking back: a twin that nobody was given, a reservation.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;

use super::{CreateError, finalizer::remove_finalizer};
use crate::{
    cluster::{ApiError, Cluster, Precondition},
    observe::crash::{self, Step},
    volume::mark,
};

const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Frees the static volume reserved for this twin, deletes exactly this twin in
/// exactly this version unless somebody does already, and waits until it is gone. In
/// this order: a crash in between leaves a twin that shows what is to be done. False if
/// it changed meanwhile: it stands, and whoever called looks again and decides anew.
///
/// Only for twins that were never handed over, or that somebody else deletes and
/// nobody has any more: the caller has made sure, and the version makes sure that it
/// stays true.
pub async fn withdraw(
    cluster: &Cluster,
    twin: &PersistentVolumeClaim,
    deadline: Instant,
) -> Result<bool, CreateError> {
    match free_reserved(cluster, &twin.name_any()).await {
        Err(error) if error.is_conflict() => return Ok(false),
        other => other?,
    }
    if !delete_exactly(cluster, twin).await? {
        return Ok(false);
    }
    if !await_gone(cluster, twin, deadline).await? {
        return Err(CreateError::StillWaiting {
            twin: format!("{}/{}", twin.namespace().unwrap_or_default(), twin.name_any()),
            cluster: cluster.id().to_string(),
            awaited: "gone",
            why: None,
        });
    }
    Ok(true)
}

/// Has the twin be deleted in exactly this version; false if there is another one.
async fn delete_exactly(cluster: &Cluster, twin: &PersistentVolumeClaim) -> Result<bool, ApiError> {
    if twin.metadata.deletion_timestamp.is_some() {
        // In a namespace that is being deleted the right to delete may be gone already.
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

/// Waits until the twin is gone, taking our finalizer off; false when time is up.
pub(super) async fn await_gone(
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
        changes.next(left.min(LOOK_AGAIN)).await;
    }
}

/// Frees the static volumes that are reserved for a twin but were never bound.
pub async fn free_reserved(cluster: &Cluster, twin: &str) -> Result<(), ApiError> {
    for seen in cluster.views().volumes.of_twin(twin) {
        clear_claim_ref(cluster, &seen.name, twin).await?;
    }
    Ok(())
}

/// Takes a reservation for a twin off a PV. A `claimRef` with a uid is no
/// reservation: it was bound, and what becomes of it is Kubernetes' decision.
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

/// Whether a PV is reserved for this twin and not bound. One that is being imported or
/// released has somebody's data, and is never offered to others.
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
