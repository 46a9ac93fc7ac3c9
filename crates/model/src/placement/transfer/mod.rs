//! The next step of `liqo-csi import` and `liqo-csi release`, decided from the current objects. All state is
//! in marks on the PVs, the twin and the claims, so the next run, after a crash or beside another run for the
//! same claim, decides the same.
//!
//! Between the deletion of the claim and the end no claim holds the data: the reclaim policy Retain of the PV
//! keeps it, from before the first step to after the last one.

mod import;
mod obstacle;
mod release;
mod release_undo;
mod undo;

pub use import::{ImportFacts, ImportRefusal, ImportStep, import_step};
pub use obstacle::{
    ImportedClaim, Obstacle, RealVolume, ReleasedTwin, WantedBy, class_for, obstacles, release_obstacles,
    wanted_replica,
};
pub use release::{
    MatchingVolume, ReleaseFacts, ReleaseProgress, ReleaseRefusal, ReleaseStep, ReleasedClaim, TwinNow,
    VirtualNow, release_step,
};
pub use release_undo::{ReleaseUndoFacts, ReleaseUndoRefusal, ReleaseUndoStep, release_undo_step};
pub use undo::{Holder, UndoFacts, UndoRefusal, UndoStep, undo_step};

/// Why an import or a release that was started is undone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Interruption {
    /// Obstacles have appeared.
    #[error("{}", super::lines(.0))]
    Obstacles(Vec<Obstacle>),
    #[error(
        "another client created a claim of that name in the meantime, as a StatefulSet or a deployment tool does"
    )]
    NameTaken,
    /// The real PV is being deleted: it would be deleted with its twin.
    #[error(
        "the real PersistentVolume is being deleted, and would disappear with its twin, and with it the only reference to the data"
    )]
    VolumeLeaves,
    /// Another client removed the mark of the release from the twin, as an undo does.
    #[error("the twin is not marked as being released any more")]
    Unmarked,
    #[error("the API server refuses the new claim: {0}")]
    NotAccepted(String),
}

/// What exists under the name of the imported claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimNow {
    Absent,
    /// The claim whose volume is imported.
    Old {
        /// Whether it is being deleted.
        deleting: bool,
        /// Whether an undo has changed it.
        touched: bool,
    },
    /// The claim of this driver's class that adopts the PV.
    New {
        /// Whether it is being deleted.
        deleting: bool,
        /// Whether a node is selected for it.
        has_node: bool,
        /// Whether it has a virtual PV.
        bound: bool,
    },
    /// Another claim, created in the meantime by a controller; or the old one, created again.
    Other {
        /// Whether it is being deleted.
        deleting: bool,
        /// The PV that it names.
        volume: NamedVolume,
        /// Whether its spec matches the imported PV.
        fits: bool,
    },
}

/// The PV that a claim names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedVolume {
    None,
    Imported {
        /// Whether Kubernetes has bound the two.
        bound: bool,
    },
    Another,
}

/// The record of an import on the PV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// No record exists: the import was not started, is complete, or was undone.
    NotRecorded,
    /// It permits the adoption.
    Permitted,
    /// The adoption is no longer permitted: the import is being undone.
    Withdrawn,
}
