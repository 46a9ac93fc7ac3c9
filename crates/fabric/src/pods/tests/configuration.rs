//! Pods that are created together with what they refer to.

use super::*;

const SETTINGS: &str = "/api/v1/namespaces/shop/configmaps/settings";
const COPY: &str = "/api/v1/namespaces/shop-home/configmaps/settings";

/// With a pod that has an optional variable of a `ConfigMap`, and with copies.
async fn with_settings() -> World {
    let mut world = World::with_pod(true).await;
    world.is_copied = true;
    let variable = json!([{
        "name": "COLOR", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "color", "optional": true}},
    }]);
    world
        .home
        .change(POD, |pod| pod["spec"]["containers"][0]["env"] = variable);
    world.home.put(SETTINGS, json!({"data": {"color": "red"}}));
    let shop = world.home.put("/api/v1/namespaces/shop", json!({}));
    let system = world.home.object(SYSTEM).unwrap();
    world.there.change("/api/v1/namespaces/shop-home", |namespace| {
        namespace["metadata"]["labels"] = json!({
            "fabric.storage.liqo.io/home": "home", "fabric.storage.liqo.io/home-namespace": "shop",
        });
        namespace["metadata"]["annotations"] = json!({
            "fabric.storage.liqo.io/home-uid": system["metadata"]["uid"],
            "fabric.storage.liqo.io/home-namespace-uid": shop["metadata"]["uid"],
        });
    });
    world
}

fn was_requested(world: &World, request: &str) -> bool {
    world.there.requests().iter().any(|it| it == request)
}

const MAKE: &str = "POST /api/v1/namespaces/shop-home/pods";
const COPIES: &str = "POST /api/v1/namespaces/shop-home/configmaps";

#[tokio::test]
async fn a_remote_pod_is_created_after_the_copies_it_needs() {
    let world = with_settings().await;
    let busy = || Fault::new("POST", "/shop-home/configmaps", Act::Refuse(503));
    world.there.fault(busy());
    let is_claimed = |world: &World| !world.home_pod()["metadata"]["finalizers"].is_null();
    world
        .run_until(|world| is_claimed(world) && was_requested(world, COPIES))
        .await;
    world.there.heal();
    world.run_until(World::is_running).await;
    let requests = world.there.requests();
    let made = requests.iter().position(|it| it == MAKE).unwrap();
    let copied = requests.iter().rposition(|it| it == COPIES).unwrap();
    assert!(copied < made, "{requests:#?}");
    assert_eq!(world.there.object(COPY).unwrap()["data"]["color"], "red");
}

#[tokio::test]
async fn objects_that_cannot_be_copied_are_not_waited_for() {
    let world = with_settings().await;
    // A quota there.
    let full = Fault::new(
        "POST",
        "/shop-home/configmaps",
        Act::Forbid("exceeded quota: objects"),
    );
    world.there.fault(full);
    let copied = "/api/v1/namespaces/shop/services/web";
    world.home.put(
        copied,
        json!({"metadata": {"annotations": {"liqo.io/skip-reflection": "true"}}}),
    );
    world.run_until(World::is_running).await;
    assert!(world.there.object(COPY).is_none());
}
