//! Events on objects at home that are not copied, or mean something else there, and events of remote objects that are
//! mirrored.

use super::*;

/// The events on Services: their names, reasons and types.
fn reported(world: &World) -> Vec<String> {
    let all = world.home.store().below(EVENTS);
    let text = |it: &Value| it.as_str().unwrap_or_default().to_owned();
    let all = all.iter().filter(|it| it["regarding"]["kind"] == "Service");
    let mut all: Vec<_> = all
        .map(|it| {
            [&it["regarding"]["name"], &it["reason"], &it["type"]]
                .map(text)
                .join(" ")
        })
        .collect();
    all.sort();
    all
}

/// Liqo 2909: without an event, users would not see that the name leads to nothing in the remote
/// cluster.
#[tokio::test]
async fn a_service_with_the_skip_mark_gets_an_event() {
    let world = World::new().await;
    let service = |mark: bool| {
        let labels = if mark { json!({SKIP: "true"}) } else { json!({}) };
        json!({"metadata": {"labels": labels}, "spec": {"type": "ClusterIP", "ports": [{"port": 80}]}})
    };
    for (name, mark) in [("marked", true), ("other", false)] {
        world.home.put(&here("services", name), service(mark));
    }
    let changed = Cell::new(false);
    world
        .run_until(|world| {
            // Later, and not a second time.
            if reported(world) == ["marked NotCopied Normal"] && !changed.replace(true) {
                world.home.change(&here("services", "marked"), |it| {
                    it["spec"]["ports"][0]["port"] = json!(81);
                });
                world.home.put(&here("services", "other"), service(true));
            }
            reported(world).len() > 1
        })
        .await;
    assert_eq!(
        reported(&world),
        ["marked NotCopied Normal", "other NotCopied Normal"]
    );
    assert_eq!(world.there.object(&there("services", "marked")), None);
}

#[tokio::test]
async fn a_service_with_another_meaning_there_is_copied_and_gets_an_event() {
    let world = World::new().await;
    world
        .home
        .change("/apis/storage.liqo.io/v1alpha1/remoteclusters/milan", |it| {
            it["spec"]["fabric"]["pods"] = json!({"skipLabels": ["team"]});
        });
    world.home.put(
        &OFFLOADING.replace("/shop/", "/same/"),
        json!({"spec": {"namespaceMappingStrategy": "EnforceSameName"}}),
    );
    let alias = |namespace: &str| {
        let name = format!("db.{namespace}.svc.cluster.local");
        json!({"spec": {"type": "ExternalName", "externalName": name}})
    };
    let selecting = json!({"type": "ClusterIP", "ports": [{"port": 80}], "selector": {"team": "a"}});
    for (name, service) in [
        ("alias", alias("data")),
        ("by-team", json!({"spec": selecting})),
        ("same", alias("same")),
    ] {
        world.home.put(&here("services", name), service);
    }
    let wanted = [
        "alias HomeNamespaceName Warning",
        "by-team SelectorNotCarried Warning",
    ];
    world
        .run_until(|world| {
            reported(world) == wanted && world.there.object(&there("services", "same")).is_some()
        })
        .await;
    // Another change of it is no news.
    world.home.change(&here("services", "alias"), |it| {
        it["metadata"]["labels"] = json!({"app": "db"});
    });
    world.home.put(&here("services", "same"), alias("data"));
    world.run_until(|world| reported(world).len() > 2).await;
    assert_eq!(reported(&world)[2], "same HomeNamespaceName Warning");
    let again = world.home.store().below(EVENTS);
    assert!(again.iter().all(|it| it["series"].is_null()), "{again:?}");
}

#[tokio::test]
async fn objects_of_others_are_not_changed_and_are_reported() {
    let theirs = |labels: Value, annotations: Value| json!({"metadata": {"labels": labels, "annotations": annotations}, "data": {"color": "theirs"}});
    let ours = json!({
        "app.kubernetes.io/managed-by": "storage.liqo.io", "fabric.storage.liqo.io/home": "home",
    });
    for object in [
        theirs(json!({}), json!({})),
        // Another cluster has chosen the same id.
        theirs(ours, json!({"fabric.storage.liqo.io/home-uid": "uid-of-another"})),
    ] {
        let world = World::new().await;
        let copy = there("configmaps", "settings");
        world.there.put(&copy, object);
        let version = || world.there.object(&copy).unwrap()["metadata"]["resourceVersion"].clone();
        let before = version();
        world
            .home
            .put(&here("configmaps", "settings"), json!({"data": {"color": "red"}}));
        world
            .run_until(|world| world.reported().contains(&"RemoteNameTaken".to_owned()))
            .await;
        world.home.remove(&here("configmaps", "settings"));
        world.settle("last").await;
        assert_eq!(version(), before);
        // Once they have gone, the name is free.
        world
            .home
            .put(&here("configmaps", "settings"), json!({"data": {"color": "red"}}));
        world.there.remove(&copy);
        world.run_until(|world| world.color() == "red").await;
    }
}

#[tokio::test]
async fn a_refused_copy_is_reported_and_retried() {
    let world = World::new().await;
    world
        .there
        .fault(Fault::new("POST", "/secrets", Act::Forbid("exceeded quota")));
    world
        .home
        .put(&here("secrets", "s"), json!({"data": {"a": "Yg=="}}));
    world
        .run_until(|world| world.reported().contains(&"ReflectionRefused".to_owned()))
        .await;
    world.there.heal();
    world
        .run_until(|world| world.there.object(&there("secrets", "s")).is_some())
        .await;
}

#[tokio::test]
async fn objects_beyond_the_limit_are_reported() {
    let mut world = World::new().await;
    world.most = 3;
    for name in ["a", "b", "c", "d", "e"] {
        world
            .home
            .put(&here("configmaps", name), json!({"data": {"key": name}}));
    }
    world.home.put(&here("secrets", "s"), json!({"type": "Opaque"}));
    let is_there = |world: &World, kind: &str, name: &str| world.there.object(&there(kind, name)).is_some();
    let is_reported = |world: &World| {
        let events = world.home.store().below(EVENTS);
        let mut events = events.iter();
        events.any(|it| it["reason"] == "TooManyObjects" && it["regarding"]["kind"] == "NamespaceOffloading")
    };
    world
        .run_until(|world| {
            is_reported(world) && is_there(world, "secrets", "s") && is_there(world, "configmaps", "c")
        })
        .await;
    let copied = ["a", "b", "c", "d", "e"]
        .iter()
        .filter(|it| is_there(&world, "configmaps", it));
    assert_eq!(copied.count(), 3);
}

/// A pod there, for one at home or not.
fn pod_there(uid: &str, home_pod: Option<&str>) -> Value {
    let mut pod = json!({"metadata": {"uid": uid, "annotations": {}}, "spec": {"containers": []}});
    if let Some(home_pod) = home_pod {
        pod["metadata"]["annotations"] = json!({
            "fabric.storage.liqo.io/home-uid": "uid-of-home", "fabric.storage.liqo.io/home-pod-uid": home_pod,
        });
    }
    pod
}

fn event(kind: &str, name: &str, uid: &str, message: &str) -> Value {
    json!({
        "involvedObject": {"kind": kind, "namespace": "shop-home", "name": name, "uid": uid},
        "reason": "Pulled", "message": message, "type": "Normal", "count": 1,
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:01Z",
        "source": {"component": "kubelet"},
    })
}

#[tokio::test]
async fn remote_events_are_mirrored_to_their_pod_or_claim() {
    let world = World::new().await;
    world.home.put(
        &here("pods", "web"),
        json!({"metadata": {"uid": "web-1"}, "spec": {"containers": []}}),
    );
    world.home.put(
        &here("persistentvolumeclaims", "data"),
        json!({"metadata": {"uid": "data-1"}}),
    );
    world
        .there
        .put(&there("pods", "web"), pod_there("there-1", Some("web-1")));
    world
        .there
        .put(&there("pods", "theirs"), pod_there("there-2", None));
    // The remote pod of a home pod that was deleted.
    world
        .there
        .put(&there("pods", "old"), pod_there("there-3", Some("old-1")));
    let volume = format!("vol-{}", "0".repeat(40));
    let twin = json!({
        "labels": {
            "app.kubernetes.io/managed-by": "storage.liqo.io", "storage.liqo.io/home-cluster": "home",
            "storage.liqo.io/volume": volume,
        },
        "annotations": {
            "storage.liqo.io/claim-namespace": "shop", "storage.liqo.io/claim-name": "data",
            "storage.liqo.io/claim-uid": "data-1",
        },
        "uid": "there-4",
    });
    world.there.put(
        &there("persistentvolumeclaims", "twin"),
        json!({ "metadata": twin }),
    );
    for (name, event) in [
        ("a", event("Pod", "web", "there-1", &"x".repeat(5000))),
        ("b", event("Pod", "theirs", "there-2", "theirs")),
        ("c", event("Pod", "old", "there-3", "too late")),
        ("d", event("Pod", "web", "an-earlier-one", "of another pod")),
        ("e", event("Node", "node", "there-5", "of a node")),
        (
            "f",
            event("PersistentVolumeClaim", "twin", "there-4", "of a claim"),
        ),
        ("g", event("Pod", "../../web", "there-1", "of a path")),
    ] {
        world.there.put(&there("events", name), event);
    }
    world.run_until(|world| world.events().len() == 2).await;
    // Events received before the last one were processed.
    world
        .there
        .put(&there("events", "z"), event("Pod", "web", "there-1", "last"));
    world.run_until(|world| world.events().len() == 3).await;
    let events = world.events();
    let about = |of: &str| -> Vec<&Value> {
        events
            .iter()
            .filter(|it| it["involvedObject"]["uid"] == of)
            .collect()
    };
    assert_eq!((about("web-1").len(), about("data-1").len()), (2, 1));
    let first = about("web-1")
        .into_iter()
        .find(|it| it["message"] != "last")
        .unwrap();
    assert_eq!(
        first["source"],
        json!({"component": "liqo-csi-fabric", "host": "milan"})
    );
    assert_eq!(
        (&first["reason"], &first["type"], &first["count"]),
        (&json!("Pulled"), &json!("Normal"), &json!(1))
    );
    assert!(first["message"].as_str().unwrap().len() < 1100);
    assert_eq!(first["involvedObject"]["namespace"], "shop");
}

#[tokio::test]
async fn a_repeated_event_is_mirrored_once_and_counted() {
    let world = World::new().await;
    world.home.put(
        &here("pods", "web"),
        json!({"metadata": {"uid": "web-1"}, "spec": {"containers": []}}),
    );
    world
        .there
        .put(&there("pods", "web"), pod_there("there-1", Some("web-1")));
    let path = there("events", "a");
    world.there.put(&path, event("Pod", "web", "there-1", "pulled"));
    world.run_until(|world| world.events().len() == 1).await;
    world.there.change(&path, |it| it["count"] = 7.into());
    world.run_until(|world| world.events()[0]["count"] == 7).await;
    let writes = |world: &World| {
        let all = world.home.requests();
        all.iter()
            .filter(|it| it.contains("/events") && !it.starts_with("GET"))
            .count()
    };
    let before = writes(&world);
    world
        .there
        .put(&there("events", "z"), event("Pod", "web", "there-1", "last"));
    world.run_until(|world| world.events().len() == 2).await;
    assert_eq!(writes(&world), before + 1, "whoever goes on tells nothing again");
    let record = world.there.object(&path).unwrap();
    assert!(record["metadata"]["annotations"][COPIED_KEYS].is_null());
}
