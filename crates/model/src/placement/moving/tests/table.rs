//! The table of the protocol: for each step the next action, its waits, and its rollback.

use super::*;
use crate::volume::moving::{Phase, TargetMark};

fn done(step: ClaimStep) -> ClaimDecision {
    ClaimDecision::Do(step)
}

fn wait(what: Waiting) -> ClaimDecision {
    ClaimDecision::Await(what)
}

fn copied(change: impl FnOnce(&mut Copied)) -> ClaimFacts {
    let mut copied = Copied {
        converged: true,
        ..Copied::default()
    };
    change(&mut copied);
    gated(GATE).with(|facts| facts.copied = Live::Known(copied))
}

/// Each entry: the stage, the facts, and the decision.
#[test]
#[allow(clippy::too_many_lines, reason = "it is the table of the protocol")]
fn steps_are_taken_in_order() {
    use ClaimDecision::Reached;
    let copying = Stage::Copying { last: None };
    let rows = vec![
        // Step 1
        (
            Stage::Checking,
            idle(),
            done(ClaimStep::Lock {
                claim: at("claim"),
                by: uid(),
            }),
        ),
        (Stage::Checking, idle().locked(), Reached),
        // Step 2
        (
            Stage::Preparing,
            idle().locked(),
            done(ClaimStep::MakeTarget {
                mark: TargetMark {
                    by: uid(),
                    epoch: epoch(1),
                },
            }),
        ),
        (
            Stage::Preparing,
            idle().locked().with(|facts| facts.target = target(false)),
            done(ClaimStep::MakeHelpers(Side::Source)),
        ),
        (Stage::Preparing, prepared(), Reached),
        // Step 3
        (
            copying.clone(),
            prepared().with(|facts| facts.copied = Live::Known(Copied::default())),
            done(ClaimStep::StartPass(Pass::Warm)),
        ),
        (
            copying.clone(),
            prepared().with(|facts| facts.target_helpers = Live::Known(Helpers::Incomplete)),
            done(ClaimStep::MakeHelpers(Side::Target)),
        ),
        (copying.clone(), prepared().pods(vec![pod(false)]), Reached),
        // Step 4
        (
            Stage::Gating(GATE),
            prepared().pods(vec![pod(false)]),
            done(ClaimStep::Evict(vec!["shop/db-0".into()])),
        ),
        (
            Stage::Gating(GATE),
            prepared().pods(vec![pod(true)]),
            done(ClaimStep::Gate {
                volume: at("volume"),
                note: note(GATE),
            }),
        ),
        (
            Stage::Gating(GATE),
            gated(GATE).with(|facts| facts.source = idle().source),
            done(ClaimStep::MarkSource {
                source: at("source"),
                mark: moving(GATE),
            }),
        ),
        (
            Stage::Gating(GATE),
            gated(GATE).touched(Touch::Ungated(GATE)),
            done(ClaimStep::Touch {
                claim: at("claim"),
                touch: Touch::Gated(GATE),
            }),
        ),
        (Stage::Gating(GATE), gated(GATE).lost(false), wait(Waiting::Lost)),
        (Stage::Gating(GATE), gated(GATE), Reached),
        // Step 5
        (
            Stage::Draining(GATE),
            gated(GATE).pods(vec![pod(false)]),
            done(ClaimStep::Evict(vec!["shop/db-0".into()])),
        ),
        (
            Stage::Draining(GATE),
            gated(GATE).pods(vec![pod(true)]),
            wait(Waiting::Users(vec!["shop/db-0".into()])),
        ),
        // The mover is deleted with the last pod, and the drain ends after its node has released the volume.
        (Stage::Draining(GATE), gated(GATE), done(ClaimStep::PauseSource)),
        (
            Stage::Draining(GATE),
            gated(GATE).with(|facts| facts.source_helpers = Live::Known(Helpers::Leaving)),
            wait(Waiting::HelpersGone(Side::Source)),
        ),
        (
            Stage::Draining(GATE),
            gated(GATE).with(|facts| facts.source_helpers = Live::Unknown("timeout".into())),
            wait(Waiting::Unknown(Side::Source, "timeout".into())),
        ),
        (
            Stage::Draining(GATE),
            drained().with(|facts| facts.users = mover_has_it(true, true)),
            wait(Waiting::Users(vec!["node n2 (mounted and attached)".into()])),
        ),
        (
            Stage::Draining(GATE),
            drained().with(|facts| facts.users = mover_has_it(false, true)),
            wait(Waiting::Users(vec!["node n2 (mounted)".into()])),
        ),
        (
            Stage::Draining(GATE),
            drained().with(|facts| facts.users = mover_has_it(true, false)),
            wait(Waiting::Users(vec!["node n2 (attached)".into()])),
        ),
        (Stage::Draining(GATE), drained(), Reached),
        // Step 6, where the mover gets the volume again
        (
            Stage::Finishing(GATE),
            drained(),
            done(ClaimStep::MakeHelpers(Side::Source)),
        ),
        (
            Stage::Finishing(GATE),
            copied(|copied| copied.finished = Some(GATE))
                .with(|facts| facts.users = mover_has_it(true, true)),
            Reached,
        ),
        (
            Stage::Finishing(GATE),
            copied(|_| ()),
            done(ClaimStep::StartPass(Pass::Final(GATE))),
        ),
        (
            Stage::Finishing(GATE),
            copied(|copied| copied.running = Some(Pass::Final(GATE))),
            wait(Waiting::Pass(Pass::Final(GATE))),
        ),
        (
            Stage::Finishing(GATE),
            copied(|copied| copied.finished = Some(GATE)),
            Reached,
        ),
        // Step 7
        (
            Stage::Verifying(GATE),
            copied(|_| ()),
            done(ClaimStep::StartPass(Pass::Verify(GATE))),
        ),
        (
            Stage::Verifying(GATE),
            copied(|copied| copied.compared = Some((GATE, Roots::Equal))),
            Reached,
        ),
        // Step 9
        (
            Stage::Committed(GATE),
            gated(GATE),
            done(ClaimStep::MarkSource {
                source: at("source"),
                mark: superseded(),
            }),
        ),
        (
            Stage::Committed(GATE),
            gated(GATE).source(superseded()),
            done(ClaimStep::StartPass(Pass::Finish(GATE))),
        ),
        (
            Stage::Committed(GATE),
            copied(|copied| copied.running = Some(Pass::Finish(GATE))).source(superseded()),
            wait(Waiting::Pass(Pass::Finish(GATE))),
        ),
        (
            Stage::Committed(GATE),
            copied(|copied| copied.journal_off = Some(GATE)).source(superseded()),
            done(ClaimStep::RemoveHelpers(Side::Source)),
        ),
        // A mover that has died, or cannot remove the journal, delays nothing.
        (
            Stage::Committed(GATE),
            gated(GATE)
                .source(superseded())
                .with(|facts| facts.target_helpers = Live::Known(Helpers::Incomplete)),
            done(ClaimStep::RemoveHelpers(Side::Source)),
        ),
        (
            Stage::Committed(GATE),
            gated(GATE)
                .source(superseded())
                .with(|facts| facts.copied = Live::Unknown("I/O error".into())),
            done(ClaimStep::RemoveHelpers(Side::Source)),
        ),
        (
            Stage::Committed(GATE),
            handed_over().with(|facts| facts.target = target(false)),
            done(ClaimStep::HandOver {
                target: at("target"),
                retain: false,
            }),
        ),
        // Users do not wait for a mover that only reads: its node may be lost.
        (
            Stage::Committed(GATE),
            handed_over().with(|facts| {
                facts.source_helpers = Live::Known(Helpers::Leaving);
                facts.target = target(false);
            }),
            done(ClaimStep::HandOver {
                target: at("target"),
                retain: false,
            }),
        ),
        (
            Stage::Committed(GATE),
            handed_over().with(|facts| {
                facts.source_helpers = Live::Known(Helpers::Leaving);
                facts.target_helpers = Live::Known(Helpers::Leaving);
            }),
            wait(Waiting::HelpersGone(Side::Target)),
        ),
        (
            Stage::Retaining(GATE),
            arrived().with(|facts| facts.source_helpers = Live::Known(Helpers::Leaving)),
            wait(Waiting::HelpersGone(Side::Source)),
        ),
        // Step 10
        (
            Stage::Committed(GATE),
            handed_over().volume(|volume| volume.attached = vec!["n1".into()]),
            wait(Waiting::Detached(vec!["n1".into()])),
        ),
        (
            Stage::Committed(GATE),
            handed_over(),
            done(ClaimStep::DeleteVolume { volume: at("volume") }),
        ),
        (
            Stage::Committed(GATE),
            handed_over().volume(|volume| volume.deleting = true),
            done(ClaimStep::RemoveVolumeFinalizers { volume: at("volume") }),
        ),
        (
            Stage::Committed(GATE),
            handed_over().without_volume(),
            done(ClaimStep::MakeVolume {
                of: Side::Target,
                note: note(GATE),
            }),
        ),
        // Step 11
        (
            Stage::Committed(GATE),
            replaced(),
            done(ClaimStep::Touch {
                claim: at("claim"),
                touch: Touch::Ungated(GATE),
            }),
        ),
        (
            Stage::Committed(GATE),
            replaced().touched(Touch::Ungated(GATE)),
            wait(Waiting::Bound),
        ),
        (
            Stage::Committed(GATE),
            replaced()
                .touched(Touch::Ungated(GATE))
                .lost(false)
                .volume(|volume| volume.bound = true),
            done(ClaimStep::RestorePolicy {
                volume: at("volume"),
                policy: ReclaimPolicy::Delete,
                mark: given_back(GATE),
            }),
        ),
        (
            Stage::Committed(GATE),
            arrived(),
            done(ClaimStep::Unlock { claim: at("claim") }),
        ),
        // Step 12
        (
            Stage::Retaining(GATE),
            arrived().with(unlock),
            wait(Waiting::Retention),
        ),
    ];
    for (number, (stage, facts, expected)) in rows.into_iter().enumerate() {
        assert_eq!(step(&of(stage.clone()), &facts), expected, "{number}: {stage:?}");
    }
}

/// The users of a volume that a mover has on the node `n2`.
fn mover_has_it(attached: bool, in_use: bool) -> Live<Users> {
    Live::Known(Users {
        mover_nodes: vec![UserNode {
            name: "n2".into(),
            attached,
            detach_error: None,
            in_use,
            health: NodeHealth::Ready,
        }],
        ..Users::default()
    })
}

fn unlock(facts: &mut ClaimFacts) {
    if let ClaimNow::Exists { lock, .. } = &mut facts.claim {
        *lock = Lock::Free;
    }
}

#[test]
fn stages_are_entered_in_order() {
    let second = GATE.next();
    let verified = copied(|copied| copied.compared = Some((GATE, Roots::Equal)));
    for (stage, facts, expected) in [
        (
            Stage::Checking,
            idle().locked(),
            StatusChange::Enter(Stage::Preparing),
        ),
        (
            Stage::Preparing,
            prepared(),
            StatusChange::Enter(Stage::Copying { last: None }),
        ),
        (
            Stage::Copying { last: None },
            prepared(),
            StatusChange::OpenGate(GATE),
        ),
        (
            Stage::Copying { last: Some(GATE) },
            prepared(),
            StatusChange::OpenGate(second),
        ),
        (
            Stage::Gating(GATE),
            gated(GATE),
            StatusChange::Enter(Stage::Draining(GATE)),
        ),
        (
            Stage::Draining(GATE),
            drained(),
            StatusChange::Enter(Stage::Finishing(GATE)),
        ),
        (
            Stage::Finishing(GATE),
            copied(|copied| copied.finished = Some(GATE)),
            StatusChange::Enter(Stage::Verifying(GATE)),
        ),
        (Stage::Verifying(GATE), verified, StatusChange::Commit(GATE)),
        (
            Stage::Committed(GATE),
            arrived().with(unlock),
            StatusChange::Enter(Stage::Retaining(GATE)),
        ),
        (
            back(RollbackTo::Copying),
            prepared()
                .volume(|volume| volume.mark = Some(given_back(GATE)))
                .source(unmarked(GATE)),
            StatusChange::Enter(Stage::Copying { last: Some(GATE) }),
        ),
        (
            back(RollbackTo::Start),
            idle()
                .volume(|volume| volume.mark = Some(given_back(GATE)))
                .source(unmarked(GATE)),
            StatusChange::Enter(Stage::Ended(Outcome::Cancelled)),
        ),
        (
            Stage::Ended(Outcome::Done),
            arrived().with(unlock),
            StatusChange::RemoveFinalizer,
        ),
    ] {
        assert_eq!(enters(&of(stage.clone()), &facts), Some(expected), "{stage:?}");
    }
}

#[test]
fn a_rollback_restores_the_policy_last() {
    let way = of(back(RollbackTo::Copying));
    let unmarked_source = gated(GATE).source(unmarked(GATE));
    let named = unmarked_source
        .clone()
        .volume(|volume| volume.held_by = HeldBy::Claim);
    let touched = named.clone().touched(Touch::Ungated(GATE));
    let bound = touched.clone().lost(false).volume(|volume| volume.bound = true);
    let volume = || at("volume");
    for (facts, expected) in [
        (
            gated(GATE),
            done(ClaimStep::MarkSource {
                source: at("source"),
                mark: unmarked(GATE),
            }),
        ),
        (
            unmarked_source,
            done(ClaimStep::RestoreClaimRef {
                volume: volume(),
                note: note(GATE),
            }),
        ),
        (
            named,
            done(ClaimStep::Touch {
                claim: at("claim"),
                touch: Touch::Ungated(GATE),
            }),
        ),
        (touched.clone(), wait(Waiting::Bound)),
        (touched.lost(false), wait(Waiting::Bound)),
        (
            bound,
            done(ClaimStep::RestorePolicy {
                volume: volume(),
                policy: ReclaimPolicy::Delete,
                mark: given_back(GATE),
            }),
        ),
    ] {
        assert_eq!(step(&way, &facts), expected);
    }
}

/// A webhook in its cluster may deny the mark on the PV of a remote source.
#[test]
fn a_claim_is_unlocked_before_late_gates_of_its_remote_source_are_refused() {
    let mut facts = idle().locked().source(unmarked(GATE));
    let VolumeNow::Exists(real) = facts.volume.clone() else {
        panic!("there is no PV");
    };
    facts = facts.volume(|volume| volume.mark = Some(given_back(GATE)));
    facts.there = Some(RemoteVolume {
        twin: facts.claim.clone(),
        twin_uid: "twin".into(),
        volume: real,
        policy_before: None,
        mover_claim: MoverClaim::Absent,
    });
    let stage = of(back(RollbackTo::Start));
    assert_eq!(
        step(&stage, &facts),
        done(ClaimStep::Unlock { claim: at("claim") })
    );
    unlock(&mut facts);
    let refused = ClaimStep::RefuseGate {
        volume: at("volume"),
        mark: given_back(GATE),
    };
    assert_eq!(step(&stage, &facts), done(ClaimStep::There(Box::new(refused))));
}

#[test]
fn a_rollback_removes_movers_and_target_after_the_volume_is_usable_again() {
    let way = of(back(RollbackTo::Start));
    let reopened = prepared()
        .volume(|volume| volume.mark = Some(given_back(GATE)))
        .source(unmarked(GATE));
    let without_helpers = reopened.clone().with(|facts| {
        facts.source_helpers = Live::Known(Helpers::Absent);
        facts.target_helpers = Live::Known(Helpers::Absent);
    });
    let without_target = without_helpers
        .clone()
        .with(|facts| facts.target = Live::Known(TargetTwin::Absent));
    let silent = without_helpers
        .clone()
        .with(|facts| facts.target = Live::Unknown("timeout".into()));
    for (facts, expected) in [
        (reopened, done(ClaimStep::RemoveHelpers(Side::Source))),
        (
            without_helpers,
            done(ClaimStep::DeleteTarget { target: at("target") }),
        ),
        (without_target, done(ClaimStep::Unlock { claim: at("claim") })),
        (silent.clone(), done(ClaimStep::Unlock { claim: at("claim") })),
        (
            silent.with(unlock),
            wait(Waiting::Unknown(Side::Target, "timeout".into())),
        ),
    ] {
        assert_eq!(step(&way, &facts), expected);
    }
}

#[test]
fn a_cancel_or_a_deletion_counts_until_the_commit() {
    for stage in [
        Stage::Checking,
        Stage::Preparing,
        Stage::Copying { last: Some(GATE) },
        Stage::Gating(GATE),
        Stage::Draining(GATE),
        Stage::Finishing(GATE),
        Stage::Verifying(GATE),
        back(RollbackTo::Copying),
    ] {
        let expected = Stage::Rollback {
            gate: stage.last_gate(),
            to: RollbackTo::Start,
            why: RollbackReason::Cancelled,
        };
        let mut cancelled = of(stage.clone());
        cancelled.requested.cancel = true;
        let mut deleted = of(stage);
        deleted.deleting = true;
        for of in [cancelled, deleted] {
            assert_eq!(
                enters(&of, &gated(GATE)),
                Some(StatusChange::Enter(expected.clone()))
            );
        }
    }
    for stage in [Stage::Committed(GATE), Stage::Retaining(GATE)] {
        let mut cancelled = of(stage);
        cancelled.requested.cancel = true;
        cancelled.deleting = true;
        assert_eq!(enters(&cancelled, &handed_over()), None);
    }
}

#[test]
fn overdue_stages_are_rolled_back_and_retried() {
    for (stage, facts, why) in [
        (
            Stage::Gating(GATE),
            gated(GATE).lost(false),
            RollbackReason::DrainOverdue,
        ),
        (
            Stage::Draining(GATE),
            gated(GATE).pods(vec![pod(true)]),
            RollbackReason::DrainOverdue,
        ),
        (
            Stage::Finishing(GATE),
            copied(|_| ()),
            RollbackReason::DowntimeOverdue,
        ),
        (
            Stage::Verifying(GATE),
            copied(|_| ()),
            RollbackReason::DowntimeOverdue,
        ),
    ] {
        let mut late = of(stage);
        late.overdue = OverDue {
            drain: true,
            downtime: true,
            retention: false,
        };
        let expected = Stage::Rollback {
            gate: Some(GATE),
            to: RollbackTo::Copying,
            why,
        };
        assert_eq!(enters(&late, &facts), Some(StatusChange::Enter(expected)));
    }
}

#[test]
fn a_verified_copy_is_committed_even_if_it_is_overdue() {
    let mut late = of(Stage::Verifying(GATE));
    late.overdue.downtime = true;
    let verified = copied(|copied| copied.compared = Some((GATE, Roots::Equal)));
    assert_eq!(enters(&late, &verified), Some(StatusChange::Commit(GATE)));
}

#[test]
fn a_lost_target_is_rolled_back_before_the_commit_and_keeps_the_source_after_it() {
    let gone = |facts: ClaimFacts| facts.with(|facts| facts.target = Live::Known(TargetTwin::Gone));
    for stage in [Stage::Finishing(GATE), Stage::Verifying(GATE)] {
        assert_eq!(
            step(&of(stage), &gone(gated(GATE))),
            ClaimDecision::Rollback(RollbackTo::Start, RollbackReason::TargetGone)
        );
    }
    assert_eq!(
        step(&of(Stage::Committed(GATE)), &gone(handed_over())),
        wait(Waiting::TargetGone)
    );
    let mut late = of(Stage::Retaining(GATE));
    late.overdue.retention = true;
    assert_eq!(
        step(&late, &gone(arrived().with(unlock))),
        wait(Waiting::TargetGone),
        "the source is all that is left"
    );
    assert_eq!(
        step(&late, &arrived().with(unlock)),
        done(ClaimStep::ReleaseSource {
            source: at("source"),
            policy: ReclaimPolicy::Delete,
        })
    );
}

#[test]
fn a_source_that_may_return_is_waited_for_and_one_that_is_lost_ends_the_move() {
    let gone = |facts: ClaimFacts, for_good| {
        facts.with(|facts| facts.source = Live::Known(SourceTwin::Gone { for_good }))
    };
    for (stage, facts) in [
        (Stage::Preparing, prepared()),
        (Stage::Copying { last: None }, prepared()),
        (Stage::Draining(GATE), gated(GATE)),
    ] {
        assert_eq!(
            step(&of(stage.clone()), &gone(facts.clone(), false)),
            wait(Waiting::SourceGone)
        );
        assert_eq!(
            step(&of(stage), &gone(facts, true)),
            ClaimDecision::Rollback(RollbackTo::Start, RollbackReason::SourceGone)
        );
    }
    // No mover can mount a claim that was created again and is not bound: it is not gated.
    let unbound = |facts: ClaimFacts| {
        facts.with(|facts| {
            if let Live::Known(SourceTwin::Exists { bound, .. }) = &mut facts.source {
                *bound = false;
            }
        })
    };
    for stage in [Stage::Copying { last: None }, Stage::Gating(GATE)] {
        assert_eq!(step(&of(stage), &unbound(prepared())), wait(Waiting::SourceGone));
    }
    let silent = |facts: ClaimFacts| facts.with(|facts| facts.source = Live::Unknown("timeout".into()));
    assert_eq!(
        step(
            &of(Stage::Committed(GATE)),
            &silent(handed_over().with(|facts| facts.target = target(false)))
        ),
        done(ClaimStep::HandOver {
            target: at("target"),
            retain: false,
        }),
        "row 9 needs only the target"
    );
    assert_eq!(
        step(&of(back(RollbackTo::Copying)), &silent(gated(GATE))),
        done(ClaimStep::RestoreClaimRef {
            volume: at("volume"),
            note: note(GATE),
        }),
        "and a silent source keeps nobody from its claim"
    );
}

#[test]
fn several_claims_are_gated_together_and_committed_together() {
    let both = |first: ClaimFacts, second: ClaimFacts, stage| move_step(&of(stage), &[first, second]);
    let busy = || prepared().pods(vec![pod(false)]);
    assert_eq!(
        both(prepared(), busy(), Stage::Gating(GATE)),
        MoveStep::Act(vec![(1, ClaimStep::Evict(vec!["shop/db-0".into()]))]),
        "the first is not gated as long as the second cannot be"
    );
    let verified = || copied(|copied| copied.compared = Some((GATE, Roots::Equal)));
    let running = copied(|copied| copied.running = Some(Pass::Verify(GATE)));
    assert_eq!(
        both(verified(), running, Stage::Verifying(GATE)),
        MoveStep::Wait(vec![(1, Waiting::Pass(Pass::Verify(GATE)))])
    );
    let differs = copied(|copied| copied.compared = Some((GATE, Roots::Differ("a/b".into()))));
    assert_eq!(
        both(verified(), differs, Stage::Verifying(GATE)),
        MoveStep::Write {
            at: at("move"),
            change: StatusChange::Enter(Stage::Rollback {
                gate: Some(GATE),
                to: RollbackTo::Start,
                why: RollbackReason::Differs("a/b".into()),
            }),
        }
    );
}

#[test]
fn a_pause_counts_only_while_no_gate_is_closed() {
    let paused = |stage| {
        let mut of = of(stage);
        of.requested.paused = true;
        of
    };
    let waits = MoveStep::Wait(vec![(0, Waiting::Paused)]);
    assert_eq!(
        move_step(&paused(Stage::Copying { last: None }), &[prepared()]),
        waits
    );
    assert_eq!(move_step(&paused(Stage::Preparing), &[idle().locked()]), waits);
    let gated = move_step(&paused(Stage::Draining(GATE)), &[drained()]);
    assert!(matches!(gated, MoveStep::Write { .. }), "{gated:?}");
}

#[test]
fn a_cut_over_needs_a_request_and_a_start_needs_no_obstacles() {
    let mut ready = of(Stage::Copying { last: None });
    ready.requested.cutover = false;
    let waits = MoveStep::Wait(vec![(0, Waiting::CutOver)]);
    assert_eq!(move_step(&ready, &[prepared()]), waits);
    assert_eq!(ready.stage.phase(true), Phase::Ready);

    let mut unknown = of(Stage::Checking);
    unknown.obstacles = None;
    let waits = MoveStep::Wait(vec![(0, Waiting::Preflight)]);
    assert_eq!(move_step(&unknown, &[idle().locked()]), waits);
    unknown.obstacles = Some(vec!["too small".into()]);
    let refused = Stage::Rollback {
        gate: None,
        to: RollbackTo::Start,
        why: RollbackReason::Refused(vec!["too small".into()]),
    };
    assert_eq!(
        enters(&unknown, &idle().locked()),
        Some(StatusChange::Enter(refused))
    );
}

#[test]
fn locks_targets_and_volumes_of_others_are_left_alone() {
    let theirs = |counts| {
        idle().with(|facts| {
            if let ClaimNow::Exists { lock, .. } = &mut facts.claim {
                *lock = Lock::Theirs { by: other(), counts };
            }
        })
    };
    let start = |why| ClaimDecision::Rollback(RollbackTo::Start, why);
    assert_eq!(
        step(&of(Stage::Checking), &theirs(true)),
        start(RollbackReason::Locked(other()))
    );
    assert_eq!(
        step(&of(Stage::Checking), &theirs(false)),
        done(ClaimStep::Lock {
            claim: at("claim"),
            by: uid(),
        }),
        "the lock of a move that is gone does not count"
    );
    let foreign = idle()
        .locked()
        .with(|facts| facts.target = Live::Known(TargetTwin::Foreign("a claim".into())));
    assert_eq!(
        step(&of(Stage::Preparing), &foreign),
        start(RollbackReason::InTheWay("a claim".into()))
    );
    assert_eq!(
        step(
            &of(back(RollbackTo::Start)),
            &foreign
                .volume(|volume| volume.mark = Some(given_back(GATE)))
                .source(unmarked(GATE))
        ),
        done(ClaimStep::Unlock { claim: at("claim") }),
        "and it is not deleted on the way back"
    );
    let another = handed_over().volume(|volume| volume.serves = Serves::Other("v1:x".into()));
    assert_eq!(
        step(&of(Stage::Committed(GATE)), &another),
        wait(Waiting::VolumeTaken("v1:x".into()))
    );
}

/// While the source is retained, the volume may be moved again, for example by an undo.
#[test]
fn a_source_is_released_also_after_the_volume_has_moved_on() {
    let mut late = of(Stage::Retaining(GATE));
    late.overdue.retention = true;
    let gated_again = arrived().with(|facts| {
        facts.volume = VolumeNow::Absent;
        if let ClaimNow::Exists { lock, .. } = &mut facts.claim {
            *lock = Lock::Theirs {
                by: other(),
                counts: true,
            };
        }
    });
    assert_eq!(
        step(&of(Stage::Retaining(GATE)), &gated_again),
        wait(Waiting::Retention),
        "its PV is not made here"
    );
    assert_eq!(
        step(&late, &gated_again),
        done(ClaimStep::ReleaseSource {
            source: at("source"),
            policy: ReclaimPolicy::Delete,
        })
    );
    let further = arrived()
        .with(unlock)
        .volume(|volume| volume.serves = Serves::Later);
    let further = further.with(|facts| facts.target = Live::Known(TargetTwin::Absent));
    assert_eq!(
        step(&late, &further),
        done(ClaimStep::ReleaseSource {
            source: at("source"),
            policy: ReclaimPolicy::Delete,
        })
    );
    let released = further.with(|facts| facts.source = Live::Known(SourceTwin::Gone { for_good: true }));
    assert_eq!(step(&late, &released), ClaimDecision::Reached);
}

#[test]
fn a_source_is_recovered_only_if_its_target_is_lost() {
    let asked = |stage| {
        let mut of = of(stage);
        of.requested.recover = true;
        of
    };
    let lost = |facts: ClaimFacts| facts.with(|facts| facts.target = Live::Known(TargetTwin::Gone));
    let whole = || lost(arrived().with(unlock));
    let silent = |off| {
        whole().with(|facts| {
            facts.target = Live::Unknown("timeout".into());
            facts.target_out_of_service = off;
        })
    };
    let second = GATE.next();
    for (stage, facts) in [
        (Stage::Committed(GATE), lost(handed_over())),
        (Stage::Retaining(GATE), whole()),
        (Stage::Retaining(GATE), silent(true)),
    ] {
        let recovers = Some(StatusChange::Recover(second));
        assert_eq!(enters(&asked(stage.clone()), &facts), recovers);
        assert_eq!(enters(&of(stage), &facts), None, "no recovery was requested");
    }
    let theirs = whole().with(|facts| {
        if let ClaimNow::Exists { lock, .. } = &mut facts.claim {
            *lock = Lock::Theirs {
                by: other(),
                counts: true,
            };
        }
    });
    let gone = whole().with(|facts| facts.source = Live::Known(SourceTwin::Gone { for_good: true }));
    let helped = whole().with(|facts| facts.source_helpers = Live::Known(Helpers::Leaving));
    for (facts, why) in [
        (arrived().with(unlock), "the target is not lost"),
        (silent(false), "out-of-service"),
        (
            whole().with(|facts| facts.same_namespace = true),
            "no claim any more",
        ),
        (gone, "the source does not exist"),
        (helped, "pods that copied"),
        (whole().dying(), "the claim was deleted"),
        (theirs, OTHER),
        (
            whole().volume(|volume| volume.serves = Serves::Later),
            "does not refer to the target",
        ),
    ] {
        let obstacles = recover::obstacles(&asked(Stage::Retaining(GATE)), &[facts]).unwrap();
        let said = obstacles[0].1.to_string();
        assert!(said.contains(why), "{said}");
    }
}
