//! `spec.fabric` of a `RemoteCluster`: what the fabric of this driver does in the cluster, the virtual node
//! of the cluster, and how pods run there.

// KubeSchema copies each struct into a function to read its schema.
#![allow(unreachable_pub)]
// kubectl shows the comments as they are.
#![allow(clippy::doc_markdown)]

use std::{collections::BTreeMap, time::Duration};

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, json_schema};
use serde::{Deserialize, Serialize};

use crate::offload::{MappingStrategy, PodNetwork};

const DNS_SUBDOMAIN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
// Invalid addresses that match this are detected when the object is read; not all API servers have `isCIDR`.
const CIDR: &str = r"^(((25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])/(3[0-2]|[12]?[0-9])|[0-9a-fA-F:]+/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))$";
const MOST_CIDRS: u32 = 16;
const GIVE_UP_AFTER: Duration = Duration::from_mins(1);

/// Settings of this driver's fabric in a cluster.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.nodeName) == has(oldSelf.nodeName) && (!has(self.nodeName) || self.nodeName == oldSelf.nodeName)").message("nodeName cannot be changed: pods would lose their node. Delete the RemoteCluster first"))]
pub struct Fabric {
    /// Name of the virtual node that the fabric creates for the cluster, unless spec.nodeSelector
    /// selects nodes of another tool. By default the name of the RemoteCluster. It cannot be
    /// changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = DNS_SUBDOMAIN))]
    pub node_name: Option<String>,

    /// Labels of that node, in addition to the fabric's own. They select clusters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "labels")]
    pub labels: BTreeMap<String, String>,

    /// Labels that the remote cluster suggests for that node: the data of a ConfigMap there, such
    /// as the one that the chart creates with remoteAccess.labels. `labels` takes precedence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels_from: Option<LabelSource>,

    /// Taints of that node, in addition to virtual-node.liqo.io/not-allowed. Pods need their own
    /// tolerations for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["key", "effect"]))]
    pub taints: Vec<NodeTaint>,

    /// Capacity of that node.
    #[serde(default)]
    pub capacity: Capacity,

    /// Whether the pod networks of the two clusters reach each other.
    #[serde(default)]
    pub network: Network,

    /// How pods run there.
    #[serde(default)]
    pub pods: RemotePods,

    /// Pod Security Standard of namespaces that the fabric creates there: their label
    /// pod-security.kubernetes.io/enforce. The chart there admits that in its
    /// remoteAccess.podSecurity only.
    #[serde(default)]
    pub pod_security: PodSecurity,

    /// Which mapping strategies the cluster admits.
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
    /// Its effect on pods that do not tolerate it.
    pub effect: TaintEffect,
}

/// Effect of a taint.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum TaintEffect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

impl TaintEffect {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }
}

/// Capacity of the virtual node of a cluster.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("self.source != 'Static' || (has(self.amounts) && self.amounts.size() > 0)").message("the source Static needs amounts"))]
pub struct Capacity {
    /// Nodes: a share of the capacity of all nodes there that accept pods. Free: a share of what the
    /// requests of other pods leave of that; it requires the right to list all pods there, and is wrong
    /// where an autoscaler adds nodes for pods that wait. Static: the amounts.
    #[serde(default)]
    pub source: CapacitySource,

    /// Share of the capacity of the nodes there, or of what is free, in percent.
    #[serde(default = "all")]
    // Kubernetes warns of formats that it does not know, such as uint32.
    #[schemars(with = "i32", range(min = 1, max = 100))]
    pub share: u32,

    /// With Static: the amount of each resource, such as cpu: "16". Resources that are not listed
    /// have the amount 0, except pods with 110.
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

/// Source of the capacity.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum CapacitySource {
    #[default]
    Nodes,
    Free,
    Static,
}

/// How pods of the two clusters reach each other. The fabric does not create a network: this
/// decides which addresses it publishes.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.mode != 'Routed' || (has(self.podCIDRs) && self.podCIDRs.size() > 0)").message("the mode Routed needs podCIDRs: those of the pods of the remote cluster"))]
pub struct Network {
    /// Isolated: addresses of pods are not valid in the other cluster, and not published. Routed:
    /// an administrator has set up disjoint pod networks in both clusters, with routes between them
    /// in both directions and without NAT. Then pods of this node have their addresses here, and
    /// EndpointSlices are copied there.
    #[serde(default)]
    pub mode: NetworkMode,

    /// With Routed: the address ranges of pods of the remote cluster, such as 10.64.0.0/16, and no
    /// others. Within these ranges that cluster decides where Services of this one lead.
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
    /// The addresses of remote pods that are reachable from here; `None` if none are.
    #[must_use]
    pub fn routed(&self) -> Option<PodNetwork> {
        (self.mode == NetworkMode::Routed).then(|| PodNetwork::read(&self.pod_cidrs))
    }
}

/// How pods run in a cluster.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RemotePods {
    /// Labels of the nodes there on which they may run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "labels")]
    pub node_selector: BTreeMap<String, String>,

    /// Tolerations that are added to them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub tolerations: Vec<Toleration>,

    /// Their priority class there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub priority_class_name: Option<String>,

    /// Their runtime class there, unless a pod names another one than liqo.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub runtime_class_name: Option<String>,

    /// Keys of pod labels that are not copied to remote pods, because controllers there would act on
    /// them. A key that ends with * is a prefix.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "keys")]
    pub skip_labels: Vec<String>,

    /// Keys of pod annotations that are not copied, in the same format.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "keys")]
    pub skip_annotations: Vec<String>,

    /// How long a pod may be unschedulable in the cluster, or refused by it, before the pod is
    /// deleted at home, so that its controller creates another one, which prefers other clusters.
    /// By default 60s; 0s for never, such as where an autoscaler adds nodes for pods that wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::duration")]
    pub give_up_after: Option<String>,
}

impl RemotePods {
    /// After what time pods that the cluster does not take are given up; `None` for never.
    #[must_use]
    pub fn given_up_after(&self) -> Option<Duration> {
        let time = match &self.give_up_after {
            None => GIVE_UP_AFTER,
            // A definition that is older than this driver has let something else pass: nothing is deleted for it.
            Some(text) => super::parse_duration(text)?,
        };
        (!time.is_zero()).then_some(time)
    }
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

/// A level of the Pod Security Standards.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum PodSecurity {
    Privileged,
    #[default]
    Baseline,
    Restricted,
}

impl PodSecurity {
    /// The label of a namespace that has API servers enforce a level.
    pub const LABEL: &str = "pod-security.kubernetes.io/enforce";

    /// Its value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }
}

/// Which mapping strategies the cluster admits.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffloadRules {
    /// Allowed naming strategies; all, if none is listed.
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

fn keys(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 64,
        "items": {"type": "string", "maxLength": 317, "pattern": r"^([-a-z0-9.]+/)?[-A-Za-z0-9_.]*\*?$", "minLength": 2},
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
