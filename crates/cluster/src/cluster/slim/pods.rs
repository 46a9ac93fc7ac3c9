//! The fields of pods that do not run yet, and of nodes that accept pods.

use std::iter;

use k8s_openapi::api::core::v1::{Node, Pod, Toleration as KubeToleration, Volume};
use kube::ResourceExt;

use super::facts;
use crate::{
    cluster::view::Slim,
    offload::CLAIMS_GATE,
    placement::{Consumer, Toleration},
};

/// A pod that does not run yet, with claims or with the scheduling gate for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingPod {
    pub uid: String,
    pub node: Option<String>,
    /// Whether it has the scheduling gate until its claims were looked up. Users can write it on any pod.
    pub waits_for_claims_gate: bool,
    /// Its claims, as `namespace/name`.
    pub claims: Vec<String>,
    /// Its constraints for nodes.
    pub consumer: Consumer,
}

/// The topic of the pods with the gate for claims. No namespace has this name.
pub const GATED: &str = "/gated";

/// Its topics are its claims.
impl Slim for PendingPod {
    fn topic(&self) -> &str {
        &self.consumer.namespace
    }

    fn topics(&self) -> impl Iterator<Item = &str> {
        iter::once(self.topic())
            .chain(self.claims.iter().map(String::as_str))
            .chain(self.waits_for_claims_gate.then_some(GATED))
    }
}

/// The fields of a pod that does not run yet; `None` if it waits neither for a claim nor for the gate.
pub(in crate::cluster) fn pending_pod(pod: &Pod) -> Option<PendingPod> {
    let spec = pod.spec.as_ref()?;
    let names = claims_of(pod);
    let mut gates = spec.scheduling_gates.iter().flatten();
    let waits_for_claims_gate = gates.any(|gate| gate.name == CLAIMS_GATE);
    if (names.is_empty() && !waits_for_claims_gate) || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let namespace = pod.namespace().unwrap_or_default();
    Some(PendingPod {
        uid: pod.uid().unwrap_or_default(),
        node: spec.node_name.clone().filter(|node| !node.is_empty()),
        waits_for_claims_gate,
        claims: names.iter().map(|name| format!("{namespace}/{name}")).collect(),
        consumer: consumer(pod),
    })
}

/// The claims of a pod, and its constraints for nodes.
#[must_use]
pub fn consumer(pod: &Pod) -> Consumer {
    let spec = pod.spec.as_ref();
    let affinity = spec.and_then(|spec| spec.affinity.as_ref()?.node_affinity.as_ref());
    let required = affinity.and_then(|it| it.required_during_scheduling_ignored_during_execution.as_ref());
    let tolerations = spec.and_then(|spec| spec.tolerations.as_ref());
    Consumer {
        namespace: pod.namespace().unwrap_or_default(),
        name: pod.name_any(),
        claims: claims_of(pod),
        node_labels: spec
            .and_then(|spec| spec.node_selector.clone())
            .unwrap_or_default(),
        affinity: required.map(facts::node_selector),
        tolerations: tolerations.into_iter().flatten().filter_map(toleration).collect(),
    }
}

/// A toleration of an unknown operator tolerates nothing.
pub fn toleration(toleration: &KubeToleration) -> Option<Toleration> {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let key = given(&toleration.key);
    let value = match toleration.operator.as_deref() {
        Some("Exists") => None,
        None | Some("" | "Equal") if key.is_some() => Some(toleration.value.clone().unwrap_or_default()),
        _ => return None,
    };
    Some(Toleration {
        key,
        value,
        effect: given(&toleration.effect),
    })
}

/// Whether a pod has ended, so that it uses nothing any more.
#[must_use]
pub fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// The claims of a pod's volumes, by name.
#[must_use]
pub fn claims_of(pod: &Pod) -> Vec<String> {
    let claims = volumes_of(pod).filter_map(|volume| match &volume.persistent_volume_claim {
        Some(claim) => Some(claim.claim_name.clone()),
        None => ephemeral_claim(pod, volume),
    });
    claims.collect()
}

/// Whether Kubernetes creates a claim of this name for a generic ephemeral volume of the pod.
#[must_use]
pub fn is_ephemeral_claim(pod: &Pod, claim: &str) -> bool {
    let mut claims = volumes_of(pod).filter_map(|volume| ephemeral_claim(pod, volume));
    claims.any(|name| name == claim)
}

fn volumes_of(pod: &Pod) -> impl Iterator<Item = &Volume> {
    pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten())
}

/// The name that Kubernetes gives the claim of a generic ephemeral volume.
fn ephemeral_claim(pod: &Pod, volume: &Volume) -> Option<String> {
    let is_ephemeral = volume.ephemeral.is_some();
    is_ephemeral.then(|| format!("{}-{}", pod.name_any(), volume.name))
}

/// A node that accepts ordinary pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenNode {
    name: String,
}

impl Slim for OpenNode {
    fn topic(&self) -> &str {
        &self.name
    }

    fn text(&self) -> usize {
        self.name.len()
    }
}

/// The fields of a node; `None` if it does not accept ordinary pods.
pub(in crate::cluster) fn open_node(node: &Node) -> Option<OpenNode> {
    let spec = node.spec.as_ref();
    let mut taints = spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let is_tainted = taints.any(|taint| taint.effect != "PreferNoSchedule");
    let is_cordoned = spec.is_some_and(|spec| spec.unschedulable == Some(true));
    (!is_tainted && !is_cordoned).then(|| OpenNode {
        name: node.name_any(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;
    use crate::placement::Taint;

    fn pod(spec: &Value) -> Pod {
        from_value(json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec})).unwrap()
    }

    #[test]
    fn the_claims_of_a_pod_are_named_or_created_for_it() {
        let pod = pod(&json!({"containers": [], "volumes": [
            {"name": "scratch", "ephemeral": {}},
            {"name": "v", "persistentVolumeClaim": {"claimName": "web-v"}},
            {"name": "config", "configMap": {"name": "c"}},
        ]}));
        assert_eq!(claims_of(&pod), ["web-scratch", "web-v"]);
        assert!(is_ephemeral_claim(&pod, "web-scratch"));
        assert!(!is_ephemeral_claim(&pod, "web-v") && !is_ephemeral_claim(&pod, "web-config"));
    }

    #[test]
    fn reads_the_node_requirements_of_a_pod() {
        let required = json!({"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "zone", "operator": "In", "values": ["a"]},
        ]}]});
        let read = pending_pod(&pod(&json!({
            "containers": [],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
            "nodeSelector": {"disk": "ssd"},
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
            "tolerations": [{"key": "virtual", "operator": "Exists"}, {"operator": "Lt", "key": "x", "value": "1"}],
        })))
        .unwrap()
        .consumer;
        assert_eq!(
            (read.claims.len(), read.node_labels.len(), read.tolerations.len()),
            (1, 1, 1)
        );
        assert_eq!(read.affinity.as_ref().unwrap().terms.len(), 1);
        let taint = Taint {
            key: "virtual".into(),
            value: "x".into(),
            effect: "NoSchedule".into(),
        };
        assert_eq!(read.kept_away_by(&[taint]), None);
    }

    #[test]
    fn the_claims_of_a_pending_pod_include_its_ephemeral_ones() {
        assert_eq!(pending_pod(&pod(&json!({"containers": []}))), None);
        let gated = json!({"containers": [], "schedulingGates": [{"name": CLAIMS_GATE}]});
        let read = pending_pod(&pod(&gated)).expect("a gate is opened, also of a pod without claims");
        assert_eq!(read.topics().last(), Some(GATED));
        let volumes = json!([
            {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "scratch", "ephemeral": {}},
        ]);
        let of_node = json!({"containers": [], "volumes": volumes, "nodeName": "n1"});
        let read = pending_pod(&pod(&of_node)).unwrap();
        assert_eq!(read.claims, ["shop/data", "shop/web-scratch"]);
        assert_eq!(read.node.as_deref(), Some("n1"));
    }
}
