//! The life of a snapshot's twin: a `VolumeSnapshot` of the volume's twin, in its namespace, in
//! whichever cluster: created, awaited, deleted and listed. The decisions are in
//! [`crate::placement`]. As with volumes, no state is kept between calls.

mod create;
mod delete;
mod errors;
mod list;
mod observation;
mod record;
mod retain;
mod site;
#[cfg(test)]
mod tests;
mod upkeep;

pub use self::delete::CONTROLLER_SEES;
pub use self::{
    create::create_snapshot,
    delete::delete_snapshot,
    errors::{SnapshotCreateError, SnapshotDeleteError, SnapshotReadError, SnapshotSiteError},
    list::{SnapshotFilter, find_snapshot, list_snapshots, living_twins},
    record::source_affinity,
    upkeep::{SnapshotHealth, check_snapshot},
};
pub(super) use self::{
    observation::{contents_with_id, user_content},
    site::SnapshotSite,
};
use crate::volume::{SnapshotId, SnapshotKey, SnapshotParameters, VolumeId};

/// A request for a new snapshot.
#[derive(Clone, Debug)]
pub struct SnapshotRequest {
    pub key: SnapshotKey,
    /// The name in the `CreateSnapshot` request.
    pub request_name: String,
    /// The volume of which to take the snapshot.
    pub source: VolumeId,
    pub parameters: SnapshotParameters,
}

/// A snapshot that was cut, as the CSI specification calls it: its data is that of one point in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenSnapshot {
    pub id: SnapshotId,
    /// Id of the volume of which it was taken.
    pub source: String,
    /// The minimum size of a volume restored from it; zero if unknown.
    pub bytes: u64,
    /// When it was cut, in seconds and nanoseconds since 1970.
    pub cut_at: (i64, i32),
    /// Whether volumes can be restored from it.
    pub ready: bool,
}
