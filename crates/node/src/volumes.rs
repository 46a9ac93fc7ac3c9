//! The life of a volume on a node: staged once, then published to pods
//! ([`super::publication`]), and back. Every step may be repeated, by kubelet after
//! its restart or by us after ours; what has to be undone is on disk before it is done.

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
    refused::Refused,
    state::{Record, State, StateError, boot_id},
};
use crate::{
    observe::crash::{self, Step},
    volume::{CsiSource, DataPath, RealSource, VolumeMode},
};

/// Mounting and formatting; kubelet's own patience is two minutes.
pub(super) const SLOW_WORK: Duration = Duration::from_secs(100);
/// Reading the mount table and our own files.
pub(super) const QUICK_WORK: Duration = Duration::from_secs(20);

/// The volumes of this node.
#[derive(Clone)]
pub struct Volumes {
    pub(super) state: State,
    pub(super) drivers: Drivers,
    pub(super) direct: Arc<Direct>,
    pub(super) in_flight: InFlight,
    pub(super) boot_id: String,
    /// How long nobody has to have called for a volume before it counts as forgotten.
    /// Kubelet that is to do something calls at least every four minutes: two for a call,
    /// two for its longest pause.
    pub(super) forgotten_after: Duration,
    pub(super) refused: Refused,
}

/// A wish to have a volume ready on this node.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The volume.
    pub volume_id: String,
    /// Where kubelet wants it.
    pub staging: PathBuf,
    /// What is behind it.
    pub data_path: DataPath,
    /// How it will be used.
    pub access: Access,
}

/// A wish to have a volume off this node.
#[derive(Clone, Debug)]
pub struct Unstage {
    /// The volume.
    pub volume_id: String,
    /// Where it was staged.
    pub staging: PathBuf,
}

/// Why a volume could not be staged.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// What may go wrong anywhere.
    #[error(transparent)]
    VolumeError(VolumeError),
    /// A device was asked for and there is a file system, or the other way round.
    #[error("volume {volume_id} is a {found:?} volume and cannot be used as {wanted:?}")]
    VolumeMode {
        /// The volume.
        volume_id: String,
        /// What it is.
        found: VolumeMode,
        /// What was asked for.
        wanted: VolumeMode,
    },
    /// It is staged at another path.
    #[error("volume {volume_id} is staged at {} on this node: it must be unstaged there first", at.display())]
    Elsewhere {
        /// The volume.
        volume_id: String,
        /// Where.
        at: PathBuf,
    },
    /// Its id used to stand for other data.
    #[error(
        "volume {volume_id} is in use on this node with another real volume behind it: \
         its pods must go before the new one can be used"
    )]
    OtherSource {
        /// The volume.
        volume_id: String,
    },
}

/// Why a volume could not be unstaged.
#[derive(Debug, thiserror::Error)]
pub enum UnstageError {
    /// What may go wrong anywhere.
    #[error(transparent)]
    VolumeError(VolumeError),
    /// A pod still has it.
    #[error(
        "volume {volume_id} is still published at {}, and kubelet has to unpublish it first: \
         if that pod is gone, restart kubelet on this node, which finds it again",
        target.display()
    )]
    Published {
        /// The volume.
        volume_id: String,
        /// Where.
        target: PathBuf,
    },
    /// Nobody remembers what is mounted there.
    #[error(
        "something is mounted at {} but this node has no record of volume {volume_id}: \
         find out what it is and unmount it by hand",
        staging.display()
    )]
    Unrecorded {
        /// The volume.
        volume_id: String,
        /// Where.
        staging: PathBuf,
    },
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
    /// The volumes recorded in `state`, which kubelet may have forgotten after a while
    /// without a call.
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
            refused: Refused::default(),
        })
    }

    /// Makes a volume ready for the pods of this node.
    pub async fn stage(&self, wish: Stage) -> Result<(), StageError> {
        let guard = self.in_flight.enter(&wish.volume_id).map_err(VolumeError::from)?;
        let record = self.load(&guard, &wish.volume_id).await?;
        self.stage_held(&guard, record, &wish).await.map(drop)
    }

    /// Takes a volume off this node.
    pub async fn unstage(&self, wish: Unstage) -> Result<(), UnstageError> {
        let guard = self.in_flight.enter(&wish.volume_id).map_err(VolumeError::from)?;
        let Some(mut record) = self.recall(&guard, &wish.volume_id).await? else {
            return self.expect_nothing_staged(&guard, wish).await;
        };
        self.unpublish_forgotten(&guard, &mut record).await?;
        self.unstage_held(&guard, record).await
    }

    /// Unstages with the volume held, and forgets it.
    pub(super) async fn unstage_held(&self, guard: &Guard, record: Record) -> Result<(), UnstageError> {
        for target in record.targets.keys() {
            if self.is_published(guard, target).await? {
                self.refused.note(&record.volume_id);
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

    /// Stages with the volume held, and returns what is now on record.
    pub(super) async fn stage_held(
        &self,
        guard: &Guard,
        known: Option<Record>,
        wish: &Stage,
    ) -> Result<Record, StageError> {
        if wish.access.volume_mode != wish.data_path.volume_mode {
            return Err(StageError::VolumeMode {
                volume_id: wish.volume_id.clone(),
                found: wish.data_path.volume_mode,
                wanted: wish.access.volume_mode,
            });
        }
        let mut record = match known {
            Some(record) => self.renewed(guard, record, wish).await?,
            None => self.new_record(wish),
        };
        let was_staged = record.staged;
        match self.stage_recorded(guard, &mut record, wish).await {
            Ok(()) => {
                record.staged = true;
                self.save(guard, &record).await?;
                Ok(record)
            }
            Err(trouble) => {
                // Kubelet will not unstage what it believes was never staged.
                if trouble.is_final() && !was_staged && !self.is_used(guard, &record.staging_path).await? {
                    self.forget(guard, wish.volume_id.clone()).await?;
                }
                Err(trouble.into())
            }
        }
    }

    async fn stage_recorded(
        &self,
        guard: &Guard,
        record: &mut Record,
        wish: &Stage,
    ) -> Result<(), VolumeError> {
        let volume = &wish.data_path;
        // Not that of the wish: see [`Record::is_staged_for`].
        let staging = record.staging_path.clone();
        if let RealSource::Csi(real) = &volume.source {
            let driver = self.drivers.reach(&real.driver).await?;
            record.stage_delegated |= driver.stages();
            self.save(guard, record).await?;
            let staged = driver.stage(volume, real, &staging, &wish.access.mount_flags);
            crash::around(Step::NodeStage, staged).await?;
        } else {
            self.save(guard, record).await?;
            let (direct, volume, staging) = (self.direct.clone(), volume.clone(), staging);
            let what = format!("staging volume {}", wish.volume_id);
            let stage = move || direct.stage(&volume, &staging);
            let staged = async { Ok::<_, VolumeError>(guard.block(what, SLOW_WORK, stage).await??) };
            crash::around(Step::NodeStage, staged).await?;
        }
        Ok(())
    }

    /// What is on record of a volume that is staged again: after a restart of
    /// kubelet, a reboot, or with a new attachment.
    async fn renewed(&self, guard: &Guard, mut record: Record, wish: &Stage) -> Result<Record, StageError> {
        if record.boot_id != self.boot_id {
            // Nothing of it survived.
            return Ok(self.new_record(wish));
        }
        let other = !is_same_source(&record.data_path.source, &wish.data_path.source);
        if other || record.staging_path != wish.staging {
            if !self.is_in_use(guard, &record).await? {
                return Ok(self.new_record(wish));
            }
            let volume_id = wish.volume_id.clone();
            if other {
                return Err(StageError::OtherSource { volume_id });
            }
            if !record.is_staged_for(wish) {
                return Err(StageError::Elsewhere {
                    volume_id,
                    at: record.staging_path,
                });
            }
        }
        record.data_path = wish.data_path.clone();
        Ok(record)
    }

    fn new_record(&self, wish: &Stage) -> Record {
        let (id, staging) = (wish.volume_id.clone(), wish.staging.clone());
        Record::new(id, staging, wish.data_path.clone(), self.boot_id.clone())
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
        let asked = async {
            let driver = self.drivers.reach(&real.driver).await?;
            driver.unstage(&real.handle, &record.staging_path).await
        };
        let Err(trouble) = asked.await.map_err(VolumeError::from) else {
            return Ok(());
        };
        let nothing_left = match record.data_path.volume_mode {
            VolumeMode::Filesystem => !self.is_used(guard, &record.staging_path).await?,
            // A device may be mapped without anything being mounted; only a reboot unmaps it.
            VolumeMode::Block => record.boot_id != self.boot_id,
        };
        if nothing_left && (trouble.is_absent_driver() || trouble.is_unknown_volume()) {
            tracing::warn!(volume = record.volume_id, %trouble, "forgetting a volume of which nothing is left");
            return Ok(());
        }
        Err(trouble)
    }

    async fn expect_nothing_staged(&self, guard: &Guard, wish: Unstage) -> Result<(), UnstageError> {
        if self.is_used(guard, &wish.staging).await? {
            return Err(UnstageError::Unrecorded {
                volume_id: wish.volume_id,
                staging: wish.staging,
            });
        }
        Ok(())
    }

    /// Whether taking the record away would leave something behind.
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

/// The steps all operations share: our own files and the mount table, off the
/// async threads and with the volume held.
impl Volumes {
    /// What is on record of a volume that somebody wants to use or to give back.
    pub(super) async fn load(&self, guard: &Guard, volume_id: &str) -> Result<Option<Record>, VolumeError> {
        self.refused.clear(volume_id);
        self.recall(guard, volume_id).await
    }

    /// What is on record of a volume that somebody calls for.
    async fn recall(&self, guard: &Guard, volume_id: &str) -> Result<Option<Record>, VolumeError> {
        let (state, volume_id) = (self.state.clone(), volume_id.to_owned());
        let what = format!("reading the record of volume {volume_id}");
        let load = move || {
            state.note_call(&volume_id);
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
        self.look(guard, target, mounts::is_published).await
    }

    pub(super) async fn is_used(&self, guard: &Guard, path: &Path) -> Result<bool, VolumeError> {
        self.look(guard, path, mounts::is_used).await
    }

    pub(super) async fn unmount(&self, guard: &Guard, path: &Path) -> Result<(), VolumeError> {
        let path = path.to_owned();
        let what = format!("unmounting {}", path.display());
        Ok(guard
            .block(what, SLOW_WORK, move || mounts::unmount(&path))
            .await??)
    }

    async fn look(
        &self,
        guard: &Guard,
        path: &Path,
        question: fn(&Path) -> Result<bool, MountError>,
    ) -> Result<bool, VolumeError> {
        let path = path.to_owned();
        let what = format!("looking at {}", path.display());
        Ok(guard.block(what, QUICK_WORK, move || question(&path)).await??)
    }
}

impl Record {
    /// Whether a volume that is staged is so for this wish too. Kubelet names the staging path
    /// of a device after the PV, not after the volume: one with two PVs is staged under the
    /// name of one, and published, or staged again, under that of the other.
    pub(super) fn is_staged_for(&self, wish: &Stage) -> bool {
        let is_device = |mode| mode == VolumeMode::Block;
        self.staging_path == wish.staging
            || is_device(self.data_path.volume_mode) && is_device(wish.access.volume_mode)
    }
}

/// Attributes may change with a re-created PV; what they describe may not.
fn is_same_source(a: &RealSource, b: &RealSource) -> bool {
    match (a, b) {
        (RealSource::Csi(a), RealSource::Csi(b)) => (&a.driver, &a.handle) == (&b.driver, &b.handle),
        (a, b) => a == b,
    }
}
