//! Volumes that are being moved, or have moved: which operations their marks refuse, and that no
//! operation uses the twin of another epoch.

use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::json;

use super::*;
use crate::{
    fleet::Link,
    placement::{Declared, DeleteRefusal, moving::AttachDecision},
    volume::{Marks, mark},
};

const MOVE: &str = "6b5d1b2e-3c37-4f0e-9f0f-0d2c7ef1a222";

fn volume_path() -> String {
    format!("{VOLUMES}/pvc-{UID}")
}

/// A volume in use whose twin has this mark of a move.
async fn world(mark: &str) -> World {
    let world = World::new(Real::Works).await;
    let made = world.create().await.unwrap();
    world.bind_claim(&made);
    mark_twin(&world, mark);
    world
}

/// The move that these marks name; without it they do not count.
const THE_MOVE: &str = "/apis/storage.liqo.io/v1alpha1/namespaces/shop/volumemoves/m";

fn mark_twin(world: &World, text: &str) {
    world.api.put(THE_MOVE, json!({"metadata": {"uid": MOVE}}));
    world.api.change(&twin_path(), |twin| {
        twin["metadata"]["annotations"][mark::SOURCE_OF] = text.into();
    });
}

fn moving() -> String {
    format!("moving:{MOVE}:1")
}

fn superseded() -> String {
    format!("superseded:{MOVE}:1")
}

fn attachments(world: &World) -> Vec<Value> {
    world.api.store().below(ATTACHMENTS)
}

fn refused(published: Result<crate::volume::DataPath, PublishError>) -> AttachDecision {
    match published {
        Err(PublishError::Moved { decision, .. }) => decision,
        other => panic!("{other:?}"),
    }
}

async fn publish_as(
    world: &World,
    registry: &Registry,
    caller: &Caller,
) -> Result<crate::volume::DataPath, PublishError> {
    let asked = &world.request.spec.capabilities;
    publish(
        &world.home,
        registry,
        &world.id(),
        caller,
        "n1",
        asked,
        world.until(),
    )
    .await
}

fn first() -> Epoch {
    "1".parse().unwrap()
}

#[tokio::test]
async fn a_volume_that_is_being_moved_is_attached_only_for_its_mover() {
    let world = world(&moving()).await;
    assert_eq!(refused(world.publish("n1").await), AttachDecision::Moving);
    let other = Caller::read(Some(&format!("source:{}", MOVE.replace('6', "7")))).unwrap();
    let registry = Registry::default();
    assert_eq!(
        refused(publish_as(&world, &registry, &other).await),
        AttachDecision::MoveOver
    );
    assert!(attachments(&world).is_empty());
    let mover = Caller::read(Some(&format!("source:{MOVE}"))).unwrap();
    while world.home.views().moves.all().is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let lists_of_all = |world: &World| {
        let requests = world.api.requests();
        requests
            .iter()
            .filter(|it| it.ends_with("/v1alpha1/volumemoves"))
            .count()
    };
    let before = lists_of_all(&world);
    publish_as(&world, &registry, &mover).await.unwrap();
    assert_eq!(lists_of_all(&world), before, "the view names the move");
    mark_twin(&world, &format!("given-back:{MOVE}:1"));
    let lists = |world: &World| {
        let requests = world.api.requests();
        requests.iter().filter(|it| it.contains("volumemoves")).count()
    };
    let before = lists(&world);
    world.publish("n1").await.unwrap();
    assert_eq!(
        lists(&world),
        before,
        "this mark stays for ever, and costs no list"
    );
}

#[tokio::test]
async fn the_mark_of_a_deleted_move_blocks_no_pod() {
    let world = world(&moving()).await;
    world.api.remove(THE_MOVE);
    world.publish("n1").await.unwrap();
    let mover = Caller::read(Some(&format!("source:{MOVE}"))).unwrap();
    assert_eq!(
        refused(publish_as(&world, &Registry::default(), &mover).await),
        AttachDecision::MoveOver
    );
    // The mark of a completed move counts without the move.
    mark_twin(&world, &superseded());
    world.api.remove(THE_MOVE);
    assert!(matches!(
        refused(world.publish("n1").await),
        AttachDecision::MovedOn { .. }
    ));
}

/// A move that gates a volume reads the attachments, but not those that are created later.
#[tokio::test]
async fn an_attachment_gated_meanwhile_is_not_confirmed() {
    let world = World::new(Real::Works).await;
    let made = world.create().await.unwrap();
    let name = attachment_name(&made.context[TWIN_VOLUME], "n1");
    world.api.put(THE_MOVE, json!({"metadata": {"uid": MOVE}}));
    world.api.before("POST", ATTACHMENTS, |store| {
        let mut twin = store.get(&twin_path()).unwrap();
        twin["metadata"]["annotations"][mark::SOURCE_OF] = moving().into();
        store.put(&twin_path(), twin);
    });
    assert_eq!(refused(world.publish("n1").await), AttachDecision::Moving);
    assert!(world.api.object(&format!("{ATTACHMENTS}/{name}")).is_some());
    unpublish(&world.home, &world.id(), Some("n1"), world.until())
        .await
        .unwrap();
    assert!(attachments(&world).is_empty());
}

#[tokio::test]
async fn a_twin_left_by_a_move_belongs_to_no_volume() {
    let world = world(&superseded()).await;
    let moved_on = AttachDecision::MovedOn {
        asked: Epoch::NEVER_MOVED,
        current: first(),
    };
    assert_eq!(refused(world.publish("n1").await), moved_on);
    let wanted = SizeRange::new(2 * GIB, 0).unwrap();
    let registry = Registry::default();
    let grown = expand(&world.home, &registry, &world.id(), wanted, world.until()).await;
    assert!(
        matches!(grown, Err(ChangeError::MovedOn { current, .. }) if current == first()),
        "{grown:?}"
    );
    let changed = modify(&world.home, &registry, &world.id(), "gold", world.until()).await;
    assert!(matches!(changed, Err(ChangeError::MovedOn { .. })), "{changed:?}");
    assert_eq!(list(&world.home, &registry).await.unwrap(), []);

    let twin = world.twin();
    // A home cluster that was restored from a backup from before the claim was bound.
    world.api.remove(&volume_path());
    let made_again = world.create().await;
    assert!(
        matches!(
            made_again,
            Err(CreateError::Refused {
                refusal: crate::placement::Refusal::Moves,
                ..
            })
        ),
        "{made_again:?}"
    );
    world.api.remove(CLAIM);
    let deleted = world.delete().await;
    assert!(
        matches!(
            deleted,
            Err(DeleteError::Refused {
                refusal: DeleteRefusal::Moves,
                ..
            })
        ),
        "{deleted:?}"
    );
    assert_eq!(world.twin(), twin);
    assert!(attachments(&world).is_empty());
}

#[tokio::test]
async fn a_volume_is_not_changed_during_a_move() {
    let world = world(&moving()).await;
    let wanted = SizeRange::new(2 * GIB, 0).unwrap();
    let grown = expand(
        &world.home,
        &Registry::default(),
        &world.id(),
        wanted,
        world.until(),
    )
    .await;
    assert!(
        matches!(grown, Err(ChangeError::NotNow { why, .. }) if why.contains("move")),
        "{grown:?}"
    );
    assert!(list(&world.home, &Registry::default()).await.unwrap().len() == 1);
}

#[tokio::test]
async fn a_mark_that_cannot_be_read_is_no_absence() {
    let world = world("?").await;
    let published = world.publish("n1").await;
    assert!(
        matches!(&published, Err(PublishError::Unusable(why)) if why.contains(mark::SOURCE_OF)),
        "{published:?}"
    );
    world.api.remove(CLAIM);
    assert!(world.delete().await.is_err());
    assert!(world.twin().is_some());
}

#[tokio::test]
async fn a_volume_is_not_deleted_while_its_pv_is_gated() {
    for gate in [
        format!(
            r#"{{"version":1,"move":"{MOVE}","gate":1,"gated":{{"policy":"Delete","claimUid":"{UID}"}}}}"#
        ),
        "?".to_owned(),
    ] {
        let world = World::new(Real::Works).await;
        let made = world.create().await.unwrap();
        world.bind_claim(&made);
        world.api.change(&volume_path(), |volume| {
            volume["metadata"]["annotations"] = json!({mark::GATE: gate});
            volume["spec"]["claimRef"]["uid"] = MOVE.into();
        });
        // Users take "Lost" for lost data, and delete the claim.
        world.api.remove(CLAIM);
        let deleted = world.delete().await;
        assert!(
            matches!(
                deleted,
                Err(DeleteError::Refused {
                    refusal: DeleteRefusal::Gated,
                    ..
                })
            ),
            "{deleted:?}"
        );
        assert!(world.twin().is_some());
        world.api.change(&volume_path(), |volume| {
            volume["metadata"]["annotations"] =
                json!({mark::GATE: format!(r#"{{"version":1,"move":"{MOVE}","gate":1}}"#)});
        });
        world.delete().await.unwrap();
        assert!(world.twin().is_none());
    }
}

/// The twin of the volume after one move from node to node.
fn move_home(world: &World) -> VolumeId {
    let id = VolumeId {
        epoch: first(),
        ..world.id()
    };
    let mut twin = world.twin().unwrap();
    let name = id.name.home_twin(id.epoch);
    twin["metadata"]["name"] = name.clone().into();
    twin["metadata"]["uid"] = "second".into();
    let annotations = twin["metadata"]["annotations"].as_object_mut().unwrap();
    annotations.remove(mark::SOURCE_OF);
    annotations.insert(mark::EPOCH.to_owned(), "1".into());
    twin["spec"]["volumeName"] = "second".into();
    let path = format!("{TWINS}/{name}");
    world.api.put(&path, twin);
    let uid = world.api.object(&path).unwrap()["metadata"]["uid"].clone();
    world.api.put(
        &format!("{VOLUMES}/second"),
        json!({
            "spec": {
                "claimRef": {"namespace": "liqo-storage", "name": name, "uid": uid},
                "csi": {"driver": "real.test", "volumeHandle": "h-2"},
            },
            "status": {"phase": "Bound"},
        }),
    );
    world.api.change(&volume_path(), |volume| {
        volume["spec"]["csi"]["volumeHandle"] = id.to_string().into();
    });
    id
}

#[tokio::test]
async fn each_epoch_has_attachments_of_its_own() {
    let world = world(&moving()).await;
    let mover = Caller::read(Some(&format!("source:{MOVE}"))).unwrap();
    let registry = Registry::default();
    publish_as(&world, &registry, &mover).await.unwrap();
    let id = move_home(&world);
    let asked = &world.request.spec.capabilities;
    let path = publish(
        &world.home,
        &registry,
        &id,
        &Caller::User,
        "n1",
        asked,
        world.until(),
    )
    .await
    .unwrap();
    assert!(matches!(path.source, crate::volume::RealSource::Csi(source) if source.handle == "h-2"));
    assert_eq!(attachments(&world).len(), 2);

    unpublish(&world.home, &id, Some("n1"), world.until())
        .await
        .unwrap();
    let left = attachments(&world);
    assert_eq!(left.len(), 1);
    assert!(left[0]["metadata"]["annotations"][mark::EPOCH].is_null());
    unpublish(&world.home, &id, None, world.until()).await.unwrap();
    assert_eq!(attachments(&world).len(), 1);
    unpublish(&world.home, &world.id(), None, world.until())
        .await
        .unwrap();
    assert!(attachments(&world).is_empty());
}

#[tokio::test]
async fn a_handle_of_an_earlier_epoch_reaches_no_data_of_a_later_one() {
    let world = world(&superseded()).await;
    let id = move_home(&world);
    world.api.remove(&twin_path());
    assert!(matches!(
        world.publish("n1").await,
        Err(PublishError::NoTwin { .. })
    ));
    let wanted = SizeRange::new(2 * GIB, 0).unwrap();
    let grown = expand(
        &world.home,
        &Registry::default(),
        &world.id(),
        wanted,
        world.until(),
    )
    .await;
    assert!(matches!(grown, Err(ChangeError::MovedOn { .. })), "{grown:?}");
    // The claim exists; csi-provisioner lags.
    assert!(matches!(
        world.delete().await,
        Err(DeleteError::Refused {
            refusal: DeleteRefusal::Claimed(_),
            ..
        })
    ));
    let listed = list(&world.home, &Registry::default()).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].epoch, id.epoch);
    assert!(
        validate(&world.home, &Registry::default(), &id)
            .await
            .unwrap()
            .is_some()
    );
    assert!(
        validate(&world.home, &Registry::default(), &world.id())
            .await
            .unwrap()
            .is_none()
    );
}

/// The volume has moved to `milan`, and its home was restored from a backup from before that.
#[tokio::test]
async fn a_home_restored_from_a_backup_attaches_nothing_while_the_cluster_of_the_data_answers() {
    let world = world(&moving()).await;
    mark_twin(&world, &format!("given-back:{MOVE}:1"));
    let there = FakeApi::start().await;
    let twin = world.twin().unwrap();
    let read = |key: &str| serde_json::from_value(twin["metadata"][key].clone()).unwrap();
    let marks = Marks {
        epoch: first(),
        ..Marks::read(&read("labels"), &read("annotations")).unwrap()
    };
    let path = "/api/v1/namespaces/shop/persistentvolumeclaims/data";
    there.put(
        path,
        json!({
            "metadata": {"labels": marks.labels(), "annotations": marks.annotations()},
        }),
    );
    let milan = || async {
        let link = Link::up(&there, crate::cluster::Rights::ALL).await;
        Registry::fixed([(Declared::with_same_names("milan"), link)])
    };
    let moved_on = AttachDecision::MovedOn {
        asked: Epoch::NEVER_MOVED,
        current: first(),
    };
    let published = publish_as(&world, &milan().await, &Caller::User).await;
    assert_eq!(refused(published), moved_on);
    assert!(attachments(&world).is_empty());
    // A twin that is not handed over is still being copied.
    there.change(path, |twin| {
        let annotations = twin["metadata"]["annotations"].as_object_mut().unwrap();
        annotations.remove(mark::HANDED_OVER);
    });
    publish_as(&world, &milan().await, &Caller::User).await.unwrap();
}

const NODE: &str = "/api/v1/nodes/n1";
const POD: &str = "/api/v1/namespaces/shop/pods/db-0";

/// A volume that is attached to `n1`, where a pod with its claim runs.
async fn used() -> World {
    let world = World::new(Real::Works).await;
    let made = world.create().await.unwrap();
    world.bind_claim(&made);
    world.publish("n1").await.unwrap();
    world.api.change(NODE, |node| {
        node["status"] = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    });
    pod_on(&world, "n1", "Running");
    world
}

fn pod_on(world: &World, node: &str, phase: &str) {
    world.api.put(
        POD,
        json!({
            "spec": {
                "nodeName": node,
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            },
            "status": {"phase": phase},
        }),
    );
}

fn gated() -> String {
    format!(r#"{{"version":1,"move":"{MOVE}","gate":1,"gated":{{"policy":"Delete","claimUid":"{UID}"}}}}"#)
}

fn given_back() -> String {
    format!(r#"{{"version":1,"move":"{MOVE}","gate":1}}"#)
}

fn mark_volume(world: &World, text: &str) {
    world.api.change(&volume_path(), |volume| {
        volume["metadata"]["annotations"] = json!({mark::GATE: text});
        volume["spec"]["claimRef"]["uid"] = MOVE.into();
    });
}

async fn detach(world: &World) -> Result<(), UnpublishError> {
    unpublish(&world.home, &world.id(), Some("n1"), world.until()).await
}

/// A kubelet and a kube-controller-manager that restart while the PV is gated no longer know the pod, and
/// detach its volume.
#[tokio::test]
async fn a_gated_volume_stays_attached_where_a_pod_still_runs() {
    for mark in [gated(), "?".to_owned()] {
        for node in [Some("n1"), None] {
            let world = used().await;
            mark_volume(&world, &mark);
            let before = attachments(&world);
            let refused = unpublish(&world.home, &world.id(), node, world.until()).await;
            let refused = refused.unwrap_err();
            assert!(matches!(refused, UnpublishError::InUse { .. }), "{refused:?}");
            for named in [world.id().name.as_str(), "shop/db-0", "n1"] {
                assert!(refused.to_string().contains(named), "{named}: {refused}");
            }
            assert_eq!(attachments(&world), before);
        }
    }
}

#[tokio::test]
async fn a_gated_volume_is_detached_when_its_pod_has_ended_or_its_node_is_down() {
    let ready_no_more = |world: &World| {
        world.api.change(NODE, |node| {
            node["status"]["conditions"][0]["status"] = "Unknown".into();
        });
    };
    let changes: [fn(&World); 4] = [
        |world| world.api.remove(POD),
        |world| pod_on(world, "n1", "Succeeded"),
        |world| pod_on(world, "n2", "Running"),
        |world| world.api.remove(NODE),
    ];
    for change in changes.into_iter().chain([ready_no_more as fn(&World)]) {
        let world = used().await;
        mark_volume(&world, &gated());
        detach(&world).await.unwrap_err();
        change(&world);
        detach(&world).await.unwrap();
        assert!(attachments(&world).is_empty());
    }
}

/// Kubernetes has one attachment for one handle and one node: it may name the PV of a mover that was
/// there before the pod.
#[tokio::test]
async fn a_gated_volume_stays_attached_if_its_attachment_names_a_mover_pv() {
    let world = used().await;
    mark_volume(&world, &gated());
    let outer = format!("{ATTACHMENTS}/csi-of-the-handle");
    world.api.put(
        &outer,
        json!({"spec": {
            "attacher": "storage.liqo.io", "nodeName": "n1",
            "source": {"persistentVolumeName": "liqo-move-source"},
        }}),
    );
    let nested = attachment_name(&volume_name_of(&world), "n1");
    detach(&world).await.unwrap_err();
    assert!(world.api.object(&format!("{ATTACHMENTS}/{nested}")).is_some());
    world.api.remove(POD);
    detach(&world).await.unwrap();
    assert!(world.api.object(&format!("{ATTACHMENTS}/{nested}")).is_none());
}

fn volume_name_of(world: &World) -> String {
    world.twin().unwrap()["spec"]["volumeName"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// After a refused detachment the attachment keeps its deletion timestamp when the gate is removed.
#[tokio::test]
async fn after_a_rollback_a_volume_stays_attached_to_its_pod() {
    let world = used().await;
    mark_volume(&world, &given_back());
    let before = attachments(&world);
    detach(&world).await.unwrap_err();
    assert_eq!(attachments(&world), before);
    // A pod that has yet to start waits until the volume is attached again.
    pod_on(&world, "n1", "Pending");
    detach(&world).await.unwrap();
    assert!(attachments(&world).is_empty());
}

#[tokio::test]
async fn an_attachment_without_a_kubernetes_one_stays_while_a_pod_runs() {
    let world = used().await;
    mark_volume(&world, &gated());
    let nested = world.home.all::<VolumeAttachment>().list(None).await.unwrap();
    detach_unneeded(&world.home, &nested[0], world.until())
        .await
        .unwrap_err();
    assert_eq!(attachments(&world).len(), 1);
    world.api.remove(POD);
    detach_unneeded(&world.home, &nested[0], world.until())
        .await
        .unwrap();
    assert!(attachments(&world).is_empty());
}

/// The gate of a PV whose handle names another epoch does not concern this one.
#[tokio::test]
async fn the_old_epoch_is_detached_while_the_pv_of_the_new_epoch_is_gated() {
    let world = used().await;
    move_home(&world);
    mark_volume(&world, &gated());
    detach(&world).await.unwrap();
    assert!(attachments(&world).is_empty());
}
