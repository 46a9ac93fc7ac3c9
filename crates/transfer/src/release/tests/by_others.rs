//! Releases and undos during which other clients create a claim of the same name or change the PVs.

use super::*;

/// A claim of the same name that another client creates, of this class.
fn theirs(class: &str) -> Value {
    json!({
        "metadata": {"uid": "theirs"},
        "spec": {
            "storageClassName": class, "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
            "resources": {"requests": {"storage": "1Gi"}},
        },
        "status": {"phase": "Pending"},
    })
}

/// Kubernetes binds that claim to another PV.
fn bind_elsewhere(store: &Store) {
    let mut claim = store.get(CLAIM).unwrap();
    let reference = json!({"namespace": "shop", "name": "data", "uid": claim["metadata"]["uid"]});
    store.put(
        &format!("{VOLUMES}theirs"),
        json!({
            "spec": {"claimRef": reference, "csi": {"driver": "real.test", "volumeHandle": "t"}},
            "status": {"phase": "Bound"},
        }),
    );
    claim["spec"]["volumeName"] = "theirs".into();
    claim["status"]["phase"] = "Bound".into();
    store.put(CLAIM, claim);
}

/// The claim is gone, and the virtual PV is not: it has the finalizer of csi-provisioner.
pub(super) async fn in_the_gap() -> World {
    let world = World::with_sidecars("Delete", "Delete", false).await;
    let gone = world.api.until(|store| store.get(CLAIM).is_none());
    tokio::select! {
        _ = world.release() => panic!("it cannot end"),
        () = gone => {}
    }
    world
}

#[tokio::test]
async fn a_release_unbinds_the_volume_from_a_claim_with_another_volume() {
    let world = World::new("Delete", "Delete").await;
    let mut changes = world.api.store().changes();
    let in_the_gap = async {
        while world.api.object(CLAIM).is_some() {
            changes.changed().await.unwrap();
        }
        world.api.put(CLAIM, theirs("fast"));
        world.api.before("PATCH", REAL, bind_elsewhere);
    };
    let (released, ()) = tokio::join!(world.release(), in_the_gap);
    assert!(
        matches!(
            released,
            Err(TransferError::NotReleased(_, ReleaseRefusal::NameTaken))
        ),
        "{released:?}"
    );
    let real = world.real();
    assert_eq!(real["spec"]["claimRef"]["uid"], TWIN_UID);
    assert_eq!(real["spec"]["claimRef"]["namespace"], "liqo-storage");
    assert_eq!(world.policy(REAL), "Retain");
    // After that claim is deleted, the release continues.
    world.api.remove(CLAIM);
    world.release().await.unwrap();
    assert_eq!(
        world.real()["spec"]["claimRef"]["uid"],
        world.claim()["metadata"]["uid"]
    );
    assert_eq!(world.policy(REAL), "Delete");
}

#[tokio::test]
async fn an_undo_unbinds_the_virtual_volume_from_a_claim_with_another_volume() {
    let world = in_the_gap().await;
    world.api.put(CLAIM, theirs("liqo"));
    world.api.before("PATCH", &outer_path(), bind_elsewhere);
    let undone = world.undo().await;
    assert!(
        matches!(
            undone,
            Err(TransferError::StillReleased(_, ReleaseUndoRefusal::NameTaken))
        ),
        "{undone:?}"
    );
    let outer = world.api.object(&outer_path()).unwrap();
    assert_eq!(outer["spec"]["claimRef"]["uid"], UID);
    assert_eq!(world.policy(&outer_path()), "Retain");
}

#[tokio::test]
async fn a_release_resumes_after_a_deleted_volume_is_recreated() {
    let world = World::new("Delete", "Delete").await;
    world
        .api
        .before("DELETE", &twin_path(), |store| store.remove(REAL));
    let reported = world.release().await.unwrap_err().to_string();
    assert!(
        reported.contains("driver real.test, volume handle h"),
        "{reported}"
    );
    let manifest = reported.lines().find(|line| line.starts_with('{')).unwrap();
    let manifest = serde_json::from_str(manifest).unwrap();
    world.api.put(REAL, manifest);
    world.release().await.unwrap();
    world.assert_released("Delete");
}

#[tokio::test]
async fn an_undo_waits_for_a_quota_that_still_counts_the_old_claim() {
    let world = in_the_gap().await;
    let quota = Fault::new("POST", "persistentvolumeclaims", Act::Forbid("exceeded quota"));
    world.api.fault(quota.times(2));
    world.undo().await.unwrap();
    world.assert_as_before("Delete");
}

/// The claim is the original one, and not that of another client.
#[tokio::test]
async fn a_claim_without_twin_and_virtual_volume_is_still_recognized() {
    let world = World::new("Delete", "Delete").await;
    let mut changes = world.api.store().changes();
    let recorded = async {
        while world.real()["metadata"]["annotations"][mark::RELEASE].is_null() {
            changes.changed().await.unwrap();
        }
    };
    tokio::select! {
        _ = world.release() => panic!("it is not over yet"),
        () = recorded => {}
    }
    world.api.remove(&twin_path());
    world.api.remove(&outer_path());
    let reported = world.undo().await.unwrap_err().to_string();
    assert!(reported.contains("were both deleted"), "{reported}");
}

#[tokio::test]
async fn an_undo_reports_that_the_driver_recreates_the_twin() {
    let world = World::new("Delete", "Delete").await;
    let mut changes = world.api.store().changes();
    let recorded = async {
        while world.real()["metadata"]["annotations"][mark::RELEASE].is_null() {
            changes.changed().await.unwrap();
        }
    };
    tokio::select! {
        _ = world.release() => panic!("it is not over yet"),
        () = recorded => {}
    }
    world.api.remove(&twin_path());
    let reported = std::sync::Mutex::new(Vec::new());
    let report = |what: &str| reported.lock().unwrap().push(what.to_owned());
    let context = Context {
        report: &report,
        ..context(&world)
    };
    undo_release(&context, &"shop/data".parse().unwrap())
        .await
        .unwrap();
    let reported = reported.lock().unwrap();
    let last = reported.last().unwrap();
    assert!(last.contains("creates the twin again"), "{reported:?}");
    assert!(
        !reported
            .iter()
            .any(|one| one.contains("the state before the release is restored")),
        "{reported:?}"
    );
}

#[tokio::test]
async fn changes_of_the_claim_until_its_deletion_are_kept() {
    let world = World::new("Delete", "Delete").await;
    world.api.before("DELETE", CLAIM, |store| {
        let mut claim = store.get(CLAIM).unwrap();
        claim["metadata"]["labels"]["tier"] = "gold".into();
        store.put(CLAIM, claim);
    });
    world.release().await.unwrap();
    world.assert_released("Delete");
    assert_eq!(world.claim()["metadata"]["labels"]["tier"], "gold");
}
