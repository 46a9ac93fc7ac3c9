//! Deleting a volume: its data first, and never while its claim exists.

use serde_json::json;

use super::*;
use crate::{
    cluster::testing::{Act, Fault, StoppedClock},
    placement::DeleteRefusal,
};

impl World {
    /// Deletes the volume; the deadline passes when `done` is true.
    async fn delete_until(&self, done: impl Future<Output = ()>) -> Result<(), DeleteError> {
        let time_is_up = async {
            done.await;
            tokio::time::advance(self.deadline).await;
        };
        let _clock = StoppedClock::new();
        tokio::join!(self.delete(), time_is_up).0
    }

    /// Waits until the view shows that the twin is deleted.
    async fn twin_is_seen_gone(&self) {
        let twins = self.home.twins_in("liqo-storage");
        let mut changes = twins.subscribe(UID);
        while self.twin().is_some() || twins.count_of_topic(UID) > 0 {
            changes.next(TEST_TIMEOUT).await;
        }
    }
}

#[tokio::test]
async fn deleted_means_that_the_real_volume_is_gone() {
    let world = World::new(Real::Works).await;
    let made = world.create().await.unwrap();
    let volume = format!("{VOLUMES}/{}", made.context[TWIN_VOLUME]);
    // The real driver fails to delete: the fake controllers do not change PVs in phase Released.
    world.api.change(&volume, |volume| {
        volume["status"] = json!({"phase": "Released", "message": "disk is busy"});
    });
    let world = world.impatient();
    let error = world.delete_until(world.twin_is_seen_gone()).await.unwrap_err();
    assert!(error.to_string().contains("disk is busy"), "{error}");
    assert_eq!(world.twin(), None, "the twin goes at once");

    let error = world.delete().await.unwrap_err();
    assert!(
        matches!(error, DeleteError::StillWaiting { .. }),
        "found again without the twin: {error}"
    );
    world.api.remove(&volume);
    world.delete().await.unwrap();
    world.delete().await.unwrap();
}

/// What blocks it may be a pod that uses the twin, a snapshot or a copy under way, or a controller
/// that has left its finalizer.
#[tokio::test]
async fn the_finalizers_that_keep_a_deleted_twin_are_reported() {
    let world = World::new(Real::Works).await;
    world.create().await.unwrap();
    world.api.change(&twin_path(), |twin| {
        let finalizers = twin["metadata"]["finalizers"].as_array_mut().unwrap();
        finalizers.push("example.com/copying".into());
    });
    let error = world.impatient().delete().await.unwrap_err().to_string();
    assert!(
        error.ends_with("still exists in cluster home: it has the finalizers example.com/copying"),
        "{error}"
    );
}

#[tokio::test]
async fn an_attached_volume_is_not_deleted() {
    let world = World::new(Real::Works).await;
    world.create().await.unwrap();
    world.publish("n1").await.unwrap();
    assert!(matches!(
        world.delete().await,
        Err(DeleteError::Refused { refusal: DeleteRefusal::Attached(node), .. }) if node == "n1"
    ));
    assert!(world.twin().is_some());
}

/// The claim was deleted right after its user changed the reclaim policy back to Delete.
#[tokio::test]
async fn a_volume_retained_by_this_driver_is_deleted_nevertheless() {
    let world = World::new(Real::Works).await;
    class(
        &world.api,
        "liqo",
        "storage.liqo.io",
        "WaitForFirstConsumer",
        "Retain",
    );
    let views = world.home.views().classes.clone();
    while views
        .get("liqo")
        .is_none_or(|class| class.reclaim == crate::placement::ReclaimPolicy::Delete)
    {
        tokio::task::yield_now().await;
    }
    let made = world.create().await.unwrap();
    let real = format!("{VOLUMES}/{}", made.context[TWIN_VOLUME]);
    let api = std::sync::Arc::clone(&world.api);
    let policy = || {
        api.object(&real)
            .map(|real| real["spec"]["persistentVolumeReclaimPolicy"].clone())
    };
    assert_eq!(policy(), Some("Retain".into()));
    let world = world.impatient();
    // The fake controllers do not change a PV in phase Released.
    let given_back = world
        .api
        .until(|store| store.get(&real).unwrap()["spec"]["persistentVolumeReclaimPolicy"] == "Delete");
    assert!(matches!(
        world.delete_until(given_back).await,
        Err(DeleteError::StillWaiting { .. })
    ));
    assert_eq!(policy(), Some("Delete".into()));
    world.api.remove(&real);
    world.delete().await.unwrap();
}

/// csi-provisioner calls as soon as it sees Released and Delete, also when a user is just restoring the
/// claimRef of a PV.
#[tokio::test]
async fn the_volume_of_a_claim_that_exists_is_not_deleted() {
    let virtual_volume = format!("{VOLUMES}/pvc-{UID}");
    // The claimRef while it is changed, and after it is restored.
    for uid in ["another", UID] {
        let world = World::new(Real::Works).await;
        let made = world.create().await.unwrap();
        world.bind_claim(&made);
        world.api.change(&virtual_volume, |volume| {
            volume["spec"]["claimRef"]["uid"] = uid.into();
            volume["status"]["phase"] = "Released".into();
        });
        let twin = world.twin();
        let refused = world.delete().await;
        assert!(
            matches!(
                &refused,
                Err(DeleteError::Refused { refusal: DeleteRefusal::Claimed(claim), .. }) if claim.name == "data"
            ),
            "{uid}: {refused:?}"
        );
        assert_eq!(world.twin(), twin);
        assert_eq!(told(&world.api), ["VolumeNotDeleted"]);

        world.api.remove(CLAIM);
        world.delete().await.unwrap();
        assert_eq!(world.twin(), None);
    }
}

const RESCUED: &str = "/api/v1/namespaces/bank/persistentvolumeclaims/rescued";

/// A user creates another PV for the data of a volume, binds another claim to it, and deletes the first claim.
fn rescue(world: &World) {
    world.api.remove(CLAIM);
    let first = format!("{VOLUMES}/pvc-{UID}");
    let mut second = world.api.object(&first).unwrap();
    let of = json!({"namespace": "bank", "name": "rescued", "uid": "another"});
    second["metadata"] = json!({"name": "rescued"});
    second["spec"]["claimRef"] = of;
    let second_path = format!("{VOLUMES}/rescued");
    world.api.put(&second_path, second);
    let claim = json!({"metadata": {"uid": "another"}, "spec": {"volumeName": "rescued"}});
    world.api.put(RESCUED, claim);
}

fn is_refused_for_the_rescued(outcome: &Result<(), DeleteError>) -> bool {
    matches!(
        outcome,
        Err(DeleteError::Refused { refusal: DeleteRefusal::Claimed(claim), .. }) if claim.name == "rescued"
    )
}

#[tokio::test]
async fn the_volume_of_a_claim_that_has_it_through_another_pv_is_not_deleted() {
    let world = World::new(Real::Works).await;
    let made = world.create().await.unwrap();
    world.bind_claim(&made);
    rescue(&world);
    while world.home.views().volumes.virtual_volume("rescued").is_none() {
        tokio::task::yield_now().await;
    }
    let refused = world.delete().await;
    assert!(is_refused_for_the_rescued(&refused), "{refused:?}");
    assert!(world.twin().is_some());

    world.api.remove(RESCUED);
    world.delete().await.unwrap();
    assert_eq!(world.twin(), None);
}

#[tokio::test]
async fn another_pv_is_found_while_pvs_cannot_be_watched() {
    let world = World::new(Real::Works).await;
    let made = world.create().await.unwrap();
    world.bind_claim(&made);
    world
        .api
        .fault(Fault::new("GET", "/persistentvolumes", Act::RefuseWatch(500)));
    world.api.cut_watches();
    while world.home.views().volumes.outdated_since().is_none() {
        tokio::task::yield_now().await;
    }
    rescue(&world);
    let refused = world.delete().await;
    assert!(is_refused_for_the_rescued(&refused), "{refused:?}");
    assert!(world.twin().is_some());
}

#[tokio::test]
async fn a_recreated_claim_is_noticed_before_the_data_is_deleted() {
    let world = World::new(Real::Works).await;
    let made = world.create().await.unwrap();
    world.bind_claim(&made);
    let claim = world.api.object(CLAIM).unwrap();
    let other = json!({"metadata": {"uid": "another"}, "spec": {"storageClassName": "liqo"}});
    world.api.put(CLAIM, other);
    let virtual_volume = format!("{VOLUMES}/pvc-{UID}");
    world.api.change(&virtual_volume, |volume| {
        volume["spec"]["claimRef"]["uid"] = "gone".into();
    });
    world.api.before("DELETE", &twin_path(), move |store| {
        store.put(CLAIM, claim);
        let mut volume = store.get(&virtual_volume).unwrap();
        volume["spec"]["claimRef"]["uid"] = UID.into();
        store.put(&virtual_volume, volume);
    });
    assert!(matches!(
        world.delete().await,
        Err(DeleteError::Refused {
            refusal: DeleteRefusal::Claimed(_),
            ..
        })
    ));
    let twin = world
        .twin()
        .expect("our finalizer holds it until its data is safe");
    assert!(!twin["metadata"]["deletionTimestamp"].is_null());
}
