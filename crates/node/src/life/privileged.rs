//! The tests that mount. Each runs once more, alone, in a mount namespace of its own, so that no mounts
//! are left; loop devices are detached at the end.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use super::*;
use crate::mounts;

const INSIDE: &str = "LIQO_CSI_TEST_OWN_NAMESPACE";

/// True inside the namespace. Outside: runs the named test inside and reports its outcome.
fn in_own_namespace(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped {test}: it mounts, which needs root");
        return false;
    }
    // The harness names a test without its crate.
    let (_crate, module) = module_path!().split_once("::").unwrap();
    // Folders of a test that ends with mounts in them can only be deleted outside.
    let folders = tempfile::tempdir().unwrap();
    let mut again = Command::new("unshare");
    again
        .args(["--mount", "--propagation", "private", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{module}::{test}"), "--nocapture"])
        .env(INSIDE, "1")
        .env("TMPDIR", folders.path())
        .stdin(Stdio::null());
    // The summary of the inner run must not be counted as another test.
    let output = again.output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{test} failed in its namespace:\n{said}");
    assert!(
        said.contains("1 passed"),
        "{test} did not run in its namespace:\n{said}"
    );
    false
}

/// A loop device over a sparse file; detached on drop.
struct Loop {
    device: PathBuf,
    image: PathBuf,
}

impl Loop {
    fn new(node: &Node, size: u64) -> Self {
        let image = node.path("disk.img");
        File::create(&image).unwrap().set_len(size).unwrap();
        let output = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(&image)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let device = String::from_utf8(output.stdout).unwrap().trim().into();
        Self { device, image }
    }

    /// Binds the device below the host's root, like `/dev` in the pod.
    fn shown_to(&self, node: &Node, name: &str) {
        let shown = node.path("host").join(name);
        File::create(&shown).unwrap();
        mounts::bind(&self.device, &shown, &[], false).unwrap();
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _best_effort = Command::new("losetup").arg("--detach").arg(&self.device).status();
    }
}

fn local(path: &str, mode: VolumeMode) -> DataPath {
    let source = RealSource::Local {
        path: path.into(),
        fs_type: None,
    };
    DataPath::new(source, mode, vec!["ReadWriteOnce".into()])
}

fn is_mounted(path: &Path) -> bool {
    mounts::is_published(path).unwrap()
}

fn is_read_only(path: &Path) -> bool {
    let path = mounts::settled(path).unwrap().unwrap();
    mounts::table().unwrap().at(&path).unwrap().is_read_only()
}

#[tokio::test]
async fn a_local_directory_is_bind_mounted_and_unmounted_unchanged() {
    if !in_own_namespace("a_local_directory_is_bind_mounted_and_unmounted_unchanged") {
        return;
    }
    let node = Node::new();
    fs::write(node.make("host/mnt/disk").join("data"), "precious").unwrap();
    let request = |pod: &str, read_only| Publish {
        read_only,
        ..publish(&node, pod, local("/mnt/disk", VolumeMode::Filesystem))
    };
    let (writer, reader) = (request("pod-1", false), request("pod-2", true));
    for _ in 0..2 {
        node.volumes().publish(request("pod-1", false)).await.unwrap();
        node.volumes().publish(request("pod-2", true)).await.unwrap();
    }
    fs::write(writer.target.join("more"), "data").unwrap();
    assert_eq!(fs::read_to_string(reader.target.join("more")).unwrap(), "data");
    let refused = fs::write(reader.target.join("more"), "x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);

    let other = node.volumes().publish(request("pod-1", true)).await;
    assert!(matches!(other, Err(PublishError::Different { .. })), "{other:?}");
    let early = node.volumes().unstage(unstage(&writer.stage)).await;
    assert!(matches!(early, Err(UnstageError::Published { .. })), "{early:?}");

    for request in [&writer, &reader, &writer] {
        node.volumes().unpublish(unpublish(request)).await.unwrap();
        assert!(!request.target.exists());
    }
    node.volumes().unstage(unstage(&writer.stage)).await.unwrap();
    assert_eq!(
        fs::read_to_string(node.path("host/mnt/disk/data")).unwrap(),
        "precious"
    );
    assert_eq!(node.records(), 0);
}

#[tokio::test]
async fn forgotten_pod_mounts_are_removed_at_unstage() {
    if !in_own_namespace("forgotten_pod_mounts_are_removed_at_unstage") {
        return;
    }
    let node = Node::new();
    fs::write(node.make("host/mnt/disk").join("data"), "precious").unwrap();
    let request = || publish(&node, "pod-1", local("/mnt/disk", VolumeMode::Filesystem));
    let patient = node.volumes();
    for _ in 0..3 {
        patient.publish(request()).await.unwrap();
        for _ in 0..3 {
            let early = patient.unstage(unstage(&request().stage)).await;
            assert!(matches!(early, Err(UnstageError::Published { .. })), "{early:?}");
        }
    }

    let volumes = node.volumes_forgotten(Duration::ZERO);
    for _ in 0..3 {
        volumes.unstage(unstage(&request().stage)).await.unwrap_err();
        // Kubelet does know of a pod.
        volumes.publish(request()).await.unwrap();
    }
    assert!(is_mounted(&request().target));
    volumes.unstage(unstage(&request().stage)).await.unwrap_err();
    volumes.unstage(unstage(&request().stage)).await.unwrap();
    assert!(!request().target.exists() && !is_mounted(&request().stage.staging));
    assert_eq!(
        fs::read_to_string(node.path("host/mnt/disk/data")).unwrap(),
        "precious"
    );
    assert_eq!(node.records(), 0);
    // Kubelet knows the pod again, after a restart.
    volumes.unpublish(unpublish(&request())).await.unwrap();
}

#[tokio::test]
async fn a_bind_mount_gets_its_read_only_flag_after_a_crash() {
    if !in_own_namespace("a_bind_mount_gets_its_read_only_flag_after_a_crash") {
        return;
    }
    let node = Node::new();
    let (source, target) = (node.make("source"), node.make("target"));
    mounts::bind(&source, &target, &[], false).unwrap();
    mounts::bind(&source, &target, &["noexec".to_owned()], true).unwrap();
    assert!(is_read_only(&target));
    mounts::bind(&source, &target, &[], false).unwrap();
    let stranger = mounts::bind(&node.make("other"), &target, &[], false);
    assert!(
        matches!(stranger, Err(mounts::MountError::Occupied { .. })),
        "{stranger:?}"
    );

    // A read-only bind of a nosuid source keeps nosuid, too.
    mounts::unmount(&target).unwrap();
    Command::new("mount")
        .args(["-t", "tmpfs", "-o", "nosuid,nodev", "x"])
        .arg(&source)
        .status()
        .unwrap();
    mounts::bind(&source, &target, &[], true).unwrap();
    let table = mounts::table().unwrap();
    let options = &table.at(&target.canonicalize().unwrap()).unwrap().options;
    assert!(
        ["ro", "nosuid", "nodev"]
            .iter()
            .all(|it| options.iter().any(|option| option == it)),
        "{options:?}"
    );
}

#[tokio::test]
async fn a_blank_device_is_formatted_once_and_keeps_its_data() {
    if !in_own_namespace("a_blank_device_is_formatted_once_and_keeps_its_data") {
        return;
    }
    let node = Node::new();
    let disk = Loop::new(&node, 64 << 20);
    disk.shown_to(&node, "disk");
    for round in 0..2 {
        let request = || publish(&node, "pod-1", local("/disk", VolumeMode::Filesystem));
        for _ in 0..2 {
            node.volumes().stage(request().stage).await.unwrap();
            node.volumes().publish(request()).await.unwrap();
        }
        let data = request().target.join("data");
        if round == 0 {
            fs::write(&data, "precious").unwrap();
        }
        assert_eq!(fs::read_to_string(&data).unwrap(), "precious");
        node.volumes().unpublish(unpublish(&request())).await.unwrap();
        node.volumes().unstage(unstage(&request().stage)).await.unwrap();
        assert!(!is_mounted(&request().stage.staging));
    }
    assert_eq!(node.records(), 0);
}

#[tokio::test]
async fn a_device_that_is_not_blank_is_never_formatted() {
    if !in_own_namespace("a_device_that_is_not_blank_is_never_formatted") {
        return;
    }
    let node = Node::new();
    let disk = Loop::new(&node, 64 << 20);
    disk.shown_to(&node, "disk");
    let mut device = File::options().write(true).open(&disk.device).unwrap();
    device.write_all(b"no file system, yet somebody's").unwrap();
    // Otherwise the write may reach the image between the two reads.
    device.sync_all().unwrap();
    drop(device);
    let before = fs::read(&disk.image).unwrap();
    let request = stage(&node, local("/disk", VolumeMode::Filesystem));
    node.volumes().stage(request).await.unwrap_err();
    assert!(
        before == fs::read(&disk.image).unwrap(),
        "the device was written to"
    );
    assert_eq!(node.records(), 0, "a final failure leaves nothing to undo");
}

#[tokio::test]
async fn a_device_is_handed_over_raw() {
    if !in_own_namespace("a_device_is_handed_over_raw") {
        return;
    }
    let node = Node::new();
    let disk = Loop::new(&node, 8 << 20);
    disk.shown_to(&node, "disk");
    let request = || publish(&node, "pod-1", local("/disk", VolumeMode::Block));
    for _ in 0..2 {
        node.volumes().publish(request()).await.unwrap();
    }
    assert!(
        fs::metadata(request().target)
            .unwrap()
            .file_type()
            .is_block_device()
    );
    let asked = InUse {
        volume_id: ID.into(),
        path: request().target,
    };
    assert_eq!(node.volumes().stats(asked).await.unwrap()[0].total, 8 << 20);
    node.volumes().unpublish(unpublish(&request())).await.unwrap();
    assert!(!request().target.exists());
    node.volumes().unstage(unstage(&request().stage)).await.unwrap();
}

#[tokio::test]
async fn a_file_system_has_the_mount_options_of_the_virtual_pv() {
    if !in_own_namespace("a_file_system_has_the_mount_options_of_the_virtual_pv") {
        return;
    }
    let node = Node::new();
    let disk = Loop::new(&node, 32 << 20);
    disk.shown_to(&node, "disk");
    let mut request = publish(&node, "pod-1", local("/disk", VolumeMode::Filesystem));
    request.stage.access.mount_flags.push("data=journal".into());
    let target = request.target.clone();
    node.volumes().publish(request).await.unwrap();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let target = mounts::settled(&target).unwrap().unwrap();
    let line = table.lines().find(|line| line.contains(target.to_str().unwrap()));
    assert!(line.unwrap().contains("data=journal"), "{table}");
}

#[tokio::test]
async fn an_unrecorded_mount_is_not_touched() {
    if !in_own_namespace("an_unrecorded_mount_is_not_touched") {
        return;
    }
    let node = Node::new();
    let request = publish(&node, "pod-1", local("/disk", VolumeMode::Filesystem));
    for path in [&request.target, &request.stage.staging] {
        fs::create_dir_all(path).unwrap();
        mounts::bind(&node.make("host"), path, &[], false).unwrap();
    }
    let error = node.volumes().unpublish(unpublish(&request)).await;
    assert!(
        matches!(error, Err(UnpublishError::Unrecorded { .. })),
        "{error:?}"
    );
    let error = node.volumes().unstage(unstage(&request.stage)).await;
    assert!(matches!(error, Err(UnstageError::Unrecorded { .. })), "{error:?}");
    assert!(is_mounted(&request.target) && is_mounted(&request.stage.staging));
}

#[tokio::test]
async fn republish_is_called_only_if_the_driver_requires_it() {
    if !in_own_namespace("republish_is_called_only_if_the_driver_requires_it") {
        return;
    }
    let node = Node::new();
    let driver = FakeDriver::start(&node, DRIVER);
    driver.mount_really();
    let request = |republish| {
        let asks = DriverRequirements {
            republish,
            ..Default::default()
        };
        publish(&node, "pod-1", wants(csi_path(VolumeMode::Filesystem), asks))
    };
    node.volumes().publish(request(false)).await.unwrap();
    driver.take_calls();
    node.volumes().publish(request(false)).await.unwrap();
    assert!(driver.take_calls().is_empty());
    // After a restart of kubelet both calls are repeated; staging is refreshed.
    node.volumes().stage(request(true).stage).await.unwrap();
    node.volumes().publish(request(true)).await.unwrap();
    assert_eq!(driver.take_calls(), ["stage", "publish"]);

    // As long as it is mounted, an absent driver is an error.
    driver.stop();
    let error = node
        .volumes()
        .unpublish(unpublish(&request(true)))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, UnpublishError::VolumeError(error) if error.is_absent_driver()),
        "{error}"
    );
    driver.restart(&node);
    node.volumes().unpublish(unpublish(&request(true))).await.unwrap();
    node.volumes()
        .unstage(unstage(&request(true).stage))
        .await
        .unwrap();
    assert_eq!(node.records(), 0);
}

#[tokio::test]
async fn a_single_writer_volume_is_mounted_once() {
    if !in_own_namespace("a_single_writer_volume_is_mounted_once") {
        return;
    }
    let node = Node::new();
    let driver = FakeDriver::start(&node, DRIVER);
    driver.mount_really();
    let request = |pod: &str| {
        let mut request = publish(&node, pod, csi_path(VolumeMode::Filesystem));
        request.stage.access.mode = AccessMode::SingleNodeSingleWriter;
        request
    };
    node.volumes().publish(request("pod-1")).await.unwrap();
    let second = node.volumes().publish(request("pod-2")).await;
    assert!(
        matches!(second, Err(PublishError::SingleWriter { .. })),
        "{second:?}"
    );

    // The first pod's mount was removed without an unpublish: the second pod may have the volume.
    mounts::unmount(&request("pod-1").target).unwrap();
    node.volumes().publish(request("pod-2")).await.unwrap();
}

#[tokio::test]
async fn an_id_that_changes_its_data_is_refused_while_in_use() {
    if !in_own_namespace("an_id_that_changes_its_data_is_refused_while_in_use") {
        return;
    }
    let node = Node::new();
    for disk in ["a", "b"] {
        node.make(&format!("host/{disk}"));
    }
    let request = |disk: &str| publish(&node, "pod-1", local(disk, VolumeMode::Filesystem));
    node.volumes().publish(request("/a")).await.unwrap();
    let other = node.volumes().stage(request("/b").stage).await;
    assert!(matches!(other, Err(StageError::OtherSource { .. })), "{other:?}");
    let mut moved = request("/a").stage;
    moved.staging = node.make("elsewhere");
    let moved = node.volumes().stage(moved).await;
    assert!(matches!(moved, Err(StageError::Elsewhere { .. })), "{moved:?}");

    node.volumes().unpublish(unpublish(&request("/a"))).await.unwrap();
    node.volumes().stage(request("/b").stage).await.unwrap();
}
