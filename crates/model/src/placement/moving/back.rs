//! The way back for one claim, from wherever the move was before its commit: first the users get
//! their volume, then what the move has made is removed.
//!
//! The order is that of what was seen to go wrong: the PV names its claim, Kubernetes binds the
//! two, and only then the PV gets its reclaim policy. A PV that is Released with the policy Delete
//! for a moment is deleted with its data.

use super::{
    BackTo, ClaimDecision, ClaimFacts, ClaimNow, ClaimStep, HeldBy, Helpers, Live, Lock, Serves, Side,
    SourceTwin, TargetTwin, VirtualVolume, VolumeNow, Waiting, claim::silent,
};
use crate::volume::{
    ReclaimPolicy,
    moving::{GateNote, GateNumber, MoveUid, SourceMark, Touch, VolumeMark},
};

/// What is next on the way back. `overdue` says that a copy has been kept for long enough.
pub(super) fn step(
    by: &MoveUid,
    gate: Option<GateNumber>,
    to: BackTo,
    overdue: bool,
    facts: &ClaimFacts,
) -> Option<ClaimDecision> {
    let reopened = gate.and_then(|gate| reopened(by, gate, facts));
    let cleared = || match to {
        BackTo::Copying => None,
        BackTo::Start => cleared(by, overdue, facts),
    };
    // A source that is silent delays nobody but its own mark.
    let marked = || gate.and_then(|_| source_silent(facts));
    reopened.or_else(cleared).or_else(marked)
}

fn reopened(by: &MoveUid, gate: GateNumber, facts: &ClaimFacts) -> Option<ClaimDecision> {
    source_unmarked(by, gate, facts).or_else(|| match &facts.volume {
        VolumeNow::There(volume) => volume_back(by, gate, facts, volume),
        VolumeNow::Absent => remade(by, gate, facts),
    })
}

/// Before the PV: once a pod may start, its attachment must not be refused.
fn source_unmarked(by: &MoveUid, gate: GateNumber, facts: &ClaimFacts) -> Option<ClaimDecision> {
    let Live::Known(SourceTwin::There { at, mark, .. }) = &facts.source else {
        return None;
    };
    let unmark = ClaimDecision::Do(ClaimStep::MarkSource {
        source: at.clone(),
        mark: SourceMark::GivenBack { by: by.clone(), gate },
    });
    match mark {
        Some(SourceMark::Superseded { .. }) => None,
        // It may be marked by the next move already.
        Some(SourceMark::Moving { by: other, .. }) if other != by => None,
        Some(SourceMark::Moving { gate: number, .. }) => (*number <= gate).then_some(unmark),
        Some(SourceMark::GivenBack {
            by: other,
            gate: last,
        }) if other == by && *last >= gate => None,
        // Not marked, but whoever still wants to has read it as it is.
        Some(SourceMark::GivenBack { .. }) | None => Some(unmark),
    }
}

fn volume_back(
    by: &MoveUid,
    gate: GateNumber,
    facts: &ClaimFacts,
    volume: &VirtualVolume,
) -> Option<ClaimDecision> {
    if volume.serves != Serves::Source {
        let who = match &volume.serves {
            Serves::Else(handle) => handle.clone(),
            Serves::Source | Serves::Target => "the target".to_owned(),
            Serves::Recovered | Serves::Later => "a later move".to_owned(),
        };
        return Some(ClaimDecision::Await(Waiting::VolumeTaken(who)));
    }
    match &volume.mark {
        Some(VolumeMark::Gated(note)) if note.by == *by => {
            (note.gate <= gate).then(|| regated_back(note, facts, volume))?
        }
        // It is the next move's already.
        Some(VolumeMark::Gated(_)) => None,
        Some(VolumeMark::GivenBack {
            by: other,
            gate: last,
        }) if other == by && *last >= gate => None,
        Some(VolumeMark::GivenBack { .. }) | None => Some(ClaimDecision::Do(ClaimStep::RefuseGate {
            volume: volume.at.clone(),
            mark: VolumeMark::GivenBack { by: by.clone(), gate },
        })),
    }
}

/// A gated PV names its claim again. Without its claim it stays as it is, retained.
fn regated_back(note: &GateNote, facts: &ClaimFacts, volume: &VirtualVolume) -> Option<ClaimDecision> {
    let ClaimNow::There { .. } = &facts.claim else {
        return None;
    };
    match &volume.held_by {
        HeldBy::Move => Some(ClaimDecision::Do(ClaimStep::GiveBack {
            volume: volume.at.clone(),
            note: note.clone(),
        })),
        HeldBy::Else(who) => Some(ClaimDecision::Await(Waiting::VolumeTaken(who.clone()))),
        HeldBy::Claim if volume.deleting && is_held_by_mover(facts, volume) => {
            Some(ClaimDecision::Do(ClaimStep::RemoveHelpers(Side::Source)))
        }
        HeldBy::Claim if volume.deleting => Some(let_go(volume)),
        HeldBy::Claim => Some(bound_again(note, facts, volume)),
    }
}

/// To Kubernetes the mover that reads beside the users uses the same volume on the same node, which
/// is not detached before it has gone.
fn is_held_by_mover(facts: &ClaimFacts, volume: &VirtualVolume) -> bool {
    let is_there = matches!(
        facts.source_helpers,
        Live::Known(Helpers::Incomplete | Helpers::Ready)
    );
    is_there && !volume.attached.is_empty()
}

/// A deletion cannot be taken back. The PV is made again as soon as it may go.
pub(super) fn let_go(volume: &VirtualVolume) -> ClaimDecision {
    if volume.policy != ReclaimPolicy::Retain {
        ClaimDecision::Do(ClaimStep::Retain {
            volume: volume.at.clone(),
        })
    } else if volume.attached.is_empty() {
        ClaimDecision::Do(ClaimStep::LetVolumeGo {
            volume: volume.at.clone(),
        })
    } else {
        ClaimDecision::Await(Waiting::Detached(volume.attached.clone()))
    }
}

/// A PV that names its claim again gets its reclaim policy when Kubernetes has bound the two. The
/// claim is touched first: whatever Kubernetes still concludes from the PV as it was is refused.
pub(super) fn bound_again(note: &GateNote, facts: &ClaimFacts, volume: &VirtualVolume) -> ClaimDecision {
    let ClaimNow::There {
        at,
        deleting,
        lock,
        lost,
        touched,
        ..
    } = &facts.claim
    else {
        return ClaimDecision::Await(Waiting::ClaimGone);
    };
    let touch = Touch::GivenBack(note.gate);
    if *deleting {
        // It was deleted while it was Lost. It goes, and its data stays.
        return if *lock == Lock::Ours {
            ClaimDecision::Do(ClaimStep::Unlock { claim: at.clone() })
        } else {
            ClaimDecision::Await(Waiting::ClaimGone)
        };
    }
    if *touched != Some(touch) {
        return ClaimDecision::Do(ClaimStep::Touch {
            claim: at.clone(),
            touch,
        });
    }
    if *lost || !volume.bound {
        return ClaimDecision::Await(Waiting::Bound);
    }
    policy_back(note, volume)
}

pub(super) fn policy_back(note: &GateNote, volume: &VirtualVolume) -> ClaimDecision {
    ClaimDecision::Do(ClaimStep::RestorePolicy {
        volume: volume.at.clone(),
        policy: note.policy,
        mark: VolumeMark::GivenBack {
            by: note.by.clone(),
            gate: note.gate,
        },
    })
}

/// A claim that exists needs its PV. Without a claim, a twin whose data was not to outlive it
/// shows that the PV went by itself: made again, it says where that data is until it goes, too.
fn remade(by: &MoveUid, gate: GateNumber, facts: &ClaimFacts) -> Option<ClaimDecision> {
    let is_left = matches!(facts.source, Live::Known(SourceTwin::There { .. }))
        && facts
            .recorded
            .as_ref()
            .is_some_and(|recorded| recorded.policy == ReclaimPolicy::Delete);
    match &facts.claim {
        ClaimNow::There { deleting: false, .. } => {}
        ClaimNow::There { .. } if is_left => {
            return unlocked(facts).or(Some(ClaimDecision::Await(Waiting::ClaimGone)));
        }
        ClaimNow::Absent if is_left => {}
        ClaimNow::There { .. } | ClaimNow::Absent => return None,
    }
    let Some(recorded) = &facts.recorded else {
        return Some(ClaimDecision::Await(Waiting::NoManifest));
    };
    Some(ClaimDecision::Do(ClaimStep::MakeVolume {
        of: Side::Source,
        note: GateNote {
            by: by.clone(),
            gate,
            policy: recorded.policy,
            claim_uid: recorded.claim_uid.clone(),
        },
    }))
}

/// What the move has made goes, the claim is unlocked. A target that is silent keeps nobody from
/// using the claim; it is cleaned when it answers.
fn cleared(by: &MoveUid, overdue: bool, facts: &ClaimFacts) -> Option<ClaimDecision> {
    if facts.is_kept(by) {
        return Some(both_kept(by, overdue, facts));
    }
    let left = helpers_removed(Side::Source, &facts.source_helpers)
        .or_else(|| helpers_removed(Side::Target, &facts.target_helpers))
        .or_else(|| target_removed(facts));
    match left {
        None | Some(ClaimDecision::Await(Waiting::Silent(..))) => unlocked(facts).or(left),
        Some(_) => left,
    }
}

/// A claim that was deleted while Kubernetes called it Lost may have been deleted in error: both
/// copies stay for a time, then that deletion takes its course.
fn both_kept(by: &MoveUid, overdue: bool, facts: &ClaimFacts) -> ClaimDecision {
    if let (true, VolumeNow::There(volume), Some(note)) = (overdue, &facts.volume, facts.note_of(by)) {
        return policy_back(note, volume);
    }
    match &facts.target {
        Live::Known(TargetTwin::There {
            at,
            retained: false,
            deleting: false,
            ..
        }) => ClaimDecision::Do(ClaimStep::RetainTarget { target: at.clone() }),
        // Nothing is copied any more. A side that is silent is waited for with the rest.
        _ => helpers_going(facts).unwrap_or(ClaimDecision::Await(Waiting::BothKept)),
    }
}

/// The removal of what copied, as far as something can be done for it now.
pub(super) fn helpers_going(facts: &ClaimFacts) -> Option<ClaimDecision> {
    let sides = [
        (Side::Source, &facts.source_helpers),
        (Side::Target, &facts.target_helpers),
    ];
    let mut steps = sides
        .into_iter()
        .filter_map(|(side, helpers)| helpers_removed(side, helpers));
    steps.find(|step| matches!(step, ClaimDecision::Do(_)))
}

pub(super) fn helpers_removed(side: Side, helpers: &Live<Helpers>) -> Option<ClaimDecision> {
    match helpers {
        Live::Silent(why) => Some(silent(side, why)),
        Live::Known(Helpers::Absent) => None,
        Live::Known(Helpers::Leaving) => Some(ClaimDecision::Await(Waiting::HelpersGone(side))),
        Live::Known(Helpers::Incomplete | Helpers::Ready) => {
            Some(ClaimDecision::Do(ClaimStep::RemoveHelpers(side)))
        }
    }
}

/// Only after the movers, which write to it.
fn target_removed(facts: &ClaimFacts) -> Option<ClaimDecision> {
    match &facts.target {
        Live::Silent(why) => Some(silent(Side::Target, why)),
        Live::Known(TargetTwin::There {
            at,
            handed_over: false,
            deleting: false,
            ..
        }) => Some(ClaimDecision::Do(ClaimStep::DeleteTarget { target: at.clone() })),
        Live::Known(TargetTwin::There { deleting: true, .. }) => {
            Some(ClaimDecision::Await(Waiting::TwinGone(Side::Target)))
        }
        // What was handed over or made by somebody else is never this way's.
        Live::Known(_) => None,
    }
}

pub(super) fn unlocked(facts: &ClaimFacts) -> Option<ClaimDecision> {
    match &facts.claim {
        ClaimNow::There {
            at, lock: Lock::Ours, ..
        } => Some(ClaimDecision::Do(ClaimStep::Unlock { claim: at.clone() })),
        ClaimNow::There { .. } | ClaimNow::Absent => None,
    }
}

fn source_silent(facts: &ClaimFacts) -> Option<ClaimDecision> {
    match &facts.source {
        Live::Silent(why) => Some(silent(Side::Source, why)),
        Live::Known(_) => None,
    }
}
