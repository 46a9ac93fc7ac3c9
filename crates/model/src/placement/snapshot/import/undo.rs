//! Decides the next step of undoing the import of a snapshot. It deletes the twin and its content; the
//! previous content keeps the data all the time. If that one is being deleted, nothing is deleted: the second
//! content may be the last reference to the data.

use super::{
    ImportedContent, ImportedTwin, SnapshotImportFacts, SnapshotImportRefusal, StoredSnapshot, UserSnapshot,
};

/// The next step of the undo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotUndoStep {
    /// Everything is as before the import.
    Done,
    /// The import cannot be undone.
    Refuse(SnapshotUndoRefusal),
    /// Change the user's object, so that an import with an older version of it cannot delete it.
    Touch,
    /// Retain the real content again.
    Mark,
    /// Retain the twin's content, whose policy another client has changed.
    RetainContent,
    /// Wait until the snapshot-controller has surely observed that the data is retained. Until then an import
    /// that read the object before the touch either creates its objects or is refused.
    AwaitSeen,
    /// Delete the twin, whose content is retained.
    DeleteTwin,
    /// Wait until it is deleted.
    AwaitTwinGone,
    /// Delete the twin's content, which is retained.
    DeleteContent,
    /// Wait until it is deleted.
    AwaitContentGone,
    /// Restore the deletion policy of the real content, and remove the record.
    Restore,
    /// Remove the mark of the undo from the user's object.
    Untouch,
}

/// Why an import is not undone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotUndoRefusal {
    /// There is nothing to undo.
    #[error("there is no record of an unfinished import")]
    NotRecorded,
    /// The user's object was deleted.
    #[error(
        "the previous VolumeSnapshot is already deleted, and cannot be created again unchanged. The data is safe: run the \
         command without --undo to complete the import"
    )]
    TooLate,
    #[error("another object has the name of its twin: delete it")]
    TwinForeign,
    /// The twin may refer to other data.
    #[error(
        "the VolumeSnapshotContent {0} has the name of that of its twin, but refers to other data: delete both (that also deletes the data that \
         the content refers to, unless its deletionPolicy is Retain)"
    )]
    ContentForeign(String),
    /// The previous content is being deleted, and the reference to the data with it.
    #[error("{}", SnapshotImportRefusal::DataLeaving((**.0).clone()))]
    DataLeaving(Box<StoredSnapshot>),
    /// No part of an import exists, but the snapshot is not as before either.
    #[error(
        "there is no import to undo, but the snapshot is not as before: its VolumeSnapshotContent {0} is being \
         deleted, or was deleted"
    )]
    NotAsBefore(String),
}

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
    // An import that did not notice the undo in time may have created objects: when its record is gone, only
    // the undo can find them.
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

/// Whether the content that should keep the data after the undo is being deleted. At the end of an import it
/// is deleted on purpose, and the second content has the data.
fn loses_data(facts: &SnapshotImportFacts) -> bool {
    let ends = match facts.user {
        UserSnapshot::New { .. } => !facts.recorded || facts.content == ImportedContent::Sound,
        _ => false,
    };
    let is_of_import = facts.recorded || facts.begun || facts.has_made();
    facts.leaving && is_of_import && !ends
}

/// Makes sure that the data outlives the contents that are being deleted, and reports where it is.
fn keep(facts: &SnapshotImportFacts) -> SnapshotUndoStep {
    if facts.recorded && !facts.secured {
        SnapshotUndoStep::Mark
    } else if facts.content == ImportedContent::Unretained {
        SnapshotUndoStep::RetainContent
    } else {
        SnapshotUndoStep::Refuse(SnapshotUndoRefusal::DataLeaving(Box::new(facts.data.clone())))
    }
}
