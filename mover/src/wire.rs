//! Frames on one lane: length, kind, payload. A lane carries them in one direction; TCP does the flow
//! control. The end of the stream has no meaning: every end is sent in a frame.

use std::io::{self, BufReader, BufWriter, Read, Write};

/// The longest frame.
pub(crate) const MAX_FRAME: usize = 4 << 20;
/// Maximum length of a control message: decoded, it may be sixty times as large.
pub(crate) const MAX_CONTROL: usize = 640 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    Hello = 1,
    Control = 2,
    Batch = 3,
    Ping = 4,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error("{0}")]
    Broken(#[from] io::Error),
    #[error("{0}")]
    Frame(&'static str),
}

impl FrameKind {
    fn parse(byte: u8) -> Option<Self> {
        [Self::Hello, Self::Control, Self::Batch, Self::Ping]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }

    fn limit(self) -> usize {
        match self {
            Self::Hello => 4096,
            Self::Control => MAX_CONTROL,
            Self::Batch => MAX_FRAME,
            Self::Ping => 0,
        }
    }
}

/// Writes frames.
pub(crate) struct FrameWriter<W: Write>(BufWriter<W>);

impl<W: Write> FrameWriter<W> {
    pub(crate) fn new(stream: W) -> Self {
        Self(BufWriter::with_capacity(64 << 10, stream))
    }

    pub(crate) fn send(&mut self, kind: FrameKind, payload: &[u8]) -> Result<(), WireError> {
        if payload.len() > kind.limit() {
            return Err(WireError::Frame("a frame to be sent is too long"));
        }
        let length = u32::try_from(payload.len() + 1).unwrap_or(u32::MAX);
        self.0.write_all(&length.to_le_bytes())?;
        self.0.write_all(&[kind as u8])?;
        self.0.write_all(payload)?;
        Ok(())
    }

    pub(crate) fn flush(&mut self) -> Result<(), WireError> {
        Ok(self.0.flush()?)
    }

    #[cfg(test)]
    pub(crate) fn into_stream(self) -> Result<W, WireError> {
        self.0
            .into_inner()
            .map_err(|error| WireError::Broken(error.into_error()))
    }
}

/// Reads frames into one buffer, which grows to the longest one so far.
pub(crate) struct FrameReader<R: Read> {
    stream: BufReader<R>,
    payload: Vec<u8>,
}

impl<R: Read> FrameReader<R> {
    pub(crate) fn new(stream: R) -> Self {
        Self {
            stream: BufReader::with_capacity(64 << 10, stream),
            payload: Vec::new(),
        }
    }

    /// The next frame that is not a ping.
    pub(crate) fn next(&mut self) -> Result<(FrameKind, &[u8]), WireError> {
        loop {
            let mut head = [0; 5];
            self.stream.read_exact(&mut head)?;
            let [a, b, c, d, kind] = head;
            let length = u32::from_le_bytes([a, b, c, d]) as usize;
            let kind = FrameKind::parse(kind).ok_or(WireError::Frame("a frame has an unknown kind"))?;
            if length == 0 || length - 1 > kind.limit() {
                return Err(WireError::Frame("a frame exceeds the maximum length of its kind"));
            }
            // Not allocated all at once: a length costs the peer only four bytes.
            self.payload.clear();
            let wanted = length as u64 - 1;
            let got = (&mut self.stream).take(wanted).read_to_end(&mut self.payload)?;
            if got as u64 != wanted {
                return Err(WireError::Broken(io::ErrorKind::UnexpectedEof.into()));
            }
            if kind != FrameKind::Ping {
                return Ok((kind, &self.payload));
            }
        }
    }

    /// Whether more can be read without waiting.
    pub(crate) fn has_more(&self) -> bool {
        !self.stream.buffer().is_empty()
    }

    /// The next frame, which must be of this kind.
    pub(crate) fn next_of(&mut self, wanted: FrameKind) -> Result<&[u8], WireError> {
        match self.next()? {
            (kind, payload) if kind == wanted => Ok(payload),
            _ => Err(WireError::Frame(
                "a frame has a kind that is not allowed on this lane",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, length: u32, payload: &[u8]) -> Vec<u8> {
        [&length.to_le_bytes()[..], &[kind], payload].concat()
    }

    #[test]
    fn frames_are_read_back_without_the_pings() {
        let mut writer = FrameWriter::new(Vec::new());
        writer.send(FrameKind::Control, b"one").unwrap();
        writer.send(FrameKind::Ping, b"").unwrap();
        writer.send(FrameKind::Batch, b"").unwrap();
        let bytes = writer.into_stream().unwrap();
        let mut reader = FrameReader::new(&bytes[..]);
        assert_eq!(reader.next().unwrap(), (FrameKind::Control, &b"one"[..]));
        assert_eq!(reader.next().unwrap(), (FrameKind::Batch, &b""[..]));
        assert!(matches!(reader.next(), Err(WireError::Broken(_))));
    }

    #[test]
    fn a_false_frame_length_allocates_no_memory() {
        let bytes = frame(FrameKind::Batch as u8, 1 + (4 << 20), b"abc");
        let mut reader = FrameReader::new(&bytes[..]);
        assert!(matches!(reader.next(), Err(WireError::Broken(_))));
        assert!(reader.payload.capacity() < 1 << 17);
        for (kind, length) in [
            (3, u32::MAX),
            (3, 2 + (4 << 20)),
            (2, 3 << 20),
            (4, 2),
            (9, 1),
            (1, 0),
        ] {
            let bytes = frame(kind, length, &[0; 64]);
            assert!(
                matches!(FrameReader::new(&bytes[..]).next(), Err(WireError::Frame(_))),
                "{kind} {length}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_frame_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut reader = FrameReader::new(&bytes[..]);
            while reader.next().is_ok() {}
        }
    }
}
