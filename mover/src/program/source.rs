//! The source's program: dials the target, or waits to be dialled by somebody who connects the
//! two, and does what the target asks for.

use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    num::NonZeroU64,
    thread,
    time::Duration,
};

use mover::{control::Answer, error::Error, lanes, source::Source, throttle::Throttle};

use super::{Common, say};

/// Before it dials again.
const PAUSE: Duration = Duration::from_millis(300);

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    way: Way,
    /// Data lanes.
    #[arg(long, default_value_t = 4)]
    lanes: u32,
    /// Bytes a second.
    #[arg(long)]
    bandwidth: Option<NonZeroU64>,
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct Way {
    /// Where the target listens.
    #[arg(long)]
    connect: Option<String>,
    /// Where to wait for connections that somebody passes on to the target. The loopback is
    /// enough for forwarded ports.
    #[arg(long)]
    listen: Option<SocketAddr>,
}

enum Dialler {
    Connect(String),
    Accept(TcpListener),
}

impl Dialler {
    fn dial(&self) -> io::Result<TcpStream> {
        match self {
            Self::Connect(address) => TcpStream::connect(address),
            Self::Accept(listener) => listener.accept().map(|(socket, _)| socket),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let id = args.common.id()?;
    let source = Source::open(&args.common.root)?;
    let throttle = Throttle::new(args.bandwidth);
    let dialler = match (&args.way.connect, &args.way.listen) {
        (Some(address), _) => Dialler::Connect(address.clone()),
        (None, Some(address)) => Dialler::Accept(TcpListener::bind(address).map_err(Error::Cut)?),
        (None, None) => return Err(Error::Credentials("nobody to connect to".to_owned())),
    };
    let mut identity = args.common.identity()?;
    loop {
        let served = lanes::connect(&id, &identity, args.lanes, || dialler.dial())
            .and_then(|lanes| source.serve(lanes, &throttle));
        match served {
            Err(error) if error.is_cut() => say(&Answer::from(&error)),
            served => return served,
        }
        thread::sleep(PAUSE);
        identity = args.common.renewed(identity);
    }
}
