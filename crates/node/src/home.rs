//! The id of the cluster of this node. Kubernetes gives a cluster no id, so the uid of its namespace
//! kube-system is used; a copy on disk is used while the API server does not answer.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, Config};

use crate::volume::{ClusterId, ClusterIdError};

/// Exists in every cluster, and as long as the cluster.
const KUBE_SYSTEM: &str = "kube-system";
const API_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the id of the cluster is unknown.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// The API server does not answer, and there is no copy on disk.
    #[error(
        "the id of this cluster is not known: {reason}, and there is no copy of it in {path}; pass --cluster-id"
    )]
    Unknown {
        /// The error of the API server.
        reason: String,
        /// The path of the copy.
        path: PathBuf,
    },
    /// The uid of kube-system is not a valid id.
    #[error(transparent)]
    InvalidId(#[from] ClusterIdError),
    /// The copy cannot be written.
    #[error("writing the id of the cluster to {path}: {error}")]
    WriteCopy { path: PathBuf, error: io::Error },
}

/// A client of the cluster in which this pod runs.
pub fn client() -> Result<Client, String> {
    let mut config = Config::incluster().map_err(|error| error.to_string())?;
    // kube would retry for minutes.
    config.default_retry = false;
    config.connect_timeout = Some(API_TIMEOUT);
    Client::try_from(config).map_err(|error| error.to_string())
}

/// The id of this cluster. A node that was moved to another cluster uses the id from the API server, not
/// the copy in `file`.
pub async fn cluster_id(client: Result<Client, String>, file: &Path) -> Result<ClusterId, HomeError> {
    let uid = match client {
        Ok(client) => read_uid(client).await,
        Err(reason) => Err(reason),
    };
    match uid {
        Ok(uid) => {
            let id = uid.parse()?;
            write_copy(&uid, file).map_err(|error| HomeError::WriteCopy {
                path: file.to_owned(),
                error,
            })?;
            Ok(id)
        }
        Err(reason) => match fs::read_to_string(file) {
            Ok(copy) => {
                tracing::warn!(reason, "using the copy of the cluster's id on disk");
                Ok(copy.trim().parse()?)
            }
            Err(_) => Err(HomeError::Unknown {
                reason,
                path: file.to_owned(),
            }),
        },
    }
}

async fn read_uid(client: Client) -> Result<String, String> {
    let api: Api<Namespace> = Api::all(client);
    match tokio::time::timeout(API_TIMEOUT, api.get(KUBE_SYSTEM)).await {
        Ok(Ok(namespace)) => namespace
            .metadata
            .uid
            .ok_or_else(|| format!("the namespace {KUBE_SYSTEM} has no uid")),
        // kube prints the message of such an error twice, once as Rust debug output.
        Ok(Err(kube::Error::Api(status))) => {
            Err(format!("reading the namespace {KUBE_SYSTEM}: {}", status.message))
        }
        Ok(Err(error)) => Err(format!("reading the namespace {KUBE_SYSTEM}: {error}")),
        Err(_) => Err("the API server does not answer".to_owned()),
    }
}

fn write_copy(uid: &str, file: &Path) -> io::Result<()> {
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
    async fn the_stored_cluster_id_is_used_during_an_outage() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cluster-id");
        let outage = || Err("no API server".to_owned());
        let error = cluster_id(outage(), &file).await.unwrap_err().to_string();
        assert!(
            error.contains("no API server") && error.contains("--cluster-id"),
            "{error}"
        );

        write_copy("0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111", &file).unwrap();
        let id = cluster_id(outage(), &file).await.unwrap();
        assert_eq!(id.as_str(), "0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111");
        fs::write(&file, "\n").unwrap();
        assert!(cluster_id(outage(), &file).await.is_err());
    }
}
