//! Reads back from disk what was written, and compares it with the hashes of the source. Both sides become a
//! root hash over all metadata and content; where they differ, the paths are named.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fmt,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, mpsc},
    thread,
};

use rustix::{
    fs::{Advice, OFlags},
    io::Errno,
};

use crate::{
    entry::{Attributes, Entry, Hash, Inode, Kind, content_digest},
    error::Error,
    journal::{Chunks, Journal, Line, Lines, Record},
    path::{Name, TreePath},
    piece::{CHUNK, FETCH_CHUNKS, chunks_of, hash_of_hashes},
    read::hash_own,
    scan::is_foreign,
    session::lock,
    target::Target,
    tree::{At, SortedNames, Tree, inode_number, inode_of, read_link},
};

/// Entries that one thread checks at a time, and their size in bytes.
const PART: usize = 256;
const PART_BYTES: usize = 512 << 10;
/// Parts that are in progress.
const PARTS: u64 = 64;
/// Bytes of one directory that are in memory until it is known whether it was touched.
const HELD_BYTES: usize = 16 << 20;
/// Differing names of inodes with several names whose paths are in memory until they are decided on.
const LINKED: usize = 1 << 12;
/// How many differences are named; further ones are counted.
pub(crate) const NAMED: usize = 100;

/// How much is read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// What passes have touched since the last verification without a difference.
    Touched,
    /// The same, and the attributes of everything: they show whether another client has written to the
    /// target.
    TouchedAndAttributes,
    /// Everything.
    All,
}

/// The result of a verification.
#[derive(Clone, Debug)]
pub struct Verification {
    /// The root hash over the content as the source reported it.
    pub expected: Root,
    /// The root hash over the content on disk.
    pub found: Root,
    /// The first of the differences.
    pub differences: Vec<Difference>,
    /// The number of differences.
    pub different: u64,
    /// How many of them are files that changed while they were read: the next pass reads them again.
    pub unknown: u64,
    /// Files whose content was read back.
    pub files: u64,
    /// The number of these bytes.
    pub bytes: u64,
}

/// A hash over all of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root(pub Hash);

/// A difference from the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The path in the tree.
    pub path: TreePath,
    /// The kind of the difference.
    pub what: Aspect,
}

/// The kind of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aspect {
    /// The name does not exist.
    Missing,
    /// The name does not exist at the source.
    Extra,
    /// Another kind, link target, or device.
    Kind,
    /// Owner or permissions.
    Attributes,
    /// Extended attributes.
    Xattrs,
    /// The time of its last change.
    Time,
    /// The size.
    Size,
    /// The entry shares its inode with other names than at the source.
    Links,
    /// The bytes of this chunk (in MiB from the beginning).
    Content(u64),
    /// The source's content is unknown: it changed while it was read.
    Unknown,
}

impl Verification {
    /// Whether target and source are equal.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.is_equal_as_sent() && self.different == 0
    }

    /// Whether the target has what the source sent, except for files that changed while they were read:
    /// users may write there.
    #[must_use]
    pub fn is_equal_as_sent(&self) -> bool {
        self.expected == self.found && self.different == self.unknown
    }
}

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, what } = self;
        match what {
            Aspect::Missing => write!(f, "'{path}' is missing"),
            Aspect::Extra => write!(f, "'{path}' is not at the source"),
            Aspect::Kind => write!(f, "'{path}' is of another kind"),
            Aspect::Attributes => write!(f, "'{path}' has another owner or mode"),
            Aspect::Xattrs => write!(f, "'{path}' has other extended attributes"),
            Aspect::Time => write!(f, "'{path}' has another time of change"),
            Aspect::Size => write!(f, "'{path}' has another size"),
            Aspect::Links => write!(f, "'{path}' has other hard links"),
            Aspect::Content(chunk) => write!(f, "'{path}' has other content in its MiB {chunk}"),
            Aspect::Unknown => write!(f, "'{path}' changed while it was read"),
        }
    }
}

impl Target {
    /// Reads the target back from disk, bypassing the cache, and compares it with the last pass. If nothing
    /// differs except files whose content at the source is unknown, the next [`Scope::Touched`] begins from here: the
    /// next pass reads such a file, and that touches it.
    pub fn verify(&self, scope: Scope) -> Result<Verification, Error> {
        let Some((header, mut lines)) = self.journal.read().map_err(Error::Journal)? else {
            return Err(Error::Journal(std::io::Error::other("no pass is complete")));
        };
        self.tree
            .sync()
            .map_err(Error::tree("synchronising", &TreePath::root()))?;
        let from = match scope {
            Scope::Touched | Scope::TouchedAndAttributes => self.journal.verified(),
            Scope::All => 0,
        };
        let groups = self.journal.links().map_err(Error::Journal)?;
        let reader = ReadBack {
            tree: &self.tree,
            journal: &self.journal,
            links: groups,
            from,
            attributes: scope == Scope::TouchedAndAttributes,
        };
        let found = thread::scope(|scope| {
            let threads = thread::available_parallelism().map_or(2, usize::from).min(8);
            let (parts, queue) = mpsc::sync_channel::<Part>(threads);
            let queue = Arc::new(Mutex::new(queue));
            let (done, results) = mpsc::channel();
            for _ in 0..threads {
                let (queue, done, reader) = (Arc::clone(&queue), done.clone(), &reader);
                scope.spawn(move || {
                    loop {
                        let part = lock(&queue).recv();
                        let Ok(part) = part else { return };
                        let number = part.number;
                        if done.send((number, reader.check(part))).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(done);
            let mut feeder = Feeder {
                parts,
                results,
                early: BTreeMap::new(),
                begun: 0,
                listed: 0,
                sum: Sum::new(),
            };
            let mut directories = 0_u64;
            while let Some(line) = lines.next().map_err(Error::Journal)? {
                let Line::Directory { path, own } = line else {
                    continue;
                };
                directories += 1;
                feeder.directory(&reader, &path, own, &mut lines)?;
            }
            // A journal ends at an unreadable block; and a directory that was deleted after the one above was listed has
            // no listing.
            if directories != feeder.listed + 1 {
                feeder.sum.differ(Difference {
                    path: TreePath::root(),
                    what: Aspect::Unknown,
                });
            }
            feeder.finish()
        })?;
        let found = self.with_linked(found)?.finish();
        if found.is_equal_as_sent() {
            self.journal.set_verified(header.pass).map_err(Error::Journal)?;
        } else {
            // Without the note the next pass repairs nothing, but the differences are reported.
            let _ = self.journal.note_difference();
        }
        Ok(found)
    }

    /// Decides on differences of inodes with several names. If one of its records is not clean, the inode changed after
    /// another name was listed, or could not be read: the next pass does that. Otherwise the target differs.
    fn with_linked(&self, mut sum: Sum) -> Result<Sum, Error> {
        let (linked, more) = (std::mem::take(&mut sum.linked), std::mem::take(&mut sum.more));
        if linked.is_empty() {
            return Ok(sum);
        }
        let numbers = linked.iter().map(|one| one.ino).chain(more.iter().copied());
        let mut clean: HashMap<u64, bool> = numbers.map(|ino| (ino, true)).collect();
        if let Some((_, mut lines)) = self.journal.read().map_err(Error::Journal)? {
            while let Some(line) = lines.next().map_err(Error::Journal)? {
                if let Line::Record(record) = line
                    && let Some(clean) = clean.get_mut(&record.entry.inode.stamp.ino)
                {
                    *clean &= record.clean;
                }
            }
        }
        let is_known = |ino: &u64| clean.get(ino).copied().unwrap_or_default();
        for LinkedDifference { ino, path, aspects } in linked {
            if is_known(&ino) {
                sum.found.update(b"linked");
                for what in aspects {
                    let path = path.clone();
                    sum.differ(Difference { path, what });
                }
            } else {
                let what = Aspect::Unknown;
                sum.differ(Difference { path, what });
            }
        }
        sum.different += more.len() as u64;
        sum.unknown += more.iter().filter(|ino| !is_known(ino)).count() as u64;
        Ok(sum)
    }
}

/// The differences under one name of an inode with several.
struct LinkedDifference {
    /// The source's number of the inode.
    ino: u64,
    path: TreePath,
    aspects: Vec<Aspect>,
}

/// Entries of one directory, to be checked by one thread.
struct Part {
    number: u64,
    path: TreePath,
    /// The directory itself, in its first part.
    own: Option<Inode>,
    records: Vec<Record>,
    /// Whether it is read back at all; otherwise it was before.
    read: bool,
}

/// The result of a part.
struct PartResult {
    digests: Vec<(Hash, Hash)>,
    differences: Vec<Difference>,
    linked: Vec<LinkedDifference>,
    files: u64,
    bytes: u64,
}

struct Feeder {
    parts: mpsc::SyncSender<Part>,
    results: mpsc::Receiver<(u64, Result<PartResult, Error>)>,
    /// Results that wait for earlier ones.
    early: BTreeMap<u64, PartResult>,
    begun: u64,
    /// The subdirectories in all listings.
    listed: u64,
    sum: Sum,
}

impl Feeder {
    fn directory(
        &mut self,
        reader: &ReadBack<'_>,
        path: &TreePath,
        own: Inode,
        lines: &mut Lines,
    ) -> Result<(), Error> {
        let mut extras = Extras {
            reader,
            path,
            directory: None,
            present: SortedNames::default(),
        };
        let part = |own| Part {
            number: 0,
            path: path.clone(),
            own,
            records: Vec::new(),
            read: true,
        };
        let mut last = part(Some(own));
        let (mut held, mut held_bytes, mut bytes) = (VecDeque::new(), 0, 0);
        loop {
            match lines.next().map_err(Error::Journal)? {
                Some(Line::Record(record)) => {
                    bytes += record.cost();
                    self.listed += u64::from(record.entry.inode.is_directory());
                    last.records.push(record);
                    if last.records.len() < PART && bytes < PART_BYTES {
                        continue;
                    }
                    held.push_back(std::mem::replace(&mut last, part(None)));
                    held_bytes += std::mem::take(&mut bytes);
                    // Whether it was touched is recorded at its end. Of a large one not all parts can be in
                    // memory until then: it counts as touched.
                    while held_bytes >= HELD_BYTES
                        && let Some(first) = held.pop_front()
                    {
                        held_bytes -= first.records.iter().map(Record::cost).sum::<usize>();
                        extras.find(&mut self.sum, &first, false)?;
                        self.begin(first)?;
                    }
                }
                Some(Line::End { touched, .. }) => {
                    let read = touched > reader.from || reader.attributes || extras.directory.is_some();
                    held.push_back(last);
                    while let Some(part) = held.pop_front() {
                        if read {
                            extras.find(&mut self.sum, &part, held.is_empty())?;
                        }
                        self.begin(Part { read, ..part })?;
                    }
                    return Ok(());
                }
                Some(Line::Directory { .. }) | None => {
                    return Err(Error::Journal(std::io::Error::other(
                        "it ends in the middle of a directory",
                    )));
                }
            }
        }
    }

    fn begin(&mut self, part: Part) -> Result<(), Error> {
        while self.begun - self.sum.parts >= PARTS {
            self.take()?;
        }
        let part = Part {
            number: self.begun,
            ..part
        };
        self.begun += 1;
        self.parts.send(part).map_err(|_| stopped())
    }

    fn take(&mut self) -> Result<(), Error> {
        let (number, result) = self.results.recv().map_err(|_| stopped())?;
        self.early.insert(number, result?);
        while let Some(result) = self.early.remove(&self.sum.parts) {
            self.sum.add(result);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Sum, Error> {
        while self.sum.parts < self.begun {
            self.take()?;
        }
        drop(self.parts);
        Ok(self.sum)
    }
}

/// Finds entries in a directory that should not exist, along with its parts.
struct Extras<'a> {
    reader: &'a ReadBack<'a>,
    path: &'a TreePath,
    directory: Option<OwnedFd>,
    present: SortedNames,
}

impl Extras<'_> {
    fn find(&mut self, sum: &mut Sum, part: &Part, is_last: bool) -> Result<(), Error> {
        let failed = |errno| Error::tree("reading directory", self.path)(errno);
        let directory = match self.directory.take() {
            Some(directory) => directory,
            None => match self.reader.tree.directory(self.path) {
                Ok(directory) => directory,
                // The check of the directory itself reports it.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
                Err(errno) => return Err(failed(errno)),
            },
        };
        let wanted = |name: &[u8]| !is_foreign(self.reader.tree, self.path, name);
        let mut records = part.records.iter().map(|record| &record.entry.name).peekable();
        let until = part.records.last().map(|record| &record.entry.name);
        while let Some((name, _)) = self.present.peek(directory.as_fd(), wanted).map_err(failed)? {
            if !is_last && until.is_none_or(|until| name > until) {
                break;
            }
            while records.next_if(|record| *record < name).is_some() {}
            if records.peek() != Some(&name) {
                let difference = Difference {
                    path: self.path.child(name)?,
                    what: Aspect::Extra,
                };
                sum.found.update(b"extra");
                sum.found.update(difference.path.as_bytes());
                sum.differ(difference);
            }
            self.present.pop();
        }
        self.directory = Some(directory);
        Ok(())
    }
}

fn stopped() -> Error {
    Error::Journal(std::io::Error::other("a thread that reads back has stopped"))
}

/// Adds up results in the order of the walk.
struct Sum {
    expected: blake3::Hasher,
    found: blake3::Hasher,
    differences: Vec<Difference>,
    /// Differences of entries with several names, which are decided on in the end.
    linked: Vec<LinkedDifference>,
    /// The inodes of further such entries.
    more: Vec<u64>,
    different: u64,
    unknown: u64,
    files: u64,
    bytes: u64,
    parts: u64,
}

impl Sum {
    fn new() -> Self {
        Self {
            expected: blake3::Hasher::new(),
            found: blake3::Hasher::new(),
            differences: Vec::new(),
            linked: Vec::new(),
            more: Vec::new(),
            different: 0,
            unknown: 0,
            files: 0,
            bytes: 0,
            parts: 0,
        }
    }

    fn differ(&mut self, difference: Difference) {
        self.different += 1;
        self.unknown += u64::from(difference.what == Aspect::Unknown);
        if self.differences.len() < NAMED {
            self.differences.push(difference);
        }
    }

    fn add(&mut self, result: PartResult) {
        for (expected, found) in result.digests {
            self.expected.update(&expected);
            self.found.update(&found);
        }
        result
            .differences
            .into_iter()
            .for_each(|difference| self.differ(difference));
        for one in result.linked {
            if self.linked.len() < LINKED {
                self.linked.push(one);
            } else {
                self.more.push(one.ino);
            }
        }
        self.files += result.files;
        self.bytes += result.bytes;
        self.parts += 1;
    }

    fn finish(self) -> Verification {
        Verification {
            expected: Root(*self.expected.finalize().as_bytes()),
            found: Root(*self.found.finalize().as_bytes()),
            differences: self.differences,
            different: self.different,
            unknown: self.unknown,
            files: self.files,
            bytes: self.bytes,
        }
    }
}

/// Checks what is on disk.
struct ReadBack<'a> {
    tree: &'a Arc<Tree>,
    journal: &'a Journal,
    links: OwnedFd,
    /// Entries that were touched after this pass are read.
    from: u32,
    /// Whether the attributes of all other entries are compared.
    attributes: bool,
}

impl ReadBack<'_> {
    fn check(&self, part: Part) -> Result<PartResult, Error> {
        let mut result = PartResult {
            digests: Vec::with_capacity(part.records.len() + 1),
            differences: Vec::new(),
            linked: Vec::new(),
            files: 0,
            bytes: 0,
        };
        let directory = if part.read {
            match self.tree.directory(&part.path) {
                Ok(directory) => Some(directory),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                    let what = Aspect::Missing;
                    result.differences.push(Difference {
                        path: part.path.clone(),
                        what,
                    });
                    None
                }
                Err(errno) => return Err(Error::tree("opening directory", &part.path)(errno)),
            }
        } else {
            None
        };
        if let Some(own) = part.own {
            let name = part.path.as_bytes();
            let expected = content_digest(name, &own, None);
            let found = match &directory {
                Some(directory) => {
                    let there = read_inode(At::Fd(directory.as_fd()), None)
                        .map_err(Error::tree("reading attributes of", &part.path))?;
                    compare(&part.path, &own, &there, &mut result.differences);
                    content_digest(name, &there, None)
                }
                None => expected,
            };
            result.digests.push((expected, found));
        }
        for record in part.records {
            let name = record.entry.name.as_bytes();
            let expected = content_digest(name, &record.entry.inode, record.content.as_ref());
            let found = match &directory {
                Some(directory) => self.entry(directory, &part.path, &record, &mut result)?,
                None => expected,
            };
            result.digests.push((expected, found));
        }
        Ok(result)
    }

    fn entry(
        &self,
        directory: &OwnedFd,
        parent: &TreePath,
        record: &Record,
        result: &mut PartResult,
    ) -> Result<Hash, Error> {
        let Record {
            entry: Entry { name, inode },
            ..
        } = record;
        let path = parent.child(name)?;
        let failed = |errno| Error::tree("reading", &path)(errno);
        let mut there = match read_inode(At::Child(directory.as_fd(), name), Some((directory, name))) {
            Ok(there) => there,
            Err(Errno::NOENT) => {
                result.differences.push(Difference {
                    path,
                    what: Aspect::Missing,
                });
                return Ok(Hash::default());
            }
            Err(errno) => return Err(failed(errno)),
        };
        if inode.is_directory() && there.is_directory() {
            // The entries of the directory are compared with its own listing.
            return Ok(content_digest(name.as_bytes(), inode, None));
        }
        if inode.linked {
            let group = Name::parse(inode.stamp.ino.to_string().as_bytes())?;
            let of_group = At::Child(self.links.as_fd(), &group).status();
            there.linked = of_group.is_ok_and(|other| inode_number(&other) == there.stamp.ino);
        }
        let before = result.differences.len();
        compare(&path, inode, &there, &mut result.differences);
        if (inode.linked || there.linked) && result.differences.len() > before {
            let differences = result.differences.drain(before..);
            let aspects = differences.map(|difference| difference.what).collect();
            let ino = inode.stamp.ino;
            result.linked.push(LinkedDifference { ino, path, aspects });
            return Ok(content_digest(name.as_bytes(), inode, record.content.as_ref()));
        }
        let mut content = record.content;
        let same_size = inode.stamp.size == there.stamp.size;
        if inode.is_file() && there.is_file() && same_size {
            match record.content {
                Some(expected) if record.touched > self.from => {
                    content = Some(self.content(&path, inode, &expected, result)?);
                }
                None if !inode.linked => {
                    result.differences.push(Difference {
                        path: path.clone(),
                        what: Aspect::Unknown,
                    });
                }
                _ => {}
            }
        }
        Ok(content_digest(name.as_bytes(), &there, content.as_ref()))
    }

    /// Reads a file from disk, not from the cache.
    fn content(
        &self,
        path: &TreePath,
        inode: &Inode,
        expected: &Hash,
        result: &mut PartResult,
    ) -> Result<Hash, Error> {
        let failed = |errno| Error::tree("reading back", path)(errno);
        let size = inode.stamp.size;
        let count = chunks_of(size);
        let file = self.tree.file(path, OFlags::RDONLY).map_err(failed)?;
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).map_err(failed)?;
        let stored = (count > 1)
            .then(|| Chunks::of(self.journal, path))
            .transpose()
            .map_err(Error::Journal)?;
        let mut buffer = Vec::new();
        let mut all = blake3::Hasher::new();
        let (mut first, mut only, mut different) = (0, None, None);
        while first < count {
            let some = usize::try_from((count - first).min(FETCH_CHUNKS.into())).unwrap_or(1);
            let hashes = hash_own(&file, size, first, some, &mut buffer).map_err(failed)?;
            if let Some(stored) = stored.as_ref().filter(|_| different.is_none()) {
                let wanted = stored.get(first, some).map_err(Error::Journal)?;
                let differs = wanted
                    .iter()
                    .zip(&hashes)
                    .position(|(wanted, is)| *wanted != Some(*is));
                different = differs.map(|at| first + at as u64);
            }
            for hash in &hashes {
                all.update(hash);
            }
            only = hashes.first().copied();
            first += some as u64;
        }
        let found = match count {
            0 => hash_of_hashes([].iter()),
            1 => only.unwrap_or_default(),
            _ => *all.finalize().as_bytes(),
        };
        result.files += 1;
        result.bytes += size;
        if found != *expected {
            let what = Aspect::Content(different.unwrap_or_default() * (CHUNK as u64 >> 20));
            result.differences.push(Difference {
                path: path.clone(),
                what,
            });
        }
        Ok(found)
    }
}

/// The actual inode, with everything that is copied.
fn read_inode(at: At<'_>, child: Option<(&OwnedFd, &Name)>) -> Result<Inode, Errno> {
    let status = at.status()?;
    let mut inode = inode_of(&status).ok_or(Errno::INVAL)?;
    if let (Kind::Symlink(target), Some((directory, name))) = (&mut inode.kind, child) {
        *target = read_link(directory.as_fd(), name)?;
    }
    let (xattrs, _) = at.xattrs()?;
    inode.attributes.xattrs = xattrs;
    Ok(inode)
}

fn compare(path: &TreePath, wanted: &Inode, there: &Inode, differences: &mut Vec<Difference>) {
    let mut differs = |what| {
        differences.push(Difference {
            path: path.clone(),
            what,
        });
    };
    if wanted.kind != there.kind {
        differs(Aspect::Kind);
        return;
    }
    let Attributes {
        mode,
        uid,
        gid,
        xattrs,
    } = &there.attributes;
    let is_link = matches!(wanted.kind, Kind::Symlink(_));
    if (wanted.attributes.mode != *mode && !is_link)
        || (wanted.attributes.uid, wanted.attributes.gid) != (*uid, *gid)
    {
        differs(Aspect::Attributes);
    }
    if wanted.attributes.xattrs != *xattrs {
        differs(Aspect::Xattrs);
    }
    if wanted.stamp.mtime != there.stamp.mtime {
        differs(Aspect::Time);
    }
    if wanted.is_file() && wanted.stamp.size != there.stamp.size {
        differs(Aspect::Size);
    }
    if wanted.linked != there.linked {
        differs(Aspect::Links);
    }
}
