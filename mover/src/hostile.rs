//! Tests in which one side is an attacker with valid certificates: it sends messages that no honest peer
//! sends, or changes bytes of honest ones.

use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::{OnceLock, mpsc},
    thread,
    time::Duration,
};

use proptest::prelude::*;
use prost::Message as _;
use rustix::fs::{Mode, OFlags};

use crate::{
    credentials::{Identity, MoveId, issue},
    entry::{Attributes, Entry, Hash, Inode, Kind, Stamp, Time},
    error::Error,
    lanes::{Acceptor, DOWN, SourceLanes, TargetLanes, Writer, connect},
    link::next_message,
    message::{
        Begin, ClockReading, Fetches, FromSource, FromTarget, Known, KnownDirectory, Listing, RawEntry,
        RawFetch, RawInode, RawStamp, Ready, ScanEnd, SourceMessage, TargetMessage,
    },
    path::{Name, TreePath},
    piece::{Piece, Pieces, Range},
    source::Source,
    target::{PassOptions, Target},
    throttle::Throttle,
    wire::FrameKind,
};

fn id() -> MoveId {
    MoveId::new("0b5c2e9a", 1).unwrap()
}

fn identities() -> &'static (Identity, Identity) {
    static IDENTITIES: OnceLock<(Identity, Identity)> = OnceLock::new();
    IDENTITIES.get_or_init(|| issue(&id()).unwrap())
}

fn acceptor() -> (Acceptor, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (Acceptor::new(listener, &id(), &identities().1).unwrap(), address)
}

fn dial(address: SocketAddr) -> SourceLanes {
    connect(&id(), &identities().0, 1, || TcpStream::connect(address)).unwrap()
}

/// A volume, and files next to it that must be neither changed nor read.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("outside")).unwrap();
        fs::create_dir_all(folder.path().join("root")).unwrap();
        fs::write(folder.path().join("outside/secret"), "secret").unwrap();
        Self(folder)
    }

    fn root(&self) -> std::path::PathBuf {
        self.0.path().join("root")
    }

    fn outside(&self) -> std::path::PathBuf {
        self.0.path().join("outside")
    }

    fn assert_untouched(&self) {
        let outside: Vec<_> = fs::read_dir(self.outside())
            .unwrap()
            .map(|it| it.unwrap().file_name())
            .collect();
        assert_eq!(outside, ["secret"]);
        assert_eq!(fs::read(self.outside().join("secret")).unwrap(), b"secret");
        assert_eq!(fs::read_dir(self.0.path()).unwrap().count(), 2);
    }
}

/// Frames of the control lane, then batches.
#[derive(Clone, Debug, Default)]
struct Script {
    control: Vec<Vec<u8>>,
    batches: Vec<Vec<u8>>,
}

impl Script {
    fn of(messages: Vec<SourceMessage>) -> Self {
        let ready = Ready {
            clock: ClockReading {
                wall_nanos: 1,
                offset_nanos: 1,
                boot_id: "b".to_owned(),
                tick_nanos: 1,
            },
            stamps_count: true,
            device_size: 0,
            used: 0,
            own_files: 0,
            sees_trusted: false,
            nocow: false,
        };
        let message = std::iter::once(SourceMessage::Ready(ready)).chain(messages);
        Self {
            control: message
                .map(|message| {
                    FromSource {
                        message: Some(message),
                    }
                    .encode_to_vec()
                })
                .collect(),
            batches: Vec::new(),
        }
    }

    fn with(mut self, pieces: &[Piece<'_>]) -> Self {
        let mut bytes = Vec::new();
        for piece in pieces {
            piece.put(&mut bytes);
        }
        self.batches.push(
            [
                &[0][..],
                &u32::try_from(bytes.len()).unwrap().to_le_bytes(),
                &bytes,
            ]
            .concat(),
        );
        self
    }
}

/// Runs a target against a source that sends a script.
fn play(root: &Path, script: Script) -> Result<(), Error> {
    play_for(root, script, Duration::from_secs(20))
}

/// The same, for a source that may leave the target waiting: it disconnects after a while.
fn play_for(root: &Path, script: Script, patience: Duration) -> Result<(), Error> {
    let (acceptor, address) = acceptor();
    let playing = thread::spawn(move || {
        let SourceLanes {
            mut up,
            mut down,
            mut data,
            cutter,
        } = dial(address);
        let send = |lane: &mut Writer, kind, payload: &[u8]| {
            lane.send(kind, payload).and_then(|()| lane.flush()).is_ok()
        };
        let _ = down.next();
        let all_said = script
            .control
            .iter()
            .all(|frame| send(&mut up, FrameKind::Control, frame));
        if !script.batches.is_empty() && all_said {
            // Content is valid only after it was requested.
            while let Ok((_, payload)) = down.next() {
                if matches!(
                    FromTarget::decode(payload),
                    Ok(FromTarget {
                        message: Some(TargetMessage::Fetch(_))
                    })
                ) {
                    break;
                }
            }
            script
                .batches
                .iter()
                .all(|batch| send(&mut data[0], FrameKind::Batch, batch));
        }
        let (over, ended) = std::sync::mpsc::channel();
        let waiting = thread::spawn(move || {
            while down.next().is_ok() {}
            let _ = over.send(());
        });
        let _ = ended.recv_timeout(patience);
        cutter.cut();
        waiting.join().unwrap();
    });
    let lanes = acceptor.accept(Duration::from_mins(1)).unwrap().unwrap();
    let mut target = Target::open(root, &id()).unwrap();
    let result = target.session(lanes).pass(PassOptions::default()).map(|_| ());
    playing.join().unwrap();
    result
}

fn directory() -> RawInode {
    let attributes = Attributes {
        mode: 0o755,
        ..Attributes::default()
    };
    (&Inode {
        kind: Kind::Directory,
        stamp: stamp(),
        attributes,
        linked: false,
    })
        .into()
}

fn stamp() -> Stamp {
    Stamp {
        ino: 9,
        size: 0,
        mtime: Time { secs: 5, nanos: 5 },
        ctime: Time { secs: 5, nanos: 5 },
    }
}

fn entry(name: &str, kind: Kind) -> RawEntry {
    let attributes = Attributes {
        mode: 0o644,
        ..Attributes::default()
    };
    let size = if kind == Kind::File { 6 } else { 0 };
    let inode = Inode {
        kind,
        stamp: Stamp { size, ..stamp() },
        attributes,
        linked: false,
    };
    RawEntry {
        name: name.as_bytes().to_vec(),
        inode: (&inode).into(),
    }
}

fn list(path: &str, entries: &[RawEntry]) -> SourceMessage {
    SourceMessage::Listing(Listing {
        path: path.as_bytes().to_vec(),
        own: Some(directory()),
        entries: entries.iter().map(RawEntry::encode_to_vec).collect(),
        last: true,
        losses: Vec::new(),
    })
}

fn end() -> SourceMessage {
    SourceMessage::ScanEnd(ScanEnd::default())
}

fn refused_as_protocol(what: &str, messages: Vec<SourceMessage>) {
    let place = Place::new();
    let result = play(&place.root(), Script::of(messages));
    assert!(matches!(result, Err(Error::Protocol(_))), "{what}: {result:?}");
    place.assert_untouched();
}

#[test]
fn a_source_cannot_name_what_is_not_in_the_tree() {
    for path in [
        "..",
        "../outside",
        "/",
        "/etc",
        "a/../../outside",
        "a//b",
        "a/.",
        "a\0b",
    ] {
        refused_as_protocol(
            path,
            vec![list("", &[]), list(path, &[entry("new", Kind::Fifo)]), end()],
        );
    }
    for name in ["..", ".", "", "a/b", "../outside/new", "/etc/new", "a\0b"] {
        refused_as_protocol(name, vec![list("", &[entry(name, Kind::Fifo)]), end()]);
    }
    let journal = format!(".liqo-move-{}", id().uid());
    refused_as_protocol(
        "the journal",
        vec![list("", &[entry(&journal, Kind::Fifo)]), end()],
    );
    refused_as_protocol(
        "in the journal",
        vec![list("", &[]), list(&format!("{journal}/links"), &[]), end()],
    );
}

#[test]
fn a_source_cannot_write_through_a_link_it_has_sent() {
    let place = Place::new();
    let outside = place.outside().into_os_string().into_encoded_bytes();
    let messages = vec![
        list("", &[entry("d", Kind::Symlink(outside.clone()))]),
        list(
            "d",
            &[
                entry("new", Kind::Fifo),
                entry("secret", Kind::Symlink(b"x".to_vec())),
            ],
        ),
        end(),
    ];
    play(&place.root(), Script::of(messages)).unwrap();
    place.assert_untouched();

    // The link exists now, and the next pass sends it as a directory, then as a file.
    assert!(place.root().join("d").is_symlink());
    let messages = vec![
        list("", &[entry("d", Kind::Directory)]),
        list("d", &[entry("new", Kind::Fifo)]),
        end(),
    ];
    play(&place.root(), Script::of(messages)).unwrap();
    place.assert_untouched();
    assert!(place.root().join("d/new").symlink_metadata().is_ok());
    let result = play(
        &place.root(),
        Script::of(vec![list("", &[entry("d", Kind::Symlink(outside))]), end()]),
    );
    result.unwrap();
    let hash: Hash = *blake3::hash(b"public").as_bytes();
    let file = Piece::Data {
        fetch: 0,
        chunk: 0,
        hash,
        length: 6,
        ranges: vec![Range { offset: 0, length: 6 }],
        bytes: b"public",
    };
    let done = Piece::End {
        fetch: 0,
        size: 6,
        steady: true,
        hash,
    };
    let messages = vec![list("", &[entry("d", Kind::File)]), end()];
    play(&place.root(), Script::of(messages).with(&[file, done])).unwrap();
    assert_eq!(fs::read(place.root().join("d")).unwrap(), b"public");
    place.assert_untouched();
}

#[test]
fn a_source_must_keep_the_order_and_set_only_allowed_attributes() {
    let fifo = |name| entry(name, Kind::Fifo);
    refused_as_protocol(
        "names out of order",
        vec![list("", &[fifo("b"), fifo("a")]), end()],
    );
    refused_as_protocol("a name twice", vec![list("", &[fifo("a"), fifo("a")]), end()]);
    refused_as_protocol("not from the root", vec![list("a", &[]), end()]);
    refused_as_protocol("no root at all", vec![end()]);
    refused_as_protocol("a directory twice", vec![list("", &[]), list("", &[]), end()]);
    refused_as_protocol(
        "the same without ever",
        vec![SourceMessage::Same(Vec::new()), end()],
    );
    let half = SourceMessage::Listing(Listing {
        own: Some(directory()),
        last: false,
        ..Listing::default()
    });
    refused_as_protocol("half a directory", vec![half.clone(), end()]);
    refused_as_protocol("another in the middle", vec![half, list("a", &[]), end()]);
    refused_as_protocol(
        "a part of nothing",
        vec![SourceMessage::Listing(Listing {
            last: true,
            ..Listing::default()
        })],
    );
    let change = |change: fn(&mut RawInode)| {
        let mut entry = entry("a", Kind::Fifo);
        change(&mut entry.inode);
        vec![list("", &[entry]), end()]
    };
    let xattr = |name: &[u8]| crate::message::RawXattr {
        name: name.to_vec(),
        value: vec![1],
    };
    refused_as_protocol("a kind", change(|inode| inode.kind = 99));
    refused_as_protocol("a mode", change(|inode| inode.mode = 0o10_0644));
    refused_as_protocol("an owner", change(|inode| inode.uid = u32::MAX));
    refused_as_protocol("a link to nothing", change(|inode| inode.kind = 3));
    for name in [
        &b"trusted.x"[..],
        b"security.selinux",
        b"security.ima",
        b"user.",
        b"user.\0",
        b"",
    ] {
        let mut entry = entry("a", Kind::Fifo);
        entry.inode.xattrs = vec![xattr(name)];
        refused_as_protocol("an extended attribute", vec![list("", &[entry]), end()]);
    }
}

#[test]
fn a_source_cannot_send_bytes_that_were_not_requested() {
    let hash: Hash = *blake3::hash(b"public").as_bytes();
    let data = |fetch, chunk, hash, bytes: &'static [u8]| {
        let length = u32::try_from(bytes.len()).unwrap();
        Piece::Data {
            fetch,
            chunk,
            hash,
            length,
            ranges: vec![Range { offset: 0, length }],
            bytes,
        }
    };
    let cases: Vec<(&str, Vec<Piece<'_>>)> = vec![
        ("of no fetch", vec![data(7, 0, hash, b"public")]),
        ("another chunk", vec![data(0, 1, hash, b"public")]),
        ("a chunk far away", vec![data(0, u64::MAX / 2, hash, b"public")]),
        (
            "holes without end",
            vec![Piece::Holes {
                fetch: 0,
                first: 0,
                chunks: u32::MAX,
            }],
        ),
        (
            "holes elsewhere",
            vec![Piece::Holes {
                fetch: 0,
                first: u64::MAX,
                chunks: 2,
            }],
        ),
        (
            "the end twice",
            vec![Piece::Gone { fetch: 0 }, Piece::Gone { fetch: 0 }],
        ),
        ("a false hash", vec![data(0, 0, [7; 32], b"public")]),
        (
            "nothing at all",
            vec![Piece::End {
                fetch: 0,
                size: 6,
                steady: true,
                hash,
            }],
        ),
        (
            "another whole",
            vec![
                data(0, 0, hash, b"public"),
                Piece::End {
                    fetch: 0,
                    size: 6,
                    steady: true,
                    hash: [7; 32],
                },
            ],
        ),
        ("an error", vec![Piece::Failed { fetch: 0, errno: 5 }]),
        ("a lease", vec![Piece::Failed { fetch: 0, errno: 11 }]),
    ];
    for (what, pieces) in cases {
        let place = Place::new();
        let script = Script::of(vec![list("", &[entry("f", Kind::File)]), end()]).with(&pieces);
        let result = play(&place.root(), script);
        match (what, &result) {
            ("a false hash" | "nothing at all" | "another whole", Err(Error::Corrupt { path, .. }))
            | ("an error", Err(Error::Unreadable { path, .. }))
            | ("a lease", Err(Error::Leased { path })) => assert_eq!(path.to_string(), "f"),
            (_, Err(Error::Protocol(_))) if !what.starts_with("an") || what == "another chunk" => {}
            _ => panic!("{what}: {result:?}"),
        }
    }
    // Invalid batches.
    for payload in [
        &b""[..],
        b"\x02\0\0\0\0",
        b"\x01\xff\xff\xff\xff",
        b"\x00\x05\0\0\0abc",
        b"\x00\x01\0\0\0\x09",
    ] {
        let place = Place::new();
        let mut script = Script::of(vec![list("", &[entry("f", Kind::File)]), end()]);
        script.batches.push(payload.to_vec());
        let result = play(&place.root(), script);
        assert!(
            matches!(result, Err(Error::Protocol(_))),
            "{payload:?}: {result:?}"
        );
    }
}

/// Thousands of files may be requested at a time, and a container may have only 1024 descriptors.
#[test]
fn requested_files_take_no_descriptors_until_content_arrives() {
    let place = Place::new();
    let files: Vec<RawEntry> = (0..100)
        .map(|number| {
            let mut file = entry(&format!("{number:02}"), Kind::File);
            file.inode.stamp.as_mut().unwrap().size = 2 << 20;
            file
        })
        .collect();
    let failed = Piece::Failed { fetch: 0, errno: 5 };
    let result = play(
        &place.root(),
        Script::of(vec![list("", &files), end()]).with(&[failed]),
    );
    assert!(matches!(result, Err(Error::Unreadable { .. })), "{result:?}");
    // Every file there would be open.
    let journal = place.root().join(format!(".liqo-move-{}", id().uid()));
    assert_eq!(fs::read_dir(journal.join("chunks")).unwrap().count(), 0);
}

/// Sends a message to a source; false if its connection has ended.
fn send(down: &mut Writer, message: TargetMessage) -> bool {
    let message = FromTarget {
        message: Some(message),
    };
    let sent = down.send(FrameKind::Control, &message.encode_to_vec());
    sent.and_then(|()| down.flush()).is_ok()
}

/// A source that serves a client which sends a script.
struct Served {
    lanes: TargetLanes,
    ended: mpsc::Receiver<Result<(), Error>>,
}

impl Served {
    fn with_script(root: &Path, script: Vec<TargetMessage>) -> Self {
        let (acceptor, address) = acceptor();
        let root = root.to_owned();
        let (end, ended) = mpsc::channel();
        thread::spawn(move || {
            let source = Source::open(&root).unwrap();
            let result = source.serve(dial(address), &Throttle::new(None));
            // The receiver may be gone if the source was cut off after its answer.
            let _ = end.send(result);
        });
        let mut lanes = acceptor.accept(Duration::from_mins(1)).unwrap().unwrap();
        // A source that has already ended does not receive it.
        let _ = script.into_iter().all(|message| send(&mut lanes.down, message));
        Self { lanes, ended }
    }

    fn result(&self) -> Result<(), Error> {
        self.ended.recv_timeout(Duration::from_mins(2)).unwrap()
    }

    /// Whether the first piece from the source is this one.
    fn answers(mut self, expected: &Piece<'_>) -> bool {
        let mut got = Vec::new();
        let answered = loop {
            if let Ok(Some(first)) = Pieces::of(&got).next() {
                break first == *expected;
            }
            let Ok((_, payload)) = self.lanes.data[0].next() else {
                break false;
            };
            let mut decoder = crate::compress::Decoder::new().unwrap();
            got.extend_from_slice(decoder.decode(payload).unwrap());
        };
        self.lanes.cutter.cut();
        answered
    }

    /// How the source ended after a final message, and whether it had sent some of its data.
    fn ends(mut self) -> (Result<(), Error>, bool) {
        // A source that has already ended does not receive it.
        send(&mut self.lanes.down, TargetMessage::Bye(true));
        let result = self.result();
        self.lanes.cutter.cut();
        (result, self.lanes.data[0].next().is_ok())
    }
}

fn fetch(path: &str) -> RawFetch {
    RawFetch {
        id: 1,
        path: path.as_bytes().to_vec(),
        stamp: RawStamp::default(),
        first: 0,
        count: 1,
        claims: Vec::new(),
        same_inode: false,
    }
}

fn fetches(fetches: Vec<RawFetch>) -> Vec<TargetMessage> {
    vec![TargetMessage::Fetch(Fetches { fetches })]
}

#[test]
fn a_target_can_read_only_files_of_the_tree() {
    let place = Place::new();
    std::os::unix::fs::symlink(place.outside(), place.root().join("dir")).unwrap();
    std::os::unix::fs::symlink(place.outside().join("secret"), place.root().join("file")).unwrap();
    let mode = Mode::RUSR;
    rustix::fs::mknodat(
        rustix::fs::CWD,
        place.root().join("pipe"),
        rustix::fs::FileType::Fifo,
        mode,
        0,
    )
    .unwrap();
    fs::create_dir(place.root().join("sub")).unwrap();
    for path in ["dir/secret", "file", "pipe", "sub", "absent", "sub/absent", ""] {
        let served = Served::with_script(&place.root(), fetches(vec![fetch(path)]));
        assert!(served.answers(&Piece::Gone { fetch: 1 }), "{path}");
    }
    for path in [
        "../outside/secret",
        "/etc/passwd",
        "sub/../../outside/secret",
        "..",
        "a//b",
    ] {
        let ended = Served::with_script(&place.root(), fetches(vec![fetch(path)])).ends();
        assert!(
            matches!(ended, (Err(Error::Protocol(_)), false)),
            "{path}: {ended:?}"
        );
    }
}

#[test]
fn content_of_another_inode_is_not_sent_where_only_that_of_the_listing_counts() {
    let place = Place::new();
    fs::write(place.root().join("f"), "x").unwrap();
    let ino = fs::metadata(place.root().join("f")).unwrap().ino();
    let gone = |ino, same_inode| {
        let stamp = RawStamp {
            ino,
            ..RawStamp::default()
        };
        let one = RawFetch {
            stamp,
            same_inode,
            ..fetch("f")
        };
        Served::with_script(&place.root(), fetches(vec![one])).answers(&Piece::Gone { fetch: 1 })
    };
    assert!(gone(ino + 1, true));
    assert!(!gone(ino, true));
    assert!(!gone(ino + 1, false));
}

fn begin() -> TargetMessage {
    TargetMessage::Begin(Begin {
        pass: 1,
        ..Begin::default()
    })
}

fn known(path: &str) -> TargetMessage {
    known_many(path, 1, false)
}

fn known_many(path: &str, count: usize, last: bool) -> TargetMessage {
    let directory = KnownDirectory {
        path: path.as_bytes().to_vec(),
        digest: vec![0; 32],
    };
    let directories = vec![directory; count];
    TargetMessage::Known(Known { directories, last })
}

#[test]
fn a_target_cannot_request_more_chunks_than_a_file_may_have() {
    let place = Place::new();
    fs::write(place.root().join("f"), "x").unwrap();
    let none = RawFetch {
        count: 0,
        ..fetch("f")
    };
    let many = RawFetch {
        count: 100_000,
        ..fetch("f")
    };
    let far = RawFetch {
        first: u64::MAX,
        ..fetch("f")
    };
    let claims = RawFetch {
        claims: vec![1; 31],
        ..fetch("f")
    };
    let cases: Vec<(&str, Vec<TargetMessage>)> = vec![
        ("no chunks", fetches(vec![none])),
        ("many chunks", fetches(vec![many])),
        ("far chunks", fetches(vec![far])),
        ("broken claims", fetches(vec![claims])),
        ("known before a pass", vec![known("a")]),
        // The first pass waits for the target's known directories.
        ("two passes at once", vec![begin(), begin()]),
        (
            "a bad digest",
            vec![
                begin(),
                TargetMessage::Known(Known {
                    directories: vec![KnownDirectory {
                        path: Vec::new(),
                        digest: vec![1; 5],
                    }],
                    last: true,
                }),
            ],
        ),
    ];
    for (what, script) in cases {
        let ended = Served::with_script(&place.root(), script).ends();
        assert!(matches!(ended, (Err(Error::Protocol(_)), _)), "{what}: {ended:?}");
    }
}

#[test]
fn a_target_cannot_send_more_known_entries_than_its_credit() {
    let place = Place::new();
    for name in 0..2000 {
        fs::write(place.root().join(name.to_string()), "x").unwrap();
    }
    let refused = || {
        let script = std::iter::once(begin()).chain((0..40).map(|_| known("a")));
        let (result, _) = Served::with_script(&place.root(), script.collect()).ends();
        matches!(result, Err(Error::Protocol(_)))
    };
    // A source that has sent everything before it reads that much does not need it, and keeps nothing.
    assert!((0..50).any(|_| refused()));
}

/// The target cannot write any more when it reads the message.
#[test]
fn the_reason_of_a_source_that_has_ended_is_read() {
    let place = Place::new();
    let (acceptor, address) = acceptor();
    let dialling = thread::spawn(move || dial(address));
    let lanes = acceptor.accept(Duration::from_mins(1)).unwrap().unwrap();
    let SourceLanes { mut up, cutter, .. } = dialling.join().unwrap();
    let mut messages: Vec<SourceMessage> = (0..100)
        .map(|part| {
            let entries = (0..10).map(|at| entry(&format!("{part:02}{at}"), Kind::File).encode_to_vec());
            SourceMessage::Listing(Listing {
                own: (part == 0).then(directory),
                entries: entries.collect(),
                ..Listing::default()
            })
        })
        .collect();
    messages.push(SourceMessage::Failed("the disk is broken".to_owned()));
    for frame in Script::of(messages).control {
        up.send(FrameKind::Control, &frame).unwrap();
        up.flush().unwrap();
    }
    cutter.cut();
    let mut target = Target::open(&place.root(), &id()).unwrap();
    let result = target.session(lanes).pass(PassOptions::default());
    assert!(
        matches!(&result, Err(Error::Peer(why)) if why == "the disk is broken"),
        "{result:?}"
    );
}

/// The source is writing to a target that has ended.
#[test]
fn the_reason_of_a_target_that_has_ended_is_read() {
    let place = Place::new();
    for last in [
        TargetMessage::Failed("the disk is full".to_owned()),
        TargetMessage::Bye(true),
    ] {
        let mut served = Served::with_script(&place.root(), Vec::new());
        served.lanes.cutter.cut_if(|lane| lane != DOWN);
        for message in [begin(), known_many("", 0, true)] {
            assert!(send(&mut served.lanes.down, message));
        }
        let early = served.ended.recv_timeout(Duration::from_millis(500));
        assert!(early.is_err(), "it has ended before the last message: {early:?}");
        assert!(send(&mut served.lanes.down, last.clone()));
        let result = served.result();
        let is_reported = match last {
            TargetMessage::Failed(_) => matches!(&result, Err(Error::Peer(why)) if why == "the disk is full"),
            _ => result.is_ok(),
        };
        assert!(is_reported, "{result:?}");
    }
}

/// Whatever the target is still sending.
#[test]
fn a_failed_source_ends_when_its_target_disconnects() {
    let place = Place::new();
    let mut folder = rustix::fs::open(place.root(), OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..21 {
        // A path that is too long.
        let name = "d".repeat(200);
        rustix::fs::mkdirat(&folder, &name, Mode::RWXU).unwrap();
        folder = rustix::fs::openat(&folder, &name, OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let script = vec![begin(), known_many("", 0, true)];
    let mut served = Served::with_script(&place.root(), script);
    while next_message(&mut served.lanes.up).is_ok() {}
    // More than the buffers of the kernel.
    for _ in 0..1000 {
        assert!(send(&mut served.lanes.down, known_many("d", 500, true)));
    }
    assert!(served.ended.try_recv().is_err());
    served.lanes.cutter.cut();
    let result = served.result();
    assert!(matches!(result, Err(Error::Tree { .. })), "{result:?}");
}

/// The messages of an honest source with a small tree.
fn honest() -> Script {
    let hash: Hash = *blake3::hash(b"public").as_bytes();
    let whole = vec![Range { offset: 0, length: 6 }];
    let linked = |name| {
        let mut entry = entry(name, Kind::File);
        entry.inode.linked = true;
        entry
    };
    let messages = vec![
        list(
            "",
            &[
                entry("d", Kind::Directory),
                entry("f", Kind::File),
                linked("g"),
                linked("h"),
            ],
        ),
        list(
            "d",
            &[
                entry("l", Kind::Symlink(b"../f".to_vec())),
                entry("p", Kind::Fifo),
            ],
        ),
        end(),
    ];
    Script::of(messages).with(&[
        Piece::Data {
            fetch: 0,
            chunk: 0,
            hash,
            length: 6,
            ranges: whole.clone(),
            bytes: b"public",
        },
        Piece::End {
            fetch: 0,
            size: 6,
            steady: true,
            hash,
        },
        Piece::Data {
            fetch: 1,
            chunk: 0,
            hash,
            length: 6,
            ranges: whole,
            bytes: b"public",
        },
        Piece::End {
            fetch: 1,
            size: 6,
            steady: true,
            hash,
        },
    ])
}

#[test]
fn the_unmodified_script_is_accepted() {
    let place = Place::new();
    play(&place.root(), honest()).unwrap();
    assert_eq!(fs::read(place.root().join("f")).unwrap(), b"public");
    assert_eq!(fs::read(place.root().join("h")).unwrap(), b"public");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_bytes_never_lead_out_of_the_tree_or_hold_up_the_target(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let place = Place::new();
        let mut script = honest();
        let count = script.control.len();
        for (frame, at, value) in changes {
            let frame = frame.index(count + 1);
            let bytes = if frame < count { &mut script.control[frame] } else { &mut script.batches[0] };
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        // Whether it is refused or happens to be valid: it ends, and nothing outside changes.
        let _ = play_for(&place.root(), script, Duration::from_millis(300));
        place.assert_untouched();
    }
}

proptest! {
    #[test]
    fn no_bytes_make_any_message_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = FromSource::decode(&bytes[..]);
        if let Ok(FromTarget { message: Some(TargetMessage::Fetch(fetches)) }) = FromTarget::decode(&bytes[..]) {
            for fetch in fetches.fetches {
                let _ = crate::read::Fetch::try_from(fetch);
            }
        }
        let _ = RawEntry::parse(&bytes);
        let _ = TreePath::parse(&bytes);
        let _ = Name::parse(&bytes);
        let _ = crate::message::decode_claims(&bytes, 3);
    }

    #[test]
    fn a_changed_entry_is_refused_or_valid(at: prop::sample::Index, value: u8) {
        let inode = Inode {
            kind: Kind::Symlink(b"to".to_vec()),
            stamp: stamp(),
            attributes: Attributes { xattrs: vec![(b"user.a".to_vec(), b"v".to_vec())], ..Attributes::default() },
            linked: true,
        };
        let entry = Entry { name: Name::parse(b"name").unwrap(), inode };
        let mut bytes = RawEntry::encode(&entry);
        prop_assert_eq!(&RawEntry::parse(&bytes).unwrap(), &entry);
        let at = at.index(bytes.len());
        bytes[at] = value;
        if let Ok(entry) = RawEntry::parse(&bytes) {
            prop_assert!(entry.inode.attributes.mode <= 0o7777);
            prop_assert!(!entry.name.as_bytes().contains(&b'/'));
        }
    }
}
