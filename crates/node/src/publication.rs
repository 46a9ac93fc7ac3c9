//! A staged volume at the target paths of pods: publish and unpublish.

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

/// A wish to have a volume at a path of a pod.
pub struct Publish {
    /// The volume and its staging; repeated if memory of it was lost.
    pub stage: Stage,
    /// Where kubelet wants it.
    pub target: PathBuf,
    /// Whether writing is forbidden there.
    pub read_only: bool,
    /// Who wants it.
    pub consumer: Consumer,
}

/// A wish to have a volume away from a path.
#[derive(Clone, Debug)]
pub struct Unpublish {
    /// The volume.
    pub volume_id: String,
    /// Where it was published.
    pub target: PathBuf,
}

/// Why a volume could not be published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// What may go wrong anywhere.
    #[error(transparent)]
    VolumeError(VolumeError),
    /// It had to be staged again, and that failed.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// It is there already, but not like this.
    #[error(
        "volume {volume_id} is published at {} with another access mode, other mount options or read-only differently",
        target.display()
    )]
    Different {
        /// The volume.
        volume_id: String,
        /// Where.
        target: PathBuf,
    },
    /// One writer was promised the volume for itself.
    #[error("volume {volume_id} admits one pod only, and is published at {}", at.display())]
    SingleWriter {
        /// The volume.
        volume_id: String,
        /// Where.
        at: PathBuf,
    },
}

/// Why a volume could not be unpublished.
#[derive(Debug, thiserror::Error)]
pub enum UnpublishError {
    /// What may go wrong anywhere.
    #[error(transparent)]
    VolumeError(VolumeError),
    /// Nobody remembers what is mounted there.
    #[error(
        "something is mounted at {} but this node has no record of volume {volume_id}: \
         find out what it is and unmount it by hand",
        target.display()
    )]
    Unrecorded {
        /// The volume.
        volume_id: String,
        /// Where.
        target: PathBuf,
    },
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
    /// Makes a volume appear at a target.
    pub async fn publish(&self, wish: Publish) -> Result<(), PublishError> {
        let guard = self
            .in_flight
            .enter(&wish.stage.volume_id)
            .map_err(VolumeError::from)?;
        let mut record = self.staged(&guard, &wish.stage).await?;
        let is_there = self.is_published(&guard, &wish.target).await?;
        let asked = Target {
            access: wish.stage.access.clone(),
            read_only: wish.read_only,
            published: true,
        };
        match record.targets.get(&wish.target) {
            Some(known) if is_there && !known.is_like(&asked) => {
                return Err(PublishError::Different {
                    volume_id: record.volume_id,
                    target: wish.target,
                });
            }
            // Kubelet repeats the call after its restart, and every minute if any
            // real driver wants that: not every driver does.
            Some(known) if is_there && known.published && !wants_republish(&record) => return Ok(()),
            Some(_) => {}
            None => self.make_room(&guard, &mut record, &wish.stage.access).await?,
        }

        let is_new = !record.targets.contains_key(&wish.target);
        let announced = Target {
            published: false,
            ..asked.clone()
        };
        record.targets.insert(wish.target.clone(), announced);
        self.save(&guard, &record).await?;
        let published = self.publish_recorded(&guard, &record, &wish);
        if let Err(trouble) = crash::around(Step::NodePublish, published).await {
            // Kubelet will not unpublish what it believes was never published.
            if trouble.is_final() && is_new && !self.is_published(&guard, &wish.target).await? {
                record.targets.remove(&wish.target);
                self.save(&guard, &record).await?;
            }
            return Err(trouble.into());
        }
        record.targets.insert(wish.target, asked);
        Ok(self.save(&guard, &record).await?)
    }

    /// Takes a volume away from a target, and the target with it.
    pub async fn unpublish(&self, wish: Unpublish) -> Result<(), UnpublishError> {
        let guard = self.in_flight.enter(&wish.volume_id).map_err(VolumeError::from)?;
        let Some(mut record) = self.load(&guard, &wish.volume_id).await? else {
            return self.expect_nothing_published(&guard, wish).await;
        };
        Ok(self.unpublish_held(&guard, &mut record, &wish.target).await?)
    }

    /// The record of a volume that is staged. A call to publish carries all that
    /// staging needs, so a record that was lost, cut short or left over from
    /// before a reboot mends itself.
    async fn staged(&self, guard: &Guard, wish: &Stage) -> Result<Record, PublishError> {
        match self.load(guard, &wish.volume_id).await? {
            Some(record) if record.staged && record.boot_id == self.boot_id && record.is_staged_for(wish) => {
                Ok(record)
            }
            other => {
                // Kubelet makes the folder only when it stages, and a driver may have
                // removed it when it unstaged.
                let staging = wish.staging.clone();
                let what = format!("making {}", staging.display());
                let made = guard.block(what, QUICK_WORK, move || mounts::make_dirs(&staging));
                made.await
                    .map_err(VolumeError::from)?
                    .map_err(VolumeError::from)?;
                Ok(self.stage_held(guard, other, wish).await?)
            }
        }
    }

    /// Forgets targets that vanished without an unpublish (a pod removed while
    /// kubelet was down), and refuses a second one where one pod was promised the
    /// volume for itself.
    async fn make_room(
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
        wish: &Publish,
    ) -> Result<(), VolumeError> {
        let (volume, flags) = (&record.data_path, &wish.stage.access.mount_flags);
        if let RealSource::Csi(real) = &volume.source {
            let driver = self.drivers.reach(&real.driver).await?;
            let place = Place {
                staging: &record.staging_path,
                target: &wish.target,
            };
            let published = driver.publish(volume, real, place, wish.read_only, flags, &wish.consumer);
            return Ok(published.await?);
        }
        let (direct, volume, flags) = (self.direct.clone(), volume.clone(), flags.clone());
        let (staging, target, read_only) = (record.staging_path.clone(), wish.target.clone(), wish.read_only);
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

    async fn expect_nothing_published(&self, guard: &Guard, wish: Unpublish) -> Result<(), UnpublishError> {
        if self.is_published(guard, &wish.target).await? {
            return Err(UnpublishError::Unrecorded {
                volume_id: wish.volume_id,
                target: wish.target,
            });
        }
        Ok(self.remove_point(guard, wish.target).await?)
    }

    /// Unpublishes with the volume held, removes the target, and forgets it.
    pub(super) async fn unpublish_held(
        &self,
        guard: &Guard,
        record: &mut Record,
        target: &Path,
    ) -> Result<(), VolumeError> {
        let taken = async {
            match &record.data_path.source {
                RealSource::Csi(real) => self.unpublish_real(guard, record, real, target).await?,
                _ => self.unmount(guard, target).await?,
            }
            self.remove_point(guard, target.to_owned()).await
        };
        crash::around(Step::NodeUnpublish, taken).await?;
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
        let asked = async {
            let driver = self.drivers.reach(&real.driver).await?;
            driver.unpublish(&real.handle, target).await
        };
        let Err(trouble) = asked.await.map_err(VolumeError::from) else {
            return Ok(());
        };
        let excused = trouble.is_absent_driver() || trouble.is_unknown_volume();
        if excused && !self.is_published(guard, target).await? {
            tracing::warn!(volume = record.volume_id, %trouble, "nothing is left at the target");
            return Ok(());
        }
        Err(trouble)
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
