//! How a volume without its claim is: kept on purpose, on its way out, or forgotten.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use super::{
    Storage,
    cases::Case,
    state::{Health, State},
    words::{finalizers, real_state},
};
use crate::{
    cluster::facts,
    placement::{Diagnosis, ReclaimPolicy},
};

/// A twin without its claim.
pub(super) fn of_twin(twin: &PersistentVolumeClaim, case: &Case<'_>, storage: &Storage) -> Health {
    let served = case.marks.as_ref().is_some_and(|marks| marks.handed_over);
    if let (Some(home), Some(marks)) = (&storage.home, &case.marks)
        && *home != marks.home
    {
        return Health::new(State::Guest, format!("it serves the cluster {}", marks.home), "");
    }
    if !storage.claims.is_complete() {
        return Health::new(State::Unknown, "it is not known whether its claim exists", "");
    }
    if twin.metadata.deletion_timestamp.is_some() {
        return Health::new(
            State::Deleting,
            format!(
                "the claim is gone and the twin is being deleted; {} still hold it",
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
            "the claim is gone; it is not known whether its PV exists",
            "",
        );
    }
    if served {
        return Health::new(
            State::Orphaned,
            "the twin holds data of a claim that is gone, with its PV (removed by hand, or etcd was restored)",
            format!(
                "The driver never deletes it. If nobody needs the data: kubectl delete pvc -n {} {}, then set the reclaim \
                 policy of its PV, which is retained, back to Delete",
                twin.namespace().unwrap_or_default(),
                twin.name_any()
            ),
        );
    }
    if case.marks.as_ref().is_none_or(|marks| marks.claim.is_none()) {
        return Health::new(
            State::Orphaned,
            "it is not known for which claim the twin was made",
            "The driver leaves it alone. If nobody needs it, delete it.",
        );
    }
    Health::new(
        State::Abandoned,
        "its claim went before it was served; the driver deletes it after the grace period",
        "",
    )
}

/// A virtual PV without its claim.
pub(super) fn of_volume(volume: &PersistentVolume, case: &Case<'_>, storage: &Storage) -> Health {
    let name = volume.name_any();
    if !storage.claims.is_complete() {
        return Health::new(
            State::Unknown,
            format!("it is not known whether the claim of the PV {name} exists"),
            "",
        );
    }
    let is_elsewhere = case.id.as_ref().map(|id| &id.cluster) != storage.home.as_ref();
    if !is_elsewhere && storage.twins.is_complete() && case.twin.is_none() && case.real.is_none() {
        return Health::new(
            State::Twin(Diagnosis::Vanished),
            format!("nothing is left but the PV {name}"),
            format!("It holds no data any more: kubectl delete pv {name}"),
        );
    }
    let spec = volume.spec.clone().unwrap_or_default();
    if facts::reclaim_policy(spec.persistent_volume_reclaim_policy.as_deref()) == ReclaimPolicy::Retain {
        return Health::new(
            State::Retained,
            format!(
                "the claim is gone; the PV {name} keeps the data{} (Retain)",
                place(case, storage)
            ),
            format!(
                "To give it to a new claim, remove spec.claimRef of the PV {name}; to delete it, set its reclaim policy to Delete."
            ),
        );
    }
    deleting(volume)
}

/// Where the data is, if it is known to be in another cluster.
fn place(case: &Case<'_>, storage: &Storage) -> String {
    match (&case.id, &storage.home) {
        (Some(id), Some(home)) if id.cluster != *home => format!(" in the cluster {}", id.cluster),
        _ => String::new(),
    }
}

/// The PV of a twin, when nothing else is left.
pub(super) fn of_leftover(real: &PersistentVolume) -> Health {
    let name = real.name_any();
    let spec = real.spec.clone().unwrap_or_default();
    let reference = spec.claim_ref.unwrap_or_default();
    if reference.uid.is_none() {
        return Health::new(
            State::Orphaned,
            format!("the PV {name} is reserved for a twin that does not exist"),
            format!(
                "To free it: kubectl patch pv {name} --type=json -p '[{{\"op\":\"remove\",\"path\":\"/spec/claimRef\"}}]'"
            ),
        );
    }
    if facts::reclaim_policy(spec.persistent_volume_reclaim_policy.as_deref()) == ReclaimPolicy::Retain {
        return Health::new(
            State::Retained,
            format!("claim and twin are gone; the PV {name} keeps the data (Retain)"),
            format!("If nobody needs the data: kubectl delete pv {name}, and delete it in the real storage."),
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
