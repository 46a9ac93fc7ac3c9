//! What can go wrong in any operation on a volume, and whether it is over when it does.

use tonic::Code;

use super::{
    blocking::Stuck, direct::DirectError, driver::DriverError, in_flight::Busy, mounts::MountError,
    registry::RegistryError, secrets::SecretError, state::StateError,
};

/// What can go wrong in any operation on a volume.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// Another operation has the volume.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// The kernel does not return.
    #[error(transparent)]
    Stuck(#[from] Stuck),
    /// The record cannot be read or written.
    #[error(transparent)]
    State(#[from] StateError),
    /// The real driver cannot or will not.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// An in-tree volume cannot be mounted.
    #[error(transparent)]
    Direct(#[from] DirectError),
    /// The mount table is not as it has to be.
    #[error(transparent)]
    Mount(#[from] MountError),
}

impl VolumeError {
    /// Whether kubelet takes this failure to mean that nothing was done, so that it
    /// will not ask us to undo it. The same codes as in its `isFinalError`.
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

    /// Whether the real driver is not there to be asked.
    #[must_use]
    pub fn is_absent_driver(&self) -> bool {
        matches!(
            self,
            Self::Driver(DriverError::Registry(RegistryError::Absent { .. }))
        )
    }

    /// Whether the real driver says that it knows no such volume.
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
