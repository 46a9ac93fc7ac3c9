//! What is published of a few nodes and classes, and what happens when they change.

use serde_json::Value;

use super::*;
use crate::{
    cluster::{
        Rights,
        testing::{Act, FakeApi, Fault},
    },
    fleet::Link,
    placement::{ClassMap, Declared, NodeRule},
    topology,
    volume::DRIVER_NAME,
};

const OURS: &str = "/apis/storage.k8s.io/v1/namespaces/ours/csistoragecapacities";

fn settings() -> Settings {
    Settings::for_test(Duration::ZERO)
}

fn node(api: &FakeApi, name: &str) {
    let labels = json!({
        "topology.storage.liqo.io/cluster": "home",
        "topology.storage.liqo.io/node": name,
    });
    api.put(
        &format!("/api/v1/nodes/{name}"),
        json!({"metadata": {"labels": labels}}),
    );
}

fn class(api: &FakeApi, name: &str, provisioner: &str, more: &Value) {
    let mut class = json!({
        "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer",
    });
    class
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    api.put(&format!("/apis/storage.k8s.io/v1/storageclasses/{name}"), class);
}

fn world(api: &FakeApi) {
    for name in ["n1", "n2"] {
        node(api, name);
    }
    class(
        api,
        "liqo",
        DRIVER_NAME,
        &json!({"parameters": {"realStorageClass": "real"}}),
    );
    let only_n1 = json!([{"matchLabelExpressions": [
        {"key": "topology.storage.liqo.io/node", "values": ["n1"]},
    ]}]);
    class(
        api,
        "real",
        "real.example",
        &json!({ "allowedTopologies": only_n1 }),
    );
}

/// Nodes and capacity of every object, as `n1,n2=4Ei`.
fn published(api: &FakeApi) -> Vec<String> {
    let mut rooms: Vec<String> = api
        .store()
        .below(OURS)
        .iter()
        .map(|object| {
            let values = object["nodeTopology"]["matchExpressions"][0]["values"]
                .as_array()
                .unwrap();
            let nodes: Vec<_> = values.iter().filter_map(Value::as_str).collect();
            format!("{}={}", nodes.join(","), object["capacity"].as_str().unwrap())
        })
        .collect();
    rooms.sort();
    rooms
}

async fn round(api: &FakeApi) -> Result<(), ApiError> {
    round_with(api, &Registry::default(), &settings()).await
}

async fn round_with(api: &FakeApi, registry: &Registry, settings: &Settings) -> Result<(), ApiError> {
    let home = api.cluster().await;
    let watched = Watched::start(&home);
    watched.complete().await;
    let mut capacities = Capacities::new(&home, registry, &watched, settings);
    capacities.refusals.complete().await;
    capacities.round().await
}

/// A remote cluster without nodes, with this class as the default of its class mapping.
async fn milan(there: &FakeApi, rights: Rights, default: Option<&str>) -> Registry {
    let declared = Declared {
        nodes: NodeRule::Labels(topology::LabelSelector(Vec::new())),
        classes: ClassMap {
            default: default.map(str::to_owned),
            ..ClassMap::default()
        },
        ..Declared::plain("milan")
    };
    Registry::fixed([(declared, Link::up(there, rights).await)])
}

#[tokio::test]
async fn excluded_nodes_publish_zero_capacity_and_others_their_maximum() {
    let api = FakeApi::start().await;
    world(&api);
    round(&api).await.unwrap();
    assert_eq!(published(&api), ["n1=4Ei", "n2=0"]);
    let object = &api.store().below(OURS)[0];
    assert_eq!(object["storageClassName"], "liqo");
    assert_eq!(
        object["metadata"]["labels"][mark::MANAGED_BY],
        mark::MANAGED_BY_US
    );

    let writes = api.writes();
    round(&api).await.unwrap();
    assert_eq!(api.writes(), writes, "nothing changed, nothing is written");
}

#[tokio::test]
async fn published_capacity_follows_changes_of_classes_drivers_and_nodes() {
    let api = FakeApi::start().await;
    world(&api);
    round(&api).await.unwrap();
    class(&api, "real", "real.example", &json!({}));
    node(&api, "n3");
    round(&api).await.unwrap();
    assert_eq!(published(&api), ["n1,n2,n3=4Ei"]);

    api.put(
        "/apis/storage.k8s.io/v1/csidrivers/real.example",
        json!({"spec": {"storageCapacity": true}}),
    );
    let everywhere: Vec<Value> = ["n1", "n2", "n3"]
        .map(|name| {
            let drivers = json!([{"name": "real.example", "nodeID": name, "topologyKeys": []}]);
            api.put(
                &format!("/apis/storage.k8s.io/v1/csinodes/{name}"),
                json!({"spec": {"drivers": drivers}}),
            )
        })
        .into();
    assert_eq!(everywhere.len(), 3);
    api.put(
        "/apis/storage.k8s.io/v1/namespaces/theirs/csistoragecapacities/c",
        json!({"storageClassName": "real", "capacity": "7Gi", "nodeTopology": {}}),
    );
    round(&api).await.unwrap();
    assert_eq!(published(&api), ["n1,n2,n3=7Gi"]);

    api.remove("/apis/storage.k8s.io/v1/storageclasses/liqo");
    round(&api).await.unwrap();
    assert_eq!(published(&api), [""; 0]);
}

#[tokio::test]
async fn old_capacity_stays_until_the_new_is_written() {
    let api = FakeApi::start().await;
    world(&api);
    round(&api).await.unwrap();
    node(&api, "n3");
    class(&api, "real", "real.example", &json!({}));
    api.fault(Fault::new("POST", "csistoragecapacities", Act::Refuse(403)).times(1));
    assert!(round(&api).await.is_err());
    assert_eq!(published(&api), ["n1=4Ei", "n2=0"], "the old ones stay");
    round(&api).await.unwrap();
    assert_eq!(published(&api), ["n1,n2,n3=4Ei"]);
}

#[tokio::test]
async fn without_the_right_to_read_classes_one_must_be_named() {
    let (api, there) = (FakeApi::start().await, FakeApi::start().await);
    class(&api, "liqo", DRIVER_NAME, &json!({}));
    let named = milan(&there, Rights::default(), Some("gold")).await;
    round_with(&api, &named, &settings()).await.unwrap();
    assert_eq!(published(&api), ["milan=4Ei"]);

    let unnamed = milan(&there, Rights::default(), None).await;
    round_with(&api, &unnamed, &settings()).await.unwrap();
    assert_eq!(published(&api), ["milan=0"]);
    // Claims may name one.
    let mut by_claims = settings();
    by_claims.allowed_classes = ["gold".to_owned()].into();
    round_with(&api, &unnamed, &by_claims).await.unwrap();
    assert_eq!(published(&api), ["milan=4Ei"]);

    // The classes are readable, and the default one does not exist; then nodes do not matter.
    let mut without_nodes = Rights::ALL;
    without_nodes.nodes = false;
    let none = milan(&there, without_nodes, None).await;
    round_with(&api, &none, &settings()).await.unwrap();
    assert_eq!(published(&api), ["milan=0"]);
}

#[tokio::test]
async fn a_cluster_that_is_being_deleted_has_no_capacity() {
    let (api, there) = (FakeApi::start().await, FakeApi::start().await);
    class(&api, "liqo", DRIVER_NAME, &json!({}));
    let registry = milan(&there, Rights::default(), Some("gold")).await;
    round_with(&api, &registry.leaving(), &settings()).await.unwrap();
    assert_eq!(published(&api), ["milan=0"]);
}

const GIB: u64 = 1 << 30;

fn refusal(seconds_ago: i64) -> Refused {
    let now = jiff::Timestamp::now().as_second();
    Refused::new("liqo", &"milan".parse().unwrap(), GIB, now - seconds_ago)
}

#[tokio::test]
async fn annotations_of_users_do_not_reduce_capacity() {
    let (api, there) = (FakeApi::start().await, FakeApi::start().await);
    class(&api, "liqo", DRIVER_NAME, &json!({}));
    let registry = milan(&there, Rights::default(), Some("gold")).await;
    let until = jiff::Timestamp::now().as_second() + 100;
    for forged in [
        json!({"cluster": "milan", "bytes": 0, "until": until}).to_string(),
        refusal(0).to_string(),
    ] {
        api.put(
            "/api/v1/namespaces/shop/persistentvolumeclaims/data",
            json!({
                "metadata": {"annotations": {"storage.liqo.io/refused": forged}},
                "spec": {"storageClassName": "liqo"}, "status": {"phase": "Pending"},
            }),
        );
        api.put(
            "/api/v1/namespaces/shop/configmaps/liqo-csi-refusals",
            json!({"data": {"forged": forged}}),
        );
        round_with(&api, &registry, &settings()).await.unwrap();
        assert_eq!(published(&api), ["milan=4Ei"]);
    }
}

#[tokio::test]
async fn a_refused_size_limits_capacity_for_a_while() {
    const NOTES: &str = "/api/v1/namespaces/ours/configmaps/liqo-csi-refusals";
    let (api, there) = (FakeApi::start().await, FakeApi::start().await);
    class(&api, "liqo", DRIVER_NAME, &json!({}));
    class(&api, "other", DRIVER_NAME, &json!({}));
    let registry = milan(&there, Rights::default(), Some("gold")).await;
    api.put(NOTES, json!({"data": {"a": refusal(0).to_string(), "odd": "?"}}));
    let home = api.cluster().await;
    let watched = Watched::start(&home);
    watched.complete().await;
    let settings = settings();
    let mut capacities = Capacities::new(&home, &registry, &watched, &settings);
    capacities.refusals.complete().await;
    capacities.round().await.unwrap();
    let less = format!("milan={}", GIB - 1);
    assert_eq!(published(&api), [less.as_str(), "milan=4Ei"]);
    // It is published again when the refusal expires, not only after a change.
    let due = capacities.due().unwrap();
    assert!(
        due > Duration::from_mins(1) && due <= Duration::from_mins(2),
        "{due:?}"
    );

    api.put(NOTES, json!({"data": {"a": refusal(120).to_string()}}));
    round_with(&api, &registry, &settings).await.unwrap();
    assert_eq!(published(&api), ["milan=4Ei", "milan=4Ei"]);
}

#[tokio::test]
async fn only_unbound_volumes_trigger_a_round() {
    let api = FakeApi::start().await;
    world(&api);
    let home = api.cluster().await;
    let watched = Watched::start(&home);
    watched.complete().await;
    let (registry, settings) = (Registry::default(), settings());
    let capacities = Capacities::new(&home, &registry, &watched, &settings);
    capacities.current.complete().await;
    capacities.refusals.complete().await;
    let triggers = capacities.triggers();
    let mut version = watched.volumes.version();
    let mut is_woken_by = async |name: &str, volume: Value| {
        version.mark_unchanged();
        api.put(&format!("/api/v1/persistentvolumes/{name}"), volume);
        version.changed().await.unwrap();
        triggers.iter().any(|trigger| trigger.has_changed().unwrap())
    };
    let ours =
        json!({"driver": DRIVER_NAME, "volumeHandle": "v1:home:pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111"});
    assert!(!is_woken_by("ours", json!({"spec": {"csi": ours}})).await);
    let twins = json!({"spec": {"claimRef": {"namespace": "liqo-storage", "name": "twin"}}});
    assert!(!is_woken_by("twins", twins).await);
    let free = json!({"spec": {"storageClassName": "static"}, "status": {"phase": "Available"}});
    assert!(is_woken_by("free", free).await);
}
