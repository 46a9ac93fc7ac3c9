use serde_json::{Value, json};

use super::world::*;
use crate::{
    movers::Cold,
    placement::moving::{Outcome, Pass, Stage},
    volume::{mark, moving::GateNumber},
};

fn condition(world: &World, wanted: &str) -> Option<String> {
    let of = world.read().unwrap();
    let conditions = of.status.unwrap().conditions;
    let found = conditions.into_iter().find(|one| one.type_ == wanted);
    found.map(|one| one.status)
}

#[tokio::test]
async fn a_volume_in_use_is_moved_after_its_pods_are_evicted() {
    let world = World::evicting().await;
    world.to_the_end().await;
    assert_eq!(world.stage(), Stage::Ended(Outcome::Done));
    world.assert_moved();
    let gate = GateNumber::FIRST;
    assert_eq!(
        world.movers.lock().passes,
        [
            Pass::Warm,
            Pass::Final(gate),
            Pass::Verify(gate),
            Pass::Finish(gate)
        ]
    );
    for (wanted, status) in [
        ("Checked", "True"),
        ("Gated", "False"),
        ("Drained", "True"),
        ("Verified", "True"),
        ("Committed", "True"),
        ("SourceReleased", "True"),
    ] {
        assert_eq!(condition(&world, wanted).as_deref(), Some(status), "{wanted}");
    }
    let of = world.home_api.object(THE_MOVE).unwrap();
    assert_eq!(of["metadata"]["finalizers"], json!([]));
    assert_eq!(of["status"]["phase"], "Done");
    assert!(of["status"]["downtime"]["actual"].is_string(), "{}", of["status"]);
    let volume = world.home_api.object(&volume_path()).unwrap();
    assert_eq!(volume["metadata"]["labels"]["team"], "blue");
    let attributes = &volume["spec"]["csi"]["volumeAttributes"];
    assert_eq!(attributes[crate::twin::TWIN_NAMESPACE], "shop");
    let terms = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
    assert_eq!(terms[0]["matchExpressions"][0]["values"], json!(["milan"]));
}

#[tokio::test]
async fn the_node_of_the_source_mover_is_recorded_for_after_the_drain() {
    let world = World::evicting().await;
    let remembered = |world: &World| world.read().unwrap().status.unwrap().claims[0].mover_node.clone();
    world
        .carry(|world| matches!(world.stage(), Stage::Draining(_)))
        .await;
    assert_eq!(remembered(&world).as_deref(), Some("n1"));
    // The record stays although the mover now runs on another node.
    world.movers.lock().node = Some("n2");
    world
        .carry(|world| matches!(world.stage(), Stage::Verifying(_)))
        .await;
    assert_eq!(remembered(&world).as_deref(), Some("n1"));
    world.to_the_end().await;
    world.assert_moved();
}

#[tokio::test]
async fn steps_are_reported_on_the_claim_and_the_move() {
    let world = World::evicting().await;
    world.to_the_end().await;
    let events = world
        .home_api
        .store()
        .below("/apis/events.k8s.io/v1/namespaces/shop/events/");
    let told = |kind: &str| -> Vec<String> {
        let about = events.iter().filter(|event| event["regarding"]["kind"] == kind);
        about
            .map(|event| event["reason"].as_str().unwrap().to_owned())
            .collect()
    };
    for kind in ["VolumeMove", "PersistentVolumeClaim"] {
        for reason in [
            "MoveGated",
            "MoveDrained",
            "MoveVerified",
            "MoveCommitted",
            "MoveDone",
        ] {
            assert!(told(kind).iter().any(|one| one == reason), "{kind} {reason}");
        }
    }
    let gated = events
        .iter()
        .find(|event| event["reason"] == "MoveGated")
        .unwrap();
    assert!(gated["note"].as_str().unwrap().contains("ClaimLost"), "{gated}");
}

#[tokio::test]
async fn without_eviction_pods_keep_their_volume_until_they_stop() {
    let world =
        World::new(json!({"claims": ["data"], "target": {"nodeName": "milan"}, "retainSource": "0s"})).await;
    world
        .carry(|world| world.stage() == Stage::Copying { last: None })
        .await;
    world.waits("it went on beside its users").await;
    assert_eq!(world.stage(), Stage::Copying { last: None });
    let volume = world.home_api.object(&volume_path()).unwrap();
    assert_eq!(volume["spec"]["claimRef"]["uid"], UID);
    // The user stops the pods.
    world.home_api.change(POD, |pod| {
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    });
    world.to_the_end().await;
    world.assert_moved();
}

#[tokio::test]
async fn a_volume_that_cannot_be_copied_in_use_is_copied_after_the_drain() {
    let world = World::evicting().await;
    world.movers.lock().cold = Some(Cold::Block);
    world.to_the_end().await;
    world.assert_moved();
    let gate = GateNumber::FIRST;
    assert_eq!(
        world.movers.lock().passes,
        [Pass::Final(gate), Pass::Verify(gate), Pass::Finish(gate)]
    );
    let of = world.home_api.object(THE_MOVE).unwrap();
    assert_eq!(
        of["status"]["preflight"],
        json!([]),
        "that is no reason not to move it"
    );
    assert_eq!(of["status"]["claims"][0]["cold"], Cold::Block.to_string());
    let conditions = of["status"]["conditions"].as_array().unwrap();
    let said = |wanted: &str| conditions.iter().find(|one| one["type"] == wanted).unwrap();
    let checked = said("Checked")["message"].as_str().unwrap();
    for words in ["mode Block", "stopped for the whole copy", "(10m)"] {
        assert!(checked.contains(words), "{words}: {checked}");
    }
    assert_eq!(said("Converged")["reason"], "RestLater");
}

#[tokio::test]
async fn a_manual_cut_over_waits_for_the_request() {
    let spec = json!({
        "claims": ["data"], "target": {"cluster": "milan"}, "quiesce": {"mode": "Evict"},
        "cutover": {"mode": "Manual"}, "retainSource": "0s",
    });
    let world = World::new(spec).await;
    let phase = |world: &World| world.read().unwrap().status.and_then(|status| status.phase);
    world
        .carry(|world| phase(world).as_deref() == Some("Ready"))
        .await;
    assert_eq!(condition(&world, "Converged").as_deref(), Some("True"));
    world
        .home_api
        .change(THE_MOVE, |of| of["spec"]["cutover"]["requested"] = true.into());
    world.to_the_end().await;
    world.assert_moved();
}

/// A move whose source is retained for now.
pub(super) async fn retaining() -> World {
    let world = World::new(json!({
        "claims": ["data"], "target": {"cluster": "milan"}, "quiesce": {"mode": "Evict"},
    }))
    .await;
    world
        .carry(|world| matches!(world.stage(), Stage::Retaining(_)))
        .await;
    world
}

#[tokio::test]
async fn the_source_is_retained_for_the_requested_time() {
    let world = retaining().await;
    world.waits("the source is not kept").await;
    let source = world.home_api.object(&source_path()).expect("it is gone");
    let marked = source["metadata"]["annotations"][mark::SOURCE_OF]
        .as_str()
        .unwrap();
    assert!(marked.starts_with("superseded"), "{marked}");
    world
        .home_api
        .change(THE_MOVE, |of| of["spec"]["retainSource"] = "0s".into());
    world.to_the_end().await;
    world.assert_moved();
}

#[tokio::test]
async fn a_source_in_an_undeclared_cluster_is_named_in_the_condition() {
    let world = retaining().await;
    world.home_api.change(THE_MOVE, |of| {
        of["spec"]["retainSource"] = "0s".into();
        let claims = of["status"]["claims"].to_string().replace("v1:home:", "v1:rome:");
        of["status"]["claims"] = serde_json::from_str(&claims).unwrap();
        let source = &mut of["status"]["claims"][0]["source"];
        source["cluster"] = "rome".into();
        source["namespace"] = "shop-there".into();
    });
    world.to_the_end().await;
    let conditions = world.read().unwrap().status.unwrap().conditions;
    let released = conditions
        .iter()
        .find(|one| one.type_ == "SourceReleased")
        .unwrap();
    assert!(
        released.message.contains("shop-there/") && released.message.contains("in the cluster rome"),
        "{}",
        released.message
    );
}

#[tokio::test]
async fn a_failed_comparison_rolls_back() {
    let world = World::evicting().await;
    world.movers.lock().differs = true;
    world.to_the_end().await;
    assert_eq!(world.stage(), Stage::Ended(Outcome::Failed));
    assert_eq!(condition(&world, "Verified").as_deref(), Some("False"));
    world.assert_back();
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let world = World::new(json!({
        "claims": ["data"], "target": {"cluster": "milan"}, "quiesce": {"mode": "Evict"}, "dryRun": true,
    }))
    .await;
    world.to_the_end().await;
    assert_eq!(world.stage(), Stage::Ended(Outcome::Cancelled));
    assert_eq!(condition(&world, "Checked").as_deref(), Some("True"));
    let of = world.home_api.object(THE_MOVE).unwrap();
    assert_eq!(of["status"]["preflight"], json!([]));
    let conditions = of["status"]["conditions"].as_array().unwrap();
    let checked = conditions.iter().find(|one| one["type"] == "Checked").unwrap();
    let message = checked["message"].as_str().unwrap();
    assert!(message.contains("attributes trusted.*"), "{message}");
    let claim = world.home_api.object(CLAIM).unwrap();
    assert_eq!(claim["metadata"]["finalizers"], Value::Null, "it was locked");
    world.assert_back();
}
