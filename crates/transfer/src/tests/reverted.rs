//! Imports and undos whose writes a webhook or another controller reverts every time.

use super::*;

/// Runs it against an API server that reverts every write to the PV; returns the error.
async fn taken_out(world: &World, undo: bool) -> String {
    let before = world.api.writes();
    world.api.fault(Fault::new("PATCH", REAL, Act::TakeOut));
    let run = world.run(undo, Duration::ZERO);
    let ended = tokio::time::timeout(TEST_TIMEOUT, run).await;
    let error = ended.expect("it does not end").unwrap_err();
    let writes = world.api.writes() - before;
    assert!(writes < 100, "{writes} writes in twenty tries");
    world.api.heal();
    error.to_string()
}

#[tokio::test]
async fn an_import_whose_mark_is_always_reverted_fails() {
    let world = World::new("Delete").await;
    let error = taken_out(&world, false).await;
    for part in ["PersistentVolume pv-1 do not persist", "webhook", "controller"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert_eq!(world.claim()["metadata"]["uid"], OLD_UID);
    let world = world.with_driver();
    world.import().await.unwrap();
    world.assert_imported("Delete");
}

#[tokio::test]
async fn an_undo_whose_writes_are_always_reverted_fails() {
    let world = World::new("Delete").await;
    let marked = world
        .api
        .until(|store| !store.get(REAL).unwrap()["metadata"]["annotations"][mark::IMPORT].is_null());
    tokio::select! {
        _ = world.import() => panic!("the controller does not run"),
        () = marked => {}
    }
    let error = taken_out(&world, true).await;
    assert!(error.contains("PersistentVolume pv-1 do not persist"), "{error}");
    world.undo().await.unwrap();
    world.assert_as_before("Delete");
}
