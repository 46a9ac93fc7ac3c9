//! The ports of the kubelet's API: one for each virtual node, recorded in the status of its `RemoteCluster`, so that
//! all replicas know which node a port belongs to.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use kube::ResourceExt;

use super::node;
use crate::{
    api::remote_cluster::RemoteCluster,
    cluster::has_finalizer,
    offload::{Port, assigned},
};

/// Where API servers call this process.
#[derive(Clone, Debug)]
pub(super) struct Endpoints {
    /// The address of this pod, if it is known.
    pub(super) address: Option<IpAddr>,
    /// All ports that it listens on.
    pub(super) ports: Arc<[u16]>,
}

/// The port of this cluster's virtual node, if one is left for it.
pub(super) fn port_of(clusters: &[Arc<RemoteCluster>], ports: &[u16], cluster: &str) -> Option<Port> {
    assign(clusters, ports).remove(cluster)
}

/// The virtual node that has this port.
pub(super) fn node_at(clusters: &[Arc<RemoteCluster>], ports: &[u16], port: u16) -> Option<String> {
    let assigned = assign(clusters, ports);
    let (name, _) = assigned.iter().find(|(_, its)| **its == Port::Recorded(port))?;
    clusters.iter().find(|it| it.name_any() == *name)?.fabric_node()
}

/// The ports of all virtual nodes, by their clusters, the oldest cluster first.
fn assign(clusters: &[Arc<RemoteCluster>], ports: &[u16]) -> BTreeMap<String, Port> {
    let with_node = clusters.iter().filter(|it| has_node(it));
    let mut all: Vec<_> = with_node
        .map(|it| (it.creation_timestamp(), it.name_any(), remembered(it)))
        .collect();
    all.sort();
    let all: Vec<_> = all.iter().map(|(_, name, port)| (name.as_str(), *port)).collect();
    let assigned = assigned(ports, &all).into_iter();
    assigned.map(|(name, port)| (name.to_owned(), port)).collect()
}

/// Whether the fabric creates a node for the cluster and has not deleted it for good. A cluster
/// that only has finalizers of others left needs no port.
fn has_node(cluster: &RemoteCluster) -> bool {
    let is_gone = cluster.metadata.deletion_timestamp.is_some() && !has_finalizer(cluster, node::FINALIZER);
    cluster.fabric_node().is_some() && !is_gone
}

fn remembered(cluster: &RemoteCluster) -> Option<u16> {
    cluster.status.as_ref()?.virtual_node.as_ref()?.port
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const PORTS: [u16; 2] = [9829, 9830];

    fn cluster(name: &str, year: u16, spec: &Value, port: Option<u16>) -> Arc<RemoteCluster> {
        let mut object = json!({
            "apiVersion": "storage.liqo.io/v1alpha1", "kind": "RemoteCluster",
            "metadata": {"name": name, "creationTimestamp": format!("{year}-01-01T00:00:00Z")},
            "spec": {"kubeconfigSecretRef": {"name": name}},
            "status": {"virtualNode": {"port": port}},
        });
        object["spec"]
            .as_object_mut()
            .unwrap()
            .extend(spec.as_object().unwrap().clone());
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn ours(name: &str, year: u16, port: Option<u16>) -> Arc<RemoteCluster> {
        cluster(
            name,
            year,
            &json!({"fabric": {"nodeName": format!("to-{name}")}}),
            port,
        )
    }

    #[test]
    fn a_port_belongs_to_the_node_whose_cluster_has_recorded_it() {
        let all = [ours("milan", 2026, Some(9830)), ours("rome", 2025, None)];
        assert_eq!(node_at(&all, &PORTS, 9830).as_deref(), Some("to-milan"));
        // It is not recorded yet: another cluster might get it.
        assert_eq!(node_at(&all, &PORTS, 9829), None);
        assert_eq!(port_of(&all, &PORTS, "rome"), Some(Port::Free(9829)));
        // This process does not listen on it.
        assert_eq!(node_at(&all, &PORTS[..1], 9830), None);
    }

    #[test]
    fn the_older_cluster_gets_a_port_that_two_have_recorded() {
        let all = [ours("milan", 2026, Some(9829)), ours("rome", 2025, Some(9829))];
        assert_eq!(node_at(&all, &PORTS, 9829).as_deref(), Some("to-rome"));
        assert_eq!(port_of(&all, &PORTS, "milan"), Some(Port::Free(9830)));
    }

    #[test]
    fn nodes_of_other_fabrics_need_no_port() {
        let others = cluster(
            "rome",
            2025,
            &json!({"fabric": {}, "nodeSelector": {"matchLabels": {"to": "rome"}}}),
            Some(9829),
        );
        let plain = cluster("turin", 2025, &json!({"nodeSelector": {"matchLabels": {}}}), None);
        let all = [others, plain, ours("milan", 2026, None)];
        assert_eq!(port_of(&all, &PORTS, "milan"), Some(Port::Free(9829)));
        assert_eq!(port_of(&all, &PORTS, "rome"), None);
        assert_eq!(node_at(&all, &PORTS, 9829), None);
    }

    #[test]
    fn a_cluster_that_is_being_deleted_keeps_its_port_until_its_node_is_deleted() {
        let leaving = |finalizers: &[&str]| {
            let mut cluster = RemoteCluster::clone(&ours("rome", 2025, Some(9829)));
            cluster.metadata.deletion_timestamp = cluster.metadata.creation_timestamp.clone();
            cluster.metadata.finalizers = Some(finalizers.iter().map(|&it| it.to_owned()).collect());
            Arc::new(cluster)
        };
        let others = "storage.liqo.io/volumes";
        let all = [leaving(&[others, node::FINALIZER]), ours("milan", 2026, None)];
        assert_eq!(node_at(&all, &PORTS[..1], 9829).as_deref(), Some("to-rome"));
        assert_eq!(port_of(&all, &PORTS[..1], "milan"), None);
        let all = [leaving(&[others]), ours("milan", 2026, None)];
        assert_eq!(node_at(&all, &PORTS[..1], 9829), None);
        assert_eq!(port_of(&all, &PORTS[..1], "milan"), Some(Port::Free(9829)));
    }
}
