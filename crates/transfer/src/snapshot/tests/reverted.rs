//! Imports and undos whose writes a webhook or another controller reverts every time.

use super::*;

#[tokio::test]
async fn an_import_or_undo_whose_writes_are_always_reverted_fails() {
    let world = World::new("Delete").await;
    for undo in [false, true] {
        let before = world.api.writes();
        world.api.fault(Fault::new("PATCH", REAL, Act::TakeOut));
        // An undo first waits as long as the snapshot-controller may need to observe a change.
        let timeout = Duration::from_secs(if undo { 2 } else { 0 });
        let run = world.run(undo, timeout);
        let ended = tokio::time::timeout(TEST_TIMEOUT, run).await;
        let error = ended.expect("it does not end").unwrap_err().to_string();
        let writes = world.api.writes() - before;
        // Each attempt has a few writes, most of them dry runs.
        assert!(writes < 250, "{writes} writes in twenty tries");
        assert!(
            error.contains("VolumeSnapshotContent real do not persist"),
            "{error}"
        );
        world.api.heal();
        if !undo {
            world.import_and_die_after(world.api.writes() + 2).await;
        }
    }
    world.undo().await.unwrap();
    world.assert_as_before("Delete");
}
