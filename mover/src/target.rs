//! The target of a move: requests the source's tree, pass by pass, and makes its own equal to it. The target
//! drives; the source only answers.

use std::{
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::Duration,
};

use crate::{
    apply::ReceiveState,
    clock::{self, LONGEST_WRITE},
    credentials::MoveId,
    entry::Inode,
    error::Error,
    journal::{Changes, Journal, JournalWriter, Line, Lines, OldJournal},
    lanes::{Reader, TargetLanes},
    ledger::{Committer, Ledger},
    link::{Link, next_message, target_message},
    loss::{LossKind, Losses},
    message::{Begin, Known, KnownDirectory, RawEntry, Ready, ScanEnd, SourceMessage, TargetMessage},
    path::TreePath,
    plan::{Planner, Totals, Walk},
    present::{prune, sweep},
    session::{ControlLane, SessionStatus, lock},
    source::KNOWN_FRAMES_IN_FLIGHT,
    tree::{At, Capacity, Tree},
};

/// Known directories are sent in frames of about this size.
const KNOWN: usize = 32 << 10;
/// Another file in the directory of the journal: attributes of directories, for the end of a pass.
const DIRECTORIES: &str = "directories";

/// The target's volume and journal.
pub struct Target {
    root: PathBuf,
    pub(crate) tree: Arc<Tree>,
    pub(crate) journal: Journal,
    longest_write: Duration,
    /// The path of the last write for which there was no space.
    last_full: Option<TreePath>,
    /// Whether there was no space for the journal.
    journal_full: bool,
    /// Whether there was no space for either.
    full: bool,
}

/// The options of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassOptions {
    /// No process writes to the source any more: a change is an error.
    pub last: bool,
    /// Read all content again, whatever the stamps are.
    pub reread: bool,
}

/// The result of a pass.
#[derive(Clone, Debug, Default)]
pub struct PassReport {
    /// The number of the pass of this move.
    pub pass: u32,
    /// Whether unchanged files were recognised by their stamps; otherwise all were read.
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
    /// Names and directories that the pass before found in another state, or not at all; where stamps are not reliable,
    /// only names that came, went, or are of another kind. If there are none, the tree was as it is here between both passes:
    /// then no name was missed because it was moved from a directory that was not read yet to one that was.
    pub changed: u64,
    /// Files that changed while they were read, or were deleted meanwhile.
    pub unsteady: u64,
    /// Whether the source itself has dialled, see [`Progress::is_direct`].
    pub direct: bool,
    /// What cannot be copied of the tree, including parts that are unchanged since the last pass: kind,
    /// number of names, first name.
    pub losses: Vec<(LossKind, u64, TreePath)>,
    /// Whether the source sees attributes of the namespace `trusted`: otherwise they are not counted.
    pub sees_trusted: bool,
}

impl Target {
    /// Opens the volume and its journal.
    pub fn open(root: &Path, id: &MoveId) -> Result<Self, Error> {
        let tree = Tree::open(root).map_err(Error::tree("opening the target", &TreePath::root()))?;
        Ok(Self {
            root: root.to_owned(),
            tree: Arc::new(tree),
            journal: Journal::new(root, id),
            longest_write: LONGEST_WRITE,
            last_full: None,
            journal_full: false,
            full: false,
        })
    }

    /// Sets the longest duration of a `write()`. For tests and benchmarks, which cannot wait for
    /// [`LONGEST_WRITE`] until their files count as settled.
    #[must_use]
    pub fn with_longest_write(self, longest_write: Duration) -> Self {
        Self {
            longest_write,
            ..self
        }
    }

    fn remember_full(&mut self, error: &Error) {
        self.full |= error.is_full();
        match error {
            Error::Full { path, .. } => self.last_full = Some(path.clone()),
            error => self.journal_full |= error.is_full(),
        }
    }

    /// If the disk has no space for the journal either, no pass would get to the deletion of files that the
    /// source does not have any more. The journal may be lost, and the file that did not fit is sent again.
    fn free_space(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.journal_full) {
            return Ok(());
        }
        self.journal.clear().map_err(Error::Journal)?;
        let Some(path) = self.last_full.take() else {
            return Ok(());
        };
        // Another kind of entry has no content.
        if let Ok(file) = self.tree.file_to_change(&path)
            && file.metadata().is_ok_and(|found| found.is_file())
        {
            file.set_len(0).map_err(Error::file("shortening", &path))?;
        }
        Ok(())
    }

    /// Begins a session with a source.
    pub fn session(&mut self, lanes: TargetLanes) -> Session<'_> {
        let link = Link::new(lanes, Some(Arc::clone(&self.tree)));
        Session { target: self, link }
    }

    /// Deletes the journal; the volume is then equal to the source. If the process is killed meanwhile, it can be called
    /// again. After it, a move of the same uid would hash everything again, and nothing is left to finish.
    pub fn finish(self) -> Result<(), Error> {
        if !self.journal.exists() {
            return Ok(());
        }
        if self.journal.is_unfinished() {
            return Err(Error::Journal(std::io::Error::other(
                "the last pass is not complete",
            )));
        }
        let own = self.journal.root().map_err(Error::Journal)?;
        self.journal.remove().map_err(Error::Journal)?;
        let root = TreePath::root();
        if let Some(own) = own {
            let fd = At::Fd(self.tree.root());
            fd.set_attributes(&own)
                .map_err(Error::tree("setting attributes of", &root))?;
        }
        self.tree.sync().map_err(Error::tree("synchronising", &root))
    }

    /// The path of the volume.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }
}

/// The progress of a session.
#[derive(Clone)]
pub struct Progress(Arc<ReceiveState>);

impl Progress {
    pub(crate) fn of(state: &Arc<ReceiveState>) -> Self {
        Self(Arc::clone(state))
    }

    /// For a device, the number of bytes that are equal on both sides. For a tree only the received bytes
    /// show the progress.
    #[must_use]
    pub fn settled_bytes(&self) -> Option<u64> {
        self.0.settled()
    }

    /// Bytes of content that have arrived in this session, before compression.
    #[must_use]
    pub fn received_bytes(&self) -> u64 {
        self.0.received()
    }

    /// Whether the source itself has dialled, not a client that forwards a port.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.0.is_direct()
    }

    /// Bytes in use in the source's file system, which may be more than its tree; zero while that is
    /// unknown. Before the first pass is complete, there is no better estimate.
    #[must_use]
    pub fn expected_bytes(&self) -> u64 {
        self.0.expected()
    }
}

/// A session with a source.
pub struct Session<'t> {
    target: &'t mut Target,
    link: Link,
}

impl Session<'_> {
    /// One pass over the source's tree: afterwards the target is equal to the source at the time when each
    /// file was read, on disk and in the journal. After an error the session has ended; another one
    /// continues with what has reached the disk.
    pub fn pass(&mut self, options: PassOptions) -> Result<PassReport, Error> {
        let result = self.try_pass(options);
        result.map_err(|error| {
            let error = self.link.fail(error);
            self.target.remember_full(&error);
            error
        })
    }

    /// The progress of a pass, for other threads.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress::of(&self.link.state)
    }

    /// Ends the session.
    pub fn end(mut self) {
        self.link.end();
    }

    /// Recovers the journal, after making space if the last attempt had none.
    fn prepare(&mut self) -> Result<(), Error> {
        self.target.free_space()?;
        self.target.journal.make().map_err(Error::Journal)?;
        self.target.journal.forget_differing().map_err(Error::Journal)?;
        if self.target.full {
            self.prune()?;
            self.target.full = false;
        }
        self.target.journal.recover().map_err(Error::Journal)
    }

    /// Deletes what the source does not have any more, before a pass creates anything. Everything is listed
    /// again afterwards; the content of files that stay is known.
    fn prune(&mut self) -> Result<(), Error> {
        let Self { target, link } = self;
        target.journal.note_removal().map_err(Error::Journal)?;
        let last = Known {
            last: true,
            ..Known::default()
        };
        let begin = Begin {
            only_data: true,
            ..Begin::default()
        };
        for message in [TargetMessage::Begin(begin), TargetMessage::Known(last)] {
            link.down.send(&target_message(message), true)?;
        }
        let ready = link.ready()?;
        if ready.device_size > 0 {
            return Err(Error::Protocol("its volume is a device".to_owned()));
        }
        prune(&target.tree, &mut link.up)?;
        let links = target.journal.links().map_err(Error::Journal)?;
        sweep(&links).map_err(Error::tree("forgetting links in", &TreePath::root()))
    }

    /// Begins a pass. The totals have what the root does not get of the source's root.
    fn begin(&mut self, pass: u32) -> Result<(Ready, Totals), Error> {
        let Self { target, link } = self;
        let has_nocow = target.tree.has_nocow();
        let begin = Begin {
            pass,
            ignores_nocow: !has_nocow,
            only_data: false,
        };
        link.down
            .send(&target_message(TargetMessage::Begin(begin)), true)?;
        let ready = link.ready()?;
        if ready.device_size > 0 {
            return Err(Error::Protocol("its volume is a device".to_owned()));
        }
        fits(&ready, &target.tree)?;
        let mut totals = Totals::default();
        // Before anything is created, which inherits it.
        if ready.nocow && has_nocow && target.tree.set_nocow().is_err() {
            totals.losses.note(LossKind::Flags, 1, &TreePath::root());
        }
        Ok((ready, totals))
    }

    fn try_pass(&mut self, options: PassOptions) -> Result<PassReport, Error> {
        self.prepare()?;
        let before = self.target.journal.read().map_err(Error::Journal)?;
        let (header, lines) = before.unzip();
        let pass = header.as_ref().map_or(0, |header| header.pass) + 1;
        let received = self.link.state.received();
        let (ready, totals) = self.begin(pass)?;
        let journal = &self.target.journal;
        if header.is_none() && journal.verified() > 0 {
            // Passes are counted from the beginning again.
            journal.set_verified(0).map_err(Error::Journal)?;
        }
        let clock = ready.clock;
        let by_stamps = ready.stamps_count
            && !options.reread
            && header
                .and_then(|header| header.clock)
                .is_some_and(|before| clock::went_on(&before, &clock));

        let ledger = Ledger::default();
        let mut writer = journal.write(pass, clock.clone()).map_err(Error::Journal)?;
        let credit = Credit::new();
        let (status, tree) = (&*self.link.status, &*self.target.tree);
        let groups = journal.links().map_err(Error::Journal)?;
        let mut planner = Planner {
            tree: &self.target.tree,
            journal,
            state: &self.link.state,
            ledger: &ledger,
            status,
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
            totals,
        };
        let up = &mut self.link.up;
        let down = &self.link.down;
        let (end, counts) = thread::scope(|scope| {
            scope.spawn(|| {
                if let Err(error) = send_known(journal, by_stamps, down, &credit, status) {
                    status.fail(error);
                }
            });
            let committer = scope.spawn(|| {
                let committer = Committer::of_tree(tree, &ledger, pass);
                let counts = committer.run(Some(&mut writer), status);
                counts.map_err(|error| status.fail(error)).unwrap_or_default()
            });
            let scanned = plan(&mut planner, up, &credit).map_err(|error| status.fail(error));
            ledger.finish();
            credit.close();
            (scanned.unwrap_or_default(), committer.join().unwrap_or_default())
        });
        if status.is_over() {
            return Err(SessionStatus::ended());
        }
        let Planner {
            directories,
            totals,
            links,
            ..
        } = planner;
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
            received_bytes: self.link.state.received() - received,
            deleted: totals.deleted,
            changed: totals.changed + totals.deleted,
            unsteady: counts.unsteady + end.vanished,
            direct: self.link.state.is_direct(),
            losses: totals.losses.into_list(),
            sees_trusted: ready.sees_trusted,
        })
    }
}

/// An error if the capacity of the target is less than the source's file system uses, if that holds nothing
/// but its tree. The overhead of file systems differs.
fn fits(ready: &Ready, tree: &Tree) -> Result<(), Error> {
    let capacity = tree
        .capacity()
        .map_err(Error::tree("looking at", &TreePath::root()))?;
    let used = Capacity {
        bytes: ready.used,
        files: ready.own_files,
    };
    let too_small = |what, capacity, needed| {
        Err(Error::TooSmall {
            what,
            capacity,
            needed,
        })
    };
    if used.files == 0 {
        return Ok(());
    }
    if capacity.bytes > 0 && used.bytes - used.bytes / 8 > capacity.bytes {
        return too_small("bytes", capacity.bytes, used.bytes);
    }
    if capacity.files > 0 && used.files > capacity.files {
        return too_small("inodes", capacity.files, used.files);
    }
    Ok(())
}

/// Reads the source's listings until the end of the tree.
fn plan(planner: &mut Planner<'_>, up: &mut Reader, credit: &Credit) -> Result<ScanEnd, Error> {
    let mut open = None;
    loop {
        if !up.has_more() {
            planner.flush()?;
        }
        match next_message(up)? {
            SourceMessage::Listing(listing) => {
                let path = TreePath::parse(&listing.path)?;
                if let Some(own) = listing.own {
                    planner.begin(&path, Inode::try_from(own)?)?;
                    open = Some(path.clone());
                }
                if open.as_ref() != Some(&path) {
                    return Err(Error::Protocol(
                        "it continues a directory that has not begun".to_owned(),
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
            SourceMessage::Same(path) => planner.same(&TreePath::parse(&path)?)?,
            SourceMessage::Credit(more) => credit.add(more),
            SourceMessage::ScanEnd(end) => {
                planner.finish()?;
                return Ok(end);
            }
            SourceMessage::Ready(_) | SourceMessage::Failed(_) => {
                return Err(Error::Protocol("it begins a pass during another one".to_owned()));
            }
        }
    }
}

/// How many frames of known directories the source can receive.
struct Credit {
    left: Mutex<(u32, bool)>,
    changed: Condvar,
}

impl Credit {
    fn new() -> Self {
        Self {
            left: Mutex::new((KNOWN_FRAMES_IN_FLIGHT, false)),
            changed: Condvar::new(),
        }
    }

    fn add(&self, more: u32) {
        let mut left = lock(&self.left);
        left.0 = left.0.saturating_add(more).min(KNOWN_FRAMES_IN_FLIGHT);
        self.changed.notify_all();
    }

    /// The walk is over: no more frames are needed.
    fn close(&self) {
        lock(&self.left).1 = true;
        self.changed.notify_all();
    }

    fn take(&self, status: &SessionStatus) -> bool {
        let mut left = lock(&self.left);
        loop {
            if left.1 || status.is_over() {
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

/// Sends the source the known directories, and their digests.
fn send_known(
    journal: &Journal,
    by_stamps: bool,
    down: &ControlLane,
    credit: &Credit,
    status: &SessionStatus,
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
                if !credit.take(status) {
                    return Ok(());
                }
                size = 0;
                down.send(
                    &target_message(TargetMessage::Known(std::mem::take(&mut known))),
                    true,
                )?;
            }
        }
    }
    known.last = true;
    if credit.take(status) {
        down.send(&target_message(TargetMessage::Known(known)), true)?;
    }
    Ok(())
}

/// Sets the attributes of directories, after the last change in them.
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
