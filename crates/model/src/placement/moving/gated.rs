//! Rows 4 to 7 for one claim: the users are kept away, the rest is copied and compared. Whatever
//! fails here is undone by `back`; what was established holds for one gate only.

use super::{
    BackTo, ClaimDecision, ClaimFacts, ClaimNow, ClaimStep, HeldBy, Live, MoveFacts, Pass, Quiesce, Roots,
    Serves, Side, SourceTwin, TargetTwin, VirtualVolume, VolumeFault, VolumeNow, Waiting, Why,
    back::helpers_removed,
    claim::{deleted_with_users, large_enough, locked, silent, source_answers, with_helpers},
};
use crate::volume::{
    ReclaimPolicy,
    moving::{GateNote, GateNumber, SourceMark, Touch, VolumeMark},
};

/// Row 4.
pub(super) fn gating(of: &MoveFacts, facts: &ClaimFacts, gate: GateNumber) -> Option<ClaimDecision> {
    locked(of, facts)
        .or_else(|| volume_gated(of, facts, gate))
        .or_else(|| source_marked(of, facts, gate))
        .or_else(|| claim_lost(facts, gate))
}

/// Row 5.
pub(super) fn draining(of: &MoveFacts, facts: &ClaimFacts, gate: GateNumber) -> Option<ClaimDecision> {
    still_gated(of, facts, gate).or_else(|| match &facts.users {
        Live::Silent(why) => Some(silent(Side::Source, why)),
        Live::Known(users) => {
            let staying = users.staying();
            if of.wishes.quiesce == Quiesce::Evict && !staying.is_empty() {
                return Some(ClaimDecision::Do(ClaimStep::Evict(staying)));
            }
            // The mover that reads beside the users leaves with the last of them, always: to Kubernetes it
            // uses the same volume, which is not detached from its node before it has gone, and as long
            // as it is there nobody can tell whether a container of a pod that is gone still writes.
            let mover = helpers_removed(Side::Source, &facts.source_helpers);
            if users.running().is_empty() && matches!(mover, Some(ClaimDecision::Do(_))) {
                return mover;
            }
            let anywhere = users.anywhere();
            if anywhere.is_empty() {
                return mover;
            }
            Some(ClaimDecision::Await(Waiting::Users(anywhere)))
        }
    })
}

/// Row 6.
pub(super) fn finishing(of: &MoveFacts, facts: &ClaimFacts, gate: GateNumber) -> Option<ClaimDecision> {
    still_gated(of, facts, gate)
        .or_else(|| still_drained(facts))
        .or_else(|| target_there(facts))
        .or_else(|| large_enough(facts))
        .or_else(|| match &facts.copied {
            Live::Known(copied) if copied.finished == Some(gate) => None,
            Live::Known(copied) => with_helpers(facts).or(Some(pass(copied.running, Pass::Final(gate)))),
            Live::Silent(why) => Some(silent(Side::Target, why)),
        })
}

/// Row 7.
pub(super) fn verifying(of: &MoveFacts, facts: &ClaimFacts, gate: GateNumber) -> Option<ClaimDecision> {
    still_gated(of, facts, gate)
        .or_else(|| still_drained(facts))
        .or_else(|| target_there(facts))
        .or_else(|| match &facts.copied {
            Live::Silent(why) => Some(silent(Side::Target, why)),
            Live::Known(copied) => match &copied.compared {
                Some((number, Roots::Equal)) if *number == gate => None,
                Some((number, Roots::Differ(path))) if *number == gate => {
                    Some(ClaimDecision::Back(BackTo::Start, Why::Differs(path.clone())))
                }
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
    let VolumeNow::There(volume) = &facts.volume else {
        return Some(ClaimDecision::Back(BackTo::Start, Why::Volume(VolumeFault::Gone)));
    };
    if volume.serves != Serves::Source {
        let why = Why::Volume(VolumeFault::NotTheSource);
        return Some(ClaimDecision::Back(BackTo::Start, why));
    }
    let reopened = || Some(ClaimDecision::Back(BackTo::Copying, Why::GateOpen));
    match &volume.mark {
        Some(VolumeMark::Gated(note)) if note.by == of.uid => {
            if volume.held_by != HeldBy::Move || note.gate > gate {
                return reopened();
            }
            // The number of an earlier gate is replaced, without an opening in between.
            let is_current = note.gate == gate && volume.policy == ReclaimPolicy::Retain;
            (!is_current).then(|| close(volume, GateNote { gate, ..note.clone() }))
        }
        Some(VolumeMark::Gated(note)) => {
            Some(ClaimDecision::Back(BackTo::Start, Why::Locked(note.by.clone())))
        }
        Some(VolumeMark::GivenBack { by, gate: last }) if *by == of.uid && *last >= gate => reopened(),
        Some(VolumeMark::GivenBack { .. }) | None => Some(first_gate(of, facts, volume, gate)),
    }
}

/// The last moment before a user notices anything.
fn first_gate(of: &MoveFacts, facts: &ClaimFacts, volume: &VirtualVolume, gate: GateNumber) -> ClaimDecision {
    let back = ClaimDecision::Back;
    if volume.deleting {
        return back(BackTo::Start, Why::Volume(VolumeFault::Deleting));
    }
    if volume.held_by != HeldBy::Claim {
        return back(BackTo::Start, Why::Volume(VolumeFault::NotTheClaims));
    }
    if let ClaimNow::There { changing: true, .. } = facts.claim {
        return back(BackTo::Copying, Why::Changing);
    }
    let recorded = facts
        .recorded
        .as_ref()
        .filter(|recorded| recorded.policy == volume.policy);
    let Some(recorded) = recorded else {
        return back(BackTo::Copying, Why::NotRecorded);
    };
    let users = match &facts.users {
        Live::Silent(why) => return silent(Side::Source, why),
        Live::Known(users) => users,
    };
    let running = users.running();
    match of.wishes.quiesce {
        Quiesce::Wait => {
            if let Some(refused) = deleted_with_users(facts) {
                return refused;
            }
            if !running.is_empty() {
                return back(BackTo::Copying, Why::InUse(running));
            }
        }
        // A pod that nobody can send away would be gated for nothing, and a kubelet that starts
        // again meanwhile takes the volume from under it.
        Quiesce::Evict if !users.holding().is_empty() => {
            return ClaimDecision::Do(ClaimStep::Evict(users.staying()));
        }
        Quiesce::Evict => {}
    }
    close(
        volume,
        GateNote {
            by: of.uid.clone(),
            gate,
            policy: recorded.policy,
            claim_uid: recorded.claim_uid.clone(),
        },
    )
}

fn close(volume: &VirtualVolume, note: GateNote) -> ClaimDecision {
    ClaimDecision::Do(ClaimStep::Gate {
        volume: volume.at.clone(),
        note,
    })
}

fn source_marked(of: &MoveFacts, facts: &ClaimFacts, gate: GateNumber) -> Option<ClaimDecision> {
    let Live::Known(SourceTwin::There {
        at,
        mark,
        deleting: false,
    }) = &facts.source
    else {
        return source_answers(facts);
    };
    let reopened = Some(ClaimDecision::Back(BackTo::Copying, Why::GateOpen));
    match mark {
        Some(SourceMark::Moving { by, gate: number }) if *by == of.uid && *number == gate => return None,
        Some(SourceMark::Moving { by, gate: number }) if *by == of.uid && *number > gate => return reopened,
        Some(SourceMark::GivenBack { by, gate: last }) if *by == of.uid && *last >= gate => return reopened,
        Some(SourceMark::Moving { by, .. }) if *by != of.uid => {
            return Some(ClaimDecision::Back(BackTo::Start, Why::Locked(by.clone())));
        }
        Some(SourceMark::Superseded { .. }) => {
            let why = Why::Volume(VolumeFault::MovedOn);
            return Some(ClaimDecision::Back(BackTo::Start, why));
        }
        Some(SourceMark::Moving { .. } | SourceMark::GivenBack { .. }) | None => {}
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
    let ClaimNow::There {
        at, lost, touched, ..
    } = &facts.claim
    else {
        return Some(ClaimDecision::Back(BackTo::Start, Why::ClaimDeleted));
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

/// Nothing that was gated in row 4 may have been opened since, by whomever: what has been
/// established since then would not be true any more.
fn still_gated(of: &MoveFacts, facts: &ClaimFacts, gate: GateNumber) -> Option<ClaimDecision> {
    let is_closed = |volume: &VirtualVolume| {
        volume.serves == Serves::Source
            && volume.held_by == HeldBy::Move
            && volume.policy == ReclaimPolicy::Retain
    };
    let is_gated = facts.note_of(&of.uid).is_some_and(|note| note.gate == gate)
        && matches!(&facts.volume, VolumeNow::There(volume) if is_closed(volume));
    locked(of, facts)
        .or_else(|| (!is_gated).then_some(ClaimDecision::Back(BackTo::Copying, Why::GateOpen)))
        .or_else(|| source_marked(of, facts, gate))
}

fn still_drained(facts: &ClaimFacts) -> Option<ClaimDecision> {
    match &facts.users {
        Live::Silent(why) => Some(silent(Side::Source, why)),
        // Somebody may have written after the last pass.
        Live::Known(users) => (!users.in_the_way().is_empty()).then_some(ClaimDecision::GateAnew),
    }
}

fn target_there(facts: &ClaimFacts) -> Option<ClaimDecision> {
    match &facts.target {
        Live::Silent(why) => Some(silent(Side::Target, why)),
        Live::Known(TargetTwin::There {
            handed_over: false,
            deleting: false,
            ..
        }) => None,
        Live::Known(TargetTwin::Gone) => Some(ClaimDecision::Back(BackTo::Start, Why::TargetGone)),
        Live::Known(_) => Some(ClaimDecision::Back(BackTo::Copying, Why::TargetGone)),
    }
}
