//! Helpers are replaced, waited for and deleted.

use super::*;

fn path(pod: &Value) -> String {
    let text = |key: &str| pod["metadata"][key].as_str().unwrap().to_owned();
    format!("/api/v1/namespaces/{}/pods/{}", text("namespace"), text("name"))
}

fn user(node: &str) -> Value {
    json!({
        "spec": {"nodeName": node, "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
        "status": {"phase": "Running"},
    })
}

/// Removes both sides as in a rollback.
async fn removed(world: &World) {
    for _ in 0..10 {
        let seen = world.look(&ROLLBACK).await;
        let sides = [(Side::Source, seen.source), (Side::Target, seen.target)];
        let left = sides
            .into_iter()
            .find(|(_, seen)| *seen == Live::Known(Helpers::Incomplete));
        let Some((side, _)) = left else { return };
        world.step(ClaimStep::RemoveHelpers(side)).await.unwrap();
    }
    panic!("it does not come to an end");
}

#[tokio::test]
async fn only_objects_owned_by_the_pods_are_left() {
    for way in [Way::Out, Way::Home, Way::Within] {
        let world = World::new(way).await;
        world.prepare().await;
        removed(&world).await;
        let seen = world.look(&ROLLBACK).await;
        assert_eq!(
            (seen.source, seen.target),
            (Live::Known(Helpers::Absent), Live::Known(Helpers::Absent))
        );
        for left in world.all() {
            // The garbage collector of Kubernetes deletes these.
            assert_eq!(left["metadata"]["ownerReferences"][0]["kind"], "Pod", "{left}");
        }
    }
}

#[tokio::test]
async fn an_ended_mover_is_recreated_after_a_pause() {
    let world = World::new(Way::Out).await;
    world.prepare().await;
    let pod = path(&world.target_pod());
    let ended = |at: String| {
        json!({"phase": "Failed", "containerStatuses": [{
            "name": "mover", "state": {"terminated": {"exitCode": 3, "finishedAt": at}},
            "ready": false, "restartCount": 0, "image": "", "imageID": "",
        }]})
    };
    let now = jiff::Timestamp::now();
    world
        .there
        .change(&pod, |pod| pod["status"] = ended(now.to_string()));
    let Live::Unknown(why) = world.look(&PREPARING).await.target else {
        panic!("it is made again at once");
    };
    assert!(why.contains("exit code 3"), "{why}");
    let before = now - std::time::Duration::from_mins(1);
    world
        .there
        .change(&pod, |pod| pod["status"] = ended(before.to_string()));
    assert_eq!(
        world.look(&PREPARING).await.target,
        Live::Known(Helpers::Incomplete)
    );
    world.prepare().await;
    assert_eq!(world.look(&PREPARING).await.target, ready());
    assert_eq!(world.there.object(&pod).unwrap()["status"]["phase"], "Running");
}

#[tokio::test]
async fn the_reason_why_a_pod_cannot_start_is_reported() {
    let world = World::new(Way::Out).await;
    world.prepare().await;
    let pod = path(&world.target_pod());
    world.there.change(&pod, |pod| {
        pod["status"] = json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"},
        ]});
    });
    let seen = world.look(&PREPARING).await.target;
    assert!(
        matches!(&seen, Live::Unknown(why) if why.ends_with("0/3 nodes are available")),
        "{seen:?}"
    );
    // In a rollback, a pod that does not start is deleted nevertheless.
    assert_eq!(
        world.look(&ROLLBACK).await.target,
        Live::Known(Helpers::Incomplete)
    );
}

#[tokio::test]
async fn a_mover_runs_on_the_node_of_the_pod_that_uses_its_volume() {
    let world = World::new(Way::Out).await;
    world.api.put("/api/v1/namespaces/shop/pods/db", user("n1"));
    world.prepare().await;
    let terms = |pod: &Value| {
        let required =
            &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        required["nodeSelectorTerms"][0]["matchFields"][0]["values"].clone()
    };
    assert_eq!(terms(&world.source_pod()), json!(["n1"]));
    let first = world.source_pod()["metadata"]["uid"].clone();
    world.api.put("/api/v1/namespaces/shop/pods/db", user("n2"));
    assert_eq!(
        world.look(&PREPARING).await.source,
        Live::Known(Helpers::Incomplete)
    );
    world.step(ClaimStep::MakeHelpers(Side::Source)).await.unwrap();
    assert!(
        world
            .api
            .store()
            .below(&format!("{OURS}/pods/move-source"))
            .is_empty()
    );
    world.step(ClaimStep::MakeHelpers(Side::Source)).await.unwrap();
    assert_eq!(terms(&world.source_pod()), json!(["n2"]));
    assert_ne!(world.source_pod()["metadata"]["uid"], first);
}

/// On other nodes everything would have to be read again.
#[tokio::test]
async fn after_the_drain_a_mover_prefers_its_last_node() {
    for way in [Way::Out, Way::Home] {
        let mut world = World::new(way).await;
        let api = if way == Way::Out { &world.api } else { &world.there };
        let taint = |key: &str, value: Option<&str>, effect: &str| json!({"key": key, "value": value, "effect": effect});
        api.put(
            "/api/v1/nodes/n1",
            json!({"spec": {"taints": [
                taint("node.kubernetes.io/unschedulable", None, "NoSchedule"),
                taint("dedicated", Some("db"), "NoSchedule"),
                taint("off", None, "NoExecute"),
            ]}}),
        );
        let finishing = Stage::Finishing(GateNumber::FIRST);
        world.moved.mover_node = Some("n1".into());
        world.gate();
        world.prepare_for(&finishing).await;
        let pod = world.source_pod();
        let affinity = &pod["spec"]["affinity"]["nodeAffinity"];
        let preferred = &affinity["preferredDuringSchedulingIgnoredDuringExecution"][0]["preference"];
        assert_eq!(preferred["matchFields"][0]["values"], json!(["n1"]));
        let required = &affinity["requiredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(*required, Value::Null, "it has to come up somewhere");
        assert_eq!(
            pod["spec"]["tolerations"],
            json!([
                {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"},
                {"key": "dedicated", "operator": "Equal", "value": "db", "effect": "NoSchedule"},
            ])
        );
        let target = world.target_pod();
        assert_eq!(target["spec"]["affinity"], Value::Null);
        assert_eq!(target["spec"]["tolerations"], Value::Null);
        // A mover that started on another node stays there.
        assert_eq!(world.look(&finishing).await.source, ready());
        let on = |world: &World| {
            let api = if way == Way::Out { &world.api } else { &world.there };
            let namespace = if way == Way::Out { OURS } else { THERE };
            let at = format!("{namespace}/pods/{}", pod["metadata"]["name"].as_str().unwrap());
            api.change(&at, |pod| pod["spec"]["nodeName"] = "n2".into());
        };
        on(&world);
        let seen = world.look(&finishing).await;
        assert_eq!((seen.source, seen.reads_on.unwrap().node), (ready(), "n2".into()));
    }
}

#[tokio::test]
async fn a_node_that_accepts_no_mover_is_detected_before_the_gate() {
    let world = World::new(Way::Out).await;
    world.prepare().await;
    let copying = Stage::Copying { last: None };
    let node = |taints: Value, ready: &str| {
        world.api.put(
            "/api/v1/nodes/n1",
            json!({"spec": {"taints": taints}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}),
        );
    };
    let cordon = json!([{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]);
    let off = json!([{"key": "off", "effect": "NoExecute"}]);
    for (taints, state, is_fit) in [
        (cordon, "True", true),
        (off, "True", false),
        (json!([]), "Unknown", false),
    ] {
        node(taints, state);
        let on = world.look(&copying).await.reads_on.unwrap();
        assert_eq!((on.node.as_str(), on.unfit.is_none()), ("n1", is_fit), "{on:?}");
    }
    world.api.remove("/api/v1/nodes/n1");
    assert!(world.look(&copying).await.reads_on.unwrap().unfit.is_some());
}

#[tokio::test]
async fn during_the_drain_a_source_mover_counts_as_running_or_gone() {
    let world = World::new(Way::Out).await;
    world.prepare().await;
    let draining = Stage::Draining(GateNumber::FIRST);
    let seen = world.look(&draining).await;
    assert_eq!(
        (seen.source, seen.target),
        (Live::Known(Helpers::Incomplete), ready())
    );
    world.step(ClaimStep::PauseSource).await.unwrap();
    world.step(ClaimStep::PauseSource).await.unwrap();
    let seen = world.look(&draining).await;
    assert_eq!(
        (seen.source, seen.target),
        (Live::Known(Helpers::Absent), ready())
    );
    // The target keeps its certificates, and the new source gets the same ones.
    let target = world.target_pod()["metadata"]["uid"].clone();
    world.prepare().await;
    assert_eq!(world.target_pod()["metadata"]["uid"], target);
}

/// Attaches the PV of the source's mover to a node; the path of the PV.
fn attach(world: &World) -> String {
    let volume = only(&world.api, VOLUMES)["metadata"]["name"].clone();
    world.api.put(
        "/apis/storage.k8s.io/v1/volumeattachments/csi-1",
        json!({"spec": {"attacher": "storage.liqo.io", "nodeName": "n1", "source": {"persistentVolumeName": volume}}}),
    );
    format!("{VOLUMES}/{}", volume.as_str().unwrap())
}

fn held_by_csi_attacher(volume: &mut Value) {
    volume["metadata"]["finalizers"] = json!(["external-attacher/storage-liqo-io"]);
}

#[tokio::test]
async fn a_pv_that_is_attached_waits_unless_csi_attacher_holds_it() {
    let world = World::new(Way::Out).await;
    world.prepare().await;
    let at = attach(&world);
    world.step(ClaimStep::RemoveHelpers(Side::Source)).await.unwrap();
    world.step(ClaimStep::RemoveHelpers(Side::Source)).await.unwrap();
    assert!(world.api.object(&at).is_some());
    assert_eq!(world.look(&ROLLBACK).await.source, Live::Known(Helpers::Leaving));
    world.api.change(&at, held_by_csi_attacher);
    world.step(ClaimStep::RemoveHelpers(Side::Source)).await.unwrap();
    assert!(!world.api.object(&at).unwrap()["metadata"]["deletionTimestamp"].is_null());
    // It is deleted after its detachment: a user who cancels does not wait for that.
    assert_eq!(world.look(&ROLLBACK).await.source, Live::Known(Helpers::Absent));
    let Live::Unknown(why) = world.look(&PREPARING).await.source else {
        panic!("it is not known that pods may use the attachment");
    };
    assert!(why.contains("pods use its attachment"), "{why}");
}

/// The attachment is also that of the user's pod, which comes back if the drain takes too long: a PV in deletion would
/// stay until that pod stops, and the next mover would wait for it.
#[tokio::test]
async fn a_move_that_rolls_back_from_the_drain_uses_its_attached_pv_again() {
    let world = World::new(Way::Out).await;
    world.prepare().await;
    let at = attach(&world);
    world.api.change(&at, held_by_csi_attacher);
    let volume = world.api.object(&at).unwrap()["metadata"]["uid"].clone();
    let draining = Stage::Draining(GateNumber::FIRST);
    while world.look(&draining).await.source == Live::Known(Helpers::Incomplete) {
        world.step(ClaimStep::PauseSource).await.unwrap();
    }
    assert_eq!(world.look(&draining).await.source, Live::Known(Helpers::Absent));
    world.prepare().await;
    assert_eq!(world.look(&PREPARING).await.source, ready());
    assert_eq!(world.api.object(&at).unwrap()["metadata"]["uid"], volume);
    removed(&world).await;
    assert!(!world.api.object(&at).unwrap()["metadata"]["deletionTimestamp"].is_null());
}

#[tokio::test]
async fn a_mover_whose_pv_others_delete_is_replaced() {
    for (way, side) in [(Way::Out, Side::Source), (Way::Home, Side::Target)] {
        let world = World::new(way).await;
        world.prepare().await;
        let at = format!("{VOLUMES}/move-{side}");
        let volumes = world.api.store().below(&at);
        let at = format!("{VOLUMES}/{}", volumes[0]["metadata"]["name"].as_str().unwrap());
        world.api.change(&at, |volume| {
            volume["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            volume["metadata"]["finalizers"] = json!(["kubernetes.io/pv-protection"]);
        });
        let pod = || match side {
            Side::Source => world.source_pod(),
            Side::Target => world.target_pod(),
        };
        let seen = async || {
            let seen = world.look(&PREPARING).await;
            match side {
                Side::Source => seen.source,
                Side::Target => seen.target,
            }
        };
        let first = pod()["metadata"]["uid"].clone();
        let certificates = format!("{OURS}/secrets/move-certificates");
        let issued = world.api.store().below(&certificates);
        assert_eq!(seen().await, Live::Known(Helpers::Incomplete), "{side}");
        world.step(ClaimStep::MakeHelpers(side)).await.unwrap();
        let claims = format!("{OURS}/persistentvolumeclaims/move-{side}");
        assert!(world.api.store().below(&claims).is_empty());
        assert_eq!(seen().await, Live::Known(Helpers::Leaving), "{side}");
        world.api.remove(&at);
        world.prepare().await;
        assert_eq!(seen().await, ready(), "{side}");
        assert_ne!(pod()["metadata"]["uid"], first);
        // With others, the mover of the other side would be replaced, too.
        assert_eq!(world.api.store().below(&certificates), issued);
    }
}

/// csi-attacher finds the PV of an attachment by its name, and kube-controller-manager keeps an attachment while a
/// pod on the node uses the handle: a new PV with that handle would get the real volume of the earlier one.
#[tokio::test]
async fn a_pv_with_the_handle_of_an_earlier_move_is_not_created_before_that_one_is_detached() {
    for way in [Way::Home, Way::Within] {
        let world = World::new(way).await;
        let earlier = format!("{VOLUMES}/move-earlier-target");
        let handle = world.moved.target.id.to_string();
        world.api.put(
            &earlier,
            json!({
                "metadata": {"labels": {mark::MOVE: "earlier", mark::VOLUME: name()}, "deletionTimestamp": "2026-01-01T00:00:00Z",
                    "finalizers": ["external-attacher/storage-liqo-io"]},
                "spec": {"csi": {"driver": "storage.liqo.io", "volumeHandle": handle}},
            }),
        );
        world.prepare().await;
        let Live::Unknown(why) = world.look(&PREPARING).await.target else {
            panic!("its PV is created beside that of the earlier move");
        };
        assert!(why.contains("move-earlier-target"), "{why}");
        world.api.remove(&earlier);
        world.prepare().await;
        assert_eq!(world.look(&PREPARING).await.target, ready());
    }
}

/// The PV was attached after the drain, and is still attached when the next mover is created.
#[tokio::test]
async fn a_pv_that_an_earlier_mover_has_left_waits_for_the_next_one() {
    let world = World::new(Way::Out).await;
    world.prepare().await;
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
    let at = format!("{VOLUMES}/{}", name(&only(&world.api, VOLUMES)));
    world.step(ClaimStep::RemoveHelpers(Side::Source)).await.unwrap();
    world.api.change(&at, |volume| {
        volume["spec"]["claimRef"]["uid"] = "that-of-before".into();
        volume["spec"]["claimRef"]["resourceVersion"] = "1".into();
    });
    let seen = world.look(&PREPARING).await.source;
    assert_eq!(seen, Live::Known(Helpers::Incomplete));
    world.prepare().await;
    assert_eq!(world.look(&PREPARING).await.source, ready());
    let reference = world.api.object(&at).unwrap()["spec"]["claimRef"].clone();
    assert!(
        reference["uid"].is_null() && reference["resourceVersion"].is_null(),
        "{reference}"
    );
    assert_eq!(name(&reference_of(&world)), reference["name"].as_str().unwrap());
}

fn reference_of(world: &World) -> Value {
    only(&world.api, &format!("{OURS}/persistentvolumeclaims/move-source"))
}

#[tokio::test]
async fn old_certificates_are_replaced_for_new_pods() {
    let world = World::new(Way::Out).await;
    world.prepare().await;
    let issued = world
        .api
        .store()
        .below(&format!("{OURS}/secrets/move-certificates"));
    let at = format!(
        "{OURS}/secrets/{}",
        issued[0]["metadata"]["name"].as_str().unwrap()
    );
    let pods = [world.source_pod(), world.target_pod()];
    world.api.change(&at, |secret| {
        let then = jiff::Timestamp::now() - std::time::Duration::from_hours(21);
        secret["metadata"]["creationTimestamp"] = then.strftime("%FT%TZ").to_string().into();
    });
    // While users wait, the movers are not replaced.
    let volume = format!("{VOLUMES}/{}", name());
    let annotate = |annotations: Value| {
        let annotated = |volume: &mut Value| volume["metadata"]["annotations"] = annotations.clone();
        assert!(world.api.change(&volume, annotated));
    };
    let gated = VolumeMark::Gated(GateNote {
        by: MOVE.parse().unwrap(),
        gate: GateNumber::FIRST,
        policy: crate::volume::ReclaimPolicy::Delete,
        claim_uid: UID.into(),
    });
    annotate(json!({mark::GATE: gated.to_annotation().unwrap()}));
    world.prepare().await;
    assert_eq!([world.source_pod(), world.target_pod()], pods);
    assert_eq!(world.api.object(&at).unwrap()["data"], issued[0]["data"]);
    annotate(json!({}));
    assert_eq!(
        world.look(&PREPARING).await.source,
        Live::Known(Helpers::Incomplete)
    );
    world.prepare().await;
    assert_ne!(world.api.object(&at).unwrap()["data"], issued[0]["data"]);
    for (before, after) in pods.iter().zip([world.source_pod(), world.target_pod()]) {
        assert_ne!(before["metadata"]["uid"], after["metadata"]["uid"]);
    }
}

#[tokio::test]
async fn an_unreachable_remote_cluster_does_not_count_as_empty() {
    let mut world = World::new(Way::Out).await;
    world.prepare().await;
    world
        .there
        .fault(Fault::new("GET", "/shop-home/pods", Act::Refuse(500)));
    for stage in [PREPARING, ROLLBACK] {
        assert!(matches!(world.look(&stage).await.target, Live::Unknown(_)));
    }
    let made = world.step(ClaimStep::MakeHelpers(Side::Target)).await;
    assert!(matches!(made, Err(GateError::Unreachable { .. })), "{made:?}");
    assert!(matches!(
        world.step(ClaimStep::RemoveHelpers(Side::Target)).await,
        Err(GateError::Unreachable { .. })
    ));
    // If the cluster is no longer declared, only objects at home are deleted.
    world.moved.target.place = Place::Gone;
    assert_eq!(
        world.look(&ROLLBACK).await.target,
        Live::Known(Helpers::Incomplete)
    );
    removed(&world).await;
    assert!(world.api.store().below(&format!("{OURS}/pods/")).is_empty());
}
