//! What can go wrong with a snapshot, one enum per operation.

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
    /// Its cluster cannot be used right now.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// Its namespace has to be looked for, and may be one that is not seen.
    #[error("{0}")]
    Unknown(String),
    /// The cluster cannot be asked right now.
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// Why `CreateSnapshot` has no snapshot to answer with.
#[derive(Debug, thiserror::Error)]
pub enum CutError {
    /// There is no such volume.
    #[error("no volume has the id {0:?}")]
    NoVolume(String),
    /// The volume is not such that a snapshot could be made of it.
    #[error("no snapshot can be made of the volume: {0}")]
    Unsuitable(String),
    /// No class.
    #[error(transparent)]
    Class(#[from] SnapshotClassError),
    /// The cluster has no snapshots.
    #[error(
        "the cluster {0} has no VolumeSnapshots: install the custom resource definitions and the controller of kubernetes-csi/external-snapshotter there"
    )]
    NotInstalled(String),
    /// There will be no snapshot.
    #[error("{refusal} (snapshot {twin} in cluster {cluster})")]
    Refused {
        /// The twin, or whatever has its place, as namespace/name.
        twin: String,
        /// Its cluster.
        cluster: String,
        /// Why not.
        refusal: SnapshotRefusal,
    },
    /// The API server does not take the twin, as a matter of principle: nothing was made.
    #[error("{0}")]
    NotAccepted(ApiError),
    /// It is not known right now where the volume is.
    #[error("{0}")]
    Unreachable(String),
    /// The cluster cannot be asked right now.
    #[error("{0}")]
    Api(#[from] ApiError),
    /// It takes longer than the caller has time.
    #[error("the snapshot {twin} in cluster {cluster} is not {awaited} yet{}", because(.why.as_deref()))]
    StillWaiting {
        /// The twin, as namespace/name.
        twin: String,
        /// Its cluster.
        cluster: String,
        /// What is waited for.
        awaited: &'static str,
        /// What others say about it.
        why: Option<String>,
    },
}

/// Why a snapshot is not deleted, or not yet.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotDeleteError {
    /// It is not known where it is.
    #[error("it is not known whether the snapshot is gone: {0}")]
    Site(#[from] SnapshotSiteError),
    /// Something else is in its place.
    #[error(
        "its place is taken by an object that is not ours: {foreign} (snapshot {twin} in cluster {cluster})"
    )]
    Foreign {
        /// What is in its place, as namespace/name.
        twin: String,
        /// The cluster.
        cluster: String,
        /// What it is.
        foreign: ForeignSnapshot,
    },
    /// Its import has not ended: the data is that of another content, too.
    #[error(
        "the snapshot is being imported, and the VolumeSnapshotContent {content} has the same data: run `liqo-csi import snapshot` for it to \
         its end first"
    )]
    Importing {
        /// The content of before the import.
        content: String,
    },
    /// Somebody else deleted the twin, and its data was kept.
    #[error(
        "somebody deleted {twin} in the cluster {cluster}, but its data is kept by the VolumeSnapshotContent {content} there: to discard it, set its deletionPolicy to Delete and delete it there"
    )]
    LeftBehind {
        /// The twin that was, as namespace/name.
        twin: String,
        /// The cluster.
        cluster: String,
        /// What keeps the data.
        content: String,
    },
    /// The API server does not delete it, as a matter of principle.
    #[error("{0}")]
    NotAccepted(ApiError),
    /// The cluster cannot be asked right now.
    #[error("{0}")]
    Api(#[from] ApiError),
    /// It takes longer than the caller has time.
    #[error("the snapshot {twin} still exists in cluster {cluster}{}", because(.why.as_deref()))]
    StillWaiting {
        /// The twin, as namespace/name.
        twin: String,
        /// Its cluster.
        cluster: String,
        /// What others say about it.
        why: Option<String>,
    },
}

/// Why it is not known what snapshots there are.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotReadError {
    /// It is not known where one is.
    #[error(transparent)]
    Site(#[from] SnapshotSiteError),
    /// The cluster cannot be asked right now.
    #[error(transparent)]
    Api(#[from] ApiError),
}
