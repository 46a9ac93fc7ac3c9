//! The errors that all operations on a volume share, and whether they are final.

use tonic::Code;

use super::{
    blocking::Stuck, direct::DirectError, driver::DriverError, in_flight::Busy, mounts::MountError,
    registry::RegistryError, secrets::SecretError, state::StateError,
};

#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// Another operation on the volume is in progress.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// A system call does not return.
    #[error(transparent)]
    Stuck(#[from] Stuck),
    /// The record cannot be read or written.
    #[error(transparent)]
    State(#[from] StateError),
    /// A call to the real driver failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// An in-tree volume cannot be mounted.
    #[error(transparent)]
    Direct(#[from] DirectError),
    /// A mount or unmount failed.
    #[error(transparent)]
    Mount(#[from] MountError),
}

impl VolumeError {
    /// Whether kubelet concludes from this error that nothing was done, so that it will not undo the
    /// call. The same codes as in its `isFinalError`.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Self::Busy(_) | Self::Stuck(_) => false,
            Self::State(_) | Self::Mount(_) | Self::Direct(_) => true,
            Self::Driver(error) => match error {
                DriverError::Slow { .. }
                | DriverError::Gone { .. }
                | DriverError::Registry(RegistryError::Absent { .. }) => false,
                DriverError::Secret { error, .. } => {
                    !matches!(error, SecretError::Unreadable { passing: true, .. })
                }
                DriverError::Refused { code, .. } => !matches!(
                    code,
                    Code::Cancelled
                        | Code::DeadlineExceeded
                        | Code::Unavailable
                        | Code::ResourceExhausted
                        | Code::Aborted
                ),
                DriverError::Registry(_) | DriverError::Token { .. } | DriverError::AccessMode(_) => true,
            },
        }
    }

    /// Whether the real driver does not run on this node.
    #[must_use]
    pub fn is_absent_driver(&self) -> bool {
        matches!(
            self,
            Self::Driver(DriverError::Registry(RegistryError::Absent { .. }))
        )
    }

    /// Whether the real driver reports that the volume does not exist.
    #[must_use]
    pub fn is_unknown_volume(&self) -> bool {
        matches!(
            self,
            Self::Driver(DriverError::Refused {
                code: Code::NotFound,
                ..
            })
        )
    }
}
