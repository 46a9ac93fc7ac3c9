//! The target's program: makes passes as it is told, either by its command line or, one by one,
//! on a port of its own.

use std::{
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use mover::{
    control::{Answer, Passed, Verified},
    credentials::Identity,
    error::Error,
    lanes::{Acceptor, TargetLanes},
    target::{PassOptions, Progress, Target},
    verify::Scope,
};

use super::{Common, orders, say};

/// After so long without a source the certificates are read again.
const ROUND: Duration = Duration::from_mins(1);

#[derive(clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Where to wait for the source.
    #[arg(long)]
    listen: SocketAddr,
    /// Where to take orders. Whoever can connect there is obeyed: use the loopback, which
    /// forwarded ports reach.
    #[arg(long, conflicts_with_all = ["passes", "live", "full", "unverified", "keep_journal"])]
    control: Option<SocketAddr>,
    /// How many passes; the last is the final one.
    #[arg(long, default_value_t = 1)]
    passes: u32,
    /// Changes during the last pass are no error.
    #[arg(long)]
    live: bool,
    /// Read all content at both ends.
    #[arg(long)]
    full: bool,
    /// Do not read back.
    #[arg(long)]
    unverified: bool,
    /// Leave the journal for another run.
    #[arg(long)]
    keep_journal: bool,
}

/// The volume, and the door for its source.
pub(super) struct Receiver<'a> {
    common: &'a Common,
    identity: Identity,
    acceptor: Acceptor,
    target: Target,
}

pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let id = args.common.id()?;
    let listener = TcpListener::bind(args.listen).map_err(Error::Cut)?;
    let identity = args.common.identity()?;
    let mut receiver = Receiver {
        common: &args.common,
        acceptor: Acceptor::new(listener, &id, &identity)?,
        identity,
        target: Target::open(&args.common.root, &id)?,
    };
    if let Some(address) = args.control {
        let listener = TcpListener::bind(address).map_err(Error::Cut)?;
        return orders::obey(receiver, &listener);
    }
    receiver.all_passes(args)?;
    if !args.unverified {
        let scope = if args.full { Scope::All } else { Scope::Touched };
        let found = receiver.verify(scope)?;
        let first = found.differences.first().cloned();
        say(&Answer::Verified(Verified::from(found)));
        if let Some(difference) = first {
            return Err(Error::Corrupt {
                path: difference.path,
                chunk: 0,
            });
        }
    }
    if args.keep_journal {
        return Ok(());
    }
    receiver.finish()
}

impl Receiver<'_> {
    /// The passes of the command line, on one connection if that holds.
    fn all_passes(&mut self, args: &Args) -> Result<(), Error> {
        let mut left = args.passes;
        while left > 0 {
            let lanes = self.connected()?;
            let mut session = self.target.session(lanes);
            while left > 0 {
                let passed = session.pass(PassOptions {
                    last: left == 1 && !args.live,
                    reread: args.full,
                });
                match passed {
                    Err(error) if error.is_cut() => {
                        say(&Answer::from(&error));
                        break;
                    }
                    passed => say(&Answer::Passed(Passed::from(passed?))),
                }
                left -= 1;
            }
            if left == 0 {
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

    pub(super) fn verify(&self, scope: Scope) -> Result<mover::verify::Verification, Error> {
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
