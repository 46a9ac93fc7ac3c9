//! Usage and expansion of a published volume.

use std::{
    fs::{self, File},
    io::{self, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use nix::sys::statvfs::statvfs;

use super::{
    driver::{Place, Unit, Usage},
    error::VolumeError,
    in_flight::Guard,
    state::Record,
    volumes::{QUICK_WORK, Volumes},
};
use crate::volume::{RealSource, VolumeMode};

/// A request about a published volume.
#[derive(Clone, Debug)]
pub struct InUse {
    pub volume_id: String,
    /// Kubelet's path: the target of a file system; for a device, another path of kubelet.
    pub path: PathBuf,
}

/// Why usage or expansion failed.
#[derive(Debug, thiserror::Error)]
pub enum UpkeepError {
    /// An error that all operations share.
    #[error(transparent)]
    VolumeError(VolumeError),
    #[error("volume {0} is not staged on this node")]
    NoVolume(String),
    /// The volume is staged, but not published at this path.
    #[error("volume {volume_id} is not published at {}", path.display())]
    NoPath { volume_id: String, path: PathBuf },
    /// The usage of the file system cannot be read.
    #[error("measuring {}: {error}", path.display())]
    Measure { path: PathBuf, error: io::Error },
}

impl<E: Into<VolumeError>> From<E> for UpkeepError {
    fn from(error: E) -> Self {
        Self::VolumeError(error.into())
    }
}

impl Volumes {
    /// The usage of a volume, from its driver or, if that does not report it, from the file system.
    pub async fn stats(&self, request: InUse) -> Result<Vec<Usage>, UpkeepError> {
        // Not locked against other operations on the volume, which it does not disturb; but against
        // another usage call: on a dead mount the first one is still waiting.
        let key = format!("{} (its usage)", request.volume_id);
        let guard = self.in_flight.enter(&key).map_err(VolumeError::from)?;
        let record = self.in_use(&guard, &request).await?;
        if let RealSource::Csi(real) = &record.data_path.source {
            let driver = self.drivers.reach(&real.driver).await?;
            let place = Place {
                staging: &record.staging_path,
                target: &request.path,
            };
            if let Some(usage) = driver.stats(&real.handle, place).await? {
                return Ok(usage);
            }
        }
        let measure = match record.data_path.volume_mode {
            VolumeMode::Filesystem => file_system_usage,
            VolumeMode::Block => device_usage,
        };
        let path = request.path.clone();
        let what = format!("measuring {}", path.display());
        let measured = guard.block(what, QUICK_WORK, move || measure(&path)).await?;
        measured.map_err(|error| UpkeepError::Measure {
            path: request.path,
            error,
        })
    }

    /// Calls the driver to expand the file system of an expanded volume. The new size is `None` if there
    /// was nothing to do on the node.
    pub async fn expand(&self, request: InUse, size: (i64, i64)) -> Result<Option<i64>, UpkeepError> {
        let guard = self
            .in_flight
            .enter(&request.volume_id)
            .map_err(VolumeError::from)?;
        let record = self.in_use(&guard, &request).await?;
        let RealSource::Csi(real) = &record.data_path.source else {
            return Ok(None);
        };
        let driver = self.drivers.reach(&real.driver).await?;
        let place = Place {
            staging: &record.staging_path,
            target: &request.path,
        };
        let flags = record
            .targets
            .get(&request.path)
            .map_or(&[][..], |target| &target.access.mount_flags);
        Ok(driver.expand(&record.data_path, real, place, size, flags).await?)
    }

    /// The record of a volume that is published at the requested path. Kubelet's device paths are its
    /// own, so those only have to exist.
    async fn in_use(&self, guard: &Guard, request: &InUse) -> Result<Record, UpkeepError> {
        let Some(record) = self.load(guard, &request.volume_id).await? else {
            return Err(UpkeepError::NoVolume(request.volume_id.clone()));
        };
        let known = record.data_path.volume_mode == VolumeMode::Block
            || record.targets.contains_key(&request.path)
            || record.staging_path == request.path;
        let path = request.path.clone();
        let what = format!("reading {}", path.display());
        let exists = guard.block(what, QUICK_WORK, move || exists(&path));
        if known && exists.await? {
            return Ok(record);
        }
        Err(UpkeepError::NoPath {
            volume_id: request.volume_id.clone(),
            path: request.path.clone(),
        })
    }
}

/// Whether a path exists. A mount whose server or daemon is gone does, although it cannot be read.
fn exists(path: &Path) -> bool {
    let missing = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
    match fs::symlink_metadata(path) {
        Ok(_) => true,
        Err(error) => !missing.contains(&error.kind()),
    }
}

fn file_system_usage(path: &Path) -> io::Result<Vec<Usage>> {
    let found = statvfs(path)?;
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let bytes = |blocks: u64| signed(blocks.saturating_mul(found.fragment_size()));
    Ok(vec![
        Usage {
            unit: Unit::Bytes,
            total: bytes(found.blocks()),
            used: bytes(found.blocks().saturating_sub(found.blocks_free())),
            available: bytes(found.blocks_available()),
        },
        Usage {
            unit: Unit::Inodes,
            total: signed(found.files()),
            used: signed(found.files().saturating_sub(found.files_free())),
            available: signed(found.files_available()),
        },
    ])
}

/// Only the size of a device is known.
fn device_usage(path: &Path) -> io::Result<Vec<Usage>> {
    let size = File::open(path)?.seek(SeekFrom::End(0))?;
    Ok(vec![Usage {
        unit: Unit::Bytes,
        total: i64::try_from(size).unwrap_or(i64::MAX),
        used: 0,
        available: 0,
    }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_count_bytes_and_inodes() {
        let dir = tempfile::tempdir().unwrap();
        let usage = file_system_usage(dir.path()).unwrap();
        assert_eq!(
            usage.iter().map(|it| it.unit).collect::<Vec<_>>(),
            [Unit::Bytes, Unit::Inodes]
        );
        assert!(usage[0].total > 0 && usage[0].used + usage[0].available <= usage[0].total);
    }

    #[test]
    fn of_a_device_only_the_size_is_known() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        assert_eq!(device_usage(file.path()).unwrap()[0].total, 1 << 20);
    }
}
