//! Whom a PV names, and what keeps its data from becoming somebody else's while its claim is gone.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde_json::Value;

use super::look::{BOUND_BY_CONTROLLER, phase, volume_name};
use crate::{
    cluster::facts,
    placement::transfer::Holder,
    twin::{claim_ref, holder_uid, is_bound, reclaim_policy},
    volume::{ClaimName, mark},
};

/// How a PV names the claim of this name and uid, which need not be there: then nobody gets the PV.
pub(super) fn reference_to(claim: &ClaimName, uid: &str) -> Value {
    let mut reference = claim_ref(&claim.namespace, &claim.name);
    reference["uid"] = uid.into();
    reference
}

/// How it stands with a PV that names this claim's name. By the name alone nobody has it.
pub(super) fn claim_holds(claim: Option<&PersistentVolumeClaim>, volume: &PersistentVolume) -> Holder {
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

/// Whether the data of a PV stays whatever happens to claims.
pub(super) fn is_kept(volume: &PersistentVolume) -> bool {
    let marked = |key| volume.annotations().contains_key(key);
    reclaim_policy(volume) == "Retain" && !marked(BOUND_BY_CONTROLLER) && !marked(mark::POLICY_BEFORE)
}

/// Whether a PV is that of whoever gets this name next, or soon will be: it names nobody, or the
/// name alone, or a claim that has another PV, whose uid Kubernetes takes off then.
pub(super) fn is_offered(
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

/// Whether a claim has the mark still that it was made with, although Kubernetes knows that the PV
/// names it: it does not look at the claim because of that, but once the claim changes.
pub(super) fn is_overlooked(
    claim: Option<&PersistentVolumeClaim>,
    volume: Option<&PersistentVolume>,
) -> bool {
    let (Some(claim), Some(volume)) = (claim, volume) else {
        return false;
    };
    claim.annotations().contains_key(mark::AWAITS_VOLUME) && is_named(claim, volume) && is_bound(volume)
}
