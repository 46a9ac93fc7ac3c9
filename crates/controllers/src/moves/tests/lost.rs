//! The target is lost after the commit, and the user requests the recovery of the source.

use serde_json::json;

use super::{whole::retaining, world::*};
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
    let events = world
        .home_api
        .store()
        .below("/apis/events.k8s.io/v1/namespaces/shop/events/");
    let event = events
        .iter()
        .find(|event| event["reason"] == "MoveRecovers")
        .unwrap();
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
