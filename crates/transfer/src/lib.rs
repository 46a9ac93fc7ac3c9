//! Imports and releases: gives an existing claim the virtual class, and a claim of the driver its real
//! class. This crate reads and writes for the commands `liqo-csi import` and `liqo-csi release`. The model's
//! `placement::transfer` decides each next step; the controller adopts the PV.
//!
//! It runs with the rights of the user, and keeps no state: each step follows from the objects that are read
//! before it.

#![allow(missing_docs, reason = "internal: a comment says why, not what the name says")]

mod claim_ref;
mod environment;
mod import;
mod observer;
mod owners;
mod recorded_volume;
mod recreate;
mod release;
mod snapshot;
mod undo;
mod waiting;
mod writing;

#[cfg(test)]
mod tests;

use std::{fmt, time::Duration};

use liqo_csi_cluster::cluster;
#[cfg(test)]
use liqo_csi_cluster::fleet;
use liqo_csi_model::{placement, topology, volume};
use liqo_csi_observe as observe;
use liqo_csi_twin as twin;

pub use self::{
    import::{ImportRequest, import},
    release::{ReleaseRequest, release, undo_release},
    snapshot::{SnapshotImportRequest, import_snapshot, undo_snapshot_import},
    undo::undo_import,
    waiting::NotKept,
};
use self::{recorded_volume::DeletedVolume, waiting::Waiter};
use crate::{
    cluster::{ApiError, Cluster},
    placement::transfer::{ImportRefusal, Interruption, ReleaseRefusal, ReleaseUndoRefusal, UndoRefusal},
    volume::{ClaimName, RecordError},
};

/// The options of a transfer.
pub struct Context<'a> {
    pub cluster: &'a Cluster,
    /// The namespace of the twins.
    pub storage_namespace: &'a str,
    /// How long to wait for other programs.
    pub timeout: Duration,
    /// Whether to report only what would be done.
    pub dry_run: bool,
    /// Reports progress to the user.
    pub report: &'a dyn Fn(&str),
}

/// A decided step needs an object that was not read.
#[derive(Debug, thiserror::Error)]
#[error(
    "the step {0} needs an object that was not found, so it was not taken. Run the same command again to continue, or with --undo to undo \
     it. If this repeats, it is an error of this program: please report it"
)]
pub struct ObjectMissing(String);

impl ObjectMissing {
    fn of(step: &impl fmt::Debug) -> Self {
        Self(format!("{step:?}"))
    }
}

/// Why a transfer is not complete.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// It was not begun, or not continued.
    #[error("{0} is not imported:\n{1}")]
    NotImported(ClaimName, ImportRefusal),
    /// It was not begun, or not continued.
    #[error("{0} is not released:\n{1}")]
    NotReleased(ClaimName, ReleaseRefusal),
    #[error("the {0} of {1} was rolled back; the previous state is restored:\n{2}")]
    RolledBack(&'static str, ClaimName, Interruption),
    #[error("the {what} of {claim} cannot continue: {why}\nand it could not be rolled back: {error}")]
    RollbackFailed {
        /// "import" or "release".
        what: &'static str,
        claim: ClaimName,
        why: Interruption,
        /// Why the rollback failed.
        error: Box<TransferError>,
    },
    #[error("the import of {0} is not undone: {1}")]
    NotUndone(ClaimName, UndoRefusal),
    #[error("the release of {0} is not undone: {1}")]
    StillReleased(ClaimName, ReleaseUndoRefusal),
    /// Another process undid it meanwhile.
    #[error("the {0} of {1} was undone meanwhile")]
    Undone(&'static str, ClaimName),
    #[error("while {claim} was being {what}, another client deleted {volume}")]
    VolumeDeleted {
        /// "imported" or "released".
        what: &'static str,
        claim: ClaimName,
        volume: Box<DeletedVolume>,
    },
    /// The API server does not accept the original claim.
    #[error(
        "{claim} cannot be created again: {why}\nThe data is safe on its PersistentVolume, which is retained. Remove what prevents the claim, \
         and run this with --undo again"
    )]
    NotMadeAgain { claim: ClaimName, why: String },
    /// The record of the transfer cannot be read.
    #[error("the PersistentVolume {0}: {1}")]
    Record(String, RecordError),
    /// The namespace was deleted, and has another uid now.
    #[error(
        "the PersistentVolume {volume} was being {what} for {claim} when that namespace was deleted; a namespace of the same name may be \
         another user's, so nothing is changed in it. The data is safe: the PersistentVolume is retained. To end the transfer, remove its annotations that begin with storage.liqo.io/; its reclaim policy was {policy}"
    )]
    OtherNamespace {
        /// "imported" or "released".
        what: &'static str,
        claim: ClaimName,
        volume: String,
        policy: String,
    },
    #[error(
        "several PersistentVolumes are recorded as being imported or released for {claim}: {}. Delete those whose data is not needed any more",
        .volumes.join(", ")
    )]
    Several { claim: ClaimName, volumes: Vec<String> },
    /// The claim cannot be serialized.
    #[error("the claim cannot be written as JSON: {0}")]
    Unwritable(#[from] serde_json::Error),
    /// Another program has not done its part in time.
    #[error("timed out {what} (after {timeout:?}). The data is safe; run the same command again to continue, or with --undo to undo it{}",
        .why.as_ref().map_or_else(String::new, |why| format!(". The last event: {why}")))]
    StillWaiting {
        what: String,
        timeout: Duration,
        /// The last warning event.
        why: Option<String>,
    },
    /// The written values do not persist.
    #[error(transparent)]
    NotKept(#[from] NotKept),
    #[error(transparent)]
    ObjectMissing(#[from] ObjectMissing),
    /// The API server cannot be reached, or refuses.
    #[error("{0}")]
    Api(#[from] ApiError),
}
