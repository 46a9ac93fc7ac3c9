//! Attaching a volume to a node, and detaching it.

use std::sync::Arc;

use serde_json::json;

use super::{stand_in::reconcile_twin, *};
use crate::{
    cluster::Rights,
    fleet::Link,
    placement::Declared,
    volume::{RealSource, mark},
};

#[tokio::test]
async fn publishing_attaches_under_a_name_of_our_own() {
    let world = World::new(Real::Works).await;
    let made = world.create().await.unwrap();
    let path = world.publish("n1").await.unwrap();
    assert_eq!(path.attachment["lun"], "7");
    let RealSource::Csi(source) = &path.source else {
        panic!("{path:?}")
    };
    assert_eq!(
        (source.driver.as_str(), source.handle.as_str()),
        ("real.test", "h-1")
    );
    assert!(source.wants.pod_info);

    let name = attachment_name(&made.context[TWIN_VOLUME], "n1");
    assert!(
        !name.starts_with("csi-"),
        "Kubernetes deletes what bears the name it would have given"
    );
    assert!(world.api.object(&format!("{ATTACHMENTS}/{name}")).is_some());
    assert_eq!(world.publish("n1").await.unwrap(), path);

    unpublish(&world.home, &world.id(), Some("n2"), world.until())
        .await
        .unwrap();
    assert_eq!(world.api.store().below(ATTACHMENTS).len(), 1);
    unpublish(&world.home, &world.id(), Some("n1"), world.until())
        .await
        .unwrap();
    assert!(world.api.store().below(ATTACHMENTS).is_empty());
    unpublish(&world.home, &world.id(), Some("n1"), world.until())
        .await
        .unwrap();
}

#[tokio::test]
async fn a_volume_of_this_cluster_is_not_attached_to_a_virtual_node() {
    let world = World::new(Real::Works).await;
    world.create().await.unwrap();
    let labels = json!({"to": "milan"});
    world
        .api
        .put("/api/v1/nodes/to-milan", json!({"metadata": {"labels": labels}}));
    let milan = Link::up(&world.api, Rights::ALL).await;
    let registry = Registry::fixed([(Declared::plain("milan"), milan)]);
    let (asked, until) = (&world.request.spec.capabilities, world.until());
    let id = world.id();
    let attached = publish(
        &world.home,
        &registry,
        &id,
        &Caller::User,
        "to-milan",
        asked,
        until,
    );
    let outcome = attached.await;
    assert!(
        matches!(&outcome, Err(PublishError::Unusable(why)) if why.contains("represents the cluster milan")),
        "{outcome:?}"
    );
    assert!(world.api.store().below(ATTACHMENTS).is_empty());
}

/// <https://kubernetes.io/docs/tasks/administer-cluster/change-pv-access-mode-readwriteoncepod/>
#[tokio::test]
async fn a_volume_is_attached_with_narrowed_access_modes() {
    let mut world = World::new(Real::Works).await;
    world.create().await.unwrap();
    let narrowed = Capability {
        mode: AccessMode::ReadWriteOncePod,
        access: Access::Mount {
            fs_type: None,
            flags: Vec::new(),
        },
    };
    world.request.spec.capabilities = Capabilities::new([narrowed]).unwrap();
    world.publish("n1").await.unwrap();
}

/// A watch may lag, be interrupted, or have only just begun.
#[tokio::test]
async fn an_attachment_missing_in_the_view_is_deleted_too() {
    for twin_is_there in [true, false] {
        let world = World::new(Real::Works).await;
        let made = world.create().await.unwrap();
        world.bind_claim(&made);
        world.publish("n1").await.unwrap();
        if !twin_is_there {
            world.api.remove(&twin_path());
        }
        let unwatched = world.api.cluster_unwatched().await;
        for node in ["n2", "n1"] {
            assert_eq!(world.api.store().below(ATTACHMENTS).len(), 1, "{node}");
            unpublish(&unwatched, &world.id(), Some(node), world.until())
                .await
                .unwrap();
        }
        assert!(world.api.store().below(ATTACHMENTS).is_empty());
    }
}

/// The cleanup may be about to delete an older attachment: publishing with it requires a new version of
/// it.
#[tokio::test]
async fn an_attachment_that_was_there_before_is_confirmed() {
    let world = World::new(Real::Works).await;
    let made = world.create().await.unwrap();
    let name = attachment_name(&made.context[TWIN_VOLUME], "n1");
    let attachment = || world.api.object(&format!("{ATTACHMENTS}/{name}")).unwrap();
    world.publish("n1").await.unwrap();
    let before = attachment();
    assert!(
        before["metadata"]["annotations"][mark::CONFIRMED].is_null(),
        "it is new"
    );
    for _ in 0..2 {
        let before = attachment();
        world.publish("n1").await.unwrap();
        assert_ne!(
            attachment()["metadata"]["resourceVersion"],
            before["metadata"]["resourceVersion"]
        );
    }
    assert_eq!(attachment()["metadata"]["uid"], before["metadata"]["uid"]);
}

#[tokio::test]
async fn volumes_nodes_and_modes_that_cannot_be_published_are_refused() {
    let world = World::new(Real::Works).await;
    assert!(matches!(
        world.publish("n1").await,
        Err(PublishError::NoTwin { .. })
    ));
    world.create().await.unwrap();
    assert!(matches!(
        world.publish("n9").await,
        Err(PublishError::NoNode { .. })
    ));
    let many = Capability {
        mode: AccessMode::ReadWriteMany,
        access: Access::Mount {
            fs_type: None,
            flags: Vec::new(),
        },
    };
    let asked = Capabilities::new([many]).unwrap();
    let refused = publish(
        &world.home,
        &Registry::default(),
        &world.id(),
        &Caller::User,
        "n1",
        &asked,
        world.until(),
    )
    .await;
    assert!(matches!(refused, Err(PublishError::Incapable(..))));
}

#[tokio::test]
async fn errors_of_the_real_attacher_are_passed_on() {
    let world = World::new(Real::Idle).await;
    let claim_twin = tokio::spawn({
        let api = Arc::clone(&world.api);
        async move {
            api.until(|store| store.get(&twin_path()).is_some()).await;
            reconcile_twin(&api, &api.object(&twin_path()).unwrap(), Real::Works);
        }
    });
    let made = world.create().await.unwrap();
    claim_twin.await.unwrap();

    let world = world.impatient();
    assert!(matches!(
        world.publish("n1").await,
        Err(PublishError::StillWaiting(_))
    ));
    let name = attachment_name(&made.context[TWIN_VOLUME], "n1");
    world.api.change(&format!("{ATTACHMENTS}/{name}"), |attachment| {
        attachment["status"] = json!({
            "attached": false, "attachError": {"message": "too many disks", "errorCode": 8},
        });
    });
    let error = world.publish("n1").await.unwrap_err();
    assert!(
        matches!(error, PublishError::Refused { code: Some(8), .. }),
        "{error}"
    );
}
