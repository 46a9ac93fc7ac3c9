//! Where Liqo's identity may create only `ShadowPod`s.

use super::*;

const SHADOWS: &str = "/apis/offloading.liqo.io/v1beta1/namespaces/shop-home/shadowpods/";
const PODS: &str = "/api/v1/namespaces/shop-home/pods/";

async fn behind_liqo(way: Way) -> World {
    let world = World::behind(way, Some("turin")).await;
    let refused = Act::Forbid("User \"turin\" cannot create resource \"pods\"");
    world.there.fault(Fault::new("POST", "/shop-home/pods", refused));
    world
}

fn shadow(world: &World) -> Value {
    only(&world.there, SHADOWS)
}

/// Liqo creates the pod of each `ShadowPod` that has none and has not ended.
fn liqo(world: &World) {
    for shadow in world.there.store().below(SHADOWS) {
        let path = format!("{PODS}{}", shadow["metadata"]["name"].as_str().unwrap());
        if world.there.object(&path).is_some() || !shadow["status"]["phase"].is_null() {
            continue;
        }
        let owner = json!({
            "apiVersion": "offloading.liqo.io/v1beta1", "kind": "ShadowPod", "controller": true,
            "name": shadow["metadata"]["name"], "uid": shadow["metadata"]["uid"],
        });
        let mut metadata = json!({"ownerReferences": [owner]});
        for kept in ["labels", "annotations"] {
            metadata[kept] = shadow["metadata"][kept].clone();
        }
        world.there.put(
            &path,
            json!({"metadata": metadata, "spec": shadow["spec"]["pod"]}),
        );
    }
}

/// Kubernetes deletes pods whose `ShadowPod` was deleted.
fn collect(world: &World) {
    if world.there.store().below(SHADOWS).is_empty() {
        for pod in world.there.store().below(PODS) {
            world
                .there
                .remove(&format!("{PODS}{}", pod["metadata"]["name"].as_str().unwrap()));
        }
    }
}

async fn prepared(way: Way) -> World {
    let world = behind_liqo(way).await;
    world.prepare().await;
    for _ in 0..5 {
        liqo(&world);
        world.prepare().await;
    }
    let seen = world.look(&PREPARING).await;
    assert_eq!((seen.source, seen.target), (ready(), ready()));
    world
}

#[tokio::test]
async fn liqo_creates_the_mover_pod_with_our_marks() {
    for way in [Way::Out, Way::Home] {
        let world = prepared(way).await;
        let shadow = shadow(&world);
        assert_eq!(shadow["metadata"]["labels"]["offloading.liqo.io/origin"], "turin");
        let container = &shadow["spec"]["pod"]["containers"][0];
        for amounts in ["requests", "limits"] {
            for resource in ["cpu", "memory"] {
                assert!(
                    container["resources"][amounts][resource].is_string(),
                    "{container}"
                );
            }
        }
        // The pod may be created again, so its Secret is kept.
        let secret = only(&world.there, "/api/v1/namespaces/shop-home/secrets/");
        let owner = &secret["metadata"]["ownerReferences"][0];
        assert_eq!(
            (&owner["kind"], &owner["uid"]),
            (&json!("ShadowPod"), &shadow["metadata"]["uid"])
        );
    }
}

#[tokio::test]
async fn waiting_for_liqo_is_reported() {
    let world = behind_liqo(Way::Out).await;
    world.prepare().await;
    let Live::Unknown(why) = world.look(&PREPARING).await.target else {
        panic!("it is ready without a pod");
    };
    assert!(why.contains("ShadowPod shop-home/move-target"), "{why}");
}

#[tokio::test]
async fn a_deleted_pod_is_recreated_by_liqo() {
    let world = prepared(Way::Out).await;
    let before = shadow(&world);
    let pod = format!("{PODS}{}", before["metadata"]["name"].as_str().unwrap());
    world.there.remove(&pod);
    assert!(matches!(world.look(&PREPARING).await.target, Live::Unknown(_)));
    liqo(&world);
    world.start_pods();
    assert_eq!(world.look(&PREPARING).await.target, ready());
    assert_eq!(shadow(&world)["metadata"]["uid"], before["metadata"]["uid"]);
}

#[tokio::test]
async fn an_ended_mover_is_replaced_after_its_pod_is_deleted() {
    let world = prepared(Way::Out).await;
    let before = shadow(&world);
    let name = before["metadata"]["name"].as_str().unwrap().to_owned();
    let failed = |object: &mut Value| object["status"] = json!({"phase": "Failed"});
    world.there.change(&format!("{SHADOWS}{name}"), failed);
    world.there.change(&format!("{PODS}{name}"), |pod| {
        failed(pod);
        pod["metadata"]["creationTimestamp"] = "2001-02-03T04:05:06Z".into();
    });
    assert_eq!(
        world.look(&PREPARING).await.target,
        Live::Known(Helpers::Incomplete)
    );
    world.step(ClaimStep::MakeHelpers(Side::Target)).await.unwrap();
    assert_eq!(world.there.object(&format!("{SHADOWS}{name}")), None);
    assert_eq!(world.look(&PREPARING).await.target, Live::Known(Helpers::Leaving));
    collect(&world);
    for _ in 0..3 {
        world.prepare().await;
        liqo(&world);
    }
    world.prepare().await;
    assert_eq!(world.look(&PREPARING).await.target, ready());
    assert_ne!(shadow(&world)["metadata"]["uid"], before["metadata"]["uid"]);
}

#[tokio::test]
async fn a_removal_is_complete_when_the_pod_is_deleted() {
    let world = prepared(Way::Out).await;
    world.step(ClaimStep::RemoveHelpers(Side::Target)).await.unwrap();
    assert!(world.there.store().below(SHADOWS).is_empty());
    world.step(ClaimStep::RemoveHelpers(Side::Target)).await.unwrap();
    assert_eq!(world.look(&ROLLBACK).await.target, Live::Known(Helpers::Leaving));
    collect(&world);
    assert_eq!(world.look(&ROLLBACK).await.target, Live::Known(Helpers::Absent));
}

#[tokio::test]
async fn preflight_uses_the_kind_of_liqo_instead_of_pods() {
    let world = behind_liqo(Way::Out).await;
    let found = world.helpers.obstacles(&world.moved, &world.of).await.unwrap();
    assert_eq!(found, Vec::<String>::new());
    let why = "admission webhook \"shadowpod\" denied the request: user is cordoned";
    world
        .there
        .fault(Fault::new("POST", "/shop-home/shadowpods", Act::Forbid(why)));
    let found = world.helpers.obstacles(&world.moved, &world.of).await.unwrap();
    assert!(
        matches!(found.as_slice(), [one] if one.contains("cordoned")),
        "{found:?}"
    );
}
