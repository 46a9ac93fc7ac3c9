use serde_json::json;

use super::world::*;
use crate::{
    cluster::Rights, moves::leftovers::Leftovers, placement::moving::Stage, rounds::Rounds, volume::mark,
};

/// A user removes the finalizer of a move, and deletes it.
async fn forced(world: World, at: impl Fn(&Stage) -> bool) -> World {
    world.carry(|world| at(&world.stage())).await;
    world.home_api.remove(THE_MOVE);
    let seen = world.home.views().moves.clone();
    while !seen.all().is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    world
}

pub(super) async fn clean(world: &World, is_clean: impl Fn(&World) -> bool) {
    let context = world.context();
    let mut leftovers = Leftovers::new(&context);
    let cleaning = async {
        while !is_clean(world) {
            leftovers.round().await.unwrap();
            world.check();
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let cleaned = tokio::time::timeout(std::time::Duration::from_secs(10), cleaning).await;
    assert!(
        cleaned.is_ok(),
        "{:#?}\n{:#?}",
        world.home_api.object(CLAIM),
        world.home_api.object(&volume_path())
    );
}

fn is_unlocked(world: &World) -> bool {
    let claim = world.home_api.object(CLAIM).unwrap();
    claim["metadata"]["annotations"][mark::MOVE].is_null()
}

#[tokio::test]
async fn a_move_that_was_deleted_by_force_is_undone() {
    for stage in [
        (|stage: &Stage| *stage == Stage::Preparing) as fn(&Stage) -> bool,
        |stage| matches!(stage, Stage::Copying { .. }),
        |stage| matches!(stage, Stage::Gating(_)),
        |stage| matches!(stage, Stage::Draining(_)),
        |stage| matches!(stage, Stage::Verifying(_)),
    ] {
        let world = forced(World::evicting().await, stage).await;
        // A new move has not locked anything yet.
        clean(&world, |world| {
            is_unlocked(world) && world.there.object(TARGET).is_none()
        })
        .await;
        world.assert_back();
    }
}

#[tokio::test]
async fn leftovers_of_an_existing_move_are_not_cleaned_up() {
    let world = World::evicting().await;
    world
        .carry(|world| matches!(world.stage(), Stage::Draining(_)))
        .await;
    let before = world.home_api.store().version();
    let context = world.context();
    Leftovers::new(&context).round().await.unwrap();
    assert_eq!(world.home_api.store().version(), before);
}

/// No move releases the source any more. When its twin is deleted, so is its data.
#[tokio::test]
async fn the_policy_of_a_superseded_remote_source_is_restored() {
    let remote = World::remote(Rights::ALL, json!([])).await;
    let world = forced(remote, |stage| matches!(stage, Stage::Retaining(_))).await;
    let real = |world: &World| world.there.object(REAL).expect("the data is gone");
    assert_eq!(real(&world)["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    clean(&world, |world| {
        real(world)["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
    })
    .await;
    let annotations = &real(&world)["metadata"]["annotations"];
    assert!(!annotations[mark::GATE].as_str().unwrap().contains("gated"));
    assert_eq!(real(&world)["status"]["phase"], "Bound");
    // A pod that waits for this twin in its cluster would start with superseded data.
    let twin = world.there.object(TARGET).expect("the twin is gone");
    assert_eq!(twin["status"]["phase"], "Lost");
}

/// The note of the event about what is left, as soon as there is one.
async fn reported(world: &World) -> String {
    world.home_api.remove(THE_MOVE);
    let context = world.context();
    let mut leftovers = Leftovers::new(&context);
    let reported = async {
        loop {
            leftovers.round().await.unwrap();
            if let Some(event) = world.event("MoveLeftovers") {
                assert_eq!(event["regarding"]["name"], "data");
                return event["note"].as_str().unwrap().to_owned();
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let reported = tokio::time::timeout(std::time::Duration::from_secs(10), reported).await;
    reported.expect("nothing is reported")
}

#[tokio::test]
async fn a_volume_that_was_being_replaced_is_reported_and_its_claim_can_be_deleted() {
    let world = World::evicting().await;
    world
        .carry(|world| world.home_api.object(&volume_path()).is_none())
        .await;
    let note = reported(&world).await;
    assert!(
        note.contains(&format!("volumeHandle v2:milan:{}", name())),
        "{note}"
    );
    assert!(!is_unlocked(&world));
    world.home_api.change(CLAIM, |claim| {
        claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    });
    let is_free = |world: &World| {
        let claim = world.home_api.object(CLAIM);
        claim.is_none_or(|claim| claim["metadata"]["annotations"][mark::MOVE].is_null())
    };
    let context = world.context();
    let mut leftovers = Leftovers::new(&context);
    let freed = async {
        while !is_free(&world) {
            leftovers.round().await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let freed = tokio::time::timeout(std::time::Duration::from_secs(10), freed).await;
    assert!(freed.is_ok(), "{:#?}", world.home_api.object(CLAIM));
    assert!(world.there.object(TARGET).is_some(), "it has the data");
}

#[tokio::test]
async fn a_target_that_was_restored_from_a_backup_is_reported() {
    let world = World::evicting().await;
    world.to_the_end().await;
    world.there.change(TARGET, |twin| {
        twin["metadata"]["labels"][mark::MOVE] = MOVE.into();
        let annotations = twin["metadata"]["annotations"].as_object_mut().unwrap();
        annotations.remove(mark::HANDED_OVER).expect("it was handed over");
    });
    let note = reported(&world).await;
    assert!(note.contains("marked as not handed over"), "{note}");
}

/// A backup of a claim that was being moved, for example, is restored with the lock.
#[tokio::test]
async fn a_locked_claim_without_a_volume_is_unlocked() {
    let world = World::evicting().await;
    let path = "/api/v1/namespaces/shop/persistentvolumeclaims/restored";
    let other = "77777777-7777-4777-8777-777777777777";
    world.home_api.put(
        path,
        json!({
            "metadata": {
                "uid": "9f9f7e1c-1a0e-4a53-9d0c-0d2c7ef1a333", "annotations": {mark::MOVE: other, "team": "blue"},
                "finalizers": ["kubernetes.io/pvc-protection", mark::MOVE],
            },
            "spec": {"storageClassName": "liqo"},
            "status": {"phase": "Pending"},
        }),
    );
    clean(&world, |world| {
        let claim = world.home_api.object(path).unwrap();
        claim["metadata"]["annotations"][mark::MOVE].is_null()
    })
    .await;
    let claim = world.home_api.object(path).unwrap();
    assert_eq!(
        claim["metadata"]["finalizers"],
        json!(["kubernetes.io/pvc-protection"])
    );
    assert_eq!(claim["metadata"]["annotations"]["team"], "blue");
}
