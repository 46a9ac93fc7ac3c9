//! Copies if clusters differ: the pod has to run where the source is.

use super::*;
use crate::{placement::SourceRefusal, volume::ContentSource};

const KINDS: &str = "/apis/snapshot.storage.k8s.io/v1";
const SNAPSHOT: &str = "5d1c3f2e-8a51-4f0e-9f0f-0d2c7ef1a222";

/// A snapshot in this namespace of a cluster.
fn snapshot(api: &FakeApi, namespace: &str) {
    let labels = json!({
        mark::MANAGED_BY: mark::MANAGED_BY_US, mark::HOME_CLUSTER: "home", mark::SNAPSHOT: SNAPSHOT,
    });
    let twin = api.put(
        &format!("{KINDS}/namespaces/{namespace}/volumesnapshots/snapshot-{SNAPSHOT}"),
        json!({
            "metadata": {"labels": labels}, "spec": {},
            "status": {"boundVolumeSnapshotContentName": "real", "readyToUse": true},
        }),
    );
    let holder = json!({"uid": twin["metadata"]["uid"]});
    api.put(
        &format!("{KINDS}/volumesnapshotcontents/real"),
        json!({"spec": {"driver": "real.test", "volumeSnapshotRef": holder}}),
    );
}

/// A world whose claim requests a copy of the snapshot with this id.
async fn copying(id: &str) -> World {
    let mut world = World::new().await;
    world.request.spec.source = Some(ContentSource::Snapshot(id.to_owned()));
    world.home_api.change(CLAIM, |claim| {
        let group = "snapshot.storage.k8s.io";
        claim["spec"]["dataSource"] = json!({"apiGroup": group, "kind": "VolumeSnapshot", "name": "backup"});
    });
    world
}

#[tokio::test]
async fn a_snapshot_is_restored_in_its_cluster() {
    let world = copying(&format!("s1:milan:shop-home:{SNAPSHOT}")).await;
    snapshot(&world.there, "shop-home");
    world.create().await.unwrap();
    let source = &world.twin().unwrap()["spec"]["dataSource"];
    assert_eq!(source["name"], format!("snapshot-{SNAPSHOT}"));
}

/// The claim would be Bound to an empty volume.
#[tokio::test]
async fn a_copy_whose_twin_is_changed_there_is_refused() {
    for field in ["/spec/dataSource", "/spec/storageClassName"] {
        let world = copying(&format!("s1:milan:shop-home:{SNAPSHOT}")).await;
        snapshot(&world.there, "shop-home");
        let changed = Fault::new("POST", "shop-home/persistentvolumeclaims", Act::Drop(field));
        world.there.fault(changed);
        // Kubernetes is faster.
        let conflict = Fault::new("DELETE", "shop-home/persistentvolumeclaims", Act::Refuse(409));
        world.there.fault(conflict.times(2));
        assert_no_copy(&world.create().await);
        assert_eq!(world.twin(), None, "{field}");
    }
}

/// The cluster of the source that is recorded on the claim.
fn miss(world: &World) -> serde_json::Value {
    world.home_api.object(CLAIM).unwrap()["metadata"]["annotations"][mark::SOURCE_AT].clone()
}

#[tokio::test]
async fn a_pod_elsewhere_is_rescheduled_to_the_source() {
    let world = copying(&format!("s1:home::{SNAPSHOT}")).await;
    snapshot(&world.home_api, "liqo-storage");
    let why = elsewhere(world.create().await);
    assert!(why.contains("the snapshot backup is in this cluster"), "{why}");
    assert_eq!(world.noted(), None, "that says nothing about other claims");
    assert_eq!(miss(&world), "home");

    // And the other way round, from a node of this cluster.
    let world = copying(&format!("s1:milan:shop-home:{SNAPSHOT}")).await;
    snapshot(&world.there, "shop-home");
    world.home_api.put(
        "/api/v1/nodes/n1",
        json!({"metadata": {"labels": {CLUSTER_KEY: "home"}}}),
    );
    claim(
        &world.home_api,
        &json!({"volume.kubernetes.io/selected-node": "n1"}),
    );
    let world = World {
        home: world.home_api.cluster().await,
        request: CreateRequest {
            requisite: vec![Segments::of_node(world.home.id(), "n1")],
            ..world.request
        },
        ..world
    };
    let why = elsewhere(world.create().await);
    assert!(why.contains("is in the cluster milan"), "{why}");
    assert!(why.contains("to-milan"), "{why}");
    assert_eq!(miss(&world), "milan");
    // It is recorded once: otherwise each record would cause a conflict for csi-provisioner.
    let before = world.home_api.writes();
    assert!(matches!(
        world.create().await,
        Err(CreateError::SourceElsewhere { .. })
    ));
    assert_eq!((world.there.writes(), world.home_api.writes()), (0, before));
}

#[tokio::test]
async fn a_source_that_cannot_be_verified_is_refused() {
    let source = |outcome| match outcome {
        Err(CreateError::Source(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    let mut world = copying(&format!("s1:milan:shop-home:{SNAPSHOT}")).await;
    snapshot(&world.there, "shop-home");
    world.rights = Rights::default();
    assert!(matches!(
        source(world.create().await),
        SourceRefusal::Unreadable { .. }
    ));

    let world = copying(&format!("s1:milan:another:{SNAPSHOT}")).await;
    snapshot(&world.there, "another");
    assert!(matches!(
        source(world.create().await),
        SourceRefusal::OtherNamespace { .. }
    ));
    assert!(world.twin().is_none());
}
