//! Whose turn is it when an import of a snapshot is taken back? What is deleted then is the twin and
//! its content; the data is on the content of before all the time.

use super::{ImportedContent, ImportedTwin, SnapshotImportFacts, UserSnapshot};

/// What to do next to take an import back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotUndoStep {
    /// Everything is as it was.
    Done,
    /// It cannot be taken back.
    Refuse(SnapshotUndoRefusal),
    /// Write on the user's object, so that nobody deletes it who read it before.
    Touch,
    /// Retain the real content again.
    Mark,
    /// Retain the twin's content, which somebody has given another policy.
    RetainContent,
    /// Wait until the snapshot-controller must have seen that the data is retained; meanwhile
    /// whoever looked before the touch makes what it would make, or is refused.
    AwaitSeen,
    /// Delete the twin, whose content is retained.
    DeleteTwin,
    /// Wait until it is gone.
    AwaitTwinGone,
    /// Delete the twin's content, which is retained.
    DeleteContent,
    /// Wait until it is gone.
    AwaitContentGone,
    /// Give the real content its policy back, and take the record off.
    Restore,
    /// Take the mark of the undo off the user's object.
    Untouch,
}

/// Why an import is not undone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotUndoRefusal {
    /// There is nothing to be undone.
    #[error("nothing is recorded of an import that has not ended")]
    NotRecorded,
    /// The user's object is gone.
    #[error(
        "its VolumeSnapshot of before was deleted already, and cannot be made again as it was. The data is safe: run the \
         command without --undo, and the import comes to its end"
    )]
    TooLate,
    /// The twin's place is taken.
    #[error("something that is not its twin has the place of its twin: remove it")]
    TwinForeign,
    /// The twin may lead to other data.
    #[error(
        "the VolumeSnapshotContent {0} has the name of that of its twin, and leads to something else: remove the two (with them goes what \
         the content leads to, unless its deletionPolicy is Retain)"
    )]
    ContentForeign(String),
}

/// Decides the next step of an undo.
#[must_use]
pub fn snapshot_undo_step(facts: &SnapshotImportFacts) -> SnapshotUndoStep {
    use SnapshotUndoRefusal as Refusal;
    use SnapshotUndoStep as Step;
    let UserSnapshot::Old { deleting, touched } = facts.user else {
        return Step::Refuse(if facts.recorded {
            Refusal::TooLate
        } else {
            Refusal::NotRecorded
        });
    };
    match (facts.recorded, touched) {
        (true, _) if deleting => return Step::Refuse(Refusal::TooLate),
        (false, true) if !is_left_over(facts) => return Step::Untouch,
        (false, false) if !is_left_over(facts) => return Step::Done,
        (_, false) => return Step::Touch,
        (_, true) => {}
    }
    if facts.recorded && !facts.secured {
        return Step::Mark;
    }
    if facts.content == ImportedContent::Unretained {
        return Step::RetainContent;
    }
    if !facts.seen {
        return Step::AwaitSeen;
    }
    match (facts.twin, &facts.content) {
        (ImportedTwin::Foreign, _) => Step::Refuse(Refusal::TwinForeign),
        (ImportedTwin::Deleting, _) => Step::AwaitTwinGone,
        (ImportedTwin::Waiting | ImportedTwin::Ready, ImportedContent::Foreign(name)) => {
            Step::Refuse(Refusal::ContentForeign(name.clone()))
        }
        (ImportedTwin::Waiting | ImportedTwin::Ready, _) => Step::DeleteTwin,
        (ImportedTwin::Absent, ImportedContent::Deleting(_)) => Step::AwaitContentGone,
        (ImportedTwin::Absent, ImportedContent::Absent | ImportedContent::Foreign(_)) => Step::Restore,
        (ImportedTwin::Absent, _) => Step::DeleteContent,
    }
}

/// Whether an import that did not see it undone in time has made something after its record was
/// gone: nothing but the undo leads there any more.
fn is_left_over(facts: &SnapshotImportFacts) -> bool {
    match facts.twin {
        ImportedTwin::Absent => !matches!(
            facts.content,
            ImportedContent::Absent | ImportedContent::Foreign(_)
        ),
        ImportedTwin::Waiting | ImportedTwin::Ready | ImportedTwin::Deleting => true,
        ImportedTwin::Foreign => false,
    }
}
