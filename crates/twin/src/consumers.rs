//! Who may still use a volume, as the API server shows it: the pods with its claim, and how their nodes
//! are.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;

use crate::{
    cluster::{
        ApiError, Cluster,
        facts::{is_out_of_service, is_ready},
        slim::{claims_of, has_ended},
    },
    placement::moving::{NodeHealth, UserPod},
};

/// Whether a pod uses this claim, its own ephemeral one among them.
pub fn uses(pod: &Pod, claim: &str) -> bool {
    claims_of(pod).iter().any(|one| one == claim)
}

/// The pods of a namespace that use the claim of this name, and have not ended.
pub async fn pods(cluster: &Cluster, namespace: &str, claim: &str) -> Result<Vec<Pod>, ApiError> {
    cluster
        .within::<Pod>(namespace)
        .find(|pod| uses(pod, claim) && !has_ended(pod))
        .await
}

/// Pods of another cluster are told apart: they go when those of home go, and cannot be evicted.
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
