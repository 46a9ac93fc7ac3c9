//! Completes an import: once the user's claim is bound to its volume, the record of the import is removed
//! from the real PV, and its reclaim policy restored. Until then the PV is Retain, and its data is kept
//! whatever happens to the claim.

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

/// Completes the import of the PV `real`, if all its objects are bound. After a conflict the next round
/// tries again.
pub(super) async fn settle(site: &Site, volume: &VirtualVolume, real: &str) -> Result<(), ApiError> {
    let Some(mark) = &volume.claim else {
        return Ok(());
    };
    let (claims, virtual_pvs) = (
        site.home().within::<PersistentVolumeClaim>(&mark.namespace),
        site.home().all::<PersistentVolume>(),
    );
    let (reals, twins) = (site.volumes(), site.twins());
    let (claim, virtual_pv, real, twin) = tokio::try_join!(
        claims.get(&mark.name),
        virtual_pvs.get(&volume.name),
        reals.get(real),
        twins.get(site.name())
    )?;
    let (Some(claim), Some(virtual_pv), Some(real), Some(twin)) = (claim, virtual_pv, real, twin) else {
        return Ok(());
    };
    let record = match ImportRecord::read(real.annotations()) {
        Ok(record) => record,
        Err(error) => {
            tracing::warn!(volume = %volume.volume, real = real.name_any(), %error, "the import of this PersistentVolume cannot be completed; it stays Retain");
            return Ok(());
        }
    };
    let Some(record) = record else {
        return Ok(());
    };
    let wanted = facts::reclaim_policy(Some(reclaim_policy(&virtual_pv)));
    let end = settle_step(SettleFacts {
        imported: true,
        is_twins: is_bound(&real)
            && is_bound_to(&real, &twin)
            && twin.metadata.deletion_timestamp.is_none()
            && site.is_twin(&volume.volume, &twin)
            && twin.annotations().contains_key(mark::HANDED_OVER),
        is_users: is_users(&virtual_pv, &claim),
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
        // Recorded, so that it is restored if the user later chooses Delete.
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
        tracing::info!(volume = %volume.volume, real = real.name_any(), policy, "completed an import");
    }
    Ok(())
}

/// Whether a virtual PV is bound to this claim, and neither is being deleted.
fn is_users(virtual_pv: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let claim_phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    let named = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    is_bound(virtual_pv)
        && virtual_pv.metadata.deletion_timestamp.is_none()
        && is_bound_to(virtual_pv, claim)
        && claim.metadata.deletion_timestamp.is_none()
        && claim_phase == Some("Bound")
        && named == virtual_pv.metadata.name.as_deref()
}
