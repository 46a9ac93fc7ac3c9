//! Clusters that Liqo declares: a `VirtualNode` names the Secret with the
//! kubeconfig and the classes of the other side, a `NamespaceMap` what became of
//! each namespace there, and nodes are labelled with the cluster's id.

use std::collections::BTreeMap;

use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject},
    core::GroupVersionKind,
    runtime::watcher,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::source::{Context, Credentials, SecretRef, Source, Told};
use crate::{
    cluster::{
        kubeconfig::Allowed,
        view::{Slim, View},
    },
    placement::{ClassMap, Declared, Fabric, Mapped, Namespaces, NodeRule},
    topology::{LabelSelector, Requirement},
    volume::{BindingPolicy, ClusterId},
};

const CLUSTER_LABEL: &str = "liqo.io/remote-cluster-id";
const TYPE_LABEL: &str = "liqo.io/type";
const VIRTUAL_NODE: &str = "virtual-node";
/// Liqo copies `NamespaceMap`s to the other side; ours are those meant for it.
const MAP_OF: &str = "liqo.io/remoteID";
const REPLICATES: &str = "liqo.io/replication=true";
/// Liqo's own virtual class.
const VIRTUAL_CLASS: &str = "liqo";
/// Data key of a kubeconfig in a Secret of Liqo.
const KEY: &str = "kubeconfig";

/// The clusters of Liqo.
pub(super) struct Liqo {
    nodes: View<VirtualNode>,
    maps: View<NamespaceMap>,
}

/// A `VirtualNode`.
struct VirtualNode {
    name: String,
    cluster: String,
    secret: Option<SecretRef>,
    default_class: Option<String>,
}

impl Slim for VirtualNode {
    fn topic(&self) -> &str {
        &self.cluster
    }
}

/// A `NamespaceMap`.
struct NamespaceMap {
    cluster: String,
    mapping: BTreeMap<String, Mapped>,
}

impl Slim for NamespaceMap {
    fn topic(&self) -> &str {
        &self.cluster
    }
}

impl Liqo {
    pub(super) fn start(context: &Context, stop: &CancellationToken) -> Self {
        let everything = watcher::Config::default;
        Self {
            nodes: View::start(
                all(&context.client, "VirtualNode"),
                everything(),
                |it| virtual_node(&it),
                stop,
            ),
            maps: View::start(
                all(&context.client, "NamespaceMap"),
                everything().labels(REPLICATES),
                |it| namespace_map(&it),
                stop,
            ),
        }
    }
}

fn all(client: &Client, kind: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("offloading.liqo.io", "v1beta1", kind);
    Api::all_with(client.clone(), &ApiResource::from_gvk(&kind))
}

impl Source for Liqo {
    fn told(&self) -> Option<Vec<Told>> {
        if *self.nodes.version().borrow() == 0 || *self.maps.version().borrow() == 0 {
            return None;
        }
        let mut by_cluster: BTreeMap<String, Vec<std::sync::Arc<VirtualNode>>> = BTreeMap::new();
        for node in self.nodes.all() {
            by_cluster.entry(node.cluster.clone()).or_default().push(node);
        }
        let each = by_cluster.into_iter().filter_map(|(cluster, mut nodes)| {
            // Several virtual nodes may stand for one cluster: any of them reaches it.
            nodes.sort_by(|a, b| (a.secret.is_none(), &a.name).cmp(&(b.secret.is_none(), &b.name)));
            let maps = self.maps.of_topic(&cluster);
            let mapping = maps.iter().flat_map(|map| map.mapping.clone()).collect();
            told(&cluster, nodes.first()?, mapping)
        });
        Some(each.collect())
    }

    fn signs(&self) -> Vec<watch::Receiver<u64>> {
        vec![self.nodes.version(), self.maps.version()]
    }
}

fn told(cluster: &str, node: &VirtualNode, mapping: BTreeMap<String, Mapped>) -> Option<Told> {
    let object = format!("VirtualNode {}", node.name);
    let Ok(id) = cluster.parse::<ClusterId>() else {
        tracing::warn!(object, cluster, "its clusterID cannot be a cluster id");
        return None;
    };
    let credentials = match &node.secret {
        Some(secret) => Credentials::Secret {
            secret: secret.clone(),
            key: KEY.to_owned(),
        },
        None => Credentials::Missing("spec.kubeconfigSecretRef is empty".to_owned()),
    };
    let nodes = LabelSelector(vec![
        Requirement::is_in(TYPE_LABEL, [VIRTUAL_NODE]),
        Requirement::is_in(CLUSTER_LABEL, [cluster]),
    ]);
    Some(Told {
        declared: Declared {
            id,
            fabric: Fabric::Liqo,
            object,
            nodes: NodeRule::Labels(nodes),
            namespaces: Namespaces {
                mapping,
                same_name: false,
            },
            classes: ClassMap {
                mapping: BTreeMap::new(),
                default: node.default_class.clone(),
            },
            policy: BindingPolicy::default(),
            protect: true,
        },
        leaving: false,
        credentials,
        // Liqo itself puts its gateway's proxy there.
        allowed: Allowed { proxy: true },
    })
}

fn virtual_node(node: &DynamicObject) -> Option<VirtualNode> {
    let spec = &node.data["spec"];
    let labelled = || node.labels().get(CLUSTER_LABEL).map(String::as_str);
    let cluster = spec["clusterID"].as_str().or_else(labelled)?;
    let secret = spec["kubeconfigSecretRef"]["name"].as_str();
    let classes = spec["storageClasses"].as_array();
    let default_class = classes
        .into_iter()
        .flatten()
        .find(|class| class["default"].as_bool() == Some(true))
        .and_then(|class| class["storageClassName"].as_str())
        // Where the other side has no default, Liqo marks the first by name: maybe its own.
        .filter(|name| *name != VIRTUAL_CLASS);
    Some(VirtualNode {
        name: node.name_any(),
        cluster: cluster.to_owned(),
        secret: secret.filter(|name| !name.is_empty()).map(|name| SecretRef {
            namespace: node.namespace().unwrap_or_default(),
            name: name.to_owned(),
        }),
        default_class: default_class.map(str::to_owned),
    })
}

fn namespace_map(map: &DynamicObject) -> Option<NamespaceMap> {
    let labels = map.labels();
    let cluster = labels.get(MAP_OF).or_else(|| labels.get(CLUSTER_LABEL))?;
    let desired = map.data["spec"]["desiredMapping"].as_object();
    let mut mapping: BTreeMap<String, Mapped> = desired
        .into_iter()
        .flatten()
        .map(|(home, _)| (home.clone(), Mapped::Not("Liqo has not made it there".to_owned())))
        .collect();
    let current = map.data["status"]["currentMapping"].as_object();
    for (home, status) in current.into_iter().flatten() {
        let phase = status["phase"].as_str().unwrap_or_default();
        let remote = status["remoteNamespace"].as_str().unwrap_or_default();
        let mapped = if phase == "Accepted" && !remote.is_empty() {
            Mapped::To(remote.to_owned())
        } else {
            Mapped::Not(format!("Liqo says {phase} of the namespace {remote:?} there"))
        };
        mapping.insert(home.clone(), mapped);
    }
    Some(NamespaceMap {
        cluster: cluster.clone(),
        mapping,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(kind: &str, labels: &serde_json::Value, rest: &serde_json::Value) -> DynamicObject {
        let mut object = json!({
            "apiVersion": "offloading.liqo.io/v1beta1", "kind": kind,
            "metadata": {"name": "milan", "namespace": "liqo-tenant-milan", "labels": labels},
        });
        object
            .as_object_mut()
            .unwrap()
            .extend(rest.as_object().unwrap().clone());
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_virtual_node_says_how_its_cluster_is_reached() {
        let node = virtual_node(&object(
            "VirtualNode",
            &json!({}),
            &json!({"spec": {
                "clusterID": "milan",
                "kubeconfigSecretRef": {"name": "kubeconfig-milan"},
                "storageClasses": [{"storageClassName": "slow"}, {"storageClassName": "fast", "default": true}],
            }}),
        ))
        .unwrap();
        let told = told("milan", &node, BTreeMap::new()).unwrap();
        assert_eq!(told.declared.classes.real(None), Some("fast"));
        assert!(told.allowed.proxy);
        assert!(matches!(
            &told.credentials,
            Credentials::Secret { secret, .. } if secret.to_string() == "Secret liqo-tenant-milan/kubeconfig-milan"
        ));
    }

    #[test]
    fn a_default_that_is_virtual_is_none() {
        let node = virtual_node(&object(
            "VirtualNode",
            &json!({CLUSTER_LABEL: "milan"}),
            &json!({"spec": {"storageClasses": [{"storageClassName": "liqo", "default": true}]}}),
        ))
        .unwrap();
        assert_eq!((node.cluster.as_str(), node.default_class), ("milan", None));
    }

    #[test]
    fn a_namespace_is_there_when_liqo_says_so() {
        let map = namespace_map(&object(
            "NamespaceMap",
            &json!({MAP_OF: "milan"}),
            &json!({
                "spec": {"desiredMapping": {"shop": "shop-home", "new": "new-home", "odd": "odd-home"}},
                "status": {"currentMapping": {
                    "shop": {"remoteNamespace": "shop-home", "phase": "Accepted"},
                    "odd": {"remoteNamespace": "odd-home", "phase": "CreationLoopBackOff"},
                }},
            }),
        ))
        .unwrap();
        assert_eq!(map.mapping["shop"], Mapped::To("shop-home".into()));
        assert!(matches!(&map.mapping["new"], Mapped::Not(why) if why.contains("has not made it")));
        assert!(matches!(&map.mapping["odd"], Mapped::Not(why) if why.contains("CreationLoopBackOff")));
    }
}
