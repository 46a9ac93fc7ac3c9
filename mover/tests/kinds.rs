//! Every kind of inode, with everything that is copied of it; deletions, and names that become another kind
//! of inode.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

mod common;

use std::{
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, lchown, symlink},
        net::UnixListener,
    },
    path::Path,
    time::{Duration, SystemTime},
};

use common::{Image, Pair, is_root, run, with_session};
use mover::{
    error::Error,
    target::{PassOptions, PassReport},
    verify::Scope,
};
use rustix::fs::{CWD, FileType, Mode, OFlags, XattrFlags, makedev, mknodat, setxattr};

fn fill(root: &Path) {
    let dir = root.join("etc");
    fs::create_dir_all(dir.join("deep/er")).unwrap();
    fs::write(dir.join("empty"), "").unwrap();
    fs::write(dir.join("small"), "some words").unwrap();
    fs::write(
        dir.join("large"),
        (0..3_500_000u32).map(|at| (at % 251) as u8).collect::<Vec<_>>(),
    )
    .unwrap();
    fs::write(dir.join("exactly-one"), vec![7; 1 << 20]).unwrap();
    fs::write(dir.join(OsStr::from_bytes(b"\xff\n name")), "x").unwrap();
    fs::hard_link(dir.join("small"), dir.join("deep/small")).unwrap();
    fs::hard_link(dir.join("small"), root.join("a-small")).unwrap();
    fs::hard_link(dir.join("large"), root.join("zz-large")).unwrap();
    symlink("../etc/small", dir.join("deep/er/link")).unwrap();
    symlink("/does/not/exist", dir.join("dangling")).unwrap();
    fs::hard_link(dir.join("dangling"), dir.join("dangling-too")).unwrap();
    drop(UnixListener::bind(dir.join("socket")).unwrap());
    mknodat(
        CWD,
        dir.join("pipe"),
        FileType::Fifo,
        Mode::from_raw_mode(0o640),
        0,
    )
    .unwrap();
    if is_root() {
        let mode = Mode::from_raw_mode(0o600);
        mknodat(
            CWD,
            dir.join("null"),
            FileType::CharacterDevice,
            mode,
            makedev(1, 3),
        )
        .unwrap();
        mknodat(CWD, dir.join("loop"), FileType::BlockDevice, mode, makedev(7, 99)).unwrap();
        for (name, owner) in [("small", 1000), ("dangling", 4_000_000_000), ("pipe", 65534)] {
            lchown(dir.join(name), Some(owner), Some(owner - 1)).unwrap();
        }
        // The binary form of cap_net_bind_service=ep.
        let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        setxattr(
            dir.join("large"),
            "security.capability",
            &capability,
            XattrFlags::empty(),
        )
        .unwrap();
    }
    setxattr(
        dir.join("small"),
        "user.note",
        b"of \0 bytes",
        XattrFlags::empty(),
    )
    .unwrap();
    setxattr(&dir, "user.dir", b"", XattrFlags::empty()).unwrap();
    fs::set_permissions(dir.join("exactly-one"), fs::Permissions::from_mode(0o6755)).unwrap();
    fs::set_permissions(dir.join("deep"), fs::Permissions::from_mode(0o3711)).unwrap();
    fs::set_permissions(root, fs::Permissions::from_mode(0o1770)).unwrap();
    let file = fs::File::create(dir.join("sparse")).unwrap();
    file.set_len(40 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"in the middle", (17 << 20) + 4097).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"near", 3 << 20).unwrap();
    let old = SystemTime::UNIX_EPOCH - Duration::from_nanos(1_500_000_001);
    fs::File::open(dir.join("large"))
        .unwrap()
        .set_modified(old)
        .unwrap();
    fs::File::open(dir.join("deep/er"))
        .unwrap()
        .set_modified(old)
        .unwrap();
    fs::File::open(root).unwrap().set_modified(old).unwrap();
}

/// Default ACL of a directory: rwx for user 1234 too.
fn acl() -> Vec<u8> {
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, bits, id) in [
        (1u16, 7u16, u32::MAX),
        (2, 7, 1234),
        (4, 5, u32::MAX),
        (16, 7, u32::MAX),
        (32, 0, u32::MAX),
    ] {
        acl.extend(tag.to_le_bytes());
        acl.extend(bits.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    acl
}

#[test]
fn every_kind_of_file_is_copied_and_an_unchanged_tree_transfers_nothing() {
    let pair = Pair::new();
    fill(&pair.source);
    let report = pair.last_pass();
    assert!(report.losses.is_empty());
    let blocks = |root: &Path| fs::metadata(root.join("etc/sparse")).unwrap().blocks();
    assert!(
        blocks(&pair.target) <= blocks(&pair.source) + 16,
        "holes stay holes"
    );

    std::thread::sleep(Duration::from_millis(50));
    pair.pass(PassOptions::default());
    let again = pair.last_pass();
    assert!(again.by_stamps);
    assert_eq!((again.compared_files, again.received_bytes), (0, 0));
    pair.assert_verified(Scope::All);
    pair.open().finish().unwrap();
    pair.assert_equal();
    assert!(
        !fs::read_dir(&pair.target)
            .unwrap()
            .any(|entry| { entry.unwrap().file_name().as_bytes().starts_with(b".liqo-move") })
    );
}

/// As if it was killed when it had deleted the directory of its journal.
#[test]
fn a_target_that_was_killed_while_it_finished_can_finish_again() {
    let pair = Pair::new();
    fill(&pair.source);
    pair.last_pass();
    let journal = pair.target.join(format!(".liqo-move-{}", common::UID));
    let last = pair.target.join(format!(".liqo-move-{}.entries", common::UID));
    fs::rename(journal.join("entries"), &last).unwrap();
    fs::remove_dir_all(&journal).unwrap();
    for _ in 0..2 {
        pair.open().finish().unwrap();
        assert!(!last.exists());
        pair.assert_equal();
    }
}

/// A write that began a while ago may still be in progress.
#[test]
fn recently_changed_files_are_read_again_but_not_sent_again() {
    let pair = Pair::new();
    for name in ["a", "b"] {
        fs::write(pair.source.join(name), name).unwrap();
    }
    let pass = || {
        let mut target = pair.open_patiently();
        with_session(&pair.source, &mut target, |session| {
            session.pass(PassOptions::default())
        })
    };
    pass().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let again = pass().unwrap();
    assert!(again.by_stamps);
    assert_eq!((again.compared_files, again.received_bytes), (2, 0));
}

#[test]
fn other_file_systems_keep_the_same() {
    if !is_root() {
        return;
    }
    for (from, to) in [
        (&["mkfs.xfs", "-q"][..], &["mkfs.ext4", "-q"][..]),
        (&["mkfs.ext4", "-q", "-I", "128"][..], &["mkfs.xfs", "-q"][..]),
    ] {
        let (from, to) = (Image::new(from, 400), Image::new(to, 400));
        let pair = Pair {
            source: from.at.clone(),
            target: to.at.clone(),
            ..Pair::new()
        };
        let whole_seconds = fs::metadata(&pair.source).unwrap().mtime_nsec() == 0;
        fill(&pair.source);
        if whole_seconds {
            // Times of 128-byte inodes are whole seconds, on the source's side.
            assert!(fs::metadata(pair.source.join("etc/small")).unwrap().mtime_nsec() == 0);
        }
        pair.last_pass();
        fs::write(pair.source.join("etc/small"), "other words").unwrap();
        pair.last_pass();
        pair.open().finish().unwrap();
        pair.assert_equal();
    }
}

#[test]
fn changed_kinds_links_and_deletions_are_copied() {
    let pair = Pair::new();
    fill(&pair.source);
    pair.last_pass();
    let at = |path: &str| pair.source.join(path);

    fs::remove_dir_all(at("etc/deep")).unwrap();
    fs::write(at("etc/deep"), "now a file").unwrap();
    fs::remove_file(at("etc/small")).unwrap();
    fs::create_dir(at("etc/small")).unwrap();
    fs::write(at("etc/small/in"), "it").unwrap();
    fs::remove_file(at("etc/pipe")).unwrap();
    symlink("small", at("etc/pipe")).unwrap();
    fs::remove_file(at("etc/dangling")).unwrap();
    symlink("elsewhere", at("etc/dangling")).unwrap();
    pair.last_pass();

    // Hard links that are separated, with the same size and content as before except for the first byte.
    let before = fs::read(at("zz-large")).unwrap();
    fs::remove_file(at("zz-large")).unwrap();
    fs::write(at("zz-large"), &before).unwrap();
    fs::write(at("etc/large"), [&before[..], b"more"].concat()).unwrap();
    fs::hard_link(at("etc/empty"), at("empty-too")).unwrap();
    pair.last_pass();

    // And joined in the opposite way.
    fs::remove_file(at("etc/large")).unwrap();
    fs::hard_link(at("zz-large"), at("etc/large")).unwrap();
    fs::rename(at("a-small"), at("etc/a")).unwrap();
    fs::hard_link(at("etc/a"), at("b")).unwrap();
    fs::File::create(at("etc/sparse"))
        .unwrap()
        .set_len(5 << 20)
        .unwrap();
    pair.last_pass();

    for entry in fs::read_dir(&pair.source).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }
    pair.last_pass();
}

#[test]
fn links_stay_one_inode_when_one_of_them_is_replaced() {
    let pair = Pair::new();
    let at = |path: &str| pair.source.join(path);
    fs::write(at("a"), "shared").unwrap();
    for name in ["b", "y", "z"] {
        fs::hard_link(at("a"), at(name)).unwrap();
    }
    pair.last_pass();
    for replaced in ["z", "b"] {
        fs::write(at("new"), "alone").unwrap();
        fs::rename(at("new"), at(replaced)).unwrap();
        pair.last_pass();
    }
    fs::hard_link(at("a"), at("c")).unwrap();
    pair.last_pass();
}

/// The inode number of a deleted file is reused for the next one.
#[test]
fn links_whose_inode_number_was_reused_are_replaced() {
    if !is_root() {
        return;
    }
    let image = Image::new(&["mkfs.ext4", "-q"], 64);
    let pair = Pair {
        source: image.at.clone(),
        ..Pair::new()
    };
    let names = ["a", "b", "c"].map(|name| pair.source.join(name));
    let make = |to: &str| {
        symlink(to, &names[0]).unwrap();
        for name in &names[1..] {
            fs::hard_link(&names[0], name).unwrap();
        }
        fs::symlink_metadata(&names[0]).unwrap().ino()
    };
    let number = make("one");
    pair.last_pass();
    for name in &names {
        fs::remove_file(name).unwrap();
    }
    assert_eq!(make("two"), number);
    pair.last_pass();
}

/// Inodes of two subvolumes have the same numbers.
#[test]
fn links_of_two_subvolumes_are_not_mixed() {
    if !is_root() {
        return;
    }
    let image = Image::new(&["mkfs.btrfs", "-q"], 200);
    for target in [None, Some(Image::new(&["mkfs.btrfs", "-q"], 200))] {
        let pair = Pair::new();
        let pair = Pair {
            source: image.at.clone(),
            target: target.as_ref().map_or(pair.target, |image| image.at.clone()),
            folder: pair.folder,
        };
        let mut inos = Vec::new();
        for part in ["a", "b"] {
            let part = pair.source.join(part);
            if target.is_none() {
                run(std::process::Command::new("btrfs")
                    .args(["-q", "subvolume", "create"])
                    .arg(&part));
                fs::write(part.join("one"), part.as_os_str().as_bytes()).unwrap();
                fs::hard_link(part.join("one"), part.join("two")).unwrap();
            }
            inos.push(fs::metadata(part.join("one")).unwrap().ino());
        }
        assert_eq!(inos[0], inos[1]);
        // Not by rsync and the checker of all other tests, which identify inodes by their numbers too.
        pair.pass(PassOptions::default());
        pair.assert_verified(Scope::All);
        for part in ["a", "b"] {
            let at = |root: &Path, name: &str| root.join(part).join(name);
            let inode = |name: &str| fs::metadata(at(&pair.target, name)).unwrap().ino();
            assert_eq!(inode("one"), inode("two"));
            assert_eq!(
                fs::read(at(&pair.target, "one")).unwrap(),
                fs::read(at(&pair.source, "one")).unwrap()
            );
        }
    }
}

/// XFS allocates more than is written, if that is at the end of a file.
#[test]
fn holes_between_all_blocks_stay_holes() {
    let image = is_root().then(|| Image::new(&["mkfs.xfs", "-q"], 400));
    let pair = Pair::new();
    holes_stay(&pair);
    if let Some(image) = &image {
        holes_stay(&Pair {
            target: image.at.clone(),
            ..Pair::new()
        });
    }
}

fn holes_stay(pair: &Pair) {
    let file = fs::File::create(pair.source.join("comb")).unwrap();
    for at in 0..512 {
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; 4096], at * 8192).unwrap();
    }
    pair.last_pass();
    let blocks = |root: &Path| fs::metadata(root.join("comb")).unwrap().blocks();
    assert!(blocks(&pair.target) <= blocks(&pair.source) + 64);
}

/// The block of its attributes makes up for the hole.
#[test]
fn a_hole_stays_one_in_a_file_with_as_many_blocks_as_bytes() {
    if !is_root() {
        return;
    }
    let ext4 = ["mkfs.ext4", "-q", "-b", "4096"];
    let (from, to) = (Image::new(&ext4, 64), Image::new(&ext4, 64));
    let pair = Pair {
        source: from.at.clone(),
        target: to.at.clone(),
        ..Pair::new()
    };
    let file = fs::File::create(pair.source.join("file")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[7; 4096], 4096).unwrap();
    setxattr(
        pair.source.join("file"),
        "user.large",
        &[7; 3000],
        XattrFlags::empty(),
    )
    .unwrap();
    file.sync_all().unwrap();
    let blocks = |root: &Path| fs::metadata(root.join("file")).unwrap().blocks() * 512;
    assert_eq!(blocks(&pair.source), 8192);
    pair.last_pass();
    assert_eq!(blocks(&pair.target), 8192);
}

/// They are sent in messages of limited size.
#[test]
fn many_extended_attributes_of_several_inodes_in_one_directory_are_kept() {
    if !is_root() {
        return;
    }
    let xfs = ["mkfs.xfs", "-q"];
    let (from, to) = (Image::new(&xfs, 400), Image::new(&xfs, 400));
    let pair = Pair {
        source: from.at.clone(),
        target: to.at.clone(),
        ..Pair::new()
    };
    for name in ["", "a", "b"] {
        let path = pair.source.join(name);
        if !name.is_empty() {
            fs::write(&path, name).unwrap();
        }
        for at in 0..8 {
            setxattr(
                &path,
                format!("user.{at}"),
                &vec![at; 60_000],
                XattrFlags::empty(),
            )
            .unwrap();
        }
    }
    pair.last_pass();
}

/// In ext4 those of an inode share a block.
#[test]
fn an_extended_attribute_may_use_the_space_freed_by_another() {
    if !is_root() {
        return;
    }
    let ext4 = ["mkfs.ext4", "-q", "-b", "1024"];
    let (from, to) = (Image::new(&ext4, 16), Image::new(&ext4, 16));
    let pair = Pair {
        source: from.at.clone(),
        target: to.at.clone(),
        ..Pair::new()
    };
    let path = pair.source.join("file");
    fs::write(&path, "").unwrap();
    for sizes in [[150, 700], [700, 150], [150, 700]] {
        for name in ["user.a", "user.b"] {
            // The first time there are none.
            let _ = rustix::fs::removexattr(&path, name);
        }
        for (name, size) in ["user.a", "user.b"].into_iter().zip(sizes) {
            setxattr(&path, name, &vec![7; size], XattrFlags::empty()).unwrap();
        }
        pair.last_pass();
    }
}

#[test]
fn a_file_too_large_for_the_target_is_named_by_the_first_pass() {
    if !is_root() {
        return;
    }
    let ext4 = ["mkfs.ext4", "-q"];
    let (from, to) = (
        Image::new(&["mkfs.xfs", "-q"], 400),
        Image::new(&[&ext4[..], &["-I", "128"]].concat(), 64),
    );
    let problem = |target: &Path| {
        let pair = Pair {
            source: from.at.clone(),
            target: target.to_owned(),
            ..Pair::new()
        };
        let mut target = pair.open();
        match with_session(&pair.source, &mut target, |session| {
            session.pass(PassOptions::default())
        }) {
            Err(Error::Unfit { path, problem }) => format!("{path}: {problem}"),
            other => panic!("{other:?}"),
        }
    };
    let file = from.at.join("file");
    fs::write(&file, "").unwrap();
    let whole = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let set = |path: &Path, time| fs::File::open(path).unwrap().set_modified(time).unwrap();
    set(&file, whole + Duration::from_nanos(1));
    set(&from.at, whole);
    assert_eq!(
        problem(&to.at),
        "file: the target's file system cannot hold the time of its last change"
    );
    // More than a block of a file system that has enough of them.
    setxattr(&file, "user.large", &vec![1; 20_000], XattrFlags::empty()).unwrap();
    set(&file, whole);
    assert_eq!(problem(&to.at), "file: its extended attributes are too large");
    // Its holes would be looked at for years.
    fs::remove_file(&file).unwrap();
    let long = fs::File::create(from.at.join("long")).unwrap();
    long.set_len(1 << 50).unwrap();
    assert_eq!(problem(&to.at), "long: it is longer than 128 TiB");
    long.set_len(100 << 40).unwrap();
    assert_eq!(
        problem(&to.at),
        "long: the target's file system cannot hold a file of this size"
    );
}

/// Of a pipe, socket or device, only its attributes are read: nothing of it is opened.
#[test]
fn a_name_on_which_something_is_mounted_is_an_error() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    for path in [pair.source.join("pipe"), pair.folder.path().join("other")] {
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR, 0).unwrap();
    }
    let pipe = pair.source.join("pipe");
    run(std::process::Command::new("mount")
        .arg("--bind")
        .arg(pair.folder.path().join("other"))
        .arg(&pipe));
    let result = with_session(&pair.source, &mut pair.open(), |session| {
        session.pass(PassOptions::default())
    });
    run(std::process::Command::new("umount").arg(&pipe));
    assert!(
        matches!(&result, Err(Error::Peer(why)) if why.contains("cross-device")),
        "{result:?}"
    );
}

/// What fsck has recovered there is data, and so is what users keep under this name. The directory itself is
/// that of the file system.
#[test]
fn lost_and_found_with_content_is_copied_and_an_empty_one_is_not() {
    if !is_root() {
        return;
    }
    let ext4 = ["mkfs.ext4", "-q"];
    for to in [&ext4[..], &["mkfs.xfs", "-q"]] {
        let (from, to) = (Image::new(&ext4, 64), Image::new(to, 400));
        let pair = Pair {
            source: from.at.clone(),
            target: to.at.clone(),
            ..Pair::new()
        };
        let (own, copy) = (pair.source.join("lost+found"), pair.target.join("lost+found"));
        let was_there = copy.exists();
        pair.last_pass();
        assert_eq!(copy.exists(), was_there);
        fs::create_dir_all(own.join("#11/deep")).unwrap();
        fs::write(own.join("#12"), "recovered").unwrap();
        fs::set_permissions(&own, fs::Permissions::from_mode(0o750)).unwrap();
        lchown(&own, Some(7), Some(8)).unwrap();
        pair.last_pass();
        assert_eq!(fs::read(copy.join("#12")).unwrap(), b"recovered");
        fs::remove_file(own.join("#12")).unwrap();
        pair.last_pass();
        fs::remove_dir_all(own.join("#11")).unwrap();
        pair.last_pass();
        assert_eq!(fs::read_dir(&copy).unwrap().count(), 0);
        // The target's own content, as of a volume that was used before.
        fs::write(copy.join("stale"), "").unwrap();
        fs::write(pair.source.join("new"), "").unwrap();
        pair.last_pass();
        assert_eq!(fs::read_dir(&copy).unwrap().count(), 0);
        fs::remove_dir(&own).unwrap();
        fs::write(&own, "a file").unwrap();
        pair.last_pass();
        assert_eq!(fs::read(&copy).unwrap(), b"a file");
        pair.open().finish().unwrap();
        pair.assert_equal();
    }
}

/// As on a class whose volumes are directories.
#[test]
fn an_empty_lost_and_found_that_a_user_made_is_copied() {
    let pair = Pair::new();
    let (own, copy) = (pair.source.join("lost+found"), pair.target.join("lost+found"));
    fs::create_dir(&own).unwrap();
    fs::set_permissions(&own, fs::Permissions::from_mode(0o750)).unwrap();
    for _ in 0..2 {
        pair.last_pass();
        assert_eq!(fs::metadata(&copy).unwrap().mode() & 0o7777, 0o750);
    }
    pair.assert_verified(Scope::All);
}

/// A pass without changes proves that the one before it missed no name that was moved while it listed.
#[test]
fn changes_since_the_pass_before_are_counted() {
    let pair = Pair::new();
    fill(&pair.source);
    let at = |path: &str| pair.source.join(path);
    assert!(pair.last_pass().changed > 0);
    assert_eq!(pair.last_pass().changed, 0);
    fs::rename(at("etc/empty"), at("etc/deep/empty")).unwrap();
    // Both directories, the new name, and the old one.
    assert_eq!(pair.last_pass().changed, 4);
    fs::write(at("etc/exactly-one"), "less").unwrap();
    assert_eq!(pair.last_pass().changed, 1);
    fs::set_permissions(at("etc/deep"), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(pair.last_pass().changed, 1);
    assert_eq!(pair.last_pass().changed, 0);
}

/// As after a pass that was cut off when it had created the files.
#[test]
fn zeros_stay_zeros_and_holes_stay_holes_where_the_target_has_holes() {
    let pair = Pair::new();
    for name in ["zeros", "holes"] {
        for root in [&pair.source, &pair.target] {
            let file = fs::File::create(root.join(name)).unwrap();
            file.set_len(2 << 20).unwrap();
        }
    }
    fs::write(pair.source.join("zeros"), vec![0; 2 << 20]).unwrap();
    pair.last_pass();
    let blocks = |name: &str| fs::metadata(pair.target.join(name)).unwrap().blocks();
    assert!(blocks("zeros") * 512 >= 2 << 20);
    assert!(blocks("holes") <= 16);
}

/// An ext4 file system that debugfs has changed, and a pair of which it is the source.
fn debugged(request: &str) -> (Image, Pair) {
    let image = Image::new(&["mkfs.ext4", "-q"], 64);
    fs::create_dir(image.at.join("d")).unwrap();
    fs::write(image.at.join("d/file"), "x").unwrap();
    symlink("file", image.at.join("d/link")).unwrap();
    image.debug(request);
    let pair = Pair {
        source: image.at.clone(),
        ..Pair::new()
    };
    (image, pair)
}

/// Some NFS servers report such a mode. No system call of Linux sets it.
#[test]
fn the_mode_of_a_symlink_does_not_count() {
    if !is_root() {
        return;
    }
    let (_image, pair) = debugged("sif /d/link mode 0120755");
    let link = fs::symlink_metadata(pair.source.join("d/link")).unwrap();
    assert_eq!(link.mode() & 0o7777, 0o755);
    // Not by rsync, for which it does.
    pair.pass(PassOptions::default());
    pair.assert_verified(Scope::All);
    common::assert_same_trees(&pair.source, &pair.target);
}

#[test]
fn an_unreadable_attribute_is_named() {
    if !is_root() {
        return;
    }
    for path in ["d/file", "d"] {
        let (_image, pair) = debugged(&format!("ea_set -r /{path} system.posix_acl_access garbage"));
        let mut target = pair.open();
        let result = with_session(&pair.source, &mut target, |session| {
            session.pass(PassOptions::default())
        });
        let Err(Error::Peer(why)) = result else {
            panic!("{result:?}");
        };
        let wanted =
            format!("reading the attribute 'system.posix_acl_access' of '{path}' failed: Invalid argument");
        assert!(why.starts_with(&wanted), "{why}");
    }
}

/// As some network and FUSE file systems do while a directory changes.
#[test]
fn a_name_listed_twice_counts_once() {
    if !is_root() {
        return;
    }
    let (_image, pair) = debugged("link /d/file /d");
    let names = fs::read_dir(pair.source.join("d")).unwrap();
    assert_eq!(
        names
            .filter(|name| name.as_ref().unwrap().file_name() == "file")
            .count(),
        2
    );
    let report = pair.pass(PassOptions::default());
    assert_eq!(report.entries, 3);
    pair.assert_verified(Scope::All);
    assert_eq!(fs::read(pair.target.join("d/file")).unwrap(), b"x");
}

/// Directories of which the last one's content has paths that are too long.
fn make_deep(root: &Path) {
    let mut fd = rustix::fs::openat(CWD, root, OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..20 {
        let name = "d".repeat(200);
        rustix::fs::mkdirat(&fd, &name, Mode::RWXU).unwrap();
        fd = rustix::fs::openat(&fd, &name, OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    mknodat(&fd, "f".repeat(200), FileType::Fifo, Mode::RUSR, 0).unwrap();
}

/// A pass that the source ends with an error when it has read this directory.
fn pass_that_fails(pair: &Pair, poisoned: &str) {
    let poisoned = pair.source.join(poisoned);
    fs::create_dir(&poisoned).unwrap();
    make_deep(&poisoned);
    let mut target = pair.open();
    let result = with_session(&pair.source, &mut target, |session| {
        session.pass(PassOptions::default())
    });
    assert!(
        matches!(&result, Err(Error::Peer(why)) if why.ends_with("File name too long (os error 36)")),
        "{result:?}"
    );
    fs::rename(&poisoned, pair.folder.path().join("poisoned")).unwrap();
}

#[test]
fn a_file_with_a_path_that_is_too_long_is_an_error_of_the_source() {
    pass_that_fails(&Pair::new(), "z");
}

/// The stamps of what is in a directory stay when it is moved away and back.
#[test]
fn a_directory_replaced_during_a_failed_pass_is_copied_again() {
    let pair = Pair::new();
    let (here, aside) = (pair.source.join("d"), pair.folder.path().join("aside"));
    fs::create_dir(&here).unwrap();
    let make = |to: &str| {
        symlink(to, here.join("link")).unwrap();
        fs::write(here.join("a"), to).unwrap();
        fs::write(here.join("b"), to).unwrap();
    };
    make("one");
    std::thread::sleep(Duration::from_millis(50));
    pair.last_pass();
    fs::rename(&here, &aside).unwrap();
    fs::create_dir(&here).unwrap();
    make("two");
    fs::remove_file(here.join("b")).unwrap();
    fs::hard_link(here.join("a"), here.join("b")).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    pass_that_fails(&pair, "z");
    fs::remove_dir_all(&here).unwrap();
    fs::rename(&aside, &here).unwrap();
    pair.last_pass();
}

#[test]
fn a_finished_target_is_not_changed_by_another_finish() {
    let pair = Pair::new();
    fill(&pair.source);
    pair.last_pass();
    for _ in 0..2 {
        pair.open().finish().unwrap();
        pair.assert_equal();
    }
}

/// Runs both programs as this user, without capabilities, for one pass and its verification.
fn pass_as(user: u32, pair: &Pair) {
    let program = env!("CARGO_BIN_EXE_liqo-csi-mover");
    let credentials = pair.folder.path().join("credentials");
    run(std::process::Command::new(program)
        .args(["issue", "--move", common::UID])
        .arg(&credentials));
    let address = common::free().to_string();
    let start = |side: &str, root: &Path, more: &[&str]| {
        std::process::Command::new("setpriv")
            .args([
                &format!("--reuid={user}"),
                &format!("--regid={user}"),
                "--clear-groups",
                "--bounding-set=-all",
                program,
                side,
                "--move",
                common::UID,
            ])
            .arg("--root")
            .arg(root)
            .arg("--credentials")
            .arg(credentials.join(side))
            .args(more)
            .spawn()
            .unwrap()
    };
    let mut target = start("target", &pair.target, &["--listen", &address, "--keep-journal"]);
    let mut source = start("source", &pair.source, &["--connect", &address]);
    let passed = target.wait().unwrap().success();
    if !passed {
        // It would dial for ever.
        source.kill().unwrap();
    }
    assert!(source.wait().unwrap().success() && passed);
}

/// Where root is not admitted, movers run as the owner of all files.
#[test]
fn an_owner_without_capabilities_can_change_read_only_files() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    let at = |path: &str| pair.source.join(path);
    let set = |path: &str, mode| fs::set_permissions(at(path), fs::Permissions::from_mode(mode)).unwrap();
    let owned = |mode| {
        run(std::process::Command::new("chown")
            .args(["-R", "1000:1000"])
            .arg(pair.folder.path()));
        for path in ["dir/file", "dir/below", "dir"] {
            set(path, mode);
        }
    };
    fs::create_dir_all(at("dir/below")).unwrap();
    fs::write(at("dir/below/gone"), "").unwrap();
    fs::write(at("dir/file"), "one").unwrap();
    owned(0o555);
    pass_as(1000, &pair);
    pair.assert_equal();
    fs::write(at("dir/file"), "other").unwrap();
    fs::write(at("dir/new"), "").unwrap();
    fs::remove_dir_all(at("dir/below")).unwrap();
    fs::create_dir(at("dir/below")).unwrap();
    fs::write(at("dir/below/new"), "").unwrap();
    owned(0o555);
    pass_as(1000, &pair);
    pair.assert_equal();
    fs::remove_dir_all(at("dir")).unwrap();
    pass_as(1000, &pair);
    pair.assert_equal();
}

#[test]
fn acls_are_kept_and_not_inherited() {
    let pair = Pair::new();
    let dir = pair.source.join("dir");
    fs::create_dir(&dir).unwrap();
    setxattr(&dir, "system.posix_acl_default", &acl(), XattrFlags::empty()).unwrap();
    fs::write(dir.join("with"), "").unwrap();
    pair.last_pass();
    // A new entry in a directory with a default ACL gets one, unless the source has none.
    fs::write(pair.source.join("without"), "").unwrap();
    fs::rename(pair.source.join("without"), dir.join("without")).unwrap();
    fs::create_dir(pair.source.join("plain")).unwrap();
    fs::rename(pair.source.join("plain"), dir.join("plain")).unwrap();
    pair.last_pass();
}

/// A pass from a source with only the capabilities of its pod.
fn pass_from_a_pod(pair: &Pair) -> PassReport {
    let credentials = pair.folder.path().join("credentials");
    fs::create_dir(&credentials).unwrap();
    let (identity, _) = common::identities();
    for (name, text) in [
        ("authority.pem", &identity.authority),
        ("certificate.pem", &identity.certificate),
        ("key.pem", &identity.key),
    ] {
        fs::write(credentials.join(name), text).unwrap();
    }
    let (acceptor, address) = common::acceptor();
    let mut source = std::process::Command::new("setpriv")
        .args([
            "--bounding-set=-all,+dac_override",
            "--inh-caps=-all",
            "--no-new-privs",
        ])
        .arg(env!("CARGO_BIN_EXE_liqo-csi-mover"))
        .args(["source", "--move", common::UID, "--lanes", "1", "--root"])
        .arg(&pair.source)
        .arg("--credentials")
        .arg(&credentials)
        .args(["--connect", &address.to_string()])
        .spawn()
        .unwrap();
    let lanes = acceptor.accept(Duration::from_secs(20)).unwrap();
    let mut target = pair.open();
    let mut session = target.session(lanes.expect("no source dialled"));
    let report = session.pass(PassOptions::default()).unwrap();
    session.end();
    assert!(source.wait().unwrap().success());
    report
}

#[test]
fn lost_attributes_and_flags_are_reported_as_far_as_they_are_visible() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    let at = |path: &str| pair.source.join(path);
    for (name, attribute) in [
        ("secured", "security.NTACL"),
        ("trusted", "trusted.overlay.opaque"),
    ] {
        fs::write(at(name), "").unwrap();
        setxattr(at(name), attribute, b"y", XattrFlags::empty()).unwrap();
    }
    for (name, flag) in [("fixed", "+i"), ("synced", "+S")] {
        fs::write(at(name), "").unwrap();
        chattr(flag, &at(name));
    }
    let in_a_pod = pass_from_a_pod(&pair);
    let as_root = pair.pass(PassOptions {
        reread: true,
        ..PassOptions::default()
    });
    chattr("-i", &at("fixed"));
    // The kernel hides trusted attributes from processes without CAP_SYS_ADMIN.
    assert!(!in_a_pod.sees_trusted);
    assert_eq!(lost(&in_a_pod), ["Xattrs 1 secured", "Flags 2 fixed"]);
    assert!(as_root.sees_trusted);
    assert_eq!(lost(&as_root), ["Xattrs 2 secured", "Flags 2 fixed"]);
}

/// The reported losses of a pass, as text.
fn lost(report: &PassReport) -> Vec<String> {
    let losses = report.losses.iter();
    losses
        .map(|(kind, count, path)| format!("{kind:?} {count} {path}"))
        .collect()
}

fn chattr(change: &str, path: &Path) {
    run(std::process::Command::new("chattr").arg(change).arg(path));
}

#[test]
fn lost_attributes_are_reported_by_each_pass_until_they_are_removed() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    let at = |path: &str| pair.source.join(path);
    let set = |path: &str| setxattr(at(path), "security.NTACL", b"acl", XattrFlags::empty()).unwrap();
    for directory in ["a", "b"] {
        fs::create_dir(at(directory)).unwrap();
        for file in ["x", "y"] {
            fs::write(at(directory).join(file), "").unwrap();
        }
        set(&format!("{directory}/x"));
    }
    set("b");
    set("b/y");
    chattr("+d", &at("b"));
    let all = ["Xattrs 4 a/x", "Flags 1 b"];
    assert_eq!(lost(&pair.pass(PassOptions::default())), all);
    std::thread::sleep(Duration::from_millis(50));
    // Every directory is listed once more, and then none of them.
    for _ in 0..2 {
        let again = pair.pass(PassOptions::default());
        assert!(again.by_stamps);
        assert_eq!(lost(&again), all);
    }
    // A new process knows no more than the target does.
    assert_eq!(
        lost(&pair.pass(PassOptions {
            last: true,
            ..PassOptions::default()
        })),
        all
    );
    rustix::fs::removexattr(at("a/x"), "security.NTACL").unwrap();
    chattr("-d", &at("b"));
    assert_eq!(lost(&pair.pass(PassOptions::default())), ["Xattrs 3 b"]);
    fs::remove_dir_all(at("b")).unwrap();
    assert!(lost(&pair.pass(PassOptions::default())).is_empty());
}

/// Some of them the kernel shows only for an open file.
#[test]
fn every_lost_inode_flag_is_reported() {
    if !is_root() {
        return;
    }
    let flags_of = |make: &[&str], of_root: Option<&str>, flags: &[(&str, &str)]| {
        let image = Image::new(make, 400);
        let pair = Pair {
            source: image.at.clone(),
            ..Pair::new()
        };
        for (at, (flag, kind)) in flags.iter().enumerate() {
            let path = pair.source.join(format!("{at}{flag}"));
            if *kind == "directory" {
                fs::create_dir(&path).unwrap();
            } else {
                fs::write(&path, "").unwrap();
            }
            chattr(flag, &path);
        }
        fs::write(pair.source.join("without"), "").unwrap();
        if let Some(flag) = of_root {
            chattr(flag, &pair.source);
        }
        std::thread::sleep(Duration::from_millis(50));
        // The last one lists no directory.
        let passes = [(); 3].map(|()| lost(&pair.pass(PassOptions::default())));
        assert!(passes.iter().all(|found| *found == passes[0]), "{passes:?}");
        passes[0].clone()
    };
    let (file, directory) = ("file", "directory");
    let of_ext4 = [("+S", file), ("+A", file), ("+D", directory), ("+d", file)];
    let lost = flags_of(&["mkfs.ext4", "-q"], None, &of_ext4);
    assert_eq!(lost, ["Flags 4 0+S"]);
    let of_xfs = [("+P", directory), ("+A", file)];
    assert_eq!(flags_of(&["mkfs.xfs", "-q"], None, &of_xfs), ["Flags 2 1+A"]);
    // The project of the whole volume is that of its provisioner, and each directory inherits it.
    assert_eq!(
        flags_of(&["mkfs.xfs", "-q"], Some("+P"), &of_xfs),
        ["Flags 1 1+A"]
    );
}

/// Flag `C` tells btrfs to write files in place, without copies and checksums.
#[test]
fn the_nocow_flag_is_kept_on_btrfs_and_no_loss_on_other_file_systems() {
    if !is_root() {
        return;
    }
    let pass = |target: &[&str], of_root: bool| {
        let (from, to) = (Image::new(&["mkfs.btrfs", "-q"], 200), Image::new(target, 200));
        let pair = Pair {
            source: from.at.clone(),
            target: to.at.clone(),
            ..Pair::new()
        };
        if of_root {
            chattr("+C", &pair.source);
        }
        fs::create_dir(pair.source.join("data")).unwrap();
        let file = pair.source.join("data/base");
        fs::write(&file, "").unwrap();
        chattr("+C", &file);
        fs::write(&file, "content").unwrap();
        let lost = [(); 2].map(|()| lost(&pair.pass(PassOptions::default())));
        assert_eq!(lost[0], lost[1]);
        let copy = fs::File::open(pair.target.join("data/base")).unwrap();
        let flags = rustix::fs::ioctl_getflags(&copy).unwrap();
        (lost[0].join(" "), flags.contains(rustix::fs::IFlags::NOCOW))
    };
    let btrfs = ["mkfs.btrfs", "-q"];
    assert_eq!(pass(&btrfs, true), (String::new(), true));
    assert_eq!(pass(&btrfs, false), ("Flags 1 data/base".to_owned(), false));
    for of_root in [true, false] {
        assert_eq!(pass(&["mkfs.ext4", "-q"], of_root), (String::new(), false));
    }
}

/// The directory is read in several parts.
#[test]
fn lost_flags_are_counted_once_in_a_large_directory() {
    let pair = Pair::new();
    let large = pair.source.join("large");
    fs::create_dir(&large).unwrap();
    for at in 0..66_000 {
        mknodat(CWD, large.join(at.to_string()), FileType::Fifo, Mode::RUSR, 0).unwrap();
    }
    // The first and the last name.
    for name in ["0-first", "last"] {
        fs::write(large.join(name), "").unwrap();
        chattr("+d", &large.join(name));
    }
    chattr("+d", &large);
    assert_eq!(lost(&pair.pass(PassOptions::default())), ["Flags 3 large"]);
}
