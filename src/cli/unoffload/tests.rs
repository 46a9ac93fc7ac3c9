use serde_json::{Value, json};

use super::*;
use crate::cluster::testing::{Act, FakeApi, Fault};

const OFFLOADING: &str = "/apis/offloading.liqo.io/v1beta1/namespaces/shop/namespaceoffloadings/offloading";

fn claim(name: &str) -> String {
    format!("/api/v1/namespaces/shop/persistentvolumeclaims/{name}")
}

fn named(claim: &str) -> String {
    let last = match claim {
        "data" => 1,
        "logs" => 2,
        _ => 3,
    };
    format!("pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a11{last}")
}

fn volume(claim: &str) -> String {
    format!("/api/v1/persistentvolumes/{}", named(claim))
}

/// The claims `data` and `logs`, whose volumes are in `milan`, where the namespace is offloaded to,
/// and `far`, whose volume is in `rome`, where it is not.
async fn shop() -> FakeApi {
    let home = FakeApi::start().await;
    home.put("/api/v1/namespaces/kube-system", json!({}));
    let ready = json!([{"type": "Ready", "status": "True", "reason": "NamespaceCreated", "message": ""}]);
    home.put(
        OFFLOADING,
        json!({
            "metadata": {"finalizers": ["fabric.storage.liqo.io/remote-namespaces"]},
            "spec": {},
            "status": {"remoteNamespacesConditions": {"milan": ready}},
        }),
    );
    for (name, cluster) in [("data", "milan"), ("logs", "milan"), ("far", "rome")] {
        home.put(
            &claim(name),
            json!({
                "spec": {"storageClassName": "liqo", "volumeName": named(name)},
                "status": {"phase": "Bound"},
            }),
        );
        let uid = home.object(&claim(name)).unwrap()["metadata"]["uid"].clone();
        let csi = json!({
            "driver": "storage.liqo.io",
            "volumeHandle": format!("v1:{cluster}:{}", named(name)),
            "volumeAttributes": {
                "storage.liqo.io/twin-namespace": "shop-home", "storage.liqo.io/twin-name": name,
            },
        });
        home.put(
            &volume(name),
            json!({
                "spec": {
                    "capacity": {"storage": "1Gi"}, "persistentVolumeReclaimPolicy": "Delete",
                    "claimRef": {"namespace": "shop", "name": name, "uid": uid}, "csi": csi,
                },
                "status": {"phase": "Bound"},
            }),
        );
    }
    home
}

async fn unoffload(home: &FakeApi, args: NamespaceArgs) -> Outcome<ExitCode> {
    unoffload_all(home, &["shop"], args).await
}

async fn unoffload_all(home: &FakeApi, names: &[&str], args: NamespaceArgs) -> Outcome<ExitCode> {
    let place = place(home.cluster_unwatched().await, None, None).await;
    let names: Vec<String> = names.iter().map(|&it| it.to_owned()).collect();
    carry_out(&place, &names, &args).await
}

/// The object of another namespace, which is offloaded too.
fn offloading(namespace: &str) -> String {
    OFFLOADING.replace("shop", namespace)
}

fn args() -> NamespaceArgs {
    NamespaceArgs {
        names: Vec::new(),
        ns_selector: None,
        delete_volumes: false,
        retain_volumes: false,
        dry_run: false,
        force: false,
        timeout: Duration::ZERO,
        cluster: ClusterArgs::default(),
    }
}

fn writes(home: &FakeApi) -> Vec<String> {
    let all = home.requests();
    all.into_iter().filter(|it| !it.starts_with("GET")).collect()
}

fn asked_of_the_fabric(home: &FakeApi) -> Value {
    let object = home.object(OFFLOADING).unwrap();
    assert!(object["metadata"]["deletionTimestamp"].is_string());
    object["metadata"]["annotations"][VOLUMES].clone()
}

#[tokio::test]
async fn volumes_block_unoffloading_without_an_option_for_them() {
    for changed in [
        args(),
        NamespaceArgs {
            delete_volumes: true,
            dry_run: true,
            ..args()
        },
        NamespaceArgs {
            retain_volumes: true,
            dry_run: true,
            ..args()
        },
    ] {
        let home = shop().await;
        let code = if changed.dry_run {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(REFUSED)
        };
        assert_eq!(unoffload(&home, changed).await.unwrap(), code);
        assert!(writes(&home).is_empty(), "{:?}", writes(&home));
    }
}

#[tokio::test]
async fn claims_are_deleted_after_the_offloading_prevents_new_twins() {
    let home = shop().await;
    let wanted = || NamespaceArgs {
        delete_volumes: true,
        ..args()
    };
    let refusal = Fault::new("DELETE", &claim("data"), Act::Forbid("no right"));
    home.fault(refusal);
    let error = unoffload(&home, wanted()).await.unwrap_err().to_string();
    assert!(
        error.contains("shop/data: ") && error.contains("Run this again"),
        "{error}"
    );
    assert_eq!(asked_of_the_fabric(&home), "Delete");
    let done = writes(&home);
    let at = |what: &str| done.iter().position(|it| it.contains(what)).unwrap();
    assert!(at(OFFLOADING) < at(&claim("data")), "{done:?}");
    assert!(
        home.object(&claim("logs")).is_none(),
        "an error of one does not stop the others"
    );

    home.heal();
    unoffload(&home, wanted()).await.unwrap();
    assert!(home.object(&claim("data")).is_none());
    assert!(home.object(&claim("far")).is_some(), "its cluster stays selected");
    assert!(
        home.object(&volume("data")).is_some(),
        "the controller deletes it"
    );
}

#[tokio::test]
async fn volumes_are_retained_before_anything_is_unoffloaded() {
    let home = shop().await;
    let wanted = || NamespaceArgs {
        retain_volumes: true,
        ..args()
    };
    home.fault(Fault::new("PATCH", &volume("logs"), Act::Forbid("no right")));
    let error = unoffload(&home, wanted()).await.unwrap_err().to_string();
    assert!(error.contains("shop/logs: "), "{error}");
    assert!(home.object(OFFLOADING).unwrap()["metadata"]["deletionTimestamp"].is_null());

    home.heal();
    unoffload(&home, wanted()).await.unwrap();
    assert_eq!(asked_of_the_fabric(&home), "Retain");
    let policy = |name: &str| {
        let volume = home.object(&volume(name)).unwrap();
        volume["spec"]["persistentVolumeReclaimPolicy"].clone()
    };
    assert_eq!(
        (policy("data"), policy("logs")),
        (json!("Retain"), json!("Retain"))
    );
    assert_eq!(policy("far"), "Delete", "its cluster stays selected");
    for name in ["data", "logs", "far"] {
        assert!(home.object(&claim(name)).is_some(), "{name}");
    }
}

#[tokio::test]
async fn volumes_in_other_clusters_do_not_block_unoffloading() {
    let home = shop().await;
    for name in ["data", "logs"] {
        home.remove(&claim(name));
        home.remove(&volume(name));
    }
    // What Liqo would delete is unknown.
    let liqo = "/apis/offloading.liqo.io/v1beta1/namespaces/liqo/virtualnodes/milan";
    home.put(liqo, json!({}));
    assert_eq!(unoffload(&home, args()).await.unwrap(), ExitCode::from(REFUSED));
    home.remove(liqo);
    unoffload(&home, args()).await.unwrap();
    assert!(home.object(OFFLOADING).unwrap()["metadata"]["deletionTimestamp"].is_string());
    assert!(home.object(&claim("far")).is_some());
}

#[tokio::test]
async fn unknown_namespaces_are_refused_before_any_write() {
    let home = shop().await;
    let retain = || NamespaceArgs {
        retain_volumes: true,
        ..args()
    };
    let error = unoffload_all(&home, &["shop", "shpo"], retain())
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("shpo: there is no such namespace"), "{error}");
    assert!(writes(&home).is_empty(), "{:?}", writes(&home));
    // A namespace that is not offloaded any more is an error only if there is no other.
    home.put("/api/v1/namespaces/ended", json!({}));
    let error = unoffload_all(&home, &["ended"], retain()).await.unwrap_err();
    assert_eq!(error.to_string(), "ended: not offloaded");
    unoffload_all(&home, &["ended", "shop"], retain()).await.unwrap();
    assert_eq!(asked_of_the_fabric(&home), "Retain");
}

#[tokio::test]
async fn a_failed_namespace_does_not_block_unoffloading_others() {
    let home = shop().await;
    home.put(
        &offloading("first"),
        json!({"metadata": {"finalizers": ["fabric.storage.liqo.io/remote-namespaces"]}, "spec": {}}),
    );
    home.fault(Fault::new(
        "DELETE",
        &offloading("first"),
        Act::Forbid("no right"),
    ));
    let wanted = NamespaceArgs {
        delete_volumes: true,
        ..args()
    };
    let error = unoffload_all(&home, &["first", "shop"], wanted)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("first: ") && error.contains("no right"), "{error}");
    assert_eq!(asked_of_the_fabric(&home), "Delete");
    assert!(home.object(&claim("data")).is_none());
}

#[tokio::test]
async fn a_namespace_that_is_offloaded_again_is_an_error() {
    let home = shop().await;
    home.change(OFFLOADING, |it| it["metadata"]["finalizers"] = json!([]));
    // The command has read it, and has read it again to delete it.
    home.before("GET", OFFLOADING, |_| {});
    home.before("GET", OFFLOADING, |_| {});
    home.before("GET", OFFLOADING, |store| {
        drop(store.put(OFFLOADING, json!({"spec": {}})));
    });
    let wanted = NamespaceArgs {
        delete_volumes: true,
        ..args()
    };
    let error = unoffload(&home, wanted).await.unwrap_err().to_string();
    assert!(error.contains("shop: ") && error.contains("GitOps"), "{error}");
}

#[tokio::test]
async fn after_the_timeout_the_fabric_is_checked_unless_a_cluster_says_why() {
    for (reason, is_checked) in [("NamespaceCreated", true), ("Terminating", false)] {
        let home = shop().await;
        home.change(OFFLOADING, |it| {
            let ready = &mut it["status"]["remoteNamespacesConditions"]["milan"][0];
            ready["reason"] = reason.into();
            ready["status"] = if is_checked { "True" } else { "False" }.into();
        });
        let wanted = NamespaceArgs {
            delete_volumes: true,
            ..args()
        };
        assert_eq!(unoffload(&home, wanted).await.unwrap(), ExitCode::FAILURE);
        let is_lease = |it: &String| it.ends_with("/leases");
        assert_eq!(home.requests().iter().any(is_lease), is_checked, "{reason}");
    }
}

#[tokio::test]
async fn volumes_without_a_claim_are_not_counted_as_claims() {
    let home = shop().await;
    home.remove(&claim("logs"));
    let place = place(home.cluster_unwatched().await, None, None).await;
    let namespace = place.storage_namespace.as_deref();
    let storage = Storage::read(&place.cluster, &Scope::All, namespace, None).await;
    let all = rows(&storage, &Scope::All);
    let lost: Vec<&Row> = all.iter().collect();
    assert_eq!(lost.len(), 3);
    let text = volumes::prospect(Volumes::Delete, &["shop".to_owned()], &lost, &storage);
    assert!(text.contains("their data: 2."), "{text}");
}
