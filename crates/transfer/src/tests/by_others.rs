//! Imports and undos during which other clients create a claim of the same name or change the PV.

use super::*;

/// How many writes it takes until the old claim is deleted.
const DELETED: usize = 4;

/// A claim of the same name that another client creates, of the old class.
fn theirs() -> Value {
    json!({
        "metadata": {"uid": "theirs"},
        "spec": {
            "storageClassName": "fast", "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
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

/// The import has begun, and the claim is gone.
async fn in_the_gap() -> World {
    let world = World::new("Delete").await;
    world.import_and_die_after(DELETED).await;
    world.api.until(|store| store.get(CLAIM).is_none()).await;
    world
}

fn assert_offered_to_nobody(world: &World) {
    let real = world.real();
    let gone = json!({"namespace": "shop", "name": "data", "uid": OLD_UID});
    for key in ["namespace", "name", "uid"] {
        assert_eq!(real["spec"]["claimRef"][key], gone[key], "{key}");
    }
    assert_eq!(real["spec"]["persistentVolumeReclaimPolicy"], "Retain");
}

#[tokio::test]
async fn an_undo_takes_the_volume_back_from_a_claim_that_got_another_one() {
    let world = in_the_gap().await;
    world.api.put(CLAIM, theirs());
    // The first one forbids the adoption, the second one gives the PV to the claim.
    world.api.before("PATCH", REAL, |_| {});
    world.api.before("PATCH", REAL, bind_elsewhere);
    let undone = world.undo().await;
    assert!(
        matches!(undone, Err(TransferError::NotUndone(_, UndoRefusal::NameTaken))),
        "{undone:?}"
    );
    assert_offered_to_nobody(&world);
    assert_eq!(world.claim()["spec"]["volumeName"], "theirs");
    // After that claim is deleted, the undo restores everything.
    world.api.remove(CLAIM);
    world.undo().await.unwrap();
    assert_eq!(
        world.real()["spec"]["claimRef"]["uid"],
        world.claim()["metadata"]["uid"]
    );
}

#[tokio::test]
async fn an_import_never_binds_the_volume_to_a_claim_of_others() {
    for cleared in ["/spec/claimRef/uid", "/spec/claimRef"] {
        let world = in_the_gap().await;
        world.api.put(CLAIM, theirs());
        bind_elsewhere(world.api.store());
        world
            .api
            .change(REAL, |real| *real.pointer_mut(cleared).unwrap() = Value::Null);
        let error = world.import().await.unwrap_err();
        assert!(
            matches!(error, TransferError::NotImported(_, ImportRefusal::NameTaken)),
            "{error}"
        );
        assert_offered_to_nobody(&world);
    }
}

/// The input for `kubectl create`.
fn manifest(error: &TransferError) -> Value {
    let reported = error.to_string();
    let line = reported.lines().find(|line| line.starts_with('{'));
    serde_json::from_str(line.unwrap_or_else(|| panic!("there is no manifest: {reported}"))).unwrap()
}

#[tokio::test]
async fn a_pv_deleted_by_others_can_be_recreated_and_the_import_completes() {
    let world = in_the_gap().await;
    let collection = CLAIM.strip_suffix("/data").unwrap();
    world.api.before("POST", collection, |store| store.remove(REAL));
    let error = world.import().await.unwrap_err();
    let reported = error.to_string();
    assert!(
        reported.contains("driver real.test, volume handle h"),
        "{reported}"
    );
    let manifest = manifest(&error);
    assert_eq!(manifest["metadata"]["uid"], Value::Null);
    assert_eq!(manifest["status"], Value::Null);
    world.api.put(REAL, manifest);
    let world = world.with_driver();
    world.import().await.unwrap();
    world.assert_imported("Delete");
}

#[tokio::test]
async fn a_pv_deleted_by_others_can_be_recreated_and_the_undo_completes() {
    let world = in_the_gap().await;
    let collection = CLAIM.strip_suffix("/data").unwrap();
    // Another client creates another claim of that name.
    world.api.before("POST", collection, |store| {
        let mut real = store.get(REAL).unwrap();
        store.remove(REAL);
        real["metadata"] = json!({});
        store.put(REAL, real);
    });
    let error = world.undo().await.unwrap_err();
    let manifest = manifest(&error);
    world.api.remove(REAL);
    world.api.put(REAL, manifest);
    world.undo().await.unwrap();
    world.assert_as_before("Delete");
}

#[tokio::test]
async fn an_undo_waits_for_a_quota_that_still_counts_the_old_claim() {
    let world = in_the_gap().await;
    let quota = Fault::new("POST", "persistentvolumeclaims", Act::Forbid("exceeded quota"));
    world.api.fault(quota.times(2));
    world.undo().await.unwrap();
    world.assert_as_before("Delete");
}

#[tokio::test]
async fn an_undo_reports_why_the_claim_cannot_be_recreated() {
    let world = in_the_gap().await;
    let refused = Fault::new("POST", "persistentvolumeclaims", Act::Refuse(422));
    world.api.fault(refused);
    let reported = world.undo().await.unwrap_err().to_string();
    assert!(
        reported.contains("shop/data cannot be created again"),
        "{reported}"
    );
    world.api.heal();
    world.undo().await.unwrap();
    world.assert_as_before("Delete");
}
