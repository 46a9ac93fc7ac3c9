//! Volumes of mode Block: no tree and no stamps. Every pass reads the whole device and sends the chunks that
//! differ; the hashes of the content on the target's disk are kept in a directory outside the volume. If the
//! target is larger, its content after the source's end is kept.

use std::{
    collections::BTreeSet,
    fs::File,
    io,
    path::Path,
    sync::{Arc, Mutex},
    thread,
};

use rustix::fs::{Advice, OFlags, SeekFrom};

use crate::{
    apply::{Destination, DeviceJob, PendingFetch, ReceiveState},
    clock,
    credentials::MoveId,
    entry::Hash,
    error::Error,
    journal::{Chunks, Journal},
    lanes::TargetLanes,
    ledger::{Committer, Item, Ledger, Slot},
    link::{Link, target_message},
    message::{Begin, Fetches, RawFetch, RawStamp, SourceMessage, TargetMessage, encode_claims},
    path::TreePath,
    piece::{CHUNK, FETCH_CHUNKS, chunks_of},
    read::hash_own,
    session::SessionStatus,
    target::Progress,
    tree::open_anywhere,
    verify::{Aspect, Difference, NAMED, Root, Scope, Verification},
};

/// Ranges that are requested at a time. Until they have arrived, their hashes are deleted: after a crash
/// these ranges have to be sent again.
const RANGES: usize = 8;

/// The target's device.
pub struct BlockTarget {
    device: Arc<File>,
    size: u64,
    journal: Journal,
    chunks: Arc<Chunks>,
    /// Ranges whose content on disk still has to be verified; `None` means all of them.
    unverified: Option<BTreeSet<u64>>,
    /// Size of the source after the last completed pass.
    copied: Option<u64>,
}

/// The result of a pass over a device.
#[derive(Clone, Copy, Debug)]
pub struct BlockReport {
    /// The number of the pass of this move.
    pub pass: u32,
    /// Bytes of the source's device.
    pub bytes: u64,
    /// Bytes that arrived, before compression.
    pub received_bytes: u64,
    /// Whether the source itself has dialled, see [`Progress::is_direct`].
    pub direct: bool,
}

impl BlockTarget {
    /// Opens a device (or a file in its place) and its hashes in `state`. Where there is no hash, an earlier
    /// attempt may have copied the content: it is read.
    pub fn open(device: &Path, state: &Path, id: &MoveId) -> Result<Self, Error> {
        let root = TreePath::root();
        let failed = |errno| Error::tree("opening the target", &root)(errno);
        let device = open_anywhere(device, OFlags::RDWR).map_err(failed)?;
        let size = rustix::fs::seek(&device, SeekFrom::End(0)).map_err(failed)?;
        let journal = Journal::new(state, id);
        journal.make().map_err(Error::Journal)?;
        let chunks = Arc::new(Chunks::open(&journal.file("device")).map_err(Error::Journal)?);
        let mut target = Self {
            device: Arc::new(device),
            size,
            journal,
            chunks,
            unverified: None,
            copied: None,
        };
        if target.chunks.is_empty().map_err(Error::Journal)? {
            // Every hash from here on is of content that was read from disk, or is written.
            target.forget_cache()?;
            target.unverified = Some(BTreeSet::new());
        }
        Ok(target)
    }

    /// Begins a session with a source.
    pub fn session(&mut self, lanes: TargetLanes) -> BlockSession<'_> {
        BlockSession {
            target: self,
            link: Link::new(lanes, None),
        }
    }

    /// Reads the device back from disk and compares it with the hashes of the source in the last pass.
    /// Content after the end of the source's device is ignored.
    pub fn verify(&mut self, scope: Scope) -> Result<Verification, Error> {
        let Some(bytes) = self.copied else {
            return Err(Error::Journal(io::Error::other("no pass is complete")));
        };
        self.forget_cache()?;
        let unverified = self.unverified.as_ref().filter(|_| scope == Scope::Touched);
        let (mut expected, mut found) = (blake3::Hasher::new(), blake3::Hasher::new());
        let mut verified = Verification {
            expected: Root(Hash::default()),
            found: Root(Hash::default()),
            differences: Vec::new(),
            different: 0,
            unknown: 0,
            files: 1,
            bytes: 0,
        };
        let mut buffer = Vec::new();
        for first in ranges(bytes) {
            let count = chunks_in(bytes, first);
            let known = self.chunks.get(first, count).map_err(Error::Journal)?;
            let is_read = unverified.is_none_or(|ranges| ranges.contains(&first));
            let there = if is_read {
                let read = hash_own(&self.device, bytes, first, count, &mut buffer);
                let read = read.map_err(Error::tree("reading back", &TreePath::root()))?;
                verified.bytes += bytes_in(bytes, first);
                read.into_iter().map(Some).collect()
            } else {
                known.clone()
            };
            if known != there {
                // The next pass hashes these chunks of the device again, instead of what was written.
                let is_right =
                    |(known, there): (&Option<Hash>, &Option<Hash>)| known.filter(|_| known == there);
                let right: Vec<_> = known.iter().zip(&there).map(is_right).collect();
                // Without that the next pass repairs nothing, but the difference is reported.
                let _ = self.chunks.put(first, &right);
            }
            for (chunk, (known, there)) in (first..).zip(known.iter().zip(&there)) {
                expected.update(&known.unwrap_or_default());
                found.update(&there.unwrap_or_default());
                let what = match known {
                    None => Aspect::Unknown,
                    known if known != there => Aspect::Content(chunk),
                    Some(_) => continue,
                };
                verified.different += 1;
                if verified.differences.len() < NAMED {
                    let path = TreePath::root();
                    verified.differences.push(Difference { path, what });
                }
            }
        }
        verified.expected = Root(*expected.finalize().as_bytes());
        verified.found = Root(*found.finalize().as_bytes());
        if verified.is_equal() {
            self.unverified = Some(BTreeSet::new());
        }
        Ok(verified)
    }

    /// Deletes the journal. After this, a move of the same uid would read everything again.
    pub fn finish(self) -> Result<(), Error> {
        if self.copied.is_none() {
            return Err(Error::Journal(io::Error::other("the last pass is not complete")));
        }
        let root = TreePath::root();
        self.device
            .sync_all()
            .map_err(Error::file("synchronising", &root))?;
        self.journal.remove().map_err(Error::Journal)
    }

    /// Later reads come from the disk.
    fn forget_cache(&self) -> Result<(), Error> {
        let root = TreePath::root();
        self.device
            .sync_data()
            .map_err(Error::file("synchronising", &root))?;
        rustix::fs::fadvise(&self.device, 0, None, Advice::DontNeed)
            .map_err(Error::tree("reading back", &root))
    }

    /// Records which ranges have to be verified after a pass over this many bytes. `begun` are the ranges
    /// that were requested, `written` those that were written, if that is known.
    fn record_unverified(&mut self, bytes: u64, begun: BTreeSet<u64>, written: Option<BTreeSet<u64>>) {
        let (Some(unverified), Some(written)) = (&mut self.unverified, written) else {
            self.unverified = None;
            return;
        };
        // Ranges of an aborted pass may have been written, and the next pass may read them from the cache.
        let is_open = |first: &u64| {
            let known = self.chunks.get(*first, chunks_in(bytes, *first));
            known.map_or(true, |known| known.iter().any(Option::is_none))
        };
        unverified.extend(begun.into_iter().filter(is_open));
        unverified.extend(written);
    }
}

/// A session with a source.
pub struct BlockSession<'t> {
    target: &'t mut BlockTarget,
    link: Link,
}

impl BlockSession<'_> {
    /// Updates the whole device.
    pub fn pass(&mut self) -> Result<BlockReport, Error> {
        let report = self.try_pass();
        report.map_err(|error| self.link.fail(error))
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

    fn try_pass(&mut self) -> Result<BlockReport, Error> {
        let journal = &self.target.journal;
        let pass = journal
            .read()
            .map_err(Error::Journal)?
            .map_or(0, |(header, _)| header.pass)
            + 1;
        let received = self.link.state.received();
        self.link.down.send(
            &target_message(TargetMessage::Begin(Begin {
                pass,
                ..Begin::default()
            })),
            true,
        )?;
        let ready = self.link.ready()?;
        let bytes = ready.device_size;
        if bytes == 0 {
            return Err(Error::Protocol("its volume is not a device".to_owned()));
        }
        let SourceMessage::ScanEnd(_) = self.link.next_message()? else {
            return Err(Error::Protocol("it lists a device".to_owned()));
        };
        if bytes > self.target.size {
            return Err(Error::TooSmall {
                what: "bytes",
                capacity: self.target.size,
                needed: bytes,
            });
        }
        self.target.copied = None;
        let writer = journal.write(pass, clock::read()).map_err(Error::Journal)?;
        let ledger = Ledger::default();
        let mut begun = BTreeSet::new();
        let (link, status, target) = (&self.link, &*self.link.status, &*self.target);
        let written = thread::scope(|scope| {
            let committing = scope.spawn(|| {
                let committer = Committer::of_device(&target.device, &ledger, pass);
                committer
                    .run(None, status)
                    .map_err(|error| status.fail(error))
                    .ok()
            });
            let message = target.request_ranges(link, &ledger, bytes, &mut begun);
            if let Err(error) = message {
                status.fail(error);
            }
            ledger.finish();
            committing.join().ok().flatten().map(|counts| counts.written)
        });
        self.target.record_unverified(bytes, begun, written);
        if self.link.status.is_over() {
            return Err(SessionStatus::ended());
        }
        self.target
            .device
            .sync_all()
            .map_err(Error::file("synchronising", &TreePath::root()))?;
        self.target.chunks.sync().map_err(Error::Journal)?;
        self.target.journal.complete(writer).map_err(Error::Journal)?;
        self.target.copied = Some(bytes);
        Ok(BlockReport {
            pass,
            bytes,
            received_bytes: self.link.state.received() - received,
            direct: self.link.state.is_direct(),
        })
    }
}

impl BlockTarget {
    /// Requests the device, range by range. Content without a known hash is read.
    fn request_ranges(
        &self,
        link: &Link,
        ledger: &Ledger,
        bytes: u64,
        begun: &mut BTreeSet<u64>,
    ) -> Result<(), Error> {
        let mut buffer = Vec::new();
        let mut firsts = ranges(bytes).peekable();
        while firsts.peek().is_some() {
            while link.state.table.len() > RANGES {
                link.state.table.wait(&link.status)?;
            }
            let mut wanted = Vec::with_capacity(RANGES);
            for first in firsts.by_ref().take(RANGES) {
                let some = chunks_in(bytes, first);
                let mut claims = self.chunks.get(first, some).map_err(Error::Journal)?;
                if claims.iter().any(Option::is_none) {
                    let there = hash_own(&self.device, bytes, first, some, &mut buffer)
                        .map_err(Error::tree("reading", &TreePath::root()))?;
                    claims = there.into_iter().map(Some).collect();
                }
                self.chunks
                    .put(first, &vec![None; some])
                    .map_err(Error::Journal)?;
                begun.insert(first);
                wanted.push((first, claims));
            }
            // On disk before any of these ranges is written.
            self.chunks.sync().map_err(Error::Journal)?;
            let fetches = wanted
                .into_iter()
                .map(|(first, claims)| self.fetch(&link.state, ledger, bytes, first, claims));
            let fetches = Fetches {
                fetches: fetches.collect(),
            };
            link.down
                .send(&target_message(TargetMessage::Fetch(fetches)), true)?;
        }
        Ok(())
    }

    fn fetch(
        &self,
        state: &ReceiveState,
        ledger: &Ledger,
        size: u64,
        first: u64,
        claims: Vec<Option<Hash>>,
    ) -> RawFetch {
        let job = Arc::new(DeviceJob {
            device: Arc::clone(&self.device),
            size,
            chunks: Arc::clone(&self.chunks),
            slot: Arc::new(Slot::default()),
            hashes: Mutex::new(Vec::new()),
        });
        ledger.push(Item::Range {
            first,
            job: Arc::clone(&job),
        });
        let (sent, count) = (encode_claims(&claims), claims.len());
        RawFetch {
            id: state
                .table
                .insert(PendingFetch::new(Destination::Device(job), first, claims)),
            path: Vec::new(),
            stamp: RawStamp {
                size,
                ..RawStamp::default()
            },
            first,
            count: u32::try_from(count).unwrap_or(FETCH_CHUNKS),
            claims: sent,
            same_inode: false,
        }
    }
}

/// The first chunks of the ranges of a device.
fn ranges(bytes: u64) -> impl Iterator<Item = u64> {
    (0..chunks_of(bytes)).step_by(FETCH_CHUNKS as usize)
}

/// The number of chunks in the range that begins with this one.
fn chunks_in(bytes: u64, first: u64) -> usize {
    let left = chunks_of(bytes).saturating_sub(first).min(FETCH_CHUNKS.into());
    usize::try_from(left).unwrap_or_default()
}

/// The length of the range that begins with this chunk.
pub(crate) fn bytes_in(bytes: u64, first: u64) -> u64 {
    let range = u64::from(FETCH_CHUNKS) * CHUNK as u64;
    bytes
        .saturating_sub(first.saturating_mul(CHUNK as u64))
        .min(range)
}
