//! `NamespaceOffloading`: requests that a namespace exists in remote clusters as well. Group, version, names
//! and fields are those of Liqo, so that its manifests can be used unchanged. Liqo's own definition of the
//! kind is never replaced by this one, see `liqo-csi crds --help`.

// KubeSchema copies each struct into a function to read its schema.
#![allow(unreachable_pub)]
// kubectl shows the comments as they are.
#![allow(clippy::doc_markdown)]

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, json_schema};
use serde::{Deserialize, Serialize};

use crate::{
    offload::{MappingStrategy, Phase, Readiness, Volumes},
    topology::{NodeSelector, Operator, Requirement, Term},
};

/// The name of every such object: there is one in a namespace.
pub const NAME: &str = "offloading";
/// Annotation on an object that is being deleted: what happens to the claims in remote clusters, `Delete` or
/// `Retain`. `liqo-csi unoffload` writes it after the deletion, so that it applies to this deletion only.
pub const VOLUMES: &str = "fabric.storage.liqo.io/volumes";
/// Condition of a cluster in which the namespace is requested.
pub const REQUIRED: &str = "OffloadingRequired";
/// Condition of a cluster in which the namespace exists.
pub const READY: &str = "Ready";

/// How a namespace is offloaded.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "offloading.liqo.io",
    version = "v1beta1",
    kind = "NamespaceOffloading",
    plural = "namespaceoffloadings",
    shortname = "nso",
    shortname = "nsof",
    shortname = "nsoff",
    category = "liqo",
    namespaced,
    status = "NamespaceOffloadingStatus",
    derive = "PartialEq",
    doc = "Extends its namespace into remote clusters. There is one in a namespace, called offloading.",
    validation = Rule::new("self.metadata.name == 'offloading'").message("the name of a NamespaceOffloading is offloading"),
    validation = Rule::new("self.spec.namespaceMappingStrategy != 'SelectedName' || (has(self.spec.remoteNamespaceName) && self.spec.remoteNamespaceName != '')").message("the strategy SelectedName needs a remoteNamespaceName"),
    printcolumn(name = "NamespaceMappingStrategy", type_ = "string", json_path = ".spec.namespaceMappingStrategy"),
    printcolumn(name = "PodOffloadingStrategy", type_ = "string", json_path = ".spec.podOffloadingStrategy"),
    printcolumn(name = "OffloadingPhase", type_ = "string", json_path = ".status.offloadingPhase"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceOffloadingSpec {
    /// How the namespace in remote clusters is named. DefaultName: after the namespace and the id
    /// of this cluster. EnforceSameName: as here. SelectedName: the value of remoteNamespaceName.
    /// It cannot be changed.
    #[serde(default)]
    pub namespace_mapping_strategy: MappingStrategy,

    /// The name of the namespace in remote clusters, with the strategy SelectedName. It cannot
    /// be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$"))]
    pub remote_namespace_name: Option<String>,

    /// Where new pods of the namespace run. LocalAndRemote: here or in the selected clusters, as
    /// the scheduler decides. Remote: only in the selected clusters. Local: here, except for pods
    /// of the RuntimeClass liqo. Existing pods are not evicted when this changes.
    #[serde(default)]
    pub pod_offloading_strategy: PodOffloadingStrategy,

    /// The clusters into which the namespace is extended: those whose virtual node matches one of
    /// the terms; all, without terms.
    #[serde(default)]
    pub cluster_selector: ClusterSelector,
}

/// Where pods may run.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum PodOffloadingStrategy {
    #[default]
    LocalAndRemote,
    Local,
    Remote,
}

/// A selector of virtual nodes.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSelector {
    /// Terms, of which one must match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub node_selector_terms: Vec<ClusterTerm>,
}

/// Requirements on a node, which must all match.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(has(self.matchExpressions) && self.matchExpressions.size() > 0) || (has(self.matchFields) && self.matchFields.size() > 0)").message("an empty term selects nothing: set matchExpressions or matchFields"))]
pub struct ClusterTerm {
    /// On its labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub match_expressions: Vec<ClusterRequirement>,

    /// On its fields: metadata.name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub match_fields: Vec<ClusterRequirement>,
}

/// A requirement on a label or a field.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRequirement {
    /// Its key.
    #[schemars(
        length(min = 1, max = 317),
        regex(
            pattern = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
        )
    )]
    pub key: String,

    /// How its value is compared.
    pub operator: ClusterOperator,

    /// Values to compare with: at least one for In and NotIn, one integer for Gt and Lt, none for
    /// the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        inner(
            length(max = 253),
            regex(pattern = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")
        )
    )]
    pub values: Vec<String>,
}

/// How a value is compared.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum ClusterOperator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    Gt,
    Lt,
}

/// State of an offloaded namespace.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceOffloadingStatus {
    /// The generation of the spec this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// The name of the namespace in remote clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_namespace_name: Option<String>,

    /// Summary of the state in all clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offloading_phase: Option<Phase>,

    /// Conditions of each cluster, by the id of the cluster.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "by_cluster")]
    pub remote_namespaces_conditions: BTreeMap<String, Vec<RemoteCondition>>,

    /// Clusters that new pods of a controller avoid if they can, because no node there took a pod
    /// of it, or the cluster refused one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub avoided_clusters: Vec<AvoidedCluster>,
}

/// A cluster that new pods of a controller avoid if they can.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AvoidedCluster {
    /// The uid of the controller, such as a ReplicaSet.
    #[schemars(length(max = 64))]
    pub controller: String,
    /// The id of the cluster.
    #[schemars(length(max = 63))]
    pub cluster: String,
    /// When a pod of the controller was given up there.
    #[schemars(extend("format" = "date-time"))]
    pub since: String,
    /// The time until which new pods avoid the cluster.
    #[schemars(extend("format" = "date-time"))]
    pub until: String,
}

/// A condition of the namespace in a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RemoteCondition {
    /// OffloadingRequired or Ready.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    pub status: String,
    /// When the status last changed.
    #[serde(default)]
    pub last_transition_time: String,
    /// Reason, for programs.
    #[serde(default)]
    pub reason: String,
    /// Reason, for users.
    #[serde(default)]
    pub message: String,
}

impl NamespaceOffloading {
    /// The condition of this type of a cluster in the status.
    #[must_use]
    pub fn condition(&self, cluster: &str, type_: &str) -> Option<&RemoteCondition> {
        let all = &self.status.as_ref()?.remote_namespaces_conditions;
        all.get(cluster)?.iter().find(|it| it.type_ == type_)
    }

    /// The state of the namespace in a cluster, by its status.
    #[must_use]
    pub fn readiness(&self, cluster: &str) -> Option<Readiness> {
        let ready = self.condition(cluster, READY)?;
        Readiness::read(&ready.reason, &ready.message)
    }

    /// What happens to the claims in remote clusters.
    #[must_use]
    pub fn volumes(&self) -> Volumes {
        let asked = self
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(VOLUMES));
        let asked = asked.filter(|_| self.is_leaving());
        asked.map_or(Volumes::Hold, |text| Volumes::read(text))
    }

    /// Whether the namespace has the same name in remote clusters.
    #[must_use]
    pub fn keeps_its_name(&self) -> bool {
        let there = self
            .status
            .as_ref()
            .and_then(|it| it.remote_namespace_name.as_ref());
        let is_same = self.spec.namespace_mapping_strategy == MappingStrategy::EnforceSameName;
        is_same || there.is_some() && there == self.metadata.namespace.as_ref()
    }

    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}

impl ClusterSelector {
    /// The selector, as a type of the model.
    #[must_use]
    pub fn selector(&self) -> NodeSelector {
        let all = |some: &[ClusterRequirement]| some.iter().map(ClusterRequirement::requirement).collect();
        let terms = self.node_selector_terms.iter().map(|term| Term {
            expressions: all(&term.match_expressions),
            fields: all(&term.match_fields),
        });
        NodeSelector {
            terms: terms.collect(),
        }
    }

    /// A selector of these terms over labels.
    #[must_use]
    pub fn of(terms: &[Term]) -> Self {
        let terms = terms.iter().map(|term| ClusterTerm {
            match_expressions: term.expressions.iter().map(ClusterRequirement::of).collect(),
            match_fields: term.fields.iter().map(ClusterRequirement::of).collect(),
        });
        Self {
            node_selector_terms: terms.collect(),
        }
    }
}

impl ClusterRequirement {
    fn requirement(&self) -> Requirement {
        Requirement {
            key: self.key.clone(),
            operator: match self.operator {
                ClusterOperator::In => Operator::In,
                ClusterOperator::NotIn => Operator::NotIn,
                ClusterOperator::Exists => Operator::Exists,
                ClusterOperator::DoesNotExist => Operator::DoesNotExist,
                ClusterOperator::Gt => Operator::Gt,
                ClusterOperator::Lt => Operator::Lt,
            },
            values: self.values.clone(),
        }
    }

    fn of(requirement: &Requirement) -> Self {
        Self {
            key: requirement.key.clone(),
            operator: match requirement.operator {
                Operator::In => ClusterOperator::In,
                Operator::NotIn => ClusterOperator::NotIn,
                Operator::Exists => ClusterOperator::Exists,
                Operator::DoesNotExist => ClusterOperator::DoesNotExist,
                Operator::Gt => ClusterOperator::Gt,
                Operator::Lt => ClusterOperator::Lt,
            },
            values: requirement.values.clone(),
        }
    }
}

fn by_cluster(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "description": "Conditions of each cluster, by the id of the cluster.",
        "additionalProperties": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type", "status"],
                "properties": {
                    "type": { "type": "string", "enum": ["OffloadingRequired", "Ready"] },
                    "status": { "type": "string", "enum": ["True", "False", "Unknown"] },
                    "lastTransitionTime": { "type": "string", "format": "date-time" },
                    "reason": { "type": "string", "maxLength": 256 },
                    "message": { "type": "string", "maxLength": 4096 },
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    /// As Liqo's documentation and `liqoctl offload namespace --output yaml` write it.
    #[test]
    fn manifests_of_liqo_are_parsed() {
        let object: NamespaceOffloading = from_value(json!({
            "apiVersion": "offloading.liqo.io/v1beta1",
            "kind": "NamespaceOffloading",
            "metadata": {"name": "offloading", "namespace": "demo", "creationTimestamp": null},
            "spec": {
                "clusterSelector": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "region", "operator": "In", "values": ["europe"]}]},
                ]},
                "namespaceMappingStrategy": "EnforceSameName",
                "podOffloadingStrategy": "LocalAndRemote",
                "remoteNamespaceName": "",
            },
            "status": {},
        }))
        .unwrap();
        assert_eq!(
            object.spec.namespace_mapping_strategy,
            MappingStrategy::EnforceSameName
        );
        let selector = object.spec.cluster_selector.selector();
        assert_eq!(selector.terms.len(), 1);
        assert_eq!(ClusterSelector::of(&selector.terms), object.spec.cluster_selector);
        let least: NamespaceOffloadingSpec = from_value(json!({})).unwrap();
        assert_eq!(least, NamespaceOffloadingSpec::default());
    }
}
