//! Which pods and nodes use a volume, at home and in the cluster of a remote source.

use super::*;
use crate::{
    cluster::testing::{Act, Fault},
    movers::name_of_claim_there,
    placement::moving::{HeldBy, NodeHealth, UserNode, UserPod},
};

fn pod(api: &FakeApi, path: &str, node: Option<&str>, more: &Value) {
    let mut pod = json!({
        "metadata": {},
        "spec": {"containers": [], "nodeName": node, "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
        "status": {"phase": "Running"},
    });
    for part in ["metadata", "status"] {
        let more = more[part].as_object().cloned().unwrap_or_default();
        pod[part].as_object_mut().unwrap().extend(more);
    }
    api.put(path, pod);
}

/// The metadata of the mover of this side, and its name on the source's side.
fn mover(world: &World, side: &str) -> (String, Value) {
    let labels = json!({
        mark::MANAGED_BY: mark::MANAGED_BY_US, mark::MOVE: MOVE, mark::VOLUME: name(), mark::MOVE_SIDE: side,
    });
    let name = name_of_claim_there(&world.moved);
    (name, json!({"metadata": {"labels": labels}}))
}

fn node(api: &FakeApi, name: &str, ready: bool, in_use: &str, taints: &Value) {
    let conditions = json!([{"type": "Ready", "status": if ready { "True" } else { "Unknown" }}]);
    api.put(
        &format!("/api/v1/nodes/{name}"),
        json!({"spec": {"taints": taints}, "status": {"conditions": conditions, "volumesInUse": [in_use]}}),
    );
}

fn attach(api: &FakeApi, name: &str, node: &str, volume: &str) {
    let spec = json!({"attacher": "a", "nodeName": node, "source": {"persistentVolumeName": volume}});
    api.put(&format!("{ATTACHMENTS}/{name}"), json!({"spec": spec}));
}

fn in_use() -> String {
    format!("kubernetes.io/csi/storage.liqo.io^v1:home:{}", name())
}

async fn users(world: &World) -> Users {
    match world.look().await.users {
        Live::Known(users) => users,
        Live::Unknown(why) => panic!("{why}"),
    }
}

#[tokio::test]
async fn pods_use_a_claim_until_they_have_ended() {
    let world = World::new().await;
    let path = |name: &str| format!("/api/v1/namespaces/shop/pods/{name}");
    pod(&world.api, &path("a"), Some("n1"), &json!({}));
    let going = json!({"metadata": {"deletionTimestamp": "2026-11-23T10:00:00Z", "finalizers": ["x"]}});
    pod(&world.api, &path("b"), Some("n1"), &going);
    pod(
        &world.api,
        &path("c"),
        None,
        &json!({"status": {"phase": "Pending"}}),
    );
    pod(
        &world.api,
        &path("d"),
        Some("n1"),
        &json!({"status": {"phase": "Succeeded"}}),
    );
    pod(
        &world.api,
        "/api/v1/namespaces/other/pods/e",
        Some("n1"),
        &json!({}),
    );
    let user = |name: &str, has_node, leaving, pending| UserPod {
        name: name.into(),
        has_node,
        leaving,
        pending,
    };
    assert_eq!(
        users(&world).await.pods,
        [
            user("shop/a", true, false, false),
            user("shop/b", true, true, false),
            user("shop/c", false, false, true)
        ]
    );
}

#[tokio::test]
async fn a_node_uses_a_volume_until_it_is_unmounted_and_detached() {
    let world = World::new().await;
    node(&world.api, "n1", true, &in_use(), &json!([]));
    node(&world.api, "n2", false, &in_use(), &json!([]));
    let off = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
    node(&world.api, "n3", false, &in_use(), &off);
    node(
        &world.api,
        "n4",
        true,
        "kubernetes.io/csi/storage.liqo.io^other",
        &json!([]),
    );
    node(&world.api, "n5", true, "", &json!([]));
    // One of the virtual PV, one of the real one, one of a deleted node.
    attach(&world.api, "a", "n1", &name());
    attach(&world.api, "b", "n5", "real-1");
    attach(&world.api, "c", "n6", &name());
    world.api.change(&format!("{ATTACHMENTS}/b"), |attachment| {
        attachment["status"] = json!({"attached": true, "detachError": {"message": "the array is down"}});
    });
    let has = |name: &str, attached, in_use, health| UserNode {
        name: name.into(),
        attached,
        detach_error: (name == "n5").then(|| "the array is down".to_owned()),
        in_use,
        health,
    };
    let seen = users(&world).await;
    assert_eq!(
        seen.nodes,
        [
            has("n1", true, true, NodeHealth::Ready),
            has("n2", false, true, NodeHealth::NotReady),
            has("n3", false, true, NodeHealth::OutOfService),
            has("n5", true, false, NodeHealth::Ready),
            has("n6", true, false, NodeHealth::NotReady),
        ]
    );
    assert_eq!(
        seen.left(),
        [
            "node n1 (mounted and attached)",
            "node n2 (not Ready)",
            "node n5 (attached: the array is down)",
            "node n6 (not Ready)"
        ]
    );
    assert_eq!(world.volume().await.attached, ["n1", "n6"]);
}

#[tokio::test]
async fn a_mover_does_not_count_as_a_user_of_the_volume() {
    let world = World::new().await;
    for (name, handle) in [
        ("move-source", world.moved.source.id.to_string()),
        ("move-target", world.moved.target.id.to_string()),
    ] {
        world.api.put(
            &format!("{VOLUMES}/{name}"),
            json!({
                "metadata": {"labels": {mark::MOVE: "earlier", mark::VOLUME: self::name()}},
                "spec": {"csi": {"driver": "storage.liqo.io", "volumeHandle": handle}},
            }),
        );
    }
    node(&world.api, "n1", true, &in_use(), &json!([]));
    node(&world.api, "n2", true, "", &json!([]));
    attach(&world.api, "mover", "n1", "move-source");
    attach(&world.api, "target", "n2", "move-target");
    let seen = users(&world).await;
    assert!(seen.nodes.is_empty());
    assert!(seen.left().is_empty());
    // But the drain also waits until the volume has left the mover's node.
    assert_eq!(seen.left_with_movers(), ["node n1 (mounted and attached)"]);
    node(&world.api, "n1", true, "", &json!([]));
    assert_eq!(users(&world).await.left_with_movers(), ["node n1 (attached)"]);
    node(&world.api, "n1", true, &in_use(), &json!([]));
    attach(&world.api, "nested", "n1", "real-1");
    assert!(users(&world).await.left().is_empty());
    attach(&world.api, "user", "n1", &name());
    assert_eq!(users(&world).await.left(), ["node n1 (mounted and attached)"]);
}

#[tokio::test]
async fn stateful_sets_that_delete_claims_on_scale_down_are_reported() {
    for (policy, expected) in [
        ("Delete", Some("the StatefulSet db".to_owned())),
        ("Retain", None),
    ] {
        let world = World::new().await;
        world.api.remove(CLAIM);
        world.api.put(
            "/apis/apps/v1/namespaces/shop/statefulsets/db",
            json!({"spec": {
                "selector": {}, "serviceName": "db", "template": {"metadata": {}},
                "persistentVolumeClaimRetentionPolicy": {"whenScaled": policy},
                "volumeClaimTemplates": [{"metadata": {"name": "data"}}],
            }}),
        );
        let mut moved = world.moved;
        assert_eq!(users_of(&moved).await.deletes_claim, None);
        moved.claim.name.name = "data-db-7".into();
        assert_eq!(users_of(&moved).await.deletes_claim, expected);
    }
}

async fn users_of(moved: &MovedVolume) -> Users {
    match moved.observe().await.unwrap().users {
        Live::Known(users) => users,
        Live::Unknown(why) => panic!("{why}"),
    }
}

/// The same volume during an undo: its source is in the remote cluster.
async fn remote_source(rights: Rights) -> World {
    let mut world = World::with(rights).await.with_target("Delete");
    world.moved.source.place = std::mem::replace(&mut world.moved.target.place, Place::Gone);
    world.moved.source.id = world.moved.target.id.clone();
    world.moved.target.id = id(&format!("v2:home:{}:2", name()));
    world
}

#[tokio::test]
async fn users_of_a_remote_source_are_also_read_in_its_cluster() {
    let world = remote_source(Rights::ALL).await;
    let real = "kubernetes.io/csi/real.test^h-real-2";
    node(&world.there, "r1", true, real, &json!([]));
    node(&world.there, "r2", true, real, &json!([]));
    attach(&world.there, "a", "r1", "real-2");
    attach(&world.there, "b", "r2", "real-2");
    let path = |name: &str| format!("/api/v1/namespaces/shop-home/pods/{name}");
    pod(&world.there, &path("web"), Some("r1"), &json!({}));
    let (name, labels) = mover(&world, "source");
    pod(&world.there, &path(&name), Some("r2"), &labels);
    let seen = users(&world).await;
    assert_eq!(seen.running(), ["shop-home/web of cluster milan"]);
    assert_eq!(seen.nodes.len(), 1);
    assert_eq!(seen.nodes[0].name, "r1");
    assert_eq!(seen.mover_nodes.len(), 1);
    assert_eq!(seen.mover_nodes[0].name, "r2");
    // Users may set the labels of a mover on their pods.
    pod(&world.there, &path("labelled"), Some("r2"), &labels);
    let seen = users(&world).await;
    assert_eq!(seen.running().len(), 2);
    assert_eq!((seen.nodes.len(), seen.mover_nodes.len()), (2, 0));
    world.there.fault(Fault::new("GET", "/pods", Act::Refuse(500)));
    assert!(matches!(world.look().await.users, Live::Unknown(_)));
}

#[tokio::test]
async fn other_users_of_a_remote_target_are_found() {
    let world = World::new().await;
    assert!(world.moved.users_of_target().await.unwrap().is_empty());
    let world = world.with_target("Delete");
    let path = |name: &str| format!("/api/v1/namespaces/shop-home/pods/{name}");
    let (name, labels) = mover(&world, "target");
    let name = name.replace("source", "target");
    pod(&world.there, &path(&name), Some("r1"), &labels);
    attach(&world.there, "a", "r1", "real-2");
    attach(&world.there, "b", "r2", "real-3");
    assert!(world.moved.users_of_target().await.unwrap().is_empty());
    attach(&world.there, "c", "r3", "real-2");
    pod(&world.there, &path("web"), Some("r1"), &labels);
    assert_eq!(
        world.moved.users_of_target().await.unwrap(),
        ["shop-home/web of cluster milan", "the node r3"]
    );
    assert!(
        remote_source(Rights::ALL)
            .await
            .moved
            .users_of_target()
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn users_there_are_found_while_the_pv_names_the_claim_of_the_mover() {
    let world = remote_source(Rights::ALL).await;
    node(
        &world.there,
        "r1",
        true,
        "kubernetes.io/csi/real.test^h-real-2",
        &json!([]),
    );
    world.there.change(&format!("{VOLUMES}/real-2"), |real| {
        real["spec"]["claimRef"]["namespace"] = "shop-home".into();
    });
    let twin = world.there.object(TARGET).unwrap();
    let real = world.there.object(&format!("{VOLUMES}/real-2")).unwrap();
    let gate = ClaimStep::There(Box::new(ClaimStep::Gate {
        volume: as_read(&real),
        note: GateNote {
            claim_uid: twin["metadata"]["uid"].as_str().unwrap().into(),
            ..note()
        },
    }));
    assert_eq!(world.moved.apply(&gate).await.unwrap(), Applied::Done);
    assert_eq!(world.moved.apply(&gate).await.unwrap(), Applied::ChangedMeanwhile);
    let seen = world.look().await;
    let there = seen.there.expect("the PV is not found");
    assert_eq!(there.volume.held_by, HeldBy::Move);
    assert_eq!(there.volume.policy, ReclaimPolicy::Retain);
    assert_eq!(users(&world).await.left(), ["node r1 (mounted)"]);
    // A pod that somebody starts with the claim of the mover is no mover.
    let real = world.there.object(&format!("{VOLUMES}/real-2")).unwrap();
    let claim = &real["spec"]["claimRef"]["name"];
    let path = |name: &str| format!("/api/v1/namespaces/shop-home/pods/{name}");
    let (mover, labels) = mover(&world, "source");
    for (name, more) in [("other", &json!({})), (&mover, &labels)] {
        pod(&world.there, &path(name), Some("r1"), more);
        world.there.change(&path(name), |pod| {
            pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] = claim.clone();
        });
    }
    assert_eq!(
        users(&world).await.running(),
        ["shop-home/other of cluster milan"]
    );
    world.there.remove(&path("other"));
    assert_eq!(users(&world).await.left(), Vec::<String>::new());
    // Its twin was deleted, and an administrator bound the PV to another claim of that name.
    world.there.remove(TARGET);
    world.there.change(&format!("{VOLUMES}/real-2"), |real| {
        real["spec"]["claimRef"]["name"] = "data".into();
    });
    let there = world.look().await.there.expect("the PV is not found");
    assert!(
        matches!(there.volume.held_by, HeldBy::Other(_)),
        "{:?}",
        there.volume.held_by
    );
}

#[tokio::test]
async fn without_other_rights_only_pods_are_checked() {
    let world = remote_source(Rights::default()).await;
    pod(
        &world.there,
        "/api/v1/namespaces/shop-home/pods/web",
        Some("r1"),
        &json!({}),
    );
    let seen = users(&world).await;
    assert_eq!((seen.running().len(), seen.nodes.len()), (1, 0));
}

#[tokio::test]
async fn without_rights_on_volumes_and_nodes_remote_writers_may_be_missed() {
    assert_eq!(World::new().await.moved.unwatched(), None, "the gate is at home");
    assert_eq!(remote_source(Rights::ALL).await.moved.unwatched(), None);
    for rights in [
        Rights {
            volumes: false,
            ..Rights::ALL
        },
        Rights {
            volume_changes: false,
            ..Rights::ALL
        },
        Rights {
            nodes: false,
            ..Rights::ALL
        },
    ] {
        let why = remote_source(rights).await.moved.unwatched().unwrap();
        assert!(
            why.contains("cluster milan") && why.contains("may be lost"),
            "{why}"
        );
    }
}
