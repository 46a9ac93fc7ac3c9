//! Volumes that are being released: the command handles them, and no loop.

use super::*;

fn mark_twin(api: &FakeApi) {
    api.change(TWIN, |twin| {
        twin["metadata"]["annotations"][mark::RELEASING] = "shop/data".into();
    });
}

/// The real PV from the second step on.
fn record(api: &FakeApi) {
    api.change(REAL, |real| {
        real["metadata"]["annotations"] = json!({mark::RELEASE: "{}"});
        real["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
    });
}

#[tokio::test]
async fn the_deleted_twin_of_a_released_volume_is_not_recovered() {
    let api = FakeApi::start().await;
    world(&api);
    mark_twin(&api);
    record(&api);
    delete(&api, TWIN);
    round(&api).await.unwrap();
    assert!(
        api.object(TWIN).is_some(),
        "it is the command that takes the finalizer off"
    );
    assert!(!told(&api).contains(&"TwinTerminating".to_owned()));
}

#[tokio::test]
async fn a_missing_twin_of_a_released_volume_is_not_recreated() {
    let api = FakeApi::start().await;
    world(&api);
    record(&api);
    api.remove(TWIN);
    api.change(REAL, |real| real["status"]["phase"] = "Released".into());
    round(&api).await.unwrap();
    assert!(api.object(TWIN).is_none());
    assert_eq!(policy(&api, REAL), "Retain");
    // After an undo the loop handles it.
    api.change(REAL, |real| {
        real["metadata"]["annotations"] = json!({mark::POLICY_BEFORE: "Delete"});
    });
    round(&api).await.unwrap();
    assert!(api.object(TWIN).is_some());
}

#[tokio::test]
async fn the_policy_of_a_released_volume_is_not_restored() {
    for marked in [true, false] {
        let api = FakeApi::start().await;
        world(&api);
        record(&api);
        api.change(REAL, |real| {
            real["metadata"]["annotations"][mark::POLICY_BEFORE] = "Delete".into();
        });
        if marked {
            mark_twin(&api);
        }
        round(&api).await.unwrap();
        assert_eq!(policy(&api, REAL), "Retain");
    }
}
