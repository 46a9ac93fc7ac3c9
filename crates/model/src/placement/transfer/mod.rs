//! What `liqo-csi import` and `liqo-csi release` do next, from what is there now. Neither
//! remembers anything but what stands on the PVs, the twin and the claims, so whoever comes
//! next, after a crash or beside another run for the same claim, decides the same.
//!
//! Between the claim's deletion and the end, nobody's claim holds the data: it is the PV's
//! reclaim policy Retain that keeps it, from before the first step to after the last one.

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
    AsksFor, ReleaseFacts, ReleaseProgress, ReleaseRefusal, ReleaseStep, ReleasedClaim, TwinNow, VirtualNow,
    release_step,
};
pub use release_undo::{ReleaseUndoFacts, ReleaseUndoRefusal, ReleaseUndoStep, release_undo_step};
pub use undo::{Holder, UndoFacts, UndoRefusal, UndoStep, undo_step};

/// Why an import or a release that has begun is undone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Interruption {
    /// Something has come in between.
    #[error("{}", super::lines(.0))]
    Obstacles(Vec<Obstacle>),
    /// Somebody made a claim of that name.
    #[error(
        "somebody made a claim of that name while there was none, as a StatefulSet or a deployment tool does"
    )]
    NameTaken,
    /// The real PV is being deleted: it would be gone with its twin.
    #[error(
        "the real PersistentVolume is being deleted, and would be gone once its twin is, and with it all that tells where the data is"
    )]
    VolumeLeaves,
    /// Somebody took the mark of the release off the twin, as its undoing does.
    #[error("the twin is not marked as being released any more")]
    Unmarked,
    /// The API server does not take the new claim.
    #[error("the new claim is not accepted: {0}")]
    NotAccepted(String),
}

/// What has the name of the claim that is imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimNow {
    /// Nothing.
    Absent,
    /// The claim whose volume is to be imported.
    Old {
        /// Whether it is being deleted.
        deleting: bool,
        /// Whether an undo has written on it.
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
    /// Another claim, as a controller makes one in the gap; or the old one made again.
    Other {
        /// Whether it is being deleted.
        deleting: bool,
        /// The PV that it names.
        volume: NamedVolume,
        /// Whether the imported PV is what it asks for.
        fits: bool,
    },
}

/// The PV that a claim names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedVolume {
    /// None.
    None,
    /// The imported one.
    Imported {
        /// Whether Kubernetes has bound the two.
        bound: bool,
    },
    /// Another one.
    Another,
}

/// How far the import of a PV is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It has no record: the import has not begun, or is at its end, or was undone.
    NotRecorded,
    /// It may be adopted.
    Permitted,
    /// It may not be adopted any more: the import is being undone.
    Withdrawn,
}
