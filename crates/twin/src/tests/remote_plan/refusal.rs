//! Twins that a remote cluster cannot have: the errors, and the remembered refusals.

use super::*;

#[tokio::test]
async fn an_impossible_placement_is_refused_without_a_write() {
    let mut world = World::new().await;
    world.declared.namespaces = Namespaces::default();
    assert!(matches!(
        world.create().await,
        Err(CreateError::NoSite(NoSite::Unmapped(_)))
    ));

    let silent = Registry::fixed([(declared(), Link::Unreachable("no route".into()))]);
    let error = world.create_with(&silent).await.unwrap_err();
    assert!(error.to_string().contains("no route"), "{error}");
    // A node whose cluster is no longer declared is not a real node.
    let unknown = world.create_with(&Registry::default()).await.unwrap_err();
    assert!(unknown.to_string().contains("not known"), "{unknown}");
    assert!(world.twin().is_none());
}

#[tokio::test]
async fn a_class_absent_in_the_cluster_makes_the_scheduler_try_elsewhere() {
    let mut world = World::new().await;
    world.declared.classes.default = Some("gold".into());
    let why = elsewhere(world.create().await);
    assert!(why.contains("gold") && why.contains("milan"), "{why}");
    assert!(
        why.contains("spec.storageClasses of the RemoteCluster milan"),
        "{why}"
    );
    assert_eq!(
        world.noted(),
        None,
        "what room others have there is known without it"
    );

    // Liqo's annotation counts, within the allowed classes.
    claim(&world.home_api, &json!({mark::LIQO_REAL_CLASS: "instant"}));
    assert!(matches!(world.create().await, Err(CreateError::Class(_))));
    world.policy.allowed_classes = ["instant".to_owned()].into();
    world.create_in_vain().await;
    assert_eq!(world.twin().unwrap()["spec"]["storageClassName"], "instant");
}

#[tokio::test]
async fn unsupported_requests_are_refused() {
    let mut world = World::new().await;
    world.home_api.change(CLAIM, |claim| {
        claim["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": true}]);
    });
    assert!(elsewhere(world.create().await).contains("generic ephemeral"));
    assert_eq!(world.noted(), None, "other claims have room there");

    claim(&world.home_api, &json!({}));
    let capability = Capability {
        mode: AccessMode::ReadWriteOnce,
        access: Access::Mount {
            fs_type: None,
            flags: vec!["noatime".into()],
        },
    };
    world.request.spec.capabilities = Capabilities::new([capability]).unwrap();
    let error = world.create().await.unwrap_err();
    assert!(error.to_string().contains("mountOptions"), "{error}");
    assert!(world.twin().is_none());
}

#[tokio::test]
async fn a_claim_of_others_with_that_name_is_not_touched() {
    let world = World::new().await;
    world
        .there
        .put(TWIN, json!({"spec": {"storageClassName": "real"}}));
    let before = world.twin();
    let error = world.create().await.unwrap_err();
    assert!(
        matches!(
            &error,
            CreateError::Refused {
                refusal: Refusal::Foreign(Foreign::Unmarked(_)),
                ..
            }
        ),
        "{error}"
    );
    // Deleting the volume does not change it either.
    world.delete().await.unwrap();
    assert_eq!(world.twin(), before);
}

#[tokio::test]
async fn a_quota_sends_the_pod_elsewhere_and_is_remembered() {
    let world = World::new().await;
    let quota = Act::Forbid("exceeded quota: storage, requested: 1Gi, used: 9Gi, limited: 9Gi");
    world
        .there
        .fault(Fault::new("POST", "shop-home/persistentvolumeclaims", quota));
    assert!(elsewhere(world.create().await).contains("exceeded quota"));
    assert_eq!(world.noted(), Some(GIB.unsigned_abs()));
    let claim = world.home_api.object(CLAIM).unwrap();
    let theirs = claim["metadata"]["annotations"].as_object().unwrap();
    assert!(
        theirs.keys().all(|key| !key.starts_with("storage.liqo.io/")),
        "{claim}"
    );
    // The same refusal again causes no write, and expired ones are removed.
    let noted = world.home_api.object(REFUSALS);
    elsewhere(world.create().await);
    assert_eq!(world.home_api.object(REFUSALS), noted);
    world.home_api.change(REFUSALS, |notes| {
        notes["data"] =
            json!({"old": r#"{"class":"liqo","cluster":"milan","bytes":1,"until":5}"#, "odd": "?"});
    });
    elsewhere(world.create().await);
    assert_eq!(world.noted(), Some(GIB.unsigned_abs()));
}

#[tokio::test]
async fn a_denied_claim_makes_the_scheduler_try_elsewhere() {
    let denied = "ValidatingAdmissionPolicy 'labels' with binding 'labels' denied request: no label";
    for code in [400, 403, 422] {
        let world = World::new().await;
        let denied = Act::Deny(code, denied);
        world
            .there
            .fault(Fault::new("POST", "shop-home/persistentvolumeclaims", denied));
        assert!(elsewhere(world.create().await).contains("no label"));
        assert_eq!(world.noted(), Some(GIB.unsigned_abs()));
    }
}

#[tokio::test]
async fn a_missing_class_parameter_is_not_remembered_for_the_cluster() {
    let mut world = World::new().await;
    world.declared.classes.default = None;
    world.rights = Rights::default();
    world.policy.allowed_classes = ["gold".to_owned()].into();
    let why = elsewhere(world.create().await);
    assert!(
        why.contains("has to be named") && why.contains("allowed: gold"),
        "{why}"
    );
    assert_eq!(world.noted(), None);
}

#[tokio::test]
async fn a_node_rejected_by_the_driver_is_remembered() {
    let mut world = World::new().await;
    world.request.spec.parameters.binding_policy = Some(BindingPolicy::WaitForBound);
    let full = async {
        world.there.until(|store| store.get(TWIN).is_some()).await;
        world.there.change(TWIN, |twin| {
            let annotations = twin["metadata"]["annotations"].as_object_mut().unwrap();
            annotations.remove("volume.kubernetes.io/selected-node");
        });
    };
    let (outcome, ()) = tokio::join!(world.create(), full);
    assert!(elsewhere(outcome).contains("driver"));
    assert!(world.twin().is_none());
    assert_eq!(world.noted(), Some(GIB.unsigned_abs()));
}

#[tokio::test]
async fn a_missing_role_is_not_final() {
    let world = World::new().await;
    let rbac =
        Act::Forbid("cannot create resource \"persistentvolumeclaims\" in the namespace \"shop-home\"");
    world
        .there
        .fault(Fault::new("POST", "shop-home/persistentvolumeclaims", rbac));
    assert!(matches!(world.create().await, Err(CreateError::Api(_))));
}

#[tokio::test]
async fn a_cluster_that_is_being_deleted_takes_no_new_volumes() {
    let world = World::new().await;
    let registry = world.registry().await.leaving();
    let why = elsewhere(world.create_with(&registry).await);
    assert!(why.contains("being deleted"), "{why}");
    assert!(world.twin().is_none());

    // A twin that was already created is completed.
    assert!(world.create().await.is_ok());
    assert!(world.create_with(&registry).await.is_ok());
}

/// Spark makes the driver or the executor the controller of the claims that it creates for executors.
#[tokio::test]
async fn a_claim_that_its_pod_uses_by_name_is_no_ephemeral_volume() {
    let world = World::new().await;
    world.home_api.change(CLAIM, |claim| {
        claim["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": true}]);
    });
    let volumes = json!([
        {"name": "local", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "scratch", "ephemeral": {}},
    ]);
    world.home_api.put(
        "/api/v1/namespaces/shop/pods/p",
        json!({"spec": {"containers": [], "volumes": volumes}}),
    );
    world.create().await.unwrap();
    assert!(world.twin().is_some());
}
