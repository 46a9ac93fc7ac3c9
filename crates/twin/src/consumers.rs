//! The pods that use or own a claim, and the health of their nodes.

use k8s_openapi::{
    api::core::v1::{Node, PersistentVolumeClaim, Pod},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::ResourceExt;

use crate::{
    cluster::{
        ApiError, Cluster,
        facts::{is_out_of_service, is_ready},
        slim::{claims_of, has_ended, is_ephemeral_claim},
    },
    placement::moving::{NodeHealth, UserPod},
};

/// Whether a pod uses this claim, including that of a generic ephemeral volume.
pub fn uses(pod: &Pod, claim: &str) -> bool {
    claims_of(pod).iter().any(|one| one == claim)
}

/// The pod to whose generic ephemeral volume a claim belongs. A pod may control other claims, too: those that
/// Spark creates are used by name, like any claim.
pub async fn ephemeral_of(
    cluster: &Cluster,
    claim: &PersistentVolumeClaim,
) -> Result<Option<String>, ApiError> {
    let mut owners = claim.owner_references().iter();
    let is_pod = |owner: &&OwnerReference| owner.controller == Some(true) && owner.kind == "Pod";
    let Some(owner) = owners.find(is_pod) else {
        return Ok(None);
    };
    let pods = cluster.within::<Pod>(&claim.namespace().unwrap_or_default());
    let pod = pods.get(&owner.name).await?;
    let is_ephemeral = pod.is_none_or(|pod| is_ephemeral_claim(&pod, &claim.name_any()));
    Ok(is_ephemeral.then(|| owner.name.clone()))
}

/// The pods of a namespace that use the claim of this name, and have not terminated.
pub async fn pods(cluster: &Cluster, namespace: &str, claim: &str) -> Result<Vec<Pod>, ApiError> {
    cluster
        .within::<Pod>(namespace)
        .find(|pod| uses(pod, claim) && !has_ended(pod))
        .await
}

/// A pod of another cluster gets its cluster in its name: it ends with its home pod, and cannot be evicted.
pub fn user(pod: &Pod, cluster: Option<&str>) -> UserPod {
    let name = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
    UserPod {
        name: match cluster {
            Some(cluster) => format!("{name} of cluster {cluster}"),
            None => name,
        },
        has_node: node_of(pod).is_some(),
        leaving: pod.metadata.deletion_timestamp.is_some(),
        pending: is_pending(pod),
    }
}

pub fn is_pending(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Pending")
}

pub fn node_of(pod: &Pod) -> Option<String> {
    let node = pod.spec.as_ref()?.node_name.clone()?;
    (!node.is_empty()).then_some(node)
}

pub fn health(node: &Node) -> NodeHealth {
    if is_ready(node) {
        NodeHealth::Ready
    } else if is_out_of_service(node) {
        NodeHealth::OutOfService
    } else {
        NodeHealth::NotReady
    }
}
