//! Writes the state of a twin to the status of its claim: a condition and, for a remote twin, its size
//! and the result of its expansion.

use jiff::SignedDuration;
use k8s_openapi::{
    api::core::v1::{PersistentVolume, PersistentVolumeClaim},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::ResourceExt;
use serde_json::json;

use super::{
    twin_condition::TwinCondition,
    watched::{Claim, VirtualVolume},
};
use crate::{
    cluster::{
        ApiError, Cluster,
        facts::{self, NODE_RESIZE_ERROR},
        unless_conflict,
    },
    observe::crash::{self, Step},
    offload::{LONGEST_MESSAGE, cut},
    placement::{ClaimUpdate, claim_update},
    twin::{Site, grown},
    volume::{ClaimMark, ClaimSize, mark::TWIN_READY, quantity},
};

/// The shortest time between two reports of [`node_refusal`].
const EACH_REFUSAL: SignedDuration = SignedDuration::from_mins(1);

/// Sets the condition of the claim if it differs. Conditions of other components stay: the API server
/// merges them by their type.
pub(super) async fn condition(
    home: &Cluster,
    seen: &Claim,
    mark: &ClaimMark,
    wanted: &TwinCondition<'_>,
) -> Result<(), ApiError> {
    let before = seen.twin_condition.as_ref();
    // Parts of it may be from a remote cluster.
    let message = &cut(wanted.message, LONGEST_MESSAGE);
    let wanted = &TwinCondition { message, ..*wanted };
    if before.is_some_and(|current| current.equals(wanted)) {
        return Ok(());
    }
    let mut condition = json!({
        "type": TWIN_READY, "status": wanted.status, "reason": wanted.reason, "message": wanted.message,
    });
    if !before.is_some_and(|current| current.has_status_of(wanted)) {
        condition["lastTransitionTime"] = json!(Time(jiff::Timestamp::now()));
    }
    let patch = json!({"metadata": {"uid": mark.uid}, "status": {"conditions": [condition]}});
    let claims = home.within::<PersistentVolumeClaim>(&mark.namespace);
    let written = crash::around(Step::Mirror, claims.merge_status_lists(&mark.name, &patch)).await;
    // Another claim may have this name now; the next round checks it.
    unless_conflict(written).map(drop)
}

/// Writes the real size of the volume to claim and PV. The PV last: its size shows whether the update is
/// complete.
pub(super) async fn capacity(home: &Cluster, volume: &VirtualVolume, bytes: u64) -> Result<(), ApiError> {
    let size = json!({"storage": quantity(bytes)});
    if let Some(mark) = &volume.claim {
        let patch = json!({"metadata": {"uid": mark.uid}, "status": {"capacity": size}});
        let claims = home.within::<PersistentVolumeClaim>(&mark.namespace);
        let written = crash::around(Step::Mirror, claims.merge_status(&mark.name, &patch)).await;
        unless_conflict(written)?;
    }
    // A move replaces the PV by one of the same name, with a size of its own.
    let patch = json!({"metadata": {"uid": volume.uid}, "spec": {"capacity": size}});
    let written = crash::around(
        Step::Mirror,
        home.all::<PersistentVolume>().merge(&volume.name, &patch),
    )
    .await;
    unless_conflict(written).map(drop)
}

/// Marks the expansion of the claim as finished if its remote twin's is, like kubelet does for claims of
/// its pods.
pub(super) async fn growth(home: &Cluster, mark: &ClaimMark, twin: ClaimSize) -> Result<(), ApiError> {
    let claims = home.within::<PersistentVolumeClaim>(&mark.namespace);
    let Some(claim) = live(home, mark).await? else {
        return Ok(());
    };
    let Some(ClaimUpdate::Grown(bytes)) = claim_update(facts::claim_size(&claim), twin) else {
        return Ok(());
    };
    let patch = grown(&claim, bytes);
    let written = crash::around(Step::MirrorSize, claims.merge_status(&mark.name, &patch)).await;
    unless_conflict(written).map(drop)
}

/// Reports on the claim that the node of its pod, in a remote cluster, failed to expand the file system.
/// Once for each error of the twin, because csi-resizer retries after each report, although nothing has
/// changed there, and at most once a minute, because the cluster may report any number of errors.
pub(super) async fn node_refusal(site: &Site, mark: &ClaimMark) -> Result<(), ApiError> {
    let home = site.home();
    let Some(claim) = live(home, mark).await? else {
        return Ok(());
    };
    let twin = site.twins().get(site.name()).await?;
    let Some(why) = twin.as_ref().and_then(facts::node_error) else {
        return Ok(());
    };
    let now = jiff::Timestamp::now();
    let reported = facts::condition(&claim, NODE_RESIZE_ERROR)
        .and_then(|before| Some(now.duration_since(before.last_transition_time.as_ref()?.0)));
    if facts::node_error(&claim).as_ref() == Some(&why)
        || reported.is_some_and(|age| age.abs() < EACH_REFUSAL)
    {
        return Ok(());
    }
    let condition = json!({
        "type": NODE_RESIZE_ERROR, "status": "True", "message": why,
        "lastTransitionTime": Time(now),
    });
    let patch = json!({
        "metadata": {"uid": mark.uid, "resourceVersion": claim.resource_version()},
        "status": {
            "allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"},
            "conditions": [condition],
        },
    });
    let claims = home.within::<PersistentVolumeClaim>(&mark.namespace);
    let written = claims.merge_status_lists(&mark.name, &patch);
    unless_conflict(crash::around(Step::MirrorSize, written).await).map(drop)
}

async fn live(home: &Cluster, mark: &ClaimMark) -> Result<Option<PersistentVolumeClaim>, ApiError> {
    let claims = home.within::<PersistentVolumeClaim>(&mark.namespace);
    let found = claims.get(&mark.name).await?;
    Ok(found.filter(|claim| claim.uid().as_deref() == Some(&mark.uid)))
}
