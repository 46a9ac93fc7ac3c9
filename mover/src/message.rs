//! The messages of the two sides on the control lanes, as protobuf, and the encoding of inodes there and in
//! the journal. Every decoder here returns a domain type or an error: the peer is not trusted.

use prost::Message as _;

use crate::{
    entry::{Attributes, Entry, Hash, Inode, Kind, Stamp, Time},
    path::{BadPath, Name, TreePath},
};

/// The version of the protocol; both sides must have the same.
pub(crate) const VERSION: u32 = 3;
/// Extended attributes of one inode, names and values, must fit into one frame.
pub(crate) const MAX_XATTRS: usize = 512 * 1024;

/// A message that violates the protocol.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadMessage {
    #[error("it cannot be decoded: {0}")]
    Protobuf(#[from] prost::DecodeError),
    #[error(transparent)]
    Path(#[from] BadPath),
    #[error("{0}")]
    Field(&'static str),
}

/// The first frame of each lane, from the side that dialled; the other side answers with the same.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Hello {
    #[prost(uint32, tag = "1")]
    pub(crate) version: u32,
    /// Optional features that may be used; unknown ones are ignored.
    #[prost(string, repeated, tag = "2")]
    pub(crate) features: Vec<String>,
    #[prost(string, tag = "3")]
    pub(crate) move_uid: String,
    #[prost(uint64, tag = "4")]
    pub(crate) epoch: u64,
    /// Lanes with the same number belong together.
    #[prost(fixed64, tag = "5")]
    pub(crate) session: u64,
    #[prost(uint32, tag = "6")]
    pub(crate) lane: u32,
    #[prost(uint32, tag = "7")]
    pub(crate) data_lanes: u32,
    /// Why the answering side refuses the session; empty if it does not.
    #[prost(string, tag = "8")]
    pub(crate) refused: String,
}

/// From source to target.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct FromSource {
    #[prost(oneof = "SourceMessage", tags = "1, 2, 3, 4, 5, 6")]
    pub(crate) message: Option<SourceMessage>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum SourceMessage {
    /// A pass has begun: the source's file system was synchronised after this time.
    #[prost(message, tag = "1")]
    Ready(Ready),
    /// A directory, or the next part of it.
    #[prost(message, tag = "2")]
    Listing(Listing),
    /// A directory that is unchanged since the target's listing.
    #[prost(bytes, tag = "3")]
    Same(Vec<u8>),
    /// The source can receive this many more frames of known directories.
    #[prost(uint32, tag = "4")]
    Credit(u32),
    /// The walk is complete.
    #[prost(message, tag = "5")]
    ScanEnd(ScanEnd),
    /// The source failed.
    #[prost(string, tag = "6")]
    Failed(String),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Ready {
    #[prost(message, required, tag = "1")]
    pub(crate) clock: ClockReading,
    /// Whether stamps are reliable, with this file system and clock.
    #[prost(bool, tag = "2")]
    pub(crate) stamps_count: bool,
    /// Bytes of a device; zero for a tree.
    #[prost(uint64, tag = "3")]
    pub(crate) device_size: u64,
    /// Bytes in use in the file system of a tree, which may hold more than the tree; zero if that is
    /// unknown.
    #[prost(uint64, tag = "4")]
    pub(crate) used: u64,
    /// Inodes in use in the file system of a tree, if it holds nothing but the tree, so that `used` is the
    /// size of the tree; zero otherwise, or if that is unknown.
    #[prost(uint64, tag = "5")]
    pub(crate) own_files: u64,
    /// Whether the source sees attributes of the namespace `trusted`.
    #[prost(bool, tag = "6")]
    pub(crate) sees_trusted: bool,
    /// Whether everything that is created in the root of a tree inherits `NOCOW`.
    #[prost(bool, tag = "7")]
    pub(crate) nocow: bool,
}

/// The data to detect later whether the clock was set back.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ClockReading {
    #[prost(sint64, tag = "1")]
    pub(crate) wall_nanos: i64,
    /// Wall clock minus the time since boot.
    #[prost(sint64, tag = "2")]
    pub(crate) offset_nanos: i64,
    #[prost(string, tag = "3")]
    pub(crate) boot_id: String,
    /// The granularity of the file system's times.
    #[prost(uint64, tag = "4")]
    pub(crate) tick_nanos: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Listing {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) path: Vec<u8>,
    /// The directory itself, in its first part.
    #[prost(message, optional, tag = "2")]
    pub(crate) own: Option<RawInode>,
    /// Encoded [`RawEntry`]s; decoded one at a time, or a short frame of empty ones would fill the memory.
    #[prost(bytes = "vec", repeated, tag = "3")]
    pub(crate) entries: Vec<Vec<u8>>,
    #[prost(bool, tag = "4")]
    pub(crate) last: bool,
    /// In its last part: what cannot be copied.
    #[prost(message, repeated, tag = "5")]
    pub(crate) losses: Vec<RawLoss>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ScanEnd {
    #[prost(uint64, tag = "1")]
    pub(crate) vanished: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RawLoss {
    #[prost(uint32, tag = "1")]
    pub(crate) kind: u32,
    #[prost(uint64, tag = "2")]
    pub(crate) count: u64,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) example: Vec<u8>,
}

/// From target to source.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct FromTarget {
    #[prost(oneof = "TargetMessage", tags = "1, 2, 3, 4, 5")]
    pub(crate) message: Option<TargetMessage>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum TargetMessage {
    /// Walk the tree and send its contents.
    #[prost(message, tag = "1")]
    Begin(Begin),
    /// Directories as the target knows them, in the order of the walk.
    #[prost(message, tag = "2")]
    Known(Known),
    /// Requests for content.
    #[prost(message, tag = "3")]
    Fetch(Fetches),
    /// The target is done: the session ends.
    #[prost(bool, tag = "4")]
    Bye(bool),
    /// The target failed.
    #[prost(string, tag = "5")]
    Failed(String),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Begin {
    #[prost(uint32, tag = "1")]
    pub(crate) pass: u32,
    /// Whether the flag `NOCOW` means nothing at the target, so that it is no loss.
    #[prost(bool, tag = "2")]
    pub(crate) ignores_nocow: bool,
    /// Whether the sizes of files are to be listed without their holes: the target only deletes what is larger.
    #[prost(bool, tag = "3")]
    pub(crate) only_data: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Known {
    #[prost(message, repeated, tag = "1")]
    pub(crate) directories: Vec<KnownDirectory>,
    #[prost(bool, tag = "2")]
    pub(crate) last: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct KnownDirectory {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) path: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) digest: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Fetches {
    #[prost(message, repeated, tag = "1")]
    pub(crate) fetches: Vec<RawFetch>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RawFetch {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) path: Vec<u8>,
    /// The stamp in the listing, to notice changes since.
    #[prost(message, required, tag = "3")]
    pub(crate) stamp: RawStamp,
    #[prost(uint64, tag = "4")]
    pub(crate) first: u64,
    #[prost(uint32, tag = "5")]
    pub(crate) count: u32,
    /// Hashes of the target's content, 32 bytes per chunk, zeros for unknown ones; empty if all are unknown.
    #[prost(bytes = "vec", tag = "6")]
    pub(crate) claims: Vec<u8>,
    /// Whether the file counts as deleted if another inode has its name by now: the target's inode has other names, too.
    #[prost(bool, tag = "7")]
    pub(crate) same_inode: bool,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct RawStamp {
    #[prost(uint64, tag = "1")]
    pub(crate) ino: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) size: u64,
    #[prost(sint64, tag = "3")]
    pub(crate) mtime_secs: i64,
    #[prost(uint32, tag = "4")]
    pub(crate) mtime_nanos: u32,
    #[prost(sint64, tag = "5")]
    pub(crate) ctime_secs: i64,
    #[prost(uint32, tag = "6")]
    pub(crate) ctime_nanos: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RawInode {
    #[prost(uint32, tag = "1")]
    pub(crate) kind: u32,
    #[prost(message, optional, tag = "2")]
    pub(crate) stamp: Option<RawStamp>,
    #[prost(uint32, tag = "3")]
    pub(crate) mode: u32,
    #[prost(uint32, tag = "4")]
    pub(crate) uid: u32,
    #[prost(uint32, tag = "5")]
    pub(crate) gid: u32,
    #[prost(uint64, tag = "6")]
    pub(crate) device: u64,
    #[prost(bytes = "vec", tag = "7")]
    pub(crate) target: Vec<u8>,
    #[prost(message, repeated, tag = "8")]
    pub(crate) xattrs: Vec<RawXattr>,
    #[prost(bool, tag = "9")]
    pub(crate) linked: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RawXattr {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) name: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RawEntry {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) name: Vec<u8>,
    #[prost(message, required, tag = "2")]
    pub(crate) inode: RawInode,
}

impl RawEntry {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Entry, BadMessage> {
        let raw = Self::decode(bytes)?;
        Ok(Entry {
            name: Name::parse(&raw.name)?,
            inode: raw.inode.try_into()?,
        })
    }

    pub(crate) fn encode(entry: &Entry) -> Vec<u8> {
        let raw = Self {
            name: entry.name.as_bytes().to_vec(),
            inode: (&entry.inode).into(),
        };
        raw.encode_to_vec()
    }
}

impl From<&Stamp> for RawStamp {
    fn from(stamp: &Stamp) -> Self {
        Self {
            ino: stamp.ino,
            size: stamp.size,
            mtime_secs: stamp.mtime.secs,
            mtime_nanos: stamp.mtime.nanos,
            ctime_secs: stamp.ctime.secs,
            ctime_nanos: stamp.ctime.nanos,
        }
    }
}

impl TryFrom<RawStamp> for Stamp {
    type Error = BadMessage;

    fn try_from(raw: RawStamp) -> Result<Self, BadMessage> {
        // A size is an offset of the kernel, which is signed.
        if raw.mtime_nanos >= 1_000_000_000 || raw.ctime_nanos >= 1_000_000_000 || raw.size > i64::MAX as u64
        {
            return Err(BadMessage::Field("a time or size is out of bounds"));
        }
        Ok(Self {
            ino: raw.ino,
            size: raw.size,
            mtime: Time {
                secs: raw.mtime_secs,
                nanos: raw.mtime_nanos,
            },
            ctime: Time {
                secs: raw.ctime_secs,
                nanos: raw.ctime_nanos,
            },
        })
    }
}

impl From<&Inode> for RawInode {
    fn from(inode: &Inode) -> Self {
        let (target, device) = inode.kind.detail();
        Self {
            kind: inode.kind.number().into(),
            stamp: (inode.stamp != Stamp::default()).then(|| (&inode.stamp).into()),
            mode: inode.attributes.mode,
            uid: inode.attributes.uid,
            gid: inode.attributes.gid,
            device,
            target: target.to_vec(),
            xattrs: inode
                .attributes
                .xattrs
                .iter()
                .map(|(name, value)| RawXattr {
                    name: name.clone(),
                    value: value.clone(),
                })
                .collect(),
            linked: inode.linked,
        }
    }
}

impl TryFrom<RawInode> for Inode {
    type Error = BadMessage;

    fn try_from(raw: RawInode) -> Result<Self, BadMessage> {
        let kind = match raw.kind {
            1 => Kind::File,
            2 => Kind::Directory,
            3 if raw.target.is_empty() || raw.target.len() > TreePath::MAX || raw.target.contains(&0) => {
                return Err(BadMessage::Field("a symbolic link has an invalid target"));
            }
            3 => Kind::Symlink(raw.target),
            4 => Kind::Fifo,
            5 => Kind::Socket,
            6 => Kind::Character(raw.device),
            7 => Kind::Block(raw.device),
            _ => return Err(BadMessage::Field("an inode has an unknown kind")),
        };
        if raw.mode > 0o7777 || raw.uid == u32::MAX || raw.gid == u32::MAX {
            return Err(BadMessage::Field("a mode or owner is out of bounds"));
        }
        let xattrs: Vec<_> = raw
            .xattrs
            .into_iter()
            .map(|xattr| (xattr.name, xattr.value))
            .collect();
        if !xattrs.iter().all(|(name, _)| kept_xattr(name)) || !xattrs.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(BadMessage::Field("an extended attribute is not allowed"));
        }
        Ok(Self {
            kind,
            stamp: raw.stamp.map(Stamp::try_from).transpose()?.unwrap_or_default(),
            attributes: Attributes {
                mode: raw.mode,
                uid: raw.uid,
                gid: raw.gid,
                xattrs,
            },
            linked: raw.linked,
        })
    }
}

/// Which extended attributes are copied: the user's, file capabilities, POSIX ACLs.
pub(crate) fn kept_xattr(name: &[u8]) -> bool {
    let valid = name.len() <= 255 && !name.contains(&0);
    let system: [&[u8]; 3] = [
        b"security.capability",
        b"system.posix_acl_access",
        b"system.posix_acl_default",
    ];
    valid && ((name.starts_with(b"user.") && name.len() > 5) || system.contains(&name))
}

/// The wire format of hashes: 32 bytes each, zeros for unknown ones, empty if all are unknown.
pub(crate) fn encode_claims(claims: &[Option<Hash>]) -> Vec<u8> {
    if claims.iter().all(Option::is_none) {
        return Vec::new();
    }
    claims
        .iter()
        .flat_map(|claim| claim.unwrap_or_default())
        .collect()
}

/// The reverse, for `count` hashes.
pub(crate) fn decode_claims(bytes: &[u8], count: usize) -> Result<Vec<Option<Hash>>, BadMessage> {
    if bytes.is_empty() {
        return Ok(vec![None; count]);
    }
    let (hashes, rest) = bytes.as_chunks::<32>();
    if hashes.len() != count || !rest.is_empty() {
        return Err(BadMessage::Field("the numbers of hashes and chunks differ"));
    }
    Ok(hashes
        .iter()
        .map(|hash| (*hash != Hash::default()).then_some(*hash))
        .collect())
}
