//! Clusters that an administrator declares, by a `RemoteCluster` each.

use kube::{Api, ResourceExt, runtime::watcher};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::source::{ClusterDeclaration, Context, Credentials, SecretRef, Source};
use crate::{
    cluster::{
        Lean,
        remote_cluster::{BindingPolicy as Wished, NamespaceStrategy, RemoteCluster},
        view::{Slim, View},
    },
    placement::{ClassMap, Declared, Fabric, Mapped, Namespaces, NodeRule},
    volume::BindingPolicy,
};

/// The `RemoteCluster`s.
pub(super) struct Native {
    clusters: View<Declaration>,
    context: Context,
}

/// A `RemoteCluster`.
#[derive(PartialEq)]
struct Declaration {
    declared: Declared,
    leaving: bool,
    secret: String,
    key: String,
}

impl Slim for Declaration {
    fn topic(&self) -> &str {
        self.declared.id.as_str()
    }
}

impl Native {
    pub(super) fn start(context: &Context, stop: &CancellationToken) -> Self {
        let all: Api<Lean<RemoteCluster>> = Api::all(context.client.clone());
        Self {
            clusters: View::start(all, watcher::Config::default(), declaration, stop),
            context: context.clone(),
        }
    }

    fn read(&self, declaration: &Declaration) -> ClusterDeclaration {
        ClusterDeclaration {
            declared: declaration.declared.clone(),
            leaving: declaration.leaving,
            credentials: Credentials::Secret {
                secret: SecretRef {
                    namespace: self.context.namespace.clone(),
                    name: declaration.secret.clone(),
                },
                key: declaration.key.clone(),
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
        let all = self.clusters.all();
        Some(all.iter().map(|one| self.read(one)).collect())
    }

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        vec![self.clusters.version()]
    }
}

fn declaration(cluster: RemoteCluster) -> Option<Declaration> {
    let name = cluster.name_any();
    // The API server refuses longer names; one that came from elsewhere is no label.
    let id = name.parse().ok()?;
    let leaving = cluster.metadata.deletion_timestamp.is_some();
    let spec = cluster.spec;
    let mapping = spec.namespaces.mapping.into_iter();
    Some(Declaration {
        declared: Declared {
            id,
            fabric: Fabric::Native,
            object: format!("RemoteCluster {name}"),
            nodes: NodeRule::Labels(spec.node_selector.selector()),
            namespaces: Namespaces {
                mapping: mapping.map(|(home, remote)| (home, Mapped::To(remote))).collect(),
                same_name: spec.namespaces.strategy == NamespaceStrategy::SameName,
            },
            classes: ClassMap {
                mapping: spec.storage_classes.mapping,
                default: spec.storage_classes.default,
            },
            policy: match spec.binding_policy {
                Wished::Optimistic => BindingPolicy::Optimistic,
                Wished::WaitForBound => BindingPolicy::WaitForBound,
            },
            protect: spec.protect_twins,
        },
        leaving,
        secret: spec.kubeconfig_secret_ref.name,
        key: spec.kubeconfig_secret_ref.key,
    })
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
            declaration(RemoteCluster::new("milan", from_value(spec).unwrap())).unwrap()
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
    fn a_name_that_is_no_id_is_nobody() {
        let spec = json!({"kubeconfigSecretRef": {"name": "x"}, "nodeSelector": {"matchLabels": {"a": "b"}}});
        let long = RemoteCluster::new(&"x".repeat(64), from_value(spec).unwrap());
        assert!(declaration(long).is_none());
    }
}
