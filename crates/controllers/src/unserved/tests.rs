//! Which claims get a warning, and when.

use serde_json::{Value, json};

use super::*;
use crate::{
    cluster::{Rights, events::Events, testing::FakeApi},
    fleet::Link,
    placement::Declared,
    volume::mark,
};

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/shop/events";
const WAITING: &str = "/api/v1/namespaces/shop/persistentvolumeclaims/waiting";

fn settings() -> Settings {
    Settings::for_test(Duration::ZERO)
}

/// A home cluster with a node for each of these clusters, and two claims of which one has no node yet.
async fn home(clusters: &[&str]) -> FakeApi {
    let api = FakeApi::start().await;
    api.put(
        "/apis/storage.k8s.io/v1/storageclasses/liqo",
        json!({"provisioner": DRIVER_NAME, "volumeBindingMode": "WaitForFirstConsumer"}),
    );
    for cluster in clusters {
        api.put(
            &format!("/api/v1/nodes/liqo-{cluster}"),
            json!({"metadata": {"labels": {"to": cluster}}}),
        );
    }
    for (name, node) in [("waiting", None), ("sent", Some("n1"))] {
        let annotations = json!({"volume.kubernetes.io/selected-node": node});
        api.put(
            &format!("/api/v1/namespaces/shop/persistentvolumeclaims/{name}"),
            json!({
                "metadata": {"uid": name, "annotations": if node.is_some() { annotations } else { json!({}) }},
                "spec": {"storageClassName": "liqo"}, "status": {"phase": "Pending"},
            }),
        );
        put_pod(&api, name, &json!({}));
    }
    api
}

/// A pod that waits for the claim, on nodes with these labels.
fn put_pod(api: &FakeApi, claim: &str, labels: &Value) {
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]);
    api.put(
        &format!("/api/v1/namespaces/shop/pods/of-{claim}"),
        json!({"metadata": {"uid": claim}, "spec": {"nodeSelector": labels, "volumes": volumes}, "status": {"phase": "Pending"}}),
    );
}

/// A cluster without classes, which answers.
async fn without_classes() -> Link {
    Link::up(&FakeApi::start().await, Rights::ALL).await
}

fn milan(link: Link) -> Registry {
    Registry::fixed([(Declared::with_same_names("milan"), link)])
}

async fn world() -> (FakeApi, Registry) {
    (home(&["milan"]).await, milan(without_classes().await))
}

/// The warnings after two rounds, with enough time between them or not.
async fn told(api: &FakeApi, registry: &Registry, patient: bool) -> Vec<String> {
    told_with(api, registry, &settings(), patient).await
}

async fn told_with(api: &FakeApi, registry: &Registry, settings: &Settings, patient: bool) -> Vec<String> {
    let home = api.cluster().await;
    let watched = Watched::start(&home);
    watched.complete().await;
    home.views().nodes.complete().await;
    home.views().classes.complete().await;
    let reports = Reports::new(Events::new(home.client().clone()));
    let mut claims = WaitingClaims::new(&home, registry, &watched, settings, reports);
    claims.round().await.unwrap();
    assert!(claims.waiting.is_empty() || claims.due().is_some_and(|due| due <= WARN_AFTER));
    if patient {
        for since in claims.waiting.values_mut() {
            *since -= WARN_AFTER;
        }
    }
    claims.round().await.unwrap();
    let events = api.store().below(EVENTS);
    let text = |event: &Value| {
        format!(
            "{} {} {}",
            event["regarding"]["name"], event["reason"], event["note"]
        )
    };
    events.iter().map(text).collect()
}

/// The condition of the claim that waits.
fn condition(api: &FakeApi) -> Value {
    let claim = api.store().get(WAITING).unwrap_or_default();
    claim["status"]["conditions"][0].clone()
}

#[tokio::test]
async fn pending_claims_get_events_with_possible_fixes() {
    let (api, registry) = world().await;
    assert_eq!(told(&api, &registry, false).await, [""; 0]);
    let told = told(&api, &registry, true).await;
    assert_eq!(told.len(), 1, "{told:?}");
    let condition = condition(&api);
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&json!("False"), &json!("NoRealClass"))
    );
    for part in [
        "milan",
        "no default class",
        "spec.storageClasses of the RemoteCluster milan",
    ] {
        assert!(told[0].starts_with("\"waiting\" \"NoRealClass\""), "{told:?}");
        assert!(told[0].contains(part), "{part}: {told:?}");
        assert!(
            condition["message"].as_str().unwrap().contains(part),
            "{part}: {condition}"
        );
    }
}

#[tokio::test]
async fn claims_of_an_unusable_cluster_get_an_event() {
    for (link, reason, why) in [
        (
            Link::Unreachable("no answer within 10s".into()),
            "ClusterUnreachable",
            "no answer within 10s",
        ),
        (
            Link::Connecting("its Secret was not read yet".into()),
            "ClusterUnreachable",
            "Secret",
        ),
        (
            Link::Refused("its kubeconfig names a file".into()),
            "ClusterRefused",
            "names a file",
        ),
    ] {
        let api = home(&["milan"]).await;
        let told = told(&api, &milan(link), true).await;
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains(reason) && told[0].contains(why), "{told:?}");
        assert_eq!(condition(&api)["reason"], reason);
    }
}

#[tokio::test]
async fn outdated_reports_are_removed() {
    let (api, registry) = world().await;
    told(&api, &registry, true).await;
    let there = FakeApi::start().await;
    put_default_class(&there);
    let registry = milan(Link::up(&there, Rights::ALL).await);
    told(&api, &registry, true).await;
    assert_eq!(condition(&api)["status"], "Unknown");
    // Also if no pod waits for the claim any more.
    let (api, registry) = world().await;
    told(&api, &registry, true).await;
    api.remove("/api/v1/namespaces/shop/pods/of-waiting");
    told(&api, &registry, true).await;
    assert_eq!(condition(&api)["reason"], "Waiting");
}

#[tokio::test]
async fn only_claims_of_pods_that_may_run_there_get_events() {
    for (labels, is_told) in [
        (json!({"to": "milan"}), true),
        (json!({"to": "rome"}), false),
        (json!({"kubernetes.io/hostname": "n1"}), false),
    ] {
        let (api, registry) = world().await;
        put_pod(&api, "waiting", &labels);
        assert_eq!(
            told(&api, &registry, true).await.len(),
            usize::from(is_told),
            "{labels}"
        );
    }
    let (api, registry) = world().await;
    api.remove("/api/v1/namespaces/shop/pods/of-waiting");
    assert_eq!(told(&api, &registry, true).await, [""; 0], "there is no pod");
}

/// A pod that may run in several clusters: a claim gets a warning for each.
#[tokio::test]
async fn a_claim_gets_the_reasons_of_every_cluster() {
    let api = home(&["milan", "turin"]).await;
    let mut clusters = Vec::new();
    for id in ["milan", "turin"] {
        clusters.push((Declared::with_same_names(id), without_classes().await));
    }
    let told = told(&api, &Registry::fixed(clusters), true).await;
    assert_eq!(told.len(), 2, "{told:?}");
    for id in ["milan", "turin"] {
        let way = format!("spec.storageClasses of the RemoteCluster {id}");
        assert!(told.iter().any(|text| text.contains(&way)), "{id}: {told:?}");
        assert!(condition(&api)["message"].as_str().unwrap().contains(&way));
    }
}

#[tokio::test]
async fn claims_of_namespaces_that_are_not_offloaded_get_no_event() {
    let api = home(&["milan"]).await;
    let registry = Registry::fixed([(Declared::plain("milan"), without_classes().await)]);
    assert_eq!(told(&api, &registry, true).await, [""; 0]);
}

/// Their volumes are created at home, before there is a pod.
#[tokio::test]
async fn claims_of_immediate_classes_get_no_event() {
    let (api, registry) = world().await;
    api.change("/apis/storage.k8s.io/v1/storageclasses/liqo", |class| {
        class["volumeBindingMode"] = "Immediate".into();
    });
    assert_eq!(told(&api, &registry, true).await, [""; 0]);
}

#[tokio::test]
async fn an_allowed_class_that_is_absent_in_the_cluster_serves_no_claims() {
    let (api, registry) = world().await;
    let home = api.cluster().await;
    let remote = registry.all().remove(0);
    let found = unserved(&home, &remote, &settings());
    assert!(found.len() == 1 && found[0].all, "{found:?}");
    // Some claims may get a class by annotation.
    let mut settings = settings();
    settings.allowed_classes = ["gold".to_owned()].into();
    assert!(unserved(&home, &remote, &settings)[0].all, "gold is not there");
}

/// A claim may name, by annotation, a class without capacity there, and then no pod is sent there
/// either.
#[tokio::test]
async fn a_claim_with_a_missing_class_gets_an_event() {
    let (api, there) = (home(&["milan"]).await, FakeApi::start().await);
    there.put(
        "/apis/storage.k8s.io/v1/storageclasses/gold",
        json!({"provisioner": "real.example"}),
    );
    let registry = milan(Link::up(&there, Rights::ALL).await);
    let mut settings = settings();
    settings.allowed_classes = ["gold".to_owned()].into();
    let message = told_with(&api, &registry, &settings, true).await;
    assert_eq!(message.len(), 1, "{message:?}");
    assert!(
        message[0].contains("claims that name no real class"),
        "{message:?}"
    );

    api.change(WAITING, |claim| {
        claim["metadata"]["annotations"] = json!({mark::REAL_CLASS: "gold"});
    });
    let before = api.store().below(EVENTS).len();
    assert_eq!(told_with(&api, &registry, &settings, true).await.len(), before);
}

#[tokio::test]
async fn clusters_that_serve_the_class_are_not_reported() {
    let (api, there) = (home(&["milan"]).await, FakeApi::start().await);
    put_default_class(&there);
    let registry = milan(Link::up(&there, Rights::ALL).await);
    assert_eq!(told(&api, &registry, true).await, [""; 0]);
}

fn put_default_class(there: &FakeApi) {
    there.put(
        "/apis/storage.k8s.io/v1/storageclasses/gold",
        json!({
            "metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "provisioner": "real.example",
        }),
    );
}
