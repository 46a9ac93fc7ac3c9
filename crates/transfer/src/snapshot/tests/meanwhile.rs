//! Concurrent changes by other clients: contents that are deleted, not retained any more, or replaced; and
//! an undo that the import observes late.

use super::*;

pub(super) fn goes(object: &mut Value) {
    object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    object["metadata"]["finalizers"] = json!(["snapshot.storage.kubernetes.io/volumesnapshotcontent-bound"]);
}

pub(super) fn deletable(content: &mut Value) {
    content["spec"]["deletionPolicy"] = "Delete".into();
}

/// The last write of an undo to the real content.
fn forget(store: &Store) {
    let mut real = store.get(REAL).unwrap();
    deletable(&mut real);
    real["metadata"]["annotations"]
        .as_object_mut()
        .unwrap()
        .remove(mark::IMPORT_SNAPSHOT);
    store.put(REAL, real);
}

pub(super) fn assert_tells_the_data(outcome: Result<(), SnapshotTransferError>) {
    let said = outcome.unwrap_err().to_string();
    for part in ["real.test", "handle data"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

impl World {
    pub(super) async fn import_until_the_old_is_gone(&self) {
        self.import_and_die_after(DELETED).await;
        self.api.until(|store| store.get(USER).is_none()).await;
    }

    /// Imports until the twin is ready, and stops.
    pub(super) async fn import_until_the_twin_is_ready(&self) {
        self.import_and_die_after(TWIN_MADE).await;
        let twin = self.twin();
        let is_ready = |store: &Store| {
            let twin = store.get(&twin);
            twin.is_some_and(|twin| twin["status"]["readyToUse"] == true)
        };
        self.api.until(is_ready).await;
    }
}

#[tokio::test]
async fn deleting_the_content_without_a_snapshot_reports_where_the_data_is() {
    let world = World::new("Delete").await;
    world.import_until_the_old_is_gone().await;
    world.api.change(REAL, goes);
    let writes = world.api.writes();
    assert_tells_the_data(world.import().await);
    assert_eq!(world.api.writes(), writes);

    // Its record is gone with it; only the running import still knows it.
    let world = World::new("Delete").await;
    world.api.before("DELETE", USER, |store| store.remove(REAL));
    assert_tells_the_data(world.import().await);
    assert_eq!(world.api.object(LOST), None);
}

#[tokio::test]
async fn the_old_content_is_remembered_while_the_twins_content_is_deleted() {
    let world = World::new("Delete").await;
    let of_twin = world.twin_content();
    world.import_and_die_after(MADE).await;
    world.api.change(&of_twin, goes);
    assert_tells_the_data(world.import().await);
    assert!(world.api.object(REAL).is_some());
}

#[tokio::test]
async fn another_object_with_the_name_of_the_twins_content_is_not_touched() {
    for differs in [
        "/spec/driver",
        "/spec/source/snapshotHandle",
        "/spec/volumeSnapshotRef/name",
        "/spec/volumeSnapshotRef/uid",
    ] {
        let world = World::new("Delete").await;
        world.import_until_the_twin_is_ready().await;
        let of_twin = world.twin_content();
        world.api.change(&of_twin, |content| {
            *content.pointer_mut(differs).unwrap() = "another".into();
        });
        let said = world.import().await.unwrap_err().to_string();
        assert!(said.contains(of_twin.rsplit('/').next().unwrap()), "{said}");
        assert!(world.has_old(), "{differs}");
        let said = world.undo().await;
        if differs.ends_with("uid") {
            said.unwrap();
            world.assert_as_before("Delete");
        } else {
            assert!(said.unwrap_err().to_string().contains("refers to other data"));
            assert!(world.api.object(&of_twin).is_some() && world.api.object(&world.twin()).is_some());
        }
    }
}

#[tokio::test]
async fn a_snapshot_twin_with_another_content_is_not_used() {
    let world = World::new("Delete").await;
    world.import_until_the_twin_is_ready().await;
    world.api.change(&world.twin(), |twin| {
        twin["spec"]["source"]["volumeSnapshotContentName"] = "another".into();
    });
    for outcome in [world.import().await, world.undo().await] {
        assert!(
            outcome
                .unwrap_err()
                .to_string()
                .contains("another object has the name of its twin")
        );
    }
    assert!(world.has_old());
}

#[tokio::test]
async fn a_deleted_snapshot_twin_can_be_recreated() {
    let world = World::new("Delete").await;
    world.import_until_the_twin_is_ready().await;
    let of_twin = world.twin_content();
    world.api.remove(&world.twin());
    let said = world.import().await.unwrap_err().to_string();
    assert!(said.contains("delete it, too"), "{said}");
    assert!(world.has_old());
    world.api.remove(&of_twin);
    world.import().await.unwrap();
    world.assert_imported("Delete");
}

#[tokio::test]
async fn contents_are_retained_again_before_any_deletion() {
    for of_twin in [true, false] {
        for undo in [true, false] {
            let world = World::new("Delete").await;
            world.import_until_the_twin_is_ready().await;
            let content = if of_twin {
                world.twin_content()
            } else {
                REAL.to_owned()
            };
            world.api.change(&content, deletable);
            // The snapshot-controller has observed that, and will observe the next change later, too.
            tokio::time::sleep(CONTROLLER_DELAY).await;
            if undo {
                world.undo().await.unwrap();
                world.assert_as_before("Delete");
            } else {
                world.import().await.unwrap();
                world.assert_imported("Delete");
            }
        }
    }
}

#[tokio::test]
async fn objects_created_after_an_undo_are_deleted() {
    // First there is a dry run of the contents of the twin and of the new object, and of the twin.
    let made = [
        (format!("{KINDS}/volumesnapshotcontents"), 2),
        (format!("{SNAPSHOTS}liqo-storage/volumesnapshots"), 1),
    ];
    for (at, (made, tried)) in made.iter().enumerate() {
        let world = World::new("Delete").await;
        let after_trials = |deed: Box<dyn FnOnce(&Store) + Send>| {
            for _ in 0..*tried {
                world.api.before("POST", made, |_| {});
            }
            world.api.before("POST", made, deed);
        };
        let of_twin = world.twin_content();
        let undone = move |store: &Store| {
            store.remove(&of_twin);
            forget(store);
        };
        after_trials(Box::new(undone.clone()));
        let said = world.import().await.unwrap_err().to_string();
        assert!(said.contains("undone"), "{said}");
        world.assert_as_before("Delete");

        // It stops before it observes that.
        after_trials(Box::new(undone));
        let writes = world.api.writes() + MARKED + at + 1;
        world.import_and_die_after(writes).await;
        assert!(
            world.contents().len()
                + world
                    .api
                    .store()
                    .below(&format!("{SNAPSHOTS}liqo-storage/"))
                    .len()
                > 1,
            "nothing was left over"
        );
        world.undo().await.unwrap();
        world.assert_as_before("Delete");

        world.import().await.unwrap();
        world.assert_imported("Delete");
    }
}

#[tokio::test]
async fn an_import_can_be_undone_if_its_name_was_taken() {
    let world = World::new("Delete").await;
    let old = world.api.object(USER).unwrap();
    world.import_until_the_old_is_gone().await;
    let mut other = old;
    other["metadata"]["uid"] = "u-2".into();
    world.api.put(USER, other);
    let said = world.import().await.unwrap_err().to_string();
    assert!(
        said.contains("VolumeSnapshotContent real") && said.contains(mark::IMPORT_SNAPSHOT),
        "{said}"
    );
    world.api.change(REAL, |real| {
        real["metadata"]["annotations"] = json!({});
    });
    let said = world.import().await.unwrap_err().to_string();
    assert!(
        said.contains("is not bound to it"),
        "the object itself is checked: {said}"
    );
}

#[tokio::test]
async fn changes_of_the_snapshot_until_its_deletion_are_kept() {
    let world = World::new("Delete").await;
    world.api.before("DELETE", USER, |store| {
        let mut user = store.get(USER).unwrap();
        user["metadata"]["labels"]["tier"] = "gold".into();
        store.put(USER, user);
    });
    world.import().await.unwrap();
    world.assert_imported("Delete");
    let user = world.api.object(USER).unwrap();
    assert_eq!(user["metadata"]["labels"]["tier"], "gold");
}
