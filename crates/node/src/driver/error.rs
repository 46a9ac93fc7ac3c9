//! What may go wrong with a real driver, in words for the user of its volume.

use std::fmt::Write as _;

use tonic::Code;

use super::PATIENCE;
use crate::{consumer::MalformedTokens, registry::RegistryError, secrets::SecretError, volume::DRIVER_NAME};

/// Why the real driver did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// It cannot be reached.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// It said no; its code means to our caller what it would mean to kubelet.
    #[error("the driver {driver} refused {call}: {message}")]
    Refused {
        /// The driver.
        driver: String,
        /// What it was asked.
        call: &'static str,
        /// Its code.
        code: Code,
        /// Its words.
        message: String,
    },
    /// It went away in the middle.
    #[error("the driver {driver} broke off {call}: {reason}")]
    Gone {
        /// The driver.
        driver: String,
        /// What it was asked.
        call: &'static str,
        /// What the connection says.
        reason: String,
    },
    /// It has not answered yet, and may still be working.
    #[error("the driver {driver} has not answered {call} for {PATIENCE:?}")]
    Slow {
        /// The driver.
        driver: String,
        /// What it was asked.
        call: &'static str,
    },
    /// A secret of the real volume is out of reach.
    #[error("the driver {driver} needs a secret: {error}")]
    Secret {
        /// The driver.
        driver: String,
        /// Why there is none.
        error: SecretError,
    },
    /// The tokens for it make no sense.
    #[error("the driver {driver} cannot be asked: {error}")]
    Token {
        /// The driver.
        driver: String,
        /// What is wrong.
        error: MalformedTokens,
    },
    /// The twin's PV has access modes nobody knows.
    #[error("the real volume has the access modes {0:?}, none of which can be asked for")]
    AccessMode(Vec<String>),
}

impl DriverError {
    /// A refusal may be due to tokens that we could not pass on.
    pub(super) fn perhaps_for_want_of(mut self, tokens: &[String]) -> Self {
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
