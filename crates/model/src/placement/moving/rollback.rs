//! The rollback for one claim, from any step before the commit: first the gate is opened, then the objects of
//! the move are deleted.
//!
//! The order prevents a known data loss: the PV names its claim, Kubernetes binds them, and only then the PV
//! gets its reclaim policy back. A PV that is Released with the policy Delete, even for a moment, is deleted
//! with its data.

use super::{
    ClaimDecision, ClaimFacts, ClaimNow, ClaimStep, HeldBy, Helpers, Live, Lock, MoverClaim, RollbackTo,
    Serves, Side, SourceTwin, TargetTwin, VirtualVolume, VolumeNow, Waiting, claim::unknown,
};
use crate::volume::{
    ReclaimPolicy,
    moving::{GateNote, GateNumber, MoveUid, SourceMark, Touch, VolumeMark},
};

/// The next step of the rollback. `overdue` means that a copy was kept for `retainSource`; `keeps_copy`, that the
/// copy of a source that is lost for good is kept.
pub(super) fn step(
    by: &MoveUid,
    gate: Option<GateNumber>,
    to: RollbackTo,
    overdue: bool,
    keeps_copy: bool,
    facts: &ClaimFacts,
) -> Option<ClaimDecision> {
    let reopened = gate.and_then(|gate| reopened(by, gate, to, facts));
    let cleaned_up = || match to {
        RollbackTo::Copying => None,
        RollbackTo::Start => cleaned_up(by, overdue, keeps_copy, facts),
    };
    // A source that is unreachable delays only its own mark.
    let marked = || gate.and_then(|_| source_unknown(facts));
    let refused_there = || gate_there_refused(by, gate?, facts);
    reopened
        .or_else(cleaned_up)
        .or_else(refused_there)
        .or_else(marked)
}

fn reopened(by: &MoveUid, gate: GateNumber, to: RollbackTo, facts: &ClaimFacts) -> Option<ClaimDecision> {
    // As long as the twin is marked, no other loop changes the PV there.
    opened_there(by, gate, facts)
        .or_else(|| source_unmarked(by, gate, facts))
        .or_else(|| match &facts.volume {
            VolumeNow::Exists(volume) => ungate(by, gate, to, facts, volume),
            VolumeNow::Absent => recreate_pv(by, gate, facts),
        })
}

/// Opens the gate of a remote source in its own cluster, if it is closed. A PV whose twin was deleted meanwhile, or
/// created again, names the twin that was gated and stays retained; with its policy recorded, the recovery binds it to
/// a new twin and restores the policy. A PV that is being deleted there is not created again.
pub(super) fn opened_there(by: &MoveUid, gate: GateNumber, facts: &ClaimFacts) -> Option<ClaimDecision> {
    let remote = facts.there.as_ref()?;
    let there = facts.seen_there(remote);
    let note = there.note_of(by).filter(|note| note.gate <= gate)?;
    let volume = VirtualVolume {
        deleting: false,
        ..remote.volume.clone()
    };
    let is_same = remote.twin_uid == note.claim_uid;
    let opened = || match (&remote.twin, &volume.held_by) {
        (ClaimNow::Exists { deleting: false, .. }, _) if is_same => {
            restore_gated(note, RollbackTo::Start, &there, &volume)
        }
        (_, HeldBy::Move) => Some(restore_claim_ref(note, &volume)),
        (_, HeldBy::Claim) => Some(retained_there(note, &volume)),
        (_, HeldBy::Other(_)) => None,
    };
    // First, while the PV there shows that something is left.
    let is_unused = volume.held_by == HeldBy::Claim;
    let removed = is_unused.then(|| mover_claim_removed(facts)).flatten();
    removed.or_else(|| opened().map(ClaimDecision::there))
}

pub(super) fn restore_claim_ref(note: &GateNote, volume: &VirtualVolume) -> ClaimDecision {
    ClaimDecision::Do(ClaimStep::RestoreClaimRef {
        volume: volume.at.clone(),
        note: note.clone(),
    })
}

fn retained_there(note: &GateNote, volume: &VirtualVolume) -> ClaimDecision {
    let retained = GateNote {
        policy: ReclaimPolicy::Retain,
        ..note.clone()
    };
    restore_policy(&retained, volume)
}

/// Marks the PV of a remote source, so that a late gate write of an old leader fails. It comes last: users do not
/// wait for it, in case a webhook there denies it.
fn gate_there_refused(by: &MoveUid, gate: GateNumber, facts: &ClaimFacts) -> Option<ClaimDecision> {
    let remote = facts.there.as_ref()?;
    if remote.twin == ClaimNow::Absent {
        return None;
    }
    let there = facts.seen_there(remote);
    let refused = || ungate(by, gate, RollbackTo::Start, &there, &remote.volume).map(ClaimDecision::there);
    mover_claim_removed(facts).or_else(refused)
}

fn mover_claim_removed(facts: &ClaimFacts) -> Option<ClaimDecision> {
    match &facts.there.as_ref()?.mover_claim {
        MoverClaim::Unused(claim) => Some(ClaimDecision::Do(ClaimStep::RemoveMoverClaim {
            claim: claim.clone(),
        })),
        MoverClaim::Absent | MoverClaim::Named { .. } | MoverClaim::Leaving => None,
    }
}

/// Before the PV: when a pod can start, the mark must not block its attachment.
fn source_unmarked(by: &MoveUid, gate: GateNumber, facts: &ClaimFacts) -> Option<ClaimDecision> {
    let Live::Known(SourceTwin::Exists { at, mark, .. }) = &facts.source else {
        return None;
    };
    let unmark = ClaimDecision::Do(ClaimStep::MarkSource {
        source: at.clone(),
        mark: SourceMark::RolledBack { by: by.clone(), gate },
    });
    match mark {
        Some(SourceMark::Superseded { .. }) => None,
        // The next move may have marked it already.
        Some(SourceMark::Moving { by: other, .. }) if other != by => None,
        Some(SourceMark::Moving { gate: number, .. }) => (*number <= gate).then_some(unmark),
        Some(SourceMark::RolledBack {
            by: other,
            gate: last,
        }) if other == by && *last >= gate => None,
        // Not marked; but this write invalidates the version that a late write of an old leader names.
        Some(SourceMark::RolledBack { .. }) | None => Some(unmark),
    }
}

fn ungate(
    by: &MoveUid,
    gate: GateNumber,
    to: RollbackTo,
    facts: &ClaimFacts,
    volume: &VirtualVolume,
) -> Option<ClaimDecision> {
    if volume.serves != Serves::Source {
        let who = match &volume.serves {
            Serves::Other(handle) => handle.clone(),
            Serves::Source | Serves::Target => "the target".to_owned(),
            Serves::Recovered | Serves::Later => "a later move".to_owned(),
        };
        return Some(ClaimDecision::Await(Waiting::VolumeTaken(who)));
    }
    match &volume.mark {
        Some(VolumeMark::Gated(note)) if note.by == *by => {
            (note.gate <= gate).then(|| restore_gated(note, to, facts, volume))?
        }
        // The next move has gated it already.
        Some(VolumeMark::Gated(_)) => None,
        Some(VolumeMark::Ungated {
            by: other,
            gate: last,
        }) if other == by && *last >= gate => None,
        Some(VolumeMark::Ungated { .. }) | None => Some(ClaimDecision::Do(ClaimStep::RefuseGate {
            volume: volume.at.clone(),
            mark: VolumeMark::Ungated { by: by.clone(), gate },
        })),
    }
}

/// Restores the claim in a gated PV. If the claim does not exist, the PV stays retained. In a rollback `to` Copying the
/// mover is needed again.
fn restore_gated(
    note: &GateNote,
    to: RollbackTo,
    facts: &ClaimFacts,
    volume: &VirtualVolume,
) -> Option<ClaimDecision> {
    let ClaimNow::Exists { .. } = &facts.claim else {
        return None;
    };
    match &volume.held_by {
        HeldBy::Other(who) => Some(ClaimDecision::Await(Waiting::VolumeTaken(who.clone()))),
        _ if volume.deleting && is_held_by_mover(facts, volume) => Some(ClaimDecision::Do(match to {
            RollbackTo::Copying => ClaimStep::PauseSource,
            RollbackTo::Start => ClaimStep::RemoveHelpers(Side::Source),
        })),
        // Before the claim is restored: pods that came back would keep the volume attached.
        _ if volume.deleting => Some(release_deleted_pv(volume)),
        HeldBy::Move => Some(restore_claim_ref(note, volume)),
        HeldBy::Claim => Some(bound_again(note, facts, volume)),
    }
}

/// Whether the mover that ran together with the pods still has the volume: Kubernetes sees it as a pod with
/// the same volume, and does not detach the volume from its node before it is deleted.
fn is_held_by_mover(facts: &ClaimFacts, volume: &VirtualVolume) -> bool {
    let is_there = matches!(
        facts.source_helpers,
        Live::Known(Helpers::Incomplete | Helpers::Ready)
    );
    is_there && !volume.attached.is_empty()
}

/// A deletion cannot be undone: the PV is released as soon as possible, and then created again.
pub(super) fn release_deleted_pv(volume: &VirtualVolume) -> ClaimDecision {
    if volume.policy != ReclaimPolicy::Retain {
        ClaimDecision::Do(ClaimStep::Retain {
            volume: volume.at.clone(),
        })
    } else if volume.attached.is_empty() {
        ClaimDecision::Do(ClaimStep::RemoveVolumeFinalizers {
            volume: volume.at.clone(),
        })
    } else {
        ClaimDecision::Await(Waiting::Detached(volume.attached.clone()))
    }
}

/// After the PV names its claim again, it gets its reclaim policy when Kubernetes has bound them. The claim
/// is touched first, so that writes of Kubernetes that are based on the earlier PV fail.
pub(super) fn bound_again(note: &GateNote, facts: &ClaimFacts, volume: &VirtualVolume) -> ClaimDecision {
    let ClaimNow::Exists {
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
    let touch = Touch::Ungated(note.gate);
    if *deleting {
        // The claim was deleted while it was Lost: its deletion continues, and the data is retained.
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
    restore_policy(note, volume)
}

pub(super) fn restore_policy(note: &GateNote, volume: &VirtualVolume) -> ClaimDecision {
    ClaimDecision::Do(ClaimStep::RestorePolicy {
        volume: volume.at.clone(),
        policy: note.policy,
        mark: VolumeMark::Ungated {
            by: note.by.clone(),
            gate: note.gate,
        },
    })
}

/// Creates the PV again if its claim exists. Without a claim, a twin whose volume has the policy Delete shows
/// that the PV was deleted alone: created again, the PV shows where the data is, until it is deleted, too.
fn recreate_pv(by: &MoveUid, gate: GateNumber, facts: &ClaimFacts) -> Option<ClaimDecision> {
    let is_left = matches!(facts.source, Live::Known(SourceTwin::Exists { .. }))
        && facts
            .recorded
            .as_ref()
            .is_some_and(|recorded| recorded.policy == ReclaimPolicy::Delete);
    match &facts.claim {
        ClaimNow::Exists { deleting: false, .. } => {}
        ClaimNow::Exists { .. } if is_left => {
            return unlocked(facts).or(Some(ClaimDecision::Await(Waiting::ClaimGone)));
        }
        ClaimNow::Absent if is_left => {}
        ClaimNow::Exists { .. } | ClaimNow::Absent => return None,
    }
    let Some(recorded) = &facts.recorded else {
        return Some(ClaimDecision::Await(Waiting::NoManifest));
    };
    Some(ClaimDecision::Do(ClaimStep::MakeVolume {
        of: Side::Source,
        note: recorded.note(by, gate),
    }))
}

/// Deletes the objects of the move and unlocks the claim. An unreachable target does not delay users: it is
/// cleaned up when it is reachable.
fn cleaned_up(by: &MoveUid, overdue: bool, keeps_copy: bool, facts: &ClaimFacts) -> Option<ClaimDecision> {
    if facts.is_kept(by) {
        return Some(both_kept(by, overdue, facts));
    }
    let left = helpers_removed(Side::Source, &facts.source_helpers)
        .or_else(|| mover_claim_removed(facts))
        .or_else(|| helpers_removed(Side::Target, &facts.target_helpers))
        .or_else(|| target_removed(keeps_copy, facts));
    match left {
        None | Some(ClaimDecision::Await(Waiting::Unknown(..))) => unlocked(facts).or(left),
        Some(_) => left,
    }
}

/// A claim that was deleted while it was Lost may have been deleted in error: both copies are kept for a
/// time, then the deletion continues.
fn both_kept(by: &MoveUid, overdue: bool, facts: &ClaimFacts) -> ClaimDecision {
    if let (true, VolumeNow::Exists(volume), Some(note)) = (overdue, &facts.volume, facts.note_of(by)) {
        return restore_policy(note, volume);
    }
    match &facts.target {
        Live::Known(TargetTwin::Exists {
            at,
            retained: false,
            deleting: false,
            ..
        }) => ClaimDecision::Do(ClaimStep::RetainTarget { target: at.clone() }),
        // The movers are not needed any more. An unreachable side is not waited for here.
        _ => remove_helpers(facts).unwrap_or(ClaimDecision::Await(Waiting::BothKept)),
    }
}

/// Removes the helpers of the sides that are reachable.
pub(super) fn remove_helpers(facts: &ClaimFacts) -> Option<ClaimDecision> {
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
        Live::Unknown(why) => Some(unknown(side, why)),
        Live::Known(Helpers::Absent) => None,
        Live::Known(Helpers::Leaving) => Some(ClaimDecision::Await(Waiting::HelpersGone(side))),
        Live::Known(Helpers::Incomplete | Helpers::Ready) => {
            Some(ClaimDecision::Do(ClaimStep::RemoveHelpers(side)))
        }
    }
}

/// Deletes the target, after the movers, which write to it.
fn target_removed(keeps_copy: bool, facts: &ClaimFacts) -> Option<ClaimDecision> {
    let is_lost = matches!(facts.source, Live::Known(SourceTwin::Gone { for_good: true }));
    match &facts.target {
        // The copy may be incomplete, but nothing else is left of the data.
        _ if keeps_copy && is_lost => None,
        Live::Unknown(why) => Some(unknown(Side::Target, why)),
        Live::Known(TargetTwin::Exists {
            at,
            handed_over: false,
            deleting: false,
            ..
        }) => Some(ClaimDecision::Do(ClaimStep::DeleteTarget { target: at.clone() })),
        Live::Known(TargetTwin::Exists { deleting: true, .. }) => {
            Some(ClaimDecision::Await(Waiting::TwinGone(Side::Target)))
        }
        // A twin that was handed over, or that this move has not created, is never deleted here.
        Live::Known(_) => None,
    }
}

pub(super) fn unlocked(facts: &ClaimFacts) -> Option<ClaimDecision> {
    match &facts.claim {
        ClaimNow::Exists {
            at, lock: Lock::Ours, ..
        } => Some(ClaimDecision::Do(ClaimStep::Unlock { claim: at.clone() })),
        ClaimNow::Exists { .. } | ClaimNow::Absent => None,
    }
}

fn source_unknown(facts: &ClaimFacts) -> Option<ClaimDecision> {
    match &facts.source {
        Live::Unknown(why) => Some(unknown(Side::Source, why)),
        Live::Known(_) => None,
    }
}
