//! The source's program: dials the target, or is dialled by a relay or port forwarder that connects the two,
//! and answers the target's requests. If both are configured, the one that reaches the target is used, and
//! after a break the other one is tried.

use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    num::NonZeroU64,
    thread,
    time::{Duration, Instant},
};

use crate::{control::Answer, error::Error, lanes, source::Source, throttle::Throttle};

use super::{Common, log};

/// The pause before it dials again.
const PAUSE: Duration = Duration::from_millis(300);
/// Timeout for dialling a target in the same network.
const DIAL_TIMEOUT: Duration = Duration::from_secs(3);
/// How long it waits for a forwarded connection before another way is tried.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(20);
/// The interval of checks for a connection.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// A connection that lasted longer than this was working: a dead one is detected sooner.
const WORKED_AFTER: Duration = Duration::from_mins(1);

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    ways: ConnectionArgs,
    /// Data lanes.
    #[arg(long, default_value_t = 4)]
    lanes: u32,
    /// Maximum number of bytes per second.
    #[arg(long)]
    bandwidth: Option<NonZeroU64>,
}

#[derive(clap::Args)]
#[group(required = true, multiple = true)]
struct ConnectionArgs {
    /// Address of the target.
    #[arg(long)]
    connect: Option<SocketAddr>,
    /// Address to listen on for connections that are forwarded to the target. The loopback address is enough
    /// for forwarded ports. If the target may be dialled as well, that is tried first.
    #[arg(long)]
    listen: Option<SocketAddr>,
}

impl ConnectionArgs {
    fn open(&self) -> Result<Vec<Way>, Error> {
        let listener = self
            .listen
            .map(TcpListener::bind)
            .transpose()
            .map_err(Error::Cut)?;
        if let Some(listener) = &listener {
            listener.set_nonblocking(true).map_err(Error::Cut)?;
        }
        let direct = self.connect.map(Way::Direct);
        Ok(direct.into_iter().chain(listener.map(Way::Forwarded)).collect())
    }
}

/// How connections to the target are made.
enum Way {
    /// By dialling the target.
    Direct(SocketAddr),
    /// By accepting a connection from a relay or port forwarder, which dials the target, too.
    Forwarded(TcpListener),
}

impl Way {
    fn dial(&self) -> io::Result<TcpStream> {
        match self {
            Self::Direct(address) => TcpStream::connect_timeout(address, DIAL_TIMEOUT),
            Self::Forwarded(listener) => accept(listener),
        }
    }
}

/// The next connection of a non-blocking listener, if one arrives in time.
fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    let until = Instant::now() + FORWARD_TIMEOUT;
    loop {
        match listener.accept() {
            Ok((socket, _)) => {
                socket.set_nonblocking(false)?;
                return Ok(socket);
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) if Instant::now() >= until => return Err(io::ErrorKind::TimedOut.into()),
            Err(_) => thread::sleep(CHECK_INTERVAL),
        }
    }
}

pub(super) fn run(args: &Args) -> Result<(), Error> {
    let id = args.common.id()?;
    let source = Source::open(&args.common.root)?;
    let throttle = Throttle::new(args.bandwidth);
    let ways = args.ways.open()?;
    let mut identity = args.common.identity()?;
    for way in ways.iter().cycle() {
        // A way that has worked is used again when it breaks.
        loop {
            let connected = lanes::connect(&id, &identity, args.lanes, || way.dial());
            // Another host may have the target's address here.
            let is_astray = connected.is_err() && ways.len() > 1 && matches!(way, Way::Direct(_));
            let began = Instant::now();
            match connected.and_then(|lanes| source.serve(lanes, &throttle)) {
                Err(error) if error.is_cut() || is_astray => log(&Answer::from(&error)),
                served => return served,
            }
            thread::sleep(PAUSE);
            identity = args.common.renewed(identity);
            if is_astray || began.elapsed() < WORKED_AFTER {
                break;
            }
        }
    }
    Err(Error::Credentials(
        "neither a target to dial nor an address to listen on".to_owned(),
    ))
}
