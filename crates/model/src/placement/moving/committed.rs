//! Rows 9 to 12 for one claim: the volume is at the target, and there is no way back any more.
//! The source may not be attached again, the target is handed over, the PV is replaced by one of
//! the same name, the claim is bound to that, and after a time the source goes.

use super::{
    ClaimDecision, ClaimFacts, ClaimNow, ClaimStep, Helpers, Live, Lock, Pass, Serves, Side, SourceTwin,
    TargetTwin, VirtualVolume, VolumeNow, Waiting,
    back::{bound_again, helpers_removed, let_go, policy_back, unlocked},
    claim::silent,
    gated::pass,
};
use crate::volume::{
    ReclaimPolicy,
    moving::{GateNote, GateNumber, MoveUid, SourceMark},
};

/// Rows 9 to 11.
pub(super) fn step(by: &MoveUid, gate: GateNumber, facts: &ClaimFacts) -> Option<ClaimDecision> {
    source_superseded(by, facts)
        .or_else(|| journal_taken_off(gate, facts))
        .or_else(|| helpers_gone(facts))
        .or_else(|| match arrival(by, facts) {
            Arrival::Arrived => unlocked(facts),
            Arrival::Deleted if matches!(facts.target, Live::Known(TargetTwin::Absent)) => None,
            Arrival::Deleted | Arrival::Due => handed_over(facts).or_else(|| replaced(by, gate, facts)),
        })
}

/// Row 12.
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
        .or_else(|| source_released(facts))
}

/// Whether another move has the claim, or has taken it further. It alone replaces the PV then.
fn is_moved_again(facts: &ClaimFacts) -> bool {
    let is_locked = |claim: &ClaimNow| {
        matches!(
            claim,
            ClaimNow::There {
                lock: Lock::Theirs { .. },
                ..
            }
        )
    };
    is_locked(&facts.claim) || has_moved_on(facts)
}

fn has_moved_on(facts: &ClaimFacts) -> bool {
    matches!(&facts.volume, VolumeNow::There(volume) if volume.serves == Serves::Later)
}

fn waits_for(by: &MoveUid, facts: &ClaimFacts) -> Waiting {
    if facts.is_kept(by) {
        Waiting::BothKept
    } else {
        Waiting::Retention
    }
}

/// How far rows 10 and 11 are.
enum Arrival {
    /// The PV that leads to the target is the claim's for good. From here on this volume is like
    /// any other, and may be deleted like any other.
    Arrived,
    /// Neither claim nor PV is there.
    Deleted,
    /// The claim has yet to get its PV.
    Due,
}

fn arrival(by: &MoveUid, facts: &ClaimFacts) -> Arrival {
    match (&facts.volume, &facts.claim) {
        (VolumeNow::There(volume), _) if volume.serves == Serves::Target && facts.note_of(by).is_none() => {
            Arrival::Arrived
        }
        (VolumeNow::Absent, ClaimNow::Absent) => Arrival::Deleted,
        _ => Arrival::Due,
    }
}

/// First of all, so that whoever is not told of the commit is refused by the twin itself. A source
/// that is silent is marked when it answers: row 9 needs only the target.
fn source_superseded(by: &MoveUid, facts: &ClaimFacts) -> Option<ClaimDecision> {
    let Live::Known(SourceTwin::There {
        at,
        mark,
        deleting: false,
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

/// By the mover of the target, before it goes and the volume is handed over. It is the same data with
/// or without the journal: nobody is kept away for a mover that has died, or cannot do that.
fn journal_taken_off(gate: GateNumber, facts: &ClaimFacts) -> Option<ClaimDecision> {
    let is_handed_over = matches!(
        facts.target,
        Live::Known(TargetTwin::There {
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

/// Movers that a late leader has made since go, too. They got no volume.
pub(super) fn helpers_gone(facts: &ClaimFacts) -> Option<ClaimDecision> {
    let of_source = match &facts.source_helpers {
        Live::Silent(_) => None,
        helpers @ Live::Known(_) => helpers_removed(Side::Source, helpers),
    };
    of_source.or_else(|| helpers_removed(Side::Target, &facts.target_helpers))
}

fn handed_over(facts: &ClaimFacts) -> Option<ClaimDecision> {
    match &facts.target {
        Live::Silent(why) => Some(silent(Side::Target, why)),
        Live::Known(TargetTwin::There {
            handed_over: true, ..
        }) => None,
        Live::Known(TargetTwin::There {
            at, deleting: false, ..
        }) => {
            // What the user wanted before the gate, and not the Retain of the gate.
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

/// Rows 10 and 11.
fn replaced(by: &MoveUid, gate: GateNumber, facts: &ClaimFacts) -> Option<ClaimDecision> {
    match &facts.volume {
        VolumeNow::Absent => Some(remade(by, gate, facts)),
        VolumeNow::There(volume) => match &volume.serves {
            Serves::Else(handle) => Some(ClaimDecision::Await(Waiting::VolumeTaken(handle.clone()))),
            Serves::Source if volume.deleting => Some(let_go(volume)),
            Serves::Source => Some(deleted(volume)),
            Serves::Target => bound(by, facts, volume),
            Serves::Recovered | Serves::Later => None,
        },
    }
}

/// While an attachment names it, csi-attacher needs it, or never detaches.
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

/// Also without its claim: that was deleted while it was Lost, and this PV says where its data is.
fn remade(by: &MoveUid, gate: GateNumber, facts: &ClaimFacts) -> ClaimDecision {
    let Some(recorded) = &facts.recorded else {
        return ClaimDecision::Await(Waiting::NoManifest);
    };
    ClaimDecision::Do(ClaimStep::MakeVolume {
        of: Side::Target,
        note: GateNote {
            by: by.clone(),
            gate,
            policy: recorded.policy,
            claim_uid: recorded.claim_uid.clone(),
        },
    })
}

pub(super) fn bound(by: &MoveUid, facts: &ClaimFacts, volume: &VirtualVolume) -> Option<ClaimDecision> {
    let note = facts.note_of(by)?;
    (facts.claim != ClaimNow::Absent).then(|| bound_again(note, facts, volume))
}

fn kept_released(by: &MoveUid, facts: &ClaimFacts) -> Option<ClaimDecision> {
    match (&facts.volume, facts.note_of(by)) {
        (VolumeNow::There(volume), Some(note)) if facts.is_kept(by) => Some(policy_back(note, volume)),
        _ => None,
    }
}

/// The source goes only while its successor is there: or else it is all that is left.
fn source_released(facts: &ClaimFacts) -> Option<ClaimDecision> {
    let is_served = facts.claim == ClaimNow::Absent
        || has_moved_on(facts)
        || matches!(
            &facts.target,
            Live::Known(TargetTwin::There {
                handed_over: true,
                deleting: false,
                ..
            })
        );
    match (&facts.source, &facts.recorded) {
        (Live::Known(SourceTwin::Gone | SourceTwin::Recovered), _) => None,
        (Live::Silent(why), _) => Some(silent(Side::Source, why)),
        (Live::Known(SourceTwin::There { deleting: true, .. }), _) => {
            Some(ClaimDecision::Await(Waiting::TwinGone(Side::Source)))
        }
        (Live::Known(SourceTwin::There { .. }), _) if !is_served => {
            Some(ClaimDecision::Await(Waiting::TargetGone))
        }
        (Live::Known(SourceTwin::There { .. }), None) => Some(ClaimDecision::Await(Waiting::NoManifest)),
        (Live::Known(SourceTwin::There { at, .. }), Some(recorded)) => {
            Some(ClaimDecision::Do(ClaimStep::ReleaseSource {
                source: at.clone(),
                policy: recorded.policy,
            }))
        }
    }
}
