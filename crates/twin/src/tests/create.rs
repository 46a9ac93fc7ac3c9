//! Creating a volume: where it is created, what is refused, and what is never done twice.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{stand_in::on, *};
use crate::{
    cluster::testing::{Act, Fault},
    placement::{DeleteRefusal, Refusal},
    volume::{RealSource, SpecError, mark},
};

/// Where the volumes of the fake controllers are: their affinity and the home cluster.
fn here(node: &str) -> Segments {
    Segments::of_cluster(&"home".parse().unwrap()).with("kubernetes.io/hostname", node)
}

fn refusal(outcome: Result<ProvisionedVolume, CreateError>) -> Refusal {
    match outcome {
        Err(CreateError::Refused { refusal, .. }) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn a_volume_is_created_on_the_node_of_its_consumer() {
    let world = World::new(Real::Works).await;
    let made = world.create().await.unwrap();
    assert_eq!(made.bytes, 1 << 30);
    assert_eq!(made.topology, [here("n1")]);
    assert_eq!(made.context[TWIN_NAME], UID);

    let twin = world.twin().unwrap();
    assert_eq!(made.context[TWIN_VOLUME], twin["spec"]["volumeName"]);
    let annotations = &twin["metadata"]["annotations"];
    assert_eq!(annotations["team"], "shop");
    assert_eq!(
        annotations["nfs.io/storage-path"],
        Value::Null,
        "it is not among the carried annotations"
    );
    assert_eq!(annotations[mark::CLAIM_UID], UID);
    assert_eq!(annotations[mark::HANDED_OVER], "true");
    assert_eq!(
        annotations["volume.beta.kubernetes.io/storage-class"],
        Value::Null
    );
    assert_eq!(twin["metadata"]["labels"]["app"], "db");
    assert_eq!(twin["spec"]["storageClassName"], "real");
}

#[tokio::test]
async fn access_modes_that_cannot_be_attached_are_refused() {
    let mut world = World::new(Real::Works).await;
    let of = |modes: &[AccessMode]| {
        let block = |mode: &AccessMode| Capability {
            mode: *mode,
            access: Access::Block,
        };
        Capabilities::new(modes.iter().map(block)).unwrap()
    };
    let pair = [AccessMode::ReadWriteOnce, AccessMode::ReadOnlyMany];
    world.request.spec.capabilities = of(&pair);
    let refused = world.create().await;
    assert!(
        matches!(refused, Err(CreateError::Spec(SpecError::NotAttachable))),
        "{refused:?}"
    );
    assert_eq!(world.api.writes(), 0);
    world.request.spec.capabilities = of(&[pair[0], pair[1], AccessMode::ReadWriteMany]);
    world.create().await.unwrap();
}

#[tokio::test]
async fn secrets_in_a_virtual_class_are_refused() {
    let mut world = World::new(Real::Works).await;
    for name in ["node-stage-secret-name", "secret-name"] {
        let secret = format!("csi.storage.k8s.io/{name}");
        let liqo = "/apis/storage.k8s.io/v1/storageclasses/liqo";
        world
            .api
            .change(liqo, |class| class["parameters"] = json!({&secret: "key"}));
        world.home = world.api.cluster().await;
        let refused = world.create().await;
        assert!(
            matches!(&refused, Err(CreateError::Spec(SpecError::Secret(named))) if *named == secret),
            "{refused:?}"
        );
    }
    assert_eq!(world.api.writes(), 0);
}

#[tokio::test]
async fn a_repeated_request_returns_the_same_volume_without_a_write() {
    let world = World::new(Real::Works).await;
    let first = world.create().await.unwrap();
    let writes = world.api.writes();
    assert_eq!(
        writes,
        2,
        "the twin and its hand-over: {:?}",
        world.api.requests()
    );
    assert_eq!(world.create().await.unwrap(), first);
    assert_eq!(world.api.writes(), writes);
}

#[tokio::test]
async fn a_timeout_is_not_final_and_has_a_reason() {
    let mut world = World::new(Real::Idle).await.impatient();
    world.create().await.unwrap_err();
    let uid = world.twin().unwrap()["metadata"]["uid"].clone();
    let event = json!({
        "involvedObject": {"uid": uid}, "type": "Warning", "message": "out of disks",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    });
    world.api.put("/api/v1/namespaces/liqo-storage/events/e", event);
    // A new replica starts with a list of all events.
    world.home = world.api.cluster().await;
    let error = world.create().await.unwrap_err();
    assert!(matches!(error, CreateError::StillWaiting { .. }), "{error}");
    assert!(
        error.to_string().ends_with("is not bound yet: out of disks"),
        "{error}"
    );

    // A later call finds the twin and continues.
    tokio::spawn(controllers(Arc::clone(&world.api), Real::Works));
    world.patient().create().await.unwrap();
}

#[tokio::test]
async fn the_finalizers_of_a_withdrawn_twin_are_reported() {
    let world = World::new(Real::Idle).await.impatient();
    world.create().await.unwrap_err();
    world.api.change(&twin_path(), |twin| {
        let finalizers = twin["metadata"]["finalizers"].as_array_mut().unwrap();
        finalizers.push("example.com/copying".into());
    });
    world.api.remove(CLAIM);
    let error = world.create().await.unwrap_err().to_string();
    assert!(
        error.ends_with("is not gone yet: it has the finalizers example.com/copying"),
        "{error}"
    );
}

#[tokio::test]
async fn a_node_refused_by_the_real_driver_is_refused() {
    let world = World::new(Real::SaysElsewhere).await;
    let error = world.create().await.unwrap_err();
    assert!(matches!(error, CreateError::Elsewhere(_)), "{error}");
    assert_eq!(world.twin(), None);
}

#[tokio::test]
async fn a_node_without_the_real_driver_gets_no_twin() {
    let world = World::new(Real::Works).await;
    let csi_node = "/apis/storage.k8s.io/v1/csinodes/n1";
    let mut changes = world.home.views().csi_nodes.subscribe("n1");
    world.api.put(csi_node, json!({"spec": {"drivers": []}}));
    changes.next(TEST_TIMEOUT).await;
    let error = world.create().await.unwrap_err();
    assert!(
        matches!(&error, CreateError::Elsewhere(why) if why.contains("real.test")),
        "{error}"
    );
    assert_eq!(world.api.writes(), 0);
}

#[tokio::test]
async fn a_foreign_object_in_the_twins_place_is_left_alone() {
    let world = World::new(Real::Works).await;
    world
        .api
        .put(&twin_path(), json!({"metadata": {"labels": {"app": "other"}}}));
    assert!(matches!(refusal(world.create().await), Refusal::Foreign(_)));
    assert!(matches!(
        world.delete().await,
        Err(DeleteError::Refused {
            refusal: DeleteRefusal::Foreign(_),
            ..
        })
    ));
    assert_eq!(world.api.writes(), 0);
}

#[tokio::test]
async fn a_claim_is_known_by_its_uid() {
    let world = World::new(Real::Idle).await.impatient();
    world.create().await.unwrap_err();
    assert!(world.twin().is_some());
    let world = world.patient();
    world
        .api
        .change(CLAIM, |claim| claim["metadata"]["uid"] = "another".into());
    assert_eq!(refusal(world.create().await), Refusal::ClaimGone);
    assert_eq!(world.twin(), None, "the twin of the claim that is gone must go");
}

#[tokio::test]
async fn a_request_for_another_node_than_the_claim_selects_is_refused() {
    let world = World::new(Real::Works).await;
    claim(&world.api, "n2");
    assert!(matches!(
        refusal(world.create().await),
        Refusal::NodeDisagrees { .. }
    ));
    assert_eq!(world.api.writes(), 0);
}

#[tokio::test]
async fn another_node_means_another_twin() {
    let mut world = World::new(Real::Idle).await.impatient();
    world.create().await.unwrap_err();
    claim(&world.api, "n2");
    world.request.requisite = vec![Segments::of_node(world.home.id(), "n2")];
    let world = world.patient();
    tokio::spawn(controllers(Arc::clone(&world.api), Real::Works));
    // The fake controllers may have bound the first twin on n1 already; both ways lead to n2 or fail.
    match world.create().await {
        Ok(made) => assert_eq!(made.topology, [here("n2")]),
        Err(error) => assert!(matches!(error, CreateError::Elsewhere(_)), "{error}"),
    }
}

#[tokio::test]
async fn another_request_under_the_same_name_is_refused() {
    let mut world = World::new(Real::Works).await;
    world.create().await.unwrap();
    world.request.spec.size = SizeRange::new(2 * GIB, 0).unwrap();
    assert!(matches!(refusal(world.create().await), Refusal::Differs(_)));
}

#[tokio::test]
async fn a_vanished_twin_is_never_recreated() {
    let world = World::new(Real::Works).await;
    world.create().await.unwrap();
    world
        .api
        .put(&format!("{VOLUMES}/pvc-{UID}"), json!({"spec": {}}));
    world.api.remove(&twin_path());
    assert_eq!(refusal(world.create().await), Refusal::Vanished);
    assert_eq!(world.twin(), None);
}

#[tokio::test]
async fn retain_is_enforced_on_the_real_volume() {
    let world = World::new(Real::Works).await;
    let mut changes = world.home.views().classes.subscribe("liqo");
    class(
        &world.api,
        "liqo",
        "storage.liqo.io",
        "WaitForFirstConsumer",
        "Retain",
    );
    changes.next(TEST_TIMEOUT).await;
    let made = world.create().await.unwrap();
    let volume = format!("{VOLUMES}/{}", made.context[TWIN_VOLUME]);
    let real = world.api.object(&volume).unwrap();
    assert_eq!(real["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    assert_eq!(real["metadata"]["annotations"][mark::POLICY_BEFORE], "Delete");
}

#[tokio::test]
async fn a_static_volume_is_reserved_for_the_twin() {
    let mut world = World::new(Real::Works).await;
    for node in ["n1", "n2"] {
        let volume = json!({
            "spec": {
                "storageClassName": "static", "capacity": {"storage": "2Gi"}, "nodeAffinity": on(node),
                "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
                "local": {"path": "/mnt/x"},
            },
            "status": {"phase": "Available"},
        });
        world.api.put(&format!("{VOLUMES}/disk-{node}"), volume);
    }
    world.request.spec.parameters.real_class = Some("static".into());
    let made = world.create().await.unwrap();
    assert_eq!(made.context[TWIN_VOLUME], "disk-n1");
    assert_eq!(made.bytes, 2 << 30);
    let path = world.publish("n1").await.unwrap();
    assert!(matches!(path.source, RealSource::Local { .. }));
    assert!(
        world.api.store().below(ATTACHMENTS).is_empty(),
        "nothing to attach"
    );
}

#[tokio::test]
async fn provisioned_static_volumes_are_found_without_a_list() {
    let mut world = World::new(Real::Works).await;
    for name in ["disk-1", "disk-2"] {
        let volume = json!({
            "metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": "local-volume-provisioner-n1"}},
            "spec": {
                "storageClassName": "static", "capacity": {"storage": "2Gi"}, "nodeAffinity": on("n1"),
                "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
                "local": {"path": "/mnt/x"},
            },
            "status": {"phase": "Available"},
        });
        world.api.put(&format!("{VOLUMES}/{name}"), volume);
    }
    world.request.spec.parameters.real_class = Some("static".into());
    world.request.spec.parameters.claim = None;
    world.request.requisite = Vec::new();
    let lists = || {
        let requests = world.api.requests();
        requests
            .iter()
            .filter(|call| *call == &format!("GET {VOLUMES}"))
            .count()
    };
    let before = lists();
    let mut volumes = Vec::new();
    for name in ["first", "second"] {
        world.request.volume = VolumeName::from_request(name);
        volumes.push(world.create().await.unwrap().context[TWIN_VOLUME].clone());
    }
    volumes.sort();
    assert_eq!(volumes, ["disk-1", "disk-2"]);
    assert_eq!(lists(), before, "they are watched");
}

#[tokio::test]
async fn without_a_matching_pv_a_static_class_creates_no_twin() {
    let mut world = World::new(Real::Works).await;
    world.request.spec.parameters.real_class = Some("static".into());
    let error = world.create().await.unwrap_err();
    assert!(matches!(error, CreateError::Elsewhere(_)), "{error}");
    assert_eq!(world.twin(), None);
}

#[tokio::test]
async fn a_request_without_a_claim_gets_a_node_of_our_choice() {
    let mut world = World::new(Real::Works).await;
    world.request.spec.parameters.claim = None;
    world.request.requisite = Vec::new();
    world.request.volume = VolumeName::from_request("Sanity");
    let made = world.create().await.unwrap();
    assert!(made.topology == [here("n1")] || made.topology == [here("n2")]);

    world.request.volume = VolumeName::from_request("Immediate");
    world.request.spec.parameters.real_class = Some("instant".into());
    let made = world.create().await.unwrap();
    assert_eq!(made.topology, [Segments::of_cluster(world.home.id())]);
}

/// A world whose class is Immediate: the claim has no selected node.
async fn immediate(real: Real, places: &[&str]) -> World {
    let mut world = World::new(real).await;
    let node = json!({"metadata": {"labels": {
        CLUSTER_KEY: "home", NODE_KEY: "n3", "kubernetes.io/hostname": "n3",
    }}});
    world.api.put("/api/v1/nodes/n3", node);
    let virtual_node = json!({"metadata": {"labels": {CLUSTER_KEY: "milan"}}});
    world.api.put("/api/v1/nodes/to-milan", virtual_node);
    let drivers = json!([{"name": "real.test", "nodeID": "n3", "topologyKeys": []}]);
    world.api.put(
        "/apis/storage.k8s.io/v1/csinodes/n3",
        json!({"spec": {"drivers": drivers}}),
    );
    class(&world.api, "liqo", "storage.liqo.io", "Immediate", "Delete");
    world.api.change(CLAIM, |claim| {
        let annotations = claim["metadata"]["annotations"].as_object_mut().unwrap();
        annotations.remove("volume.kubernetes.io/selected-node");
    });
    world.home = world.api.cluster().await;
    let place = |node: &&str| Segments::of_node(world.home.id(), node);
    world.request.requisite = places.iter().map(place).collect();
    world
}

#[tokio::test]
async fn an_immediate_class_keeps_to_its_allowed_topologies() {
    // If only the hash decided, some volumes would be elsewhere.
    for n in 0..8 {
        for real in ["real", "instant"] {
            let mut world = immediate(Real::Works, &["n2", "n3"]).await;
            world.request.spec.parameters.real_class = Some(real.into());
            let uid = format!("0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a1{n}1");
            world
                .api
                .change(CLAIM, |claim| claim["metadata"]["uid"] = json!(uid));
            world.request.request_name = format!("pvc-{uid}");
            world.request.volume = VolumeName::from_request(&world.request.request_name);
            let made = world.create().await.unwrap();
            assert!(
                made.topology == [here("n2")] || made.topology == [here("n3")],
                "{made:?}"
            );
            // A preferred node comes first.
            let mut world = immediate(Real::Works, &["n2", "n3"]).await;
            world.request.spec.parameters.real_class = Some(real.into());
            world.request.preferred = vec![Segments::of_node(world.home.id(), "n3")];
            assert_eq!(world.create().await.unwrap().topology, [here("n3")]);
        }
    }
}

#[tokio::test]
async fn a_single_allowed_topology_selects_its_node() {
    for claim_given in [true, false] {
        let mut world = immediate(Real::Works, &["n3"]).await;
        if !claim_given {
            world.request.spec.parameters.claim = None;
            world.request.volume = VolumeName::from_request("Sanity");
        }
        assert_eq!(world.create().await.unwrap().topology, [here("n3")]);
    }
}

#[tokio::test]
async fn several_allowed_topologies_count_without_a_claim_too() {
    let mut world = immediate(Real::Works, &["n2", "n3"]).await;
    world.request.spec.parameters.claim = None;
    world.request.volume = VolumeName::from_request("Sanity");
    world.request.preferred = vec![Segments::of_node(world.home.id(), "n2")];
    assert_eq!(world.create().await.unwrap().topology, [here("n2")]);
}

#[tokio::test]
async fn where_every_node_is_allowed_the_real_class_chooses() {
    let mut world = immediate(Real::Works, &["n1", "n2", "n3"]).await;
    world.request.spec.parameters.real_class = Some("instant".into());
    world.create().await.unwrap();
    let annotations = &world.twin().unwrap()["metadata"]["annotations"];
    assert_eq!(annotations["volume.kubernetes.io/selected-node"], Value::Null);

    // Never a node that represents another cluster.
    let world = immediate(Real::Works, &[]).await;
    world.api.remove("/apis/storage.k8s.io/v1/csidrivers/real.test");
    let made = world.create().await.unwrap();
    assert_ne!(made.topology, [here("to-milan")]);
}

#[tokio::test]
async fn a_twin_outside_the_requested_topology_is_withdrawn() {
    let world = immediate(Real::Idle, &["n2", "n3"]).await.impatient();
    world.create().await.unwrap_err();
    // The real driver may select another node.
    world.api.change(&twin_path(), |twin| {
        twin["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = json!("n1");
    });
    let twin = world.twin().unwrap();
    super::stand_in::reconcile_twin(&world.api, &twin, Real::Works);
    let world = world.patient();
    let error = world.create().await.unwrap_err();
    assert!(matches!(error, CreateError::Elsewhere(_)), "{error}");
    assert_eq!(world.twin(), None);
}

#[tokio::test]
async fn a_request_without_a_topology_in_this_cluster_is_refused() {
    let mut world = immediate(Real::Works, &[]).await;
    let elsewhere = Segments::of_cluster(&"milan".parse().unwrap()).with(NODE_KEY, "n1");
    world.request.requisite = vec![elsewhere];
    let error = world.create().await.unwrap_err();
    assert!(matches!(error, CreateError::Elsewhere(_)), "{error}");
    assert_eq!(world.twin(), None);
}

#[tokio::test]
async fn a_class_that_uses_the_namespace_needs_an_opt_in() {
    let mut world = World::new(Real::Works).await;
    let mut changes = world.home.views().classes.subscribe("real");
    world
        .api
        .change("/apis/storage.k8s.io/v1/storageclasses/real", |class| {
            class["parameters"] = json!({"subDir": "${pvc.metadata.namespace}/${pvc.metadata.name}"});
        });
    changes.next(TEST_TIMEOUT).await;
    let error = world.create().await.unwrap_err();
    assert!(matches!(error, CreateError::Class(_)), "{error}");
    assert_eq!(world.api.writes(), 0);
    world.request.spec.parameters.shared_namespace = true;
    world.create().await.unwrap();
}

#[tokio::test]
async fn a_missing_class_is_explained() {
    let mut world = World::new(Real::Works).await;
    for (class, expected) in [
        (Some("none"), "does not exist"),
        (Some("liqo"), "virtual"),
        (None, "default"),
    ] {
        world.request.spec.parameters.real_class = class.map(str::to_owned);
        let error = world.create().await.unwrap_err();
        assert!(matches!(error, CreateError::Class(_)), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[tokio::test]
async fn a_quota_is_a_final_error() {
    let world = World::new(Real::Works).await;
    world
        .api
        .fault(Fault::new("POST", "persistentvolumeclaims", Act::Refuse(403)));
    assert!(matches!(world.create().await, Err(CreateError::NotAccepted(_))));
}
