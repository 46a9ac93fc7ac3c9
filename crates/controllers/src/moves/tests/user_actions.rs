use std::time::Duration;

use serde_json::json;

use super::world::*;
use crate::{
    cluster::testing::{Act, Fault},
    placement::moving::{Outcome, RollbackReason, RollbackTo, Stage},
    volume::{SnapshotKey, SnapshotMarks, mark, moving::GateNumber},
};

const GATE: GateNumber = GateNumber::FIRST;

fn delete(world: &World, path: &str) {
    world.home_api.change(path, |object| {
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    });
}

#[tokio::test]
async fn a_claim_that_is_deleted_while_it_is_gated_leaves_both_copies() {
    let world = World::new(json!({
        "claims": ["data"], "target": {"cluster": "milan"}, "quiesce": {"mode": "Evict"},
    }))
    .await;
    world
        .carry(|world| matches!(world.stage(), Stage::Finishing(_)))
        .await;
    delete(&world, CLAIM);
    let kept = |world: &World| world.read().unwrap().status.unwrap().retained_until.is_some();
    world.carry(kept).await;
    assert_eq!(world.home_api.object(CLAIM), None, "its deletion is held up");
    let volume = world.home_api.object(&volume_path()).unwrap();
    assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    assert!(world.home_api.object(&source_path()).is_some());
    let target = world.there.object(TARGET).unwrap();
    let real = format!(
        "/api/v1/persistentvolumes/{}",
        target["spec"]["volumeName"].as_str().unwrap()
    );
    world
        .carry(|world| {
            world.there.object(&real).unwrap()["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
        })
        .await;
    assert!(matches!(
        world.stage(),
        Stage::Rollback {
            to: RollbackTo::Start,
            why: RollbackReason::ClaimDeleted,
            ..
        }
    ));
    let waits_for = |world: &World| world.read().unwrap().status.unwrap().waiting_for;
    world.carry(|world| waits_for(world).is_some()).await;
    let said = waits_for(&world).unwrap();
    let (twin, pv) = (
        format!("liqo-storage/{UID}"),
        format!("PersistentVolume {}", name()),
    );
    for words in [
        pv.as_str(),
        &twin,
        "shop/data in the cluster milan",
        "spec.retainSource",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    // After the retention the deletion continues.
    world.home_api.change(THE_MOVE, |of| {
        of["status"]["retainedUntil"] = "2026-01-01T00:00:00Z".into();
    });
    world.to_the_end().await;
    assert_eq!(world.stage(), Stage::Ended(Outcome::Failed));
    let volume = world.home_api.object(&volume_path()).unwrap();
    assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Delete");
    assert_eq!(world.there.object(TARGET), None);
}

#[tokio::test]
async fn pods_that_do_not_stop_in_time_keep_their_volume() {
    let world = World::evicting().await;
    world.carry(|world| world.stage() == Stage::Gating(GATE)).await;
    // The pod has a node again, and its eviction is refused.
    world.home_api.change(POD, |pod| {
        pod["spec"]["nodeName"] = "n1".into();
        pod["metadata"]["deletionTimestamp"] = serde_json::Value::Null;
    });
    world
        .home_api
        .fault(Fault::new("POST", "/eviction", Act::Refuse(429)));
    world.home_api.change(THE_MOVE, |of| {
        of["status"]["gatedAt"] = "2026-01-01T00:00:00Z".into();
    });
    world
        .carry(|world| matches!(world.stage(), Stage::Copying { last: Some(_) }))
        .await;
    assert!(world.event("MoveRollingBack").is_some());
    world.check();
    let volume = world.home_api.object(&volume_path()).unwrap();
    assert_eq!(volume["spec"]["claimRef"]["uid"], UID);
    // The cut-over does not start again at once.
    world.home_api.heal();
    let status = world.read().unwrap().status.unwrap();
    assert!(status.gated_at.is_none() && status.downtime.is_none());
}

/// A snapshot of the source.
fn snapshot(world: &World, status: &serde_json::Value) {
    let source = world.read().unwrap().plan().unwrap()[0].source.id.to_string();
    world.home_api.put(
        "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/c",
        json!({
            "spec": {
                "driver": "storage.liqo.io", "deletionPolicy": "Delete", "source": {"volumeHandle": source},
                "volumeSnapshotRef": {"namespace": "shop", "name": "backup"},
            },
            "status": status,
        }),
    );
}

#[tokio::test]
async fn a_snapshot_that_is_created_while_data_are_copied_waits_for_consent() {
    let world = World::evicting().await;
    world
        .carry(|world| matches!(world.stage(), Stage::Copying { .. }))
        .await;
    snapshot(&world, &json!({}));
    world.waits("it leaves a snapshot behind").await;
    assert!(matches!(world.stage(), Stage::Copying { last: None }));
    world
        .home_api
        .change(THE_MOVE, |of| of["spec"]["acceptLoss"] = json!(["Snapshots"]));
    world.to_the_end().await;
    world.assert_moved();
}

/// The call for the snapshot had passed the check of the twin before the twin was marked.
#[tokio::test]
async fn a_snapshot_taken_while_the_gate_closes_rolls_the_move_back() {
    let world = World::evicting().await;
    world.carry(|world| world.stage() == Stage::Verifying(GATE)).await;
    snapshot(
        &world,
        &json!({"snapshotHandle": "s1:home:liqo-storage:1", "readyToUse": true}),
    );
    world
        .carry(|world| matches!(world.stage(), Stage::Copying { last: Some(_) }))
        .await;
    let conditions = world.read().unwrap().status.unwrap().conditions;
    assert!(
        conditions
            .iter()
            .all(|one| one.type_ != "Checked" || one.status == "True")
    );
    let volume = world.home_api.object(&volume_path()).unwrap();
    assert_eq!(volume["spec"]["claimRef"]["uid"], UID);
}

/// A content that a user has created for an existing snapshot.
#[tokio::test]
async fn a_snapshot_whose_content_was_created_by_hand_waits_for_consent_too() {
    let key = SnapshotKey::parse("6b5d1b2e-3c37-4f0e-9f0f-0d2c7ef1a333").unwrap();
    for (is_its, readable) in [(true, true), (false, true), (false, false)] {
        let world = World::evicting().await;
        world
            .carry(|world| matches!(world.stage(), Stage::Copying { .. }))
            .await;
        if !readable {
            let forbidden = Fault::new("GET", "/volumesnapshots", Act::Forbid("no such right"));
            world.home_api.fault(forbidden);
        }
        let volume = world.read().unwrap().plan().unwrap()[0].source.id.to_string();
        let marks = SnapshotMarks {
            home: "home".parse().unwrap(),
            key: key.clone(),
            source: if is_its {
                volume
            } else {
                "v1:home:pvc-another".to_owned()
            },
            snapshot: None,
            request_name: String::new(),
        };
        world.home_api.put(
            &format!(
                "/apis/snapshot.storage.k8s.io/v1/namespaces/liqo-storage/volumesnapshots/{}",
                key.twin()
            ),
            json!({"metadata": {"labels": marks.labels(), "annotations": marks.annotations()}, "spec": {"source": {}}}),
        );
        world.home_api.put(
            "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/by-hand",
            json!({"spec": {
                "driver": "storage.liqo.io", "deletionPolicy": "Retain",
                "source": {"snapshotHandle": format!("s1:home::{key}")},
                "volumeSnapshotRef": {"namespace": "shop", "name": "again"},
            }}),
        );
        if is_its || !readable {
            world.waits("it leaves a snapshot behind").await;
            assert!(matches!(world.stage(), Stage::Copying { last: None }));
            world
                .home_api
                .change(THE_MOVE, |of| of["spec"]["acceptLoss"] = json!(["Snapshots"]));
        }
        world.to_the_end().await;
        world.assert_moved();
    }
}

/// A backup tool creates such a content for each of its snapshots.
#[tokio::test]
async fn snapshot_contents_created_by_hand_are_not_read_one_by_one() {
    let world = World::evicting().await;
    for at in 0..30 {
        world.home_api.put(
            &format!("/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/by-hand-{at}"),
            json!({"spec": {
                "driver": "storage.liqo.io", "deletionPolicy": "Retain",
                "source": {"snapshotHandle": format!("s1:home::6b5d1b2e-3c37-4f0e-9f0f-{at:012}")},
                "volumeSnapshotRef": {"namespace": "shop", "name": format!("again-{at}")},
            }}),
        );
    }
    world.to_the_end().await;
    world.assert_moved();
    let requests = world.home_api.requests();
    let of_twins = || requests.iter().filter(|it| it.contains("/volumesnapshots"));
    assert!(
        of_twins().all(|it| it.ends_with("/volumesnapshots")),
        "{requests:?}"
    );
    let lists = requests
        .iter()
        .filter(|it| it.ends_with("/volumesnapshotcontents"));
    assert!((1..=lists.count()).contains(&of_twins().count()), "{requests:?}");
}

/// Such as a quota, a webhook or a policy.
#[tokio::test]
async fn a_write_that_is_refused_is_an_event_of_the_move() {
    let world = World::evicting().await;
    world.carry(|world| world.stage() == Stage::Gating(GATE)).await;
    world.home_api.fault(Fault::new(
        "PATCH",
        &volume_path(),
        Act::Forbid("exceeded quota: team"),
    ));
    world.round().await.unwrap_err();
    let event = world.event("MoveStalled").unwrap();
    assert!(
        event["note"].as_str().unwrap().contains("exceeded quota: team"),
        "{event}"
    );
    let (stalled, why) = world.condition("Stalled").unwrap();
    assert!(stalled == "True" && why.contains("exceeded quota: team"), "{why}");
    world.home_api.heal();
    world.to_the_end().await;
    world.assert_moved();
    assert_eq!(world.condition("Stalled").unwrap().0, "False");
}

/// Such as a server that does not serve a kind, or does not answer.
#[tokio::test]
async fn an_error_that_lasts_is_in_the_status_of_the_move() {
    let world = World::evicting().await;
    world
        .carry(|world| matches!(world.stage(), Stage::Copying { .. }))
        .await;
    let fault = Fault::new("GET", "/statefulsets", Act::Deny(404, "no such path"));
    world.home_api.fault(fault);
    for (failing, said, stalled) in [
        (None, false, false),
        (Some(Duration::from_secs(10)), true, false),
        (Some(Duration::from_mins(3)), true, true),
    ] {
        world.round_after(failing).await.unwrap_err();
        let waiting_for = world.read().unwrap().status.unwrap().waiting_for;
        let is_said = waiting_for.is_some_and(|what| what.contains("no such path"));
        assert_eq!(is_said, said, "{failing:?}");
        let condition = world.condition("Stalled");
        assert_eq!(condition.is_some_and(|(status, _)| status == "True"), stalled);
        assert_eq!(world.event("MoveStalled").is_some(), stalled);
    }
    world.home_api.heal();
    world.to_the_end().await;
    world.assert_moved();
    assert_eq!(world.condition("Stalled").unwrap().0, "False");
}

#[tokio::test]
async fn a_move_can_be_paused_until_the_gate() {
    let world = World::evicting().await;
    world.carry(|world| world.stage() == Stage::Preparing).await;
    world
        .home_api
        .change(THE_MOVE, |of| of["spec"]["paused"] = true.into());
    world.waits("it is not paused").await;
    assert!(matches!(world.stage(), Stage::Preparing));
    world
        .home_api
        .change(THE_MOVE, |of| of["spec"]["paused"] = false.into());
    world
        .carry(|world| matches!(world.stage(), Stage::Draining(_)))
        .await;
    world
        .home_api
        .change(THE_MOVE, |of| of["spec"]["paused"] = true.into());
    world.to_the_end().await;
    world.assert_moved();
}

#[tokio::test]
async fn an_object_with_the_name_of_the_new_twin_is_not_touched() {
    let world = World::evicting().await;
    world.carry(|world| world.stage() == Stage::Preparing).await;
    world.there.put(
        TARGET,
        json!({"metadata": {"labels": {"app": "theirs"}}, "spec": {"volumeName": "v"}}),
    );
    world.to_the_end().await;
    assert_eq!(world.stage(), Stage::Ended(Outcome::Failed));
    let theirs = world.there.object(TARGET).unwrap();
    assert_eq!(theirs["metadata"]["labels"], json!({"app": "theirs"}));
    world.there.remove(TARGET);
    world.assert_back();
}

#[tokio::test]
async fn a_claim_is_moved_by_one_move_at_a_time() {
    const OTHER: &str = "7c5d1b2e-3c37-4f0e-9f0f-0d2c7ef1a333";
    let world = World::evicting().await;
    world
        .carry(|world| {
            world
                .read()
                .unwrap()
                .status
                .is_some_and(|status| status.preflight.is_some())
        })
        .await;
    let other = json!({
        "apiVersion": "storage.liqo.io/v1alpha1", "kind": "VolumeMove",
        "metadata": {"uid": OTHER}, "spec": {"claims": ["data"], "target": {"cluster": "milan"}},
    });
    world.home_api.put(
        "/apis/storage.liqo.io/v1alpha1/namespaces/shop/volumemoves/other",
        other,
    );
    world.home_api.change(CLAIM, |claim| {
        claim["metadata"]["annotations"][mark::MOVE] = OTHER.into();
        claim["metadata"]["finalizers"] = json!([mark::MOVE]);
    });
    world.to_the_end().await;
    assert_eq!(world.stage(), Stage::Ended(Outcome::Failed));
    let claim = world.home_api.object(CLAIM).unwrap();
    assert_eq!(
        claim["metadata"]["annotations"][mark::MOVE],
        OTHER,
        "its lock was taken"
    );
}

/// The class has chosen a node, where the pod may not run.
#[tokio::test]
async fn a_pod_that_could_not_use_its_new_volume_rolls_the_move_back() {
    let node = |name: &str| {
        let labels =
            json!({"topology.storage.liqo.io/node": name, "topology.storage.liqo.io/cluster": "home"});
        json!({"metadata": {"labels": labels}})
    };
    for (selected, outcome) in [("n1", Outcome::Failed), ("n2", Outcome::Done)] {
        let world = World::new(json!({
            "claims": ["data"], "target": {"cluster": "home", "storageClassName": "fast"},
            "quiesce": {"mode": "Evict"}, "retainSource": "0s",
        }))
        .await;
        world.home_api.put("/api/v1/nodes/n2", node("n2"));
        world.home_api.put(
            "/apis/storage.k8s.io/v1/storageclasses/fast",
            json!({"provisioner": "real.test"}),
        );
        while world.home.views().nodes.get("n2").is_none() || world.home.views().classes.get("fast").is_none()
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        world.home_api.change(POD, |pod| {
            pod["spec"]["nodeSelector"] = json!({"topology.storage.liqo.io/node": selected});
        });
        world
            .carry(|world| matches!(world.stage(), Stage::Copying { .. }))
            .await;
        let twin = loop {
            let twin = world.home_api.object(&target_at_home()).unwrap();
            if twin["spec"]["volumeName"].is_string() {
                break twin;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        let real = format!(
            "/api/v1/persistentvolumes/{}",
            twin["spec"]["volumeName"].as_str().unwrap()
        );
        world.home_api.change(&real, |real| {
            let place = json!({"key": "topology.storage.liqo.io/node", "operator": "In", "values": ["n2"]});
            real["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"] =
                json!([{"matchExpressions": [place]}]);
        });
        world.home_api.change(THE_MOVE, |of| {
            of["status"]["stage"] = json!({"name": "Preparing"});
        });
        world.to_the_end().await;
        assert_eq!(world.stage(), Stage::Ended(outcome));
        let (checked, why) = world.condition("Checked").unwrap();
        assert_eq!(checked == "True", outcome == Outcome::Done, "{why}");
        if outcome == Outcome::Failed {
            let words = "the pod web-0 could not run at the target, because it may run on no node of the cluster home";
            assert!(why.contains(words), "{why}");
            assert_eq!(world.home_api.object(&target_at_home()), None);
        }
    }
}

#[tokio::test]
async fn a_pod_that_starts_later_is_not_evicted_if_nothing_creates_it_again() {
    let world = World::evicting().await;
    world
        .carry(|world| matches!(world.stage(), Stage::Copying { .. }))
        .await;
    world
        .home_api
        .change(POD, |pod| pod["metadata"]["ownerReferences"] = json!([]));
    world
        .carry(|world| matches!(world.stage(), Stage::Gating(_)))
        .await;
    world.waits("it evicts the pod").await;
    let pod = world.home_api.object(POD).unwrap();
    assert!(pod["metadata"]["deletionTimestamp"].is_null(), "{pod}");
    let volume = world.home_api.object(&volume_path()).unwrap();
    assert_eq!(volume["spec"]["claimRef"]["uid"], UID);
}

#[tokio::test]
async fn a_step_that_other_clients_undo_is_reported() {
    let world = World::evicting().await;
    let has_plan = |world: &World| {
        world
            .read()
            .unwrap()
            .status
            .is_some_and(|it| it.preflight.is_some())
    };
    world.carry(has_plan).await;
    world.home_api.fault(Fault::new("PATCH", CLAIM, Act::Refuse(409)));
    world.round_after(Some(Duration::from_mins(3))).await.unwrap();
    let (stalled, why) = world.condition("Stalled").unwrap();
    assert!(
        stalled == "True" && why.contains("the step Lock is repeated"),
        "{why}"
    );
    world.home_api.heal();
    world.to_the_end().await;
    world.assert_moved();
}
