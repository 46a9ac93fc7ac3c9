//! The twin at the target.

use super::*;

#[tokio::test]
async fn a_remote_twin_has_the_mapped_class_the_claims_name_and_the_larger_size() {
    let world = World::new(Way::Out).await;
    assert_eq!(world.make_target().await.unwrap(), Applied::Done);
    let twin = world.there.object(TWIN_THERE).unwrap();
    assert_eq!(twin["spec"]["storageClassName"], "mapped");
    assert_eq!(twin["spec"]["resources"]["requests"]["storage"], "2Gi");
    assert_eq!(twin["spec"]["accessModes"], json!(["ReadWriteOnce"]));
    assert_eq!(twin["spec"]["volumeMode"], "Filesystem");
    assert_eq!(twin["metadata"]["finalizers"], Value::Null);
    let (labels, annotations) = (&twin["metadata"]["labels"], &twin["metadata"]["annotations"]);
    assert_eq!(labels[mark::MOVE], MOVE);
    assert_eq!(
        (&labels["app"], &annotations["team"]),
        (&json!("db"), &json!("blue"))
    );
    assert_eq!(annotations[mark::EPOCH], "1");
    assert_eq!(annotations[mark::HANDED_OVER], Value::Null);
    // No node: its mover determines it.
    assert_eq!(annotations["volume.kubernetes.io/selected-node"], Value::Null);
}

#[tokio::test]
async fn a_twin_at_home_has_its_epoch_in_its_name_and_a_selected_node() {
    for way in [Way::Home, Way::Within] {
        let world = World::new(way).await;
        assert_eq!(world.make_target().await.unwrap(), Applied::Done);
        let twin = world.api.object(&twin_at_home(first())).unwrap();
        assert_eq!(twin["metadata"]["name"], format!("{UID}-1"));
        assert_eq!(twin["spec"]["storageClassName"], "real");
        let annotations = &twin["metadata"]["annotations"];
        assert_eq!(annotations["volume.kubernetes.io/selected-node"], "n2");
        assert_eq!(
            annotations["volume.kubernetes.io/storage-provisioner"],
            "real.test"
        );
    }
}

#[tokio::test]
async fn the_user_may_name_a_class_that_is_allowed_and_modes() {
    let mut world = World::new(Way::Out).await;
    let target = |class: &str| json!({"target": {"cluster": "milan", "storageClassName": class, "accessModes": ["ReadWriteMany"]}});
    world.of = request(target("real"));
    let refused = world.make_target().await.unwrap_err().to_string();
    assert!(
        refused.contains("nor in the allow-list of the driver (instant)"),
        "{refused}"
    );
    world.of = request(target("instant"));
    world.make_target().await.unwrap();
    let twin = world.there.object(TWIN_THERE).unwrap();
    assert_eq!(twin["spec"]["storageClassName"], "instant");
    assert_eq!(twin["spec"]["accessModes"], json!(["ReadWriteMany"]));
}

/// The preflight and the creation of the twin give the same reason.
#[tokio::test]
async fn at_home_access_modes_that_cannot_be_attached_are_refused() {
    for (way, refused) in [(Way::Home, true), (Way::Within, true), (Way::Out, false)] {
        let world = World::new(way).await;
        let path = format!("{VOLUMES}/{}", name());
        let mut outer = world.api.object(&path).unwrap();
        outer["spec"]["accessModes"] = json!(["ReadWriteOnce", "ReadOnlyMany"]);
        world.api.remove(&path);
        world.api.put(&path, outer);
        let told = target_class(&world.moved, &Policy::default(), &world.of).await;
        let made = world.make_target().await;
        if refused {
            let told = told.unwrap().unwrap().unwrap_err().to_string();
            assert!(told.contains("ReadWriteOnce and ReadOnlyMany"), "{told}");
            assert_eq!(made.unwrap_err().to_string(), told);
        } else {
            assert_eq!(made.unwrap(), Applied::Done);
        }
    }
}

/// `liqo-csi move undo` requests it by name.
#[tokio::test]
async fn any_user_may_choose_the_class_of_a_new_claim() {
    for (way, class) in [(Way::Out, "mapped"), (Way::Home, "real"), (Way::Within, "real")] {
        let mut world = World::new(way).await;
        let mut target = json!({"nodeName": "n2", "storageClassName": class});
        if way == Way::Out {
            target = json!({"cluster": "milan", "storageClassName": class});
        }
        world.of = request(json!({"target": target}));
        world.make_target().await.unwrap();
        let made = match way {
            Way::Out => world.there.object(TWIN_THERE),
            Way::Home | Way::Within => world.api.object(&twin_at_home(first())),
        };
        assert_eq!(made.unwrap()["spec"]["storageClassName"], class);
        let none = Policy::default();
        let told = target_class(&world.moved, &none, &world.of).await.unwrap();
        assert_eq!(told.unwrap().unwrap(), class);
    }
}

#[tokio::test]
async fn the_class_of_the_target_is_reported_if_its_cluster_is_reachable() {
    let mut world = World::new(Way::Out).await;
    let none = Policy::default();
    let told = target_class(&world.moved, &none, &world.of).await.unwrap();
    assert_eq!(told.unwrap().unwrap(), "mapped");
    world.of = request(json!({"target": {"cluster": "milan", "storageClassName": "instant"}}));
    let told = target_class(&world.moved, &none, &world.of)
        .await
        .unwrap()
        .unwrap();
    let said = told.unwrap_err().to_string();
    assert!(
        said.contains("nor in the allow-list of the driver (it is empty)"),
        "{said}"
    );
    world.moved.target.place = Place::Unreachable("cut off".into());
    assert!(
        target_class(&world.moved, &none, &world.of)
            .await
            .unwrap()
            .is_none()
    );
}

#[tokio::test]
async fn a_foreign_object_in_place_of_the_target_is_reported_and_not_touched() {
    let world = World::new(Way::Out).await;
    world.there.put(TWIN_THERE, json!({"metadata": {"uid": "x"}}));
    assert_eq!(world.make_target().await.unwrap(), Applied::ChangedMeanwhile);
    let seen = world.moved.observe().await.unwrap().target;
    let crate::placement::moving::TargetTwin::Foreign(what) = known(seen) else {
        panic!("it is taken for our own");
    };
    assert!(what.starts_with("shop-home/data: "), "{what}");
}

/// A PV that was bound to another claim later, for example after a rescue or by a populator.
#[tokio::test]
async fn the_target_of_a_volume_bound_to_another_claim_is_found() {
    let again = "2f9f7e1c-1a0e-4a53-9d0c-0d2c7ef1a333";
    for way in [Way::Out, Way::Home, Way::Within] {
        let mut world = World::new(way).await;
        let mut claim = world.api.object(CLAIM).unwrap();
        claim["metadata"]["uid"] = again.into();
        world.api.remove(CLAIM);
        world.api.put(CLAIM, claim);
        world.moved.claim.uid = again.into();
        assert_eq!(world.make_target().await.unwrap(), Applied::Done);
        let seen = known(world.moved.observe().await.unwrap().target);
        assert!(
            matches!(
                seen,
                crate::placement::moving::TargetTwin::Exists {
                    handed_over: false,
                    ..
                }
            ),
            "{seen:?}"
        );
    }
}

#[tokio::test]
async fn a_target_created_before_a_crash_is_found() {
    let world = World::new(Way::Out).await;
    let lost = Fault::new("POST", "/shop-home/persistentvolumeclaims", Act::DoAndRefuse(422)).times(1);
    world.there.fault(lost);
    assert!(world.make_target().await.is_err());
    assert_eq!(world.make_target().await.unwrap(), Applied::ChangedMeanwhile);
    let seen = known(world.moved.observe().await.unwrap().target);
    assert!(
        matches!(
            seen,
            crate::placement::moving::TargetTwin::Exists {
                handed_over: false,
                ..
            }
        ),
        "{seen:?}"
    );
}

#[tokio::test]
async fn unsuitable_nodes_and_unreachable_clusters_are_reported() {
    let mut world = World::new(Way::Within).await;
    world.of = request(json!({"target": {"nodeName": "n9"}}));
    let refused = world.make_target().await.unwrap_err().to_string();
    assert!(refused.contains("n9"), "{refused}");
    world.moved.target.place = Place::Unreachable("cut off".into());
    assert!(matches!(
        world.make_target().await,
        Err(GateError::Unreachable { .. })
    ));
}

fn known<T>(live: Live<T>) -> T {
    match live {
        Live::Known(known) => known,
        Live::Unknown(why) => panic!("{why}"),
    }
}
