//! All objects of the volumes of this driver, read once.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use k8s_openapi::api::{
    core::v1::{Event, Namespace, Node as KubeNode, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::ResourceExt;

use super::{Listing, cases, gravity};
use crate::{
    cluster::{Cluster, facts},
    topology::{CLUSTER_KEY, NODE_KEY, Node},
    volume::{ClusterId, mark},
};

/// This namespace exists as long as its cluster; its uid is the id of the cluster.
const KUBE_SYSTEM: &str = "kube-system";
const WAITING: &str = "status.phase=Pending";

/// The namespaces whose claims are read.
#[derive(Clone, Debug)]
pub(crate) enum Scope {
    /// Those of one namespace.
    Namespace(String),
    /// All namespaces.
    All,
}

/// The volumes of this driver in one cluster, as far as they could be read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Storage {
    /// The cluster's id; `None` if it is unknown.
    pub(crate) home: Option<ClusterId>,
    /// The namespace of the twins of this cluster's claims; `None` if it is unknown.
    pub(crate) namespace: Option<String>,
    /// Storage classes of all provisioners.
    pub(crate) classes: Listing<StorageClass>,
    /// Claims of all classes, without twins.
    pub(crate) claims: Listing<PersistentVolumeClaim>,
    /// Claims with the marks of this driver.
    pub(crate) twins: Listing<PersistentVolumeClaim>,
    /// PVs of all drivers.
    pub(crate) volumes: Listing<PersistentVolume>,
    pub(crate) nodes: Listing<Node>,
    /// Nodes that accept no new pods, and why.
    pub(crate) unschedulable: BTreeMap<String, String>,
    /// Events about claims, twins among them.
    pub(crate) events: Listing<Event>,
    /// Pods that are not scheduled, in namespaces with claims of this driver.
    pub(crate) consumers: Listing<Pod>,
}

impl Storage {
    /// Never fails: what could not be read is in [`Self::unknown`].
    pub(crate) async fn read(
        cluster: &Cluster,
        scope: &Scope,
        namespace: Option<&str>,
        home: Option<ClusterId>,
    ) -> Self {
        // What an object refers to exists before it: it is listed later, or it would seem to be gone.
        let (claims, twins) = claims(cluster, scope, namespace).await;
        let volumes = Listing::<PersistentVolume>::all(cluster).await;
        let (classes, (nodes, unschedulable), events) = tokio::join!(
            Listing::<StorageClass>::all(cluster),
            nodes(cluster),
            events(cluster, scope, namespace),
        );
        let mut storage = Self {
            home: home.or_else(|| labelled(&nodes)),
            namespace: namespace.map(str::to_owned),
            classes,
            claims,
            twins,
            volumes,
            nodes,
            unschedulable,
            events,
            consumers: Listing::default(),
        };
        storage.consumers = storage.read_consumers(cluster).await;
        storage
    }

    /// Whether these nodes, which are some of its own, include all of this cluster but virtual ones.
    pub(crate) fn is_everywhere(&self, nodes: &[&Node]) -> bool {
        let Some(home) = &self.home else {
            return false;
        };
        let at_home = |node: &&Node| node.labels.get(CLUSTER_KEY).map(String::as_str) == Some(home.as_str());
        let all = self.nodes.iter().filter(at_home).count();
        all > 0 && nodes.iter().copied().filter(at_home).count() == all
    }

    /// What could not be read, and why.
    pub(crate) fn unknown(&self) -> Vec<String> {
        let mut unknown: Vec<String> = [
            ("which storage classes there are", self.classes.refusal()),
            ("which claims there are", self.claims.refusal()),
            ("which twins there are", self.twins.refusal()),
            ("which volumes there are", self.volumes.refusal()),
            ("which nodes there are", self.nodes.refusal()),
            ("the events of claims", self.events.refusal()),
            ("which pods wait for claims", self.consumers.refusal()),
        ]
        .into_iter()
        .filter_map(|(what, why)| why.map(|why| format!("{what}: {why}")))
        .collect();
        if self.home.is_none() {
            unknown.push(format!(
                "the id of this cluster: the Deployment of the controller or the namespace {KUBE_SYSTEM} cannot be read; pass \
                 --cluster-id"
            ));
        }
        unknown
    }

    async fn read_consumers(&self, cluster: &Cluster) -> Listing<Pod> {
        let namespaces: BTreeSet<String> = self
            .claims
            .iter()
            .filter(|claim| cases::is_ours(claim, self))
            .filter_map(ResourceExt::namespace)
            .collect();
        let asked = namespaces.iter().map(async |namespace| {
            Listing::ask(&cluster.within::<Pod>(namespace), None, Some(WAITING)).await
        });
        join_all(asked)
            .await
            .into_iter()
            .fold(Listing::default(), Listing::and)
    }
}

async fn nodes(cluster: &Cluster) -> (Listing<Node>, BTreeMap<String, String>) {
    let nodes = Listing::<KubeNode>::all(cluster).await;
    let unschedulable = nodes
        .iter()
        .filter_map(|node| Some((node.name_any(), gravity::unschedulable_reason(node)?)))
        .collect();
    (nodes.map(|node| facts::node(node.metadata, &[])), unschedulable)
}

async fn claims(
    cluster: &Cluster,
    scope: &Scope,
    storage_namespace: Option<&str>,
) -> (Listing<PersistentVolumeClaim>, Listing<PersistentVolumeClaim>) {
    let claims = match scope {
        Scope::All => Listing::all(cluster).await,
        Scope::Namespace(namespace) => {
            let users = Listing::ask(&cluster.within(namespace), None, None).await;
            let marked = format!("{}={}", mark::MANAGED_BY, mark::MANAGED_BY_US);
            let twins = Listing::with_twins(cluster, storage_namespace, Some(&marked), None).await;
            return (users.partition(facts::is_twin).1, twins);
        }
    };
    let (twins, claims) = claims.partition(facts::is_twin);
    (claims, twins)
}

async fn events(cluster: &Cluster, scope: &Scope, storage_namespace: Option<&str>) -> Listing<Event> {
    let about_claims = Some("involvedObject.kind=PersistentVolumeClaim");
    match scope {
        Scope::All => Listing::ask(&cluster.all(), None, about_claims).await,
        Scope::Namespace(namespace) => {
            let users = cluster.within(namespace);
            let (users, twins) = tokio::join!(
                Listing::ask(&users, None, about_claims),
                Listing::with_twins(cluster, storage_namespace, None, about_claims)
            );
            users.and(twins)
        }
    }
}

/// The id of the cluster in the labels that the node plugin has set on its nodes.
fn labelled(nodes: &Listing<Node>) -> Option<ClusterId> {
    let real = nodes.iter().filter(|node| node.labels.contains_key(NODE_KEY));
    let mut ids: BTreeSet<&String> = real.filter_map(|node| node.labels.get(CLUSTER_KEY)).collect();
    let id = ids.pop_first()?;
    ids.is_empty().then(|| id.parse().ok())?
}

/// The id of a cluster whose driver has no flag with another one: the uid of the namespace kube-system. `None` if
/// that cannot be read.
pub(crate) async fn home_id(cluster: &Cluster) -> Option<ClusterId> {
    let namespace = cluster.all::<Namespace>().get(KUBE_SYSTEM).await.ok().flatten()?;
    namespace.metadata.uid?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::fixtures::storage;

    #[test]
    fn the_nodes_show_the_id_of_their_cluster() {
        let nodes = storage().nodes;
        assert_eq!(labelled(&nodes), storage().home);
        let mut first = true;
        let other = nodes.map(|mut node| {
            if std::mem::take(&mut first) {
                node.labels.insert(CLUSTER_KEY.to_owned(), "other".to_owned());
            }
            node
        });
        assert_eq!(labelled(&other), None);
    }
}
