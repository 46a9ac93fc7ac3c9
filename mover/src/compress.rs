//! zstd for batches: the fastest level, and no compression while it gains nothing.

use crate::{piece::MAX_BATCH, wire::WireError};

const PLAIN: u8 = 0;
const ZSTD: u8 = 1;
const LEVEL: i32 = -1;
/// After this many batches in a row that shrank by less than a tenth ...
const INCOMPRESSIBLE_BATCHES: u32 = 8;
/// ... this many are sent uncompressed before it is tried again.
const PAUSE: u32 = 64;

/// Creates the payloads of batch frames.
pub(crate) struct Encoder {
    zstd: zstd::bulk::Compressor<'static>,
    poor: u32,
    pause: u32,
    payload: Vec<u8>,
}

impl Encoder {
    pub(crate) fn new() -> std::io::Result<Self> {
        let zstd = zstd::bulk::Compressor::new(LEVEL)?;
        Ok(Self {
            zstd,
            poor: 0,
            pause: 0,
            payload: Vec::new(),
        })
    }

    pub(crate) fn encode(&mut self, pieces: &[u8]) -> &[u8] {
        if self.pause > 0 {
            self.pause -= 1;
            return self.plain(pieces);
        }
        let bound = zstd::zstd_safe::compress_bound(pieces.len());
        self.begin(ZSTD, pieces.len());
        self.payload.resize(5 + bound, 0);
        let body = self.payload.get_mut(5..).unwrap_or_default();
        let Ok(length) = self.zstd.compress_to_buffer(pieces, body) else {
            return self.plain(pieces);
        };
        if length > pieces.len() / 10 * 9 {
            self.poor += 1;
            if self.poor >= INCOMPRESSIBLE_BATCHES {
                (self.poor, self.pause) = (0, PAUSE);
            }
            return self.plain(pieces);
        }
        self.poor = 0;
        self.payload.truncate(5 + length);
        &self.payload
    }

    fn plain(&mut self, pieces: &[u8]) -> &[u8] {
        self.begin(PLAIN, pieces.len());
        self.payload.extend_from_slice(pieces);
        &self.payload
    }

    fn begin(&mut self, encoding: u8, length: usize) {
        self.payload.clear();
        self.payload.push(encoding);
        self.payload
            .extend(u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    }
}

/// Decodes the payloads of batch frames.
pub(crate) struct Decoder {
    zstd: zstd::bulk::Decompressor<'static>,
    plain: Vec<u8>,
}

impl Decoder {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            zstd: zstd::bulk::Decompressor::new()?,
            plain: Vec::new(),
        })
    }

    /// The pieces in this payload. They are never longer than the declared and bounded length, however small
    /// the payload is.
    pub(crate) fn decode<'a>(&'a mut self, payload: &'a [u8]) -> Result<&'a [u8], WireError> {
        let Some(([encoding, a, b, c, d], body)) = payload.split_first_chunk::<5>() else {
            return Err(WireError::Frame("a batch has no header"));
        };
        let length = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
        if length > MAX_BATCH {
            return Err(WireError::Frame("a batch exceeds the maximum length"));
        }
        match *encoding {
            PLAIN if body.len() == length => Ok(body),
            ZSTD => {
                self.plain.resize(length, 0);
                match self.zstd.decompress_to_buffer(body, &mut self.plain[..]) {
                    Ok(got) if got == length => Ok(&self.plain),
                    _ => Err(WireError::Frame("a batch does not have its declared length")),
                }
            }
            _ => Err(WireError::Frame(
                "a batch has an unknown encoding, or not its declared length",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn compression_stops_while_it_gains_nothing() {
        let mut state = 1u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(1 << 16)
        .collect();
        let zeros = vec![0; 1 << 16];
        let mut encoder = Encoder::new().unwrap();
        for _ in 0..INCOMPRESSIBLE_BATCHES {
            assert_eq!(encoder.encode(&noise)[0], PLAIN);
        }
        for _ in 0..PAUSE {
            assert_eq!(encoder.encode(&zeros)[0], PLAIN);
        }
        let packed = encoder.encode(&zeros).to_vec();
        assert_eq!(packed[0], ZSTD);
        assert_eq!(Decoder::new().unwrap().decode(&packed).unwrap(), &zeros[..]);
    }

    #[test]
    fn a_decompression_bomb_is_refused() {
        let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 19).unwrap();
        assert!(bomb.len() < 16 << 10);
        for length in [1u32, 1 << 20, 3 << 20, u32::MAX] {
            let payload = [&[ZSTD][..], &length.to_le_bytes(), &bomb].concat();
            assert!(Decoder::new().unwrap().decode(&payload).is_err());
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(
            encoding in 0u8..3, length in 0u32..4096, body in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut decoder = Decoder::new().unwrap();
            let payload = [&[encoding][..], &length.to_le_bytes(), &body].concat();
            let _ = decoder.decode(&payload);
            let mut packed = Encoder::new().unwrap().encode(&vec![7; 4096]).to_vec();
            for (at, byte) in body.iter().enumerate() {
                let at = at * 7 % packed.len();
                packed[at] ^= byte;
            }
            let _ = decoder.decode(&packed);
        }
    }
}
