//! The target's program: makes passes as it is told, either by its command line or, one by one,
//! on a port of its own.

use std::{
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    time::Duration,
};

use crate::{
    clock::LONGEST_WRITE,
    control::{Answer, Verified},
    error::Error,
    target::PassOptions,
    verify::Scope,
};

use super::{Common, orders, receiver::Receiver, say};

#[derive(clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Where to wait for the source.
    #[arg(long)]
    listen: SocketAddr,
    /// The volume is a device: a folder for its journal, which a tree has in its root.
    #[arg(long)]
    journal: Option<PathBuf>,
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
    /// How many milliseconds one write to the source may take: for the benchmark, which changes
    /// files a moment before a pass.
    #[arg(long, hide = true, conflicts_with = "control")]
    longest_write: Option<u64>,
}

pub(super) fn run(args: &Args) -> Result<(), Error> {
    let longest_write = args.longest_write.map_or(LONGEST_WRITE, Duration::from_millis);
    let journal = args.journal.as_deref();
    let mut receiver = Receiver::open(&args.common, args.listen, journal, longest_write)?;
    if let Some(address) = args.control {
        let listener = TcpListener::bind(address).map_err(Error::Cut)?;
        return orders::obey(receiver, &listener);
    }
    let pass = |number| PassOptions {
        last: number == args.passes && !args.live,
        reread: args.full,
    };
    receiver.passes((1..=args.passes).map(pass))?;
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
