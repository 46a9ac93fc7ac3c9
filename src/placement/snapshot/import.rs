//! Whose turn is it when a snapshot of a real class becomes one of this driver, or when that is
//! taken back? One decision from what was read; the caller does the step, looks again, and
//! decides again.
//!
//! ```text
//!   Mark ─▶ MakeContent ─▶ MakeTwin ─▶ twin ready ─▶ DeleteUser ─▶ MakeUserContent ─▶ MakeUser
//!    │ the real content is retained and recorded       │                                │ ready
//!    ▼                                                 ▼                                ▼
//!   undo: Touch ─▶ DeleteTwin ─▶ DeleteContent ─▶ Restore ─▶ Untouch                   Forget
//! ```
//!
//! The data is on a content that is retained from the first step to the last. Until the user's
//! object is deleted, everything can be taken back; then it only goes on.

/// What is under the name of the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserSnapshot {
    /// Nothing.
    Absent,
    /// The snapshot that is to be imported.
    Old {
        /// Whether it is being deleted.
        deleting: bool,
        /// Whether its import is being undone.
        touched: bool,
    },
    /// The snapshot of this driver.
    New {
        /// Whether volumes can be made of it.
        ready: bool,
    },
    /// Something else.
    Other,
}

/// How it stands with the twin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportedTwin {
    /// There is none.
    Absent,
    /// It is not ready.
    Waiting,
    /// Volumes can be made of it.
    Ready,
    /// It is being deleted.
    Deleting,
    /// Something else has its place.
    Foreign,
}

/// What the decision rests on; all of it is read live.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts about several objects, each seen by itself"
)]
pub struct SnapshotImportFacts {
    /// Whether the import is recorded on the real content.
    pub recorded: bool,
    /// Whether that is retained.
    pub secured: bool,
    /// Whether that is being deleted.
    pub leaving: bool,
    /// What has the name.
    pub user: UserSnapshot,
    /// Whether the twin's content is there.
    pub content: bool,
    /// The twin.
    pub twin: ImportedTwin,
    /// Whether the content of the new snapshot is there.
    pub user_content: bool,
    /// What speaks against beginning, or against deleting the user's object.
    pub obstacles: Vec<SnapshotObstacle>,
}

/// What speaks against an import.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotObstacle {
    /// It is not ready.
    #[error("it is not ready to use: wait until it is, or see its status")]
    NotReady,
    /// It, or its content, is being deleted.
    #[error("it is being deleted")]
    Deleting,
    /// It is one of this driver's already, or a twin.
    #[error("it is a snapshot of this driver")]
    Ours,
    /// Its content does not name it.
    #[error("its content {0} does not name it")]
    Misbound(String),
    /// It is one of a group.
    #[error("it is a member of a group snapshot, and goes with that only")]
    Grouped,
    /// A volume is being made of it.
    #[error("the claim {0} is being made of it: wait until it is Bound, or delete it")]
    InUse(String),
    /// No volume could be made of it.
    #[error("no storage class has the provisioner {0}, so that no volume could be made of it: make one")]
    NoRealClass(String),
    /// A deployment tool would make it anew.
    #[error("{0} manages it (it has the key {1}): take it out of its care first, or add --force-managed")]
    Managed(&'static str, String),
    /// A controller would make it anew.
    #[error(
        "{0} {1} controls it, and may make another one meanwhile: see to that first, or add --force-managed"
    )]
    Controlled(String, String),
    /// Somebody wants to see it go.
    #[error("the finalizer {0} would hold it when it is deleted: whoever set it has to take it off first")]
    Finalizer(String),
    /// No class to give it.
    #[error("{0}")]
    NoClass(String),
    /// It has begun with another class.
    #[error("its import has begun with the class {0}: go on with that, or take it back with --undo")]
    BegunWith(String),
    /// It is being undone.
    #[error("its import is being undone: run it with --undo until it is, then it can begin anew")]
    Undoing,
    /// The API server does not take the new object.
    #[error("the new VolumeSnapshot is not accepted: {0}")]
    Unmakeable(String),
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotImportStep {
    /// It is done.
    Done,
    /// It is not begun, or cannot go on.
    Refuse(SnapshotImportRefusal),
    /// Retain the real content and record the import on it.
    Mark,
    /// Make the twin's content: a second one for the same data.
    MakeContent,
    /// Make the twin.
    MakeTwin,
    /// Wait until it is ready.
    AwaitTwin,
    /// Delete the user's object in the version that was read.
    DeleteUser,
    /// Wait until it is gone.
    AwaitUserGone,
    /// Make the content of the new one.
    MakeUserContent,
    /// Make the new one.
    MakeUser,
    /// Wait until it is ready.
    AwaitUser,
    /// Delete the real content of before, which is retained.
    Forget,
    /// Wait until it is gone.
    AwaitForgotten,
}

/// Why an import does not begin, or does not go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotImportRefusal {
    /// There is neither a snapshot nor an import.
    #[error("there is no such VolumeSnapshot, and no content that is being imported for it")]
    NoSnapshot,
    /// All that speaks against it.
    #[error("{}", crate::placement::lines(.0))]
    Obstacles(Vec<SnapshotObstacle>),
    /// The twin's place is taken.
    #[error("something that is not its twin has the place of its twin: remove it")]
    TwinForeign,
    /// Another snapshot of the name was made.
    #[error(
        "another VolumeSnapshot of that name was made while there was none. The data is safe on its content, which is \
         retained. Delete or rename that snapshot, and run this again"
    )]
    NameTaken,
}

/// Decides the next step of an import.
#[must_use]
pub fn snapshot_import_step(facts: &SnapshotImportFacts) -> SnapshotImportStep {
    use SnapshotImportRefusal as Refusal;
    use SnapshotImportStep as Step;
    let obstacles = || Step::Refuse(Refusal::Obstacles(facts.obstacles.clone()));
    if !facts.recorded {
        return match facts.user {
            UserSnapshot::Absent => Step::Refuse(Refusal::NoSnapshot),
            UserSnapshot::New { ready: true } => Step::Done,
            UserSnapshot::New { ready: false } => Step::AwaitUser,
            UserSnapshot::Other => Step::Refuse(Refusal::NameTaken),
            UserSnapshot::Old { .. } if facts.obstacles.is_empty() => Step::Mark,
            UserSnapshot::Old { .. } => obstacles(),
        };
    }
    if let UserSnapshot::Old { deleting: false, .. } = facts.user
        && !facts.obstacles.is_empty()
    {
        return obstacles();
    }
    if facts.leaving {
        return Step::AwaitForgotten;
    }
    if !facts.secured {
        return Step::Mark;
    }
    if !facts.content {
        return Step::MakeContent;
    }
    match facts.twin {
        ImportedTwin::Absent => return Step::MakeTwin,
        ImportedTwin::Waiting | ImportedTwin::Deleting => return Step::AwaitTwin,
        ImportedTwin::Foreign => return Step::Refuse(Refusal::TwinForeign),
        ImportedTwin::Ready => {}
    }
    match facts.user {
        UserSnapshot::Old { deleting: false, .. } => Step::DeleteUser,
        UserSnapshot::Old { deleting: true, .. } => Step::AwaitUserGone,
        UserSnapshot::Absent if !facts.user_content => Step::MakeUserContent,
        UserSnapshot::Absent => Step::MakeUser,
        UserSnapshot::New { ready: false } => Step::AwaitUser,
        UserSnapshot::New { ready: true } => Step::Forget,
        UserSnapshot::Other => Step::Refuse(Refusal::NameTaken),
    }
}

/// What to do next to take an import back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotUndoStep {
    /// Everything is as it was.
    Done,
    /// It cannot be taken back.
    Refuse(SnapshotUndoRefusal),
    /// Write on the user's object, so that nobody deletes it who read it before.
    Touch,
    /// Delete the twin, whose content is retained.
    DeleteTwin,
    /// Wait until it is gone.
    AwaitTwinGone,
    /// Delete the twin's content, which is retained.
    DeleteContent,
    /// Give the real content its policy back, and take the record off.
    Restore,
    /// Take the mark of the undo off the user's object.
    Untouch,
}

/// Why an import is not undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
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
        (false, true) => return Step::Untouch,
        (false, false) => return Step::Done,
        (true, _) if deleting => return Step::Refuse(Refusal::TooLate),
        (true, false) => return Step::Touch,
        (true, true) => {}
    }
    match facts.twin {
        ImportedTwin::Waiting | ImportedTwin::Ready => Step::DeleteTwin,
        ImportedTwin::Deleting => Step::AwaitTwinGone,
        ImportedTwin::Foreign => Step::Refuse(Refusal::TwinForeign),
        ImportedTwin::Absent if facts.content => Step::DeleteContent,
        ImportedTwin::Absent => Step::Restore,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: UserSnapshot = UserSnapshot::Old {
        deleting: false,
        touched: false,
    };

    fn begun() -> SnapshotImportFacts {
        SnapshotImportFacts {
            recorded: true,
            secured: true,
            leaving: false,
            user: OLD,
            content: true,
            twin: ImportedTwin::Ready,
            user_content: false,
            obstacles: Vec::new(),
        }
    }

    #[test]
    fn nothing_is_deleted_before_the_data_is_retained_and_the_twin_ready() {
        let facts = SnapshotImportFacts {
            recorded: false,
            secured: false,
            content: false,
            twin: ImportedTwin::Absent,
            ..begun()
        };
        assert_eq!(snapshot_import_step(&facts), SnapshotImportStep::Mark);
        for (facts, step) in [
            (
                SnapshotImportFacts {
                    secured: false,
                    ..begun()
                },
                SnapshotImportStep::Mark,
            ),
            (
                SnapshotImportFacts {
                    content: false,
                    ..begun()
                },
                SnapshotImportStep::MakeContent,
            ),
            (
                SnapshotImportFacts {
                    twin: ImportedTwin::Absent,
                    ..begun()
                },
                SnapshotImportStep::MakeTwin,
            ),
            (
                SnapshotImportFacts {
                    twin: ImportedTwin::Waiting,
                    ..begun()
                },
                SnapshotImportStep::AwaitTwin,
            ),
            (
                SnapshotImportFacts {
                    twin: ImportedTwin::Foreign,
                    ..begun()
                },
                SnapshotImportStep::Refuse(SnapshotImportRefusal::TwinForeign),
            ),
            (begun(), SnapshotImportStep::DeleteUser),
        ] {
            assert_eq!(snapshot_import_step(&facts), step);
        }
    }

    #[test]
    fn once_the_old_object_is_gone_it_goes_on_to_the_end() {
        let of = |user, user_content| {
            snapshot_import_step(&SnapshotImportFacts {
                user,
                user_content,
                ..begun()
            })
        };
        let dying = UserSnapshot::Old {
            deleting: true,
            touched: false,
        };
        assert_eq!(of(dying, false), SnapshotImportStep::AwaitUserGone);
        assert_eq!(
            of(UserSnapshot::Absent, false),
            SnapshotImportStep::MakeUserContent
        );
        assert_eq!(of(UserSnapshot::Absent, true), SnapshotImportStep::MakeUser);
        assert_eq!(
            of(UserSnapshot::New { ready: false }, true),
            SnapshotImportStep::AwaitUser
        );
        assert_eq!(
            of(UserSnapshot::New { ready: true }, true),
            SnapshotImportStep::Forget
        );
        assert_eq!(
            of(UserSnapshot::Other, true),
            SnapshotImportStep::Refuse(SnapshotImportRefusal::NameTaken)
        );
        let leaving = SnapshotImportFacts {
            user: UserSnapshot::New { ready: true },
            leaving: true,
            ..begun()
        };
        assert_eq!(snapshot_import_step(&leaving), SnapshotImportStep::AwaitForgotten);
        let ended = SnapshotImportFacts {
            recorded: false,
            user: UserSnapshot::New { ready: true },
            ..begun()
        };
        assert_eq!(snapshot_import_step(&ended), SnapshotImportStep::Done);
    }

    #[test]
    fn what_speaks_against_it_is_told_at_once() {
        let obstacles = vec![SnapshotObstacle::NotReady, SnapshotObstacle::InUse("copy".into())];
        for recorded in [false, true] {
            let facts = SnapshotImportFacts {
                recorded,
                obstacles: obstacles.clone(),
                ..begun()
            };
            let SnapshotImportStep::Refuse(refusal) = snapshot_import_step(&facts) else {
                panic!("it is begun")
            };
            assert_eq!(refusal.to_string().lines().count(), 2);
        }
    }

    #[test]
    fn an_undo_first_stops_whoever_would_delete() {
        assert_eq!(snapshot_undo_step(&begun()), SnapshotUndoStep::Touch);
        let touched = UserSnapshot::Old {
            deleting: false,
            touched: true,
        };
        let of = |twin, content, recorded| {
            snapshot_undo_step(&SnapshotImportFacts {
                user: touched,
                twin,
                content,
                recorded,
                ..begun()
            })
        };
        assert_eq!(of(ImportedTwin::Ready, true, true), SnapshotUndoStep::DeleteTwin);
        assert_eq!(
            of(ImportedTwin::Deleting, true, true),
            SnapshotUndoStep::AwaitTwinGone
        );
        assert_eq!(
            of(ImportedTwin::Absent, true, true),
            SnapshotUndoStep::DeleteContent
        );
        assert_eq!(of(ImportedTwin::Absent, false, true), SnapshotUndoStep::Restore);
        assert_eq!(of(ImportedTwin::Absent, false, false), SnapshotUndoStep::Untouch);
    }

    #[test]
    fn what_was_deleted_cannot_be_undone() {
        let too_late = SnapshotUndoStep::Refuse(SnapshotUndoRefusal::TooLate);
        for user in [
            UserSnapshot::Absent,
            UserSnapshot::New { ready: true },
            UserSnapshot::Old {
                deleting: true,
                touched: true,
            },
        ] {
            assert_eq!(
                snapshot_undo_step(&SnapshotImportFacts { user, ..begun() }),
                too_late
            );
        }
        let ended = SnapshotImportFacts {
            recorded: false,
            user: UserSnapshot::New { ready: true },
            ..begun()
        };
        assert_eq!(
            snapshot_undo_step(&ended),
            SnapshotUndoStep::Refuse(SnapshotUndoRefusal::NotRecorded)
        );
        let never = SnapshotImportFacts {
            recorded: false,
            ..begun()
        };
        assert_eq!(snapshot_undo_step(&never), SnapshotUndoStep::Done);
    }
}
