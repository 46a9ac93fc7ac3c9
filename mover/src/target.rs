//! The target of a move: asks the source for its tree, pass by pass, and makes its own
//! the same. It drives: the source only answers.

use std::{
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::Duration,
};

use rustix::fs::{AtFlags, OFlags};

use crate::{
    apply::Desk,
    clock::{self, LONGEST_WRITE},
    credentials::MoveId,
    entry::Inode,
    error::Error,
    journal::{Changes, Journal, JournalWriter, Line, Lines},
    lanes::{Reader, TargetLanes},
    ledger::{Committer, Ledger},
    link::{Link, asked, hear},
    loss::{LossKind, Losses},
    message::{Asked, Begin, Known, KnownDirectory, RawEntry, Ready, Said, ScanEnd},
    path::TreePath,
    plan::{OldJournal, Planner, Totals, Walk},
    session::{Fate, Shared, lock},
    source::KNOWN_CREDIT,
    tree::{At, Room, Tree, names},
};

/// Known directories are told in frames of about this size.
const KNOWN: usize = 32 << 10;
/// What the folder of the journal holds besides it: attributes of directories, for the
/// end of a pass.
const DIRECTORIES: &str = "directories";

/// The target's volume, and what is remembered of it.
pub struct Target {
    root: PathBuf,
    pub(crate) tree: Arc<Tree>,
    pub(crate) journal: Journal,
    longest_write: Duration,
    /// The last thing that did not fit.
    last_full: Option<TreePath>,
    /// Whether there was no room for the journal, at last.
    no_room: bool,
}

/// What kind of pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassOptions {
    /// Nobody writes to the source any more: whatever changes all the same is an error.
    pub last: bool,
    /// Read all content again, whatever the stamps say.
    pub reread: bool,
}

/// What a pass has come to.
#[derive(Clone, Debug, Default)]
pub struct PassReport {
    /// Which pass of this move.
    pub pass: u32,
    /// Whether unchanged files were told by their stamps; else all were read.
    pub by_stamps: bool,
    /// Names in the tree.
    pub entries: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Files whose content was compared or fetched.
    pub compared_files: u64,
    /// Bytes of content that arrived, before compression.
    pub received_bytes: u64,
    /// Names that were deleted here.
    pub deleted: u64,
    /// Files that changed while they were read, or went away meanwhile.
    pub unsteady: u64,
    /// Whether the source itself had dialled, as [`Progress::is_direct`] says.
    pub direct: bool,
    /// What of the tree cannot be carried over, also where it is as it was in the last pass: kind, how
    /// often, where first.
    pub losses: Vec<(LossKind, u64, TreePath)>,
    /// Whether the source sees attributes of the namespace `trusted`: else it does not count them.
    pub sees_trusted: bool,
}

impl Target {
    /// Opens the volume and its journal.
    pub fn open(root: &Path, id: &MoveId) -> Result<Self, Error> {
        let tree = Tree::open(root).map_err(Error::tree("opening the target", &TreePath::root()))?;
        let journal = Journal::open(root, id).map_err(Error::Journal)?;
        Ok(Self {
            root: root.to_owned(),
            tree: Arc::new(tree),
            journal,
            longest_write: LONGEST_WRITE,
            last_full: None,
            no_room: false,
        })
    }

    /// Believes that no `write()` takes longer than this. For tests and benchmarks, which cannot wait
    /// for [`LONGEST_WRITE`] until what they have made counts as settled.
    #[must_use]
    pub fn with_longest_write(self, longest_write: Duration) -> Self {
        Self {
            longest_write,
            ..self
        }
    }

    fn note(&mut self, error: &Error) {
        match error {
            Error::Full { path, .. } => self.last_full = Some(path.clone()),
            error => self.no_room |= error.is_full(),
        }
    }

    /// On a disk that has no room for the journal either, no pass would get as far as to delete what
    /// the source has no more. The journal may be lost, and what did not fit is sent again.
    fn make_room(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.no_room) {
            return Ok(());
        }
        self.journal.clear().map_err(Error::Journal)?;
        let Some(path) = self.last_full.take() else {
            return Ok(());
        };
        // It need not have been a file.
        if let Ok(file) = self.tree.file(&path, OFlags::WRONLY)
            && file.metadata().is_ok_and(|found| found.is_file())
        {
            file.set_len(0).map_err(Error::file("shortening", &path))?;
        }
        Ok(())
    }

    /// Begins to take content from a source.
    pub fn session(&mut self, lanes: TargetLanes) -> Session<'_> {
        let link = Link::new(lanes, Some(Arc::clone(&self.tree)));
        Session { target: self, link }
    }

    /// Takes the journal away and leaves the volume as the source's. After this, a move of
    /// the same uid would hash everything anew.
    pub fn finish(self) -> Result<(), Error> {
        if self.journal.is_unfinished() {
            return Err(Error::Journal(std::io::Error::other(
                "a pass was begun and not completed",
            )));
        }
        let own = match self.journal.read().map_err(Error::Journal)? {
            Some((_, mut lines)) => match lines.next().map_err(Error::Journal)? {
                Some(Line::Directory { own, .. }) => Some(own),
                _ => None,
            },
            None => None,
        };
        self.journal.remove().map_err(Error::Journal)?;
        let root = TreePath::root();
        if let Some(own) = own {
            let fd = At::Fd(self.tree.root());
            fd.set_attributes(&own)
                .map_err(Error::tree("setting attributes of", &root))?;
        }
        self.tree.sync().map_err(Error::tree("synchronising", &root))
    }

    /// Where the volume is.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }
}

/// How far a session is.
#[derive(Clone)]
pub struct Progress(Arc<Desk>);

impl Progress {
    pub(crate) fn of(desk: &Arc<Desk>) -> Self {
        Self(Arc::clone(desk))
    }

    /// Of a device, how many bytes the pass has made sure to be the same on both sides. Of a tree
    /// only what has arrived tells how far it is.
    #[must_use]
    pub fn settled_bytes(&self) -> Option<u64> {
        self.0.settled()
    }

    /// Bytes of content that have arrived in this session, before compression.
    #[must_use]
    pub fn received_bytes(&self) -> u64 {
        self.0.received()
    }

    /// Whether the source itself has dialled, rather than somebody who forwards a port.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.0.is_direct()
    }

    /// Bytes that the source's file system holds, which may be more than its tree; zero as long as
    /// that is not known. Before the first pass is complete, nobody knows better.
    #[must_use]
    pub fn expected_bytes(&self) -> u64 {
        self.0.expected()
    }
}

/// A source that is connected.
pub struct Session<'t> {
    target: &'t mut Target,
    link: Link,
}

impl Session<'_> {
    /// One pass over the source's tree: afterwards the target is as the source was when
    /// each file was read, on disk, and the journal says so. After an error the session is
    /// over; another one goes on from what has reached the disk.
    pub fn pass(&mut self, options: PassOptions) -> Result<PassReport, Error> {
        let result = self.try_pass(options);
        result.map_err(|error| {
            let error = self.link.give_up(error);
            self.target.note(&error);
            error
        })
    }

    /// Tells how far a pass is, to other threads.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress::of(&self.link.desk)
    }

    /// Lets the source go.
    pub fn end(self) {
        self.link.end();
    }

    fn try_pass(&mut self, options: PassOptions) -> Result<PassReport, Error> {
        self.target.make_room()?;
        let journal = &self.target.journal;
        journal.recover().map_err(Error::Journal)?;
        let (header, lines) = journal.read().map_err(Error::Journal)?.unzip();
        let pass = header.as_ref().map_or(0, |header| header.pass) + 1;
        let received = self.link.desk.received();

        self.link.down.send(&asked(Asked::Begin(Begin { pass })), true)?;
        let ready = self.link.ready()?;
        if ready.device_size > 0 {
            return Err(Error::Protocol("its volume is a device".to_owned()));
        }
        fits(&ready, &self.target.tree)?;
        let clock = ready.clock;
        let by_stamps = ready.stamps_count
            && !options.reread
            && header
                .and_then(|header| header.clock)
                .is_some_and(|before| clock::went_on(&before, &clock));

        let ledger = Ledger::default();
        let mut writer = journal.write(pass, clock.clone()).map_err(Error::Journal)?;
        let credit = Credit::new();
        let (fate, tree) = (&*self.link.fate, &*self.target.tree);
        let groups = journal.links().map_err(Error::Journal)?;
        let mut planner = Planner {
            tree: &self.target.tree,
            journal,
            desk: &self.link.desk,
            ledger: &ledger,
            fate,
            down: &self.link.down,
            old: OldJournal::new(lines),
            changes: Changes::create(journal).map_err(Error::Journal)?,
            directories: journal.scratch(DIRECTORIES).map_err(Error::Journal)?,
            links: groups,
            pass,
            clock,
            use_stamps: by_stamps,
            stamps_count: ready.stamps_count,
            longest_write: self.target.longest_write,
            walk: Walk::default(),
            totals: Totals::default(),
        };
        let up = &mut self.link.up;
        let down = &self.link.down;
        let (end, counts) = thread::scope(|scope| {
            scope.spawn(|| {
                if let Err(error) = tell_known(journal, by_stamps, down, &credit, fate) {
                    fate.fail(error);
                }
            });
            let committer = scope.spawn(|| {
                let committer = Committer::of_tree(tree, &ledger, pass);
                let counts = committer.run(Some(&mut writer), fate);
                counts.map_err(|error| fate.fail(error)).unwrap_or_default()
            });
            let scanned = plan(&mut planner, up, &credit).map_err(|error| fate.fail(error));
            ledger.finish();
            credit.close();
            (scanned.unwrap_or_default(), committer.join().unwrap_or_default())
        });
        if fate.is_over() {
            return Err(Fate::ended());
        }
        let Planner {
            directories,
            mut totals,
            links,
            ..
        } = planner;
        let lost = Losses::parse(&end.losses).map_err(|bad| Error::Protocol(bad.to_string()))?;
        totals.losses.add(&lost);
        set_directories(tree, journal, directories)?;
        sweep(&links).map_err(Error::tree("forgetting links in", &TreePath::root()))?;
        tree.sync()
            .map_err(Error::tree("synchronising", &TreePath::root()))?;
        journal.complete(writer).map_err(Error::Journal)?;

        if options.last && (counts.unsteady > 0 || end.vanished > 0) {
            return Err(Error::Busy {
                path: counts.first_unsteady.unwrap_or_default(),
            });
        }
        Ok(PassReport {
            pass,
            by_stamps,
            entries: totals.entries,
            bytes: totals.bytes,
            compared_files: totals.fetched_files,
            received_bytes: self.link.desk.received() - received,
            deleted: totals.deleted,
            unsteady: counts.unsteady + end.vanished,
            direct: self.link.desk.is_direct(),
            losses: totals.losses.into_list(),
            sees_trusted: ready.sees_trusted,
        })
    }
}

/// Whether the target can have what the source's file system uses, as far as that holds nothing but its
/// tree. How much file systems use for themselves differs.
fn fits(ready: &Ready, tree: &Tree) -> Result<(), Error> {
    let room = tree
        .room()
        .map_err(Error::tree("looking at", &TreePath::root()))?;
    let used = Room {
        bytes: ready.used,
        files: ready.own_files,
    };
    let too_small = |what, room, needed| Err(Error::TooSmall { what, room, needed });
    if used.files == 0 {
        return Ok(());
    }
    if room.bytes > 0 && used.bytes - used.bytes / 8 > room.bytes {
        return too_small("bytes", room.bytes, used.bytes);
    }
    if room.files > 0 && used.files > room.files {
        return too_small("inodes", room.files, used.files);
    }
    Ok(())
}

/// Takes the source's listings until it says that this was the tree.
fn plan(planner: &mut Planner<'_>, up: &mut Reader, credit: &Credit) -> Result<ScanEnd, Error> {
    let mut open = None;
    loop {
        if !up.has_more() {
            planner.flush()?;
        }
        match hear(up)? {
            Said::Listing(listing) => {
                let path = TreePath::parse(&listing.path)?;
                if let Some(own) = listing.own {
                    planner.begin(&path, Inode::try_from(own)?)?;
                    open = Some(path.clone());
                }
                if open.as_ref() != Some(&path) {
                    return Err(Error::Protocol(
                        "it lists a directory it has not begun".to_owned(),
                    ));
                }
                for entry in listing.entries {
                    planner.entry(&path, RawEntry::parse(&entry)?)?;
                }
                if listing.last {
                    planner.end(&path, Losses::parse(&listing.losses)?)?;
                    open = None;
                }
            }
            Said::Same(path) => planner.same(&TreePath::parse(&path)?)?,
            Said::Credit(more) => credit.add(more),
            Said::ScanEnd(end) => {
                planner.finish()?;
                return Ok(end);
            }
            Said::Ready(_) | Said::Failed(_) => {
                return Err(Error::Protocol("it begins a pass during another".to_owned()));
            }
        }
    }
}

/// How many frames of known directories the source can take.
struct Credit {
    left: Mutex<(u32, bool)>,
    changed: Condvar,
}

impl Credit {
    fn new() -> Self {
        Self {
            left: Mutex::new((KNOWN_CREDIT, false)),
            changed: Condvar::new(),
        }
    }

    fn add(&self, more: u32) {
        let mut left = lock(&self.left);
        left.0 = left.0.saturating_add(more).min(KNOWN_CREDIT);
        self.changed.notify_all();
    }

    /// The walk is over: nobody wants more.
    fn close(&self) {
        lock(&self.left).1 = true;
        self.changed.notify_all();
    }

    fn take(&self, fate: &Fate) -> bool {
        let mut left = lock(&self.left);
        loop {
            if left.1 || fate.is_over() {
                return false;
            }
            if left.0 > 0 {
                left.0 -= 1;
                return true;
            }
            let patience = Duration::from_millis(100);
            left = self
                .changed
                .wait_timeout(left, patience)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

/// Tells the source which directories are known, and their digests.
fn tell_known(
    journal: &Journal,
    by_stamps: bool,
    down: &Shared,
    credit: &Credit,
    fate: &Fate,
) -> Result<(), Error> {
    let mut known = Known::default();
    let mut size = 0;
    let lines = if by_stamps {
        journal.read().map_err(Error::Journal)?
    } else {
        None
    };
    if let Some((_, mut lines)) = lines {
        let mut current = TreePath::root();
        while let Some(line) = lines.next().map_err(Error::Journal)? {
            match line {
                Line::Directory { path, .. } => current = path,
                Line::End {
                    digest: Some(digest), ..
                } => {
                    let path = current.as_bytes().to_vec();
                    size += path.len() + 40;
                    known.directories.push(KnownDirectory {
                        path,
                        digest: digest.to_vec(),
                    });
                }
                _ => {}
            }
            if size > KNOWN {
                if !credit.take(fate) {
                    return Ok(());
                }
                size = 0;
                down.send(&asked(Asked::Known(std::mem::take(&mut known))), true)?;
            }
        }
    }
    known.last = true;
    if credit.take(fate) {
        down.send(&asked(Asked::Known(known)), true)?;
    }
    Ok(())
}

/// Sets the attributes of directories, now that nothing in them changes any more.
fn set_directories(tree: &Tree, journal: &Journal, mut written: JournalWriter) -> Result<(), Error> {
    written.sync().map_err(Error::Journal)?;
    drop(written);
    let mut lines: Lines = journal.read_scratch(DIRECTORIES).map_err(Error::Journal)?;
    while let Some(line) = lines.next().map_err(Error::Journal)? {
        let Line::Directory { path, own } = line else {
            continue;
        };
        let failed = |errno| Error::tree("setting attributes of", &path)(errno);
        let directory = tree.directory(&path).map_err(failed)?;
        At::Fd(directory.as_fd()).set_attributes(&own).map_err(failed)?;
    }
    Ok(())
}

/// Forgets inodes that have no other name any more: they would take room.
fn sweep(links: &rustix::fd::OwnedFd) -> rustix::io::Result<()> {
    let mut after = None;
    loop {
        let found = names(links.as_fd(), after.as_ref(), 4096, |_, _| true)?;
        for (name, _) in &found.names {
            if At::Child(links.as_fd(), name).status()?.stx_nlink == 1 {
                rustix::fs::unlinkat(links, name.as_bytes(), AtFlags::empty())?;
            }
        }
        if !found.more {
            return Ok(());
        }
        after = found.names.into_iter().next_back().map(|(name, _)| name);
    }
}
