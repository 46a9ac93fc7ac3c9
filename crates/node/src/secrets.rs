//! Secrets of real volumes. Kubelet would read those a PV refers to and hand them
//! to the driver; here that is off unless the chart allows it by namespace.

use std::{collections::BTreeMap, fmt, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use kube::Api;

use crate::volume::SecretRef;

const PATIENCE: Duration = Duration::from_secs(10);

/// The right to read secrets, or its absence.
#[derive(Clone)]
pub enum Secrets {
    /// The chart does not allow any.
    Forbidden,
    /// Those the API server lets us read.
    Readable(kube::Client),
}

/// Why a secret cannot be had. Never holds any of its content.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// Not allowed here.
    #[error(
        "{namespace}/{name} is not read, because node.secrets is off: list the namespace {namespace} in the chart's \
         value node.secretNamespaces"
    )]
    Forbidden {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// The API server said no, or nothing.
    #[error("reading {namespace}/{name}: {reason}")]
    Unreadable {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// What came of it.
        reason: String,
        /// Whether it may work later.
        passing: bool,
    },
}

impl Secrets {
    /// The content of a secret.
    pub async fn read(&self, reference: &SecretRef) -> Result<BTreeMap<String, String>, SecretError> {
        let Self::Readable(client) = self else {
            return Err(SecretError::Forbidden {
                namespace: reference.namespace.clone(),
                name: reference.name.clone(),
            });
        };
        let unreadable = |passing, reason: &dyn fmt::Display| SecretError::Unreadable {
            namespace: reference.namespace.clone(),
            name: reference.name.clone(),
            reason: reason.to_string(),
            passing,
        };
        let api: Api<Secret> = Api::namespaced(client.clone(), &reference.namespace);
        let secret = match tokio::time::timeout(PATIENCE, api.get(&reference.name)).await {
            Ok(Ok(secret)) => secret,
            Ok(Err(kube::Error::Api(status))) => {
                let passing = status.code >= 500 || status.code == 429;
                return Err(unreadable(passing, &status.message));
            }
            // Any other error may quote the body.
            Ok(Err(_)) => return Err(unreadable(true, &"the API server gave no usable answer")),
            Err(_) => return Err(unreadable(true, &"the API server does not answer")),
        };
        let data = secret.data.unwrap_or_default().into_iter();
        data.map(|(key, value)| match String::from_utf8(value.0) {
            Ok(value) => Ok((key, value)),
            Err(_) => Err(unreadable(
                false,
                &format!("{key} is no text, which CSI cannot carry"),
            )),
        })
        .collect()
    }
}
