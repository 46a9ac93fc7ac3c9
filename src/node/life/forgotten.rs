//! What happens to volumes of which kubelet learns nothing any more.

use std::time::Duration;

use tokio::time::Instant;
use tonic::Status;

use super::*;
use crate::node::forgotten::Forgotten;

/// Looks as if this much time had passed.
async fn look(forgotten: &mut Forgotten, after: Duration) {
    forgotten.look(Instant::now() + after).await;
}

const SOON: Duration = Duration::from_secs(30);
const LATER: Duration = Duration::from_mins(2);

#[tokio::test]
async fn a_volume_that_nobody_has_is_taken_off_the_node() {
    let node = Node::new();
    let driver = FakeDriver::start(&node, DRIVER);
    let volumes = node.volumes();
    let mut forgotten = Forgotten::new(volumes.clone());
    let wish = || publish(&node, "pod-1", csi_path(VolumeMode::Filesystem));
    volumes.publish(wish()).await.unwrap();
    look(&mut forgotten, Duration::ZERO).await;
    look(&mut forgotten, LATER).await;
    assert_eq!(node.records(), 1, "a pod has it");

    volumes.unpublish(unpublish(&wish())).await.unwrap();
    look(&mut forgotten, Duration::ZERO).await;
    look(&mut forgotten, SOON).await;
    assert_eq!(node.records(), 1, "kubelet may be about to unstage it");

    driver.fail("unstage", Status::unavailable("not now"));
    look(&mut forgotten, LATER).await;
    assert_eq!(node.records(), 1, "its driver still has it");
    look(&mut forgotten, LATER + LATER).await;
    assert_eq!(node.records(), 0);
    let unstaged = driver.calls().into_iter().filter(|call| call.rpc == "unstage");
    assert_eq!(unstaged.count(), 2);

    // Kubelet knew of it after all.
    volumes.unstage(unstage(&wish().stage)).await.unwrap();
    volumes.publish(wish()).await.unwrap();
    assert_eq!(node.records(), 1);
}

#[tokio::test]
async fn a_volume_that_is_had_again_is_idle_from_then_on() {
    let node = Node::new();
    let _driver = FakeDriver::start(&node, DRIVER);
    let volumes = node.volumes();
    let mut forgotten = Forgotten::new(volumes.clone());
    let wish = || publish(&node, "pod-1", csi_path(VolumeMode::Filesystem));
    volumes.stage(wish().stage).await.unwrap();
    look(&mut forgotten, Duration::ZERO).await;
    volumes.publish(wish()).await.unwrap();
    look(&mut forgotten, SOON).await;
    volumes.unpublish(unpublish(&wish())).await.unwrap();
    look(&mut forgotten, LATER).await;
    assert_eq!(node.records(), 1);
    look(&mut forgotten, LATER + LATER).await;
    assert_eq!(node.records(), 0);
}
