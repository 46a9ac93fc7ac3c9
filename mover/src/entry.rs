//! The contents of a tree: inodes with their kind, attributes and stamp, under names. Their encoding on the
//! wire and in the journal is in [`crate::message`].

use crate::path::Name;

/// Seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds, negative before 1970.
    pub secs: i64,
    /// Nanoseconds, below a billion.
    pub nanos: u32,
}

/// The properties that show a change of an inode without reading it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// The inode's number on its own file system.
    pub ino: u64,
    /// Bytes of a file; zero for other inodes.
    pub size: u64,
    /// When the content last changed.
    pub mtime: Time,
    /// When content or attributes last changed.
    pub ctime: Time,
}

/// Owner, permissions, extended attributes. Times are in the [`Stamp`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits with setuid, setgid and sticky.
    pub mode: u32,
    /// Numeric owner.
    pub uid: u32,
    /// Numeric group.
    pub gid: u32,
    /// Extended attributes that are kept, sorted by name.
    pub xattrs: Xattrs,
}

/// The kind of an inode, with its kind-specific data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link to these bytes.
    Symlink(Vec<u8>),
    /// A named pipe.
    Fifo,
    /// The name of a socket.
    Socket,
    /// A character device of this number.
    Character(u64),
    /// A block device of this number.
    Block(u64),
}

/// All metadata of an inode that is copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// The kind of the inode.
    pub kind: Kind,
    /// The properties that show its changes.
    pub stamp: Stamp,
    /// Owner, permissions, extended attributes.
    pub attributes: Attributes,
    /// Whether it has other names, too.
    pub linked: bool,
}

/// An inode under its name in one directory. For a directory only the kind: its attributes are in its own
/// listing, which is read later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: Name,
    /// The inode of that name.
    pub inode: Inode,
}

/// Extended attributes, names and values.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// A BLAKE3 hash.
pub type Hash = [u8; 32];

impl Inode {
    /// A directory as it appears in the listing of its parent.
    #[must_use]
    pub fn directory_by_name() -> Self {
        Self {
            kind: Kind::Directory,
            stamp: Stamp::default(),
            attributes: Attributes::default(),
            linked: false,
        }
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.kind == Kind::Directory
    }

    /// Whether it is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.kind == Kind::File
    }

    /// The approximate memory of this value with its name, in bytes.
    pub(crate) fn cost(&self) -> usize {
        let (target, _) = self.kind.detail();
        let xattrs = self.attributes.xattrs.iter();
        let xattrs = xattrs.map(|(name, value)| name.len() + value.len() + 64);
        320 + target.len() + xattrs.sum::<usize>()
    }
}

impl Kind {
    /// A number for each kind, the same on the wire, in the journal and in hashes.
    #[must_use]
    pub fn number(&self) -> u8 {
        match self {
            Self::File => 1,
            Self::Directory => 2,
            Self::Symlink(_) => 3,
            Self::Fifo => 4,
            Self::Socket => 5,
            Self::Character(_) => 6,
            Self::Block(_) => 7,
        }
    }

    /// The data that distinguishes two inodes of the same kind: a link's target, a device's number.
    #[must_use]
    pub fn detail(&self) -> (&[u8], u64) {
        match self {
            Self::Symlink(target) => (target, 0),
            Self::Character(device) | Self::Block(device) => (&[], *device),
            _ => (&[], 0),
        }
    }
}

/// The digest of the stamps in a directory's listing: equal digests mean that nothing in it has changed.
/// Both sides compute it, entry by entry, in the order of names.
pub struct ListingDigest(blake3::Hasher);

impl ListingDigest {
    /// Begins with the directory itself.
    #[must_use]
    pub fn of(own: &Stamp) -> Self {
        let mut hasher = blake3::Hasher::new();
        put_stamp(&mut hasher, own);
        Self(hasher)
    }

    /// Adds the next entry.
    pub fn add(&mut self, entry: &Entry) {
        put_name(&mut self.0, entry.name.as_bytes(), &entry.inode);
        if !entry.inode.is_directory() {
            put_stamp(&mut self.0, &entry.inode.stamp);
        }
    }

    /// The digest.
    #[must_use]
    pub fn finish(self) -> Hash {
        *self.0.finalize().as_bytes()
    }
}

/// The hash of an entry with everything that is copied, metadata and content, and nothing that differs
/// between two file systems (inode numbers, ctime). `name` is the path for the directory itself. The root
/// hashes of source and target are computed from these.
#[must_use]
pub fn content_digest(name: &[u8], inode: &Inode, content: Option<&Hash>) -> Hash {
    let mut hasher = blake3::Hasher::new();
    put_name(&mut hasher, name, inode);
    put_kept(&mut hasher, inode);
    put_bytes(&mut hasher, content.map_or(&[], |hash| &hash[..]));
    *hasher.finalize().as_bytes()
}

fn put_name(hasher: &mut blake3::Hasher, name: &[u8], inode: &Inode) {
    put_bytes(hasher, name);
    hasher.update(&[inode.kind.number()]);
}

fn put_kept(hasher: &mut blake3::Hasher, inode: &Inode) {
    let Inode {
        kind,
        stamp,
        attributes,
        linked,
    } = inode;
    let (target, device) = kind.detail();
    put_bytes(hasher, target);
    // Some servers of NFS report another mode of links than Linux, where it cannot be set.
    let is_link = matches!(kind, Kind::Symlink(_));
    for number in [
        if is_link { 0 } else { attributes.mode },
        attributes.uid,
        attributes.gid,
        u32::from(*linked),
    ] {
        hasher.update(&number.to_le_bytes());
    }
    hasher.update(&device.to_le_bytes());
    if inode.is_file() {
        hasher.update(&stamp.size.to_le_bytes());
    }
    put_time(hasher, &stamp.mtime);
    hasher.update(&(attributes.xattrs.len() as u64).to_le_bytes());
    for (name, value) in &attributes.xattrs {
        put_bytes(hasher, name);
        put_bytes(hasher, value);
    }
}

fn put_stamp(hasher: &mut blake3::Hasher, stamp: &Stamp) {
    hasher.update(&stamp.ino.to_le_bytes());
    hasher.update(&stamp.size.to_le_bytes());
    put_time(hasher, &stamp.mtime);
    put_time(hasher, &stamp.ctime);
}

fn put_time(hasher: &mut blake3::Hasher, time: &Time) {
    hasher.update(&time.secs.to_le_bytes());
    hasher.update(&time.nanos.to_le_bytes());
}

/// With the length, so that two different sequences never are the same bytes.
fn put_bytes(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}
