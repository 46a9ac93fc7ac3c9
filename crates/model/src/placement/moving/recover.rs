//! The recovery of the source after the commit, for one claim: its target was lost, and the user requests it.
//! The source, kept as it was at the commit, gets the volume under a new gate, in the epoch after the target's.
//! If the target returns, its twin is of an earlier epoch: it is marked as superseded and kept.

use super::{
    ClaimDecision, ClaimFacts, ClaimNow, ClaimStep, HeldBy, Helpers, Live, Lock, MoveFacts, Serves, Side,
    SourceTwin, Stage, TargetTwin, VirtualVolume, VolumeNow, Waiting,
    claim::unknown,
    committed::{bound, deleted},
    gated::claim_lost,
    rollback::{opened_there, release_deleted_pv, remove_helpers, restore_policy, unlocked},
};
use crate::volume::{
    ReclaimPolicy,
    moving::{GateNote, GateNumber, MoveUid, SourceMark, VolumeMark},
};

/// Why the source cannot be recovered, by claim; `None` if no recovery is requested.
pub(super) fn obstacles(of: &MoveFacts, claims: &[ClaimFacts]) -> Option<Vec<(usize, Waiting)>> {
    let is_possible = matches!(of.stage, Stage::Committed(_) | Stage::Retaining(_));
    if !(is_possible && of.requested.recover) {
        return None;
    }
    let all = claims.iter().enumerate().filter_map(|(index, facts)| {
        let why = obstacle(&of.uid, facts)?;
        Some((index, Waiting::NotRecovered(why)))
    });
    Some(all.collect())
}

fn obstacle(by: &MoveUid, facts: &ClaimFacts) -> Option<String> {
    let why = match (&facts.target, &facts.source, &facts.claim, &facts.volume) {
        (Live::Unknown(why), ..) if !facts.target_out_of_service => {
            return Some(format!(
                "the cluster of the target does not answer ({why}), so its volume may be in use. If that cluster is lost, taint its \
                 virtual node with node.kubernetes.io/out-of-service, or delete its RemoteCluster"
            ));
        }
        (
            Live::Known(
                TargetTwin::Exists { .. }
                | TargetTwin::TakesName(_)
                | TargetTwin::Foreign(_)
                | TargetTwin::Superseded,
            ),
            ..,
        ) => "the target is not lost: a claim with the name of its twin exists",
        _ if facts.same_namespace => {
            "after a move within one remote cluster the source has no claim any more, only a PersistentVolume"
        }
        (_, Live::Unknown(why), ..) => {
            return Some(format!("the cluster of the source does not answer: {why}"));
        }
        (_, Live::Known(source), ..) if !is_kept(by, source) => {
            "the source does not exist, or is being deleted"
        }
        _ if facts.source_helpers != Live::Known(Helpers::Absent) => {
            "the pods that copied still exist at the source"
        }
        (_, _, ClaimNow::Absent | ClaimNow::Exists { deleting: true, .. }, _) => {
            "the claim was deleted: its data is left only at the source"
        }
        (
            ..,
            ClaimNow::Exists {
                lock: Lock::Theirs { by, counts: true },
                ..
            },
            _,
        ) => {
            return Some(format!(
                "the VolumeMove with the uid {by} moves the claim: cancel that first"
            ));
        }
        (.., VolumeNow::Exists(volume)) if !is_to_be_replaced(volume) => {
            "the PersistentVolume of the claim does not refer to the target"
        }
        _ if facts.recorded.is_none() => "the status has no record of the PersistentVolume",
        _ => return None,
    };
    Some(why.to_owned())
}

/// Whether the source is in its state after the commit.
fn is_kept(by: &MoveUid, source: &SourceTwin) -> bool {
    matches!(
        source,
        SourceTwin::Exists { mark: Some(SourceMark::Superseded { by: other, .. }), deleting: false, .. } if other == by
    )
}

/// Whether the PV refers to the target, or to the source in its old epoch.
fn is_to_be_replaced(volume: &VirtualVolume) -> bool {
    matches!(volume.serves, Serves::Source | Serves::Target)
}

pub(super) fn step(
    by: &MoveUid,
    gate: GateNumber,
    overdue: bool,
    facts: &ClaimFacts,
) -> Option<ClaimDecision> {
    left(facts).or_else(|| match (&facts.volume, &facts.claim) {
        (VolumeNow::Exists(volume), _)
            if volume.serves == Serves::Recovered && facts.note_of(by).is_none() =>
        {
            unlocked(facts)
        }
        // The claim was recovered, and then deleted with its data.
        (VolumeNow::Absent, ClaimNow::Absent)
            if matches!(facts.source, Live::Known(SourceTwin::Gone { .. })) =>
        {
            None
        }
        _ => locked(by, facts)
            .or_else(|| gated(by, gate, facts))
            .or_else(|| opened_there(by, gate, facts))
            .or_else(|| source_recovered(facts))
            .or_else(|| replaced(by, gate, facts))
            .or_else(|| kept(by, overdue, facts)),
    })
}

/// Steps for a target that returns, and for leftover movers, whenever a cluster is reachable. The move does
/// not wait for them.
pub(super) fn left(facts: &ClaimFacts) -> Option<ClaimDecision> {
    match &facts.target {
        Live::Known(TargetTwin::Exists {
            at, retained: false, ..
        }) => Some(ClaimDecision::Do(ClaimStep::RetainTarget { target: at.clone() })),
        Live::Known(TargetTwin::Exists { at, .. }) => Some(ClaimDecision::Do(ClaimStep::SupersedeTarget {
            target: at.clone(),
        })),
        Live::Known(_) | Live::Unknown(_) => remove_helpers(facts),
    }
}

fn locked(by: &MoveUid, facts: &ClaimFacts) -> Option<ClaimDecision> {
    let ClaimNow::Exists {
        at,
        deleting: false,
        lock,
        ..
    } = &facts.claim
    else {
        return None;
    };
    match lock {
        Lock::Ours => None,
        Lock::Theirs { by, counts: true } => Some(taken(format!("the VolumeMove with the uid {by}"))),
        Lock::Free | Lock::Theirs { counts: false, .. } => Some(ClaimDecision::Do(ClaimStep::Lock {
            claim: at.clone(),
            by: by.clone(),
        })),
    }
}

fn taken(who: String) -> ClaimDecision {
    ClaimDecision::Await(Waiting::VolumeTaken(who))
}

/// Gates the PV, so that no pod starts with the target before the PV is replaced.
fn gated(by: &MoveUid, gate: GateNumber, facts: &ClaimFacts) -> Option<ClaimDecision> {
    let VolumeNow::Exists(volume) = &facts.volume else {
        return None;
    };
    if volume.deleting || !is_to_be_replaced(volume) {
        return None;
    }
    let note = match &volume.mark {
        Some(VolumeMark::Gated(note)) if note.by != *by => {
            return Some(taken(format!("the VolumeMove with the uid {}", note.by)));
        }
        Some(VolumeMark::Gated(note)) => GateNote { gate, ..note.clone() },
        Some(VolumeMark::Ungated { .. }) | None => GateNote {
            by: by.clone(),
            gate,
            policy: volume.policy,
            claim_uid: facts.recorded.as_ref()?.claim_uid.clone(),
        },
    };
    let is_closed = volume.held_by == HeldBy::Move
        && volume.policy == ReclaimPolicy::Retain
        && facts.note_of(by) == Some(&note);
    match &volume.held_by {
        HeldBy::Other(who) => Some(taken(who.clone())),
        HeldBy::Claim | HeldBy::Move if !is_closed => Some(ClaimDecision::Do(ClaimStep::Gate {
            volume: volume.at.clone(),
            note,
        })),
        HeldBy::Claim | HeldBy::Move => match &facts.claim {
            ClaimNow::Exists { deleting: false, .. } => claim_lost(facts, gate),
            ClaimNow::Exists { .. } | ClaimNow::Absent => None,
        },
    }
}

fn source_recovered(facts: &ClaimFacts) -> Option<ClaimDecision> {
    match (&facts.source, &facts.recorded) {
        (Live::Unknown(why), _) => Some(unknown(Side::Source, why)),
        (Live::Known(SourceTwin::Recovered), _) => None,
        (
            Live::Known(SourceTwin::Exists {
                at, deleting: false, ..
            }),
            Some(recorded),
        ) => Some(ClaimDecision::Do(ClaimStep::RecoverSource {
            source: at.clone(),
            policy: recorded.policy,
        })),
        (Live::Known(SourceTwin::Exists { deleting: false, .. }), None) => {
            Some(ClaimDecision::Await(Waiting::NoManifest))
        }
        (Live::Known(SourceTwin::Gone { .. } | SourceTwin::Exists { .. }), _) => {
            Some(ClaimDecision::Await(Waiting::SourceGone))
        }
    }
}

fn replaced(by: &MoveUid, gate: GateNumber, facts: &ClaimFacts) -> Option<ClaimDecision> {
    let volume = match (&facts.volume, &facts.recorded) {
        (VolumeNow::Exists(volume), _) => volume,
        (VolumeNow::Absent, None) => return Some(ClaimDecision::Await(Waiting::NoManifest)),
        (VolumeNow::Absent, Some(recorded)) => {
            return Some(ClaimDecision::Do(ClaimStep::MakeVolume {
                of: Side::Source,
                note: recorded.note(by, gate),
            }));
        }
    };
    match &volume.serves {
        Serves::Source | Serves::Target if volume.deleting => Some(release_deleted_pv(volume)),
        Serves::Source | Serves::Target => Some(deleted(volume)),
        Serves::Recovered => bound(by, facts, volume),
        Serves::Later => Some(taken("a later move".to_owned())),
        Serves::Other(handle) => Some(taken(handle.clone())),
    }
}

/// A claim that was deleted while it was Lost: its data is kept for a while, as before the commit.
fn kept(by: &MoveUid, overdue: bool, facts: &ClaimFacts) -> Option<ClaimDecision> {
    let (true, VolumeNow::Exists(volume), Some(note)) = (facts.is_kept(by), &facts.volume, facts.note_of(by))
    else {
        return None;
    };
    Some(if overdue {
        restore_policy(note, volume)
    } else {
        ClaimDecision::Await(Waiting::BothKept)
    })
}
