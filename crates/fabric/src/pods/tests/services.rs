//! Services whose pods run where no route leads.

use std::cell::Cell;

use super::*;

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/shop/events/";

fn service(world: &World, name: &str, selector: &Value) {
    let spec = json!({"selector": selector, "ports": [{"port": 80}]});
    world.home.put(
        &format!("/api/v1/namespaces/shop/services/{name}"),
        json!({ "spec": spec }),
    );
}

/// The Services that were told, and how often.
fn told(world: &World) -> Vec<(String, u64)> {
    let events = world.home.store().below(EVENTS);
    let about = events.iter().filter(|it| it["reason"] == "PodsNotReachable");
    let name = |it: &Value| it["regarding"]["name"].as_str().unwrap_or_default().to_owned();
    about
        .map(|it| (name(it), it["series"]["count"].as_u64().unwrap_or(1)))
        .collect()
}

fn runs(world: &World) -> bool {
    let pod = world.home.object(POD).unwrap_or_default();
    pod["status"]["phase"] == "Running"
}

#[tokio::test]
async fn a_service_is_told_once_that_it_does_not_lead_to_pods_there() {
    let world = World::with_pod(true).await;
    service(&world, "web", &json!({"app": "web"}));
    service(&world, "db", &json!({"app": "db"}));
    service(&world, "by-hand", &Value::Null);
    let (changed, added) = (Cell::new(false), Cell::new(false));
    world
        .run_until(|world| {
            if told(world).is_empty() {
                return false;
            }
            // What comes later is no news: another status of the pod, and another port.
            if !changed.replace(true) {
                world
                    .there
                    .change(THERE, |it| it["status"]["message"] = json!("busy"));
                world.home.change("/api/v1/namespaces/shop/services/web", |it| {
                    it["spec"]["ports"][0]["port"] = json!(81);
                });
            }
            // When this one is told, those changes have been seen.
            let is_seen = world.home.object(POD).unwrap()["status"]["message"] == "busy";
            if is_seen && !added.replace(true) {
                service(world, "web-later", &json!({"app": "web"}));
            }
            told(world).len() > 1
        })
        .await;
    assert!(runs(&world));
    let mut told = told(&world);
    told.sort();
    let once = ["web", "web-later"].map(|name| (name.to_owned(), 1));
    assert_eq!(told, once);
}

#[tokio::test]
async fn a_service_whose_pods_are_reached_is_told_nothing() {
    let world = World::with_pod(true).await;
    world
        .home
        .change("/apis/storage.liqo.io/v1alpha1/remoteclusters/milan", |it| {
            it["spec"]["fabric"] = json!({"network": {"mode": "Routed", "podCIDRs": ["10.0.0.0/8"]}});
        });
    service(&world, "web", &json!({"app": "web"}));
    world.run_until(runs).await;
    // In the time in which two are told, one after the other, whose pods are not reached.
    let unreached = World::with_pod(true).await;
    service(&unreached, "web", &json!({"app": "web"}));
    let later = Cell::new(false);
    let both_told = |unreached: &World| {
        if !told(unreached).is_empty() && !later.replace(true) {
            service(unreached, "web-later", &json!({"app": "web"}));
        }
        told(unreached).len() > 1
    };
    tokio::join!(
        world.run_until(|_| told(&unreached).len() > 1),
        unreached.run_until(both_told)
    );
    assert_eq!(told(&world), []);
}

#[tokio::test]
async fn a_service_costs_no_more_than_the_pods_of_its_namespace() {
    let world = World::new().await;
    for (namespace, count) in [("shop", 2), ("other", 50)] {
        for at in 0..count {
            world.home.put(
                &format!("/api/v1/namespaces/{namespace}/pods/web-{at}"),
                json!({"spec": {"nodeName": "milan"}, "status": {"phase": "Running"}}),
            );
        }
    }
    world
        .with_pods(async |pods| {
            pods.home.complete().await;
            let before = pods.home.objects_given();
            assert_eq!(pods.running_in("shop").len(), 2);
            assert_eq!(pods.home.objects_given() - before, 2);
        })
        .await;
}
