//! Giving an existing claim the virtual class, and giving a claim of the driver its real class:
//! what the commands `liqo-csi import` and `liqo-csi release` read and write. What comes next is
//! decided in the model's `placement::transfer`; the adoption itself is done by the controller.
//!
//! It runs with the rights of whoever calls it, and remembers nothing: each step follows from
//! what is read before it.

#![allow(missing_docs, reason = "internal: a comment says why, not what the name says")]

mod again;
mod import;
mod look;
mod naming;
mod owners;
mod release;
mod remembered;
mod snapshot;
mod surroundings;
mod undo;
mod waiting;
mod writing;

#[cfg(test)]
mod tests;

use std::time::Duration;

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
use self::{remembered::DeletedVolume, waiting::Waiting};
use crate::{
    cluster::{ApiError, Cluster},
    placement::transfer::{ImportRefusal, Interruption, ReleaseRefusal, ReleaseUndoRefusal, UndoRefusal},
    volume::{ClaimName, RecordError},
};

/// What a transfer works on.
pub struct Context<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// Where the twins are.
    pub storage_namespace: &'a str,
    /// How long to wait for others.
    pub patience: Duration,
    /// Whether to say only what would be done.
    pub dry_run: bool,
    /// Tells whoever waits what happens.
    pub tell: &'a dyn Fn(&str),
}

/// Why a transfer did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// It is not begun, or not gone on with.
    #[error("{0} is not imported:\n{1}")]
    NotImported(ClaimName, ImportRefusal),
    /// It is not begun, or not gone on with.
    #[error("{0} is not released:\n{1}")]
    NotReleased(ClaimName, ReleaseRefusal),
    /// It was undone.
    #[error("the {0} of {1} was taken back, everything is as it was before:\n{2}")]
    TakenBack(&'static str, ClaimName, Interruption),
    /// It was to be undone.
    #[error("the {what} of {claim} cannot go on: {why}\nand it could not be taken back: {error}")]
    NotTakenBack {
        /// What cannot go on.
        what: &'static str,
        /// The claim.
        claim: ClaimName,
        /// Why it cannot go on.
        why: Interruption,
        /// Why it could not be taken back.
        error: Box<TransferError>,
    },
    /// It is not undone.
    #[error("the import of {0} is not undone: {1}")]
    NotUndone(ClaimName, UndoRefusal),
    /// It is not undone.
    #[error("the release of {0} is not undone: {1}")]
    StillReleased(ClaimName, ReleaseUndoRefusal),
    /// Somebody undoes what is being done.
    #[error("somebody has undone the {0} of {1} meanwhile")]
    Undone(&'static str, ClaimName),
    /// Somebody has deleted the PV.
    #[error("while {claim} was being {what}, somebody deleted {volume}")]
    VolumeDeleted {
        /// What was done with the claim.
        what: &'static str,
        /// The claim.
        claim: ClaimName,
        /// The PV.
        volume: Box<DeletedVolume>,
    },
    /// The claim of before is not accepted.
    #[error(
        "{claim} cannot be made again as it was: {why}\nThe data is safe on its PersistentVolume, which is retained. Make room for the claim, \
         and run this with --undo again"
    )]
    NotMadeAgain {
        /// The claim.
        claim: ClaimName,
        /// Why not.
        why: String,
    },
    /// Its record cannot be read.
    #[error("the PersistentVolume {0}: {1}")]
    Record(String, RecordError),
    /// The namespace is not that of the old claim.
    #[error(
        "the PersistentVolume {volume} was being {what} for {claim} when that namespace was deleted; one that has its name now may be \
         somebody else's, and this command gives it nothing. The data is safe: the PersistentVolume is retained. To end it, remove its annotations that begin with storage.liqo.io/; its reclaim policy was {policy}"
    )]
    OtherNamespace {
        /// What was done with it.
        what: &'static str,
        /// The claim.
        claim: ClaimName,
        /// The PV.
        volume: String,
        /// The reclaim policy that it had.
        policy: String,
    },
    /// Several PVs are recorded for one claim.
    #[error(
        "several PersistentVolumes are recorded as being imported or released for {claim}: {}. Delete those whose data is not wanted any more",
        .volumes.join(", ")
    )]
    Several {
        /// The claim.
        claim: ClaimName,
        /// The PVs.
        volumes: Vec<String>,
    },
    /// What is written would make no sense.
    #[error("the claim cannot be written as JSON: {0}")]
    Unwritable(#[from] serde_json::Error),
    /// It takes longer than the caller has time.
    #[error("{what} (waited {patience:?}). The data is safe; run the same command again to go on, or with --undo to take it back{}",
        .why.as_ref().map_or_else(String::new, |why| format!(". What was said last: {why}")))]
    StillWaiting {
        /// What is waited for.
        what: String,
        /// For how long it was.
        patience: Duration,
        /// What others say about it.
        why: Option<String>,
    },
    /// What is written does not stay.
    #[error(transparent)]
    NotKept(#[from] NotKept),
    /// The cluster cannot be asked, or refuses.
    #[error("{0}")]
    Api(#[from] ApiError),
}
