//! The state of a target's program, however it gets its orders: the volume, and the acceptor for the source.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    path::Path,
    time::{Duration, Instant},
};

use crate::{
    block::{BlockSession, BlockTarget},
    control::{Answer, Passed},
    credentials::Identity,
    error::Error,
    lanes::{Acceptor, TargetLanes},
    target::{self, PassOptions, Progress, Target},
    verify::{Scope, Verification},
};

use super::{Common, log};

/// The certificates are read again after this time without a source.
const ROUND: Duration = Duration::from_mins(1);
/// How often it is checked whether the client still waits for a source.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Listens on this address. `[::]` means all addresses, also those of IPv4, and also without IPv6 in the kernel.
fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let any = address.ip() == IpAddr::from(Ipv6Addr::UNSPECIFIED);
    match TcpListener::bind(address) {
        Err(error) if any && error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port()))
        }
        bound => bound,
    }
}

/// A target that accepts its source.
pub(super) struct Receiver<'a> {
    common: &'a Common,
    identity: Identity,
    acceptor: Acceptor,
    volume: Volume,
}

/// The volume for the source's content.
enum Volume {
    Tree(Target),
    Device(BlockTarget),
}

/// A session with a source.
enum Session<'v> {
    Tree(target::Session<'v>),
    Device(BlockSession<'v>),
}

impl Volume {
    fn session(&mut self, lanes: TargetLanes) -> Session<'_> {
        match self {
            Self::Tree(tree) => Session::Tree(tree.session(lanes)),
            Self::Device(device) => Session::Device(device.session(lanes)),
        }
    }
}

impl Session<'_> {
    /// For a device every pass reads everything, and concurrent changes are not noticed.
    fn pass(&mut self, options: PassOptions) -> Result<Passed, Error> {
        match self {
            Self::Tree(session) => session.pass(options).map(Passed::from),
            Self::Device(session) => session.pass().map(Passed::from),
        }
    }

    fn progress(&self) -> Progress {
        match self {
            Self::Tree(session) => session.progress(),
            Self::Device(session) => session.progress(),
        }
    }

    fn end(self) {
        match self {
            Self::Tree(session) => session.end(),
            Self::Device(session) => session.end(),
        }
    }
}

impl<'a> Receiver<'a> {
    /// `journal` is for a volume that is a device.
    pub(super) fn open(
        common: &'a Common,
        listen: SocketAddr,
        journal: Option<&Path>,
        longest_write: Duration,
    ) -> Result<Self, Error> {
        let id = common.id()?;
        let listener = bind(listen).map_err(Error::Cut)?;
        let identity = common.identity()?;
        Ok(Self {
            acceptor: Acceptor::new(listener, &id, &identity)?,
            volume: match journal {
                None => Volume::Tree(Target::open(&common.root, &id)?.with_longest_write(longest_write)),
                Some(journal) => Volume::Device(BlockTarget::open(&common.root, journal, &id)?),
            },
            common,
            identity,
        })
    }

    /// Runs these passes, on one connection if that does not break; then ends the session.
    pub(super) fn passes(&mut self, mut all: impl Iterator<Item = PassOptions>) -> Result<(), Error> {
        let mut next = all.next();
        while next.is_some() {
            let lanes = self.connected(|| true)?;
            let mut session = self.volume.session(lanes);
            while let Some(options) = next {
                match session.pass(options) {
                    Err(error) if error.is_cut() => {
                        log(&Answer::from(&error));
                        break;
                    }
                    passed => log(&Answer::Passed(passed?)),
                }
                next = all.next();
            }
            if next.is_none() {
                session.end();
            }
        }
        Ok(())
    }

    /// Runs one pass, on as many connections as necessary. `observer` gets the progress of each connection.
    /// It stops waiting for a source when the client is gone: the next order may be for a source that has
    /// changed.
    pub(super) fn pass(
        &mut self,
        options: PassOptions,
        is_wanted: impl Fn() -> bool,
        mut connected: impl FnMut(Option<Progress>),
    ) -> Result<Passed, Error> {
        loop {
            connected(None);
            let lanes = self.connected(&is_wanted)?;
            let mut session = self.volume.session(lanes);
            connected(Some(session.progress()));
            match session.pass(options) {
                Err(error) if error.is_cut() => log(&Answer::from(&error)),
                passed => return passed,
            }
        }
    }

    pub(super) fn verify(&mut self, scope: Scope) -> Result<Verification, Error> {
        match &mut self.volume {
            Volume::Tree(tree) => tree.verify(scope),
            Volume::Device(device) => device.verify(scope),
        }
    }

    pub(super) fn finish(self) -> Result<(), Error> {
        match self.volume {
            Volume::Tree(tree) => tree.finish(),
            Volume::Device(device) => device.finish(),
        }
    }

    fn connected(&mut self, is_wanted: impl Fn() -> bool) -> Result<TargetLanes, Error> {
        let mut read = Instant::now();
        loop {
            if !is_wanted() {
                let gone = "the client that gave the order and the source have disconnected";
                return Err(Error::Cut(io::Error::other(gone)));
            }
            if let Some(lanes) = self.acceptor.accept(CHECK_INTERVAL)? {
                return Ok(lanes);
            }
            if read.elapsed() < ROUND {
                continue;
            }
            read = Instant::now();
            self.identity = self.common.renewed(self.identity.clone());
            self.acceptor.renew(&self.identity)?;
        }
    }
}
