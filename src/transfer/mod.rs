//! Giving an existing claim the virtual class, and taking that back: what the command
//! `liqo-csi import` reads and writes. What comes next is decided in
//! [`crate::placement::transfer`]; the adoption itself is done by the controller.
//!
//! It runs with the rights of whoever calls it, and remembers nothing: each step follows from
//! what is read before it.

mod import;
mod look;
mod snapshot;
mod surroundings;
mod undo;

#[cfg(test)]
mod tests;

use std::time::Duration;

use tokio::time::Instant;

pub(crate) use self::{
    import::{ImportRequest, import},
    snapshot::{SnapshotImportRequest, import_snapshot, undo_snapshot_import},
    undo::undo_import,
};
use crate::{
    cluster::{ApiError, Cluster},
    placement::transfer::{ImportRefusal, Interruption, UndoRefusal},
    volume::{ClaimName, RecordError, mark},
};

/// How often it is looked whether something has changed.
const LOOK_AGAIN: Duration = Duration::from_millis(300);

/// What a transfer works on.
pub(crate) struct Context<'a> {
    /// The cluster.
    pub(crate) cluster: &'a Cluster,
    /// Where the twins are.
    pub(crate) storage_namespace: &'a str,
    /// How long to wait for others.
    pub(crate) patience: Duration,
    /// Whether to say only what would be done.
    pub(crate) dry_run: bool,
    /// Tells whoever waits what happens.
    pub(crate) tell: &'a dyn Fn(&str),
}

/// Why a transfer did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TransferError {
    /// It is not begun, or not gone on with.
    #[error("{0} is not imported:\n{1}")]
    NotImported(ClaimName, ImportRefusal),
    /// It was undone.
    #[error("the import of {0} was taken back, everything is as it was before:\n{1}")]
    TakenBack(ClaimName, Interruption),
    /// It was to be undone.
    #[error("the import of {claim} cannot go on: {why}\nand it could not be taken back: {error}")]
    NotTakenBack {
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
    /// Somebody undoes what is being done.
    #[error("somebody has undone the import of {0} meanwhile")]
    Undone(ClaimName),
    /// Its record cannot be read.
    #[error("the PersistentVolume {0}: {1}")]
    Record(String, RecordError),
    /// The namespace is not that of the old claim.
    #[error(
        "the PersistentVolume {volume} was being imported for {claim} when that namespace was deleted; one that has its name now may be \
         somebody else's, and gets nothing. The data is safe: the PersistentVolume is retained. To end the import, remove its annotations {} \
         and {}; its reclaim policy was {policy}",
        mark::IMPORT,
        mark::ADOPT_FOR
    )]
    OtherNamespace {
        /// The claim.
        claim: ClaimName,
        /// The PV.
        volume: String,
        /// The reclaim policy that it had.
        policy: String,
    },
    /// Several PVs are recorded for one claim.
    #[error(
        "several PersistentVolumes are recorded as being imported for {claim}: {}. Delete those whose data is not wanted any more",
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
    /// The cluster cannot be asked, or refuses.
    #[error("{0}")]
    Api(#[from] ApiError),
}

/// Waits for others, and says once what for.
struct Waiting<'a> {
    context: &'a Context<'a>,
    until: Instant,
    told: String,
}

impl<'a> Waiting<'a> {
    fn new(context: &'a Context<'a>) -> Self {
        Self {
            context,
            until: Instant::now() + context.patience,
            told: String::new(),
        }
    }

    /// Waits a moment; an error when time is up.
    async fn for_others(&mut self, what: &str, why: Option<String>) -> Result<(), TransferError> {
        if self.told != what {
            what.clone_into(&mut self.told);
            (self.context.tell)(what);
        }
        if Instant::now() >= self.until {
            return Err(TransferError::StillWaiting {
                what: what.to_owned(),
                patience: self.context.patience,
                why,
            });
        }
        tokio::time::sleep(LOOK_AGAIN).await;
        Ok(())
    }
}
