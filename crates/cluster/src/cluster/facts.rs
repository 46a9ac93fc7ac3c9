//! Converts objects of Kubernetes to the types of the model, on which it decides. Nothing is decided here.
//! An unknown value becomes the more restrictive one.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use k8s_openapi::{
    api::{
        core::v1::{
            Node as KubeNode, NodeSelector as KubeSelector, NodeSelectorRequirement, NodeSelectorTerm,
            ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition,
            TopologySelectorTerm,
        },
        storage::v1::{CSIStorageCapacity, StorageClass},
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::LabelSelector as KubeLabelSelector},
};
use kube::{ResourceExt, api::ObjectMeta};

use super::short;
use crate::{
    placement::{AllowedTopology, BindingMode, Capacity, Class, ReclaimPolicy, StaticVolume, Taint},
    topology::{LabelSelector, Node, NodeSelector, Operator, Requirement, Term},
    volume::{AccessMode, ClaimName, ClaimSize, VolumeMode, mark, parse_quantity},
};

const IS_DEFAULT: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];

#[must_use]
pub fn node(metadata: ObjectMeta, annotations: &[&str]) -> Node {
    let told = metadata.annotations.unwrap_or_default();
    Node {
        name: metadata.name.unwrap_or_default(),
        labels: metadata.labels.unwrap_or_default(),
        annotations: told
            .into_iter()
            .filter(|(key, _)| annotations.contains(&key.as_str()))
            .collect(),
    }
}

/// Annotation of a claim and of a PV that Kubernetes chose for each other, rather than one that named the other. If it
/// ever considers such a PV unbound, it makes the PV available to any claim.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";

/// Taint by which an administrator declares that nothing runs on a node any more (KEP 2268).
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Whether the kubelet of a node reports that it is ready.
pub fn is_ready(node: &KubeNode) -> bool {
    let conditions = node.status.iter().flat_map(|it| it.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|it| it.type_ == "Ready" && it.status == "True")
}

/// The taints of a node, and that of a cordon.
#[must_use]
pub fn taints(node: &KubeNode) -> Vec<Taint> {
    let Some(spec) = &node.spec else {
        return Vec::new();
    };
    let own = spec.taints.iter().flatten().map(|taint| Taint {
        key: taint.key.clone(),
        value: taint.value.clone().unwrap_or_default(),
        effect: taint.effect.clone(),
    });
    let cordon = spec.unschedulable.unwrap_or_default().then(Taint::of_cordon);
    own.chain(cordon).collect()
}

/// Whether a node has the taint [`OUT_OF_SERVICE`].
pub fn is_out_of_service(node: &KubeNode) -> bool {
    let taints = node.spec.iter().flat_map(|it| it.taints.iter().flatten());
    taints.into_iter().any(|it| it.key == OUT_OF_SERVICE)
}

#[must_use]
pub fn class(class: &StorageClass) -> Class {
    let marked = |key: &&str| class.annotations().get(*key).is_some_and(|value| value == "true");
    let created = class.metadata.creation_timestamp.as_ref();
    Class {
        name: class.name_any(),
        provisioner: class.provisioner.clone(),
        binding: match class.volume_binding_mode.as_deref() {
            Some("WaitForFirstConsumer") => BindingMode::WaitForFirstConsumer,
            _ => BindingMode::Immediate,
        },
        reclaim: reclaim_policy(class.reclaim_policy.as_deref()),
        is_default: IS_DEFAULT.iter().any(marked),
        created: created.map_or(0, |time| time.0.as_second()),
        allowed_topologies: class
            .allowed_topologies
            .iter()
            .flatten()
            .map(allowed_topology)
            .collect(),
        allows_expansion: class.allow_volume_expansion.unwrap_or(false),
        parameters: class.parameters.clone().unwrap_or_default(),
    }
}

/// A reclaim policy; the API's default is Delete, and Recycle deletes the data as well.
#[must_use]
pub fn reclaim_policy(policy: Option<&str>) -> ReclaimPolicy {
    match policy {
        Some("Retain") => ReclaimPolicy::Retain,
        _ => ReclaimPolicy::Delete,
    }
}

fn allowed_topology(term: &TopologySelectorTerm) -> AllowedTopology {
    let expressions = term.match_label_expressions.iter().flatten();
    AllowedTopology(
        expressions
            .map(|one| (one.key.clone(), one.values.clone()))
            .collect(),
    )
}

/// The published capacity of a real driver.
#[must_use]
pub fn capacity(capacity: &CSIStorageCapacity) -> Capacity {
    Capacity {
        class: capacity.storage_class_name.clone(),
        nodes: capacity.node_topology.as_ref().map(label_selector),
        capacity: capacity.capacity.as_ref().and_then(bytes),
        maximum: capacity.maximum_volume_size.as_ref().and_then(bytes),
    }
}

/// A PV, as one that was provisioned statically.
#[must_use]
pub fn static_volume(volume: &PersistentVolume) -> StaticVolume {
    let spec = volume.spec.clone().unwrap_or_default();
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    StaticVolume {
        name: volume.name_any(),
        class: spec.storage_class_name.unwrap_or_default(),
        capacity: spec
            .capacity
            .as_ref()
            .and_then(|capacity| capacity.get("storage"))
            .and_then(bytes)
            .unwrap_or_default(),
        access_modes: access_modes(spec.access_modes.iter().flatten()),
        volume_mode: volume_mode(spec.volume_mode.as_deref()),
        affinity: affinity(volume),
        available: phase == Some("Available") && volume.metadata.deletion_timestamp.is_none(),
        claim: spec.claim_ref.as_ref().map(claim_name),
    }
}

/// The claim that an object refers to.
#[must_use]
pub fn claim_name(reference: &ObjectReference) -> ClaimName {
    ClaimName {
        namespace: reference.namespace.clone().unwrap_or_default(),
        name: reference.name.clone().unwrap_or_default(),
    }
}

/// The access modes that this driver knows.
pub fn access_modes<'a>(modes: impl IntoIterator<Item = &'a String>) -> BTreeSet<AccessMode> {
    modes.into_iter().filter_map(|mode| mode.parse().ok()).collect()
}

/// A volume mode; the API's default is a file system.
#[must_use]
pub fn volume_mode(mode: Option<&str>) -> VolumeMode {
    match mode {
        Some("Block") => VolumeMode::Block,
        _ => VolumeMode::Filesystem,
    }
}

/// A quantity in bytes.
#[must_use]
pub fn bytes(quantity: &Quantity) -> Option<u64> {
    parse_quantity(&quantity.0)
}

/// Whether a claim is a twin: it has the driver's label, and was created for another claim.
#[must_use]
pub fn is_twin(claim: &PersistentVolumeClaim) -> bool {
    mark::manager(claim.labels()) == Some(mark::MANAGED_BY_US) && !bears_marks_of_its_twin(claim)
}

/// Whether a claim has the marks of its own twin: Kosmos copies them.
#[must_use]
pub fn bears_marks_of_its_twin(claim: &PersistentVolumeClaim) -> bool {
    let made_for = claim.annotations().get(mark::CLAIM_UID);
    made_for.is_some() && made_for == claim.metadata.uid.as_ref()
}

/// The class of a claim. The annotation, which is older than the field, takes precedence.
#[must_use]
pub fn claim_class(claim: &PersistentVolumeClaim) -> Option<&str> {
    let annotated = claim.annotations().get("volume.beta.kubernetes.io/storage-class");
    let class = annotated.or_else(|| claim.spec.as_ref()?.storage_class_name.as_ref());
    class.map(String::as_str)
}

/// The size that a claim requests, as written.
#[must_use]
pub fn storage_request(claim: &PersistentVolumeClaim) -> Option<&Quantity> {
    let spec = claim.spec.as_ref()?;
    spec.resources.as_ref()?.requests.as_ref()?.get(STORAGE)
}

/// The size of a claim, and the state of its expansion.
#[must_use]
pub fn claim_size(claim: &PersistentVolumeClaim) -> ClaimSize {
    let storage = |of: Option<&BTreeMap<String, Quantity>>| of.and_then(|of| bytes(of.get(STORAGE)?));
    let status = claim.status.as_ref();
    let stage = status.and_then(|status| status.allocated_resource_statuses.as_ref()?.get(STORAGE));
    ClaimSize {
        requested: storage_request(claim).and_then(bytes).unwrap_or_default(),
        capacity: storage(status.and_then(|status| status.capacity.as_ref())).unwrap_or_default(),
        allocated: storage(status.and_then(|status| status.allocated_resources.as_ref())),
        stage: stage.and_then(|stage| stage.parse().ok()),
        has_error: RESIZE_ERRORS
            .iter()
            .any(|error| condition(claim, error).is_some()),
        node_error: node_error(claim).map(hash),
    }
}

fn hash(said: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    said.hash(&mut hasher);
    hasher.finish()
}

/// The size of a PV, in bytes.
#[must_use]
pub fn volume_size(volume: &PersistentVolume) -> Option<u64> {
    bytes(volume.spec.as_ref()?.capacity.as_ref()?.get(STORAGE)?)
}

/// The condition of this type of a claim, whatever its status.
#[must_use]
pub fn condition<'a>(
    claim: &'a PersistentVolumeClaim,
    of_type: &str,
) -> Option<&'a PersistentVolumeClaimCondition> {
    let mut conditions = claim.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|one| one.type_ == of_type)
}

/// Why a node failed to expand the file system of a claim, cut to the length that is copied between clusters.
#[must_use]
pub fn node_error(claim: &PersistentVolumeClaim) -> Option<String> {
    let error = condition(claim, NODE_RESIZE_ERROR)?;
    Some(short(error.message.as_deref().unwrap_or_default()))
}

/// The message of a condition of a claim, if the condition is True.
#[must_use]
pub fn message_if_true<'a>(claim: &'a PersistentVolumeClaim, of_type: &str) -> Option<&'a str> {
    let condition = condition(claim, of_type).filter(|one| one.status == "True")?;
    condition.message.as_deref()
}

/// Condition of a claim whose volume the controller could not expand.
pub const CONTROLLER_RESIZE_ERROR: &str = "ControllerResizeError";

/// Condition of a claim whose file system the node could not expand.
pub const NODE_RESIZE_ERROR: &str = "NodeResizeError";

/// Conditions of a claim whose expansion failed.
pub const RESIZE_ERRORS: [&str; 2] = [CONTROLLER_RESIZE_ERROR, NODE_RESIZE_ERROR];

/// Condition of a claim whose attributes are being changed.
pub const MODIFYING_VOLUME: &str = "ModifyingVolume";

/// Condition of a claim whose attributes could not be changed.
pub const MODIFY_VOLUME_ERROR: &str = "ModifyVolumeError";

const STORAGE: &str = "storage";

/// The nodes that can reach a PV; `None` means any node.
#[must_use]
pub fn affinity(volume: &PersistentVolume) -> Option<NodeSelector> {
    let affinity = volume.spec.as_ref()?.node_affinity.as_ref()?;
    affinity.required.as_ref().map(node_selector)
}

#[must_use]
pub fn node_selector(selector: &KubeSelector) -> NodeSelector {
    NodeSelector {
        terms: selector.node_selector_terms.iter().map(term).collect(),
    }
}

fn term(term: &NodeSelectorTerm) -> Term {
    let requirements = |all: &Option<Vec<NodeSelectorRequirement>>| {
        all.iter()
            .flatten()
            .map(|one| requirement(&one.key, &one.operator, one.values.as_ref()))
            .collect()
    };
    Term {
        expressions: requirements(&term.match_expressions),
        fields: requirements(&term.match_fields),
    }
}

#[must_use]
pub fn label_selector(selector: &KubeLabelSelector) -> LabelSelector {
    let labels = selector.match_labels.iter().flatten();
    let equal = labels.map(|(key, value)| Requirement::is_in(key, [value]));
    let expressions = selector.match_expressions.iter().flatten();
    let others = expressions.map(|one| requirement(&one.key, &one.operator, one.values.as_ref()));
    LabelSelector(equal.chain(others).collect())
}

fn requirement(key: &str, operator: &str, values: Option<&Vec<String>>) -> Requirement {
    match operator.parse::<Operator>() {
        Ok(operator) => Requirement {
            key: key.to_owned(),
            operator,
            values: values.cloned().unwrap_or_default(),
        },
        // An operator of a later Kubernetes version: an unknown operator matches no node.
        Err(_) => Requirement::is_in(key, [] as [String; 0]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;
    use crate::topology::Node;

    fn volume(spec: &Value) -> PersistentVolume {
        let volume = json!({
            "metadata": {"name": "pv"}, "spec": spec, "status": {"phase": "Available"},
        });
        from_value(volume).unwrap()
    }

    #[test]
    fn only_labels_and_the_wanted_annotations_of_a_node_are_kept() {
        let metadata = from_value(json!({
            "name": "n", "labels": {"zone": "a"}, "annotations": {"wanted": "x", "other": "y"},
        }));
        let node = node(metadata.unwrap(), &["wanted"]);
        assert_eq!(node.annotations, [("wanted".to_owned(), "x".to_owned())].into());
        assert_eq!(node.labels.len(), 1);
    }

    #[test]
    fn a_storage_class_is_parsed() {
        let object: StorageClass = from_value(json!({
            "metadata": {
                "name": "fast",
                "creationTimestamp": "1970-01-01T00:01:00Z",
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            },
            "provisioner": "real.example",
            "reclaimPolicy": "Retain",
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowVolumeExpansion": true,
            "parameters": {"type": "ssd"},
            "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]}],
        }))
        .unwrap();
        let expected = Class {
            name: "fast".into(),
            provisioner: "real.example".into(),
            binding: BindingMode::WaitForFirstConsumer,
            reclaim: ReclaimPolicy::Retain,
            is_default: true,
            created: 60,
            allowed_topologies: vec![AllowedTopology(vec![(
                "zone".into(),
                vec!["a".into(), "b".into()],
            )])],
            allows_expansion: true,
            parameters: [("type".to_owned(), "ssd".to_owned())].into(),
        };
        assert_eq!(class(&object), expected);
        let bare: StorageClass =
            from_value(json!({"metadata": {"name": "bare"}, "provisioner": "x"})).unwrap();
        assert_eq!(class(&bare).binding, BindingMode::Immediate);
        assert_eq!(class(&bare).reclaim, ReclaimPolicy::Delete);
        assert!(!class(&bare).is_default);
    }

    #[test]
    fn a_static_volume_is_parsed() {
        let read = static_volume(&volume(&json!({
            "storageClassName": "local",
            "capacity": {"storage": "5Gi"},
            "accessModes": ["ReadWriteOnce", "SomethingNew"],
            "volumeMode": "Block",
            "claimRef": {"namespace": "n", "name": "c"},
        })));
        assert_eq!(read.capacity, 5 << 30);
        assert_eq!(read.access_modes, [AccessMode::ReadWriteOnce].into());
        assert_eq!(read.volume_mode, VolumeMode::Block);
        assert_eq!(read.claim.unwrap().to_string(), "n/c");
        assert!(read.available);
        assert_eq!(read.affinity, None);
    }

    #[test]
    fn an_unknown_selector_operator_matches_nothing() {
        let read = affinity(&volume(&json!({
            "nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "Like", "values": ["a*"]}]},
            ]}},
        })));
        let node = Node {
            name: "n".into(),
            labels: [("zone".to_owned(), "a1".to_owned())].into(),
            ..Node::default()
        };
        assert!(!read.unwrap().admits(&node));
    }

    #[test]
    fn a_csi_storage_capacity_is_parsed() {
        let object: CSIStorageCapacity = from_value(json!({
            "metadata": {"name": "c"},
            "storageClassName": "real",
            "capacity": "10Gi",
            "nodeTopology": {
                "matchLabels": {"zone": "a"},
                "matchExpressions": [{"key": "disk", "operator": "Exists"}],
            },
        }))
        .unwrap();
        let read = capacity(&object);
        assert_eq!((read.capacity, read.maximum), (Some(10 << 30), None));
        let labels = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|&(key, value)| (key.to_owned(), value.to_owned()))
                .collect()
        };
        let nodes = read.nodes.unwrap();
        assert!(nodes.admits(&labels(&[("zone", "a"), ("disk", "x")])));
        assert!(!nodes.admits(&labels(&[("zone", "a")])));
        assert!(!nodes.admits(&labels(&[("zone", "b"), ("disk", "x")])));
    }
}
