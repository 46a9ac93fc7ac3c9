//! The source changes between two reads of one pass. A file under a lease stops the listing of its directory until the
//! process that has the lease has made the change. No such change may lead to a wrong copy, or to an error that says
//! that the target returns wrong data.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

mod common;

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use common::{Lease, Pair, with_session};
use mover::{
    target::PassOptions,
    verify::{Scope, Verification},
};

/// A pass during whose listing of the directory of `leased` these Perl statements run once. The target has what was sent.
fn pass_with(pair: &Pair, leased: &Path, change: &str) -> Verification {
    let wait = "select(undef, undef, undef, 0.3);";
    let lease = Lease::of(leased, &format!("sub {{ {wait} {change}; fcntl($f, 1024, 2) }}"));
    pair.pass(PassOptions::default());
    drop(lease);
    let found = pair.open().verify(Scope::Touched).unwrap();
    assert!(found.is_equal_as_sent(), "{:?}", found.differences);
    found
}

/// In Perl, writes a text to a file: `>` replaces its content, `>>` appends.
fn write(path: &Path, how: &str, text: &str) -> String {
    format!(
        "open(my $o, '{how}', '{}'); print $o '{text}'; close($o)",
        path.display()
    )
}

fn settle() {
    std::thread::sleep(std::time::Duration::from_millis(60));
}

/// Passes after which all stamps are settled.
fn copy_settled(pair: &Pair) {
    for _ in 0..2 {
        settle();
        pair.pass(PassOptions::default());
    }
    pair.assert_verified(Scope::Touched);
}

/// A pair whose source has one file as `a/x` and `z/b/x`. In between `m/leased` is read: the walk reads `z/b` after that, as
/// it reads directories ahead, but none below them.
fn linked() -> Pair {
    let pair = Pair::new();
    let at = |path: &str| pair.source.join(path);
    for directory in ["a", "m", "z/b"] {
        fs::create_dir_all(at(directory)).unwrap();
    }
    fs::write(at("a/x"), "before").unwrap();
    fs::hard_link(at("a/x"), at("z/b/x")).unwrap();
    fs::write(at("m/leased"), "").unwrap();
    pair
}

#[test]
fn content_written_under_another_name_is_not_taken_for_that_of_before() {
    let pair = linked();
    let at = |path: &str| pair.source.join(path);
    copy_settled(&pair);
    // So that the directory is listed.
    fs::write(at("m/new"), "").unwrap();
    pass_with(&pair, &at("m/leased"), &write(&at("z/b/x"), ">", "middle"));
    assert_eq!(fs::read(pair.target.join("a/x")).unwrap(), b"middle");
    fs::write(at("a/x"), "before").unwrap();
    fs::remove_file(at("z/b/x")).unwrap();
    settle();
    pair.last_pass();
}

#[test]
fn a_subdirectory_that_is_created_after_its_parent_was_listed_is_copied_by_the_next_pass() {
    let pair = Pair::new();
    for at in 0..4200 {
        fs::create_dir(pair.source.join(format!("d{at:04}"))).unwrap();
    }
    let leased = pair.source.join("d0000/leased");
    fs::write(&leased, "").unwrap();
    let new = pair.source.join("e");
    let change = format!(
        "mkdir('{0}'); {1}",
        new.display(),
        write(&new.join("file"), ">", "x")
    );
    pass_with(&pair, &leased, &change);
    pair.last_pass();
}

#[test]
fn files_that_are_deleted_before_they_are_read_are_no_difference() {
    let pair = Pair::new();
    let at = |name: &str| pair.source.join(name);
    for name in ["changed", "leased"] {
        fs::write(at(name), "x").unwrap();
    }
    pair.pass(PassOptions::default());
    settle();
    fs::write(at("changed"), "y").unwrap();
    fs::write(at("large"), vec![1; 3 << 20]).unwrap();
    let all = ["changed", "large"].map(|name| format!("unlink('{}')", at(name).display()));
    pass_with(&pair, &at("leased"), &all.join("; "));
    assert!(!pair.target.join("changed").exists());
    pair.last_pass();
}

#[test]
fn a_linked_file_that_grows_between_the_listings_of_its_names_is_no_difference() {
    let pair = linked();
    let at = |path: &str| pair.source.join(path);
    let found = pass_with(&pair, &at("m/leased"), &write(&at("z/b/x"), ">>", "line"));
    assert_eq!(found.unknown, 1, "the names were listed with the same size");
    settle();
    pair.last_pass();
}

#[test]
fn a_linked_file_that_changes_after_a_name_was_listed_unchanged_is_no_difference() {
    let pair = linked();
    let at = |path: &str| pair.source.join(path);
    copy_settled(&pair);
    for directory in ["a", "m"] {
        fs::write(at(directory).join("new"), "").unwrap();
    }
    pass_with(
        &pair,
        &at("m/leased"),
        &write(&at("z/b/x"), ">", "middle, longer"),
    );
    settle();
    pair.last_pass();
}

#[test]
fn a_linked_file_whose_first_name_is_deleted_before_it_is_read_is_no_difference() {
    let pair = linked();
    let at = |path: &str| pair.source.join(path);
    fs::create_dir(at("b")).unwrap();
    fs::write(at("b/leased"), "").unwrap();
    fs::write(at("b/large"), vec![1; 3 << 20]).unwrap();
    fs::hard_link(at("b/large"), at("b/larger")).unwrap();
    settle();
    let change = format!("unlink('{}')", at("b/large").display());
    pass_with(&pair, &at("b/leased"), &change);
    pair.last_pass();
}

#[test]
fn a_linked_file_whose_first_directory_is_renamed_before_it_is_read_is_copied_by_the_next_pass() {
    let pair = Pair::new();
    let at = |path: &str| pair.source.join(path);
    for directory in ["b", "z"] {
        fs::create_dir(at(directory)).unwrap();
    }
    fs::write(at("b/large"), vec![1; 3 << 20]).unwrap();
    fs::hard_link(at("b/large"), at("z/large")).unwrap();
    fs::write(at("z/leased"), "").unwrap();
    settle();
    // No time of the file changes.
    let change = format!("rename('{}', '{}')", at("b").display(), at("c").display());
    pass_with(&pair, &at("z/leased"), &change);
    pair.last_pass();
}

/// A pair whose source has two names of one file in `b/e/d`, and a change that moves `b/e` to `y/k` while `m/leased` is
/// read: then one pass lists both names twice, and no time of the file changes. If there are many files in `c`, the target
/// requests the content of the file before the change. `other` is a directory like `b/e`.
fn listed_twice(files: usize) -> (Pair, String) {
    let pair = Pair::new();
    let at = |path: &str| pair.source.join(path);
    for directory in ["b/e/d", "c", "m", "other/d", "y/k"] {
        fs::create_dir_all(at(directory)).unwrap();
    }
    fs::write(at("b/e/d/x"), vec![1; 3 << 20]).unwrap();
    fs::hard_link(at("b/e/d/x"), at("b/e/d/x2")).unwrap();
    fs::write(at("other/d/x"), vec![2; 3 << 20]).unwrap();
    for file in 0..files {
        fs::write(at("c").join(format!("a-name-that-fills-the-listing-{file}")), "x").unwrap();
    }
    fs::write(at("m/leased"), "").unwrap();
    settle();
    let rename = format!("rename('{}', '{}')", at("b/e").display(), at("y/k/e").display());
    (pair, rename)
}

#[test]
fn linked_files_that_a_pass_lists_twice_are_read_by_the_next_pass() {
    let (pair, rename) = listed_twice(0);
    pass_with(&pair, &pair.source.join("m/leased"), &rename);
    pair.last_pass();
}

#[test]
fn content_of_a_file_that_took_the_place_of_a_linked_one_is_not_taken_for_its_own() {
    let (pair, rename) = listed_twice(0);
    let at = |path: &str| pair.source.join(path);
    let replace = format!("rename('{}', '{}')", at("other").display(), at("b/e").display());
    pass_with(&pair, &at("m/leased"), &format!("{rename}; {replace}"));
    pair.last_pass();
}

#[test]
fn changes_of_others_to_a_linked_file_whose_first_name_is_gone_are_differences() {
    let (pair, rename) = listed_twice(5000);
    pass_with(&pair, &pair.source.join("m/leased"), &rename);
    pair.last_pass();
    let changed = pair.target.join("y/k/e/d/x");
    fs::set_permissions(changed, fs::Permissions::from_mode(0o600)).unwrap();
    let found = pair.open().verify(Scope::TouchedAndAttributes).unwrap();
    assert!(!found.is_equal_as_sent(), "{:?}", found.differences);
    pair.last_pass();
}

#[test]
fn a_linked_file_that_loses_a_name_between_the_listings_of_both_is_no_difference() {
    // The first name, whether its directory is listed, and how many differences are found.
    for (first, is_listed, unknown) in [("t/f", false, 1), ("t/f", true, 2), ("t/n/d/f", false, 2)] {
        let pair = Pair::new();
        let at = |path: &str| pair.source.join(path);
        for directory in ["t/m", "t/n/d", "t/z/b"] {
            fs::create_dir_all(at(directory)).unwrap();
        }
        fs::write(at(first), "x").unwrap();
        fs::write(at("t/m/leased"), "").unwrap();
        fs::hard_link(at(first), at("t/z/b/f")).unwrap();
        copy_settled(&pair);
        fs::write(at("t/m/new"), "").unwrap();
        if is_listed {
            fs::write(at("t/new"), "").unwrap();
        }
        let first = at(first);
        // `t` stays: it is not empty.
        let directory = first.parent().unwrap().display();
        let change = format!("unlink('{}'); rmdir('{directory}')", first.display());
        let found = pass_with(&pair, &at("t/m/leased"), &change);
        assert_eq!(found.unknown, unknown, "{:?}", found.differences);
        pair.last_pass();
    }
}

#[test]
fn many_linked_files_that_change_between_the_listings_of_their_names_are_no_difference() {
    let pair = linked();
    let at = |path: &str| pair.source.join(path);
    for file in 0..5000 {
        let first = at("a").join(file.to_string());
        fs::write(&first, "").unwrap();
        fs::hard_link(&first, at("z/b").join(file.to_string())).unwrap();
    }
    let change = format!("chmod(0600, glob('{}/*'))", at("z/b").display());
    let found = pass_with(&pair, &at("m/leased"), &change);
    assert!(found.unknown >= 5000, "{}", found.unknown);
    settle();
    pair.last_pass();
}

/// The target's users may not write there, but they can.
#[test]
fn a_directory_that_others_delete_at_the_target_is_copied_again() {
    for removes_another in [false, true] {
        let pair = Pair::new();
        let directory = pair.source.join("a/b");
        fs::create_dir_all(&directory).unwrap();
        fs::create_dir(pair.source.join("0")).unwrap();
        fs::write(directory.join("file"), "x").unwrap();
        copy_settled(&pair);
        fs::remove_dir_all(pair.target.join("a/b")).unwrap();
        if removes_another {
            fs::remove_dir(pair.source.join("0")).unwrap();
        }
        // The listing of the directory above stays as it is.
        fs::write(directory.join("new"), "").unwrap();
        let mut target = pair.open();
        let result = with_session(&pair.source, &mut target, |session| {
            session.pass(PassOptions::default())
        });
        assert!(result.is_err(), "{result:?}");
        pair.last_pass();
    }
}

/// An unreadable block counts as its end.
#[test]
fn a_journal_that_ends_too_early_is_not_equal() {
    let pair = Pair::new();
    for name in ["a", "b"] {
        fs::create_dir(pair.source.join(name)).unwrap();
        fs::write(pair.source.join(name).join("file"), name).unwrap();
    }
    pair.last_pass();
    let journal = fs::read_dir(&pair.target).unwrap().find_map(|entry| {
        let entries = entry.unwrap().path().join("entries");
        entries.exists().then_some(entries)
    });
    let journal = journal.unwrap();
    let whole = fs::read(&journal).unwrap();
    let is_equal = |bytes: &[u8]| {
        fs::write(&journal, bytes).unwrap();
        pair.open().verify(Scope::All).is_ok_and(|found| found.is_equal())
    };
    let ends = (0..whole.len()).step_by(7).chain([whole.len()]);
    let equal: Vec<usize> = ends.filter(|end| is_equal(&whole[..*end])).collect();
    assert_eq!(equal, [whole.len()]);
}
