//! The dry run finds what blocks a move, and creates nothing.

use super::*;

#[tokio::test]
async fn refusals_are_found_by_dry_run() {
    let mut world = World::new(Way::Out).await;
    let found = world.helpers.obstacles(&world.moved, &world.of).await.unwrap();
    assert_eq!(found, Vec::<String>::new());
    world.of =
        request(json!({"target": {"cluster": "milan", "storageClassName": "gold"}, "warm": "Snapshot"}));
    for (collection, why) in [
        ("/shop-home/pods", "violates PodSecurity \"restricted:latest\""),
        ("/shop-home/secrets", "secrets is forbidden"),
    ] {
        world
            .there
            .fault(Fault::new("POST", collection, Act::Forbid(why)));
    }
    let found = world.helpers.obstacles(&world.moved, &world.of).await.unwrap();
    let said = |part: &str| assert!(found.iter().any(|one| one.contains(part)), "{part}: {found:?}");
    said("spec.warm");
    said("\"gold\", which is neither");
    said("restricted:latest");
    said("secrets is forbidden");
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(world.all().is_empty());
    assert_eq!(world.there.object(TWIN_THERE), None);
}

#[tokio::test]
async fn an_exceeded_quota_is_an_obstacle_and_an_unreachable_cluster_an_error() {
    let world = World::new(Way::Out).await;
    let quota = Act::Forbid("exceeded quota: storage");
    world
        .there
        .fault(Fault::new("POST", "/shop-home/persistentvolumeclaims", quota).times(1));
    let found = world.helpers.obstacles(&world.moved, &world.of).await.unwrap();
    assert!(
        matches!(found.as_slice(), [one] if one.contains("exceeded quota")),
        "{found:?}"
    );
    world
        .there
        .fault(Fault::new("POST", "/shop-home/pods", Act::Refuse(500)));
    assert!(world.helpers.obstacles(&world.moved, &world.of).await.is_err());
}

/// The claim of the mover of a remote source, and the change of its PV.
#[tokio::test]
async fn a_denied_remote_gate_is_reported_before_the_move() {
    let world = World::new(Way::Home).await;
    world
        .there
        .change(TWIN_THERE, |twin| twin["spec"]["volumeName"] = "real-1".into());
    let twin = world.there.object(TWIN_THERE).unwrap();
    let path = format!("{VOLUMES}/real-1");
    world.there.put(
        &path,
        json!({"spec": {
            "claimRef": {"namespace": "shop-home", "name": "data", "uid": twin["metadata"]["uid"]},
            "persistentVolumeReclaimPolicy": "Delete",
        }}),
    );
    let before = world.there.store().version();
    let found = world.helpers.obstacles(&world.moved, &world.of).await.unwrap();
    assert_eq!(found, Vec::<String>::new());
    assert_eq!(world.there.store().version(), before, "something was written");
    let quota = Act::Forbid("exceeded quota: storage");
    world
        .there
        .fault(Fault::new("POST", "/shop-home/persistentvolumeclaims", quota));
    world
        .there
        .fault(Fault::new("PATCH", &path, Act::Forbid("a policy denies it")));
    let found = world.helpers.obstacles(&world.moved, &world.of).await.unwrap();
    let said = |part: &str| found.iter().any(|one| one.contains(part));
    assert!(said("exceeded quota") && said("a policy denies it"), "{found:?}");
}

#[tokio::test]
async fn a_volume_that_cannot_be_read_in_use_is_not_reported_as_readable() {
    let mut world = World::with_device(Way::Out).await;
    let found = world.helpers.obstacles(&world.moved, &world.of).await.unwrap();
    assert_eq!(found, Vec::<String>::new(), "a device can be moved");
    world.of = request(json!({"target": {"cluster": "milan"}, "warm": "Live"}));
    let found = world.helpers.obstacles(&world.moved, &world.of).await.unwrap();
    assert!(
        matches!(found.as_slice(), [one] if one.contains("is Live, but it is of mode Block")),
        "{found:?}"
    );
}
