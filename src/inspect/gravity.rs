//! Why a pod with a bound claim does not run: it can only run where the data is, and cannot run there now.

use k8s_openapi::api::core::v1::{Node as KubeNode, PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use super::{
    Storage,
    cases::id,
    consumers::{unscheduled, why_unscheduled},
    names::reach,
};

/// How many nodes fit in a sentence.
const NODES_NAMED: usize = 3;

/// Why the pod of a bound claim waits, and what to do.
pub(super) struct Gravity {
    pub(super) message: String,
    pub(super) advice: String,
}

/// Whether a pod that is not scheduled waits because of its volume.
pub(super) fn gravity(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    storage: &Storage,
) -> Option<Gravity> {
    let pod = unscheduled(claim, storage)?;
    if !storage.nodes.is_complete() {
        return None;
    }
    let reached = reach(volume, storage);
    if reached.len() == storage.nodes.iter().len() {
        return None;
    }
    let place = match id(volume) {
        Some(id) if Some(&id.cluster) != storage.home.as_ref() => format!("in the cluster {}", id.cluster),
        _ => "in this cluster".to_owned(),
    };
    let unschedulable = |name: &str| storage.unschedulable.get(name);
    let mut named: Vec<String> = reached
        .iter()
        .take(NODES_NAMED)
        .map(|node| {
            unschedulable(&node.name)
                .map_or_else(|| node.name.clone(), |why| format!("{} ({why})", node.name))
        })
        .collect();
    if reached.len() > NODES_NAMED {
        named.push(format!("{} more", reached.len() - NODES_NAMED));
    }
    let nodes = if named.is_empty() {
        "no node of this cluster reaches it".to_owned()
    } else {
        format!("only reached through {}", named.join(", "))
    };
    let advice = if reached.is_empty() {
        "Restore the virtual node of that cluster, or its RemoteCluster: a pod runs where its data is."
    } else if reached.iter().all(|node| unschedulable(&node.name).is_some()) {
        "Uncordon or restore one of these nodes: a pod runs only where its data is."
    } else {
        "See what the scheduler reports about these nodes: a pod runs only where its data is."
    };
    Some(Gravity {
        message: format!(
            "its pod {} waits because its data is {place}, {nodes}; it {}",
            pod.name_any(),
            why_unscheduled(pod)
        ),
        advice: advice.to_owned(),
    })
}

/// Why a node accepts no new pods, if it does not.
pub(super) fn unschedulable_reason(node: &KubeNode) -> Option<String> {
    let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
    if cordoned {
        return Some("cordoned".to_owned());
    }
    let conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions
        .into_iter()
        .find(|condition| condition.type_ == "Ready");
    let is_ready = ready.is_none_or(|condition| condition.status == "True");
    (!is_ready).then(|| "not ready".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::inspect::fixtures::{claim, listing, object, storage, volume};

    #[test]
    fn a_pod_that_waits_for_unschedulable_data_nodes_is_explained() {
        let mut storage = storage();
        let (claim, volume) = (object(claim()), object(volume()));
        assert!(gravity(&claim, &volume, &storage).is_none(), "no pod waits");
        let pod = json!({
            "metadata": {"namespace": "shop", "name": "web-0"},
            "spec": {"containers": [], "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
            "status": {"phase": "Pending", "conditions": [
                {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}]},
        });
        let mut scheduled = pod.clone();
        scheduled["metadata"]["name"] = "a-0".into();
        scheduled["spec"]["nodeName"] = "one".into();
        storage.consumers = listing([scheduled, pod]);
        storage.unschedulable = [("one".to_owned(), "cordoned".to_owned())].into();
        let pull = gravity(&claim, &volume, &storage).unwrap();
        for part in ["web-0", "one (cordoned)", "in this cluster", "0/2 nodes"] {
            assert!(pull.message.contains(part), "{}", pull.message);
        }
        assert!(pull.advice.contains("Uncordon"));
    }

    #[test]
    fn the_reason_why_a_node_is_unschedulable_is_named() {
        let node = |spec, status: &str| {
            object::<KubeNode>(json!({
                "metadata": {}, "spec": {"unschedulable": spec},
                "status": {"conditions": [{"type": "Ready", "status": status}]},
            }))
        };
        assert_eq!(unschedulable_reason(&node(false, "True")), None);
        assert_eq!(
            unschedulable_reason(&node(true, "True")).as_deref(),
            Some("cordoned")
        );
        assert_eq!(
            unschedulable_reason(&node(false, "Unknown")).as_deref(),
            Some("not ready")
        );
    }
}
