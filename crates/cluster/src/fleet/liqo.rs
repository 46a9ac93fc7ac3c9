//! Clusters that Liqo declares: a `VirtualNode` names the Secret with the kubeconfig and the classes of the
//! remote cluster, a `NamespaceMap` has the state of each namespace there, and nodes have a label with the
//! cluster's id.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject},
    core::{GroupVersionKind, PartialObjectMeta},
    runtime::watcher,
};
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::declaration::{ClusterDeclaration, Context, Credentials, SecretRef, Source};
use crate::{
    api::remote_cluster::DiscoveringFabric,
    cluster::{
        Lean, short,
        view::{Slim, View},
    },
    fleet::kubeconfig::Allowed,
    placement::{ClassMap, Declared, Fabric, Mapped, Namespaces, NodeRule},
    topology::{LabelSelector, Node, Requirement},
    volume::{BindingPolicy, ClusterId, mark},
};

/// The API group of its objects.
pub(super) const GROUP: &str = DiscoveringFabric::Liqo.api_group();
/// The version in which they are read.
pub(super) const GROUP_VERSION: &str = "offloading.liqo.io/v1beta1";
/// A resource in that group that only Liqo has.
pub(super) const VIRTUAL_NODES: &str = "virtualnodes";
const CLUSTER_LABEL: &str = "liqo.io/remote-cluster-id";
const TYPE_LABEL: &str = "liqo.io/type";
const VIRTUAL_NODE: &str = "virtual-node";
/// Liqo copies `NamespaceMap`s to the remote cluster; those with this label are for it.
const REMOTE_ID: &str = "liqo.io/remoteID";
const REPLICATION_SELECTOR: &str = "liqo.io/replication=true";
/// Liqo's own virtual class.
const VIRTUAL_CLASS: &str = "liqo";
/// Prefix of the namespace that Liqo creates for a cluster, followed by the id.
const TENANT: &str = "liqo-tenant-";
/// How many clusters with untrusted objects are shown: a user who may write such objects could create any
/// number.
const MOST_DOUBTFUL: usize = 20;
/// Argument of Liqo's virtual kubelet.
const HOME: &str = "--home-cluster-id=";
/// Data key of a kubeconfig in a Secret of Liqo.
const KEY: &str = "kubeconfig";

/// The properties of Liqo for other modules.
pub(super) static LIQO: Fabric = Fabric {
    name: DiscoveringFabric::Liqo.name(),
    class_annotations: &[mark::LIQO_REAL_CLASS],
    default_class: Some("which Liqo only fills if that cluster has Liqo's storage.enabled=true"),
    copies: None,
    mirrors_nodes: false,
};

/// Whether a node is a virtual node of Liqo.
pub(super) fn is_virtual(node: &Node) -> bool {
    node.labels.get(TYPE_LABEL).is_some_and(|it| it == VIRTUAL_NODE)
}

/// The clusters of Liqo.
///
/// A peer may write into the namespace that Liqo has for it here, its tenant namespace. So an object there
/// may declare only that peer, and an object in another namespace nothing.
pub(super) struct Liqo {
    nodes: View<VirtualNode>,
    maps: View<NamespaceMap>,
    /// By the name of each namespace that the administrator listed.
    tenants: BTreeMap<String, View<Tenant>>,
    /// The nodes that are not used and the reasons, so that each is logged once.
    logged: Mutex<BTreeMap<String, String>>,
}

#[derive(PartialEq)]
struct VirtualNode {
    namespace: String,
    name: String,
    cluster: String,
    secret: Option<SecretRef>,
    default_class: Option<String>,
    /// The id of the home cluster in Liqo.
    home: Option<String>,
}

impl Slim for VirtualNode {
    fn topic(&self) -> &str {
        &self.cluster
    }
}

#[derive(PartialEq)]
struct NamespaceMap {
    namespace: String,
    cluster: String,
    mapping: BTreeMap<String, Mapped>,
}

impl Slim for NamespaceMap {
    fn topic(&self) -> &str {
        &self.cluster
    }
}

/// A tenant namespace.
#[derive(PartialEq)]
struct Tenant {
    /// The cluster that the namespace belongs to. No peer may write this label.
    cluster: Option<String>,
}

impl Slim for Tenant {
    fn topic(&self) -> &str {
        self.cluster.as_deref().unwrap_or_default()
    }
}

impl Liqo {
    pub(super) fn start(context: &Context, stop: &CancellationToken) -> Self {
        let everything = watcher::Config::default;
        let listed = context.liqo_tenants.clone();
        let tenants = context.liqo_tenants.iter().map(|name| {
            let only = everything().fields(&format!("metadata.name={name}"));
            let namespaces = Api::all(context.client.clone());
            (
                name.clone(),
                View::start(namespaces, only, |it| Some(tenant(&it)), stop),
            )
        });
        Self {
            tenants: tenants.collect(),
            logged: Mutex::default(),
            nodes: View::start(
                all(&context.client, "VirtualNode"),
                everything(),
                |it| virtual_node(&it),
                stop,
            ),
            maps: View::start(
                all(&context.client, "NamespaceMap"),
                everything().labels(REPLICATION_SELECTOR),
                move |it: DynamicObject| {
                    let map = namespace_map(&it)?;
                    listed.contains(&map.namespace).then_some(map)
                },
                stop,
            ),
        }
    }

    /// Logs which nodes are not used, each once for each reason.
    fn log(&self, unused: BTreeMap<String, String>) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        for (node, why) in &unused {
            if logged.get(node) != Some(why) {
                tracing::warn!(node, why, "a VirtualNode is not used");
            }
        }
        *logged = unused;
    }

    /// Whether a node may declare its cluster, or why not.
    fn belief(&self, node: &VirtualNode) -> Result<(), String> {
        let VirtualNode {
            namespace, cluster, ..
        } = node;
        let tenant = self
            .tenants
            .get(namespace)
            .ok_or_else(|| {
                format!(
                    "its namespace {namespace} is not in this driver's list of Liqo's namespaces: add it to \
                     liqo.tenantNamespaces of the chart"
                )
            })?
            .get(namespace);
        match tenant.as_ref().and_then(|tenant| tenant.cluster.as_ref()) {
            Some(owner) if owner == cluster => Ok(()),
            Some(owner) => Err(format!(
                "its namespace {namespace} belongs to the cluster {owner}, which cannot declare another one"
            )),
            None => Err(format!(
                "its namespace {namespace} has no label {CLUSTER_LABEL}, with which Liqo names its cluster"
            )),
        }
    }
}

fn all(client: &Client, kind: &str) -> Api<Lean<DynamicObject>> {
    let kind = GroupVersionKind::gvk("offloading.liqo.io", "v1beta1", kind);
    Api::all_with(client.clone(), &ApiResource::from_gvk(&kind))
}

impl Source for Liqo {
    fn declarations(&self) -> Option<Vec<ClusterDeclaration>> {
        if self.triggers().iter().any(|version| *version.borrow() == 0) {
            return None;
        }
        let mut by_place: BTreeMap<(String, String), Vec<Arc<VirtualNode>>> = BTreeMap::new();
        for node in self.nodes.all() {
            let place = (node.cluster.clone(), node.namespace.clone());
            by_place.entry(place).or_default().push(node);
        }
        let (mut all, mut doubtful, mut others) = (Vec::new(), Vec::new(), BTreeMap::new());
        for ((cluster, namespace), mut nodes) in by_place {
            // Several virtual nodes may represent one cluster: each of them has credentials for it.
            nodes.sort_by(|a, b| (a.secret.is_none(), &a.name).cmp(&(b.secret.is_none(), &b.name)));
            let Some(node) = nodes.first() else {
                continue;
            };
            if cluster.parse::<ClusterId>().is_err() {
                let why = format!("its clusterID {cluster} cannot be a cluster id");
                others.insert(format!("{namespace}/{}", node.name), why);
                continue;
            }
            match self.belief(node) {
                Ok(()) => {
                    let maps = self.maps.of_topic(&cluster);
                    let maps = maps.iter().filter(|map| map.namespace == namespace);
                    let mapping = maps.flat_map(|map| map.mapping.clone()).collect();
                    all.extend(declaration(node, mapping));
                }
                // In the tenant namespace of its cluster it was most likely created by Liqo, and an
                // administrator has to list that namespace. An object in another namespace may be an attempt
                // to impersonate the cluster.
                Err(why) if namespace == format!("{TENANT}{cluster}") => {
                    doubtful.extend(not_believed(node, why));
                }
                Err(why) => {
                    others.insert(format!("{namespace}/{}", node.name), why);
                }
            }
        }
        self.log(others);
        doubtful.truncate(MOST_DOUBTFUL);
        all.extend(doubtful);
        Some(all)
    }

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        let tenants = self.tenants.values().map(View::version);
        tenants
            .chain([self.nodes.version(), self.maps.version()])
            .collect()
    }
}

/// The declaration for the status of a cluster whose object is not trusted.
fn not_believed(node: &VirtualNode, why: String) -> Option<ClusterDeclaration> {
    let nothing = VirtualNode {
        namespace: node.namespace.clone(),
        name: node.name.clone(),
        cluster: node.cluster.clone(),
        secret: None,
        default_class: None,
        home: None,
    };
    Some(ClusterDeclaration {
        credentials: Credentials::Missing(why),
        believed: false,
        ..declaration(&nothing, BTreeMap::new())?
    })
}

fn declaration(node: &VirtualNode, mapping: BTreeMap<String, Mapped>) -> Option<ClusterDeclaration> {
    let cluster = node.cluster.as_str();
    let object = format!("VirtualNode {}/{}", node.namespace, node.name);
    let id = cluster.parse::<ClusterId>().ok()?;
    let credentials = match &node.secret {
        Some(secret) => Credentials::Secret {
            secret: secret.clone(),
            key: KEY.to_owned(),
            // Liqo renews its own.
            renewed: None,
        },
        None => Credentials::Missing("spec.kubeconfigSecretRef is empty".to_owned()),
    };
    let nodes = LabelSelector(vec![
        Requirement::is_in(TYPE_LABEL, [VIRTUAL_NODE]),
        Requirement::is_in(CLUSTER_LABEL, [cluster]),
    ]);
    Some(ClusterDeclaration {
        declared: Declared {
            id,
            fabric: Some(&LIQO),
            object,
            nodes: NodeRule::Labels(nodes),
            namespaces: Namespaces {
                mapping,
                same_name: false,
            },
            classes: ClassMap {
                default: node.default_class.clone(),
                ..ClassMap::default()
            },
            policy: BindingPolicy::default(),
            protect: true,
            shadow_pods_of: node.home.clone(),
            uid: None,
            object_uid: None,
        },
        leaving: false,
        credentials,
        // Liqo itself sets the proxy of its gateway there.
        allowed: Allowed { proxy: true },
        believed: true,
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
        // If the remote cluster has no default class, Liqo marks the first by name, which may be its own.
        .filter(|name| *name != VIRTUAL_CLASS);
    Some(VirtualNode {
        namespace: node.namespace().unwrap_or_default(),
        name: node.name_any(),
        cluster: cluster.to_owned(),
        secret: secret.filter(|name| !name.is_empty()).map(|name| SecretRef {
            namespace: node.namespace().unwrap_or_default(),
            name: name.to_owned(),
        }),
        default_class: default_class.map(str::to_owned),
        home: home(spec),
    })
}

/// The id of the home cluster in the arguments of the virtual kubelet. Liqo has it in no other field of the
/// objects for its peers.
fn home(spec: &serde_json::Value) -> Option<String> {
    let containers = spec.pointer("/template/spec/template/spec/containers")?;
    let told = containers
        .as_array()?
        .iter()
        .filter_map(|container| container["args"].as_array());
    let mut told = told
        .flatten()
        .filter_map(|argument| argument.as_str()?.strip_prefix(HOME));
    told.next().map(str::to_owned)
}

fn namespace_map(map: &DynamicObject) -> Option<NamespaceMap> {
    let labels = map.labels();
    let cluster = labels.get(REMOTE_ID).or_else(|| labels.get(CLUSTER_LABEL))?;
    let desired = map.data["spec"]["desiredMapping"].as_object();
    let current = &map.data["status"]["currentMapping"];
    // The remote cluster writes the status: only namespaces that this cluster requested count.
    let mapping = desired
        .into_iter()
        .flatten()
        .map(|(home, wanted)| (home.clone(), mapped(wanted.as_str(), current.get(home))));
    Some(NamespaceMap {
        namespace: map.namespace().unwrap_or_default(),
        cluster: cluster.clone(),
        mapping: mapping.collect(),
    })
}

/// The state of the namespace that is requested there under this name.
fn mapped(wanted: Option<&str>, current: Option<&Value>) -> Mapped {
    let (Some(wanted), Some(current)) = (wanted, current) else {
        return Mapped::Not("Liqo has not created it there".to_owned());
    };
    let text = |key: &str| short(current[key].as_str().unwrap_or_default());
    let (phase, remote) = (text("phase"), text("remoteNamespace"));
    if phase == "Accepted" && remote == wanted && !remote.is_empty() {
        return Mapped::To(remote);
    }
    Mapped::Not(if phase == "Accepted" {
        format!("Liqo requested the namespace {wanted:?} there, and that cluster reports {remote:?}")
    } else {
        format!("Liqo reports {phase} for the namespace {remote:?} there")
    })
}

fn tenant(namespace: &PartialObjectMeta<Namespace>) -> Tenant {
    Tenant {
        cluster: namespace.labels().get(CLUSTER_LABEL).cloned(),
    }
}

#[cfg(test)]
mod tests;
