//! The data of a snapshot after another client has deleted its twin.

use super::*;
use crate::cluster::Rights;

const REAL: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/real";

/// A snapshot in use: its user's content has its id.
async fn in_use() -> World {
    let world = World::new().await.with_snapshot().await;
    // A new replica reads the existing twin.
    world.cut().await.unwrap();
    world.api.change(&user_content(), |content| {
        content["status"] = json!({"snapshotHandle": format!("s1:home::{SNAPSHOT}")});
    });
    world
}

async fn upkeep(world: &World) -> SnapshotHealth {
    let id = SnapshotId::new("home".parse().unwrap(), None, world.request.key.clone());
    let content = format!("snapcontent-{SNAPSHOT}");
    check_snapshot(&world.home, &Registry::default(), &content, &id)
        .await
        .unwrap()
}

fn well(world: &World) -> SnapshotHealth {
    SnapshotHealth::Healthy {
        twin: world.twin().unwrap()["metadata"]["uid"].as_str().unwrap().into(),
        is_kept: true,
    }
}

fn trouble(health: SnapshotHealth) -> String {
    match health {
        SnapshotHealth::Problem(what) => what,
        other => panic!("no trouble: {other:?}"),
    }
}

fn policy(world: &World) -> Value {
    world.api.object(REAL).unwrap()["spec"]["deletionPolicy"].clone()
}

fn noted(world: &World, key: &str) -> Value {
    world.api.object(&user_content()).unwrap()["metadata"]["annotations"][key].clone()
}

#[tokio::test]
async fn data_of_a_snapshot_in_use_is_retained_and_its_content_recorded() {
    let world = in_use().await;
    assert_eq!(policy(&world), "Retain");
    let annotations = world.api.object(REAL).unwrap()["metadata"]["annotations"].clone();
    assert_eq!(annotations[mark::DELETION_POLICY_BEFORE], "Delete");
    assert_eq!(annotations[mark::DATA_OF], format!("s1:home::{SNAPSHOT}"));
    assert_eq!(noted(&world, mark::REAL_CONTENT), "real");
    let writes = world.api.writes();
    world.cut().await.unwrap();
    assert_eq!(upkeep(&world).await, well(&world));
    assert_eq!(world.api.writes(), writes);
}

#[tokio::test]
async fn an_older_snapshot_is_retained_later() {
    let world = World::new().await.with_snapshot().await;
    world.api.change(&user_content(), |content| {
        content["status"] = json!({"snapshotHandle": format!("s1:home::{SNAPSHOT}")});
    });
    assert_eq!(policy(&world), "Delete");
    assert_eq!(upkeep(&world).await, well(&world));
    assert_eq!(policy(&world), "Retain");
    assert_eq!(noted(&world, mark::REAL_CONTENT), "real");
}

#[tokio::test]
async fn a_snapshot_deleted_by_its_user_is_not_retained_again() {
    let world = in_use().await;
    world.api.change(&user_content(), |content| {
        content["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        content["metadata"]["finalizers"] = json!(["snapshotter"]);
    });
    // The replica that deleted it died after it had restored the policy.
    world.api.change(REAL, |real| {
        real["spec"]["deletionPolicy"] = "Delete".into();
        real["metadata"]["annotations"] = json!({});
    });
    assert_eq!(upkeep(&world).await, SnapshotHealth::Unused);
    // csi-snapshotter calls once more, because it was not ready.
    world.cut().await.unwrap();
    assert_eq!(policy(&world), "Delete");
    world
        .api
        .before("DELETE", &twin_path(), |store| store.remove(REAL));
    world.delete().await.unwrap();
    assert_eq!(world.twin(), None);
}

#[tokio::test]
async fn a_snapshot_whose_twin_was_deleted_reports_where_the_data_is() {
    let world = in_use().await;
    world.api.change(&twin_path(), |twin| {
        twin["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        twin["metadata"]["finalizers"] = json!(["in-use"]);
    });
    let what = trouble(upkeep(&world).await);
    assert!(
        what.contains("another client is deleting") && what.contains("real"),
        "{what}"
    );
    let twin = world.twin().unwrap();
    world.api.remove(&twin_path());
    let what = trouble(upkeep(&world).await);
    assert!(
        what.contains("was deleted") && what.contains("VolumeSnapshotContent real"),
        "{what}"
    );
    assert_eq!(noted(&world, mark::TWIN_TROUBLE), what);
    assert_eq!(policy(&world), "Retain");

    // In a namespace that is being deleted, the driver may lose its rights before the twin is deleted.
    world
        .api
        .fault(Fault::new("GET", "/volumesnapshots/", Act::Forbid("no right")));
    let what = trouble(upkeep(&world).await);
    assert!(
        what.contains("no right") && what.contains("VolumeSnapshotContent real"),
        "{what}"
    );
    world.api.heal();

    // A user creates it again.
    world.api.put(&twin_path(), twin);
    world.api.change(&twin_path(), |twin| {
        twin["metadata"]["deletionTimestamp"] = Value::Null;
        twin["metadata"]["finalizers"] = Value::Null;
    });
    assert_eq!(upkeep(&world).await, well(&world));
    assert_eq!(noted(&world, mark::TWIN_TROUBLE), Value::Null);
}

#[tokio::test]
async fn retained_data_without_twin_is_reported_when_the_snapshot_is_deleted() {
    let world = in_use().await;
    world.api.remove(&twin_path());
    let error = world.delete().await.unwrap_err();
    assert!(
        matches!(&error, SnapshotDeleteError::LeftBehind { content, .. } if content == "real"),
        "{error}"
    );
    world.api.fault(Fault::new(
        "GET",
        "/volumesnapshotcontents/real",
        Act::Forbid("no right"),
    ));
    let error = world.delete().await.unwrap_err();
    assert!(matches!(error, SnapshotDeleteError::NotAccepted(_)), "{error}");
    world.api.heal();

    // Also if the content of the user has another name: that of an import, or one that a backup tool chose.
    let mut user = world.api.object(&user_content()).unwrap();
    for name in [format!("imported-{SNAPSHOT}"), "of-a-backup".to_owned()] {
        let before = user["metadata"]["name"].as_str().unwrap().to_owned();
        world
            .api
            .remove(&format!("{KINDS}/volumesnapshotcontents/{before}"));
        user["metadata"] = json!({"name": name, "annotations": user["metadata"]["annotations"]});
        world
            .api
            .put(&format!("{KINDS}/volumesnapshotcontents/{name}"), user.clone());
        let error = world.delete().await.unwrap_err();
        assert!(matches!(error, SnapshotDeleteError::LeftBehind { .. }), "{error}");
        let events = world
            .api
            .store()
            .below("/apis/events.k8s.io/v1/namespaces/default/events/");
        assert!(
            events.iter().any(|it| it["regarding"]["name"] == name),
            "{events:?}"
        );
    }

    // The class of the real snapshot retains it.
    world
        .api
        .change(REAL, |real| real["metadata"]["annotations"] = json!({}));
    world.delete().await.unwrap();
    world.api.remove(REAL);
    world.delete().await.unwrap();
}

#[tokio::test]
async fn a_content_that_cannot_be_read_now_keeps_its_twin() {
    let mut world = in_use().await;
    world.home = world.api.impatient_cluster().await;
    world
        .api
        .fault(Fault::new("GET", "/volumesnapshotcontents/real", Act::Hang).times(100));
    let error = world.delete().await.unwrap_err();
    assert!(matches!(error, SnapshotDeleteError::Api(_)), "{error}");
    assert!(world.twin().is_some());
}

#[tokio::test]
async fn without_rights_or_policy_the_class_decides() {
    let rights = Rights {
        snapshot_contents: false,
        ..Rights::ALL
    };
    for (rights, protect) in [(rights, true), (Rights::ALL, false)] {
        let world = remote::Remote::in_use(rights, protect).await;
        let real = world.there.object(REAL).unwrap();
        assert_eq!(real["spec"]["deletionPolicy"], "Delete");
        assert_eq!(world.here.writes(), 0);
    }
    let world = remote::Remote::in_use(Rights::ALL, true).await;
    let real = world.there.object(REAL).unwrap();
    assert_eq!(real["spec"]["deletionPolicy"], "Retain");
}
