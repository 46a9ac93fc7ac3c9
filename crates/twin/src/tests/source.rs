//! Volumes that are copies of snapshots and of other volumes, at home.

use serde_json::{Value, json};

use super::*;
use crate::{
    cluster::testing::{Act, Fault},
    placement::{Refusal, SourceRefusal},
    volume::{ContentSource, mark},
};

const KINDS: &str = "/apis/snapshot.storage.k8s.io/v1";
const SNAPSHOT: &str = "5d1c3f2e-8a51-4f0e-9f0f-0d2c7ef1a222";
const OTHER: &str = "7d1c3f2e-8a51-4f0e-9f0f-0d2c7ef1a333";
const SOURCE_PV: &str = "/api/v1/persistentvolumes/source";

fn twin_of_snapshot() -> String {
    format!("{KINDS}/namespaces/liqo-storage/volumesnapshots/snapshot-{SNAPSHOT}")
}

fn content(name: &str) -> String {
    format!("{KINDS}/volumesnapshotcontents/{name}")
}

/// A world with a snapshot of a driver, and a request for a volume restored from it.
async fn with_snapshot(driver: &str) -> World {
    let mut world = World::new(Real::Works).await;
    let labels = json!({
        mark::MANAGED_BY: mark::MANAGED_BY_US, mark::HOME_CLUSTER: "home", mark::SNAPSHOT: SNAPSHOT,
    });
    let twin = world.api.put(
        &twin_of_snapshot(),
        json!({
            "metadata": {"labels": labels}, "spec": {},
            "status": {"boundVolumeSnapshotContentName": "real", "readyToUse": true},
        }),
    );
    world.api.put(
        &content("real"),
        json!({"spec": {
            "driver": driver, "sourceVolumeMode": "Filesystem",
            "volumeSnapshotRef": {"uid": twin["metadata"]["uid"]},
        }}),
    );
    world.request.spec.source = Some(ContentSource::Snapshot(format!("s1:home::{SNAPSHOT}")));
    world
}

/// A world with another volume, and a request for a copy of it.
async fn with_volume(real: Real) -> World {
    let mut world = World::new(real).await;
    let labels = json!({
        mark::MANAGED_BY: mark::MANAGED_BY_US, mark::HOME_CLUSTER: "home", mark::VOLUME: format!("pvc-{OTHER}"),
    });
    let twin = world.api.put(
        &format!("{TWINS}/{OTHER}"),
        json!({
            "metadata": {"labels": labels, "annotations": {mark::CLAIM_UID: OTHER}},
            "spec": {"volumeName": "source"}, "status": {"phase": "Bound"},
        }),
    );
    let holder = json!({"namespace": "liqo-storage", "name": OTHER, "uid": twin["metadata"]["uid"]});
    world.api.put(
        SOURCE_PV,
        json!({"spec": {"claimRef": holder, "csi": {"driver": "real.test", "volumeHandle": "s"}}}),
    );
    world.request.spec.source = Some(ContentSource::Volume(format!("v1:home:pvc-{OTHER}")));
    world
}

fn refused(outcome: Result<ProvisionedVolume, CreateError>) -> SourceRefusal {
    match outcome {
        Err(CreateError::Source(refusal)) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn a_snapshot_is_restored_by_its_driver() {
    let world = with_snapshot("real.test").await;
    world.create().await.unwrap();
    let source = json!({
        "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": format!("snapshot-{SNAPSHOT}"),
    });
    assert_eq!(world.twin().unwrap()["spec"]["dataSource"], source);
    // The source is part of the request.
    let mut other = world;
    other.request.spec.source = None;
    assert!(matches!(
        other.create().await,
        Err(CreateError::Refused {
            refusal: Refusal::Differs(_),
            ..
        })
    ));
}

#[tokio::test]
async fn a_volume_is_cloned_by_its_driver() {
    let world = with_volume(Real::Works).await;
    world.create().await.unwrap();
    let source = json!({"kind": "PersistentVolumeClaim", "name": OTHER});
    assert_eq!(world.twin().unwrap()["spec"]["dataSource"], source);
}

/// Without its alpha feature csi-provisioner passes no such source on.
#[tokio::test]
async fn a_source_in_another_namespace_is_not_replaced_by_an_empty_volume() {
    let world = World::new(Real::Works).await;
    world.api.change(CLAIM, |claim| {
        claim["spec"]["dataSourceRef"] = json!({
            "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "backup", "namespace": "other",
        });
    });
    assert!(matches!(
        refused(world.create().await),
        SourceRefusal::NotPassedOn { namespace, .. } if namespace == "other"
    ));
    assert!(world.twin().is_none());
}

#[tokio::test]
async fn a_driver_that_would_ignore_the_source_is_not_used() {
    let world = with_snapshot("other.test").await;
    assert!(matches!(
        refused(world.create().await),
        SourceRefusal::OtherDriver { .. }
    ));

    let mut world = with_volume(Real::Works).await;
    class(
        &world.api,
        "local-path",
        "rancher.io/local-path",
        "WaitForFirstConsumer",
        "Delete",
    );
    world.home = world.api.cluster().await;
    world.request.spec.parameters.real_class = Some("local-path".into());
    let csi_nodes = json!({"spec": {"drivers": []}});
    world.api.put("/apis/storage.k8s.io/v1/csinodes/n1", csi_nodes);
    world.api.change(SOURCE_PV, |volume| {
        volume["spec"]["csi"] = Value::Null;
        volume["spec"]["hostPath"] = json!({"path": "/x"});
    });
    assert!(matches!(
        refused(world.create().await),
        SourceRefusal::NotCsi { .. }
    ));
    assert_eq!(world.api.writes(), 0);
}

#[tokio::test]
async fn a_missing_source_is_not_found() {
    let mut world = with_snapshot("real.test").await;
    for (id, is_volume) in [
        ("fake", false),
        ("s1:home::0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a999", false),
        ("fake", true),
        ("v1:home:pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a999", true),
    ] {
        let id = id.to_owned();
        world.request.spec.source = Some(if is_volume {
            ContentSource::Volume(id)
        } else {
            ContentSource::Snapshot(id)
        });
        let error = world.create().await.unwrap_err();
        assert!(matches!(error, CreateError::NoSource(_)), "{error}");
    }
    assert_eq!(world.api.writes(), 0);
}

#[tokio::test]
async fn a_source_that_cannot_be_used_yet_or_any_more() {
    let world = with_snapshot("real.test").await;
    let twin = twin_of_snapshot();
    let changed = async |change: fn(&mut Value)| {
        let before = world.api.object(&twin).unwrap();
        world.api.change(&twin, change);
        let why = refused(world.create().await).to_string();
        world.api.put(&twin, before);
        why
    };
    assert!(
        changed(|it| it["status"]["readyToUse"] = false.into())
            .await
            .contains("not ready")
    );
    let dying = |it: &mut Value| it["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    assert!(changed(dying).await.contains("being deleted"));
    let unbound = |it: &mut Value| {
        drop(
            it["status"]
                .as_object_mut()
                .unwrap()
                .remove("boundVolumeSnapshotContentName"),
        );
    };
    assert!(changed(unbound).await.contains("not bound"));

    world.api.fault(Fault::new(
        "GET",
        "/volumesnapshotcontents/real",
        Act::Forbid("no right"),
    ));
    assert!(matches!(
        refused(world.create().await),
        SourceRefusal::Unreadable { .. }
    ));

    let clone = with_volume(Real::Idle).await;
    clone.api.change(&format!("{TWINS}/{OTHER}"), |twin| {
        twin["status"]["phase"] = "Pending".into();
    });
    assert!(
        refused(clone.create().await)
            .to_string()
            .contains("not bound yet")
    );
    assert_eq!((world.api.writes(), clone.api.writes()), (0, 0));
}

/// A twin may be bound to a static PV before its provisioner has seen the twin.
#[tokio::test]
async fn an_existing_volume_is_not_used_as_a_copy() {
    let world = with_snapshot("real.test").await;
    let made = world.create().await.unwrap();
    let path = format!("{VOLUMES}/{}", made.context[TWIN_VOLUME]);
    world.api.change(&path, |volume| {
        volume["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z".into();
    });
    assert_no_copy(&world.create().await);
    assert!(
        world.twin().is_some(),
        "a twin that was handed over is never withdrawn"
    );

    // A twin that was not handed over is deleted.
    world.api.change(&twin_path(), |twin| {
        let annotations = twin["metadata"]["annotations"].as_object_mut().unwrap();
        annotations.remove(mark::HANDED_OVER);
    });
    assert_no_copy(&world.create().await);
    assert_eq!(world.twin(), None);
}

/// A policy there gave the twin the class of a provisioner that ignores sources.
#[tokio::test]
async fn a_volume_of_no_csi_driver_is_not_used_as_a_copy() {
    let world = with_snapshot("real.test").await;
    let made = world.create().await.unwrap();
    let path = format!("{VOLUMES}/{}", made.context[TWIN_VOLUME]);
    world.api.change(&path, |volume| {
        volume["spec"]["csi"] = Value::Null;
        volume["spec"]["hostPath"] = json!({"path": "/x"});
    });
    world.api.change(&twin_path(), |twin| {
        let annotations = twin["metadata"]["annotations"].as_object_mut().unwrap();
        annotations.remove(mark::HANDED_OVER);
    });
    assert_no_copy(&world.create().await);
    assert_eq!(world.twin(), None);
}

#[tokio::test]
async fn another_volume_mode_has_to_be_allowed() {
    let mut world = with_snapshot("real.test").await;
    let block = Capability {
        mode: AccessMode::ReadWriteOnce,
        access: Access::Block,
    };
    world.request.spec.capabilities = Capabilities::new([block]).unwrap();
    assert!(matches!(
        refused(world.create().await),
        SourceRefusal::OtherMode { .. }
    ));
    let allowed = json!({"snapshot.storage.kubernetes.io/allow-volume-mode-change": "true"});
    world.api.put(
        &content(&format!("snapcontent-{SNAPSHOT}")),
        json!({"metadata": {"annotations": allowed}, "spec": {}}),
    );
    world.create().await.unwrap();
    let real = world.api.object(&content("real")).unwrap();
    assert_eq!(real["metadata"]["annotations"], allowed);
}

/// Backup tools create contents of their own, with the id of the snapshot.
#[tokio::test]
async fn another_volume_mode_is_allowed_by_any_content_of_the_snapshot() {
    let mut world = with_snapshot("real.test").await;
    let block = Capability {
        mode: AccessMode::ReadWriteOnce,
        access: Access::Block,
    };
    world.request.spec.capabilities = Capabilities::new([block]).unwrap();
    let allowed = json!({"snapshot.storage.kubernetes.io/allow-volume-mode-change": "true"});
    let of = |handle: &str| json!({"driver": "storage.liqo.io", "source": {"snapshotHandle": handle}});
    for (name, handle, allows) in [
        (
            "of-another",
            "s1:home::0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a999".to_owned(),
            json!({}),
        ),
        (
            "of-another",
            "s1:home::0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a999".to_owned(),
            allowed.clone(),
        ),
        ("of-a-backup", format!("s1:home::{SNAPSHOT}"), json!({})),
    ] {
        let metadata = json!({"annotations": allows});
        world
            .api
            .put(&content(name), json!({"metadata": metadata, "spec": of(&handle)}));
        assert!(matches!(
            refused(world.create().await),
            SourceRefusal::OtherMode { .. }
        ));
    }
    world.api.change(&content("of-a-backup"), |content| {
        content["metadata"]["annotations"] = allowed.clone();
    });
    world.create().await.unwrap();
    let real = world.api.object(&content("real")).unwrap();
    assert_eq!(real["metadata"]["annotations"], allowed);
}

/// Records that the source volume of the snapshot was accessible from this node.
fn reached_from(world: &World, node: &str) {
    world.api.change(&twin_of_snapshot(), |twin| {
        let expression = json!({"key": NODE_KEY, "operator": "In", "values": [node]});
        let affinity = json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]});
        twin["metadata"]["annotations"] = json!({mark::SOURCE_AFFINITY: affinity.to_string()});
    });
}

#[tokio::test]
async fn a_node_that_cannot_have_the_copy_is_rejected() {
    let mut world = with_snapshot("real.test").await;
    reached_from(&world, "n2");
    let error = world.create().await.unwrap_err();
    assert!(matches!(error, CreateError::SourceElsewhere { .. }), "{error}");
    assert!(error.to_string().contains("only n2 can have its copy"), "{error}");
    let noted = &world.api.object(CLAIM).unwrap()["metadata"]["annotations"][mark::SOURCE_AT];
    assert_eq!(noted, "home");
    assert_eq!(world.twin(), None);

    world.request.spec.parameters.restore_topology = Some(crate::volume::RestoreTopology::Cluster);
    world.create().await.unwrap();
    let world = with_snapshot("real.test").await;
    reached_from(&world, "n1");
    world.create().await.unwrap();

    let world = with_volume(Real::Works).await;
    world.api.change(SOURCE_PV, |volume| {
        let expression = json!({"key": NODE_KEY, "operator": "In", "values": ["n2"]});
        let required = json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]});
        volume["spec"]["nodeAffinity"] = json!({"required": required});
    });
    let error = world.create().await.unwrap_err();
    assert!(matches!(error, CreateError::SourceElsewhere { .. }), "{error}");
}
