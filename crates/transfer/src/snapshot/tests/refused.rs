//! Objects that the API server refuses: reported before anything is written, or else the import is rolled
//! back, as long as that is possible.

use super::*;

/// The forbidden requests, by their path.
fn made() -> [String; 3] {
    [
        format!("{KINDS}/volumesnapshotcontents"),
        format!("{SNAPSHOTS}liqo-storage/volumesnapshots"),
        format!("{SNAPSHOTS}shop/volumesnapshots"),
    ]
}

impl World {
    fn forbid(&self, what: &str) {
        self.api.fault(Fault::new("POST", what, Act::Forbid("a policy")));
    }
}

#[tokio::test]
async fn objects_that_would_be_refused_are_reported_before_any_write() {
    for what in made() {
        let world = World::new("Delete").await;
        world
            .api
            .change(USER, |user| user["status"]["readyToUse"] = false.into());
        world.forbid(&what);
        let before = world.api.store().version();
        let said = world.import().await.unwrap_err().to_string();
        assert!(said.contains("not ready") && said.contains("a policy"), "{said}");
        assert_eq!(said.matches("a policy").count(), 1, "{said}");
        assert_eq!(world.api.store().version(), before);
        world.assert_as_before("Delete");
    }
}

#[tokio::test]
async fn an_undo_makes_no_dry_runs() {
    let world = World::new("Delete").await;
    for what in made() {
        world.forbid(&what);
    }
    world.undo().await.unwrap();
    assert_eq!(world.api.writes(), 0);
}

#[tokio::test]
async fn an_object_refused_later_rolls_back() {
    for (writes, what) in (MARKED..).zip(made()) {
        let world = World::new("Delete").await;
        world.import_and_die_after(writes).await;
        world.forbid(&what);
        let error = world.import().await.unwrap_err();
        assert!(matches!(error, SnapshotTransferError::RolledBack(..)), "{error}");
        assert!(error.to_string().contains("a policy"), "{error}");
        world.assert_as_before("Delete");
        world.api.heal();
        world.import().await.unwrap();
        world.assert_imported("Delete");
    }
}

#[tokio::test]
async fn an_import_that_cannot_be_rolled_back_is_reported_as_started() {
    let [contents, _, users] = made();
    let world = World::new("Delete").await;
    world.import_until_the_twin_is_ready().await;
    world.forbid(&users);
    world
        .api
        .fault(Fault::new("PATCH", USER, Act::Forbid("no right")));
    let said = world.import().await.unwrap_err().to_string();
    for part in ["cannot continue", "a policy", "no right", "--undo"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    world.api.heal();
    world.undo().await.unwrap();
    world.assert_as_before("Delete");

    // The old object is gone.
    for what in [contents, users] {
        let world = World::new("Delete").await;
        world.import_until_the_old_is_gone().await;
        world.forbid(&what);
        let said = world.import().await.unwrap_err().to_string();
        for part in [
            "was started",
            "a policy",
            "VolumeSnapshotContent real",
            "Run this again",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        world.api.heal();
        world.import().await.unwrap();
        world.assert_imported("Delete");
    }
}
