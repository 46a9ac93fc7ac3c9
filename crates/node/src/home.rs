//! Which cluster this node belongs to. Kubernetes gives a cluster no id, so the uid
//! of its namespace kube-system stands for one; a copy on disk bridges the times
//! when the API server cannot be asked.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, Config};

use crate::volume::{ClusterId, ClusterIdError};

/// Lives as long as its cluster, in every cluster.
const ETERNAL_NAMESPACE: &str = "kube-system";
const PATIENCE: Duration = Duration::from_secs(10);

/// Why the cluster cannot be named.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// Neither the API server nor an earlier answer is at hand.
    #[error(
        "the id of this cluster is not known: {reason}, and {path} has no earlier answer; pass --cluster-id"
    )]
    Unknown {
        /// What the API server said, or did not.
        reason: String,
        /// Where an earlier answer would be.
        path: PathBuf,
    },
    /// The uid of kube-system makes no id.
    #[error(transparent)]
    Odd(#[from] ClusterIdError),
    /// The answer cannot be kept.
    #[error("keeping the cluster's id in {path}: {error}")]
    Keep {
        /// The file.
        path: PathBuf,
        /// What came of it.
        error: io::Error,
    },
}

/// A client of the cluster this pod runs in.
pub fn client() -> Result<Client, String> {
    let mut config = Config::incluster().map_err(|error| error.to_string())?;
    // kube would retry for minutes.
    config.default_retry = false;
    config.connect_timeout = Some(PATIENCE);
    Client::try_from(config).map_err(|error| error.to_string())
}

/// The id of this cluster. A node that was moved to another cluster follows the
/// API server, not the copy in `file`.
pub async fn cluster_id(client: Result<Client, String>, file: &Path) -> Result<ClusterId, HomeError> {
    let uid = match client {
        Ok(client) => ask(client).await,
        Err(reason) => Err(reason),
    };
    match uid {
        Ok(uid) => {
            let id = uid.parse()?;
            keep(&uid, file).map_err(|error| HomeError::Keep {
                path: file.to_owned(),
                error,
            })?;
            Ok(id)
        }
        Err(reason) => match fs::read_to_string(file) {
            Ok(kept) => {
                tracing::warn!(reason, "taking the cluster's id from disk");
                Ok(kept.trim().parse()?)
            }
            Err(_) => Err(HomeError::Unknown {
                reason,
                path: file.to_owned(),
            }),
        },
    }
}

async fn ask(client: Client) -> Result<String, String> {
    let api: Api<Namespace> = Api::all(client);
    match tokio::time::timeout(PATIENCE, api.get(ETERNAL_NAMESPACE)).await {
        Ok(Ok(namespace)) => namespace
            .metadata
            .uid
            .ok_or_else(|| format!("the namespace {ETERNAL_NAMESPACE} has no uid")),
        // What kube prints of such an answer is the answer twice, once as Rust has it.
        Ok(Err(kube::Error::Api(status))) => Err(format!(
            "reading the namespace {ETERNAL_NAMESPACE}: {}",
            status.message
        )),
        Ok(Err(error)) => Err(format!("reading the namespace {ETERNAL_NAMESPACE}: {error}")),
        Err(_) => Err("the API server does not answer".to_owned()),
    }
}

fn keep(uid: &str, file: &Path) -> io::Result<()> {
    if fs::read_to_string(file).is_ok_and(|kept| kept.trim() == uid) {
        return Ok(());
    }
    let draft = file.with_extension("new");
    fs::write(&draft, uid)?;
    fs::File::open(&draft)?.sync_all()?;
    fs::rename(draft, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_earlier_answer_bridges_an_outage() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cluster-id");
        let outage = || Err("no API server".to_owned());
        let error = cluster_id(outage(), &file).await.unwrap_err().to_string();
        assert!(
            error.contains("no API server") && error.contains("--cluster-id"),
            "{error}"
        );

        keep("0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111", &file).unwrap();
        let id = cluster_id(outage(), &file).await.unwrap();
        assert_eq!(id.as_str(), "0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111");
        fs::write(&file, "\n").unwrap();
        assert!(cluster_id(outage(), &file).await.is_err());
    }
}
