//! Pods that use claims, and why they do not run yet.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;

use super::Storage;
use crate::{cluster::slim, twin::consumers::uses};

/// A pod that uses the claim and has not ended.
pub(super) fn consumer<'a>(claim: &PersistentVolumeClaim, storage: &'a Storage) -> Option<&'a Pod> {
    consumers(claim, storage).next()
}

/// A pod that uses the claim and has no node.
pub(super) fn unscheduled<'a>(claim: &PersistentVolumeClaim, storage: &'a Storage) -> Option<&'a Pod> {
    consumers(claim, storage).find(|pod| node_of(pod).is_none())
}

fn consumers<'a>(
    claim: &PersistentVolumeClaim,
    storage: &'a Storage,
) -> impl Iterator<Item = &'a Pod> + use<'a> {
    let (namespace, name) = (claim.namespace(), claim.name_any());
    storage
        .consumers
        .iter()
        .filter(move |pod| pod.namespace() == namespace && !slim::has_ended(pod) && uses(pod, &name))
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// The reason why a pod does not run yet, as the rest of a sentence that begins with its name.
pub(super) fn why_unscheduled(pod: &Pod) -> String {
    if let Some(node) = node_of(pod) {
        return format!(
            "is pinned to the node {node}, which bypasses the scheduler; the driver selects that node"
        );
    }
    let conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let condition = conditions
        .into_iter()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
        .and_then(|condition| condition.message.as_deref());
    condition.map_or_else(
        || "waits for the scheduler".to_owned(),
        |why| format!("cannot be scheduled: {why}"),
    )
}
