//! The rows of volumes that are bound, that wait, and that have a problem.

use serde_json::{Value, json};

use super::*;
use crate::{
    inspect::{
        Listing, Storage,
        fixtures::{UID, claim, claim_with, listing, node, real, storage, twin, twin_with, volume},
    },
    placement::Diagnosis,
    volume::mark,
};

fn one(storage: &Storage) -> Row {
    let mut rows = rows(storage, &Scope::All);
    assert_eq!(rows.len(), 1, "{rows:#?}");
    rows.remove(0)
}

fn deleting(object: &mut Value) {
    object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
}

fn pending(claim: &mut Value) {
    claim["spec"]["volumeName"] = Value::Null;
    claim["status"]["phase"] = "Pending".into();
}

fn volumes(change: impl FnOnce(&mut Value, &mut Value)) -> Listing<PersistentVolume> {
    let (mut outer, mut inner) = (volume(), real());
    change(&mut outer, &mut inner);
    listing([outer, inner])
}

#[test]
fn a_healthy_volume_has_all_columns_and_no_reason() {
    let row = serde_json::to_value(one(&storage())).unwrap();
    let expected = json!({
        "volume": format!("pvc-{UID}"),
        "claim": {"namespace": "shop", "name": "data"},
        "class": "liqo",
        "size": "1Gi",
        "growingTo": null,
        "state": "Bound",
        "message": "",
        "advice": "",
        "twin": {"namespace": "liqo-storage", "name": UID},
        "realClass": "fast",
        "realVolume": "pvc-twin",
        "cluster": "home",
        "heldByGravity": false,
        "nodes": ["one"],
    });
    assert_eq!(row, expected);
}

#[test]
fn claims_of_other_drivers_are_not_listed() {
    let mut storage = storage();
    storage.claims = claim_with(|it| {
        it["metadata"]["uid"] = "other".into();
        it["spec"]["storageClassName"] = "fast".into();
        it["spec"]["volumeName"] = "theirs".into();
    });
    storage.twins = Listing::default();
    storage.volumes = Listing::default();
    assert_eq!(rows(&storage, &Scope::All), []);
}

/// The change, the resulting state, and a part of the message.
#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn every_state_is_derived_from_the_objects() {
    type Break = fn(&mut Storage);
    let table: &[(&str, Break, State, &str)] = &[
        (
            "claim deleted",
            |it| it.claims = claim_with(deleting),
            State::Deleting,
            "pods still block that",
        ),
        (
            "claim lost",
            |it| it.claims = claim_with(|it| it["status"]["phase"] = "Lost".into()),
            State::Lost,
            "gone",
        ),
        (
            "claim lost for a move",
            |it| {
                it.claims = claim_with(|it| it["status"]["phase"] = "Lost".into());
                it.volumes = volumes(|outer, _| {
                    outer["metadata"]["annotations"][crate::volume::mark::GATE] = "?".into();
                });
            },
            State::Twin(Diagnosis::Moving),
            "being moved",
        ),
        (
            "PV gone",
            |it| it.volumes = listing([real()]),
            State::Lost,
            "does not exist",
        ),
        (
            "twin gone",
            |it| it.twins = Listing::default(),
            State::Twin(Diagnosis::Vanished),
            "still in the PV pvc-twin",
        ),
        (
            "twin and its PV gone",
            |it| {
                it.twins = Listing::default();
                it.volumes = listing([volume()]);
            },
            State::Twin(Diagnosis::Vanished),
            "may be lost",
        ),
        (
            "twin deleted",
            |it| it.twins = twin_with(deleting),
            State::Twin(Diagnosis::Terminating),
            "this driver still block that",
        ),
        (
            "real PV deleted",
            |it| it.volumes = volumes(|_, real| deleting(real)),
            State::Twin(Diagnosis::Terminating),
            "pvc-twin",
        ),
        (
            "real PV gone",
            |it| it.volumes = listing([volume()]),
            State::Twin(Diagnosis::Lost),
            "may be lost",
        ),
        (
            "twin waits",
            |it| it.twins = twin_with(pending),
            State::Twin(Diagnosis::Pending),
            "empty",
        ),
        (
            "node gone",
            |it| it.nodes = Listing::default(),
            State::Unreachable,
            "no node",
        ),
        (
            "other cluster",
            |it| it.home = "away".parse().ok(),
            State::Unknown,
            "names the cluster home",
        ),
        (
            "twins unreadable",
            |it| it.twins = Listing::refused("no"),
            State::Unknown,
            "twin cannot be read",
        ),
        (
            "no pod yet",
            |it| {
                it.claims = claim_with(pending);
                it.twins = Listing::default();
                it.volumes = Listing::default();
            },
            State::Waiting,
            "first pod",
        ),
        (
            "retained by the virtual class",
            |it| {
                it.claims = Listing::default();
                it.volumes =
                    volumes(|outer, _| outer["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into());
            },
            State::Retained,
            "keeps the data",
        ),
        (
            "deletion fails",
            |it| {
                it.claims = Listing::default();
                it.volumes = volumes(|outer, _| {
                    outer["status"] = json!({"phase": "Failed", "message": "backend on fire"});
                });
            },
            State::Deleting,
            "backend on fire",
        ),
        (
            "restored etcd",
            |it| {
                it.claims = Listing::default();
                it.volumes = listing([real()]);
            },
            State::Orphaned,
            "etcd was restored",
        ),
        (
            "an import that is being undone",
            |it| {
                it.claims = Listing::default();
                it.volumes = listing([{
                    let mut real = real();
                    real["metadata"]["annotations"] = json!({mark::IMPORT: "{}"});
                    real
                }]);
            },
            State::Pending,
            "its import is not complete",
        ),
        (
            "a release without its claim",
            |it| {
                it.claims = Listing::default();
                it.twins = twin_with(|it| {
                    it["metadata"]["annotations"][mark::RELEASING] = "shop/data".into();
                });
                it.volumes =
                    volumes(|outer, _| outer["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into());
            },
            State::Pending,
            "its release is not complete",
        ),
        (
            "never served",
            |it| {
                it.claims = Listing::default();
                it.volumes = listing([real()]);
                it.twins = twin_with(|it| {
                    it["metadata"]["annotations"]
                        .as_object_mut()
                        .unwrap()
                        .remove("storage.liqo.io/handed-over");
                });
            },
            State::Abandoned,
            "deletes it after",
        ),
        (
            "the claim for which the twin was created is unknown",
            |it| {
                it.claims = Listing::default();
                it.volumes = listing([real()]);
                it.twins = twin_with(|it| {
                    let annotations = it["metadata"]["annotations"].as_object_mut().unwrap();
                    annotations
                        .retain(|key, _| key != "storage.liqo.io/handed-over" && !key.contains("claim-"));
                });
            },
            State::Orphaned,
            "is unknown",
        ),
        (
            "the twin of another cluster",
            |it| {
                it.claims = Listing::default();
                it.volumes = listing([real()]);
                it.twins =
                    twin_with(|it| it["metadata"]["labels"]["storage.liqo.io/home-cluster"] = "away".into());
            },
            State::Guest,
            "away",
        ),
        (
            "data kept by the real class",
            |it| {
                it.claims = Listing::default();
                it.twins = Listing::default();
                it.volumes = listing([{
                    let mut real = real();
                    real["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
                    real
                }]);
            },
            State::Retained,
            "pvc-twin",
        ),
        (
            "static PV reserved for a missing twin",
            |it| {
                it.claims = Listing::default();
                it.twins = Listing::default();
                it.volumes = listing([{
                    let mut real = real();
                    real["spec"]["claimRef"]["uid"] = Value::Null;
                    real
                }]);
            },
            State::Orphaned,
            "reserved",
        ),
        (
            "only the PV is left",
            |it| {
                it.claims = Listing::default();
                it.twins = Listing::default();
                it.volumes = listing([volume()]);
            },
            State::Twin(Diagnosis::Vanished),
            "only the PV",
        ),
        (
            "a remote volume that is kept",
            |it| {
                elsewhere(it);
                it.volumes = it.volumes.clone().map(|mut volume| {
                    let spec = volume.spec.as_mut().unwrap();
                    spec.persistent_volume_reclaim_policy = Some("Retain".into());
                    volume
                });
            },
            State::Retained,
            "in the cluster milan",
        ),
        (
            "a remote volume that goes",
            elsewhere,
            State::Deleting,
            "being deleted",
        ),
        (
            "a volume of an unknown cluster",
            |it| {
                elsewhere(it);
                it.home = None;
            },
            State::Deleting,
            "being deleted",
        ),
        (
            "a volume of another version, in an unknown cluster",
            |it| {
                elsewhere(it);
                it.home = None;
                let mut volume = volume();
                volume["spec"]["csi"]["volumeHandle"] = format!("v3:milan:pvc-{UID}:1").into();
                it.volumes = listing([volume]);
            },
            State::Deleting,
            "being deleted",
        ),
        (
            "the twin of a claim that is elsewhere, in an unknown cluster",
            |it| {
                it.claims = Listing::default();
                it.volumes = listing([real()]);
                it.home = None;
            },
            State::Unknown,
            "serves this cluster",
        ),
        (
            "a remote claim, in an unknown cluster",
            |it| {
                it.twins = Listing::default();
                it.volumes = listing([volume()]);
                it.home = None;
            },
            State::Bound,
            "has not reported",
        ),
        (
            "twin gone from an unknown namespace",
            |it| {
                it.twins = Listing::default();
                it.volumes = listing([volume()]);
                it.namespace = None;
            },
            State::Twin(Diagnosis::Vanished),
            "is unknown",
        ),
    ];
    for (name, break_it, state, word) in table {
        let mut storage = storage();
        break_it(&mut storage);
        let row = one(&storage);
        assert_eq!(row.state, *state, "{name}: {row:#?}");
        assert!(row.message.contains(word), "{name}: {}", row.message);
    }
}

#[test]
fn a_second_claim_for_a_volume_does_not_hide_the_first() {
    let mut storage = storage();
    let mut second = claim();
    second["metadata"]["namespace"] = "zoo".into();
    second["metadata"]["uid"] = "1c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111".into();
    second["status"]["phase"] = "Pending".into();
    storage.claims = listing([claim(), second.clone()]);
    let [first, other] = rows(&storage, &Scope::All).try_into().unwrap();
    assert_eq!((first.state, other.state), (State::Bound, State::Pending));
    assert!(first.twin.is_some() && other.twin.is_none());
    assert!(
        other.message.ends_with("belongs to the claim shop/data"),
        "{}",
        other.message
    );

    // The PV was given to the second claim.
    second["status"]["phase"] = "Bound".into();
    storage.claims = listing([claim(), second]);
    storage.volumes = volumes(|outer, _| outer["spec"]["claimRef"]["namespace"] = "zoo".into());
    let [first, other] = rows(&storage, &Scope::All).try_into().unwrap();
    assert_eq!((first.state, other.state), (State::Lost, State::Bound));
}

/// The PV of a remote volume, and nothing else.
fn elsewhere(storage: &mut Storage) {
    storage.claims = Listing::default();
    storage.twins = Listing::default();
    let mut volume = volume();
    volume["spec"]["csi"]["volumeHandle"] = format!("v1:milan:pvc-{UID}").into();
    volume["status"]["phase"] = "Released".into();
    storage.volumes = listing([volume]);
}

#[test]
fn a_pending_claim_shows_its_reason() {
    let mut storage = storage();
    storage.claims = claim_with(pending);
    storage.volumes = Listing::default();
    storage.twins = Listing::default();
    storage.consumers = listing([json!({
        "metadata": {"namespace": "shop", "name": "web-0"},
        "spec": {"containers": [], "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
        "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}]},
    })]);
    assert!(
        one(&storage)
            .message
            .contains("web-0 cannot be scheduled: 0/2 nodes")
    );
    let event = |uid: &str, message: &str| json!({"metadata": {"name": uid}, "involvedObject": {"uid": uid}, "type": "Warning", "message": message});
    storage.events = listing([event(UID, "no room")]);
    let message = one(&storage).message;
    assert!(
        message.contains("0/2 nodes") && message.ends_with("the claim's last event: no room"),
        "{message}"
    );
    storage.events = Listing::default();

    storage.claims = claim_with(|it| {
        pending(it);
        it["metadata"]["annotations"] = json!({"volume.kubernetes.io/selected-node": "two"});
    });
    let row = one(&storage);
    assert_eq!(row.nodes, Some(vec!["two".to_owned()]));
    assert!(row.message.contains("no twin yet"), "{}", row.message);

    storage.twins = twin_with(pending);
    assert!(
        one(&storage)
            .message
            .contains("waits for the driver of class fast")
    );

    storage.events = listing([event("twin", "pool is full")]);
    let row = one(&storage);
    assert!(
        row.message.contains("pool is full") && row.message.contains(UID),
        "{}",
        row.message
    );

    storage.events = listing([event("twin", "pool is full"), event(UID, "quota exceeded")]);
    let row = one(&storage);
    assert_eq!(
        (row.state, row.message.as_str()),
        (State::Pending, "quota exceeded")
    );
}

#[test]
fn all_nodes_of_the_cluster_are_written_as_a_star() {
    let mut storage = storage();
    storage.volumes = volumes(|outer, _| {
        outer["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0] =
            json!({"key": "topology.storage.liqo.io/cluster", "operator": "In", "values": ["home"]});
    });
    let names: Listing<PersistentVolume> =
        listing(["one", "virtual"].map(|name| json!({"metadata": {"name": name}})));
    storage.nodes = names.map(|named| {
        let name = named.metadata.name.unwrap();
        let mut node = node(&name);
        if name == "virtual" {
            node.labels.clear();
        }
        node
    });
    assert_eq!(one(&storage).nodes, Some(vec!["*".to_owned()]));
}

#[test]
fn a_remote_volume_names_its_nodes_if_none_of_this_cluster_has_the_node_plugin() {
    let mut storage = storage();
    elsewhere(&mut storage);
    storage.nodes = storage.nodes.map(|mut node| {
        node.labels.remove(CLUSTER_KEY);
        node
    });
    assert_eq!(one(&storage).nodes, Some(vec!["one".to_owned()]));
}

#[test]
fn leftovers_belong_to_the_namespace_of_their_claim() {
    let mut storage = storage();
    storage.claims = Listing::default();
    let in_namespace = |name: &str| rows(&storage, &Scope::Namespace(name.into())).len();
    assert_eq!((in_namespace("shop"), in_namespace("other")), (1, 0));
    storage.twins = listing([twin()]);
}

#[test]
fn the_reason_of_a_waiting_pod_is_found_despite_other_problems() {
    let mut storage = storage();
    storage.twins = twin_with(deleting);
    storage.consumers = listing([json!({
        "metadata": {"namespace": "shop", "name": "web-0"},
        "spec": {"containers": [], "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
        "status": {"phase": "Pending"},
    })]);
    let row = one(&storage);
    assert!(
        row.message.contains("this driver still block that"),
        "{}",
        row.message
    );
    assert!(row.gravity.unwrap().contains("its pod web-0 waits"));
}

#[test]
fn the_cluster_of_a_pending_claim_is_that_of_its_pod() {
    let with = |annotation: Option<&str>, pod_on: Option<&str>| {
        let mut storage = storage();
        storage.twins = Listing::default();
        storage.volumes = Listing::default();
        storage.claims = claim_with(|it| {
            pending(it);
            it["metadata"]["annotations"] = match annotation {
                Some(node) => json!({"volume.kubernetes.io/selected-node": node}),
                None => json!({}),
            };
        });
        let named: Listing<PersistentVolume> = listing([
            json!({"metadata": {"name": "one"}}),
            json!({"metadata": {"name": "to-milan"}}),
        ]);
        storage.nodes = named.map(|named| {
            let mut node = node(&named.name_any());
            if node.name == "to-milan" {
                node.labels = [(CLUSTER_KEY.to_owned(), "milan".to_owned())].into();
            }
            node
        });
        storage.consumers = listing([json!({
            "metadata": {"namespace": "shop", "name": "user"},
            "spec": {"nodeName": pod_on, "containers": [],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]},
            "status": {"phase": "Pending"},
        })]);
        one(&storage).cluster
    };
    assert_eq!(with(None, Some("to-milan")).as_deref(), Some("milan"));
    assert_eq!(with(Some("to-milan"), None).as_deref(), Some("milan"));
    assert_eq!(with(Some("one"), None).as_deref(), Some("home"));
    assert_eq!(with(None, None), None, "unknown until a node is selected");
}

#[test]
fn an_expanding_volume_shows_both_sizes() {
    let sizes = |requested: &str, status: Value| {
        let mut storage = storage();
        storage.claims = claim_with(|claim| {
            claim["spec"]["resources"]["requests"]["storage"] = requested.into();
            for (key, value) in status.as_object().unwrap() {
                claim["status"][key] = value.clone();
            }
        });
        let row = one(&storage);
        (row.size.unwrap(), row.growing_to)
    };
    let has = |size: &str| json!({"storage": size});
    let grown = |size: &str| (size.to_owned(), None);
    let growing = |size: &str, to: &str| (size.to_owned(), Some(to.to_owned()));
    assert_eq!(sizes("1Gi", json!({"capacity": has("1Gi")})), grown("1Gi"));
    assert_eq!(
        sizes("2Gi", json!({"capacity": has("1Gi")})),
        growing("1Gi", "2Gi")
    );
    // The user requests less again, and the node expansion is still in progress.
    let lowered = json!({
        "capacity": has("1Gi"), "allocatedResources": has("3Gi"),
        "allocatedResourceStatuses": has("NodeResizePending"),
    });
    assert_eq!(sizes("1536Mi", lowered), growing("1Gi", "3Gi"));
}
