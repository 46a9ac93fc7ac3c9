//! Mounts and unmounts. Every change is based on the mount table that is read right before it, so that
//! each step may be repeated; nothing is removed but empty directories, empty files and device nodes.
//! Everything here blocks: call it through
//! [`super::in_flight::Guard::block`].

use std::{
    fmt::Write as _,
    fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::stat::{major, minor},
};

use super::mountinfo::{Mount, MountInfoError, MountTable};

const TABLE: &str = "/proc/self/mountinfo";

/// Mounts stacked on one point are unmounted one by one; more than this many mean that another process
/// keeps mounting.
const MAX_STACKED: usize = 16;

/// Why something could not be mounted, unmounted or removed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount table cannot be parsed.
    #[error(transparent)]
    Table(#[from] MountInfoError),
    /// A system call failed.
    #[error("{action} {path}: {error}")]
    Io {
        action: String,
        path: PathBuf,
        error: io::Error,
    },
    /// Something else is mounted there.
    #[error("{path} is taken: {found} is mounted there, unmount it first")]
    Occupied {
        path: PathBuf,
        /// The other mount.
        found: String,
    },
    /// Neither a mount nor empty: it may be a user's data.
    #[error("{path} is not removed: nothing is mounted there, but {found}")]
    NotOurs { path: PathBuf, found: &'static str },
}

impl MountError {
    #[must_use]
    pub fn occupied(path: &Path, found: &Mount) -> Self {
        let mut what = format!("{} ({}", found.fs_type, found.source.to_string_lossy());
        if found.root != Path::new("/") {
            let _ = write!(what, ", {}", found.root.display());
        }
        Self::Occupied {
            path: path.to_owned(),
            found: what + ")",
        }
    }
}

/// The current mount table.
pub fn table() -> Result<MountTable, MountError> {
    let text = fs::read(TABLE).map_err(failed("reading", Path::new(TABLE)))?;
    Ok(MountTable::parse(&text)?)
}

/// `path` as the mount table shows it: without symbolic links in its parent. The last part is not
/// resolved, because a stat of a dead mount may hang. `None` if the parent, and so the path, does not
/// exist.
pub fn settled(path: &Path) -> Result<Option<PathBuf>, MountError> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(Some(path.to_owned()));
    };
    match fs::canonicalize(parent) {
        Ok(parent) => Ok(Some(parent.join(name))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("resolving", parent)(error)),
    }
}

/// Whether a volume is published at `path`: a mount, or a device node.
pub fn is_published(path: &Path) -> Result<bool, MountError> {
    let Some(path) = settled(path)? else {
        return Ok(false);
    };
    if table()?.at(&path).is_some() {
        return Ok(true);
    }
    Ok(fs::symlink_metadata(&path).is_ok_and(|found| found.file_type().is_block_device()))
}

pub fn is_used(path: &Path) -> Result<bool, MountError> {
    Ok(match settled(path)? {
        Some(path) => table()?.covers(&path),
        None => false,
    })
}

/// Binds `source` to `target`, a directory or file that exists.
///
/// Mounts below `source` are not visible there. `options` other than mount flags are those of a file
/// system and are ignored here.
pub fn bind(source: &Path, target: &Path, options: &[String], read_only: bool) -> Result<(), MountError> {
    let target = settled(target)?.unwrap_or_else(|| target.to_owned());
    let wanted = with_read_only(flags_of(options).0, read_only);
    match table()?.at(&target) {
        Some(found) if !same_file(source, &target)? => return Err(MountError::occupied(&target, found)),
        Some(found) if wanted.is_empty() || flags_of(&found.options).0.contains(wanted) => return Ok(()),
        // A crash between the two calls left the bind without its flags.
        Some(_) => {}
        None => call("binding to", &target, || {
            mount(Some(source), &target, none(), MsFlags::MS_BIND, none())
        })?,
    }
    if wanted.is_empty() {
        return Ok(());
    }
    restrict(&target, wanted).inspect_err(|_| {
        // No mount is better than a writable one.
        if let Err(error) = unmount(&target) {
            tracing::warn!(target = %target.display(), %error, "failed to remove a bind mount whose flags could not be set");
        }
    })
}

/// Sets the flags of a bind, which need a call of their own; inherited flags must be repeated, or they
/// would be lost.
fn restrict(target: &Path, wanted: MsFlags) -> Result<(), MountError> {
    let inherited = table()?
        .at(target)
        .map_or(MsFlags::empty(), |found| flags_of(&found.options).0);
    let atime = MsFlags::MS_NOATIME | MsFlags::MS_RELATIME | MsFlags::MS_STRICTATIME;
    let kept = if wanted.intersects(atime) {
        inherited - atime
    } else {
        inherited
    };
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | kept | wanted;
    call("remounting", target, || {
        mount(none(), target, none(), flags, none())
    })
}

/// Mounts the file system on a block device.
pub fn mount_device(
    device: &Path,
    target: &Path,
    fs_type: &str,
    options: &[String],
) -> Result<(), MountError> {
    let target = settled(target)?.unwrap_or_else(|| target.to_owned());
    if let Some(found) = table()?.at(&target) {
        let number = fs::metadata(device).map_err(failed("reading", device))?.rdev();
        return if is_of_device(found, number) {
            Ok(())
        } else {
            Err(MountError::occupied(&target, found))
        };
    }
    let (flags, data) = flags_of(options);
    // The kernel only says that something is invalid.
    let action = format!("mounting {} as {fs_type}{} at", device.display(), named(options));
    call(&action, &target, || {
        mount(Some(device), &target, Some(fs_type), flags, Some(data.as_str()))
    })
}

/// Unmounts everything that is mounted at `path`. Succeeds if nothing is.
pub fn unmount(path: &Path) -> Result<(), MountError> {
    let Some(path) = settled(path)? else {
        return Ok(());
    };
    for _ in 0..MAX_STACKED {
        if table()?.at(&path).is_none() {
            return Ok(());
        }
        call("unmounting", &path, || umount2(&path, MntFlags::UMOUNT_NOFOLLOW))?;
    }
    match table()?.at(&path) {
        Some(found) => Err(MountError::occupied(&path, found)),
        None => Ok(()),
    }
}

/// Creates the directory on which a volume is mounted. Its parent exists.
pub fn make_dir(path: &Path) -> Result<(), MountError> {
    accept_existing(fs::create_dir(path)).map_err(failed("creating the directory", path))
}

/// Creates a directory and its missing parents.
pub fn make_dirs(path: &Path) -> Result<(), MountError> {
    fs::create_dir_all(path).map_err(failed("creating the directory", path))
}

/// Creates the file on which a device is mounted. Its parent exists.
pub fn make_file(path: &Path) -> Result<(), MountError> {
    accept_existing(fs::File::create_new(path).map(drop)).map_err(failed("creating the file", path))
}

/// Removes the mount point of an unmounted volume: an empty directory, an empty file or a device node.
/// Anything else may be a user's data.
pub fn remove_point(path: &Path) -> Result<(), MountError> {
    let Some(path) = settled(path)? else {
        return Ok(());
    };
    if let Some(found) = table()?.at(&path) {
        return Err(MountError::occupied(&path, found));
    }
    let found = match fs::symlink_metadata(&path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("reading", &path)(error)),
    };
    let kept = |found| {
        Err(MountError::NotOurs {
            path: path.clone(),
            found,
        })
    };
    if found.is_dir() {
        match fs::remove_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                kept("the directory is not empty")
            }
            other => accept_missing(other).map_err(failed("removing", &path)),
        }
    } else if found.file_type().is_block_device() || (found.is_file() && found.len() == 0) {
        accept_missing(fs::remove_file(&path)).map_err(failed("removing", &path))
    } else {
        kept("it is not an empty file")
    }
}

/// Mount options as kernel flags, and the others, which are for the file system.
fn flags_of(options: &[String]) -> (MsFlags, String) {
    let mut flags = MsFlags::empty();
    let mut rest = Vec::new();
    for option in options.iter().flat_map(|option| option.split(',')) {
        match option {
            "ro" => flags |= MsFlags::MS_RDONLY,
            "nosuid" => flags |= MsFlags::MS_NOSUID,
            "nodev" => flags |= MsFlags::MS_NODEV,
            "noexec" => flags |= MsFlags::MS_NOEXEC,
            "noatime" => flags |= MsFlags::MS_NOATIME,
            "nodiratime" => flags |= MsFlags::MS_NODIRATIME,
            "relatime" => flags |= MsFlags::MS_RELATIME,
            "strictatime" => flags |= MsFlags::MS_STRICTATIME,
            "sync" => flags |= MsFlags::MS_SYNCHRONOUS,
            "dirsync" => flags |= MsFlags::MS_DIRSYNC,
            "lazytime" => flags |= MsFlags::MS_LAZYTIME,
            // The defaults, and options that only mount(8) and systemd know.
            "" | "rw" | "defaults" | "suid" | "dev" | "exec" | "async" | "atime" | "auto" | "noauto"
            | "user" | "nouser" | "_netdev" | "nofail" => {}
            mine if mine.starts_with("x-") => {}
            other => rest.push(other),
        }
    }
    (flags, rest.join(","))
}

/// The options in an error.
#[must_use]
pub fn named(options: &[String]) -> String {
    match options {
        [] => String::new(),
        some => format!(" with the options {}", some.join(",")),
    }
}

fn with_read_only(flags: MsFlags, read_only: bool) -> MsFlags {
    if read_only {
        flags | MsFlags::MS_RDONLY
    } else {
        flags
    }
}

/// Whether both paths are the same file: a bind shows its source.
fn same_file(a: &Path, b: &Path) -> Result<bool, MountError> {
    let identity = |path: &Path| {
        let found = fs::metadata(path).map_err(failed("reading", path))?;
        Ok::<_, MountError>((found.dev(), found.ino()))
    };
    Ok(identity(a)? == identity(b)?)
}

/// Whether a mount is that of the device with this number. Btrfs mounts have other numbers, and the path of the device
/// that was scanned last, such as `/dev/mapper/vg-data` for `/dev/dm-0`.
fn is_of_device(found: &Mount, number: u64) -> bool {
    found.device == split(number) || fs::metadata(&found.source).is_ok_and(|source| source.rdev() == number)
}

fn split(device: u64) -> (u32, u32) {
    // Both parts have at most 32 bits in the kernel.
    let part = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    (part(major(device)), part(minor(device)))
}

fn accept_existing(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Ok(()),
        _ => Err(error),
    })
}

fn accept_missing(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })
}

fn call(action: &str, path: &Path, kernel: impl FnOnce() -> Result<(), Errno>) -> Result<(), MountError> {
    kernel().map_err(|errno| failed(action, path)(errno.into()))
}

fn failed(action: &str, path: &Path) -> impl FnOnce(io::Error) -> MountError {
    let (action, path) = (action.to_owned(), path.to_owned());
    move |error| MountError::Io { action, path, error }
}

fn none() -> Option<&'static str> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_flags_or_left_to_the_file_system() {
        let options = [
            "ro,noatime",
            "discard",
            "x-systemd.automount",
            "defaults",
            "data=ordered",
        ]
        .map(str::to_owned);
        let (flags, rest) = flags_of(&options);
        assert_eq!(flags, MsFlags::MS_RDONLY | MsFlags::MS_NOATIME);
        assert_eq!(rest, "discard,data=ordered");
    }

    #[test]
    fn an_error_names_the_options() {
        let folder = tempfile::tempdir().unwrap();
        let options = ["noatime", "data=none"].map(str::to_owned);
        let mounted = mount_device(&folder.path().join("absent"), folder.path(), "ext4", &options);
        let why = mounted.unwrap_err().to_string();
        assert!(why.contains("noatime,data=none"), "{why}");
    }

    #[test]
    fn a_mount_is_that_of_its_device_whatever_path_the_kernel_shows() {
        let folder = tempfile::tempdir().unwrap();
        let mapper = folder.path().join("vg-data");
        std::os::unix::fs::symlink("/dev/null", &mapper).unwrap();
        let number = fs::metadata("/dev/null").unwrap().rdev();
        let mounted = |source: &Path| Mount {
            point: "/mnt".into(),
            root: "/".into(),
            device: (0, 45),
            fs_type: "btrfs".into(),
            source: source.into(),
            options: Vec::new(),
        };
        assert!(is_of_device(&mounted(&mapper), number));
        for other in ["/dev/zero", "tmpfs"] {
            assert!(!is_of_device(&mounted(Path::new(other)), number), "{other}");
        }
    }

    #[test]
    fn only_empty_mount_points_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        make_dir(&at("empty")).unwrap();
        make_dir(&at("empty")).unwrap();
        make_file(&at("file")).unwrap();
        make_file(&at("file")).unwrap();
        for gone in ["empty", "file", "missing", "missing/below"] {
            remove_point(&at(gone)).unwrap();
            assert!(!at(gone).exists(), "{gone}");
        }

        make_dir(&at("full")).unwrap();
        fs::write(at("full/data"), "precious").unwrap();
        std::os::unix::fs::symlink(at("full"), at("link")).unwrap();
        for kept in ["full", "full/data", "link"] {
            let result = remove_point(&at(kept));
            assert!(
                matches!(result, Err(MountError::NotOurs { .. })),
                "{kept}: {result:?}"
            );
        }
        assert_eq!(fs::read_to_string(at("full/data")).unwrap(), "precious");
    }

    #[test]
    fn a_live_mount_point_is_never_removed() {
        let result = remove_point(Path::new("/proc"));
        assert!(matches!(result, Err(MountError::Occupied { .. })), "{result:?}");
        assert!(is_published(Path::new("/proc")).unwrap());
        assert!(is_used(Path::new("/")).unwrap());
        assert!(!is_used(Path::new("/nowhere/at/all")).unwrap());
    }

    #[test]
    fn paths_are_compared_as_the_mount_table_shows_them() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        fs::create_dir(real.join("kubelet")).unwrap();
        std::os::unix::fs::symlink(real.join("kubelet"), real.join("link")).unwrap();
        assert_eq!(
            settled(&real.join("link/mount")).unwrap(),
            Some(real.join("kubelet/mount"))
        );
        assert_eq!(settled(&real.join("absent/mount")).unwrap(), None);
    }
}
