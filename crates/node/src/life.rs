//! Tests of a volume's life on a node: with a fake real driver and lost records; in `failures` with
//! absent drivers and refusals, in `forgotten` with a kubelet that forgets volumes. Those in
//! `privileged` really mount, each in its own mount namespace; without root they print that they are
//! skipped, and pass.

mod failures;
mod forgotten;
mod privileged;

use std::path::PathBuf;

use tonic::Status;

use super::{
    access::{Access, AccessMode},
    consumer::Consumer,
    driver::Unit,
    fake::{FakeDriver, Node},
    publication::{Publish, PublishError, Unpublish, UnpublishError},
    upkeep::{InUse, UpkeepError},
    volumes::{Stage, StageError, Unstage, UnstageError},
};
use crate::{
    volume::{CsiSource, DataPath, DriverRequirements, RealSource, TokenRequests, VolumeMode},
    wire::csi::{
        node_service_capability::rpc::Type as Can,
        volume_capability::{AccessType, access_mode::Mode},
    },
};

const ID: &str = "v1:home:pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";
const DRIVER: &str = "real.example";

fn csi_path(mode: VolumeMode) -> DataPath {
    let source = CsiSource {
        driver: DRIVER.into(),
        handle: "handle-1".into(),
        attributes: [("pool".to_owned(), "ssd".to_owned())].into(),
        fs_type: Some("xfs".into()),
        read_only: false,
        stage_secret: None,
        publish_secret: None,
        expand_secret: None,
        wants: DriverRequirements::default(),
    };
    let mut path = DataPath::new(
        RealSource::Csi(Box::new(source)),
        mode,
        vec!["ReadWriteOncePod".into()],
    );
    path.mount_options = vec!["noatime".into()];
    path.attachment = [("device".to_owned(), "/dev/x".to_owned())].into();
    path
}

fn stage(node: &Node, data_path: DataPath) -> Stage {
    Stage {
        volume_id: ID.into(),
        staging: node.make("plugins/kubernetes.io/csi/storage.liqo.io/abc/globalmount"),
        access: Access {
            mode: AccessMode::SingleNodeMultiWriter,
            volume_mode: data_path.volume_mode,
            mount_flags: vec!["nodev".into()],
        },
        data_path,
    }
}

fn target(node: &Node, pod: &str) -> PathBuf {
    node.make(&format!("pods/{pod}/volumes/kubernetes.io~csi/pvc-1"))
        .join("mount")
}

fn publish(node: &Node, pod: &str, data_path: DataPath) -> Publish {
    Publish {
        stage: stage(node, data_path),
        target: target(node, pod),
        read_only: false,
        consumer: Consumer {
            context: [("csi.storage.k8s.io/pod.name".to_owned(), pod.to_owned())].into(),
            ..Default::default()
        },
    }
}

fn unpublish(request: &Publish) -> Unpublish {
    Unpublish {
        volume_id: ID.into(),
        target: request.target.clone(),
    }
}

fn unstage(request: &Stage) -> Unstage {
    Unstage {
        volume_id: ID.into(),
        staging: request.staging.clone(),
    }
}

fn wants(mut path: DataPath, wants: DriverRequirements) -> DataPath {
    if let RealSource::Csi(source) = &mut path.source {
        source.wants = wants;
    }
    path
}

#[tokio::test]
async fn the_real_driver_gets_the_calls_of_a_kubelet() {
    let node = Node::new();
    let driver = FakeDriver::start(&node, DRIVER);
    let volumes = node.volumes();
    let pod = publish(&node, "pod-1", csi_path(VolumeMode::Filesystem));
    volumes.stage(pod.stage.clone()).await.unwrap();
    volumes
        .publish(publish(&node, "pod-1", csi_path(VolumeMode::Filesystem)))
        .await
        .unwrap();

    let calls = driver.calls();
    let [staged, published] = calls.as_slice() else {
        panic!("{calls:?}")
    };
    for call in [staged, published] {
        assert_eq!(call.handle, "handle-1");
        assert_eq!(call.staging, pod.stage.staging.to_str().unwrap());
        assert_eq!(call.publish_context["device"], "/dev/x");
        assert_eq!(
            call.volume_context.len(),
            1,
            "no pod info unless it asks: {call:?}"
        );
        assert_eq!(call.volume_context["pool"], "ssd");
        assert!(call.secrets.is_empty());
        let capability = call.capability.clone().unwrap();
        // The twin's access mode; this driver does not distinguish single from multiple writers.
        assert_eq!(capability.access_mode.unwrap().mode(), Mode::SingleNodeWriter);
        let Some(AccessType::Mount(mount)) = capability.access_type else {
            panic!("no mount")
        };
        assert_eq!(
            (mount.fs_type.as_str(), mount.mount_flags),
            ("xfs", vec!["noatime".into(), "nodev".into()])
        );
    }
    assert_eq!((published.rpc, published.read_only), ("publish", false));
    assert_eq!(published.target, pod.target.to_str().unwrap());
}

#[tokio::test]
async fn single_node_multi_writer_and_pod_info_are_passed_on() {
    let node = Node::new();
    let driver = FakeDriver::start(&node, DRIVER);
    driver.set_capabilities(&[Can::SingleNodeMultiWriter]);
    let path = wants(
        csi_path(VolumeMode::Block),
        DriverRequirements {
            pod_info: true,
            ..Default::default()
        },
    );
    let volumes = node.volumes();
    volumes.stage(stage(&node, path.clone())).await.unwrap();
    let mut request = publish(&node, "pod-1", path);
    request.read_only = true;
    volumes.publish(request).await.unwrap();

    let calls = driver.calls();
    let [call] = calls.as_slice() else {
        panic!("it does not stage: {calls:?}")
    };
    assert_eq!(call.staging, "", "nor hears of staging");
    let capability = call.capability.clone().unwrap();
    assert_eq!(
        capability.access_mode.unwrap().mode(),
        Mode::SingleNodeSingleWriter
    );
    assert!(matches!(capability.access_type, Some(AccessType::Block(_))));
    assert_eq!(call.volume_context["csi.storage.k8s.io/pod.name"], "pod-1");
    assert!(call.read_only);

    // A volume that was never staged is not unstaged either.
    volumes
        .unpublish(unpublish(&publish(&node, "pod-1", csi_path(VolumeMode::Block))))
        .await
        .unwrap();
    volumes
        .unstage(unstage(&stage(&node, csi_path(VolumeMode::Block))))
        .await
        .unwrap();
    assert_eq!(driver.take_calls(), ["publish", "unpublish"]);
    assert_eq!(node.records(), 0);
}

#[tokio::test]
async fn a_missing_token_is_left_to_the_driver_to_refuse() {
    let node = Node::new();
    let driver = FakeDriver::start(&node, DRIVER);
    let asks = DriverRequirements {
        tokens: Some(TokenRequests {
            audiences: vec!["vault".into()],
            in_secrets: false,
        }),
        ..Default::default()
    };
    let request = || {
        publish(
            &node,
            "pod-1",
            wants(csi_path(VolumeMode::Filesystem), asks.clone()),
        )
    };
    node.volumes().publish(request()).await.unwrap();
    driver.fail("publish", Status::unauthenticated("who are you?"));
    let error = node.volumes().publish(request()).await.unwrap_err().to_string();
    assert!(
        error.contains("who are you?") && error.contains("tokenRequests"),
        "{error}"
    );
}

#[tokio::test]
async fn state_on_disk_is_enough_after_restarts() {
    let node = Node::new();
    let driver = FakeDriver::start(&node, DRIVER);
    let request = || publish(&node, "pod-1", csi_path(VolumeMode::Filesystem));
    for _ in 0..2 {
        node.volumes().stage(request().stage).await.unwrap();
    }
    node.volumes().publish(request()).await.unwrap();
    assert_eq!(node.records(), 1);
    for _ in 0..2 {
        node.volumes().unpublish(unpublish(&request())).await.unwrap();
        assert!(!request().target.exists());
    }
    for _ in 0..2 {
        node.volumes().unstage(unstage(&request().stage)).await.unwrap();
    }
    assert_eq!(node.records(), 0);
    assert_eq!(
        driver.take_calls(),
        ["stage", "stage", "publish", "unpublish", "unpublish", "unstage"]
    );
}

#[tokio::test]
async fn a_lost_record_is_restored_by_the_next_publish() {
    let node = Node::new();
    let driver = FakeDriver::start(&node, DRIVER);
    node.volumes()
        .publish(publish(&node, "pod-1", csi_path(VolumeMode::Filesystem)))
        .await
        .unwrap();
    assert_eq!(driver.take_calls(), ["stage", "publish"]);
    node.volumes()
        .publish(publish(&node, "pod-2", csi_path(VolumeMode::Filesystem)))
        .await
        .unwrap();
    assert_eq!(driver.take_calls(), ["publish"]);
}

/// Kubelet's calls for a volume with a second PV, for example that of a move.
#[tokio::test]
async fn a_device_with_two_persistent_volumes_is_staged_once() {
    let node = Node::new();
    let driver = FakeDriver::start(&node, DRIVER);
    let device = || csi_path(VolumeMode::Block);
    let staging = |volume: &str| {
        node.make(&format!(
            "plugins/kubernetes.io/csi/volumeDevices/staging/{volume}"
        ))
    };
    let request = |pod: &str, volume: &str| {
        let mut request = publish(&node, pod, device());
        request.stage.staging = staging(volume);
        request
    };
    let volumes = node.volumes();
    let (user, mover) = (request("user", "pvc-1"), request("mover", "move-1"));
    let (first, second) = (user.stage.clone(), mover.stage.clone());
    volumes.stage(first.clone()).await.unwrap();
    volumes.publish(request("user", "pvc-1")).await.unwrap();
    volumes.publish(request("mover", "move-1")).await.unwrap();
    // A restarted kubelet stages again what it finds in use.
    volumes.stage(second.clone()).await.unwrap();
    let calls = driver.calls();
    let at: Vec<_> = calls
        .iter()
        .map(|call| (call.rpc, call.staging.as_str()))
        .collect();
    let real = first.staging.to_str().unwrap();
    assert_eq!(
        at,
        [
            ("stage", real),
            ("publish", real),
            ("publish", real),
            ("stage", real)
        ]
    );

    volumes.unpublish(unpublish(&user)).await.unwrap();
    volumes.publish(request("user-2", "pvc-1")).await.unwrap();
    volumes
        .unpublish(unpublish(&request("user-2", "pvc-1")))
        .await
        .unwrap();
    volumes.unpublish(unpublish(&mover)).await.unwrap();
    volumes.unstage(unstage(&second)).await.unwrap();
    assert_eq!(node.records(), 0);
    let last = driver.calls();
    let last = last.last().unwrap();
    assert_eq!((last.rpc, last.staging.as_str()), ("unstage", real));
    // Then it may be staged under the other name.
    volumes.stage(second.clone()).await.unwrap();
    let calls = driver.calls();
    assert_eq!(calls.last().unwrap().staging, second.staging.to_str().unwrap());
}

#[tokio::test]
async fn usage_and_expansion_are_left_to_the_driver_if_it_supports_them() {
    let node = Node::new();
    let driver = FakeDriver::start(&node, DRIVER);
    let volumes = node.volumes();
    let request = publish(&node, "pod-1", csi_path(VolumeMode::Filesystem));
    let in_use = |path: PathBuf| InUse {
        volume_id: ID.into(),
        path,
    };
    let unknown = volumes.stats(in_use(request.target.clone())).await;
    assert!(matches!(unknown, Err(UpkeepError::NoVolume(_))), "{unknown:?}");
    volumes
        .publish(publish(&node, "pod-1", csi_path(VolumeMode::Filesystem)))
        .await
        .unwrap();

    let usage = volumes.stats(in_use(request.target.clone())).await.unwrap();
    assert_eq!(
        (usage[0].unit, usage[0].total, usage[0].used, usage[0].available),
        (Unit::Bytes, 3, 2, 1)
    );
    let size = (1 << 30, 2 << 30);
    assert_eq!(
        volumes
            .expand(in_use(request.target.clone()), size)
            .await
            .unwrap(),
        Some(1 << 30)
    );
    assert_eq!(driver.take_calls(), ["stage", "publish", "stats", "expand"]);
    for elsewhere in [PathBuf::from("some/path"), node.path("pods")] {
        let nothing = volumes.stats(in_use(elsewhere.clone())).await;
        assert!(matches!(nothing, Err(UpkeepError::NoPath { .. })), "{nothing:?}");
        assert!(volumes.expand(in_use(elsewhere), size).await.is_err());
    }

    driver.set_capabilities(&[Can::StageUnstageVolume]);
    let usage = volumes.stats(in_use(request.target.clone())).await.unwrap();
    assert_eq!(usage.len(), 2, "the file system's own: {usage:?}");
    assert_eq!(volumes.expand(in_use(request.target), size).await.unwrap(), None);
    assert!(driver.take_calls().is_empty());
}
