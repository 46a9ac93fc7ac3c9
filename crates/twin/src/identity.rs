//! Whether a remote cluster is the one that it was before: another one may answer at its address, and lacks all twins.
//! This is read live, because the connection checks it only about once a minute.

use super::Site;
use crate::{
    api::remote_cluster::RemoteCluster,
    cluster::{ApiError, Cause, Cluster, short},
    fleet::Remote,
};

/// Why what the cluster of a twin lacks may exist nevertheless.
pub async fn other_cluster(site: &Site) -> Result<Option<String>, ApiError> {
    match site.remote_cluster() {
        Some(remote) => is_other(site.home(), site.cluster(), remote).await,
        None => Ok(None),
    }
}

/// Why what this cluster lacks may exist nevertheless: it is another one than is recorded in its `RemoteCluster`.
/// `None` also if none is recorded, or the uid there may not be read.
pub(super) async fn is_other(
    home: &Cluster,
    there: &Cluster,
    remote: &Remote,
) -> Result<Option<String>, ApiError> {
    let recorded = match home.all::<RemoteCluster>().get(remote.id.as_str()).await {
        // The kind is not installed.
        Err(error) if matches!(error.cause, Cause::NotFound(_)) => None,
        found => found?,
    };
    let Some(before) = recorded.as_ref().and_then(RemoteCluster::cluster_uid) else {
        return Ok(None);
    };
    let now = match there.uid().await {
        Err(error) if error.is_forbidden() => return Ok(None),
        found => found?.unwrap_or_default(),
    };
    Ok((now != before).then(|| remote.another_cluster(&short(&now))))
}
