//! What a volume is, independent of where it lives: its identity, what was asked
//! for, how its twin is marked, and how its data is reached. Pure: no Kubernetes
//! client, no gRPC, no clock.

mod data_path;
mod id;

pub use data_path::{
    CsiSource, DataPath, DataPathError, DriverWants, RealSource, SecretRef, TokenWish, VolumeMode,
};
pub use id::{ClusterId, ClusterIdError, ForeignId, VolumeId, VolumeName};

/// Name of the driver, as in `CSIDriver`, `CSINode` and every claim's provisioner.
pub const DRIVER_NAME: &str = "storage.liqo.io";
