//! Publishes and unpublishes staged volumes at the target paths of pods.

use std::path::{Path, PathBuf};

use super::{
    access::{Access, AccessMode},
    consumer::Consumer,
    direct::Publication,
    driver::Place,
    error::VolumeError,
    in_flight::Guard,
    mounts,
    state::{Record, Target},
    volumes::{QUICK_WORK, SLOW_WORK, Stage, StageError, Volumes},
};
use crate::{
    observe::crash::{self, Step},
    volume::{CsiSource, RealSource},
};

/// A request to publish a volume for a pod.
pub struct Publish {
    /// The volume and its staging, which is repeated if its record was lost.
    pub stage: Stage,
    pub target: PathBuf,
    pub read_only: bool,
    /// The pod.
    pub consumer: Consumer,
}

/// A request to unpublish a volume.
#[derive(Clone, Debug)]
pub struct Unpublish {
    pub volume_id: String,
    pub target: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// An error that all operations share.
    #[error(transparent)]
    VolumeError(VolumeError),
    /// The volume had to be staged again, and that failed.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// The volume is published already, but in another way.
    #[error(
        "volume {volume_id} is published at {} with another access mode, other mount options or read-only differently",
        target.display()
    )]
    Different { volume_id: String, target: PathBuf },
    /// The access mode permits only one pod.
    #[error("volume {volume_id} may be used by one pod only, and is published at {}", at.display())]
    SingleWriter { volume_id: String, at: PathBuf },
}

#[derive(Debug, thiserror::Error)]
pub enum UnpublishError {
    /// An error that all operations share.
    #[error(transparent)]
    VolumeError(VolumeError),
    /// A mount without a record.
    #[error(
        "something is mounted at {} but this node has no record of volume {volume_id}: \
         find out what it is and unmount it by hand",
        target.display()
    )]
    Unrecorded { volume_id: String, target: PathBuf },
}

impl<E: Into<VolumeError>> From<E> for PublishError {
    fn from(error: E) -> Self {
        Self::VolumeError(error.into())
    }
}

impl<E: Into<VolumeError>> From<E> for UnpublishError {
    fn from(error: E) -> Self {
        Self::VolumeError(error.into())
    }
}

impl Volumes {
    /// Publishes a volume at a target.
    pub async fn publish(&self, request: Publish) -> Result<(), PublishError> {
        let guard = self
            .in_flight
            .enter(&request.stage.volume_id)
            .map_err(VolumeError::from)?;
        let mut record = self.staged(&guard, &request.stage).await?;
        let is_there = self.is_published(&guard, &request.target).await?;
        let requested = Target {
            access: request.stage.access.clone(),
            read_only: request.read_only,
            published: true,
        };
        match record.targets.get(&request.target) {
            Some(known) if is_there && !known.is_like(&requested) => {
                return Err(PublishError::Different {
                    volume_id: record.volume_id,
                    target: request.target,
                });
            }
            // Kubelet repeats the call after its restart and, if a real driver requests that, every
            // minute: not every driver supports it.
            Some(known) if is_there && known.published && !wants_republish(&record) => return Ok(()),
            Some(_) => {}
            None => {
                self.check_other_targets(&guard, &mut record, &request.stage.access)
                    .await?;
            }
        }

        let is_new = !record.targets.contains_key(&request.target);
        let announced = Target {
            published: false,
            ..requested.clone()
        };
        record.targets.insert(request.target.clone(), announced);
        self.save(&guard, &record).await?;
        let published = self.publish_recorded(&guard, &record, &request);
        if let Err(error) = crash::around(Step::NodePublish, published).await {
            // Kubelet will not unpublish what it believes was never published.
            if error.is_final() && is_new && !self.is_published(&guard, &request.target).await? {
                record.targets.remove(&request.target);
                self.save(&guard, &record).await?;
            }
            return Err(error.into());
        }
        record.targets.insert(request.target, requested);
        Ok(self.save(&guard, &record).await?)
    }

    /// Unpublishes a volume from a target, and removes the target.
    pub async fn unpublish(&self, request: Unpublish) -> Result<(), UnpublishError> {
        let guard = self
            .in_flight
            .enter(&request.volume_id)
            .map_err(VolumeError::from)?;
        let Some(mut record) = self.load(&guard, &request.volume_id).await? else {
            return self.expect_nothing_published(&guard, request).await;
        };
        Ok(self
            .unpublish_locked(&guard, &mut record, &request.target)
            .await?)
    }

    /// The record of a staged volume. A publish call contains all that staging needs, so a record that
    /// was lost, is incomplete, or is from before a reboot is created again.
    async fn staged(&self, guard: &Guard, request: &Stage) -> Result<Record, PublishError> {
        match self.load(guard, &request.volume_id).await? {
            Some(record)
                if record.staged && record.boot_id == self.boot_id && record.is_staged_for(request) =>
            {
                Ok(record)
            }
            other => {
                // Kubelet creates the folder only when it stages, and a driver may have removed it when
                // it unstaged.
                let staging = request.staging.clone();
                let what = format!("making {}", staging.display());
                let made = guard.block(what, QUICK_WORK, move || mounts::make_dirs(&staging));
                made.await
                    .map_err(VolumeError::from)?
                    .map_err(VolumeError::from)?;
                Ok(self.stage_locked(guard, other, request).await?)
            }
        }
    }

    /// Removes targets from the record that disappeared without an unpublish (a pod removed while kubelet
    /// was down), and refuses a second target if the access mode permits only one pod.
    async fn check_other_targets(
        &self,
        guard: &Guard,
        record: &mut Record,
        access: &Access,
    ) -> Result<(), PublishError> {
        let only_one = |mode| mode == AccessMode::SingleNodeSingleWriter;
        for (target, known) in record.targets.clone() {
            if !self.is_published(guard, &target).await? {
                if known.published {
                    record.targets.remove(&target);
                }
            } else if only_one(access.mode) || only_one(known.access.mode) {
                return Err(PublishError::SingleWriter {
                    volume_id: record.volume_id.clone(),
                    at: target,
                });
            }
        }
        Ok(())
    }

    async fn publish_recorded(
        &self,
        guard: &Guard,
        record: &Record,
        request: &Publish,
    ) -> Result<(), VolumeError> {
        let (volume, flags) = (&record.data_path, &request.stage.access.mount_flags);
        if let RealSource::Csi(real) = &volume.source {
            let driver = self.drivers.reach(&real.driver).await?;
            let place = Place {
                staging: &record.staging_path,
                target: &request.target,
            };
            let published = driver.publish(volume, real, place, request.read_only, flags, &request.consumer);
            return Ok(published.await?);
        }
        let (direct, volume, flags) = (self.direct.clone(), volume.clone(), flags.clone());
        let (staging, target, read_only) = (
            record.staging_path.clone(),
            request.target.clone(),
            request.read_only,
        );
        let what = format!("publishing volume {}", record.volume_id);
        let publish = move || {
            let how = Publication {
                staging: &staging,
                target: &target,
                read_only,
                mount_flags: &flags,
            };
            direct.publish(&volume, how)
        };
        Ok(guard.block(what, SLOW_WORK, publish).await??)
    }

    async fn expect_nothing_published(
        &self,
        guard: &Guard,
        request: Unpublish,
    ) -> Result<(), UnpublishError> {
        if self.is_published(guard, &request.target).await? {
            return Err(UnpublishError::Unrecorded {
                volume_id: request.volume_id,
                target: request.target,
            });
        }
        Ok(self.remove_point(guard, request.target).await?)
    }

    /// Unpublishes a locked volume, removes the target, and updates the record.
    pub(super) async fn unpublish_locked(
        &self,
        guard: &Guard,
        record: &mut Record,
        target: &Path,
    ) -> Result<(), VolumeError> {
        let unpublished = async {
            match &record.data_path.source {
                RealSource::Csi(real) => self.unpublish_real(guard, record, real, target).await?,
                _ => self.unmount(guard, target).await?,
            }
            self.remove_point(guard, target.to_owned()).await
        };
        crash::around(Step::NodeUnpublish, unpublished).await?;
        if record.targets.remove(target).is_some() {
            self.save(guard, record).await?;
        }
        Ok(())
    }

    async fn remove_point(&self, guard: &Guard, target: PathBuf) -> Result<(), VolumeError> {
        let what = format!("removing {}", target.display());
        let removed = guard.block(what, SLOW_WORK, move || mounts::remove_point(&target));
        Ok(removed.await??)
    }

    async fn unpublish_real(
        &self,
        guard: &Guard,
        record: &Record,
        real: &CsiSource,
        target: &Path,
    ) -> Result<(), VolumeError> {
        let unpublished = async {
            let driver = self.drivers.reach(&real.driver).await?;
            driver.unpublish(&real.handle, target).await
        };
        let Err(error) = unpublished.await.map_err(VolumeError::from) else {
            return Ok(());
        };
        let may_be_ignored = error.is_absent_driver() || error.is_unknown_volume();
        if may_be_ignored && !self.is_published(guard, target).await? {
            tracing::warn!(volume = record.volume_id, %error, "the real driver failed to unpublish, but nothing is mounted at the target");
            return Ok(());
        }
        Err(error)
    }
}

impl Target {
    fn is_like(&self, other: &Self) -> bool {
        self.access == other.access && self.read_only == other.read_only
    }
}

fn wants_republish(record: &Record) -> bool {
    matches!(&record.data_path.source, RealSource::Csi(real) if real.wants.republish)
}
