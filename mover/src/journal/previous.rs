//! The journal of the last pass, read in step with the walk of the next one.

use super::{Chunks, Journal, Line, Lines, Record};
use crate::{
    entry::{Hash, Inode},
    error::Error,
    loss::Losses,
    path::{Name, TreePath},
    piece::CHUNK,
};

/// The journal of the last pass, in step with the walk.
pub(crate) struct OldJournal {
    lines: Option<Lines>,
    /// The current directory, and its own inode.
    pub(crate) directory: Option<(TreePath, Inode)>,
    record: Option<Record>,
    pub(crate) end: Option<OldEnd>,
}

/// The end of a directory in it.
pub(crate) struct OldEnd {
    pub(crate) digest: Option<Hash>,
    pub(crate) touched: u32,
    pub(crate) losses: Losses,
}

impl OldJournal {
    pub(crate) fn new(lines: Option<Lines>) -> Self {
        Self {
            lines,
            directory: None,
            record: None,
            end: None,
        }
    }

    fn line(&mut self) -> Result<Option<Line>, Error> {
        let Some(lines) = &mut self.lines else {
            return Ok(None);
        };
        lines.next().map_err(Error::Journal)
    }

    /// Moves to this directory; false if it is not in the journal.
    pub(crate) fn seek(&mut self, path: &TreePath) -> Result<bool, Error> {
        loop {
            match &self.directory {
                Some((at, _)) if at == path => return Ok(true),
                Some((at, _)) if at > path => return Ok(false),
                _ => {}
            }
            match self.line()? {
                Some(Line::Directory { path, own }) => {
                    self.directory = Some((path, own));
                    (self.record, self.end) = (None, None);
                }
                Some(_) => {}
                None => return Ok(false),
            }
        }
    }

    pub(crate) fn own(&self) -> Option<Inode> {
        self.directory.as_ref().map(|(_, own)| own.clone())
    }

    pub(crate) fn next_record(&mut self) -> Result<Option<Record>, Error> {
        if let Some(record) = self.record.take() {
            return Ok(Some(record));
        }
        if self.end.is_some() {
            return Ok(None);
        }
        match self.line()? {
            Some(Line::Record(record)) => Ok(Some(record)),
            Some(Line::End {
                digest,
                touched,
                losses,
            }) => {
                self.end = Some(OldEnd {
                    digest,
                    touched,
                    losses,
                });
                Ok(None)
            }
            // The journal ends here, or in the middle of a directory.
            Some(Line::Directory { path, own }) => {
                self.directory = Some((path, own));
                Ok(None)
            }
            None => Ok(None),
        }
    }

    /// The record of this name; earlier records are of entries that are not listed any more.
    pub(crate) fn record(&mut self, journal: &Journal, name: &Name) -> Result<Option<Record>, Error> {
        while let Some(record) = self.next_record()? {
            match record.entry.name.cmp(name) {
                std::cmp::Ordering::Less => self.forget(journal, &record),
                std::cmp::Ordering::Equal => return Ok(Some(record)),
                std::cmp::Ordering::Greater => {
                    self.record = Some(record);
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }

    pub(crate) fn skip(&mut self, journal: &Journal) -> Result<(), Error> {
        while let Some(record) = self.next_record()? {
            self.forget(journal, &record);
        }
        Ok(())
    }

    fn forget(&self, journal: &Journal, record: &Record) {
        let large = record.entry.inode.stamp.size > CHUNK as u64;
        if let Some((directory, _)) = self.directory.as_ref().filter(|_| large)
            && let Ok(path) = directory.child(&record.entry.name)
        {
            Chunks::forget(journal, &path);
        }
    }
}
