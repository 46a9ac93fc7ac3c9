//! `spec.fabric` of a `RemoteCluster`: what the fabric of this driver does in the cluster, which
//! node stands for it, and how pods run there.

// KubeSchema copies each struct into a function to read its schema.
#![allow(unreachable_pub)]
// kubectl shows the comments as they are.
#![allow(clippy::doc_markdown)]

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, json_schema};
use serde::{Deserialize, Serialize};

use crate::offload::{MappingStrategy, PodNetwork};

const DNS_SUBDOMAIN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
// What is no address for all that is found when it is read; `isCIDR` is not in all API servers.
const CIDR: &str = r"^(((25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])/(3[0-2]|[12]?[0-9])|[0-9a-fA-F:]+/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))$";
const MOST_CIDRS: u32 = 16;

/// What the fabric of this driver does in a cluster.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.nodeName) == has(oldSelf.nodeName) && (!has(self.nodeName) || self.nodeName == oldSelf.nodeName)").message("nodeName cannot be changed: pods would lose their node. Delete the RemoteCluster first"))]
pub struct Fabric {
    /// The node that the fabric makes for the cluster, unless spec.nodeSelector selects those that
    /// somebody else makes. By default it is called as the RemoteCluster. It cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = DNS_SUBDOMAIN))]
    pub node_name: Option<String>,

    /// Labels of that node, beside the fabric's own. Clusters are selected by them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "labels")]
    pub labels: BTreeMap<String, String>,

    /// Labels that the cluster suggests for that node: the data of a ConfigMap there, such as the
    /// chart makes with remoteAccess.labels. What is in `labels` counts more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels_from: Option<LabelSource>,

    /// Taints of that node, beside virtual-node.liqo.io/not-allowed. Pods need tolerations of
    /// their own for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["key", "effect"]))]
    pub taints: Vec<NodeTaint>,

    /// What that node offers.
    #[serde(default)]
    pub capacity: Capacity,

    /// Whether the pod networks of the two clusters reach each other.
    #[serde(default)]
    pub network: Network,

    /// How pods run there.
    #[serde(default)]
    pub pods: RemotePods,

    /// Which namespaces may come.
    #[serde(default)]
    pub offload: OffloadRules,
}

/// A ConfigMap in the remote cluster.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelSource {
    /// Its namespace.
    #[schemars(length(min = 1, max = 63), regex(pattern = DNS_SUBDOMAIN))]
    pub namespace: String,
    /// Its name.
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub name: String,
}

/// A taint of a node.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTaint {
    /// Its key.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// Its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,
    /// What it does to pods that do not tolerate it.
    pub effect: TaintEffect,
}

/// What a taint does.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum TaintEffect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

impl TaintEffect {
    /// As nodes have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }
}

/// What the node of a cluster offers to the scheduler.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("self.source != 'Static' || (has(self.amounts) && self.amounts.size() > 0)").message("the source Static needs amounts"))]
pub struct Capacity {
    /// Nodes: a share of what all nodes there offer that take pods. Static: the amounts.
    #[serde(default)]
    pub source: CapacitySource,

    /// How much of what the nodes there offer is ours, in percent.
    #[serde(default = "all")]
    // Kubernetes warns of a format that it does not know, such as uint32.
    #[schemars(with = "i32", range(min = 1, max = 100))]
    pub share: u32,

    /// With Static: how much of each resource there is, such as cpu: "16". Of what is not
    /// listed there is none; pods are 110 unless they are.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "amounts")]
    pub amounts: BTreeMap<String, String>,
}

impl Default for Capacity {
    fn default() -> Self {
        Self {
            source: CapacitySource::Nodes,
            share: all(),
            amounts: BTreeMap::new(),
        }
    }
}

const fn all() -> u32 {
    100
}

/// Where the capacity is known from.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum CapacitySource {
    #[default]
    Nodes,
    Static,
}

/// How pods of the two clusters reach each other. The fabric makes no network: it says which
/// addresses are told.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.mode != 'Routed' || (has(self.podCIDRs) && self.podCIDRs.size() > 0)").message("the mode Routed needs podCIDRs: those of the pods of the remote cluster"))]
pub struct Network {
    /// Isolated: addresses of pods mean nothing in the other cluster, and none are told. Routed:
    /// an administrator has made the pod networks of both clusters disjoint, with routes between
    /// them in both directions and without NAT. Pods of this node have their addresses here then,
    /// and EndpointSlices are copied there.
    #[serde(default)]
    pub mode: NetworkMode,

    /// With Routed: the addresses that pods of the remote cluster have, such as 10.64.0.0/16, and
    /// no others. Within them that cluster decides where Services of this one lead.
    #[serde(default, rename = "podCIDRs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "cidrs")]
    pub pod_cidrs: Vec<String>,
}

/// Whether pods of two clusters reach each other.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum NetworkMode {
    #[default]
    Isolated,
    Routed,
}

impl Network {
    /// The addresses of remote pods that lead there from here; `None` if none do.
    #[must_use]
    pub fn routed(&self) -> Option<PodNetwork> {
        (self.mode == NetworkMode::Routed).then(|| PodNetwork::read(&self.pod_cidrs))
    }
}

/// How pods run in a cluster.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RemotePods {
    /// Labels of the nodes there that they may run on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "labels")]
    pub node_selector: BTreeMap<String, String>,

    /// Tolerations that they get.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub tolerations: Vec<Toleration>,

    /// Their priority class there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub priority_class_name: Option<String>,

    /// Their runtime class there, unless a pod has one of its own other than liqo.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub runtime_class_name: Option<String>,
}

/// A toleration, as pods have it.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Toleration {
    /// Key of the taint.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// Exists or Equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    /// Its value, with Equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Its effect; any, without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
}

/// Which namespaces may come.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffloadRules {
    /// How they may be named there; in any way, if none is listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3))]
    pub strategies: Vec<MappingStrategy>,
}

fn labels(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": {
            "type": "string",
            "maxLength": 63,
            "pattern": "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$",
        },
    })
}

fn cidrs(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": MOST_CIDRS,
        "items": {"type": "string", "maxLength": 43, "pattern": CIDR},
    })
}

fn amounts(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": {
            "type": "string",
            "maxLength": 32,
            "pattern": "^[0-9]+(\\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$",
        },
    })
}
