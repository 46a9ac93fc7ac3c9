//! The ten rules that hold for all steps; each was found by attacking the protocol. Each has a test that
//! fails without it.

use std::collections::BTreeMap;

use super::*;
use crate::volume::{
    RecordError, mark,
    moving::{TargetMark, TwinMarks, is_gated},
};

fn start(why: RollbackReason) -> ClaimDecision {
    ClaimDecision::Rollback(RollbackTo::Start, why)
}

fn again(why: RollbackReason) -> ClaimDecision {
    ClaimDecision::Rollback(RollbackTo::Copying, why)
}

fn compared(gate: GateNumber) -> Live<Copied> {
    Live::Known(Copied {
        converged: true,
        finished: Some(gate),
        compared: Some((gate, Roots::Equal)),
        ..Copied::default()
    })
}

#[test]
fn rule_1_gates_are_numbered_and_a_rollback_is_recorded_first() {
    let second = GATE.next();
    // The number is in the status before anything is gated, and was never used before.
    assert_eq!(
        enters(&of(Stage::Copying { last: Some(GATE) }), &prepared()),
        Some(StatusChange::OpenGate(second))
    );
    // Results of an earlier gate do not count.
    let stale = |facts: ClaimFacts| facts.with(|facts| facts.copied = compared(GATE));
    assert_eq!(
        step(&of(Stage::Finishing(second)), &stale(gated(second))),
        ClaimDecision::Do(ClaimStep::StartPass(Pass::Final(second)))
    );
    assert_eq!(
        step(&of(Stage::Verifying(second)), &stale(gated(second))),
        ClaimDecision::Do(ClaimStep::StartPass(Pass::Verify(second)))
    );
    // The commit requires that all gates are closed under this number.
    let verified = |facts: ClaimFacts| facts.with(|facts| facts.copied = compared(second));
    for opened in [
        gated(GATE),
        gated(second).volume(|volume| volume.held_by = HeldBy::Claim),
        gated(second).volume(|volume| volume.policy = ReclaimPolicy::Delete),
        gated(second).volume(|volume| volume.mark = Some(given_back(second))),
        gated(second).volume(|volume| volume.mark = None),
    ] {
        let decision = step(&of(Stage::Verifying(second)), &verified(opened));
        assert_eq!(decision, again(RollbackReason::GateOpen));
    }
    // The rollback of an earlier gate does not change a later one.
    for to in [RollbackTo::Copying, RollbackTo::Start] {
        let decision = step(&of(back(to)), &gated(second));
        let touches = matches!(
            decision,
            ClaimDecision::Do(
                ClaimStep::RestoreClaimRef { .. }
                    | ClaimStep::RestorePolicy { .. }
                    | ClaimStep::MarkSource { .. }
            )
        );
        assert!(!touches, "{decision:?}");
    }
    // A late write of an earlier gate names an older version of its PV.
    let never_gated = prepared().source(unmarked(GATE));
    assert_eq!(
        step(&of(back(RollbackTo::Copying)), &never_gated),
        ClaimDecision::Do(ClaimStep::RefuseGate {
            volume: at("volume"),
            mark: given_back(GATE),
        })
    );
    let refused = never_gated.volume(|volume| volume.mark = Some(given_back(GATE)));
    assert_eq!(
        step(&of(Stage::Gating(GATE)), &refused),
        again(RollbackReason::GateOpen)
    );
}

#[test]
fn a_move_whose_writers_may_not_be_detected_waits_for_consent() {
    let copying = of(Stage::Copying { last: None });
    let unwatched = prepared().with(|facts| facts.unwatched = Some("no rights".into()));
    assert_eq!(
        move_step(&copying, std::slice::from_ref(&unwatched)),
        MoveStep::Wait(vec![(0, Waiting::Consent("no rights".into()))])
    );
    assert_eq!(
        step(&of(Stage::Preparing), &unwatched),
        ClaimDecision::Reached,
        "copying continues meanwhile"
    );
    assert_eq!(
        enters(&copying, &prepared()),
        Some(StatusChange::OpenGate(GateNumber::FIRST))
    );
}

#[test]
fn a_target_that_is_too_small_is_refused_at_once() {
    let too_small = |facts: ClaimFacts| {
        facts.with(|facts| {
            facts.copied = Live::Known(Copied {
                too_small: Some("no room".into()),
                ..Copied::default()
            });
        })
    };
    let refused = start(RollbackReason::Refused(vec!["no room".into()]));
    let copying = of(Stage::Copying { last: None });
    assert_eq!(step(&copying, &too_small(prepared())), refused);
    assert_eq!(
        step(&of(Stage::Finishing(GATE)), &too_small(gated(GATE))),
        refused
    );
}

#[test]
fn rule_1_users_that_return_require_a_new_gate() {
    for stage in [Stage::Finishing(GATE), Stage::Verifying(GATE)] {
        let used = gated(GATE)
            .with(|facts| facts.copied = compared(GATE))
            .pods(vec![pod(true)]);
        assert_eq!(
            enters(&of(stage), &used),
            Some(StatusChange::OpenGate(GATE.next()))
        );
    }
    // The number replaces the old one without opening the gate.
    assert_eq!(
        step(
            &of(Stage::Gating(GATE.next())),
            &gated(GATE).pods(vec![pod(true)])
        ),
        ClaimDecision::Do(ClaimStep::Gate {
            volume: at("volume"),
            note: note(GATE.next()),
        })
    );
}

#[test]
fn rule_2_a_deleted_pv_is_not_gated_and_is_recreated_by_a_rollback() {
    let gating = of(Stage::Gating(GATE));
    let going = prepared().volume(|volume| volume.deleting = true);
    assert_eq!(
        step(&gating, &going),
        start(RollbackReason::Volume(VolumeFault::Deleting))
    );
    // A PV without a record could not be created again.
    let unrecorded = prepared().with(|facts| facts.recorded = None);
    assert_eq!(step(&gating, &unrecorded), again(RollbackReason::NotRecorded));
    let outdated = prepared().volume(|volume| volume.policy = ReclaimPolicy::Retain);
    assert_eq!(step(&gating, &outdated), again(RollbackReason::NotRecorded));

    let way = of(back(RollbackTo::Start));
    let going = gated(GATE).source(unmarked(GATE)).volume(|volume| {
        volume.held_by = HeldBy::Claim;
        volume.deleting = true;
    });
    let attached = going.clone().volume(|volume| volume.attached = vec!["n1".into()]);
    assert_eq!(
        step(&way, &attached),
        ClaimDecision::Do(ClaimStep::RemoveHelpers(Side::Source)),
        "to Kubernetes the mover has the same volume"
    );
    assert_eq!(
        step(&of(back(RollbackTo::Copying)), &attached),
        ClaimDecision::Do(ClaimStep::PauseSource),
        "the move needs it again"
    );
    for left in [Helpers::Leaving, Helpers::Absent] {
        let attached = attached
            .clone()
            .with(|facts| facts.source_helpers = Live::Known(left));
        assert_eq!(
            step(&way, &attached),
            ClaimDecision::Await(Waiting::Detached(vec!["n1".into()])),
            "csi-attacher needs it"
        );
    }
    for held_by in [HeldBy::Claim, HeldBy::Move] {
        assert_eq!(
            step(&way, &going.clone().volume(|volume| volume.held_by = held_by)),
            ClaimDecision::Do(ClaimStep::RemoveVolumeFinalizers { volume: at("volume") }),
            "pods that come back would keep it attached"
        );
    }
    let gone = going.without_volume();
    assert_eq!(
        step(&way, &gone),
        ClaimDecision::Do(ClaimStep::MakeVolume {
            of: Side::Source,
            note: note(GATE),
        })
    );
    assert_eq!(
        step(&way, &gone.with(|facts| facts.recorded = None)),
        ClaimDecision::Await(Waiting::NoManifest)
    );
}

#[test]
fn rule_3_a_move_has_its_finalizer_from_the_first_to_the_last_step() {
    let mut new = of(Stage::Checking);
    new.finalizer = false;
    assert_eq!(enters(&new, &idle()), Some(StatusChange::AddFinalizer));
    new.deleting = true;
    assert_eq!(move_step(&new, &[idle()]), MoveStep::Over);
    for stage in [
        Stage::Verifying(GATE),
        Stage::Committed(GATE),
        Stage::Retaining(GATE),
    ] {
        let change = enters(&of(stage), &arrived());
        assert_ne!(change, Some(StatusChange::RemoveFinalizer));
    }
    // Marks count only while the move exists. A move that was not committed and does not exist any
    // more is rolled back.
    assert_eq!(
        leftover_step(&uid(), &gated(GATE)),
        ClaimDecision::Do(ClaimStep::MarkSource {
            source: at("source"),
            mark: unmarked(GATE),
        })
    );
    let stray = idle().with(|facts| facts.target = target(false));
    assert_eq!(
        leftover_step(&uid(), &stray),
        ClaimDecision::Do(ClaimStep::DeleteTarget { target: at("target") })
    );
    // A move that may have been committed is not rolled back.
    for committed in [
        handed_over().with(|facts| facts.target = target(false)),
        handed_over().source(moving(GATE)),
    ] {
        assert_eq!(
            leftover_step(&uid(), &committed),
            ClaimDecision::Await(Waiting::CommittedWithoutMove)
        );
    }
    // Its claim, without a volume, may be deleted.
    let lost = handed_over().without_volume();
    let waits = ClaimDecision::Await(Waiting::CommittedWithoutMove);
    assert_eq!(leftover_step(&uid(), &lost), waits);
    assert!(matches!(
        leftover_step(&uid(), &lost.dying()),
        ClaimDecision::Do(ClaimStep::Unlock { .. })
    ));
    // The cluster of the target was restored from a backup: with and without the move, its marks are reported.
    let again = arrived().with(|facts| {
        facts.target = target(false);
        if let ClaimNow::Exists { lock, .. } = &mut facts.claim {
            *lock = Lock::Free;
        }
    });
    let marked = ClaimDecision::Await(Waiting::MarkedAgain);
    assert_eq!(leftover_step(&uid(), &again), marked);
    assert_eq!(step(&of(Stage::Ended(Outcome::Done)), &again), marked);
    let in_doubt = gated(GATE).with(|facts| facts.source = Live::Unknown("timeout".into()));
    assert_eq!(
        leftover_step(&uid(), &in_doubt),
        ClaimDecision::Await(Waiting::Unknown(Side::Source, "timeout".into()))
    );
}

#[test]
fn rule_4_gates_close_when_evictions_are_accepted_and_running_pods_keep_their_attachment() {
    let row_4 = of(Stage::Gating(GATE));
    let closes =
        |facts: &ClaimFacts| matches!(step(&row_4, facts), ClaimDecision::Do(ClaimStep::Gate { .. }));
    assert!(!closes(&prepared().pods(vec![pod(false)])));
    assert!(closes(&prepared().pods(vec![pod(true)])));
    assert!(!closes(
        &prepared().with(|facts| facts.users = Live::Unknown("timeout".into()))
    ));

    let later = || DetachDecision::Later("shop/db-0".into());
    let pending = UserPod {
        pending: true,
        ..pod(true)
    };
    let unreadable = || {
        Err(RecordError::Malformed {
            key: "gate",
            why: "?".into(),
        })
    };
    let gated = || Ok(Some(VolumeMark::Gated(note(GATE))));
    let given_back = || Ok(Some(given_back(GATE)));
    for (mark, pods, node, expected) in [
        (gated(), vec![pod(true)], NodeHealth::Ready, later()),
        (gated(), vec![pending.clone()], NodeHealth::Ready, later()),
        (gated(), vec![], NodeHealth::Ready, DetachDecision::Allow),
        (
            gated(),
            vec![pod(true)],
            NodeHealth::OutOfService,
            DetachDecision::Allow,
        ),
        (
            gated(),
            vec![pod(true)],
            NodeHealth::NotReady,
            DetachDecision::Allow,
        ),
        (unreadable(), vec![pod(true)], NodeHealth::Ready, later()),
        // Its attachment may be in deletion since the gate. A pod that has not started waits for that.
        (given_back(), vec![pod(true)], NodeHealth::Ready, later()),
        (
            given_back(),
            vec![pod(true)],
            NodeHealth::NotReady,
            DetachDecision::Allow,
        ),
        (
            given_back(),
            vec![pending],
            NodeHealth::Ready,
            DetachDecision::Allow,
        ),
        (
            Ok(None),
            vec![pod(true)],
            NodeHealth::Ready,
            DetachDecision::Allow,
        ),
    ] {
        assert_eq!(
            detach_decision(&mark, &pods, node),
            expected,
            "{mark:?} {pods:?} {node:?}"
        );
    }
}

#[test]
fn rule_5_a_claim_deleted_while_gated_leaves_both_copies() {
    for stage in [Stage::Gating(GATE), Stage::Draining(GATE), Stage::Verifying(GATE)] {
        for gone in [gated(GATE).dying(), gated(GATE).without_claim()] {
            assert_eq!(
                step(&of(stage.clone()), &gone),
                start(RollbackReason::ClaimDeleted)
            );
        }
    }
    let way = of(back(RollbackTo::Start));
    // A claim that is being deleted is unlocked before its PV gets its policy back, bound or not.
    let dying = gated(GATE)
        .source(unmarked(GATE))
        .dying()
        .lost(false)
        .touched(Touch::Ungated(GATE))
        .volume(|volume| {
            volume.held_by = HeldBy::Claim;
            volume.bound = true;
        });
    assert_eq!(
        step(&way, &dying),
        ClaimDecision::Do(ClaimStep::Unlock { claim: at("claim") })
    );
    let unlocked = dying.clone().with(|facts| {
        if let ClaimNow::Exists { lock, .. } = &mut facts.claim {
            *lock = Lock::Free;
        }
    });
    assert_eq!(step(&way, &unlocked), ClaimDecision::Await(Waiting::ClaimGone));
    // Then nothing is restored or deleted before `retainSource` ends.
    let gone = dying.without_claim();
    assert_eq!(
        step(&way, &gone),
        ClaimDecision::Do(ClaimStep::RetainTarget { target: at("target") })
    );
    let kept = gone.with(|facts| {
        if let Live::Known(TargetTwin::Exists { retained, .. }) = &mut facts.target {
            *retained = true;
        }
    });
    assert_eq!(
        step(&way, &kept),
        ClaimDecision::Do(ClaimStep::RemoveHelpers(Side::Source))
    );
    let kept = kept.with(|facts| {
        facts.source_helpers = Live::Known(Helpers::Absent);
        facts.target_helpers = Live::Known(Helpers::Absent);
    });
    assert_eq!(step(&way, &kept), ClaimDecision::Await(Waiting::BothKept));
    let mut late = way;
    late.overdue.retention = true;
    assert_eq!(
        step(&late, &kept),
        ClaimDecision::Do(ClaimStep::RestorePolicy {
            volume: at("volume"),
            policy: ReclaimPolicy::Delete,
            mark: given_back(GATE),
        })
    );
    // A user who deletes the claim by mistake may delete the VolumeMove next.
    let mut deleted = late;
    (deleted.overdue.retention, deleted.deleting) = (false, true);
    assert_eq!(step(&deleted, &kept), ClaimDecision::Await(Waiting::BothKept));
    // After the commit the same holds for the other side.
    let committed = replaced().without_claim();
    assert_eq!(
        step(&of(Stage::Committed(GATE)), &committed),
        ClaimDecision::Reached
    );
    let mut over = of(Stage::Retaining(GATE));
    let mut deleted = over.clone();
    (over.overdue.retention, deleted.deleting) = (true, true);
    for waits in [of(Stage::Retaining(GATE)), deleted] {
        assert_eq!(step(&waits, &committed), ClaimDecision::Await(Waiting::BothKept));
    }
    assert_eq!(
        step(&over, &committed),
        ClaimDecision::Do(ClaimStep::RestorePolicy {
            volume: at("volume"),
            policy: ReclaimPolicy::Delete,
            mark: given_back(GATE),
        })
    );
}

#[test]
fn rule_5_a_move_does_not_wait_for_pods_whose_claim_is_deleted_with_them() {
    let mut waits = of(Stage::Copying { last: None });
    waits.requested.quiesce = Quiesce::Wait;
    let goes = prepared().with(|facts| {
        facts.users = Live::Known(Users {
            deletes_claim: Some("the StatefulSet shop/db".into()),
            ..Users::default()
        });
    });
    for stage in [Stage::Copying { last: None }, Stage::Gating(GATE)] {
        let of = MoveFacts {
            stage,
            ..waits.clone()
        };
        let decision = step(&of, &goes);
        assert!(
            matches!(
                decision,
                ClaimDecision::Rollback(RollbackTo::Start, RollbackReason::Refused(_))
            ),
            "{decision:?}"
        );
    }
    assert_eq!(step(&waits, &prepared()), ClaimDecision::Reached);
    // As long as pods run, nothing is gated.
    let used = prepared().pods(vec![pod(true)]);
    assert_eq!(
        step(&waits, &used),
        ClaimDecision::Await(Waiting::Users(vec!["shop/db-0".into()]))
    );
    waits.stage = Stage::Gating(GATE);
    assert_eq!(
        step(&waits, &used),
        again(RollbackReason::InUse(vec!["shop/db-0".into()]))
    );
}

fn beside() -> AttachFacts {
    AttachFacts {
        asked: epoch(0),
        epoch: epoch(0),
        source: None,
        target: None,
        exists: true,
        highest: epoch(0),
    }
}

#[test]
fn rule_6_a_handle_of_another_epoch_reaches_no_data() {
    let moved_on = |asked, current| AttachDecision::MovedOn {
        asked: epoch(asked),
        current: epoch(current),
    };
    let user = |facts: AttachFacts| attach_decision(&Live::Known(facts), &Caller::User);
    assert_eq!(user(beside()), AttachDecision::Allow);
    let elsewhere = AttachFacts {
        highest: epoch(1),
        ..beside()
    };
    assert_eq!(user(elsewhere), moved_on(0, 1));
    let marked = AttachFacts {
        source: Some(superseded()),
        exists: false,
        ..beside()
    };
    assert_eq!(user(marked.clone()), moved_on(0, 1));
    let mover = Caller::Mover {
        by: uid(),
        side: Side::Source,
    };
    assert_eq!(attach_decision(&Live::Known(marked), &mover), moved_on(0, 1));
    let later = AttachFacts {
        epoch: epoch(1),
        highest: epoch(1),
        ..beside()
    };
    assert_eq!(user(later), moved_on(0, 1));
    let silent = attach_decision(&Live::Unknown("timeout".into()), &Caller::User);
    assert_eq!(silent, AttachDecision::Unknown("timeout".into()));

    assert_eq!(
        change_decision(epoch(0), epoch(1), false),
        ChangeDecision::MovedOn(epoch(1))
    );
    assert_eq!(change_decision(epoch(1), epoch(1), false), ChangeDecision::Allow);
}

#[test]
fn rule_6_only_the_mover_attaches_a_volume_that_is_being_moved() {
    let source = AttachFacts {
        source: Some(moving(GATE)),
        ..beside()
    };
    let mark = TargetMark {
        by: uid(),
        epoch: epoch(1),
    };
    let target = AttachFacts {
        asked: epoch(1),
        epoch: epoch(1),
        target: Some(mark),
        ..beside()
    };
    let mover = |by, side| Caller::Mover { by, side };
    let publish = |facts: &AttachFacts, caller| attach_decision(&Live::Known(facts.clone()), &caller);
    for (facts, side) in [(&source, Side::Source), (&target, Side::Target)] {
        assert_eq!(publish(facts, Caller::User), AttachDecision::Moving);
        assert_eq!(publish(facts, mover(uid(), side)), AttachDecision::Allow);
        assert_eq!(publish(facts, mover(other(), side)), AttachDecision::MoveOver);
        let gone = AttachFacts {
            exists: false,
            ..facts.clone()
        };
        assert_eq!(publish(&gone, mover(uid(), side)), AttachDecision::MoveOver);
    }
    // A mark counts only while its move exists; but no user may attach a target before the hand-over.
    let gone = |facts: &AttachFacts| AttachFacts {
        exists: false,
        ..facts.clone()
    };
    assert_eq!(publish(&gone(&source), Caller::User), AttachDecision::Allow);
    assert_eq!(publish(&gone(&target), Caller::User), AttachDecision::Moving);
    // A mover that attaches after the hand-over would write together with the users.
    let handed_over = AttachFacts {
        target: None,
        ..target
    };
    assert_eq!(publish(&handed_over, Caller::User), AttachDecision::Allow);
    assert_eq!(
        publish(&handed_over, mover(uid(), Side::Target)),
        AttachDecision::MoveOver
    );
}

#[test]
fn rule_7_drained_means_no_pod_with_a_node_no_attachment_and_no_volume_in_use() {
    use NodeHealth::{NotReady, OutOfService, Ready};
    let users = |pods: Vec<UserPod>, nodes: Vec<UserNode>| {
        drained().with(|facts| {
            facts.users = Live::Known(Users {
                pods,
                nodes,
                ..Users::default()
            });
        })
    };
    let node = |attached, in_use, health| UserNode {
        name: "n1".into(),
        attached,
        detach_error: None,
        in_use,
        health,
    };
    let pending = UserPod {
        has_node: false,
        ..pod(false)
    };
    for (facts, is_drained) in [
        (users(vec![], vec![]), true),
        (users(vec![pod(true)], vec![]), false),
        (users(vec![pending], vec![]), true),
        (users(vec![], vec![node(false, false, Ready)]), true),
        (users(vec![], vec![node(true, false, Ready)]), false),
        (users(vec![], vec![node(false, true, Ready)]), false),
        (users(vec![], vec![node(false, false, NotReady)]), false),
        (users(vec![], vec![node(false, true, OutOfService)]), true),
        (users(vec![], vec![node(true, true, OutOfService)]), false),
    ] {
        let decision = step(&of(Stage::Draining(GATE)), &facts);
        assert_eq!(decision == ClaimDecision::Reached, is_drained, "{facts:?}");
        let later = step(
            &of(Stage::Verifying(GATE)),
            &facts.with(|facts| facts.copied = compared(GATE)),
        );
        assert_eq!(
            later == ClaimDecision::Reached,
            is_drained,
            "and so it is at the commit"
        );
    }
    let silent = drained().with(|facts| facts.users = Live::Unknown("timeout".into()));
    assert_eq!(
        step(&of(Stage::Draining(GATE)), &silent),
        ClaimDecision::Await(Waiting::Unknown(Side::Source, "timeout".into()))
    );
}

/// Kubernetes sees the mover that runs together with the pods as another pod with the same volume.
#[test]
fn the_source_mover_is_removed_when_no_pod_is_left() {
    let with = |pods: Vec<UserPod>, attached, helpers| {
        gated(GATE).with(|facts| {
            facts.source_helpers = Live::Known(helpers);
            facts.users = Live::Known(Users {
                pods,
                nodes: vec![UserNode {
                    name: "n1".into(),
                    attached,
                    detach_error: None,
                    in_use: false,
                    health: NodeHealth::Ready,
                }],
                ..Users::default()
            });
        })
    };
    let awaits = |who: &[&str]| {
        let who = who.iter().map(ToString::to_string).collect();
        ClaimDecision::Await(Waiting::Users(who))
    };
    let leaves = || ClaimDecision::Do(ClaimStep::PauseSource);
    for (facts, expected) in [
        (
            with(vec![pod(true)], true, Helpers::Ready),
            awaits(&["shop/db-0", "node n1 (attached)"]),
        ),
        (with(vec![], true, Helpers::Ready), leaves()),
        (with(vec![], true, Helpers::Incomplete), leaves()),
        (
            with(vec![], true, Helpers::Leaving),
            awaits(&["node n1 (attached)"]),
        ),
        (
            with(vec![], true, Helpers::Absent),
            awaits(&["node n1 (attached)"]),
        ),
        // Also if no pod or node is left: the container of a deleted pod would not be detected.
        (with(vec![], false, Helpers::Ready), leaves()),
        (with(vec![], false, Helpers::Absent), ClaimDecision::Reached),
    ] {
        assert_eq!(step(&of(Stage::Draining(GATE)), &facts), expected, "{facts:?}");
    }
}

#[test]
fn rule_6_a_mover_is_known_by_its_volume() {
    assert_eq!(Caller::read(None), Ok(Caller::User));
    for (text, side) in [("source", Side::Source), ("target", Side::Target)] {
        let mover = Caller::Mover { by: uid(), side };
        assert_eq!(Caller::read(Some(&format!("{text}:{UID}"))), Ok(mover));
    }
    for wrong in ["", "source", "source:", "source:m1", &format!("both:{UID}")] {
        assert!(Caller::read(Some(wrong)).is_err(), "{wrong}");
    }
}

#[test]
fn rule_8_a_gated_volume_is_not_deleted_for_its_claim_that_seems_gone() {
    let is_gated = |mark: &VolumeMark| {
        is_gated(&BTreeMap::from([(
            mark::GATE.to_owned(),
            mark.to_annotation().unwrap(),
        )]))
    };
    assert!(is_gated(&VolumeMark::Gated(note(GATE))));
    assert!(!is_gated(&given_back(GATE)));
    // Step 10 deletes only the PV object: never while its policy would delete the data.
    let unretained = handed_over().volume(|volume| volume.policy = ReclaimPolicy::Delete);
    assert_eq!(
        step(&of(Stage::Committed(GATE)), &unretained),
        ClaimDecision::Do(ClaimStep::Retain { volume: at("volume") })
    );
    let going = unretained.volume(|volume| volume.deleting = true);
    assert_eq!(
        step(&of(Stage::Committed(GATE)), &going),
        ClaimDecision::Do(ClaimStep::Retain { volume: at("volume") })
    );
}

#[test]
fn rule_9_the_policy_before_the_gate_counts_as_that_of_the_user() {
    use ReclaimPolicy::{Delete, Retain};
    let gated_mark = VolumeMark::Gated(note(GATE));
    assert_eq!(policy_wanted(Retain, Some(&gated_mark)), Delete);
    assert_eq!(policy_wanted(Retain, Some(&given_back(GATE))), Retain);
    assert_eq!(policy_wanted(Delete, None), Delete);
    // The target's real PV is retained only if that was the user's policy before the gate.
    for (policy, expected) in [(Delete, false), (Retain, true)] {
        let facts = handed_over().with(|facts| {
            facts.target = target(false);
            facts.recorded = Some(Recorded {
                policy,
                claim_uid: "claim".into(),
            });
        });
        assert_eq!(
            step(&of(Stage::Committed(GATE)), &facts),
            ClaimDecision::Do(ClaimStep::HandOver {
                target: at("target"),
                retain: expected,
            })
        );
    }
}

#[test]
fn rule_9_other_controllers_leave_twins_of_a_move_alone() {
    let left_alone = |target: Option<TargetMark>, source: Option<SourceMark>, exists: bool| {
        is_left_alone(&Ok(TwinMarks { target, source }), |by| exists && *by == uid())
    };
    let target = || {
        Some(TargetMark {
            by: uid(),
            epoch: epoch(1),
        })
    };
    // A mark counts while its move may exist.
    for exists in [true, false] {
        assert_eq!(left_alone(target(), None, exists), exists);
        assert_eq!(left_alone(None, Some(moving(GATE)), exists), exists);
        // Its data has moved, whatever the state of the move.
        assert!(left_alone(None, Some(superseded()), exists));
        assert!(!left_alone(None, Some(unmarked(GATE)), exists));
        assert!(!left_alone(None, None, exists));
    }
    let unreadable = TwinMarks::read(
        &BTreeMap::new(),
        &BTreeMap::from([(mark::SOURCE_OF.to_owned(), "?".to_owned())]),
    );
    assert!(is_left_alone(&unreadable, |_| false));
}

#[test]
fn rule_10_changing_volumes_are_not_gated_and_locked_ones_are_not_changed() {
    assert_eq!(
        step(&of(Stage::Copying { last: None }), &prepared().changing()),
        ClaimDecision::Await(Waiting::Changing)
    );
    assert_eq!(
        step(&of(Stage::Gating(GATE)), &prepared().changing()),
        again(RollbackReason::Changing)
    );
    assert_eq!(change_decision(epoch(1), epoch(1), true), ChangeDecision::Later);
    assert_eq!(change_decision(epoch(1), epoch(1), false), ChangeDecision::Allow);
}
