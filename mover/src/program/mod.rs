//! What both programs have in common: which volume and move, the certificates, and how they
//! say what they do.

mod orders;
mod receiver;
pub(crate) mod source;
pub(crate) mod target;

use std::{fs, io::Write, path::PathBuf};

use mover::{
    control::Answer,
    credentials::{Identity, MoveId},
    error::Error,
};

#[derive(clap::Args)]
pub(crate) struct Common {
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
pub(crate) fn say(answer: &Answer) {
    if let Ok(line) = serde_json::to_string(answer) {
        // Nobody has to listen.
        let _ = writeln!(std::io::stdout().lock(), "{line}");
    }
}
