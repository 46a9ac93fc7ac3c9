//! Making a volume: where it is made, what is refused, and what is never done twice.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::{stand_in::on, *};
use crate::{
    cluster::testing::{Act, Fault},
    placement::{DeleteRefusal, Refusal},
    volume::{RealSource, mark},
};

/// Where the stand-in's volumes are: the real affinity and our cluster.
fn here(node: &str) -> Segments {
    Segments::of_cluster(&"home".parse().unwrap()).with("kubernetes.io/hostname", node)
}

fn refusal(outcome: Result<Made, CreateError>) -> Refusal {
    match outcome {
        Err(CreateError::Refused { refusal, .. }) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn a_volume_is_made_where_its_consumer_is() {
    let world = World::new(Real::Works).await;
    let made = world.create().await.unwrap();
    assert_eq!(made.bytes, 1 << 30);
    assert_eq!(made.topology, [here("n1")]);
    assert_eq!(made.context[TWIN_NAME], UID);

    let twin = world.twin().unwrap();
    assert_eq!(made.context[TWIN_VOLUME], twin["spec"]["volumeName"]);
    let annotations = &twin["metadata"]["annotations"];
    assert_eq!(annotations["team"], "shop");
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
async fn asking_again_gives_the_same_volume_and_writes_nothing() {
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
async fn time_running_out_is_not_final_and_says_why() {
    let world = World::new(Real::Idle).await.impatient();
    world.create().await.unwrap_err();
    let uid = world.twin().unwrap()["metadata"]["uid"].clone();
    let event = json!({
        "involvedObject": {"uid": uid}, "type": "Warning", "message": "out of disks",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    });
    world.api.put("/api/v1/namespaces/liqo-storage/events/e", event);
    let error = world.create().await.unwrap_err();
    assert!(matches!(error, CreateError::StillWaiting { .. }), "{error}");
    assert!(
        error.to_string().ends_with("is not bound yet: out of disks"),
        "{error}"
    );

    // Whoever comes later finds it and goes on.
    tokio::spawn(controllers(Arc::clone(&world.api), Real::Works));
    let patient = World {
        deadline: Duration::from_secs(10),
        ..world
    };
    patient.create().await.unwrap();
}

#[tokio::test]
async fn elsewhere_is_what_the_real_driver_says() {
    let world = World::new(Real::SaysElsewhere).await;
    let error = world.create().await.unwrap_err();
    assert!(matches!(error, CreateError::Elsewhere(_)), "{error}");
    assert_eq!(world.twin(), None);
}

#[tokio::test]
async fn a_node_without_the_real_driver_gets_no_twin() {
    let world = World::new(Real::Works).await;
    let csi_node = "/apis/storage.k8s.io/v1/csinodes/n1";
    let mut news = world.home.views().csi_nodes.subscribe("n1");
    world.api.put(csi_node, json!({"spec": {"drivers": []}}));
    news.next(Duration::from_secs(10)).await;
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
    world
        .api
        .change(CLAIM, |claim| claim["metadata"]["uid"] = "another".into());
    assert_eq!(refusal(world.create().await), Refusal::ClaimGone);
    assert_eq!(world.twin(), None, "the twin of the claim that is gone must go");
}

#[tokio::test]
async fn an_old_request_is_not_followed() {
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
    world.order.requisite = vec![Segments::of_node(world.home.id(), "n2")];
    world.deadline = Duration::from_secs(10);
    tokio::spawn(controllers(Arc::clone(&world.api), Real::Works));
    // The stand-in may have bound the first twin on n1 meanwhile; both ways lead to n2 or say so.
    match world.create().await {
        Ok(made) => assert_eq!(made.topology, [here("n2")]),
        Err(error) => assert!(matches!(error, CreateError::Elsewhere(_)), "{error}"),
    }
}

#[tokio::test]
async fn another_request_under_the_same_name_is_refused() {
    let mut world = World::new(Real::Works).await;
    world.create().await.unwrap();
    world.order.spec.size = SizeRange::new(2 * GIB, 0).unwrap();
    assert!(matches!(refusal(world.create().await), Refusal::Differs(_)));
}

#[tokio::test]
async fn a_twin_that_vanished_is_never_made_again() {
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
    let mut news = world.home.views().classes.subscribe("liqo");
    class(
        &world.api,
        "liqo",
        "storage.liqo.io",
        "WaitForFirstConsumer",
        "Retain",
    );
    news.next(Duration::from_secs(10)).await;
    let made = world.create().await.unwrap();
    let volume = format!("{VOLUMES}/{}", made.context[TWIN_VOLUME]);
    assert_eq!(
        world.api.object(&volume).unwrap()["spec"]["persistentVolumeReclaimPolicy"],
        "Retain"
    );

    world.delete().await.unwrap();
    assert_eq!(world.twin(), None);
    assert_eq!(world.api.object(&volume).unwrap()["status"]["phase"], "Released");
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
    world.order.spec.parameters.real_class = Some("static".into());
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
async fn without_a_room_no_static_twin() {
    let mut world = World::new(Real::Works).await;
    world.order.spec.parameters.real_class = Some("static".into());
    let error = world.create().await.unwrap_err();
    assert!(matches!(error, CreateError::Elsewhere(_)), "{error}");
    assert_eq!(world.twin(), None);
}

#[tokio::test]
async fn a_request_without_a_claim_gets_a_node_of_our_choice() {
    let mut world = World::new(Real::Works).await;
    world.order.spec.parameters.claim = None;
    world.order.requisite = Vec::new();
    world.order.volume = VolumeName::from_request("Sanity");
    let made = world.create().await.unwrap();
    assert!(made.topology == [here("n1")] || made.topology == [here("n2")]);

    world.order.volume = VolumeName::from_request("Immediate");
    world.order.spec.parameters.real_class = Some("instant".into());
    let made = world.create().await.unwrap();
    assert_eq!(made.topology, [Segments::of_cluster(world.home.id())]);
}

#[tokio::test]
async fn no_class_is_an_error_that_says_so() {
    let mut world = World::new(Real::Works).await;
    for (class, expected) in [
        (Some("none"), "does not exist"),
        (Some("liqo"), "virtual"),
        (None, "default"),
    ] {
        world.order.spec.parameters.real_class = class.map(str::to_owned);
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
