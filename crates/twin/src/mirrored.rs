//! Virtual nodes that represent one node of their cluster with the same name, as in the one-to-one leaf
//! model of Kosmos. Pods arrive there with `spec.nodeName`, so that no scheduler there selects a node for
//! a claim: this driver does, and keeps later pods away from nodes that do not reach the volume.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use super::{Site, reading};
use crate::topology::{CLUSTER_KEY, Node, NodeSelector, Segments};

/// The label that identifies a node in scheduling.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The node of the remote cluster for which the volume of a claim is created, if the virtual node
/// selected for the claim represents exactly that node.
pub(super) fn selected<'a>(site: &Site, claim: Option<&'a PersistentVolumeClaim>) -> Option<&'a str> {
    let selected = reading::selected_node(claim?)?;
    represents_one(site, selected).then_some(selected)
}

fn represents_one(site: &Site, node: &str) -> bool {
    may_represent_one(site) && site.cluster().views().nodes.get(node).is_some()
}

fn may_represent_one(site: &Site) -> bool {
    let fabric = site.remote_cluster().and_then(|remote| remote.fabric);
    fabric.is_some_and(|fabric| fabric.mirrors_nodes)
}

/// From where at home a volume of the remote cluster is accessible: from the whole cluster, unless some
/// of its nodes have virtual nodes of their own and do not reach the volume.
pub(super) fn places(site: &Site, affinity: Option<&NodeSelector>) -> Vec<Segments> {
    let anywhere = Segments::of_cluster(site.cluster().id());
    let Some(affinity) = affinity.filter(|_| may_represent_one(site)) else {
        return vec![anywhere];
    };
    let mut nodes = reading::nodes(site.home());
    nodes.retain(|node| {
        let cluster = node.labels.get(CLUSTER_KEY).map(String::as_str);
        cluster == Some(site.cluster().id().as_str()) && represents_one(site, &node.name)
    });
    let reaches = |node: &&Node| {
        let represented = site.cluster().views().nodes.get(&node.name);
        represented.is_some_and(|node| affinity.admits(&node))
    };
    let reaching: Vec<&Node> = nodes.iter().filter(reaches).collect();
    if reaching.len() == nodes.len() {
        return vec![anywhere];
    }
    let hostnames = reaching.iter().filter_map(|node| node.labels.get(HOSTNAME));
    let places: BTreeSet<Segments> = hostnames
        .map(|name| anywhere.clone().with(HOSTNAME, name))
        .collect();
    places.into_iter().collect()
}
