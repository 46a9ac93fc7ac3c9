//! The errors of calls to a real driver, with messages for the user of the volume.

use std::fmt::Write as _;

use tonic::Code;

use super::CALL_TIMEOUT;
use crate::{consumer::MalformedTokens, registry::RegistryError, secrets::SecretError, volume::DRIVER_NAME};

/// Why a call to the real driver failed.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The driver cannot be found or reached.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The driver returned an error; the code means the same to the caller as it would to kubelet.
    #[error("the driver {driver} refused {call}: {message}")]
    Refused {
        driver: String,
        call: &'static str,
        code: Code,
        message: String,
    },
    /// The connection broke during the call.
    #[error("the driver {driver} aborted {call}: {reason}")]
    Gone {
        driver: String,
        call: &'static str,
        /// The error of the connection.
        reason: String,
    },
    /// The driver has not answered yet, and may still be working.
    #[error("the driver {driver} has not answered {call} for {CALL_TIMEOUT:?}")]
    Slow { driver: String, call: &'static str },
    /// A secret of the real volume cannot be read.
    #[error("the driver {driver} needs a secret: {error}")]
    Secret { driver: String, error: SecretError },
    /// The service account tokens for it cannot be parsed.
    #[error("the driver {driver} cannot be called: {error}")]
    Token { driver: String, error: MalformedTokens },
    /// The twin's PV has unknown access modes.
    #[error("the real volume has the access modes {0:?}, none of which is supported")]
    AccessMode(Vec<String>),
}

impl DriverError {
    /// Adds the missing tokens to the message, because they may be the cause of the error.
    pub(super) fn with_missing_tokens(mut self, tokens: &[String]) -> Self {
        if let Self::Refused { message, .. } = &mut self
            && !tokens.is_empty()
        {
            let _ = write!(
                message,
                " (it asks for service account tokens for the audiences {tokens:?}, which kubelet did not send: \
                 add them to tokenRequests of the CSIDriver {DRIVER_NAME})"
            );
        }
        self
    }
}
