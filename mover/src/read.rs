//! Answers fetches on the source: reads a range of a file, hashes it chunk by chunk and sends what the
//! target does not have. Each data lane does this on its own.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::FileExt,
    },
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FileType, OFlags, SeekFrom},
    io::Errno,
};

use crate::{
    compress::Encoder,
    entry::{Hash, Stamp},
    error::Error,
    lanes::{PING, Writer},
    message::{BadMessage, RawFetch, decode_claims},
    path::TreePath,
    piece::{
        BATCH, CHUNK, FETCH_CHUNKS, MAX_RANGES, Piece, Range, chunk_length, hash_chunk, hash_hole,
        hash_of_hashes,
    },
    throttle::Throttle,
    tree::{At, Tree, file_type, inode_number, is_gone, stamp_of},
    wire::FrameKind,
};

/// Files of at most this size are not searched for holes if as much is allocated.
const SMALL: u64 = 4 << 10;
/// The most space that the attributes and the list of the extents of a file are expected to take.
const HIDDEN: u64 = 64 << 10;

/// A request of the target.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) id: u64,
    pub(crate) path: TreePath,
    /// The stamp in the listing.
    pub(crate) stamp: Stamp,
    pub(crate) first: u64,
    /// The hashes of the target's chunks.
    pub(crate) claims: Vec<Option<Hash>>,
    /// Whether the file counts as deleted if another inode has its name by now.
    pub(crate) same_inode: bool,
}

impl TryFrom<RawFetch> for Fetch {
    type Error = BadMessage;

    fn try_from(raw: RawFetch) -> Result<Self, BadMessage> {
        if !(1..=FETCH_CHUNKS).contains(&raw.count) || raw.first > i64::MAX as u64 / CHUNK as u64 {
            return Err(BadMessage::Field("a fetch has no chunks, or too many"));
        }
        Ok(Self {
            id: raw.id,
            path: TreePath::parse(&raw.path)?,
            stamp: raw.stamp.try_into()?,
            first: raw.first,
            claims: decode_claims(&raw.claims, raw.count as usize)?,
            same_inode: raw.same_inode,
        })
    }
}

/// The volume that is copied.
pub(crate) enum Volume {
    Tree(Arc<Tree>),
    /// A block device, and its size. Its only path is that of the root.
    Device(File, u64),
}

/// Collects pieces and sends them in batches.
pub(crate) struct Outbox<'a> {
    lane: &'a mut Writer,
    throttle: &'a Throttle,
    encoder: Encoder,
    pieces: Vec<u8>,
    /// When anything was sent last, and how long nothing may be sent.
    sent: Instant,
    silence: Duration,
}

impl<'a> Outbox<'a> {
    pub(crate) fn new(lane: &'a mut Writer, throttle: &'a Throttle) -> Result<Self, Error> {
        let encoder = Encoder::new().map_err(Error::Cut)?;
        Ok(Self {
            lane,
            throttle,
            encoder,
            pieces: Vec::with_capacity(2 * BATCH),
            sent: Instant::now(),
            silence: PING,
        })
    }

    fn put(&mut self, piece: &Piece<'_>) -> Result<(), Error> {
        piece.put(&mut self.pieces);
        if self.pieces.len() >= BATCH {
            self.send()
        } else {
            Ok(())
        }
    }

    /// Sends the collected pieces.
    pub(crate) fn send(&mut self) -> Result<(), Error> {
        if !self.pieces.is_empty() {
            let payload = self.encoder.encode(&self.pieces);
            let mut wait = self.throttle.reserve(payload.len()).unwrap_or_default();
            while wait > self.silence {
                thread::sleep(self.silence);
                wait = wait.saturating_sub(self.silence);
                self.lane.send(FrameKind::Ping, &[])?;
                self.lane.flush()?;
            }
            thread::sleep(wait);
            self.lane.send(FrameKind::Batch, payload)?;
            self.pieces.clear();
            self.sent = Instant::now();
        }
        Ok(self.lane.flush()?)
    }

    /// Sends what is collected, or a ping, if the lane was silent for long: the peer would count it as broken.
    /// The answers for content that the target has already are so short that they never fill a batch.
    pub(crate) fn keep_alive(&mut self) -> Result<(), Error> {
        if self.sent.elapsed() < self.silence {
            return Ok(());
        }
        if self.pieces.is_empty() {
            self.lane.send(FrameKind::Ping, &[])?;
            self.sent = Instant::now();
        }
        self.send()
    }
}

/// Answers one fetch.
pub(crate) fn answer(
    volume: &Volume,
    fetch: &Fetch,
    buffer: &mut Vec<u8>,
    out: &mut Outbox<'_>,
) -> Result<(), Error> {
    match send_range(volume, fetch, buffer, out) {
        Ok(()) => Ok(()),
        Err(RangeError::Gone) => out.put(&Piece::Gone { fetch: fetch.id }),
        Err(RangeError::Read(errno)) => {
            let errno = u32::try_from(errno.raw_os_error()).unwrap_or_default();
            out.put(&Piece::Failed {
                fetch: fetch.id,
                errno,
            })
        }
        Err(RangeError::Send(error)) => Err(error),
    }
}

enum RangeError {
    Gone,
    Read(Errno),
    Send(Error),
}

impl From<Errno> for RangeError {
    fn from(errno: Errno) -> Self {
        // The file was replaced by a socket, or by a pipe without a reader (`ENXIO`).
        if is_gone(errno) || errno == Errno::NXIO {
            Self::Gone
        } else {
            Self::Read(errno)
        }
    }
}

fn send_range(
    volume: &Volume,
    fetch: &Fetch,
    buffer: &mut Vec<u8>,
    out: &mut Outbox<'_>,
) -> Result<(), RangeError> {
    let opened;
    let (file, before, sparse) = match volume {
        Volume::Device(file, size) => (
            file,
            Stamp {
                size: *size,
                ..Stamp::default()
            },
            false,
        ),
        Volume::Tree(tree) => {
            opened = tree.file(&fetch.path, OFlags::RDONLY)?;
            let status = At::Fd(opened.as_fd()).status()?;
            let is_other = fetch.same_inode && inode_number(&status) != fetch.stamp.ino;
            if is_other || file_type(&status) != FileType::RegularFile {
                return Err(RangeError::Gone);
            }
            let allocated = status.stx_blocks.saturating_mul(512);
            let sparse = has_holes(&opened, status.stx_size, allocated)?;
            (&opened, stamp_of(&status), sparse)
        }
    };
    let mut hashes = Vec::with_capacity(fetch.claims.len());
    let mut shrank = false;
    let mut holes = Holes {
        fetch: fetch.id,
        first: 0,
        chunks: 0,
    };
    for (chunk, claim) in (fetch.first..).zip(&fetch.claims) {
        let length = chunk_length(before.size, chunk);
        if length == 0 {
            break;
        }
        out.keep_alive().map_err(RangeError::Send)?;
        let offset = chunk * CHUNK as u64;
        let ranges = if sparse {
            data_in(file, offset, length)?
        } else {
            whole(length)
        };
        shrank |= read_ranges(file, offset, &ranges, buffer)?;
        let is_hole = ranges.is_empty();
        let hash = if is_hole {
            hash_hole(length)
        } else {
            hash_chunk(length, &ranges, buffer)
        };
        hashes.push(hash);
        if *claim == Some(hash) {
            continue;
        }
        // A device has no holes to look up, but zeros need not be sent either.
        if is_hole || (matches!(volume, Volume::Device(..)) && hash == hash_hole(length)) {
            holes.add(chunk, out)?;
            continue;
        }
        let piece = Piece::Data {
            fetch: fetch.id,
            chunk,
            hash,
            length,
            ranges,
            bytes: buffer,
        };
        out.put(&piece).map_err(RangeError::Send)?;
    }
    holes.put(out)?;
    let after = match volume {
        Volume::Device(..) => before,
        Volume::Tree(_) => stamp_of(&At::Fd(file.as_fd()).status()?),
    };
    let end = Piece::End {
        fetch: fetch.id,
        size: before.size,
        steady: !shrank && before == fetch.stamp && after == before,
        hash: hash_of_hashes(hashes.iter()),
    };
    out.put(&end).map_err(RangeError::Send)
}

/// Consecutive chunks without data.
struct Holes {
    fetch: u64,
    first: u64,
    chunks: u32,
}

impl Holes {
    fn add(&mut self, chunk: u64, out: &mut Outbox<'_>) -> Result<(), RangeError> {
        if self.chunks > 0 && self.first + u64::from(self.chunks) == chunk {
            self.chunks += 1;
            return Ok(());
        }
        self.put(out)?;
        (self.first, self.chunks) = (chunk, 1);
        Ok(())
    }

    fn put(&mut self, out: &mut Outbox<'_>) -> Result<(), RangeError> {
        if self.chunks > 0 {
            let piece = Piece::Holes {
                fetch: self.fetch,
                first: self.first,
                chunks: self.chunks,
            };
            out.put(&piece).map_err(RangeError::Send)?;
            self.chunks = 0;
        }
        Ok(())
    }
}

/// Hashes of the chunks of this side's own file, up to its end.
pub(crate) fn hash_own(
    file: &File,
    size: u64,
    first: u64,
    count: usize,
    buffer: &mut Vec<u8>,
) -> Result<Vec<Hash>, Errno> {
    let hashes = hash_data(file, size, first, count, buffer)?;
    let of_hole = |chunk| hash_hole(chunk_length(size, chunk));
    let all = (first..).zip(hashes);
    Ok(all
        .map(|(chunk, hash)| hash.unwrap_or_else(|| of_hole(chunk)))
        .collect())
}

/// The same, and `None` for a chunk that is a hole: it has the same hash as zeros.
pub(crate) fn hash_data(
    file: &File,
    size: u64,
    first: u64,
    count: usize,
    buffer: &mut Vec<u8>,
) -> Result<Vec<Option<Hash>>, Errno> {
    let mut hashes = Vec::with_capacity(count);
    for chunk in (first..).take(count) {
        let length = chunk_length(size, chunk);
        if length == 0 {
            break;
        }
        let offset = chunk * CHUNK as u64;
        let ranges = data_in(file, offset, length)?;
        if ranges.is_empty() {
            hashes.push(None);
            continue;
        }
        match read_ranges(file, offset, &ranges, buffer) {
            Ok(_) => hashes.push(Some(hash_chunk(length, &ranges, buffer))),
            Err(RangeError::Read(errno)) => return Err(errno),
            Err(_) => return Err(Errno::IO),
        }
    }
    Ok(hashes)
}

fn whole(length: u32) -> Vec<Range> {
    vec![Range { offset: 0, length }]
}

/// Whether a file has holes. The blocks of its attributes and of the list of its extents are allocated, too, so that a file
/// may have holes although its size is allocated. If more than they may take is without data there, that is space which
/// was reserved and not written: it is copied as data, so that it stays reserved.
fn has_holes(file: &File, size: u64, allocated: u64) -> Result<bool, Errno> {
    if allocated < size {
        return Ok(true);
    }
    // One call for most files, and none for small ones and those with more space than this explains.
    if size <= SMALL || allocated > size + HIDDEN {
        return Ok(false);
    }
    let (mut empty, mut at) = (0, 0);
    while empty <= HIDDEN {
        let hole = match rustix::fs::seek(file, SeekFrom::Hole(at)) {
            Ok(hole) if hole < size => hole,
            // No more holes; or the file system does not report them, or the file was shortened.
            Ok(_) | Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NXIO) => return Ok(empty > 0),
            Err(errno) => return Err(errno),
        };
        at = match rustix::fs::seek(file, SeekFrom::Data(hole)) {
            Ok(data) => data.min(size),
            Err(Errno::NXIO) => size,
            Err(errno) => return Err(errno),
        };
        empty += at - hole;
        if at == size {
            return Ok((1..=HIDDEN).contains(&empty));
        }
    }
    Ok(false)
}

/// The data in this part of the file. Blocks of less than 4 KiB may have more parts than are allowed: the last
/// ones are one part, including the holes between them.
fn data_in(file: &File, offset: u64, length: u32) -> Result<Vec<Range>, Errno> {
    let end = offset + u64::from(length);
    let mut ranges = Vec::new();
    let mut at = offset;
    while at < end {
        let begin = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(begin) if begin < end => begin,
            Ok(_) | Err(Errno::NXIO) => break,
            // The file system does not report holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(whole(length)),
            Err(errno) => return Err(errno),
        };
        let stop = if ranges.len() + 1 == MAX_RANGES {
            end
        } else {
            rustix::fs::seek(file, SeekFrom::Hole(begin))?.min(end)
        };
        let within = |position: u64| u32::try_from(position - offset).unwrap_or(length);
        ranges.push(Range {
            offset: within(begin),
            length: within(stop) - within(begin),
        });
        at = stop;
    }
    Ok(ranges)
}

/// The bytes of a file of this size outside of holes.
pub(crate) fn data_length(file: BorrowedFd<'_>, size: u64) -> Result<u64, Errno> {
    let (mut total, mut at) = (0, 0);
    while at < size {
        let begin = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(begin) => begin,
            Err(Errno::NXIO) => break,
            // The file system does not report holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::SPIPE) => return Ok(size),
            Err(errno) => return Err(errno),
        };
        at = rustix::fs::seek(file, SeekFrom::Hole(begin))?;
        total += at - begin;
    }
    Ok(total.min(size))
}

/// Reads the data of one chunk. If the file was truncated meanwhile, the missing part is zeros; returns
/// whether it was.
fn read_ranges(file: &File, offset: u64, ranges: &[Range], buffer: &mut Vec<u8>) -> Result<bool, RangeError> {
    let total: usize = ranges.iter().map(|range| range.length as usize).sum();
    buffer.resize(total, 0);
    let (mut rest, mut shrank) = (&mut buffer[..], false);
    for range in ranges {
        let (mut part, after) = rest.split_at_mut(range.length as usize);
        let mut at = offset + u64::from(range.offset);
        while !part.is_empty() {
            match file.read_at(part, at) {
                Ok(0) => {
                    part.fill(0);
                    shrank = true;
                    break;
                }
                Ok(count) => {
                    at += count as u64;
                    part = part.get_mut(count..).unwrap_or_default();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO).into()),
            }
        }
        rest = after;
    }
    Ok(shrank)
}

#[cfg(test)]
mod tests {
    use std::{io::Read as _, num::NonZeroU64, os::unix::net::UnixStream};

    use super::*;
    use crate::wire::FrameWriter;

    /// The kinds of the frames that are sent by `act`, with one short answer in the outbox.
    fn sent(rate: Option<u64>, act: impl FnOnce(&mut Outbox<'_>)) -> Vec<u8> {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut lane: Writer = FrameWriter::new(Box::new(near));
        let throttle = Throttle::new(rate.and_then(NonZeroU64::new));
        let mut out = Outbox::new(&mut lane, &throttle).unwrap();
        out.put(&Piece::Gone { fetch: 1 }).unwrap();
        out.silence = Duration::from_millis(10);
        act(&mut out);
        drop(out);
        drop(lane);
        let (mut bytes, mut kinds) = (Vec::new(), Vec::new());
        far.read_to_end(&mut bytes).unwrap();
        let mut rest = &bytes[..];
        while let [a, b, c, d, kind, ..] = *rest {
            kinds.push(kind);
            rest = &rest[4 + u32::from_le_bytes([a, b, c, d]) as usize..];
        }
        kinds
    }

    const PING_FRAME: u8 = FrameKind::Ping as u8;
    const BATCH_FRAME: u8 = FrameKind::Batch as u8;

    #[test]
    fn holes_are_found_in_a_file_whose_size_is_allocated() {
        let file = tempfile::tempfile().unwrap();
        let data = |at: u64| file.write_all_at(&[7; 4096], at).unwrap();
        data(4096);
        let holes = |allocated| has_holes(&file, file.metadata().unwrap().len(), allocated).unwrap();
        assert!(holes(4096) && holes(8192) && holes(8192 + HIDDEN));
        assert!(!holes(8192 + HIDDEN + 1), "so much has another reason");
        data(0);
        assert!(!holes(8192));
        file.set_len(8192 + HIDDEN).unwrap();
        assert!(holes(8192 + HIDDEN));
        file.set_len(8192 + 2 * HIDDEN).unwrap();
        assert!(!holes(8192 + 2 * HIDDEN), "it may be reserved space");
        file.set_len(4096).unwrap();
        assert!(!holes(4096));
    }

    #[test]
    fn a_lane_sends_pings_while_nothing_differs() {
        let kinds = sent(None, |out| {
            thread::sleep(Duration::from_millis(20));
            out.keep_alive().unwrap();
            thread::sleep(Duration::from_millis(20));
            out.keep_alive().unwrap();
        });
        assert_eq!(kinds, [BATCH_FRAME, PING_FRAME]);
    }

    #[test]
    fn a_lane_sends_pings_while_it_waits_for_its_bandwidth() {
        let kinds = sent(Some(100), |out| out.send().unwrap());
        assert!(matches!(kinds[..], [PING_FRAME, .., BATCH_FRAME]), "{kinds:?}");
    }
}
