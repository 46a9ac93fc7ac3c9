//! The two sides of a move as programs: `liqo-csi mover` runs them in the pods of a move, and this crate's
//! own program in its tests and benchmark. Their output on standard output, and their answers on the
//! target's port for orders, are JSON: see [`crate::control`].

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

/// The sides of a move, and the command that creates their certificates.
#[derive(Subcommand)]
pub enum Command {
    /// Create the certificates of a move, in the directories `source` and `target`.
    Issue {
        /// Uid of the move.
        #[arg(long)]
        r#move: String,
        /// The parent of these directories.
        folder: PathBuf,
    },
    /// Run the source. It ends when the target reports that it is done.
    Source(source::Args),
    /// Run the target.
    Target(target::Args),
}

/// Runs one side to its end. An error is printed as JSON, and its reason determines the exit code.
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
            log(&Answer::from(&error));
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

/// The options of both sides.
#[derive(clap::Args)]
struct Common {
    /// Path of the volume.
    #[arg(long)]
    root: PathBuf,
    /// Uid of the move.
    #[arg(long)]
    r#move: String,
    /// The volume's epoch.
    #[arg(long, default_value_t = 1)]
    epoch: u64,
    /// Directory with `authority.pem`, `certificate.pem` and `key.pem` of this side: a mounted Secret.
    #[arg(long)]
    credentials: PathBuf,
}

impl Common {
    fn id(&self) -> Result<MoveId, Error> {
        MoveId::new(&self.r#move, self.epoch)
    }

    /// The current certificates, or the previous ones if they cannot be read: a mounted Secret is updated in
    /// place.
    fn renewed(&self, before: Identity) -> Identity {
        self.identity().unwrap_or_else(|error| {
            log(&Answer::from(&error));
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

/// Writes an answer to the log.
fn log(answer: &Answer) {
    if let Ok(line) = serde_json::to_string(answer) {
        // Standard output may be closed.
        let _ = writeln!(std::io::stdout().lock(), "{line}");
    }
}
