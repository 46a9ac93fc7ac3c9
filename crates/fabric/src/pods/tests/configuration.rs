//! Pods that are created together with what they refer to.

use k8s_openapi::api::core::v1::Volume;

use super::*;
use crate::offload::{
    pods::{PodRefused, RemoteMarks, configuration, remote_pod},
    reflection::{Kind, name_of_copy},
};

const SETTINGS: &str = "/api/v1/namespaces/shop/configmaps/settings";
const COPY: &str = "/api/v1/namespaces/shop-home/configmaps/settings";

/// A world with copies, and a pod that has an optional variable of a `ConfigMap`.
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
    world
        .run_until(|world| world.is_running() && !told(world).is_empty())
        .await;
    assert!(world.there.object(COPY).is_none());
    let told = told(&world);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].starts_with("ReflectionRefused ")
            && told[0].contains("ConfigMap settings (")
            && told[0].contains("quota")
    );
}

/// The events on the pod.
fn told(world: &World) -> Vec<String> {
    let events = world.home.store().below(EVENTS);
    let of_pod = events.iter().filter(|it| it["regarding"]["kind"] == "Pod");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    of_pod
        .map(|it| format!("{} {}", text(&it["reason"]), text(&it["note"])))
        .collect()
}

fn waits(world: &World, reason: &str, words: &str) -> bool {
    let status = world.home_pod()["status"].clone();
    status["reason"] == reason && status["message"].as_str().unwrap_or_default().contains(words)
}

/// A world with a pod that requires the object, which is a `ConfigMap` or a Secret.
async fn with_required(kind: &str, name: &str, mut object: Value) -> World {
    let world = with_settings().await;
    object["metadata"]["name"] = name.into();
    world
        .home
        .put(&format!("/api/v1/namespaces/shop/{kind}/{name}"), object);
    let volume = if kind == "secrets" {
        json!({"name": "v", "secret": {"secretName": name}})
    } else {
        json!({"name": "v", "configMap": {"name": name}})
    };
    world
        .home
        .change(POD, |pod| pod["spec"]["volumes"] = json!([volume]));
    world
}

#[tokio::test]
async fn a_pod_that_needs_objects_that_are_never_copied_does_not_start() {
    let annotated =
        |key: &str| json!({"metadata": {"annotations": {key: "x"}}, "type": "kubernetes.io/dockercfg"});
    let of_type = |kind: &str| json!({"type": kind});
    let credential = "Secret own, which the cluster milan does not have, and which is not copied: it is a credential of this cluster";
    for (kind, name, object, why) in [
        (
            "configmaps",
            "own",
            annotated("liqo.io/skip-reflection"),
            "it is marked liqo.io/skip-reflection",
        ),
        (
            "secrets",
            "own",
            annotated("liqo.io/skip-reflection"),
            "it is marked liqo.io/skip-reflection",
        ),
        (
            "secrets",
            "own",
            of_type("kubernetes.io/service-account-token"),
            credential,
        ),
        (
            "secrets",
            "own",
            of_type("bootstrap.kubernetes.io/token"),
            credential,
        ),
        (
            "secrets",
            "own",
            annotated("openshift.io/internal-registry-auth-token.service-account"),
            credential,
        ),
        (
            "secrets",
            "own",
            of_type("helm.sh/release.v1"),
            "it is a release of Helm",
        ),
        (
            "configmaps",
            "sh.helm.release.v1.own",
            json!({}),
            "it is a release of Helm",
        ),
        (
            "configmaps",
            &name_of_copy(Kind::ConfigMap, "kube-root-ca.crt", "home"),
            json!({}),
            "its name is that of the copy of kube-root-ca.crt",
        ),
    ] {
        let world = with_required(kind, name, object).await;
        world
            .run_until(|world| waits(world, "PodNotSupported", why))
            .await;
        assert!(world.there.object(THERE).is_none(), "{why}");
    }

    let mut world = with_required("configmaps", "own", json!({})).await;
    world.most_copied = 1;
    for name in ["a", "b", "own"] {
        let path = format!("/api/v1/namespaces/shop/configmaps/{name}");
        world
            .home
            .put(&path, json!({"metadata": {"name": name}, "data": {"key": name}}));
    }
    world.home.remove(SETTINGS);
    let why = "the namespace has more than 1 ConfigMaps";
    world
        .run_until(|world| waits(world, "PodNotSupported", why))
        .await;
}

/// Whether the object is copied is known only when it exists.
#[tokio::test]
async fn a_pod_waits_for_an_object_that_neither_cluster_has() {
    const LATE: &str = "/api/v1/namespaces/shop/secrets/late";
    let world = with_required("secrets", "late", json!({})).await;
    world.home.remove(LATE);
    let why = "Secret late, which neither this cluster nor the cluster milan has";
    world
        .run_until(|world| waits(world, "ConfigurationMissing", why))
        .await;
    world
        .home
        .put(LATE, json!({"type": "kubernetes.io/service-account-token"}));
    world
        .run_until(|world| waits(world, "PodNotSupported", "a credential of this cluster"))
        .await;
    assert!(!was_requested(&world, MAKE));
    world.home.put(LATE, json!({"data": {"key": "YQ=="}}));
    world.run_until(World::is_running).await;

    let only_there = with_required("secrets", "late", json!({})).await;
    only_there.home.remove(LATE);
    only_there
        .there
        .put("/api/v1/namespaces/shop-home/secrets/late", json!({}));
    only_there.run_until(World::is_running).await;

    let optional = with_settings().await;
    optional.home.remove(SETTINGS);
    optional.run_until(World::is_running).await;
}

/// The Secrets Store CSI driver creates Secrets when a pod mounts its volume, not before.
#[tokio::test]
async fn a_secret_that_a_volume_of_the_pod_creates_is_not_waited_for() {
    let world = with_required("secrets", "synced", json!({})).await;
    world.home.remove("/api/v1/namespaces/shop/secrets/synced");
    let driver = "secrets-store.csi.k8s.io";
    world
        .there
        .put(&format!("/apis/storage.k8s.io/v1/csidrivers/{driver}"), json!({}));
    let volume = json!({"name": "keys", "csi": {
        "driver": driver, "volumeAttributes": {"secretProviderClass": "vault"},
    }});
    world.home.change(POD, |pod| {
        pod["spec"]["volumes"].as_array_mut().unwrap().push(volume);
    });
    world.run_until(World::is_running).await;
    let told = told(&world);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].starts_with("NotCopied ") && told[0].contains("SecretProviderClass vault"),
        "{told:?}"
    );
}

#[tokio::test]
async fn optional_objects_that_are_never_copied_are_reported() {
    const TOKEN: &str = "/api/v1/namespaces/shop/secrets/token";
    for is_there in [false, true] {
        let world = with_settings().await;
        world
            .home
            .put(TOKEN, json!({"type": "kubernetes.io/service-account-token"}));
        world.home.change(SETTINGS, |it| {
            it["metadata"]["annotations"] = json!({"liqo.io/skip-reflection": "true"});
        });
        world.home.change(POD, |pod| {
            pod["spec"]["imagePullSecrets"] = json!([{"name": "token"}]);
            let secret = json!({"secretName": "absent", "optional": true});
            pod["spec"]["volumes"] = json!([{"name": "v", "secret": secret}]);
        });
        if is_there {
            world.there.put(COPY, json!({}));
        }
        world.run_until(World::is_running).await;
        let told = told(&world);
        assert_eq!(told.len(), usize::from(!is_there), "{told:?}");
        for note in told {
            assert!(
                note.starts_with("NotCopied ")
                    && note.contains(": ConfigMap settings (it is marked liqo.io/skip-reflection)."),
                "{note}"
            );
        }
    }
}

#[tokio::test]
async fn a_host_name_that_is_too_long_there_is_refused() {
    let world = World::with_pod(true).await;
    world.home.change(POD, |pod| {
        pod["spec"]["setHostnameAsFQDN"] = true.into();
        pod["spec"]["hostname"] = "h".repeat(30).into();
        // With the namespace shop it has 63 characters, and shop-home has five more.
        pod["spec"]["subdomain"] = "s".repeat(23).into();
    });
    world
        .run_until(|world| waits(world, "PodNotSupported", ".shop-home.svc"))
        .await;
    assert!(!was_requested(&world, MAKE));
}

/// For example, controllers of both clusters create one.
#[tokio::test]
async fn uncopied_objects_that_exist_remotely_do_not_keep_a_pod_pending() {
    let own = json!({"metadata": {"labels": {"liqo.io/skip-reflection": "true"}}});
    let world = with_required("configmaps", "own", own).await;
    world
        .there
        .put("/api/v1/namespaces/shop-home/configmaps/own", json!({}));
    world.run_until(World::is_running).await;
    assert_eq!(told(&world), [""; 0]);
}

#[tokio::test]
async fn a_pod_waits_while_the_cluster_refuses_what_it_requires() {
    let world = with_required("configmaps", "own", json!({"data": {"key": "a"}})).await;
    let full = Fault::new(
        "POST",
        "/shop-home/configmaps",
        Act::Forbid("exceeded quota: objects"),
    )
    .times(usize::MAX);
    world.there.fault(full);
    world
        .run_until(|world| {
            waits(world, "ReflectionRefused", "a copy of the ConfigMap own")
                && waits(world, "ReflectionRefused", "quota")
        })
        .await;
    assert!(!was_requested(&world, MAKE));
    world.there.heal();
    world.run_until(World::is_running).await;
}

/// Controllers of both clusters, such as those of a service mesh, create most such objects: the pod
/// needs those of its own cluster.
#[tokio::test]
async fn a_pod_that_uses_a_foreign_object_runs_and_gets_an_event() {
    let world = with_required(
        "configmaps",
        "istio-ca-root-cert",
        json!({"data": {"root-cert.pem": "home"}}),
    )
    .await;
    let there = "/api/v1/namespaces/shop-home/configmaps/istio-ca-root-cert";
    world
        .there
        .put(there, json!({"data": {"root-cert.pem": "there"}}));
    world
        .run_until(|world| world.is_running() && !told(world).is_empty())
        .await;
    let told = told(&world);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("RemoteNameTaken ") && told[0].contains(": ConfigMap istio-ca-root-cert."));
    assert_eq!(
        world.there.object(there).unwrap()["data"]["root-cert.pem"],
        "there"
    );
}

#[tokio::test]
async fn names_of_services_in_what_a_pod_uses_are_reported() {
    // postgres://user:word@db.data.svc/x
    let url = "cG9zdGdyZXM6Ly91c2VyOndvcmRAZGIuZGF0YS5zdmMveA==";
    let world = with_required("secrets", "own", json!({"data": {"url": url}})).await;
    world.home.put(
        SETTINGS,
        json!({"data": {"color": "red", "url": "http://web.shop.svc"}}),
    );
    world
        .run_until(|world| world.is_running() && !told(world).is_empty())
        .await;
    let told = told(&world);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].starts_with("HomeNamespaceName ") && told[0].contains(": ConfigMap settings, Secret own."),
        "{told:?}"
    );
    assert!(!told[0].contains("word") && !told[0].contains("data"), "{told:?}");
}

#[tokio::test]
async fn short_names_and_addresses_in_what_a_pod_uses_are_reported() {
    // redis://:word@10.96.0.7:6379, and db.data, which must not be looked up.
    let (url, host) = ("cmVkaXM6Ly86d29yZEAxMC45Ni4wLjc6NjM3OQ==", "ZGIuZGF0YQ==");
    for (settings, secret, wanted) in [
        (
            json!({"url": "http://db.data:80"}),
            json!({}),
            Some(": ConfigMap settings."),
        ),
        (
            json!({"dns": "10.96.0.7"}),
            json!({}),
            Some(": ConfigMap settings."),
        ),
        (json!({}), json!({"url": url}), Some(": Secret own.")),
        (json!({}), json!({"host": host}), None),
        (
            json!({"no_proxy": "10.96.0.0/16,.cluster.local", "at": "10.97.0.1", "host": "db.none"}),
            json!({}),
            None,
        ),
    ] {
        let world = with_required("secrets", "own", json!({"data": secret})).await;
        world.home.put("/api/v1/namespaces/data", json!({}));
        let range = json!({"spec": {"cidrs": ["10.96.0.0/16"]}});
        world
            .home
            .put("/apis/networking.k8s.io/v1/servicecidrs/kubernetes", range);
        world.home.put(SETTINGS, json!({"data": settings}));
        world
            .run_until(|world| world.is_running() && told(world).len() == usize::from(wanted.is_some()))
            .await;
        let told = told(&world);
        assert!(told.len() == usize::from(wanted.is_some()), "{told:?}");
        for note in told {
            assert!(
                note.starts_with("HomeNamespaceName ") && note.contains(wanted.unwrap()),
                "{note}"
            );
            assert!(!note.contains("word") && !note.contains("10.96"), "{note}");
        }
        let read = world.home.requests();
        assert!(
            secret["host"].is_null() || !read.iter().any(|it| it == "GET /api/v1/namespaces/data"),
            "{read:?}"
        );
    }
}

/// With every kind of the API: one that is new does not compile here.
fn volume_of_every_kind() -> Volume {
    fn some<T: serde::de::DeserializeOwned>() -> Option<T> {
        serde_json::from_value(json!({})).unwrap()
    }
    Volume {
        name: "v".to_owned(),
        aws_elastic_block_store: some(),
        azure_disk: some(),
        azure_file: some(),
        cephfs: some(),
        cinder: some(),
        config_map: some(),
        csi: some(),
        downward_api: some(),
        empty_dir: some(),
        ephemeral: some(),
        fc: some(),
        flex_volume: some(),
        flocker: some(),
        gce_persistent_disk: some(),
        git_repo: some(),
        glusterfs: some(),
        host_path: some(),
        image: some(),
        iscsi: some(),
        nfs: some(),
        persistent_volume_claim: some(),
        photon_persistent_disk: some(),
        portworx_volume: some(),
        projected: some(),
        quobyte: some(),
        rbd: some(),
        scale_io: some(),
        secret: some(),
        storageos: some(),
        vsphere_volume: some(),
    }
}

#[test]
fn every_kind_of_volume_is_known_with_the_secret_that_it_names() {
    let mut with_secret = Vec::new();
    let volume = serde_json::to_value(volume_of_every_kind()).unwrap();
    for kind in volume.as_object().unwrap().keys().filter(|key| *key != "name") {
        for (field, named) in [
            ("nodePublishSecretRef", json!({"name": "s"})),
            ("secretName", json!("s")),
            ("secretRef", json!({"name": "s"})),
        ] {
            let volume = json!({"name": "v", kind: {field: named}});
            let pod = json!({"metadata": {"name": "web"}, "spec": {"volumes": [volume]}});
            let made = remote_pod(&pod, &RemoteMarks::default(), &RemoteSettings::default());
            if let Err(refused) = made {
                assert!(matches!(refused, PodRefused::AtHomeOnly(_)), "{kind}: {refused}");
                continue;
            }
            // The definition of the API drops fields that the kind does not have.
            let known: Volume = serde_json::from_value(volume).unwrap();
            if serde_json::to_value(known).unwrap()[kind][field] == named {
                let named = configuration(&pod);
                assert_eq!(
                    named,
                    [((Kind::Secret, "s".to_owned()), true)].into(),
                    "{kind}.{field}"
                );
                with_secret.push(kind.as_str());
            }
        }
    }
    assert_eq!(
        with_secret,
        [
            "azureFile",
            "cephfs",
            "cinder",
            "csi",
            "iscsi",
            "rbd",
            "scaleIO",
            "secret",
            "storageos"
        ]
    );
}
