//! What a claim says about its twin, where its user looks: a condition, and of a twin in
//! another cluster how large it is and what became of its expansion.

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
    placement::{ClaimUpdate, claim_update},
    twin::{Site, grown},
    volume::{ClaimMark, ClaimSize, mark::TWIN_READY, quantity},
};

/// Has the claim say it, unless it does already. Conditions of others stay as they are: the
/// API server merges them by their type.
pub(super) async fn condition(
    home: &Cluster,
    seen: &Claim,
    mark: &ClaimMark,
    told: &TwinCondition<'_>,
) -> Result<(), ApiError> {
    let before = seen.said.as_ref();
    if before.is_some_and(|said| said.is(told)) {
        return Ok(());
    }
    let mut condition = json!({
        "type": TWIN_READY, "status": told.status, "reason": told.reason, "message": told.message,
    });
    if !before.is_some_and(|said| said.is_of_status(told)) {
        condition["lastTransitionTime"] = json!(Time(jiff::Timestamp::now()));
    }
    let patch = json!({"metadata": {"uid": mark.uid}, "status": {"conditions": [condition]}});
    let claims = home.within::<PersistentVolumeClaim>(&mark.namespace);
    let written = crash::around(Step::Mirror, claims.merge_status_lists(&mark.name, &patch)).await;
    // Another claim of that name is looked at in turn.
    unless_conflict(written).map(drop)
}

/// Has claim and PV say how large the volume really is. The PV last: it is what
/// tells whether that was done.
pub(super) async fn capacity(home: &Cluster, volume: &VirtualVolume, bytes: u64) -> Result<(), ApiError> {
    let size = json!({"storage": quantity(bytes)});
    if let Some(mark) = &volume.claim {
        let patch = json!({"metadata": {"uid": mark.uid}, "status": {"capacity": size}});
        let claims = home.within::<PersistentVolumeClaim>(&mark.namespace);
        let written = crash::around(Step::Mirror, claims.merge_status(&mark.name, &patch)).await;
        unless_conflict(written)?;
    }
    let patch = json!({"spec": {"capacity": size}});
    let written = crash::around(
        Step::Mirror,
        home.all::<PersistentVolume>().merge(&volume.name, &patch),
    )
    .await;
    unless_conflict(written).map(drop)
}

/// Has the claim say that it has grown, as kubelet says of claims whose pods it runs, if its
/// twin in another cluster has.
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

/// Has the claim say that the node of its pod, in another cluster, does not grow its file
/// system: once for each thing that the twin says of it, because csi-resizer tries again each
/// time, and by that alone nothing changes there.
pub(super) async fn node_refusal(site: &Site, mark: &ClaimMark) -> Result<(), ApiError> {
    let home = site.home();
    let Some(claim) = live(home, mark).await? else {
        return Ok(());
    };
    let twin = site.twins().get(site.name()).await?;
    let Some(why) = twin.as_ref().and_then(node_error) else {
        return Ok(());
    };
    if node_error(&claim) == Some(why) {
        return Ok(());
    }
    let condition = json!({
        "type": NODE_RESIZE_ERROR, "status": "True", "message": why,
        "lastTransitionTime": Time(jiff::Timestamp::now()),
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

/// Why a node did not grow the file system of a claim.
fn node_error(claim: &PersistentVolumeClaim) -> Option<&str> {
    let error = facts::condition(claim, NODE_RESIZE_ERROR)?;
    Some(error.message.as_deref().unwrap_or_default())
}

async fn live(home: &Cluster, mark: &ClaimMark) -> Result<Option<PersistentVolumeClaim>, ApiError> {
    let claims = home.within::<PersistentVolumeClaim>(&mark.namespace);
    let found = claims.get(&mark.name).await?;
    Ok(found.filter(|claim| claim.uid().as_deref() == Some(&mark.uid)))
}
