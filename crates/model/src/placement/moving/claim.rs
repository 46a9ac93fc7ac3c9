//! One claim's next step, and rows 1 to 3: lock, target and movers, copying beside the users.
//! Nothing here is seen by a user. The rows from the gate on are in `gated`.

use super::{
    BackTo, ClaimFacts, ClaimNow, ClaimStep, Copied, HeldBy, Helpers, Live, Lock, MoveFacts, Outcome, Pass,
    Quiesce, Serves, Side, SourceTwin, Stage, TargetTwin, VolumeFault, VolumeNow, Waiting, Why, back,
    committed, gated, leftovers, recover,
};
use crate::volume::moving::{SourceMark, TargetMark, VolumeMark};

/// What is next for one claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimDecision {
    /// This.
    Do(ClaimStep),
    /// Nothing until this has happened.
    Await(Waiting),
    /// Nothing in this stage any more.
    Reached,
    /// The whole move has to go back.
    Back(BackTo, Why),
    /// The whole move has to gate anew, with another number: what this gate has established is
    /// not true any more.
    GateAnew,
}

/// Decides what is next for one claim, in the stage that the move is in.
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
        Stage::Back { gate, to, .. } => back::step(&of.uid, *gate, *to, of.overdue.retention, facts),
        Stage::Committed(gate) => committed::step(&of.uid, *gate, facts),
        // Whoever deletes the `VolumeMove`, or its namespace, does not wait until the source may go, unless
        // that would take the last copy of a volume whose claim was deleted while it was Lost.
        Stage::Retaining(gate) => {
            let overdue = of.overdue.retention || (of.deleting && !facts.is_kept(&of.uid));
            committed::retaining(&of.uid, *gate, overdue, facts)
        }
        Stage::Recovering(gate) => recover::step(&of.uid, *gate, of.overdue.retention, facts),
        Stage::Ended(Outcome::Recovered) => recover::left(facts),
        Stage::Ended(_) => leftovers::pending(&of.uid, facts),
    };
    pending.unwrap_or(ClaimDecision::Reached)
}

/// Row 1. Only the lock of a move that exists counts.
pub(super) fn locked(of: &MoveFacts, facts: &ClaimFacts) -> Option<ClaimDecision> {
    let ClaimNow::There {
        at,
        deleting: false,
        lock,
        ..
    } = &facts.claim
    else {
        return Some(ClaimDecision::Back(BackTo::Start, Why::ClaimDeleted));
    };
    match lock {
        Lock::Ours => None,
        Lock::Theirs { by, counts: true } => {
            Some(ClaimDecision::Back(BackTo::Start, Why::Locked(by.clone())))
        }
        Lock::Free | Lock::Theirs { counts: false, .. } => Some(ClaimDecision::Do(ClaimStep::Lock {
            claim: at.clone(),
            by: of.uid.clone(),
        })),
    }
}

/// Whether PV and source are those of a volume that nobody is moving.
fn usable(of: &MoveFacts, facts: &ClaimFacts) -> Option<ClaimDecision> {
    let back = |why| Some(ClaimDecision::Back(BackTo::Start, why));
    let VolumeNow::There(volume) = &facts.volume else {
        return back(Why::Volume(VolumeFault::Gone));
    };
    match &volume.mark {
        // A write of an earlier gate has come late. What was copied stays good.
        Some(VolumeMark::Gated(note)) if note.by == of.uid => {
            return Some(ClaimDecision::Back(
                BackTo::Copying,
                Why::Volume(VolumeFault::GatedLate),
            ));
        }
        Some(VolumeMark::Gated(note)) => return back(Why::Locked(note.by.clone())),
        Some(VolumeMark::GivenBack { .. }) | None => {}
    }
    if volume.serves != Serves::Source {
        return back(Why::Volume(VolumeFault::NotTheSource));
    }
    if volume.deleting {
        return back(Why::Volume(VolumeFault::Deleting));
    }
    if volume.held_by != HeldBy::Claim {
        return back(Why::Volume(VolumeFault::NotTheClaims));
    }
    source_answers(facts).or_else(|| match source_mark(facts) {
        Some(SourceMark::Superseded { .. }) => back(Why::Volume(VolumeFault::MovedOn)),
        Some(SourceMark::Moving { by, .. }) if *by != of.uid => back(Why::Locked(by.clone())),
        _ => None,
    })
}

/// The source is waited for: without it there is nothing but an unfinished copy.
pub(super) fn source_answers(facts: &ClaimFacts) -> Option<ClaimDecision> {
    match &facts.source {
        Live::Silent(why) => Some(silent(Side::Source, why)),
        Live::Known(SourceTwin::Gone | SourceTwin::Recovered | SourceTwin::There { deleting: true, .. }) => {
            Some(ClaimDecision::Await(Waiting::SourceGone))
        }
        Live::Known(SourceTwin::There { .. }) => None,
    }
}

pub(super) fn source_mark(facts: &ClaimFacts) -> Option<&SourceMark> {
    match &facts.source {
        Live::Known(SourceTwin::There { mark, .. }) => mark.as_ref(),
        Live::Known(SourceTwin::Gone | SourceTwin::Recovered) | Live::Silent(_) => None,
    }
}

/// Row 2.
fn prepared(of: &MoveFacts, facts: &ClaimFacts) -> Option<ClaimDecision> {
    let back = |why| Some(ClaimDecision::Back(BackTo::Start, why));
    match &facts.target {
        Live::Silent(why) => Some(silent(Side::Target, why)),
        Live::Known(TargetTwin::Gone) => back(Why::TargetGone),
        Live::Known(TargetTwin::TakesName(what)) => {
            Some(ClaimDecision::Await(Waiting::TakesName(what.clone())))
        }
        Live::Known(TargetTwin::Superseded) => {
            back(Why::InTheWay("a twin of this epoch, superseded".to_owned()))
        }
        Live::Known(TargetTwin::Foreign(what)) => back(Why::InTheWay(what.clone())),
        Live::Known(TargetTwin::Absent) => Some(ClaimDecision::Do(ClaimStep::MakeTarget {
            mark: TargetMark {
                by: of.uid.clone(),
                epoch: facts.epoch,
            },
        })),
        Live::Known(TargetTwin::There {
            handed_over: true, ..
        }) => back(Why::InTheWay("a twin of this epoch that is in use".to_owned())),
        Live::Known(TargetTwin::There { deleting: true, .. }) => {
            Some(ClaimDecision::Await(Waiting::TwinGone(Side::Target)))
        }
        Live::Known(TargetTwin::There { .. }) => with_helpers(facts),
    }
}

/// Makes what is missing of the movers, for they may die at any time.
pub(super) fn with_helpers(facts: &ClaimFacts) -> Option<ClaimDecision> {
    let sides = [
        (Side::Source, &facts.source_helpers),
        (Side::Target, &facts.target_helpers),
    ];
    sides.into_iter().find_map(|(side, helpers)| match helpers {
        Live::Silent(why) => Some(silent(side, why)),
        Live::Known(Helpers::Absent | Helpers::Incomplete) => {
            Some(ClaimDecision::Do(ClaimStep::MakeHelpers(side)))
        }
        Live::Known(Helpers::Leaving) => Some(ClaimDecision::Await(Waiting::HelpersGone(side))),
        Live::Known(Helpers::Ready) => None,
    })
}

/// Row 3.
fn copied(facts: &ClaimFacts) -> Option<ClaimDecision> {
    large_enough(facts).or_else(|| match &facts.copied {
        Live::Silent(why) => Some(silent(Side::Target, why)),
        Live::Known(copied) if copied.converged => None,
        Live::Known(copied) => Some(match copied.running {
            Some(pass) => ClaimDecision::Await(Waiting::Pass(pass)),
            None => ClaimDecision::Do(ClaimStep::StartPass(Pass::Warm)),
        }),
    })
}

/// Waiting does not make a target larger: the move is refused, as if that had been known before.
pub(super) fn large_enough(facts: &ClaimFacts) -> Option<ClaimDecision> {
    match &facts.copied {
        Live::Known(Copied {
            too_small: Some(why), ..
        }) => Some(ClaimDecision::Back(
            BackTo::Start,
            Why::Refused(vec![why.clone()]),
        )),
        Live::Known(_) | Live::Silent(_) => None,
    }
}

/// Before row 4: the users that the move waits for are gone, nothing changes the volume, and the driver detects
/// later writers at the source, or the user accepts that it does not.
fn may_be_gated(of: &MoveFacts, facts: &ClaimFacts) -> Option<ClaimDecision> {
    if let Some(why) = &facts.unwatched {
        return Some(ClaimDecision::Await(Waiting::Consent(why.clone())));
    }
    if let ClaimNow::There { changing: true, .. } = facts.claim {
        return Some(ClaimDecision::Await(Waiting::Changing));
    }
    match (&facts.users, of.wishes.quiesce) {
        (Live::Silent(why), _) => Some(silent(Side::Source, why)),
        (Live::Known(_), Quiesce::Evict) => None,
        (Live::Known(users), Quiesce::Wait) => deleted_with_users(facts).or_else(|| {
            let running = users.running();
            (!running.is_empty()).then_some(ClaimDecision::Await(Waiting::Users(running)))
        }),
    }
}

/// A claim that is deleted when its users are stopped cannot wait for them.
pub(super) fn deleted_with_users(facts: &ClaimFacts) -> Option<ClaimDecision> {
    let Live::Known(users) = &facts.users else {
        return None;
    };
    let controller = users.deletes_claim.as_ref()?;
    let why = format!(
        "{controller} deletes its claims when it is scaled down: set whenScaled to Retain, or have its pods evicted"
    );
    Some(ClaimDecision::Back(BackTo::Start, Why::Refused(vec![why])))
}

pub(super) fn silent(side: Side, why: &str) -> ClaimDecision {
    ClaimDecision::Await(Waiting::Silent(side, why.to_owned()))
}
