use serde_json::{Value, json};

use super::world::*;
use crate::{
    api::volume_move::{Amounts, Quantity, kept_source},
    cluster::{
        Rights,
        testing::{Act, Fault},
    },
    movers::HelperSettings,
    placement::moving::{Outcome, Stage},
    twin::{Policy, TWIN_CLASS, TWIN_NAME, TWIN_NAMESPACE},
    volume::mark,
};

/// Everything that blocks such a move.
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
async fn all_obstacles_to_a_move_are_reported_at_once() {
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
        "the storage class \"odd\" does not exist in the cluster milan",
        "nor in the allow-list of the driver (fast)",
        "shop/logs: it does not exist",
        "the pod web-0",
    ] {
        assert!(says(&found, words), "{words}: {found:?}");
    }
}

#[tokio::test]
async fn unsuitable_targets_are_reported() {
    let elsewhere = |target: Value| to_milan(&json!({"target": target}));
    for (target, words) in [
        (json!({"cluster": "rome"}), "the cluster rome is not known"),
        (
            json!({"cluster": "home"}),
            "is accessible from this cluster already",
        ),
        (
            json!({"nodeName": "n1"}),
            "is accessible from the node n1 already",
        ),
        (json!({"nodeName": "n7"}), "the node n7 does not exist"),
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

/// The second PV is created by a user for the same data, and bound to another claim.
#[tokio::test]
async fn a_second_pv_of_the_volume_blocks_the_move() {
    let found = findings(to_milan(&json!({})), |world| {
        let mut second = world.home_api.object(&volume_path()).unwrap();
        second["metadata"] = json!({});
        second["spec"]["claimRef"] = json!({"namespace": "bank", "name": "rescued", "uid": "another"});
        world.home_api.put("/api/v1/persistentvolumes/second", second);
    })
    .await;
    let words = "the PersistentVolume second (of the claim bank/rescued) has the same volume";
    assert!(says(&found, words), "{found:?}");
}

fn owned_by(pod: &str) -> Value {
    json!([{"kind": "Pod", "name": pod, "uid": "u", "apiVersion": "v1", "controller": true}])
}

#[tokio::test]
async fn claims_that_cannot_be_moved_are_reported() {
    type Change = fn(&World);
    let table: [(Change, &str); 10] = [
        (
            |world| {
                world.home_api.change(REAL, |volume| {
                    volume["metadata"]["annotations"][mark::IMPORT] = "{}".into();
                });
            },
            "its import is not complete",
        ),
        (
            |world| {
                world
                    .home_api
                    .change(CLAIM, |claim| claim["spec"]["volumeName"] = Value::Null);
            },
            "not bound yet",
        ),
        (
            |world| {
                world.home_api.change(CLAIM, |claim| {
                    claim["metadata"]["ownerReferences"] = owned_by("p");
                });
            },
            "generic ephemeral volume of the pod p,",
        ),
        (
            |world| {
                world.home_api.change(CLAIM, |claim| {
                    claim["metadata"]["ownerReferences"] = owned_by("web-0");
                });
            },
            "deleted with the pod web-0, which owns it: remove that pod from its ownerReferences",
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
        (
            |world| world.home_api.remove(&source_path()),
            "its twin does not exist",
        ),
        (
            |world| {
                world
                    .there
                    .put(TARGET, json!({"metadata": {}, "spec": {"volumeName": "v"}}));
            },
            "the name of its new twin is taken",
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

fn ready(pod: &mut Value) {
    pod["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
}

fn budget(allowed: i32) -> Value {
    json!({
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": allowed},
        "status": {"disruptionsAllowed": allowed, "expectedPods": 2, "desiredHealthy": 2 - allowed},
    })
}

/// One after the other would be evicted, and replaced before the last one.
#[tokio::test]
async fn a_budget_that_does_not_allow_all_evictions_together_is_reported() {
    let two_pods = |world: &World, allowed| {
        world.home_api.change(POD, |pod| {
            pod["metadata"]["labels"] = json!({"app": "web"});
            ready(pod);
        });
        let mut second = world.home_api.object(POD).unwrap();
        second["metadata"]["name"] = "web-1".into();
        second["metadata"]["uid"] = "web-1".into();
        world.home_api.put("/api/v1/namespaces/shop/pods/web-1", second);
        let path = "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/web";
        world.home_api.put(path, budget(allowed));
    };
    let found = findings(to_milan(&json!({})), |world| two_pods(world, 1)).await;
    let words = "the PodDisruptionBudget shop/web allows 1 evictions, and 2 pods have to be evicted together: web-0, web-1";
    assert_eq!(found, [words]);
    let world = World::new(to_milan(&json!({}))).await;
    two_pods(&world, 2);
    world.carry(|world| world.stage() != Stage::Checking).await;
    assert_eq!(world.read().unwrap().status.unwrap().preflight, Some(Vec::new()));
    // It allows fewer while a pod is not healthy.
    let path = "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/web";
    world
        .home_api
        .change(path, |budget| budget["status"]["disruptionsAllowed"] = 1.into());
    world
        .carry(|world| matches!(world.stage(), Stage::Gating(_)))
        .await;
    world.waits("it evicts pods").await;
    for pod in [POD, "/api/v1/namespaces/shop/pods/web-1"] {
        let pod = world.home_api.object(pod).unwrap();
        assert_eq!(pod["metadata"]["deletionTimestamp"], Value::Null);
    }
}

/// Two budgets for one pod are an error of the server, and webhooks may deny evictions.
#[tokio::test]
async fn denied_evictions_are_reported() {
    const TWO: &str =
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
    for (answer, why) in [
        (Act::Fail(500, TWO), TWO),
        (Act::Deny(403, "denied by a policy"), "denied by a policy"),
        (
            Act::Deny(400, "admission webhook denied"),
            "admission webhook denied",
        ),
    ] {
        let found = findings(to_milan(&json!({})), |world| {
            world.home_api.fault(Fault::new("POST", "/eviction", answer));
        })
        .await;
        assert!(says(&found, why), "{found:?}");
    }
}

#[tokio::test]
async fn pods_that_could_not_run_at_the_target_are_reported() {
    type Change = fn(&World);
    let table: [(Change, &str); 2] = [
        (
            |world| {
                world.home_api.change(POD, |pod| {
                    pod["spec"]["nodeSelector"] = json!({"topology.storage.liqo.io/node": "n1"});
                });
            },
            "its nodeSelector and its node affinity exclude all nodes there",
        ),
        (
            |world| {
                let requirement = json!({"key": "metadata.name", "operator": "In", "values": ["n1"]});
                world.home_api.change(POD, |pod| {
                    pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
                        json!({"nodeSelectorTerms": [{"matchFields": [requirement]}]});
                });
            },
            "its nodeSelector and its node affinity exclude all nodes there",
        ),
    ];
    for (change, words) in table {
        let found = findings(to_milan(&json!({})), change).await;
        assert!(says(&found, words) && found.len() == 1, "{words}: {found:?}");
        // Users who stop the pods themselves may change them.
        let world = World::new(to_milan(&json!({"quiesce": {"mode": "Wait"}}))).await;
        change(&world);
        world.carry(|world| world.stage() != Stage::Checking).await;
        let (status, message) = world.condition("Checked").unwrap();
        assert!(status == "True" && message.contains(words), "{message}");
    }
    // Admission may add the toleration to new pods.
    let world = World::new(to_milan(&json!({}))).await;
    let taint = json!([{"key": "virtual", "effect": "NoExecute"}]);
    world.home_api.change("/api/v1/nodes/milan", |node| {
        node["spec"]["taints"] = taint.clone();
    });
    world.carry(|world| world.stage() != Stage::Checking).await;
    let (status, message) = world.condition("Checked").unwrap();
    let words =
        "the pod web-0 could not run at the target: it does not tolerate the taint virtual of the node milan";
    assert!(status == "True" && message.contains(words), "{message}");
}

#[tokio::test]
async fn a_reclaim_policy_that_cannot_be_kept_is_reported() {
    let unable = Rights {
        volume_changes: false,
        ..Rights::ALL
    };
    for (rights, is_said) in [(Rights::ALL, false), (unable, true)] {
        let world = World::retained(rights).await;
        world.carry(|world| world.stage() != Stage::Checking).await;
        let status = world.read().unwrap().status.unwrap();
        let checked = status
            .conditions
            .iter()
            .find(|one| one.type_ == "Checked")
            .unwrap();
        assert_eq!(checked.status, "True", "{}", checked.message);
        let words = "the policy Retain of the volume of the claim shop/data is not set in the cluster milan";
        assert_eq!(checked.message.contains(words), is_said, "{}", checked.message);
    }
}

/// The volume is already in the target cluster.
fn is_in_milan(world: &World) {
    let source = world.home_api.object(&source_path()).unwrap();
    world.there.put(
        TARGET,
        json!({
            "metadata": {"labels": source["metadata"]["labels"], "annotations": source["metadata"]["annotations"]},
            "spec": {"volumeName": "real-1"},
        }),
    );
    world.home_api.change(&volume_path(), |volume| {
        let csi = &mut volume["spec"]["csi"];
        csi["volumeHandle"] = format!("v1:milan:{}", name()).into();
        csi["volumeAttributes"] = json!({TWIN_NAMESPACE: "shop", TWIN_NAME: "data", TWIN_CLASS: "slow"});
    });
}

#[tokio::test]
async fn within_a_remote_cluster_a_volume_moves_to_another_class_only() {
    for target in [
        json!({"cluster": "milan"}),
        json!({"nodeName": "milan"}),
        json!({"cluster": "milan", "storageClassName": "slow"}),
    ] {
        let found = findings(to_milan(&json!({"target": target})), is_in_milan).await;
        assert!(
            says(&found, "name another cluster, or another class"),
            "{found:?}"
        );
    }
    let fast = json!({"cluster": "milan", "storageClassName": "fast"});
    let world = World::new(to_milan(&json!({"target": fast}))).await;
    is_in_milan(&world);
    let class = json!({"provisioner": "real.test"});
    world
        .there
        .put("/apis/storage.k8s.io/v1/storageclasses/fast", class);
    let milan = world.registry.get(&"milan".parse().unwrap()).unwrap();
    while milan.reach().unwrap().views().classes.get("fast").is_none() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    world.carry(|world| world.stage() != Stage::Checking).await;
    let status = world.read().unwrap().status.unwrap();
    assert_eq!(status.preflight, Some(Vec::new()));
    assert_eq!(
        status.claims[0].target.as_ref().unwrap().name,
        format!("{UID}-1"),
        "as long as the source has the name of the claim"
    );
}

/// `liqo-csi move undo` needs to know that nothing else blocks the move back.
#[tokio::test]
async fn the_kept_source_of_an_earlier_move_is_the_only_finding_about_its_place() {
    const EARLIER: &str = "6b5d1b2e-3c37-4f0e-9f0f-0d2c7ef1a333";
    for (mark, words) in [
        (format!("superseded:{EARLIER}:1"), kept_source(EARLIER)),
        (
            format!("given-back:{EARLIER}:1"),
            "it is the twin of epoch 0 of the volume".to_owned(),
        ),
    ] {
        let found = findings(to_milan(&json!({})), |world| {
            let twin = world.home_api.object(&source_path()).unwrap();
            let (labels, mut annotations) =
                (&twin["metadata"]["labels"], twin["metadata"]["annotations"].clone());
            annotations[mark::SOURCE_OF] = mark.as_str().into();
            world.there.put(
                TARGET,
                json!({"metadata": {"labels": labels, "annotations": annotations}, "spec": {"volumeName": "v"}}),
            );
        })
        .await;
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(says(&found, &words), "{found:?}");
    }
}

/// `liqo-csi move undo` needs the nodes.
#[tokio::test]
async fn the_source_nodes_are_recorded() {
    let noted = async |places: Value| {
        let world = World::new(to_milan(&json!({}))).await;
        let labels =
            json!({"topology.storage.liqo.io/node": "n0", "topology.storage.liqo.io/cluster": "home"});
        world
            .home_api
            .put("/api/v1/nodes/n0", json!({"metadata": {"labels": labels}}));
        while world.home.views().nodes.get("n0").is_none() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        world.home_api.change(&volume_path(), |volume| {
            volume["spec"]["csi"]["volumeAttributes"] = json!({"storage.liqo.io/twin-class": "slow"});
            let place = json!({"key": "topology.storage.liqo.io/node", "operator": "In", "values": places});
            let terms = &mut volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
            terms[0]["matchExpressions"] = json!([place]);
        });
        world.carry(|world| world.stage() != Stage::Checking).await;
        world.read().unwrap().status.unwrap().claims[0]
            .source
            .clone()
            .unwrap()
    };
    let local = noted(json!(["n1"])).await;
    assert_eq!(
        (local.cluster.as_str(), local.storage_class_name.as_deref()),
        ("home", Some("slow"))
    );
    assert_eq!(local.nodes, ["n1"]);
    assert!(
        noted(json!(["n0", "n1"])).await.nodes.is_empty(),
        "all nodes reach it"
    );
}

#[tokio::test]
async fn refusals_of_mover_pods_are_reported_before_any_write() {
    let found = findings(to_milan(&json!({})), |world| {
        world.movers.lock().refused = Some("exceeded quota".into());
    })
    .await;
    assert_eq!(found, ["the claim shop/data: exceeded quota"]);
}

#[tokio::test]
async fn movers_that_are_larger_than_the_driver_allows_are_reported() {
    let sized = |cpu: &str, memory: &str| {
        let amounts = json!({"cpu": cpu, "memory": memory});
        to_milan(&json!({"mover": {"resources": {"requests": amounts, "limits": {"memory": memory}}}}))
    };
    let limits = |world: &mut World| {
        let amount = |it: &str| Some(Quantity(it.to_owned()));
        world.settings.movers = Some(HelperSettings {
            namespace: "ours".into(),
            image: "driver".into(),
            pull_policy: "IfNotPresent".into(),
            pull_secrets: Vec::new(),
            relay_account: "relay".into(),
            policy: Policy {
                allowed_classes: world.settings.allowed_classes.clone(),
                namespace: "ours".into(),
            },
            most: Amounts {
                cpu: amount("1500m"),
                memory: amount("4Gi"),
            },
        });
    };
    for (cpu, memory, excess) in [
        ("1.5", "4096Mi", vec![]),
        (
            "1600m",
            "1Gi",
            vec!["requests.cpu is 1600m, and this driver allows 1500m"],
        ),
        (
            "1",
            "64Gi",
            vec![
                "requests.memory is 64Gi",
                "limits.memory is 64Gi, and this driver allows 4Gi (mover.maxResources of its chart)",
            ],
        ),
        (
            "1",
            "999999999999999999Ei",
            vec!["requests.memory is 9", "limits.memory is 9"],
        ),
    ] {
        let mut world = World::new(sized(cpu, memory)).await;
        limits(&mut world);
        world
            .carry(|world| {
                world
                    .read()
                    .unwrap()
                    .status
                    .is_some_and(|it| it.preflight.is_some())
            })
            .await;
        let found = world.read().unwrap().status.unwrap().preflight.unwrap();
        assert_eq!(found.len(), excess.len(), "{found:?}");
        for words in excess {
            assert!(says(&found, words), "{words}: {found:?}");
        }
    }
}

#[tokio::test]
async fn claims_of_one_pod_are_moved_together() {
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
    assert!(says(&found, "also mounts the claim logs"), "{found:?}");
}

/// The next pod gets a new ephemeral claim on its node, so the old one blocks the move only to
/// targets where pods cannot have such claims.
#[tokio::test]
async fn the_ephemeral_volume_of_a_pod_does_not_block_a_move() {
    let with_scratch = |world: &World| {
        let claim = "/api/v1/namespaces/shop/persistentvolumeclaims/web-0-scratch";
        world.home_api.put(
            claim,
            json!({"metadata": {"ownerReferences": owned_by("web-0")}, "spec": {"volumeName": "pv-of-scratch"}}),
        );
        let mut volume = world.home_api.object(&volume_path()).unwrap();
        volume["metadata"] = json!({});
        volume["spec"]["csi"] = json!({"driver": "local.test", "volumeHandle": "scratch"});
        world
            .home_api
            .put("/api/v1/persistentvolumes/pv-of-scratch", volume);
        world.home_api.change(POD, |pod| {
            let volumes = pod["spec"]["volumes"].as_array_mut().unwrap();
            volumes.push(json!({"name": "scratch", "ephemeral": {}}));
        });
    };
    let found = findings(to_milan(&json!({})), with_scratch).await;
    assert!(
        says(&found, "it is a generic ephemeral volume") && !says(&found, "move it together"),
        "{found:?}"
    );
    let world = World::remote(Rights::ALL, json!([])).await;
    with_scratch(&world);
    world.carry(|world| world.stage() != Stage::Checking).await;
    let status = world.read().unwrap().status.unwrap();
    assert_eq!(status.preflight, Some(Vec::new()));
}
