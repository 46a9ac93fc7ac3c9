//! What a claim says about its twin in a remote cluster, where its user looks: a
//! condition, and the real capacity.

use k8s_openapi::{
    api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::ResourceExt;
use serde_json::json;

use super::{
    twin_condition::{TwinCondition, said},
    watched::{Claim, VirtualVolume},
};
use crate::{
    cluster::{ApiError, Cluster},
    observe::crash::{self, Step},
    volume::{ClaimMark, mark::TWIN_READY, quantity},
};

/// Has the claim say it, unless it does already.
pub(super) async fn condition(
    home: &Cluster,
    seen: &Claim,
    mark: &ClaimMark,
    told: &TwinCondition<'_>,
) -> Result<(), ApiError> {
    if seen.said == told.digest() {
        return Ok(());
    }
    let claims = home.within::<PersistentVolumeClaim>(&mark.namespace);
    let Some(claim) = claims.get(&mark.name).await? else {
        return Ok(());
    };
    if claim.uid().as_deref() != Some(&mark.uid) || said(&claim) == told.digest() {
        return Ok(());
    }
    let before = claim.status.as_ref().and_then(|status| status.conditions.clone());
    let (ours, mut conditions): (Vec<_>, Vec<_>) = before
        .unwrap_or_default()
        .into_iter()
        .partition(|one| one.type_ == TWIN_READY);
    let turned = ours.first().is_none_or(|one| one.status != told.status);
    let since = ours.first().and_then(|one| one.last_transition_time.clone());
    conditions.push(PersistentVolumeClaimCondition {
        type_: TWIN_READY.to_owned(),
        status: told.status.to_owned(),
        reason: Some(told.reason.to_owned()),
        message: Some(told.message.to_owned()),
        last_transition_time: since
            .filter(|_| !turned)
            .or_else(|| Some(Time(jiff::Timestamp::now()))),
        last_probe_time: None,
    });
    let patch = json!({
        "metadata": {"uid": claim.uid(), "resourceVersion": claim.resource_version()},
        "status": {"conditions": conditions},
    });
    let written = crash::around(Step::Mirror, claims.merge_status(&mark.name, &patch)).await;
    unless_conflict(written)
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
    unless_conflict(written)
}

/// Somebody changed it meanwhile: the next round looks again.
fn unless_conflict<T>(outcome: Result<Option<T>, ApiError>) -> Result<(), ApiError> {
    match outcome {
        Err(error) if error.is_conflict() => Ok(()),
        other => other.map(|_| ()),
    }
}
