use serde_json::{Value, json};

use super::world::*;
use crate::{
    cluster::testing::{Act, Fault},
    placement::moving::{Outcome, Stage},
    volume::mark,
};

/// Everything that is said against a move like this.
async fn findings(spec: Value, change: impl Fn(&World)) -> Vec<String> {
    let world = World::new(spec).await;
    change(&world);
    world.to_the_end().await;
    assert_eq!(world.stage(), Stage::Ended(Outcome::Failed));
    let claim = world.home_api.object(CLAIM);
    let is_locked = claim.is_some_and(|claim| claim["metadata"]["annotations"][mark::MOVE] == MOVE);
    assert!(!is_locked, "what is refused is not touched");
    world.read().unwrap().status.unwrap().preflight.unwrap()
}

fn to_milan(more: &Value) -> Value {
    let mut spec = json!({"claims": ["data"], "target": {"cluster": "milan"}, "quiesce": {"mode": "Evict"}});
    spec.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    spec
}

fn says(found: &[String], words: &str) -> bool {
    found.iter().any(|one| one.contains(words))
}

#[tokio::test]
async fn all_that_speaks_against_a_move_is_said_at_once() {
    let spec = to_milan(&json!({
        "claims": ["data", "logs"], "target": {"cluster": "milan", "storageClassName": "odd"},
    }));
    let found = findings(spec, |world| {
        world.home_api.change(CLAIM, |claim| {
            claim["spec"]["resources"]["requests"]["storage"] = "2Gi".into();
        });
        world
            .home_api
            .change(POD, |pod| pod["metadata"]["ownerReferences"] = json!([]));
    })
    .await;
    for words in [
        "class \"odd\" is not in the allow-list",
        "shop/logs: there is none",
        "the pod web-0",
    ] {
        assert!(says(&found, words), "{words}: {found:?}");
    }
}

#[tokio::test]
async fn where_a_volume_cannot_go_is_said() {
    let elsewhere = |target: Value| to_milan(&json!({"target": target}));
    for (target, words) in [
        (json!({"cluster": "rome"}), "the cluster rome is not known"),
        (
            json!({"cluster": "home"}),
            "can be used from this cluster already",
        ),
        (json!({"nodeName": "n1"}), "can be used from the node n1 already"),
        (json!({"nodeName": "n7"}), "there is no node n7"),
        (
            json!({"nodeName": "bare"}),
            "this driver is not registered on the node bare",
        ),
        (json!({"nodeName": "bare"}), "the node bare is not Ready"),
    ] {
        let found = findings(elsewhere(target), |world| {
            world
                .home_api
                .put("/api/v1/nodes/bare", json!({"metadata": {"labels": {}}}));
        })
        .await;
        assert!(says(&found, words), "{words}: {found:?}");
    }
}

#[tokio::test]
async fn claims_that_cannot_be_moved_are_named() {
    type Change = fn(&World);
    let table: [(Change, &str); 8] = [
        (
            |world| {
                world
                    .home_api
                    .change(CLAIM, |claim| claim["spec"]["volumeName"] = Value::Null);
            },
            "no volume yet",
        ),
        (
            |world| {
                world.home_api.change(CLAIM, |claim| {
                    claim["metadata"]["ownerReferences"] =
                        json!([{"kind": "Pod", "name": "p", "uid": "u", "apiVersion": "v1"}]);
                });
            },
            "ephemeral",
        ),
        (
            |world| {
                world.home_api.change(CLAIM, |claim| {
                    claim["spec"]["resources"]["requests"]["storage"] = "2Gi".into();
                });
            },
            "being changed",
        ),
        (
            |world| {
                world.home_api.change(&volume_path(), |volume| {
                    volume["spec"]["csi"]["driver"] = "real.test".into();
                });
            },
            "not of this driver",
        ),
        (|world| world.home_api.remove(&source_path()), "its twin is gone"),
        (
            |world| {
                world
                    .there
                    .put(TARGET, json!({"metadata": {}, "spec": {"volumeName": "v"}}));
            },
            "the place of its new twin is taken",
        ),
        (
            |world| {
                world.home_api.put(
                    "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/c",
                    json!({
                        "spec": {
                            "driver": "storage.liqo.io", "deletionPolicy": "Delete",
                            "source": {"volumeHandle": format!("v1:home:{}", name())},
                            "volumeSnapshotRef": {"namespace": "shop", "name": "nightly"},
                        },
                    }),
                );
            },
            "shop/nightly",
        ),
        (
            |world| {
                world
                    .home_api
                    .fault(Fault::new("POST", "/eviction", Act::Refuse(429)));
            },
            "cannot be evicted now",
        ),
    ];
    for (change, words) in table {
        let found = findings(to_milan(&json!({})), change).await;
        assert!(says(&found, words), "{words}: {found:?}");
    }
}

#[tokio::test]
async fn what_movers_are_refused_is_said_before_anything_is_done() {
    let found = findings(to_milan(&json!({})), |world| {
        world.movers.lock().refused = Some("exceeded quota".into());
    })
    .await;
    assert_eq!(found, ["the claim shop/data: exceeded quota"]);
}

#[tokio::test]
async fn what_one_pod_mounts_is_moved_together() {
    let found = findings(to_milan(&json!({})), |world| {
        let other = "/api/v1/namespaces/shop/persistentvolumeclaims/logs";
        world
            .home_api
            .put(other, json!({"spec": {"volumeName": "pv-of-logs"}}));
        let mut volume = world.home_api.object(&volume_path()).unwrap();
        volume["metadata"] = json!({});
        world.home_api.put("/api/v1/persistentvolumes/pv-of-logs", volume);
        world.home_api.change(POD, |pod| {
            let volumes = pod["spec"]["volumes"].as_array_mut().unwrap();
            volumes.push(json!({"name": "l", "persistentVolumeClaim": {"claimName": "logs"}}));
        });
    })
    .await;
    assert!(says(&found, "mounts the claim logs, too"), "{found:?}");
}
