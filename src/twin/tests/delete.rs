//! Deleting a volume: its data first, and never while somebody uses it.

use serde_json::json;

use super::*;
use crate::placement::DeleteRefusal;

#[tokio::test]
async fn deleted_means_that_the_real_volume_is_gone() {
    let world = World::new(Real::Works).await;
    let made = world.create().await.unwrap();
    let volume = format!("{VOLUMES}/{}", made.context[TWIN_VOLUME]);
    // The real driver fails to delete: the stand-in leaves PVs in phase Released alone.
    world.api.change(&volume, |volume| {
        volume["status"] = json!({"phase": "Released", "message": "disk is busy"});
    });
    let world = world.impatient();
    let error = world.delete().await.unwrap_err();
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
