//! Clusters that Kosmos declares: a `Cluster` contains its kubeconfig, its nodes have its name in an
//! annotation, and namespaces keep their names.

use std::sync::Arc;

use k8s_openapi::ByteString;
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject},
    core::GroupVersionKind,
    runtime::watcher,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::declaration::{ClusterDeclaration, Context, Credentials, Source};
use crate::{
    api::remote_cluster::DiscoveringFabric,
    cluster::view::{Slim, View},
    fleet::kubeconfig::Allowed,
    observe::log::OngoingOfEach,
    placement::{ClassMap, CopiedClaims, Declared, Fabric, Namespaces, NodeRule},
    topology::Node,
    volume::BindingPolicy,
};

/// Annotation of a node with the name of its cluster.
pub(super) const CLUSTER: &str = "kosmos-io/owned-by-cluster";
/// Label of virtual nodes.
const VIRTUAL_NODE: &str = "kosmos.io/node";

/// The properties of Kosmos for other modules.
#[allow(unreachable_pub, reason = "public for the tests of other crates")]
pub static KOSMOS: Fabric = Fabric {
    name: DiscoveringFabric::Kosmos.name(),
    class_annotations: &[],
    default_class: None,
    // pkg/utils/constants.go
    copies: Some(CopiedClaims {
        mark: "kosmos.io/global",
        clusters: "kosmos-io/cluster-owners",
    }),
    // The one-to-one leaf model.
    mirrors_nodes: true,
};

/// Whether a node is a virtual node of Kosmos.
pub(super) fn is_virtual(node: &Node) -> bool {
    node.labels.contains_key(VIRTUAL_NODE)
}

/// The clusters of Kosmos.
pub(super) struct Kosmos {
    clusters: View<Member>,
    allowed: Allowed,
    /// The clusters whose names cannot be ids: each is logged once.
    unusable: OngoingOfEach,
}

#[derive(PartialEq)]
struct Member {
    name: String,
    kubeconfig: Option<Arc<[u8]>>,
    trees: bool,
}

impl Slim for Member {
    fn topic(&self) -> &str {
        &self.name
    }
}

impl Kosmos {
    pub(super) fn start(context: &Context, stop: &CancellationToken) -> Self {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("kosmos.io", "v1alpha1", "Cluster"));
        let clusters = Api::all_with(context.client.clone(), &kind);
        let everything = watcher::Config::default();
        Self {
            clusters: View::start(clusters, everything, |it| Some(member(&it)), stop),
            allowed: context.allowed,
            unusable: OngoingOfEach::default(),
        }
    }

    /// Logs a cluster that cannot be declared.
    fn log_unusable(&self, member: &Member) {
        if self.unusable.is_news(&member.name, "") {
            tracing::warn!(
                object = format!("Cluster {}", member.name),
                "its name cannot be a cluster id: at most 63 characters"
            );
        }
    }
}

impl Source for Kosmos {
    fn declarations(&self) -> Option<Vec<ClusterDeclaration>> {
        if *self.clusters.version().borrow() == 0 {
            return None;
        }
        let members = self.clusters.all();
        // A cluster without a tree has no nodes here: it shares only a network, not pods.
        let offloading: Vec<_> = members.iter().filter(|member| member.trees).collect();
        self.unusable
            .keep(|name| offloading.iter().any(|member| member.name == name));
        let declared = offloading.into_iter().filter_map(|member| {
            let declared = declaration(member, self.allowed);
            if declared.is_none() {
                self.log_unusable(member);
            }
            declared
        });
        Some(declared.collect())
    }

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        vec![self.clusters.version()]
    }
}

/// `None` for a name that is too long for a label value, and so for an id.
fn declaration(member: &Member, allowed: Allowed) -> Option<ClusterDeclaration> {
    let object = format!("Cluster {}", member.name);
    let id = member.name.parse().ok()?;
    let credentials = match &member.kubeconfig {
        Some(text) => Credentials::Inline(Arc::clone(text)),
        None => Credentials::Missing("spec.kubeconfig is empty or not in base64".to_owned()),
    };
    Some(ClusterDeclaration {
        declared: Declared {
            id,
            fabric: Some(&KOSMOS),
            object,
            nodes: NodeRule::Annotation {
                key: CLUSTER.to_owned(),
                value: member.name.clone(),
            },
            namespaces: Namespaces {
                same_name: true,
                ..Namespaces::default()
            },
            classes: ClassMap::default(),
            policy: BindingPolicy::default(),
            protect: true,
            shadow_pods_of: None,
            uid: None,
            object_uid: None,
        },
        leaving: false,
        credentials,
        allowed,
        believed: true,
    })
}

fn member(cluster: &DynamicObject) -> Member {
    let spec = &cluster.data["spec"];
    let decoded = serde_json::from_value(spec["kubeconfig"].clone()).map(|ByteString(text)| text);
    Member {
        name: cluster.name_any(),
        kubeconfig: decoded.ok().filter(|text| !text.is_empty()).map(Arc::from),
        trees: spec["clusterTreeOptions"]["enable"].as_bool().unwrap_or(true),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::testing::{FakeApi, Warnings};

    fn cluster(name: &str, spec: &serde_json::Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "kosmos.io/v1alpha1", "kind": "Cluster", "metadata": {"name": name}, "spec": spec,
        }))
        .unwrap()
    }

    #[test]
    fn the_kubeconfig_is_in_the_object() {
        let read = member(&cluster(
            "c38",
            &json!({"kubeconfig": ByteString(b"text".to_vec())}),
        ));
        let found = declaration(&read, Allowed::default()).unwrap();
        assert!(matches!(&found.credentials, Credentials::Inline(text) if **text == *b"text"));
        assert_eq!(found.declared.id.as_str(), "c38");
        assert_eq!(
            found.declared.namespaces.remote("any", &found.declared.id),
            Ok("any")
        );
    }

    #[test]
    fn a_cluster_without_credentials_is_known_and_not_reached() {
        for kubeconfig in [json!(null), json!(""), json!("%%")] {
            let read = member(&cluster("c38", &json!({ "kubeconfig": kubeconfig })));
            let found = declaration(&read, Allowed::default()).unwrap();
            assert!(matches!(found.credentials, Credentials::Missing(_)));
        }
        assert!(declaration(&member(&cluster(&"x".repeat(64), &json!({}))), Allowed::default()).is_none());
    }

    #[tokio::test]
    async fn a_name_that_is_too_long_is_logged_once() {
        let (api, stop) = (FakeApi::start().await, CancellationToken::new());
        let _stops = stop.clone().drop_guard();
        let name = "x".repeat(64);
        let path = format!("/apis/kosmos.io/v1alpha1/clusters/{name}");
        let spec = json!({"metadata": {"name": name}, "spec": {}});
        api.put(&path, spec.clone());
        let context = Context::fake(&api).await;
        let kosmos = Kosmos::start(&context, &stop);
        kosmos.clusters.complete().await;
        let log = Warnings::record();
        for logged in [1, 2] {
            for _ in 0..2 {
                assert!(kosmos.declarations().unwrap().is_empty());
            }
            assert_eq!(log.lines().len(), logged, "{:?}", log.lines());
            // One that is created again is logged again.
            let mut changes = kosmos.clusters.version();
            changes.mark_unchanged();
            api.remove(&path);
            changes.changed().await.unwrap();
            assert!(kosmos.declarations().unwrap().is_empty());
            changes.mark_unchanged();
            api.put(&path, spec.clone());
            changes.changed().await.unwrap();
        }
    }
}
