//! Deleting volumes whose twins are in a remote cluster, with an existing or a missing twin.

use super::{super::bind_claim, *};
use crate::placement::DeleteRefusal;

#[tokio::test]
async fn a_volume_is_deleted_with_its_data() {
    let world = World::new().await;
    let made = world.create().await.unwrap();
    world.bind().await;
    world.remember(made);
    world.delete_in_vain(&world.registry().await).await;
    assert!(world.twin().is_none(), "the twin goes at once");
    world.there.remove("/api/v1/persistentvolumes/pv");
    world.delete().await.unwrap();
}

/// The kubeconfig leads to a cluster that took the place of the one with the data.
#[tokio::test]
async fn a_twin_missing_in_a_replaced_cluster_does_not_count_as_deleted() {
    const SYSTEM: &str = "/api/v1/namespaces/kube-system";
    for by in [
        json!({"fabric": {}}),
        json!({"nodeSelector": {"matchLabels": {"to": "milan"}}}),
    ] {
        let world = World::new().await;
        let made = world.create().await.unwrap();
        world.bind().await;
        world.remember(made);
        let mut object = json!({
            "spec": {"kubeconfigSecretRef": {"name": "milan"}},
            "status": {"virtualNode": {"clusterUid": "before"}},
        });
        object["spec"]
            .as_object_mut()
            .unwrap()
            .extend(by.as_object().unwrap().clone());
        world
            .home_api
            .put("/apis/storage.liqo.io/v1alpha1/remoteclusters/milan", object);
        world.there.remove(TWIN);
        world.there.remove("/api/v1/persistentvolumes/pv");
        world.there.put(SYSTEM, json!({"metadata": {"uid": "after"}}));
        let outcome = world.delete().await;
        assert!(
            matches!(&outcome, Err(DeleteError::Unknown(why)) if why.contains("another cluster than before")),
            "{outcome:?}"
        );
        world.there.put(SYSTEM, json!({"metadata": {"uid": "before"}}));
        world.delete().await.unwrap();
    }
}

/// The clone was confirmed before it was bound, so that csi-provisioner no longer protects its source.
#[tokio::test]
async fn the_source_of_a_clone_is_deleted_after_it_is_copied() {
    const COPY: &str = "/api/v1/namespaces/shop-home/persistentvolumeclaims/copy";
    for all_claims in [true, false] {
        let mut world = World::new().await;
        world.rights.all_claims = all_claims;
        let made = world.create().await.unwrap();
        let mut copy = world.twin().unwrap();
        world.bind().await;
        world.remember(made);
        copy["metadata"]["annotations"][mark::CLAIM_NAME] = "copy".into();
        copy["metadata"]["uid"] = "copy".into();
        copy["spec"]["dataSource"] = json!({"kind": "PersistentVolumeClaim", "name": "data"});
        world.there.put(COPY, copy);
        let registry = world.registry().await;
        let outcome = world.delete_within(&registry, A_MOMENT).await;
        assert!(
            matches!(
                &outcome,
                Err(DeleteError::Refused { refusal: DeleteRefusal::ToBeCopied(copy), .. })
                    if copy == "the claim shop/copy, the twin shop-home/copy in the cluster milan"
            ),
            "{outcome:?}"
        );
        assert!(world.twin().is_some());
        world
            .there
            .change(COPY, |copy| copy["spec"]["volumeName"] = "copied".into());
        world.there.remove("/api/v1/persistentvolumes/pv");
        world.delete().await.unwrap();
    }
}

/// As in a namespace that is being deleted, whose Role is deleted first.
#[tokio::test]
async fn the_finalizer_of_a_deleted_twin_is_removed_where_claims_may_not_be_listed() {
    let world = World::new().await;
    let made = world.create().await.unwrap();
    world.bind().await;
    world.remember(made);
    world.there.change(TWIN, |twin| {
        twin["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    });
    world.there.remove("/api/v1/persistentvolumes/pv");
    world
        .there
        .fault(Fault::new("GET", "persistentvolumeclaims?", Act::Refuse(403)));
    world.delete().await.unwrap();
    assert_eq!(world.twin(), None);
}

/// `CreateVolume` succeeded before the twin was bound, so the virtual PV does not name the twin's PV.
#[tokio::test]
async fn pvs_are_not_listed_for_a_deletion_that_takes_several_calls() {
    let world = World::new().await;
    let made = world.create().await.unwrap();
    assert_eq!(made.context[TWIN_VOLUME], "");
    world.bind().await;
    world.remember(made);
    let registry = world.registry().await;
    for _ in 0..3 {
        world.delete_in_vain(&registry).await;
    }
    world.there.remove("/api/v1/persistentvolumes/pv");
    let count = |api: &FakeApi, path: &str| {
        let requests = api.requests();
        requests
            .iter()
            .filter(|call| **call == format!("GET {path}"))
            .count()
    };
    let outer = format!("/api/v1/persistentvolumes/pvc-{UID}");
    let before = count(&world.home_api, &outer);
    world.delete_within(&registry, TEST_TIMEOUT).await.unwrap();
    assert_eq!(count(&world.there, "/api/v1/persistentvolumes"), 0);
    assert_eq!(
        count(&world.home_api, &outer) - before,
        1,
        "where the twin is and whose it is says the same object"
    );
}

#[tokio::test]
async fn the_volume_of_a_claim_that_exists_is_not_deleted() {
    let world = World::new().await;
    let made = world.create().await.unwrap();
    world.bind().await;
    bind_claim(&world.home_api, "milan", &made);
    let refused = |outcome: Result<(), DeleteError>| {
        matches!(
            outcome,
            Err(DeleteError::Refused {
                refusal: DeleteRefusal::Claimed(_),
                ..
            })
        )
    };
    assert!(refused(world.delete().await));
    assert!(world.twin().is_some());
    // Not even if it has lost its twin, and its PV no longer records where that was: csi-provisioner
    // would delete the PV of a claim that exists.
    world.there.remove(TWIN);
    world
        .home_api
        .change(&format!("/api/v1/persistentvolumes/pvc-{UID}"), |volume| {
            volume["spec"]["csi"]["volumeAttributes"] = json!({});
        });
    assert!(refused(world.delete().await));
}

/// A user has created the PV again under another name, and the namespace is not offloaded any more.
#[tokio::test]
async fn a_volume_is_found_through_a_pv_with_another_name() {
    let mut world = World::new().await;
    let made = world.create().await.unwrap();
    world.bind().await;
    world.remember(made);
    let first = format!("/api/v1/persistentvolumes/pvc-{UID}");
    let mut again = world.home_api.object(&first).unwrap();
    again["metadata"] = json!({"name": "rescued"});
    world.home_api.put("/api/v1/persistentvolumes/rescued", again);
    world.home_api.remove(&first);
    let volumes = world.home.views().volumes.clone();
    while volumes.virtual_volume("rescued").is_none() {
        tokio::task::yield_now().await;
    }
    (world.declared, world.rights.all_claims) = (Declared::plain("milan"), false);
    world.delete_in_vain(&world.registry().await).await;
    assert!(world.twin().is_none(), "the twin goes at once");
    world.there.remove("/api/v1/persistentvolumes/pv");
    world.delete().await.unwrap();
}

#[tokio::test]
async fn a_later_claim_of_that_name_does_not_block_a_deletion() {
    let world = World::new().await;
    // No PV records the twin, and another claim with a PV of its own has its name.
    let occupant = world.there.put(TWIN, json!({"spec": {"volumeName": "pv"}}));
    world.there.put(
        "/api/v1/persistentvolumes/pv",
        json!({"spec": {"claimRef": {
            "namespace": "shop-home", "name": "data", "uid": occupant["metadata"]["uid"],
        }}, "status": {"phase": "Bound"}}),
    );
    world.delete().await.unwrap();
    assert!(world.twin().is_some());
}

/// Otherwise the volume would count as deleted, and its data would stay in the remote cluster.
#[tokio::test]
async fn a_twin_without_its_labels_is_not_a_later_claim() {
    for is_marked in [false, true] {
        let world = World::new().await;
        let mut made = world.create().await.unwrap();
        world.bind().await;
        if is_marked {
            let of = format!("home/pvc-{UID}");
            world.there.change("/api/v1/persistentvolumes/pv", |volume| {
                volume["metadata"]["annotations"][mark::DATA_OF] = of.clone().into();
            });
        } else {
            made.context.insert(TWIN_VOLUME.to_owned(), "pv".to_owned());
        }
        world.remember(made);
        world
            .there
            .change(TWIN, |twin| twin["metadata"]["labels"] = json!({}));
        let refused = world.delete().await;
        assert!(
            matches!(
                refused,
                Err(DeleteError::Refused {
                    refusal: DeleteRefusal::Foreign(_),
                    ..
                })
            ),
            "{is_marked}: {refused:?}"
        );
        assert!(world.twin().is_some());
    }
}

#[tokio::test]
async fn an_older_retained_volume_of_that_name_is_not_deleted() {
    let world = World::new().await;
    let made = world.create().await.unwrap();
    assert_eq!(made.context[TWIN_VOLUME], "", "answered before it was bound");
    world.remember(made);
    world.bind().await;
    world.left_over("a-older", &json!({}), Some("gone"));
    // The driver was not running when the twin was deleted.
    world.there.remove(TWIN);
    world.delete_in_vain(&world.registry().await).await;
    world.there.remove("/api/v1/persistentvolumes/pv");
    world.delete().await.unwrap();
}

#[tokio::test]
async fn only_the_volumes_own_recovered_data_is_deleted() {
    let rescued = |of: &str| json!({mark::POLICY_BEFORE: "Delete", mark::DATA_OF: format!("home/{of}")});
    for uid in [Some("gone"), None] {
        let world = World::new().await;
        let made = world.create().await.unwrap();
        world.remember(made);
        world.there.remove(TWIN);
        world.left_over("a-older", &rescued("pvc-older"), Some("gone"));
        world.left_over("pv", &rescued(&format!("pvc-{UID}")), uid);
        world.delete_in_vain(&world.registry().await).await;
        let spec = |name: &str| {
            world
                .there
                .object(&format!("/api/v1/persistentvolumes/{name}"))
                .unwrap()["spec"]
                .clone()
        };
        assert_eq!(spec("pv")["persistentVolumeReclaimPolicy"], "Delete");
        assert!(
            !spec("pv")["claimRef"]["uid"].is_null(),
            "without a uid Kubernetes would keep it reserved"
        );
        assert_eq!(spec("a-older")["persistentVolumeReclaimPolicy"], "Retain");
        world.there.remove("/api/v1/persistentvolumes/pv");
        world.delete().await.unwrap();
    }
}

#[tokio::test]
async fn unidentified_recovered_data_is_not_deleted() {
    let world = World::new().await;
    let made = world.create().await.unwrap();
    world.remember(made);
    world.there.remove(TWIN);
    world.left_over("pv", &json!({mark::POLICY_BEFORE: "Delete"}), Some("gone"));
    let error = world.delete().await.unwrap_err();
    assert!(
        error.to_string().contains("nothing shows whose data it has"),
        "{error}"
    );
    let kept = world.there.object("/api/v1/persistentvolumes/pv").unwrap();
    assert_eq!(kept["spec"]["persistentVolumeReclaimPolicy"], "Retain");
}

#[tokio::test]
async fn with_unknown_rights_no_deletion_is_confirmed() {
    let mut world = World::new().await;
    let made = world.create().await.unwrap();
    world.bind().await;
    world.remember(made);
    world.there.remove(TWIN);
    // With the fewest rights a volume counts as deleted when its twin is.
    world.rights = Rights::default();
    world.delete().await.unwrap();
    world.rights.uncertain = true;
    assert!(matches!(world.delete().await, Err(DeleteError::Unknown(_))));
}
