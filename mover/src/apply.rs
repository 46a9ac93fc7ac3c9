//! Writes what arrives on the data lanes into the target's files, in place. Which files
//! and what of them is wanted is [`crate::plan`]'s; here every piece is checked against
//! that, and every chunk against its hash.

use std::{
    collections::HashMap,
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::FileExt},
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
    session::{Fate, lock},
    source::MAX_FETCHES,
    tree::{At, Tree},
    wire::FrameKind,
};

/// Hashes that may be under way to the source: 32 bytes for each MiB that is compared.
const MAX_CLAIMS: usize = (4 << 20) / 32;

/// A file that is being brought up to date; done when all ranges of it are.
pub(crate) struct FileJob {
    pub(crate) parent: TreePath,
    pub(crate) name: Name,
    pub(crate) path: TreePath,
    /// As it was listed.
    pub(crate) inode: Inode,
    /// It is not there yet, and the first range makes it.
    pub(crate) fresh: bool,
    /// Something was there before, which holes must be punched into.
    pub(crate) present: bool,
    /// Its attributes are right already, unless content is written.
    pub(crate) attributes_stand: bool,
    /// Where the hashes go, if it has more than one chunk.
    pub(crate) chunks: Option<Chunks>,
    pub(crate) slot: Arc<Slot>,
    pub(crate) ranges_left: AtomicUsize,
    pub(crate) wrote: AtomicBool,
    /// It changed while it was read ...
    pub(crate) unsteady: AtomicBool,
    /// ... even its size.
    pub(crate) resized: AtomicBool,
    pub(crate) gone: AtomicBool,
}

/// Where content goes.
pub(crate) enum Destination {
    File(Arc<FileJob>),
    /// A device: its descriptor, and its range's slot.
    Device(Arc<DeviceJob>),
}

/// A range of a device.
pub(crate) struct DeviceJob {
    pub(crate) device: Arc<File>,
    pub(crate) size: u64,
    pub(crate) chunks: Arc<Chunks>,
    pub(crate) slot: Arc<Slot>,
    /// What the source had when it was done.
    pub(crate) hashes: Mutex<Vec<Option<Hash>>>,
}

/// One fetch that is under way.
pub(crate) struct Wanted {
    pub(crate) destination: Destination,
    pub(crate) first: u64,
    state: Mutex<Progress>,
    claims: usize,
}

struct Progress {
    /// What is on disk, chunk by chunk.
    hashes: Vec<Option<Hash>>,
    file: Option<File>,
}

impl Wanted {
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

/// All fetches that are under way.
#[derive(Default)]
pub(crate) struct Table {
    wanted: Mutex<HashMap<u64, Arc<Wanted>>>,
    claims: AtomicUsize,
    smaller: Condvar,
    next: AtomicU64,
}

impl Table {
    /// Whether another fetch of so many chunks may go.
    pub(crate) fn has_room(&self, chunks: usize) -> bool {
        let count = lock(&self.wanted).len();
        count == 0 || (count < MAX_FETCHES && self.claims.load(Ordering::Relaxed) + chunks <= MAX_CLAIMS)
    }

    /// How many fetches are under way.
    pub(crate) fn len(&self) -> usize {
        lock(&self.wanted).len()
    }

    /// Waits until something has arrived.
    pub(crate) fn wait(&self, fate: &Fate) -> Result<(), Error> {
        let wanted = lock(&self.wanted);
        if !wanted.is_empty() && !fate.is_over() {
            let patience = std::time::Duration::from_millis(100);
            drop(
                self.smaller
                    .wait_timeout(wanted, patience)
                    .unwrap_or_else(PoisonError::into_inner),
            );
        }
        if fate.is_over() {
            Err(Fate::ended())
        } else {
            Ok(())
        }
    }

    pub(crate) fn insert(&self, wanted: Wanted) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.claims.fetch_add(wanted.claims, Ordering::Relaxed);
        lock(&self.wanted).insert(id, Arc::new(wanted));
        id
    }

    fn get(&self, id: u64) -> Result<Arc<Wanted>, Error> {
        let unknown = || Error::Protocol("it sent what nobody asked for".to_owned());
        lock(&self.wanted).get(&id).cloned().ok_or_else(unknown)
    }

    fn remove(&self, id: u64, wanted: &Wanted) {
        lock(&self.wanted).remove(&id);
        self.claims.fetch_sub(wanted.claims, Ordering::Relaxed);
        self.smaller.notify_all();
    }
}

/// What the lanes write to.
pub(crate) struct Desk {
    /// Nothing for a device.
    pub(crate) tree: Option<Arc<Tree>>,
    pub(crate) table: Table,
    /// Bytes of content that have arrived.
    pub(crate) received: AtomicU64,
    /// Bytes of a device that a pass is done with.
    pub(crate) settled: AtomicU64,
    /// Bytes that the source's file system holds, as it says; zero as long as it does not.
    pub(crate) expected: AtomicU64,
    /// Whether the source itself has dialled.
    pub(crate) direct: bool,
}

/// One data lane: takes batches until the session is over.
pub(crate) fn receive(desk: &Desk, mut lane: Reader, fate: &Fate) -> Result<(), Error> {
    let mut decoder = Decoder::new().map_err(Error::Cut)?;
    let mut directory = None;
    while !fate.is_over() {
        let payload = lane.next_of(FrameKind::Batch)?;
        let mut pieces = Pieces::of(decoder.decode(payload)?);
        while let Some(piece) = pieces.next()? {
            desk.take(piece, &mut directory)?;
        }
    }
    Ok(())
}

/// The directory of the last file that was made: the next is mostly in the same.
type LastDirectory = Option<(TreePath, rustix::fd::OwnedFd)>;

impl Desk {
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
                    return Err(Error::Protocol("it says that its device is gone".to_owned()));
                };
                job.gone.store(true, Ordering::Relaxed);
                let result = self.range_done(job, &mut lock(&wanted.state), directory);
                self.table.remove(fetch, &wanted);
                result
            }
            Piece::Failed { fetch, errno } => {
                let wanted = self.table.get(fetch)?;
                let source = io::Error::from_raw_os_error(i32::try_from(errno).unwrap_or_default());
                Err(Error::Unreadable {
                    path: wanted.path(),
                    source,
                })
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "a chunk is that many things")]
    fn write(
        &self,
        wanted: &Wanted,
        state: &mut Progress,
        chunk: u64,
        length: u32,
        ranges: &[Range],
        bytes: &[u8],
        directory: &mut LastDirectory,
    ) -> Result<(), Error> {
        if length != chunk_length(wanted.size(), chunk) {
            // It grew or shrank since it was listed: what was read is for the next pass to mend.
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
        wanted: &Wanted,
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

    /// The file to write to, and whether anything may be in it already.
    fn opened<'s>(
        &self,
        wanted: &Wanted,
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
        let file = state.file.as_ref().ok_or_else(Fate::ended)?;
        Ok((file, keeps_old))
    }

    fn open_file(&self, job: &FileJob, directory: &mut LastDirectory) -> Result<File, Error> {
        let tree = self.tree.as_ref().ok_or_else(Fate::ended)?;
        if !job.fresh || job.chunks.is_some() {
            return tree
                .file(&job.path, OFlags::WRONLY)
                .map_err(Error::tree("opening", &job.path));
        }
        if directory.as_ref().is_none_or(|(path, _)| *path != job.parent) {
            let fd = tree
                .directory(&job.parent)
                .map_err(Error::tree("opening", &job.parent))?;
            *directory = Some((job.parent.clone(), fd));
        }
        let (_, parent) = directory.as_ref().ok_or_else(Fate::ended)?;
        create(parent.as_fd(), &job.name).map_err(|errno| match errno {
            // Nothing of this name was there when the directory was read.
            Errno::EXIST => Error::CaseClash {
                path: job.path.clone(),
            },
            errno => Error::tree("creating", &job.path)(errno),
        })
    }

    fn end(
        &self,
        wanted: &Wanted,
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
                if let Some(chunks) = &job.chunks {
                    chunks.put(wanted.first, &state.hashes).map_err(Error::Journal)?;
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

    /// A range is as it should be; with the last one so is the file.
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
            // Of which bytes the hashes are is not known any more.
            _ if job.resized.load(Ordering::Relaxed) => None,
            Some(chunks) => Some(
                chunks
                    .hash(chunks_of(job.inode.stamp.size))
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

/// Sets length and attributes of a file whose content is there.
pub(crate) fn complete(file: &File, inode: &Inode) -> Result<(), Errno> {
    let at = At::Fd(file.as_fd());
    if at.status()?.stx_size != inode.stamp.size {
        rustix::fs::ftruncate(file, inode.stamp.size)?;
    }
    at.set_attributes(inode)
}

/// Makes a file that must not be there yet.
pub(crate) fn create(directory: rustix::fd::BorrowedFd<'_>, name: &Name) -> Result<File, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name.as_bytes(), flags, Mode::RUSR | Mode::WUSR).map(File::from)
}

/// Where in the range of this fetch its chunks are; an error if they are not.
fn place(wanted: &Wanted, first: u64, chunks: u32) -> Result<usize, Error> {
    let size = wanted.size();
    first
        .checked_sub(wanted.first)
        .filter(|at| at.saturating_add(u64::from(chunks)) <= wanted.claims as u64)
        .filter(|_| first + u64::from(chunks) <= chunks_of(size))
        .and_then(|at| usize::try_from(at).ok())
        .ok_or_else(|| Error::Protocol("it sent chunks that nobody asked for".to_owned()))
}

/// Makes this part of a file zeros, without room on disk if possible.
fn punch(file: &File, offset: u64, length: u32) -> io::Result<()> {
    if length == 0 {
        return Ok(());
    }
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, flags, offset, length.into()) {
        // INVAL is the answer of a device with larger blocks than that part has.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV | Errno::INVAL) => {
            file.write_all_at(&vec![0; length as usize], offset)
        }
        result => Ok(result?),
    }
}
