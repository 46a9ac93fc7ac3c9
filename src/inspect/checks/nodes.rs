//! Nodes: whether kubelets know the driver, the labels are right, and the scheduler sees capacity.

use std::collections::BTreeSet;

use k8s_openapi::api::{core::v1::Pod, storage::v1::CSINode};
use kube::ResourceExt;

use super::{
    Finding, Installation,
    classes::{ours, pairs, title},
    daemons::is_meant_for,
};
use crate::{
    cluster::facts,
    fleet::is_virtual,
    inspect::names::full_name,
    placement::BindingMode,
    topology::{CLUSTER_KEY, NODE_KEY, Node, node_value},
    volume::DRIVER_NAME,
};

fn serves(csi_node: Option<&CSINode>, driver: &str) -> bool {
    csi_node.is_some_and(|it| it.spec.drivers.iter().any(|entry| entry.name == driver))
}

fn plugin_on<'a>(installation: &'a Installation, node: &Node) -> Option<&'a Pod> {
    let is_plugin = |pod: &&Pod| {
        pod.labels()
            .get("app.kubernetes.io/component")
            .is_some_and(|it| it == "node")
    };
    let is_there =
        |pod: &&Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&node.name);
    installation.pods.iter().filter(is_plugin).find(is_there)
}

/// On real nodes, kubelet knows the driver and its label is right.
pub(super) fn registration(installation: &Installation) -> Vec<Finding> {
    if !installation.csi_nodes.is_complete() {
        return Vec::new();
    }
    let real = installation.storage.nodes.iter().filter(|node| !is_virtual(node));
    let (left_out, others): (Vec<&Node>, Vec<&Node>) = real.partition(|node| is_left_out(installation, node));
    let of_others = others
        .into_iter()
        .filter_map(|node| unregistered(installation, node).or_else(|| mislabelled(installation, node)));
    of_others.chain(without_plugin(&left_out)).collect()
}

/// Whether the chart keeps the node plugin off the node, as on Windows and on Fargate.
fn is_left_out(installation: &Installation, node: &Node) -> bool {
    let plugins = installation.node_plugins.iter();
    let mut pods = plugins
        .filter_map(|set| set.spec.as_ref()?.template.spec.as_ref())
        .peekable();
    pods.peek().is_some()
        && !pods.any(|pod| is_meant_for(pod, node))
        && !serves(installation.csi_nodes.named(None, &node.name), DRIVER_NAME)
}

fn without_plugin(nodes: &[&Node]) -> Option<Finding> {
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    (!names.is_empty()).then(|| {
        Finding::note(
            format!("Driver {DRIVER_NAME}"),
            format!(
                "The node plugin leaves out {}: pods there have no volumes of this driver.",
                list(&names)
            ),
            "If they should: see the chart's values node.nodeSelector and virtualNodes.",
        )
    })
}

fn unregistered(installation: &Installation, node: &Node) -> Option<Finding> {
    if serves(installation.csi_nodes.named(None, &node.name), DRIVER_NAME) {
        return None;
    }
    let title = format!("Node {}", node.name);
    let effect =
        "its CSINode has no entry of the driver: volumes can neither be created nor mounted for pods there";
    Some(match plugin_on(installation, node) {
        None if !installation.pods.is_complete() => Finding::error(
            title,
            format!("Kubelet does not know the driver; {effect}."),
            "See the node plugin's pod on this node.",
        ),
        None => Finding::warning(
            title,
            format!("No pod of the node plugin runs there; {effect}."),
            "If pods with volumes may run there: see the chart's values node.nodeSelector and virtualNodes, whether the pod could not be scheduled for lack of resources, and the events of its DaemonSet: Pod Security may forbid privileged pods.",
        ),
        Some(pod) => Finding::error(
            title,
            format!(
                "Kubelet does not know the driver, though the pod {} runs there; {effect}.",
                full_name(pod)
            ),
            format!(
                "See its log (kubectl logs -n {} {}) and kubelet's about plugin registration; kubelet's root must be the chart's value kubeletRoot.",
                pod.namespace().unwrap_or_default(),
                pod.name_any()
            ),
        ),
    })
}

fn mislabelled(installation: &Installation, node: &Node) -> Option<Finding> {
    let home = installation.storage.home.as_ref()?.to_string();
    let wanted = [(CLUSTER_KEY, home), (NODE_KEY, node_value(&node.name))];
    let (key, value) = wanted
        .into_iter()
        .find(|(key, value)| node.labels.get(*key) != Some(value))?;
    let now = node
        .labels
        .get(key)
        .map_or_else(|| "is missing".to_owned(), |it| format!("is {it}"));
    Some(Finding::error(
        format!("Node {}", node.name),
        format!("Its label {key} {now} and should be {value}: volumes are not created for pods there."),
        format!(
            "kubectl label node {} {key}- and restart the node plugin there: kubelet sets it again.",
            node.name
        ),
    ))
}

/// On virtual nodes, the controller announces the driver in the `CSINode`.
pub(super) fn virtual_nodes(installation: &Installation) -> Vec<Finding> {
    if !installation.csi_nodes.is_complete() {
        return Vec::new();
    }
    let nodes = installation.storage.nodes.iter().filter(|node| is_virtual(node));
    nodes
        .filter(|node| !serves(installation.csi_nodes.named(None, &node.name), DRIVER_NAME))
        .map(|node| {
            Finding::warning(
                format!("Node {}", node.name),
                "It is virtual, and its CSINode has no entry of the driver: claims of pods that are scheduled there stay Pending.",
                "Keep pods with such claims away from it (node affinity), unless the controller is set up to serve its cluster; then see the controller's log.",
            )
        })
        .collect()
}

/// The node plugin is deployed and ready on its nodes.
pub(super) fn plugins(installation: &Installation) -> Vec<Finding> {
    if installation.node_plugins.lacks(|_| true) {
        return vec![Finding::error(
            format!("Driver {DRIVER_NAME}"),
            "There is no node plugin (no DaemonSet with the label app.kubernetes.io/name=liqo-csi): nothing can be mounted.",
            "Install the chart.",
        )];
    }
    let short = installation.node_plugins.iter().filter_map(|set| {
        let status = set.status.as_ref()?;
        let (wanted, ready) = (status.desired_number_scheduled, status.number_ready);
        let object = format!("DaemonSet {}", full_name(set));
        let problem = format!(
            "{ready} of {wanted} pods of the node plugin are ready: pods elsewhere wait for their volumes."
        );
        if ready == 0 && wanted > 0 {
            let fix = "See its events, if it has no pods, and its pods.";
            return Some(Finding::error(object, problem, fix));
        }
        (ready < wanted).then(|| Finding::warning(object, problem, "See its pods."))
    });
    short.collect()
}

/// The real driver of each virtual class runs on some node.
pub(super) fn real_drivers(installation: &Installation) -> Vec<Finding> {
    if !installation.csi_nodes.is_complete() || installation.storage.nodes.iter().len() == 0 {
        return Vec::new();
    }
    let mut seen = BTreeSet::new();
    let mut findings = Vec::new();
    for (_, real) in pairs(installation) {
        let name = real.provisioner.as_str();
        // Without a CSIDriver object it may be an in-tree provisioner.
        let known = installation.drivers.named(None, name).is_some();
        let runs = installation.csi_nodes.iter().any(|node| serves(Some(node), name));
        if known && !runs && seen.insert(name) {
            findings.push(Finding::error(
                format!("CSIDriver {name}"),
                format!(
                    "No kubelet knows the real driver behind the class {}: none of its volumes can be mounted.",
                    real.name_any()
                ),
                "See its node plugin.",
            ));
        }
    }
    findings
}

/// The scheduler ignores every node for which no capacity is published.
pub(super) fn capacity(installation: &Installation) -> Vec<Finding> {
    let counts = installation
        .drivers
        .named(None, DRIVER_NAME)
        .is_some_and(|it| it.spec.storage_capacity == Some(true));
    if !counts || !installation.capacities.is_complete() {
        return Vec::new();
    }
    let published: Vec<_> = installation.capacities.iter().map(facts::capacity).collect();
    let mut findings = Vec::new();
    for class in
        ours(installation).filter(|class| facts::class(class).binding == BindingMode::WaitForFirstConsumer)
    {
        let sees = |node: &Node| {
            let mut of_class = published.iter().filter(|it| it.class == class.name_any());
            of_class.any(|it| it.nodes.as_ref().is_none_or(|nodes| nodes.admits(&node.labels)))
        };
        let known = installation
            .storage
            .nodes
            .iter()
            .filter(|node| node.labels.contains_key(CLUSTER_KEY));
        let hidden: Vec<&str> = known
            .filter(|node| !sees(node))
            .map(|node| node.name.as_str())
            .collect();
        if !hidden.is_empty() {
            findings.push(Finding::error(
                title(class),
                format!("No CSIStorageCapacity of it covers {}: the scheduler never selects that node for its claims.", list(&hidden)),
                "The controller publishes them: see its log.",
            ));
        }
    }
    findings
}

/// The first of the names, and the number of the others.
fn list(names: &[&str]) -> String {
    const SHOWN: usize = 5;
    let shown = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => format!("node {shown}"),
        more => format!("node {shown} and {more} more"),
    }
}
