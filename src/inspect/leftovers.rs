//! The state of a volume without its claim: retained, being deleted, or orphaned.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use super::{
    Storage,
    cases::Case,
    names::{finalizers, real_state},
    state::{Health, State},
};
use crate::{
    cluster::facts,
    placement::{Diagnosis, ReclaimPolicy},
    volume::{ClusterId, mark},
};

/// The import or release that has begun and is not complete. Its objects lack others between its steps.
pub(super) fn unfinished_transfer(case: &Case<'_>) -> Option<&'static str> {
    let real = |key: &str| case.real.is_some_and(|real| real.annotations().contains_key(key));
    let twin = |key: &str| case.twin.is_some_and(|twin| twin.annotations().contains_key(key));
    if real(mark::IMPORT) {
        Some("import")
    } else if real(mark::RELEASE) || twin(mark::RELEASING) {
        Some("release")
    } else {
        None
    }
}

/// The state of a twin without its claim.
pub(super) fn of_twin(twin: &PersistentVolumeClaim, case: &Case<'_>, storage: &Storage) -> Health {
    let served = case.marks.as_ref().is_some_and(|marks| marks.handed_over);
    if let (Some(home), Some(marks)) = (&storage.home, &case.marks)
        && *home != marks.home
    {
        return Health::new(State::Guest, format!("it serves the cluster {}", marks.home), "");
    }
    if storage.home.is_none() && case.volume.is_none() {
        return Health::new(State::Unknown, "whether it serves this cluster is unknown", "");
    }
    if !storage.claims.is_complete() {
        return Health::new(State::Unknown, "whether its claim exists is unknown", "");
    }
    if twin.metadata.deletion_timestamp.is_some() {
        return Health::new(
            State::Deleting,
            format!(
                "the claim is gone and the twin is being deleted; {} still block that",
                finalizers(twin)
            ),
            "",
        );
    }
    if let Some(volume) = case.volume {
        return of_volume(volume, case, storage);
    }
    if !storage.volumes.is_complete() {
        return Health::new(
            State::Unknown,
            "the claim is gone; whether its PV exists is unknown",
            "",
        );
    }
    if served {
        return Health::new(
            State::Orphaned,
            "the twin has the data of a claim that is gone together with its PV (removed by hand, or etcd was restored)",
            format!(
                "The driver never deletes it. If the data is not needed: kubectl delete pvc -n {} {}, then set the reclaim \
                 policy of its PV, which is retained, back to Delete",
                twin.namespace().unwrap_or_default(),
                twin.name_any()
            ),
        );
    }
    if case.marks.as_ref().is_none_or(|marks| marks.claim.is_none()) {
        return Health::new(
            State::Orphaned,
            "the claim for which the twin was created is unknown",
            "The driver does not touch it. If it is not needed, delete it.",
        );
    }
    Health::new(
        State::Abandoned,
        "its claim was deleted, or got another volume, before it was handed over; the driver deletes it after the grace period",
        "",
    )
}

/// The state of a virtual PV without its claim.
pub(super) fn of_volume(volume: &PersistentVolume, case: &Case<'_>, storage: &Storage) -> Health {
    let name = volume.name_any();
    if !storage.claims.is_complete() {
        return Health::new(
            State::Unknown,
            format!("whether the claim of the PV {name} exists is unknown"),
            "",
        );
    }
    let is_here = case
        .id
        .as_ref()
        .is_some_and(|id| storage.home.as_ref() == Some(&id.cluster));
    // Without the namespace of the twins, the PV behind a twin that is gone cannot be recognised.
    let is_searched = storage.twins.is_complete() && storage.namespace.is_some();
    if is_here && is_searched && case.twin.is_none() && case.real.is_none() {
        return Health::new(
            State::Twin(Diagnosis::Vanished),
            format!("only the PV {name} is left"),
            format!("It has no data any more: kubectl delete pv {name}"),
        );
    }
    let spec = volume.spec.clone().unwrap_or_default();
    if facts::reclaim_policy(spec.persistent_volume_reclaim_policy.as_deref()) == ReclaimPolicy::Retain {
        let place = elsewhere(case, storage).map_or_else(String::new, |it| format!(" in the cluster {it}"));
        return Health::new(
            State::Retained,
            format!("the claim is gone; the PV {name} keeps the data{place} (Retain)"),
            format!(
                "To give it to a new claim, remove spec.claimRef of the PV {name}; to delete it, set its reclaim policy to Delete."
            ),
        );
    }
    let mut deleting = deleting(volume);
    if deleting.advice.is_empty()
        && let Some(cluster) = elsewhere(case, storage)
    {
        deleting.advice = format!(
            "If it remains, see whether the cluster {cluster} is declared and can be reached: liqo-csi clusters"
        );
    }
    deleting
}

/// The cluster of the data, unless it is the home cluster.
fn elsewhere<'a>(case: &'a Case<'_>, storage: &Storage) -> Option<&'a ClusterId> {
    let cluster = case.id.as_ref().map(|id| &id.cluster);
    cluster.filter(|it| storage.home.as_ref().is_some_and(|home| home != *it))
}

/// The state of the PV of a twin when no other object is left.
pub(super) fn of_leftover(real: &PersistentVolume) -> Health {
    let name = real.name_any();
    let spec = real.spec.clone().unwrap_or_default();
    let reference = spec.claim_ref.unwrap_or_default();
    if reference.uid.is_none() {
        return Health::new(
            State::Orphaned,
            format!("the PV {name} is reserved for a twin that does not exist"),
            format!(
                "To make it available: kubectl patch pv {name} --type=json -p '[{{\"op\":\"remove\",\"path\":\"/spec/claimRef\"}}]'"
            ),
        );
    }
    if facts::reclaim_policy(spec.persistent_volume_reclaim_policy.as_deref()) == ReclaimPolicy::Retain {
        return Health::new(
            State::Retained,
            format!("claim and twin are gone; the PV {name} keeps the data (Retain)"),
            format!(
                "If the data is not needed: kubectl delete pv {name}, and delete it in the real storage."
            ),
        );
    }
    deleting(real)
}

fn deleting(volume: &PersistentVolume) -> Health {
    let name = volume.name_any();
    let failure = volume
        .status
        .as_ref()
        .and_then(|status| status.message.as_deref())
        .filter(|it| !it.is_empty());
    let because = failure.map_or_else(String::new, |why| format!(": {why}"));
    Health::new(
        State::Deleting,
        format!(
            "the claim is gone; the PV {name} is {} and being deleted{because}",
            real_state(volume)
        ),
        failure.map_or_else(String::new, |_| format!("kubectl describe pv {name}")),
    )
}
