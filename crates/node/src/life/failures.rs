//! Which records and paths are left, and which may be removed, when a call fails.

use tonic::{Code, Status};

use super::*;
use crate::error::VolumeError;

#[tokio::test]
async fn an_absent_driver_is_needed_only_if_it_has_something_to_undo() {
    let node = Node::new();
    let driver = FakeDriver::start(&node, DRIVER);
    let block = || publish(&node, "pod-1", csi_path(VolumeMode::Block));
    node.volumes().publish(block()).await.unwrap();
    driver.stop();

    // The target is only an empty directory now: nothing to wait for.
    node.volumes().unpublish(unpublish(&block())).await.unwrap();
    assert!(!block().target.exists());
    // A device, however, may still be mapped.
    let error = node.volumes().unstage(unstage(&block().stage)).await.unwrap_err();
    assert!(
        matches!(&error, UnstageError::VolumeError(error) if error.is_absent_driver()),
        "{error}"
    );
    let error = node.volumes().stage(block().stage).await.unwrap_err();
    assert!(
        matches!(&error, StageError::VolumeError(error) if !error.is_final()),
        "{error}"
    );

    driver.restart(&node);
    node.volumes().unstage(unstage(&block().stage)).await.unwrap();
    assert_eq!(node.records(), 0);
}

#[tokio::test]
async fn unstaging_an_unmounted_file_system_needs_no_driver() {
    let node = Node::new();
    let driver = FakeDriver::start(&node, DRIVER);
    let request = stage(&node, csi_path(VolumeMode::Filesystem));
    node.volumes().stage(request.clone()).await.unwrap();
    driver.stop();
    node.volumes().unstage(unstage(&request)).await.unwrap();
    assert_eq!(node.records(), 0);

    driver.restart(&node);
    node.volumes().stage(request.clone()).await.unwrap();
    driver.fail("unstage", Status::not_found("what volume?"));
    node.volumes().unstage(unstage(&request)).await.unwrap();
    assert_eq!(node.records(), 0);
}

#[tokio::test]
async fn only_a_refusal_that_may_have_had_an_effect_leaves_a_record() {
    let node = Node::new();
    let driver = FakeDriver::start(&node, DRIVER);
    let volumes = node.volumes();
    let request = || publish(&node, "pod-1", csi_path(VolumeMode::Filesystem));

    driver.fail("stage", Status::invalid_argument("never"));
    let error = volumes.stage(request().stage).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("real.example refused NodeStageVolume: never"),
        "{error}"
    );
    assert_eq!(node.records(), 0);

    driver.fail("stage", Status::deadline_exceeded("later"));
    volumes.stage(request().stage).await.unwrap_err();
    assert_eq!(node.records(), 1, "it may have staged");

    driver.fail("publish", Status::new(Code::Internal, "no"));
    volumes.publish(request()).await.unwrap_err();
    driver.fail("publish", Status::aborted("busy"));
    volumes.publish(request()).await.unwrap_err();
    assert_eq!(node.records(), 1);

    // The record of a staged device must not be removed because of a final error.
    driver.fail("stage", Status::invalid_argument("never"));
    volumes.stage(request().stage).await.unwrap_err();
    assert_eq!(node.records(), 1);
}

#[tokio::test]
async fn a_call_interrupted_by_a_crash_of_the_driver_may_have_succeeded() {
    let node = Node::new();
    let driver = FakeDriver::start(&node, DRIVER);
    driver.crash("stage");
    let request = stage(&node, csi_path(VolumeMode::Filesystem));
    let error = node.volumes().stage(request).await.unwrap_err();
    assert!(
        matches!(&error, StageError::VolumeError(error) if !error.is_final()),
        "{error}"
    );
    assert!(error.to_string().contains("aborted"), "{error}");
    assert_eq!(node.records(), 1);
}

#[tokio::test]
async fn an_unpublish_error_of_the_driver_is_returned_except_not_found() {
    let node = Node::new();
    let driver = FakeDriver::start(&node, DRIVER);
    let volumes = node.volumes();
    volumes
        .publish(publish(&node, "pod-1", csi_path(VolumeMode::Filesystem)))
        .await
        .unwrap();
    driver.fail("unpublish", Status::internal("cannot"));
    let again = || unpublish(&publish(&node, "pod-1", csi_path(VolumeMode::Filesystem)));
    volumes.unpublish(again()).await.unwrap_err();
    driver.fail("unpublish", Status::not_found("what volume?"));
    volumes.unpublish(again()).await.unwrap();
}

/// The mount of a daemon that has died exists, and every call for it fails.
#[tokio::test]
async fn the_usage_of_a_dead_mount_is_left_to_the_driver() {
    let node = Node::new();
    let driver = FakeDriver::start(&node, DRIVER);
    let volumes = node.volumes();
    let request = publish(&node, "pod-1", csi_path(VolumeMode::Filesystem));
    let path = request.target.clone();
    volumes.publish(request).await.unwrap();
    let folder = path.parent().unwrap();
    std::fs::remove_dir(&path).unwrap();
    let asked = || InUse {
        volume_id: ID.into(),
        path: path.clone(),
    };
    let gone = volumes.stats(asked()).await;
    assert!(matches!(gone, Err(UpkeepError::NoPath { .. })), "{gone:?}");

    // A symbolic link to itself is like a dead mount: it exists, and its content cannot be read.
    std::fs::remove_dir(folder).unwrap();
    std::os::unix::fs::symlink(folder, folder).unwrap();
    driver.fail("stats", Status::internal("not connected"));
    let error = volumes.stats(asked()).await.unwrap_err().to_string();
    assert!(error.contains("not connected"), "{error}");
}

#[tokio::test]
async fn concurrent_calls_for_a_volume_are_refused() {
    let node = Node::new();
    let volumes = node.volumes();
    let _held = volumes.in_flight.enter(ID).unwrap();
    let request = || publish(&node, "pod-1", csi_path(VolumeMode::Filesystem));
    let is_busy = |error: &VolumeError| matches!(error, VolumeError::Busy(_));
    assert!(matches!(volumes.stage(request().stage).await, Err(StageError::VolumeError(it)) if is_busy(&it)));
    assert!(matches!(volumes.publish(request()).await, Err(PublishError::VolumeError(it)) if is_busy(&it)));
    assert!(
        matches!(volumes.unpublish(unpublish(&request())).await, Err(UnpublishError::VolumeError(it)) if is_busy(&it))
    );
    assert!(
        matches!(volumes.unstage(unstage(&request().stage)).await, Err(UnstageError::VolumeError(it)) if is_busy(&it))
    );
}

#[tokio::test]
async fn a_device_is_not_a_file_system() {
    let node = Node::new();
    let mut request = stage(&node, csi_path(VolumeMode::Filesystem));
    request.access.volume_mode = VolumeMode::Block;
    let error = node.volumes().stage(request).await.unwrap_err();
    assert!(matches!(error, StageError::VolumeMode { .. }), "{error}");
    assert_eq!(node.records(), 0);
}

#[tokio::test]
async fn a_corrupt_record_fails_all_calls_with_a_reason() {
    let node = Node::new();
    let _driver = FakeDriver::start(&node, DRIVER);
    let request = || publish(&node, "pod-1", csi_path(VolumeMode::Filesystem));
    node.volumes().publish(request()).await.unwrap();
    let record = std::fs::read_dir(node.path("plugins/storage.liqo.io/state"))
        .unwrap()
        .next()
        .unwrap();
    std::fs::write(record.unwrap().path(), "{").unwrap();
    let error = node.volumes().unpublish(unpublish(&request())).await.unwrap_err();
    assert!(error.to_string().contains("corrupt"), "{error}");
    assert!(node.volumes().unstage(unstage(&request().stage)).await.is_err());
    assert!(node.volumes().publish(request()).await.is_err());
}
