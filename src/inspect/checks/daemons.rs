//! `DaemonSets` whose pods Kubernetes creates for virtual nodes. The pods never start there, and rollouts on
//! real nodes wait for them.

use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{PodSpec, Toleration},
};
use kube::ResourceExt;

use super::{Finding, Installation};
use crate::{
    api::{fabric::TaintEffect, remote_cluster::RemoteCluster},
    cluster::facts,
    inspect::names::full_name,
    topology::{Labels, Node},
};

const TAINT: (&str, &str, &str) = ("virtual-node.liqo.io/not-allowed", "true", "NoExecute");
/// How many clusters are named.
const MOST_NAMED: usize = 3;

/// A virtual node that the fabric has created or will create.
struct Virtual {
    cluster: String,
    node: Node,
    /// Key, value and effect.
    taints: Vec<(String, String, String)>,
}

/// No `DaemonSet` creates pods for virtual nodes of the fabric.
pub(super) fn virtual_nodes(installation: &Installation) -> Vec<Finding> {
    let clusters = installation.offloading.clusters.iter();
    let nodes: Vec<Virtual> = clusters.filter_map(|it| node_of(it, installation)).collect();
    let daemons = installation.offloading.daemons.iter();
    daemons.filter_map(|daemon| unprotected(daemon, &nodes)).collect()
}

fn unprotected(daemon: &DaemonSet, nodes: &[Virtual]) -> Option<Finding> {
    let pod = daemon.spec.as_ref()?.template.spec.as_ref()?;
    let mut on: Vec<&str> = nodes
        .iter()
        .filter(|node| runs_on(pod, node))
        .map(|node| node.cluster.as_str())
        .collect();
    if on.is_empty() {
        return None;
    }
    let more = on.len().saturating_sub(MOST_NAMED);
    on.truncate(MOST_NAMED);
    let and = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    Some(Finding::warning(
        format!("DaemonSet {}", full_name(daemon)),
        format!(
            "It tolerates virtual nodes, and no affinity excludes those of {}{and}: its pods there never start, and its \
             rollouts wait for them.",
            on.join(", ")
        ),
        "Give its template the node affinity liqo.io/type NotIn [virtual-node]. Or set the chart's value \
         fabric.keepDaemonSetsOff, and then kubectl rollout restart it; see docs/offloading-reference.md#daemonsets.",
    ))
}

/// The virtual node of a cluster, if the fabric creates one.
fn node_of(cluster: &RemoteCluster, installation: &Installation) -> Option<Virtual> {
    let fabric = cluster.spec.fabric.as_ref()?;
    if cluster.spec.node_selector.is_some() {
        return None;
    }
    let name = fabric.node_name.clone().unwrap_or_else(|| cluster.name_any());
    let there = installation.storage.nodes.iter().find(|it| it.name == name);
    let node = there
        .cloned()
        .unwrap_or_else(|| planned_node(&name, &fabric.labels));
    let owned = |(key, value, effect): (&str, &str, &str)| (key.into(), value.into(), effect.into());
    let others = fabric.taints.iter().map(|taint| {
        let effect = match taint.effect {
            TaintEffect::NoSchedule => "NoSchedule",
            TaintEffect::PreferNoSchedule => "PreferNoSchedule",
            TaintEffect::NoExecute => "NoExecute",
        };
        owned((&taint.key, taint.value.as_deref().unwrap_or_default(), effect))
    });
    Some(Virtual {
        cluster: cluster.name_any(),
        node,
        taints: others.chain([owned(TAINT)]).collect(),
    })
}

/// The node as the fabric will create it. Most clusters have this operating system.
fn planned_node(name: &str, labels: &Labels) -> Node {
    let own = [
        ("liqo.io/type", "virtual-node"),
        ("type", "virtual-kubelet"),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/hostname", name),
    ];
    let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
    Node {
        name: name.to_owned(),
        labels: labels.clone().into_iter().chain(own).collect(),
        ..Node::default()
    }
}

/// Whether the node selector and the affinity of a pod admit a node.
pub(super) fn is_meant_for(pod: &PodSpec, node: &Node) -> bool {
    let has = |(key, value): (&String, &String)| node.labels.get(key) == Some(value);
    let is_selected = pod.node_selector.iter().flatten().all(has);
    let required = pod
        .affinity
        .as_ref()
        .and_then(|it| it.node_affinity.as_ref())
        .and_then(|it| it.required_during_scheduling_ignored_during_execution.as_ref());
    is_selected && required.is_none_or(|it| facts::node_selector(it).admits(node))
}

/// Whether the `DaemonSet` controller would create the pod on a node.
fn runs_on(pod: &PodSpec, at: &Virtual) -> bool {
    let tolerated = |taint: &(String, String, String)| {
        let mut tolerations = pod.tolerations.iter().flatten();
        taint.2 == "PreferNoSchedule" || tolerations.any(|it| tolerates(it, taint))
    };
    is_meant_for(pod, &at.node) && at.taints.iter().all(tolerated)
}

fn tolerates(toleration: &Toleration, (key, value, effect): &(String, String, String)) -> bool {
    let named = |text: &Option<String>| text.clone().unwrap_or_default();
    let (its_key, its_effect) = (named(&toleration.key), named(&toleration.effect));
    let is_meant = its_effect.is_empty() || its_effect == *effect;
    is_meant
        && match toleration.operator.as_deref() {
            Some("Exists") => its_key.is_empty() || its_key == *key,
            _ => its_key == *key && named(&toleration.value) == *value,
        }
}
