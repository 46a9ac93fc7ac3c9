//! The life of a volume on a node: staged once, then published to pods ([`super::publication`]), and
//! back. Every step may be repeated, by kubelet after its restart or by this plugin after its own; what
//! has to be undone is recorded on disk before it is done.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use super::{
    access::Access,
    direct::Direct,
    driver::Drivers,
    error::VolumeError,
    in_flight::{Guard, InFlight},
    mounts::{self, MountError},
    refused::RefusedUnstages,
    state::{Record, State, StateError, boot_id},
};
use crate::{
    observe::crash::{self, Step},
    volume::{CsiSource, DataPath, RealSource, VolumeMode},
};

/// The timeout of mounting and formatting; kubelet waits two minutes.
pub(super) const SLOW_WORK: Duration = Duration::from_secs(100);
/// The timeout of reading the mount table and the records.
pub(super) const QUICK_WORK: Duration = Duration::from_secs(20);

#[derive(Clone)]
pub struct Volumes {
    pub(super) state: State,
    pub(super) drivers: Drivers,
    pub(super) direct: Arc<Direct>,
    pub(super) in_flight: InFlight,
    pub(super) boot_id: String,
    /// The time without a call after which a volume counts as forgotten. A kubelet that has work to do
    /// for a volume calls at least every four minutes: two for a call, two for its longest pause.
    pub(super) forgotten_after: Duration,
    pub(super) refused: RefusedUnstages,
}

/// A request to stage a volume.
#[derive(Clone, Debug)]
pub struct Stage {
    pub volume_id: String,
    pub staging: PathBuf,
    /// The real volume.
    pub data_path: DataPath,
    pub access: Access,
}

/// A request to unstage a volume.
#[derive(Clone, Debug)]
pub struct Unstage {
    pub volume_id: String,
    pub staging: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// An error that all operations share.
    #[error(transparent)]
    VolumeError(VolumeError),
    /// A device was requested of a file system volume, or the other way round.
    #[error("volume {volume_id} is a {found:?} volume and cannot be used as {wanted:?}")]
    VolumeMode {
        volume_id: String,
        found: VolumeMode,
        wanted: VolumeMode,
    },
    /// The volume is staged at another path.
    #[error("volume {volume_id} is staged at {} on this node: it must be unstaged there first", at.display())]
    Elsewhere { volume_id: String, at: PathBuf },
    /// The volume id previously referred to another real volume.
    #[error(
        "volume {volume_id} is in use on this node with another real volume: \
        its pods must terminate before the new one can be used"
    )]
    OtherSource { volume_id: String },
}

#[derive(Debug, thiserror::Error)]
pub enum UnstageError {
    /// An error that all operations share.
    #[error(transparent)]
    VolumeError(VolumeError),
    #[error(
        "volume {volume_id} is still published at {}, and kubelet has to unpublish it first: \
         if that pod does not exist any more, restart kubelet on this node, which finds it again",
        target.display()
    )]
    Published { volume_id: String, target: PathBuf },
    /// A mount without a record.
    #[error(
        "something is mounted at {} but this node has no record of volume {volume_id}: \
         find out what it is and unmount it by hand",
        staging.display()
    )]
    Unrecorded { volume_id: String, staging: PathBuf },
}

impl<E: Into<VolumeError>> From<E> for StageError {
    fn from(error: E) -> Self {
        Self::VolumeError(error.into())
    }
}

impl<E: Into<VolumeError>> From<E> for UnstageError {
    fn from(error: E) -> Self {
        Self::VolumeError(error.into())
    }
}

impl Volumes {
    /// The volumes recorded in `state`; after `forgotten_after` without a call kubelet may have forgotten
    /// them.
    pub fn new(
        state: State,
        drivers: Drivers,
        direct: Direct,
        forgotten_after: Duration,
    ) -> Result<Self, StateError> {
        Ok(Self {
            state,
            drivers,
            direct: Arc::new(direct),
            in_flight: InFlight::default(),
            boot_id: boot_id()?,
            forgotten_after,
            refused: RefusedUnstages::default(),
        })
    }

    pub async fn stage(&self, request: Stage) -> Result<(), StageError> {
        let guard = self
            .in_flight
            .enter(&request.volume_id)
            .map_err(VolumeError::from)?;
        let record = self.load(&guard, &request.volume_id).await?;
        self.stage_locked(&guard, record, &request).await.map(drop)
    }

    pub async fn unstage(&self, request: Unstage) -> Result<(), UnstageError> {
        let guard = self
            .in_flight
            .enter(&request.volume_id)
            .map_err(VolumeError::from)?;
        let Some(mut record) = self.load_called(&guard, &request.volume_id).await? else {
            return self.expect_nothing_staged(&guard, request).await;
        };
        self.unpublish_forgotten(&guard, &mut record).await?;
        self.unstage_locked(&guard, record).await
    }

    /// Unstages a locked volume, and removes its record.
    pub(super) async fn unstage_locked(&self, guard: &Guard, record: Record) -> Result<(), UnstageError> {
        for target in record.targets.keys() {
            if self.is_published(guard, target).await? {
                self.refused.record(&record.volume_id);
                return Err(UnstageError::Published {
                    volume_id: record.volume_id,
                    target: target.clone(),
                });
            }
        }
        let unstaged = async {
            match &record.data_path.source {
                RealSource::Csi(real) => self.unstage_real(guard, &record, real).await,
                _ => self.unmount(guard, &record.staging_path).await,
            }
        };
        crash::around(Step::NodeUnstage, unstaged).await?;
        Ok(self.forget(guard, record.volume_id).await?)
    }

    /// Stages a locked volume, and returns its record.
    pub(super) async fn stage_locked(
        &self,
        guard: &Guard,
        known: Option<Record>,
        request: &Stage,
    ) -> Result<Record, StageError> {
        if request.access.volume_mode != request.data_path.volume_mode {
            return Err(StageError::VolumeMode {
                volume_id: request.volume_id.clone(),
                found: request.data_path.volume_mode,
                wanted: request.access.volume_mode,
            });
        }
        let mut record = match known {
            Some(record) => self.renewed(guard, record, request).await?,
            None => self.new_record(request),
        };
        let was_staged = record.staged;
        match self.stage_recorded(guard, &mut record, request).await {
            Ok(()) => {
                record.staged = true;
                self.save(guard, &record).await?;
                Ok(record)
            }
            Err(error) => {
                // Kubelet will not unstage what it believes was never staged.
                if error.is_final() && !was_staged && !self.is_used(guard, &record.staging_path).await? {
                    self.forget(guard, request.volume_id.clone()).await?;
                }
                Err(error.into())
            }
        }
    }

    async fn stage_recorded(
        &self,
        guard: &Guard,
        record: &mut Record,
        request: &Stage,
    ) -> Result<(), VolumeError> {
        let volume = &request.data_path;
        // Not the staging path of the request: see [`Record::is_staged_for`].
        let staging = record.staging_path.clone();
        if let RealSource::Csi(real) = &volume.source {
            let driver = self.drivers.reach(&real.driver).await?;
            record.stage_delegated |= driver.stages();
            self.save(guard, record).await?;
            let staged = driver.stage(volume, real, &staging, &request.access.mount_flags);
            crash::around(Step::NodeStage, staged).await?;
        } else {
            self.save(guard, record).await?;
            let (direct, mut volume) = (self.direct.clone(), volume.clone());
            volume
                .mount_options
                .extend_from_slice(&request.access.mount_flags);
            let what = format!("staging volume {}", request.volume_id);
            let stage = move || direct.stage(&volume, &staging);
            let staged = async { Ok::<_, VolumeError>(guard.block(what, SLOW_WORK, stage).await??) };
            crash::around(Step::NodeStage, staged).await?;
        }
        Ok(())
    }

    /// The record of a volume that is staged again: after a restart of kubelet, a reboot, or with a new
    /// attachment.
    async fn renewed(
        &self,
        guard: &Guard,
        mut record: Record,
        request: &Stage,
    ) -> Result<Record, StageError> {
        if record.boot_id != self.boot_id {
            // No mount survives a reboot.
            return Ok(self.new_record(request));
        }
        let other = !is_same_source(&record.data_path.source, &request.data_path.source);
        if other || record.staging_path != request.staging {
            if !self.is_in_use(guard, &record).await? {
                return Ok(self.new_record(request));
            }
            let volume_id = request.volume_id.clone();
            if other {
                return Err(StageError::OtherSource { volume_id });
            }
            if !record.is_staged_for(request) {
                return Err(StageError::Elsewhere {
                    volume_id,
                    at: record.staging_path,
                });
            }
        }
        record.data_path = request.data_path.clone();
        Ok(record)
    }

    fn new_record(&self, request: &Stage) -> Record {
        let (id, staging) = (request.volume_id.clone(), request.staging.clone());
        Record::new(id, staging, request.data_path.clone(), self.boot_id.clone())
    }

    async fn unstage_real(
        &self,
        guard: &Guard,
        record: &Record,
        real: &CsiSource,
    ) -> Result<(), VolumeError> {
        if !record.stage_delegated {
            return Ok(());
        }
        let unstaged = async {
            let driver = self.drivers.reach(&real.driver).await?;
            driver.unstage(&real.handle, &record.staging_path).await
        };
        let Err(error) = unstaged.await.map_err(VolumeError::from) else {
            return Ok(());
        };
        let nothing_left = match record.data_path.volume_mode {
            VolumeMode::Filesystem => !self.is_used(guard, &record.staging_path).await?,
            // A device may be mapped without a mount; only a reboot unmaps it.
            VolumeMode::Block => record.boot_id != self.boot_id,
        };
        if nothing_left && (error.is_absent_driver() || error.is_unknown_volume()) {
            tracing::warn!(volume = record.volume_id, %error, "removing the record of a volume that is not mounted any more");
            return Ok(());
        }
        Err(error)
    }

    async fn expect_nothing_staged(&self, guard: &Guard, request: Unstage) -> Result<(), UnstageError> {
        if self.is_used(guard, &request.staging).await? {
            return Err(UnstageError::Unrecorded {
                volume_id: request.volume_id,
                staging: request.staging,
            });
        }
        Ok(())
    }

    /// Whether mounts would be left if the record were removed.
    async fn is_in_use(&self, guard: &Guard, record: &Record) -> Result<bool, VolumeError> {
        let device_may_be_mapped =
            record.stage_delegated && record.data_path.volume_mode == VolumeMode::Block;
        if device_may_be_mapped || self.is_used(guard, &record.staging_path).await? {
            return Ok(true);
        }
        for target in record.targets.keys() {
            if self.is_published(guard, target).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The steps that all operations share: records and the mount table, off the async threads and with the
/// volume locked.
impl Volumes {
    /// The record of a volume for a call other than unstage.
    pub(super) async fn load(&self, guard: &Guard, volume_id: &str) -> Result<Option<Record>, VolumeError> {
        self.refused.clear(volume_id);
        self.load_called(guard, volume_id).await
    }

    /// The record of a volume for any call, which is recorded.
    async fn load_called(&self, guard: &Guard, volume_id: &str) -> Result<Option<Record>, VolumeError> {
        let (state, volume_id) = (self.state.clone(), volume_id.to_owned());
        let what = format!("reading the record of volume {volume_id}");
        let load = move || {
            state.record_call(&volume_id);
            state.load(&volume_id)
        };
        Ok(guard.block(what, QUICK_WORK, load).await??)
    }

    pub(super) async fn save(&self, guard: &Guard, record: &Record) -> Result<(), VolumeError> {
        let (state, record) = (self.state.clone(), record.clone());
        let what = format!("writing the record of volume {}", record.volume_id);
        let saved = async {
            Ok(guard
                .block(what, QUICK_WORK, move || state.save(&record))
                .await??)
        };
        crash::around(Step::RecordWrite, saved).await
    }

    pub(super) async fn forget(&self, guard: &Guard, volume_id: String) -> Result<(), VolumeError> {
        self.refused.clear(&volume_id);
        let state = self.state.clone();
        let what = format!("removing the record of volume {volume_id}");
        let removed = async {
            Ok(guard
                .block(what, QUICK_WORK, move || state.remove(&volume_id))
                .await??)
        };
        crash::around(Step::RecordRemove, removed).await
    }

    pub(super) async fn is_published(&self, guard: &Guard, target: &Path) -> Result<bool, VolumeError> {
        self.check_path(guard, target, mounts::is_published).await
    }

    pub(super) async fn is_used(&self, guard: &Guard, path: &Path) -> Result<bool, VolumeError> {
        self.check_path(guard, path, mounts::is_used).await
    }

    pub(super) async fn unmount(&self, guard: &Guard, path: &Path) -> Result<(), VolumeError> {
        let path = path.to_owned();
        let what = format!("unmounting {}", path.display());
        Ok(guard
            .block(what, SLOW_WORK, move || mounts::unmount(&path))
            .await??)
    }

    async fn check_path(
        &self,
        guard: &Guard,
        path: &Path,
        check: fn(&Path) -> Result<bool, MountError>,
    ) -> Result<bool, VolumeError> {
        let path = path.to_owned();
        let what = format!("reading {}", path.display());
        Ok(guard.block(what, QUICK_WORK, move || check(&path)).await??)
    }
}

impl Record {
    /// Whether a staged volume is staged for this request too. Kubelet derives the staging path of a
    /// device from the PV, not from the volume: a volume with two PVs is staged under the name of one,
    /// and published, or staged again, under that of the other.
    pub(super) fn is_staged_for(&self, request: &Stage) -> bool {
        let is_device = |mode| mode == VolumeMode::Block;
        self.staging_path == request.staging
            || is_device(self.data_path.volume_mode) && is_device(request.access.volume_mode)
    }
}

/// Attributes may change with a re-created PV; driver and handle may not.
fn is_same_source(a: &RealSource, b: &RealSource) -> bool {
    match (a, b) {
        (RealSource::Csi(a), RealSource::Csi(b)) => (&a.driver, &a.handle) == (&b.driver, &b.handle),
        (a, b) => a == b,
    }
}
