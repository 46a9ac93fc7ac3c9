//! A source and a target in this process, connected over the loopback interface with TLS as two pods would
//! be; and checkers that are independent of the engine.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]
#![allow(dead_code, reason = "each test uses some of it")]

use std::{
    collections::BTreeMap,
    fs,
    io::{self, BufRead as _, BufReader},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    thread,
    time::Duration,
};

use mover::{
    credentials::{Identity, MoveId, issue},
    error::Error,
    lanes::{Acceptor, SourceLanes, connect},
    source::Source,
    target::{PassOptions, PassReport, Session, Target},
    throttle::Throttle,
    verify::{Scope, Verification},
};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};

pub(crate) const UID: &str = "0b5c2e9a-7d1f-4a54-9a0e-2f3f3f1f0c11";
/// Long enough for a busy machine.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_mins(1);

/// Two empty directories, deleted with this value.
pub(crate) struct Pair {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) source: PathBuf,
    pub(crate) target: PathBuf,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (source, target) = (folder.path().join("source"), folder.path().join("target"));
        fs::create_dir(&source).unwrap();
        fs::create_dir(&target).unwrap();
        Self {
            folder,
            source,
            target,
        }
    }

    /// A target for which stamps count as settled after a moment: no write in these tests takes longer.
    pub(crate) fn open(&self) -> Target {
        let has_whole_seconds = fs::metadata(&self.source).unwrap().ctime_nsec() == 0;
        let moment = Duration::from_millis(if has_whole_seconds { 3000 } else { 20 });
        self.open_patiently().with_longest_write(moment)
    }

    /// A target as in pods.
    pub(crate) fn open_patiently(&self) -> Target {
        Target::open(&self.target, &id()).unwrap()
    }

    /// One pass over a connection of its own.
    pub(crate) fn pass(&self, options: PassOptions) -> PassReport {
        let mut target = self.open();
        with_session(&self.source, &mut target, |session| session.pass(options)).unwrap()
    }

    /// A pass that must leave both sides equal, according to all checkers.
    pub(crate) fn last_pass(&self) -> PassReport {
        let report = self.pass(PassOptions {
            last: true,
            ..PassOptions::default()
        });
        self.assert_verified(Scope::Touched);
        self.assert_equal();
        report
    }

    pub(crate) fn assert_verified(&self, scope: Scope) -> Verification {
        let found = self.open().verify(scope).unwrap();
        assert!(found.is_equal(), "{:?}", found.differences);
        found
    }

    pub(crate) fn assert_equal(&self) {
        assert_same_trees(&self.source, &self.target);
        assert_rsync_sees_nothing(&self.source, &self.target);
    }
}

pub(crate) fn id() -> MoveId {
    MoveId::new(UID, 1).unwrap()
}

pub(crate) fn identities() -> &'static (Identity, Identity) {
    static IDENTITIES: std::sync::OnceLock<(Identity, Identity)> = std::sync::OnceLock::new();
    IDENTITIES.get_or_init(|| issue(&id()).unwrap())
}

/// An address for a program that listens itself. A port that was free a moment ago may be taken by another
/// process, also for an outgoing connection. So each test process uses ports of its own loopback address,
/// and each of them only once.
pub(crate) fn free() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(10_000);
    // Process ids have at most 22 bits.
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, 64 + high, middle, low);
    loop {
        let address = SocketAddr::from((host, NEXT.fetch_add(1, Ordering::Relaxed)));
        // Another program may listen on this port of all addresses.
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

/// The target's end of the connection, and its address.
pub(crate) fn acceptor() -> (Acceptor, SocketAddr) {
    acceptor_on(TcpListener::bind("127.0.0.1:0").unwrap())
}

/// The same, with buffers of this size for what arrives.
pub(crate) fn small_acceptor(buffer: usize) -> (Acceptor, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    set_socket_recv_buffer_size(&listener, buffer).unwrap();
    acceptor_on(listener)
}

fn acceptor_on(listener: TcpListener) -> (Acceptor, SocketAddr) {
    let address = listener.local_addr().unwrap();
    (Acceptor::new(listener, &id(), &identities().1).unwrap(), address)
}

pub(crate) fn dial(address: SocketAddr, lanes: u32) -> Result<SourceLanes, Error> {
    connect(&id(), &identities().0, lanes, || TcpStream::connect(address))
}

/// Runs a source concurrently with `work`, which has the target's session.
pub(crate) fn with_session<T>(
    source: &Path,
    target: &mut Target,
    work: impl FnOnce(&mut Session<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let (acceptor, address) = acceptor();
    let source = source.to_owned();
    let serving = thread::spawn(move || {
        let source = Source::open(&source)?;
        source.serve(dial(address, 3)?, &Throttle::new(None))
    });
    let lanes = acceptor.accept(TEST_TIMEOUT).unwrap().expect("no source dialled");
    let mut session = target.session(lanes);
    let result = work(&mut session);
    if result.is_ok() {
        session.end();
    } else {
        drop(session);
    }
    let served = serving.join().unwrap();
    if result.is_ok() {
        served.unwrap();
    }
    result
}

/// The state of a tree, as read by the standard library and `getfattr`-like calls.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    kind: String,
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, i64),
    size: u64,
    device: u64,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    content: Vec<u8>,
    /// The first path with the same inode.
    linked_to: Option<Vec<u8>>,
}

pub(crate) fn see(root: &Path) -> BTreeMap<Vec<u8>, Seen> {
    let mut seen = BTreeMap::new();
    let mut inodes = BTreeMap::new();
    let mut todo = vec![PathBuf::new()];
    let mut all = Vec::new();
    while let Some(path) = todo.pop() {
        let full = root.join(&path);
        if fs::symlink_metadata(&full).unwrap().is_dir() {
            for entry in fs::read_dir(&full).unwrap() {
                let name = entry.unwrap().file_name();
                let ours = name.as_bytes().starts_with(b".liqo-move-")
                    || (name.as_bytes() == b"lost+found" && !has_lost_and_found(root));
                if !(ours && path.as_os_str().is_empty()) {
                    todo.push(path.join(name));
                }
            }
        }
        all.push(path);
    }
    all.sort_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
    for path in all {
        let full = root.join(&path);
        let meta = fs::symlink_metadata(&full).unwrap();
        let kind = meta.file_type();
        let key = path.into_os_string().into_vec();
        let content = if kind.is_symlink() {
            fs::read_link(&full).unwrap().into_os_string().into_vec()
        } else if kind.is_file() {
            let mut hasher = blake3::Hasher::new();
            hasher.update_reader(fs::File::open(&full).unwrap()).unwrap();
            hasher.finalize().as_bytes().to_vec()
        } else {
            Vec::new()
        };
        let linked_to = (!kind.is_dir() && meta.nlink() > 1)
            .then(|| inodes.entry(meta.ino()).or_insert_with(|| key.clone()).clone());
        let device = kind.is_block_device() || kind.is_char_device();
        seen.insert(
            key,
            Seen {
                kind: format!("{kind:?}"),
                mode: if kind.is_symlink() { 0 } else { meta.mode() },
                owner: (meta.uid(), meta.gid()),
                mtime: (meta.mtime(), meta.mtime_nsec()),
                size: if kind.is_file() { meta.len() } else { 0 },
                device: if device { meta.rdev() } else { 0 },
                xattrs: xattrs(&full),
                content,
                linked_to,
            },
        );
    }
    seen
}

/// Whether `lost+found` in the root is anything but an empty directory, which file systems have of their own.
fn has_lost_and_found(root: &Path) -> bool {
    let path = root.join("lost+found");
    fs::read_dir(&path).map_or_else(
        |_| fs::symlink_metadata(&path).is_ok(),
        |mut found| found.next().is_some(),
    )
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut list = vec![0; 64 << 10];
    let Ok(length) = rustix::fs::llistxattr(path, &mut list[..]) else {
        return BTreeMap::new();
    };
    list[..length]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty() && *name != b"security.selinux")
        .map(|name| {
            let mut value = vec![0; 64 << 10];
            let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
            (name.to_vec(), value[..length].to_vec())
        })
        .collect()
}

/// Whether both trees are equal in everything that is copied, including hard links. The journal's own links
/// count at the target, so groups are compared by their first path.
pub(crate) fn assert_same_trees(source: &Path, target: &Path) {
    let (mut source, mut target) = (see(source), see(target));
    for tree in [&mut source, &mut target] {
        let mut names: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        for seen in tree.values() {
            if let Some(first) = &seen.linked_to {
                *names.entry(first.clone()).or_default() += 1;
            }
        }
        for seen in tree.values_mut() {
            if seen.linked_to.as_ref().is_some_and(|first| names[first] == 1) {
                seen.linked_to = None;
            }
        }
    }
    let show = |name: &Vec<u8>| String::from_utf8_lossy(name).into_owned();
    let missing: Vec<_> = source
        .keys()
        .filter(|name| !target.contains_key(*name))
        .map(show)
        .collect();
    let extra: Vec<_> = target
        .keys()
        .filter(|name| !source.contains_key(*name))
        .map(show)
        .collect();
    assert!(
        missing.is_empty() && extra.is_empty(),
        "missing {missing:?}, extra {extra:?}"
    );
    for (name, wanted) in &source {
        assert_eq!(wanted, &target[name], "{}", show(name));
    }
}

/// Whether rsync, with a full comparison, would change nothing.
pub(crate) fn assert_rsync_sees_nothing(source: &Path, target: &Path) {
    let own = [source, target].iter().all(|root| !has_lost_and_found(root));
    let output = Command::new("rsync")
        .args([
            "-aHAXn",
            "--checksum",
            "--numeric-ids",
            "--delete",
            "-i",
            "--modify-window=-1",
        ])
        .args(own.then_some("--exclude=/lost+found"))
        .arg("--exclude=/.liqo-move-*")
        .arg(source.join(""))
        .arg(target.join(""))
        .output()
        .expect("rsync is a test dependency: make deps");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "",
        "rsync would change this"
    );
}

/// Whether these tests may create devices and mount images.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A separate file system in a file, which is always unmounted at the end.
pub(crate) struct Image {
    pub(crate) at: PathBuf,
    _folder: tempfile::TempDir,
}

impl Image {
    /// `make` is the mkfs program, with its options.
    pub(crate) fn new(make: &[&str], megabytes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (image, at) = (folder.path().join("image"), folder.path().join("mounted"));
        fs::File::create(&image)
            .unwrap()
            .set_len(megabytes << 20)
            .unwrap();
        fs::create_dir(&at).unwrap();
        run(Command::new(make[0]).args(&make[1..]).arg(&image));
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at));
        Self { at, _folder: folder }
    }

    /// Changes what the kernel does not, by a request to debugfs.
    pub(crate) fn debug(&self, request: &str) {
        let image = self.at.with_file_name("image");
        run(Command::new("umount").arg(&self.at));
        run(Command::new("debugfs").args(["-w", "-R", request]).arg(&image));
        run(Command::new("mount")
            .args(["-o", "loop"])
            .arg(&image)
            .arg(&self.at));
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.at).status();
    }
}

pub(crate) fn run(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A relay between source and target that can disturb the connection.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    state: Arc<std::sync::Mutex<RelayState>>,
}

#[derive(Default)]
struct RelayState {
    sockets: Vec<TcpStream>,
    /// The number of bytes after which all connections are cut.
    budget: Option<u64>,
    /// The position in the stream from source to target at which a bit is flipped.
    flip_at: Option<u64>,
    passed: u64,
}

impl Relay {
    /// The size of its buffers towards the target. The kernel doubles it.
    pub(crate) const BUFFER: usize = 64 << 10;

    pub(crate) fn to(address: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Self {
            address: listener.local_addr().unwrap(),
            state: Arc::default(),
        };
        let state = Arc::clone(&relay.state);
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let Ok(onward) = TcpStream::connect(address) else {
                    continue;
                };
                set_socket_send_buffer_size(&onward, Self::BUFFER).unwrap();
                let copies = [(&socket, &onward, true), (&onward, &socket, false)];
                for (from, to, counted) in copies {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let state = Arc::clone(&state);
                    thread::spawn(move || shovel(from, to, &state, counted));
                }
                state.lock().unwrap().sockets.extend([socket, onward]);
            }
        });
        relay
    }

    pub(crate) fn cut_after(&self, bytes: u64) {
        let mut state = self.state.lock().unwrap();
        state.budget = Some(state.passed + bytes);
    }

    pub(crate) fn flip_after(&self, bytes: u64) {
        let mut state = self.state.lock().unwrap();
        state.flip_at = Some(state.passed + bytes);
    }

    pub(crate) fn passed(&self) -> u64 {
        self.state.lock().unwrap().passed
    }
}

fn shovel(mut from: TcpStream, mut to: TcpStream, state: &std::sync::Mutex<RelayState>, counted: bool) {
    use io::{Read as _, Write as _};
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count) = from.read(&mut buffer) {
        if count == 0 {
            break;
        }
        if counted {
            let mut state = state.lock().unwrap();
            let before = state.passed;
            state.passed += count as u64;
            if let Some(at) = state.flip_at.filter(|at| (before..state.passed).contains(at)) {
                buffer[usize::try_from(at - before).unwrap()] ^= 1;
                state.flip_at = None;
            }
            if state.budget.is_some_and(|budget| state.passed > budget) {
                state.budget = None;
                for socket in state.sockets.drain(..) {
                    let _ = socket.shutdown(std::net::Shutdown::Both);
                }
                return;
            }
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}

/// A process with a write lease on a file, as file servers have for a client that caches its writes.
pub(crate) struct Lease(Child);

impl Lease {
    /// `signalled` is what the process does when the kernel asks for the lease, in Perl.
    pub(crate) fn of(path: &Path, signalled: &str) -> Self {
        let program = format!(
            "open(our $f, '+<', $ARGV[0]) or die $!; $SIG{{IO}} = {signalled}; \
             fcntl($f, 1024, 1) or die \"F_SETLEASE: $!\"; $| = 1; print \"held\\n\"; <STDIN>"
        );
        let mut child = Command::new("perl")
            .args(["-e", &program])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("every Debian has perl-base");
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "held\n");
        Self(child)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
