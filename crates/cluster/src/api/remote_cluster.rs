//! `RemoteCluster`: a cluster that an administrator declares, or one that a fabric declares and this driver
//! has discovered. The type is the custom resource definition: `kubectl explain` prints its comments, and
//! the API server enforces its rules. Watching these objects and connecting are in `fleet`.

// KubeSchema copies each struct into a function to read its schema.
#![allow(unreachable_pub)]
// kubectl shows the comments as they are.
#![allow(clippy::doc_markdown)]

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Taint, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{CustomResource, KubeSchema, ResourceExt};
use schemars::{JsonSchema, Schema, json_schema};
use serde::{Deserialize, Serialize};

use super::{conditions, fabric::Fabric};
use crate::topology::{LabelSelector, Operator, Requirement};

/// Condition of a cluster in which twins can be created: its kubeconfig is accepted, it answers, and the
/// rights of the driver there are sufficient.
pub const READY: &str = "Ready";

/// Condition of a cluster whose API server answers.
pub const REACHABLE: &str = "Reachable";

/// Reason of this condition: the cluster does not accept the credentials.
pub const UNAUTHORIZED: &str = "Unauthorized";

// These bounds are large enough for all uses, and small enough for the API server to estimate the cost of
// evaluating the rules.
const MOST_ENTRIES: u32 = 512;
const DNS_LABEL: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
const DNS_SUBDOMAIN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
const LABEL_VALUE: &str = "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$";

/// Desired state of a remote cluster.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "storage.liqo.io",
    version = "v1alpha1",
    kind = "RemoteCluster",
    plural = "remoteclusters",
    shortname = "rmc",
    status = "RemoteClusterStatus",
    derive = "PartialEq",
    doc = "A cluster behind virtual nodes of this one, where claims of the virtual storage class may have their twins. Its name is the id of the cluster.",
    validation = Rule::new("self.metadata.name.size() <= 63").message("the name is the id of the cluster, which nodes carry as a label: at most 63 characters"),
    validation = Rule::new("has(self.spec.discoveredFrom) || (has(self.spec.kubeconfigSecretRef) && (has(self.spec.nodeSelector) || has(self.spec.fabric)))").message("kubeconfigSecretRef and nodeSelector or fabric are needed, or discoveredFrom"),
    validation = Rule::new("!has(self.spec.discoveredFrom) || !(has(self.spec.kubeconfigSecretRef) || has(self.spec.nodeSelector) || has(self.spec.namespaces.mapping) || self.spec.namespaces.strategy != 'SameName')").message("the fabric of a discovered cluster determines how it is reached, and its nodes and namespaces: leave out kubeconfigSecretRef, nodeSelector and namespaces"),
    validation = Rule::new("!has(self.spec.fabric) || !(has(self.spec.discoveredFrom) || has(self.spec.namespaces.mapping) || self.spec.namespaces.strategy != 'SameName')").message("with fabric, NamespaceOffloadings determine the namespaces: leave out namespaces; a discovered cluster has a fabric of its own"),
    validation = Rule::new("has(self.spec.fabric) == has(oldSelf.spec.fabric)").message("fabric cannot be added or removed, because the namespaces would change: delete the RemoteCluster first"),
    validation = Rule::new("!has(self.spec.fabric) || !has(oldSelf.spec.fabric) || has(self.spec.nodeSelector) == has(oldSelf.spec.nodeSelector)").message("nodeSelector of a cluster with fabric cannot be added or removed: pods would lose their node. Delete the RemoteCluster first"),
    validation = Rule::new("has(self.spec.discoveredFrom) == has(oldSelf.spec.discoveredFrom)").message("a declared cluster cannot become a discovered one, nor the other way round: delete it first"),
    printcolumn(name = "Fabric", type_ = "string", json_path = ".spec.discoveredFrom.fabric", description = "The fabric that declares it, if no administrator does"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status", description = "Whether twins can be created there"),
    printcolumn(name = "Reachable", type_ = "string", json_path = ".status.conditions[?(@.type==\"Reachable\")].status", description = "Whether its API server answers"),
    printcolumn(name = "Since", type_ = "date", json_path = ".status.conditions[?(@.type==\"Reachable\")].lastTransitionTime", description = "Time since the last change of Reachable"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.serverVersion", description = "Its Kubernetes version"),
    printcolumn(name = "Policy", type_ = "string", json_path = ".spec.bindingPolicy", description = "When a claim with a twin there is Bound"),
    printcolumn(name = "Volumes", type_ = "integer", json_path = ".status.volumes", description = "Number of volumes with their twin there"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Error", type_ = "string", json_path = ".status.lastError", description = "Last error", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct RemoteClusterSpec {
    /// The object that declares the cluster, if it is not this one. The driver creates such an object for
    /// each cluster that it discovers. The fabric determines how the cluster is reached, and its
    /// nodes and namespaces; you can change the rest of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovered_from: Option<DiscoveredFrom>,

    /// The Secret with the kubeconfig, in the namespace of the driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeconfig_secret_ref: Option<KubeconfigSecretRef>,

    /// The virtual nodes of the remote cluster: all nodes that this selects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<VirtualNodes>,

    /// Mapping from namespaces here to namespaces there.
    #[serde(default)]
    pub namespaces: Namespaces,

    /// Lets the fabric of this driver create namespaces there, as the NamespaceOffloadings here
    /// request; `namespaces` has to be left out. Without nodeSelector the fabric also creates the
    /// virtual node of the cluster, and runs its pods there; with it, the tool that creates the
    /// nodes runs the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<Fabric>,

    /// Mapping from virtual classes to real storage classes there.
    #[serde(default)]
    pub storage_classes: StorageClasses,

    /// Mapping from the parameter realVolumeAttributesClass of a VolumeAttributesClass of this
    /// driver to a VolumeAttributesClass there.
    #[serde(default)]
    pub volume_attributes_classes: ClassNames,

    /// Mapping from the parameter realSnapshotClass of a VolumeSnapshotClass of this driver to a
    /// VolumeSnapshotClass there.
    #[serde(default)]
    pub snapshot_classes: ClassNames,

    /// When a claim with a twin there is Bound. Optimistic: as soon as the remote cluster has
    /// accepted the twin; a later failure is reported on the claim. WaitForBound: not before the
    /// twin is Bound. With both, claims of classes that bind immediately wait for the twin.
    #[serde(default)]
    pub binding_policy: BindingPolicy,

    /// Whether twins there get a finalizer, so that no other client deletes the data of a claim in
    /// use. It is set if the driver's rights there are sufficient to save the volume.
    #[serde(default = "yes")]
    pub protect_twins: bool,
}

/// What declares a discovered cluster.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiscoveredFrom {
    /// The fabric whose objects declare it.
    pub fabric: DiscoveringFabric,
}

/// A fabric whose clusters the driver discovers.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum DiscoveringFabric {
    Liqo,
    Kosmos,
}

/// The Secret with the kubeconfig.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubeconfigSecretRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub name: String,

    /// Key in its data.
    #[serde(default = "kubeconfig")]
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

/// A selector of nodes by their labels. All parts must match.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(has(self.matchLabels) && self.matchLabels.size() > 0) || (has(self.matchExpressions) && self.matchExpressions.size() > 0)").message("an empty selector would select every node: set matchLabels or matchExpressions"))]
pub struct VirtualNodes {
    /// Labels with exactly these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "match_labels")]
    pub match_labels: BTreeMap<String, String>,

    /// Conditions on labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub match_expressions: Vec<NodeRequirement>,
}

/// A condition on a label.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)").message("In and NotIn need values; Exists and DoesNotExist take none"))]
pub struct NodeRequirement {
    /// Key of the label.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,

    /// How its value is compared.
    pub operator: NodeOperator,

    /// Values to compare with: at least one for In and NotIn, none for the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 63), regex(pattern = LABEL_VALUE)))]
    pub values: Vec<String>,
}

/// How the value of a label is compared.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum NodeOperator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

/// Mapping from namespaces here to namespaces there.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("self.strategy != 'Mapped' || (has(self.mapping) && self.mapping.size() > 0)").message("the strategy Mapped needs a mapping: without one no namespace could be used"))]
pub struct Namespaces {
    /// SameName: the namespace of the same name, unless the mapping has another one. Mapped: only
    /// namespaces in the mapping can be used.
    #[serde(default)]
    pub strategy: NamespaceStrategy,

    /// Maps namespaces of this cluster to namespaces of the remote cluster.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "namespaces")]
    #[x_kube(validation = Rule::new("self.all(here, here.size() > 0 && here.size() <= 63)").message("the keys are names of namespaces of this cluster: 1 to 63 characters"))]
    pub mapping: BTreeMap<String, String>,
}

/// Treatment of a namespace that is not in the mapping.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum NamespaceStrategy {
    #[default]
    SameName,
    Mapped,
}

/// Mapping from virtual classes to real storage classes there.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageClasses {
    /// From virtual classes here to real classes there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "storage_classes")]
    #[x_kube(validation = Rule::new("self.all(here, here.size() > 0 && here.size() <= 253)").message("the keys are names of storage classes of this cluster: 1 to 253 characters"))]
    pub mapping: BTreeMap<String, String>,

    /// The real class there of virtual classes that are not in the mapping. By default the one that
    /// the fabric names, or the default class of the remote cluster, if the driver may read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "storage_class")]
    pub default: Option<String>,
}

/// Mapping from the real classes that a class of this driver names in a parameter to those
/// there. Classes without an entry have the same name there.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassNames {
    /// From names in the parameter of a class of this driver to names there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "storage_classes")]
    #[x_kube(validation = Rule::new("self.all(here, here.size() > 0 && here.size() <= 253)").message("the keys are names of classes: 1 to 253 characters"))]
    pub mapping: BTreeMap<String, String>,
}

/// When a claim with a twin in a remote cluster is Bound.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum BindingPolicy {
    #[default]
    Optimistic,
    WaitForBound,
}

/// Observed state of a remote cluster.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RemoteClusterStatus {
    /// The generation of the spec this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Ready: twins can be created there. Reachable: its API server answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,

    /// The object that declares a discovered cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declared_by: Option<String>,

    /// Its virtual nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,

    /// Number of volumes with their twin there.
    #[serde(default)]
    pub volumes: i64,

    /// Number of snapshots with their twin there.
    #[serde(default)]
    pub snapshots: i64,

    /// The Kubernetes version of its API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_version: Option<String>,

    /// The storage classes there, as far as the driver may read them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,

    /// What does not work there, and why, such as a right that the driver lacks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<String>,

    /// The last error, until it is resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,

    /// The credentials by which the driver reaches it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<CredentialsStatus>,

    /// State of the virtual node that the fabric needs even if the node is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_node: Option<VirtualNodeStatus>,
}

/// Observed state of the credentials.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CredentialsStatus {
    /// The kubeconfig that this status describes: the beginning of the SHA-256 of its text.
    pub kubeconfig: String,

    /// When its token expires, if the token contains that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,

    /// When the driver renews the token, if it does: only tokens that are bound to the Secret
    /// liqo-csi-session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renews: Option<String>,
}

/// Stored state of a virtual node of the fabric.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VirtualNodeStatus {
    /// The cluster that it represents: the uid of the namespace kube-system there. Another cluster
    /// at the same address is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub cluster_uid: Option<String>,

    /// The port of the fabric's pods that serves the logs of the pods of this node, and of no other
    /// node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i32>", range(min = 1, max = 65535))]
    pub port: Option<u16>,

    /// Labels that the cluster suggested last, kept while it is unreachable.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cluster_labels: BTreeMap<String, String>,

    /// Labels that other clients have set on it, restored when the node is created again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,

    /// Taints that other clients have set on it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<KeptTaint>,

    /// Whether it is cordoned.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unschedulable: bool,
}

/// A taint, as nodes have it.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptTaint {
    /// Its key.
    pub key: String,
    /// Its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Its effect.
    pub effect: String,
}

impl From<&Taint> for KeptTaint {
    fn from(taint: &Taint) -> Self {
        Self {
            key: taint.key.clone(),
            value: taint.value.clone().filter(|value| !value.is_empty()),
            effect: taint.effect.clone(),
        }
    }
}

impl RemoteCluster {
    /// The virtual node that the fabric creates for the cluster, if any.
    #[must_use]
    pub fn fabric_node(&self) -> Option<String> {
        let fabric = self.spec.fabric.as_ref()?;
        let makes_it = self.spec.node_selector.is_none();
        makes_it.then(|| fabric.node_name.clone().unwrap_or_else(|| self.name_any()))
    }

    /// The uid of the cluster, once it is recorded: by the fabric if that serves it, otherwise by the controller.
    #[must_use]
    pub fn cluster_uid(&self) -> Option<&str> {
        let node = self.status.as_ref()?.virtual_node.as_ref()?;
        node.cluster_uid.as_deref()
    }
}

impl RemoteClusterSpec {
    /// The object that the driver creates for a discovered cluster.
    #[must_use]
    pub fn discovered(fabric: DiscoveringFabric) -> Self {
        Self {
            discovered_from: Some(DiscoveredFrom { fabric }),
            kubeconfig_secret_ref: None,
            node_selector: None,
            namespaces: Namespaces::default(),
            fabric: None,
            storage_classes: StorageClasses::default(),
            volume_attributes_classes: ClassNames::default(),
            snapshot_classes: ClassNames::default(),
            binding_policy: BindingPolicy::default(),
            protect_twins: true,
        }
    }
}

impl DiscoveringFabric {
    /// Its name in messages and in the output of commands.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Liqo => "liqo",
            Self::Kosmos => "kosmos",
        }
    }

    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Liqo, Self::Kosmos]
            .into_iter()
            .find(|fabric| fabric.name() == name)
    }

    #[must_use]
    pub const fn api_group(self) -> &'static str {
        match self {
            Self::Liqo => "offloading.liqo.io",
            Self::Kosmos => "kosmos.io",
        }
    }
}

impl VirtualNodes {
    /// The selector, as a type of the model.
    #[must_use]
    pub fn selector(&self) -> LabelSelector {
        let equal = self
            .match_labels
            .iter()
            .map(|(key, value)| Requirement::is_in(key, [value]));
        let compared = self.match_expressions.iter().map(NodeRequirement::requirement);
        LabelSelector(equal.chain(compared).collect())
    }
}

impl NodeRequirement {
    fn requirement(&self) -> Requirement {
        Requirement {
            key: self.key.clone(),
            operator: match self.operator {
                NodeOperator::In => Operator::In,
                NodeOperator::NotIn => Operator::NotIn,
                NodeOperator::Exists => Operator::Exists,
                NodeOperator::DoesNotExist => Operator::DoesNotExist,
            },
            values: self.values.clone(),
        }
    }
}

fn yes() -> bool {
    true
}

fn kubeconfig() -> String {
    "kubeconfig".to_owned()
}

fn match_labels(_: &mut schemars::SchemaGenerator) -> Schema {
    map_to(
        32,
        &json_schema!({ "type": "string", "maxLength": 63, "pattern": LABEL_VALUE }),
    )
}

fn namespaces(_: &mut schemars::SchemaGenerator) -> Schema {
    map_to(
        MOST_ENTRIES,
        &json_schema!({ "type": "string", "minLength": 1, "maxLength": 63, "pattern": DNS_LABEL }),
    )
}

fn storage_classes(generator: &mut schemars::SchemaGenerator) -> Schema {
    map_to(MOST_ENTRIES, &storage_class(generator))
}

fn storage_class(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "minLength": 1, "maxLength": 253, "pattern": DNS_SUBDOMAIN })
}

fn map_to(most: u32, value: &Schema) -> Schema {
    json_schema!({ "type": "object", "maxProperties": most, "additionalProperties": value })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::topology::Labels;

    fn read(spec: Value) -> RemoteClusterSpec {
        serde_json::from_value(spec).unwrap()
    }

    fn least() -> Value {
        json!({
            "kubeconfigSecretRef": { "name": "there" },
            "nodeSelector": { "matchLabels": { "cluster": "there" } },
        })
    }

    #[test]
    fn omitted_fields_have_the_documented_defaults() {
        let spec = read(least());
        assert_eq!(spec.kubeconfig_secret_ref.unwrap().key, "kubeconfig");
        assert_eq!(spec.namespaces.strategy, NamespaceStrategy::SameName);
        assert_eq!(spec.binding_policy, BindingPolicy::Optimistic);
        assert!(spec.protect_twins);
        assert_eq!(spec.storage_classes, StorageClasses::default());
    }

    #[test]
    fn nodes_must_meet_all_of_the_selector() {
        let labels = |pairs: &[(&str, &str)]| -> Labels {
            pairs
                .iter()
                .map(|&(key, value)| (key.to_owned(), value.to_owned()))
                .collect()
        };
        let selector: VirtualNodes = serde_json::from_value(json!({
            "matchLabels": { "type": "virtual" },
            "matchExpressions": [
                { "key": "zone", "operator": "In", "values": ["a", "b"] },
                { "key": "zone", "operator": "NotIn", "values": ["c"] },
                { "key": "cluster", "operator": "Exists" },
                { "key": "broken", "operator": "DoesNotExist" },
            ],
        }))
        .unwrap();
        let node = [("type", "virtual"), ("zone", "a"), ("cluster", "there")];
        assert!(selector.selector().admits(&labels(&node)));
        for (index, (key, _)) in node.iter().enumerate() {
            let mut less = node.to_vec();
            less.remove(index);
            assert!(!selector.selector().admits(&labels(&less)), "without {key}");
        }
        assert!(
            !selector
                .selector()
                .admits(&labels(&[&node[..], &[("broken", "")]].concat()))
        );
    }

    #[test]
    fn an_object_survives_the_round_trip() {
        let mut object = RemoteCluster::new("there", read(least()));
        object.status = Some(RemoteClusterStatus {
            observed_generation: Some(1),
            classes: vec!["ssd".into()],
            ..RemoteClusterStatus::default()
        });
        let written = serde_json::to_value(&object).unwrap();
        assert_eq!(written["apiVersion"], "storage.liqo.io/v1alpha1");
        assert_eq!(serde_json::from_value::<RemoteCluster>(written).unwrap(), object);
    }
}
