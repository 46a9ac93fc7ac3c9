//! Sets the reclaim policy of a twin's PV as the user wants it, from a live read of both PVs.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use serde_json::json;

use super::watched::VirtualVolume;
use crate::{
    cluster::{ApiError, facts},
    observe::crash::Step,
    placement::{PolicyFacts, PolicyStep, ReclaimPolicy, moving::policy_wanted, policy_step},
    twin::{Site, is_bound_to, is_of_move, is_releasing, reclaim_policy, restore_reclaim_policy, retain},
    volume::{mark, moving::VolumeMark},
};

/// Reconciles the reclaim policy of the PV `real`; returns whether the user wants its data retained, which the
/// view of `volume` may not show yet. `None` if it has to be checked again.
pub(super) async fn follow(
    site: &Site,
    volume: &VirtualVolume,
    real: &str,
) -> Result<Option<bool>, ApiError> {
    let (virtual_pvs, reals, twins) = (
        site.home().all::<PersistentVolume>(),
        site.volumes(),
        site.twins(),
    );
    let (virtual_pv, real, twin) = tokio::try_join!(
        virtual_pvs.get(&volume.name),
        reals.get(real),
        twins.get(site.name())
    )?;
    let (Some(virtual_pv), Some(real), Some(twin)) = (virtual_pv, real, twin) else {
        return Ok(Some(volume.retain));
    };
    let Ok(gate) = VolumeMark::read(virtual_pv.annotations()) else {
        // The mark of a move, which may record the wanted policy, cannot be read.
        return Ok(Some(volume.retain));
    };
    let wanted = policy_wanted(policy(&virtual_pv), gate.as_ref());
    let facts = PolicyFacts {
        wanted,
        has: policy(&real),
        replaced: real.annotations().contains_key(mark::POLICY_BEFORE),
        bound: is_bound_to(&real, &twin)
            && twin.metadata.deletion_timestamp.is_none()
            && !is_releasing(&twin)
            && !is_of_move(site.home(), &twin).await
            && !real.annotations().contains_key(mark::RELEASE),
    };
    let is_done = match policy_step(facts) {
        PolicyStep::Retain => retain(site, &volume.volume, &real, Step::Retain).await?.is_some(),
        PolicyStep::GiveBack => {
            let given_back = restore_reclaim_policy(site.cluster(), &real, json!({})).await?;
            if given_back {
                tracing::info!(volume = %volume.volume, real = real.name_any(), "restored the reclaim policy of the twin's PV");
            }
            given_back
        }
        PolicyStep::Leave => true,
    };
    Ok(is_done.then_some(wanted == ReclaimPolicy::Retain))
}

fn policy(volume: &PersistentVolume) -> ReclaimPolicy {
    facts::reclaim_policy(Some(reclaim_policy(volume)))
}
