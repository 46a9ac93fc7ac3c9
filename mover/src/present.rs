//! What exists in the target's directories, in step with their listings, and the deletion of what is not
//! listed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::{
    fs::{AtFlags, FileType, Statx},
    io::Errno,
};

use crate::{
    entry::Entry,
    error::Error,
    lanes::Reader,
    link::next_message,
    message::{RawEntry, SourceMessage},
    path::{Name, TreePath},
    scan::{is_foreign, is_journal, is_lost_and_found, refuse_journal},
    tree::{At, Names, SortedNames, Tree, is_gone, names, type_of},
};

/// How many names of a deleted directory are deleted for each time that it is read.
const NAMES_AT_ONCE: usize = 1 << 16;
/// How many subdirectories of one directory are in memory while the first of them is deleted.
const SUBDIRECTORIES: usize = 1 << 10;

/// A directory that is being listed.
pub(crate) struct Present {
    pub(crate) path: TreePath,
    pub(crate) directory: OwnedFd,
    names: SortedNames,
}

impl Present {
    pub(crate) fn open(tree: &Tree, path: &TreePath) -> Result<Self, Errno> {
        Ok(Self {
            path: path.clone(),
            directory: tree.directory_to_change(path)?,
            names: SortedNames::default(),
        })
    }

    /// Calls this for each name before `until` that was not listed; returns what exists under `until`.
    pub(crate) fn until(
        &mut self,
        tree: &Tree,
        until: Option<&Name>,
        mut unlisted: impl FnMut(&Self, &Name, FileType) -> Result<(), Error>,
    ) -> Result<Option<FileType>, Error> {
        loop {
            let next = self
                .names
                .peek(self.directory.as_fd(), |name| !is_journal(&self.path, name))
                .map_err(Error::tree("reading directory", &self.path))?;
            if next.is_none_or(|(name, _)| until.is_some_and(|until| name > until)) {
                return Ok(None);
            }
            let Some((name, kind)) = self.names.pop() else {
                return Ok(None);
            };
            if Some(&name) == until {
                return Ok(Some(kind));
            }
            if !is_foreign(tree, &self.path, name.as_bytes()) {
                unlisted(self, &name, kind)?;
            }
        }
    }

    /// Deletes a name that is not listed; of the directory of fsck only what is in it.
    pub(crate) fn delete_unlisted(&self, tree: &Tree, name: &Name, kind: FileType) -> Result<(), Error> {
        if kind == FileType::Directory && is_lost_and_found(&self.path, name.as_bytes()) {
            let path = self.path.child(name)?;
            return empty_directory(tree, &path).map_err(Error::tree("deleting directory", &path));
        }
        self.delete(tree, name, kind)
    }

    /// Deletes a name.
    pub(crate) fn delete(&self, tree: &Tree, name: &Name, kind: FileType) -> Result<(), Error> {
        let path = self.path.child(name)?;
        if kind == FileType::Directory {
            return remove_directory(tree, &path).map_err(Error::tree("deleting directory", &path));
        }
        unlink(self.directory.as_fd(), name).map_err(Error::tree("deleting", &path))
    }

    /// Deletes what exists before this entry, and under its name what is of another kind, or takes more space by
    /// what the source has: then deleting it frees at least as much as is sent again. The size of the entry is that of
    /// its data.
    fn prune(&mut self, tree: &Tree, entry: &Entry) -> Result<(), Error> {
        let found = self.until(tree, Some(&entry.name), |present, name, kind| {
            present.delete_unlisted(tree, name, kind)
        })?;
        let Some(kind) = found else { return Ok(()) };
        let is_larger = || {
            let status = At::Child(self.directory.as_fd(), &entry.name).status();
            let size = entry.inode.stamp.size;
            let takes = |status: Statx| status.stx_size.min(status.stx_blocks.saturating_mul(512));
            entry.inode.is_file() && status.is_ok_and(|status| takes(status) / 2 >= size.max(1))
        };
        if kind != type_of(&entry.inode.kind) || is_larger() {
            self.delete(tree, &entry.name, kind)?;
        }
        Ok(())
    }
}

/// Reads the listing of a pass and only deletes: what was moved to an earlier place of the walk is created
/// there before its old place is reached, and a full target has no space for both.
pub(crate) fn prune(tree: &Tree, up: &mut Reader) -> Result<(), Error> {
    let mut current: Option<Present> = None;
    loop {
        match next_message(up)? {
            SourceMessage::Listing(listing) => {
                let path = TreePath::parse(&listing.path)?;
                refuse_journal(&path)?;
                if listing.own.is_some() {
                    current = match Present::open(tree, &path) {
                        Ok(present) => Some(present),
                        // The pass will create it.
                        Err(errno) if is_gone(errno) => None,
                        Err(errno) => return Err(Error::tree("opening directory", &path)(errno)),
                    };
                }
                let Some(present) = current.as_mut().filter(|present| present.path == path) else {
                    continue;
                };
                for entry in listing.entries {
                    present.prune(tree, &RawEntry::parse(&entry)?)?;
                }
                if listing.last {
                    present.until(tree, None, |present, name, kind| {
                        present.delete_unlisted(tree, name, kind)
                    })?;
                }
            }
            SourceMessage::Credit(_) => {}
            SourceMessage::ScanEnd(_) => return Ok(()),
            SourceMessage::Same(_) | SourceMessage::Ready(_) | SourceMessage::Failed(_) => {
                return Err(Error::Protocol("it does not list its tree".to_owned()));
            }
        }
    }
}

/// Deletes a name that may be gone already.
pub(crate) fn unlink(directory: BorrowedFd<'_>, name: &Name) -> Result<(), Errno> {
    match rustix::fs::unlinkat(directory, name.as_bytes(), AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        result => result,
    }
}

/// Removes the contents of a directory. No descriptor is held across levels, however deep.
fn empty_directory(tree: &Tree, path: &TreePath) -> Result<(), Errno> {
    loop {
        let directory = tree.directory_to_change(path)?;
        let Names { names, .. } = names(directory.as_fd(), None, NAMES_AT_ONCE, |_, _| true)?;
        if names.is_empty() {
            return Ok(());
        }
        let mut below = Vec::new();
        for (name, kind) in names {
            if kind != FileType::Directory {
                unlink(directory.as_fd(), &name)?;
            } else if below.len() < SUBDIRECTORIES {
                below.push(name);
            }
        }
        drop(directory);
        for name in below {
            remove_directory(tree, &path.child(&name).map_err(|_| Errno::NAMETOOLONG)?)?;
        }
    }
}

/// Removes a directory and its contents.
fn remove_directory(tree: &Tree, path: &TreePath) -> Result<(), Errno> {
    empty_directory(tree, path)?;
    let cut = path.as_bytes().iter().rposition(|byte| *byte == b'/');
    let (parent, name) = match cut.and_then(|cut| path.as_bytes().split_at_checked(cut)) {
        Some((parent, name)) => (parent, name.get(1..).unwrap_or_default()),
        None => (&[][..], path.as_bytes()),
    };
    let parent = tree.directory(&TreePath::parse(parent).map_err(|_| Errno::INVAL)?)?;
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
}

/// Deletes links to inodes that have no other name any more: they would take space. This is done while their directory is
/// read, because to look at millions of inodes once more takes long. If a file system then leaves out names, the next pass
/// deletes them.
pub(crate) fn sweep(links: &OwnedFd) -> Result<(), Errno> {
    let is_last = |name: &Name| {
        let status = At::Child(links.as_fd(), name).status();
        status.is_ok_and(|status| status.stx_nlink == 1)
    };
    let mut swept = Ok(());
    names(links.as_fd(), None, 1, |name, _| {
        if let (Ok(()), Ok(name)) = (swept, Name::parse(name))
            && is_last(&name)
        {
            swept = unlink(links.as_fd(), &name);
        }
        false
    })?;
    swept
}

#[cfg(test)]
mod tests {
    use std::{fs, mem::MaybeUninit, path::Path};

    use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

    use super::*;

    /// How often a directory is opened: equal events that follow each other are one.
    fn opened(directory: &Path, act: impl FnOnce()) -> usize {
        let watch = inotify::init(CreateFlags::NONBLOCK).unwrap();
        let flags = WatchFlags::OPEN | WatchFlags::CLOSE_NOWRITE;
        inotify::add_watch(&watch, directory, flags).unwrap();
        act();
        let mut buffer = [MaybeUninit::uninit(); 1024];
        let mut events = Reader::new(watch, &mut buffer);
        let mut opened = 0;
        loop {
            match events.next() {
                Ok(event) => {
                    let is_own = event.file_name().is_none();
                    opened += usize::from(is_own && event.events().contains(ReadFlags::OPEN));
                }
                Err(Errno::WOULDBLOCK) => return opened,
                Err(errno) => panic!("{errno}"),
            }
        }
    }

    /// Reading it again for each few thousand names would take a time that grows with the square of their number.
    #[test]
    fn a_directory_is_not_read_again_for_thousands_of_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for (directory, count) in [("links", NAMES_AT_ONCE + 5000), ("deleted", 5000)] {
            fs::create_dir(at(directory)).unwrap();
            for number in 0..count {
                fs::write(at(directory).join(number.to_string()), "").unwrap();
            }
        }
        for number in (0..5000).step_by(2) {
            let link = at("links").join(number.to_string());
            fs::hard_link(link, at(&number.to_string())).unwrap();
        }
        let links = OwnedFd::from(fs::File::open(at("links")).unwrap());
        assert_eq!(opened(&at("links"), || sweep(&links).unwrap()), 1);
        assert_eq!(fs::read_dir(at("links")).unwrap().count(), 2500);

        let (tree, path) = (
            Tree::open(folder.path()).unwrap(),
            TreePath::parse(b"deleted").unwrap(),
        );
        // Once more to see that nothing is left.
        let delete = || empty_directory(&tree, &path).unwrap();
        assert_eq!(opened(&at("deleted"), delete), 2);
        assert_eq!(fs::read_dir(at("deleted")).unwrap().count(), 0);
    }
}
