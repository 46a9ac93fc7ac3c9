//! Whose turn is it when an import of a snapshot is taken back? What is deleted then is the twin and
//! its content; the data is on the content of before all the time. Where that one goes, nothing is
//! deleted: the second content may be all that is left to lead to the data.

use super::{
    ImportedContent, ImportedTwin, SnapshotImportFacts, SnapshotImportRefusal, StoredSnapshot, UserSnapshot,
};

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
    /// The content of before goes, and with it what leads to the data.
    #[error("{}", SnapshotImportRefusal::DataLeaving((**.0).clone()))]
    DataLeaving(Box<StoredSnapshot>),
    /// There is nothing of an import, but not everything of before either.
    #[error(
        "there is nothing of an import to be taken back, but the snapshot is not as it was: its VolumeSnapshotContent {0} is being \
         deleted, or gone"
    )]
    NotAsBefore(String),
}

/// Decides the next step of an undo.
#[must_use]
pub fn snapshot_undo_step(facts: &SnapshotImportFacts) -> SnapshotUndoStep {
    use SnapshotUndoRefusal as Refusal;
    use SnapshotUndoStep as Step;
    if loses_data(facts) {
        return keep(facts);
    }
    let UserSnapshot::Old { deleting, touched } = facts.user else {
        return Step::Refuse(if facts.recorded {
            Refusal::TooLate
        } else {
            Refusal::NotRecorded
        });
    };
    // What an import has made that did not see it undone in time: when its record is gone, nothing
    // but the undo leads there any more.
    match (facts.recorded, touched) {
        (true, _) if deleting => return Step::Refuse(Refusal::TooLate),
        (false, true) if !facts.has_made() => return Step::Untouch,
        (false, false) if !facts.has_made() && facts.leaving => {
            return Step::Refuse(Refusal::NotAsBefore(facts.data.content.clone()));
        }
        (false, false) if !facts.has_made() => return Step::Done,
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

/// Whether the content of before goes that the undo would leave the data to. At the end of an
/// import it goes, too, and the second content has the data.
fn loses_data(facts: &SnapshotImportFacts) -> bool {
    let ends = match facts.user {
        UserSnapshot::New { .. } => !facts.recorded || facts.content == ImportedContent::Sound,
        _ => false,
    };
    let is_of_import = facts.recorded || facts.begun || facts.has_made();
    facts.leaving && is_of_import && !ends
}

/// Sees to it that the data outlives the contents that go, and tells where it is.
fn keep(facts: &SnapshotImportFacts) -> SnapshotUndoStep {
    if facts.recorded && !facts.secured {
        SnapshotUndoStep::Mark
    } else if facts.content == ImportedContent::Unretained {
        SnapshotUndoStep::RetainContent
    } else {
        SnapshotUndoStep::Refuse(SnapshotUndoRefusal::DataLeaving(Box::new(facts.data.clone())))
    }
}
