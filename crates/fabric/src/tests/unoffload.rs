//! Namespaces leave clusters: claims that keep them, and pods that are evicted.

use super::*;
use crate::volume::mark;

const VOLUME: &str = "/api/v1/persistentvolumes/pv-data";

#[tokio::test]
async fn claims_keep_a_remote_namespace() {
    let world = World::offloaded().await;
    world.there.put(
        CLAIM,
        json!({"metadata": {"labels": {mark::MANAGED_BY: mark::MANAGED_BY_US}}}),
    );
    let foreign = CLAIM.replace("/data", "/theirs");
    world.there.put(&foreign, json!({}));
    // The fabric runs the pods there: it knows that none uses the copies.
    world
        .home
        .change(CLUSTER, |it| it["spec"]["nodeSelector"] = Value::Null);
    let secret = |name: &str| format!("{THERE}/secrets/{name}");
    let uid = world.home.object("/api/v1/namespaces/kube-system").unwrap()["metadata"]["uid"].clone();
    for (name, of) in [("copy", uid), ("other", json!("another-home"))] {
        let labels = json!({mark::MANAGED_BY: mark::MANAGED_BY_US, "fabric.storage.liqo.io/home": "home"});
        let annotations = json!({"fabric.storage.liqo.io/home-uid": of});
        world.there.put(
            &secret(name),
            json!({"metadata": {"labels": labels, "annotations": annotations}}),
        );
    }
    world.unoffload();
    world
        .run_until(|world| world.ready().1.contains("data, theirs (not a twin)"))
        .await;
    assert_eq!(world.phase(), "Terminating");
    world.age_conditions();
    world
        .run_until(|world| world.there.object(&secret("copy")).is_none())
        .await;
    assert!(world.there.object(&secret("other")).is_some());
    world.there.remove(CLAIM);
    world
        .run_until(|world| world.ready().1.contains(": theirs (not a twin)."))
        .await;
    world.there.remove(&foreign);
    world.run_until(World::is_gone).await;
}

/// Lists of a remote cluster have a limit of 32 MiB, and one namespace may have more in its Secrets.
#[tokio::test]
async fn copies_larger_than_a_list_are_deleted_in_a_namespace_that_claims_keep() {
    const COPIES: usize = 34;
    let world = World::offloaded().await;
    world.there.put(CLAIM, json!({}));
    world
        .home
        .change(CLUSTER, |it| it["spec"]["nodeSelector"] = Value::Null);
    let uid = world.home.object("/api/v1/namespaces/kube-system").unwrap()["metadata"]["uid"].clone();
    let labels = json!({mark::MANAGED_BY: mark::MANAGED_BY_US, "fabric.storage.liqo.io/home": "home"});
    let metadata = json!({"labels": labels, "annotations": {"fabric.storage.liqo.io/home-uid": uid}});
    let copy = |at: usize| format!("{THERE}/secrets/copy-{at}");
    let content = "a".repeat(1 << 20);
    for at in 0..COPIES {
        let object = json!({"metadata": metadata, "data": {"content": content}});
        world.there.put(&copy(at), object);
    }
    world.unoffload();
    world
        .run_until(|world| world.ready().1.contains("data (not a twin)"))
        .await;
    world.age_conditions();
    world
        .run_until(|world| (0..COPIES).all(|at| world.there.object(&copy(at)).is_none()))
        .await;
}

#[tokio::test]
async fn a_namespace_that_lost_the_label_of_its_home_namespace_is_deleted_unless_it_is_of_others() {
    const LABEL: &str = "fabric.storage.liqo.io/home-namespace";
    for (label, of_others, is_deleted) in [
        (None, None, true),
        (Some("other"), None, false),
        (None, Some("fabric.storage.liqo.io/home-uid"), false),
        (None, Some("fabric.storage.liqo.io/home-namespace-uid"), false),
    ] {
        let world = World::offloaded().await;
        world.there.change(THERE, |it| {
            let labels = it["metadata"]["labels"].as_object_mut().unwrap();
            labels.remove(LABEL);
            labels.extend(label.map(|label| (LABEL.to_owned(), json!(label))));
            if let Some(annotation) = of_others {
                it["metadata"]["annotations"][annotation] = json!("of-others");
            }
        });
        world.unoffload();
        world
            .run_until(|world| {
                world.age_conditions();
                world.home.object(OFFLOADING).is_none()
            })
            .await;
        let is_gone = world.there.object(THERE).is_none();
        assert_eq!(is_gone, is_deleted, "{label:?}, {of_others:?}");
    }
}

#[tokio::test]
async fn home_claims_are_listed_once_for_all_remote_claims() {
    let world = World::offloaded().await;
    for at in 0..50 {
        world.there.put(
            &format!("{THERE}/persistentvolumeclaims/other-{at}"),
            json!({"spec": {}}),
        );
    }
    world.unoffload();
    world.run_until(|world| world.ready().1.contains("other-1")).await;
    let own = |request: &&String| request.contains("GET /api/v1/namespaces/shop/persistentvolumeclaims/");
    assert_eq!(world.home.requests().iter().filter(own).count(), 0);
}

/// A twin, bound to the volume `pv-data` there.
fn bound_twin(world: &World, policy: &str) {
    let twin = json!({
        "metadata": {"labels": {mark::MANAGED_BY: mark::MANAGED_BY_US}},
        "spec": {"volumeName": "pv-data"},
    });
    let uid = world.there.put(CLAIM, twin)["metadata"]["uid"].clone();
    let volume = json!({"spec": {"claimRef": {"uid": uid}, "persistentVolumeReclaimPolicy": policy}});
    world.there.put(VOLUME, volume);
}

fn annotate_volumes(world: &World, volumes: &str) {
    world.home.change(OFFLOADING, |it| {
        it["metadata"]["annotations"] = json!({"fabric.storage.liqo.io/volumes": volumes});
    });
}

#[tokio::test]
async fn only_retained_twins_are_deleted_with_their_namespace() {
    let world = World::offloaded().await;
    world
        .home
        .put("/api/v1/namespaces/shop/persistentvolumeclaims/data", json!({}));
    bound_twin(&world, "Delete");
    let foreign = CLAIM.replace("/data", "/theirs");
    world.there.put(&foreign, json!({}));
    annotate_volumes(&world, "Retain");
    world.unoffload();
    world
        .run_until(|world| {
            world
                .ready()
                .1
                .contains("data (its remote PersistentVolume is not retained yet), theirs (not a twin)")
        })
        .await;
    world.there.change(VOLUME, |it| {
        it["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
    });
    world
        .run_until(|world| world.ready().1.contains("claims: theirs (not a twin)."))
        .await;
    world.age_conditions();
    world.there.remove(&foreign);
    world.run_until(World::is_gone).await;
    // A retained volume of another claim does not count.
    let world = World::offloaded().await;
    bound_twin(&world, "Retain");
    world
        .there
        .change(VOLUME, |it| it["spec"]["claimRef"]["uid"] = json!("another"));
    annotate_volumes(&world, "Retain");
    world.unoffload();
    world
        .run_until(|world| world.ready().1.contains("not retained yet"))
        .await;
}

#[tokio::test]
async fn remote_claims_without_a_twin_are_deleted_only_on_request() {
    let world = World::offloaded().await;
    let at_home = "/api/v1/namespaces/shop/persistentvolumeclaims/data";
    world.home.put(at_home, json!({}));
    bound_twin(&world, "Delete");
    world.there.put(&CLAIM.replace("/data", "/theirs"), json!({}));
    annotate_volumes(&world, "Delete");
    world.unoffload();
    world
        .run_until(|world| {
            world
                .ready()
                .1
                .contains("claims: data (its claim at home still exists).")
        })
        .await;
    world.home.remove(at_home);
    world
        .run_until(|world| world.ready().1.contains("claims: data."))
        .await;
    assert!(
        world.there.object(THERE).is_some(),
        "the twin goes the ordinary way"
    );
    world.age_conditions();
    world.there.remove(CLAIM);
    world.run_until(World::is_gone).await;
}

/// A pod with a controller, on the virtual node unless `spec` names another one.
fn pod(metadata: &Value, spec: &Value) -> Value {
    let mut pod = json!({
        "metadata": {
            "creationTimestamp": "2025-01-01T00:00:00Z",
            "ownerReferences": controlled_by("ReplicaSet"),
        },
        "spec": {"nodeName": "to-milan", "containers": []},
    });
    for (field, changes) in [("metadata", metadata), ("spec", spec)] {
        for (key, value) in changes.as_object().unwrap() {
            pod[field][key] = value.clone();
        }
    }
    pod
}

fn controlled_by(kind: &str) -> Value {
    json!([{"apiVersion": "apps/v1", "kind": kind, "name": "web", "uid": "w", "controller": true}])
}

#[tokio::test]
async fn pods_are_evicted_before_their_namespace_is_deleted() {
    let path = |name: &str| format!("/api/v1/namespaces/shop/pods/{name}");
    let claim =
        |name: &str| json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]});
    let remote_only = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [
            {"key": "liqo.io/type", "operator": "In", "values": ["virtual-node"]},
        ]}],
    }}});
    let world = World::offloaded().await;
    let daemon = json!({"ownerReferences": controlled_by("DaemonSet")});
    let bare = json!({"ownerReferences": []});
    let later = json!({"creationTimestamp": "2030-01-01T00:00:00Z"});
    for (name, metadata, spec) in [
        ("web", json!({}), json!({})),
        ("db", json!({}), claim("data")),
        ("here", json!({}), json!({"nodeName": "worker"})),
        ("daemon", daemon, json!({})),
        (
            "waiting",
            json!({}),
            json!({"nodeName": null, "affinity": remote_only}),
        ),
        ("later", later, json!({})),
        ("bare", bare, json!({})),
    ] {
        world.home.put(&path(name), pod(&metadata, &spec));
    }
    world
        .home
        .put("/api/v1/namespaces/shop/persistentvolumeclaims/data", json!({}));
    let twin = json!({"metadata": {"labels": {mark::MANAGED_BY: mark::MANAGED_BY_US}}});
    world.there.put(CLAIM, twin);
    world.unoffload();
    world.run_until(|world| world.ready().0 == "Terminating").await;
    world.age_conditions();
    let leaves = |name: &str| {
        let pod = world.home.object(&path(name)).unwrap();
        pod["metadata"]["deletionTimestamp"].is_string()
    };
    world.run_until(|_| leaves("web") && leaves("waiting")).await;
    // Its claim is not deleted, so it stays.
    assert!(!leaves("db"));
    world
        .home
        .remove("/api/v1/namespaces/shop/persistentvolumeclaims/data");
    world.run_until(|_| leaves("db")).await;
    world.there.remove(CLAIM);
    for name in ["web", "waiting"] {
        world.home.remove(&path(name));
    }
    world
        .run_until(|world| world.ready().1.contains("evicted: db."))
        .await;
    assert!(world.there.object(THERE).is_some());
    world.home.remove(&path("db"));
    world.run_until(World::is_gone).await;
    for name in ["here", "daemon", "later", "bare"] {
        assert!(!leaves(name), "{name}");
    }
}

#[tokio::test]
async fn a_refused_eviction_is_reported() {
    let world = World::offloaded().await;
    let web = "/api/v1/namespaces/shop/pods/web";
    world.home.put(web, pod(&json!({}), &json!({})));
    let budget = Act::Refuse(429);
    world
        .home
        .fault(Fault::new("POST", &format!("{web}/eviction"), budget));
    world.unoffload();
    world.run_until(|world| world.ready().0 == "Terminating").await;
    world.age_conditions();
    world
        .run_until(|world| world.ready().1.contains("cannot be evicted"))
        .await;
    assert!(world.there.object(THERE).is_some());
    world.home.heal();
    world
        .run_until(|_| world.home.object(web).unwrap()["metadata"]["deletionTimestamp"].is_string())
        .await;
}

#[tokio::test]
async fn an_unreachable_cluster_is_left_when_declared_out_of_service() {
    let world = World::offloaded().await;
    world
        .home
        .change(CLUSTER, |it| it["spec"]["nodeSelector"] = Value::Null);
    world.home.put(
        "/api/v1/nodes/milan",
        json!({"spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]}}),
    );
    let identity = "/api/v1/namespaces/kube-system";
    world.there.fault(Fault::new("GET", identity, Act::Hang));
    world.unoffload();
    world
        .run_until(|world| world.home.object(OFFLOADING).is_none())
        .await;
    assert!(world.there.object(THERE).is_some());
}

#[tokio::test]
async fn answers_of_another_cluster_are_ignored() {
    let world = World::offloaded().await;
    let system = "/api/v1/namespaces/kube-system";
    world.there.remove(THERE);
    world
        .there
        .change(system, |it| it["metadata"]["uid"] = json!("another"));
    world.unoffload();
    world
        .run_until(|world| world.ready().1.contains("leads to another cluster"))
        .await;
    world.age_conditions();
    world.reconcile_again(3).await;
    assert!(world.home.object(OFFLOADING).is_some());
}

#[tokio::test]
async fn pods_with_remote_claims_that_are_no_twins_are_not_evicted() {
    let world = World::offloaded().await;
    let web = "/api/v1/namespaces/shop/pods/web";
    let claim = json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]});
    world.home.put(web, pod(&json!({}), &claim));
    world.there.put(CLAIM, json!({}));
    world.unoffload();
    world.run_until(|world| world.ready().0 == "Terminating").await;
    world.age_conditions();
    world
        .run_until(|world| world.ready().1.contains("not a twin"))
        .await;
    assert!(world.home.object(web).unwrap()["metadata"]["deletionTimestamp"].is_null());
}

#[tokio::test]
async fn pods_are_evicted_when_the_remote_namespace_was_deleted() {
    let world = World::offloaded().await;
    let web = "/api/v1/namespaces/shop/pods/web";
    world.home.put(web, pod(&json!({}), &json!({})));
    world.there.remove(THERE);
    world.unoffload();
    world.run_until(|world| world.ready().0 == "Terminating").await;
    world.age_conditions();
    world
        .run_until(|world| world.home.object(OFFLOADING).is_none())
        .await;
    let evicted = world.home.object(web);
    assert!(evicted.is_none_or(|it| it["metadata"]["deletionTimestamp"].is_string()));
}

#[tokio::test]
async fn the_namespace_is_deleted_in_a_cluster_that_is_no_longer_selected() {
    let world = World::offloaded().await;
    let expression = json!({"key": "region", "operator": "In", "values": ["asia"]});
    let terms = json!([{"matchExpressions": [expression]}]);
    world.home.change(OFFLOADING, |it| {
        it["spec"]["clusterSelector"] = json!({"nodeSelectorTerms": terms});
    });
    world.run_until(|world| world.ready().0 == "Terminating").await;
    assert_eq!(world.phase(), "NoClusterSelected");
    world.age_conditions();
    world
        .run_until(|world| world.there.object(THERE).is_none() && world.ready().0.is_empty())
        .await;
    // The namespace is created again when the cluster is selected again.
    world.home.change(OFFLOADING, |it| it["spec"] = json!({}));
    world.run_until(|world| world.phase() == "Ready").await;
}

#[tokio::test]
async fn a_remote_cluster_keeps_its_finalizer_while_it_has_namespaces() {
    let world = World::offloaded().await;
    world.there.put(CLAIM, json!({}));
    world.home.change(CLUSTER, |it| {
        it["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    });
    world
        .run_until(|world| world.ready().1.contains("data (not a twin)"))
        .await;
    assert!(world.home.object(CLUSTER).is_some());
    world.age_conditions();
    world.there.remove(CLAIM);
    world
        .run_until(|world| world.home.object(CLUSTER).is_none())
        .await;
    assert!(world.there.object(THERE).is_none());
}
