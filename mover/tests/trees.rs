//! Random trees, changed at random between passes, with connections that break at random: after each pass
//! both sides are equal according to two checkers that are independent of the engine.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

mod common;

use std::{
    fs,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt, lchown, symlink},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use common::{Pair, Relay, acceptor, dial, is_root};
use mover::{
    source::Source,
    target::{PassOptions, Target},
    throttle::Throttle,
    verify::Scope,
};
use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};

/// One change. Numbers select among the existing entries.
#[derive(Clone, Debug)]
enum Change {
    File {
        under: usize,
        name: u8,
        kilobytes: u16,
        fill: u8,
    },
    Directory {
        under: usize,
        name: u8,
    },
    Symlink {
        under: usize,
        name: u8,
        to: u8,
    },
    Pipe {
        under: usize,
        name: u8,
    },
    Link {
        what: usize,
        under: usize,
        name: u8,
    },
    Rename {
        what: usize,
        under: usize,
        name: u8,
    },
    Remove {
        what: usize,
    },
    Overwrite {
        what: usize,
        at: u32,
        fill: u8,
        keep_time: bool,
    },
    Resize {
        what: usize,
        kilobytes: u16,
    },
    Mode {
        what: usize,
        mode: u32,
    },
    Owner {
        what: usize,
        owner: u32,
    },
    Xattr {
        what: usize,
        name: u8,
        size: u8,
    },
    Time {
        what: usize,
        seconds: i32,
    },
}

fn change() -> impl Strategy<Value = Change> {
    let (what, under, name) = (0usize..1000, 0usize..1000, 0u8..12);
    prop_oneof![
        6 => (under.clone(), name.clone(), prop_oneof![0u16..9, 1000u16..2500], any::<u8>())
            .prop_map(|(under, name, kilobytes, fill)| Change::File { under, name, kilobytes, fill }),
        4 => (under.clone(), name.clone()).prop_map(|(under, name)| Change::Directory { under, name }),
        1 => (under.clone(), name.clone(), any::<u8>())
            .prop_map(|(under, name, to)| Change::Symlink { under, name, to }),
        1 => (under.clone(), name.clone()).prop_map(|(under, name)| Change::Pipe { under, name }),
        3 => (what.clone(), under.clone(), name.clone())
            .prop_map(|(what, under, name)| Change::Link { what, under, name }),
        3 => (what.clone(), under, name.clone())
            .prop_map(|(what, under, name)| Change::Rename { what, under, name }),
        2 => what.clone().prop_map(|what| Change::Remove { what }),
        4 => (what.clone(), any::<u32>(), any::<u8>(), any::<bool>())
            .prop_map(|(what, at, fill, keep_time)| Change::Overwrite { what, at, fill, keep_time }),
        2 => (what.clone(), 0u16..3000).prop_map(|(what, kilobytes)| Change::Resize { what, kilobytes }),
        1 => (what.clone(), 0u32..0o10000).prop_map(|(what, mode)| Change::Mode { what, mode }),
        1 => (what.clone(), 0u32..3).prop_map(|(what, owner)| Change::Owner { what, owner }),
        1 => (what.clone(), name, any::<u8>()).prop_map(|(what, name, size)| Change::Xattr { what, name, size }),
        1 => (what, any::<i32>()).prop_map(|(what, seconds)| Change::Time { what, seconds }),
    ]
}

fn all(root: &Path) -> Vec<PathBuf> {
    let mut found = vec![root.to_owned()];
    let mut at = 0;
    while let Some(path) = found.get(at).cloned() {
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            let mut inside: Vec<_> = fs::read_dir(&path)
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .collect();
            inside.sort();
            found.extend(inside);
        }
        at += 1;
    }
    found
}

/// Makes a change, or none if it is not possible.
#[allow(clippy::too_many_lines, reason = "one arm for each change")]
fn apply(root: &Path, change: &Change) {
    let everything = all(root);
    let pick = |what: usize| everything[what % everything.len()].clone();
    let meta = |path: &Path| fs::symlink_metadata(path).unwrap();
    let place = |under: usize, name: u8| {
        let directories: Vec<_> = everything.iter().filter(|path| meta(path).is_dir()).collect();
        directories[under % directories.len()]
            .join(["a", "b", "a-b", "c.d", "e", "f", "g", "h", "i", "j", "k", "l"][name as usize])
    };
    // An impossible change is skipped: only the resulting tree matters.
    let _ = match *change {
        Change::File {
            under,
            name,
            kilobytes,
            fill,
        } => {
            let place = place(under, name);
            if place.is_dir() || place.exists() && !meta(&place).is_file() {
                return;
            }
            fs::write(
                place,
                vec![fill; usize::from(kilobytes) * 1024 + usize::from(fill)],
            )
        }
        Change::Directory { under, name } => fs::create_dir(place(under, name)),
        Change::Symlink { under, name, to } => symlink(format!("../{to}"), place(under, name)),
        Change::Pipe { under, name } => {
            mknodat(CWD, place(under, name), FileType::Fifo, Mode::RUSR, 0).map_err(Into::into)
        }
        Change::Link { what, under, name } => fs::hard_link(pick(what), place(under, name)),
        Change::Rename { what, under, name } => {
            let what = pick(what);
            if what == root {
                return;
            }
            fs::rename(what, place(under, name))
        }
        Change::Remove { what } => {
            let what = pick(what);
            if what == root {
                return;
            }
            if meta(&what).is_dir() {
                fs::remove_dir_all(what)
            } else {
                fs::remove_file(what)
            }
        }
        Change::Overwrite {
            what,
            at,
            fill,
            keep_time,
        } => {
            let what = pick(what);
            let before = meta(&what);
            if !before.is_file() || before.len() == 0 {
                return;
            }
            let file = fs::File::options().write(true).open(&what).unwrap();
            file.write_all_at(&[fill], u64::from(at) % before.len()).unwrap();
            if keep_time {
                file.set_modified(before.modified().unwrap())
            } else {
                Ok(())
            }
        }
        Change::Resize { what, kilobytes } => {
            let what = pick(what);
            if !meta(&what).is_file() {
                return;
            }
            fs::File::options()
                .write(true)
                .open(&what)
                .unwrap()
                .set_len(u64::from(kilobytes) * 1000)
        }
        Change::Mode { what, mode } => {
            let what = pick(what);
            if meta(&what).is_symlink() {
                return;
            }
            fs::set_permissions(what, fs::Permissions::from_mode(mode))
        }
        Change::Owner { what, owner } => {
            if !is_root() {
                return;
            }
            lchown(pick(what), Some(owner), Some(owner))
        }
        Change::Xattr { what, name, size } => {
            let what = pick(what);
            if !meta(&what).is_file() {
                return;
            }
            let name = format!("user.{name}");
            setxattr(&what, &name[..], &vec![size; size.into()], XattrFlags::empty()).map_err(Into::into)
        }
        Change::Time { what, seconds } => {
            let what = pick(what);
            if !meta(&what).is_file() {
                return;
            }
            let offset = Duration::from_secs(seconds.unsigned_abs().into());
            let time = if seconds < 0 {
                SystemTime::UNIX_EPOCH - offset
            } else {
                SystemTime::UNIX_EPOCH + offset
            };
            fs::File::options()
                .write(true)
                .open(&what)
                .unwrap()
                .set_modified(time)
        }
    };
}

/// A pass through a relay that breaks the connection after this many bytes; returns whether it did.
fn broken_pass(pair: &Pair, after: u64) -> bool {
    let (acceptor, address) = acceptor();
    let relay = Relay::to(address);
    let (source, to) = (pair.source.clone(), relay.address);
    let serving = std::thread::spawn(move || {
        Source::open(&source)
            .unwrap()
            .serve(dial(to, 2)?, &Throttle::new(None))
    });
    let lanes = acceptor.accept(common::TEST_TIMEOUT).unwrap().unwrap();
    relay.cut_after(after);
    let mut target = Target::open(&pair.target, &common::id()).unwrap();
    let mut session = target.session(lanes);
    let result = session.pass(PassOptions::default());
    drop(session);
    let _ = serving.join().unwrap();
    result.is_err()
}

/// `PROPTEST_CASES` sets a higher number.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok())
        .unwrap_or(24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn after_each_pass_both_sides_are_the_same(
        batches in proptest::collection::vec(
            (proptest::collection::vec(change(), 1..40), proptest::option::weighted(0.4, 0u64..2_000_000), any::<bool>()),
            2..5,
        ),
    ) {
        let pair = Pair::new();
        for (changes, cut, forget) in &batches {
            for change in changes {
                apply(&pair.source, change);
            }
            if let Some(after) = cut {
                broken_pass(&pair, *after);
                for change in changes.iter().rev().take(5) {
                    apply(&pair.source, change);
                }
            }
            if *forget && cut.is_some() {
                // A lost journal costs reading, not correctness.
                let _ = fs::remove_dir_all(pair.target.join(format!(".liqo-move-{}", common::UID)));
            }
            pair.last_pass();
        }
        pair.assert_verified(Scope::All);
        pair.open().finish().unwrap();
        pair.assert_equal();
        prop_assert_eq!(fs::metadata(&pair.target).unwrap().mtime_nsec(), fs::metadata(&pair.source).unwrap().mtime_nsec());
    }
}

/// What passes write while pods run is verified meanwhile, so that during the cut-over only the last pass has
/// to be verified; also if the pods write all the time.
#[test]
fn verified_data_is_not_read_again() {
    let pair = Pair::new();
    fs::create_dir(pair.source.join("d")).unwrap();
    for name in ["a", "b"] {
        fs::write(pair.source.join("d").join(name), vec![7; 100_000]).unwrap();
    }
    pair.pass(PassOptions::default());
    let read = |scope| {
        let found = pair.open().verify(scope).unwrap();
        assert!(found.is_equal());
        found.bytes
    };
    assert_eq!(read(Scope::Touched), 200_000);
    assert_eq!(read(Scope::Touched), 0);
    fs::write(pair.source.join("d/b"), vec![8; 50_000]).unwrap();
    pair.pass(PassOptions {
        last: true,
        ..PassOptions::default()
    });
    assert_eq!(read(Scope::Touched), 50_000);
    assert_eq!(read(Scope::All), 150_000);
}

/// Another pod has written to the target's volume.
#[test]
fn writes_of_others_to_the_target_are_detected_by_attributes() {
    let pair = Pair::new();
    fs::create_dir(pair.source.join("d")).unwrap();
    fs::write(pair.source.join("d/a"), "as it is").unwrap();
    pair.last_pass();
    assert!(pair.open().verify(Scope::Touched).unwrap().is_equal());
    fs::write(pair.target.join("d/a"), "as it was").unwrap();
    assert!(
        pair.open().verify(Scope::Touched).unwrap().is_equal(),
        "it is not read again"
    );
    let found = pair.open().verify(Scope::TouchedAndAttributes).unwrap();
    assert!(!found.is_equal());
    let named: Vec<_> = found.differences.iter().map(|it| it.path.to_string()).collect();
    assert!(named.contains(&"d/a".to_owned()), "{named:?}");
}
