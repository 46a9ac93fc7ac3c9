//! The status of a `RemoteCluster`, the list of clusters, and when the object may be deleted.

use serde_json::Value;

use super::*;
use crate::{
    access::{SESSION, TokenFacts},
    cluster::{
        Cause, Rights,
        testing::{Act, FakeApi, Fault},
    },
    fleet::AccessFacts,
    placement::{Declared, Fabric},
    volume::{DRIVER_NAME, mark},
};

static LIQO: Fabric = Fabric {
    name: "liqo",
    class_annotations: &[],
    default_class: None,
    copies: None,
    mirrors_nodes: false,
};
const OBJECT: &str = "/apis/storage.liqo.io/v1alpha1/remoteclusters/milan";
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

/// Deletes the `RemoteCluster` unless it has the finalizer.
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

fn settings() -> Settings {
    Settings::for_test(Duration::ZERO)
}

async fn round(api: &FakeApi, registry: &Registry) {
    let (settings, metrics) = (settings(), Metrics::default());
    // The write of the first round triggers another round.
    for _ in 0..2 {
        let home = api.cluster().await;
        let watched = Watched::start(&home);
        watched.complete().await;
        home.views().remote_clusters.complete().await;
        let mut clusters = Clusters::new(&home, registry, &watched, &settings, &metrics);
        clusters.round().await.unwrap();
        assert!(!clusters.has_failed());
    }
}

fn condition(api: &FakeApi, at: usize) -> (String, String) {
    let one = api.object(OBJECT).unwrap()["status"]["conditions"][at].clone();
    let text = |key: &str| one[key].as_str().unwrap().to_owned();
    (text("status"), text("message"))
}

fn status(api: &FakeApi) -> Value {
    api.object(OBJECT).unwrap()["status"].clone()
}

/// The same cluster, discovered from Liqo.
fn found(link: Link) -> Registry {
    Registry::fixed([(by_liqo(), link)])
}

fn by_liqo() -> Declared {
    Declared {
        fabric: Some(&LIQO),
        object: "VirtualNode liqo-tenant-milan/milan".into(),
        ..Declared::plain("milan")
    }
}

#[tokio::test]
async fn the_status_shows_the_state_of_the_cluster() {
    let api = world().await;
    round(&api, &registry(Link::Unreachable("no route".into()))).await;
    assert_eq!(condition(&api, 0), ("False".into(), "no route".into()));
    assert_eq!(api.object(OBJECT).unwrap()["status"]["lastError"], "no route");
    assert_eq!(status(&api)["nodes"], json!(["to-milan"]));

    let there = FakeApi::start().await;
    round(&api, &registry(up(&there).await)).await;
    assert_eq!(condition(&api, 0).0, "True");
    let status = api.object(OBJECT).unwrap()["status"].clone();
    assert_eq!(status["serverVersion"], "v1.36.3");
    assert!(status["lastError"].is_null());
}

const SYSTEM: &str = "/api/v1/namespaces/kube-system";

#[tokio::test]
async fn the_uid_of_a_cluster_without_the_fabric_is_recorded_once() {
    let (api, there) = (world().await, FakeApi::start().await);
    for (uid, recorded) in [("before", "before"), ("after", "before")] {
        there.put(SYSTEM, json!({"metadata": {"uid": uid}}));
        round(&api, &registry(up(&there).await)).await;
        assert_eq!(status(&api)["virtualNode"]["clusterUid"], recorded);
    }
    // The fabric checks first that no other RemoteCluster leads to the same cluster.
    api.change(OBJECT, |object| {
        (object["spec"]["fabric"], object["status"]) = (json!({}), json!({}));
    });
    round(&api, &registry(up(&there).await)).await;
    assert!(status(&api)["virtualNode"]["clusterUid"].is_null());
}

/// The `RemoteCluster` was deleted and created again, and the old cluster still answers.
#[tokio::test]
async fn the_uid_behind_the_connection_of_a_deleted_remote_cluster_is_not_recorded() {
    let (api, there) = (world().await, FakeApi::start().await);
    there.put(SYSTEM, json!({"metadata": {"uid": "before"}}));
    let uid = api.object(OBJECT).unwrap()["metadata"]["uid"].clone();
    let uid = uid.as_str().unwrap();
    for (declared_by, recorded) in [("deleted", Value::Null), (uid, json!("before"))] {
        let declared = Declared {
            object_uid: Some(declared_by.to_owned()),
            ..Declared::plain("milan")
        };
        round(&api, &Registry::fixed([(declared, up(&there).await)])).await;
        assert_eq!(status(&api)["virtualNode"]["clusterUid"], recorded);
    }
}

#[tokio::test]
async fn another_cluster_than_the_recorded_one_is_refused() {
    let (api, there) = (world().await, FakeApi::start().await);
    put_volume(&api);
    there.put(SYSTEM, json!({"metadata": {"uid": "after"}}));
    for (fabric, way_out) in [
        (None, "--the-cluster-is-gone"),
        (Some(&LIQO), "delete the RemoteCluster milan"),
    ] {
        let recorded = Declared {
            uid: Some("before".into()),
            fabric,
            ..Declared::plain("milan")
        };
        let registry = Registry::fixed([(recorded, up(&there).await)]);
        let remote = registry.get(&"milan".parse().unwrap()).unwrap();
        let refused = remote.reach().err().unwrap().to_string();
        assert!(
            refused.contains("another cluster than before") && refused.contains(way_out),
            "{refused}"
        );
        assert!(remote.kubeconfig().is_none());
        if fabric.is_none() {
            round(&api, &registry).await;
            assert_eq!(status(&api)["conditions"][0]["reason"], "Refused");
            assert!(is_held(&api));
        }
    }
    let expected = Declared {
        uid: Some("after".into()),
        ..Declared::plain("milan")
    };
    let registry = Registry::fixed([(expected, up(&there).await)]);
    assert!(registry.get(&"milan".parse().unwrap()).unwrap().reach().is_ok());
}

/// The view shows a `RemoteCluster` that was deleted, and its name belongs to another one.
#[tokio::test]
async fn the_status_of_a_deleted_remote_cluster_is_not_written_to_its_successor() {
    let (api, there) = (world().await, FakeApi::start().await);
    there.put(SYSTEM, json!({"metadata": {"uid": "before"}}));
    let (settings, metrics) = (settings(), Metrics::default());
    let home = api.cluster().await;
    let watched = Watched::start(&home);
    watched.complete().await;
    home.views().remote_clusters.complete().await;
    let seen = home.views().remote_clusters.get("milan").unwrap();
    let registry = registry(up(&there).await);
    let clusters = Clusters::new(&home, &registry, &watched, &settings, &metrics);
    api.change(OBJECT, |object| object["metadata"]["uid"] = json!("successor"));
    let remote = registry.get(&"milan".parse().unwrap()).unwrap();
    let report = report(&home, &remote, &settings);
    clusters.reconciler.record_uid(&seen, &report).await.unwrap();
    clusters
        .reconciler
        .write(&seen, &RemoteClusterStatus::default())
        .await
        .unwrap();
    assert!(api.object(OBJECT).unwrap()["status"].is_null());
}

#[tokio::test]
async fn a_cluster_with_volumes_keeps_its_finalizer_and_names_them() {
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
async fn a_cluster_with_unused_twins_keeps_its_finalizer() {
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

    // Unreachable twins still count.
    there.remove(TWIN);
    round(&api, &registry(Link::Unreachable("no route".into()))).await;
    let (_, message) = condition(&api, 0);
    assert!(is_held(&api) && message.contains("no route"), "{message}");

    round(&api, &registry(up(&there).await)).await;
    assert!(!is_held(&api));
}

/// Several `RemoteCluster`s may lead to one API server.
#[tokio::test]
async fn moves_to_a_cluster_keep_its_finalizer() {
    let api = world().await;
    let there = FakeApi::start().await;
    let name = "pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";
    there.put(
        TWIN,
        json!({"metadata": {
            "labels": {
                mark::MANAGED_BY: mark::MANAGED_BY_US, mark::HOME_CLUSTER: "home", mark::VOLUME: name,
                mark::MOVE: "29e01d9f-40e2-4019-9cfb-7eadb0d418e5",
            },
            "annotations": {
                mark::CLAIM_NAMESPACE: "shop", mark::CLAIM_NAME: "data", mark::CLAIM_UID: "u", mark::EPOCH: "1",
            },
        }}),
    );
    let put_move = |target: &str| {
        api.put(
            "/apis/storage.liqo.io/v1alpha1/namespaces/shop/volumemoves/data",
            json!({
                "metadata": {"uid": "29e01d9f-40e2-4019-9cfb-7eadb0d418e5"},
                "spec": {"claims": ["data"], "target": {"cluster": target}},
                "status": {
                    "stage": {"name": "Copying"},
                    "claims": [{
                        "name": "data", "uid": "u", "volumeHandle": format!("v1:home:{name}"), "epoch": 1,
                        "source": {"cluster": "home", "namespace": "liqo-storage", "name": "u"},
                        "target": {"cluster": target, "namespace": "shop", "name": "data"},
                    }],
                },
            }),
        );
    };
    put_move("milan");
    round(&api, &registry(up(&there).await)).await;
    delete(&api);
    round(&api, &registry(up(&there).await)).await;
    assert!(is_held(&api));
    put_move("rome");
    round(&api, &registry(up(&there).await)).await;
    assert!(!is_held(&api));
}

const CONTENT: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/content";

/// A snapshot of a user, whose twin is in this cluster.
fn put_snapshot(api: &FakeApi, cluster: &str) {
    let group = json!({"groupVersion": "snapshot.storage.k8s.io/v1", "resources": []});
    api.put("/apis/snapshot.storage.k8s.io/v1", group);
    let handle = format!("s1:{cluster}:shop-home:5d1c3f2e-8a51-4f0e-9f0f-0d2c7ef1a222");
    api.put(
        CONTENT,
        json!({
            "spec": {"driver": DRIVER_NAME, "volumeSnapshotRef": {"namespace": "shop", "name": "backup"}},
            "status": {"snapshotHandle": handle},
        }),
    );
}

#[tokio::test]
async fn a_cluster_with_snapshots_keeps_its_finalizer_and_names_them() {
    let (api, there) = (world().await, FakeApi::start().await);
    put_snapshot(&api, "rome");
    let registry = registry(up(&there).await);
    round(&api, &registry).await;
    assert!(!is_held(&api), "they are elsewhere");
    put_snapshot(&api, "milan");
    round(&api, &registry).await;
    assert!(is_held(&api));
    assert_eq!(status(&api)["snapshots"], 1);
    delete(&api);
    round(&api, &registry).await;
    let (state, message) = condition(&api, 0);
    assert!(state == "False" && message.contains("shop/backup"), "{message}");

    api.remove(CONTENT);
    round(&api, &registry).await;
    assert!(!is_held(&api));
}

#[tokio::test]
async fn a_content_for_an_existing_snapshot_counts_before_it_has_a_status() {
    let (api, there) = (world().await, FakeApi::start().await);
    put_snapshot(&api, "milan");
    let mut content = api.object(CONTENT).unwrap();
    content["spec"]["source"] = content["status"].take();
    api.put(CONTENT, content);
    round(&api, &registry(up(&there).await)).await;
    assert!(is_held(&api));
}

#[tokio::test]
async fn snapshots_that_cannot_be_read_change_nothing() {
    let (api, there) = (world().await, FakeApi::start().await);
    put_snapshot(&api, "milan");
    let registry = registry(up(&there).await);
    round(&api, &registry).await;
    delete(&api);
    let unread = Fault::new("GET", "/volumesnapshotcontents", Act::Forbid("no right"));
    api.fault(unread.times(100));
    round(&api, &registry).await;
    let message = condition(&api, 0).1;
    assert!(is_held(&api) && message.contains("cannot be read"), "{message}");
}

#[tokio::test]
async fn an_object_of_a_found_cluster_with_snapshots_outlives_the_declaration() {
    let api = world().await;
    api.remove(OBJECT);
    round(&api, &found(Link::Unreachable("no route".into()))).await;
    put_snapshot(&api, "milan");
    round(&api, &Registry::fixed([])).await;
    let message = condition(&api, 0).1;
    assert!(message.contains("Snapshots are there: shop/backup"), "{message}");
    api.remove(CONTENT);
    round(&api, &Registry::fixed([])).await;
    assert!(api.object(OBJECT).is_none());
}

#[tokio::test]
async fn a_token_that_is_not_valid_is_reported_with_the_fix() {
    let unreachable = || Link::Unreachable(Cause::Unauthorized("Unauthorized".into()));
    let later = jiff::Timestamp::now().as_second() + 3600;
    for (registry, expires, cause, way_out) in [
        (
            registry(unreachable()),
            1_767_225_600,
            "expired at 2026-01-01T00:00:00Z",
            "liqo-csi connect milan --remote-context CONTEXT",
        ),
        (
            found(unreachable()),
            1_767_225_600,
            "expired at 2026-01-01T00:00:00Z",
            "liqo has to renew it",
        ),
        (
            registry(unreachable()),
            later,
            "was revoked",
            "liqo-csi connect milan --remote-context CONTEXT",
        ),
        (found(unreachable()), later, "was revoked", "liqo has to renew it"),
    ] {
        let api = world().await;
        let registry = registry.with_access(&AccessFacts {
            seed: "seed".into(),
            token: Some(TokenFacts {
                namespace: "access".into(),
                account: "a".into(),
                issued: 0,
                expires: Some(expires),
                bound_to: Some(SESSION.into()),
            }),
        });
        round(&api, &registry).await;
        let message = status(&api)["lastError"].as_str().unwrap_or_default().to_owned();
        assert!(message.contains(cause) && message.contains(way_out), "{message}");
        assert_eq!(status(&api)["conditions"][1]["reason"], "Unauthorized");
        if expires == later {
            continue;
        }
        let credentials = json!({
            "kubeconfig": "seed", "expires": "2026-01-01T00:00:00Z", "renews": "1988-09-01T00:00:00Z",
        });
        assert_eq!(status(&api)["credentials"], credentials);
    }
}

#[tokio::test]
async fn a_cluster_that_was_never_connected_gets_no_finalizer() {
    let api = world().await;
    round(&api, &registry(Link::Unreachable("no route".into()))).await;
    assert!(!is_held(&api));
}

#[tokio::test]
async fn an_unreadable_fabric_is_reported_and_delays_no_other() {
    let api = world().await;
    let link = Link::Unreachable("no route".into());
    round(
        &api,
        &Registry::partial([(Declared::plain("milan"), link)], ["kosmos.io"]),
    )
    .await;
    assert_eq!(condition(&api, 0).1, "no route");
}

#[tokio::test]
async fn a_duplicate_declaration_can_be_deleted() {
    let api = world().await;
    put_volume(&api);
    let disputed = registry(Link::Disputed("it is declared more than once".into()));
    round(&api, &disputed).await;
    assert!(!is_held(&api), "the volumes may be the other one's");

    api.change(OBJECT, |object| {
        object["metadata"]["finalizers"] = json!([FINALIZER]);
    });
    round(&api, &disputed).await;
    assert!(is_held(&api), "the finalizer stays");
    delete(&api);
    round(&api, &disputed).await;
    assert!(!is_held(&api));
}

#[tokio::test]
async fn a_selector_that_matches_a_real_node_is_reported() {
    let api = world().await;
    let labels = json!({"to": "milan", crate::topology::NODE_KEY: "worker"});
    api.put("/api/v1/nodes/worker", json!({"metadata": {"labels": labels}}));
    round(&api, &registry(Link::Unreachable("no route".into()))).await;
    let told = status(&api);
    assert_eq!(told["nodes"], json!(["to-milan"]));
    let limit = told["limits"][0].as_str().unwrap();
    assert!(limit.contains("worker"), "{limit}");
}

#[tokio::test]
async fn a_discovered_cluster_has_an_object_while_it_is_declared() {
    let api = world().await;
    api.remove(OBJECT);
    round(&api, &found(Link::Unreachable("no route".into()))).await;
    let made = api.object(OBJECT).unwrap();
    assert_eq!(made["spec"]["discoveredFrom"], json!({"fabric": "Liqo"}));
    assert_eq!(
        made["status"]["declaredBy"],
        "VirtualNode liqo-tenant-milan/milan"
    );
    assert_eq!(condition(&api, 0), ("False".into(), "no route".into()));
    assert!(!is_held(&api), "its fabric declares it, whatever becomes of this");

    // The object was created for another fabric by mistake.
    api.change(OBJECT, |object| {
        object["spec"]["discoveredFrom"]["fabric"] = "Kosmos".into();
    });
    round(&api, &found(Link::Unreachable("no route".into()))).await;
    assert_eq!(api.object(OBJECT).unwrap()["spec"], made["spec"]);

    // A fabric that cannot be read may still declare it.
    round(&api, &Registry::partial([], ["offloading.liqo.io"])).await;
    assert!(condition(&api, 0).1.contains("cannot be read"));

    round(&api, &Registry::fixed([])).await;
    assert!(api.object(OBJECT).is_none());
}

#[tokio::test]
async fn an_object_with_settings_or_volumes_outlives_the_declaration() {
    for has_volumes in [false, true] {
        let api = world().await;
        api.remove(OBJECT);
        let nobody = Registry::fixed([]);
        round(&api, &found(Link::Unreachable("no route".into()))).await;
        if has_volumes {
            put_volume(&api);
        } else {
            api.change(OBJECT, |object| {
                object["spec"]["storageClasses"] = json!({"default": "gold"});
            });
        }
        round(&api, &nobody).await;
        let told = status(&api);
        assert_eq!(told["conditions"][0]["reason"], "Undeclared");
        let message = condition(&api, 0).1;
        assert_eq!(message.contains("shop/data"), has_volumes, "{message}");

        api.remove(VOLUME);
        round(&api, &nobody).await;
        assert_eq!(api.object(OBJECT).is_none(), has_volumes);
    }
}

#[tokio::test]
async fn a_class_without_a_real_class_there_is_reported() {
    let (api, there) = (world().await, FakeApi::start().await);
    api.put(
        "/apis/storage.k8s.io/v1/storageclasses/liqo",
        json!({"provisioner": DRIVER_NAME, "volumeBindingMode": "WaitForFirstConsumer"}),
    );
    round(&api, &registry(up(&there).await)).await;
    let limits = status(&api)["limits"].to_string();
    let told = |word: &str| limits.contains(word);
    assert!(
        told("claims of the class liqo") && told("realStorageClass"),
        "{limits}"
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
    assert!(status(&api)["limits"].is_null());
}

#[tokio::test]
async fn a_new_leader_keeps_the_last_state() {
    let api = world().await;
    round(&api, &registry(Link::Unreachable("no route".into()))).await;
    let before = status(&api);
    round(
        &api,
        &registry(Link::Connecting("it has not answered yet".into())),
    )
    .await;
    assert_eq!(status(&api), before);
}

/// The virtual PV of a volume in this cluster.
fn put_volume_in(api: &FakeApi, cluster: &str, number: usize) -> String {
    let name = format!("pvc-0c4f3f2e-8a51-4f0e-9f0f-{number:012}");
    api.put(
        &format!("/api/v1/persistentvolumes/{name}"),
        json!({"spec": {"csi": {"driver": DRIVER_NAME, "volumeHandle": format!("v1:{cluster}:{name}")}}}),
    );
    name
}

#[tokio::test]
async fn the_cost_of_a_change_does_not_depend_on_the_number_of_volumes() {
    let api = world().await;
    for number in 0..100 {
        put_volume_in(&api, if number < 50 { "home" } else { "milan" }, number);
    }
    let home = api.cluster().await;
    let watched = Watched::start(&home);
    watched.complete().await;
    home.views().remote_clusters.complete().await;
    let (registry, metrics) = (registry(Link::Unreachable("no route".into())), Metrics::default());
    let settings = settings();
    let mut clusters = Clusters::new(&home, &registry, &watched, &settings, &metrics);
    let mut count = async |expected: usize| {
        let counted = async {
            while status(&api)["volumes"] != expected {
                clusters.round().await.unwrap();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let counted = tokio::time::timeout(Duration::from_secs(10), counted).await;
        assert!(counted.is_ok(), "{}", status(&api));
    };
    count(50).await;
    let seen = async |name: String| {
        let mut version = watched.volumes.version();
        let is_seen = |_: &u64| watched.volumes.virtual_volume(&name).is_some();
        version.wait_for(is_seen).await.unwrap();
    };
    seen(put_volume_in(&api, "milan", 100)).await;
    let before = watched.volumes.objects_given();
    count(51).await;
    assert_eq!(
        watched.volumes.objects_given(),
        before,
        "the volumes of a cluster are counted where they are kept"
    );

    let triggers = clusters.triggers();
    seen(put_volume_in(&api, "home", 101)).await;
    let woken = triggers.iter().any(|trigger| trigger.has_changed().unwrap());
    assert!(!woken, "a volume at home is in no remote cluster");
}
