//! Whether a remote cluster is the one that it was before: another one may answer at its address, and lacks all twins.

use super::Site;
use crate::{
    api::remote_cluster::RemoteCluster,
    cluster::{ApiError, Cause},
};

/// Why what the cluster of a twin lacks may exist nevertheless: it is another cluster than the one that the fabric has
/// recorded in its `RemoteCluster`. `None` also if none is recorded, or the uid there may not be read.
pub async fn other_cluster(site: &Site) -> Result<Option<String>, ApiError> {
    let id = site.cluster().id();
    if site.remote_cluster().is_none() {
        return Ok(None);
    }
    let recorded = match site.home().all::<RemoteCluster>().get(id.as_str()).await {
        // The kind is not installed.
        Err(error) if matches!(error.cause, Cause::NotFound(_)) => None,
        found => found?,
    };
    let Some(before) = recorded.as_ref().and_then(RemoteCluster::cluster_uid) else {
        return Ok(None);
    };
    let now = match site.cluster().uid().await {
        Err(error) if error.is_forbidden() => return Ok(None),
        found => found?.unwrap_or_default(),
    };
    Ok((now != before).then(|| {
        format!(
            "the kubeconfig of {id} leads to another cluster than before (its namespace kube-system has the uid {now:?}), which \
             does not have what was created in {id}. Give the RemoteCluster the kubeconfig of that one or, if it is gone for good, \
             run liqo-csi disconnect {id} --local-only --the-cluster-is-gone"
        )
    }))
}
