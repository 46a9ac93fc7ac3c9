//! The format of the files of a journal: blocks of records, each with its hash.

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, ErrorKind, Read, Write},
    path::Path,
};

use prost::Message as _;

use crate::{
    entry::{Entry, Hash, Inode},
    loss::Losses,
    message::{BadMessage, ClockReading, RawEntry, RawInode, RawLoss},
    path::TreePath,
};

/// Format 2 recorded few inode flags: its directories are listed again. Format 1 did not record what cannot
/// be copied, and counted files as clean while they may have been written: from such a journal only the
/// content hashes of files are used.
pub(super) const FORMAT: u32 = 3;
pub(super) const OLDEST_FORMAT: u32 = 1;
/// The longest block; the last record in one may be nearly as long as a frame.
const MAX_BLOCK: usize = 2 << 20;
/// Blocks are closed at this length.
const BLOCK: usize = 64 << 10;

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
        self.entry.inode.cost()
    }
}

/// The pass that wrote a journal.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Header {
    #[prost(uint32, tag = "1")]
    pub(super) format: u32,
    #[prost(uint64, tag = "2")]
    pub(super) epoch: u64,
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

/// Appends blocks.
pub(crate) struct JournalWriter {
    file: BufWriter<File>,
    block: Block,
    size: usize,
}

impl JournalWriter {
    pub(super) fn create(path: &Path, header: &Header) -> io::Result<Self> {
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

pub(super) fn put_block(out: &mut impl Write, payload: &[u8]) -> io::Result<()> {
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
pub(super) struct Blocks {
    file: BufReader<File>,
    payload: Vec<u8>,
}

impl Blocks {
    pub(super) fn new(file: File) -> Self {
        Self {
            file: BufReader::with_capacity(BLOCK, file),
            payload: Vec::new(),
        }
    }

    pub(super) fn next(&mut self) -> io::Result<Option<&[u8]>> {
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
    pub(super) format: u32,
    pub(super) blocks: Blocks,
    pub(super) directory: Option<TreePath>,
    pub(super) pending: std::collections::VecDeque<Line>,
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
