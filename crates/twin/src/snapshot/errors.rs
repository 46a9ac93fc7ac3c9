//! The errors of the operations on snapshots, one enum per operation.

use crate::{
    cluster::ApiError,
    errors::because,
    fleet::Unreachable,
    placement::{SnapshotClassError, SnapshotRefusal},
    volume::ForeignSnapshot,
};

/// Why it is not known where the twin of a snapshot is.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotSiteError {
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// The namespace of the twin has to be searched, and may be one that this driver may not read.
    #[error("{0}")]
    Unknown(String),
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// Why `CreateSnapshot` failed.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotCreateError {
    #[error("no volume has the id {0:?}")]
    NoVolume(String),
    /// The volume has no PV, and its twin cannot be searched. The code says that this call made no snapshot: otherwise
    /// csi-snapshotter would not delete a `VolumeSnapshot` before a later call succeeds.
    #[error("{0}")]
    NoRecord(String),
    /// The volume cannot have a snapshot in its present state.
    #[error("cannot create a snapshot of the volume: {0}")]
    Unsuitable(String),
    #[error(transparent)]
    Class(#[from] SnapshotClassError),
    /// The kinds of snapshots are not installed in the cluster.
    #[error(
        "the cluster {0} has no VolumeSnapshots: install the custom resource definitions and the controller of kubernetes-csi/external-snapshotter there"
    )]
    NotInstalled(String),
    /// The request has failed for this twin.
    #[error("{refusal} (snapshot {twin} in cluster {cluster})")]
    Refused {
        /// The twin, or the object with its name, as namespace/name.
        twin: String,
        cluster: String,
        refusal: SnapshotRefusal,
    },
    /// The API server rejects the twin permanently: nothing was created.
    #[error("{0}")]
    NotAccepted(ApiError),
    /// It is not known where the volume is.
    #[error("{0}")]
    Unreachable(String),
    #[error("{0}")]
    Api(#[from] ApiError),
    /// The deadline has passed.
    #[error("the snapshot {twin} in cluster {cluster} is not {awaited} yet{}", because(.why.as_deref()))]
    StillWaiting {
        twin: String,
        cluster: String,
        awaited: &'static str,
        /// What the snapshot controllers report.
        why: Option<String>,
    },
}

/// Why a snapshot is not deleted, or not yet.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotDeleteError {
    /// It is not known where the snapshot is.
    #[error("cannot confirm that the snapshot was deleted: {0}")]
    Site(#[from] SnapshotSiteError),
    /// Another object has the name of the twin.
    #[error(
        "its name is taken by an object that is not ours: {foreign} (snapshot {twin} in cluster {cluster})"
    )]
    Foreign {
        /// The object, as namespace/name.
        twin: String,
        cluster: String,
        foreign: ForeignSnapshot,
    },
    /// The import of the snapshot has not ended: the content from before the import has the same data.
    #[error(
        "the snapshot is being imported, and the VolumeSnapshotContent {content} has the same data: complete `liqo-csi import \
         snapshot` for it first"
    )]
    Importing {
        /// The content from before the import.
        content: String,
    },
    /// Another client deleted the twin, and its data was retained.
    #[error(
        "another client deleted {twin} in the cluster {cluster}, but its data is kept by the VolumeSnapshotContent {content} there: \
         to discard it, set its deletionPolicy to Delete and delete it there"
    )]
    LeftBehind {
        /// The deleted twin, as namespace/name.
        twin: String,
        cluster: String,
        content: String,
    },
    /// The API server does not permit the deletion.
    #[error("{0}")]
    NotAccepted(ApiError),
    #[error("{0}")]
    Api(#[from] ApiError),
    /// The deadline has passed.
    #[error("the snapshot {twin} still exists in cluster {cluster}{}", because(.why.as_deref()))]
    StillWaiting {
        twin: String,
        cluster: String,
        /// What the snapshot controllers report.
        why: Option<String>,
    },
}

/// Why snapshots cannot be listed or read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotReadError {
    /// It is not known where a snapshot is.
    #[error(transparent)]
    Site(#[from] SnapshotSiteError),
    #[error(transparent)]
    Api(#[from] ApiError),
}
