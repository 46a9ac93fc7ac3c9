//! What Kosmos does to claims, and what its virtual nodes represent.

use super::*;
use crate::{fleet::KOSMOS, topology::Segments};

impl World {
    async fn of_kosmos() -> Self {
        let mut world = Self::new().await;
        world.declared.fabric = Some(&KOSMOS);
        world
    }

    /// Puts the copy that Kosmos makes of a claim under the name of the twin.
    fn copy(&self, annotations: &Value, more: &Value) {
        let mut copy = json!({
            "metadata": {"uid": "copy", "annotations": annotations},
            "spec": {"storageClassName": "liqo"},
            "status": {"phase": "Pending"},
        });
        copy["spec"].as_object_mut().unwrap().extend(
            more.as_object()
                .unwrap()
                .iter()
                .map(|(key, value)| (key.clone(), value.clone())),
        );
        self.there.put(TWIN, copy);
    }
}

fn by_kosmos() -> Value {
    json!({"kosmos.io/global": "true", "kosmos-io/cluster-owners": "rome,milan"})
}

/// Kosmos overwrites the twin with the claim where their requests differ as text.
#[tokio::test]
async fn the_size_request_of_the_twin_is_written_like_that_of_the_claim() {
    for (text, written) in [
        ("1073741824", "1073741824"),
        ("1024Mi", "1024Mi"),
        // The request is for another size.
        ("2Gi", "1Gi"),
    ] {
        let world = World::of_kosmos().await;
        world.home_api.change(CLAIM, |claim| {
            claim["spec"]["resources"]["requests"]["storage"] = text.into();
        });
        world.create().await.unwrap();
        let twin = world.twin().unwrap();
        assert_eq!(twin["spec"]["resources"]["requests"]["storage"], written);
    }
}

#[tokio::test]
async fn the_copy_of_a_claim_is_replaced_by_its_new_twin() {
    for spec in [json!({}), json!({"volumeName": "pv-at-home"})] {
        let world = World::of_kosmos().await;
        world.copy(&by_kosmos(), &spec);
        world.create().await.unwrap();
        let twin = world.twin().unwrap();
        assert_eq!(twin["metadata"]["labels"][mark::VOLUME], format!("pvc-{UID}"));
        // Kosmos copies later changes of a claim with its mark to the claim at home.
        let log = world.there.requests();
        let written = |verb: &str| {
            log.iter()
                .position(|call| call.starts_with(verb) && call.contains(TWIN))
        };
        assert!(written("PATCH") < written("DELETE"), "{log:#?}");
    }
}

#[tokio::test]
async fn an_interrupted_removal_is_completed() {
    let world = World::of_kosmos().await;
    let marks = json!({"kosmos-io/cluster-owners": "milan", mark::COPY_REMOVED: "true"});
    world.copy(&marks, &json!({}));
    world.create().await.unwrap();
}

#[tokio::test]
async fn a_claim_that_may_have_data_is_not_removed() {
    let others = json!({"kosmos.io/global": "true", "kosmos-io/cluster-owners": "rome"});
    for (annotations, spec, phase) in [
        (others, json!({}), "Pending"),
        (json!({}), json!({}), "Pending"),
        (by_kosmos(), json!({"storageClassName": "real"}), "Pending"),
        (by_kosmos(), json!({"volumeName": "pv"}), "Bound"),
        (by_kosmos(), json!({"volumeName": "left"}), "Pending"),
    ] {
        let world = World::of_kosmos().await;
        world.left_over("left", &json!({}), None);
        world.copy(&annotations, &spec);
        world
            .there
            .change(TWIN, |copy| copy["status"]["phase"] = phase.into());
        let before = world.twin();
        let error = world.create().await.unwrap_err();
        assert!(
            matches!(
                error,
                CreateError::Refused {
                    refusal: Refusal::Foreign(_),
                    ..
                }
            ),
            "{annotations} {spec}: {error}"
        );
        assert_eq!(world.twin(), before);
    }
}

/// One-to-one: pods arrive with `spec.nodeName`, and no scheduler there selects nodes for claims.
#[tokio::test]
async fn volumes_of_a_one_to_one_virtual_node_are_on_that_node() {
    let world = World::of_kosmos().await;
    for node in ["r1", "r2"] {
        let labels = json!({"to": "milan", CLUSTER_KEY: "milan", "kubernetes.io/hostname": node});
        world.home_api.put(
            &format!("/api/v1/nodes/{node}"),
            json!({"metadata": {"labels": labels}}),
        );
        let labels = json!({"kubernetes.io/hostname": node});
        world.there.put(
            &format!("/api/v1/nodes/{node}"),
            json!({"metadata": {"labels": labels}}),
        );
    }
    claim(
        &world.home_api,
        &json!({"volume.kubernetes.io/selected-node": "r2"}),
    );
    // CreateVolume waits for the twin, although the policy is Optimistic.
    world.create_in_vain().await;
    let twin = world.twin().unwrap();
    assert_eq!(
        twin["metadata"]["annotations"]["volume.kubernetes.io/selected-node"],
        "r2"
    );

    world.bind().await;
    let made = world.create().await.unwrap();
    let milan = || Segments::of_cluster(&"milan".parse().unwrap());
    assert_eq!(made.topology, [milan()], "every node reaches it");
    world.there.change("/api/v1/persistentvolumes/pv", |volume| {
        volume["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": ["r2"]}]}]}});
    });
    let made = world.create().await.unwrap();
    assert_eq!(made.topology, [milan().with("kubernetes.io/hostname", "r2")]);
}
