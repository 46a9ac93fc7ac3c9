//! The connections of one session: TCP with mutual TLS 1.3 each. Two lanes for control, one in each
//! direction, and any number for data. After its hello a lane carries frames in one direction only, so that
//! a reader never waits for a writer.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use prost::Message as _;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned};

use crate::{
    credentials::{Identity, MoveId, Role, target_name},
    error::Error,
    message::{Hello, VERSION},
    wire::{FrameKind, FrameReader, FrameWriter, WireError},
};

/// Idle lanes send a ping this often.
pub(crate) const PING: Duration = Duration::from_secs(10);
/// A peer that sends nothing for this long counts as gone.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Concurrent handshakes. One more ends the oldest one, which is not the peer's: all of a session's are fewer and short.
const HANDSHAKES: usize = 32;
/// Maximum number of lanes for data.
pub const MAX_DATA_LANES: u32 = 16;
/// Lane numbers: from source to target, back, and from here on for data.
const UP: u32 = 0;
pub(crate) const DOWN: u32 = 1;
const DATA: u32 = 2;
/// The number of connections of a session in addition to those for data.
pub const CONTROL_LANES: u32 = DATA;

/// A connection after its handshake.
pub(crate) trait Stream: Read + Write + Send {}
impl<S: Read + Write + Send> Stream for S {}

pub(crate) type Reader = FrameReader<Box<dyn Stream>>;
pub(crate) type Writer = FrameWriter<Box<dyn Stream>>;

/// Ends the lanes of a session at once, so that no thread blocks in a read or write.
#[derive(Clone, Debug)]
pub(crate) struct Cutter {
    /// The number of the lane for the peer's control messages.
    incoming: u32,
    sockets: Arc<Mutex<Vec<(u32, TcpStream)>>>,
}

impl Cutter {
    fn new(incoming: u32) -> Self {
        let sockets = Arc::default();
        Self { incoming, sockets }
    }

    fn add(&self, lane: u32, socket: TcpStream) {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.push((lane, socket));
    }

    pub(crate) fn cut(&self) {
        self.cut_if(|_| true);
    }

    /// What was sent still arrives: peers send nothing on these lanes, which would reset them.
    pub(crate) fn cut_all_but_incoming(&self) {
        self.cut_if(|lane| lane != self.incoming);
    }

    pub(crate) fn cut_if(&self, is_cut: impl Fn(u32) -> bool) {
        let sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, socket) in sockets.iter().filter(|(lane, _)| is_cut(*lane)) {
            // The socket may be closed already, which has the same effect.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// The lanes of a session at the source.
pub struct SourceLanes {
    pub(crate) up: Writer,
    pub(crate) down: Reader,
    pub(crate) data: Vec<Writer>,
    pub(crate) cutter: Cutter,
}

/// The lanes of a session at the target.
pub struct TargetLanes {
    pub(crate) up: Reader,
    pub(crate) down: Writer,
    pub(crate) data: Vec<Reader>,
    pub(crate) cutter: Cutter,
    /// Whether the source itself has dialled: a port forwarder dials from the loopback address.
    pub(crate) direct: bool,
}

/// Opens a session from the source's side. `dial` makes one connection to the target.
pub fn connect(
    id: &MoveId,
    identity: &Identity,
    data_lanes: u32,
    dial: impl Fn() -> io::Result<TcpStream> + Sync,
) -> Result<SourceLanes, Error> {
    let config = identity.client()?;
    let data_lanes = data_lanes.clamp(1, MAX_DATA_LANES);
    let mut session = [0; 8];
    rustix::rand::getrandom(&mut session, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| Error::Cut(errno.into()))?;
    let hello = |lane| Hello {
        version: VERSION,
        features: Vec::new(),
        move_uid: id.uid().to_owned(),
        epoch: id.epoch(),
        session: u64::from_le_bytes(session),
        lane,
        data_lanes,
        refused: String::new(),
    };
    let cutter = Cutter::new(DOWN);
    let streams: Result<Vec<_>, Error> = thread::scope(|scope| {
        let (config, cutter, dial) = (&config, &cutter, &dial);
        let dialling: Vec<_> = (0..DATA + data_lanes)
            .map(|lane| scope.spawn(move || open(id, Arc::clone(config), dial, &hello(lane), cutter)))
            .collect();
        dialling
            .into_iter()
            .map(|lane| lane.join().unwrap_or_else(|_| Err(panicked())))
            .collect()
    });
    let mut streams = streams?.into_iter();
    let (Some(up), Some(down)) = (streams.next(), streams.next()) else {
        return Err(panicked());
    };
    Ok(SourceLanes {
        up: FrameWriter::new(up),
        down: FrameReader::new(down),
        data: streams.map(FrameWriter::new).collect(),
        cutter,
    })
}

fn panicked() -> Error {
    Error::Cut(io::Error::other("a lane could not be opened"))
}

fn open(
    id: &MoveId,
    config: Arc<ClientConfig>,
    dial: &impl Fn() -> io::Result<TcpStream>,
    hello: &Hello,
    cutter: &Cutter,
) -> Result<Box<dyn Stream>, Error> {
    let socket = dial().map_err(Error::Cut)?;
    prepare(&socket, HANDSHAKE)?;
    cutter.add(hello.lane, socket.try_clone().map_err(Error::Cut)?);
    let mut tls =
        ClientConnection::new(config, target_name(id)?).map_err(|e| Error::Credentials(e.to_string()))?;
    let mut socket = socket;
    tls.complete_io(&mut socket).map_err(handshake)?;
    id.check(Role::Target, tls.peer_certificates())?;
    let limits = socket.try_clone().map_err(Error::Cut)?;
    let mut stream: Box<dyn Stream> = Box::new(StreamOwned::new(tls, socket));
    send_hello(&mut stream, hello)?;
    let answer = read_hello(&mut stream)?;
    if !answer.refused.is_empty() {
        return Err(Error::Refused(answer.refused));
    }
    limits.set_read_timeout(Some(READ_TIMEOUT)).map_err(Error::Cut)?;
    Ok(stream)
}

/// Accepts sessions on the target's side.
pub struct Acceptor {
    listener: TcpListener,
    config: Arc<ServerConfig>,
    id: MoveId,
    /// Completed handshakes.
    done: mpsc::Sender<Accepted>,
    waiting: Mutex<PendingSession>,
    handshakes: Arc<Mutex<Handshakes>>,
}

/// The connections whose handshakes are not complete, oldest first.
#[derive(Default)]
struct Handshakes {
    started: u64,
    running: VecDeque<(u64, TcpStream)>,
}

impl Handshakes {
    /// Adds a connection, and ends the oldest one if there are too many; returns its number.
    fn add(&mut self, socket: TcpStream) -> u64 {
        if self.running.len() >= HANDSHAKES
            && let Some((_, oldest)) = self.running.pop_front()
        {
            // This ends the thread of the connection. A socket that is closed already has the same effect.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        self.started += 1;
        self.running.push_back((self.started, socket));
        self.started
    }
}

/// Lanes that have arrived, until all lanes of their session have.
struct PendingSession {
    accepted: mpsc::Receiver<Accepted>,
    /// Of one session only: when the source begins another one, it has abandoned this one.
    lanes: BTreeMap<u32, Accepted>,
}

struct Accepted {
    hello: Hello,
    stream: Box<dyn Stream>,
    socket: TcpStream,
}

impl Acceptor {
    /// Accepts sessions of this move on the listener.
    pub fn new(listener: TcpListener, id: &MoveId, identity: &Identity) -> Result<Self, Error> {
        listener.set_nonblocking(true).map_err(Error::Cut)?;
        let (done, accepted) = mpsc::channel();
        let lanes = BTreeMap::new();
        Ok(Self {
            listener,
            config: identity.server()?,
            id: id.clone(),
            done,
            waiting: Mutex::new(PendingSession { accepted, lanes }),
            handshakes: Arc::default(),
        })
    }

    /// Uses and trusts other certificates from now on: certificates expire during a long move.
    pub fn renew(&mut self, identity: &Identity) -> Result<(), Error> {
        self.config = identity.server()?;
        Ok(())
    }

    /// The next session with all its lanes, or `None` after the timeout. Lanes that have arrived are kept
    /// for the next call.
    pub fn accept(&self, patience: Duration) -> Result<Option<TargetLanes>, Error> {
        let until = Instant::now() + patience;
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let PendingSession { accepted, lanes } = &mut *waiting;
        while Instant::now() < until {
            match self.listener.accept() {
                Ok((socket, _)) => self.start_handshake(socket)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(Error::Cut(error)),
            }
            let Ok(lane) = accepted.recv_timeout(Duration::from_millis(5)) else {
                continue;
            };
            if lanes
                .values()
                .any(|other| other.hello.session != lane.hello.session)
            {
                lanes.clear();
            }
            let wanted = DATA + lane.hello.data_lanes;
            lanes.insert(lane.hello.lane, lane);
            if lanes.len() == wanted as usize {
                return assemble(std::mem::take(lanes)).map(Some);
            }
        }
        Ok(None)
    }

    /// Does the handshake in its own thread: one that hangs does not block others.
    fn start_handshake(&self, socket: TcpStream) -> Result<(), Error> {
        let (config, id) = (Arc::clone(&self.config), self.id.clone());
        let (done, handshakes) = (self.done.clone(), Arc::clone(&self.handshakes));
        let number = lock(&handshakes).add(socket.try_clone().map_err(Error::Cut)?);
        thread::spawn(move || {
            let lane = accept_lane(socket, config, &id);
            lock(&handshakes).running.retain(|(other, _)| *other != number);
            // A refused peer was informed; other peers may dial.
            if let Ok(lane) = lane {
                let _ = done.send(lane);
            }
        });
        Ok(())
    }
}

/// No code panics under this lock, so a poisoned one is still consistent.
fn lock(handshakes: &Mutex<Handshakes>) -> MutexGuard<'_, Handshakes> {
    handshakes.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept_lane(socket: TcpStream, config: Arc<ServerConfig>, id: &MoveId) -> Result<Accepted, Error> {
    socket.set_nonblocking(false).map_err(Error::Cut)?;
    prepare(&socket, HANDSHAKE)?;
    let mut tls = ServerConnection::new(config).map_err(|e| Error::Credentials(e.to_string()))?;
    let mut socket = socket;
    tls.complete_io(&mut socket).map_err(handshake)?;
    id.check(Role::Source, tls.peer_certificates())?;
    let control = socket.try_clone().map_err(Error::Cut)?;
    let mut stream: Box<dyn Stream> = Box::new(StreamOwned::new(tls, socket));
    let hello = read_hello(&mut stream)?;
    let refused = refusal(&hello, id).unwrap_or_default();
    send_hello(
        &mut stream,
        &Hello {
            version: VERSION,
            refused: refused.clone(),
            ..hello.clone()
        },
    )?;
    if !refused.is_empty() {
        return Err(Error::Refused(refused));
    }
    Ok(Accepted {
        hello,
        stream,
        socket: control,
    })
}

fn refusal(hello: &Hello, id: &MoveId) -> Option<String> {
    if hello.version != VERSION {
        return Some(format!(
            "it has version {} of the protocol, this side {VERSION}",
            hello.version
        ));
    }
    if hello.move_uid != id.uid() || hello.epoch != id.epoch() {
        return Some(format!(
            "it belongs to another move than {} of epoch {}",
            id.uid(),
            id.epoch()
        ));
    }
    if !(1..=MAX_DATA_LANES).contains(&hello.data_lanes) || hello.lane >= DATA + hello.data_lanes {
        return Some("it has too many or too few lanes".to_owned());
    }
    None
}

fn assemble(lanes: BTreeMap<u32, Accepted>) -> Result<TargetLanes, Error> {
    let cutter = Cutter::new(UP);
    let (mut up, mut down, mut data) = (None, None, Vec::new());
    let mut direct = true;
    for (number, lane) in lanes {
        let peer = lane.socket.peer_addr().map_err(Error::Cut)?;
        direct &= !peer.ip().to_canonical().is_loopback();
        lane.socket
            .set_read_timeout(Some(READ_TIMEOUT))
            .map_err(Error::Cut)?;
        cutter.add(number, lane.socket);
        match number {
            UP => up = Some(FrameReader::new(lane.stream)),
            DOWN => down = Some(FrameWriter::new(lane.stream)),
            _ => data.push(FrameReader::new(lane.stream)),
        }
    }
    let (Some(up), Some(down)) = (up, down) else {
        return Err(Error::Protocol("a session has no control lane".to_owned()));
    };
    Ok(TargetLanes {
        up,
        down,
        data,
        cutter,
        direct,
    })
}

fn prepare(socket: &TcpStream, timeout: Duration) -> Result<(), Error> {
    socket.set_nodelay(true).map_err(Error::Cut)?;
    socket.set_read_timeout(Some(timeout)).map_err(Error::Cut)
}

fn handshake(error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::InvalidData {
        return Error::Refused(error.to_string());
    }
    Error::Cut(error)
}

fn send_hello(stream: &mut Box<dyn Stream>, hello: &Hello) -> Result<(), Error> {
    let mut writer = FrameWriter::new(stream);
    writer.send(FrameKind::Hello, &hello.encode_to_vec())?;
    writer.flush()?;
    Ok(())
}

/// Reads exactly one frame: what follows on the stream is for the next reader.
fn read_hello(stream: &mut Box<dyn Stream>) -> Result<Hello, Error> {
    let mut head = [0; 5];
    // A certificate that the server refuses is reported here: TLS 1.3 clients complete the handshake before.
    stream.read_exact(&mut head).map_err(handshake)?;
    let [a, b, c, d, kind] = head;
    let length = u32::from_le_bytes([a, b, c, d]);
    if kind != FrameKind::Hello as u8 || !(1..=4096).contains(&length) {
        return Err(Error::Protocol("a lane does not begin with a hello".to_owned()));
    }
    let mut payload = vec![0; length as usize - 1];
    stream.read_exact(&mut payload).map_err(WireError::Broken)?;
    Hello::decode(&payload[..]).map_err(|error| Error::Protocol(error.to_string()))
}
