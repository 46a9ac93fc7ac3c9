//! Snapshots against a fake API server: creation is here, deletion in `ending`, the data of deleted twins
//! in `kept`, lists in `seen`, remote clusters in `remote`.

mod ending;
mod kept;
mod remote;
mod seen;

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;
use crate::{
    cluster::{
        Cluster,
        events::Events,
        testing::{Act, FakeApi, Fault, StoppedClock},
    },
    fleet::Registry,
    placement::{SnapshotClassError, SnapshotRefusal},
    tests::{A_MOMENT, TEST_TIMEOUT},
    volume::{SnapshotName, VolumeName, mark},
};

const UID: &str = "0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";
const SNAPSHOT: &str = "5d1c3f2e-8a51-4f0e-9f0f-0d2c7ef1a222";
const KINDS: &str = "/apis/snapshot.storage.k8s.io/v1";
const STORED: &str = "/api/v1/namespaces/liqo-storage/persistentvolumeclaims";
const CUT_AT: i64 = 1_767_225_600;

struct World {
    api: FakeApi,
    home: Cluster,
    request: SnapshotRequest,
}

impl World {
    /// A bound volume, and a user's snapshot of it for which Kubernetes has created a content.
    async fn new() -> Self {
        let api = FakeApi::start().await;
        furnish(&api);
        volume(&api, STORED, UID);
        api.put(
            &user_content(),
            json!({"spec": {"deletionPolicy": "Delete", "driver": "storage.liqo.io"}}),
        );
        let home = api.cluster().await;
        Self {
            api,
            home,
            request: request("home"),
        }
    }

    async fn cut(&self) -> Result<TakenSnapshot, SnapshotCreateError> {
        self.cut_within(TEST_TIMEOUT).await
    }

    /// The error for a snapshot that is not taken.
    async fn cut_in_vain(&self) -> SnapshotCreateError {
        let error = self.cut_within(A_MOMENT).await.unwrap_err();
        assert!(
            matches!(error, SnapshotCreateError::StillWaiting { .. }),
            "{error}"
        );
        error
    }

    async fn cut_within(&self, time: Duration) -> Result<TakenSnapshot, SnapshotCreateError> {
        let events = Events::new(self.home.client().clone());
        let registry = Registry::default();
        let until = Instant::now() + time;
        create_snapshot(&self.home, &registry, &events, &self.request, until).await
    }

    async fn delete(&self) -> Result<(), SnapshotDeleteError> {
        self.delete_within(TEST_TIMEOUT).await
    }

    async fn delete_within(&self, time: Duration) -> Result<(), SnapshotDeleteError> {
        let events = Events::new(self.home.client().clone());
        let id = SnapshotId::new("home".parse().unwrap(), None, self.request.key.clone());
        let until = Instant::now() + time;
        delete_snapshot(&self.home, &Registry::default(), &events, &id, until).await
    }

    fn twin(&self) -> Option<Value> {
        self.api.object(&twin_path())
    }

    /// Creates the twin, which is not cut.
    async fn posted(self) -> Self {
        self.cut_in_vain().await;
        self
    }

    /// Creates the twin, and cuts it like the controllers of a real cluster.
    async fn with_snapshot(self) -> Self {
        let world = self.posted().await;
        cut(&world.api, &twin_path(), true);
        world
    }
}

fn request(cluster: &str) -> SnapshotRequest {
    let request_name = format!("snapshot-{SNAPSHOT}");
    SnapshotRequest {
        key: SnapshotKey::from_request(&request_name),
        request_name,
        source: VolumeId::never_moved(
            cluster.parse().unwrap(),
            VolumeName::from_request(&format!("pvc-{UID}")),
        ),
        parameters: SnapshotParameters {
            real_class: None,
            snapshot: Some(SnapshotName {
                namespace: "shop".into(),
                name: "backup".into(),
            }),
        },
    }
}

fn twin_path() -> String {
    format!("{KINDS}/namespaces/liqo-storage/volumesnapshots/snapshot-{SNAPSHOT}")
}

fn user_content() -> String {
    format!("{KINDS}/volumesnapshotcontents/snapcontent-{SNAPSHOT}")
}

fn class(api: &FakeApi, name: &str, driver: &str, is_default: bool) {
    let annotations = json!({"snapshot.storage.kubernetes.io/is-default-class": is_default.to_string()});
    api.put(
        &format!("{KINDS}/volumesnapshotclasses/{name}"),
        json!({"metadata": {"annotations": annotations}, "driver": driver, "deletionPolicy": "Delete"}),
    );
}

fn furnish(api: &FakeApi) {
    api.put(
        KINDS,
        json!({"groupVersion": "snapshot.storage.k8s.io/v1", "resources": []}),
    );
    class(api, "default", "real.test", true);
    class(api, "fast", "real.test", false);
    class(api, "other", "other.test", true);
}

/// The bound twin of the volume, with this name in a collection of claims.
fn volume(api: &FakeApi, claims: &str, name: &str) {
    let labels = json!({
        mark::MANAGED_BY: mark::MANAGED_BY_US, mark::HOME_CLUSTER: "home", mark::VOLUME: format!("pvc-{UID}"),
    });
    let namespace = claims.split('/').nth(4).unwrap();
    let metadata =
        json!({"labels": labels, "annotations": {mark::CLAIM_UID: UID, mark::HANDED_OVER: "true"}});
    let claim = api.put(
        &format!("{claims}/{name}"),
        json!({"metadata": metadata, "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}),
    );
    let holder = json!({"namespace": namespace, "name": name, "uid": claim["metadata"]["uid"]});
    api.put(
        "/api/v1/persistentvolumes/pv",
        json!({
            "spec": {
                "claimRef": holder, "csi": {"driver": "real.test", "volumeHandle": "h"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "zone", "operator": "In", "values": ["a"]},
                ]}]}},
            },
            "status": {"phase": "Bound"},
        }),
    );
}

/// Cuts a twin, which creates its content.
fn cut(api: &FakeApi, twin: &str, ready: bool) {
    let of = &api.object(twin).unwrap()["metadata"];
    let of = json!({"namespace": of["namespace"], "name": of["name"], "uid": of["uid"]});
    api.put(
        &format!("{KINDS}/volumesnapshotcontents/real"),
        json!({
            "spec": {
                "driver": "real.test", "deletionPolicy": "Delete", "sourceVolumeMode": "Filesystem",
                "volumeSnapshotRef": of,
            },
            "status": {"snapshotHandle": "real-1"},
        }),
    );
    api.change(twin, |twin| {
        twin["status"] = json!({
            "boundVolumeSnapshotContentName": "real", "creationTime": "2026-01-01T00:00:00Z",
            "readyToUse": ready, "restoreSize": "1Gi",
        });
    });
}

fn refusal(outcome: Result<TakenSnapshot, SnapshotCreateError>) -> SnapshotRefusal {
    match outcome {
        Err(SnapshotCreateError::Refused { refusal, .. }) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn a_snapshot_is_confirmed_when_its_twin_was_taken() {
    let world = World::new().await.posted().await;
    let twin = world.twin().unwrap();
    assert_eq!(twin["apiVersion"], "snapshot.storage.k8s.io/v1");
    assert_eq!(
        twin["spec"],
        json!({"source": {"persistentVolumeClaimName": UID}})
    );
    assert_eq!(twin["metadata"]["labels"][mark::SNAPSHOT], SNAPSHOT);
    let annotations = &twin["metadata"]["annotations"];
    assert_eq!(annotations[mark::SNAPSHOT_NAME], "backup");
    assert_eq!(annotations[mark::SNAPSHOT_SOURCE], format!("v1:home:pvc-{UID}"));
    assert!(
        annotations[mark::SOURCE_AFFINITY]
            .as_str()
            .unwrap()
            .contains("zone")
    );

    cut(&world.api, &twin_path(), false);
    let expected = TakenSnapshot {
        id: format!("s1:home::{SNAPSHOT}").parse().unwrap(),
        source: format!("v1:home:pvc-{UID}"),
        bytes: 1 << 30,
        cut_at: (CUT_AT, 0),
        ready: false,
    };
    assert_eq!(world.cut().await.unwrap(), expected);
    // csi-snapshotter calls again until it is ready.
    cut(&world.api, &twin_path(), true);
    let ready = TakenSnapshot {
        ready: true,
        ..expected
    };
    assert_eq!(world.cut().await.unwrap(), ready);
    let writes = world.api.writes();
    assert_eq!(world.cut().await.unwrap(), ready);
    assert_eq!(world.api.writes(), writes);
}

#[tokio::test]
async fn a_waiting_call_returns_when_the_snapshot_was_taken() {
    let world = World::new().await;
    let controllers = async {
        world.api.until(|store| store.get(&twin_path()).is_some()).await;
        cut(&world.api, &twin_path(), true);
    };
    // With a stopped clock the call is woken only by the watch.
    let clock = StoppedClock::new();
    let (made, ()) = tokio::join!(world.cut(), controllers);
    assert!(made.unwrap().ready);
    assert!(clock.stands_still(), "it was not watched");
}

#[tokio::test]
async fn errors_of_the_snapshot_controllers_are_passed_on() {
    let world = World::new().await.posted().await;
    world.api.change(&twin_path(), |twin| {
        twin["status"] = json!({"error": {"message": "out of snapshots"}});
    });
    let error = world.cut_in_vain().await.to_string();
    assert!(error.ends_with("is not taken yet: out of snapshots"), "{error}");
}

#[tokio::test]
async fn the_class_is_named_or_the_drivers_default() {
    let mut world = World::new().await;
    world.request.parameters.real_class = Some("other".into());
    assert!(matches!(
        world.cut().await,
        Err(SnapshotCreateError::Class(SnapshotClassError::OtherDriver { .. }))
    ));
    world.request.parameters.real_class = Some("none".into());
    assert!(matches!(
        world.cut().await,
        Err(SnapshotCreateError::Class(SnapshotClassError::NotFound { .. }))
    ));
    world.request.parameters.real_class = None;
    class(&world.api, "default", "real.test", false);
    assert!(matches!(
        world.cut().await,
        Err(SnapshotCreateError::Class(SnapshotClassError::NoDefault { .. }))
    ));
    assert_eq!(world.api.writes(), 0);

    world.request.parameters.real_class = Some("fast".into());
    let world = world.posted().await;
    assert_eq!(world.twin().unwrap()["spec"]["volumeSnapshotClassName"], "fast");
}

#[tokio::test]
async fn volumes_that_cannot_have_snapshots_are_refused() {
    let world = World::new().await;
    let twin = format!("{STORED}/{UID}");
    world.api.change("/api/v1/persistentvolumes/pv", |volume| {
        volume["spec"]["csi"] = Value::Null;
        volume["spec"]["hostPath"] = json!({"path": "/x"});
    });
    let error = world.cut().await.unwrap_err().to_string();
    assert!(error.contains("not a CSI volume"), "{error}");
    world
        .api
        .change(&twin, |twin| twin["status"]["phase"] = "Pending".into());
    // A twin with a PV is about to be bound, and that is waited for.
    let error = world.cut_within(A_MOMENT).await.unwrap_err().to_string();
    assert!(error.contains("is not bound"), "{error}");
    world.api.change(&twin, |twin| {
        twin["metadata"]["labels"][mark::HOME_CLUSTER] = "rome".into();
    });
    assert!(matches!(world.cut().await, Err(SnapshotCreateError::NoVolume(_))));
    world.api.remove(&twin);
    assert!(matches!(world.cut().await, Err(SnapshotCreateError::NoVolume(_))));
    assert_eq!(world.api.writes(), 0);
}

#[tokio::test]
async fn a_snapshot_name_belongs_to_one_volume() {
    let mut world = World::new().await.with_snapshot().await;
    world.request.source.name = VolumeName::from_request("another");
    let owner = world.request.source.name.to_string();
    world.api.put(
        &format!("{STORED}/{owner}"),
        json!({"metadata": {"labels": {}}, "status": {"phase": "Bound"}}),
    );
    assert_eq!(refusal(world.cut().await), SnapshotRefusal::OtherSource);
}

#[tokio::test]
async fn a_foreign_object_in_place_of_a_snapshot_twin_is_not_touched() {
    let world = World::new().await;
    world
        .api
        .put(&twin_path(), json!({"spec": {}, "status": {"readyToUse": true}}));
    assert!(matches!(refusal(world.cut().await), SnapshotRefusal::Foreign(_)));
    assert!(matches!(
        world.delete().await,
        Err(SnapshotDeleteError::Foreign { .. })
    ));
    assert_eq!(world.api.writes(), 1, "an event: {:?}", world.api.requests());
}

#[tokio::test]
async fn a_cluster_without_snapshot_support_is_reported() {
    let world = World::new().await;
    world.api.remove(KINDS);
    for class in ["default", "fast", "other"] {
        world
            .api
            .remove(&format!("{KINDS}/volumesnapshotclasses/{class}"));
    }
    let error = world.cut().await.unwrap_err();
    assert!(
        matches!(&error, SnapshotCreateError::NotInstalled(cluster) if cluster == "home"),
        "{error}"
    );
    // Then the content does not exist either, and that is not the cause.
    world.api.remove(&user_content());
    assert!(matches!(
        world.cut().await,
        Err(SnapshotCreateError::NotInstalled(_))
    ));
}

#[tokio::test]
async fn a_missing_right_is_final_and_an_unreachable_server_is_not() {
    let mut world = World::new().await;
    for (method, kind) in [("GET", "/volumesnapshots/"), ("POST", "/volumesnapshots")] {
        world.api.fault(Fault::new(method, kind, Act::Forbid("no right")));
        let error = world.cut().await.unwrap_err();
        assert!(
            matches!(error, SnapshotCreateError::NotAccepted(_)),
            "{method}: {error}"
        );
        assert!(error.to_string().contains("cluster home"), "{error}");
        world.api.heal();
    }
    let patient = std::mem::replace(&mut world.home, world.api.impatient_cluster().await);
    world.api.fault(Fault::new("POST", "/volumesnapshots", Act::Hang));
    assert!(matches!(world.cut().await, Err(SnapshotCreateError::Api(_))));
    world.home = patient;
    world.api.heal();
    // The driver of an unreadable class is not compared; Kubernetes chooses the default.
    world.api.fault(Fault::new(
        "GET",
        "/volumesnapshotclasses",
        Act::Forbid("no right"),
    ));
    world.posted().await;
}
