//! Steps 9 to 12 for one claim, when the volume is at the target and the move can only be completed: the
//! source is marked as superseded, the target handed over, the PV replaced by one of the same name and bound
//! to the claim, and later the source is released.

use super::{
    ClaimDecision, ClaimFacts, ClaimNow, ClaimStep, HeldBy, Helpers, Live, Lock, Pass, Recorded, Serves,
    Side, SourceTwin, TargetTwin, VirtualVolume, VolumeNow, Waiting,
    claim::unknown,
    gated::pass,
    rollback::{
        bound_again, helpers_removed, release_deleted_pv, restore_claim_ref, restore_policy, unlocked,
    },
};
use crate::volume::{
    ReclaimPolicy,
    moving::{GateNote, GateNumber, MoveUid, SourceMark},
};

/// Steps 9 to 11.
pub(super) fn step(by: &MoveUid, gate: GateNumber, facts: &ClaimFacts) -> Option<ClaimDecision> {
    source_superseded(by, facts)
        .or_else(|| journal_taken_off(gate, facts))
        .or_else(|| helpers_gone_for_users(facts))
        .or_else(|| match arrival(by, facts) {
            Arrival::Arrived => unlocked(facts),
            Arrival::Deleted if matches!(facts.target, Live::Known(TargetTwin::Absent)) => None,
            Arrival::Deleted | Arrival::Due => handed_over(facts).or_else(|| replaced(by, gate, facts)),
        })
}

/// Step 12.
pub(super) fn retaining(
    by: &MoveUid,
    gate: GateNumber,
    overdue: bool,
    facts: &ClaimFacts,
) -> Option<ClaimDecision> {
    source_superseded(by, facts)
        .or_else(|| helpers_gone(facts))
        .or_else(|| match arrival(by, facts) {
            Arrival::Arrived => unlocked(facts),
            Arrival::Deleted => None,
            Arrival::Due if is_moved_again(facts) => None,
            Arrival::Due => replaced(by, gate, facts),
        })
        .or_else(|| (!overdue).then(|| ClaimDecision::Await(waits_for(by, facts))))
        .or_else(|| kept_released(by, facts))
        .or_else(|| source_released(by, facts))
}

/// Whether another move has locked the claim, or has moved it since. Then only that move replaces the PV.
fn is_moved_again(facts: &ClaimFacts) -> bool {
    let is_locked = |claim: &ClaimNow| {
        matches!(
            claim,
            ClaimNow::Exists {
                lock: Lock::Theirs { .. },
                ..
            }
        )
    };
    is_locked(&facts.claim) || has_moved_on(facts)
}

fn has_moved_on(facts: &ClaimFacts) -> bool {
    matches!(&facts.volume, VolumeNow::Exists(volume) if volume.serves == Serves::Later)
}

fn waits_for(by: &MoveUid, facts: &ClaimFacts) -> Waiting {
    if facts.is_kept(by) {
        Waiting::BothKept
    } else {
        Waiting::Retention
    }
}

/// The progress of steps 10 and 11.
enum Arrival {
    /// The claim finally has the PV that refers to the target. From then on the volume is like any other, and
    /// may be deleted.
    Arrived,
    /// Claim and PV do not exist.
    Deleted,
    /// The claim does not have its PV yet.
    Due,
}

fn arrival(by: &MoveUid, facts: &ClaimFacts) -> Arrival {
    match (&facts.volume, &facts.claim) {
        (VolumeNow::Exists(volume), _) if volume.serves == Serves::Target && facts.note_of(by).is_none() => {
            Arrival::Arrived
        }
        (VolumeNow::Absent, ClaimNow::Absent) => Arrival::Deleted,
        _ => Arrival::Due,
    }
}

/// First, so that the twin itself rejects callers that do not know of the commit. An unreachable source is
/// marked when it is reachable: step 9 needs only the target.
fn source_superseded(by: &MoveUid, facts: &ClaimFacts) -> Option<ClaimDecision> {
    let Live::Known(SourceTwin::Exists {
        at,
        mark,
        deleting: false,
        ..
    }) = &facts.source
    else {
        return None;
    };
    if matches!(mark, Some(SourceMark::Superseded { .. })) {
        return None;
    }
    Some(ClaimDecision::Do(ClaimStep::MarkSource {
        source: at.clone(),
        mark: SourceMark::Superseded {
            by: by.clone(),
            epoch: facts.epoch,
        },
    }))
}

/// The mover of the target removes the journal before it is deleted and the volume is handed over. The data
/// is complete with or without it, so a mover that has died, or cannot remove it, does not delay the users.
fn journal_taken_off(gate: GateNumber, facts: &ClaimFacts) -> Option<ClaimDecision> {
    let is_handed_over = matches!(
        facts.target,
        Live::Known(TargetTwin::Exists {
            handed_over: true,
            ..
        })
    );
    let Live::Known(copied) = &facts.copied else {
        return None;
    };
    let is_possible = facts.target_helpers == Live::Known(Helpers::Ready);
    if is_handed_over || !is_possible || copied.journal_off == Some(gate) {
        return None;
    }
    Some(pass(copied.running, Pass::Finish(gate)))
}

/// Also deletes movers that a late write of an old leader has created; they have no volume.
pub(super) fn helpers_gone(facts: &ClaimFacts) -> Option<ClaimDecision> {
    let of_source = match &facts.source_helpers {
        Live::Unknown(_) => None,
        helpers @ Live::Known(_) => helpers_removed(Side::Source, helpers),
    };
    of_source.or_else(|| helpers_removed(Side::Target, &facts.target_helpers))
}

/// Users do not wait until the mover of the source is deleted: it only reads, and its node may be lost. The source is
/// released after it.
fn helpers_gone_for_users(facts: &ClaimFacts) -> Option<ClaimDecision> {
    match helpers_gone(facts) {
        Some(ClaimDecision::Await(Waiting::HelpersGone(Side::Source))) => {
            helpers_removed(Side::Target, &facts.target_helpers)
        }
        decision => decision,
    }
}

fn handed_over(facts: &ClaimFacts) -> Option<ClaimDecision> {
    match &facts.target {
        Live::Unknown(why) => Some(unknown(Side::Target, why)),
        Live::Known(TargetTwin::Exists {
            handed_over: true, ..
        }) => None,
        Live::Known(TargetTwin::Exists {
            at, deleting: false, ..
        }) => {
            // The policy of the user before the gate, not the Retain of the gate.
            let retain = facts
                .recorded
                .as_ref()
                .is_some_and(|recorded| recorded.policy == ReclaimPolicy::Retain);
            Some(ClaimDecision::Do(ClaimStep::HandOver {
                target: at.clone(),
                retain,
            }))
        }
        Live::Known(TargetTwin::TakesName(what)) => {
            Some(ClaimDecision::Await(Waiting::TakesName(what.clone())))
        }
        Live::Known(_) => Some(ClaimDecision::Await(Waiting::TargetGone)),
    }
}

/// Replaces the PV and binds it.
fn replaced(by: &MoveUid, gate: GateNumber, facts: &ClaimFacts) -> Option<ClaimDecision> {
    match &facts.volume {
        VolumeNow::Absent => Some(recreate_pv(by, gate, facts)),
        VolumeNow::Exists(volume) => match &volume.serves {
            Serves::Other(handle) => Some(ClaimDecision::Await(Waiting::VolumeTaken(handle.clone()))),
            Serves::Source if volume.deleting => Some(release_deleted_pv(volume)),
            Serves::Source => Some(deleted(volume)),
            Serves::Target => bound(by, facts, volume),
            Serves::Recovered | Serves::Later => None,
        },
    }
}

/// While an attachment names the PV, csi-attacher needs it to detach the volume.
pub(super) fn deleted(volume: &VirtualVolume) -> ClaimDecision {
    if volume.policy != ReclaimPolicy::Retain {
        ClaimDecision::Do(ClaimStep::Retain {
            volume: volume.at.clone(),
        })
    } else if volume.attached.is_empty() {
        ClaimDecision::Do(ClaimStep::DeleteVolume {
            volume: volume.at.clone(),
        })
    } else {
        ClaimDecision::Await(Waiting::Detached(volume.attached.clone()))
    }
}

/// Also if the claim was deleted while it was Lost: the PV then shows where its data is.
fn recreate_pv(by: &MoveUid, gate: GateNumber, facts: &ClaimFacts) -> ClaimDecision {
    let Some(recorded) = &facts.recorded else {
        return ClaimDecision::Await(Waiting::NoManifest);
    };
    ClaimDecision::Do(ClaimStep::MakeVolume {
        of: Side::Target,
        note: recorded.note(by, gate),
    })
}

pub(super) fn bound(by: &MoveUid, facts: &ClaimFacts, volume: &VirtualVolume) -> Option<ClaimDecision> {
    let note = facts.note_of(by)?;
    (facts.claim != ClaimNow::Absent).then(|| bound_again(note, facts, volume))
}

fn kept_released(by: &MoveUid, facts: &ClaimFacts) -> Option<ClaimDecision> {
    match (&facts.volume, facts.note_of(by)) {
        (VolumeNow::Exists(volume), Some(note)) if facts.is_kept(by) => Some(restore_policy(note, volume)),
        _ => None,
    }
}

/// Whether the source is not needed any more. Without its successor it is the last copy.
pub(super) fn is_served(facts: &ClaimFacts) -> bool {
    facts.claim == ClaimNow::Absent
        || has_moved_on(facts)
        || matches!(
            &facts.target,
            Live::Known(TargetTwin::Exists {
                handed_over: true,
                deleting: false,
                ..
            })
        )
}

fn source_released(by: &MoveUid, facts: &ClaimFacts) -> Option<ClaimDecision> {
    let is_served = is_served(facts);
    match (&facts.source, &facts.recorded) {
        (Live::Known(SourceTwin::Gone { .. }), _) if is_served => released_there(by, facts),
        (Live::Known(SourceTwin::Gone { .. } | SourceTwin::Recovered), _) => None,
        (Live::Unknown(why), _) => Some(unknown(Side::Source, why)),
        (
            Live::Known(SourceTwin::Exists {
                deleting: true,
                protected: false,
                ..
            }),
            _,
        ) => Some(ClaimDecision::Await(Waiting::TwinGone(Side::Source))),
        (Live::Known(SourceTwin::Exists { .. }), _) if !is_served => {
            Some(ClaimDecision::Await(Waiting::TargetGone))
        }
        (Live::Known(SourceTwin::Exists { .. }), None) => Some(ClaimDecision::Await(Waiting::NoManifest)),
        (Live::Known(SourceTwin::Exists { at, .. }), Some(recorded)) => {
            Some(ClaimDecision::Do(ClaimStep::ReleaseSource {
                source: at.clone(),
                policy: recorded.policy,
            }))
        }
    }
}

/// Sets the reclaim policy of the PV of a source that is gated in a remote cluster, after its twin was deleted. Until
/// then the gate stays closed: pods that wait there for the twin would start with superseded data.
pub(super) fn released_there(by: &MoveUid, facts: &ClaimFacts) -> Option<ClaimDecision> {
    let remote = facts.there.as_ref()?;
    let note = facts.note_there(by)?;
    match (&remote.volume.held_by, &remote.twin) {
        (HeldBy::Other(_), _) => return None,
        (HeldBy::Move, ClaimNow::Absent) => return Some(restore_claim_ref(note, &remote.volume).there()),
        (HeldBy::Move | HeldBy::Claim, _) => {}
    }
    let is_kept = |recorded: &Recorded| recorded.policy == ReclaimPolicy::Retain;
    let policy = if facts.recorded.as_ref().is_some_and(is_kept) {
        ReclaimPolicy::Retain
    } else {
        remote.policy_before.unwrap_or(note.policy)
    };
    let note = GateNote {
        policy,
        ..note.clone()
    };
    Some(restore_policy(&note, &remote.volume).there())
}
