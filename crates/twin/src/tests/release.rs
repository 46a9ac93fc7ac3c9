//! While a volume is being released, the driver does nothing with it.

use super::*;
use crate::{placement::DeleteRefusal, volume::mark};

#[tokio::test]
async fn a_volume_that_is_being_released_is_left_alone() {
    let world = World::new(Real::Works).await;
    let made = world.create().await.unwrap();
    world.bind_claim(&made);
    world.api.change(&twin_path(), |twin| {
        twin["metadata"]["annotations"][mark::RELEASING] = "shop/data".into();
    });
    let twin = world.twin();
    let attachments = || world.api.store().below(ATTACHMENTS).len();

    let published = world.publish("n1").await;
    assert!(
        matches!(&published, Err(PublishError::Unusable(why)) if why.contains("is being released")),
        "{published:?}"
    );
    assert_eq!(attachments(), 0);
    let wanted = SizeRange::new(2 * GIB, 0).unwrap();
    let grown = expand(
        &world.home,
        &Registry::default(),
        &world.id(),
        wanted,
        world.until(),
    )
    .await;
    assert!(grown.unwrap_err().to_string().contains("is being released"));
    let changed = modify(
        &world.home,
        &Registry::default(),
        &world.id(),
        "gold",
        world.until(),
    )
    .await;
    assert!(changed.unwrap_err().to_string().contains("is being released"));
    let made_again = world.create().await;
    assert!(made_again.unwrap_err().to_string().contains("is being released"));
    // csi-provisioner calls this as soon as the claim is deleted, unless its PV is Retain.
    world.api.remove(CLAIM);
    let deleted = world.delete().await;
    assert!(
        matches!(
            deleted,
            Err(DeleteError::Refused {
                refusal: DeleteRefusal::Releasing,
                ..
            })
        ),
        "{deleted:?}"
    );
    assert_eq!(world.twin(), twin);
}
