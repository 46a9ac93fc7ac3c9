//! The `claimRef` of a PV, and what keeps another claim from binding to it while its own claim is gone.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde_json::Value;

use super::observer::{BOUND_BY_CONTROLLER, phase, volume_name};
use crate::{
    cluster::facts,
    placement::transfer::Holder,
    twin::{claim_ref, holder_uid, is_bound, reclaim_policy},
    volume::{ClaimName, mark},
};

/// The `claimRef` for a claim of this name and uid, which need not exist: then no claim can bind to the PV.
pub(super) fn reference_to(claim: &ClaimName, uid: &str) -> Value {
    let mut reference = claim_ref(&claim.namespace, &claim.name);
    reference["uid"] = uid.into();
    reference
}

/// The holder of a PV whose `claimRef` has this claim's name. A `claimRef` without a uid has no holder.
pub(super) fn claim_holder(claim: Option<&PersistentVolumeClaim>, volume: &PersistentVolume) -> Holder {
    match claim.filter(|claim| is_named(claim, volume)) {
        Some(claim) => Holder::Claim {
            bound: is_bound(volume) && phase(claim) == "Bound",
        },
        None => Holder::Gone,
    }
}

fn is_named(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    claim.metadata.uid.is_some() && holder_uid(volume) == claim.metadata.uid.as_deref()
}

/// Whether the data of a PV is retained whatever happens to claims.
pub(super) fn is_kept(volume: &PersistentVolume) -> bool {
    let marked = |key| volume.annotations().contains_key(key);
    reclaim_policy(volume) == "Retain" && !marked(BOUND_BY_CONTROLLER) && !marked(mark::POLICY_BEFORE)
}

/// Whether the next claim of this name can bind to the PV, now or soon: its `claimRef` is empty, or has only
/// the name, or names a claim that has another PV, whose uid Kubernetes removes then.
pub(super) fn is_claimable(
    volume: &PersistentVolume,
    name: &ClaimName,
    claim: Option<&PersistentVolumeClaim>,
) -> bool {
    let spec = volume.spec.as_ref();
    let Some(reference) = spec.and_then(|spec| spec.claim_ref.as_ref()) else {
        return true;
    };
    if facts::claim_name(reference) != *name {
        return false;
    }
    let by_name_alone = holder_uid(volume).is_none_or(str::is_empty);
    let has_another = |claim: &PersistentVolumeClaim| {
        let own = volume_name(claim);
        is_named(claim, volume) && own.is_some() && own != volume.metadata.name.as_deref()
    };
    by_name_alone || claim.is_some_and(has_another)
}

/// Whether a claim still has the mark with which it was created, although Kubernetes knows that the PV names
/// it: the PV controller does not process the claim because of that, but only when the claim changes.
pub(super) fn is_overlooked(
    claim: Option<&PersistentVolumeClaim>,
    volume: Option<&PersistentVolume>,
) -> bool {
    let (Some(claim), Some(volume)) = (claim, volume) else {
        return false;
    };
    claim.annotations().contains_key(mark::AWAITS_VOLUME) && is_named(claim, volume) && is_bound(volume)
}
