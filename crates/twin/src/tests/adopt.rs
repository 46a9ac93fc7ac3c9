//! Adopting an existing PV: which claim gets it, and that it never becomes available to other claims.

use serde_json::{Value, json};

use super::{stand_in::on, *};
use crate::{
    placement::AdoptRefusal,
    volume::{ContentSource, mark},
};

const OLD: &str = "/api/v1/persistentvolumes/old";

const RECORD: &str = r#"{"version":1,"class":"liqo","policy":"Delete","claim":{"namespace":"shop","namespaceUid":"n","name":"data","uid":"u0","spec":{}}}"#;

/// A claim that requests the PV of an earlier claim of its name, which permits that.
async fn adopting(real: Real) -> World {
    let world = World::new(real).await;
    world
        .api
        .put("/api/v1/namespaces/shop", json!({"metadata": {"uid": "n"}}));
    world.api.change(CLAIM, |claim| {
        claim["metadata"]["annotations"][mark::ADOPT] = "old".into();
    });
    world.api.put(
        OLD,
        json!({
            "metadata": {"annotations": {mark::ADOPT_FOR: "shop/data", mark::IMPORT: RECORD}},
            "spec": {
                "storageClassName": "real", "capacity": {"storage": "3Gi"}, "accessModes": ["ReadWriteOnce"],
                "volumeMode": "Filesystem", "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": "shop", "name": "data", "uid": "u0", "resourceVersion": "7"},
                "csi": {"driver": "real.test", "volumeHandle": "h"}, "nodeAffinity": on("n1"),
            },
            "status": {"phase": "Released"},
        }),
    );
    world
}

fn held(world: &World) -> Value {
    world.api.object(OLD).unwrap()["spec"]["claimRef"].clone()
}

fn refusal(outcome: Result<ProvisionedVolume, CreateError>) -> AdoptRefusal {
    match outcome {
        Err(CreateError::Adopt(refusal)) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn an_adopted_volume_is_the_existing_pv() {
    let world = adopting(Real::Works).await;
    let made = world.create().await.unwrap();
    assert_eq!(made.bytes, 3 << 30, "its capacity is the PV's");
    assert_eq!(made.context[TWIN_VOLUME], "old");
    let twin = world.twin().unwrap();
    assert_eq!(twin["spec"]["volumeName"], "old");
    assert_eq!(twin["spec"]["storageClassName"], "real");
    assert_eq!(twin["metadata"]["annotations"][mark::HANDED_OVER], "true");
    assert_eq!(held(&world)["uid"], twin["metadata"]["uid"]);
    let reserved = world.api.requests();
    let position = |what: &str| {
        reserved
            .iter()
            .position(|request| request.contains(what))
            .unwrap()
    };
    assert!(
        position("PATCH /api/v1/persistentvolumes/old") < position("POST /api/v1/namespaces/liqo-storage")
    );
    assert_eq!(world.create().await.unwrap(), made);
}

#[tokio::test]
async fn a_refused_adoption_writes_nothing() {
    type Break = fn(&mut World);
    type Expected = fn(&AdoptRefusal) -> bool;
    let table: [(Break, Expected); 4] = [
        (
            |world| {
                world
                    .api
                    .change(OLD, |old| old["metadata"]["annotations"] = json!({}));
            },
            |it| matches!(it, AdoptRefusal::NotPermitted { .. }),
        ),
        (
            |world| {
                world.api.change(OLD, |old| {
                    old["spec"]["persistentVolumeReclaimPolicy"] = "Delete".into();
                });
            },
            |it| matches!(it, AdoptRefusal::NotRetained(_)),
        ),
        (
            |world| world.request.spec.source = Some(ContentSource::Volume("v1:home:x".into())),
            |it| matches!(it, AdoptRefusal::HasSource(_)),
        ),
        (
            |world| {
                world
                    .api
                    .change(OLD, |old| old["spec"]["claimRef"]["name"] = "other".into());
            },
            |it| matches!(it, AdoptRefusal::Held { .. }),
        ),
    ];
    for (break_it, expected) in table {
        let mut world = adopting(Real::Works).await;
        break_it(&mut world);
        let refusal = refusal(world.create().await);
        assert!(expected(&refusal), "{refusal}");
        assert_eq!(world.api.writes(), 0);
    }
}

#[tokio::test]
async fn a_node_that_cannot_reach_the_volume_is_refused() {
    let world = adopting(Real::Works).await;
    world
        .api
        .change(OLD, |old| old["spec"]["nodeAffinity"] = on("n2"));
    assert!(matches!(world.create().await, Err(CreateError::Elsewhere(_))));
    assert_eq!(world.api.writes(), 0);
}

#[tokio::test]
async fn the_adopted_pv_stays_reserved_for_its_twin() {
    let world = adopting(Real::Idle).await.impatient();
    world.create().await.unwrap_err();
    assert!(world.twin().is_some());
    assert_eq!(held(&world)["name"], UID);
    assert_eq!(held(&world)["uid"], Value::Null);
    world.api.remove(CLAIM);
    let world = world.patient();
    let error = world.create().await.unwrap_err();
    assert!(matches!(error, CreateError::Refused { .. }), "{error}");
    assert_eq!(world.twin(), None);
    // Without a claimRef, any claim could be bound to it.
    assert_eq!(held(&world)["name"], UID);
    let world = world.impatient();
    let _whatever_it_says = world.delete().await;
    assert_eq!(held(&world)["name"], UID);
    assert!(world.api.object(OLD).is_some());
}

#[tokio::test]
async fn an_earlier_deleted_twin_does_not_block_adoption() {
    let world = adopting(Real::Works).await;
    world.api.change(OLD, |old| {
        old["spec"]["claimRef"] = json!({"namespace": "liqo-storage", "name": "earlier", "uid": "t0"});
    });
    world.create().await.unwrap();

    let world = adopting(Real::Idle).await;
    world.api.put(&format!("{TWINS}/earlier"), json!({}));
    world.api.change(OLD, |old| {
        old["spec"]["claimRef"] = json!({"namespace": "liqo-storage", "name": "earlier", "uid": "t0"});
    });
    assert!(matches!(refusal(world.create().await), AdoptRefusal::Held { .. }));
}

#[tokio::test]
async fn data_stays_if_the_claim_is_deleted_during_the_import() {
    let world = adopting(Real::Works).await;
    let made = world.create().await.unwrap();
    world.bind_claim(&made);
    world.api.remove(CLAIM);
    world.delete().await.unwrap();
    assert_eq!(world.twin(), None);
    assert!(world.api.object(OLD).is_some());
}
