//! What a target's program has, however it is told what to do: the volume, and the door for the
//! source.

use std::{
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use mover::{
    control::{Answer, Passed},
    credentials::Identity,
    error::Error,
    lanes::{Acceptor, TargetLanes},
    target::{PassOptions, Progress, Target},
    verify::{Scope, Verification},
};

use super::{Common, say};

/// After so long without a source the certificates are read again.
const ROUND: Duration = Duration::from_mins(1);

/// A target that waits for its source.
pub(super) struct Receiver<'a> {
    common: &'a Common,
    identity: Identity,
    acceptor: Acceptor,
    target: Target,
}

impl<'a> Receiver<'a> {
    pub(super) fn open(common: &'a Common, listen: SocketAddr) -> Result<Self, Error> {
        let id = common.id()?;
        let listener = TcpListener::bind(listen).map_err(Error::Cut)?;
        let identity = common.identity()?;
        Ok(Self {
            acceptor: Acceptor::new(listener, &id, &identity)?,
            target: Target::open(&common.root, &id)?,
            common,
            identity,
        })
    }

    /// These passes, on one connection if that holds; then the source is let go.
    pub(super) fn passes(&mut self, mut all: impl Iterator<Item = PassOptions>) -> Result<(), Error> {
        let mut next = all.next();
        while next.is_some() {
            let lanes = self.connected()?;
            let mut session = self.target.session(lanes);
            while let Some(options) = next {
                match session.pass(options) {
                    Err(error) if error.is_cut() => {
                        say(&Answer::from(&error));
                        break;
                    }
                    passed => say(&Answer::Passed(Passed::from(passed?))),
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
    /// each connection.
    pub(super) fn pass(
        &mut self,
        options: PassOptions,
        mut connected: impl FnMut(Option<Progress>),
    ) -> Result<Passed, Error> {
        loop {
            connected(None);
            let lanes = self.connected()?;
            let mut session = self.target.session(lanes);
            connected(Some(session.progress()));
            match session.pass(options) {
                Err(error) if error.is_cut() => say(&Answer::from(&error)),
                passed => return passed.map(Passed::from),
            }
        }
    }

    pub(super) fn verify(&self, scope: Scope) -> Result<Verification, Error> {
        self.target.verify(scope)
    }

    pub(super) fn finish(self) -> Result<(), Error> {
        self.target.finish()
    }

    fn connected(&mut self) -> Result<TargetLanes, Error> {
        loop {
            if let Some(lanes) = self.acceptor.accept(ROUND)? {
                return Ok(lanes);
            }
            self.identity = self.common.renewed(self.identity.clone());
            self.acceptor.renew(&self.identity)?;
        }
    }
}
