//! Decides the next step of the import of a snapshot of a real class, or of its undo, from observed facts.
//! The caller executes the step, observes again, and decides again.
//!
//! ```text
//!   Mark ─▶ MakeContent ─▶ MakeTwin ─▶ twin ready ─▶ DeleteUser ─▶ MakeUserContent ─▶ MakeUser
//!    │ the real content is retained and recorded       │                                │ ready
//!    ▼                                                 ▼                                ▼
//!   undo: Touch ─▶ DeleteTwin ─▶ DeleteContent ─▶ Restore ─▶ Untouch                   Forget
//! ```
//!
//! One content keeps the data retained from the first step to the last. Until the user's object is deleted
//! the import can be undone, and is undone when the API server refuses an object; after that it can only be
//! completed. Before anything is deleted, all contents of the data are retained for as long as the
//! snapshot-controller needs to observe it.

mod undo;

#[cfg(test)]
mod tests;

pub use self::undo::{SnapshotUndoRefusal, SnapshotUndoStep, snapshot_undo_step};
use crate::volume::mark;

/// What exists under the name of the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserSnapshot {
    Absent,
    /// The snapshot to import.
    Old {
        deleting: bool,
        /// Whether its import is being undone.
        touched: bool,
    },
    /// The snapshot of this driver.
    New {
        /// Whether volumes can be created from it.
        ready: bool,
    },
    /// Another object.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportedTwin {
    Absent,
    /// It is not ready.
    Waiting,
    /// It is ready: volumes can be created from it.
    Ready,
    Deleting,
    /// Another object has its name.
    Foreign,
}

/// A content that the import creates: that of the twin, or that of the new snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImportedContent {
    Absent,
    /// It refers to the data, and is bound to its snapshot or can be.
    Sound,
    /// It refers to the data, but its deletion policy is Delete.
    Unretained,
    /// The content of this name is being deleted.
    Deleting(String),
    /// The content of this name is bound to a snapshot that was deleted.
    Outlived(String),
    /// Another object has this name.
    Foreign(String),
}

/// Where the data of a snapshot is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredSnapshot {
    /// The content with the record of the import.
    pub content: String,
    pub driver: String,
    /// The `snapshotHandle`.
    pub handle: String,
    /// The content of the twin, if it is retained and refers to the same data.
    pub second: Option<String>,
}

impl StoredSnapshot {
    /// A sentence about the second content.
    fn also(&self) -> String {
        self.second.as_ref().map_or_else(String::new, |second| {
            format!(
                ". The VolumeSnapshotContent {second} refers to the same data. It is retained and not touched, nor is its twin: delete both \
                 after you have recovered the data"
            )
        })
    }
}

/// The input of the decision; all of it is read live.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts about several objects"
)]
pub struct SnapshotImportFacts {
    /// Whether the import is recorded on the real content.
    pub recorded: bool,
    /// Whether this run of the command has observed the record.
    pub begun: bool,
    /// The real content, and its data.
    pub data: StoredSnapshot,
    /// Whether that content is retained, and its record matches the old snapshot, as long as that exists.
    pub secured: bool,
    /// Whether it is being deleted, or was deleted since this run observed it.
    pub leaving: bool,
    /// Whether the snapshot-controller had enough time to observe that all contents of the data are retained.
    pub seen: bool,
    /// What exists under the name of the user's snapshot.
    pub user: UserSnapshot,
    pub content: ImportedContent,
    pub twin: ImportedTwin,
    /// The content of the new snapshot.
    pub user_content: ImportedContent,
    /// What blocks starting, or deleting the user's object.
    pub obstacles: Vec<SnapshotObstacle>,
    /// Why the API server has just refused an object of a later step.
    pub unmakeable: Option<String>,
}

impl SnapshotImportFacts {
    /// Whether the import starts now, unless there are obstacles.
    #[must_use]
    pub fn would_begin(&self) -> bool {
        let is_old = matches!(self.user, UserSnapshot::Old { deleting: false, .. });
        is_old && !self.recorded && !self.begun && self.obstacles != [SnapshotObstacle::Ours]
    }

    /// Whether an object exists that the import creates before it deletes any: the twin, or its content.
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

/// What blocks an import.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotObstacle {
    #[error("it is not ready to use: wait until it is, or see its status")]
    NotReady,
    /// It, or its content, is being deleted.
    #[error("it is being deleted")]
    Deleting,
    #[error("its VolumeSnapshotContent {0} was deleted")]
    ContentGone(String),
    /// It already belongs to this driver, or is a twin.
    #[error("it is a snapshot of this driver")]
    Ours,
    #[error("its VolumeSnapshotContent {0} is not bound to it")]
    Misbound(String),
    #[error("it is a member of a group snapshot, and can only be deleted with the group")]
    Grouped,
    #[error("the claim {0} is being provisioned from it: wait until it is Bound, or delete it")]
    InUse(String),
    #[error(
        "no storage class has the provisioner {0}, so no volume could be provisioned from it: create one"
    )]
    NoRealClass(String),
    /// A deployment tool would create it again.
    #[error("{0} manages it (it has the key {1}): exclude it from {0} first, or add --force-managed")]
    Managed(&'static str, String),
    /// A controller would create it again.
    #[error(
        "{0} {1} controls it, and may create another one meanwhile: stop that controller first, or add --force-managed"
    )]
    Controlled(String, String),
    /// Whether its owner still exists cannot be determined.
    #[error(
        "an owner of it, the {0} {1}, cannot be read, and Kubernetes would delete the new VolumeSnapshot if the owner does not exist: make sure \
         that you may get the owner and that its API answers, or remove it from the ownerReferences ({2})"
    )]
    UnreadableOwner(String, String, String),
    #[error("the finalizer {0} would block its deletion: its controller must remove it first")]
    Finalizer(String),
    /// No class can be chosen for it.
    #[error("{0}")]
    NoClass(String),
    /// The import was started with another class.
    #[error("its import was started with the class {0}: continue with that class, or undo it with --undo")]
    BegunWith(String),
    #[error(
        "its import is being undone: run the command with --undo until that is complete, then it can be imported again"
    )]
    Undoing,
    /// The API server refuses an object that the import creates.
    #[error("the API server refuses an object that the import needs: {0}")]
    Unmakeable(String),
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotImportStep {
    Done,
    /// The import is not started, or cannot continue.
    Refuse(SnapshotImportRefusal),
    /// Retain the real content and record the import on it.
    Mark,
    /// Retain the twin's content, whose policy another client has changed.
    RetainContent,
    /// Create the twin's content: a second one for the same data.
    MakeContent,
    MakeTwin,
    /// Wait until the twin is ready.
    AwaitTwin,
    /// Wait until the snapshot-controller has surely observed that the data is retained.
    AwaitSeen,
    /// Delete this version of the user's object.
    DeleteUser,
    /// Wait until it is deleted.
    AwaitUserGone,
    /// Create the content of the new snapshot.
    MakeUserContent,
    /// Create the new snapshot.
    MakeUser,
    /// Wait until it is ready.
    AwaitUser,
    /// Delete the old real content, which is retained.
    Forget,
    /// Wait until it is deleted.
    AwaitForgotten,
    /// Undo the import: the API server refuses an object, for this reason.
    RollBack(String),
}

/// Why an import is not started, or cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotImportRefusal {
    /// There is neither a snapshot nor an import.
    #[error("there is no such VolumeSnapshot, and no content that is being imported for it")]
    NoSnapshot,
    /// Everything that blocks it.
    #[error("{}", crate::placement::lines(.0))]
    Obstacles(Vec<SnapshotObstacle>),
    #[error("another object has the name of its twin: delete it")]
    TwinForeign,
    /// Another content has the name.
    #[error(
        "the VolumeSnapshotContent {0} has the name of one that is needed, but refers to other data: delete it (that also deletes its \
         data, unless its deletionPolicy is Retain)"
    )]
    ContentForeign(String),
    #[error(
        "the VolumeSnapshotContent {0} is bound to a snapshot that was deleted: delete it, too, and run this again. The data is safe on the \
         previous content, which is retained"
    )]
    ContentOutlived(String),
    #[error(
        "the VolumeSnapshotContent {content} of its twin is being deleted. The data is safe on the \
         VolumeSnapshotContent {}, which is retained (driver {}, snapshot handle {}). Undo the import with --undo; if that is too \
         late, delete the twin, too, and run this again", .data.content, .data.driver, .data.handle
    )]
    TwinContentLeaving { content: String, data: StoredSnapshot },
    /// The content with the record is being deleted, and the reference to the data with it.
    #[error(
        "the VolumeSnapshotContent {}, which the snapshot had before its import, is being deleted, or was deleted. Unless it had another deletionPolicy \
         than Retain then, the data is in the storage: the driver {} has it under the snapshot handle {}. To recover it, create a \
         VolumeSnapshotContent with this driver, this source.snapshotHandle and the deletionPolicy Retain, and a VolumeSnapshot of it, which \
         can then be imported{}", .0.content, .0.driver, .0.handle, .0.also()
    )]
    DataLeaving(StoredSnapshot),
    #[error(
        "its import was started, and the previous VolumeSnapshot is already deleted; but the API server refuses an object: {why}. The data is \
         safe on the VolumeSnapshotContent {content}, which is retained. Run this again when that is fixed, and the import is \
         completed: it is too late to undo it"
    )]
    NotAccepted { content: String, why: String },
    #[error(
        "another VolumeSnapshot of that name was created in the meantime. The data is safe on the VolumeSnapshotContent {content}, which is \
         retained. Delete that snapshot, and run this again; or abandon the import by removing the annotation {key} of that content: then \
         liqo-csi volumes lists its twin, which has the data, and what to do with it", key = mark::IMPORT_SNAPSHOT, content = .0
    )]
    NameTaken(String),
    #[error("its import was undone by another run of liqo-csi meanwhile")]
    Undone,
}

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
        (Some(why), UserSnapshot::Old { deleting: false, .. }) => return Step::RollBack(why.clone()),
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
