//! An API server that fails, at any write and at every read.

use super::*;
use crate::cluster::testing::{Act, Fault};

#[tokio::test]
async fn volume_calls_succeed_although_writes_fail_once() {
    for act in [Act::Refuse(500), Act::DoAndRefuse(504), Act::Refuse(429)] {
        let world = World::new(Real::Works).await;
        for method in ["POST", "PATCH", "DELETE"] {
            world.api.fault(Fault::new(method, "/", act).times(1));
        }
        world.create().await.unwrap();
        world.publish("n1").await.unwrap();
        unpublish(&world.home, &world.id(), Some("n1"), world.until())
            .await
            .unwrap();
        world.delete().await.unwrap();
        assert!(world.api.store().below(VOLUMES).is_empty(), "{act:?}");
    }
}

#[tokio::test]
async fn a_conflict_is_retried_with_a_new_read() {
    let world = World::new(Real::Works).await;
    world
        .api
        .fault(Fault::new("PATCH", "persistentvolumeclaims", Act::Refuse(409)).times(2));
    world.create().await.unwrap();
}

#[tokio::test]
async fn no_final_error_is_returned_while_the_twin_exists() {
    let world = World::new(Real::SaysElsewhere).await;
    world
        .api
        .fault(Fault::new("DELETE", "persistentvolumeclaims", Act::Refuse(409)).times(2));
    let error = world.create().await.unwrap_err();
    assert!(matches!(error, CreateError::Elsewhere(_)), "{error}");
    assert_eq!(world.twin(), None);
}

#[tokio::test]
async fn an_unreachable_cluster_gives_no_final_error() {
    let mut world = World::new(Real::Works).await;
    world.create().await.unwrap();
    world.home = world.api.impatient_cluster().await;
    world.api.fault(Fault::new("GET", "/api", Act::Hang));
    assert!(matches!(world.create().await, Err(CreateError::Api(_))));
    assert!(matches!(world.delete().await, Err(DeleteError::Api(_))));
    assert!(matches!(world.publish("n1").await, Err(PublishError::Api(_))));
}
