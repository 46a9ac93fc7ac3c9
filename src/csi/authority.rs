//! Replaces the HTTP/2 `:authority` of kubelet's registration client, which is the path of the socket
//! (`%2Fvar%2Flib%2F…`). Go servers accept that; the server of this crate refuses it as malformed.
//! All other bytes pass unchanged. On a unix socket no service reads the value.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split},
    net::UnixStream,
};

const AUTHORITY: &[u8] = b"localhost";
/// Index of `:authority` in HPACK's static table.
const AUTHORITY_INDEX: usize = 1;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER: usize = 9;
/// Longest frame: a server may allow longer ones, and this one does not.
const FRAME_MAX: usize = 1 << 14;
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
const PRIORITY_LENGTH: usize = 5;

const PIPE: usize = 64 << 10;

/// The connection, with an authority that the server accepts.
pub(super) fn with_valid_authority(connection: UnixStream) -> DuplexStream {
    let (server_side, ours) = duplex(PIPE);
    let (mut from_client, mut to_client) = connection.into_split();
    let (mut from_server, mut to_server) = split(ours);
    tokio::spawn(async move {
        let requests = async {
            let mut stream = Requests::default();
            let mut chunk = vec![0; 4 << 10];
            loop {
                let length = from_client.read(&mut chunk).await?;
                if length == 0 {
                    return to_server.shutdown().await;
                }
                to_server.write_all(&stream.pass(&chunk[..length])).await?;
            }
        };
        let answers = async {
            tokio::io::copy(&mut from_server, &mut to_client).await?;
            to_client.shutdown().await
        };
        // Either end may close the connection at any time; the other one notices.
        let _ended = tokio::try_join!(requests, answers);
    });
    server_side
}

/// The client's half of an HTTP/2 connection, frame by frame.
#[derive(Default)]
struct Requests {
    pending: Vec<u8>,
    in_frames: bool,
    hopeless: bool,
}

impl Requests {
    /// The bytes that can be forwarded, now that `bytes` have arrived, too.
    fn pass(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.pending.extend_from_slice(bytes);
        if self.hopeless {
            return std::mem::take(&mut self.pending);
        }
        let mut passed = Vec::new();
        if !self.in_frames {
            if self.pending.len() < PREFACE.len() {
                return passed;
            }
            passed.extend(self.pending.drain(..PREFACE.len()));
            self.in_frames = true;
        }
        while let Some(length) = self.next_frame() {
            let frame: Vec<u8> = self.pending.drain(..length).collect();
            passed.extend(with_our_authority(&frame).unwrap_or(frame));
        }
        if self.hopeless {
            // Not HTTP/2 as this code knows it: the server reports the error.
            passed.append(&mut self.pending);
        }
        passed
    }

    fn next_frame(&mut self) -> Option<usize> {
        let length = u24(&self.pending)?;
        self.hopeless = length > FRAME_MAX;
        let whole = FRAME_HEADER + length;
        (!self.hopeless && self.pending.len() >= whole).then_some(whole)
    }
}

/// The frame with the replaced authority, if it has one.
fn with_our_authority(frame: &[u8]) -> Option<Vec<u8>> {
    let (header, payload) = frame.split_at_checked(FRAME_HEADER)?;
    let (kind, flags) = (header[3], header[4]);
    if kind != HEADERS || flags & END_HEADERS == 0 {
        return None;
    }
    let padding = if flags & PADDED == 0 {
        0
    } else {
        usize::from(*payload.first()?)
    };
    let start = usize::from(flags & PADDED != 0) + if flags & PRIORITY == 0 { 0 } else { PRIORITY_LENGTH };
    let end = payload.len().checked_sub(padding)?;
    let block = replace_authority(payload.get(start..end)?)?;

    let mut changed = Vec::with_capacity(frame.len());
    let length = u32::try_from(start + block.len() + padding).ok()?;
    changed.extend_from_slice(&length.to_be_bytes()[1..]);
    changed.extend_from_slice(&header[3..]);
    changed.extend_from_slice(&payload[..start]);
    changed.extend(block);
    changed.extend_from_slice(&payload[end..]);
    Some(changed)
}

/// A block of HPACK fields with the replaced authority. Entries of the dynamic table keep their
/// positions, so later requests that refer to the authority get the new one as well.
fn replace_authority(block: &[u8]) -> Option<Vec<u8>> {
    let mut at = 0;
    while let Some(first) = block.get(at) {
        let (index, after_index) = match first {
            // A field, or a table size, in one number.
            0x80.. => {
                at = integer(block, at, 7)?.1;
                continue;
            }
            0x20..0x40 => {
                at = integer(block, at, 5)?.1;
                continue;
            }
            // A field with its name, or the index of it: with or without indexing.
            0x40.. => integer(block, at, 6)?,
            _ => integer(block, at, 4)?,
        };
        let value = if index == 0 {
            string_end(block, after_index)?
        } else {
            after_index
        };
        let end = string_end(block, value)?;
        if index == AUTHORITY_INDEX {
            let length = u8::try_from(AUTHORITY.len()).ok()?;
            return Some([&block[..value], &[length], AUTHORITY, &block[end..]].concat());
        }
        at = end;
    }
    None
}

/// The position after the string that begins at `at`.
fn string_end(block: &[u8], at: usize) -> Option<usize> {
    let (length, start) = integer(block, at, 7)?;
    let end = start.checked_add(length)?;
    (end <= block.len()).then_some(end)
}

/// HPACK's integer with a prefix of `prefix` bits, and the position after it.
fn integer(block: &[u8], at: usize, prefix: u32) -> Option<(usize, usize)> {
    let limit = (1usize << prefix) - 1;
    let mut value = usize::from(*block.get(at)?) & limit;
    let mut at = at + 1;
    if value < limit {
        return Some((value, at));
    }
    // Four more bytes hold more than any frame.
    for shift in [0, 7, 14, 21] {
        let byte = usize::from(*block.get(at)?);
        at += 1;
        value += (byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((value, at));
        }
    }
    None
}

fn u24(bytes: &[u8]) -> Option<usize> {
    let header = bytes.get(..FRAME_HEADER)?;
    Some(usize::from(header[0]) << 16 | usize::from(header[1]) << 8 | usize::from(header[2]))
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn literal(index: u8, value: &[u8]) -> Vec<u8> {
        [&[0x40 | index, u8::try_from(value.len()).unwrap()], value].concat()
    }

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// The bytes of a gRPC call without a message, as kubelet's client begins a connection.
    pub(crate) fn kubelets_first_call(path: &str, authority: &str) -> Vec<u8> {
        let named = |name: &[u8], value: &[u8]| {
            let lengths = [
                u8::try_from(name.len()).unwrap(),
                u8::try_from(value.len()).unwrap(),
            ];
            [&[0x40, lengths[0]], name, &[lengths[1]], value].concat()
        };
        let fields = [
            vec![0x83, 0x86],
            literal(4, path.as_bytes()),
            literal(1, authority.as_bytes()),
            literal(31, b"application/grpc"),
            named(b"te", b"trailers"),
        ];
        let mut settings = frame(4, 0, &[]);
        settings[8] = 0;
        [
            PREFACE.to_vec(),
            settings,
            frame(HEADERS, END_HEADERS, &fields.concat()),
            frame(0, 1, &[0; 5]),
        ]
        .concat()
    }

    #[test]
    fn only_the_authority_changes_however_the_bytes_arrive() {
        let socket = "%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fx-reg.sock";
        let (sent, expected) = (
            kubelets_first_call("/p/Get", socket),
            kubelets_first_call("/p/Get", "localhost"),
        );
        for size in [1, 2, 9, 10, 33, sent.len()] {
            let mut stream = Requests::default();
            let passed: Vec<u8> = sent.chunks(size).flat_map(|chunk| stream.pass(chunk)).collect();
            assert_eq!(passed, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn compressed_and_padded_authorities_are_found() {
        // The first request of RFC 7541 C.4.1, Huffman-coded.
        let coded = b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff";
        let changed = b"\x82\x86\x84\x41\x09localhost";
        assert_eq!(replace_authority(coded).unwrap(), changed);
        // The second one refers to it by number.
        assert_eq!(
            replace_authority(b"\x82\x86\x84\xbe\x58\x86\xa8\xeb\x10\x64\x9c\xbf"),
            None
        );

        let padded = |block: &[u8]| {
            let payload = [&[3], &[9; PRIORITY_LENGTH][..], block, &[0; 3]].concat();
            frame(HEADERS, END_HEADERS | PADDED | PRIORITY, &payload)
        };
        assert_eq!(with_our_authority(&padded(coded)), Some(padded(changed)));
    }

    proptest! {
        #[test]
        fn no_bytes_of_a_client_make_the_authority_filter_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut stream = Requests::default();
            stream.pass(PREFACE);
            stream.pass(&bytes);
            let _ = replace_authority(&bytes);
            let _ = with_our_authority(&bytes);
        }

        #[test]
        fn frames_without_authority_are_not_changed(payload in proptest::collection::vec(any::<u8>(), 0..200), kind in 2u8..10) {
            let sent = [PREFACE.to_vec(), frame(kind, 0, &payload)].concat();
            prop_assert_eq!(Requests::default().pass(&sent), sent);
        }
    }
}
