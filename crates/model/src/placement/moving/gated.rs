//! Steps 4 to 7 for one claim: no pod may use the volume, the last changes are copied and compared. On any
//! failure `rollback` undoes them; results are valid for one gate only.

use super::{
    ClaimDecision, ClaimFacts, ClaimNow, ClaimStep, HeldBy, Live, MoveFacts, MoverClaim, Pass, Quiesce,
    RollbackReason, RollbackTo, Roots, Serves, Side, SourceTwin, TargetTwin, VirtualVolume, VolumeFault,
    VolumeNow, Waiting,
    claim::{deleted_with_users, large_enough, locked, source_answers, unknown, watched, with_helpers},
    rollback::helpers_removed,
};
use crate::volume::{
    ReclaimPolicy,
    moving::{GateNote, GateNumber, SourceMark, Touch, VolumeMark},
};

/// Closes the gate.
pub(super) fn gating(of: &MoveFacts, facts: &ClaimFacts, gate: GateNumber) -> Option<ClaimDecision> {
    locked(of, facts)
        .or_else(|| volume_gated(of, facts, gate))
        .or_else(|| source_marked(of, facts, gate))
        .or_else(|| claim_lost(facts, gate))
}

/// Waits until no pod and no node has the volume.
pub(super) fn draining(of: &MoveFacts, facts: &ClaimFacts, gate: GateNumber) -> Option<ClaimDecision> {
    still_gated(of, facts, gate).or_else(|| match &facts.users {
        Live::Unknown(why) => Some(unknown(Side::Source, why)),
        Live::Known(users) => {
            let staying = users.not_terminating();
            if of.requested.quiesce == Quiesce::Evict && !staying.is_empty() {
                return Some(ClaimDecision::Do(ClaimStep::Evict(staying)));
            }
            // The mover that ran together with the pods is always deleted with the last of them: Kubernetes
            // sees it as a pod with the same volume, and does not detach the volume from its node before it
            // is deleted; and as long as it has the volume, the driver cannot detect whether a container of a
            // deleted pod still writes.
            let mover = source_paused(facts);
            if users.running().is_empty() && matches!(mover, Some(ClaimDecision::Do(_))) {
                return mover;
            }
            let anywhere = users.left_with_movers();
            if anywhere.is_empty() {
                return mover
                    .or_else(|| watched(facts))
                    .or_else(|| gated_there(of, facts, gate));
            }
            Some(ClaimDecision::Await(Waiting::Users(anywhere)))
        }
    })
}

fn source_paused(facts: &ClaimFacts) -> Option<ClaimDecision> {
    helpers_removed(Side::Source, &facts.source_helpers).map(|step| match step {
        ClaimDecision::Do(_) => ClaimDecision::Do(ClaimStep::PauseSource),
        wait => wait,
    })
}

/// Makes the last pass.
pub(super) fn finishing(of: &MoveFacts, facts: &ClaimFacts, gate: GateNumber) -> Option<ClaimDecision> {
    still_gated(of, facts, gate)
        .or_else(|| still_gated_there(of, facts, gate))
        .or_else(|| still_drained(facts))
        .or_else(|| target_there(facts))
        .or_else(|| large_enough(facts))
        .or_else(|| match &facts.copied {
            Live::Known(copied) if copied.finished == Some(gate) => None,
            Live::Known(copied) => with_helpers(facts).or(Some(pass(copied.running, Pass::Final(gate)))),
            Live::Unknown(why) => Some(unknown(Side::Target, why)),
        })
}

/// Compares both sides.
pub(super) fn verifying(of: &MoveFacts, facts: &ClaimFacts, gate: GateNumber) -> Option<ClaimDecision> {
    still_gated(of, facts, gate)
        .or_else(|| still_gated_there(of, facts, gate))
        .or_else(|| still_drained(facts))
        .or_else(|| target_there(facts))
        .or_else(|| match &facts.copied {
            Live::Unknown(why) => Some(unknown(Side::Target, why)),
            Live::Known(copied) => match &copied.compared {
                Some((number, Roots::Equal)) if *number == gate => None,
                Some((number, Roots::Differ(path))) if *number == gate => Some(ClaimDecision::Rollback(
                    RollbackTo::Start,
                    RollbackReason::Differs(path.clone()),
                )),
                _ => with_helpers(facts).or(Some(pass(copied.running, Pass::Verify(gate)))),
            },
        })
}

pub(super) fn pass(running: Option<Pass>, wanted: Pass) -> ClaimDecision {
    if running == Some(wanted) {
        ClaimDecision::Await(Waiting::Pass(wanted))
    } else {
        ClaimDecision::Do(ClaimStep::StartPass(wanted))
    }
}

fn volume_gated(of: &MoveFacts, facts: &ClaimFacts, gate: GateNumber) -> Option<ClaimDecision> {
    let VolumeNow::Exists(volume) = &facts.volume else {
        return Some(ClaimDecision::Rollback(
            RollbackTo::Start,
            RollbackReason::Volume(VolumeFault::Gone),
        ));
    };
    if volume.serves != Serves::Source {
        let why = RollbackReason::Volume(VolumeFault::NotTheSource);
        return Some(ClaimDecision::Rollback(RollbackTo::Start, why));
    }
    let reopened = || {
        Some(ClaimDecision::Rollback(
            RollbackTo::Copying,
            RollbackReason::GateOpen,
        ))
    };
    match &volume.mark {
        Some(VolumeMark::Gated(note)) if note.by == of.uid => {
            if volume.held_by != HeldBy::Move || note.gate > gate {
                return reopened();
            }
            // The number of an earlier gate is replaced without opening the gate.
            let is_current = note.gate == gate && volume.policy == ReclaimPolicy::Retain;
            (!is_current).then(|| close(volume, GateNote { gate, ..note.clone() }))
        }
        Some(VolumeMark::Gated(note)) => Some(ClaimDecision::Rollback(
            RollbackTo::Start,
            RollbackReason::Locked(note.by.clone()),
        )),
        Some(VolumeMark::Ungated { by, gate: last }) if *by == of.uid && *last >= gate => reopened(),
        Some(VolumeMark::Ungated { .. }) | None => Some(first_gate(of, facts, volume, gate)),
    }
}

/// The last checks before users are affected.
fn first_gate(of: &MoveFacts, facts: &ClaimFacts, volume: &VirtualVolume, gate: GateNumber) -> ClaimDecision {
    let back = ClaimDecision::Rollback;
    if volume.deleting {
        return back(RollbackTo::Start, RollbackReason::Volume(VolumeFault::Deleting));
    }
    if volume.held_by != HeldBy::Claim {
        return back(
            RollbackTo::Start,
            RollbackReason::Volume(VolumeFault::NotTheClaims),
        );
    }
    // A twin that was created again is not bound while the PV at home is gated.
    if let Some(waits) = source_answers(facts) {
        return waits;
    }
    if let ClaimNow::Exists { changing: true, .. } = facts.claim {
        return back(RollbackTo::Copying, RollbackReason::Changing);
    }
    let recorded = facts
        .recorded
        .as_ref()
        .filter(|recorded| recorded.policy == volume.policy);
    let Some(recorded) = recorded else {
        return back(RollbackTo::Copying, RollbackReason::NotRecorded);
    };
    let users = match &facts.users {
        Live::Unknown(why) => return unknown(Side::Source, why),
        Live::Known(users) => users,
    };
    let running = users.running();
    match of.requested.quiesce {
        Quiesce::Wait => {
            if let Some(refused) = deleted_with_users(facts) {
                return refused;
            }
            if !running.is_empty() {
                return back(RollbackTo::Copying, RollbackReason::InUse(running));
            }
        }
        // While an eviction fails, the volume is not gated: the gate would have no effect, and a restarted kubelet
        // would unmount the volume of a running pod.
        Quiesce::Evict if !users.started().is_empty() => {
            return ClaimDecision::Do(ClaimStep::Evict(users.not_terminating()));
        }
        Quiesce::Evict => {}
    }
    close(volume, recorded.note(&of.uid, gate))
}

fn close(volume: &VirtualVolume, note: GateNote) -> ClaimDecision {
    ClaimDecision::Do(ClaimStep::Gate {
        volume: volume.at.clone(),
        note,
    })
}

/// Closes the gate of a remote source in its own cluster. Only after the drain: a kubelet that restarts while a
/// PV is gated unmounts it from running pods, and the driver there is not this one, which would refuse that.
fn gated_there(of: &MoveFacts, facts: &ClaimFacts, gate: GateNumber) -> Option<ClaimDecision> {
    let remote = facts.there.as_ref()?;
    let there = facts.seen_there(remote);
    if remote.mover_claim == MoverClaim::Leaving {
        return Some(ClaimDecision::Await(Waiting::HelpersGone(Side::Source)));
    }
    let named = || match &remote.mover_claim {
        MoverClaim::Named { bound: true } | MoverClaim::Leaving => None,
        MoverClaim::Named { bound: false } => Some(ClaimDecision::Await(Waiting::Bound)),
        MoverClaim::Absent | MoverClaim::Unused(_) => {
            Some(close(&remote.volume, there.note_of(&of.uid)?.clone()))
        }
    };
    volume_gated(of, &there, gate)
        .or_else(|| claim_lost(&there, gate))
        .or_else(named)
        .map(ClaimDecision::there)
}

/// If the gate there is not closed any more, a pod may have written since the drain.
fn still_gated_there(of: &MoveFacts, facts: &ClaimFacts, gate: GateNumber) -> Option<ClaimDecision> {
    gated_there(of, facts, gate).map(|pending| match pending {
        back @ ClaimDecision::Rollback(..) => back,
        _ => ClaimDecision::Regate,
    })
}

fn source_marked(of: &MoveFacts, facts: &ClaimFacts, gate: GateNumber) -> Option<ClaimDecision> {
    let Live::Known(SourceTwin::Exists {
        at,
        mark,
        deleting: false,
        bound: true,
        ..
    }) = &facts.source
    else {
        return source_answers(facts);
    };
    let reopened = Some(ClaimDecision::Rollback(
        RollbackTo::Copying,
        RollbackReason::GateOpen,
    ));
    match mark {
        Some(SourceMark::Moving { by, gate: number }) if *by == of.uid && *number == gate => return None,
        Some(SourceMark::Moving { by, gate: number }) if *by == of.uid && *number > gate => return reopened,
        Some(SourceMark::RolledBack { by, gate: last }) if *by == of.uid && *last >= gate => return reopened,
        Some(SourceMark::Moving { by, .. }) if *by != of.uid => {
            return Some(ClaimDecision::Rollback(
                RollbackTo::Start,
                RollbackReason::Locked(by.clone()),
            ));
        }
        Some(SourceMark::Superseded { .. }) => {
            let why = RollbackReason::Volume(VolumeFault::MovedOn);
            return Some(ClaimDecision::Rollback(RollbackTo::Start, why));
        }
        Some(SourceMark::Moving { .. } | SourceMark::RolledBack { .. }) | None => {}
    }
    Some(ClaimDecision::Do(ClaimStep::MarkSource {
        source: at.clone(),
        mark: SourceMark::Moving {
            by: of.uid.clone(),
            gate,
        },
    }))
}

pub(super) fn claim_lost(facts: &ClaimFacts, gate: GateNumber) -> Option<ClaimDecision> {
    let ClaimNow::Exists {
        at, lost, touched, ..
    } = &facts.claim
    else {
        return Some(ClaimDecision::Rollback(
            RollbackTo::Start,
            RollbackReason::ClaimDeleted,
        ));
    };
    let touch = Touch::Gated(gate);
    if *touched != Some(touch) {
        return Some(ClaimDecision::Do(ClaimStep::Touch {
            claim: at.clone(),
            touch,
        }));
    }
    (!lost).then_some(ClaimDecision::Await(Waiting::Lost))
}

/// If a gate was opened since step 4, by any client, the results since then are no longer valid.
fn still_gated(of: &MoveFacts, facts: &ClaimFacts, gate: GateNumber) -> Option<ClaimDecision> {
    let is_closed = |volume: &VirtualVolume| {
        volume.serves == Serves::Source
            && volume.held_by == HeldBy::Move
            && volume.policy == ReclaimPolicy::Retain
    };
    let is_gated = facts.note_of(&of.uid).is_some_and(|note| note.gate == gate)
        && matches!(&facts.volume, VolumeNow::Exists(volume) if is_closed(volume));
    locked(of, facts)
        .or_else(|| {
            (!is_gated).then_some(ClaimDecision::Rollback(
                RollbackTo::Copying,
                RollbackReason::GateOpen,
            ))
        })
        .or_else(|| source_marked(of, facts, gate))
}

fn still_drained(facts: &ClaimFacts) -> Option<ClaimDecision> {
    match &facts.users {
        Live::Unknown(why) => Some(unknown(Side::Source, why)),
        // The user of the volume may have written after the last pass.
        Live::Known(users) => (!users.left().is_empty()).then_some(ClaimDecision::Regate),
    }
}

fn target_there(facts: &ClaimFacts) -> Option<ClaimDecision> {
    match &facts.target {
        Live::Unknown(why) => Some(unknown(Side::Target, why)),
        Live::Known(TargetTwin::Exists {
            handed_over: false,
            deleting: false,
            ..
        }) => None,
        Live::Known(TargetTwin::Gone) => Some(ClaimDecision::Rollback(
            RollbackTo::Start,
            RollbackReason::TargetGone,
        )),
        Live::Known(_) => Some(ClaimDecision::Rollback(
            RollbackTo::Copying,
            RollbackReason::TargetGone,
        )),
    }
}
