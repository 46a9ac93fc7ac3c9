//! Imports and undos during which another client writes between an observation and a write.

use super::*;

/// The virtual PV of the claim that is created again.
const VIRTUAL: &str = "/api/v1/persistentvolumes/pvc-new";

/// The effect of csi-provisioner and the controller that completes imports, in one step: the claim is bound,
/// and the record is removed from the PV.
fn end(store: &Store) {
    let mut claim = store.get(CLAIM).unwrap();
    let uid = claim["metadata"]["uid"].clone();
    store.put(
        VIRTUAL,
        json!({
            "spec": {
                "csi": {
                    "driver": DRIVER_NAME, "volumeHandle": "v1:home:pvc-new",
                    "volumeAttributes": {"storage.liqo.io/real-volume": "pv-1"},
                },
                "claimRef": {"namespace": "shop", "name": "data", "uid": uid},
                "persistentVolumeReclaimPolicy": "Delete",
            },
            "status": {"phase": "Bound"},
        }),
    );
    claim["spec"]["volumeName"] = "pvc-new".into();
    claim["status"]["phase"] = "Bound".into();
    claim["metadata"]["annotations"]
        .as_object_mut()
        .unwrap()
        .remove(mark::ADOPT);
    store.put(CLAIM, claim);
    let mut real = store.get(REAL).unwrap();
    real["spec"]["persistentVolumeReclaimPolicy"] = "Delete".into();
    real["spec"]["claimRef"] = json!({"namespace": "liqo-storage", "name": "twin", "uid": "twin"});
    real["status"]["phase"] = "Bound".into();
    real["metadata"]["annotations"] = json!({});
    store.put(REAL, real);
    store.put(
        &format!("{TWINS}twin"),
        json!({"metadata": {"uid": "twin", "annotations": {mark::ADOPTED: "pv-1"}}, "spec": {"volumeName": "pv-1"}}),
    );
}

#[tokio::test]
async fn an_import_that_ends_between_two_reads_is_not_undone() {
    let world = World::new("Delete").await;
    world.import_and_die_after(MADE).await;
    // The first observation lists PVs; the second one has read the claim when the import ends.
    world.api.before("GET", REAL, end);
    world.import().await.unwrap();
}

#[tokio::test]
async fn an_undo_deletes_no_claim_whose_import_has_just_ended() {
    let world = World::new("Delete").await;
    world.import_and_die_after(MADE).await;
    world.api.before("DELETE", CLAIM, end);
    let undone = world.undo().await;
    assert!(
        matches!(undone, Err(TransferError::NotUndone(_, UndoRefusal::Finished))),
        "{undone:?}"
    );
    assert_eq!(world.claim()["spec"]["volumeName"], "pvc-new");
    world.real();
}

#[tokio::test]
async fn concurrent_undos_end_after_the_restoration() {
    let world = World::new("Delete").await;
    world.import_and_die_after(MARKED).await;
    let (one, other) = tokio::join!(world.undo(), world.undo());
    one.unwrap();
    other.unwrap();
    world.assert_as_before("Delete");
}

#[tokio::test]
async fn a_claim_with_another_volume_does_not_count_as_imported() {
    let world = World::new("Delete").await;
    world.import_and_die_after(MADE).await;
    // Another client deletes the claim and creates another one, with a volume and with the annotation.
    world.api.put(
        &format!("{VOLUMES}theirs"),
        json!({
            "spec": {
                "claimRef": {"namespace": "shop", "name": "data", "uid": "theirs"},
                "csi": {"driver": "real.test", "volumeHandle": "t"},
            },
            "status": {"phase": "Bound"},
        }),
    );
    world.api.change(CLAIM, |claim| {
        claim["metadata"]["uid"] = "theirs".into();
        claim["spec"]["volumeName"] = "theirs".into();
        claim["spec"]["storageClassName"] = "fast".into();
        claim["status"]["phase"] = "Bound".into();
    });
    let undone = world.undo().await;
    assert!(
        matches!(undone, Err(TransferError::NotUndone(_, UndoRefusal::NameTaken))),
        "{undone:?}"
    );
    assert_eq!(world.claim()["metadata"]["uid"], "theirs");
    assert!(world.api.object(&format!("{VOLUMES}theirs")).is_some());
}

#[tokio::test]
async fn an_import_that_comes_while_the_claim_is_marked_by_an_undo_deletes_nothing() {
    let world = World::new("Delete").await;
    world.import_and_die_after(MARKED).await;
    world.api.change(CLAIM, |claim| {
        claim["metadata"]["annotations"][mark::IMPORT_UNDONE] = "true".into();
    });
    world.api.before("DELETE", CLAIM, |store| {
        let claim = store.get(CLAIM).unwrap();
        assert_eq!(claim["metadata"]["annotations"][mark::IMPORT_UNDONE], Value::Null);
    });
    let world = world.with_driver();
    world.import().await.unwrap();
    world.assert_imported("Delete");
}

#[tokio::test]
async fn a_claim_or_snapshot_is_not_restored_in_a_recreated_namespace() {
    let world = World::new("Delete").await;
    world.import_and_die_after(MADE).await;
    world.api.change("/api/v1/namespaces/shop", |namespace| {
        namespace["metadata"]["uid"] = "shop-2".into();
    });
    let claim = world.claim();
    let refused = provision(&world.api, &world.home, &claim).await.unwrap_err();
    assert!(refused.to_string().contains("may be adopted"), "{refused}");
    assert!(world.api.store().below(TWINS).is_empty());
    for outcome in [world.import().await, world.undo().await] {
        let error = outcome.unwrap_err();
        assert!(matches!(error, TransferError::OtherNamespace { .. }), "{error}");
    }
    assert_eq!(world.real()["spec"]["persistentVolumeReclaimPolicy"], "Retain");
}

#[tokio::test]
async fn an_undo_deletes_no_claim_that_was_not_made_for_the_volume() {
    let world = World::new("Delete").await;
    world.import_and_die_after(MADE).await;
    world.api.put(
        &format!("{TWINS}somebodys"),
        json!({"metadata": {"uid": "theirs"}, "spec": {"volumeName": "pv-1"}, "status": {"phase": "Bound"}}),
    );
    world.api.change(REAL, |real| {
        real["spec"]["claimRef"] = json!({"namespace": "liqo-storage", "name": "somebodys", "uid": "theirs"});
    });
    let undone = world.undo().await;
    assert!(
        matches!(undone, Err(TransferError::NotUndone(_, UndoRefusal::Held(_)))),
        "{undone:?}"
    );
    assert!(world.api.object(&format!("{TWINS}somebodys")).is_some());
}

#[tokio::test]
async fn changes_of_the_claim_until_its_deletion_are_kept() {
    let world = World::new("Delete").await.with_driver();
    world.api.before("DELETE", CLAIM, |store| {
        let mut claim = store.get(CLAIM).unwrap();
        claim["metadata"]["labels"]["tier"] = "gold".into();
        claim["metadata"]["annotations"]["note"] = "keep".into();
        store.put(CLAIM, claim);
    });
    world.import().await.unwrap();
    world.assert_imported("Delete");
    assert_eq!(world.claim()["metadata"]["labels"]["tier"], "gold");
    assert_eq!(world.claim()["metadata"]["annotations"]["note"], "keep");
}
