//! Paths of the host, for a pod that has the host's root mounted at some path: absolute symbolic links
//! must not lead back into the pod.

use std::{
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, openat2},
    sys::stat::{Mode, mkdirat},
};

/// `openat2` fails with EAGAIN if a concurrent rename disturbs it.
const ATTEMPTS: usize = 8;

/// Where the host's root directory is visible.
#[derive(Clone, Debug)]
pub struct HostRoot(PathBuf);

/// A file or directory of the host, kept open so that it stays the same object.
#[derive(Debug)]
pub struct HostFile {
    fd: OwnedFd,
    kind: fs::FileType,
}

impl HostRoot {
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        Self(root)
    }

    pub fn open(&self, path: &str) -> io::Result<HostFile> {
        let fd = self.resolve(path, OFlag::O_PATH)?;
        let kind = fs::metadata(handle(&fd))?.file_type();
        Ok(HostFile { fd, kind })
    }

    /// Creates the directory `path` and its missing parents.
    pub fn create_dir(&self, path: &str) -> io::Result<()> {
        match self.resolve(path, OFlag::O_PATH | OFlag::O_DIRECTORY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return other.map(drop),
        }
        let (parent, name) = split(path)?;
        self.create_dir(parent)?;
        let parent = self.resolve(parent, OFlag::O_PATH | OFlag::O_DIRECTORY)?;
        match mkdirat(&parent, name, Mode::from_bits_truncate(0o755)) {
            Ok(()) | Err(Errno::EEXIST) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Creates the empty file `path` in a directory that exists.
    pub fn create_file(&self, path: &str) -> io::Result<()> {
        self.resolve(path, OFlag::O_CREAT | OFlag::O_WRONLY | OFlag::O_NONBLOCK)
            .map(drop)
    }

    /// The path of a device for messages and tools: that of the host, if it leads to the same device in
    /// this mount namespace.
    pub fn device_path(&self, device: &HostFile) -> io::Result<PathBuf> {
        let seen = device.path()?;
        let plain = seen.strip_prefix(&self.0).map(|below| Path::new("/").join(below));
        let number = |path: &Path| fs::metadata(path).map(|found| found.rdev());
        match plain {
            Ok(plain) if number(&plain).is_ok_and(|plain| number(&seen).is_ok_and(|seen| seen == plain)) => {
                Ok(plain)
            }
            _ => Ok(seen),
        }
    }

    fn resolve(&self, path: &str, flags: OFlag) -> io::Result<OwnedFd> {
        let root = fs::File::open(&self.0)?;
        let mut how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT);
        if flags.contains(OFlag::O_CREAT) {
            how = how.mode(Mode::from_bits_truncate(0o644));
        }
        let mut attempt = 0;
        loop {
            attempt += 1;
            match openat2(&root, path, how) {
                Err(Errno::EAGAIN) if attempt < ATTEMPTS => {}
                other => return Ok(other?),
            }
        }
    }
}

impl HostFile {
    #[must_use]
    pub fn kind(&self) -> fs::FileType {
        self.kind
    }

    #[must_use]
    pub fn is_block_device(&self) -> bool {
        self.kind.is_block_device()
    }

    /// A path to exactly this file, valid as long as it is open.
    #[must_use]
    pub fn handle(&self) -> PathBuf {
        handle(&self.fd)
    }

    /// The path in this process's mount namespace, for messages and tools.
    pub fn path(&self) -> io::Result<PathBuf> {
        fs::read_link(self.handle())
    }
}

fn handle(fd: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

fn split(path: &str) -> io::Result<(&str, &str)> {
    let path = Path::new(path);
    let parts = path
        .parent()
        .and_then(Path::to_str)
        .zip(path.file_name().and_then(|name| name.to_str()));
    parts.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a path that can be created"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn symbolic_links_are_resolved_within_the_host_root() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path().to_owned());
        host.create_dir("/mnt/disks/a").unwrap();
        host.create_dir("/mnt/disks/a").unwrap();
        symlink("/mnt/disks", dir.path().join("data")).unwrap();
        symlink("../../../../../mnt", dir.path().join("up")).unwrap();

        let real = dir.path().canonicalize().unwrap().join("mnt/disks/a");
        for path in ["/mnt/disks/a", "/data/a", "/up/disks/a", "/../../mnt/disks/a"] {
            assert_eq!(host.open(path).unwrap().path().unwrap(), real, "{path}");
        }
        host.create_dir("/data/b/c").unwrap();
        assert!(dir.path().join("mnt/disks/b/c").is_dir());
        host.create_file("/data/f").unwrap();
        assert!(host.open("/mnt/disks/f").unwrap().kind().is_file());
        assert_eq!(host.open("/etc").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(
            host.create_file("/no/f").unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }
}
