//! Releases and undos whose writes a webhook or another controller reverts every time.

use super::*;

/// Runs the release or its undo until it fails, and returns the error, which names the reverted write.
async fn reverted(world: &World, undo: bool) -> String {
    let before = world.api.writes();
    let run = world.run(undo, Duration::ZERO);
    let ended = tokio::time::timeout(TEST_TIMEOUT, run).await;
    let error = ended.expect("it does not end").unwrap_err().to_string();
    let writes = world.api.writes() - before;
    assert!(writes < 100, "{writes} writes in twenty tries");
    for part in ["do not persist", "webhook", "controller"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    error
}

#[tokio::test]
async fn a_release_whose_mark_is_always_reverted_fails() {
    let world = World::new("Delete", "Delete").await;
    world.api.fault(Fault::new("PATCH", &twin_path(), Act::TakeOut));
    let lists = || {
        let list = format!("GET {}", TWINS.trim_end_matches('/'));
        let all = world.api.requests();
        all.iter().filter(|request| **request == list).count()
    };
    let before = lists();
    let error = reverted(&world, false).await;
    assert!(error.contains(&format!("the twin liqo-storage/{UID}")), "{error}");
    assert_eq!(lists() - before, 1, "stray marks are looked for once");
    world.api.heal();
    world.release().await.unwrap();
    world.assert_released("Delete");
}

#[tokio::test]
async fn a_release_or_undo_whose_record_is_always_reverted_fails() {
    let world = World::new("Delete", "Delete").await;
    world.api.fault(Fault::new("PATCH", REAL, Act::TakeOut));
    let error = reverted(&world, false).await;
    assert!(error.contains("the PersistentVolume pv-1"), "{error}");
    let twin = world.api.object(&twin_path()).unwrap();
    assert_eq!(twin["metadata"]["annotations"][mark::RELEASING], Value::Null);
    world.api.heal();
    let recorded = world
        .api
        .until(|store| !store.get(REAL).unwrap()["metadata"]["annotations"][mark::RELEASE].is_null());
    tokio::select! {
        _ = world.release() => panic!("it is not over yet"),
        () = recorded => {}
    }
    world.api.fault(Fault::new("PATCH", REAL, Act::TakeOut));
    let error = reverted(&world, true).await;
    assert!(error.contains("the PersistentVolume pv-1"), "{error}");
    world.api.heal();
    world.undo().await.unwrap();
    world.assert_as_before("Delete");
}

#[tokio::test]
async fn a_release_or_undo_whose_stray_mark_always_returns_fails() {
    let world = World::new("Delete", "Delete").await;
    let stray = format!("{TWINS}stray");
    world.api.put(
        &stray,
        json!({"metadata": {"annotations": {mark::RELEASING: "shop/data"}}}),
    );
    world.api.fault(Fault::new("PATCH", &stray, Act::TakeOut));
    for undo in [false, true] {
        let error = reverted(&world, undo).await;
        assert!(error.contains("the twin liqo-storage/stray"), "{error}");
    }
    world.api.heal();
    world.release().await.unwrap();
    world.assert_released("Delete");
}

#[tokio::test]
async fn a_release_whose_finalizer_always_returns_fails() {
    let world = by_others::in_the_gap().await;
    let api = Arc::clone(&world.api);
    // A csi-provisioner that does not run, but whose finalizer is on every PV.
    let stubborn = tokio::spawn(async move {
        let mut changes = api.store().changes();
        loop {
            let outer = api.object(&outer_path()).unwrap_or_default();
            let all = outer["metadata"]["finalizers"].as_array();
            if all.is_some_and(|all| !all.contains(&PROVISIONERS.into())) {
                api.change(&outer_path(), |outer| {
                    let all = outer["metadata"]["finalizers"].as_array_mut().unwrap();
                    all.push(PROVISIONERS.into());
                });
            }
            changes.changed().await.unwrap();
        }
    });
    let error = reverted(&world, false).await;
    assert!(error.contains(&format!("PersistentVolume pvc-{UID}")), "{error}");
    stubborn.abort();
    world.release().await.unwrap();
    world.assert_released("Delete");
}
