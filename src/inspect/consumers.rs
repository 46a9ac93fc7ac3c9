//! Pods that use claims, and why they do not run yet.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;

use super::Storage;
use crate::{cluster::slim, twin::consumers::uses};

/// A pod that uses the claim and has not ended.
pub(super) fn consumer<'a>(claim: &PersistentVolumeClaim, storage: &'a Storage) -> Option<&'a Pod> {
    storage.consumers.iter().find(|pod| {
        pod.namespace() == claim.namespace() && !slim::has_ended(pod) && uses(pod, &claim.name_any())
    })
}

/// The reason why a pod does not run yet, as the rest of a sentence that begins with its name.
pub(super) fn why_unscheduled(pod: &Pod) -> String {
    if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) {
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
