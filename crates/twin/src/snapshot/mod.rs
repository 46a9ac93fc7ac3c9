//! The life of a snapshot's twin: a `VolumeSnapshot` of the volume's twin, beside it, in
//! whatever cluster that is. It is made, awaited, deleted and listed here; what is decided is
//! in [`crate::placement`]. As with volumes, nothing is remembered between calls.

mod create;
mod delete;
mod errors;
mod list;
mod look_after;
mod observation;
mod record;
mod retain;
mod site;
#[cfg(test)]
mod tests;

pub use self::delete::CONTROLLER_SEES;
pub use self::{
    create::create_snapshot,
    delete::delete_snapshot,
    errors::{CutError, SnapshotDeleteError, SnapshotReadError, SnapshotSiteError},
    list::{SnapshotFilter, find_snapshot, list_snapshots, living_twins},
    look_after::{SnapshotHealth, look_after_snapshot},
    record::source_affinity,
};
pub(super) use self::{observation::user_content, site::SnapshotSite};
use crate::volume::{SnapshotId, SnapshotKey, SnapshotParameters, VolumeId};

/// A snapshot to be made.
#[derive(Clone, Debug)]
pub struct SnapshotRequest {
    /// Its key.
    pub key: SnapshotKey,
    /// Name of the request.
    pub request_name: String,
    /// The volume it is of.
    pub source: VolumeId,
    /// How.
    pub parameters: SnapshotParameters,
}

/// A snapshot that was cut, as the CSI specification calls it: its data is that of one point in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutSnapshot {
    /// Its id.
    pub id: SnapshotId,
    /// Id of the volume it is of.
    pub source: String,
    /// The size that a volume of it has at least; zero if it is not known.
    pub bytes: u64,
    /// When it was cut, in seconds and nanoseconds since 1970.
    pub cut_at: (i64, i32),
    /// Whether volumes can be made of it.
    pub ready: bool,
}
