//! Clusters that an administrator declares by a `RemoteCluster` each, and what
//! is said in those of clusters that another fabric declares.

use kube::ResourceExt;
use tokio::sync::watch;

use super::declaration::{ClusterDeclaration, Context, Credentials, SecretRef, Source};
use crate::{
    api::remote_cluster::{BindingPolicy as Wished, NamespaceStrategy, RemoteCluster},
    cluster::view::View,
    placement::{Adjustments, ClassMap, Declared, Mapped, Namespaces, NodeRule},
    volume::{BindingPolicy, ClusterId},
};

/// The `RemoteCluster`s.
pub(super) struct Native {
    clusters: View<RemoteCluster>,
    context: Context,
}

/// A `RemoteCluster`.
enum Object {
    /// It declares a cluster.
    Declaring(Box<Declaration>),
    /// Its cluster is declared by somebody else.
    Discovered(ClusterId, Adjustments),
}

/// What a `RemoteCluster` declares.
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
            context: context.clone(),
        }
    }

    fn objects(&self) -> impl Iterator<Item = Object> {
        self.clusters
            .all()
            .into_iter()
            .filter_map(|cluster| object(&cluster))
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
        vec![self.clusters.version()]
    }
}

fn object(cluster: &RemoteCluster) -> Option<Object> {
    let name = cluster.name_any();
    // The API server refuses longer names; one that came from elsewhere is no label.
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
    // The API server demands both.
    let (secret, nodes) = (spec.kubeconfig_secret_ref?, spec.node_selector?);
    let mapping = spec.namespaces.mapping.into_iter();
    Some(Object::Declaring(Box::new(Declaration {
        declared: Declared {
            id,
            fabric: None,
            object: format!("RemoteCluster {name}"),
            nodes: NodeRule::Labels(nodes.selector()),
            namespaces: Namespaces {
                mapping: mapping.map(|(home, remote)| (home, Mapped::To(remote))).collect(),
                same_name: spec.namespaces.strategy == NamespaceStrategy::SameName,
            },
            classes,
            policy,
            protect,
            shadow_pods_of: None,
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
    fn a_declaration_is_taken_at_its_word() {
        let read = |namespaces: serde_json::Value| {
            let spec = json!({
                "kubeconfigSecretRef": {"name": "milan"},
                "nodeSelector": {"matchLabels": {"to": "milan"}},
                "namespaces": namespaces,
                "storageClasses": {"mapping": {"liqo-fast": "ssd"}, "default": "hdd"},
                "bindingPolicy": "WaitForBound",
            });
            match object(&RemoteCluster::new("milan", from_value(spec).unwrap())) {
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
    fn what_is_said_of_a_discovered_cluster_declares_none() {
        let spec = json!({
            "discoveredFrom": {"fabric": "Liqo"},
            "storageClasses": {"mapping": {"liqo": "ssd"}},
            "protectTwins": false,
        });
        let Some(Object::Discovered(id, adjustments)) =
            object(&RemoteCluster::new("milan", from_value(spec).unwrap()))
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
    fn a_name_that_is_no_id_is_nobody() {
        let spec = json!({"kubeconfigSecretRef": {"name": "x"}, "nodeSelector": {"matchLabels": {"a": "b"}}});
        let long = RemoteCluster::new(&"x".repeat(64), from_value(spec).unwrap());
        assert!(object(&long).is_none());
    }
}
