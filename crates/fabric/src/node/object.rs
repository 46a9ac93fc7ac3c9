//! The desired labels, taints and status of a virtual node, and the patches that establish them. Labels and taints of
//! others are not changed.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    Endpoint,
    count::{COMMON_LABELS, Counted},
};
use crate::{
    api::{fabric::Fabric, remote_cluster::VirtualNodeStatus},
    cluster::short,
    offload::same_amount,
    topology::FABRIC_NODE,
};

const TAINT: &str = "virtual-node.liqo.io/not-allowed";
pub(super) const KIND: &str = "liqo.io/type";
pub(super) const VIRTUAL: &str = "virtual-node";
/// Annotation with the labels and taints that the fabric has set, so that it can remove them.
const OURS: &str = "fabric.storage.liqo.io/ours";
/// Prefixes of taints that Kubernetes sets and removes, or by which an administrator declares a node out of service.
const KUBERNETES: [&str; 2] = ["node.kubernetes.io/", "node.cloudprovider.kubernetes.io/"];

/// The `Ready` condition of the node.
pub(super) struct Health {
    pub(super) status: &'static str,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// The labels and taints that the fabric sets on the node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Marks {
    labels: BTreeMap<String, String>,
    /// Labels that the cluster suggests: those that an administrator here has set take precedence.
    suggested: BTreeMap<String, String>,
    /// No two with the same key and effect.
    taints: Vec<Taint>,
}

/// The value of the annotation [`OURS`].
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Ours {
    #[serde(default)]
    labels: BTreeSet<String>,
    /// Each as `key:effect`.
    #[serde(default)]
    taints: BTreeSet<String>,
}

impl Marks {
    pub(super) fn of(name: &str, cluster: &str, fabric: &Fabric, counted: &Counted) -> Self {
        let own = [
            ("kubernetes.io/hostname", name),
            ("kubernetes.io/role", "agent"),
            ("type", "virtual-kubelet"),
            (KIND, VIRTUAL),
            ("liqo.io/remote-cluster-id", cluster),
            ("node.kubernetes.io/exclude-from-external-load-balancers", "true"),
            ("alpha.service-controller.kubernetes.io/exclude-balancer", "true"),
            ("node.kubernetes.io/exclude-disruption", "true"),
            (FABRIC_NODE, cluster),
        ];
        // Later entries take precedence: the labels of the nodes over the configured ones, and our own over both.
        let mut labels = fabric.labels.clone();
        labels.extend(counted.uniform.clone());
        // Kubelets set both, and pods of older charts select the second.
        for key in COMMON_LABELS {
            if let Some(value) = labels.get(key).cloned() {
                labels.entry(format!("beta.{key}")).or_insert(value);
            }
        }
        labels.extend(own.map(|(key, value)| (key.to_owned(), value.to_owned())));
        let mut suggested = counted.suggested.clone();
        suggested.retain(|key, _| !labels.contains_key(key));
        let taint = |key: &str, value: Option<&str>, effect: &str| Taint {
            key: key.to_owned(),
            value: value.map(str::to_owned),
            effect: effect.to_owned(),
            time_added: None,
        };
        let mut taints = vec![taint(TAINT, Some("true"), "NoExecute")];
        for it in fabric.taints.iter().filter(|it| it.key != TAINT) {
            let further = taint(&it.key, it.value.as_deref(), it.effect.name());
            if !taints.iter().any(|it| identity(it) == identity(&further)) {
                taints.push(further);
            }
        }
        Self {
            labels,
            suggested,
            taints,
        }
    }

    /// The labels to set, where `others` has set these keys already.
    fn labels_to_set(&self, others: impl Fn(&str) -> bool) -> BTreeMap<&str, &str> {
        let suggested = self.suggested.iter().filter(|(key, _)| !others(key.as_str()));
        let all = suggested.chain(&self.labels);
        all.map(|(key, value)| (key.as_str(), value.as_str())).collect()
    }

    fn ours(&self, labels: &BTreeMap<&str, &str>) -> Ours {
        Ours {
            labels: labels.keys().map(|&key| key.to_owned()).collect(),
            taints: self.taints.iter().map(identity).collect(),
        }
    }

    /// A new node, with what others had set on the previous one.
    pub(super) fn new_node(&self, name: &str, before: &VirtualNodeStatus) -> Value {
        let own = self.labels_to_set(|key| before.labels.contains_key(key));
        let ours = self.ours(&own);
        let kept = before.labels.iter();
        let mut labels: BTreeMap<&str, &str> =
            kept.map(|(key, value)| (key.as_str(), value.as_str())).collect();
        labels.extend(own);
        let kept = before.taints.iter();
        let kept = kept.filter(|it| !ours.taints.contains(&format!("{}:{}", it.key, it.effect)));
        let taints: Vec<Value> = self
            .taints
            .iter()
            .map(|it| json!(it))
            .chain(kept.map(|it| json!(it)))
            .collect();
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": labels, "annotations": {OURS: json!(ours).to_string()}},
            "spec": {"taints": taints, "unschedulable": before.unschedulable.then_some(true)},
        })
    }

    /// The patch of labels and taints, if they differ. It replaces the list of taints, so it fails if the node has
    /// changed meanwhile.
    pub(super) fn changes(&self, node: &Node) -> Option<Value> {
        let (before, has) = (ours_on(node), node.labels());
        let own = self.labels_to_set(|key| has.contains_key(key) && !before.labels.contains(key));
        let ours = self.ours(&own);
        let mut labels: BTreeMap<&str, Option<&str>> = own
            .into_iter()
            .filter(|(key, value)| has.get(*key).map(String::as_str) != Some(*value))
            .map(|(key, value)| (key, Some(value)))
            .collect();
        let dropped = before.labels.iter().filter(|key| !ours.labels.contains(*key));
        labels.extend(
            dropped
                .filter(|key| has.contains_key(*key))
                .map(|key| (key.as_str(), None)),
        );
        let mut taints: Vec<&Taint> = taints_of(node)
            .filter(|it| !before.taints.contains(&identity(it)) && !ours.taints.contains(&identity(it)))
            .collect();
        taints.extend(&self.taints);
        let (now, wanted): (BTreeSet<_>, BTreeSet<_>) = (
            taints_of(node).map(as_tuple).collect(),
            taints.iter().copied().map(as_tuple).collect(),
        );
        if labels.is_empty() && now == wanted && before == ours {
            return None;
        }
        let mut patch = json!({"metadata": {
            "uid": node.uid(), "resourceVersion": node.resource_version(),
            "labels": labels, "annotations": {OURS: json!(ours).to_string()},
        }});
        if now != wanted {
            patch["spec"] = json!({"taints": taints});
        }
        Some(patch)
    }

    /// What others have set on the node, to be set on the next one.
    pub(super) fn of_others(&self, node: &Node) -> VirtualNodeStatus {
        let before = ours_on(node);
        let is_ours = |key: &String| before.labels.contains(key) || self.labels.contains_key(key);
        let our_taints: BTreeSet<String> = self.taints.iter().map(identity).collect();
        let labels = node.labels().iter().filter(|(key, _)| !is_ours(key));
        let taints = taints_of(node).filter(|it| {
            let id = identity(it);
            let is_kubernetes = KUBERNETES.iter().any(|prefix| it.key.starts_with(prefix));
            !is_kubernetes && !before.taints.contains(&id) && !our_taints.contains(&id)
        });
        let spec = node.spec.as_ref();
        VirtualNodeStatus {
            cluster_uid: None,
            port: None,
            cluster_labels: BTreeMap::new(),
            labels: labels.map(|(key, value)| (key.clone(), value.clone())).collect(),
            taints: taints.map(crate::api::remote_cluster::KeptTaint::from).collect(),
            unschedulable: spec.and_then(|it| it.unschedulable).unwrap_or_default(),
        }
    }
}

fn ours_on(node: &Node) -> Ours {
    let ours = node.annotations().get(OURS);
    ours.and_then(|it| serde_json::from_str(it).ok())
        .unwrap_or_default()
}

fn taints_of(node: &Node) -> impl Iterator<Item = &Taint> {
    node.spec.iter().flat_map(|it| it.taints.iter().flatten())
}

/// Two taints with the same key and effect are one.
fn identity(taint: &Taint) -> String {
    format!("{}:{}", taint.key, taint.effect)
}

fn as_tuple(taint: &Taint) -> (&str, &str, &str) {
    let value = taint.value.as_deref().unwrap_or_default();
    (&taint.key, value, &taint.effect)
}

pub(super) fn status(
    node: &Node,
    endpoint: Option<&Endpoint>,
    counted: &Counted,
    health: &Health,
    version: Option<String>,
) -> Value {
    let now = format!("{:.0}", Timestamp::now());
    let problem = counted.problem.iter().map(|why| format!("; {why}"));
    let message: String = [health.message.clone()].into_iter().chain(problem).collect();
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        let mut before = node.status.iter().flat_map(|it| it.conditions.iter().flatten());
        let before = before.find(|it| it.type_ == kind && it.status == status);
        let since = before.and_then(|it| it.last_transition_time.as_ref());
        let since = since.map_or_else(|| now.clone(), |it| format!("{:.0}", it.0));
        json!({
            "type": kind, "status": status, "reason": reason, "message": short(message),
            "lastHeartbeatTime": now, "lastTransitionTime": since,
        })
    };
    let fine = |kind| condition(kind, "False", "RemoteCluster", "it represents a cluster");
    let mut status = json!({
        "conditions": [
            condition("Ready", health.status, health.reason, &message),
            fine("MemoryPressure"), fine("DiskPressure"), fine("PIDPressure"), fine("NetworkUnavailable"),
        ],
        "nodeInfo": {
            "operatingSystem": counted.uniform.get("kubernetes.io/os").map_or("linux", String::as_str),
            "architecture": counted.uniform.get("kubernetes.io/arch").map_or("", String::as_str),
            "kubeletVersion": version.unwrap_or_default(),
            "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
            "machineID": "", "osImage": "", "systemUUID": "",
        },
    });
    // While the capacity is unknown, the last one stays.
    if let Some(amounts) = &counted.amounts {
        status["capacity"] = json!(amounts);
        status["allocatable"] = json!(amounts);
    }
    if let Some(features) = &counted.features {
        status["declaredFeatures"] = json!(features);
    }
    // No host name: the API server would prefer it to the address. Without a port no address either: the API of another
    // node would answer there.
    let addresses = endpoint.map(|it| json!({"type": "InternalIP", "address": it.address}));
    status["addresses"] = addresses.into_iter().collect();
    let port = endpoint.map_or(0, |it| it.port);
    status["daemonEndpoints"] = json!({"kubeletEndpoint": {"Port": port}});
    status
}

/// The strategic merge patch that establishes the status: it removes resources that are not offered any more, and
/// other addresses.
pub(super) fn status_patch(node: &Node, status: &Value) -> Value {
    let mut wanted = status.clone();
    let now = json!(node.status);
    for field in ["capacity", "allocatable"] {
        if status.get(field).is_none() {
            continue;
        }
        let had = now[field].as_object().into_iter().flatten();
        let gone: Vec<&String> = had
            .map(|(name, _)| name)
            .filter(|it| status[field].get(it).is_none())
            .collect();
        for name in gone {
            wanted[field][name] = Value::Null;
        }
    }
    let has_some = now["addresses"].as_array().is_some_and(|it| !it.is_empty());
    if let Some(addresses) = wanted["addresses"].as_array_mut().filter(|_| has_some) {
        addresses.push(json!({"$patch": "replace"}));
    }
    json!({"metadata": {"uid": node.uid()}, "status": wanted})
}

/// Whether the status differs in more than its times.
pub(super) fn differs(node: &Node, status: &Value) -> bool {
    let timeless = |status: &Value| {
        let mut conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        for condition in &mut conditions {
            condition["lastHeartbeatTime"] = Value::Null;
            condition["lastTransitionTime"] = Value::Null;
        }
        conditions
    };
    let now = json!(node.status);
    let conditions = timeless(&now);
    let mut fields = status.as_object().into_iter().flatten();
    fields.any(|(field, value)| match field.as_str() {
        "conditions" => timeless(status).iter().any(|one| !conditions.contains(one)),
        "capacity" | "allocatable" => !same_amounts(&now[field], value),
        "addresses" => {
            now[field].as_array().unwrap_or(&Vec::new()) != value.as_array().unwrap_or(&Vec::new())
        }
        "daemonEndpoints" => port_in(&now[field]) != port_in(value),
        // The typed `Node` does not have it; it is written with the next heartbeat.
        "declaredFeatures" => false,
        _ => now[field] != *value,
    })
}

/// The port that a node names; 0 for none.
fn port_in(endpoints: &Value) -> u64 {
    endpoints["kubeletEndpoint"]["Port"].as_u64().unwrap_or_default()
}

/// Whether two lists have the same amounts, possibly in other units.
fn same_amounts(a: &Value, b: &Value) -> bool {
    let empty = serde_json::Map::new();
    let (a, b) = (a.as_object().unwrap_or(&empty), b.as_object().unwrap_or(&empty));
    a.len() == b.len()
        && a.iter().all(|(name, amount)| {
            let (one, other) = (amount.as_str(), b.get(name).and_then(Value::as_str));
            matches!((one, other), (Some(one), Some(other)) if same_amount(one, other))
        })
}

#[cfg(test)]
mod tests;
