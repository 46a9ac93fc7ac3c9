//! `liqo-csi-mover`: the two sides of a move as programs, as pods of it run them. What they say
//! on standard output, and on the target's port for orders, is JSON: see `mover::control`.

mod program;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use mover::{
    control::{Answer, Reason},
    credentials::{self, MoveId},
    error::Error,
};

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
    /// Be the source. Ends when the target says that it has all it wants.
    Source(program::source::Args),
    /// Be the target.
    Target(program::target::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Issue { r#move, folder } => MoveId::new(&r#move, 1).and_then(|id| issue(&id, &folder)),
        Command::Source(args) => program::source::run(&args),
        Command::Target(args) => program::target::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            program::say(&Answer::from(&error));
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
