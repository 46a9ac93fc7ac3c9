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
//! chunks/      hashes of the chunks of files with more than one, zeros for holes
//! links/       a hard link to each inode with several names, by the source's number
//! ```
//!
//! While the journal is removed, `entries` is next to the directory, and named like it with `.entries` at the end.
//!
//! A block is its length (u32), the first 8 bytes of its hash, and protobuf. A process may be killed at any
//! moment, and a machine may lose its power: a block that is incomplete is the end of its file.

use std::{
    fs::{self, File},
    io::{self, BufReader, BufWriter, ErrorKind, Read, Write},
    os::unix::fs::{DirBuilderExt, FileExt},
    path::{Path, PathBuf},
};

use prost::Message as _;

use crate::{
    clock,
    credentials::MoveId,
    entry::{Entry, Hash, Inode},
    error::is_no_space,
    loss::Losses,
    message::{BadMessage, ClockReading, RawEntry, RawInode, RawLoss},
    path::{Name, TreePath},
    piece::{chunk_length, hash_hole},
    scan::JOURNAL_PREFIX,
};

/// Format 2 recorded few inode flags: its directories are listed again. Format 1 did not record what cannot
/// be copied, and counted files as clean while they may have been written: from such a journal only the
/// content hashes of files are used.
const FORMAT: u32 = 3;
const OLDEST_FORMAT: u32 = 1;
/// The longest block; the last record in one may be nearly as long as a frame.
const MAX_BLOCK: usize = 2 << 20;
/// Blocks are closed at this length.
const BLOCK: usize = 64 << 10;
/// Hashes of chunks that are read at a time.
const HASHES: usize = 2048;

/// One entry in the state of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) entry: Entry,
    /// Equal stamps will mean equal content.
    pub(crate) clean: bool,
    /// For a file: the hash of its content on disk. Nothing for further names of one inode.
    pub(crate) content: Option<Hash>,
    /// The pass that last changed it.
    pub(crate) touched: u32,
}

impl Record {
    /// The approximate memory of this value, in bytes.
    pub(crate) fn cost(&self) -> usize {
        let xattrs = &self.entry.inode.attributes.xattrs;
        let xattrs = xattrs.iter().map(|(name, value)| name.len() + value.len() + 64);
        320 + xattrs.sum::<usize>()
    }
}

/// The pass that wrote a journal.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Header {
    #[prost(uint32, tag = "1")]
    format: u32,
    #[prost(uint64, tag = "2")]
    epoch: u64,
    #[prost(uint32, tag = "3")]
    pub(crate) pass: u32,
    #[prost(message, optional, tag = "4")]
    pub(crate) clock: Option<ClockReading>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Block {
    #[prost(bytes = "vec", tag = "1")]
    path: Vec<u8>,
    #[prost(message, optional, tag = "2")]
    own: Option<RawInode>,
    #[prost(bytes = "vec", repeated, tag = "3")]
    records: Vec<Vec<u8>>,
    #[prost(bool, tag = "4")]
    last: bool,
    /// In the last block of a directory: its digest, if equal stamps mean that nothing changed.
    #[prost(bytes = "vec", tag = "5")]
    digest: Vec<u8>,
    /// In the last block: the pass that last changed anything in it.
    #[prost(uint32, tag = "6")]
    touched: u32,
    /// In the last block: what cannot be copied of the directory.
    #[prost(message, repeated, tag = "7")]
    losses: Vec<RawLoss>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RawRecord {
    #[prost(bytes = "vec", tag = "1")]
    entry: Vec<u8>,
    #[prost(bool, tag = "2")]
    clean: bool,
    #[prost(bytes = "vec", tag = "3")]
    content: Vec<u8>,
    #[prost(uint32, tag = "4")]
    touched: u32,
}

/// An item of a journal, in its order.
#[derive(Debug)]
pub(crate) enum Line {
    Directory {
        path: TreePath,
        own: Inode,
    },
    Record(Record),
    End {
        digest: Option<Hash>,
        touched: u32,
        losses: Losses,
    },
}

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

    /// After a pass that was not completed: merges its records on disk with those of the pass before for
    /// everything after them, except for the names that were being changed. A directory that the aborted
    /// pass has changed is listed again, even if the source reports in the end that it is unchanged: it may
    /// have been moved away and back. The same applies to everything below a deleted directory and, after a
    /// reboot, which may have lost such notes, to everything.
    pub(crate) fn recover(&self) -> io::Result<()> {
        if !self.is_unfinished() {
            return Ok(());
        }
        let mut changed = Changed::open(&self.file("changed"))?;
        let (new, old) = (self.read_file("entries.new")?, self.read_file("entries")?);
        // The later clock: the earlier one was checked against it when that pass began.
        let Some(header) = new.as_ref().or(old.as_ref()).map(|(header, _)| header.clone()) else {
            return self.forget(&["entries.new", "changed", "removed"]);
        };
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
            let all = self.file("removed").exists() || !changed.since_boot();
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
                    Line::End { touched, losses, .. } if spoilt => merged.put(&Line::End {
                        digest: None,
                        touched,
                        losses,
                    })?,
                    line => merged.put(&line)?,
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

/// Appends blocks.
pub(crate) struct JournalWriter {
    file: BufWriter<File>,
    block: Block,
    size: usize,
}

impl JournalWriter {
    fn create(path: &Path, header: &Header) -> io::Result<Self> {
        let mut file = BufWriter::with_capacity(BLOCK, File::create(path)?);
        put_block(&mut file, &header.encode_to_vec())?;
        // Without a header it would be unknown that this pass had begun.
        file.flush()?;
        file.get_ref().sync_data()?;
        Ok(Self {
            file,
            block: Block::default(),
            size: 0,
        })
    }

    pub(crate) fn put(&mut self, line: &Line) -> io::Result<()> {
        match line {
            Line::Directory { path, own } => {
                let path = path.as_bytes().to_vec();
                self.block = Block {
                    path,
                    own: Some(own.into()),
                    ..Block::default()
                };
                self.size = 0;
            }
            Line::Record(record) => {
                let raw = RawRecord {
                    entry: RawEntry::encode(&record.entry),
                    clean: record.clean,
                    content: record.content.map(|hash| hash.to_vec()).unwrap_or_default(),
                    touched: record.touched,
                };
                let bytes = raw.encode_to_vec();
                self.size += bytes.len();
                self.block.records.push(bytes);
                if self.size >= BLOCK {
                    self.close()?;
                }
            }
            Line::End {
                digest,
                touched,
                losses,
            } => {
                self.block.losses = losses.encode();
                self.block.last = true;
                self.block.digest = digest.map(|digest| digest.to_vec()).unwrap_or_default();
                self.block.touched = *touched;
                self.close()?;
            }
        }
        Ok(())
    }

    fn close(&mut self) -> io::Result<()> {
        put_block(&mut self.file, &self.block.encode_to_vec())?;
        let path = std::mem::take(&mut self.block.path);
        self.block = Block {
            path,
            ..Block::default()
        };
        self.size = 0;
        Ok(())
    }

    /// Writes completed blocks to disk.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().sync_data()
    }
}

fn put_block(out: &mut impl Write, payload: &[u8]) -> io::Result<()> {
    let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
    out.write_all(&length.to_le_bytes())?;
    out.write_all(&checksum(payload))?;
    out.write_all(payload)
}

fn checksum(payload: &[u8]) -> [u8; 8] {
    let hash = blake3::hash(payload);
    hash.as_bytes().first_chunk().copied().unwrap_or_default()
}

/// Reads blocks up to the end, or to the first that is incomplete.
struct Blocks {
    file: BufReader<File>,
    payload: Vec<u8>,
}

impl Blocks {
    fn new(file: File) -> Self {
        Self {
            file: BufReader::with_capacity(BLOCK, file),
            payload: Vec::new(),
        }
    }

    fn next(&mut self) -> io::Result<Option<&[u8]>> {
        let mut head = [0; 12];
        match self.file.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let [a, b, c, d, check @ ..] = head;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > MAX_BLOCK {
            return Ok(None);
        }
        self.payload.resize(length, 0);
        match self.file.read_exact(&mut self.payload) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        Ok((checksum(&self.payload) == check).then_some(&self.payload[..]))
    }
}

/// A journal, item by item.
pub(crate) struct Lines {
    format: u32,
    blocks: Blocks,
    directory: Option<TreePath>,
    pending: std::collections::VecDeque<Line>,
}

impl Lines {
    /// The next item. An unreadable block is the end.
    pub(crate) fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            if let Some(line) = self.pending.pop_front() {
                return Ok(Some(line));
            }
            let Some(bytes) = self.blocks.next()? else {
                return Ok(None);
            };
            let Ok(block) = Block::decode(bytes) else {
                return Ok(None);
            };
            let Ok(lines) = self.take(block) else {
                return Ok(None);
            };
            self.pending = lines;
        }
    }

    fn take(&mut self, block: Block) -> Result<std::collections::VecDeque<Line>, BadMessage> {
        let mut lines = std::collections::VecDeque::with_capacity(block.records.len() + 2);
        let path = TreePath::parse(&block.path)?;
        match block.own {
            Some(own) => {
                self.directory = Some(path.clone());
                lines.push_back(Line::Directory {
                    path,
                    own: own.try_into()?,
                });
            }
            None if self.directory.as_ref() == Some(&path) => {}
            None => return Err(BadMessage::Field("a block belongs to no directory")),
        }
        for record in block.records {
            let raw = RawRecord::decode(&record[..])?;
            lines.push_back(Line::Record(Record {
                entry: RawEntry::parse(&raw.entry)?,
                clean: raw.clean && self.format > OLDEST_FORMAT,
                content: Hash::try_from(&raw.content[..]).ok(),
                touched: raw.touched,
            }));
        }
        if block.last {
            let digest = Hash::try_from(&block.digest[..]).ok();
            lines.push_back(Line::End {
                digest: digest.filter(|_| self.format == FORMAT),
                touched: block.touched,
                losses: Losses::parse(&block.losses)?,
            });
        }
        Ok(lines)
    }
}

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
struct Changed {
    blocks: Option<Blocks>,
    boot_id: Vec<u8>,
    /// A directory, or a file in one.
    next: Option<(TreePath, Option<Name>)>,
}

impl Changed {
    fn open(path: &Path) -> io::Result<Self> {
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
    fn since_boot(&self) -> bool {
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
    fn has(&mut self, directory: &TreePath, name: Option<&Name>) -> io::Result<bool> {
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

/// The hashes of the chunks of one file.
pub(crate) struct Chunks {
    file: File,
    /// The hash that is stored as zeros, so that a long hole takes no space; zeros of a device are unknown
    /// hashes.
    zeros: Option<Hash>,
}

impl Chunks {
    /// Of a file, all hashes up to its end are known when its content is.
    pub(crate) fn of(journal: &Journal, path: &TreePath) -> io::Result<Self> {
        Ok(Self {
            zeros: Some(hash_hole(chunk_length(u64::MAX, 0))),
            ..Self::open(&Self::place(journal, path))?
        })
    }

    /// Of a device, some may be unknown.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        Ok(Self { file, zeros: None })
    }

    pub(crate) fn forget(journal: &Journal, path: &TreePath) {
        // It only takes space: without a record it is not used.
        let _ = fs::remove_file(Self::place(journal, path));
    }

    fn place(journal: &Journal, path: &TreePath) -> PathBuf {
        let hash = blake3::hash(path.as_bytes()).to_hex();
        journal.file("chunks").join(hash.get(..32).unwrap_or_default())
    }

    /// Whether no hash was ever stored.
    pub(crate) fn is_empty(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.len() == 0)
    }

    /// What is stored for these chunks, up to the end of the file.
    fn read(&self, first: u64, count: usize) -> io::Result<Vec<Hash>> {
        let mut bytes = vec![0; count * 32];
        let mut got = 0;
        while let Some(rest) = bytes.get_mut(got..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, first * 32 + got as u64)? {
                0 => break,
                more => got += more,
            }
        }
        bytes.truncate(got);
        let (hashes, _) = bytes.as_chunks::<32>();
        Ok(hashes.to_vec())
    }

    /// The stored hashes of these chunks.
    pub(crate) fn get(&self, first: u64, count: usize) -> io::Result<Vec<Option<Hash>>> {
        let stored = self.read(first, count)?.into_iter();
        let known = stored.map(|hash| {
            if hash == Hash::default() {
                self.zeros
            } else {
                Some(hash)
            }
        });
        let mut all: Vec<_> = known.collect();
        all.resize(count, None);
        Ok(all)
    }

    pub(crate) fn put(&self, first: u64, hashes: &[Option<Hash>]) -> io::Result<()> {
        let known = hashes.iter().map(|hash| hash.filter(|_| *hash != self.zeros));
        let stored: Vec<Hash> = known.map(Option::unwrap_or_default).collect();
        let is_zero = |hashes: &[Hash]| hashes.iter().all(|hash| *hash == Hash::default());
        if self.zeros.is_some() && is_zero(&stored) && is_zero(&self.read(first, stored.len())?) {
            return Ok(());
        }
        self.file.write_all_at(stored.as_flattened(), first * 32)
    }

    /// The hash over all of them, which must be known.
    pub(crate) fn hash(&self, count: u64) -> io::Result<Hash> {
        self.file.set_len(count * 32)?;
        let mut hasher = blake3::Hasher::new();
        let mut first = 0;
        while first < count {
            let some = usize::try_from(count - first).map_or(HASHES, |rest| rest.min(HASHES));
            for hash in self.get(first, some)? {
                hasher.update(&hash.unwrap_or_default());
            }
            first += some as u64;
        }
        Ok(*hasher.finalize().as_bytes())
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Attributes, Kind, Stamp};

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

    /// Directories without a digest are listed again, and files that are not clean are compared.
    #[test]
    fn only_part_of_a_journal_of_the_previous_version_is_used() {
        for (format, is_clean) in [(1, false), (2, true)] {
            let (clean, content, digest, _) = told(&written_in(format));
            assert_eq!((clean, content, digest), (is_clean, Some([7; 32]), None));
        }
    }
}
