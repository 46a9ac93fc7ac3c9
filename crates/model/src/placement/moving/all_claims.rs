//! The next step of a move, for all its claims together, because a pod may mount several of them: all are
//! gated, all are drained, all are compared, and one write commits them.

use super::{
    AsRead, ClaimDecision, ClaimFacts, ClaimStep, MoveFacts, Outcome, RollbackReason, RollbackTo, Stage,
    Waiting, claim_step, recover,
};
use crate::volume::moving::GateNumber;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveStep {
    /// Change the `VolumeMove`, in exactly this version. Nothing else is done before this write.
    Write { at: AsRead, change: StatusChange },
    /// Take these steps, each for the claim of this index, in any order.
    Act(Vec<(usize, ClaimStep)>),
    /// Wait until any of these has happened.
    Wait(Vec<(usize, Waiting)>),
    /// The move has ended.
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatusChange {
    AddFinalizer,
    /// Remove our finalizer, when nothing is left to do.
    RemoveFinalizer,
    /// Enter `Gating` with this number, and record the PVs of all claims as `SourceRecord`s.
    OpenGate(GateNumber),
    /// The commit: enter `Committed` with this number, and record a `CommitRecord` for each claim.
    Commit(GateNumber),
    /// Enter `Recovering` with this number, and record the current reclaim policies.
    Recover(GateNumber),
    Enter(Stage),
}

#[must_use]
pub fn move_step(of: &MoveFacts, claims: &[ClaimFacts]) -> MoveStep {
    let decisions: Vec<ClaimDecision> = claims.iter().map(|facts| claim_step(of, facts)).collect();
    if let Stage::Ended(_) = of.stage {
        return ended(of, decisions);
    }
    if !of.finalizer {
        // Without the finalizer a deleted move does not exist any more, and its objects would be left over.
        return if of.deleting {
            MoveStep::Over
        } else {
            write(of, StatusChange::AddFinalizer)
        };
    }
    if let Some(change) = rolled_back(of, &decisions) {
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
        return write(of, StatusChange::Enter(rollback(of, RollbackTo::Copying, why)));
    }
    if is_paused(of) {
        return MoveStep::Wait(vec![(0, Waiting::Paused)]);
    }
    match act_or_wait(decisions) {
        MoveStep::Wait(waiting) => MoveStep::Wait([obstacles, waiting].concat()),
        step => step,
    }
}

/// The target is lost, and the user requests the recovery, which has a new gate number, so that late writes
/// of the previous gate fail.
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

fn rollback(of: &MoveFacts, to: RollbackTo, why: RollbackReason) -> Stage {
    Stage::Rollback {
        gate: of.stage.last_gate(),
        to,
        why,
    }
}

/// Whether the move has to be rolled back, or gated again. After the commit it can only be completed.
fn rolled_back(of: &MoveFacts, decisions: &[ClaimDecision]) -> Option<StatusChange> {
    if of.stage.is_committed() {
        return None;
    }
    let is_at_start = matches!(
        of.stage,
        Stage::Rollback {
            to: RollbackTo::Start,
            ..
        }
    );
    if (of.requested.cancel || of.deleting) && !is_at_start {
        return Some(StatusChange::Enter(rollback(
            of,
            RollbackTo::Start,
            RollbackReason::Cancelled,
        )));
    }
    if let (Stage::Checking, Some(obstacles)) = (&of.stage, &of.obstacles)
        && !obstacles.is_empty()
    {
        let why = RollbackReason::Refused(obstacles.clone());
        return Some(StatusChange::Enter(rollback(of, RollbackTo::Start, why)));
    }
    let demanded = |wanted: RollbackTo| {
        decisions.iter().find_map(|decision| match decision {
            ClaimDecision::Rollback(to, why) if *to == wanted => {
                Some(StatusChange::Enter(rollback(of, wanted, why.clone())))
            }
            _ => None,
        })
    };
    let regate = || {
        let gate = of.stage.gate()?.next();
        decisions
            .contains(&ClaimDecision::Regate)
            .then_some(StatusChange::OpenGate(gate))
    };
    demanded(RollbackTo::Start)
        .or_else(|| demanded(RollbackTo::Copying))
        .or_else(regate)
}

/// Which deadline has passed, while users cannot use their volumes.
fn overdue(of: &MoveFacts) -> Option<RollbackReason> {
    match of.stage {
        Stage::Gating(_) | Stage::Draining(_) if of.overdue.drain => Some(RollbackReason::DrainOverdue),
        Stage::Finishing(_) | Stage::Verifying(_) if of.overdue.downtime => {
            Some(RollbackReason::DowntimeOverdue)
        }
        _ => None,
    }
}

/// A pause is ignored while a gate is closed: it would prolong the downtime.
fn is_paused(of: &MoveFacts) -> bool {
    of.requested.paused
        && matches!(
            of.stage,
            Stage::Checking | Stage::Preparing | Stage::Copying { .. }
        )
}

/// All claims have reached the goal of the stage.
fn advance(of: &MoveFacts) -> MoveStep {
    if is_paused(of) {
        return MoveStep::Wait(vec![(0, Waiting::Paused)]);
    }
    let change = match &of.stage {
        Stage::Checking if of.obstacles.is_none() => return MoveStep::Wait(vec![(0, Waiting::Preflight)]),
        Stage::Checking => StatusChange::Enter(Stage::Preparing),
        Stage::Preparing => StatusChange::Enter(Stage::Copying { last: None }),
        Stage::Copying { .. } if !of.requested.cutover => {
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
        Stage::Rollback {
            gate,
            to: RollbackTo::Copying,
            ..
        } => StatusChange::Enter(Stage::Copying { last: *gate }),
        Stage::Rollback {
            to: RollbackTo::Start,
            why: RollbackReason::Cancelled,
            ..
        } => StatusChange::Enter(Stage::Ended(Outcome::Cancelled)),
        Stage::Rollback {
            to: RollbackTo::Start,
            why: RollbackReason::SourceGone,
            ..
        } => StatusChange::Enter(Stage::Ended(Outcome::SourceGone)),
        Stage::Rollback {
            to: RollbackTo::Start,
            ..
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
            ClaimDecision::Reached | ClaimDecision::Rollback(..) | ClaimDecision::Regate => {}
        }
    }
    if steps.is_empty() {
        MoveStep::Wait(waiting)
    } else {
        MoveStep::Act(steps)
    }
}

/// No claim is gated while another one cannot be: a pod that stays would delay both.
fn allows_gates(decision: &ClaimDecision) -> bool {
    !matches!(
        decision,
        ClaimDecision::Do(ClaimStep::Evict(_) | ClaimStep::Lock { .. })
            | ClaimDecision::Await(Waiting::Unknown(..) | Waiting::SourceGone)
    )
}

/// Removes objects of late writes, as long as the `VolumeMove` exists.
fn ended(of: &MoveFacts, decisions: Vec<ClaimDecision>) -> MoveStep {
    match act_or_wait(decisions) {
        steps @ MoveStep::Act(_) => steps,
        _ if of.finalizer => write(of, StatusChange::RemoveFinalizer),
        _ => MoveStep::Over,
    }
}
