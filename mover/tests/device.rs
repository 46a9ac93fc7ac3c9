//! Volumes of mode Block: files in place of devices, and loop devices.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

mod common;

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    process::Command,
    thread,
};

use common::{Relay, acceptor, dial, id, is_root};
use mover::{
    block::{BlockReport, BlockTarget},
    error::Error,
    source::Source,
    target::{PassOptions, Target},
    throttle::Throttle,
    verify::Scope,
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
        // The previous content of the target: none of it may remain.
        File::create(this.at("target"))
            .unwrap()
            .write_all_at(&noise(3, 60 << 20), 0)
            .unwrap();
        this.resize_target(SIZE);
        this
    }

    fn at(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn open(&self) -> BlockTarget {
        BlockTarget::open(&self.at("target"), &self.at("state"), &id()).unwrap()
    }

    fn resize_target(&self, size: u64) {
        let target = File::options().write(true).open(self.at("target")).unwrap();
        target.set_len(size).unwrap();
    }

    /// The journal of an earlier process is lost.
    fn forget(&self) {
        fs::remove_dir_all(self.at("state")).unwrap();
        fs::create_dir(self.at("state")).unwrap();
    }

    fn assert_equal(&self) {
        assert!(fs::read(self.at("source")).unwrap() == fs::read(self.at("target")).unwrap());
    }
}

fn pass(source: &Path, target: &mut BlockTarget) -> Result<BlockReport, Error> {
    pass_until(source, target, None)
}

/// A pass whose connection breaks after this many bytes.
fn pass_until(source: &Path, target: &mut BlockTarget, cut: Option<u64>) -> Result<BlockReport, Error> {
    let (acceptor, address) = acceptor();
    let relay = cut.map(|bytes| {
        let relay = Relay::to(address);
        relay.cut_after(bytes);
        relay
    });
    let address = relay.as_ref().map_or(address, |relay| relay.address);
    let source = source.to_owned();
    let serving = thread::spawn(move || {
        Source::open(&source)
            .unwrap()
            .serve(dial(address, 2)?, &Throttle::new(None))
    });
    let mut session = target.session(acceptor.accept(common::TEST_TIMEOUT).unwrap().unwrap());
    let result = session.pass();
    if result.is_ok() {
        session.end();
    } else {
        drop(session);
    }
    let _ = serving.join().unwrap();
    result
}

/// Reads the device back, and checks the result.
fn verified(target: &mut BlockTarget, scope: Scope) -> u64 {
    let found = target.verify(scope).unwrap();
    assert!(found.is_equal(), "{:?}", found.differences);
    found.bytes
}

#[test]
fn a_device_is_copied_and_then_only_what_changed() {
    let devices = Devices::new();
    let mut target = devices.open();
    let first = pass(&devices.at("source"), &mut target).unwrap();
    assert_eq!(first.bytes, SIZE);
    assert!(
        first.received_bytes < 32 << 20,
        "zeros do not travel: {}",
        first.received_bytes
    );
    devices.assert_equal();
    // What was written, each time to the whole range.
    assert_eq!(verified(&mut target, Scope::Touched), (72 << 20) + 4096);
    assert_eq!(verified(&mut target, Scope::All), SIZE);
    assert_eq!(verified(&mut target, Scope::Touched), 0);
    assert!(
        fs::metadata(devices.at("target")).unwrap().blocks() * 512 < 40 << 20,
        "and take no space"
    );

    let source = File::options().write(true).open(devices.at("source")).unwrap();
    source.write_all_at(b"changed", (100 << 20) + 5).unwrap();
    source.write_all_at(&vec![0; 2 << 20], 6 << 20).unwrap();
    let second = pass(&devices.at("source"), &mut target).unwrap();
    assert_eq!((second.pass, second.received_bytes), (2, 1 << 20));
    devices.assert_equal();
    assert_eq!(verified(&mut target, Scope::Touched), 32 << 20);
    verified(&mut target, Scope::All);

    // Another process continues from the journal.
    drop(target);
    source.write_all_at(b"again", 7).unwrap();
    let mut target = devices.open();
    assert_eq!(
        pass(&devices.at("source"), &mut target).unwrap().received_bytes,
        1 << 20
    );
    devices.assert_equal();

    // Or, if the journal is lost, from the content of the device.
    drop(target);
    devices.forget();
    source.write_all_at(b"once more", 7).unwrap();
    let mut target = devices.open();
    assert_eq!(
        pass(&devices.at("source"), &mut target).unwrap().received_bytes,
        1 << 20
    );
    devices.assert_equal();

    let on_disk = File::options().write(true).open(devices.at("target")).unwrap();
    on_disk.write_all_at(b"rot", 77 << 20).unwrap();
    let found = target.verify(Scope::All).unwrap();
    assert_ne!(found.expected, found.found);
    let named: Vec<String> = found.differences.iter().map(ToString::to_string).collect();
    assert_eq!(found.different, 1);
    assert!(named[0].ends_with("other content in its MiB 77"), "{named:?}");
    pass(&devices.at("source"), &mut target).unwrap();
    target.finish().unwrap();
    assert_eq!(fs::read_dir(devices.at("state")).unwrap().count(), 0);
}

#[test]
fn an_interrupted_pass_resumes_also_in_a_new_process() {
    for has_died in [false, true] {
        let devices = Devices::new();
        let mut target = devices.open();
        let broken = pass_until(&devices.at("source"), &mut target, Some(20 << 20));
        assert!(matches!(broken, Err(Error::Cut(_))), "{broken:?}");
        assert!(
            target.verify(Scope::Touched).is_err(),
            "what is half copied is not compared"
        );
        if has_died {
            drop(target);
            devices.forget();
            target = devices.open();
        }
        let rest = pass(&devices.at("source"), &mut target).unwrap();
        assert!(
            rest.received_bytes < 20 << 20,
            "of 30 MiB, {} came once more",
            rest.received_bytes
        );
        devices.assert_equal();
        let read_back = verified(&mut target, Scope::Touched);
        assert!(
            read_back >= rest.received_bytes,
            "only {read_back} were read back"
        );
        verified(&mut target, Scope::All);
    }
}

#[test]
fn a_device_changed_during_a_pass_is_equal_after_the_next_pass() {
    let devices = Devices::new();
    let mut target = devices.open();
    let source = File::options().write(true).open(devices.at("source")).unwrap();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let writing = thread::spawn(move || {
        let mut round = 0;
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            round += 1;
            source
                .write_all_at(&noise(round, 100_000), (round * 7 % 190) << 20)
                .unwrap();
        }
    });
    pass(&devices.at("source"), &mut target).unwrap();
    stop.send(()).unwrap();
    writing.join().unwrap();
    pass(&devices.at("source"), &mut target).unwrap();
    devices.assert_equal();
    verified(&mut target, Scope::Touched);
}

#[test]
fn a_byte_that_changes_on_the_target_is_found_and_repaired() {
    let devices = Devices::new();
    let mut target = devices.open();
    pass(&devices.at("source"), &mut target).unwrap();
    let disk = File::options()
        .read(true)
        .write(true)
        .open(devices.at("target"))
        .unwrap();
    let (mut byte, at) = ([0], (7 << 20) + 11);
    disk.read_exact_at(&mut byte, at).unwrap();
    disk.write_all_at(&[byte[0] ^ 1], at).unwrap();
    for _ in 0..2 {
        assert!(
            !target.verify(Scope::All).unwrap().is_equal(),
            "no pass was made since"
        );
    }
    pass(&devices.at("source"), &mut target).unwrap();
    verified(&mut target, Scope::All);
    devices.assert_equal();
}

#[test]
fn a_larger_target_device_keeps_the_bytes_beyond_the_source() {
    let devices = Devices::new();
    devices.resize_target(SIZE + (20 << 20));
    let behind = File::options()
        .read(true)
        .write(true)
        .open(devices.at("target"))
        .unwrap();
    behind.write_all_at(b"behind", SIZE).unwrap();
    let mut target = devices.open();
    pass(&devices.at("source"), &mut target).unwrap();
    assert_eq!(verified(&mut target, Scope::All), SIZE);
    pass(&devices.at("source"), &mut target).unwrap();
    verified(&mut target, Scope::Touched);
    let mut kept = [0; 6];
    behind.read_exact_at(&mut kept, SIZE).unwrap();
    assert_eq!(&kept, b"behind");
    devices.resize_target(SIZE);
    devices.assert_equal();
}

#[test]
fn a_device_and_a_tree_are_not_confused() {
    let devices = Devices::new();
    fs::create_dir(devices.at("tree")).unwrap();
    let mut target = devices.open();
    let result = pass(&devices.at("tree"), &mut target);
    assert!(matches!(result, Err(Error::Protocol(_))), "{result:?}");
    fs::write(devices.at("tree").join("file"), "stays").unwrap();
    let mut tree = Target::open(&devices.at("tree"), &id()).unwrap();
    let result = common::with_session(&devices.at("source"), &mut tree, |session| {
        session.pass(PassOptions::default())
    });
    assert!(matches!(result, Err(Error::Protocol(_))), "{result:?}");
    assert_eq!(fs::read(devices.at("tree").join("file")).unwrap(), b"stays");
}

#[test]
fn a_device_that_is_too_small_is_refused() {
    let devices = Devices::new();
    devices.resize_target(SIZE - 4096);
    let mut target = devices.open();
    let result = pass(&devices.at("source"), &mut target);
    assert!(matches!(result, Err(Error::TooSmall { .. })), "{result:?}");
}

/// A loop device, which is always detached at the end.
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
fn a_real_block_device_is_copied() {
    if !is_root() {
        return;
    }
    let devices = Devices::new();
    {
        let (source, target) = (Loop::of(&devices.at("source")), Loop::of(&devices.at("target")));
        let mut to = BlockTarget::open(Path::new(&target.0), &devices.at("state"), &id()).unwrap();
        pass(Path::new(&source.0), &mut to).unwrap();
        verified(&mut to, Scope::All);
    }
    devices.assert_equal();
}
