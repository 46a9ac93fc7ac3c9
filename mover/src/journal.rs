//! The state that the target keeps from pass to pass, in a directory in its own root: the listing of each
//! directory as the source sent it, with the hash of each file's content on disk. It is a cache: if it is
//! lost, the target's files are hashed again.
//!
//! ```text
//! entries      header, then blocks of records in the order of the walk, of the last
//!              pass that was completed
//! entries.new  the same of the pass that is in progress; blocks are appended only when
//!              their content is on disk
//! changed      directories of `entries` that are being changed, and names whose inodes are
//!              being written or replaced, in the order of the walk
//! removed      exists once the pass that is in progress, or one that only deletes, has
//!              deleted a directory
//! verified     the pass up to which the disk was read back
//! differs      exists if the disk did not have what was written: the next pass hashes
//!              all files
//! chunks/      hashes of the chunks of files with more than one, zeros for holes
//! links/       a hard link to each inode with several names, by the source's number
//! ```
//!
//! While the journal is removed, `entries` is next to the directory, and named like it with `.entries` at the end.
//!
//! A block is its length (u32), the first 8 bytes of its hash, and protobuf. A process may be killed at any
//! moment, and a machine may lose its power: a block that is incomplete is the end of its file.

mod changed;
mod chunks;
mod format;
mod previous;

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use prost::Message as _;

use self::{
    changed::Changed,
    format::{Blocks, FORMAT, Header, OLDEST_FORMAT},
};
pub(crate) use self::{
    changed::Changes,
    chunks::Chunks,
    format::{JournalWriter, Line, Lines, Record},
    previous::OldJournal,
};
use crate::{
    clock, credentials::MoveId, entry::Inode, error::is_no_space, message::ClockReading, path::TreePath,
    scan::JOURNAL_PREFIX,
};

/// The directory of one move's journal.
#[derive(Debug)]
pub(crate) struct Journal {
    folder: PathBuf,
    epoch: u64,
}

impl Journal {
    pub(crate) fn folder_name(id: &MoveId) -> Vec<u8> {
        [JOURNAL_PREFIX, id.uid().as_bytes()].concat()
    }

    /// The journal in this root, which [`Self::make`] creates: that changes the times of the root.
    pub(crate) fn new(root: &Path, id: &MoveId) -> Self {
        use std::os::unix::ffi::OsStringExt as _;
        Self {
            folder: root.join(std::ffi::OsString::from_vec(Self::folder_name(id))),
            epoch: id.epoch(),
        }
    }

    /// Deletes everything in the journal: the content of the target counts as unknown then.
    pub(crate) fn clear(&self) -> io::Result<()> {
        fs::remove_dir_all(&self.folder)?;
        self.make()
    }

    /// Creates its directories.
    pub(crate) fn make(&self) -> io::Result<()> {
        for part in [self.folder.clone(), self.file("chunks"), self.file("links")] {
            match fs::DirBuilder::new().mode(0o700).create(&part) {
                Ok(()) => {}
                Err(error)
                    if error.kind() == ErrorKind::AlreadyExists && fs::symlink_metadata(&part)?.is_dir() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(crate) fn exists(&self) -> bool {
        self.folder.exists() || self.last_entries().exists()
    }

    /// Deletes it. What may take long goes first. In the end only the file with the attributes of the root is left: until that
    /// is deleted, [`Self::root`] returns them, also after the process was killed.
    pub(crate) fn remove(&self) -> io::Result<()> {
        let unless_missing = |done: io::Result<()>| match done {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        for part in ["chunks", "links"] {
            unless_missing(fs::remove_dir_all(self.file(part)))?;
        }
        unless_missing(fs::rename(self.file("entries"), self.last_entries()))?;
        unless_missing(fs::remove_dir_all(&self.folder))?;
        unless_missing(fs::remove_file(self.last_entries()))
    }

    /// Where `entries` is while the journal is being removed.
    fn last_entries(&self) -> PathBuf {
        let mut name = self.folder.clone().into_os_string();
        name.push(".entries");
        name.into()
    }

    /// The root as the last completed pass has recorded it, also while the journal is being removed.
    pub(crate) fn root(&self) -> io::Result<Option<Inode>> {
        let read = match self.read()? {
            None => self.read_at(&self.last_entries())?,
            read => read,
        };
        let Some((_, mut lines)) = read else {
            return Ok(None);
        };
        Ok(match lines.next()? {
            Some(Line::Directory { own, .. }) => Some(own),
            _ => None,
        })
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The journal of the last completed pass, if there is one.
    pub(crate) fn read(&self) -> io::Result<Option<(Header, Lines)>> {
        self.read_file("entries")
    }

    fn read_file(&self, name: &str) -> io::Result<Option<(Header, Lines)>> {
        self.read_at(&self.file(name))
    }

    fn read_at(&self, path: &Path) -> io::Result<Option<(Header, Lines)>> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut blocks = Blocks::new(file);
        let header = blocks.next()?.and_then(|block| Header::decode(block).ok());
        Ok(header
            .filter(|header| (OLDEST_FORMAT..=FORMAT).contains(&header.format) && header.epoch == self.epoch)
            .map(|header| {
                let lines = Lines {
                    format: header.format,
                    blocks,
                    directory: None,
                    pending: std::collections::VecDeque::new(),
                };
                // What is derived from these lines is written in the current format.
                let format = FORMAT;
                (Header { format, ..header }, lines)
            }))
    }

    /// The directory of hard links.
    pub(crate) fn links(&self) -> io::Result<rustix::fd::OwnedFd> {
        File::open(self.file("links")).map(Into::into)
    }

    /// A file for directories, for the time of one pass.
    pub(crate) fn scratch(&self, name: &str) -> io::Result<JournalWriter> {
        let header = Header {
            format: FORMAT,
            epoch: self.epoch,
            ..Header::default()
        };
        JournalWriter::create(&self.file(name), &header)
    }

    pub(crate) fn read_scratch(&self, name: &str) -> io::Result<Lines> {
        let read = self.read_file(name)?;
        read.map(|(_, lines)| lines)
            .ok_or_else(|| ErrorKind::NotFound.into())
    }

    /// Begins the journal of a pass.
    pub(crate) fn write(&self, pass: u32, clock: ClockReading) -> io::Result<JournalWriter> {
        JournalWriter::create(
            &self.file("entries.new"),
            &Header {
                format: FORMAT,
                epoch: self.epoch,
                pass,
                clock: Some(clock),
            },
        )
    }

    /// Makes the journal of a completed pass the current one.
    pub(crate) fn complete(&self, mut writer: JournalWriter) -> io::Result<()> {
        writer.sync()?;
        drop(writer);
        fs::rename(self.file("entries.new"), self.file("entries"))?;
        self.forget(&["changed", "removed"])?;
        File::open(&self.folder)?.sync_all()
    }

    /// Whether a pass has begun that was not completed.
    pub(crate) fn is_unfinished(&self) -> bool {
        let parts = ["entries.new", "changed", "removed"];
        parts.iter().any(|part| self.file(part).exists())
    }

    /// Directories are about to be deleted before a pass begins. Without space for this note, everything is
    /// forgotten.
    pub(crate) fn note_removal(&self) -> io::Result<()> {
        match File::create(self.file("removed")) {
            Err(error) if is_no_space(&error) => self.clear(),
            created => {
                created?;
                File::open(&self.folder)?.sync_all()
            }
        }
    }

    /// The pass up to which the disk was read back.
    pub(crate) fn verified(&self) -> u32 {
        let text = fs::read_to_string(self.file("verified")).unwrap_or_default();
        text.trim().parse().unwrap_or_default()
    }

    pub(crate) fn set_verified(&self, pass: u32) -> io::Result<()> {
        fs::write(self.file("verified.new"), pass.to_string())?;
        fs::rename(self.file("verified.new"), self.file("verified"))
    }

    /// Notes that the disk does not have what was written.
    pub(crate) fn note_difference(&self) -> io::Result<()> {
        File::create(self.file("differs")).map(drop)
    }

    /// After a difference, forgets what is on disk. The groups of hard links are as at the source, and stay: without them,
    /// each name would get an inode of its own until the last one is listed, for which there may be no space.
    pub(crate) fn forget_differing(&self) -> io::Result<()> {
        if !self.file("differs").exists() {
            return Ok(());
        }
        self.forget(&[
            "entries",
            "entries.new",
            "changed",
            "removed",
            "verified",
            "differs",
        ])
    }

    /// After a pass that was not completed: merges its records on disk with those of the pass before for
    /// everything after them, except for the names that were being changed. A directory that the aborted
    /// pass has changed is listed again, even if the source reports in the end that it is unchanged: it may
    /// have been moved away and back. The same applies to everything below a deleted directory and, after a
    /// reboot, which may have lost such notes, to everything. If the source has rebooted, or its clock was set back,
    /// between the last complete pass and the aborted one, the records of the complete pass are not clean any more.
    pub(crate) fn recover(&self) -> io::Result<()> {
        if !self.is_unfinished() {
            return Ok(());
        }
        let mut changed = Changed::open(&self.file("changed"))?;
        let (new, old) = (self.read_file("entries.new")?, self.read_file("entries")?);
        let Some(header) = new.as_ref().or(old.as_ref()).map(|(header, _)| header.clone()) else {
            return self.forget(&["entries.new", "changed", "removed"]);
        };
        let before = old.as_ref().and_then(|(old, _)| old.clock.as_ref());
        let stamps_count = before.zip(header.clock.as_ref()).is_some_and(|(before, later)| {
            // They are equal if the aborted pass has left no records.
            before == later || clock::went_on(before, later)
        });
        let mut merged = JournalWriter::create(&self.file("entries.merged"), &header)?;
        let mut last = None;
        // Only complete directories: what is missing in an incomplete one is unknown. They are counted first,
        // since not all lines of a large one can be in memory.
        let mut complete = 0_u64;
        if let Some((_, mut lines)) = self.read_file("entries.new")? {
            while let Some(line) = lines.next()? {
                complete += u64::from(matches!(line, Line::End { .. }));
            }
        }
        let mut new = new.map(|(_, lines)| lines);
        while complete > 0
            && let Some(line) = new.as_mut().map(Lines::next).transpose()?.flatten()
        {
            match line {
                // The attributes of directories are set at the end of a pass, which the aborted one
                // did not reach: they have to be listed again.
                Line::End { touched, losses, .. } => {
                    complete -= 1;
                    merged.put(&Line::End {
                        digest: None,
                        touched,
                        losses,
                    })?;
                }
                line => {
                    if let Line::Directory { path, .. } = &line {
                        last = Some(path.clone());
                    }
                    merged.put(&line)?;
                }
            }
        }
        if let Some((_, mut old)) = old {
            let all = !stamps_count || self.file("removed").exists() || !changed.since_boot();
            let (mut current, mut skip, mut spoilt) = (TreePath::root(), false, all);
            while let Some(line) = old.next()? {
                match line {
                    Line::Directory { path, own } => {
                        skip = last.as_ref().is_some_and(|last| path <= *last);
                        spoilt = all || changed.has(&path, None)?;
                        current = path.clone();
                        if !skip {
                            merged.put(&Line::Directory { path, own })?;
                        }
                    }
                    _ if skip => {}
                    Line::Record(record) if changed.has(&current, Some(&record.entry.name))? => spoilt = true,
                    Line::Record(record) => merged.put(&Line::Record(Record {
                        clean: record.clean && stamps_count,
                        ..record
                    }))?,
                    Line::End { touched, losses, .. } if spoilt => merged.put(&Line::End {
                        digest: None,
                        touched,
                        losses,
                    })?,
                    line @ Line::End { .. } => merged.put(&line)?,
                }
            }
        }
        merged.sync()?;
        drop(merged);
        fs::rename(self.file("entries.merged"), self.file("entries"))?;
        self.forget(&["entries.new", "changed", "removed"])
    }

    fn forget(&self, names: &[&str]) -> io::Result<()> {
        for name in names {
            match fs::remove_file(self.file(name)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        entry::{Attributes, Entry, Hash, Kind, Stamp},
        loss::Losses,
        path::Name,
    };

    fn inode(kind: Kind) -> Inode {
        Inode {
            kind,
            stamp: Stamp::default(),
            attributes: Attributes::default(),
            linked: false,
        }
    }

    /// Writes a directory with one file, and reads it again.
    fn written_in(format: u32) -> Vec<Line> {
        let root = tempfile::tempdir().unwrap();
        let journal = Journal::new(root.path(), &MoveId::new("of-old", 1).unwrap());
        journal.make().unwrap();
        let header = Header {
            format,
            epoch: 1,
            pass: 3,
            clock: None,
        };
        let mut losses = Losses::default();
        losses.note(crate::LossKind::Xattrs, 2, &TreePath::root());
        let mut writer = JournalWriter::create(&journal.file("entries.new"), &header).unwrap();
        for line in [
            Line::Directory {
                path: TreePath::root(),
                own: inode(Kind::Directory),
            },
            Line::Record(Record {
                entry: Entry {
                    name: Name::parse(b"file").unwrap(),
                    inode: inode(Kind::File),
                },
                clean: true,
                content: Some([7; 32]),
                touched: 3,
            }),
            Line::End {
                digest: Some([8; 32]),
                touched: 3,
                losses,
            },
        ] {
            writer.put(&line).unwrap();
        }
        journal.complete(writer).unwrap();
        let (header, mut lines) = journal.read().unwrap().unwrap();
        assert_eq!((header.format, header.pass), (FORMAT, 3));
        std::iter::from_fn(|| lines.next().unwrap()).collect()
    }

    fn told(lines: &[Line]) -> (bool, Option<Hash>, Option<Hash>, Losses) {
        let [
            Line::Directory { .. },
            Line::Record(record),
            Line::End { digest, losses, .. },
        ] = lines
        else {
            panic!("{lines:?}");
        };
        (record.clean, record.content, *digest, losses.clone())
    }

    #[test]
    fn losses_are_recorded_in_the_journal() {
        let (clean, content, digest, losses) = told(&written_in(FORMAT));
        assert_eq!((clean, content, digest), (true, Some([7; 32]), Some([8; 32])));
        assert_eq!(
            losses.into_list(),
            [(crate::LossKind::Xattrs, 2, TreePath::root())]
        );
    }

    /// Tens of thousands of records wait in memory at a time.
    #[test]
    fn the_target_of_a_symbolic_link_counts_as_memory() {
        let cost = |kind| {
            let entry = Entry {
                name: Name::parse(b"link").unwrap(),
                inode: inode(kind),
            };
            let record = Record {
                entry,
                clean: true,
                content: None,
                touched: 1,
            };
            record.cost()
        };
        assert!(cost(Kind::Symlink(vec![b'x'; TreePath::MAX])) >= cost(Kind::Fifo) + TreePath::MAX);
    }

    /// A pass that was killed in the middle of its last directory, which is larger than a block.
    #[test]
    fn only_complete_directories_of_an_aborted_pass_are_used() {
        let root = tempfile::tempdir().unwrap();
        let journal = Journal::new(root.path(), &MoveId::new("aborted", 1).unwrap());
        journal.make().unwrap();
        let mut writer = journal.write(1, clock::read()).unwrap();
        for (path, files, ends) in [("", 3, true), ("a", 2000, true), ("b", 2000, false)] {
            let path = TreePath::parse(path.as_bytes()).unwrap();
            let own = inode(Kind::Directory);
            writer.put(&Line::Directory { path, own }).unwrap();
            for file in 0..files {
                let entry = Entry {
                    name: Name::parse(format!("{file:04}").as_bytes()).unwrap(),
                    inode: inode(Kind::File),
                };
                let record = Record {
                    entry,
                    clean: true,
                    content: Some([7; 32]),
                    touched: 1,
                };
                writer.put(&Line::Record(record)).unwrap();
            }
            if ends {
                let end = Line::End {
                    digest: None,
                    touched: 1,
                    losses: Losses::default(),
                };
                writer.put(&end).unwrap();
            }
        }
        writer.sync().unwrap();
        drop(writer);
        assert!(journal.is_unfinished());
        journal.recover().unwrap();
        assert!(!journal.is_unfinished());
        let (_, mut lines) = journal.read().unwrap().unwrap();
        let lines: Vec<Line> = std::iter::from_fn(|| lines.next().unwrap()).collect();
        assert_eq!(lines.len(), 3 + 2000 + 2 * 2);
        assert!(matches!(lines.last(), Some(Line::End { .. })));
    }

    /// A pass that read everything, because the source had rebooted, was killed after the root.
    #[test]
    fn stamps_from_before_a_reboot_do_not_count_after_an_aborted_pass() {
        let reading = |seconds: i64, boot: &str| ClockReading {
            wall_nanos: seconds * 1_000_000_000,
            offset_nanos: 0,
            boot_id: boot.to_owned(),
            tick_nanos: 4_000_000,
        };
        for (boot, counts) in [("a", true), ("b", false)] {
            let root = tempfile::tempdir().unwrap();
            let journal = Journal::new(root.path(), &MoveId::new("rebooted", 1).unwrap());
            journal.make().unwrap();
            let write = |pass, clock, directories: &[&str]| {
                let mut writer = journal.write(pass, clock).unwrap();
                for path in directories {
                    let path = TreePath::parse(path.as_bytes()).unwrap();
                    let own = inode(Kind::Directory);
                    writer.put(&Line::Directory { path, own }).unwrap();
                    let entry = Entry {
                        name: Name::parse(b"file").unwrap(),
                        inode: inode(Kind::File),
                    };
                    let record = Record {
                        entry,
                        clean: true,
                        content: Some([7; 32]),
                        touched: pass,
                    };
                    writer.put(&Line::Record(record)).unwrap();
                    let end = Line::End {
                        digest: Some([8; 32]),
                        touched: pass,
                        losses: Losses::default(),
                    };
                    writer.put(&end).unwrap();
                }
                writer
            };
            journal
                .complete(write(1, reading(1000, "a"), &["", "d"]))
                .unwrap();
            drop(Changes::create(&journal).unwrap());
            write(2, reading(2000, boot), &[""]).sync().unwrap();
            journal.recover().unwrap();
            let (header, mut lines) = journal.read().unwrap().unwrap();
            assert_eq!(header.clock, Some(reading(2000, boot)));
            let lines: Vec<Line> = std::iter::from_fn(|| lines.next().unwrap()).collect();
            let [
                _,
                Line::Record(read_again),
                _,
                Line::Directory { .. },
                Line::Record(before),
                Line::End { digest, .. },
            ] = &lines[..]
            else {
                panic!("{lines:?}");
            };
            assert!(read_again.clean);
            assert_eq!((before.clean, digest.is_some()), (counts, counts), "boot {boot}");
            assert_eq!(before.content, Some([7; 32]));
        }
    }

    /// Directories without a digest are listed again, and files that are not clean are compared.
    #[test]
    fn only_part_of_a_journal_of_the_previous_version_is_used() {
        for (format, is_clean) in [(1, false), (2, true)] {
            let (clean, content, digest, _) = told(&written_in(format));
            assert_eq!((clean, content, digest), (is_clean, Some([7; 32]), None));
        }
    }
}
