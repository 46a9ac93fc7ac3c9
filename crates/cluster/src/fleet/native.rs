//! Clusters that an administrator declares by a `RemoteCluster`, and settings in a `RemoteCluster` for
//! clusters that another fabric declares.

use std::sync::Arc;

use kube::ResourceExt;
use tokio::sync::watch;

use super::declaration::{ClusterDeclaration, Context, Credentials, SecretRef, Source};
use crate::{
    access::RENEWED,
    api::{
        namespace_offloading::{NAME, NamespaceOffloading, REQUIRED},
        remote_cluster::{BindingPolicy as Wished, NamespaceStrategy, RemoteCluster},
    },
    cluster::view::{Slim, View},
    offload::Readiness,
    placement::{Adjustments, ClassMap, Declared, Mapped, Namespaces, NodeRule},
    topology::{FABRIC_NODE, LabelSelector, Requirement},
    volume::{BindingPolicy, ClusterId},
};

/// The `RemoteCluster`s.
pub(super) struct Native {
    clusters: View<RemoteCluster>,
    offloadings: View<NamespaceOffloading>,
    context: Context,
}

/// A `RemoteCluster`.
enum Object {
    /// It declares a cluster.
    Declaring(Box<Declaration>),
    /// Another fabric declares its cluster.
    Discovered(ClusterId, Adjustments),
}

struct Declaration {
    declared: Declared,
    leaving: bool,
    secret: String,
    key: String,
}

impl Native {
    pub(super) fn start(context: &Context) -> Self {
        Self {
            clusters: context.remote_clusters.clone(),
            offloadings: context.offloadings.clone(),
            context: context.clone(),
        }
    }

    fn objects(&self) -> impl Iterator<Item = Object> {
        self.clusters
            .all()
            .into_iter()
            .filter_map(|cluster| object(&cluster, || self.offloadings.all()))
    }

    /// Whether the fabric of this driver serves any cluster: `NamespaceOffloading`s are watched only then.
    fn has_fabric(&self) -> bool {
        self.clusters.all().iter().any(|it| it.spec.fabric.is_some())
    }

    fn read(&self, declaration: Declaration) -> ClusterDeclaration {
        ClusterDeclaration {
            declared: declaration.declared,
            leaving: declaration.leaving,
            credentials: Credentials::Secret {
                secret: SecretRef {
                    namespace: self.context.namespace.clone(),
                    name: declaration.secret,
                },
                key: declaration.key,
                renewed: Some(SecretRef {
                    namespace: self.context.namespace.clone(),
                    name: RENEWED.to_owned(),
                }),
            },
            allowed: self.context.allowed,
            believed: true,
        }
    }
}

impl Source for Native {
    fn declarations(&self) -> Option<Vec<ClusterDeclaration>> {
        if *self.clusters.version().borrow() == 0 {
            return None;
        }
        let declaring = self.objects().filter_map(|one| match one {
            Object::Declaring(declaration) => Some(self.read(*declaration)),
            Object::Discovered(..) => None,
        });
        Some(declaring.collect())
    }

    fn adjustments(&self) -> Vec<(ClusterId, Adjustments)> {
        let discovered = self.objects().filter_map(|one| match one {
            Object::Declaring(_) => None,
            Object::Discovered(id, adjustments) => Some((id, adjustments)),
        });
        discovered.collect()
    }

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        let mut triggers = vec![self.clusters.version()];
        if self.has_fabric() {
            triggers.push(self.offloadings.version());
        }
        triggers
    }
}

/// The state of each offloaded namespace in a cluster, as the fabric reports it.
fn offloaded(cluster: &str, all: &[Arc<NamespaceOffloading>]) -> Namespaces {
    let mapped = |one: &NamespaceOffloading| {
        let status = one.status.as_ref();
        let name = status.and_then(|status| status.remote_namespace_name.clone());
        let selected = one.condition(cluster, REQUIRED);
        match (one.readiness(cluster), name) {
            _ if one.is_leaving() => Mapped::Not("its NamespaceOffloading is being deleted".to_owned()),
            (Some(Readiness::Created), Some(name)) => Mapped::To(name),
            (Some(ready), _) => Mapped::Not(ready.words().1.to_owned()),
            (None, _) => Mapped::Not(match selected {
                Some(condition) => condition.message.clone(),
                None => "the fabric (liqo-csi fabric) has not processed its NamespaceOffloading".to_owned(),
            }),
        }
    };
    let mapping = all
        .iter()
        .filter(|one| one.metadata.name.as_deref() == Some(NAME))
        .map(|one| (one.topic().to_owned(), mapped(one)));
    Namespaces {
        mapping: mapping.collect(),
        same_name: false,
    }
}

fn object(
    cluster: &RemoteCluster,
    offloadings: impl FnOnce() -> Vec<Arc<NamespaceOffloading>>,
) -> Option<Object> {
    let name = cluster.name_any();
    // The API server refuses longer names; an object that was stored otherwise has no valid id.
    let id = name.parse().ok()?;
    let leaving = cluster.metadata.deletion_timestamp.is_some();
    let spec = cluster.spec.clone();
    let classes = ClassMap {
        mapping: spec.storage_classes.mapping,
        default: spec.storage_classes.default,
        attributes: spec.volume_attributes_classes.mapping,
        snapshots: spec.snapshot_classes.mapping,
    };
    let policy = match spec.binding_policy {
        Wished::Optimistic => BindingPolicy::Optimistic,
        Wished::WaitForBound => BindingPolicy::WaitForBound,
    };
    let protect = spec.protect_twins;
    if spec.discovered_from.is_some() {
        let adjustments = Adjustments {
            classes,
            policy,
            protect,
        };
        return Some(Object::Discovered(id, adjustments));
    }
    // The schema requires the Secret, and one of the two.
    let secret = spec.kubeconfig_secret_ref?;
    let nodes = match (&spec.node_selector, cluster.fabric_node()) {
        (Some(nodes), _) => NodeRule::Labels(nodes.selector()),
        (None, Some(node)) => NodeRule::Named {
            name: node,
            labels: LabelSelector(vec![Requirement::is_in(FABRIC_NODE, [name.clone()])]),
        },
        (None, None) => return None,
    };
    let namespaces = if spec.fabric.is_some() {
        offloaded(&name, &offloadings())
    } else {
        let mapping = spec.namespaces.mapping.into_iter();
        Namespaces {
            mapping: mapping.map(|(home, remote)| (home, Mapped::To(remote))).collect(),
            same_name: spec.namespaces.strategy == NamespaceStrategy::SameName,
        }
    };
    Some(Object::Declaring(Box::new(Declaration {
        declared: Declared {
            id,
            fabric: None,
            object: format!("RemoteCluster {name}"),
            nodes,
            namespaces,
            classes,
            policy,
            protect,
            shadow_pods_of: None,
            uid: cluster.cluster_uid().map(str::to_owned),
            object_uid: cluster.uid(),
        },
        leaving,
        secret: secret.name,
        key: secret.key,
    })))
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;
    use crate::topology::Node;

    #[test]
    fn a_remote_cluster_is_read_as_declared() {
        let read = |namespaces: serde_json::Value| {
            let spec = json!({
                "kubeconfigSecretRef": {"name": "milan"},
                "nodeSelector": {"matchLabels": {"to": "milan"}},
                "namespaces": namespaces,
                "storageClasses": {"mapping": {"liqo-fast": "ssd"}, "default": "hdd"},
                "bindingPolicy": "WaitForBound",
            });
            match object(&RemoteCluster::new("milan", from_value(spec).unwrap()), Vec::new) {
                Some(Object::Declaring(declaration)) => *declaration,
                _ => unreachable!(),
            }
        };
        let read_same = read(json!({"mapping": {"team": "tenant"}}));
        assert_eq!(
            (read_same.secret.as_str(), read_same.key.as_str()),
            ("milan", "kubeconfig")
        );
        let declared = read_same.declared;
        assert_eq!(declared.policy, BindingPolicy::WaitForBound);
        assert_eq!(declared.classes.real(Some("liqo-fast")), Some("ssd"));
        assert_eq!(declared.classes.real(Some("liqo")), Some("hdd"));
        assert_eq!(declared.namespaces.remote("team", &declared.id), Ok("tenant"));
        assert_eq!(declared.namespaces.remote("other", &declared.id), Ok("other"));
        let node = Node {
            labels: [("to".to_owned(), "milan".to_owned())].into(),
            ..Node::default()
        };
        assert!(declared.nodes.admits(&node) && !declared.nodes.admits(&Node::default()));

        let mapped = read(json!({"strategy": "Mapped", "mapping": {"team": "tenant"}})).declared;
        assert!(mapped.namespaces.remote("other", &mapped.id).is_err());
    }

    #[test]
    fn settings_for_a_discovered_cluster_declare_no_cluster() {
        let spec = json!({
            "discoveredFrom": {"fabric": "Liqo"},
            "storageClasses": {"mapping": {"liqo": "ssd"}},
            "protectTwins": false,
        });
        let Some(Object::Discovered(id, adjustments)) =
            object(&RemoteCluster::new("milan", from_value(spec).unwrap()), Vec::new)
        else {
            unreachable!()
        };
        assert_eq!(id.as_str(), "milan");
        assert_eq!(adjustments.classes.real(Some("liqo")), Some("ssd"));
        assert_eq!(
            (adjustments.policy, adjustments.protect),
            (BindingPolicy::Optimistic, false)
        );
    }

    #[test]
    fn without_a_selector_the_node_of_the_fabric_is_selected() {
        let node = |name: &str, cluster: &str| Node {
            name: name.to_owned(),
            labels: [(FABRIC_NODE.to_owned(), cluster.to_owned())].into(),
            ..Node::default()
        };
        for (fabric, name) in [(json!({}), "milan"), (json!({"nodeName": "north"}), "north")] {
            let spec = json!({"kubeconfigSecretRef": {"name": "milan"}, "fabric": fabric});
            let object = object(&RemoteCluster::new("milan", from_value(spec).unwrap()), Vec::new);
            let Some(Object::Declaring(declaration)) = object else {
                unreachable!()
            };
            let nodes = declaration.declared.nodes;
            assert!(nodes.admits(&node(name, "milan")) && !nodes.admits(&node(name, "rome")));
            // A kubelet may give its own node this label.
            assert!(!nodes.admits(&node("worker", "milan")));
        }
    }

    #[test]
    fn a_malformed_id_declares_no_cluster() {
        let spec = json!({"kubeconfigSecretRef": {"name": "x"}, "nodeSelector": {"matchLabels": {"a": "b"}}});
        let long = RemoteCluster::new(&"x".repeat(64), from_value(spec).unwrap());
        assert!(object(&long, Vec::new).is_none());
    }

    #[test]
    fn with_a_fabric_only_its_remote_namespaces_are_mapped() {
        let offloading = |namespace: &str, reason: &str, leaving: bool| -> Arc<NamespaceOffloading> {
            let ready = json!({"type": "Ready", "status": "True", "reason": reason, "message": "taken"});
            let required =
                json!({"type": "OffloadingRequired", "status": "False", "message": "not selected"});
            let mut object = json!({
                "metadata": {"name": "offloading", "namespace": namespace},
                "spec": {},
                "status": {
                    "remoteNamespaceName": format!("{namespace}-home"),
                    "remoteNamespacesConditions": {"milan": [required, ready]},
                },
            });
            if leaving {
                object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            Arc::new(from_value(object).unwrap())
        };
        let spec = json!({
            "kubeconfigSecretRef": {"name": "milan"},
            "nodeSelector": {"matchLabels": {"to": "milan"}},
            "fabric": {},
        });
        let all = || {
            vec![
                offloading("there", "NamespaceCreated", false),
                offloading("taken", "CreationLoopBackOff", false),
                offloading("leaving", "NamespaceCreated", true),
                offloading("other", "", false),
            ]
        };
        let object = object(&RemoteCluster::new("milan", from_value(spec).unwrap()), all);
        let Some(Object::Declaring(declaration)) = object else {
            unreachable!()
        };
        let Declared { namespaces, id, .. } = declaration.declared;
        let why = |namespace| namespaces.remote(namespace, &id).unwrap_err().why;
        assert_eq!(namespaces.remote("there", &id), Ok("there-home"));
        assert_eq!(why("taken").as_deref(), Some("taken"));
        assert_eq!(
            why("leaving").as_deref(),
            Some("its NamespaceOffloading is being deleted")
        );
        assert_eq!(why("other").as_deref(), Some("not selected"));
        assert_eq!(why("never"), None);
    }
}
