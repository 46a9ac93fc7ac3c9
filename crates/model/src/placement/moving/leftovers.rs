//! Removes what is left after a move has ended, or without its `VolumeMove`: objects that old leaders created
//! late, because a creation cannot name a version; or all objects, if the finalizer of the `VolumeMove` was
//! removed by force.

use super::{
    ClaimDecision, ClaimFacts, ClaimNow, Live, MoverClaim, RemoteVolume, RollbackTo, Serves, Side,
    SourceTwin, TargetTwin, VolumeNow, Waiting,
    claim::{source_mark, unknown},
    committed, rollback,
};
use crate::volume::moving::{GateNumber, MoveUid, SourceMark};

/// The next step for a claim whose objects have marks of this move, while its `VolumeMove`, read live, does
/// not exist any more.
#[must_use]
pub fn leftover_step(by: &MoveUid, facts: &ClaimFacts) -> ClaimDecision {
    pending(by, false, facts).unwrap_or(ClaimDecision::Reached)
}

/// Without the status, only the objects show whether the move was committed. Before step 9 no pod has written
/// at the target, so a rollback is right; after it only movers and the lock are removed.
pub(super) fn pending(by: &MoveUid, keeps_copy: bool, facts: &ClaimFacts) -> Option<ClaimDecision> {
    let is_gated = facts.note_of(by).is_some();
    if was_committed(facts) {
        // When users delete the twin of a source that is gated there, the claim of the mover is released, and the
        // data is deleted.
        let is_bound = |remote: &RemoteVolume| matches!(remote.mover_claim, MoverClaim::Named { .. });
        let is_kept = facts.there.as_ref().is_some_and(is_bound);
        let released =
            || committed::released_there(by, facts).filter(|_| is_kept && committed::is_served(facts));
        if let Some(decision) = committed::helpers_gone(facts).or_else(released) {
            return Some(decision);
        }
        return match (&facts.volume, &facts.claim) {
            (VolumeNow::Exists(volume), ClaimNow::Exists { .. })
                if volume.serves == Serves::Target && is_gated =>
            {
                facts
                    .note_of(by)
                    .map(|note| rollback::bound_again(note, facts, volume))
            }
            (VolumeNow::Exists(volume), _) if volume.serves == Serves::Later => rollback::unlocked(facts),
            (VolumeNow::Exists(volume), _) if volume.serves == Serves::Target && !is_gated => {
                rollback::unlocked(facts).or_else(|| marked_again(facts))
            }
            // Without its lock the claim can be deleted.
            (VolumeNow::Absent, ClaimNow::Exists { deleting: true, .. }) => rollback::unlocked(facts),
            _ => Some(ClaimDecision::Await(Waiting::CommittedWithoutMove)),
        };
    }
    let is_in_doubt = is_gated || (facts.volume == VolumeNow::Absent && facts.claim != ClaimNow::Absent);
    if let (true, Live::Unknown(why)) = (is_in_doubt, &facts.source) {
        return Some(unknown(Side::Source, why));
    }
    let gate = last_gate(by, facts);
    rollback::step(by, gate, RollbackTo::Start, false, keeps_copy, facts)
}

/// The volume is replaced only after the target was handed over.
fn marked_again(facts: &ClaimFacts) -> Option<ClaimDecision> {
    let is_marked = matches!(
        facts.target,
        Live::Known(TargetTwin::Exists {
            handed_over: false,
            ..
        })
    );
    is_marked.then_some(ClaimDecision::Await(Waiting::MarkedAgain))
}

fn was_committed(facts: &ClaimFacts) -> bool {
    matches!(source_mark(facts), Some(SourceMark::Superseded { .. }))
        || matches!(
            facts.target,
            Live::Known(TargetTwin::Exists {
                handed_over: true,
                ..
            })
        )
        || matches!(&facts.volume, VolumeNow::Exists(volume) if matches!(volume.serves, Serves::Target | Serves::Later))
}

/// The last gate of this move in the marks on its objects.
fn last_gate(by: &MoveUid, facts: &ClaimFacts) -> Option<GateNumber> {
    let noted = facts.note_of(by).map(|note| note.gate);
    let noted_there = facts.note_there(by).map(|note| note.gate);
    let marked = match &facts.source {
        Live::Known(SourceTwin::Exists {
            mark: Some(SourceMark::Moving { by: other, gate }),
            ..
        }) if other == by => Some(*gate),
        _ => None,
    };
    noted.max(noted_there).max(marked)
}
