//! The CA by which this cluster knows the certificates of its clients, as its API server publishes
//! it. Whoever changes it there is heard of soon.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use tokio::{sync::watch, time};

use crate::cluster::{ApiError, Cluster};

/// Where the API server says how it knows callers.
const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";
const KEY: &str = "client-ca-file";

/// Between two looks at it.
const REST: Duration = Duration::from_secs(30);
/// Between two attempts to look at it.
const RETRY: Duration = Duration::from_secs(3);

/// Who may sign certificates of clients; nobody, as long as that is not known.
pub(super) type Authority = watch::Sender<Arc<RootCertStore>>;

/// Keeps up with it, for ever. While it cannot be read, the last one counts.
pub(super) async fn keep(home: &Cluster, authority: &Authority) {
    let mut known = None;
    loop {
        match read(home).await {
            Ok(text) => {
                if known.as_ref() != Some(&text) {
                    authority.send_replace(Arc::new(roots(&text)));
                    known = Some(text);
                }
                time::sleep(REST).await;
            }
            Err(error) => {
                tracing::warn!(%error, "the CA of this cluster's clients cannot be read");
                time::sleep(RETRY).await;
            }
        }
    }
}

async fn read(home: &Cluster) -> Result<String, ApiError> {
    let found = home.within::<ConfigMap>(NAMESPACE).get(NAME).await?;
    let data = found.and_then(|it| it.data).unwrap_or_default();
    Ok(data.get(KEY).cloned().unwrap_or_default())
}

fn roots(text: &str) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
        let added = certificate
            .map_err(|error| error.to_string())
            .and_then(|it| roots.add(it).map_err(|error| error.to_string()));
        if let Err(why) = added {
            tracing::warn!(why, "a certificate of {NAMESPACE}/{NAME} cannot be used");
        }
    }
    if roots.is_empty() {
        tracing::warn!(
            "the ConfigMap {NAMESPACE}/{NAME} has no {KEY}: callers of the kubelet's API can only show tokens"
        );
    }
    roots
}
