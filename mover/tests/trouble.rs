//! Failures of the environment: processes are killed, connections break, disks are full or return wrong
//! data, files change while they are read. None of them may lead to a wrong copy that is reported as
//! correct.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

mod common;

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::FileExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use common::{
    Image, Lease, Pair, Relay, TEST_TIMEOUT, acceptor, assert_same_trees, dial, id, is_root, small_acceptor,
    with_session,
};
use mover::{
    error::Error,
    piece::CHUNK,
    source::Source,
    target::{PassOptions, PassReport, Target},
    throttle::Throttle,
    verify::{Aspect, Scope},
};

/// Data lanes of a session through the relay.
const LANES: u32 = 3;
const LAST: PassOptions = PassOptions {
    last: true,
    reread: false,
};

/// Bytes that do not compress, different for each seed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new()
        .update(&seed.to_le_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

fn fill(root: &Path, small: u64, large: usize) {
    for at in 0..small {
        let dir = root.join(format!("d{:02}", at % 37));
        fs::create_dir_all(&dir).unwrap();
        fs::write(
            dir.join(at.to_string()),
            noise(at, usize::try_from(at * 13 % 9000).unwrap()),
        )
        .unwrap();
    }
    fs::write(root.join("d00/large"), noise(u64::MAX, large)).unwrap();
}

/// A pass through the relay; returns its report, and the bytes on the wire.
fn pass_through(
    pair: &Pair,
    cut_after: Option<u64>,
    flip_after: Option<u64>,
) -> (Result<PassReport, Error>, u64) {
    let (acceptor, address) = small_acceptor(Relay::BUFFER);
    let relay = Relay::to(address);
    let (root, to) = (pair.source.clone(), relay.address);
    let serving = thread::spawn(move || {
        Source::open(&root)
            .unwrap()
            .serve(dial(to, LANES)?, &Throttle::new(None))
    });
    let lanes = acceptor.accept(TEST_TIMEOUT).unwrap().unwrap();
    let before = relay.passed();
    if let Some(bytes) = cut_after {
        relay.cut_after(bytes);
    }
    if let Some(bytes) = flip_after {
        relay.flip_after(bytes);
    }
    let mut target = pair.open();
    let mut session = target.session(lanes);
    let result = session.pass(PassOptions::default());
    if result.is_ok() {
        session.end();
    } else {
        drop(session);
    }
    let _ = serving.join().unwrap();
    (result, relay.passed() - before)
}

#[test]
fn a_pass_cut_halfway_is_resumed_without_a_second_transfer() {
    let pair = Pair::new();
    fill(&pair.source, 2000, 150 << 20);
    let total: u64 = common::see(&pair.source).len() as u64;
    let bytes: u64 = walk_size(&pair.source);
    assert!(total > 2000);
    let (first, before_cut) = pass_through(&pair, Some(bytes / 2), None);
    assert!(matches!(first, Err(Error::Cut(_))), "{first:?}");
    let (second, after_cut) = pass_through(&pair, None, None);
    second.unwrap();
    let sent = before_cut + after_cut;
    // What passed the relay and is not written: a batch of each lane, which is at most two chunks and their headers, and
    // its buffers on both sides.
    let held = u64::from(LANES) * (3 * CHUNK + 4 * Relay::BUFFER) as u64;
    // The rest of the limit is for the second listing.
    let limit = bytes + held + 400 * total;
    assert!(
        sent <= limit,
        "of {bytes} bytes, {before_cut} went before the cut and {after_cut} after it"
    );
    pair.last_pass();
}

fn walk_size(root: &Path) -> u64 {
    fs::read_dir(root)
        .unwrap()
        .map(|entry| {
            let meta = entry.as_ref().unwrap().metadata().unwrap();
            if meta.is_dir() {
                walk_size(&entry.unwrap().path())
            } else {
                meta.len()
            }
        })
        .sum()
}

#[test]
fn a_directory_moved_away_and_back_around_a_broken_pass_is_compared() {
    let pair = Pair::new();
    for (directory, word) in [("a", "in a"), ("b", "in b")] {
        fs::create_dir_all(pair.source.join(directory).join("sub/deeper")).unwrap();
        fs::write(pair.source.join(directory).join("sub/same"), word).unwrap();
        fs::write(pair.source.join(directory).join("sub/deeper").join(word), word).unwrap();
    }
    let swap = |one: &str, two: &str| {
        fs::rename(pair.source.join(one), pair.source.join("swap")).unwrap();
        fs::rename(pair.source.join(two), pair.source.join(one)).unwrap();
        fs::rename(pair.source.join("swap"), pair.source.join(two)).unwrap();
    };
    let away = |from: &str, to: &str| fs::rename(pair.source.join(from), pair.source.join(to)).unwrap();
    for round in 0..4 {
        pair.pass(PassOptions::default());
        thread::sleep(Duration::from_millis(30));
        assert!(pair.pass(PassOptions::default()).by_stamps);
        if round % 2 == 0 {
            swap("a", "b");
        } else {
            away("a", "c");
        }
        // Enough to be interrupted, after everything before it is done.
        fs::write(pair.source.join("z"), noise(round, 30 << 20)).unwrap();
        let (broken, _) = pass_through(&pair, Some(8 << 20), None);
        assert!(broken.is_err());
        if round % 2 == 0 {
            swap("a", "b");
        } else {
            away("c", "a");
        }
        if round > 1 {
            fs::remove_file(pair.source.join("z")).unwrap();
        }
        pair.last_pass();
    }
}

#[test]
fn a_session_that_breaks_leaves_the_target_ready_for_another() {
    let pair = Pair::new();
    fs::write(pair.source.join("large"), noise(1, 30 << 20)).unwrap();
    pair.pass(PassOptions::default());
    let file = File::options()
        .write(true)
        .open(pair.source.join("large"))
        .unwrap();
    let mut target = pair.open();
    for round in 0..3u64 {
        // The same chunks each time, and in the end unchanged.
        file.write_all_at(&noise(100 + round, 20 << 20), 0).unwrap();
        let (acceptor, address) = acceptor();
        let relay = Relay::to(address);
        let (root, to) = (pair.source.clone(), relay.address);
        let serving = thread::spawn(move || {
            Source::open(&root)
                .unwrap()
                .serve(dial(to, 2)?, &Throttle::new(None))
        });
        let lanes = acceptor.accept(TEST_TIMEOUT).unwrap().unwrap();
        relay.cut_after(6 << 20);
        assert!(target.session(lanes).pass(PassOptions::default()).is_err());
        let _ = serving.join().unwrap();
    }
    file.write_all_at(&noise(1, 20 << 20), 0).unwrap();
    with_session(&pair.source, &mut target, |session| session.pass(LAST)).unwrap();
    assert!(target.verify(Scope::All).unwrap().is_equal());
    pair.assert_equal();
}

#[test]
fn a_bit_that_flips_on_the_wire_never_reaches_a_file() {
    let pair = Pair::new();
    fill(&pair.source, 300, 20 << 20);
    let mut noticed = 0;
    for after in [0, 40, 5_000, 300_000, 4 << 20, 15 << 20] {
        let (result, _) = pass_through(&pair, None, Some(after));
        // Three bytes in the header of a TLS record have no meaning.
        if result.is_ok() {
            pair.assert_equal();
        }
        noticed += u32::from(result.is_err());
        pair.last_pass();
        // Content for the next pass.
        fs::write(pair.source.join("d00/large"), noise(after, 20 << 20)).unwrap();
    }
    assert!(noticed >= 5, "{noticed} of 6");
}

#[test]
fn a_corrupt_byte_on_disk_is_reported_and_repaired() {
    let pair = Pair::new();
    fill(&pair.source, 100, 5 << 20);
    pair.pass(PassOptions::default());
    let flip = |path: &str, at: u64| {
        let path = pair.target.join(path);
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
        file.set_modified(modified).unwrap();
    };
    flip("d00/large", (3 << 20) + 17);
    flip("d05/5", 1);
    fs::write(pair.target.join("d05/extra"), "").unwrap();
    fs::remove_file(pair.target.join("d06/6")).unwrap();
    // A verification of touched files detects it, because nothing was verified yet.
    let found = pair.open().verify(Scope::Touched).unwrap();
    let named: Vec<_> = found
        .differences
        .iter()
        .map(|it| (it.path.to_string(), it.what))
        .collect();
    for wanted in [
        ("d00/large".to_owned(), Aspect::Content(3)),
        ("d05/5".to_owned(), Aspect::Content(0)),
        ("d05/extra".to_owned(), Aspect::Extra),
        ("d06/6".to_owned(), Aspect::Missing),
    ] {
        assert!(named.contains(&wanted), "{wanted:?} is not among {named:?}");
    }
    assert!(!found.is_equal() && found.expected != found.found);

    // The next pass hashes the existing content.
    let report = pair.last_pass();
    assert!(
        report.received_bytes < 3 << 20,
        "only what differs is sent: {}",
        report.received_bytes
    );
}

/// A pair whose target is this file system.
fn onto(image: &Image) -> Pair {
    Pair {
        target: image.at.clone(),
        ..Pair::new()
    }
}

#[test]
fn a_full_disk_is_reported_with_its_path_and_a_pass_resumes_with_space() {
    if !is_root() {
        return;
    }
    let image = Image::new(&["mkfs.ext4", "-q"], 80);
    let pair = onto(&image);
    fill(&pair.source, 100, 30 << 20);
    // No pass deletes this.
    let ballast = pair.target.join(".liqo-move-ballast");
    fs::write(&ballast, noise(1, 45 << 20)).unwrap();
    let mut target = pair.open();
    let result = with_session(&pair.source, &mut target, |session| session.pass(LAST));
    assert!(
        matches!(result, Err(Error::Full { .. } | Error::Journal(_))),
        "{result:?}"
    );
    if let Err(Error::Full { path, .. }) = &result {
        assert_eq!(path.to_string(), "d00/large");
    }
    drop(target);
    fs::remove_file(ballast).unwrap();
    pair.last_pass();
}

/// A pass that can never fit does not begin: neither by bytes nor by inodes.
#[test]
fn a_target_that_is_too_small_is_reported_before_anything_is_sent() {
    if !is_root() {
        return;
    }
    let ext4 = ["mkfs.ext4", "-q"];
    let few_inodes = ["mkfs.ext4", "-q", "-N", "64"];
    for (target, size, lacks) in [(&ext4[..], 16, "bytes"), (&few_inodes[..], 64, "inodes")] {
        let (from, to) = (Image::new(&ext4, 64), Image::new(target, size));
        let pair = Pair {
            source: from.at.clone(),
            target: to.at.clone(),
            ..Pair::new()
        };
        fill(&pair.source, 200, 30 << 20);
        let mut target = pair.open();
        let result = with_session(&pair.source, &mut target, |session| session.pass(LAST));
        assert!(
            matches!(result, Err(Error::TooSmall { what, .. }) if what == lacks),
            "{result:?}"
        );
        assert!(!pair.target.join("d00").exists(), "something was sent");
        // A part of a file system does not report its own capacity.
        let part = pair.source.join("d00");
        let result = with_session(&part, &mut target, |session| session.pass(LAST));
        assert!(!matches!(result, Err(Error::TooSmall { .. })), "{result:?}");
    }
}

/// The file that did not fit leaves no space for the journal of the pass that would delete it.
#[test]
fn a_full_disk_is_freed_by_deleting_what_the_source_lacks() {
    if !is_root() {
        return;
    }
    let image = Image::new(&["mkfs.ext4", "-q"], 40);
    let pair = onto(&image);
    fill(&pair.source, 100, 60 << 20);
    let mut target = pair.open();
    let mut attempt = || with_session(&pair.source, &mut target, |session| session.pass(LAST));
    for _ in 0..3 {
        assert!(attempt().is_err_and(|error| error.is_full()));
    }
    fs::remove_file(pair.source.join("d00/large")).unwrap();
    let passed = (0..4).any(|_| match attempt() {
        Ok(_) => true,
        Err(error) if error.is_full() => false,
        Err(error) => panic!("{error}"),
    });
    assert!(passed, "it stays full");
    let found = target.verify(Scope::All).unwrap();
    assert!(found.is_equal());
}

/// The walk creates empty files at their new place before it reaches the old one: there are not enough inodes
/// for both.
#[test]
fn files_moved_to_an_earlier_path_fit_after_some_passes() {
    if !is_root() {
        return;
    }
    let image = Image::new(&["mkfs.ext4", "-q", "-N", "96"], 80);
    let pair = onto(&image);
    let at = |path: &str| pair.source.join(path);
    for path in ["a", "x/d"] {
        fs::create_dir_all(at(path)).unwrap();
    }
    for file in 0..rustix::fs::statvfs(&image.at).unwrap().f_ffree * 2 / 3 {
        fs::write(at(&format!("x/d/{file}")), "").unwrap();
    }
    fs::write(at("a/grows"), "").unwrap();
    fs::write(at("y"), noise(1, 50 << 20)).unwrap();
    let mut target = pair.open();
    attempt_until_it_fits(&pair, &mut target);
    fs::rename(at("x/d"), at("a/d")).unwrap();
    attempt_until_it_fits(&pair, &mut target);
    // Nor is there space for one file before another one shrinks.
    fs::rename(at("y"), at("a/grows")).unwrap();
    fs::write(at("y"), noise(1, 1 << 20)).unwrap();
    attempt_until_it_fits(&pair, &mut target);
}

fn attempt_until_it_fits(pair: &Pair, target: &mut Target) {
    let passed = (0..4).any(
        |_| match with_session(&pair.source, target, |session| session.pass(LAST)) {
            Ok(_) => true,
            Err(error) if error.is_full() => false,
            Err(error) => panic!("{error}"),
        },
    );
    assert!(passed, "it stays full");
    assert!(target.verify(Scope::All).unwrap().is_equal());
    pair.assert_equal();
}

/// The file is as long as before.
#[test]
fn freed_ranges_of_a_file_are_freed_before_others_are_written() {
    if !is_root() {
        return;
    }
    let image = Image::new(&["mkfs.ext4", "-q"], 80);
    let pair = onto(&image);
    let at = |path: &str| pair.source.join(path);
    for directory in ["a", "z"] {
        fs::create_dir(at(directory)).unwrap();
    }
    fs::write(at("z/image"), noise(1, 45 << 20)).unwrap();
    let mut target = pair.open();
    attempt_until_it_fits(&pair, &mut target);
    let file = File::options().write(true).open(at("z/image")).unwrap();
    file.set_len(0).unwrap();
    file.set_len(45 << 20).unwrap();
    for number in 0..15 {
        fs::write(at(&format!("a/{number:02}")), noise(number, 3 << 20)).unwrap();
    }
    attempt_until_it_fits(&pair, &mut target);
}

/// There are 32 bytes of hash for each MiB.
#[test]
fn hashes_of_holes_take_no_space() {
    if !is_root() {
        return;
    }
    let image = Image::new(&["mkfs.ext4", "-q", "-b", "4096"], 16);
    let pair = onto(&image);
    let file = File::create(pair.source.join("long")).unwrap();
    file.write_all_at(b"in the middle", (300 << 30) + 4097).unwrap();
    file.set_len((600 << 30) + 5).unwrap();
    pair.pass(LAST);
    let before = pair.assert_verified(Scope::All);
    // What is known of the holes is used by the next pass.
    file.write_all_at(b"at the end", 600 << 30).unwrap();
    file.write_all_at(b"IN", (300 << 30) + 4097).unwrap();
    let report = pair.pass(LAST);
    assert!(report.received_bytes < 20_000, "{}", report.received_bytes);
    let after = pair.assert_verified(Scope::All);
    assert!(before.expected != after.expected);
}

/// A process that maps a file and writes to the mapping, as databases do: `xfs_io` works on any file system.
struct Mapping(Child);

impl Mapping {
    fn of(path: &Path) -> Self {
        let mut child = Command::new("xfs_io")
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("xfs_io is a test dependency: make deps");
        let length = fs::metadata(path).unwrap().len();
        writeln!(child.stdin.as_mut().unwrap(), "mmap -rw 0 {length}").unwrap();
        Self(child)
    }

    /// Writes through the mapping, and waits for its end.
    fn write(&mut self, byte: u8, at: u64, length: u64, path: &Path) {
        let stdin = self.0.stdin.as_mut().unwrap();
        writeln!(stdin, "mwrite -S {byte} {at} {length}").unwrap();
        let file = File::open(path).unwrap();
        let mut seen = vec![0; 1];
        let until = Instant::now() + TEST_TIMEOUT;
        while seen != [byte] {
            assert!(Instant::now() < until, "xfs_io did not write");
            file.read_exact_at(&mut seen, at + length - 1).unwrap();
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_file_under_a_lease_is_waited_for_and_named() {
    let pair = Pair::new();
    let path = pair.source.join("cached");
    fs::write(&path, "x").unwrap();
    let given_up = Lease::of(&path, "sub { fcntl($f, 1024, 2) }");
    pair.pass(PassOptions::default());
    drop(given_up);
    fs::write(&path, "xy").unwrap();
    let kept = Lease::of(&path, "'IGNORE'");
    let mut target = pair.open();
    let result = with_session(&pair.source, &mut target, |session| session.pass(LAST));
    let error = result.expect_err("the lease was broken").to_string();
    assert!(error.contains("'cached' is under a lease"), "{error}");
    drop(kept);
    pair.last_pass();
}

#[test]
fn writes_through_a_memory_mapping_are_never_missed() {
    if !is_root() {
        return;
    }
    // A separate file system, so that it is not synchronised together with the target's.
    for make in [&["mkfs.ext4", "-q"][..], &["mkfs.xfs", "-q"][..]] {
        let image = Image::new(make, 400);
        let pair = Pair {
            source: image.at.clone(),
            ..Pair::new()
        };
        let path = pair.source.join("database");
        fs::write(&path, noise(3, 3 << 20)).unwrap();
        let mut mapping = Mapping::of(&path);
        for round in 1..6u8 {
            // The page is dirty when a pass reads it, and its mtime long ago. Unless the pass writes the
            // page back, the next write to it changes no time.
            mapping.write(round, 4096 * u64::from(round), 100, &path);
            thread::sleep(Duration::from_millis(60));
            pair.pass(PassOptions::default());
            mapping.write(round + 100, 4096 * u64::from(round), 100, &path);
            thread::sleep(Duration::from_millis(60));
            pair.pass(PassOptions::default());
            let copy = fs::read(pair.target.join("database")).unwrap();
            assert!(copy == fs::read(&path).unwrap(), "round {round}: stale bytes");
        }
        drop(mapping);
        pair.last_pass();
    }
}

#[test]
fn files_that_change_shrink_and_vanish_during_a_pass_are_right_after_the_next() {
    let pair = Pair::new();
    fill(&pair.source, 400, 8 << 20);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0u64;
            while !stop.load(Ordering::Relaxed) {
                round += 1;
                let at = pair.source.join(format!("d{:02}", round % 37));
                let file = File::options()
                    .write(true)
                    .open(pair.source.join("d00/large"))
                    .unwrap();
                file.write_all_at(&noise(round, 5000), round * 7919 % (4 << 20))
                    .unwrap();
                file.set_len((4 << 20) + round * 104_729 % (4 << 20)).unwrap();
                fs::write(at.join("new"), noise(round, 3000)).unwrap();
                let _ = fs::rename(at.join("new"), at.join(format!("renamed{}", round % 3)));
                let _ = fs::remove_file(at.join(format!("renamed{}", (round + 1) % 3)));
            }
        });
        for _ in 0..6 {
            pair.pass(PassOptions::default());
        }
        stop.store(true, Ordering::Relaxed);
    });
    pair.last_pass();
}

#[test]
fn a_last_pass_fails_if_a_file_still_changes() {
    let pair = Pair::new();
    fs::write(pair.source.join("log"), noise(1, 40 << 20)).unwrap();
    let stop = AtomicBool::new(false);
    let result = thread::scope(|scope| {
        scope.spawn(|| {
            let mut log = File::options()
                .append(true)
                .open(pair.source.join("log"))
                .unwrap();
            while !stop.load(Ordering::Relaxed) {
                log.write_all(b"line\n").unwrap();
            }
        });
        let mut target = pair.open();
        let result = with_session(&pair.source, &mut target, |session| session.pass(LAST));
        stop.store(true, Ordering::Relaxed);
        result
    });
    let Err(Error::Busy { path }) = result else {
        panic!("{result:?}")
    };
    assert_eq!(path.to_string(), "log");
    pair.last_pass();
}

/// The two sides as separate processes that can be killed.
struct Processes<'a> {
    pair: &'a Pair,
    address: String,
}

impl Processes<'_> {
    fn command(&self, verb: &str, side: &str, root: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_liqo-csi-mover"));
        command
            .args([verb, "--move", common::UID, "--root"])
            .arg(root)
            .arg("--credentials")
            .arg(self.pair.folder.path().join("credentials").join(side))
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command
    }

    fn send(&self) -> Child {
        let mut command = self.command("source", "source", &self.pair.source);
        command
            .args(["--connect", &self.address, "--lanes", "2"])
            .spawn()
            .unwrap()
    }

    fn receive(&self, passes: u32) -> Child {
        let mut command = self.command("target", "target", &self.pair.target);
        command
            .args(["--listen", &self.address, "--passes", &passes.to_string()])
            .spawn()
            .unwrap()
    }
}

#[test]
fn either_side_may_be_killed_at_any_time() {
    let pair = Pair::new();
    fill(&pair.source, 3000, 120 << 20);
    common::run(
        Command::new(env!("CARGO_BIN_EXE_liqo-csi-mover"))
            .args(["issue", "--move", common::UID])
            .arg(pair.folder.path().join("credentials")),
    );
    let processes = Processes {
        pair: &pair,
        address: common::free().to_string(),
    };
    let (mut sender, mut receiver) = (processes.send(), processes.receive(2));
    for round in 0..8u64 {
        thread::sleep(Duration::from_millis(250 + round * 173 % 500));
        fs::write(
            pair.source.join(format!("d{round:02}/new")),
            noise(round, 100_000),
        )
        .unwrap();
        let large = File::options()
            .write(true)
            .open(pair.source.join("d00/large"))
            .unwrap();
        large
            .write_all_at(&noise(round, 2 << 20), (round * 13) << 20)
            .unwrap();
        let (victim, again) = if round % 2 == 0 {
            receiver.kill().unwrap();
            receiver.wait().unwrap();
            (&mut receiver, processes.receive(2))
        } else {
            sender.kill().unwrap();
            sender.wait().unwrap();
            (&mut sender, processes.send())
        };
        *victim = again;
    }
    let output = BufReader::new(receiver.stdout.take().unwrap());
    let lines: Vec<String> = output.lines().map_while(Result::ok).collect();
    let done = receiver.wait().unwrap();
    assert!(done.success(), "{lines:?}");
    assert!(sender.wait().unwrap().success());
    assert_same_trees(&pair.source, &pair.target);
    common::assert_rsync_sees_nothing(&pair.source, &pair.target);
    assert!(lines.iter().any(|line| line.contains("verified")), "{lines:?}");
}

#[test]
fn only_the_peer_of_this_move_may_connect() {
    use mover::{
        credentials::{MoveId, issue},
        lanes::{Acceptor, connect},
    };
    let other = MoveId::new("another", 1).unwrap();
    let strangers = issue(&id()).unwrap();
    let foreign = issue(&other).unwrap();
    let ours = common::identities();
    let cases = [
        (
            "a certificate of another authority",
            id(),
            strangers.0,
            ours.1.clone(),
        ),
        (
            "a source that shows the target's certificate",
            id(),
            ours.1.clone(),
            ours.1.clone(),
        ),
        (
            "a target that shows the source's certificate",
            id(),
            ours.0.clone(),
            ours.0.clone(),
        ),
        ("another move", other.clone(), foreign.0, ours.1.clone()),
        (
            "another epoch",
            MoveId::new(common::UID, 2).unwrap(),
            ours.0.clone(),
            ours.1.clone(),
        ),
    ];
    for (what, source_id, source, target) in cases {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = Acceptor::new(listener, &id(), &target).unwrap();
        let dialled = thread::spawn(move || {
            connect(&source_id, &source, 1, || std::net::TcpStream::connect(address)).map(|_| ())
        });
        // Until the client that dialled has its answer.
        while !dialled.is_finished() {
            let accepted = acceptor.accept(Duration::from_millis(50)).unwrap();
            assert!(accepted.is_none(), "{what} was let in");
        }
        let refused = dialled.join().unwrap();
        assert!(
            matches!(refused, Err(Error::Refused(_) | Error::Credentials(_))),
            "{what}: {refused:?}"
        );
    }
    // Connections that send nothing do not block others.
    let (acceptor, address) = acceptor();
    let _silent: Vec<_> = (0..8)
        .map(|_| std::net::TcpStream::connect(address).unwrap())
        .collect();
    let dialled = thread::spawn(move || dial(address, 2).map(|_| ()));
    // In sequence they would take longer.
    assert!(acceptor.accept(TEST_TIMEOUT).unwrap().is_some());
    dialled.join().unwrap().unwrap();
}

/// Programs wait for a source in steps of a second, and check in between whether it is still wanted.
#[test]
fn slow_connections_still_form_a_session() {
    let (acceptor, address) = acceptor();
    let dialled = thread::spawn(move || {
        let dialled = std::sync::atomic::AtomicU32::new(0);
        let slowly = || {
            let before = dialled.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(150) * before);
            std::net::TcpStream::connect(address)
        };
        mover::lanes::connect(&id(), &common::identities().0, 4, slowly).map(|_| ())
    });
    let mut waits = (0..100).map(|_| acceptor.accept(Duration::from_millis(100)).unwrap());
    assert!(waits.any(|lanes| lanes.is_some()), "they were forgotten");
    dialled.join().unwrap().unwrap();
}

/// The port of a mover can be reached by others.
#[test]
fn connections_that_stay_silent_do_not_keep_the_peer_out() {
    let (acceptor, address) = acceptor();
    let silent = || std::net::TcpStream::connect(address).unwrap();
    let silent: Vec<_> = (0..40).map(|_| silent()).collect();
    assert!(acceptor.accept(Duration::from_secs(1)).unwrap().is_none());
    let dialled = thread::spawn(move || {
        let dial = || std::net::TcpStream::connect(address);
        mover::lanes::connect(&id(), &common::identities().0, 4, dial).map(|_| ())
    });
    let lanes = acceptor.accept(Duration::from_secs(5)).unwrap();
    assert!(lanes.is_some(), "they keep the peer out");
    dialled.join().unwrap().unwrap();
    drop(silent);
}

#[test]
fn memory_stays_bounded_whatever_the_tree_looks_like() {
    let pair = Pair::new();
    // Many names in one directory, many directories in another, hard links, a long file.
    for at in 0..40_000 {
        fs::write(
            pair.source
                .join(format!("a file with a rather long name, number {at:06}")),
            "",
        )
        .unwrap();
    }
    for at in 0..5_000 {
        fs::create_dir_all(pair.source.join(format!("dirs/{at}"))).unwrap();
    }
    File::create(pair.source.join("long"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    common::run(
        Command::new(env!("CARGO_BIN_EXE_liqo-csi-mover"))
            .args(["issue", "--move", common::UID])
            .arg(pair.folder.path().join("credentials")),
    );
    let processes = Processes {
        pair: &pair,
        address: common::free().to_string(),
    };
    let (mut sender, mut receiver) = (processes.send(), processes.receive(2));
    let mut peaks = [0; 2];
    let status = loop {
        for (peak, child) in peaks.iter_mut().zip([&sender, &receiver]) {
            let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
            *peak = kilobytes.unwrap_or(0).max(*peak);
        }
        if let Some(status) = receiver.try_wait().unwrap() {
            break status;
        }
        thread::sleep(Duration::from_millis(20));
    };
    let _ = sender.kill();
    let _ = sender.wait();
    assert!(status.success());
    assert!(
        peaks.iter().all(|peak| (1..=128 << 10).contains(peak)),
        "{peaks:?} kB"
    );
}

#[test]
fn the_journal_in_a_former_target_is_not_copied() {
    let pair = Pair::new();
    fs::create_dir(pair.source.join(".liqo-move-of-old")).unwrap();
    fs::write(pair.source.join(".liqo-move-of-old/entries"), "x").unwrap();
    fs::write(pair.source.join("kept"), "x").unwrap();
    pair.last_pass();
    assert!(!pair.target.join(".liqo-move-of-old").exists());
    let _ = Target::open(&pair.target, &id()).unwrap();
}
