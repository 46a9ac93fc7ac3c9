//! The declarations of Liqo's objects, and which of them are trusted.

use serde_json::json;

use super::*;
use crate::cluster::testing::{FakeApi, Warnings};

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
fn the_identity_of_a_cluster_is_read_from_its_virtual_node() {
    let node = virtual_node(&object(
        "VirtualNode",
        &json!({}),
        &json!({"spec": {
            "clusterID": "milan",
            "kubeconfigSecretRef": {"name": "kubeconfig-milan"},
            "storageClasses": [{"storageClassName": "slow"}, {"storageClassName": "fast", "default": true}],
            "template": {"spec": {"template": {"spec": {"containers": [
                {"args": ["--nodename=milan", "--home-cluster-id=turin"]},
            ]}}}},
        }}),
    ))
    .unwrap();
    let found = declaration(&node, BTreeMap::new()).unwrap();
    assert_eq!(found.declared.shadow_pods_of.as_deref(), Some("turin"));
    assert_eq!(found.declared.classes.real(None), Some("fast"));
    assert!(found.allowed.proxy);
    assert!(matches!(
        &found.credentials,
        Credentials::Secret { secret, .. } if secret.to_string() == "Secret liqo-tenant-milan/kubeconfig-milan"
    ));
}

#[test]
fn a_virtual_default_class_is_ignored() {
    let node = virtual_node(&object(
        "VirtualNode",
        &json!({CLUSTER_LABEL: "milan"}),
        &json!({"spec": {"storageClasses": [{"storageClassName": "liqo", "default": true}]}}),
    ))
    .unwrap();
    assert_eq!((node.cluster.as_str(), node.default_class), ("milan", None));
}

#[test]
fn a_namespace_is_mapped_only_when_liqo_reports_it_as_accepted() {
    let map = namespace_map(&object(
        "NamespaceMap",
        &json!({REMOTE_ID: "milan"}),
        &json!({
            "spec": {"desiredMapping": {"shop": "shop-home", "new": "new-home", "odd": "odd-home", "other": "other-home"}},
            "status": {"currentMapping": {
                "shop": {"remoteNamespace": "shop-home", "phase": "Accepted"},
                "odd": {"remoteNamespace": "odd-home", "phase": "CreationLoopBackOff"},
                "other": {"remoteNamespace": "shop-home", "phase": "Accepted"},
                "never-asked-for": {"remoteNamespace": "shop-home", "phase": "Accepted"},
            }},
        }),
    ))
    .unwrap();
    assert_eq!(map.mapping["shop"], Mapped::To("shop-home".into()));
    assert!(matches!(&map.mapping["new"], Mapped::Not(why) if why.contains("has not created it")));
    assert!(matches!(&map.mapping["odd"], Mapped::Not(why) if why.contains("CreationLoopBackOff")));
    assert!(matches!(&map.mapping["other"], Mapped::Not(why) if why.contains("other-home")));
    assert!(!map.mapping.contains_key("never-asked-for"));
}

const GROUP: &str = "/apis/offloading.liqo.io/v1beta1/namespaces";

fn put_tenant(api: &FakeApi, cluster: &str) {
    let labels = json!({CLUSTER_LABEL: cluster, "liqo.io/tenant-namespace": "true"});
    let path = format!("/api/v1/namespaces/liqo-tenant-{cluster}");
    api.put(&path, json!({"metadata": {"labels": labels}}));
}

fn put_node(api: &FakeApi, namespace: &str, cluster: &str) {
    let path = format!("{GROUP}/{namespace}/virtualnodes/{cluster}");
    let spec = json!({"clusterID": cluster, "kubeconfigSecretRef": {"name": "kubeconfig"}});
    api.put(&path, json!({"spec": spec}));
}

fn put_map(api: &FakeApi, namespace: &str, cluster: &str, remote: &str) {
    let path = format!("{GROUP}/{namespace}/namespacemaps/{cluster}");
    let labels = json!({REMOTE_ID: cluster, "liqo.io/replication": "true"});
    api.put(
        &path,
        json!({
            "metadata": {"labels": labels},
            "spec": {"desiredMapping": {"shop": remote}},
            "status": {"currentMapping": {"shop": {"remoteNamespace": remote, "phase": "Accepted"}}},
        }),
    );
}

/// The clusters of Liqo, once all objects are read.
async fn complete(api: &FakeApi, listed: &[&str], stop: &CancellationToken) -> Liqo {
    let context = Context {
        liqo_tenants: listed.iter().map(|&name| name.to_owned()).collect(),
        ..Context::fake(api).await
    };
    let liqo = Liqo::start(&context, stop);
    for tenant in liqo.tenants.values() {
        tenant.complete().await;
    }
    liqo.nodes.complete().await;
    liqo.maps.complete().await;
    liqo
}

/// The declarations of the clusters, by their ids.
async fn said(api: &FakeApi, listed: &[&str]) -> Vec<ClusterDeclaration> {
    let stop = CancellationToken::new();
    let _stops = stop.clone().drop_guard();
    complete(api, listed, &stop).await.declarations().unwrap()
}

#[tokio::test]
async fn an_id_that_is_too_long_is_logged_once() {
    let (api, stop) = (FakeApi::start().await, CancellationToken::new());
    let _stops = stop.clone().drop_guard();
    let id = "x".repeat(64);
    let (trusted, own) = (
        "liqo-tenant-milan",
        format!("{GROUP}/liqo-tenant-milan/virtualnodes/long"),
    );
    put_tenant(&api, "milan");
    api.change("/api/v1/namespaces/liqo-tenant-milan", |it| {
        it["metadata"]["labels"][CLUSTER_LABEL] = id.as_str().into();
    });
    api.put(&own, json!({"spec": {"clusterID": id}}));
    // This one is doubtful: its namespace is not listed.
    put_node(&api, &format!("liqo-tenant-{id}"), &id);
    let liqo = complete(&api, &[trusted], &stop).await;
    let log = Warnings::record();
    for _ in 0..2 {
        assert!(liqo.declarations().unwrap().is_empty());
    }
    let lines = log.lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines.iter().all(|line| line.contains("cannot be a cluster id")),
        "{lines:?}"
    );
}

#[tokio::test]
async fn a_peer_cannot_declare_another_cluster() {
    let api = FakeApi::start().await;
    for cluster in ["milan", "evil"] {
        put_tenant(&api, cluster);
        let tenant = format!("liqo-tenant-{cluster}");
        put_node(&api, &tenant, cluster);
        put_map(&api, &tenant, cluster, "shop-home");
    }
    put_node(&api, "liqo-tenant-evil", "milan");
    put_map(&api, "liqo-tenant-evil", "milan", "looted");
    put_node(&api, "somewhere", "milan");
    put_map(&api, "somewhere", "milan", "looted");
    let said = said(&api, &["liqo-tenant-milan", "liqo-tenant-evil"]).await;
    let of_milan = said.iter().filter(|one| one.declared.id.as_str() == "milan");
    let of_milan: Vec<_> = of_milan.collect();
    assert_eq!(of_milan.len(), 1);
    let milan = &of_milan[0].declared;
    assert_eq!(milan.namespaces.remote("shop", &milan.id), Ok("shop-home"));
    assert!(matches!(
        &of_milan[0].credentials,
        Credentials::Secret { secret, .. } if secret.namespace == "liqo-tenant-milan"
    ));
}

#[tokio::test]
async fn a_namespace_that_is_not_listed_is_named() {
    let api = FakeApi::start().await;
    put_tenant(&api, "milan");
    put_node(&api, "liqo-tenant-milan", "milan");
    put_map(&api, "liqo-tenant-milan", "milan", "shop-home");
    let said = said(&api, &[]).await;
    assert!(!said[0].believed && said[0].declared.namespaces.mapping.is_empty());
    assert!(matches!(
        &said[0].credentials,
        Credentials::Missing(why) if why.contains("liqo-tenant-milan") && why.contains("liqo.tenantNamespaces")
    ));
}
