//! Volumes of mode Block: no tree and no stamps. Every pass reads the whole device and
//! sends the chunks that differ; the hashes of what is on the target's disk are kept in a
//! folder beside it.

use std::{
    collections::BTreeSet,
    fs::File,
    path::Path,
    sync::{Arc, Mutex},
    thread,
};

use rustix::fs::{Advice, OFlags, SeekFrom};

use crate::{
    apply::{Desk, Destination, DeviceJob, Wanted},
    clock,
    credentials::MoveId,
    entry::Hash,
    error::Error,
    journal::{Chunks, Journal},
    lanes::TargetLanes,
    ledger::{Committer, Item, Ledger, Slot},
    link::{Link, asked},
    message::{Asked, Begin, Fetches, RawFetch, RawStamp, Said, encode_claims},
    path::TreePath,
    piece::{FETCH_CHUNKS, chunks_of},
    read::hash_own,
    session::Fate,
    tree::open_anywhere,
};

/// Ranges that are asked for in one go. Until they have arrived, what was known of them
/// is forgotten: it would have to be sent again if this process died.
const RANGES: usize = 8;

/// The target's device.
pub struct BlockTarget {
    device: Arc<File>,
    size: u64,
    journal: Journal,
    chunks: Arc<Chunks>,
    /// Of chunks nothing is known of, read what is there instead of having it sent.
    read_unknown: bool,
    /// Ranges that were written since the last verification; all, if that is not known.
    unverified: Option<BTreeSet<u64>>,
}

/// What a pass over a device has come to.
#[derive(Clone, Copy, Debug)]
pub struct BlockReport {
    /// Which pass of this move.
    pub pass: u32,
    /// Bytes of the source's device.
    pub bytes: u64,
    /// Bytes that arrived, before compression.
    pub received_bytes: u64,
}

impl BlockTarget {
    /// Opens a device (or a file that stands for one) and what is remembered of it in
    /// `state`. `has_content` says that an earlier attempt may have filled it already.
    pub fn open(device: &Path, state: &Path, id: &MoveId, has_content: bool) -> Result<Self, Error> {
        let root = TreePath::root();
        let failed = |errno| Error::tree("opening the target", &root)(errno);
        let device = open_anywhere(device, OFlags::RDWR).map_err(failed)?;
        let size = rustix::fs::seek(&device, SeekFrom::End(0)).map_err(failed)?;
        let journal = Journal::open(state, id).map_err(Error::Journal)?;
        let chunks = Arc::new(Chunks::open(&journal.file("device")).map_err(Error::Journal)?);
        Ok(Self {
            device: Arc::new(device),
            size,
            journal,
            chunks,
            read_unknown: has_content,
            unverified: None,
        })
    }

    /// Begins to take content from a source.
    pub fn session(&mut self, lanes: TargetLanes) -> BlockSession<'_> {
        BlockSession {
            target: self,
            link: Link::new(lanes, None),
        }
    }

    /// Reads back from disk what was written since the last verification, or everything;
    /// says which MiB differ from what the source had.
    pub fn verify(&mut self, everything: bool) -> Result<Vec<u64>, Error> {
        let root = TreePath::root();
        self.device
            .sync_data()
            .map_err(Error::file("synchronising", &root))?;
        let count = chunks_of(self.size);
        let firsts: Vec<u64> = match &self.unverified {
            Some(ranges) if !everything => ranges.iter().copied().collect(),
            _ => (0..count).step_by(FETCH_CHUNKS as usize).collect(),
        };
        rustix::fs::fadvise(&self.device, 0, None, Advice::DontNeed)
            .map_err(Error::tree("reading back", &root))?;
        let mut different = Vec::new();
        let mut buffer = Vec::new();
        for first in firsts {
            let known = self
                .chunks
                .get(first, FETCH_CHUNKS as usize)
                .map_err(Error::Journal)?;
            let there = hash_own(&self.device, self.size, first, known.len(), &mut buffer)
                .map_err(Error::tree("reading back", &root))?;
            let wrong = known
                .iter()
                .zip(&there)
                .enumerate()
                .filter_map(|(at, (known, there))| {
                    // What is behind the end of the source's device is nobody's.
                    known.filter(|known| known != there).map(|_| first + at as u64)
                });
            different.extend(wrong);
        }
        if different.is_empty() {
            self.unverified = Some(BTreeSet::new());
        }
        Ok(different)
    }
}

/// A source that is connected.
pub struct BlockSession<'t> {
    target: &'t mut BlockTarget,
    link: Link,
}

impl BlockSession<'_> {
    /// Brings the whole device up to date.
    pub fn pass(&mut self) -> Result<BlockReport, Error> {
        let report = self.try_pass();
        report.map_err(|error| self.link.give_up(error))
    }

    /// Lets the source go.
    pub fn end(self) {
        self.link.end();
    }

    fn try_pass(&mut self) -> Result<BlockReport, Error> {
        let journal = &self.target.journal;
        let pass = journal
            .read()
            .map_err(Error::Journal)?
            .map_or(0, |(header, _)| header.pass)
            + 1;
        let received = self.link.desk.received();
        self.link.down.send(&asked(Asked::Begin(Begin { pass })), true)?;
        let ready = self.link.ready()?;
        let Said::ScanEnd(_) = self.link.hear()? else {
            return Err(Error::Protocol("it lists a device".to_owned()));
        };
        let bytes = ready.device_size;
        if bytes == 0 || bytes > self.target.size {
            return Err(Error::DeviceTooSmall {
                target: self.target.size,
                needed: bytes,
            });
        }
        let writer = journal.write(pass, clock::read()).map_err(Error::Journal)?;
        let ledger = Ledger::default();
        let (link, fate, target) = (&self.link, &*self.link.fate, &*self.target);
        let written = thread::scope(|scope| {
            let committing = scope.spawn(|| {
                let committer = Committer::of_device(&target.device, &ledger, pass);
                committer
                    .run(None, fate)
                    .map_err(|error| fate.fail(error))
                    .unwrap_or_default()
            });
            let asked = target.ask(link, &ledger, bytes);
            if let Err(error) = asked {
                fate.fail(error);
            }
            ledger.finish();
            committing.join().unwrap_or_default().written
        });
        if let Some(ranges) = &mut self.target.unverified {
            ranges.extend(written);
        }
        if self.link.fate.is_over() {
            return Err(Fate::ended());
        }
        self.target
            .device
            .sync_all()
            .map_err(Error::file("synchronising", &TreePath::root()))?;
        self.target.chunks.sync().map_err(Error::Journal)?;
        self.target.journal.complete(writer).map_err(Error::Journal)?;
        // Whatever is on the device now, all of it is known.
        self.target.read_unknown = true;
        Ok(BlockReport {
            pass,
            bytes,
            received_bytes: self.link.desk.received() - received,
        })
    }
}

impl BlockTarget {
    /// Asks for the device, range by range.
    fn ask(&self, link: &Link, ledger: &Ledger, bytes: u64) -> Result<(), Error> {
        let count = chunks_of(bytes);
        let mut buffer = Vec::new();
        let mut firsts = (0..count).step_by(FETCH_CHUNKS as usize).peekable();
        while firsts.peek().is_some() {
            while link.desk.table.len() > RANGES {
                link.desk.table.wait(&link.fate)?;
            }
            let mut ranges = Vec::with_capacity(RANGES);
            for first in firsts.by_ref().take(RANGES) {
                let some = usize::try_from((count - first).min(FETCH_CHUNKS.into())).unwrap_or(1);
                let mut claims = self.chunks.get(first, some).map_err(Error::Journal)?;
                if self.read_unknown && claims.iter().any(Option::is_none) {
                    let there = hash_own(&self.device, bytes, first, some, &mut buffer)
                        .map_err(Error::tree("reading", &TreePath::root()))?;
                    claims = there.into_iter().map(Some).collect();
                }
                self.chunks
                    .put(first, &vec![None; some])
                    .map_err(Error::Journal)?;
                ranges.push((first, claims));
            }
            // On disk before any of it is written.
            self.chunks.sync().map_err(Error::Journal)?;
            let fetches = ranges
                .into_iter()
                .map(|(first, claims)| self.fetch(&link.desk, ledger, bytes, first, claims));
            let fetches = Fetches {
                fetches: fetches.collect(),
            };
            link.down.send(&asked(Asked::Fetch(fetches)), true)?;
        }
        Ok(())
    }

    fn fetch(
        &self,
        desk: &Desk,
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
            id: desk
                .table
                .insert(Wanted::new(Destination::Device(job), first, claims)),
            path: Vec::new(),
            stamp: RawStamp {
                size,
                ..RawStamp::default()
            },
            first,
            count: u32::try_from(count).unwrap_or(FETCH_CHUNKS),
            claims: sent,
        }
    }
}
