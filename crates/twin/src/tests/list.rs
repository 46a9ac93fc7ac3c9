//! Listing volumes, and finding single ones.

use super::*;

#[tokio::test]
async fn only_handed_over_volumes_are_listed() {
    let world = World::new(Real::Works).await;
    assert_eq!(list(&world.home, &Registry::default()).await.unwrap(), []);
    world.create().await.unwrap();
    let listed = list(&world.home, &Registry::default()).await.unwrap();
    assert_eq!(listed[0].volume, world.request.volume);
    assert_eq!(listed[0].bytes, 1 << 30);
    assert!(
        validate(&world.home, &Registry::default(), &world.id())
            .await
            .unwrap()
            .is_some()
    );
    world.delete().await.unwrap();
    assert_eq!(list(&world.home, &Registry::default()).await.unwrap(), []);
    assert!(
        validate(&world.home, &Registry::default(), &world.id())
            .await
            .unwrap()
            .is_none()
    );
}
