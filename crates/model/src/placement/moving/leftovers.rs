//! What is left of a move that is over, or whose `VolumeMove` is gone: objects that its leaders
//! made late, for what makes an object cannot name a version; and all of it, where somebody has
//! taken the finalizer off the `VolumeMove` by force.

use super::{
    BackTo, ClaimDecision, ClaimFacts, ClaimNow, Live, Serves, Side, SourceTwin, TargetTwin, VolumeNow,
    Waiting, back,
    claim::{silent, source_mark},
    committed,
};
use crate::volume::moving::{GateNumber, MoveUid, SourceMark};

/// Decides what is next for one claim on whose objects there is something of this move, whose
/// `VolumeMove`, read live, does not exist any more.
#[must_use]
pub fn leftover_step(by: &MoveUid, facts: &ClaimFacts) -> ClaimDecision {
    pending(by, facts).unwrap_or(ClaimDecision::Reached)
}

/// Without the status only the objects tell whether it was committed. Before row 9 nobody has
/// written at the target, so the way back is right; after it only movers and the lock go.
pub(super) fn pending(by: &MoveUid, facts: &ClaimFacts) -> Option<ClaimDecision> {
    let is_gated = facts.note_of(by).is_some();
    if was_committed(facts) {
        if let Some(decision) = committed::helpers_gone(facts) {
            return Some(decision);
        }
        return match (&facts.volume, &facts.claim) {
            (VolumeNow::There(volume), ClaimNow::There { .. })
                if volume.serves == Serves::Target && is_gated =>
            {
                facts
                    .note_of(by)
                    .map(|note| back::bound_again(note, facts, volume))
            }
            (VolumeNow::There(volume), _) if volume.serves == Serves::Later => back::unlocked(facts),
            (VolumeNow::There(volume), _) if volume.serves == Serves::Target && !is_gated => {
                back::unlocked(facts)
            }
            _ => Some(ClaimDecision::Await(Waiting::CommittedWithoutMove)),
        };
    }
    let is_in_doubt = is_gated || (facts.volume == VolumeNow::Absent && facts.claim != ClaimNow::Absent);
    if let (true, Live::Silent(why)) = (is_in_doubt, &facts.source) {
        return Some(silent(Side::Source, why));
    }
    back::step(by, last_gate(by, facts), BackTo::Start, false, facts)
}

fn was_committed(facts: &ClaimFacts) -> bool {
    matches!(source_mark(facts), Some(SourceMark::Superseded { .. }))
        || matches!(
            facts.target,
            Live::Known(TargetTwin::There {
                handed_over: true,
                ..
            })
        )
        || matches!(&facts.volume, VolumeNow::There(volume) if matches!(volume.serves, Serves::Target | Serves::Later))
}

/// The last gate of this move that something still says to be closed.
fn last_gate(by: &MoveUid, facts: &ClaimFacts) -> Option<GateNumber> {
    let noted = facts.note_of(by).map(|note| note.gate);
    let marked = match &facts.source {
        Live::Known(SourceTwin::There {
            mark: Some(SourceMark::Moving { by: other, gate }),
            ..
        }) if other == by => Some(*gate),
        _ => None,
    };
    noted.max(marked)
}
