//! The source is in a remote cluster, where other clients can start pods with its twin.

use serde_json::{Value, json};

use super::world::*;
use crate::{
    cluster::Rights,
    placement::moving::{Outcome, Pass, Stage},
    volume::{mark, moving::GateNumber},
};

/// No move makes more writes than this.
const MOST_WRITES: usize = 100;

fn real(world: &World) -> Value {
    world.there.object(REAL).expect("the data is gone")
}

/// Checks that the remote provisioner deletes the PV when neither the twin nor the claim of the
/// mover exists.
fn assert_not_retained_there(world: &World) {
    let real = real(world);
    assert_eq!(real["spec"]["claimRef"]["name"], "data");
    assert_eq!(real["spec"]["persistentVolumeReclaimPolicy"], "Delete");
    let gate = real["metadata"]["annotations"][mark::GATE]
        .as_str()
        .unwrap_or("{}");
    assert!(!gate.contains("gated"), "{gate}");
    let left: Vec<Value> = world.there.object(TARGET).into_iter().collect();
    assert_eq!(claims_there(&world.there), left, "the claim of the mover is left");
}

fn assert_moved(world: &World) {
    world.check();
    world.assert_whole("v2:home:", ":1");
    assert_eq!(world.there.object(TARGET), None, "the source was not released");
    assert_not_retained_there(world);
    let target = world
        .home_api
        .object(&target_at_home())
        .expect("there is no twin");
    assert_eq!(target["metadata"]["annotations"][mark::HANDED_OVER], "true");
}

fn assert_back(world: &World) {
    world.check();
    world.assert_whole("v1:milan:", "");
    assert_not_retained_there(world);
    let (real, source) = (
        real(world),
        world.there.object(TARGET).expect("the source is gone"),
    );
    assert_eq!(real["spec"]["claimRef"]["uid"], source["metadata"]["uid"]);
    assert_eq!(
        (&source["status"]["phase"], &real["status"]["phase"]),
        (&json!("Bound"), &json!("Bound"))
    );
    let marked = source["metadata"]["annotations"][mark::SOURCE_OF]
        .as_str()
        .unwrap_or_default();
    assert!(!marked.starts_with("moving"), "{marked}");
    assert_eq!(
        world.home_api.object(&target_at_home()),
        None,
        "the unfinished copy is left"
    );
}

#[tokio::test]
async fn no_remote_pod_starts_with_the_source_from_the_last_pass_to_the_commit() {
    let world = World::remote(Rights::ALL, json!([])).await;
    let is_last = |world: &World| matches!(world.stage(), Stage::Finishing(_) | Stage::Verifying(_));
    let is_committed = |world: &World| matches!(world.stage(), Stage::Committed(_));
    for at in [is_last as fn(&World) -> bool, is_committed] {
        world.carry(at).await;
        let (real, twin) = (real(&world), world.there.object(TARGET).unwrap());
        assert_ne!(real["spec"]["claimRef"]["uid"], twin["metadata"]["uid"]);
        assert_eq!(real["spec"]["persistentVolumeReclaimPolicy"], "Retain");
        assert_eq!(twin["status"]["phase"], "Lost");
        let claims = claims_there(&world.there);
        let is_its = |claim: &&Value| claim["metadata"]["uid"] == real["spec"]["claimRef"]["uid"];
        let of_mover = claims.iter().find(is_its).expect("the mover has no claim");
        assert_eq!(of_mover["status"]["phase"], "Bound");
        assert_eq!(
            of_mover["metadata"]["ownerReferences"][0]["uid"],
            twin["metadata"]["uid"]
        );
    }
    world.to_the_end().await;
    assert_eq!(world.stage(), Stage::Ended(Outcome::Done));
    assert_moved(&world);
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
}

/// A pod that waits for the twin in its cluster would start with superseded data.
#[tokio::test]
async fn no_remote_pod_starts_with_the_source_after_the_commit() {
    let world = World::remote(Rights::ALL, json!([])).await;
    let is_gated = |world: &World| {
        let twin = world.there.object(TARGET);
        twin.is_none_or(|twin| twin["status"]["phase"] == "Lost")
    };
    let check = |world: &World| {
        let is_committed = world.stage().is_committed() || matches!(world.stage(), Stage::Ended(_));
        assert!(is_gated(world) || !is_committed, "{:?}", world.stage());
        false
    };
    world.carry(check).await;
    assert_eq!(world.stage(), Stage::Ended(Outcome::Done));
    assert_moved(&world);
}

#[tokio::test]
async fn a_remote_source_is_usable_again_after_a_failed_comparison() {
    let world = World::remote(Rights::ALL, json!([])).await;
    world.movers.lock().differs = true;
    world.to_the_end().await;
    assert_eq!(world.stage(), Stage::Ended(Outcome::Failed));
    assert_back(&world);
}

#[tokio::test]
async fn without_rights_on_volumes_a_move_needs_consent_and_sets_no_remote_gate() {
    let rights = Rights {
        volume_changes: false,
        ..Rights::ALL
    };
    let world = World::remote(rights, json!([])).await;
    world.waits("nobody has accepted the loss").await;
    assert!(matches!(world.stage(), Stage::Copying { .. }));
    world
        .home_api
        .change(THE_MOVE, |of| of["spec"]["acceptLoss"] = json!(["LiveWrites"]));
    world
        .carry(|world| matches!(world.stage(), Stage::Verifying(_)))
        .await;
    assert_eq!(real(&world)["spec"]["claimRef"]["name"], "data");
    world.to_the_end().await;
    assert_moved(&world);
}

/// A controller dies before each of its writes, one write later every time; the next controller continues.
async fn dies_at(deaths: impl Iterator<Item = usize>, meanwhile: impl Fn(&World), check: impl Fn(&World)) {
    for writes in deaths {
        let world = World::remote(Rights::ALL, json!([])).await;
        let died = Box::pin(world.die_after(writes)).await;
        meanwhile(&world);
        Box::pin(world.to_the_end()).await;
        check(&world);
        if !died {
            assert!(writes > 25, "a move of {writes} writes is none");
            return;
        }
    }
    panic!("the move does not end");
}

#[tokio::test]
async fn a_new_leader_completes_a_move_with_a_remote_source() {
    let check = |world: &World| {
        assert_eq!(world.stage(), Stage::Ended(Outcome::Done));
        assert_moved(world);
    };
    dies_at(0..MOST_WRITES, |_| {}, check).await;
}

#[tokio::test]
async fn a_cancelled_move_leaves_no_remote_gate() {
    let cancel = |world: &World| {
        world
            .home_api
            .change(THE_MOVE, |of| of["spec"]["cancel"] = true.into());
    };
    let check = |world: &World| match world.stage() {
        Stage::Ended(Outcome::Done) => assert_moved(world),
        Stage::Ended(Outcome::Cancelled) => assert_back(world),
        other => panic!("{other:?}"),
    };
    dies_at(0..MOST_WRITES, cancel, check).await;
}

/// The twin of the source is deleted by force while it is gated. The PV names it again, so that
/// recovery creates it again.
#[tokio::test]
async fn a_twin_deleted_while_gated_leaves_a_pv_that_is_reserved_for_it() {
    let world = World::remote(Rights::ALL, json!([])).await;
    world
        .carry(|world| matches!(world.stage(), Stage::Verifying(_)))
        .await;
    let uid = world.there.object(TARGET).unwrap()["metadata"]["uid"].clone();
    world.there.remove(TARGET);
    world.waits("the twin may exist again").await;
    assert!(matches!(world.stage(), Stage::Verifying(_)));
    assert_kept_after_cancelling(world, &uid).await;
}

/// The twin of the source is deleted by force after the commit.
#[tokio::test]
async fn the_policy_of_a_source_without_twin_is_restored_when_it_is_released() {
    let world = World::remote(Rights::ALL, json!([])).await;
    world
        .carry(|world| matches!(world.stage(), Stage::Committed(_)))
        .await;
    world.there.remove(TARGET);
    world.to_the_end().await;
    assert_eq!(world.stage(), Stage::Ended(Outcome::Done));
    assert_moved(&world);
    assert!(real(&world)["metadata"]["annotations"][mark::POLICY_BEFORE].is_null());
}

/// A user deletes the twin of the source, which keeps its finalizer.
#[tokio::test]
async fn a_source_that_is_being_deleted_is_released() {
    for stage in [
        (|stage: &Stage| matches!(stage, Stage::Committed(_))) as fn(&Stage) -> bool,
        |stage| matches!(stage, Stage::Retaining(_)),
    ] {
        let world = World::remote(Rights::ALL, json!([])).await;
        world.carry(|world| stage(&world.stage())).await;
        world.there.change(TARGET, |twin| {
            twin["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        });
        world.to_the_end().await;
        assert_eq!(world.stage(), Stage::Ended(Outcome::Done));
        assert_moved(&world);
    }
}

/// Another client creates the twin of the source again while it is gated: the PV waits for the
/// recovery, which makes it name that twin.
#[tokio::test]
async fn a_twin_recreated_while_gated_gets_its_pv_by_recovery() {
    let world = World::remote(Rights::ALL, json!([])).await;
    world
        .carry(|world| matches!(world.stage(), Stage::Verifying(_)))
        .await;
    let twin = world.there.object(TARGET).unwrap();
    world.there.remove(TARGET);
    let (labels, spec) = (&twin["metadata"]["labels"], &twin["spec"]);
    let annotations = &twin["metadata"]["annotations"];
    let again = json!({
        "metadata": {"labels": labels, "annotations": annotations}, "spec": spec, "status": {"phase": "Pending"},
    });
    world.there.put(TARGET, again);
    let uid = &twin["metadata"]["uid"];
    assert_ne!(world.there.object(TARGET).unwrap()["metadata"]["uid"], *uid);
    assert_kept_after_cancelling(world, uid).await;
}

/// The PV names the gated twin, and is retained with its policy recorded, as for the recovery of any twin.
async fn assert_kept_after_cancelling(world: World, uid: &Value) {
    world
        .home_api
        .change(THE_MOVE, |of| of["spec"]["cancel"] = true.into());
    world.to_the_end().await;
    assert_eq!(world.stage(), Stage::Ended(Outcome::Cancelled));
    let real = real(&world);
    assert_eq!(real["spec"]["claimRef"]["name"], "data");
    assert_eq!(real["spec"]["claimRef"]["uid"], *uid);
    assert_eq!(real["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    let annotations = &real["metadata"]["annotations"];
    assert_eq!(annotations[mark::POLICY_BEFORE], "Delete");
    let gate = annotations[mark::GATE].as_str().unwrap();
    assert!(!gate.contains("gated"), "{gate}");
    let left: Vec<Value> = world.there.object(TARGET).into_iter().collect();
    assert_eq!(claims_there(&world.there), left, "the claim of the mover is left");
}
