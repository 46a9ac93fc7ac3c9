//! What a claim says about its twin, where its user looks: a condition, and of a twin in
//! another cluster the real capacity.

use k8s_openapi::{
    api::core::v1::{PersistentVolume, PersistentVolumeClaim},
    apimachinery::pkg::apis::meta::v1::Time,
};
use serde_json::json;

use super::{
    twin_condition::TwinCondition,
    watched::{Claim, VirtualVolume},
};
use crate::{
    cluster::{ApiError, Cluster, unless_conflict},
    observe::crash::{self, Step},
    volume::{ClaimMark, mark::TWIN_READY, quantity},
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
