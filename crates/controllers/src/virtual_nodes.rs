//! Makes virtual nodes usable for the scheduler and csi-provisioner: no kubelet registers this driver
//! there, so this loop writes the label and the `CSINode` entry by which both know where volumes can be.
//! Repairs both, and removes them when a node no longer represents a cluster.

use std::time::Duration;

use k8s_openapi::{
    api::{
        core::v1::Node as KubeNode,
        storage::v1::{CSINode, CSINodeDriver, CSINodeSpec},
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{ResourceExt, api::ObjectMeta};
use serde_json::json;
use tokio::{sync::watch, time::Instant};

use crate::{
    cluster::{
        ApiError, Cluster,
        slim::CsiNode,
        view::{Changed, Feed},
    },
    fleet::{NodeKind, Registry},
    observe::crash::{self, Step},
    queue::Queue,
    rounds::Rounds,
    topology::{CLUSTER_KEY, NODE_KEY, Node, VIRTUAL_NODE},
    volume::{ClusterId, DRIVER_NAME},
};

/// The loop for virtual nodes.
pub(super) struct VirtualNodes<'a> {
    reconciler: Reconciler<'a>,
    nodes: Feed<Node>,
    csi_nodes: Feed<CsiNode>,
    clusters: watch::Receiver<u64>,
    /// When to reconcile all nodes again.
    all: Instant,
    /// The nodes to reconcile.
    queue: Queue,
    has_failed: bool,
}

/// Reconciles one node.
struct Reconciler<'a> {
    home: &'a Cluster,
    registry: &'a Registry,
}

/// What to do about a node.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NodeChange {
    /// The node represents this cluster: write the label and the entry.
    Mark(ClusterId),
    /// The node does not represent a cluster any more: remove them.
    Unmark,
}

impl<'a> VirtualNodes<'a> {
    pub(super) fn new(home: &'a Cluster, registry: &'a Registry) -> Self {
        let views = home.views();
        Self {
            reconciler: Reconciler { home, registry },
            nodes: views.nodes.feed(),
            csi_nodes: views.csi_nodes.feed(),
            clusters: registry.changes(),
            all: Instant::now(),
            queue: Queue::default(),
            has_failed: false,
        }
    }

    /// Queues the nodes about which something has changed; all of them after a change of a cluster, a new
    /// list, or the resync interval.
    fn queue_changes(&mut self) {
        let has_new_clusters = self.clusters.has_changed().unwrap_or(true);
        let changes = (self.nodes.take(), self.csi_nodes.take());
        if let (Changed::These(nodes), Changed::These(csi_nodes)) = changes
            && !has_new_clusters
            && self.all > Instant::now()
        {
            let names = nodes.iter().map(|node| &node.name);
            for name in names.chain(csi_nodes.iter().map(|node| &node.node)) {
                self.queue.add(name);
            }
            return;
        }
        self.clusters.mark_unchanged();
        self.all = Instant::now() + Self::RESYNC;
        for node in self.reconciler.home.views().nodes.all() {
            self.queue.add(&node.name);
        }
    }
}

impl Reconciler<'_> {
    async fn reconcile(&self, name: &str) -> Result<(), ApiError> {
        let Some(node) = self.home.views().nodes.get(name) else {
            return Ok(());
        };
        if self.required_change(&node).is_none() {
            return Ok(());
        }
        // The view may lag: a kubelet may have registered a node of this name since.
        let Some(found) = self.home.all::<KubeNode>().get(name).await? else {
            return Ok(());
        };
        match self.required_change(&self.home.node(found.metadata.clone())) {
            Some(NodeChange::Mark(cluster)) => self.mark(&found, &cluster).await,
            Some(NodeChange::Unmark) => self.unmark(&found).await,
            None => Ok(()),
        }
    }

    /// What the node lacks, according to the views.
    fn required_change(&self, node: &Node) -> Option<NodeChange> {
        let csi_node = self.home.views().csi_nodes.get(&node.name);
        match self.registry.behind(node) {
            NodeKind::Virtual(remote) => {
                let marked = is_marked(node, &remote.id) && has_entry(csi_node.as_deref());
                (!marked).then(|| NodeChange::Mark(remote.id.clone()))
            }
            // Also if a cluster selects this node: on real nodes kubelet writes the label.
            NodeKind::Real if node.has_driver() => node
                .labels
                .contains_key(VIRTUAL_NODE)
                .then_some(NodeChange::Unmark),
            // The nodes of a cluster whose declaration was not read yet keep their labels.
            NodeKind::Real if self.registry.is_complete() => {
                // An administrator may have set the label alone.
                let ours = has_entry(csi_node.as_deref())
                    || (node.labels.contains_key(CLUSTER_KEY) && !node.labels.contains_key(NODE_KEY));
                (ours && node.labels.contains_key(VIRTUAL_NODE)).then_some(NodeChange::Unmark)
            }
            NodeKind::Real => None,
            NodeKind::Disputed(clusters) => {
                tracing::warn!(node = node.name, clusters, "several remote clusters claim a node");
                None
            }
        }
    }

    async fn mark(&self, found: &KubeNode, cluster: &ClusterId) -> Result<(), ApiError> {
        let node = &found.name_any();
        self.label(
            found,
            json!({CLUSTER_KEY: cluster.as_str(), VIRTUAL_NODE: "true"}),
        )
        .await?;
        let csi_nodes = self.home.all::<CSINode>();
        match csi_nodes.get(node).await? {
            None => {
                crash::around(Step::CsiNodeWrite, csi_nodes.create(&csi_node(found))).await?;
            }
            Some(csi_node) => {
                let others = without_ours(&csi_node);
                if others.len() < csi_node.spec.drivers.len() && !has_our_entry(&csi_node) {
                    // An entry cannot be changed, only removed and created again.
                    self.set_drivers(&csi_node, &others).await?;
                    return Ok(());
                }
                let mut drivers = others;
                drivers.push(entry(node));
                if drivers.len() > csi_node.spec.drivers.len() {
                    self.set_drivers(&csi_node, &drivers).await?;
                }
            }
        }
        tracing::info!(node, %cluster, "labelled a virtual node, and registered the driver in its CSINode");
        Ok(())
    }

    async fn unmark(&self, found: &KubeNode) -> Result<(), ApiError> {
        let node = &found.name_any();
        if let Some(csi_node) = self.home.all::<CSINode>().get(node).await?
            && has_our_entry(&csi_node)
        {
            self.set_drivers(&csi_node, &without_ours(&csi_node)).await?;
        }
        tracing::info!(
            node,
            "removed the marks of a node that no longer represents a remote cluster"
        );
        // Kubelet registers again only if it finds the label as it wrote it.
        let labels = if self.home.node(found.metadata.clone()).has_driver() {
            json!({CLUSTER_KEY: self.home.id().as_str(), VIRTUAL_NODE: null})
        } else {
            json!({CLUSTER_KEY: null, VIRTUAL_NODE: null})
        };
        self.label(found, labels).await
    }

    async fn label(&self, node: &KubeNode, labels: serde_json::Value) -> Result<(), ApiError> {
        let patch = json!({"metadata": {"uid": node.uid(), "labels": labels}});
        let (nodes, name) = (self.home.all::<KubeNode>(), node.name_any());
        let labelled = crash::around(Step::NodeLabel, nodes.merge(&name, &patch)).await;
        labelled.map(drop)
    }

    async fn set_drivers(&self, csi_node: &CSINode, drivers: &[CSINodeDriver]) -> Result<(), ApiError> {
        let patch = json!({
            "metadata": {"resourceVersion": csi_node.resource_version()},
            "spec": {"drivers": drivers},
        });
        let written = crash::around(
            Step::CsiNodeWrite,
            self.home.all::<CSINode>().merge(&csi_node.name_any(), &patch),
        )
        .await;
        match written {
            // Another driver has registered in the meantime; the next round reads again.
            Err(error) if error.is_conflict() => Ok(()),
            other => other.map(|_| ()),
        }
    }
}

fn is_marked(node: &Node, cluster: &ClusterId) -> bool {
    let cluster_label = node.labels.get(CLUSTER_KEY).map(String::as_str);
    cluster_label == Some(cluster.as_str()) && node.labels.contains_key(VIRTUAL_NODE)
}

fn has_entry(csi_node: Option<&CsiNode>) -> bool {
    csi_node.is_some_and(|node| node.our_keys.as_deref().is_some_and(|keys| keys == [CLUSTER_KEY]))
}

fn has_our_entry(csi_node: &CSINode) -> bool {
    let drivers = csi_node.spec.drivers.iter();
    drivers.filter(|driver| driver.name == DRIVER_NAME).any(|driver| {
        driver
            .topology_keys
            .as_deref()
            .is_some_and(|keys| keys == [CLUSTER_KEY])
    })
}

fn without_ours(csi_node: &CSINode) -> Vec<CSINodeDriver> {
    let drivers = csi_node.spec.drivers.iter();
    drivers
        .filter(|driver| driver.name != DRIVER_NAME)
        .cloned()
        .collect()
}

fn entry(node: &str) -> CSINodeDriver {
    CSINodeDriver {
        name: DRIVER_NAME.to_owned(),
        node_id: node.to_owned(),
        topology_keys: Some(vec![CLUSTER_KEY.to_owned()]),
        ..CSINodeDriver::default()
    }
}

/// The `CSINode`, which is deleted together with its node.
fn csi_node(node: &KubeNode) -> CSINode {
    CSINode {
        metadata: ObjectMeta {
            name: Some(node.name_any()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: node.name_any(),
                uid: node.uid().unwrap_or_default(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: CSINodeSpec {
            drivers: vec![entry(&node.name_any())],
        },
    }
}

impl Rounds for VirtualNodes<'_> {
    const NAME: &'static str = "virtual-nodes";
    const RESYNC: Duration = Duration::from_secs(30);

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        let Reconciler { home, registry } = &self.reconciler;
        let views = home.views();
        vec![
            registry.changes(),
            views.nodes.version(),
            views.csi_nodes.version(),
        ]
    }

    fn due(&self) -> Option<Duration> {
        self.queue.left()
    }

    fn has_failed(&self) -> bool {
        self.has_failed
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        self.queue_changes();
        let reconciler = &self.reconciler;
        let reconcile = async |name: String| reconciler.reconcile(&name).await;
        self.has_failed = !self.queue.work(reconcile).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::{cluster::testing::FakeApi, fleet::Link, placement::Declared};

    const NODE: &str = "/api/v1/nodes/milan";
    const CSI_NODE: &str = "/apis/storage.k8s.io/v1/csinodes/milan";

    fn registry() -> Registry {
        Registry::fixed([(Declared::plain("milan"), Link::Connecting(String::new()))])
    }

    async fn round(api: &FakeApi, registry: &Registry) {
        let home = api.cluster().await;
        VirtualNodes::new(&home, registry).round().await.unwrap();
    }

    fn keys(api: &FakeApi) -> Vec<(String, Value)> {
        let drivers = api.object(CSI_NODE).unwrap()["spec"]["drivers"].clone();
        let drivers = drivers.as_array().unwrap().iter();
        drivers
            .map(|one| {
                (
                    one["name"].as_str().unwrap().to_owned(),
                    one["topologyKeys"].clone(),
                )
            })
            .collect()
    }

    #[tokio::test]
    async fn a_virtual_node_is_marked_once_and_repaired() {
        let api = FakeApi::start().await;
        api.put(NODE, json!({"metadata": {"labels": {"to": "milan"}}}));
        round(&api, &registry()).await;
        let node = api.object(NODE).unwrap();
        assert_eq!(node["metadata"]["labels"][CLUSTER_KEY], "milan");
        assert_eq!(keys(&api), [(DRIVER_NAME.to_owned(), json!([CLUSTER_KEY]))]);
        let owner = &api.object(CSI_NODE).unwrap()["metadata"]["ownerReferences"][0];
        assert_eq!(owner["uid"], node["metadata"]["uid"]);

        let writes = api.writes();
        round(&api, &registry()).await;
        assert_eq!(api.writes(), writes, "nothing to do");

        api.change(NODE, |node| {
            node["metadata"]["labels"][CLUSTER_KEY] = json!("other");
        });
        api.remove(CSI_NODE);
        round(&api, &registry()).await;
        assert_eq!(
            api.object(NODE).unwrap()["metadata"]["labels"][CLUSTER_KEY],
            "milan"
        );
        assert_eq!(keys(&api).len(), 1);
    }

    #[tokio::test]
    async fn csinode_entries_of_other_drivers_are_kept() {
        let api = FakeApi::start().await;
        api.put(NODE, json!({"metadata": {"labels": {"to": "milan"}}}));
        let other = json!({"name": "other", "nodeID": "x", "topologyKeys": ["zone"]});
        let wrong = json!({"name": DRIVER_NAME, "nodeID": "x", "topologyKeys": [CLUSTER_KEY, NODE_KEY]});
        api.put(CSI_NODE, json!({"spec": {"drivers": [other, wrong]}}));
        round(&api, &registry()).await;
        assert_eq!(keys(&api).len(), 1, "what cannot be changed is removed");
        round(&api, &registry()).await;
        let ours = (DRIVER_NAME.to_owned(), json!([CLUSTER_KEY]));
        assert_eq!(keys(&api), [("other".to_owned(), json!(["zone"])), ours]);

        round(&api, &Registry::default()).await;
        assert_eq!(keys(&api).len(), 2, "the declarations were not read yet");
        round(&api, &Registry::fixed([])).await;
        assert_eq!(keys(&api), [("other".to_owned(), json!(["zone"]))]);
        let labels = api.object(NODE).unwrap()["metadata"]["labels"].clone();
        assert_eq!(labels, json!({"to": "milan"}));
    }

    #[tokio::test]
    async fn a_real_node_is_never_labelled_and_loses_our_label() {
        let api = FakeApi::start().await;
        let labels = json!({"to": "milan", CLUSTER_KEY: "home", NODE_KEY: "milan"});
        api.put(NODE, json!({"metadata": {"labels": labels}}));
        let kubelets =
            json!({"name": DRIVER_NAME, "nodeID": "milan", "topologyKeys": [CLUSTER_KEY, NODE_KEY]});
        api.put(CSI_NODE, json!({"spec": {"drivers": [kubelets]}}));
        let writes = api.writes();
        round(&api, &registry()).await;
        assert_eq!(api.writes(), writes);

        api.change(NODE, |node| {
            node["metadata"]["labels"][CLUSTER_KEY] = json!("milan");
            node["metadata"]["labels"][VIRTUAL_NODE] = json!("true");
        });
        round(&api, &registry()).await;
        assert_eq!(api.object(NODE).unwrap()["metadata"]["labels"], labels);
        assert_eq!(keys(&api).len(), 1);
    }

    /// It was deleted, and a kubelet has registered another one under its name.
    #[tokio::test]
    async fn a_node_that_took_the_place_of_a_virtual_one_is_not_labelled() {
        let api = FakeApi::start().await;
        api.put(NODE, json!({"metadata": {"labels": {"to": "milan"}}}));
        let (home, registry) = (api.cluster().await, registry());
        let found = home.all::<KubeNode>().get("milan").await.unwrap().unwrap();
        let reconciler = Reconciler {
            home: &home,
            registry: &registry,
        };
        let labels = json!({CLUSTER_KEY: "home", NODE_KEY: "milan"});
        api.change(NODE, |node| {
            node["metadata"]["uid"] = json!("real");
            node["metadata"]["labels"] = labels.clone();
        });
        let refused = reconciler.mark(&found, &"milan".parse().unwrap()).await;
        assert!(refused.unwrap_err().is_conflict());
        assert_eq!(api.object(NODE).unwrap()["metadata"]["labels"], labels);
    }

    #[tokio::test]
    async fn a_virtual_node_with_the_labels_of_a_real_one_is_virtual() {
        let api = FakeApi::start().await;
        let labels = json!({"to": "milan", NODE_KEY: "worker-of-milan"});
        api.put(NODE, json!({"metadata": {"labels": labels}}));
        round(&api, &registry()).await;
        assert_eq!(keys(&api).len(), 1);
    }
}
