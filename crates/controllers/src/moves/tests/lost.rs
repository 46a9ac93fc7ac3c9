//! The target is lost after the commit, and the user requests the recovery of the source; or the source is lost
//! before the gate.

use serde_json::{Value, json};

use super::{leftovers::clean, whole::retaining, world::*};
use crate::{
    cluster::testing::{Act, Fault},
    placement::moving::{Outcome, Stage},
    volume::mark,
};

/// A recovery takes fewer writes than this.
const MOST_WRITES: usize = 60;

fn request_recovery(world: &World) {
    world
        .home_api
        .change(THE_MOVE, |of| of["spec"]["recoverSource"] = true.into());
}

#[tokio::test]
async fn a_source_is_recovered_on_request_and_the_loss_is_reported() {
    let world = retaining().await;
    world.there.remove(TARGET);
    world.waits("no recovery was requested").await;
    assert!(matches!(world.stage(), Stage::Retaining(_)));
    request_recovery(&world);
    world.to_the_end().await;
    assert_eq!(world.stage(), Stage::Ended(Outcome::Recovered));
    world.assert_recovered();
    let of = world.home_api.object(THE_MOVE).unwrap();
    let status = &of["status"];
    assert_eq!(status["phase"], "Recovered");
    let lost = status["lossy"][0].as_str().unwrap();
    let committed = status["committedAt"].as_str().unwrap();
    assert!(
        lost.starts_with("data: what was written at the target since the commit")
            && lost.contains(&committed[..19]),
        "{lost}"
    );
    let conditions = status["conditions"].as_array().unwrap();
    let condition = |wanted: &str| conditions.iter().find(|one| one["type"] == wanted).unwrap();
    assert_eq!(condition("Committed")["reason"], "SourceRecovered");
    assert_eq!(condition("Gated")["status"], "False");
    let event = world.event("MoveRecovers").unwrap();
    assert!(event["note"].as_str().unwrap().contains(lost), "{event}");
}

#[tokio::test]
async fn another_replica_continues_a_recovery() {
    for writes in 0..MOST_WRITES {
        let world = retaining().await;
        world.there.remove(TARGET);
        request_recovery(&world);
        let died = Box::pin(world.die_after(writes)).await;
        Box::pin(world.to_the_end()).await;
        assert_eq!(world.stage(), Stage::Ended(Outcome::Recovered));
        world.assert_recovered();
        if !died {
            assert!(writes > 10, "{writes} writes are none");
            return;
        }
    }
    panic!("it does not end");
}

#[tokio::test]
async fn a_cluster_is_lost_only_by_declaration_and_a_twin_that_returns_is_superseded() {
    let world = retaining().await;
    for method in ["GET", "PATCH"] {
        world.there.fault(Fault::new(method, TARGET, Act::Refuse(403)));
    }
    request_recovery(&world);
    world.waits("its pods may use it").await;
    assert!(matches!(world.stage(), Stage::Retaining(_)));
    world.home_api.change("/api/v1/nodes/milan", |node| {
        node["spec"] =
            json!({"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]});
        node["status"]["conditions"][0]["status"] = "Unknown".into();
    });
    world.to_the_end().await;
    assert_eq!(world.stage(), Stage::Ended(Outcome::Recovered));
    world.assert_recovered();

    world.there.heal();
    world
        .carry(|world| {
            let twin = world.there.object(TARGET).expect("it is kept");
            twin["metadata"]["annotations"][mark::SOURCE_OF] == format!("superseded:{MOVE}:2")
        })
        .await;
    let twin = world.there.object(TARGET).expect("it is kept");
    assert_eq!(
        twin["metadata"]["annotations"][mark::SOURCE_OF],
        format!("superseded:{MOVE}:2")
    );
    world.assert_recovered();
}

#[tokio::test]
async fn a_target_that_is_not_lost_keeps_the_volume() {
    let world = retaining().await;
    request_recovery(&world);
    world.waits("the target is there").await;
    assert!(matches!(world.stage(), Stage::Retaining(_)));
    let volume = world.home_api.object(&volume_path()).unwrap();
    assert_eq!(
        volume["spec"]["csi"]["volumeHandle"],
        format!("v2:milan:{}:1", name())
    );
}

/// A move whose passes never converge.
async fn copying() -> World {
    let world = World::evicting().await;
    world.movers.lock().never_converges = true;
    world
        .carry(|world| matches!(world.stage(), Stage::Copying { .. }))
        .await;
    world
}

#[tokio::test]
async fn a_source_that_is_lost_before_the_gate_ends_the_move_and_its_copy_is_kept() {
    let world = copying().await;
    world.home_api.remove(&source_path());
    world.home_api.remove(REAL);
    world.to_the_end().await;
    let of = world.home_api.object(THE_MOVE).unwrap();
    assert_eq!(of["status"]["phase"], "Failed");
    assert_eq!(of["status"]["stage"]["why"]["reason"], "SourceGone");
    let claim = world.home_api.object(CLAIM).unwrap();
    assert_eq!(claim["metadata"]["annotations"][mark::MOVE], Value::Null);
    assert_eq!(claim["status"]["phase"], "Bound");
    let failed = world.event("MoveFailed").unwrap();
    let note = failed["note"].as_str().unwrap();
    assert!(note.contains("is kept until the VolumeMove is deleted"), "{note}");
    world.to_the_end().await;
    assert!(world.there.object(TARGET).is_some(), "the only copy is deleted");

    world.home_api.remove(THE_MOVE);
    let seen = world.home.views().moves.clone();
    while !seen.all().is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    clean(&world, |world| world.there.object(TARGET).is_none()).await;
}

#[tokio::test]
async fn a_source_that_may_be_recreated_is_waited_for() {
    let retained = copying().await;
    retained.home_api.change(REAL, |real| {
        real["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
        real["spec"]["claimRef"]["name"] = UID.into();
    });
    retained.home_api.remove(&source_path());
    retained
        .waits("the driver creates the twin again for the retained PV")
        .await;
    assert!(matches!(retained.stage(), Stage::Copying { .. }));

    let silent = copying().await;
    silent
        .home_api
        .fault(Fault::new("GET", &source_path(), Act::Refuse(403)));
    silent.waits("it is not known whether the source exists").await;
    assert!(matches!(silent.stage(), Stage::Copying { .. }));
}
