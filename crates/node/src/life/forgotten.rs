//! Volumes that kubelet has forgotten.

use std::{fs, path::Path};

use serde_json::json;
use tonic::Status;

use super::*;
use crate::{fake::FORGOTTEN_AFTER, forgotten::Forgotten};

fn forgotten(node: &Node) -> Forgotten {
    Forgotten::new(node.volumes(), node.path(""))
}

/// Writes what kubelet records of a volume.
fn write_volume_data(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    fs::write(
        folder.join("vol_data.json"),
        json!({"driverName": "storage.liqo.io", "volumeHandle": ID}).to_string(),
    )
    .unwrap();
}

#[tokio::test]
async fn an_unused_volume_is_unmounted() {
    let node = Node::new();
    let driver = FakeDriver::start(&node, DRIVER);
    let volumes = node.volumes();
    let request = || publish(&node, "pod-1", csi_path(VolumeMode::Filesystem));
    volumes.publish(request()).await.unwrap();
    node.last_called(2 * FORGOTTEN_AFTER);
    forgotten(&node).check().await;
    assert_eq!(node.records(), 1, "a pod has it");

    volumes.unpublish(unpublish(&request())).await.unwrap();
    forgotten(&node).check().await;
    assert_eq!(node.records(), 1, "kubelet called just now, and calls again");

    node.last_called(2 * FORGOTTEN_AFTER);
    driver.fail("unstage", Status::unavailable("not now"));
    forgotten(&node).check().await;
    forgotten(&node).check().await;
    assert_eq!(node.records(), 1, "its driver still has it");

    driver.take_calls();
    node.last_called(2 * FORGOTTEN_AFTER);
    let again = request();
    forgotten(&node).check().await;
    assert_eq!((node.records(), driver.take_calls()), (0, vec!["unstage"]));

    // Kubelet knows the volume after all, but not that its folder was removed.
    let staging = again.stage.staging.clone();
    fs::remove_dir(&staging).unwrap();
    volumes.publish(again).await.unwrap();
    assert!(staging.exists());
    assert_eq!(driver.take_calls(), ["stage", "publish"]);
}

#[tokio::test]
async fn a_volume_in_a_pod_directory_is_left_to_the_kubelet() {
    for folder in [
        ["pods/pod-1/volumes/kubernetes.io~csi/data"; 2],
        [
            "pods/pod-1/volumeDevices/kubernetes.io~csi/data",
            "plugins/kubernetes.io/csi/volumeDevices/data/data",
        ],
    ] {
        let node = Node::new();
        let _driver = FakeDriver::start(&node, DRIVER);
        node.volumes()
            .stage(stage(&node, csi_path(VolumeMode::Block)))
            .await
            .unwrap();
        node.last_called(2 * FORGOTTEN_AFTER);
        let [of_pod, noted] = folder;
        node.make(of_pod);
        write_volume_data(&node.path(noted));
        forgotten(&node).check().await;
        assert_eq!(node.records(), 1, "{of_pod}");

        fs::remove_dir_all(node.path("pods")).unwrap();
        forgotten(&node).check().await;
        assert_eq!(node.records(), 0, "{of_pod}");
    }
}

#[tokio::test]
async fn a_pod_directory_without_metadata_is_matched_by_its_name() {
    let node = Node::new();
    let _driver = FakeDriver::start(&node, DRIVER);
    let request = stage(&node, csi_path(VolumeMode::Filesystem));
    node.volumes().stage(request).await.unwrap();
    node.last_called(2 * FORGOTTEN_AFTER);
    let name = ID.rsplit(':').next().unwrap();
    node.make(&format!("pods/pod-1/volumes/kubernetes.io~csi/{name}"));
    forgotten(&node).check().await;
    assert_eq!(node.records(), 1);
}
