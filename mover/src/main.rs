//! `liqo-csi-mover`: the two sides of a move without Kubernetes, for tests and the
//! benchmark. What the driver ships calls the library itself.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    num::NonZeroU64,
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use clap::{Args, Parser, Subcommand};
use mover::{
    credentials::{self, Identity, MoveId},
    error::Error,
    lanes::{self, Acceptor},
    source::Source,
    target::{PassOptions, Target},
    throttle::Throttle,
    verify::Scope,
};

/// How long a side waits before it dials again.
const AGAIN: Duration = Duration::from_millis(300);

#[derive(Parser)]
#[command(about = "Copies a volume, pass by pass, to another machine")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make the certificates of a move: a folder `source`, a folder `target`.
    Issue {
        /// The move.
        #[arg(long)]
        r#move: String,
        /// Where the folders go.
        folder: PathBuf,
    },
    /// Be the source.
    Send {
        #[command(flatten)]
        common: Common,
        /// Where the target listens.
        #[arg(long)]
        connect: String,
        /// Data lanes.
        #[arg(long, default_value_t = 4)]
        lanes: u32,
        /// Bytes a second.
        #[arg(long)]
        bandwidth: Option<NonZeroU64>,
    },
    /// Be the target.
    Receive {
        #[command(flatten)]
        common: Common,
        /// Where to listen.
        #[arg(long)]
        listen: String,
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
    },
}

#[derive(Args)]
struct Common {
    /// The volume.
    #[arg(long)]
    root: PathBuf,
    /// The move.
    #[arg(long)]
    r#move: String,
    /// The volume's epoch.
    #[arg(long, default_value_t = 1)]
    epoch: u64,
    /// `authority.pem`, `certificate.pem` and `key.pem` of this side.
    #[arg(long)]
    credentials: PathBuf,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<(), Error> {
    match command {
        Command::Issue { r#move, folder } => issue(&MoveId::new(&r#move, 1)?, &folder),
        Command::Send {
            common,
            connect,
            lanes,
            bandwidth,
        } => {
            let (id, identity) = common.identity()?;
            let source = Source::open(&common.root)?;
            let throttle = Throttle::new(bandwidth);
            loop {
                let dial = || TcpStream::connect(&connect);
                let served = lanes::connect(&id, &identity, lanes, dial)
                    .and_then(|lanes| source.serve(lanes, &throttle));
                match served {
                    Err(error) if error.is_cut() => eprintln!("{error}; dialling again"),
                    served => return served,
                }
                thread::sleep(AGAIN);
            }
        }
        Command::Receive {
            common,
            listen,
            passes,
            live,
            full,
            unverified,
            keep_journal,
        } => {
            let (id, identity) = common.identity()?;
            let listener = TcpListener::bind(&listen).map_err(Error::Cut)?;
            let acceptor = Acceptor::new(listener, &id, &identity)?;
            let mut target = Target::open(&common.root, &id)?;
            let mut left = passes;
            while left > 0 {
                let Some(lanes) = acceptor.accept(Duration::from_mins(1))? else {
                    continue;
                };
                let received = receive(&mut target, lanes, &mut left, live, full);
                match received {
                    Err(error) if error.is_cut() => eprintln!("{error}; waiting for the source"),
                    received => received?,
                }
            }
            if !unverified {
                verify(&target, if full { Scope::All } else { Scope::Touched })?;
            }
            if keep_journal { Ok(()) } else { target.finish() }
        }
    }
}

fn receive(
    target: &mut Target,
    lanes: lanes::TargetLanes,
    left: &mut u32,
    live: bool,
    reread: bool,
) -> Result<(), Error> {
    let mut session = target.session(lanes);
    while *left > 0 {
        let started = Instant::now();
        let report = session.pass(PassOptions {
            last: *left == 1 && !live,
            reread,
        })?;
        println!(
            "pass {}: {:.3} s, {} entries, {} bytes, {} files compared, {} bytes received, {} deleted, {} unsteady",
            report.pass,
            started.elapsed().as_secs_f64(),
            report.entries,
            report.bytes,
            report.compared_files,
            report.received_bytes,
            report.deleted,
            report.unsteady,
        );
        for (kind, count, example) in &report.losses {
            println!("not carried over: {kind:?} of {count}, first '{example}'");
        }
        *left -= 1;
    }
    session.end();
    Ok(())
}

fn verify(target: &Target, scope: Scope) -> Result<(), Error> {
    let started = Instant::now();
    let found = target.verify(scope)?;
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "verified {} files, {} bytes in {seconds:.3} s: {}",
        found.files, found.bytes, found.found
    );
    for difference in &found.differences {
        println!("{difference}");
    }
    match found.differences.into_iter().next() {
        Some(difference) => Err(Error::Corrupt {
            path: difference.path,
            chunk: 0,
        }),
        None => Ok(()),
    }
}

fn issue(id: &MoveId, folder: &Path) -> Result<(), Error> {
    let (source, target) = credentials::issue(id)?;
    for (name, identity) in [("source", source), ("target", target)] {
        let folder = folder.join(name);
        let written = fs::create_dir_all(&folder)
            .and_then(|()| fs::write(folder.join("authority.pem"), &identity.authority))
            .and_then(|()| fs::write(folder.join("certificate.pem"), &identity.certificate))
            .and_then(|()| fs::write(folder.join("key.pem"), &identity.key));
        written.map_err(|error| Error::Credentials(error.to_string()))?;
    }
    Ok(())
}

impl Common {
    fn identity(&self) -> Result<(MoveId, Identity), Error> {
        let read = |name: &str| {
            let path = self.credentials.join(name);
            fs::read_to_string(&path)
                .map_err(|error| Error::Credentials(format!("{}: {error}", path.display())))
        };
        let identity = Identity {
            authority: read("authority.pem")?,
            certificate: read("certificate.pem")?,
            key: read("key.pem")?,
        };
        Ok((MoveId::new(&self.r#move, self.epoch)?, identity))
    }
}
