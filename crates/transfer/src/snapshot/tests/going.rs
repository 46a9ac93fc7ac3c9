//! Undoing while the original content is being deleted, or gone: nothing that refers to the data is deleted,
//! and the message says where the data is.

use super::{
    meanwhile::{assert_tells_the_data, deletable, goes},
    *,
};

impl World {
    /// The error of an undo that cannot restore anything.
    async fn undo_refused(&self) -> String {
        self.undo().await.unwrap_err().to_string()
    }

    /// The other objects that refer to the data exist, and are retained.
    fn assert_second_is_kept(&self) {
        assert_eq!(self.api.object(LOST), None, "the data is lost");
        let second = self.api.object(&self.twin_content()).unwrap();
        assert_eq!(second["spec"]["deletionPolicy"], "Retain");
        for path in [self.twin(), self.twin_content()] {
            let found = self.api.object(&path).unwrap();
            assert!(found["metadata"]["deletionTimestamp"].is_null(), "{path} goes");
        }
    }

    fn policy(&self) -> Value {
        self.api.object(REAL).unwrap()["spec"]["deletionPolicy"].clone()
    }

    fn second(&self) -> String {
        self.twin_content().rsplit('/').next().unwrap().to_owned()
    }
}

#[tokio::test]
async fn an_undo_deletes_nothing_while_the_old_content_is_being_deleted() {
    let world = World::new("Delete").await;
    world.import_until_the_twin_is_ready().await;
    world.api.change(REAL, goes);
    let before = world.api.store().version();
    let said = world.undo_refused().await;
    for part in [
        "content real",
        "real.test",
        "handle data",
        "create a",
        &world.second(),
    ] {
        assert!(said.to_lowercase().contains(part), "{part}: {said}");
    }
    assert_eq!(world.api.store().version(), before);
    world.assert_second_is_kept();
    assert_eq!(world.policy(), "Retain");
}

#[tokio::test]
async fn a_content_that_is_being_deleted_is_still_retained() {
    let world = World::new("Delete").await;
    world.import_until_the_twin_is_ready().await;
    world.api.change(REAL, goes);
    world.api.change(REAL, deletable);
    let of_twin = world.twin_content();
    world.api.change(&of_twin, deletable);
    assert_tells_the_data(world.undo().await);
    world.assert_second_is_kept();
    assert_eq!(world.policy(), "Retain");
    let noted = world.api.object(&of_twin).unwrap()["metadata"]["annotations"].clone();
    assert_eq!(noted[mark::DELETION_POLICY_BEFORE], "Delete");
}

#[tokio::test]
async fn an_undo_stops_when_the_old_content_is_deleted() {
    // Before its first write, and before its first deletion.
    for method in ["PATCH", "DELETE"] {
        for gone in [false, true] {
            let world = World::new("Delete").await;
            world.import_until_the_twin_is_ready().await;
            let path = if method == "PATCH" {
                USER.to_owned()
            } else {
                world.twin()
            };
            world.api.before(method, &path, move |store| {
                if gone {
                    return store.remove(REAL);
                }
                let mut real = store.get(REAL).unwrap();
                goes(&mut real);
                store.put(REAL, real);
            });
            assert_tells_the_data(world.undo().await);
            let second = world.api.object(&world.twin_content()).unwrap();
            assert!(second["metadata"]["deletionTimestamp"].is_null());
            assert_eq!(second["spec"]["deletionPolicy"], "Retain");
            assert!(gone || world.policy() == "Retain");
            assert_eq!(world.api.object(LOST), None, "the data is lost");
        }
    }
}

#[tokio::test]
async fn a_content_that_is_being_deleted_does_not_get_the_old_policy() {
    let world = World::new("Delete").await;
    world.import_until_the_twin_is_ready().await;
    world.api.before("DELETE", &world.twin_content(), |store| {
        let mut real = store.get(REAL).unwrap();
        goes(&mut real);
        store.put(REAL, real);
    });
    assert_tells_the_data(world.undo().await);
    assert_eq!(world.policy(), "Retain");
    let said = world.undo_refused().await;
    assert!(
        said.contains("handle data") && !said.contains(&world.second()),
        "{said}"
    );
}

#[tokio::test]
async fn without_the_old_content_the_second_one_identifies_the_data() {
    let world = World::new("Delete").await;
    world.import_until_the_twin_is_ready().await;
    world.api.remove(REAL);
    let before = world.api.store().version();
    for outcome in [world.undo().await, world.import().await] {
        let said = outcome.as_ref().unwrap_err().to_string();
        for part in ["VolumeSnapshotContent real", &world.second()] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert_tells_the_data(outcome);
    }
    assert_eq!(world.api.store().version(), before);
    world.assert_second_is_kept();

    // The recorded policy is kept longer than the record.
    let of_twin = world.twin_content();
    world.api.change(&of_twin, deletable);
    assert_tells_the_data(world.undo().await);
    world.assert_second_is_kept();
    let noted = world.api.object(&of_twin).unwrap()["metadata"]["annotations"].clone();
    assert_eq!(noted[mark::DELETION_POLICY_BEFORE], "Delete");
}

#[tokio::test]
async fn a_snapshot_without_its_content_is_not_reported_as_restored() {
    for gone in [true, false] {
        let world = World::new("Delete").await;
        // The state after an interrupted undo.
        world.api.change(USER, |user| {
            user["metadata"]["annotations"][mark::IMPORT_UNDONE] = "true".into();
        });
        if gone {
            world.api.remove(REAL);
        } else {
            world.api.change(REAL, goes);
        }
        let said = world.undo_refused().await;
        assert!(said.contains("VolumeSnapshotContent real"), "{said}");
        let user = world.api.object(USER).unwrap();
        assert_eq!(user["metadata"]["annotations"], json!({"why": "night"}));
        let said = world.import().await.unwrap_err().to_string();
        assert!(
            !gone || said.contains("VolumeSnapshotContent real was deleted"),
            "{said}"
        );
    }
}
