//! Which snapshots are checked, and what is reported.

use serde_json::{Value, json};

use super::*;
use crate::{
    cluster::{events::Events, testing::FakeApi},
    volume::{DRIVER_NAME, mark},
};

const KEY: &str = "5d1c3f2e-8a51-4f0e-9f0f-0d2c7ef1a222";
const KINDS: &str = "/apis/snapshot.storage.k8s.io/v1";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/shop/events/";

fn twin() -> String {
    format!("{KINDS}/namespaces/liqo-storage/volumesnapshots/snapshot-{KEY}")
}

fn content(name: &str) -> String {
    format!("{KINDS}/volumesnapshotcontents/{name}")
}

fn put_twin(api: &FakeApi) {
    let labels =
        json!({mark::MANAGED_BY: mark::MANAGED_BY_US, mark::HOME_CLUSTER: "home", mark::SNAPSHOT: KEY});
    let made = api.put(
        &twin(),
        json!({
            "metadata": {"labels": labels}, "spec": {"source": {}},
            "status": {"boundVolumeSnapshotContentName": "real", "creationTime": "2026-01-01T00:00:00Z"},
        }),
    );
    let of = json!({
        "namespace": "liqo-storage", "name": format!("snapshot-{KEY}"), "uid": made["metadata"]["uid"],
    });
    api.put(
        &content("real"),
        json!({"spec": {"driver": "real.test", "deletionPolicy": "Delete", "volumeSnapshotRef": of}}),
    );
}

/// A snapshot that was created before its data could be retained.
async fn world() -> FakeApi {
    let api = FakeApi::start().await;
    api.put(
        KINDS,
        json!({"groupVersion": "snapshot.storage.k8s.io/v1", "resources": []}),
    );
    put_twin(&api);
    let of = json!({"namespace": "shop", "name": "backup", "uid": KEY});
    api.put(
        &content("users"),
        json!({
            "spec": {"driver": DRIVER_NAME, "deletionPolicy": "Delete", "volumeSnapshotRef": of},
            "status": {"snapshotHandle": format!("s1:home::{KEY}")},
        }),
    );
    api
}

async fn rounds(api: &FakeApi, steps: &[&dyn Fn(&FakeApi)]) {
    let home = api.cluster().await;
    let watched = Watched::start(&home);
    watched.snapshots.watch_if_installed(&home).await;
    let (registry, events) = (Registry::default(), Events::new(home.client().clone()));
    let reports = Reports::new(events);
    let mut twins = SnapshotTwins::new(&home, &registry, &watched, reports, home.id().clone());
    for step in steps {
        twins.round().await.unwrap();
        step(api);
    }
}

fn policy(api: &FakeApi) -> Value {
    api.object(&content("real")).unwrap()["spec"]["deletionPolicy"].clone()
}

#[tokio::test]
async fn data_is_retained_and_a_settled_snapshot_causes_one_list_request() {
    let api = world().await;
    let requests = std::cell::Cell::new(0);
    rounds(
        &api,
        &[
            &|api| {
                assert_eq!(policy(api), "Retain");
                requests.set(api.requests().len());
            },
            &|api| {
                let since = api.requests().split_off(requests.get());
                assert_eq!(since.len(), 1, "{since:?}");
            },
        ],
    )
    .await;
}

#[tokio::test]
async fn a_deleted_snapshot_twin_is_reported_once() {
    let api = world().await;
    rounds(
        &api,
        &[
            &|api| api.remove(&twin()),
            &|api| {
                let told = api.store().below(EVENTS);
                assert_eq!(told.len(), 1);
                assert_eq!(told[0]["reason"], "SnapshotTwinDeleted");
                assert_eq!(told[0]["regarding"]["kind"], "VolumeSnapshot");
                let note = told[0]["note"].as_str().unwrap();
                assert!(note.contains("VolumeSnapshotContent real"), "{note}");
            },
            &|api| assert_eq!(api.store().below(EVENTS).len(), 1),
        ],
    )
    .await;
    let noted = api.object(&content("users")).unwrap()["metadata"]["annotations"][mark::TWIN_TROUBLE].clone();
    assert!(noted.as_str().unwrap().contains("was deleted"), "{noted}");
}

#[tokio::test]
async fn snapshots_that_are_being_deleted_are_not_retained() {
    let api = world().await;
    api.change(&content("users"), |content| {
        content["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        content["metadata"]["finalizers"] = json!(["snapshotter"]);
    });
    // Another content with the same twin does not matter.
    let mut other = api.object(&content("users")).unwrap();
    other["metadata"] = json!({});
    api.put(&content("others"), other);
    rounds(&api, &[&|_| {}]).await;
    assert_eq!(policy(&api), "Delete");
}
