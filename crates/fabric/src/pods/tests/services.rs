//! Services whose pods run in a cluster without routes, and pods with names and addresses of Services.

use std::cell::Cell;

use super::{
    super::services::{Watches, follow},
    *,
};
use crate::offload::Unreached;

fn service(world: &World, name: &str, selector: &Value) {
    let spec = json!({"selector": selector, "ports": [{"port": 80}]});
    world.home.put(
        &format!("/api/v1/namespaces/shop/services/{name}"),
        json!({ "spec": spec }),
    );
}

/// The Services with such an event, and its count.
fn reported_as(world: &World, reason: &str) -> Vec<(String, u64)> {
    let events = world.home.store().below(EVENTS);
    let about = events.iter().filter(|it| it["reason"] == reason);
    let name = |it: &Value| it["regarding"]["name"].as_str().unwrap_or_default().to_owned();
    about
        .map(|it| (name(it), it["series"]["count"].as_u64().unwrap_or(1)))
        .collect()
}

fn reported(world: &World) -> Vec<(String, u64)> {
    reported_as(world, "PodsNotReachable")
}

fn slice(world: &World, service: &str, is_ready: bool) {
    world.home.put(
        &format!("/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/{service}-1"),
        json!({
            "metadata": {"labels": {"kubernetes.io/service-name": service}}, "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.0.0.9"], "conditions": {"ready": is_ready}}],
        }),
    );
}

#[tokio::test]
async fn a_service_with_endpoints_only_at_home_gets_one_event() {
    const REASON: &str = "EndpointsNotReachable";
    let world = World::with_pod(true).await;
    for (name, selector, is_ready) in [
        ("by-hand", Value::Null, true),
        ("db", json!({"app": "db"}), true),
        ("down", json!({"app": "down"}), false),
        ("web", json!({"app": "web"}), true),
    ] {
        service(&world, name, &selector);
        slice(&world, name, is_ready);
    }
    let changed = Cell::new(false);
    world
        .run_until(|world| {
            let count = reported_as(world, REASON).len();
            // When the last one has an event, a change of the others was processed.
            if count == 2 && !changed.replace(true) {
                slice(world, "db", false);
                slice(world, "by-hand", true);
                service(world, "later", &json!({"app": "later"}));
                slice(world, "later", true);
            }
            count > 2
        })
        .await;
    let mut reported = reported_as(&world, REASON);
    reported.sort();
    assert_eq!(
        reported,
        ["by-hand", "db", "later"].map(|name| (name.to_owned(), 1))
    );
    for it in world.home.store().below(EVENTS) {
        let (note, name) = (it["note"].to_string(), &it["regarding"]["name"]);
        let is_by_hand = it["reason"] == REASON && name == "by-hand";
        assert_eq!(note.contains("create EndpointSlices"), is_by_hand, "{note}");
    }
}

#[tokio::test]
async fn services_are_read_again_only_when_they_may_lack_endpoints() {
    let world = World::with_pod(true).await;
    world.home.change(POD, |pod| {
        pod["status"]["phase"] = "Running".into();
        // Only of such pods labels are kept.
        pod["metadata"]["finalizers"] = json!(["fabric.storage.liqo.io/remote-pod"]);
    });
    for name in ["db", "web"] {
        service(&world, name, &json!({"app": name}));
        slice(&world, name, true);
    }
    world
        .with_pods(async |pods| {
            let sources = pods.places.sources().borrow().clone();
            let source = &sources["shop"];
            pods.home.complete().await;
            source.services().complete().await;
            source.slices().complete().await;
            let (feed, mut watches, mut known) = (pods.home.feed(), Watches::new(), Unreached::default());
            follow(&mut watches, &sources);
            let mut check = async || {
                let given = || source.services().objects_given() + source.slices().objects_given();
                let before = given();
                pods.newly_unreached(&feed, &mut watches, &mut known);
                pods.report_lacking(&mut watches, &known).await;
                given() - before
            };
            assert!(check().await > 0);
            assert_eq!(check().await, 0, "nothing has changed");
            let (mut pods_changes, mut slices) = (pods.home.version(), source.slices().version());
            world
                .home
                .change(POD, |pod| pod["metadata"]["annotations"] = json!({"a": "b"}));
            pods_changes.changed().await.unwrap();
            assert_eq!(check().await, 0, "another annotation of a pod");
            slice(&world, "db", false);
            slices.changed().await.unwrap();
            assert!(check().await > 0, "other endpoints");
            pods_changes.borrow_and_update();
            world
                .home
                .change(POD, |pod| pod["metadata"]["labels"]["app"] = "db".into());
            pods_changes.changed().await.unwrap();
            assert!(check().await > 0, "another Service selects the pod");
        })
        .await;
}

fn runs(world: &World) -> bool {
    let pod = world.home.object(POD).unwrap_or_default();
    pod["status"]["phase"] == "Running"
}

#[tokio::test]
async fn a_service_with_unreachable_pods_gets_one_event() {
    let world = World::with_pod(true).await;
    service(&world, "web", &json!({"app": "web"}));
    service(&world, "db", &json!({"app": "db"}));
    service(&world, "by-hand", &Value::Null);
    let (changed, added) = (Cell::new(false), Cell::new(false));
    world
        .run_until(|world| {
            if reported(world).is_empty() {
                return false;
            }
            // Later changes emit no event: another status of the pod, and another port.
            if !changed.replace(true) {
                world
                    .there
                    .change(THERE, |it| it["status"]["message"] = json!("busy"));
                world.home.change("/api/v1/namespaces/shop/services/web", |it| {
                    it["spec"]["ports"][0]["port"] = json!(81);
                });
            }
            // When this one has an event, those changes were processed.
            let is_seen = world.home.object(POD).unwrap()["status"]["message"] == "busy";
            if is_seen && !added.replace(true) {
                service(world, "web-later", &json!({"app": "web"}));
            }
            reported(world).len() > 1
        })
        .await;
    assert!(runs(&world));
    let mut reported = reported(&world);
    reported.sort();
    let once = ["web", "web-later"].map(|name| (name.to_owned(), 1));
    assert_eq!(reported, once);
}

#[tokio::test]
async fn a_service_with_reachable_pods_gets_no_event() {
    let world = World::with_pod(true).await;
    world
        .home
        .change("/apis/storage.liqo.io/v1alpha1/remoteclusters/milan", |it| {
            it["spec"]["fabric"] = json!({"network": {"mode": "Routed", "podCIDRs": ["10.0.0.0/8"]}});
        });
    service(&world, "web", &json!({"app": "web"}));
    world.run_until(runs).await;
    // While two Services with unreachable pods get events, one after the other.
    let unreached = World::with_pod(true).await;
    service(&unreached, "web", &json!({"app": "web"}));
    let later = Cell::new(false);
    let both_reported = |unreached: &World| {
        if !reported(unreached).is_empty() && !later.replace(true) {
            service(unreached, "web-later", &json!({"app": "web"}));
        }
        reported(unreached).len() > 1
    };
    tokio::join!(
        world.run_until(|_| reported(&unreached).len() > 1),
        unreached.run_until(both_reported)
    );
    assert_eq!(reported(&world), []);
}

#[tokio::test]
async fn checking_a_service_reads_only_the_pods_of_its_namespace() {
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

#[tokio::test]
async fn addresses_of_services_are_reported() {
    let env = |value: &str| json!({"containers": [{"name": "web", "image": "web", "env": [{"name": "A", "value": value}]}]});
    let volume = |server: &str| json!({"volumes": [{"name": "nas", "nfs": {"server": server, "path": "/"}}]});
    for (fields, wanted) in [
        (
            json!({"hostAliases": [{"ip": "10.96.0.7", "hostnames": ["db"]}, {"ip": "192.0.2.1", "hostnames": ["nas"]}]}),
            Some(
                "spec.hostAliases has the address of these Services in this cluster: db. In the cluster milan",
            ),
        ),
        (
            volume("10.96.0.7"),
            Some("spec.volumes[nas] has the address of these Services in this cluster: db."),
        ),
        (
            env("postgres://10.96.0.7:5432/x"),
            Some("spec.containers[web].env has the address of these Services in this cluster: db."),
        ),
        (
            env("http://[fd00:96::7]:80"),
            Some("in this cluster: fd00:96::7."),
        ),
        (
            json!({"dnsConfig": {"nameservers": ["10.96.0.10"]}, "dnsPolicy": "ClusterFirst"}),
            Some("spec.dnsConfig has the address of these Services in this cluster: 10.96.0.10."),
        ),
        (volume("192.0.2.1"), None),
        (env("0.0.0.0:80 127.0.0.1 1.2.3 10.97.0.7"), None),
    ] {
        let world = world_with_services().await;
        world.home.change(POD, |pod| {
            for (field, value) in fields.as_object().unwrap() {
                pod["spec"][field] = value.clone();
            }
        });
        world.run_until(World::is_running).await;
        let events = world.home.store().below(EVENTS);
        let notes = events.iter().filter(|it| it["reason"] == "HomeNamespaceName");
        let notes: Vec<_> = notes.filter_map(|it| it["note"].as_str()).collect();
        assert_eq!(notes.len(), usize::from(wanted.is_some()), "{fields}: {notes:?}");
        assert!(
            notes.iter().all(|note| note.contains(wanted.unwrap())),
            "{fields}: {notes:?}"
        );
    }
}

async fn world_with_services() -> World {
    let world = World::with_pod(true).await;
    for (name, address) in [("db", "10.96.0.7"), ("other", "10.96.0.8")] {
        let service = json!({"spec": {"clusterIP": address, "clusterIPs": [address]}});
        world
            .home
            .put(&format!("/api/v1/namespaces/shop/services/{name}"), service);
    }
    for (name, range) in [("kubernetes", "10.96.0.0/16"), ("more", "fd00:96::/112")] {
        let path = format!("/apis/networking.k8s.io/v1/servicecidrs/{name}");
        world.home.put(&path, json!({"spec": {"cidrs": [range]}}));
    }
    world
}

#[tokio::test]
async fn short_names_of_services_of_other_namespaces_are_reported() {
    let world = World::with_pod(true).await;
    world.home.put("/api/v1/namespaces/data", json!({}));
    let env =
        json!([{"name": "A", "value": "db.data:5432"}, {"name": "B", "value": "http://www.example.com"}]);
    world
        .home
        .change(POD, |pod| pod["spec"]["containers"][0]["env"] = env);
    world.run_until(World::is_running).await;
    let events = world.home.store().below(EVENTS);
    let of_pod: Vec<_> = events
        .iter()
        .filter(|it| it["reason"] == "HomeNamespaceName")
        .collect();
    assert_eq!(of_pod.len(), 1, "{events:?}");
    assert!(
        of_pod[0]["note"]
            .as_str()
            .unwrap()
            .contains("(data): in the cluster milan"),
        "{events:?}"
    );
}

#[tokio::test]
async fn addresses_in_many_pods_cost_one_list_of_services() {
    let world = World::with_pod(true).await;
    world.home.put(
        "/api/v1/namespaces/other/services/db",
        json!({"spec": {"clusterIPs": ["10.96.0.7"]}}),
    );
    let report = async |pods: Pods<'_>| {
        for name in ["a", "b"] {
            let pod = json!({
                "metadata": {"name": name, "namespace": "other", "uid": name},
                "spec": {"hostAliases": [{"ip": "10.96.0.7"}, {"ip": "192.0.2.1"}]},
            });
            let home: RawPod = serde_json::from_value(pod).unwrap();
            pods.report_addresses(&home, &home.json()).await;
        }
    };
    world.with_pods(report).await;
    let requests = world.home.requests();
    let lists = requests.iter().filter(|it| it.ends_with("/other/services"));
    assert_eq!(lists.count(), 1, "{requests:?}");
    let events = "/apis/events.k8s.io/v1/namespaces/other/events/";
    assert_eq!(world.home.store().below(events).len(), 2);
}
