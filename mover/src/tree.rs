//! One side's tree on its file system. Everything is opened from a descriptor of the root, never through a
//! symbolic link and never in another file system, so that no path leads out of it, whatever other processes
//! replace concurrently.

use std::{
    borrow::Cow,
    collections::VecDeque,
    fs::File,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
    thread,
    time::Duration,
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Gid, IFlags, Mode, OFlags, RawDir, ResolveFlags, Statx, StatxAttributes,
        StatxFlags, StatxTimestamp, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, makedev,
    },
    io::{Errno, Result},
};

use crate::{
    entry::{Attributes, Inode, Kind, Stamp, Time, Xattrs},
    error::Error,
    message::{MAX_XATTRS, kept_xattr},
    path::{Name, Readable, TreePath},
};

/// Resolution must not cross to another file system, or follow a link.
const INSIDE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// How long a file is waited for that is under a lease: the peer of a lane that waits with it would wait longer.
const LEASE: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The type of btrfs in `statfs`.
pub(crate) const BTRFS: i64 = 0x9123_683E;
/// The type of ext2, ext3 and ext4.
pub(crate) const EXT: i64 = 0xEF53;
/// `STATX_SUBVOL`: the subvolume's number, since Linux 6.10 and only where there are any (btrfs).
const SUBVOLUME: StatxFlags = StatxFlags::from_bits_retain(0x8000);

/// Inode flags that users set and that are not copied. Others describe how a file system stores an inode.
const LOST_FLAGS: IFlags = IFlags::APPEND
    .union(IFlags::COMPRESSED)
    .union(IFlags::DIRSYNC)
    .union(IFlags::IMMUTABLE)
    .union(IFlags::JOURNALING)
    .union(IFlags::NOATIME)
    .union(IFlags::NOCOW)
    .union(IFlags::NODUMP)
    .union(IFlags::NOTAIL)
    .union(IFlags::PROJECT_INHERIT)
    .union(IFlags::SECURE_REMOVAL)
    .union(IFlags::SYNC)
    .union(IFlags::TOPDIR)
    .union(IFlags::UNRM)
    // `FS_ENCRYPT_FL`, `FS_VERITY_FL`, `FS_DAX_FL`, `FS_CASEFOLD_FL`.
    .union(IFlags::from_bits_retain(0x4210_0800));

/// The capacity of a file system, or what is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Capacity {
    pub(crate) bytes: u64,
    pub(crate) files: u64,
}

/// The root of a tree.
#[derive(Debug)]
pub(crate) struct Tree(OwnedFd);

impl Tree {
    pub(crate) fn open(root: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(root, flags, Mode::empty()).map(Self)
    }

    pub(crate) fn directory(&self, path: &TreePath) -> Result<OwnedFd> {
        self.at(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
    }

    /// The same, to change names in it. A mover that runs as the owner has no capabilities: its own read-only
    /// directory has to be made writable first. Its mode has to be set again afterwards.
    pub(crate) fn directory_to_change(&self, path: &TreePath) -> Result<OwnedFd> {
        let fd = self.directory(path)?;
        let mode = Mode::from_raw_mode(At::Fd(fd.as_fd()).status()?.stx_mode.into());
        if !mode.contains(Mode::WUSR | Mode::XUSR) {
            rustix::fs::fchmod(&fd, mode | Mode::RWXU)?;
        }
        Ok(fd)
    }

    /// Opens a file with these flags. Neither a pipe nor a terminal blocks this.
    pub(crate) fn file(&self, path: &TreePath, flags: OFlags) -> Result<File> {
        self.at(
            path,
            flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW,
            Mode::empty(),
        )
        .map(File::from)
    }

    /// Opens a file for writing, its owner's read-only file too: see [`Self::directory_to_change`].
    pub(crate) fn file_to_change(&self, path: &TreePath) -> Result<File> {
        match self.file(path, OFlags::WRONLY) {
            Err(Errno::ACCESS) => {
                let fd = self.at(path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())?;
                rustix::fs::chmod(&At::Fd(fd.as_fd()).path()[..], Mode::RUSR | Mode::WUSR)?;
                self.file(path, OFlags::WRONLY)
            }
            result => result,
        }
    }

    fn at(&self, path: &TreePath, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        let bytes = if path.is_root() { b"." } else { path.as_bytes() };
        open_inside(self.0.as_fd(), bytes, flags, mode)
    }

    /// Whether files here can have the flag `NOCOW`, to be written in place. Other file systems than btrfs do that with
    /// all files or with none.
    pub(crate) fn has_nocow(&self) -> bool {
        rustix::fs::fstatfs(&self.0).is_ok_and(|fs| fs.f_type == BTRFS)
    }

    /// Whether this is the root of a file system of ext2 to ext4.
    pub(crate) fn is_root_of_ext(&self) -> bool {
        let is_ext = rustix::fs::fstatfs(&self.0).is_ok_and(|fs| fs.f_type == EXT);
        is_ext && At::Fd(self.root()).status().is_ok_and(|root| root.stx_ino == 2)
    }

    /// Sets that flag of the root: everything that is created in it inherits it.
    pub(crate) fn set_nocow(&self) -> Result<()> {
        let flags = rustix::fs::ioctl_getflags(&self.0)?;
        if flags.contains(IFlags::NOCOW) {
            return Ok(());
        }
        rustix::fs::ioctl_setflags(&self.0, flags | IFlags::NOCOW)
    }

    /// Writes all data of this file system to disk.
    pub(crate) fn sync(&self) -> Result<()> {
        rustix::fs::syncfs(&self.0)
    }

    /// Bytes and inodes in use in the file system, which may hold more than this tree.
    pub(crate) fn used(&self) -> Result<Capacity> {
        let found = rustix::fs::fstatvfs(&self.0)?;
        let blocks = found.f_blocks.saturating_sub(found.f_bfree);
        Ok(Capacity {
            bytes: blocks.saturating_mul(found.f_frsize),
            files: found.f_files.saturating_sub(found.f_ffree),
        })
    }

    /// The capacity of the file system in bytes and inodes; zero if it does not report it.
    pub(crate) fn capacity(&self) -> Result<Capacity> {
        let found = rustix::fs::fstatvfs(&self.0)?;
        Ok(Capacity {
            bytes: found.f_blocks.saturating_mul(found.f_frsize),
            files: found.f_files,
        })
    }

    /// Whether the file system holds nothing but this tree: its root is mounted here. False if that is
    /// unknown.
    pub(crate) fn is_whole(&self) -> bool {
        let Some((found, mount)) = self.mount() else {
            return false;
        };
        // The fields of a line: the id of the mount, of its parent, the device, and the mounted directory.
        found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) && mount.split(' ').nth(3) == Some("/")
    }

    /// Whether the file system has project quotas, so that inodes may have project ids. The ids themselves cannot be read
    /// without unsafe code.
    pub(crate) fn has_projects(&self) -> bool {
        self.mount().is_some_and(|(_, mount)| has_project_quota(&mount))
    }

    /// The status of the root, and the line of its mount in `/proc/self/mountinfo`.
    fn mount(&self) -> Option<(Statx, String)> {
        let found = rustix::fs::statx(&self.0, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
        let id = found.stx_mnt_id.to_string();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        let its = mounts.lines().find(|line| line.split(' ').next() == Some(&id));
        its.map(|line| (found, line.to_owned()))
    }

    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether this line of `mountinfo` is of a file system with project quotas. The options of the file system are its last
/// field; `pqnoenforce` are quotas of XFS that are counted and not enforced.
fn has_project_quota(mount: &str) -> bool {
    let mut options = mount.rsplit(' ').next().unwrap_or_default().split(',');
    options.any(|option| matches!(option, "prjquota" | "pquota" | "pqnoenforce"))
}

fn open_inside(directory: BorrowedFd<'_>, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    let open = || rustix::fs::openat2(directory, path, flags | OFlags::CLOEXEC, mode, INSIDE);
    patiently(open, thread::sleep)
}

/// Opens a file, again and again for a while if it is under a lease (`F_SETLEASE`): that is `AGAIN`. The kernel has then
/// asked the other process to give the lease up, and ends it after `/proc/sys/fs/lease-break-time`, 45 seconds by
/// default, so that a later attempt of the caller succeeds. A concurrent rename is `AGAIN`, too, but not twice.
fn patiently<T>(mut open: impl FnMut() -> Result<T>, mut sleep: impl FnMut(Duration)) -> Result<T> {
    let (mut pause, mut waited) = (FIRST_PAUSE, Duration::ZERO);
    loop {
        match open() {
            Err(Errno::AGAIN) if waited < LEASE => {}
            result => return result,
        }
        sleep(pause);
        waited += pause;
        pause = LONGEST_PAUSE.min(pause * 2);
    }
}

/// Opens a file in a directory to read its attributes; `None` if this process may not read it.
pub(crate) fn file_in(directory: BorrowedFd<'_>, name: &Name) -> Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
    match open_inside(directory, name.as_bytes(), flags, Mode::empty()) {
        Err(Errno::ACCESS) => Ok(None),
        // A socket has the name now.
        Err(Errno::NXIO) => Err(Errno::NOENT),
        opened => opened.map(Some),
    }
}

/// The flags of a file or directory that are not copied; none if its file system has no flags.
pub(crate) fn lost_flags(fd: BorrowedFd<'_>) -> Result<IFlags> {
    match rustix::fs::ioctl_getflags(fd) {
        Err(Errno::NOTTY | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(IFlags::empty()),
        flags => Ok(flags? & LOST_FLAGS),
    }
}

/// Whether this error means that an inode below the root was deleted or replaced after its name was read.
/// NFS answers `STALE` if another client did that.
pub(crate) fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE)
}

/// The same for a name in this directory. The kernel looks up a stale name again: if that does not help, the
/// directory is stale. If that is the root, its names are not deleted.
pub(crate) fn is_gone_from(directory: &TreePath, errno: Errno) -> bool {
    is_gone(errno) && !(errno == Errno::STALE && directory.is_root())
}

/// Why extended attributes cannot be read, and which of them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct XattrError {
    pub(crate) errno: Errno,
    attribute: Option<Vec<u8>>,
}

impl XattrError {
    /// Names the path of the inode.
    pub(crate) fn at(self, path: &TreePath) -> Error {
        let doing = match &self.attribute {
            Some(name) => format!("reading the attribute '{}' of", Readable(name)).into(),
            None => Cow::Borrowed("reading attributes of"),
        };
        Error::tree(doing, path)(self.errno)
    }
}

impl From<Errno> for XattrError {
    fn from(errno: Errno) -> Self {
        Self {
            errno,
            attribute: None,
        }
    }
}

impl From<XattrError> for Errno {
    fn from(error: XattrError) -> Self {
        error.errno
    }
}

/// The inode of a descriptor, or of a name in a directory.
#[derive(Clone, Copy)]
pub(crate) enum At<'a> {
    Fd(BorrowedFd<'a>),
    Child(BorrowedFd<'a>, &'a Name),
}

impl At<'_> {
    pub(crate) fn status(self) -> Result<Statx> {
        let mask = StatxFlags::BASIC_STATS | SUBVOLUME;
        match self {
            Self::Fd(fd) => rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, mask),
            Self::Child(dir, name) => rustix::fs::statx(
                dir,
                name.as_bytes(),
                AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT,
                mask,
            ),
        }
    }

    /// A path for calls that have no `at` variant; they do not follow a link in its last component, and the
    /// rest is a descriptor.
    fn path(self) -> Vec<u8> {
        match self {
            Self::Fd(fd) => format!("/proc/self/fd/{}", fd.as_raw_fd()).into_bytes(),
            Self::Child(dir, name) => {
                let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
                path.extend_from_slice(name.as_bytes());
                path
            }
        }
    }

    /// The extended attributes that are copied, and whether there are others.
    pub(crate) fn xattrs(self) -> std::result::Result<(Xattrs, bool), XattrError> {
        let mut list = [0; 1024];
        let path = self.path();
        let listed = match self.list_xattrs(&path, &mut list) {
            Ok(0) | Err(Errno::OPNOTSUPP) => return Ok((Vec::new(), false)),
            Ok(length) => list.get(..length).unwrap_or_default().to_vec(),
            Err(Errno::RANGE) => {
                // The kernel's limit of a list.
                let mut list = vec![0; 64 << 10];
                let length = self.list_xattrs(&path, &mut list)?;
                list.truncate(length);
                list
            }
            Err(error) => return Err(error.into()),
        };
        let (mut kept, mut others, mut total) = (Vec::new(), false, 0);
        for name in listed.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            // The target has labels of its own.
            if name == b"security.selinux" {
                continue;
            }
            if !kept_xattr(name) {
                others = true;
                continue;
            }
            match self.xattr(&path, name) {
                Ok(value) => {
                    total += name.len() + value.len();
                    kept.push((name.to_vec(), value));
                }
                Err(Errno::NODATA) => {}
                Err(errno) => {
                    return Err(XattrError {
                        errno,
                        attribute: Some(name.to_vec()),
                    });
                }
            }
        }
        if total > MAX_XATTRS {
            return Err(Errno::TOOBIG.into());
        }
        kept.sort();
        Ok((kept, others))
    }

    fn list_xattrs(self, path: &[u8], list: &mut [u8]) -> Result<usize> {
        match self {
            Self::Fd(fd) => rustix::fs::flistxattr(fd, list),
            Self::Child(..) => rustix::fs::llistxattr(path, list),
        }
    }

    fn xattr(self, path: &[u8], name: &[u8]) -> Result<Vec<u8>> {
        let mut value = vec![0; 256];
        loop {
            let got = match self {
                Self::Fd(fd) => rustix::fs::fgetxattr(fd, name, &mut value[..]),
                Self::Child(..) => rustix::fs::lgetxattr(path, name, &mut value[..]),
            };
            match got {
                Ok(length) => {
                    value.truncate(length);
                    return Ok(value);
                }
                // The kernel's limit of a value.
                Err(Errno::RANGE) if value.len() < 64 << 10 => value.resize(64 << 10, 0),
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the file system has no space left.
    fn is_full(self) -> Result<bool> {
        let (Self::Fd(fd) | Self::Child(fd, _)) = self;
        let found = rustix::fs::fstatvfs(fd)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize) < 2 * MAX_XATTRS as u64)
    }

    fn set_xattrs(self, wanted: &[(Vec<u8>, Vec<u8>)]) -> Result<()> {
        let (present, _) = self.xattrs()?;
        if present == wanted {
            return Ok(());
        }
        let path = self.path();
        // Also those with another value: an inode of ext4 has a block for all of them, and one that grows may need the space
        // of one that shrinks.
        for (name, _) in present.iter().filter(|xattr| !wanted.contains(xattr)) {
            match self {
                Self::Fd(fd) => rustix::fs::fremovexattr(fd, &name[..])?,
                Self::Child(..) => rustix::fs::lremovexattr(&path[..], &name[..])?,
            }
        }
        for (name, value) in wanted.iter().filter(|xattr| !present.contains(xattr)) {
            let set = match self {
                Self::Fd(fd) => rustix::fs::fsetxattr(fd, &name[..], value, XattrFlags::empty()),
                Self::Child(..) => rustix::fs::lsetxattr(&path[..], &name[..], value, XattrFlags::empty()),
            };
            match set {
                // The same error if an inode has no space for them.
                Err(Errno::NOSPC) if !self.is_full()? => return Err(Errno::TOOBIG),
                set => set?,
            }
        }
        Ok(())
    }

    /// Owner, extended attributes, mode, times, in this order: each of them can reset a part of the earlier
    /// ones. `TOOBIG` if the file system cannot hold the extended attributes, `OVERFLOW` if the time: it
    /// would be rounded silently.
    pub(crate) fn set_attributes(self, inode: &Inode) -> Result<()> {
        let Attributes {
            mode,
            uid,
            gid,
            xattrs,
        } = &inode.attributes;
        let (uid, gid) = (Some(Uid::from_raw(*uid)), Some(Gid::from_raw(*gid)));
        let times = Timestamps {
            last_access: Timespec {
                tv_sec: 0,
                tv_nsec: UTIME_OMIT,
            },
            last_modification: Timespec {
                tv_sec: inode.stamp.mtime.secs,
                tv_nsec: inode.stamp.mtime.nanos.into(),
            },
        };
        match self {
            Self::Fd(fd) => {
                rustix::fs::fchown(fd, uid, gid)?;
                self.set_xattrs(xattrs)?;
                rustix::fs::fchmod(fd, Mode::from_raw_mode(*mode))?;
                rustix::fs::futimens(fd, &times)?;
            }
            Self::Child(dir, name) => {
                rustix::fs::chownat(dir, name.as_bytes(), uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
                self.set_xattrs(xattrs)?;
                if !matches!(inode.kind, Kind::Symlink(_)) {
                    let path_only = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let fd = rustix::fs::openat(dir, name.as_bytes(), path_only, Mode::empty())?;
                    rustix::fs::chmod(&At::Fd(fd.as_fd()).path()[..], Mode::from_raw_mode(*mode))?;
                }
                rustix::fs::utimensat(dir, name.as_bytes(), &times, AtFlags::SYMLINK_NOFOLLOW)?;
            }
        }
        if stamp_of(&self.status()?).mtime == inode.stamp.mtime {
            Ok(())
        } else {
            Err(Errno::OVERFLOW)
        }
    }
}

/// The target of a symbolic link.
pub(crate) fn read_link(dir: BorrowedFd<'_>, name: &Name) -> Result<Vec<u8>> {
    rustix::fs::readlinkat(dir, name.as_bytes(), Vec::with_capacity(256)).map(std::ffi::CString::into_bytes)
}

/// The number of an inode, which is unique in its file system: subvolumes of btrfs have the same numbers. Both
/// parts are counters, and too small to overlap.
pub(crate) fn inode_number(status: &Statx) -> u64 {
    let has_subvolume = status.stx_mask & SUBVOLUME.bits() != 0;
    let subvolume = if has_subvolume { status.stx_subvol } else { 0 };
    status.stx_ino ^ subvolume.rotate_left(40)
}

/// The stamp in a status.
pub(crate) fn stamp_of(status: &Statx) -> Stamp {
    let time = |time: StatxTimestamp| Time {
        secs: time.tv_sec,
        nanos: time.tv_nsec,
    };
    let is_file = file_type(status) == FileType::RegularFile;
    Stamp {
        ino: inode_number(status),
        // The size of a directory depends on its file system.
        size: if is_file { status.stx_size } else { 0 },
        mtime: time(status.stx_mtime),
        ctime: time(status.stx_ctime),
    }
}

/// The type in a status.
pub(crate) fn file_type(status: &Statx) -> FileType {
    FileType::from_raw_mode(status.stx_mode.into())
}

/// The inode in a status, without extended attributes and a link's target; `None` for an unknown kind.
pub(crate) fn inode_of(status: &Statx) -> Option<Inode> {
    let device = || makedev(status.stx_rdev_major, status.stx_rdev_minor);
    let kind = match file_type(status) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink(Vec::new()),
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice => Kind::Character(device()),
        FileType::BlockDevice => Kind::Block(device()),
        FileType::Unknown => return None,
    };
    let linked = kind != Kind::Directory && status.stx_nlink > 1;
    let attributes = Attributes {
        mode: u32::from(status.stx_mode) & 0o7777,
        uid: status.stx_uid,
        gid: status.stx_gid,
        xattrs: Vec::new(),
    };
    Some(Inode {
        kind,
        stamp: stamp_of(status),
        attributes,
        linked,
    })
}

/// The type of kernel objects of this kind.
pub(crate) fn type_of(kind: &Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink(_) => FileType::Symlink,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
        Kind::Character(_) => FileType::CharacterDevice,
        Kind::Block(_) => FileType::BlockDevice,
    }
}

/// A name in a directory; `None` for itself and its parent. On some file systems (vfat, exfat, ntfs3) names
/// may be longer than on all others: such a directory cannot be copied, and the name is not skipped.
fn listed(name: &[u8]) -> Result<Option<Name>> {
    if matches!(name, b"." | b"..") {
        return Ok(None);
    }
    Name::parse(name).map(Some).map_err(|_| Errno::NAMETOOLONG)
}

/// Some of the names in a directory, sorted.
pub(crate) struct Names {
    pub(crate) names: Vec<(Name, FileType)>,
    /// Whether there are more after the last of these.
    pub(crate) more: bool,
}

/// The first `limit` names after `after`, in their order, that `wanted` accepts. No more are in memory: the
/// directory is read once for each `limit` of them.
pub(crate) fn names(
    dir: BorrowedFd<'_>,
    after: Option<&Name>,
    limit: usize,
    mut wanted: impl FnMut(&[u8], FileType) -> bool,
) -> Result<Names> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, c".", flags, Mode::empty())?;
    let mut buffer = Vec::with_capacity(32 << 10);
    let mut raw = RawDir::new(fd, buffer.spare_capacity_mut());
    let (mut found, mut more): (Vec<(Name, FileType)>, bool) = (Vec::new(), false);
    while let Some(entry) = raw.next() {
        let entry = entry?;
        let Some(name) = listed(entry.file_name().to_bytes())? else {
            continue;
        };
        if after.is_some_and(|after| name <= *after) || !wanted(name.as_bytes(), entry.file_type()) {
            continue;
        }
        found.push((name, entry.file_type()));
        if found.len() >= 2 * limit {
            found.select_nth_unstable_by(limit, |a, b| a.0.cmp(&b.0));
            found.truncate(limit);
            more = true;
        }
    }
    found.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    // Some file systems return a name twice if the directory changes meanwhile.
    found.dedup_by(|a, b| a.0 == b.0);
    more |= found.len() > limit;
    found.truncate(limit);
    for (name, kind) in &mut found {
        if *kind == FileType::Unknown {
            *kind = At::Child(dir, name)
                .status()
                .map_or(FileType::Unknown, |status| file_type(&status));
        }
    }
    Ok(Names { names: found, more })
}

/// All names of a directory, in their order, a part of which is in memory at a time.
#[derive(Default)]
pub(crate) struct SortedNames {
    names: VecDeque<(Name, FileType)>,
    last: Option<Name>,
    all_read: bool,
}

impl SortedNames {
    const WINDOW: usize = 1 << 16;

    /// The next name that `wanted` accepts.
    pub(crate) fn peek(
        &mut self,
        directory: BorrowedFd<'_>,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<Option<&(Name, FileType)>> {
        while self.names.is_empty() && !self.all_read {
            let found = names(directory, self.last.as_ref(), Self::WINDOW, |name, _| {
                wanted(name)
            })?;
            self.all_read = !found.more;
            self.last = found
                .names
                .last()
                .map(|(name, _)| name.clone())
                .or(self.last.take());
            self.names = found.names.into();
        }
        Ok(self.names.front())
    }

    pub(crate) fn pop(&mut self) -> Option<(Name, FileType)> {
        self.names.pop_front()
    }
}

/// The current directory of this process is not used.
pub(crate) fn open_anywhere(path: &Path, flags: OFlags) -> Result<File> {
    rustix::fs::openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty()).map(File::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_lease_is_polled_with_growing_pauses_and_a_limit() {
        let attempts = |needed: usize| {
            let (mut made, mut pauses) = (0, Vec::new());
            let open = || {
                made += 1;
                if made < needed { Err(Errno::AGAIN) } else { Ok(()) }
            };
            let opened = patiently(open, |pause| pauses.push(pause));
            (opened, made, pauses)
        };
        assert_eq!(attempts(1), (Ok(()), 1, Vec::new()));
        let pauses = [1, 2, 4].map(Duration::from_millis);
        assert_eq!(attempts(4), (Ok(()), 4, pauses.to_vec()));
        let (opened, made, pauses) = attempts(usize::MAX);
        assert_eq!((opened, made), (Err(Errno::AGAIN), pauses.len() + 1));
        let waited: Duration = pauses.iter().sum();
        assert!(
            (LEASE..LEASE + LONGEST_PAUSE).contains(&waited) && pauses.len() < 30,
            "{pauses:?}"
        );
    }

    #[test]
    fn quotas_for_projects_are_found_in_the_options_of_the_file_system() {
        let line = |own: &str, of_all: &str| {
            format!("36 35 98:0 / /prjquota {own} shared:1 - xfs /dev/pquota {of_all}")
        };
        for (found, mount) in [
            (true, line("rw,noatime", "rw,attr2,prjquota")),
            (true, line("rw", "rw,usrquota,pqnoenforce,inode64")),
            (false, line("rw,prjquota", "rw,usrquota,noquota")),
            (false, String::new()),
        ] {
            assert_eq!(has_project_quota(&mount), found, "{mount}");
        }
    }

    #[test]
    fn a_stale_nfs_handle_counts_as_deleted_except_for_the_root() {
        let (root, below) = (TreePath::root(), TreePath::parse(b"d").unwrap());
        for (errno, in_root, elsewhere) in [
            (Errno::NOENT, true, true),
            (Errno::STALE, false, true),
            (Errno::INVAL, false, false),
        ] {
            assert_eq!(is_gone(errno), elsewhere);
            assert_eq!(is_gone_from(&root, errno), in_root);
            assert_eq!(is_gone_from(&below, errno), elsewhere);
        }
    }

    #[test]
    fn a_name_that_cannot_be_copied_is_not_left_out() {
        assert_eq!(listed(b".."), Ok(None));
        assert_eq!(listed(b"..."), Ok(Some(Name::parse(b"...").unwrap())));
        assert_eq!(listed(&[b'x'; 256]), Err(Errno::NAMETOOLONG));
    }
}
