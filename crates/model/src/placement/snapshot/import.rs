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
//! object is deleted, everything can be taken back, and is when the API server does not take what
//! has to be made; then it only goes on. Before anything is deleted, all contents of the data are
//! retained, for as long as the snapshot-controller needs to see it.

mod undo;

#[cfg(test)]
mod tests;

pub use self::undo::{SnapshotUndoRefusal, SnapshotUndoStep, snapshot_undo_step};
use crate::volume::mark;

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

/// How it stands with a content that the import makes: that of the twin, or that of the new
/// snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImportedContent {
    /// There is none.
    Absent,
    /// It leads to the data, and is of its snapshot or free for it.
    Sound,
    /// It leads to the data, which would be deleted with its snapshot.
    Unretained,
    /// The one of this name is being deleted.
    Deleting(String),
    /// The one of this name is of a snapshot that is gone.
    Outlived(String),
    /// Something else has its name, which is this.
    Foreign(String),
}

/// Where the data of a snapshot is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredSnapshot {
    /// The content on which the import is recorded.
    pub content: String,
    /// The real driver.
    pub driver: String,
    /// The id that this driver knows it by.
    pub handle: String,
    /// The content of the twin, if that is retained and leads there, too.
    pub second: Option<String>,
}

impl StoredSnapshot {
    /// What leads to the data besides the content with the record.
    fn also(&self) -> String {
        self.second.as_ref().map_or_else(String::new, |second| {
            format!(
                ". The VolumeSnapshotContent {second} leads to the data, too. It is retained and left alone, and so is its twin: delete both \
                 when you have the data back"
            )
        })
    }
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
    /// Whether this run has seen it recorded.
    pub begun: bool,
    /// The real content, and what it leads to.
    pub data: StoredSnapshot,
    /// Whether that content is retained, and has on record what the old snapshot is now, while that
    /// is there.
    pub secured: bool,
    /// Whether it is being deleted, or gone since it was seen.
    pub leaving: bool,
    /// Whether the snapshot-controller had time to see that all contents of the data are retained.
    pub seen: bool,
    /// What has the name.
    pub user: UserSnapshot,
    /// The twin's content.
    pub content: ImportedContent,
    /// The twin.
    pub twin: ImportedTwin,
    /// The content of the new snapshot.
    pub user_content: ImportedContent,
    /// What speaks against beginning, or against deleting the user's object.
    pub obstacles: Vec<SnapshotObstacle>,
    /// What the API server has just said against an object that comes next.
    pub unmakeable: Option<String>,
}

impl SnapshotImportFacts {
    /// Whether the import begins now, unless something speaks against it.
    #[must_use]
    pub fn would_begin(&self) -> bool {
        let is_old = matches!(self.user, UserSnapshot::Old { deleting: false, .. });
        is_old && !self.recorded && !self.begun && self.obstacles != [SnapshotObstacle::Ours]
    }

    /// Whether something is there that the import makes before it deletes: the twin, or its content.
    fn has_made(&self) -> bool {
        match self.twin {
            ImportedTwin::Absent => !matches!(
                self.content,
                ImportedContent::Absent | ImportedContent::Foreign(_)
            ),
            ImportedTwin::Waiting | ImportedTwin::Ready | ImportedTwin::Deleting => true,
            ImportedTwin::Foreign => false,
        }
    }
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
    /// There is no content of it any more.
    #[error("its content {0} is gone")]
    ContentGone(String),
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
    /// Nobody can tell whether an owner of it is still there.
    #[error(
        "an owner of it, the {0} {1}, cannot be read, and Kubernetes would delete the new VolumeSnapshot if it is gone: see to it that you may          get it and that its API answers, or take it out of the ownerReferences ({2})"
    )]
    UnreadableOwner(String, String, String),
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
    /// The API server does not take what would be made.
    #[error("what it needs is not accepted: {0}")]
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
    /// Retain the twin's content, which somebody has given another policy.
    RetainContent,
    /// Make the twin's content: a second one for the same data.
    MakeContent,
    /// Make the twin.
    MakeTwin,
    /// Wait until it is ready.
    AwaitTwin,
    /// Wait until the snapshot-controller must have seen that the data is retained.
    AwaitSeen,
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
    /// Undo it: the API server does not take what has to be made, and says this.
    TakeBack(String),
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
    /// The place of a content is taken.
    #[error(
        "the VolumeSnapshotContent {0} has the name of one that is needed, and leads to something else: remove it (with it goes what it \
         leads to, unless its deletionPolicy is Retain)"
    )]
    ContentForeign(String),
    /// A content cannot be used again.
    #[error(
        "the VolumeSnapshotContent {0} is of a snapshot that is gone: see that it goes, too, and run this again. The data is safe on the \
         content of before, which is retained"
    )]
    ContentOutlived(String),
    /// The twin loses its content.
    #[error(
        "the VolumeSnapshotContent {content}, which leads its twin to the data, is being deleted. The data is safe on the \
         VolumeSnapshotContent {}, which is retained (driver {}, snapshot handle {}). Take the import back with --undo; where that is too \
         late, delete the twin, too, and run this again", .data.content, .data.driver, .data.handle
    )]
    TwinContentLeaving {
        /// The content of the twin.
        content: String,
        /// Where the data is.
        data: StoredSnapshot,
    },
    /// The record goes, and with it what leads to the data.
    #[error(
        "the VolumeSnapshotContent {}, which the snapshot had before its import, is being deleted, or gone. Unless it had another deletionPolicy \
         than Retain then, the data is in the storage: the driver {} has it under the snapshot handle {}. To have it back, make a \
         VolumeSnapshotContent with this driver, this source.snapshotHandle and the deletionPolicy Retain, and a VolumeSnapshot of it, which \
         can be imported then{}", .0.content, .0.driver, .0.handle, .0.also()
    )]
    DataLeaving(StoredSnapshot),
    /// It cannot be taken back any more, and the API server does not take what has to be made.
    #[error(
        "its import has begun, and its VolumeSnapshot of before is deleted already; but what it needs is not accepted: {why}. The data is \
         safe on the VolumeSnapshotContent {content}, which is retained. Run this again when that is accepted, and the import comes to its \
         end: it is too late to take it back"
    )]
    NotAccepted {
        /// Where the data is.
        content: String,
        /// What the API server says.
        why: String,
    },
    /// Another snapshot of the name was made.
    #[error(
        "another VolumeSnapshot of that name was made while there was none. The data is safe on the VolumeSnapshotContent {content}, which is \
         retained. Delete that snapshot, and run this again; or end the import by removing the annotation {key} of that content: then \
         liqo-csi volumes lists its twin, which has the data, with what to do", key = mark::IMPORT_SNAPSHOT, content = .0
    )]
    NameTaken(String),
    /// Somebody has taken it back.
    #[error("somebody has undone its import meanwhile")]
    Undone,
}

/// Decides the next step of an import.
#[must_use]
pub fn snapshot_import_step(facts: &SnapshotImportFacts) -> SnapshotImportStep {
    use SnapshotImportRefusal as Refusal;
    use SnapshotImportStep as Step;
    let obstacles = || Step::Refuse(Refusal::Obstacles(facts.obstacles.clone()));
    if !facts.recorded {
        return match facts.user {
            UserSnapshot::New { ready: true } => Step::Done,
            UserSnapshot::New { ready: false } => Step::AwaitUser,
            _ if facts.leaving && (facts.begun || facts.has_made()) => {
                Step::Refuse(Refusal::DataLeaving(facts.data.clone()))
            }
            UserSnapshot::Old { .. } if facts.begun => Step::Refuse(Refusal::Undone),
            UserSnapshot::Absent => Step::Refuse(Refusal::NoSnapshot),
            UserSnapshot::Other => name_taken(facts),
            UserSnapshot::Old { .. } if facts.obstacles.is_empty() => Step::Mark,
            UserSnapshot::Old { .. } => obstacles(),
        };
    }
    if let UserSnapshot::Old { deleting: false, .. } = facts.user
        && !facts.obstacles.is_empty()
        && !facts.leaving
    {
        return obstacles();
    }
    if !facts.secured {
        return Step::Mark;
    }
    if facts.content == ImportedContent::Unretained {
        return Step::RetainContent;
    }
    if facts.leaving {
        return match (&facts.user, &facts.content) {
            (UserSnapshot::New { .. }, ImportedContent::Sound) => Step::AwaitForgotten,
            _ => Step::Refuse(Refusal::DataLeaving(facts.data.clone())),
        };
    }
    match (&facts.unmakeable, facts.user) {
        (Some(why), UserSnapshot::Old { deleting: false, .. }) => return Step::TakeBack(why.clone()),
        (Some(why), UserSnapshot::Absent) => {
            return Step::Refuse(Refusal::NotAccepted {
                content: facts.data.content.clone(),
                why: why.clone(),
            });
        }
        _ => {}
    }
    match &facts.content {
        ImportedContent::Absent => return Step::MakeContent,
        ImportedContent::Deleting(content) => {
            return Step::Refuse(Refusal::TwinContentLeaving {
                content: content.clone(),
                data: facts.data.clone(),
            });
        }
        ImportedContent::Outlived(name) => return Step::Refuse(Refusal::ContentOutlived(name.clone())),
        ImportedContent::Foreign(name) => return Step::Refuse(Refusal::ContentForeign(name.clone())),
        ImportedContent::Sound | ImportedContent::Unretained => {}
    }
    match facts.twin {
        ImportedTwin::Absent => return Step::MakeTwin,
        ImportedTwin::Waiting | ImportedTwin::Deleting => return Step::AwaitTwin,
        ImportedTwin::Foreign => return Step::Refuse(Refusal::TwinForeign),
        ImportedTwin::Ready => {}
    }
    match facts.user {
        UserSnapshot::Old { deleting: false, .. } if !facts.seen => Step::AwaitSeen,
        UserSnapshot::Old { deleting: false, .. } => Step::DeleteUser,
        UserSnapshot::Old { deleting: true, .. } => Step::AwaitUserGone,
        UserSnapshot::Absent => match &facts.user_content {
            ImportedContent::Absent => Step::MakeUserContent,
            ImportedContent::Sound | ImportedContent::Unretained => Step::MakeUser,
            ImportedContent::Deleting(name) | ImportedContent::Outlived(name) => {
                Step::Refuse(Refusal::ContentOutlived(name.clone()))
            }
            ImportedContent::Foreign(name) => Step::Refuse(Refusal::ContentForeign(name.clone())),
        },
        UserSnapshot::New { ready: false } => Step::AwaitUser,
        UserSnapshot::New { ready: true } => Step::Forget,
        UserSnapshot::Other => name_taken(facts),
    }
}

fn name_taken(facts: &SnapshotImportFacts) -> SnapshotImportStep {
    SnapshotImportStep::Refuse(SnapshotImportRefusal::NameTaken(facts.data.content.clone()))
}
