//! The end of an import: once the user's claim is bound to its volume, the real PV gets the
//! reclaim policy back that it had, and forgets what was. Until then it is retained, and
//! whatever happens to the claim, its data stays.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde_json::json;

use super::watched::VirtualVolume;
use crate::{
    cluster::{ApiError, facts, unless_conflict},
    observe::crash::{self, Step},
    placement::{ReclaimPolicy, Settle, SettleFacts, settle_step},
    twin::{Site, is_bound, is_bound_to, reclaim_policy, remove_adopt_request},
    volume::{ImportRecord, mark},
};

const RETAIN: &str = "Retain";

/// Ends the import of the PV `real`, if it has come so far. Whatever changes meanwhile is
/// looked at in turn.
pub(super) async fn settle(site: &Site, volume: &VirtualVolume, real: &str) -> Result<(), ApiError> {
    let Some(mark) = &volume.claim else {
        return Ok(());
    };
    let (claims, outers) = (
        site.home().within::<PersistentVolumeClaim>(&mark.namespace),
        site.home().all::<PersistentVolume>(),
    );
    let (reals, twins) = (site.volumes(), site.twins());
    let (claim, outer, real, twin) = tokio::try_join!(
        claims.get(&mark.name),
        outers.get(&volume.name),
        reals.get(real),
        twins.get(site.name())
    )?;
    let (Some(claim), Some(outer), Some(real), Some(twin)) = (claim, outer, real, twin) else {
        return Ok(());
    };
    let record = match ImportRecord::read(real.annotations()) {
        Ok(record) => record,
        Err(error) => {
            tracing::warn!(volume = %volume.volume, real = real.name_any(), %error, "the import of this PersistentVolume cannot be ended; it stays retained");
            return Ok(());
        }
    };
    let Some(record) = record else {
        return Ok(());
    };
    let wanted = facts::reclaim_policy(Some(reclaim_policy(&outer)));
    let end = settle_step(SettleFacts {
        imported: true,
        is_twins: is_bound(&real)
            && is_bound_to(&real, &twin)
            && twin.metadata.deletion_timestamp.is_none()
            && site.is_twin(&volume.volume, &twin)
            && twin.annotations().contains_key(mark::HANDED_OVER),
        is_users: is_users(&outer, &claim),
        retain: wanted == ReclaimPolicy::Retain,
    });
    let Some(end) = end else {
        return Ok(());
    };
    if !remove_adopt_request(site.home(), &claim).await? {
        return Ok(());
    }
    let before = record.policy.as_str();
    let (policy, replaced) = match end {
        Settle::PolicyBefore => (before, None),
        // So it is given back when the user wants the data to stay no more.
        Settle::Retain => (RETAIN, (before != RETAIN).then_some(before)),
    };
    let patch = json!({
        "metadata": {
            "uid": real.uid(),
            "resourceVersion": real.resource_version(),
            "annotations": {mark::IMPORT: null, mark::ADOPT_FOR: null, mark::POLICY_BEFORE: replaced},
        },
        "spec": {"persistentVolumeReclaimPolicy": policy},
    });
    let settled = crash::around(Step::SettleVolume, reals.merge(&real.name_any(), &patch)).await;
    if unless_conflict(settled)?.is_some() {
        tracing::info!(volume = %volume.volume, real = real.name_any(), policy, "an import has come to its end");
    }
    Ok(())
}

/// Whether a virtual PV is bound to this claim, which is there to stay.
fn is_users(outer: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let claim_phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    let named = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    is_bound(outer)
        && outer.metadata.deletion_timestamp.is_none()
        && is_bound_to(outer, claim)
        && claim.metadata.deletion_timestamp.is_none()
        && claim_phase == Some("Bound")
        && named == outer.metadata.name.as_deref()
}
