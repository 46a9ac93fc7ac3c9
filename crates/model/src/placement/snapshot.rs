//! Decides the next step of `CreateSnapshot` from observed facts. The caller executes the step, observes
//! again, and decides again. As with volumes, any call may be the first one after a crash.
//!
//! ```text
//!   absent ── the user's content exists ──▶ Create ──▶ not cut ──▶ Wait ──▶ cut ──▶ Answer
//!     │ deleted meanwhile: Refuse                        │ deleted meanwhile
//!     │ answered before: Refuse                          ▼
//!     └──────────────────── AwaitGone ◀────────────── GiveUp
//! ```
//!
//! csi-snapshotter repeats `CreateSnapshot` until the snapshot is ready, so an answer may be repeated. Until
//! it gets a final error it also keeps a content that the user has deleted, and repeats the call; after a
//! final error it never deletes anything.

mod class;
mod import;

pub use self::class::{KnownSnapshotClasses, SnapshotClass, SnapshotClassError, choose_snapshot_class};
pub use self::import::{
    ImportedContent, ImportedTwin, SnapshotImportFacts, SnapshotImportRefusal, SnapshotImportStep,
    SnapshotObstacle, SnapshotUndoRefusal, SnapshotUndoStep, StoredSnapshot, UserSnapshot,
    snapshot_import_step, snapshot_undo_step,
};
use crate::volume::ForeignSnapshot;

/// The input of the decision; all of it is read live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFacts {
    /// What exists under the name of the twin.
    pub twin: SnapshotTwin,
    /// The content that Kubernetes created for the user's snapshot.
    pub content: UserContent,
    /// Whether the deletion policy of the twin's content is Delete although the data [must be kept](is_kept).
    pub to_retain: bool,
}

/// What exists under the name of a snapshot's twin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotTwin {
    Absent,
    /// An object that is not ours.
    Foreign(ForeignSnapshot),
    Ours {
        /// Whether it has a deletion timestamp.
        deleting: bool,
        /// Whether its source is the requested volume.
        same_source: bool,
        /// Whether its point in time is fixed and known.
        cut: bool,
    },
}

/// The content that Kubernetes created for the user's snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserContent {
    /// The request does not come from csi-snapshotter.
    NotGiven,
    Live {
        /// Whether success was answered before.
        answered: bool,
    },
    Deleting,
    Gone,
}

/// Whether the real data of a snapshot must be retained: because its user wants that, or as long as it is in
/// use, where it must be protected from clients that delete the twin.
#[must_use]
pub fn is_kept(retained_by_user: bool, protected: bool, content: UserContent) -> bool {
    retained_by_user || protected && matches!(content, UserContent::Live { .. })
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotStep {
    /// Create the twin.
    Create,
    /// Wait until something changes; when the deadline expires answer a code that is not final.
    Wait,
    /// Delete exactly this version of the twin: the user's snapshot was deleted.
    GiveUp,
    /// Wait until the twin is deleted; when the deadline expires answer a code that is not final.
    AwaitGone,
    /// Set the deletion policy of the twin's content to Retain.
    Retain,
    /// Answer success.
    Answer,
    /// Answer a final error.
    Refuse(SnapshotRefusal),
}

/// Why the snapshot is not created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotRefusal {
    /// Another object has the name of the twin.
    #[error(
        "the name of its twin is taken by an object that is not ours: {0}. Delete it if it is not needed"
    )]
    Foreign(ForeignSnapshot),
    #[error("a snapshot of this name exists, of another volume")]
    OtherSource,
    /// The user's snapshot was deleted.
    #[error("its VolumeSnapshotContent was deleted or is being deleted, so the snapshot is no longer needed")]
    GivenUp,
    /// Success was answered before, and the twin was deleted.
    #[error(
        "it was taken before and its twin was deleted: the data may be lost, and a new one would be of another time"
    )]
    Vanished,
}

#[must_use]
pub fn snapshot_step(facts: &SnapshotFacts) -> SnapshotStep {
    let given_up = matches!(facts.content, UserContent::Deleting | UserContent::Gone);
    match &facts.twin {
        SnapshotTwin::Absent if given_up => SnapshotStep::Refuse(SnapshotRefusal::GivenUp),
        SnapshotTwin::Absent if facts.content == (UserContent::Live { answered: true }) => {
            SnapshotStep::Refuse(SnapshotRefusal::Vanished)
        }
        SnapshotTwin::Absent => SnapshotStep::Create,
        SnapshotTwin::Foreign(foreign) => SnapshotStep::Refuse(SnapshotRefusal::Foreign(foreign.clone())),
        SnapshotTwin::Ours {
            same_source: false, ..
        } => SnapshotStep::Refuse(SnapshotRefusal::OtherSource),
        SnapshotTwin::Ours { deleting: true, .. } => SnapshotStep::AwaitGone,
        SnapshotTwin::Ours { cut: true, .. } if facts.to_retain => SnapshotStep::Retain,
        // Even if the snapshot is no longer needed: with the id csi-snapshotter deletes it or, if the user's
        // policy is Retain, keeps it. This driver could not know which.
        SnapshotTwin::Ours { cut: true, .. } => SnapshotStep::Answer,
        SnapshotTwin::Ours { .. } if given_up => SnapshotStep::GiveUp,
        SnapshotTwin::Ours { .. } => SnapshotStep::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIVE: UserContent = UserContent::Live { answered: false };

    fn ours(deleting: bool, same_source: bool, cut: bool) -> SnapshotTwin {
        SnapshotTwin::Ours {
            deleting,
            same_source,
            cut,
        }
    }

    fn step(twin: SnapshotTwin, content: UserContent) -> SnapshotStep {
        snapshot_step(&SnapshotFacts {
            twin,
            content,
            to_retain: false,
        })
    }

    #[test]
    fn a_snapshot_is_created_awaited_and_confirmed() {
        for content in [UserContent::NotGiven, LIVE] {
            assert_eq!(step(SnapshotTwin::Absent, content), SnapshotStep::Create);
            assert_eq!(step(ours(false, true, false), content), SnapshotStep::Wait);
            assert_eq!(step(ours(false, true, true), content), SnapshotStep::Answer);
        }
    }

    #[test]
    fn an_abandoned_snapshot_is_deleted_unless_it_was_taken() {
        for content in [UserContent::Deleting, UserContent::Gone] {
            let refused = SnapshotStep::Refuse(SnapshotRefusal::GivenUp);
            assert_eq!(step(SnapshotTwin::Absent, content), refused);
            assert_eq!(step(ours(false, true, false), content), SnapshotStep::GiveUp);
            assert_eq!(step(ours(true, true, false), content), SnapshotStep::AwaitGone);
            assert_eq!(step(ours(false, true, true), content), SnapshotStep::Answer);
        }
    }

    #[test]
    fn a_vanished_snapshot_twin_is_not_created_again() {
        let answered = UserContent::Live { answered: true };
        assert_eq!(
            step(SnapshotTwin::Absent, answered),
            SnapshotStep::Refuse(SnapshotRefusal::Vanished)
        );
        assert_eq!(step(ours(true, true, true), answered), SnapshotStep::AwaitGone);
    }

    #[test]
    fn a_snapshot_of_another_volume_is_not_touched() {
        for content in [LIVE, UserContent::Gone] {
            assert_eq!(
                step(ours(false, false, false), content),
                SnapshotStep::Refuse(SnapshotRefusal::OtherSource)
            );
        }
        let foreign = ForeignSnapshot::OtherHome("rome".parse().unwrap());
        assert_eq!(
            step(SnapshotTwin::Foreign(foreign.clone()), UserContent::Gone),
            SnapshotStep::Refuse(SnapshotRefusal::Foreign(foreign))
        );
    }

    #[test]
    fn data_is_kept_while_it_is_in_use_or_wanted() {
        for content in [LIVE, UserContent::Live { answered: true }] {
            assert!(is_kept(false, true, content));
            assert!(!is_kept(false, false, content));
        }
        for content in [UserContent::NotGiven, UserContent::Deleting, UserContent::Gone] {
            assert!(!is_kept(false, true, content), "{content:?}");
            assert!(is_kept(true, false, content), "{content:?}");
        }
    }

    #[test]
    fn a_snapshot_is_retained_before_it_is_confirmed() {
        let facts = |cut| SnapshotFacts {
            twin: ours(false, true, cut),
            content: LIVE,
            to_retain: true,
        };
        assert_eq!(snapshot_step(&facts(true)), SnapshotStep::Retain);
        assert_eq!(snapshot_step(&facts(false)), SnapshotStep::Wait);
    }
}
