//! Volumes and snapshots, independent of their location: identity, requests, marks and records on objects,
//! sizes, and the data path. Pure: no Kubernetes client, no gRPC, no clock.

mod capabilities;
mod carried;
mod claim_size;
mod data_path;
mod digest;
mod epoch;
mod fingerprint;
mod id;
pub mod mark;
mod marks;
pub mod moving;
mod quantity;
mod reclaim;
mod recorded;
mod refused;
mod release;
mod restore_topology;
mod size;
mod snapshot;
mod snapshot_import;
mod snapshot_marks;
mod snapshot_spec;
mod spec;
mod transfer;

pub use capabilities::{Access, AccessMode, Capabilities, Capability, can_be_attached};
pub use carried::{Carried, CarriedAnnotations, MetadataChanges, has_domain, marks_ownership};
pub use claim_size::{ClaimSize, ResizeStage};
pub use data_path::{
    CsiSource, DataPath, DataPathError, DriverRequirements, RealSource, SecretRef, TokenRequests, VolumeMode,
};
pub use digest::digest;
pub use epoch::{Epoch, EpochError};
pub use fingerprint::{Fingerprint, FingerprintError, Part};
pub use id::{ClusterId, ClusterIdError, VolumeId, VolumeIdError, VolumeName};
pub use marks::{ClaimMark, Foreign, Marks, MarksError, Owner};
pub use quantity::{parse_quantity, quantity};
pub use reclaim::{ReclaimPolicy, UnknownPolicy};
pub use recorded::{TWIN_CLASS, TWIN_NAME, TWIN_NAMESPACE, TWIN_VOLUME, twin_in, twin_volume_in};
pub use refused::Refused;
pub use release::{OldVolume, ReleaseRecord, Released};
pub use restore_topology::RestoreTopology;
pub use size::SizeRange;
pub use snapshot::{SnapshotId, SnapshotIdError, SnapshotKey, SnapshotPlace};
pub use snapshot_import::{SnapshotImport, SnapshotRecordError, import_key, imported_content};
pub use snapshot_marks::{ForeignSnapshot, SnapshotMarks, SnapshotName};
pub use snapshot_spec::{SnapshotParameters, SnapshotSpecError};
pub use spec::{
    BindingPolicy, ClaimName, ContentSource, Parameters, SpecError, VolumeSpec, attributes_class,
};
pub use transfer::{ClaimNameError, ImportRecord, OldClaim, RecordError, adoptable_by, managed_by};

/// Name of the driver, as in `CSIDriver`, `CSINode` and the provisioner of claims.
pub const DRIVER_NAME: &str = "storage.liqo.io";
