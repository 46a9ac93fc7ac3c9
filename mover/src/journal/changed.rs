//! The file `changed` of a journal.

use std::{
    fs::File,
    io::{self, BufWriter, ErrorKind, Write},
    path::{Path, PathBuf},
};

use super::{
    Journal,
    format::{Blocks, put_block},
};
use crate::{
    clock,
    path::{Name, TreePath},
};

/// Records which directories of the last journal are changed, and which names in them, before that
/// happens.
pub(crate) struct Changes {
    file: BufWriter<File>,
    removed: PathBuf,
    has_removed: bool,
    unsynced: bool,
}

impl Changes {
    pub(crate) fn create(journal: &Journal) -> io::Result<Self> {
        let mut file = BufWriter::new(File::create(journal.file("changed"))?);
        put_block(&mut file, boot_id().as_bytes())?;
        file.flush()?;
        file.get_ref().sync_data()?;
        Ok(Self {
            file,
            removed: journal.file("removed"),
            has_removed: false,
            unsynced: false,
        })
    }

    /// This directory is about to be changed. The note survives a crash of this process; it is not
    /// synchronised to survive one of the machine.
    pub(crate) fn directory(&mut self, path: &TreePath) -> io::Result<()> {
        put_block(&mut self.file, &[path.as_bytes(), &[0]].concat())?;
        self.file.flush()
    }

    /// A directory is about to be deleted.
    pub(crate) fn removal(&mut self) -> io::Result<()> {
        if !self.has_removed {
            File::create(&self.removed)?;
            self.has_removed = true;
        }
        Ok(())
    }

    /// Whether this pass has deleted a directory.
    pub(crate) fn has_removed(&self) -> bool {
        self.has_removed
    }

    /// The inode of this name is about to be written or replaced. The note survives a crash of this process.
    pub(crate) fn name(&mut self, directory: &TreePath, name: &Name) -> io::Result<()> {
        self.unsynced = true;
        put_block(
            &mut self.file,
            &[directory.as_bytes(), &[0], name.as_bytes()].concat(),
        )?;
        self.file.flush()
    }

    /// Writes the notes about names to disk.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        if self.unsynced {
            self.file.flush()?;
            self.file.get_ref().sync_data()?;
            self.unsynced = false;
        }
        Ok(())
    }
}

fn boot_id() -> String {
    clock::read().boot_id
}

/// Reads the notes of [`Changes`], in step with the journal.
pub(super) struct Changed {
    blocks: Option<Blocks>,
    boot_id: Vec<u8>,
    /// A directory, or a file in one.
    next: Option<(TreePath, Option<Name>)>,
}

impl Changed {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let blocks = match File::open(path) {
            Ok(file) => Some(Blocks::new(file)),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let mut changed = Self {
            blocks,
            boot_id: Vec::new(),
            next: None,
        };
        if let Some(blocks) = &mut changed.blocks {
            changed.boot_id = blocks.next()?.unwrap_or_default().to_vec();
        }
        changed.advance()?;
        Ok(changed)
    }

    /// Whether this machine has not rebooted since.
    pub(super) fn since_boot(&self) -> bool {
        !self.boot_id.is_empty() && self.boot_id == boot_id().as_bytes()
    }

    fn advance(&mut self) -> io::Result<()> {
        self.next = match self.blocks.as_mut() {
            Some(blocks) => blocks.next()?.and_then(|bytes| {
                let mut parts = bytes.splitn(2, |byte| *byte == 0);
                let directory = TreePath::parse(parts.next()?).ok()?;
                let name = Some(parts.next()?).filter(|name| !name.is_empty());
                Some((directory, name.map(Name::parse).transpose().ok()?))
            }),
            None => None,
        };
        Ok(())
    }

    /// Whether this directory, or this file in it, was noted. To be called in the order of the notes.
    pub(super) fn has(&mut self, directory: &TreePath, name: Option<&Name>) -> io::Result<bool> {
        loop {
            let Some((noted_in, noted)) = &self.next else {
                return Ok(false);
            };
            match noted_in.cmp(directory).then_with(|| noted.as_ref().cmp(&name)) {
                std::cmp::Ordering::Less => self.advance()?,
                std::cmp::Ordering::Equal => return Ok(true),
                std::cmp::Ordering::Greater => return Ok(false),
            }
        }
    }
}
