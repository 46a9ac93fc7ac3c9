//! Secrets of real volumes. Kubelet would read those to which a PV refers and pass them to the driver;
//! here that is disabled unless the chart permits it by namespace.

use std::{collections::BTreeMap, fmt, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use kube::Api;

use crate::volume::SecretRef;

const API_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether Secrets may be read.
#[derive(Clone)]
pub enum Secrets {
    /// The chart permits none.
    Forbidden,
    /// Secrets that the API server permits.
    Readable(kube::Client),
}

/// Why a Secret cannot be read. Never contains any of its content.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error(
        "{namespace}/{name} is not read, because the node plugin may read no Secrets: list the namespace {namespace} in the \
         chart's value node.secretNamespaces"
    )]
    Forbidden { namespace: String, name: String },
    /// The API server returned an error, or does not answer.
    #[error("reading {namespace}/{name}: {reason}")]
    Unreadable {
        namespace: String,
        name: String,
        reason: String,
        /// Whether a retry may succeed.
        passing: bool,
    },
}

impl Secrets {
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
        let secret = match tokio::time::timeout(API_TIMEOUT, api.get(&reference.name)).await {
            Ok(Ok(secret)) => secret,
            Ok(Err(kube::Error::Api(status))) => {
                let passing = status.code >= 500 || status.code == 429;
                return Err(unreadable(passing, &status.message));
            }
            // Any other error may quote the body.
            Ok(Err(_)) => return Err(unreadable(true, &"the API server sent an invalid response")),
            Err(_) => return Err(unreadable(true, &"the API server does not answer")),
        };
        let data = secret.data.unwrap_or_default().into_iter();
        data.map(|(key, value)| match String::from_utf8(value.0) {
            Ok(value) => Ok((key, value)),
            Err(_) => Err(unreadable(
                false,
                &format!("{key} is not text, which CSI cannot transport"),
            )),
        })
        .collect()
    }
}
