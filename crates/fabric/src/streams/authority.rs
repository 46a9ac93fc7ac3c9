//! The client CA of this cluster, as its API server publishes it. Read again at an interval.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use tokio::{sync::watch, time};

use crate::cluster::{ApiError, Cluster};

/// Where the API server publishes how it authenticates clients.
const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";
const KEY: &str = "client-ca-file";

const INTERVAL: Duration = Duration::from_secs(30);
/// The pause after a failed read.
const RETRY: Duration = Duration::from_secs(3);

/// The CAs of client certificates; empty until they are read.
pub(super) type Authority = watch::Sender<Arc<RootCertStore>>;

/// Keeps the CAs current. Never returns. While they cannot be read, the last ones count.
pub(super) async fn keep(home: &Cluster, authority: &Authority) {
    let mut known = None;
    loop {
        match read(home).await {
            Ok(text) => {
                if known.as_ref() != Some(&text) {
                    authority.send_replace(Arc::new(roots(&text)));
                    known = Some(text);
                }
                time::sleep(INTERVAL).await;
            }
            Err(error) => {
                tracing::warn!(%error, "the client CA of this cluster cannot be read");
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
            "the ConfigMap {NAMESPACE}/{NAME} has no {KEY}: callers of the kubelet's API can only use tokens"
        );
    }
    roots
}
