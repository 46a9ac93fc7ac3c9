//! The target's program: runs passes according to its command line, or according to orders on a port.

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

use super::{Common, log, orders, receiver::Receiver};

#[derive(clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Address to listen on for the source.
    #[arg(long)]
    listen: SocketAddr,
    /// For a volume that is a device: directory of its journal (a tree has it in its root).
    #[arg(long)]
    journal: Option<PathBuf>,
    /// Address to listen on for orders. Every client that can connect is obeyed: use the loopback address,
    /// which forwarded ports reach.
    #[arg(long, conflicts_with_all = ["passes", "live", "full", "unverified", "keep_journal"])]
    control: Option<SocketAddr>,
    /// Number of passes; the last one is the final one.
    #[arg(long, default_value_t = 1)]
    passes: u32,
    /// Do not treat changes during the last pass as an error.
    #[arg(long)]
    live: bool,
    /// Read all content on both sides.
    #[arg(long)]
    full: bool,
    /// Do not verify.
    #[arg(long)]
    unverified: bool,
    /// Keep the journal for another run.
    #[arg(long)]
    keep_journal: bool,
    /// Maximum duration of one write to the source in milliseconds: for the benchmark, which changes files
    /// immediately before a pass.
    #[arg(long, hide = true, conflicts_with = "control")]
    longest_write: Option<u64>,
}

pub(super) fn run(args: &Args) -> Result<(), Error> {
    let longest_write = args.longest_write.map_or(LONGEST_WRITE, Duration::from_millis);
    let journal = args.journal.as_deref();
    let mut receiver = Receiver::open(&args.common, args.listen, journal, longest_write)?;
    if let Some(address) = args.control {
        let listener = TcpListener::bind(address).map_err(Error::Cut)?;
        return orders::serve_orders(receiver, &listener);
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
        log(&Answer::Verified(Verified::from(found)));
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
