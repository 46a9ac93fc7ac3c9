//! Whose turn is it in `CreateSnapshot`? One decision from what was observed; the caller
//! does the step, looks again, and decides again. As with volumes, any call may be the first
//! one after a crash.
//!
//! ```text
//!   absent ── the user's content lives ──▶ Create ──▶ not cut ──▶ Wait ──▶ cut ──▶ Answer
//!     │ deleted meanwhile: Refuse                        │ deleted meanwhile
//!     │ answered before: Refuse                          ▼
//!     └──────────────────── AwaitGone ◀────────────── GiveUp
//! ```
//!
//! csi-snapshotter calls `CreateSnapshot` again until the snapshot is ready, so an answer may
//! be repeated. As long as the answer may still come it also keeps a content whose user has
//! deleted it: it goes on calling, and after a final error it never deletes anything.

mod class;
mod import;

pub use self::class::{KnownSnapshotClasses, SnapshotClass, SnapshotClassError, choose_snapshot_class};
pub use self::import::{
    ImportedContent, ImportedTwin, SnapshotImportFacts, SnapshotImportRefusal, SnapshotImportStep,
    SnapshotObstacle, SnapshotUndoRefusal, SnapshotUndoStep, StoredSnapshot, UserSnapshot,
    snapshot_import_step, snapshot_undo_step,
};
use crate::volume::ForeignSnapshot;

/// What the decision rests on; all of it is read live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFacts {
    /// What is in the twin's place.
    pub twin: SnapshotTwin,
    /// The content that Kubernetes made for the user's snapshot.
    pub content: UserContent,
    /// Whether the twin's data would be deleted although it [is kept](is_kept).
    pub to_retain: bool,
}

/// What is in the place of a snapshot's twin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotTwin {
    /// Nothing.
    Absent,
    /// Something that is not ours.
    Foreign(ForeignSnapshot),
    /// The twin.
    Ours {
        /// Whether it has a deletion timestamp.
        deleting: bool,
        /// Whether it is of the volume that is asked for.
        same_source: bool,
        /// Whether the data is as it was at one point in time, which is known.
        cut: bool,
    },
}

/// The content that Kubernetes made for the user's snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserContent {
    /// The request does not come from csi-snapshotter.
    NotGiven,
    /// It is there.
    Live {
        /// Whether success was answered before.
        answered: bool,
    },
    /// It is being deleted.
    Deleting,
    /// There is none.
    Gone,
}

/// Whether the real data of a snapshot is to be retained: because its user wants that, or as long
/// as it is in use, where that is to protect it from whoever deletes the twin.
#[must_use]
pub fn is_kept(retained_by_user: bool, protected: bool, content: UserContent) -> bool {
    retained_by_user || protected && matches!(content, UserContent::Live { .. })
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotStep {
    /// Make the twin.
    Create,
    /// Wait until something changes; when time is up answer a code that is not final.
    Wait,
    /// Delete exactly this twin in exactly this version: nobody waits for it.
    GiveUp,
    /// Wait until the twin is gone; when time is up answer a code that is not final.
    AwaitGone,
    /// Set the deletion policy of the twin's content to Retain.
    Retain,
    /// Answer success.
    Answer,
    /// Answer a final error.
    Refuse(SnapshotRefusal),
}

/// Why there will be no snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotRefusal {
    /// Something else is in the twin's place.
    #[error("its place is taken by an object that is not ours: {0}. Rename or remove it")]
    Foreign(ForeignSnapshot),
    /// The snapshot exists, of another volume.
    #[error("a snapshot of this name exists, of another volume")]
    OtherSource,
    /// Nobody waits for it.
    #[error(
        "the VolumeSnapshotContent it is for is deleted or being deleted, so that nobody waits for it any more"
    )]
    GivenUp,
    /// It was there and is gone.
    #[error(
        "it was taken before and has vanished: the data may be lost, and one that is taken now would be of another time"
    )]
    Vanished,
}

/// Decides the next step of `CreateSnapshot`.
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
        // Also if nobody seems to want it any more: with its id csi-snapshotter deletes it or,
        // if the user's policy is Retain, leaves it. A deletion of ours could not tell.
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
    fn a_snapshot_is_made_awaited_and_answered() {
        for content in [UserContent::NotGiven, LIVE] {
            assert_eq!(step(SnapshotTwin::Absent, content), SnapshotStep::Create);
            assert_eq!(step(ours(false, true, false), content), SnapshotStep::Wait);
            assert_eq!(step(ours(false, true, true), content), SnapshotStep::Answer);
        }
    }

    #[test]
    fn what_nobody_waits_for_is_taken_back_unless_it_was_cut() {
        for content in [UserContent::Deleting, UserContent::Gone] {
            let refused = SnapshotStep::Refuse(SnapshotRefusal::GivenUp);
            assert_eq!(step(SnapshotTwin::Absent, content), refused);
            assert_eq!(step(ours(false, true, false), content), SnapshotStep::GiveUp);
            assert_eq!(step(ours(true, true, false), content), SnapshotStep::AwaitGone);
            assert_eq!(step(ours(false, true, true), content), SnapshotStep::Answer);
        }
    }

    #[test]
    fn one_that_vanished_is_not_cut_again() {
        let answered = UserContent::Live { answered: true };
        assert_eq!(
            step(SnapshotTwin::Absent, answered),
            SnapshotStep::Refuse(SnapshotRefusal::Vanished)
        );
        assert_eq!(step(ours(true, true, true), answered), SnapshotStep::AwaitGone);
    }

    #[test]
    fn one_of_another_volume_is_not_touched() {
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
    fn it_is_retained_before_it_is_answered_for() {
        let facts = |cut| SnapshotFacts {
            twin: ours(false, true, cut),
            content: LIVE,
            to_retain: true,
        };
        assert_eq!(snapshot_step(&facts(true)), SnapshotStep::Retain);
        assert_eq!(snapshot_step(&facts(false)), SnapshotStep::Wait);
    }
}
