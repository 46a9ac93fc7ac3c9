//! The twins are marked, handed over and deleted.

use std::time::Duration;

use super::*;
use crate::{
    cluster::testing::{Act, Fault},
    twin::copy_to_come,
};

fn source_version(world: &World) -> AsRead {
    as_read(&world.api.object(&source_path()).unwrap())
}

fn target_version(world: &World) -> AsRead {
    as_read(&world.there.object(TARGET).unwrap())
}

fn policy_of(api: &FakeApi, real: &str) -> Value {
    api.object(&format!("{VOLUMES}/{real}")).unwrap()["spec"]["persistentVolumeReclaimPolicy"].clone()
}

#[tokio::test]
async fn the_state_of_a_source_is_read_from_its_marks() {
    let world = World::new().await;
    let superseded = SourceMark::Superseded {
        by: by(),
        epoch: epoch(),
    };
    for mark in [SourceMark::Moving { by: by(), gate: GATE }, superseded] {
        let step = ClaimStep::MarkSource {
            source: source_version(&world),
            mark: mark.clone(),
        };
        assert_eq!(world.moved.apply(&step).await.unwrap(), Applied::Done);
        let seen = world.look().await.source;
        assert!(
            matches!(&seen, Live::Known(SourceTwin::Exists { mark: Some(there), .. }) if *there == mark),
            "{seen:?}"
        );
        assert_eq!(world.moved.apply(&step).await.unwrap(), Applied::ChangedMeanwhile);
    }
    world.api.change(&source_path(), |twin| {
        twin["metadata"]["annotations"][mark::SOURCE_OF] = "odd".into();
    });
    assert!(matches!(world.moved.observe().await, Err(GateError::Twin { .. })));
}

#[tokio::test]
async fn a_twin_that_was_created_again_counts_when_it_is_bound() {
    let world = World::new().await;
    for (phase, is_bound) in [("Pending", false), ("Bound", true), ("Lost", true)] {
        world
            .api
            .change(&source_path(), |twin| twin["status"]["phase"] = phase.into());
        let seen = world.look().await.source;
        assert!(
            matches!(seen, Live::Known(SourceTwin::Exists { bound, .. }) if bound == is_bound),
            "{phase}: {seen:?}"
        );
    }
}

#[tokio::test]
async fn a_twin_of_another_epoch_or_owner_is_not_the_source() {
    let world = World::new().await;
    world.api.change(&source_path(), |twin| {
        twin["metadata"]["annotations"][mark::EPOCH] = "1".into();
    });
    assert_eq!(
        world.look().await.source,
        Live::Known(SourceTwin::Gone { for_good: true })
    );
    world.api.put(&source_path(), json!({"metadata": {"uid": "x"}}));
    assert_eq!(
        world.look().await.source,
        Live::Known(SourceTwin::Gone { for_good: true })
    );
}

#[tokio::test]
async fn a_source_is_lost_for_good_only_if_no_retained_volume_has_its_data() {
    let world = World::new().await;
    world.api.remove(&source_path());
    let gone = |for_good| Live::Known(SourceTwin::Gone { for_good });
    assert_eq!(world.look().await.source, gone(true));
    world.api.change(&format!("{VOLUMES}/real-1"), |real| {
        real["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
        real["spec"]["claimRef"] = json!({"namespace": "liqo-storage", "name": UID, "uid": "gone"});
    });
    assert_eq!(world.look().await.source, gone(false));
}

#[tokio::test]
async fn only_a_twin_created_by_this_move_is_its_target() {
    let world = World::new().await.with_target("Delete");
    let seen = world.look().await.target;
    let at = target_version(&world);
    let ours = TargetTwin::Exists {
        at,
        handed_over: false,
        retained: false,
        deleting: false,
    };
    assert_eq!(seen, Live::Known(ours));
    let changes: [fn(&mut Value); 4] = [
        |twin| twin["metadata"]["labels"][mark::MOVE] = OTHER.into(),
        |twin| twin["metadata"]["annotations"][mark::EPOCH] = "2".into(),
        |twin| twin["metadata"]["labels"][mark::HOME_CLUSTER] = "rome".into(),
        |twin| {
            drop(
                twin["metadata"]["labels"]
                    .as_object_mut()
                    .unwrap()
                    .remove(mark::MOVE),
            );
        },
    ];
    for change in changes {
        let world = World::new().await.with_target("Delete");
        world.there.change(TARGET, change);
        let seen = world.look().await.target;
        assert!(
            matches!(&seen, Live::Known(TargetTwin::Foreign(what)) if what.starts_with("shop-home/data: ")),
            "{seen:?}"
        );
    }
}

#[tokio::test]
async fn an_unreachable_cluster_does_not_count_as_empty() {
    let world = World::new().await.with_target("Delete");
    let hand_over = ClaimStep::HandOver {
        target: target_version(&world),
        retain: false,
    };
    world.there.fault(Fault::new("GET", TARGET, Act::Refuse(500)));
    assert!(matches!(world.look().await.target, Live::Unknown(_)));
    assert!(matches!(
        world.moved.apply(&hand_over).await,
        Err(GateError::Api(_))
    ));

    let mut world = World::new().await;
    world.moved.target.place = Place::Unreachable("cut off".into());
    assert_eq!(world.look().await.target, Live::Unknown("cut off".into()));
    assert!(matches!(
        world.moved.apply(&hand_over).await,
        Err(GateError::Unreachable { .. })
    ));
    world.moved.target.place = Place::Gone;
    assert_eq!(world.look().await.target, Live::Known(TargetTwin::Gone));
}

#[tokio::test]
async fn an_undeclared_cluster_counts_as_gone_only_when_all_declarations_are_read() {
    let unknown = || Err(Unreachable::Unknown("milan".parse().unwrap()));
    assert!(matches!(Place::of(unknown(), &Registry::fixed([])), Place::Gone));
    let partial = Registry::partial([], ["kosmos.io"]);
    assert!(matches!(Place::of(unknown(), &partial), Place::Unreachable(_)));
}

#[tokio::test]
async fn a_target_is_handed_over_in_one_write() {
    let world = World::new().await.with_target("Delete");
    let hand_over = ClaimStep::HandOver {
        target: target_version(&world),
        retain: false,
    };
    let writes = world.there.writes();
    assert_eq!(world.moved.apply(&hand_over).await.unwrap(), Applied::Done);
    assert_eq!(world.there.writes(), writes + 1);
    let twin = world.there.object(TARGET).unwrap();
    assert_eq!(twin["metadata"]["labels"][mark::MOVE], Value::Null);
    assert_eq!(twin["metadata"]["annotations"][mark::HANDED_OVER], "true");
    assert_eq!(twin["metadata"]["annotations"][mark::EPOCH], "1");
    assert_eq!(twin["metadata"]["finalizers"], json!([mark::TWIN_FINALIZER]));
    assert_eq!(policy_of(&world.there, "real-2"), "Delete");
    let seen = world.look().await.target;
    assert!(
        matches!(
            seen,
            Live::Known(TargetTwin::Exists {
                handed_over: true,
                ..
            })
        ),
        "{seen:?}"
    );
}

#[tokio::test]
async fn data_is_retained_before_its_twin_is_handed_over() {
    let world = World::new().await.with_target("Delete");
    let hand_over = ClaimStep::HandOver {
        target: target_version(&world),
        retain: true,
    };
    world
        .there
        .fault(Fault::new("PATCH", VOLUMES, Act::Refuse(409)).times(1));
    assert_eq!(
        world.moved.apply(&hand_over).await.unwrap(),
        Applied::ChangedMeanwhile
    );
    assert_eq!(
        world.there.object(TARGET).unwrap()["metadata"]["annotations"][mark::HANDED_OVER],
        Value::Null
    );
    assert_eq!(world.moved.apply(&hand_over).await.unwrap(), Applied::Done);
    assert_eq!(policy_of(&world.there, "real-2"), "Retain");
}

#[tokio::test]
async fn without_the_right_to_retain_a_twin_is_handed_over_all_the_same() {
    let rights = Rights {
        volume_changes: false,
        ..Rights::ALL
    };
    let world = World::with(rights).await.with_target("Delete");
    let hand_over = ClaimStep::HandOver {
        target: target_version(&world),
        retain: true,
    };
    assert_eq!(world.moved.apply(&hand_over).await.unwrap(), Applied::Done);
    assert_eq!(policy_of(&world.there, "real-2"), "Delete");
    let twin = world.there.object(TARGET).unwrap();
    assert_eq!(twin["metadata"]["finalizers"], json!([]));
    // Otherwise the step would be repeated forever.
    assert!(matches!(
        world.look().await.target,
        Live::Known(TargetTwin::Exists { retained: true, .. })
    ));
}

#[tokio::test]
async fn an_abandoned_target_is_deleted_with_its_finalizer() {
    let world = World::new().await.with_target("Delete");
    world.there.change(TARGET, |twin| {
        twin["metadata"]["finalizers"] = json!([mark::TWIN_FINALIZER]);
    });
    let delete = ClaimStep::DeleteTarget {
        target: target_version(&world),
    };
    world
        .there
        .fault(Fault::new("DELETE", TARGET, Act::Refuse(409)).times(1));
    assert_eq!(
        world.moved.apply(&delete).await.unwrap(),
        Applied::ChangedMeanwhile
    );
    let twin = world.there.object(TARGET).unwrap();
    assert_eq!(twin["metadata"]["deletionTimestamp"], Value::Null);
    // The decision named an older version.
    assert_eq!(
        world.moved.apply(&delete).await.unwrap(),
        Applied::ChangedMeanwhile
    );
    let delete = ClaimStep::DeleteTarget {
        target: target_version(&world),
    };
    assert_eq!(world.moved.apply(&delete).await.unwrap(), Applied::Done);
    assert_eq!(world.there.object(TARGET), None);
}

#[tokio::test]
async fn a_target_that_was_handed_over_meanwhile_stays() {
    let world = World::new().await.with_target("Delete");
    let late = ClaimStep::DeleteTarget {
        target: target_version(&world),
    };
    world.there.before("DELETE", TARGET, |store| {
        let mut twin = store.get(TARGET).unwrap();
        twin["metadata"]["annotations"][mark::HANDED_OVER] = "true".into();
        store.put(TARGET, twin);
    });
    assert_eq!(world.moved.apply(&late).await.unwrap(), Applied::ChangedMeanwhile);
    assert!(world.there.object(TARGET).is_some());
}

#[tokio::test]
async fn a_kept_copy_is_retained_until_it_is_deleted() {
    let world = World::new().await.with_target("Delete");
    let retain = ClaimStep::RetainTarget {
        target: target_version(&world),
    };
    assert_eq!(world.moved.apply(&retain).await.unwrap(), Applied::Done);
    assert!(matches!(
        world.look().await.target,
        Live::Known(TargetTwin::Exists { retained: true, .. })
    ));
    let delete = ClaimStep::DeleteTarget {
        target: target_version(&world),
    };
    assert_eq!(world.moved.apply(&delete).await.unwrap(), Applied::Done);
    assert_eq!(world.there.object(TARGET), None);
    // Otherwise its data would be leaked.
    assert_eq!(policy_of(&world.there, "real-2"), "Delete");
}

#[tokio::test]
async fn a_source_is_released_by_the_policy_of_its_user() {
    let world = World::new().await;
    let release = |world: &World, policy| ClaimStep::ReleaseSource {
        source: source_version(world),
        policy,
    };
    let step = release(&world, ReclaimPolicy::Retain);
    assert_eq!(world.moved.apply(&step).await.unwrap(), Applied::Done);
    assert_eq!(world.api.object(&source_path()), None);
    assert_eq!(policy_of(&world.api, "real-1"), "Retain");

    let world = World::new().await;
    let replaced = json!({mark::POLICY_BEFORE: "Delete"});
    real_volume(&world.api, "real-1", &source_path(), "Retain", &replaced);
    let step = release(&world, ReclaimPolicy::Delete);
    assert_eq!(world.moved.apply(&step).await.unwrap(), Applied::Done);
    assert_eq!(world.api.object(&source_path()), None);
    assert_eq!(policy_of(&world.api, "real-1"), "Delete");
}

/// From a deleted source a clone would never get its data.
#[tokio::test]
async fn a_source_with_a_clone_that_has_no_data_yet_is_not_released() {
    let world = World::new().await;
    let mut clone = world.api.object(&source_path()).unwrap();
    clone["metadata"]["annotations"][mark::CLAIM_NAME] = "copy".into();
    clone["metadata"]["uid"] = "copy".into();
    clone["spec"] = json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": UID}});
    let at = "/api/v1/namespaces/liqo-storage/persistentvolumeclaims/copy";
    world.api.put(at, clone);
    let release = |world: &World| ClaimStep::ReleaseSource {
        source: source_version(world),
        policy: ReclaimPolicy::Delete,
    };
    let site = world.moved.site(Side::Source).unwrap();
    while copy_to_come(site).await.unwrap().is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let released = world.moved.apply(&release(&world)).await;
    let is_kept = |error: &GateError| {
        error
            .to_string()
            .contains("the claim shop/copy, the twin liqo-storage/copy")
    };
    assert!(released.as_ref().is_err_and(is_kept), "{released:?}");
    assert!(world.api.object(&source_path()).is_some());
    world
        .api
        .change(at, |clone| clone["spec"]["volumeName"] = "copied".into());
    while world.moved.apply(&release(&world)).await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(world.api.object(&source_path()), None);
}

/// A late leader finds no source, and must not delete anything else.
#[tokio::test]
async fn a_source_that_is_gone_is_released_once() {
    let world = World::new().await.with_target("Delete");
    let late = ClaimStep::ReleaseSource {
        source: source_version(&world),
        policy: ReclaimPolicy::Delete,
    };
    world.api.remove(&source_path());
    for handed_over in [false, true] {
        if handed_over {
            let hand_over = ClaimStep::HandOver {
                target: target_version(&world),
                retain: false,
            };
            assert_eq!(world.moved.apply(&hand_over).await.unwrap(), Applied::Done);
        }
        assert_eq!(world.moved.apply(&late).await.unwrap(), Applied::ChangedMeanwhile);
        assert!(world.there.object(TARGET).is_some(), "the target is gone");
    }
}
