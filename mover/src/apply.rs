//! Writes the content that arrives on the data lanes into the target's files, in place. [`crate::plan`]
//! decides which files and ranges are requested; here every piece is checked against that, and every chunk
//! against its hash.

use std::{
    collections::HashMap,
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::FileExt},
    path::PathBuf,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use rustix::{
    fs::{FallocateFlags, Mode, OFlags},
    io::Errno,
};

use crate::{
    block::bytes_in,
    compress::Decoder,
    entry::{Hash, Inode},
    error::Error,
    journal::Chunks,
    lanes::Reader,
    ledger::{Outcome, Slot},
    path::{Name, TreePath},
    piece::{CHUNK, Piece, Pieces, Range, chunk_length, chunks_of, hash_chunk, hash_hole, hash_of_hashes},
    present::unlink,
    session::{SessionStatus, lock},
    source::MAX_FETCHES,
    tree::{At, Tree},
    wire::FrameKind,
};

/// Maximum number of hashes in requests that are not answered yet: 32 bytes for each MiB that is compared.
const MAX_CLAIMS: usize = (4 << 20) / 32;

/// A file that is being updated; done when all its ranges are.
pub(crate) struct FileJob {
    pub(crate) parent: TreePath,
    pub(crate) name: Name,
    pub(crate) path: TreePath,
    /// The inode in the listing.
    pub(crate) inode: Inode,
    /// It does not exist yet, and the first range creates it.
    pub(crate) fresh: bool,
    /// A file existed before, so holes have to be punched.
    pub(crate) present: bool,
    /// Its attributes are right already, unless content is written.
    pub(crate) attributes_stand: bool,
    /// The place of its hashes, if it has more than one chunk. It is not kept open: thousands of files wait at a time, and
    /// containers may have no more than 1024 descriptors.
    pub(crate) chunks: Option<PathBuf>,
    pub(crate) slot: Arc<Slot>,
    pub(crate) ranges_left: AtomicUsize,
    pub(crate) wrote: AtomicBool,
    /// It changed while it was read.
    pub(crate) unsteady: AtomicBool,
    /// Its size changed.
    pub(crate) resized: AtomicBool,
    pub(crate) gone: AtomicBool,
}

/// The destination of content.
pub(crate) enum Destination {
    File(Arc<FileJob>),
    /// A device: its descriptor, and the slot of its range.
    Device(Arc<DeviceJob>),
}

/// A range of a device.
pub(crate) struct DeviceJob {
    pub(crate) device: Arc<File>,
    pub(crate) size: u64,
    pub(crate) chunks: Arc<Chunks>,
    pub(crate) slot: Arc<Slot>,
    /// The hashes of the source.
    pub(crate) hashes: Mutex<Vec<Option<Hash>>>,
}

/// A fetch that is not complete.
pub(crate) struct PendingFetch {
    pub(crate) destination: Destination,
    pub(crate) first: u64,
    state: Mutex<Progress>,
    claims: usize,
}

struct Progress {
    /// The chunks on disk.
    hashes: Vec<Option<Hash>>,
    file: Option<File>,
}

impl PendingFetch {
    pub(crate) fn new(destination: Destination, first: u64, claims: Vec<Option<Hash>>) -> Self {
        let count = claims.len();
        Self {
            destination,
            first,
            state: Mutex::new(Progress {
                hashes: claims,
                file: None,
            }),
            claims: count,
        }
    }

    fn size(&self) -> u64 {
        match &self.destination {
            Destination::File(job) => job.inode.stamp.size,
            Destination::Device(job) => job.size,
        }
    }

    fn resized(&self) {
        if let Destination::File(job) = &self.destination {
            job.resized.store(true, Ordering::Relaxed);
        }
    }

    fn path(&self) -> TreePath {
        match &self.destination {
            Destination::File(job) => job.path.clone(),
            Destination::Device(_) => TreePath::root(),
        }
    }
}

/// All fetches that are not complete.
#[derive(Default)]
pub(crate) struct PendingFetches {
    wanted: Mutex<HashMap<u64, Arc<PendingFetch>>>,
    claims: AtomicUsize,
    smaller: Condvar,
    next: AtomicU64,
}

impl PendingFetches {
    /// Whether another fetch of this many chunks may be sent.
    pub(crate) fn has_capacity(&self, chunks: usize) -> bool {
        let count = lock(&self.wanted).len();
        count == 0 || (count < MAX_FETCHES && self.claims.load(Ordering::Relaxed) + chunks <= MAX_CLAIMS)
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.wanted).len()
    }

    /// Waits until a fetch is complete.
    pub(crate) fn wait(&self, status: &SessionStatus) -> Result<(), Error> {
        let wanted = lock(&self.wanted);
        if !wanted.is_empty() && !status.is_over() {
            let patience = std::time::Duration::from_millis(100);
            drop(
                self.smaller
                    .wait_timeout(wanted, patience)
                    .unwrap_or_else(PoisonError::into_inner),
            );
        }
        if status.is_over() {
            Err(SessionStatus::ended())
        } else {
            Ok(())
        }
    }

    pub(crate) fn insert(&self, wanted: PendingFetch) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.claims.fetch_add(wanted.claims, Ordering::Relaxed);
        lock(&self.wanted).insert(id, Arc::new(wanted));
        id
    }

    fn get(&self, id: u64) -> Result<Arc<PendingFetch>, Error> {
        let unknown = || Error::Protocol("it sent content that was not requested".to_owned());
        lock(&self.wanted).get(&id).cloned().ok_or_else(unknown)
    }

    fn remove(&self, id: u64, wanted: &PendingFetch) {
        lock(&self.wanted).remove(&id);
        self.claims.fetch_sub(wanted.claims, Ordering::Relaxed);
        self.smaller.notify_all();
    }
}

/// The state that all data lanes write to.
pub(crate) struct ReceiveState {
    /// `None` for a device.
    pub(crate) tree: Option<Arc<Tree>>,
    pub(crate) table: PendingFetches,
    /// Bytes of content that have arrived.
    pub(crate) received: AtomicU64,
    /// Bytes of a device that a pass has completed.
    pub(crate) settled: AtomicU64,
    /// Bytes in use in the source's file system, as the source reports; zero while that is unknown.
    pub(crate) expected: AtomicU64,
    /// Whether the source itself has dialled.
    pub(crate) direct: bool,
}

/// Runs one data lane: handles batches until the session is over.
pub(crate) fn receive(state: &ReceiveState, mut lane: Reader, status: &SessionStatus) -> Result<(), Error> {
    let mut decoder = Decoder::new().map_err(Error::Cut)?;
    let mut directory = None;
    while !status.is_over() {
        let payload = lane.next_of(FrameKind::Batch)?;
        let mut pieces = Pieces::of(decoder.decode(payload)?);
        while let Some(piece) = pieces.next()? {
            state.take(piece, &mut directory)?;
        }
    }
    Ok(())
}

/// The directory of the last file that was created: the next one is usually in the same.
type LastDirectory = Option<(TreePath, rustix::fd::OwnedFd)>;

impl ReceiveState {
    fn take(&self, piece: Piece<'_>, directory: &mut LastDirectory) -> Result<(), Error> {
        match piece {
            Piece::Data {
                fetch,
                chunk,
                hash,
                length,
                ranges,
                bytes,
            } => {
                let wanted = self.table.get(fetch)?;
                let at = place(&wanted, chunk, 1)?;
                if hash_chunk(length, &ranges, bytes) != hash {
                    return Err(Error::Corrupt {
                        path: wanted.path(),
                        chunk,
                    });
                }
                self.received.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                let mut state = lock(&wanted.state);
                self.write(&wanted, &mut state, chunk, length, &ranges, bytes, directory)?;
                if let Some(known) = state.hashes.get_mut(at) {
                    *known = Some(hash);
                }
                Ok(())
            }
            Piece::Holes { fetch, first, chunks } => {
                let wanted = self.table.get(fetch)?;
                let at = place(&wanted, first, chunks)?;
                let mut state = lock(&wanted.state);
                self.punch(&wanted, &mut state, first, chunks, directory)?;
                for (chunk, known) in (first..).zip(state.hashes.iter_mut().skip(at).take(chunks as usize)) {
                    *known = Some(hash_hole(chunk_length(wanted.size(), chunk)));
                }
                Ok(())
            }
            Piece::End {
                fetch,
                size,
                steady,
                hash,
            } => {
                let wanted = self.table.get(fetch)?;
                let state = &mut *lock(&wanted.state);
                let result = self.end(&wanted, state, size, steady, &hash, directory);
                self.table.remove(fetch, &wanted);
                result
            }
            Piece::Gone { fetch } => {
                let wanted = self.table.get(fetch)?;
                let Destination::File(job) = &wanted.destination else {
                    return Err(Error::Protocol("it reports that its device is gone".to_owned()));
                };
                job.gone.store(true, Ordering::Relaxed);
                let result = self.range_done(job, &mut lock(&wanted.state), directory);
                self.table.remove(fetch, &wanted);
                result
            }
            Piece::Failed { fetch, errno } => {
                let wanted = self.table.get(fetch)?;
                let source = io::Error::from_raw_os_error(i32::try_from(errno).unwrap_or_default());
                let path = wanted.path();
                Err(if source.kind() == io::ErrorKind::WouldBlock {
                    Error::Leased { path }
                } else {
                    Error::Unreadable { path, source }
                })
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "a chunk is that many things")]
    fn write(
        &self,
        wanted: &PendingFetch,
        state: &mut Progress,
        chunk: u64,
        length: u32,
        ranges: &[Range],
        bytes: &[u8],
        directory: &mut LastDirectory,
    ) -> Result<(), Error> {
        if length != chunk_length(wanted.size(), chunk) {
            // The file grew or shrank after it was listed: the next pass copies the rest.
            wanted.resized();
        }
        let offset = chunk * CHUNK as u64;
        let failed = |error| Error::file("writing", &wanted.path())(error);
        let (file, keeps_old) = self.opened(wanted, state, directory)?;
        let (mut rest, mut at) = (bytes, 0);
        for range in ranges {
            if keeps_old {
                punch(file, offset + u64::from(at), range.offset - at).map_err(failed)?;
            }
            let (data, after) = rest.split_at(range.length as usize);
            file.write_all_at(data, offset + u64::from(range.offset))
                .map_err(failed)?;
            (rest, at) = (after, range.offset + range.length);
        }
        if keeps_old {
            punch(file, offset + u64::from(at), length - at).map_err(failed)?;
        }
        Ok(())
    }

    fn punch(
        &self,
        wanted: &PendingFetch,
        state: &mut Progress,
        first: u64,
        chunks: u32,
        directory: &mut LastDirectory,
    ) -> Result<(), Error> {
        let size = wanted.size();
        let (file, keeps_old) = self.opened(wanted, state, directory)?;
        if keeps_old {
            for chunk in first..first + u64::from(chunks) {
                punch(file, chunk * CHUNK as u64, chunk_length(size, chunk))
                    .map_err(|error| Error::file("punching a hole into", &wanted.path())(error))?;
            }
        }
        Ok(())
    }

    /// The file to write to, and whether it may have content.
    fn opened<'s>(
        &self,
        wanted: &PendingFetch,
        state: &'s mut Progress,
        directory: &mut LastDirectory,
    ) -> Result<(&'s File, bool), Error> {
        let keeps_old = match &wanted.destination {
            Destination::File(job) => {
                job.wrote.store(true, Ordering::Relaxed);
                job.present
            }
            Destination::Device(_) => true,
        };
        if state.file.is_none() {
            state.file = Some(match &wanted.destination {
                Destination::File(job) => self.open_file(job, directory)?,
                Destination::Device(job) => job
                    .device
                    .try_clone()
                    .map_err(Error::file("opening", &TreePath::root()))?,
            });
        }
        let file = state.file.as_ref().ok_or_else(SessionStatus::ended)?;
        Ok((file, keeps_old))
    }

    fn open_file(&self, job: &FileJob, directory: &mut LastDirectory) -> Result<File, Error> {
        let tree = self.tree.as_ref().ok_or_else(SessionStatus::ended)?;
        if !job.fresh || job.chunks.is_some() {
            return tree
                .file_to_change(&job.path)
                .map_err(Error::tree("opening", &job.path));
        }
        let parent = self.parent(job, directory)?;
        create(parent, &job.name).map_err(|errno| match errno {
            // The name did not exist when the directory was read.
            Errno::EXIST => Error::CaseClash {
                path: job.path.clone(),
            },
            errno => Error::tree("creating", &job.path)(errno),
        })
    }

    /// The directory of a file at the target.
    fn parent<'d>(
        &self,
        job: &FileJob,
        directory: &'d mut LastDirectory,
    ) -> Result<rustix::fd::BorrowedFd<'d>, Error> {
        let tree = self.tree.as_ref().ok_or_else(SessionStatus::ended)?;
        if directory.as_ref().is_none_or(|(path, _)| *path != job.parent) {
            let fd = tree
                .directory(&job.parent)
                .map_err(Error::tree("opening", &job.parent))?;
            *directory = Some((job.parent.clone(), fd));
        }
        let (_, parent) = directory.as_ref().ok_or_else(SessionStatus::ended)?;
        Ok(parent.as_fd())
    }

    fn end(
        &self,
        wanted: &PendingFetch,
        state: &mut Progress,
        size: u64,
        steady: bool,
        hash: &Hash,
        directory: &mut LastDirectory,
    ) -> Result<(), Error> {
        if size == wanted.size() {
            let hashes: Vec<&Hash> = state.hashes.iter().flatten().collect();
            if hashes.len() != state.hashes.len() || hash_of_hashes(hashes.into_iter()) != *hash {
                return Err(Error::Corrupt {
                    path: wanted.path(),
                    chunk: wanted.first,
                });
            }
        }
        match &wanted.destination {
            Destination::File(job) => {
                if !steady {
                    job.unsteady.store(true, Ordering::Relaxed);
                }
                if size != wanted.size() {
                    job.resized.store(true, Ordering::Relaxed);
                }
                if let Some(place) = &job.chunks {
                    let stored = Chunks::at(place).and_then(|chunks| chunks.put(wanted.first, &state.hashes));
                    stored.map_err(Error::Journal)?;
                }
                self.range_done(job, state, directory)
            }
            Destination::Device(job) => {
                if size != wanted.size() {
                    return Err(Error::Protocol("its device changed its size".to_owned()));
                }
                lock(&job.hashes).clone_from(&state.hashes);
                self.settled
                    .fetch_add(bytes_in(size, wanted.first), Ordering::Relaxed);
                job.slot.fill(Outcome::Done {
                    content: None,
                    steady: true,
                    wrote: state.file.is_some(),
                });
                Ok(())
            }
        }
    }

    /// A range is complete; with the last one the file is, too.
    fn range_done(
        &self,
        job: &FileJob,
        state: &mut Progress,
        directory: &mut LastDirectory,
    ) -> Result<(), Error> {
        if job.ranges_left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return Ok(());
        }
        if job.gone.load(Ordering::Relaxed) {
            let exists = !job.fresh || job.chunks.is_some() || job.wrote.load(Ordering::Relaxed);
            // The source does not list it any more, and what exists here may be incomplete.
            if exists {
                unlink(self.parent(job, directory)?, &job.name)
                    .map_err(Error::tree("deleting", &job.path))?;
            }
            job.slot.fill(Outcome::Gone);
            return Ok(());
        }
        let wrote = job.wrote.load(Ordering::Relaxed);
        if wrote || !job.attributes_stand {
            let file = match state.file.take() {
                Some(file) => file,
                None => self.open_file(job, directory)?,
            };
            complete(&file, &job.inode).map_err(Error::tree("setting attributes of", &job.path))?;
        }
        let content = match &job.chunks {
            // The bytes for these hashes are unknown.
            _ if job.resized.load(Ordering::Relaxed) => None,
            Some(place) => Some(
                Chunks::at(place)
                    .and_then(|chunks| chunks.hash(chunks_of(job.inode.stamp.size)))
                    .map_err(Error::Journal)?,
            ),
            None => state.hashes.first().copied().flatten(),
        };
        let steady = content.is_some() && !job.unsteady.load(Ordering::Relaxed);
        job.slot.fill(Outcome::Done {
            content,
            steady,
            wrote,
        });
        Ok(())
    }
}

/// Sets length and attributes of a file whose content is complete.
pub(crate) fn complete(file: &File, inode: &Inode) -> Result<(), Errno> {
    let at = At::Fd(file.as_fd());
    if at.status()?.stx_size != inode.stamp.size {
        rustix::fs::ftruncate(file, inode.stamp.size)?;
    }
    at.set_attributes(inode)
}

/// Creates a file that must not exist yet.
pub(crate) fn create(directory: rustix::fd::BorrowedFd<'_>, name: &Name) -> Result<File, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name.as_bytes(), flags, Mode::RUSR | Mode::WUSR).map(File::from)
}

/// The position of these chunks in the range of the fetch; an error if they are outside.
fn place(wanted: &PendingFetch, first: u64, chunks: u32) -> Result<usize, Error> {
    let size = wanted.size();
    first
        .checked_sub(wanted.first)
        .filter(|at| at.saturating_add(u64::from(chunks)) <= wanted.claims as u64)
        .filter(|_| first + u64::from(chunks) <= chunks_of(size))
        .and_then(|at| usize::try_from(at).ok())
        .ok_or_else(|| Error::Protocol("it sent chunks that were not requested".to_owned()))
}

/// Fills this part of a file with zeros, without allocating space if possible.
fn punch(file: &File, offset: u64, length: u32) -> io::Result<()> {
    if length == 0 {
        return Ok(());
    }
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, flags, offset, length.into()) {
        // A device with blocks larger than this part answers INVAL.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV | Errno::INVAL) => {
            file.write_all_at(&vec![0; length as usize], offset)
        }
        result => Ok(result?),
    }
}
