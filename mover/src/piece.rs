//! The data lanes: batches of pieces, each of which is the answer to a fetch or a part of it. Encoded by
//! hand, because nearly all bytes are sent in this form.
//!
//! ```text
//! batch  encoding u8 (0 plain, 1 zstd), plain length u32, pieces
//! piece  tag u8, fetch u64, then by tag:
//!   1 data   chunk u64, hash [32], length u32, ranges u16, ranges × (offset u32, length u32), bytes
//!   2 holes  first chunk u64, chunks u32
//!   3 end    size u64, steady u8, hash over the hashes of the range [32]
//!   4 gone
//!   5 failed errno u32
//! ```
//!
//! Numbers are little-endian.

use crate::entry::Hash;

/// The unit in which files are hashed, compared and sent.
pub const CHUNK: usize = 1 << 20;
/// Maximum number of chunks in one fetch.
pub(crate) const FETCH_CHUNKS: u32 = 16;
/// Ranges of data in one chunk: one every other block of 4 KiB.
pub(crate) const MAX_RANGES: usize = CHUNK / 8192 + 1;
/// A batch is sent when it has this many bytes; it may exceed them by one chunk.
pub(crate) const BATCH: usize = CHUNK;
/// The longest batch before compression.
pub(crate) const MAX_BATCH: usize = 3 * CHUNK;

/// Data in a chunk: its offset and length. The rest is holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    Data {
        fetch: u64,
        chunk: u64,
        hash: Hash,
        length: u32,
        ranges: Vec<Range>,
        bytes: &'a [u8],
    },
    Holes {
        fetch: u64,
        first: u64,
        chunks: u32,
    },
    End {
        fetch: u64,
        size: u64,
        steady: bool,
        hash: Hash,
    },
    Gone {
        fetch: u64,
    },
    Failed {
        fetch: u64,
        errno: u32,
    },
}

/// Bytes that are not a valid batch.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub(crate) struct BadPiece(&'static str);

impl Piece<'_> {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Data {
                fetch,
                chunk,
                hash,
                length,
                ranges,
                bytes,
            } => {
                head(out, 1, *fetch);
                out.extend(chunk.to_le_bytes());
                out.extend(hash);
                out.extend(length.to_le_bytes());
                out.extend(u16::try_from(ranges.len()).unwrap_or(u16::MAX).to_le_bytes());
                for range in ranges {
                    out.extend(range.offset.to_le_bytes());
                    out.extend(range.length.to_le_bytes());
                }
                out.extend_from_slice(bytes);
            }
            Self::Holes { fetch, first, chunks } => {
                head(out, 2, *fetch);
                out.extend(first.to_le_bytes());
                out.extend(chunks.to_le_bytes());
            }
            Self::End {
                fetch,
                size,
                steady,
                hash,
            } => {
                head(out, 3, *fetch);
                out.extend(size.to_le_bytes());
                out.push((*steady).into());
                out.extend(hash);
            }
            Self::Gone { fetch } => head(out, 4, *fetch),
            Self::Failed { fetch, errno } => {
                head(out, 5, *fetch);
                out.extend(errno.to_le_bytes());
            }
        }
    }
}

fn head(out: &mut Vec<u8>, tag: u8, fetch: u64) {
    out.push(tag);
    out.extend(fetch.to_le_bytes());
}

/// Iterates over the pieces of one batch.
pub(crate) struct Pieces<'a>(&'a [u8]);

impl<'a> Pieces<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next piece; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Piece<'a>>, BadPiece> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let [tag] = self.array()?;
        let fetch = u64::from_le_bytes(self.array()?);
        Ok(Some(match tag {
            1 => self.data(fetch)?,
            2 => Piece::Holes {
                fetch,
                first: u64::from_le_bytes(self.array()?),
                chunks: u32::from_le_bytes(self.array()?),
            },
            3 => Piece::End {
                fetch,
                size: u64::from_le_bytes(self.array()?),
                steady: self.array::<1>()? == [1],
                hash: self.array()?,
            },
            4 => Piece::Gone { fetch },
            5 => Piece::Failed {
                fetch,
                errno: u32::from_le_bytes(self.array()?),
            },
            _ => return Err(BadPiece("a piece has an unknown kind")),
        }))
    }

    fn data(&mut self, fetch: u64) -> Result<Piece<'a>, BadPiece> {
        let chunk = u64::from_le_bytes(self.array()?);
        let hash = self.array()?;
        let length = u32::from_le_bytes(self.array()?);
        let count = usize::from(u16::from_le_bytes(self.array()?));
        if length as usize > CHUNK || length == 0 || count > MAX_RANGES {
            return Err(BadPiece("a chunk exceeds the maximum length or number of parts"));
        }
        let mut ranges = Vec::with_capacity(count);
        let (mut end, mut total) = (0, 0);
        for _ in 0..count {
            let offset = u32::from_le_bytes(self.array()?);
            let range = Range {
                offset,
                length: u32::from_le_bytes(self.array()?),
            };
            let after = range.offset.checked_add(range.length);
            if range.length == 0 || range.offset < end || after.is_none_or(|after| after > length) {
                return Err(BadPiece("the parts of a chunk are out of bounds or out of order"));
            }
            end = range.offset + range.length;
            total += range.length as usize;
            ranges.push(range);
        }
        Ok(Piece::Data {
            fetch,
            chunk,
            hash,
            length,
            ranges,
            bytes: self.take(total)?,
        })
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], BadPiece> {
        let (taken, rest) = self
            .0
            .split_at_checked(count)
            .ok_or(BadPiece("a batch ends in the middle of a piece"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadPiece> {
        let (taken, rest) = self
            .0
            .split_first_chunk::<N>()
            .ok_or(BadPiece("a batch ends in the middle of a piece"))?;
        self.0 = rest;
        Ok(*taken)
    }
}

/// The hash of a chunk in which only `ranges` are data.
pub(crate) fn hash_chunk(length: u32, ranges: &[Range], bytes: &[u8]) -> Hash {
    if let [range] = ranges
        && range.offset == 0
        && range.length == length
    {
        return *blake3::hash(bytes).as_bytes();
    }
    let mut hasher = blake3::Hasher::new();
    let (mut at, mut rest) = (0, bytes);
    for range in ranges {
        put_zeros(&mut hasher, range.offset - at);
        let (data, after) = rest.split_at(range.length as usize);
        hasher.update(data);
        (at, rest) = (range.offset + range.length, after);
    }
    put_zeros(&mut hasher, length - at);
    *hasher.finalize().as_bytes()
}

/// The hash of a chunk that is a hole.
pub(crate) fn hash_hole(length: u32) -> Hash {
    static FULL_CHUNK: std::sync::OnceLock<Hash> = std::sync::OnceLock::new();
    if length as usize == CHUNK {
        return *FULL_CHUNK.get_or_init(|| hash_chunk(length, &[], &[]));
    }
    hash_chunk(length, &[], &[])
}

fn put_zeros(hasher: &mut blake3::Hasher, mut count: u32) {
    static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
    while count > 0 {
        let now = count.min(1 << 16);
        hasher.update(ZEROS.get(..now as usize).unwrap_or_default());
        count -= now;
    }
}

/// The hash of a file's content, or of a range of it: that of the only chunk, or one over the hashes of all
/// chunks.
pub(crate) fn hash_of_hashes<'a>(mut hashes: impl ExactSizeIterator<Item = &'a Hash>) -> Hash {
    if hashes.len() == 1 {
        return hashes.next().copied().unwrap_or_default();
    }
    let mut all = blake3::Hasher::new();
    for hash in hashes {
        all.update(hash);
    }
    *all.finalize().as_bytes()
}

/// The number of chunks of a file of this size.
pub(crate) fn chunks_of(size: u64) -> u64 {
    size.div_ceil(CHUNK as u64)
}

/// The length of this chunk in a file of this size; zero after its end.
pub(crate) fn chunk_length(size: u64, chunk: u64) -> u32 {
    let rest = size.saturating_sub(chunk.saturating_mul(CHUNK as u64));
    u32::try_from(rest.min(CHUNK as u64)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pieces_survive_the_round_trip() {
        let ranges = vec![
            Range { offset: 4, length: 3 },
            Range {
                offset: 10,
                length: 1,
            },
        ];
        let pieces = [
            Piece::Data {
                fetch: 7,
                chunk: 9,
                hash: [1; 32],
                length: 12,
                ranges,
                bytes: b"abcd",
            },
            Piece::Holes {
                fetch: 7,
                first: 10,
                chunks: 3,
            },
            Piece::End {
                fetch: 7,
                size: 99,
                steady: true,
                hash: [2; 32],
            },
            Piece::Gone { fetch: 8 },
            Piece::Failed { fetch: 9, errno: 5 },
        ];
        let mut bytes = Vec::new();
        for piece in &pieces {
            piece.put(&mut bytes);
        }
        let mut read = Pieces::of(&bytes);
        for piece in &pieces {
            assert_eq!(read.next().unwrap().as_ref(), Some(piece));
        }
        assert_eq!(read.next(), Ok(None));
    }

    #[test]
    fn holes_hash_as_the_zeros_they_are() {
        let mut plain = vec![0; 200_000];
        plain[70_000..70_003].copy_from_slice(b"abc");
        let range = Range {
            offset: 70_000,
            length: 3,
        };
        assert_eq!(
            hash_chunk(200_000, &[range], b"abc"),
            *blake3::hash(&plain).as_bytes()
        );
        assert_eq!(hash_hole(1 << 20), *blake3::hash(&vec![0; 1 << 20]).as_bytes());
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), tag in 0u8..7) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() { *first = tag; }
            let mut pieces = Pieces::of(&bytes);
            while let Ok(Some(_)) = pieces.next() {}
        }

        #[test]
        fn a_changed_byte_of_a_piece_never_leads_outside_of_its_chunk(at in 0usize..90, value: u8) {
            let ranges = vec![Range { offset: 4, length: 3 }, Range { offset: 10, length: 9 }];
            let mut bytes = Vec::new();
            Piece::Data { fetch: 7, chunk: 9, hash: [1; 32], length: 20, ranges, bytes: &[7; 12] }.put(&mut bytes);
            let at = at % bytes.len();
            bytes[at] = value;
            if let Ok(Some(Piece::Data { length, ranges, bytes, .. })) = Pieces::of(&bytes).next() {
                prop_assert_eq!(ranges.iter().map(|range| range.length as usize).sum::<usize>(), bytes.len());
                prop_assert!(ranges.iter().all(|range| range.offset + range.length <= length));
                hash_chunk(length, &ranges, bytes);
            }
        }
    }
}
