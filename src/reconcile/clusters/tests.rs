//! What a cluster's object and the list of clusters say, and when the object may go.

use std::collections::BTreeSet;

use super::*;
use crate::{
    cluster::{Rights, testing::FakeApi},
    placement::Declared,
    volume::{DRIVER_NAME, mark},
};

const OBJECT: &str = "/apis/storage.liqo.io/v1alpha1/remoteclusters/milan";
const MAP: &str = "/api/v1/namespaces/ours/configmaps/liqo-csi-clusters";
const TWIN: &str = "/api/v1/namespaces/shop/persistentvolumeclaims/data";
const VOLUME: &str = "/api/v1/persistentvolumes/pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";

fn registry(link: Link) -> Registry {
    Registry::fixed([(Declared::plain("milan"), link)])
}

async fn world() -> FakeApi {
    let api = FakeApi::start().await;
    api.put(
        "/api/v1/nodes/to-milan",
        json!({"metadata": {"labels": {"to": "milan"}}}),
    );
    let spec =
        json!({"kubeconfigSecretRef": {"name": "milan"}, "nodeSelector": {"matchLabels": {"to": "milan"}}});
    api.put(OBJECT, json!({"metadata": {"generation": 1}, "spec": spec}));
    api
}

async fn up(there: &FakeApi) -> Link {
    Link::up(there, Rights::ALL).await
}

/// Deletes the `RemoteCluster` if it is not held.
fn delete(api: &FakeApi) {
    api.change(OBJECT, |object| {
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    });
}

fn is_held(api: &FakeApi) -> bool {
    api.object(OBJECT)
        .is_some_and(|object| object["metadata"]["finalizers"] == json!([FINALIZER]))
}

fn put_volume(api: &FakeApi) {
    let handle = "v1:milan:pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";
    api.put(
        VOLUME,
        json!({"spec": {
            "csi": {"driver": DRIVER_NAME, "volumeHandle": handle},
            "claimRef": {"namespace": "shop", "name": "data", "uid": "u"},
        }}),
    );
}

async fn round(api: &FakeApi, registry: &Registry) {
    let home = api.cluster().await;
    let watched = Watched::start(&home);
    watched.complete().await;
    let settings = Settings {
        namespace: "ours".into(),
        identity: "a".into(),
        grace: Duration::ZERO,
        allowed_classes: BTreeSet::new(),
    };
    Clusters::new(&home, registry, &watched, &settings, &Metrics::default())
        .round()
        .await
        .unwrap();
}

fn condition(api: &FakeApi, at: usize) -> (String, String) {
    let one = api.object(OBJECT).unwrap()["status"]["conditions"][at].clone();
    let text = |key: &str| one[key].as_str().unwrap().to_owned();
    (text("status"), text("message"))
}

fn report(api: &FakeApi) -> Report {
    let text = api.object(MAP).unwrap()["data"][REPORT].clone();
    serde_json::from_str(text.as_str().unwrap()).unwrap()
}

#[tokio::test]
async fn people_are_told_how_it_is() {
    let api = world().await;
    round(&api, &registry(Link::Unreachable("no route".into()))).await;
    assert_eq!(condition(&api, 0), ("False".into(), "no route".into()));
    assert_eq!(api.object(OBJECT).unwrap()["status"]["lastError"], "no route");
    let report = report(&api);
    assert_eq!(report.clusters[0].nodes, ["to-milan"]);
    assert_eq!(report.clusters[0].state, State::Unreachable);

    let there = FakeApi::start().await;
    round(&api, &registry(up(&there).await)).await;
    assert_eq!(condition(&api, 0).0, "True");
    let status = api.object(OBJECT).unwrap()["status"].clone();
    assert_eq!(status["serverVersion"], "v1.36.3");
    assert!(status["lastError"].is_null());
}

#[tokio::test]
async fn a_cluster_with_volumes_is_held_and_says_which() {
    let api = world().await;
    put_volume(&api);
    let there = FakeApi::start().await;
    let registry = registry(up(&there).await);
    round(&api, &registry).await;
    assert!(is_held(&api));
    delete(&api);
    round(&api, &registry).await;
    let (status, message) = condition(&api, 0);
    assert!(status == "False" && message.contains("shop/data"), "{message}");

    api.remove(VOLUME);
    round(&api, &registry).await;
    assert!(!is_held(&api));
}

#[tokio::test]
async fn a_cluster_with_twins_that_became_no_volumes_is_held() {
    let api = world().await;
    let there = FakeApi::start().await;
    there.put(
        TWIN,
        json!({"metadata": {
            "labels": {mark::MANAGED_BY: mark::MANAGED_BY_US, mark::HOME_CLUSTER: "home", mark::VOLUME: "pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111"},
            "annotations": {
                mark::CLAIM_NAMESPACE: "shop", mark::CLAIM_NAME: "data", mark::CLAIM_UID: "u",
            },
        }}),
    );
    round(&api, &registry(up(&there).await)).await;
    assert!(is_held(&api));
    delete(&api);
    round(&api, &registry(up(&there).await)).await;
    let (_, message) = condition(&api, 0);
    assert!(is_held(&api) && message.contains("shop/data"), "{message}");

    // Out of sight is not gone.
    there.remove(TWIN);
    round(&api, &registry(Link::Unreachable("no route".into()))).await;
    let (_, message) = condition(&api, 0);
    assert!(is_held(&api) && message.contains("no route"), "{message}");

    round(&api, &registry(up(&there).await)).await;
    assert!(!is_held(&api));
}

#[tokio::test]
async fn a_cluster_that_never_answered_is_not_held() {
    let api = world().await;
    round(&api, &registry(Link::Unreachable("no route".into()))).await;
    assert!(!is_held(&api));
}

#[tokio::test]
async fn a_fabric_that_cannot_be_read_is_told_and_holds_up_nobody() {
    let api = world().await;
    let link = Link::Unreachable("no route".into());
    round(
        &api,
        &Registry::partial([(Declared::plain("milan"), link)], ["kosmos.io"]),
    )
    .await;
    assert_eq!(condition(&api, 0).1, "no route");
    assert_eq!(report(&api).unread, ["kosmos.io"]);
}

#[tokio::test]
async fn what_is_declared_twice_can_be_taken_back() {
    let api = world().await;
    put_volume(&api);
    let disputed = registry(Link::Disputed("it is declared more than once".into()));
    round(&api, &disputed).await;
    assert!(!is_held(&api), "the volumes may be the other one's");

    api.change(OBJECT, |object| {
        object["metadata"]["finalizers"] = json!([FINALIZER]);
    });
    round(&api, &disputed).await;
    assert!(is_held(&api), "nobody takes it back");
    delete(&api);
    round(&api, &disputed).await;
    assert!(!is_held(&api));
}

#[tokio::test]
async fn a_selector_that_hits_a_real_node_is_told() {
    let api = world().await;
    let labels = json!({"to": "milan", crate::topology::NODE_KEY: "worker"});
    api.put("/api/v1/nodes/worker", json!({"metadata": {"labels": labels}}));
    round(&api, &registry(Link::Unreachable("no route".into()))).await;
    let told = report(&api).clusters.remove(0);
    assert_eq!(told.nodes, ["to-milan"]);
    assert!(told.limits[0].contains("worker"), "{:?}", told.limits);
}

#[tokio::test]
async fn what_is_left_of_a_cluster_that_nobody_declares_is_shown() {
    let api = world().await;
    put_volume(&api);
    round(&api, &Registry::fixed([])).await;
    let told = report(&api).clusters.remove(0);
    assert_eq!((told.id.as_str(), told.state), ("milan", State::Undeclared));
    assert_eq!(told.volumes, 1);
    assert!(told.message.contains("shop/data"), "{}", told.message);
}

#[tokio::test]
async fn a_class_that_gets_no_real_one_there_is_a_limit() {
    let (api, there) = (world().await, FakeApi::start().await);
    api.put(
        "/apis/storage.k8s.io/v1/storageclasses/liqo",
        json!({"provisioner": DRIVER_NAME, "volumeBindingMode": "WaitForFirstConsumer"}),
    );
    round(&api, &registry(up(&there).await)).await;
    let limits = report(&api).clusters[0].limits.clone();
    let told = |word: &str| limits.iter().any(|limit| limit.contains(word));
    assert!(
        told("claims of the class liqo") && told("realStorageClass"),
        "{limits:?}"
    );
    assert!(condition(&api, 0).1.contains("within the limits"));

    there.put(
        "/apis/storage.k8s.io/v1/storageclasses/gold",
        json!({
            "metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "provisioner": "real.example",
        }),
    );
    round(&api, &registry(up(&there).await)).await;
    assert_eq!(report(&api).clusters[0].limits, [""; 0]);
}
