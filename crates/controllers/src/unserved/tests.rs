//! Which claims get a warning, and when.

use serde_json::json;

use super::*;
use crate::{
    cluster::{Rights, events::Events, testing::FakeApi},
    fleet::Link,
    placement::{Declared, Namespaces},
    volume::mark,
};

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/shop/events";

fn settings() -> Settings {
    Settings::for_test(Duration::ZERO)
}

async fn world(same_name: bool) -> (FakeApi, Registry) {
    let (api, there) = (FakeApi::start().await, FakeApi::start().await);
    api.put(
        "/apis/storage.k8s.io/v1/storageclasses/liqo",
        json!({"provisioner": DRIVER_NAME, "volumeBindingMode": "WaitForFirstConsumer"}),
    );
    for (name, node) in [("waiting", None), ("sent", Some("n1"))] {
        let annotations = json!({"volume.kubernetes.io/selected-node": node});
        api.put(
            &format!("/api/v1/namespaces/shop/persistentvolumeclaims/{name}"),
            json!({
                "metadata": {"uid": name, "annotations": if node.is_some() { annotations } else { json!({}) }},
                "spec": {"storageClassName": "liqo"}, "status": {"phase": "Pending"},
            }),
        );
    }
    let declared = Declared {
        namespaces: Namespaces {
            same_name,
            ..Namespaces::default()
        },
        ..Declared::plain("milan")
    };
    let registry = Registry::fixed([(declared, Link::up(&there, Rights::ALL).await)]);
    (api, registry)
}

/// The warnings after two rounds, with enough time between them or not.
async fn told(api: &FakeApi, registry: &Registry, patient: bool) -> Vec<String> {
    told_with(api, registry, &settings(), patient).await
}

async fn told_with(api: &FakeApi, registry: &Registry, settings: &Settings, patient: bool) -> Vec<String> {
    let home = api.cluster().await;
    let watched = Watched::start(&home);
    watched.complete().await;
    let reports = Reports::new(Events::new(home.client().clone()));
    let mut told = MissingClasses::new(&home, registry, &watched, settings, reports);
    told.round().await.unwrap();
    assert!(told.waiting.is_empty() || told.due().is_some_and(|due| due <= WARN_AFTER));
    if patient {
        for since in told.waiting.values_mut() {
            *since -= WARN_AFTER;
        }
    }
    told.round().await.unwrap();
    let events = api.store().below(EVENTS);
    let text = |event: &serde_json::Value| format!("{} {}", event["regarding"]["name"], event["note"]);
    events.iter().map(text).collect()
}

#[tokio::test]
async fn claims_that_wait_in_vain_are_told_the_ways_out() {
    let (api, registry) = world(true).await;
    assert_eq!(told(&api, &registry, false).await, [""; 0]);
    let told = told(&api, &registry, true).await;
    assert_eq!(told.len(), 1, "{told:?}");
    for part in [
        "\"waiting\"",
        "milan",
        "no default class",
        "spec.storageClasses of the RemoteCluster milan",
    ] {
        assert!(told[0].contains(part), "{part}: {told:?}");
    }
}

/// Where the pod may run is not known: a claim gets a warning for each cluster.
#[tokio::test]
async fn a_claim_is_told_of_every_cluster_that_does_not_serve_it() {
    let (api, _) = world(true).await;
    let mut clusters = Vec::new();
    for id in ["milan", "turin"] {
        let declared = Declared {
            namespaces: Namespaces {
                same_name: true,
                ..Namespaces::default()
            },
            ..Declared::plain(id)
        };
        clusters.push((declared, Link::up(&FakeApi::start().await, Rights::ALL).await));
    }
    let told = told(&api, &Registry::fixed(clusters), true).await;
    assert_eq!(told.len(), 2, "{told:?}");
    for id in ["milan", "turin"] {
        let way = format!("spec.storageClasses of the RemoteCluster {id}");
        assert!(told.iter().any(|text| text.contains(&way)), "{id}: {told:?}");
    }
}

#[tokio::test]
async fn claims_of_namespaces_that_are_not_offloaded_are_not_told() {
    let (api, registry) = world(false).await;
    assert_eq!(told(&api, &registry, true).await, [""; 0]);
}

/// Their volumes are created at home, before there is a pod.
#[tokio::test]
async fn claims_of_immediate_classes_are_not_told() {
    let (api, registry) = world(true).await;
    api.change("/apis/storage.k8s.io/v1/storageclasses/liqo", |class| {
        class["volumeBindingMode"] = "Immediate".into();
    });
    assert_eq!(told(&api, &registry, true).await, [""; 0]);
}

#[tokio::test]
async fn a_class_is_served_by_annotation_only_where_what_it_may_name_exists() {
    let (api, registry) = world(true).await;
    let home = api.cluster().await;
    let remote = registry.all().remove(0);
    let found = unserved(&home, &remote, &settings());
    assert!(found.len() == 1 && found[0].all, "{found:?}");
    // Some claims may get a class by annotation.
    let mut settings = settings();
    settings.allowed_classes = ["gold".to_owned()].into();
    assert!(unserved(&home, &remote, &settings)[0].all, "gold is not there");
}

/// The class of its annotation may have no capacity there, and then no pod is sent there either.
#[tokio::test]
async fn a_claim_is_told_unless_it_names_a_class_that_is_there() {
    let (api, there) = (world(true).await.0, FakeApi::start().await);
    there.put(
        "/apis/storage.k8s.io/v1/storageclasses/gold",
        json!({"provisioner": "real.example"}),
    );
    let declared = Declared {
        namespaces: Namespaces {
            same_name: true,
            ..Namespaces::default()
        },
        ..Declared::plain("milan")
    };
    let registry = Registry::fixed([(declared, Link::up(&there, Rights::ALL).await)]);
    let mut settings = settings();
    settings.allowed_classes = ["gold".to_owned()].into();
    let message = told_with(&api, &registry, &settings, true).await;
    assert_eq!(message.len(), 1, "{message:?}");
    assert!(
        message[0].contains("claims that name no real class"),
        "{message:?}"
    );

    api.change(
        "/api/v1/namespaces/shop/persistentvolumeclaims/waiting",
        |claim| {
            claim["metadata"]["annotations"] = json!({mark::REAL_CLASS: "gold"});
        },
    );
    let before = api.store().below(EVENTS).len();
    assert_eq!(told_with(&api, &registry, &settings, true).await.len(), before);
}

#[tokio::test]
async fn clusters_that_serve_a_class_are_not_told_of() {
    let (api, there) = (world(true).await.0, FakeApi::start().await);
    there.put(
        "/apis/storage.k8s.io/v1/storageclasses/gold",
        json!({
            "metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "provisioner": "real.example",
        }),
    );
    let declared = Declared {
        namespaces: Namespaces {
            same_name: true,
            ..Namespaces::default()
        },
        ..Declared::plain("milan")
    };
    let registry = Registry::fixed([(declared, Link::up(&there, Rights::ALL).await)]);
    assert_eq!(told(&api, &registry, true).await, [""; 0]);
}
