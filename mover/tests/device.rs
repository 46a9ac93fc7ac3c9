//! Volumes of mode Block: files stand for devices, and loop devices are some.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

mod common;

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    process::Command,
    thread,
    time::Duration,
};

use common::{acceptor, dial, id, is_root};
use mover::{
    block::{BlockReport, BlockTarget},
    error::Error,
    source::Source,
    throttle::Throttle,
};

const SIZE: u64 = (200 << 20) + 4096;

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new()
        .update(&seed.to_le_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

struct Devices(tempfile::TempDir);

impl Devices {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("state")).unwrap();
        let this = Self(folder);
        let source = File::create(this.at("source")).unwrap();
        source.set_len(SIZE).unwrap();
        source.write_all_at(&noise(1, 30 << 20), 5 << 20).unwrap();
        source.write_all_at(&noise(2, 4096), SIZE - 4096).unwrap();
        // What was on the target before: nothing may be left of it.
        File::create(this.at("target"))
            .unwrap()
            .write_all_at(&noise(3, 60 << 20), 0)
            .unwrap();
        File::options()
            .write(true)
            .open(this.at("target"))
            .unwrap()
            .set_len(SIZE)
            .unwrap();
        this
    }

    fn at(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn open(&self, has_content: bool) -> BlockTarget {
        BlockTarget::open(&self.at("target"), &self.at("state"), &id(), has_content).unwrap()
    }

    fn assert_equal(&self) {
        assert!(fs::read(self.at("source")).unwrap() == fs::read(self.at("target")).unwrap());
    }
}

fn pass(source: &Path, target: &mut BlockTarget) -> Result<BlockReport, Error> {
    let (acceptor, address) = acceptor();
    let source = source.to_owned();
    let serving = thread::spawn(move || {
        Source::open(&source)
            .unwrap()
            .serve(dial(address, 2)?, &Throttle::new(None))
    });
    let mut session = target.session(acceptor.accept(Duration::from_secs(20)).unwrap().unwrap());
    let result = session.pass();
    if result.is_ok() {
        session.end();
    } else {
        drop(session);
    }
    let _ = serving.join().unwrap();
    result
}

#[test]
fn a_device_is_copied_and_then_only_what_changed() {
    let devices = Devices::new();
    let mut target = devices.open(false);
    let first = pass(&devices.at("source"), &mut target).unwrap();
    assert_eq!(first.bytes, SIZE);
    assert!(
        first.received_bytes < 32 << 20,
        "zeros do not travel: {}",
        first.received_bytes
    );
    devices.assert_equal();
    assert!(target.verify(false).unwrap().is_empty());
    assert!(
        fs::metadata(devices.at("target")).unwrap().blocks() * 512 < 40 << 20,
        "and take no room"
    );

    let source = File::options().write(true).open(devices.at("source")).unwrap();
    source.write_all_at(b"changed", (100 << 20) + 5).unwrap();
    source.write_all_at(&vec![0; 2 << 20], 6 << 20).unwrap();
    let second = pass(&devices.at("source"), &mut target).unwrap();
    assert_eq!((second.pass, second.received_bytes), (2, 1 << 20));
    devices.assert_equal();
    assert!(target.verify(false).unwrap().is_empty() && target.verify(true).unwrap().is_empty());

    // Another process goes on from what is remembered.
    drop(target);
    source.write_all_at(b"again", 7).unwrap();
    let mut target = devices.open(false);
    assert_eq!(
        pass(&devices.at("source"), &mut target).unwrap().received_bytes,
        1 << 20
    );
    devices.assert_equal();

    // Or, if that is lost, from what is on the device.
    fs::remove_dir_all(devices.at("state")).unwrap();
    fs::create_dir(devices.at("state")).unwrap();
    source.write_all_at(b"once more", 7).unwrap();
    let mut target = devices.open(true);
    assert_eq!(
        pass(&devices.at("source"), &mut target).unwrap().received_bytes,
        1 << 20
    );
    devices.assert_equal();

    let on_disk = File::options().write(true).open(devices.at("target")).unwrap();
    on_disk.write_all_at(b"rot", 77 << 20).unwrap();
    assert_eq!(target.verify(true).unwrap(), [77]);
}

#[test]
fn a_device_that_is_too_small_is_refused() {
    let devices = Devices::new();
    File::options()
        .write(true)
        .open(devices.at("target"))
        .unwrap()
        .set_len(SIZE - 4096)
        .unwrap();
    let mut target = devices.open(false);
    let result = pass(&devices.at("source"), &mut target);
    assert!(matches!(result, Err(Error::DeviceTooSmall { .. })), "{result:?}");
}

/// A loop device, taken down whatever happens.
struct Loop(String);

impl Loop {
    fn of(file: &Path) -> Self {
        let output = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(file)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Self(String::from_utf8(output.stdout).unwrap().trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn real_block_devices_do_too() {
    if !is_root() {
        return;
    }
    let devices = Devices::new();
    {
        let (source, target) = (Loop::of(&devices.at("source")), Loop::of(&devices.at("target")));
        let mut to = BlockTarget::open(Path::new(&target.0), &devices.at("state"), &id(), false).unwrap();
        pass(Path::new(&source.0), &mut to).unwrap();
        assert!(to.verify(true).unwrap().is_empty());
    }
    devices.assert_equal();
}
