//! The source of a move: sends the listing of its tree and the requested content. It keeps no state from one
//! session to the next, and writes nothing.

use std::{
    collections::VecDeque,
    fs::File,
    os::fd::AsFd,
    path::Path,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use prost::Message as _;
use rustix::{
    fs::{Advice, FileType, IFlags, OFlags},
    io::Errno,
};

use crate::{
    clock,
    entry::{Entry, Hash, Inode, Kind, ListingDigest},
    error::Error,
    lanes::{PING, Reader, SourceLanes, Writer},
    loss::{LossKind, Losses, sees_trusted},
    message::{
        Begin, FromSource, FromTarget, Listing, RawEntry, Ready, ScanEnd, SourceMessage, TargetMessage,
    },
    path::TreePath,
    read::{Fetch, Outbox, Volume, answer, data_length},
    scan::{Listed, Scan, read},
    session::{ControlLane, SessionStatus, lock},
    throttle::Throttle,
    tree::{
        At, Tree, XattrError, file_in, file_type, is_gone, is_gone_from, lost_flags, open_anywhere,
        read_link, type_of,
    },
    wire::FrameKind,
};

/// How many frames of known directories may be sent in advance; each one that is read allows another.
pub(crate) const KNOWN_FRAMES_IN_FLIGHT: u32 = 8;
/// Maximum number of fetches that are not answered yet.
pub(crate) const MAX_FETCHES: usize = 8192;
/// A listing is sent in parts of about this size.
const LISTING: usize = 96 << 10;
/// A frame of listings waits no longer than this for more.
const FLUSH_AFTER: Duration = Duration::from_millis(20);

/// The volume that is moved: a directory, or a block device (or a file in its place).
pub struct Source {
    volume: Volume,
    stamps_count: bool,
}

impl Source {
    /// Opens the volume, for reading only.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let failed = |errno| Error::tree("opening the source", &TreePath::root())(errno);
        let status = At::Fd(open_anywhere(path, OFlags::PATH).map_err(failed)?.as_fd())
            .status()
            .map_err(failed)?;
        if FileType::from_raw_mode(status.stx_mode.into()) == FileType::Directory {
            let tree = Tree::open(path).map_err(failed)?;
            let stamps_count = clock::stamps_count(tree.root());
            return Ok(Self {
                volume: Volume::Tree(Arc::new(tree)),
                stamps_count,
            });
        }
        let file = open_anywhere(path, OFlags::RDONLY).map_err(failed)?;
        let size = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(failed)?;
        Ok(Self {
            volume: Volume::Device(file, size),
            stamps_count: false,
        })
    }

    /// Answers the target's requests until it ends the session.
    pub fn serve(&self, lanes: SourceLanes, throttle: &Throttle) -> Result<(), Error> {
        let SourceLanes {
            up,
            mut down,
            data,
            cutter,
        } = lanes;
        let status = Arc::new(SessionStatus::new(cutter));
        let up = ControlLane::new(up);
        let queue = Queue::default();
        let pinger = up.keep_alive(&status);
        let is_done = thread::scope(|scope| {
            for lane in data {
                let (status, queue, volume) = (&status, &queue, &self.volume);
                scope.spawn(move || {
                    if let Err(error) = send_data(volume, lane, queue, throttle, status) {
                        status.fail(error);
                    }
                });
            }
            // Also after a failure: until the target has read why, and has ended, too.
            let served = self.listen(scope, &mut down, &up, &queue, &status);
            let is_done = served.map_err(|error| status.fail(error)).is_ok();
            queue.close();
            status.end();
            is_done
        });
        // The thread ends with the session and returns nothing.
        let _ = pinger.join();
        match status.take_failure() {
            // A target that is done closes its connections.
            Some(error) if !(is_done && error.is_cut()) => Err(error),
            _ => Ok(()),
        }
    }

    fn listen<'scope>(
        &'scope self,
        scope: &'scope thread::Scope<'scope, '_>,
        down: &mut Reader,
        up: &Arc<ControlLane>,
        queue: &Queue,
        status: &Arc<SessionStatus>,
    ) -> Result<(), Error> {
        let mut walk: Option<Walking> = None;
        loop {
            let message = FromTarget::decode(down.next_of(FrameKind::Control)?)
                .map_err(|error| Error::Protocol(error.to_string()))?;
            match message
                .message
                .ok_or_else(|| Error::Protocol("it sent an empty message".to_owned()))?
            {
                TargetMessage::Begin(begin) => {
                    if walk
                        .as_ref()
                        .is_some_and(|walk| walk.active.load(Ordering::SeqCst))
                    {
                        return Err(Error::Protocol("it began a pass during another one".to_owned()));
                    }
                    walk = Some(self.begin(scope, &begin, Arc::clone(up), Arc::clone(status)));
                }
                TargetMessage::Known(known) => {
                    let walk = walk
                        .as_ref()
                        .ok_or_else(|| Error::Protocol("no pass is in progress".to_owned()))?;
                    let mut directories = VecDeque::with_capacity(known.directories.len());
                    for directory in known.directories {
                        let digest = Hash::try_from(&directory.digest[..])
                            .map_err(|_| Error::Protocol("a digest has the wrong length".to_owned()))?;
                        directories.push_back((TreePath::parse(&directory.path)?, digest));
                    }
                    match walk.known.try_send((directories, known.last)) {
                        // The walk is over: nothing reads it any more.
                        Ok(()) | Err(mpsc::TrySendError::Disconnected(_)) => {}
                        Err(mpsc::TrySendError::Full(_)) => {
                            return Err(Error::Protocol("it sent more frames than allowed".to_owned()));
                        }
                    }
                }
                TargetMessage::Fetch(fetches) => {
                    for fetch in fetches.fetches {
                        queue.push(fetch.try_into()?)?;
                    }
                }
                TargetMessage::Bye(_) => return Ok(()),
                TargetMessage::Failed(why) => return Err(Error::Peer(why)),
            }
        }
    }

    fn begin<'scope>(
        &'scope self,
        scope: &'scope thread::Scope<'scope, '_>,
        begin: &Begin,
        up: Arc<ControlLane>,
        status: Arc<SessionStatus>,
    ) -> Walking {
        let only_data = begin.only_data;
        let kept = if begin.ignores_nocow {
            IFlags::NOCOW
        } else {
            IFlags::empty()
        };
        let (known, frames) = mpsc::sync_channel(KNOWN_FRAMES_IN_FLIGHT as usize);
        let active = Arc::new(AtomicBool::new(true));
        let walking = Walking {
            known,
            active: Arc::clone(&active),
        };
        scope.spawn(move || {
            let told = match &self.volume {
                Volume::Tree(tree) => TreePass {
                    tree,
                    up: &up,
                    kept,
                    only_data,
                    may_lose_projects: false,
                    vanished: 0,
                }
                .pass(
                    self.stamps_count,
                    KnownDirectories {
                        frames,
                        directories: VecDeque::new(),
                        last: false,
                    },
                ),
                Volume::Device(device, size) => pass_device(&up, device, *size),
            };
            // Before the target learns that the pass is over: it may begin the next one at once.
            active.store(false, Ordering::SeqCst);
            let told = told.and_then(|end| Ok(up.send(&source_message(SourceMessage::ScanEnd(end)), true)?));
            if let Err(error) = told {
                if !error.is_cut() {
                    // If this fails, the target notices that the connection ends.
                    let _ = up.send(&source_message(SourceMessage::Failed(error.to_string())), true);
                }
                status.fail(error);
            }
        });
        walking
    }
}

/// The current or last pass.
struct Walking {
    known: mpsc::SyncSender<(VecDeque<(TreePath, Hash)>, bool)>,
    active: Arc<AtomicBool>,
}

fn source_message(message: SourceMessage) -> FromSource {
    FromSource {
        message: Some(message),
    }
}

fn pass_device(up: &ControlLane, device: &File, size: u64) -> Result<ScanEnd, Error> {
    // Another node may have written since the last pass.
    rustix::fs::fadvise(device, 0, None, Advice::DontNeed)
        .map_err(Error::tree("reading", &TreePath::root()))?;
    let ready = Ready {
        clock: clock::read(),
        stamps_count: false,
        device_size: size,
        used: 0,
        own_files: 0,
        sees_trusted: false,
        nocow: false,
    };
    up.send(&source_message(SourceMessage::Ready(ready)), false)?;
    Ok(ScanEnd::default())
}

/// Sends the target the contents of the tree: one pass.
struct TreePass<'a> {
    tree: &'a Arc<Tree>,
    up: &'a ControlLane,
    /// The flags that are no loss: those that mean nothing at the target, or that the root hands down.
    kept: IFlags,
    /// Whether the sizes of files are listed without their holes.
    only_data: bool,
    /// Whether inodes may have project ids that differ from that of the volume.
    may_lose_projects: bool,
    vanished: u64,
}

impl TreePass<'_> {
    fn pass(mut self, stamps_count: bool, mut known: KnownDirectories) -> Result<ScanEnd, Error> {
        let clock = clock::read();
        self.tree
            .sync()
            .map_err(Error::at_source("synchronising", &TreePath::root()))?;
        let flags =
            lost_flags(self.tree.root()).map_err(Error::tree("reading attributes of", &TreePath::root()))?;
        // The project is that of the whole volume, which its provisioner sets. The target's root gets `NOCOW`, too.
        self.kept |= flags & (IFlags::PROJECT_INHERIT | IFlags::NOCOW);
        self.may_lose_projects = loses_projects(flags, || self.tree.has_projects());
        let used = self.tree.used().unwrap_or_default();
        // For others, such as a share of a server, the numbers may not be those of the tree.
        let is_own = stamps_count && self.tree.is_whole();
        self.up.send(
            &source_message(SourceMessage::Ready(Ready {
                clock,
                stamps_count,
                device_size: 0,
                used: used.bytes,
                own_files: if is_own { used.files } else { 0 },
                sees_trusted: sees_trusted(),
                nocow: flags.contains(IFlags::NOCOW),
            })),
            true,
        )?;

        let threads = thread::available_parallelism().map_or(2, usize::from).min(8);
        let mut scan = Scan::start(Arc::clone(self.tree), threads);
        let mut flushed = Instant::now();
        while let Some(listed) = scan.next(&mut self.vanished)? {
            if !listed.more && known.has(&listed, self.up)? {
                self.vanished += listed.vanished;
                self.up.send(
                    &source_message(SourceMessage::Same(listed.path.as_bytes().to_vec())),
                    false,
                )?;
            } else {
                self.list(listed)?;
            }
            if flushed.elapsed() > FLUSH_AFTER {
                self.up.flush()?;
                flushed = Instant::now();
            }
        }
        Ok(ScanEnd {
            vanished: self.vanished,
        })
    }

    /// Sends all parts of a listing.
    fn list(&mut self, mut listed: Listed) -> Result<(), Error> {
        let path = listed.path.clone();
        let opened = self.tree.directory(&path).map_err(XattrError::from);
        let found = opened.and_then(|directory| {
            let (xattrs, others) = At::Fd(directory.as_fd()).xattrs()?;
            let lost = lost(others, lost_flags(directory.as_fd())? - self.kept);
            Ok((directory, xattrs, lost))
        });
        let (directory, xattrs, lost) = match found {
            Ok(found) => found,
            // Deleted since it was listed; then the next pass lists its parent again.
            Err(error) if is_gone(error.errno) && !path.is_root() => {
                self.vanished += 1;
                return Ok(());
            }
            Err(error) => return Err(error.at(&path)),
        };
        listed.own.attributes.xattrs = xattrs;
        let mut losses = Losses::default();
        lost.for_each(|kind| losses.note(kind, 1, &path));
        if path.is_root() && self.may_lose_projects {
            losses.note(LossKind::Flags, 1, &path);
        }
        let own = (&listed.own).into();
        let mut part = Listing {
            path: path.as_bytes().to_vec(),
            own: Some(own),
            ..Listing::default()
        };
        let mut size = part.encoded_len();
        loop {
            let after = listed.entries.last().map(|entry| entry.name.clone());
            self.vanished += listed.vanished;
            for mut entry in listed.entries {
                if !self.complete(&directory, &path, &mut entry, &mut losses)? {
                    continue;
                }
                let bytes = RawEntry::encode(&entry);
                // Extended attributes of two inodes may be too large for one message.
                if size + bytes.len() > LISTING {
                    self.up
                        .send(&source_message(SourceMessage::Listing(part)), false)?;
                    part = Listing {
                        path: path.as_bytes().to_vec(),
                        ..Listing::default()
                    };
                    size = 0;
                }
                size += bytes.len();
                part.entries.push(bytes);
            }
            if !listed.more {
                break;
            }
            listed = match read(self.tree, &path, after.as_ref()) {
                Ok(listed) => listed,
                Err(errno) if is_gone(errno) && !path.is_root() => {
                    self.vanished += 1;
                    break;
                }
                Err(errno) => return Err(Error::tree("reading", &path)(errno)),
            };
        }
        part.last = true;
        part.losses = losses.encode();
        Ok(self
            .up
            .send(&source_message(SourceMessage::Listing(part)), false)?)
    }

    /// Adds what the walk did not read; false if the entry is gone.
    fn complete(
        &mut self,
        directory: &std::os::fd::OwnedFd,
        path: &TreePath,
        entry: &mut Entry,
        losses: &mut Losses,
    ) -> Result<bool, Error> {
        let Entry { name, inode } = entry;
        if inode.is_directory() {
            return Ok(true);
        }
        match details(directory.as_fd(), name, inode, self.kept, self.only_data) {
            Ok(lost) => {
                for kind in lost {
                    losses.note(kind, 1, &path.child(name)?);
                }
                Ok(true)
            }
            Err(error) if is_gone_from(path, error.errno) => {
                self.vanished += 1;
                Ok(false)
            }
            Err(error) => Err(error.at(&path.child(name)?)),
        }
    }
}

/// Whether inodes may have project ids that no flag shows. If the root hands its project down, the whole volume has one
/// project and one quota.
fn loses_projects(root: IFlags, has_projects: impl FnOnce() -> bool) -> bool {
    !root.contains(IFlags::PROJECT_INHERIT) && has_projects()
}

fn details(
    directory: std::os::fd::BorrowedFd<'_>,
    name: &crate::path::Name,
    inode: &mut Inode,
    kept: IFlags,
    only_data: bool,
) -> Result<impl Iterator<Item = LossKind> + use<>, XattrError> {
    if let Kind::Symlink(target) = &mut inode.kind {
        *target = read_link(directory, name).map_err(|errno| match errno {
            // The path is not a link any more.
            Errno::INVAL => Errno::NOENT,
            errno => errno,
        })?;
    }
    let file = if inode.is_file() {
        file_in(directory, name)?
    } else {
        None
    };
    let at = file
        .as_ref()
        .map_or(At::Child(directory, name), |file| At::Fd(file.as_fd()));
    let (xattrs, others) = at.xattrs()?;
    // Since the walk, another inode may have got the name: the target's may be of a kind that has none of these.
    if !xattrs.is_empty() && file_type(&at.status()?) != type_of(&inode.kind) {
        return Err(Errno::NOENT.into());
    }
    inode.attributes.xattrs = xattrs;
    if only_data && let Some(file) = &file {
        inode.stamp.size = data_length(file.as_fd(), inode.stamp.size)?;
    }
    let flags = file.as_ref().map(|file| lost_flags(file.as_fd())).transpose()?;
    Ok(lost(others, flags.unwrap_or(IFlags::empty()) - kept))
}

/// The kinds of what is lost of an inode with these flags, and maybe with other extended attributes.
fn lost(others: bool, flags: IFlags) -> impl Iterator<Item = LossKind> {
    let kinds = [(others, LossKind::Xattrs), (!flags.is_empty(), LossKind::Flags)];
    kinds
        .into_iter()
        .filter_map(|(is_lost, kind)| is_lost.then_some(kind))
}

/// The directories that the target knows, in the order of the walk.
struct KnownDirectories {
    frames: mpsc::Receiver<(VecDeque<(TreePath, Hash)>, bool)>,
    directories: VecDeque<(TreePath, Hash)>,
    last: bool,
}

impl KnownDirectories {
    /// Whether the target knows this directory in its current state.
    fn has(&mut self, listed: &Listed, up: &ControlLane) -> Result<bool, Error> {
        loop {
            while let Some((path, digest)) = self.directories.front() {
                match path.cmp(&listed.path) {
                    std::cmp::Ordering::Less => {
                        self.directories.pop_front();
                    }
                    std::cmp::Ordering::Equal => return Ok(*digest == digest_of(listed)),
                    std::cmp::Ordering::Greater => return Ok(false),
                }
            }
            if self.last {
                return Ok(false);
            }
            (self.directories, self.last) = self.frames.recv().map_err(|_| SessionStatus::ended())?;
            up.send(&source_message(SourceMessage::Credit(1)), true)?;
        }
    }
}

fn digest_of(listed: &Listed) -> Hash {
    let mut digest = ListingDigest::of(&listed.own.stamp);
    listed.entries.iter().for_each(|entry| digest.add(entry));
    digest.finish()
}

/// Fetches that wait for a data lane.
#[derive(Default)]
struct Queue {
    fetches: Mutex<(VecDeque<Fetch>, bool)>,
    changed: Condvar,
}

enum Next {
    Fetch(Box<Fetch>),
    Nothing,
    Closed,
}

impl Queue {
    fn push(&self, fetch: Fetch) -> Result<(), Error> {
        let mut queue = lock(&self.fetches);
        if queue.0.len() >= MAX_FETCHES {
            return Err(Error::Protocol(
                "it requested more at a time than allowed".to_owned(),
            ));
        }
        queue.0.push_back(fetch);
        drop(queue);
        self.changed.notify_one();
        Ok(())
    }

    fn close(&self) {
        lock(&self.fetches).1 = true;
        self.changed.notify_all();
    }

    fn try_next(&self) -> Next {
        let mut queue = lock(&self.fetches);
        match queue.0.pop_front() {
            _ if queue.1 => Next::Closed,
            Some(fetch) => Next::Fetch(Box::new(fetch)),
            None => Next::Nothing,
        }
    }

    fn wait(&self) {
        let queue = lock(&self.fetches);
        if queue.0.is_empty() && !queue.1 {
            drop(
                self.changed
                    .wait_timeout(queue, PING)
                    .unwrap_or_else(PoisonError::into_inner),
            );
        }
    }
}

fn send_data(
    volume: &Volume,
    mut lane: Writer,
    queue: &Queue,
    throttle: &Throttle,
    status: &SessionStatus,
) -> Result<(), Error> {
    let mut out = Outbox::new(&mut lane, throttle)?;
    let mut buffer = Vec::new();
    while !status.is_over() {
        match queue.try_next() {
            Next::Fetch(fetch) => {
                answer(volume, &fetch, &mut buffer, &mut out)?;
            }
            Next::Nothing => {
                out.send()?;
                out.keep_alive()?;
                queue.wait();
            }
            Next::Closed => return Ok(()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::fs::{XattrFlags, setxattr};

    use super::*;
    use crate::{path::Name, tree::inode_of};

    #[test]
    fn project_ids_are_lost_unless_the_root_hands_its_own_down() {
        for (root, has_projects, lost) in [
            (IFlags::empty(), true, true),
            (IFlags::empty(), false, false),
            (IFlags::PROJECT_INHERIT, true, false),
        ] {
            assert_eq!(loses_projects(root, || has_projects), lost);
        }
    }

    #[test]
    fn attributes_of_an_inode_that_replaced_another_are_not_used() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x");
        std::fs::write(&path, "").unwrap();
        setxattr(&path, "user.a", b"", XattrFlags::empty()).unwrap();
        let (tree, name) = (Tree::open(root.path()).unwrap(), Name::parse(b"x").unwrap());
        let status = At::Child(tree.root(), &name).status().unwrap();
        let mut inode = inode_of(&status).unwrap();
        let losses = |inode: &mut Inode| {
            details(tree.root(), &name, inode, IFlags::empty(), false).map(Iterator::count)
        };
        assert_eq!(losses(&mut inode), Ok(0));
        inode.kind = Kind::Fifo;
        assert_eq!(losses(&mut inode), Err(Errno::NOENT.into()));
    }
}
