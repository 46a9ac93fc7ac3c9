//! The next step for one claim; steps 1 to 3 of the move (lock, target and movers, copying) are here. Users
//! notice none of these three. The later ones are in `gated`.

use super::{
    ClaimFacts, ClaimNow, ClaimStep, Copied, HeldBy, Helpers, Live, Lock, MoveFacts, Outcome, Pass, Quiesce,
    RollbackReason, RollbackTo, Serves, Side, SourceTwin, Stage, TargetTwin, VolumeFault, VolumeNow, Waiting,
    committed, gated, leftovers, recover, rollback,
};
use crate::volume::moving::{SourceMark, TargetMark, VolumeMark};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimDecision {
    Do(ClaimStep),
    /// Wait for this.
    Await(Waiting),
    /// The claim needs nothing more in this stage.
    Reached,
    /// Roll the whole move back.
    Rollback(RollbackTo, RollbackReason),
    /// Gate the whole move again, with another number: what was established under this gate is no longer
    /// true.
    Regate,
}

impl ClaimDecision {
    /// The same step in the cluster of a remote source.
    pub(super) fn there(self) -> Self {
        match self {
            Self::Do(step) => Self::Do(ClaimStep::There(Box::new(step))),
            other => other,
        }
    }
}

/// Decides for one claim, in the current stage of the move.
#[must_use]
pub fn claim_step(of: &MoveFacts, facts: &ClaimFacts) -> ClaimDecision {
    let pending = match &of.stage {
        Stage::Checking => locked(of, facts).or_else(|| usable(of, facts)),
        Stage::Preparing => locked(of, facts)
            .or_else(|| usable(of, facts))
            .or_else(|| prepared(of, facts)),
        Stage::Copying { .. } => locked(of, facts)
            .or_else(|| usable(of, facts))
            .or_else(|| prepared(of, facts))
            .or_else(|| copied(facts))
            .or_else(|| may_be_gated(of, facts)),
        Stage::Gating(gate) => gated::gating(of, facts, *gate),
        Stage::Draining(gate) => gated::draining(of, facts, *gate),
        Stage::Finishing(gate) => gated::finishing(of, facts, *gate),
        Stage::Verifying(gate) => gated::verifying(of, facts, *gate),
        Stage::Rollback { gate, to, why } => {
            let keeps_copy = *why == RollbackReason::SourceGone;
            rollback::step(&of.uid, *gate, *to, of.overdue.retention, keeps_copy, facts)
        }
        Stage::Committed(gate) => committed::step(&of.uid, *gate, facts),
        // Users who delete the `VolumeMove`, or its namespace, do not wait until the source may be deleted,
        // unless it is the last copy of a volume whose claim was deleted while it was Lost.
        Stage::Retaining(gate) => {
            let overdue = of.overdue.retention || (of.deleting && !facts.is_kept(&of.uid));
            committed::retaining(&of.uid, *gate, overdue, facts)
        }
        Stage::Recovering(gate) => recover::step(&of.uid, *gate, of.overdue.retention, facts),
        Stage::Ended(Outcome::Recovered) => recover::left(facts),
        Stage::Ended(outcome) => {
            let keeps_copy = *outcome == Outcome::SourceGone;
            leftovers::pending(&of.uid, keeps_copy, facts)
        }
    };
    pending.unwrap_or(ClaimDecision::Reached)
}

/// Locks the claim. Only the lock of a move that exists counts.
pub(super) fn locked(of: &MoveFacts, facts: &ClaimFacts) -> Option<ClaimDecision> {
    let ClaimNow::Exists {
        at,
        deleting: false,
        lock,
        ..
    } = &facts.claim
    else {
        return Some(ClaimDecision::Rollback(
            RollbackTo::Start,
            RollbackReason::ClaimDeleted,
        ));
    };
    match lock {
        Lock::Ours => None,
        Lock::Theirs { by, counts: true } => Some(ClaimDecision::Rollback(
            RollbackTo::Start,
            RollbackReason::Locked(by.clone()),
        )),
        Lock::Free | Lock::Theirs { counts: false, .. } => Some(ClaimDecision::Do(ClaimStep::Lock {
            claim: at.clone(),
            by: of.uid.clone(),
        })),
    }
}

/// Checks that no other move moves the volume, and that PV and source are usable.
fn usable(of: &MoveFacts, facts: &ClaimFacts) -> Option<ClaimDecision> {
    let back = |why| Some(ClaimDecision::Rollback(RollbackTo::Start, why));
    let gated_late = || {
        Some(ClaimDecision::Rollback(
            RollbackTo::Copying,
            RollbackReason::Volume(VolumeFault::GatedLate),
        ))
    };
    let VolumeNow::Exists(volume) = &facts.volume else {
        return back(RollbackReason::Volume(VolumeFault::Gone));
    };
    if facts.note_there(&of.uid).is_some() {
        return gated_late();
    }
    match &volume.mark {
        // A late write of an earlier gate. The copied data stays valid.
        Some(VolumeMark::Gated(note)) if note.by == of.uid => return gated_late(),
        Some(VolumeMark::Gated(note)) => return back(RollbackReason::Locked(note.by.clone())),
        Some(VolumeMark::Ungated { .. }) | None => {}
    }
    if volume.serves != Serves::Source {
        return back(RollbackReason::Volume(VolumeFault::NotTheSource));
    }
    if volume.deleting {
        return back(RollbackReason::Volume(VolumeFault::Deleting));
    }
    if volume.held_by != HeldBy::Claim {
        return back(RollbackReason::Volume(VolumeFault::NotTheClaims));
    }
    source_answers(facts).or_else(|| match source_mark(facts) {
        Some(SourceMark::Superseded { .. }) => back(RollbackReason::Volume(VolumeFault::MovedOn)),
        Some(SourceMark::Moving { by, .. }) if *by != of.uid => back(RollbackReason::Locked(by.clone())),
        _ => None,
    })
}

/// Waits for a source that may exist again or is not bound yet: without it there is only an incomplete copy.
pub(super) fn source_answers(facts: &ClaimFacts) -> Option<ClaimDecision> {
    match &facts.source {
        Live::Unknown(why) => Some(unknown(Side::Source, why)),
        Live::Known(SourceTwin::Gone { for_good: true }) => Some(ClaimDecision::Rollback(
            RollbackTo::Start,
            RollbackReason::SourceGone,
        )),
        Live::Known(
            SourceTwin::Gone { for_good: false }
            | SourceTwin::Recovered
            | SourceTwin::Exists { deleting: true, .. }
            | SourceTwin::Exists { bound: false, .. },
        ) => Some(ClaimDecision::Await(Waiting::SourceGone)),
        Live::Known(SourceTwin::Exists { .. }) => None,
    }
}

pub(super) fn source_mark(facts: &ClaimFacts) -> Option<&SourceMark> {
    match &facts.source {
        Live::Known(SourceTwin::Exists { mark, .. }) => mark.as_ref(),
        Live::Known(SourceTwin::Gone { .. } | SourceTwin::Recovered) | Live::Unknown(_) => None,
    }
}

/// Creates the target twin and the movers.
fn prepared(of: &MoveFacts, facts: &ClaimFacts) -> Option<ClaimDecision> {
    let back = |why| Some(ClaimDecision::Rollback(RollbackTo::Start, why));
    match &facts.target {
        Live::Unknown(why) => Some(unknown(Side::Target, why)),
        Live::Known(TargetTwin::Gone) => back(RollbackReason::TargetGone),
        Live::Known(TargetTwin::TakesName(what)) => {
            Some(ClaimDecision::Await(Waiting::TakesName(what.clone())))
        }
        Live::Known(TargetTwin::Superseded) => back(RollbackReason::InTheWay(
            "a twin of this epoch, superseded".to_owned(),
        )),
        Live::Known(TargetTwin::Foreign(what)) => back(RollbackReason::InTheWay(what.clone())),
        Live::Known(TargetTwin::Absent) => Some(ClaimDecision::Do(ClaimStep::MakeTarget {
            mark: TargetMark {
                by: of.uid.clone(),
                epoch: facts.epoch,
            },
        })),
        Live::Known(TargetTwin::Exists {
            handed_over: true, ..
        }) => back(RollbackReason::InTheWay(
            "a twin of this epoch that is in use".to_owned(),
        )),
        Live::Known(TargetTwin::Exists { deleting: true, .. }) => {
            Some(ClaimDecision::Await(Waiting::TwinGone(Side::Target)))
        }
        Live::Known(TargetTwin::Exists { .. }) => with_helpers(facts),
    }
}

/// Creates missing movers, which may die at any time.
pub(super) fn with_helpers(facts: &ClaimFacts) -> Option<ClaimDecision> {
    let sides = [
        (Side::Source, &facts.source_helpers),
        (Side::Target, &facts.target_helpers),
    ];
    sides.into_iter().find_map(|(side, helpers)| match helpers {
        Live::Unknown(why) => Some(unknown(side, why)),
        Live::Known(Helpers::Absent | Helpers::Incomplete) => {
            Some(ClaimDecision::Do(ClaimStep::MakeHelpers(side)))
        }
        Live::Known(Helpers::Leaving) => Some(ClaimDecision::Await(Waiting::HelpersGone(side))),
        Live::Known(Helpers::Ready) => None,
    })
}

/// Copies until little is left.
fn copied(facts: &ClaimFacts) -> Option<ClaimDecision> {
    large_enough(facts).or_else(|| match &facts.copied {
        Live::Unknown(why) => Some(unknown(Side::Target, why)),
        Live::Known(copied) if copied.converged => None,
        Live::Known(copied) => Some(match copied.running {
            Some(pass) => ClaimDecision::Await(Waiting::Pass(pass)),
            None => ClaimDecision::Do(ClaimStep::StartPass(Pass::Warm)),
        }),
    })
}

/// Rolls back if the target is too small, as if the preflight had found it.
pub(super) fn large_enough(facts: &ClaimFacts) -> Option<ClaimDecision> {
    match &facts.copied {
        Live::Known(Copied {
            too_small: Some(why), ..
        }) => Some(ClaimDecision::Rollback(
            RollbackTo::Start,
            RollbackReason::Refused(vec![why.clone()]),
        )),
        Live::Known(_) | Live::Unknown(_) => None,
    }
}

/// The last checks before the gate: the pods that the move waits for have stopped, no size or attribute is
/// being changed, and the driver detects later writers at the source, or the user accepts that it does not.
fn may_be_gated(of: &MoveFacts, facts: &ClaimFacts) -> Option<ClaimDecision> {
    if let Some(unwatched) = watched(facts) {
        return Some(unwatched);
    }
    if let ClaimNow::Exists { changing: true, .. } = facts.claim {
        return Some(ClaimDecision::Await(Waiting::Changing));
    }
    match (&facts.users, of.requested.quiesce) {
        (Live::Unknown(why), _) => Some(unknown(Side::Source, why)),
        (Live::Known(_), Quiesce::Evict) => None,
        (Live::Known(users), Quiesce::Wait) => deleted_with_users(facts).or_else(|| {
            let running = users.running();
            (!running.is_empty()).then_some(ClaimDecision::Await(Waiting::Users(running)))
        }),
    }
}

/// Waits until the driver may gate a remote source and detects its users, or the user accepts that it does not. Rights
/// may be revoked while a move is gated.
pub(super) fn watched(facts: &ClaimFacts) -> Option<ClaimDecision> {
    let why = facts.unwatched.clone()?;
    Some(ClaimDecision::Await(Waiting::Consent(why)))
}

/// The move cannot wait for the pods to be stopped if that deletes the claim.
pub(super) fn deleted_with_users(facts: &ClaimFacts) -> Option<ClaimDecision> {
    let Live::Known(users) = &facts.users else {
        return None;
    };
    let controller = users.deletes_claim.as_ref()?;
    let why = format!(
        "{controller} deletes its claims when it is scaled down: set whenScaled to Retain, or have its pods evicted"
    );
    Some(ClaimDecision::Rollback(
        RollbackTo::Start,
        RollbackReason::Refused(vec![why]),
    ))
}

pub(super) fn unknown(side: Side, why: &str) -> ClaimDecision {
    ClaimDecision::Await(Waiting::Unknown(side, why.to_owned()))
}
