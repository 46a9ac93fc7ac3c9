//! The loop against a fake API server: a home cluster with three nodes, and two that represent another
//! cluster.

use serde_json::{Value, json};

use super::*;
use crate::{
    cluster::testing::FakeApi,
    topology::{CLUSTER_KEY, NODE_KEY},
};

const KINDS: &str = "/apis/snapshot.storage.k8s.io/v1";
const SNAPSHOT: &str = "5d1c3f2e-8a51-4f0e-9f0f-0d2c7ef1a222";
const CLAIM: &str = "/api/v1/namespaces/shop/persistentvolumeclaims/copy";
const TWIN: &str = "/apis/snapshot.storage.k8s.io/v1/namespaces/liqo-storage/volumesnapshots/snapshot-5d1c3f2e-8a51-4f0e-9f0f-0d2c7ef1a222";

fn node(api: &FakeApi, name: &str, cluster: &str) {
    let mut labels = json!({CLUSTER_KEY: cluster, "kubernetes.io/hostname": name});
    if cluster == "home" {
        labels[NODE_KEY] = name.into();
    }
    let path = format!("/api/v1/nodes/{name}");
    api.put(&path, json!({"metadata": {"labels": labels}, "spec": {}}));
}

fn class(api: &FakeApi, parameters: &Value) {
    api.put(
        "/apis/storage.k8s.io/v1/storageclasses/liqo",
        json!({
            "provisioner": DRIVER_NAME, "volumeBindingMode": "WaitForFirstConsumer", "parameters": parameters,
        }),
    );
}

/// A claim of this driver's class that is a copy of the snapshot `backup`.
fn claim(api: &FakeApi, annotations: &Value) {
    let source = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "backup"});
    api.put(
        CLAIM,
        json!({
            "metadata": {"annotations": annotations},
            "spec": {"storageClassName": "liqo", "dataSource": source},
            "status": {"phase": "Pending"},
        }),
    );
}

/// The snapshot `backup`, whose id is this one.
fn snapshot(api: &FakeApi, handle: &str) {
    api.put(
        &format!("{KINDS}/namespaces/shop/volumesnapshots/backup"),
        json!({"spec": {"source": {}}, "status": {"boundVolumeSnapshotContentName": "content"}}),
    );
    api.put(
        &format!("{KINDS}/volumesnapshotcontents/content"),
        json!({"spec": {"driver": DRIVER_NAME}, "status": {"snapshotHandle": handle}}),
    );
}

/// Its twin at home, of a volume that is accessible from this node only, if one is named.
fn twin(api: &FakeApi, only: Option<&str>) {
    let mut annotations = json!({});
    if let Some(node) = only {
        let expression = json!({"key": NODE_KEY, "operator": "In", "values": [node]});
        let affinity = json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]});
        annotations[mark::SOURCE_AFFINITY] = affinity.to_string().into();
    }
    let labels = json!({
        mark::MANAGED_BY: mark::MANAGED_BY_US, mark::HOME_CLUSTER: "home", mark::SNAPSHOT: SNAPSHOT,
    });
    api.put(
        TWIN,
        json!({"metadata": {"labels": labels, "annotations": annotations}, "spec": {"source": {}}}),
    );
}

fn pod(api: &FakeApi, name: &str, spec: &Value, claims: &[&str]) {
    let volume = |claim: &&str| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
    let mut spec = spec.clone();
    spec["containers"] = json!([]);
    spec["volumes"] = claims.iter().map(volume).collect();
    api.put(
        &format!("/api/v1/namespaces/shop/pods/{name}"),
        json!({"spec": spec, "status": {"phase": "Pending"}}),
    );
}

/// A home cluster with a claim for a copy of a snapshot that is in this cluster.
async fn world(cluster: &str) -> FakeApi {
    let api = FakeApi::start().await;
    for (name, cluster) in [
        ("n1", "home"),
        ("n2", "home"),
        ("n3", "home"),
        ("to-milan", "milan"),
        ("to-milan-2", "milan"),
    ] {
        node(&api, name, cluster);
    }
    class(&api, &json!({}));
    claim(&api, &json!({}));
    if cluster == "home" {
        snapshot(&api, &format!("s1:home::{SNAPSHOT}"));
        twin(&api, None);
    } else {
        snapshot(&api, &format!("s1:{cluster}:shop-home:{SNAPSHOT}"));
    }
    api
}

fn missed() -> Value {
    json!({mark::SOURCE_AT: "home"})
}

fn selected(api: &FakeApi) -> Value {
    api.object(CLAIM).unwrap()["metadata"]["annotations"][SELECTED_NODE].clone()
}

fn told(api: &FakeApi) -> Vec<String> {
    let events = api
        .store()
        .below("/apis/events.k8s.io/v1/namespaces/shop/events/");
    let told = events.iter().map(|event| {
        format!(
            "{}: {}",
            event["reason"].as_str().unwrap(),
            event["note"].as_str().unwrap()
        )
    });
    told.collect()
}

/// Runs this many rounds.
async fn looks(api: &FakeApi, count: usize) {
    let home = api.cluster().await;
    let watched = Watched::start(&home);
    watched.complete().await;
    let events = Events::new(home.client().clone());
    let mut sources = Sources::new(&home, &watched, &events, Reports::new(events.clone()));
    watched.pods.complete().await;
    for _ in 0..count {
        sources.round().await.unwrap();
        sources.pauses.end();
    }
}

#[tokio::test]
async fn the_one_node_is_selected_at_once() {
    let api = world("home").await;
    twin(&api, Some("n2"));
    looks(&api, 1).await;
    assert_eq!(selected(&api), "n2");
    let told = told(&api);
    assert!(
        told[0].starts_with("NodeSelected: the snapshot backup is in this cluster"),
        "{told:?}"
    );

    let api = world("milan").await;
    api.remove("/api/v1/nodes/to-milan-2");
    looks(&api, 1).await;
    assert_eq!(selected(&api), "to-milan");
}

#[tokio::test]
async fn of_several_the_scheduler_chooses_first() {
    for cluster in ["home", "milan"] {
        let api = world(cluster).await;
        pod(&api, "web", &json!({}), &["copy"]);
        looks(&api, 2).await;
        assert!(selected(&api).is_null());
        claim(&api, &missed());
        looks(&api, 1).await;
        assert_eq!(selected(&api), if cluster == "home" { "n1" } else { "to-milan" });
    }
    let api = world("home").await;
    claim(&api, &missed());
    looks(&api, 2).await;
    assert!(selected(&api).is_null(), "its pod may come");
}

#[tokio::test]
async fn a_node_is_selected_that_the_pod_may_use() {
    let api = world("home").await;
    claim(&api, &missed());
    api.change("/api/v1/nodes/n1", |node| {
        node["spec"]["unschedulable"] = true.into();
    });
    pod(&api, "web", &json!({}), &["copy"]);
    looks(&api, 1).await;
    assert_eq!(selected(&api), "n2");

    let api = world("home").await;
    claim(&api, &missed());
    pod(
        &api,
        "web",
        &json!({"nodeSelector": {"kubernetes.io/hostname": "n3"}}),
        &["copy"],
    );
    looks(&api, 1).await;
    assert_eq!(selected(&api), "n3");

    // The other claims of its pod must be accessible there, too.
    let api = world("home").await;
    claim(&api, &missed());
    let other = "/api/v1/namespaces/shop/persistentvolumeclaims/other";
    api.put(
        other,
        json!({"metadata": {"annotations": {SELECTED_NODE: "n2"}}, "spec": {}, "status": {"phase": "Pending"}}),
    );
    pod(&api, "web", &json!({}), &["copy", "other"]);
    looks(&api, 1).await;
    assert_eq!(selected(&api), "n2");
}

#[tokio::test]
async fn a_pod_that_cannot_run_near_the_source_gets_an_event() {
    let api = world("milan").await;
    claim(&api, &missed());
    pod(
        &api,
        "web",
        &json!({"nodeSelector": {"kubernetes.io/hostname": "n3"}}),
        &["copy"],
    );
    looks(&api, 1).await;
    assert!(told(&api).is_empty(), "the pod may be on its way out");
    looks(&api, 2).await;
    assert!(selected(&api).is_null());
    let told = told(&api);
    assert_eq!(told.len(), 1, "{told:?}");
    for part in [
        "SourceElsewhere",
        "snapshot backup",
        "cluster milan",
        "to-milan",
        "pod web",
    ] {
        assert!(told[0].contains(part), "{told:?}");
    }

    let api = world("home").await;
    twin(&api, Some("n2"));
    let taint = json!([{"key": "dedicated", "value": "db", "effect": "NoSchedule"}]);
    api.change("/api/v1/nodes/n2", |node| node["spec"]["taints"] = taint.clone());
    pod(&api, "web", &json!({}), &["copy"]);
    looks(&api, 2).await;
    assert!(selected(&api).is_null());
    assert!(self::told(&api)[0].contains("n2 has the taint dedicated"));
}

#[tokio::test]
async fn the_topology_of_a_snapshot_depends_on_the_class() {
    let api = world("home").await;
    twin(&api, Some("n2"));
    class(&api, &json!({"restoreTopology": "cluster"}));
    looks(&api, 2).await;
    assert!(selected(&api).is_null());
}

#[tokio::test]
async fn a_clone_is_scheduled_to_its_source() {
    let api = world("home").await;
    api.change(CLAIM, |claim| {
        claim["spec"]["dataSource"] = json!({"kind": "PersistentVolumeClaim", "name": "data"});
    });
    let source = "/api/v1/namespaces/shop/persistentvolumeclaims/data";
    api.put(
        source,
        json!({"spec": {"storageClassName": "liqo"}, "status": {"phase": "Pending"}}),
    );
    looks(&api, 2).await;
    assert!(selected(&api).is_null(), "its source has no volume yet");
    api.change(source, |claim| claim["spec"]["volumeName"] = "pv".into());
    let expression = json!({"key": NODE_KEY, "operator": "In", "values": ["n3"]});
    api.put(
        "/api/v1/persistentvolumes/pv",
        json!({"spec": {
            "csi": {"driver": DRIVER_NAME, "volumeHandle": "v1:home:pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
        }}),
    );
    looks(&api, 1).await;
    assert_eq!(selected(&api), "n3");
}

#[tokio::test]
async fn other_claims_get_no_node() {
    let api = world("home").await;
    twin(&api, Some("n2"));
    claim(&api, &json!({SELECTED_NODE: "n9"}));
    looks(&api, 1).await;
    assert_eq!(selected(&api), "n9", "it has a node");

    claim(&api, &json!({}));
    api.change("/apis/storage.k8s.io/v1/storageclasses/liqo", |class| {
        class["provisioner"] = "real.test".into();
    });
    looks(&api, 1).await;
    assert!(selected(&api).is_null(), "not our class");

    let api = world("home").await;
    twin(&api, Some("n2"));
    api.change(&format!("{KINDS}/volumesnapshotcontents/content"), |content| {
        content["spec"]["driver"] = "real.test".into();
    });
    looks(&api, 1).await;
    assert!(selected(&api).is_null(), "not our snapshot");
    api.remove(&format!("{KINDS}/volumesnapshotcontents/content"));
    looks(&api, 2).await;
    assert!(selected(&api).is_null() && told(&api).is_empty());
}

/// Kubernetes writes to a new claim at the same moment.
#[tokio::test]
async fn a_claim_that_changes_meanwhile_is_reconciled_again() {
    let api = world("home").await;
    twin(&api, Some("n2"));
    let now = |key: &'static str, value: Value| {
        api.before("PATCH", CLAIM, move |store| {
            let mut claim = store.get(CLAIM).unwrap();
            claim["metadata"][key] = value;
            store.put(CLAIM, claim);
        });
    };
    now("finalizers", json!(["kubernetes.io/pvc-protection"]));
    looks(&api, 1).await;
    assert_eq!(selected(&api), "n2");

    // This time the scheduler selects a node.
    claim(&api, &json!({}));
    now("annotations", json!({SELECTED_NODE: "n1"}));
    looks(&api, 1).await;
    assert_eq!(selected(&api), "n1");
}

#[tokio::test]
async fn a_claim_that_lost_its_node_gets_another_later() {
    let api = world("home").await;
    claim(&api, &missed());
    pod(&api, "web", &json!({}), &["copy"]);
    let home = api.cluster().await;
    let watched = Watched::start(&home);
    watched.complete().await;
    let events = Events::new(home.client().clone());
    let mut sources = Sources::new(&home, &watched, &events, Reports::new(events.clone()));
    watched.pods.complete().await;
    let has_node = async |expected: bool| {
        let mut version = watched.claims.version();
        let known = |_: &u64| {
            let claim = watched.claims.get("shop/copy");
            claim.is_some_and(|claim| claim.has_node == expected)
        };
        version.wait_for(known).await.unwrap();
    };
    sources.round().await.unwrap();
    assert_eq!(selected(&api), "n1");
    has_node(true).await;
    sources.round().await.unwrap();
    api.change(CLAIM, |claim| {
        let annotations = claim["metadata"]["annotations"].as_object_mut().unwrap();
        annotations.remove(SELECTED_NODE);
    });
    has_node(false).await;
    sources.round().await.unwrap();
    assert!(selected(&api).is_null(), "the pause is not over");
    sources.pauses.end();
    sources.round().await.unwrap();
    assert_eq!(selected(&api), "n2", "the first was of no use");
}
