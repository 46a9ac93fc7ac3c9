//! How snapshots end: given up before they are cut, deleted, retained, or deleted by another client.

use super::*;

fn dying(object: &mut Value) {
    object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    object["metadata"]["finalizers"] = json!(["kubernetes"]);
}

#[tokio::test]
async fn an_abandoned_snapshot_is_deleted_and_not_recreated() {
    let world = World::new().await.posted().await;
    world.api.change(&user_content(), dying);
    assert_eq!(refusal(world.cut().await), SnapshotRefusal::GivenUp);
    assert_eq!(world.twin(), None);
    // And it is not created again.
    world.api.remove(&user_content());
    let writes = world.api.writes();
    assert_eq!(refusal(world.cut().await), SnapshotRefusal::GivenUp);
    assert_eq!(world.api.writes(), writes);
}

#[tokio::test]
async fn an_abandoned_snapshot_that_was_taken_is_returned_for_deletion() {
    let world = World::new().await.posted().await;
    world.api.change(&user_content(), dying);
    let twin = twin_path();
    world.api.before("DELETE", &twin.clone(), move |store| {
        let mut cut = store.get(&twin).unwrap();
        cut["status"] = json!({"creationTime": "2026-01-01T00:00:00Z"});
        store.put(&twin, cut);
    });
    assert_eq!(world.cut().await.unwrap().cut_at, (CUT_AT, 0));
    world.delete().await.unwrap();
    assert_eq!(world.twin(), None);
}

#[tokio::test]
async fn a_deletion_is_not_confirmed_before_the_snapshot_is_gone() {
    let world = World::new().await.posted().await;
    world.api.change(&user_content(), dying);
    world.api.change(&twin_path(), |twin| {
        twin["metadata"]["finalizers"] = json!(["real"]);
    });
    let error = world.cut_in_vain().await;
    assert!(
        matches!(error, SnapshotCreateError::StillWaiting { awaited: "gone", .. }),
        "{error}"
    );
}

#[tokio::test]
async fn a_vanished_snapshot_is_not_taken_again() {
    let world = World::new().await.with_snapshot().await;
    world.api.change(&user_content(), |content| {
        content["status"] = json!({"snapshotHandle": "x"});
    });
    world.cut().await.unwrap();
    world.api.remove(&twin_path());
    assert_eq!(refusal(world.cut().await), SnapshotRefusal::Vanished);
    assert_eq!(world.twin(), None);
}

#[tokio::test]
async fn a_waiting_deletion_reports_the_reason() {
    let mut world = World::new().await.with_snapshot().await;
    // A new replica starts with a list of all events.
    world.home = world.api.cluster().await;
    world.api.change(&twin_path(), |twin| {
        twin["metadata"]["finalizers"] = json!(["in-use"]);
    });
    let uid = world.twin().unwrap()["metadata"]["uid"].clone();
    let event = json!({
        "involvedObject": {"uid": uid}, "type": "Warning", "message": "Snapshot is being used to restore a PVC",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    });
    world.api.put("/api/v1/namespaces/liqo-storage/events/e", event);
    let error = world.delete_within(A_MOMENT).await.unwrap_err();
    assert!(
        matches!(error, SnapshotDeleteError::StillWaiting { .. }),
        "{error}"
    );
    assert!(error.to_string().ends_with("used to restore a PVC"), "{error}");
    let told = world
        .api
        .store()
        .below("/apis/events.k8s.io/v1/namespaces/default/events/");
    assert_eq!(told[0]["reason"], "SnapshotNotDeleted");
    assert_eq!(told[0]["regarding"]["kind"], "VolumeSnapshotContent");

    world.api.remove(&twin_path());
    world.delete().await.unwrap();
    world.delete().await.unwrap();
}

/// csi-provisioner may leave its finalizer on a snapshot after the last restore has ended, and emits no event.
#[tokio::test]
async fn a_waiting_deletion_names_the_finalizers_if_nothing_else_is_reported() {
    let world = World::new().await.with_snapshot().await;
    world.api.change(&twin_path(), |twin| {
        twin["metadata"]["finalizers"] = json!(["in-use"]);
    });
    let error = world.delete_within(A_MOMENT).await.unwrap_err().to_string();
    assert!(
        error.ends_with("in cluster home: it has the finalizers in-use"),
        "{error}"
    );
}

#[tokio::test]
async fn a_snapshot_that_is_taken_reports_why_it_is_not_ready() {
    let world = World::new().await.posted().await;
    world.api.change(&user_content(), |content| {
        content["spec"]["volumeSnapshotRef"] =
            json!({"kind": "VolumeSnapshot", "namespace": "shop", "name": "backup", "uid": SNAPSHOT});
    });
    cut(&world.api, &twin_path(), false);
    let told = || {
        world
            .api
            .store()
            .below("/apis/events.k8s.io/v1/namespaces/shop/events/")
    };
    assert!(!world.cut().await.unwrap().ready);
    assert!(told().is_empty(), "the upload takes time");
    world.api.change(&twin_path(), |twin| {
        twin["status"]["error"] = json!({"message": "the upload failed"});
    });
    assert!(!world.cut().await.unwrap().ready);
    assert_eq!(told()[0]["reason"], "SnapshotNotReady");
    assert!(told()[0]["note"].as_str().unwrap().contains("the upload failed"));
    cut(&world.api, &twin_path(), true);
    assert!(world.cut().await.unwrap().ready);
    assert_eq!(told().len(), 1);
}

#[tokio::test]
async fn a_retained_snapshot_retains_its_twins_content() {
    let world = World::new().await.with_snapshot().await;
    let real = format!("{KINDS}/volumesnapshotcontents/real");
    world.api.change(&user_content(), |content| {
        content["spec"]["deletionPolicy"] = "Retain".into();
    });
    world.cut().await.unwrap();
    let policy = |world: &World| world.api.object(&real).unwrap()["spec"]["deletionPolicy"].clone();
    assert_eq!(policy(&world), "Retain");
    let writes = world.api.writes();
    world.cut().await.unwrap();
    assert_eq!(world.api.writes(), writes);

    // The controllers delete the data first, and then the twin.
    let (path, seen) = (twin_path(), real.clone());
    world.api.before("DELETE", &path, move |store| {
        let content = store.get(&seen).unwrap();
        assert_eq!(content["spec"]["deletionPolicy"], "Delete");
        assert_eq!(
            content["metadata"]["annotations"][mark::DELETION_POLICY_BEFORE],
            Value::Null
        );
        // Like the controllers.
        store.remove(&seen);
    });
    world.delete().await.unwrap();
    assert_eq!(world.twin(), None);
}

#[tokio::test]
async fn a_failed_retain_is_reported() {
    let world = World::new().await.with_snapshot().await;
    world.api.change(&user_content(), |content| {
        content["spec"]["deletionPolicy"] = "Retain".into();
    });
    world.api.fault(Fault::new(
        "PATCH",
        "/volumesnapshotcontents/real",
        Act::Forbid("no right"),
    ));
    assert!(world.cut().await.unwrap().ready);
    let told = world
        .api
        .store()
        .below("/apis/events.k8s.io/v1/namespaces/default/events/");
    assert_eq!(told[0]["reason"], "RetainNotApplied");
}
