//! What a volume is, independent of where it lives: its identity, what was asked
//! for, how its twin is marked, and how its data is reached. Pure: no Kubernetes
//! client, no gRPC, no clock.

mod carried;
mod data_path;
mod digest;
mod fingerprint;
mod id;
pub mod mark;
mod marks;
mod quantity;
mod spec;

pub use carried::{Carried, MetadataChanges};
pub use data_path::{
    CsiSource, DataPath, DataPathError, DriverWants, RealSource, SecretRef, TokenWish, VolumeMode,
};
pub use digest::digest;
pub use fingerprint::{Fingerprint, FingerprintError, Part};
pub use id::{ClusterId, ClusterIdError, ForeignId, VolumeId, VolumeName};
pub use marks::{ClaimMark, Foreign, Marks, MarksError, Owner};
pub use quantity::{parse_quantity, quantity};
pub use spec::{
    Access, AccessMode, Capabilities, Capability, ClaimName, ContentSource, Parameters, SizeRange, SpecError,
    VolumeSpec,
};

/// Name of the driver, as in `CSIDriver`, `CSINode` and every claim's provisioner.
pub const DRIVER_NAME: &str = "storage.liqo.io";
