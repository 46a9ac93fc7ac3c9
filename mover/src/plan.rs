//! Decides, entry by entry, what has to be done on the target: compares the source's listing with the
//! journal and the disk. Everything except the content of files is done here at once; content is requested,
//! and [`crate::apply`] writes it.

use std::{
    collections::HashSet,
    fs::File,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize},
    },
    time::Duration,
};

use rustix::{
    fs::{Advice, AtFlags, FileType, Mode, OFlags},
    io::Errno,
};

use crate::{
    apply::{Destination, FileJob, PendingFetch, ReceiveState, complete, create},
    clock,
    entry::{Entry, Hash, Inode, Kind, ListingDigest, Stamp},
    error::Error,
    journal::{Changes, Chunks, Journal, JournalWriter, Line, OldJournal, Record},
    ledger::{Item, Ledger, Slot},
    loss::Losses,
    message::{ClockReading, Fetches, FromTarget, RawFetch, TargetMessage, encode_claims},
    path::{Name, TreePath},
    piece::{CHUNK, FETCH_CHUNKS, chunks_of},
    present::{Present, unlink},
    read::hash_data,
    scan::{is_journal, refuse_journal},
    session::{ControlLane, SessionStatus},
    tree::{At, Tree, file_type, inode_of, is_gone, read_link, type_of},
};

/// Fetches in one message.
const FETCHES: usize = 64;
/// The longest file that is copied: each pass that reads it looks at every MiB of it, also of its holes.
const LONGEST_FILE: u64 = 128 << 40;
/// Maximum number of inodes with several names that are remembered in one pass. For further ones, content
/// may be compared once for each name.
pub(crate) const MAX_SEEN: usize = 1 << 20;

/// One pass over the listings of the source.
pub(crate) struct Planner<'a> {
    pub(crate) tree: &'a Arc<Tree>,
    pub(crate) journal: &'a Journal,
    pub(crate) state: &'a ReceiveState,
    pub(crate) ledger: &'a Ledger,
    pub(crate) status: &'a SessionStatus,
    pub(crate) down: &'a ControlLane,
    pub(crate) old: OldJournal,
    pub(crate) changes: Changes,
    /// Directories whose attributes are set at the end, after the last change in them.
    pub(crate) directories: JournalWriter,
    /// The source's hard links, by its inode numbers.
    pub(crate) links: OwnedFd,
    pub(crate) pass: u32,
    pub(crate) clock: ClockReading,
    /// Whether equal stamps mean that nothing changed since the last pass.
    pub(crate) use_stamps: bool,
    /// Whether the same will apply in the next pass.
    pub(crate) stamps_count: bool,
    /// See [`clock::LONGEST_WRITE`].
    pub(crate) longest_write: Duration,
    pub(crate) walk: Walk,
    pub(crate) totals: Totals,
}

/// The position of the walk.
#[derive(Default)]
pub(crate) struct Walk {
    current: Option<Current>,
    /// A directory whose listing is ignored until its end.
    missed: Option<TreePath>,
    /// The last directory and those above it, and whether this pass has listed them or misses them.
    above: Vec<(TreePath, bool)>,
    seen: HashSet<u64>,
    fetches: Vec<RawFetch>,
    buffer: Vec<u8>,
}

/// The sums of a pass.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    pub(crate) fetched_files: u64,
    pub(crate) deleted: u64,
    /// Names and directories that are not as in the journal.
    pub(crate) changed: u64,
    /// For all directories, including those that are unchanged since the last pass.
    pub(crate) losses: Losses,
}

struct Current {
    present: Present,
    digest: ListingDigest,
    /// Whether its own stamp will show changes; only then its digest is sent.
    settled: bool,
    last: Option<Name>,
    old: bool,
}

/// The role of an entry with several names.
enum Role {
    /// Its content is compared under this name.
    Owner,
    /// The content is compared under another name.
    Member,
}

impl Planner<'_> {
    /// A directory that is equal to the journal.
    pub(crate) fn same(&mut self, path: &TreePath) -> Result<(), Error> {
        self.enter(path, false)?;
        let unknown = || Error::Protocol("it reports an unknown directory as unchanged".to_owned());
        if !self.use_stamps || !self.old.seek(path)? {
            return Err(unknown());
        }
        // The directory was moved away and back while its parent was listed, and deleted here in between.
        if self.changes.has_removed()
            && let Err(errno) = self.tree.directory(path)
            && is_gone(errno)
        {
            return self.miss(path, true, errno);
        }
        let Some(own) = self.old.own() else {
            return Err(unknown());
        };
        self.push(Item::Directory {
            path: path.clone(),
            own,
        })?;
        while let Some(record) = self.old.next_record()? {
            self.count(&record.entry);
            self.push(Item::Kept(record))?;
        }
        let end = self.old.end.take().ok_or_else(unknown)?;
        if end.digest.is_none() {
            return Err(unknown());
        }
        self.lose(&end.losses);
        self.push(Item::End {
            digest: end.digest,
            touched: end.touched,
            losses: end.losses,
        })
    }

    /// The beginning of a directory's listing.
    pub(crate) fn begin(&mut self, path: &TreePath, own: Inode) -> Result<(), Error> {
        self.enter(path, true)?;
        if !own.is_directory() {
            return Err(Error::Protocol(
                "it lists something that is not a directory".to_owned(),
            ));
        }
        let old = self.old.seek(path)?;
        let was = self.old.directory.as_ref().filter(|_| old).map(|(_, was)| was);
        let is_same = was.is_some_and(|was| !self.stamps_count || *was == own);
        self.totals.changed += u64::from(!is_same);
        self.changes.directory(path).map_err(Error::Journal)?;
        let present = match Present::open(self.tree, path) {
            Err(errno) if is_gone(errno) && !path.is_root() => {
                self.walk.missed = Some(path.clone());
                return self.miss(path, old, errno);
            }
            Err(errno) => return Err(Error::tree("opening directory", path)(errno)),
            Ok(present) => present,
        };
        let line = Line::Directory {
            path: path.clone(),
            own: own.clone(),
        };
        self.directories.put(&line).map_err(Error::Journal)?;
        self.directories
            .put(&Line::End {
                digest: None,
                touched: 0,
                losses: Losses::default(),
            })
            .map_err(Error::Journal)?;
        let digest = ListingDigest::of(&own.stamp);
        let settled = self.settled(&own.stamp);
        self.push(Item::Directory {
            path: path.clone(),
            own,
        })?;
        self.walk.current = Some(Current {
            present,
            digest,
            settled,
            last: None,
            old,
        });
        Ok(())
    }

    /// A directory that does not exist here. It was created, moved, or took the place of a file after the directory above
    /// was listed, and the next pass copies it. Otherwise another client has deleted it here: that is an error, and the
    /// next pass hashes everything, as the directory above may never be listed again.
    fn miss(&mut self, path: &TreePath, is_recorded: bool, errno: Errno) -> Result<(), Error> {
        let mut above = self.walk.above.iter_mut().rev();
        let own = above.next();
        if is_recorded && above.next().is_some_and(|(_, listed)| !*listed) {
            self.journal.note_difference().map_err(Error::Journal)?;
            return Err(Error::tree("opening directory", path)(errno));
        }
        if let Some((_, listed)) = own {
            *listed = true;
        }
        self.push(Item::Missed(path.clone()))
    }

    fn enter(&mut self, path: &TreePath, listed: bool) -> Result<(), Error> {
        refuse_journal(path)?;
        if self.walk.current.is_some()
            || self.walk.missed.is_some()
            || self.walk.above.last().is_some_and(|(last, _)| path <= last)
        {
            return Err(Error::Protocol("it lists directories out of order".to_owned()));
        }
        if self.walk.above.is_empty() && !path.is_root() {
            return Err(Error::Protocol("it does not begin with the root".to_owned()));
        }
        let is_other = |(above, _): &mut (TreePath, bool)| !path.is_below(above);
        while self.walk.above.pop_if(is_other).is_some() {}
        self.walk.above.push((path.clone(), listed));
        Ok(())
    }

    /// The current directory, if it is this one.
    fn take_current(&mut self, path: &TreePath) -> Option<Current> {
        let current = self.walk.current.take();
        current.filter(|current| current.present.path == *path)
    }

    /// The next entry of the current directory.
    pub(crate) fn entry(&mut self, path: &TreePath, entry: Entry) -> Result<(), Error> {
        if self.walk.missed.as_ref() == Some(path) {
            return Ok(());
        }
        let Some(mut current) = self.take_current(path) else {
            return Err(Error::Protocol(
                "it lists entries without their directory".to_owned(),
            ));
        };
        if current.last.as_ref().is_some_and(|last| entry.name <= *last)
            || is_journal(path, entry.name.as_bytes())
        {
            return Err(Error::Protocol(
                "it lists names that are out of order, or not part of a volume".to_owned(),
            ));
        }
        current.digest.add(&entry);
        self.count(&entry);
        let old = if current.old {
            self.old.record(self.journal, &entry.name)?
        } else {
            None
        };
        let is_same = old.as_ref().is_some_and(|Record { entry: was, .. }| {
            *was == entry || (!self.stamps_count && was.inode.kind == entry.inode.kind)
        });
        self.totals.changed += u64::from(!is_same);
        let present = self.present_until(&mut current, Some(&entry.name))?;
        current.last = Some(entry.name.clone());
        self.decide(&current, entry, old, present)?;
        self.walk.current = Some(current);
        Ok(())
    }

    /// The end of the current directory.
    pub(crate) fn end(&mut self, path: &TreePath, losses: Losses) -> Result<(), Error> {
        if self.walk.missed.take_if(|missed| missed == path).is_some() {
            return Ok(());
        }
        let Some(mut current) = self.take_current(path) else {
            return Err(Error::Protocol(
                "it ends a directory that has not begun".to_owned(),
            ));
        };
        self.present_until(&mut current, None)?;
        if current.old {
            self.old.skip(self.journal)?;
        }
        let digest = Some(current.digest.finish()).filter(|_| current.settled);
        self.lose(&losses);
        self.push(Item::End {
            digest,
            touched: self.pass,
            losses,
        })
    }

    /// The walk is over.
    pub(crate) fn finish(&mut self) -> Result<(), Error> {
        let is_within = self.walk.current.is_some() || self.walk.missed.is_some();
        if is_within || self.walk.above.is_empty() {
            return Err(Error::Protocol(
                "its listing ends in the middle of a directory".to_owned(),
            ));
        }
        self.flush()
    }

    /// Deletes the entries on disk before this name that are not listed; returns what exists under the name.
    fn present_until(
        &mut self,
        current: &mut Current,
        until: Option<&Name>,
    ) -> Result<Option<FileType>, Error> {
        let tree = self.tree;
        current.present.until(tree, until, |present, name, kind| {
            self.deleting(kind)?;
            present.delete_unlisted(tree, name, kind)
        })
    }

    fn deleting(&mut self, kind: FileType) -> Result<(), Error> {
        self.totals.deleted += 1;
        if kind == FileType::Directory {
            self.changes.removal().map_err(Error::Journal)?;
        }
        Ok(())
    }

    fn decide(
        &mut self,
        current: &Current,
        entry: Entry,
        old: Option<Record>,
        present: Option<FileType>,
    ) -> Result<(), Error> {
        let path = current.present.path.child(&entry.name)?;
        let wanted = type_of(&entry.inode.kind);
        let present = match present {
            Some(kind) if kind != wanted => {
                self.deleting(kind)?;
                current.present.delete(self.tree, &entry.name, kind)?;
                None
            }
            present => present,
        };
        let is_recorded = old.is_some();
        let old = old.filter(|old| present.is_some() && type_of(&old.entry.inode.kind) == wanted);
        if entry.inode.is_directory() {
            if present.is_none() {
                rustix::fs::mkdirat(&current.present.directory, entry.name.as_bytes(), Mode::RWXU)
                    .map_err(clash("creating directory", &path))?;
            }
            return self.push(Item::Kept(Record {
                entry,
                clean: true,
                content: None,
                touched: self.pass,
            }));
        }
        if let Some(old) = old
            .as_ref()
            .filter(|old| self.use_stamps && old.clean && old.entry == entry)
        {
            return self.push(Item::Kept(old.clone()));
        }
        // The record may be that of another inode, which was here before and may be moved back.
        if is_recorded {
            self.changes
                .name(&current.present.path, &entry.name)
                .map_err(Error::Journal)?;
        }
        let (present, role) = self.link(current, &path, &entry, old.as_ref(), present.is_some())?;
        let old = old.filter(|_| present);
        match (role, &entry.inode.kind) {
            (Role::Member, _) => {
                let clean = self.settled(&entry.inode.stamp);
                self.push(Item::Kept(Record {
                    entry,
                    clean,
                    content: None,
                    touched: self.pass,
                }))
            }
            (Role::Owner, Kind::File) => self.file(current, &path, &entry, old.as_ref(), present),
            (Role::Owner, _) => {
                self.special(current, &path, &entry, present)?;
                let clean = self.settled(&entry.inode.stamp);
                self.push(Item::Kept(Record {
                    entry,
                    clean,
                    content: None,
                    touched: self.pass,
                }))
            }
        }
    }

    /// Links the names of one inode to one inode here, too, and no others. Returns whether something exists
    /// under this name now, and the role of the name.
    fn link(
        &mut self,
        current: &Current,
        path: &TreePath,
        entry: &Entry,
        old: Option<&Record>,
        present: bool,
    ) -> Result<(bool, Role), Error> {
        let Entry { name, inode } = entry;
        let failed = |errno| Error::tree("linking", path)(errno);
        let directory = current.present.directory.as_fd();
        let same_inode = old.is_some_and(|old| old.entry.inode.stamp.ino == inode.stamp.ino);
        let status = if present {
            Some(At::Child(directory, name).status().map_err(failed)?)
        } else {
            None
        };
        if !inode.linked {
            let Some(status) = status.filter(|status| status.stx_nlink > 1) else {
                return Ok((present, Role::Owner));
            };
            if same_inode {
                // The other names of the inode do not exist at the source any more, or belong to other inodes; the same
                // will be done here. So the inode is the only one left in its group.
                let group = number(inode.stamp.ino)?;
                let of_group = At::Child(self.links.as_fd(), &group).status();
                if of_group.is_ok_and(|other| other.stx_ino == status.stx_ino) {
                    unlink(self.links.as_fd(), &group).map_err(failed)?;
                }
                return Ok((true, Role::Owner));
            }
            self.replace(directory, path, name)?;
            return Ok((false, Role::Owner));
        }
        let group = number(inode.stamp.ino)?;
        let mut of_group = At::Child(self.links.as_fd(), &group).status().ok();
        // The source has deleted that inode, and reused its number for another one.
        if let Some(other) = &of_group
            && (file_type(other) != type_of(&inode.kind)
                || !is_such(self.links.as_fd(), &group, &inode.kind).map_err(failed)?)
        {
            unlink(self.links.as_fd(), &group).map_err(failed)?;
            of_group = None;
        }
        let first = self.walk.seen.len() >= MAX_SEEN || self.walk.seen.insert(inode.stamp.ino);
        if let Some(of_group) = of_group {
            if status
                .as_ref()
                .is_none_or(|status| status.stx_ino != of_group.stx_ino)
            {
                if present {
                    self.replace(directory, path, name)?;
                }
                let none = AtFlags::empty();
                rustix::fs::linkat(&self.links, group.as_bytes(), directory, name.as_bytes(), none)
                    .map_err(clash("linking", path))?;
            }
            return Ok((true, if first { Role::Owner } else { Role::Member }));
        }
        let shared = status.is_some_and(|status| status.stx_nlink > 1);
        let is_other =
            present && ((shared && !same_inode) || !is_such(directory, name, &inode.kind).map_err(failed)?);
        if is_other {
            self.replace(directory, path, name)?;
        }
        if !present || is_other {
            if inode.is_file() {
                create(directory, name).map_err(clash("creating", path))?;
            } else {
                self.special(current, path, entry, false)?;
            }
        }
        rustix::fs::linkat(
            directory,
            name.as_bytes(),
            &self.links,
            group.as_bytes(),
            AtFlags::empty(),
        )
        .map_err(failed)?;
        Ok((true, Role::Owner))
    }

    /// Deletes a name to create another inode there. If that is recorded, so is on disk that it does not match
    /// the journal any more.
    fn replace(&mut self, directory: BorrowedFd<'_>, path: &TreePath, name: &Name) -> Result<(), Error> {
        self.changes.sync().map_err(Error::Journal)?;
        unlink(directory, name).map_err(Error::tree("replacing", path))
    }

    /// A link, pipe, socket or device.
    fn special(
        &mut self,
        current: &Current,
        path: &TreePath,
        entry: &Entry,
        present: bool,
    ) -> Result<(), Error> {
        let Entry { name, inode } = entry;
        let directory = current.present.directory.as_fd();
        let failed = |errno| Error::tree("creating", path)(errno);
        if !present || !is_such(directory, name, &inode.kind).map_err(failed)? {
            if present {
                self.replace(directory, path, name)?;
            }
            let made = match &inode.kind {
                Kind::Symlink(target) => rustix::fs::symlinkat(&target[..], directory, name.as_bytes()),
                kind => {
                    let (_, device) = kind.detail();
                    let mode = Mode::RUSR | Mode::WUSR;
                    rustix::fs::mknodat(directory, name.as_bytes(), type_of(kind), mode, device)
                }
            };
            made.map_err(clash("creating", path))?;
        }
        At::Child(directory, name).set_attributes(inode).map_err(failed)
    }

    fn file(
        &mut self,
        current: &Current,
        path: &TreePath,
        entry: &Entry,
        old: Option<&Record>,
        present: bool,
    ) -> Result<(), Error> {
        let Stamp { size, .. } = entry.inode.stamp;
        if size > LONGEST_FILE {
            return Err(Error::Unfit {
                path: path.clone(),
                problem: "it is longer than 128 TiB",
            });
        }
        let clean = self.settled(&entry.inode.stamp);
        // Content of a file with several names may have been written under another one since.
        let content_known = old
            .as_ref()
            .filter(|old| old.content.is_some() && !entry.inode.linked && !old.entry.inode.linked);
        let attributes_stand = content_known.is_some_and(|old| {
            let (was, is) = (&old.entry.inode, &entry.inode);
            was.attributes == is.attributes
                && was.stamp.size == is.stamp.size
                && was.stamp.mtime == is.stamp.mtime
        });
        let touched = content_known.map_or(self.pass, |old| old.touched);
        let known = match content_known {
            Some(old) if old.entry.inode.stamp.size > CHUNK as u64 => KnownContent::Chunks,
            Some(old) => KnownContent::Only(old.content),
            None if present => {
                let file = self
                    .tree
                    .file(path, OFlags::RDONLY)
                    .map_err(Error::tree("opening", path))?;
                // After a failed write, the cache has what the disk does not have.
                rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)
                    .map_err(Error::tree("reading", path))?;
                KnownContent::OnDisk(file)
            }
            None => KnownContent::Nothing,
        };
        let (chunks, mut fresh) = (chunks_of(size), !present);
        if fresh || chunks == 0 {
            self.changes.sync().map_err(Error::Journal)?;
        }
        if fresh && chunks != 1 {
            let file =
                create(current.present.directory.as_fd(), &entry.name).map_err(clash("creating", path))?;
            fresh = false;
            if chunks == 0 {
                complete(&file, &entry.inode).map_err(Error::tree("setting attributes of", path))?;
            } else {
                // XFS allocates space after the end of a file in advance, which would fill holes.
                rustix::fs::ftruncate(&file, size).map_err(Error::tree("setting the size of", path))?;
            }
        } else if chunks == 0 {
            let file = self
                .tree
                .file_to_change(path)
                .map_err(Error::tree("opening", path))?;
            complete(&file, &entry.inode).map_err(Error::tree("setting attributes of", path))?;
        }
        let slot = Arc::new(Slot::default());
        let record = Record {
            entry: entry.clone(),
            clean,
            content: None,
            touched,
        };
        if chunks == 0 {
            let content = Some(*blake3::hash(&[]).as_bytes());
            return self.push(Item::Kept(Record {
                content,
                touched: self.pass,
                ..record
            }));
        }
        let stored = (chunks > 1).then(|| Chunks::place(self.journal, path));
        let job = Arc::new(FileJob {
            parent: current.present.path.clone(),
            name: entry.name.clone(),
            path: path.clone(),
            inode: entry.inode.clone(),
            fresh,
            present,
            attributes_stand,
            chunks: stored,
            slot: Arc::clone(&slot),
            ranges_left: AtomicUsize::new(usize::try_from(chunks.div_ceil(FETCH_CHUNKS.into())).unwrap_or(1)),
            wrote: AtomicBool::new(false),
            unsteady: AtomicBool::new(false),
            resized: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        });
        self.totals.fetched_files += 1;
        self.push(Item::Record { record, slot })?;
        let mut first = 0;
        while first < chunks {
            let count = usize::try_from((chunks - first).min(FETCH_CHUNKS.into())).unwrap_or(1);
            let claims = self.claims(&known, path, first, count)?;
            self.fetch(&job, first, claims)?;
            first += count as u64;
        }
        Ok(())
    }

    fn claims(
        &mut self,
        known: &KnownContent,
        path: &TreePath,
        first: u64,
        count: usize,
    ) -> Result<Vec<Option<Hash>>, Error> {
        let mut claims = match known {
            KnownContent::Only(hash) if first == 0 => vec![*hash],
            KnownContent::Nothing | KnownContent::Only(_) => Vec::new(),
            KnownContent::Chunks => {
                let chunks = Chunks::of(self.journal, path).map_err(Error::Journal)?;
                chunks.get(first, count).map_err(Error::Journal)?
            }
            KnownContent::OnDisk(file) => {
                let failed = |errno| Error::tree("reading", path)(errno);
                let size = At::Fd(file.as_fd()).status().map_err(failed)?.stx_size;
                // Zeros that the source has written are sent again: a file that was cut off here is all holes.
                hash_data(file, size, first, count, &mut self.walk.buffer).map_err(failed)?
            }
        };
        claims.resize(count, None);
        Ok(claims)
    }

    fn fetch(&mut self, job: &Arc<FileJob>, first: u64, claims: Vec<Option<Hash>>) -> Result<(), Error> {
        if !self.state.table.has_capacity(claims.len()) {
            self.flush()?;
            while !self.state.table.has_capacity(claims.len()) {
                self.state.table.wait(self.status)?;
            }
        }
        let mut fetch = RawFetch {
            id: 0,
            path: job.path.as_bytes().to_vec(),
            stamp: (&job.inode.stamp).into(),
            same_inode: job.inode.linked,
            first,
            count: u32::try_from(claims.len()).unwrap_or(FETCH_CHUNKS),
            claims: encode_claims(&claims),
        };
        fetch.id = self.state.table.insert(PendingFetch::new(
            Destination::File(Arc::clone(job)),
            first,
            claims,
        ));
        self.walk.fetches.push(fetch);
        if self.walk.fetches.len() >= FETCHES {
            self.flush()
        } else {
            Ok(())
        }
    }

    /// Sends the requests. Before any content can arrive, it is on disk that these files do not match the
    /// journal any more.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        if self.walk.fetches.is_empty() {
            return Ok(());
        }
        self.changes.sync().map_err(Error::Journal)?;
        let fetches = std::mem::take(&mut self.walk.fetches);
        Ok(self.down.send(
            &FromTarget {
                message: Some(TargetMessage::Fetch(Fetches { fetches })),
            },
            true,
        )?)
    }

    fn push(&mut self, item: Item) -> Result<(), Error> {
        if !self.ledger.has_capacity() {
            // Items that are waited for must have been requested.
            self.flush()?;
            self.ledger.wait(self.status)?;
        }
        self.ledger.push(item);
        Ok(())
    }

    fn settled(&self, stamp: &Stamp) -> bool {
        self.stamps_count && clock::settled(stamp.ctime, &self.clock, self.longest_write)
    }

    fn lose(&mut self, losses: &Losses) {
        self.totals.losses.add(losses);
    }

    fn count(&mut self, entry: &Entry) {
        self.totals.entries += 1;
        if entry.inode.is_file() {
            self.totals.bytes += entry.inode.stamp.size;
        }
    }
}

/// What the target knows of a file's content.
enum KnownContent {
    Nothing,
    Only(Option<Hash>),
    Chunks,
    OnDisk(File),
}

/// Whether a symbolic link or device is the expected one.
fn is_such(directory: BorrowedFd<'_>, name: &Name, kind: &Kind) -> Result<bool, Errno> {
    Ok(match kind {
        Kind::Symlink(target) => read_link(directory, name)? == *target,
        Kind::Character(_) | Kind::Block(_) => {
            let status = At::Child(directory, name).status()?;
            inode_of(&status).is_some_and(|there| there.kind == *kind)
        }
        _ => true,
    })
}

fn number(ino: u64) -> Result<Name, Error> {
    Ok(Name::parse(ino.to_string().as_bytes())?)
}

/// The name exists, and did not when the directory was read.
fn clash(doing: &'static str, path: &TreePath) -> impl FnOnce(Errno) -> Error {
    move |errno| match errno {
        Errno::EXIST => Error::CaseClash { path: path.clone() },
        errno => Error::tree(doing, path)(errno),
    }
}
