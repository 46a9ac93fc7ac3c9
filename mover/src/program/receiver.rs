//! What a target's program has, however it is told what to do: the volume, and the door for the
//! source.

use std::{
    io,
    net::{SocketAddr, TcpListener},
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

use super::{Common, say};

/// After so long without a source the certificates are read again.
const ROUND: Duration = Duration::from_mins(1);
/// So often it is looked whether somebody still wants a source to come.
const LOOK: Duration = Duration::from_secs(1);

/// A target that waits for its source.
pub(super) struct Receiver<'a> {
    common: &'a Common,
    identity: Identity,
    acceptor: Acceptor,
    volume: Volume,
}

/// What the source's content goes to.
enum Volume {
    Tree(Target),
    Device(BlockTarget),
}

/// A source that is connected.
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
    /// Of a device every pass reads all, and what changes meanwhile is not seen.
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
    /// `journal` is for the volume that is a device.
    pub(super) fn open(
        common: &'a Common,
        listen: SocketAddr,
        journal: Option<&Path>,
        longest_write: Duration,
    ) -> Result<Self, Error> {
        let id = common.id()?;
        let listener = TcpListener::bind(listen).map_err(Error::Cut)?;
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

    /// These passes, on one connection if that holds; then the source is let go.
    pub(super) fn passes(&mut self, mut all: impl Iterator<Item = PassOptions>) -> Result<(), Error> {
        let mut next = all.next();
        while next.is_some() {
            let lanes = self.connected(|| true)?;
            let mut session = self.volume.session(lanes);
            while let Some(options) = next {
                match session.pass(options) {
                    Err(error) if error.is_cut() => {
                        say(&Answer::from(&error));
                        break;
                    }
                    passed => say(&Answer::Passed(passed?)),
                }
                next = all.next();
            }
            if next.is_none() {
                session.end();
            }
        }
        Ok(())
    }

    /// One pass, on as many connections as it takes. Who wants to know how far it is hears of
    /// each connection. Nobody is waited for whom nobody wants any more: the next order may be for
    /// a source that has changed.
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
                Err(error) if error.is_cut() => say(&Answer::from(&error)),
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
                let gone = "whoever gave the order is gone, and so is the source";
                return Err(Error::Cut(io::Error::other(gone)));
            }
            if let Some(lanes) = self.acceptor.accept(LOOK)? {
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
