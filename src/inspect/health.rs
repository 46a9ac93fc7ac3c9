//! The state of a volume: its name, the reason, and what to do.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use super::{
    Storage,
    cases::{Case, claim_instead, class_name, id, is_of_another_version, volume_name, volume_of},
    consumers::{consumer, why_unscheduled},
    events,
    leftovers::{of_leftover, of_twin, of_volume, unfinished_transfer},
    names::{finalizers, full_name, reach, real_state},
    remote,
    state::{Health, State},
};
use crate::{
    cluster::{facts, slim::SELECTED_NODE},
    placement::{BindingMode, Diagnosis, Phase, TwinHealth, diagnose},
    volume::{mark, moving::is_gated},
};

pub(super) fn health(case: &Case<'_>, storage: &Storage) -> Health {
    if let Some(claim) = case.claim {
        return of_claim(claim, case, storage);
    }
    if let Some(transfer) = unfinished_transfer(case) {
        return Health::new(
            State::Pending,
            // Not as advice, which `volumes` does not print in this state.
            format!(
                "its {transfer} is not complete, and the data is kept: liqo-csi doctor names the commands that continue and undo it"
            ),
            "",
        );
    }
    match case {
        Case { twin: Some(twin), .. } => of_twin(twin, case, storage),
        Case {
            volume: Some(volume), ..
        } => of_volume(volume, case, storage),
        Case { real: Some(real), .. } => of_leftover(real),
        _ => Health::new(State::Unknown, "none of its objects exists", ""),
    }
}

fn of_claim(claim: &PersistentVolumeClaim, case: &Case<'_>, storage: &Storage) -> Health {
    if claim.metadata.deletion_timestamp.is_some() {
        return Health::new(
            State::Deleting,
            format!(
                "the claim is being deleted; {} still block that",
                finalizers(claim)
            ),
            "Delete the pods that use it.",
        );
    }
    if is_moving(claim, storage) {
        return Health::new(
            State::Twin(Diagnosis::Moving),
            "its volume is being moved; until the move ends, the claim has the phase Lost",
            "Do not change the claim or its PV: nothing is lost.",
        );
    }
    if let Some(other) = claim_instead(claim, storage) {
        let state = match phase(claim) {
            "Lost" | "Bound" => State::Lost,
            _ => State::Pending,
        };
        let name = volume_name(claim).unwrap_or("?");
        return Health::new(
            state,
            format!("its PV {name} belongs to the claim {other}"),
            "Only one claim can have the PV: delete this one if it is not needed.",
        );
    }
    match phase(claim) {
        "Lost" => Health::new(
            State::Lost,
            format!("its PV {} is gone", volume_name(claim).unwrap_or("?")),
            case.real.map_or_else(
                || "Restore the data from a backup into a new claim.".to_owned(),
                |real| {
                    format!(
                        "The data is still in the PV {}: bind a new claim to it.",
                        real.name_any()
                    )
                },
            ),
        ),
        "Bound" => of_bound(claim, case, storage),
        _ => of_pending(claim, case, storage),
    }
}

/// Whether a move keeps the claim from its PV.
pub(super) fn is_moving(claim: &PersistentVolumeClaim, storage: &Storage) -> bool {
    match volume_of(claim, storage) {
        Some(volume) => phase(claim) == "Lost" && is_gated(volume.annotations()),
        // After its commit, a move deletes the PV and creates it again.
        None => {
            storage.volumes.is_complete()
                && matches!(phase(claim), "Lost" | "Bound")
                && claim.annotations().contains_key(mark::MOVE)
        }
    }
}

fn of_pending(claim: &PersistentVolumeClaim, case: &Case<'_>, storage: &Storage) -> Health {
    let pending = |message: String| Health::new(State::Pending, message, describe(claim));
    let delayed = class_name(claim)
        .and_then(|name| storage.classes.named(None, name))
        .is_some_and(|class| facts::class(class).binding == BindingMode::WaitForFirstConsumer);
    if delayed && !claim.annotations().contains_key(SELECTED_NODE) {
        return match consumer(claim, storage) {
            Some(pod) => {
                // The scheduler does not know why a volume cannot be created or a cluster offers none; an event of the
                // claim says it.
                let event = events::warning(&storage.events, claim);
                let reason =
                    event.map_or_else(String::new, |event| format!("; the claim's last event: {event}"));
                pending(format!(
                    "its pod {} {}{reason}",
                    pod.name_any(),
                    why_unscheduled(pod)
                ))
            }
            None if !storage.consumers.is_complete() => Health::new(
                State::Unknown,
                "no node was selected yet; its pods cannot be read",
                describe(claim),
            ),
            None => Health::new(State::Waiting, "waits for its first pod", ""),
        };
    }
    if let Some(warning) = events::warning(&storage.events, claim) {
        return pending(warning.to_owned());
    }
    let Some(twin) = case.twin else {
        return Health::new(
            State::Pending,
            "it has no twin yet, and no event says why",
            "Check that csi-provisioner runs in the controller's pods, and see its log.",
        );
    };
    if let Some(warning) = events::warning(&storage.events, twin) {
        return pending(format!("its twin {}: {warning}", full_name(twin)));
    }
    match phase(twin) {
        "Bound" => pending(format!(
            "its twin {} is bound, the claim is not yet",
            full_name(twin)
        )),
        _ => Health::new(
            State::Pending,
            format!(
                "its twin {} waits for the driver of class {}",
                full_name(twin),
                class_name(twin).unwrap_or("?")
            ),
            describe(twin),
        ),
    }
}

fn of_bound(claim: &PersistentVolumeClaim, case: &Case<'_>, storage: &Storage) -> Health {
    let name = volume_name(claim).unwrap_or("?");
    let Some(volume) = volume_of(claim, storage) else {
        if !storage.volumes.is_complete() {
            return Health::new(State::Unknown, format!("its PV {name} cannot be read"), "");
        }
        return Health::new(
            State::Lost,
            format!("its PV {name} does not exist"),
            "Restore the data from a backup into a new claim.",
        );
    };
    if is_of_another_version(volume) {
        return Health::new(
            State::Unknown,
            format!(
                "its PV {name} was created by another version of this driver, which this one cannot read"
            ),
            "Install a version that can read it.",
        );
    }
    let Some(id) = id(volume) else {
        return Health::new(
            State::Foreign,
            format!("its PV {name} belongs to another driver"),
            "",
        );
    };
    let elsewhere = storage.home.as_ref().filter(|home| **home != id.cluster);
    match (case.twin, elsewhere) {
        (Some(_), Some(home)) => Health::new(
            State::Unknown,
            format!(
                "its twin is here, but its PV names the cluster {}; this cluster is {home}",
                id.cluster
            ),
            "Start the driver with the --cluster-id (chart: clusterID) that it had when the volume was created.",
        ),
        (Some(twin), None) => of_served(volume, twin, case, storage),
        (None, Some(_)) => remote::health(claim, volume, &id.cluster, storage),
        // If the id of this cluster is unknown, the twin may be elsewhere.
        (None, None) if storage.home.is_none() => remote::health(claim, volume, &id.cluster, storage),
        (None, None) if !storage.twins.is_complete() => {
            Health::new(State::Unknown, "its twin cannot be read", "")
        }
        (None, None) => without_twin(case, storage),
    }
}

fn of_served(
    volume: &PersistentVolume,
    twin: &PersistentVolumeClaim,
    case: &Case<'_>,
    storage: &Storage,
) -> Health {
    let twin_name = full_name(twin);
    let real_name = volume_name(twin).unwrap_or("?");
    let diagnosis = diagnose(Some(TwinHealth {
        deleting: twin.metadata.deletion_timestamp.is_some(),
        phase: Phase::read(Some(phase(twin))),
        has_volume: volume_name(twin).is_some(),
    }));
    let unhealthy = |message: String, advice: String| Health::new(State::Twin(diagnosis), message, advice);
    let restore =
        "Check whether the real storage still has the data; restore the data from a backup into a new claim.";
    match diagnosis {
        Diagnosis::Terminating => {
            let message = format!(
                "its twin {twin_name} is being deleted while the claim uses it; {} still block that",
                finalizers(twin)
            );
            let advice = format!(
                "A deletion cannot be undone. Make sure the reclaim policy of the PV {real_name} is Retain \
                 (kubectl patch pv {real_name} -p '{{\"spec\":{{\"persistentVolumeReclaimPolicy\":\"Retain\"}}}}') and back the data up."
            );
            return unhealthy(message, advice);
        }
        Diagnosis::Pending => {
            let message = format!(
                "its twin {twin_name} is not bound, though the claim is: it may have been created again, empty"
            );
            return unhealthy(message, describe(twin));
        }
        Diagnosis::Returning => {
            let message =
                format!("its twin {twin_name} was created again, and is not bound to {real_name} yet");
            return unhealthy(message, describe(twin));
        }
        Diagnosis::Lost => {
            let message = format!("the PV {real_name} of its twin {twin_name} is gone: the data may be lost");
            return unhealthy(message, restore.to_owned());
        }
        Diagnosis::Bound
        | Diagnosis::Ending
        | Diagnosis::Moving
        | Diagnosis::Superseded
        | Diagnosis::Unreachable
        | Diagnosis::Vanished => {}
    }
    if storage.volumes.is_complete() && case.real.is_none() {
        return Health::new(
            State::Twin(Diagnosis::Lost),
            format!("the PV {real_name} of its twin {twin_name} is gone: the data may be lost"),
            restore,
        );
    }
    if case
        .real
        .is_some_and(|real| real.metadata.deletion_timestamp.is_some())
    {
        return Health::new(
            State::Twin(Diagnosis::Terminating),
            format!("the PV {real_name} of its twin {twin_name} is being deleted while the claim uses it"),
            "A deletion cannot be undone, but it waits while the twin exists: back the data up.",
        );
    }
    if storage.nodes.is_complete() && reach(volume, storage).is_empty() {
        return Health::new(
            State::Unreachable,
            "no node of the cluster can reach its data",
            format!(
                "See the node affinity (kubectl describe pv {}), and restore the node that it requires.",
                volume.name_any()
            ),
        );
    }
    Health::fine(State::Bound)
}

fn without_twin(case: &Case<'_>, storage: &Storage) -> Health {
    let message = "its twin is gone";
    match case.real {
        Some(real) => Health::new(
            State::Twin(Diagnosis::Vanished),
            format!(
                "{message}; its data is still in the PV {} ({})",
                real.name_any(),
                real_state(real)
            ),
            format!(
                "Set the reclaim policy of the PV {} to Retain before anything else.",
                real.name_any()
            ),
        ),
        None if storage.namespace.is_none() => Health::new(
            State::Twin(Diagnosis::Vanished),
            format!("{message}; whether the PV behind it exists is unknown"),
            "Run this again with --storage-namespace.",
        ),
        None => Health::new(
            State::Twin(Diagnosis::Vanished),
            format!("{message}, and so is the PV behind it: the data may be lost"),
            "Check whether the real storage still has the data; restore the data from a backup into a new claim.",
        ),
    }
}

fn describe(claim: &PersistentVolumeClaim) -> String {
    format!(
        "kubectl describe pvc -n {} {}",
        claim.namespace().unwrap_or_default(),
        claim.name_any()
    )
}

fn phase(claim: &PersistentVolumeClaim) -> &str {
    claim
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}
