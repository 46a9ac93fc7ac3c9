//! What a move does next, of all its claims together: what one pod mounts moves at once. All are
//! gated, all are drained, all are compared; one write commits them.

use super::{
    AsRead, BackTo, ClaimDecision, ClaimFacts, ClaimStep, MoveFacts, Outcome, Stage, Waiting, Why,
    claim_step, recover,
};
use crate::volume::moving::GateNumber;

/// What is next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveStep {
    /// Change the `VolumeMove`, in exactly this version. Nothing else is done before that is
    /// written.
    Write {
        /// Its version.
        at: AsRead,
        /// What.
        change: StatusChange,
    },
    /// Take these steps, each for the claim of this index. They are independent of each other.
    Act(Vec<(usize, ClaimStep)>),
    /// Nothing until any of this has happened.
    Wait(Vec<(usize, Waiting)>),
    /// Nothing any more.
    Over,
}

/// A change of the `VolumeMove`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatusChange {
    /// Put our finalizer on it, before anything else.
    AddFinalizer,
    /// Take it off: nothing is left to do.
    RemoveFinalizer,
    /// Enter `Gating` with this number, and record the PVs of all claims: a `SourceRecord` each.
    OpenGate(GateNumber),
    /// Enter `Committed` with this number, and record a `CommitRecord` for every claim. This is
    /// the commit.
    Commit(GateNumber),
    /// Enter `Recovering` with this number, and record the current reclaim policies.
    Recover(GateNumber),
    /// Enter this stage.
    Enter(Stage),
}

/// Decides.
#[must_use]
pub fn move_step(of: &MoveFacts, claims: &[ClaimFacts]) -> MoveStep {
    let decisions: Vec<ClaimDecision> = claims.iter().map(|facts| claim_step(of, facts)).collect();
    if let Stage::Ended(_) = of.stage {
        return ended(of, decisions);
    }
    if !of.finalizer {
        // Without it there is no move once it is deleted, and what it left is nobody's.
        return if of.deleting {
            MoveStep::Over
        } else {
            write(of, StatusChange::AddFinalizer)
        };
    }
    if let Some(change) = turned_back(of, &decisions) {
        return write(of, change);
    }
    let obstacles = match recover::obstacles(of, claims) {
        Some(obstacles) if obstacles.is_empty() => return recovered(of),
        obstacles => obstacles.unwrap_or_default(),
    };
    let is_reached = decisions
        .iter()
        .all(|decision| *decision == ClaimDecision::Reached);
    if is_reached {
        return advance(of);
    }
    if let Some(why) = overdue(of) {
        return write(of, StatusChange::Enter(back(of, BackTo::Copying, why)));
    }
    if is_paused(of) {
        return MoveStep::Wait(vec![(0, Waiting::Paused)]);
    }
    match act_or_wait(decisions) {
        MoveStep::Wait(waiting) => MoveStep::Wait([obstacles, waiting].concat()),
        step => step,
    }
}

/// The target is lost, and the user requested the recovery. It has a new gate number: late writes of the previous
/// gate fail.
fn recovered(of: &MoveFacts) -> MoveStep {
    let gate = of.stage.gate().map_or(GateNumber::FIRST, GateNumber::next);
    write(of, StatusChange::Recover(gate))
}

fn write(of: &MoveFacts, change: StatusChange) -> MoveStep {
    MoveStep::Write {
        at: of.at.clone(),
        change,
    }
}

fn back(of: &MoveFacts, to: BackTo, why: Why) -> Stage {
    Stage::Back {
        gate: of.stage.last_gate(),
        to,
        why,
    }
}

/// Whether the move has to change its direction. After the commit there is no other way than on.
fn turned_back(of: &MoveFacts, decisions: &[ClaimDecision]) -> Option<StatusChange> {
    if of.stage.is_committed() {
        return None;
    }
    let is_at_start = matches!(
        of.stage,
        Stage::Back {
            to: BackTo::Start,
            ..
        }
    );
    if (of.wishes.cancel || of.deleting) && !is_at_start {
        return Some(StatusChange::Enter(back(of, BackTo::Start, Why::Cancelled)));
    }
    if let (Stage::Checking, Some(obstacles)) = (&of.stage, &of.obstacles)
        && !obstacles.is_empty()
    {
        let why = Why::Refused(obstacles.clone());
        return Some(StatusChange::Enter(back(of, BackTo::Start, why)));
    }
    let demanded = |wanted: BackTo| {
        decisions.iter().find_map(|decision| match decision {
            ClaimDecision::Back(to, why) if *to == wanted => {
                Some(StatusChange::Enter(back(of, wanted, why.clone())))
            }
            _ => None,
        })
    };
    let anew = || {
        let gate = of.stage.gate()?.next();
        decisions
            .contains(&ClaimDecision::GateAnew)
            .then_some(StatusChange::OpenGate(gate))
    };
    demanded(BackTo::Start)
        .or_else(|| demanded(BackTo::Copying))
        .or_else(anew)
}

/// What has lasted too long, while users are kept away.
fn overdue(of: &MoveFacts) -> Option<Why> {
    match of.stage {
        Stage::Gating(_) | Stage::Draining(_) if of.overdue.drain => Some(Why::DrainOverdue),
        Stage::Finishing(_) | Stage::Verifying(_) if of.overdue.downtime => Some(Why::DowntimeOverdue),
        _ => None,
    }
}

/// A pause counts as long as no gate is closed: while users are kept away, waiting harms them.
fn is_paused(of: &MoveFacts) -> bool {
    of.wishes.paused
        && matches!(
            of.stage,
            Stage::Checking | Stage::Preparing | Stage::Copying { .. }
        )
}

/// Every claim has reached what the stage is for.
fn advance(of: &MoveFacts) -> MoveStep {
    if is_paused(of) {
        return MoveStep::Wait(vec![(0, Waiting::Paused)]);
    }
    let change = match &of.stage {
        Stage::Checking if of.obstacles.is_none() => return MoveStep::Wait(vec![(0, Waiting::Preflight)]),
        Stage::Checking => StatusChange::Enter(Stage::Preparing),
        Stage::Preparing => StatusChange::Enter(Stage::Copying { last: None }),
        Stage::Copying { .. } if !of.wishes.cutover => {
            return MoveStep::Wait(vec![(0, Waiting::CutOver)]);
        }
        Stage::Copying { last } => StatusChange::OpenGate(last.map_or(GateNumber::FIRST, GateNumber::next)),
        Stage::Gating(gate) => StatusChange::Enter(Stage::Draining(*gate)),
        Stage::Draining(gate) => StatusChange::Enter(Stage::Finishing(*gate)),
        Stage::Finishing(gate) => StatusChange::Enter(Stage::Verifying(*gate)),
        Stage::Verifying(gate) => StatusChange::Commit(*gate),
        Stage::Committed(gate) => StatusChange::Enter(Stage::Retaining(*gate)),
        Stage::Retaining(_) => StatusChange::Enter(Stage::Ended(Outcome::Done)),
        Stage::Recovering(_) => StatusChange::Enter(Stage::Ended(Outcome::Recovered)),
        Stage::Back {
            gate,
            to: BackTo::Copying,
            ..
        } => StatusChange::Enter(Stage::Copying { last: *gate }),
        Stage::Back {
            to: BackTo::Start,
            why: Why::Cancelled,
            ..
        } => StatusChange::Enter(Stage::Ended(Outcome::Cancelled)),
        Stage::Back {
            to: BackTo::Start, ..
        } => StatusChange::Enter(Stage::Ended(Outcome::Failed)),
        Stage::Ended(_) => return MoveStep::Over,
    };
    write(of, change)
}

fn act_or_wait(decisions: Vec<ClaimDecision>) -> MoveStep {
    let may_gate = decisions.iter().all(allows_gates);
    let (mut steps, mut waiting) = (Vec::new(), Vec::new());
    for (index, decision) in decisions.into_iter().enumerate() {
        match decision {
            ClaimDecision::Do(ClaimStep::Gate { .. }) if !may_gate => {}
            ClaimDecision::Do(step) => steps.push((index, step)),
            ClaimDecision::Await(what) => waiting.push((index, what)),
            ClaimDecision::Reached | ClaimDecision::Back(..) | ClaimDecision::GateAnew => {}
        }
    }
    if steps.is_empty() {
        MoveStep::Wait(waiting)
    } else {
        MoveStep::Act(steps)
    }
}

/// No claim is gated as long as another one cannot be: a pod that stays would hold both up.
fn allows_gates(decision: &ClaimDecision) -> bool {
    !matches!(
        decision,
        ClaimDecision::Do(ClaimStep::Evict(_) | ClaimStep::Lock { .. })
            | ClaimDecision::Await(Waiting::Silent(..) | Waiting::SourceGone)
    )
}

/// Leaders that act late may leave something behind; it is removed as long as there is the move.
fn ended(of: &MoveFacts, decisions: Vec<ClaimDecision>) -> MoveStep {
    match act_or_wait(decisions) {
        steps @ MoveStep::Act(_) => steps,
        _ if of.finalizer => write(of, StatusChange::RemoveFinalizer),
        _ => MoveStep::Over,
    }
}
