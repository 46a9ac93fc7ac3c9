//! Listing snapshots.

use super::*;

async fn listed(world: &World, filter: SnapshotFilter<'_>) -> Vec<String> {
    let found = list_snapshots(&world.home, &Registry::default(), filter)
        .await
        .unwrap();
    found.into_iter().map(|one| one.id.to_string()).collect()
}

#[tokio::test]
async fn only_snapshots_that_were_taken_are_listed() {
    let world = World::new().await.posted().await;
    let id: SnapshotId = format!("s1:home::{SNAPSHOT}").parse().unwrap();
    let registry = Registry::default();
    assert_eq!(find_snapshot(&world.home, &registry, &id).await.unwrap(), None);
    assert!(listed(&world, SnapshotFilter::All).await.is_empty());
    cut(&world.api, &twin_path(), false);
    let found = find_snapshot(&world.home, &registry, &id).await.unwrap().unwrap();
    assert_eq!(found.id, id);
    assert_eq!(listed(&world, SnapshotFilter::All).await, [id.to_string()]);
    let source = world.request.source.to_string();
    assert_eq!(
        listed(&world, SnapshotFilter::Of(&source)).await,
        [id.to_string()]
    );
    assert!(listed(&world, SnapshotFilter::Of("x")).await.is_empty());
    // Snapshots of other home clusters are not listed.
    world.api.change(&twin_path(), |twin| {
        twin["metadata"]["labels"][mark::HOME_CLUSTER] = "rome".into();
    });
    assert!(listed(&world, SnapshotFilter::All).await.is_empty());
    assert_eq!(find_snapshot(&world.home, &registry, &id).await.unwrap(), None);
}

#[tokio::test]
async fn without_snapshot_crds_no_snapshots_are_listed() {
    let world = World::new().await;
    world
        .api
        .fault(Fault::new("GET", "/volumesnapshots", Act::Refuse(404)).at_the_end());
    assert!(listed(&world, SnapshotFilter::All).await.is_empty());
}
