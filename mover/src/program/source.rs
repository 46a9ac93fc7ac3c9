//! The source's program: dials the target, or is dialled by somebody who connects the two, and does
//! what the target asks for. Where both may be, the one that leads to the target is taken, and after
//! a break the other one is tried.

use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    num::NonZeroU64,
    thread,
    time::{Duration, Instant},
};

use crate::{control::Answer, error::Error, lanes, source::Source, throttle::Throttle};

use super::{Common, say};

/// Before it dials again.
const PAUSE: Duration = Duration::from_millis(300);
/// How long a target may take to be reached that is near.
const REACHED: Duration = Duration::from_secs(3);
/// How long somebody may take to pass on a connection, before another way is tried.
const PASSED_ON: Duration = Duration::from_secs(20);
/// Between looks for a connection.
const LOOK: Duration = Duration::from_millis(20);
/// A way is good that lasted longer than one takes to be found silent.
const PROVED: Duration = Duration::from_mins(1);

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    ways: Ways,
    /// Data lanes.
    #[arg(long, default_value_t = 4)]
    lanes: u32,
    /// Bytes a second.
    #[arg(long)]
    bandwidth: Option<NonZeroU64>,
}

#[derive(clap::Args)]
#[group(required = true, multiple = true)]
struct Ways {
    /// Where the target listens.
    #[arg(long)]
    connect: Option<SocketAddr>,
    /// Where to wait for connections that somebody passes on to the target. The loopback is
    /// enough for forwarded ports. If the target may be dialled as well, that is tried first.
    #[arg(long)]
    listen: Option<SocketAddr>,
}

impl Ways {
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
        Ok(direct.into_iter().chain(listener.map(Way::PassedOn)).collect())
    }
}

/// How connections to the target come about.
enum Way {
    /// By dialling it.
    Direct(SocketAddr),
    /// By being dialled by somebody who dials the target, too.
    PassedOn(TcpListener),
}

impl Way {
    fn dial(&self) -> io::Result<TcpStream> {
        match self {
            Self::Direct(address) => TcpStream::connect_timeout(address, REACHED),
            Self::PassedOn(listener) => accept(listener),
        }
    }
}

/// The next connection of a listener that does not block, if there is one in time.
fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    let until = Instant::now() + PASSED_ON;
    loop {
        match listener.accept() {
            Ok((socket, _)) => {
                socket.set_nonblocking(false)?;
                return Ok(socket);
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) if Instant::now() >= until => return Err(io::ErrorKind::TimedOut.into()),
            Err(_) => thread::sleep(LOOK),
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
        // One that has proved good is taken again when it breaks.
        loop {
            let connected = lanes::connect(&id, &identity, args.lanes, || way.dial());
            // Somebody else may have the target's address here.
            let is_astray = connected.is_err() && ways.len() > 1 && matches!(way, Way::Direct(_));
            let began = Instant::now();
            match connected.and_then(|lanes| source.serve(lanes, &throttle)) {
                Err(error) if error.is_cut() || is_astray => say(&Answer::from(&error)),
                served => return served,
            }
            thread::sleep(PAUSE);
            identity = args.common.renewed(identity);
            if is_astray || began.elapsed() < PROVED {
                break;
            }
        }
    }
    Err(Error::Credentials("nobody to connect to".to_owned()))
}
