//! Pods whose claims, Secrets or security fields are missing in the remote cluster.

use super::*;

const VOLUME: &str = "0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";

fn waits(world: &World, reason: &str, words: &str) -> bool {
    let status = world.home_pod()["status"].clone();
    status["reason"] == reason && status["message"].as_str().unwrap_or_default().contains(words)
}

/// Binds a volume that was created for the claim `prime`, with the twin `prime`, to the claim `data`.
fn rebind(world: &World, bound_to: &str) {
    let volume = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    world.home.change(POD, |pod| pod["spec"]["volumes"] = volume);
    world.home.put(
        "/api/v1/namespaces/shop/persistentvolumeclaims/data",
        json!({"metadata": {"uid": "new"}, "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}),
    );
    world.home.put(
        "/api/v1/persistentvolumes/pv",
        json!({"spec": {
            "claimRef": {"namespace": "shop", "name": "data", "uid": bound_to},
            "csi": {
                "driver": "storage.liqo.io",
                "volumeHandle": format!("v1:milan:pvc-{VOLUME}"),
                "volumeAttributes": {
                    "storage.liqo.io/twin-namespace": "shop-home", "storage.liqo.io/twin-name": "prime",
                },
            },
        }}),
    );
}

fn twin(world: &World, volume: &str) {
    world.there.put(
        "/api/v1/namespaces/shop-home/persistentvolumeclaims/prime",
        json!({"metadata": {
            "labels": {
                "app.kubernetes.io/managed-by": "storage.liqo.io", "storage.liqo.io/home-cluster": "home",
                "storage.liqo.io/volume": volume,
            },
            "annotations": {"storage.liqo.io/claim-uid": VOLUME},
        }}),
    );
}

#[tokio::test]
async fn a_volume_that_is_bound_to_another_claim_is_found_by_its_handle() {
    let world = World::with_pod(true).await;
    rebind(&world, "new");
    world
        .run_until(|world| waits(world, "ClaimNotReady", "has no twin shop-home/prime"))
        .await;
    twin(&world, &format!("pvc-{VOLUME}"));
    world.run_until(World::is_running).await;
    let volumes = world.there.object(THERE).unwrap()["spec"]["volumes"].clone();
    assert_eq!(volumes[0]["persistentVolumeClaim"]["claimName"], "prime");
}

/// The source of a move keeps its name and marks until it is released.
#[tokio::test]
async fn a_twin_that_a_move_left_behind_is_not_used() {
    let world = World::with_pod(true).await;
    rebind(&world, "new");
    world.home.change("/api/v1/persistentvolumes/pv", |volume| {
        volume["spec"]["csi"]["volumeHandle"] = json!(format!("v2:turin:pvc-{VOLUME}:1"));
    });
    world.there.put(
        "/api/v1/namespaces/shop-home/persistentvolumeclaims/data",
        json!({"metadata": {
            "labels": {"app.kubernetes.io/managed-by": "storage.liqo.io"},
            "annotations": {"storage.liqo.io/claim-uid": "new"},
        }}),
    );
    world
        .run_until(|world| waits(world, "ClaimNotReady", "is in the cluster turin, not in milan"))
        .await;
}

#[tokio::test]
async fn a_volume_that_names_another_claim_and_a_twin_of_another_volume_are_not_used() {
    let world = World::with_pod(true).await;
    rebind(&world, "somebody");
    twin(&world, &format!("pvc-{VOLUME}"));
    world
        .run_until(|world| waits(world, "ClaimNotReady", "has no claim shop-home/data"))
        .await;
    rebind(&world, "new");
    twin(&world, "pvc-another");
    world
        .run_until(|world| waits(world, "ClaimNotReady", "has no twin shop-home/prime"))
        .await;
}

/// The volume restricts the pod to the cluster that refuses it, so the pod is not given up.
#[tokio::test]
async fn a_refused_pod_with_remote_data_reports_the_command_that_moves_them() {
    const MOVE: &str = "liqo-csi move volume data -n shop";
    let world = World::with_pod(true).await;
    rebind(&world, "new");
    world.home.change(POD, |pod| pod["spec"]["hostPID"] = json!(true));
    let notes = |world: &World| -> Vec<String> {
        let events = world.home.store().below(EVENTS);
        events.iter().map(|it| it["note"].to_string()).collect()
    };
    world.run_until(|world| !notes(world).is_empty()).await;
    assert!(notes(&world)[0].contains(MOVE) && waits(&world, "PodNotSupported", MOVE));
    assert!(waits(&world, "PodNotSupported", "spec.hostPID"));
    world.home.change("/api/v1/persistentvolumes/pv", |volume| {
        volume["spec"]["csi"]["volumeHandle"] = json!(format!("v1:turin:pvc-{VOLUME}"));
    });
    world
        .run_until(|world| !waits(world, "PodNotSupported", MOVE))
        .await;
    assert_eq!((notes(&world).len(), world.there.writes()), (1, 0));
}

#[tokio::test]
async fn a_pod_that_no_node_there_takes_reports_the_command_that_moves_its_data() {
    let world = World::with_pod(true).await;
    world.is_full.store(true, Ordering::Relaxed);
    rebind(&world, "new");
    twin(&world, &format!("pvc-{VOLUME}"));
    let note = |world: &World| {
        let events = world.home.store().below(EVENTS);
        let of_pod = events.iter().find(|it| it["reason"] == "RemoteUnschedulable");
        of_pod.map(|it| it["note"].to_string())
    };
    world.run_until(|world| note(world).is_some()).await;
    let note = note(&world).unwrap();
    assert!(
        note.contains("liqo-csi move volume data -n shop") && note.contains(UNSCHEDULABLE_MESSAGE),
        "{note}"
    );
}

#[tokio::test]
async fn a_pod_does_not_start_without_its_security_fields() {
    let world = World::with_pod(true).await;
    world
        .home
        .change(POD, |pod| pod["spec"]["hostUsers"] = json!(false));
    let drop = || Fault::new("POST", "/pods", Act::Drop("/spec/hostUsers")).times(usize::MAX);
    world.there.fault(drop());
    world
        .run_until(|world| waits(world, "RemoteRefused", "does not keep spec.hostUsers"))
        .await;
    assert!(world.there.object(THERE).is_none());
    assert!(world.ran.lock().unwrap().is_empty());
}

/// The remote pod of this world's home pod, as a cluster stores it that does not know `hostUsers`.
async fn made_without_protection(of: &World) -> Value {
    let world = World::with_pod(true).await;
    for world in [&world, of] {
        world
            .home
            .change(POD, |pod| pod["spec"]["hostUsers"] = json!(false));
    }
    world.run_until(World::is_running).await;
    let mut made = world.there.object(THERE).unwrap();
    let uid = |path| of.home.object(path).unwrap()["metadata"]["uid"].clone();
    made["metadata"]["annotations"]["fabric.storage.liqo.io/home-uid"] = uid(SYSTEM);
    made["metadata"]["annotations"]["fabric.storage.liqo.io/home-pod-uid"] = uid(POD);
    made["spec"]["schedulingGates"] = json!([{"name": "fabric.storage.liqo.io/home-pod-started"}]);
    made["spec"]["hostUsers"] = Value::Null;
    made["status"] = json!({});
    made
}

/// The answer was lost: the next attempt finds the name taken by the pod.
#[tokio::test]
async fn an_existing_remote_pod_without_security_fields_is_replaced() {
    let world = World::with_pod(true).await;
    let made = made_without_protection(&world).await;
    let before = made["metadata"]["uid"].clone();
    let (pods, _) = THERE.rsplit_once('/').unwrap();
    world.there.before("POST", pods, move |store| {
        store.put(THERE, made);
    });
    world.run_until(World::is_running).await;
    let now = world.there.object(THERE).unwrap();
    assert_eq!(now["spec"]["hostUsers"], false);
    assert_ne!(now["metadata"]["uid"], before);
}

/// The process that created it ended before it read the answer.
#[tokio::test]
async fn a_remote_pod_of_an_earlier_process_without_security_fields_is_replaced() {
    let world = World::with_pod(true).await;
    let made = made_without_protection(&world).await;
    let before = made["metadata"]["uid"].clone();
    world.there.put(THERE, made);
    let there = world.there.object(SYSTEM).unwrap()["metadata"]["uid"].clone();
    world.home.change(POD, |pod| {
        pod["metadata"]["finalizers"] = json!(["fabric.storage.liqo.io/remote-pod"]);
        pod["metadata"]["annotations"] = json!({
            "fabric.storage.liqo.io/remote-cluster": "milan",
            "fabric.storage.liqo.io/remote-cluster-uid": there,
            "fabric.storage.liqo.io/remote-namespace": "shop-home",
        });
    });
    world.run_until(World::is_running).await;
    let now = world.there.object(THERE).unwrap();
    assert_eq!(now["spec"]["hostUsers"], false);
    assert_ne!(now["metadata"]["uid"], before);
}

#[tokio::test]
async fn token_secrets_and_missing_csi_drivers_are_reported() {
    let world = World::with_pod(true).await;
    let volume = json!([{"name": "t", "secret": {"secretName": "token"}}]);
    world.home.change(POD, |pod| pod["spec"]["volumes"] = volume);
    world.home.put(
        "/api/v1/namespaces/shop/secrets/token",
        json!({"type": "kubernetes.io/service-account-token"}),
    );
    world
        .run_until(|world| waits(world, "PodNotSupported", "the Secret token"))
        .await;

    let world = World::with_pod(true).await;
    let volume = json!([{"name": "v", "csi": {"driver": "inline.example"}}]);
    world.home.change(POD, |pod| pod["spec"]["volumes"] = volume);
    world
        .run_until(|world| waits(world, "PodNotSupported", "inline.example"))
        .await;
    world
        .there
        .put("/apis/storage.k8s.io/v1/csidrivers/inline.example", json!({}));
    world.run_until(World::is_running).await;
}
