//! The two sides of a move as programs: `liqo-csi mover` runs them in the pods of a move, and
//! this crate's own program in its tests and benchmark. What they print on standard output, and
//! answer on the target's port for orders, is JSON: see [`crate::control`].

mod orders;
mod receiver;
mod source;
mod target;

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Subcommand;

use crate::{
    control::{Answer, Reason},
    credentials::{self, Identity, MoveId},
    error::Error,
};

/// The sides of a move, and what makes their certificates.
#[derive(Subcommand)]
pub enum Command {
    /// Make the certificates of a move: a folder `source`, a folder `target`.
    Issue {
        /// The move.
        #[arg(long)]
        r#move: String,
        /// Where the folders go.
        folder: PathBuf,
    },
    /// Be the source. Ends when the target says that it has all it wants.
    Source(source::Args),
    /// Be the target.
    Target(target::Args),
}

/// Runs one side to its end. An error is printed as JSON, and its reason is the exit code.
#[must_use]
pub fn run(command: &Command) -> ExitCode {
    let outcome = match command {
        Command::Issue { r#move, folder } => MoveId::new(r#move, 1).and_then(|id| issue(&id, folder)),
        Command::Source(args) => source::run(args),
        Command::Target(args) => target::run(args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&Answer::from(&error));
            ExitCode::from(Reason::of(&error).exit_code())
        }
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

/// What both sides are told.
#[derive(clap::Args)]
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
    /// `authority.pem`, `certificate.pem` and `key.pem` of this side: a Secret that is mounted.
    #[arg(long)]
    credentials: PathBuf,
}

impl Common {
    fn id(&self) -> Result<MoveId, Error> {
        MoveId::new(&self.r#move, self.epoch)
    }

    /// The certificates as they are now, or those of before if they cannot be read: a Secret
    /// that is mounted is renewed in place.
    fn renewed(&self, before: Identity) -> Identity {
        self.identity().unwrap_or_else(|error| {
            say(&Answer::from(&error));
            before
        })
    }

    fn identity(&self) -> Result<Identity, Error> {
        let read = |name: &str| {
            let path = self.credentials.join(name);
            fs::read_to_string(&path)
                .map_err(|error| Error::Credentials(format!("{}: {error}", path.display())))
        };
        Ok(Identity {
            authority: read("authority.pem")?,
            certificate: read("certificate.pem")?,
            key: read("key.pem")?,
        })
    }
}

/// Says something to whoever reads the log.
fn say(answer: &Answer) {
    if let Ok(line) = serde_json::to_string(answer) {
        // Nobody has to listen.
        let _ = writeln!(std::io::stdout().lock(), "{line}");
    }
}
