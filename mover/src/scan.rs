//! Walks a tree in the order of [`TreePath`], reading ahead with several threads. The memory is bounded,
//! however wide or deep the tree is. [`crate::source`] decides what is sent.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use rustix::{
    fs::{FileType, StatxAttributes},
    io::Errno,
};

use crate::{
    entry::{Entry, Inode},
    error::Error,
    path::{Name, TreePath},
    tree::{At, Names, Tree, inode_of, is_gone, is_gone_from, names},
};

/// How many entries of one directory are in memory at a time.
const WINDOW: usize = 1 << 16;
/// How many subdirectories of one directory are in memory; the rest is read again.
const SUBDIRECTORIES: usize = 1 << 12;
/// The limits of reading ahead: directories of one parent, entries of one directory, and entries in total, with those that
/// are being read.
const AHEAD: usize = 64;
const AHEAD_DIRECTORY: usize = AHEAD_ENTRIES / 4;
const AHEAD_ENTRIES: usize = 1 << 16;

/// Names in the root that are never part of a volume: journals.
pub(crate) fn is_journal(directory: &TreePath, name: &[u8]) -> bool {
    directory.is_root() && name.starts_with(JOURNAL_PREFIX)
}

/// An error of the peer if this path is in a journal.
pub(crate) fn refuse_journal(path: &TreePath) -> Result<(), Error> {
    // The first name of a path begins it.
    if is_journal(&TreePath::root(), path.as_bytes()) {
        return Err(Error::Protocol(
            "it lists something that is not part of a volume".to_owned(),
        ));
    }
    Ok(())
}

/// Whether this is the name of fsck's directory. The file system creates it, so it is neither created nor
/// deleted for the other side.
pub(crate) fn is_lost_and_found(directory: &TreePath, name: &[u8]) -> bool {
    directory.is_root() && name == LOST_AND_FOUND
}

/// Names on this side that are not part of the volume: journals, and the directory of fsck if it is empty, or
/// if only root may read it and this process is not root.
pub(crate) fn is_foreign(tree: &Tree, directory: &TreePath, name: &[u8]) -> bool {
    let is_unused = || {
        let path = TreePath::parse(name).map_err(|_| Errno::INVAL);
        let found = path.and_then(|path| names(tree.directory(&path)?.as_fd(), None, 1, |_, _| true));
        match found {
            Ok(found) => found.names.is_empty(),
            Err(errno) => errno == Errno::ACCESS,
        }
    };
    is_journal(directory, name) || (is_lost_and_found(directory, name) && is_unused())
}

/// Whether the entry is foreign, and a source does not list it. A user may have made an empty `lost+found`, too.
fn is_unlisted(tree: &Tree, directory: &TreePath, name: &[u8]) -> bool {
    is_foreign(tree, directory, name) && (is_journal(directory, name) || owns_lost_and_found(tree))
}

/// Whether `lost+found` is that which `mkfs.ext4` makes in the root, as its first inode, or belongs to root and cannot be
/// read: a file server may export the root of such a file system.
fn owns_lost_and_found(tree: &Tree) -> bool {
    let (Ok(name), Ok(path)) = (Name::parse(LOST_AND_FOUND), TreePath::parse(LOST_AND_FOUND)) else {
        return false;
    };
    At::Child(tree.root(), &name).status().is_ok_and(|status| {
        let is_first = status.stx_ino == 11 && tree.is_root_of_ext();
        is_first || (status.stx_uid == 0 && tree.directory(&path).is_err())
    })
}

/// Prefix of the directory name of a journal, followed by the move's uid.
pub(crate) const JOURNAL_PREFIX: &[u8] = b".liqo-move-";
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// A directory, or the next part of a large one. Extended attributes and the targets of links are not read
/// yet: they are needed only for changed entries.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) path: TreePath,
    pub(crate) own: Inode,
    pub(crate) entries: Vec<Entry>,
    /// Names that were deleted between reading the directory and their inodes.
    pub(crate) vanished: u64,
    /// Whether there are more after the last entry: see [`read`].
    pub(crate) more: bool,
}

/// A walk in progress.
pub(crate) struct Scan {
    shared: Arc<Shared>,
    levels: Vec<Level>,
    started: bool,
    workers: Vec<thread::JoinHandle<()>>,
}

/// The subdirectories of one directory that are not walked yet.
struct Level {
    path: TreePath,
    names: VecDeque<Name>,
    /// How many of them are being read or queued.
    ahead: usize,
    /// There are more after the last of these.
    more_after: Option<Name>,
}

struct Shared {
    tree: Arc<Tree>,
    state: Mutex<State>,
    changed: Condvar,
}

/// A directory that was read ahead; `None` if it has too many entries, and is read when the walk reaches it.
type Ahead = Option<Result<Listed, Errno>>;

#[derive(Default)]
struct State {
    todo: BTreeSet<TreePath>,
    /// Each with the number of entries that it adds to `entries`.
    done: BTreeMap<TreePath, (usize, Ahead)>,
    entries: usize,
    /// The directory that the walk waits for is read whatever is in memory already.
    wanted: Option<TreePath>,
    closed: bool,
}

impl Scan {
    pub(crate) fn start(tree: Arc<Tree>, threads: usize) -> Self {
        let shared = Arc::new(Shared {
            tree,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let workers = (0..threads)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.work())
            })
            .collect();
        Self {
            shared,
            levels: Vec::new(),
            started: false,
            workers,
        }
    }

    /// The next directory. Those that were deleted meanwhile are counted in `vanished`.
    pub(crate) fn next(&mut self, vanished: &mut u64) -> Result<Option<Listed>, Error> {
        loop {
            let Some(path) = self.next_path(vanished)? else {
                return Ok(None);
            };
            match self.shared.wait_for(&path) {
                Ok(listed) => {
                    self.descend(&listed, vanished)?;
                    return Ok(Some(listed));
                }
                // Deleted or replaced meanwhile: the next pass handles it.
                Err(errno) if is_gone(errno) && !path.is_root() => *vanished += 1,
                Err(errno) => return Err(Error::tree("reading directory", &path)(errno)),
            }
        }
    }

    fn next_path(&mut self, vanished: &mut u64) -> Result<Option<TreePath>, Error> {
        if !self.started {
            self.started = true;
            return Ok(Some(TreePath::root()));
        }
        while let Some(level) = self.levels.last_mut() {
            if let Some(name) = level.names.pop_front() {
                level.ahead = level.ahead.saturating_sub(1);
                let path = level
                    .path
                    .child(&name)
                    .map_err(|_| Error::tree("reading directory", &level.path)(Errno::NAMETOOLONG))?;
                self.read_ahead();
                return Ok(Some(path));
            }
            let Some(after) = level.more_after.take() else {
                self.levels.pop();
                continue;
            };
            let path = level.path.clone();
            (level.names, level.more_after) =
                subdirectories(&self.shared.tree, &path, Some(&after), vanished)?;
            self.read_ahead();
        }
        Ok(None)
    }

    fn descend(&mut self, listed: &Listed, vanished: &mut u64) -> Result<(), Error> {
        let (names, more_after) = if listed.more {
            subdirectories(&self.shared.tree, &listed.path, None, vanished)?
        } else {
            let directories = listed.entries.iter().filter(|entry| entry.inode.is_directory());
            let mut names: VecDeque<Name> = directories
                .take(SUBDIRECTORIES + 1)
                .map(|entry| entry.name.clone())
                .collect();
            let more = names.len() > SUBDIRECTORIES;
            names.truncate(SUBDIRECTORIES);
            let after = names.back().filter(|_| more).cloned();
            (names, after)
        };
        self.levels.push(Level {
            path: listed.path.clone(),
            names,
            ahead: 0,
            more_after,
        });
        self.read_ahead();
        Ok(())
    }

    /// Queues the next directories of the innermost level.
    fn read_ahead(&mut self) {
        let Some(level) = self.levels.last_mut() else {
            return;
        };
        let upto = AHEAD.min(level.names.len());
        if level.ahead >= upto {
            return;
        }
        let mut state = self.shared.lock();
        for name in level.names.range(level.ahead..upto) {
            if let Ok(path) = level.path.child(name) {
                state.todo.insert(path);
            }
        }
        level.ahead = upto;
        drop(state);
        self.shared.changed.notify_all();
    }
}

impl Drop for Scan {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        for worker in self.workers.drain(..) {
            // A worker that panicked has reported it.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for(&self, path: &TreePath) -> Result<Listed, Errno> {
        let mut state = self.lock();
        // No worker has begun with it: read it here rather than wait.
        if state.todo.remove(path) || path.is_root() {
            drop(state);
            return read(&self.tree, path, None);
        }
        loop {
            if let Some(done) = state.take(path) {
                state.wanted = None;
                drop(state);
                self.changed.notify_all();
                return done.unwrap_or_else(|| read(&self.tree, path, None));
            }
            if state.closed {
                return Err(Errno::CANCELED);
            }
            state.wanted = Some(path.clone());
            // The thread that reads it may wait until there is room.
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            if state.closed {
                return;
            }
            let full = state.entries >= AHEAD_ENTRIES;
            let Some(path) = state.todo.first().filter(|_| !full).cloned() else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.todo.remove(&path);
            drop(state);
            // Of a directory that is too large no more names are kept: every thread may be reading one.
            let mut listed = 0;
            let found = read_names(&self.tree, &path, None, AHEAD_DIRECTORY, || {
                listed += 1;
                listed <= AHEAD_DIRECTORY
            });
            let is_whole = listed <= AHEAD_DIRECTORY;
            let count = if is_whole { listed } else { 0 };
            state = self.lock();
            while !state.has_room(&path, count) {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.entries += count;
            drop(state);
            let done = match found {
                Ok(_) if !is_whole => None,
                Ok((directory, own, found)) => Some(read_inodes(&path, &directory, own, found)),
                Err(errno) => Some(Err(errno)),
            };
            state = self.lock();
            let wanted = state.wanted.as_ref() == Some(&path);
            state.done.insert(path, (count, done));
            if wanted {
                self.changed.notify_all();
            }
        }
    }
}

impl State {
    /// Whether this directory may be read now; waiting for one that the walk waits for would never end.
    fn has_room(&self, path: &TreePath, count: usize) -> bool {
        self.entries + count <= AHEAD_ENTRIES || self.wanted.as_ref() == Some(path) || self.closed
    }

    fn take(&mut self, path: &TreePath) -> Option<Ahead> {
        let (count, done) = self.done.remove(path)?;
        self.entries -= count;
        Some(done)
    }
}

/// The next subdirectories, and the last of them if there are more. There are none if the directory was
/// deleted meanwhile.
fn subdirectories(
    tree: &Tree,
    path: &TreePath,
    after: Option<&Name>,
    vanished: &mut u64,
) -> Result<(VecDeque<Name>, Option<Name>), Error> {
    match read_subdirectories(tree, path, after) {
        Err(errno) if is_gone(errno) && !path.is_root() => {
            *vanished += 1;
            Ok((VecDeque::new(), None))
        }
        read => read.map_err(Error::tree("reading directory", path)),
    }
}

fn read_subdirectories(
    tree: &Tree,
    path: &TreePath,
    after: Option<&Name>,
) -> Result<(VecDeque<Name>, Option<Name>), Errno> {
    let fd = tree.directory(path)?;
    let wanted = |name: &[u8], kind| {
        matches!(kind, FileType::Directory | FileType::Unknown) && !is_unlisted(tree, path, name)
    };
    let found = names(fd.as_fd(), after, SUBDIRECTORIES, wanted)?;
    let last = found
        .names
        .last()
        .filter(|_| found.more)
        .map(|(name, _)| name.clone());
    let directories = found
        .names
        .into_iter()
        .filter(|(_, kind)| *kind == FileType::Directory);
    Ok((directories.map(|(name, _)| name).collect(), last))
}

/// Reads a directory, or the part of it after `after`.
pub(crate) fn read(tree: &Tree, path: &TreePath, after: Option<&Name>) -> Result<Listed, Errno> {
    let (directory, own, found) = read_names(tree, path, after, WINDOW, || true)?;
    let listed = read_inodes(path, &directory, own, found)?;
    // The next part begins after the last entry of this one, so there must be one.
    if listed.more && listed.entries.is_empty() {
        return read(tree, path, after);
    }
    Ok(listed)
}

fn read_names(
    tree: &Tree,
    path: &TreePath,
    after: Option<&Name>,
    limit: usize,
    mut is_kept: impl FnMut() -> bool,
) -> Result<(OwnedFd, Inode, Names), Errno> {
    let fd = tree.directory(path)?;
    // Before the names: the next pass notices a change after this time.
    let status = At::Fd(fd.as_fd()).status()?;
    let own = inode_of(&status).ok_or(Errno::NOTDIR)?;
    let wanted = |name: &[u8], _| !is_unlisted(tree, path, name) && is_kept();
    let found = names(fd.as_fd(), after, limit, wanted)?;
    Ok((fd, own, found))
}

fn read_inodes(path: &TreePath, fd: &OwnedFd, own: Inode, found: Names) -> Result<Listed, Errno> {
    let mut listed = Listed {
        path: path.clone(),
        own,
        entries: Vec::with_capacity(found.names.len()),
        vanished: 0,
        more: found.more,
    };
    for (name, kind) in found.names {
        // Everything is addressed by its path.
        if path.as_bytes().len() + 1 + name.as_bytes().len() > TreePath::MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let inode = if kind == FileType::Directory {
            Some(Inode::directory_by_name())
        } else {
            match At::Child(fd.as_fd(), &name).status() {
                // Of another file system; those of directories and files are noticed when they are opened.
                Ok(status) if status.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) => {
                    return Err(Errno::XDEV);
                }
                Ok(status) => inode_of(&status).map(|inode| {
                    if inode.is_directory() {
                        Inode::directory_by_name()
                    } else {
                        inode
                    }
                }),
                Err(errno) if is_gone_from(path, errno) => None,
                Err(errno) => return Err(errno),
            }
        };
        match inode {
            Some(inode) => listed.entries.push(Entry { name, inode }),
            None => listed.vanished += 1,
        }
    }
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::ffi::OsStrExt};

    use super::*;

    fn walk(root: &std::path::Path) -> Vec<(TreePath, Vec<Name>)> {
        let mut scan = Scan::start(Arc::new(Tree::open(root).unwrap()), 3);
        let mut found = Vec::new();
        while let Some(listed) = scan.next(&mut 0).unwrap() {
            found.push((
                listed.path,
                listed.entries.into_iter().map(|entry| entry.name).collect(),
            ));
        }
        found
    }

    #[test]
    fn each_directory_is_found_once_in_path_order() {
        let root = tempfile::tempdir().unwrap();
        let mut expected = vec![TreePath::root()];
        for a in 0..70 {
            for b in 0..5 {
                let path = format!("{a}/x-{b}/y");
                fs::create_dir_all(root.path().join(&path)).unwrap();
                fs::write(root.path().join(&path).join("f"), "").unwrap();
                for upto in [2, 1, 0] {
                    let part: Vec<&str> = path.split('/').take(3 - upto).collect();
                    expected.push(TreePath::parse(part.join("/").as_bytes()).unwrap());
                }
            }
        }
        expected.sort();
        expected.dedup();
        let found = walk(root.path());
        assert_eq!(
            found.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>(),
            expected
        );
        assert!(found.iter().all(|(_, names)| names.is_sorted()));
    }

    #[test]
    fn more_subdirectories_than_are_remembered_are_all_walked() {
        let root = tempfile::tempdir().unwrap();
        let count = SUBDIRECTORIES * 2 + 100;
        for at in 0..count {
            fs::create_dir(root.path().join(at.to_string())).unwrap();
        }
        let found = walk(root.path());
        assert_eq!(found.len(), count + 1);
        assert!(found.is_sorted());
    }

    /// As many as fit are read at the same time, the others when the walk reaches them.
    #[test]
    fn large_directories_are_read_ahead_within_a_limit() {
        let root = tempfile::tempdir().unwrap();
        let large = AHEAD_ENTRIES / 5 + 1;
        let sizes = [large, large, large, large, large, AHEAD_DIRECTORY + 1];
        for (directory, size) in ["a", "b", "c", "d", "e", "f"].into_iter().zip(sizes) {
            let directory = root.path().join(directory);
            fs::create_dir(&directory).unwrap();
            for at in 0..size {
                fs::write(directory.join(at.to_string()), "").unwrap();
            }
        }
        let mut scan = Scan::start(Arc::new(Tree::open(root.path()).unwrap()), 5);
        scan.next(&mut 0).unwrap();
        // Four of the first five, and the last one, which is too large.
        while scan.shared.lock().done.len() < 5 {
            std::thread::yield_now();
        }
        assert_eq!(scan.shared.lock().entries, 4 * large);
        for size in sizes {
            let listed = scan.next(&mut 0).unwrap().unwrap();
            assert_eq!(listed.entries.len(), size);
        }
        assert!(scan.next(&mut 0).unwrap().is_none());
        assert_eq!(scan.shared.lock().entries, 0);
    }

    #[test]
    fn the_parts_of_a_large_directory_are_complete() {
        let root = tempfile::tempdir().unwrap();
        for at in 0..2500 {
            fs::write(root.path().join(format!("{:04}", at * 7 % 2500)), "").unwrap();
        }
        fs::write(root.path().join(std::ffi::OsStr::from_bytes(b"\xff")), "").unwrap();
        let dir = Tree::open(root.path()).unwrap();
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let part = names(dir.root(), after.as_ref(), 100, |_, _| true).unwrap();
            assert!(part.names.len() <= 100);
            all.extend(part.names.into_iter().map(|(name, _)| name));
            after = all.last().cloned();
            if !part.more {
                break;
            }
        }
        assert_eq!(all.len(), 2501);
        assert!(all.is_sorted_by(|a, b| a < b));
    }
}
