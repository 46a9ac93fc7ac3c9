//! In-tree volumes, which have no CSI driver: a path of the host, a local directory or device, an NFS
//! export. Mounted here as kubelet would. Blocking, like [`super::mounts`].
//!
//! A host path is bound without the mounts below it: if they were bound, too, an unmount of this driver
//! would propagate and remove the host's own mounts.

use std::{io, os::unix::fs::FileTypeExt, path::Path, process::Command};

use super::{
    format::{self, FormatError},
    host::{HostFile, HostRoot},
    mountinfo::Mount,
    mounts::{self, MountError},
};
use crate::volume::{DataPath, RealSource, VolumeMode};

/// The file system that kubelet uses if a local PV names none.
const DEFAULT_FS: &str = "ext4";

#[derive(Clone, Debug)]
pub struct Direct {
    host: HostRoot,
}

/// Where and how to publish a volume.
#[derive(Clone, Copy, Debug)]
pub struct Publication<'a> {
    pub staging: &'a Path,
    pub target: &'a Path,
    pub read_only: bool,
    pub mount_flags: &'a [String],
}

/// Why an in-tree volume could not be mounted.
#[derive(Debug, thiserror::Error)]
pub enum DirectError {
    /// The volume is served by a CSI driver, not by this module.
    #[error("the volume belongs to the driver {0}")]
    NotInTree(String),
    #[error("{path} does not exist on this node: create it, or fix the PV")]
    Missing {
        /// Path on the host.
        path: String,
    },
    #[error("{path} of this node is not a {wanted}: fix the PV, or replace the path")]
    WrongKind {
        /// Path on the host.
        path: String,
        /// The kind according to the PV.
        wanted: String,
    },
    /// A device was requested of a source that has none.
    #[error("a {kind} volume has no block device")]
    NoDevice { kind: &'static str },
    /// An operation on the host's file system failed.
    #[error("{path} of this node: {error}")]
    Host {
        /// Path on the host.
        path: String,
        error: io::Error,
    },
    #[error("nothing is mounted at the staging path {0}: the volume is not staged")]
    NotStaged(String),
    /// There is no file system, and none could be created.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A mount or unmount failed.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// `mount.nfs` failed.
    #[error("mounting {export}{} at {path}: {cause}", mounts::named(.options))]
    Nfs {
        /// Server and path.
        export: String,
        options: Vec<String>,
        path: String,
        /// The output of the program.
        cause: String,
    },
}

impl Direct {
    /// For volumes of the host whose root is visible at `host`.
    #[must_use]
    pub fn new(host: HostRoot) -> Self {
        Self { host }
    }

    /// Prepares a volume: checks that it exists, and mounts at `staging` what has to be mounted once per
    /// node.
    pub fn stage(&self, volume: &DataPath, staging: &Path) -> Result<(), DirectError> {
        match (&volume.source, volume.volume_mode) {
            (RealSource::Csi(real), _) => Err(DirectError::NotInTree(real.driver.clone())),
            (RealSource::HostPath { .. }, VolumeMode::Block) => {
                Err(DirectError::NoDevice { kind: "hostPath" })
            }
            (RealSource::Nfs { .. }, VolumeMode::Block) => Err(DirectError::NoDevice { kind: "nfs" }),
            (RealSource::HostPath { path, path_type }, VolumeMode::Filesystem) => {
                self.host_path(path, path_type).map(drop)
            }
            (RealSource::Local { path, .. }, VolumeMode::Block) => self.device(path).map(drop),
            (RealSource::Local { path, fs_type }, VolumeMode::Filesystem) => {
                let found = self.open(path)?;
                if found.is_block_device() {
                    let fs_type = fs_type
                        .as_deref()
                        .filter(|name| !name.is_empty())
                        .unwrap_or(DEFAULT_FS);
                    let device = self.host.device_path(&found).map_err(host_error(path))?;
                    return stage_device(&device, staging, fs_type, &volume.mount_options);
                }
                expect_dir(path, &found)
            }
            (
                RealSource::Nfs {
                    server,
                    path,
                    read_only,
                },
                VolumeMode::Filesystem,
            ) => {
                let export = export(server, path);
                stage_nfs(&export, staging, &volume.mount_options, *read_only)
            }
        }
    }

    /// Publishes a staged volume at a target.
    pub fn publish(&self, volume: &DataPath, how: Publication<'_>) -> Result<(), DirectError> {
        let options = [volume.mount_options.as_slice(), how.mount_flags].concat();
        let appear = |source: &Path| mounts::bind(source, how.target, &options, how.read_only);
        match (&volume.source, volume.volume_mode) {
            (RealSource::Csi(real), _) => return Err(DirectError::NotInTree(real.driver.clone())),
            (RealSource::HostPath { .. }, VolumeMode::Block) => {
                return Err(DirectError::NoDevice { kind: "hostPath" });
            }
            (RealSource::Nfs { .. }, VolumeMode::Block) => return Err(DirectError::NoDevice { kind: "nfs" }),
            (RealSource::HostPath { path, path_type }, VolumeMode::Filesystem) => {
                let found = self.host_path(path, path_type)?;
                make_point(&found, how.target)?;
                appear(&found.handle())?;
            }
            (RealSource::Local { path, .. }, VolumeMode::Block) => {
                let device = self.device(path)?;
                mounts::make_file(how.target)?;
                // A read-only bind of a device node does not make the device read-only;
                // kubelet opens it accordingly.
                mounts::bind(&device.handle(), how.target, &[], how.read_only)?;
            }
            (RealSource::Local { path, .. }, VolumeMode::Filesystem) => {
                let found = self.open(path)?;
                mounts::make_dir(how.target)?;
                if found.is_block_device() {
                    appear(staged(how.staging)?)?;
                } else {
                    expect_dir(path, &found)?;
                    appear(&found.handle())?;
                }
            }
            (RealSource::Nfs { .. }, VolumeMode::Filesystem) => {
                mounts::make_dir(how.target)?;
                appear(staged(how.staging)?)?;
            }
        }
        Ok(())
    }

    fn open(&self, path: &str) -> Result<HostFile, DirectError> {
        self.host.open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => DirectError::Missing {
                path: path.to_owned(),
            },
            _ => host_error(path)(error),
        })
    }

    fn device(&self, path: &str) -> Result<HostFile, DirectError> {
        let found = self.open(path)?;
        if found.is_block_device() {
            Ok(found)
        } else {
            Err(wrong_kind(path, "block device"))
        }
    }

    /// Kubelet's checks of `hostPath.type`. Unlike a container runtime, this does not create a path
    /// without a type: a missing directory may be a disk that is not mounted, and an empty one in its
    /// place would look like lost data.
    fn host_path(&self, path: &str, path_type: &str) -> Result<HostFile, DirectError> {
        match path_type {
            "DirectoryOrCreate" => self.host.create_dir(path).map_err(host_error(path))?,
            "FileOrCreate" => self.host.create_file(path).map_err(host_error(path))?,
            _ => {}
        }
        let found = self.open(path)?;
        let kind = found.kind();
        let fits = match path_type {
            "" => true,
            "Directory" | "DirectoryOrCreate" => kind.is_dir(),
            "File" | "FileOrCreate" => kind.is_file(),
            "Socket" => kind.is_socket(),
            "CharDevice" => kind.is_char_device(),
            "BlockDevice" => kind.is_block_device(),
            _ => false,
        };
        if fits {
            Ok(found)
        } else {
            Err(wrong_kind(path, path_type))
        }
    }
}

fn stage_device(device: &Path, staging: &Path, fs_type: &str, options: &[String]) -> Result<(), DirectError> {
    if !mounts::is_published(staging)? {
        format::format_if_blank(device, fs_type)?;
    }
    Ok(mounts::mount_device(device, staging, fs_type, options)?)
}

/// The kernel cannot mount NFS by itself: the program looks up names and protocol versions.
fn stage_nfs(export: &str, staging: &Path, options: &[String], read_only: bool) -> Result<(), DirectError> {
    if let Some(found) = mounts::settled(staging)?.and_then(|at| mounts::table().ok()?.at(&at).cloned()) {
        return if shows_export(&found, export) {
            Ok(())
        } else {
            Err(MountError::occupied(staging, &found).into())
        };
    }
    let mut options = options.to_vec();
    if read_only {
        options.push("ro".to_owned());
    }
    let mut command = Command::new("mount.nfs");
    command.arg(export).arg(staging);
    if !options.is_empty() {
        command.args(["-o", &options.join(",")]);
    }
    format::run(&mut command).map_err(|cause| DirectError::Nfs {
        export: export.to_owned(),
        options,
        path: staging.display().to_string(),
        cause,
    })
}

/// Whether a mount is that of this export. The kernel may show that of NFS 4 with other slashes.
fn shows_export(found: &Mount, export: &str) -> bool {
    found.fs_type.starts_with("nfs") && Path::new(&found.source) == Path::new(export)
}

fn export(server: &str, path: &str) -> String {
    // An IPv6 address needs brackets, or its last group reads as the path.
    if server.contains(':') && !server.starts_with('[') {
        format!("[{server}]:{path}")
    } else {
        format!("{server}:{path}")
    }
}

fn staged(staging: &Path) -> Result<&Path, DirectError> {
    if mounts::is_published(staging)? {
        Ok(staging)
    } else {
        Err(DirectError::NotStaged(staging.display().to_string()))
    }
}

/// Creates a mount point of the same kind as what will be mounted on it.
fn make_point(source: &HostFile, target: &Path) -> Result<(), MountError> {
    if source.kind().is_dir() {
        mounts::make_dir(target)
    } else {
        mounts::make_file(target)
    }
}

fn expect_dir(path: &str, found: &HostFile) -> Result<(), DirectError> {
    if found.kind().is_dir() {
        Ok(())
    } else {
        Err(wrong_kind(path, "directory or block device"))
    }
}

fn wrong_kind(path: &str, wanted: &str) -> DirectError {
    DirectError::WrongKind {
        path: path.to_owned(),
        wanted: wanted.to_owned(),
    }
}

fn host_error(path: &str) -> impl FnOnce(io::Error) -> DirectError {
    let path = path.to_owned();
    move |error| DirectError::Host { path, error }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn host_path(path_type: &str) -> DataPath {
        let source = RealSource::HostPath {
            path: "/data".into(),
            path_type: path_type.into(),
        };
        DataPath::new(source, VolumeMode::Filesystem, vec!["ReadWriteOnce".into()])
    }

    #[test]
    fn host_paths_are_checked_by_their_type() {
        let dir = tempfile::tempdir().unwrap();
        let direct = Direct::new(HostRoot::new(dir.path().to_owned()));
        let stage = |path_type: &str| direct.stage(&host_path(path_type), Path::new("/nowhere"));

        for absent in ["", "Directory", "File"] {
            let result = stage(absent);
            assert!(
                matches!(result, Err(DirectError::Missing { .. })),
                "{absent}: {result:?}"
            );
        }
        stage("DirectoryOrCreate").unwrap();
        for fits in ["", "Directory", "DirectoryOrCreate"] {
            stage(fits).unwrap();
        }
        for other in ["File", "Socket", "CharDevice", "BlockDevice", "Nonsense"] {
            let result = stage(other);
            assert!(
                matches!(result, Err(DirectError::WrongKind { .. })),
                "{other}: {result:?}"
            );
        }
        fs::remove_dir(dir.path().join("data")).unwrap();
        stage("FileOrCreate").unwrap();
        stage("File").unwrap();
        assert!(stage("DirectoryOrCreate").is_err());
    }

    #[test]
    fn nfs_and_directories_are_refused_as_block_devices() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("data")).unwrap();
        let direct = Direct::new(HostRoot::new(dir.path().to_owned()));
        let stage = |source| {
            let path = DataPath::new(source, VolumeMode::Block, vec!["ReadWriteOnce".into()]);
            direct.stage(&path, Path::new("/nowhere"))
        };
        let nfs = RealSource::Nfs {
            server: "s".into(),
            path: "/".into(),
            read_only: false,
        };
        let local = RealSource::Local {
            path: "/data".into(),
            fs_type: None,
        };
        assert!(matches!(
            stage(host_path("").source),
            Err(DirectError::NoDevice { .. })
        ));
        assert!(matches!(stage(nfs), Err(DirectError::NoDevice { .. })));
        assert!(matches!(stage(local), Err(DirectError::WrongKind { .. })));
    }

    #[test]
    fn exports_are_written_as_mount_reads_them() {
        assert_eq!(export("nas.example", "/srv"), "nas.example:/srv");
        assert_eq!(export("fd00::1", "/srv"), "[fd00::1]:/srv");
        assert_eq!(export("[fd00::1]", "/srv"), "[fd00::1]:/srv");
    }

    #[test]
    fn a_mount_of_the_export_is_recognised_as_the_kernel_writes_it() {
        let mounted = |fs_type: &str, source: &str| Mount {
            point: "/staging".into(),
            root: "/".into(),
            device: (0, 45),
            fs_type: fs_type.into(),
            source: source.into(),
            options: Vec::new(),
        };
        for path in ["/srv/data", "/srv/data/", "/srv//data"] {
            let export = export("nas.example", path);
            for source in [
                "nas.example:/srv/data",
                "nas.example:/srv/data/",
                "nas.example://srv/data",
            ] {
                assert!(
                    shows_export(&mounted("nfs4", source), &export),
                    "{path} as {source}"
                );
            }
        }
        for (fs_type, source) in [
            ("nfs4", "nas.example:/srv"),
            ("nfs4", "other.example:/srv/data"),
            ("ext4", "nas.example:/srv/data"),
        ] {
            assert!(
                !shows_export(&mounted(fs_type, source), "nas.example:/srv/data/"),
                "{source}"
            );
        }
    }
}
