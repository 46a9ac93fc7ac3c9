//! Reads the objects of one claim that is being moved, live. The users are read last: if the gate is closed,
//! it was closed before the users were read.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{ResourceExt, core::PartialObjectMeta};

use super::{ClaimObjects, GateError, MovedVolume, Place, name::ClaimOfName};
use crate::{
    api::volume_move::{VolumeMove, kept_source},
    cluster::{ApiError, facts},
    placement::{
        moving::{
            AsRead, ClaimNow, HeldBy, Live, Lock, RemoteVolume, Serves, SourceTwin, TargetTwin,
            VirtualVolume, VolumeNow,
        },
        recovery::Holder,
    },
    twin::{Site, has_finalizer, holder, reading, reclaim_policy},
    volume::{
        DRIVER_NAME, Foreign, Marks, ReclaimPolicy, VolumeId, mark,
        moving::{MoveUid, SourceMark, TargetMark, TwinMarkError, VolumeMark, epoch_of},
        quantity,
    },
};

impl MovedVolume {
    pub async fn observe(&self) -> Result<ClaimObjects, GateError> {
        let (claim, volume, source, (target, target_twin)) = tokio::try_join!(
            self.claim(),
            self.virtual_volume(),
            Box::pin(self.source_now()),
            Box::pin(self.target_now())
        )?;
        let attached = self.home_attachments().await?;
        let volume = volume.map_or(Ok(VolumeNow::Absent), |volume| {
            self.described(&volume, attached.nodes_of(self.volume().as_str()))
                .map(VolumeNow::Exists)
        })?;
        let (twin, real) = (source.twin.as_deref(), source.real.as_deref());
        let users = self.users(&attached, twin, real).await?;
        let too_small = claim
            .as_ref()
            .zip(target_twin.as_ref())
            .and_then(|(claim, target)| self.remains_too_small(claim, target));
        Ok(ClaimObjects {
            claim: match &claim {
                Some(claim) => self.claim_now(claim, twin).await?,
                None => ClaimNow::Absent,
            },
            too_small,
            volume,
            source: source.now,
            there: source.there,
            target,
            users,
        })
    }

    async fn claim(&self) -> Result<Option<PersistentVolumeClaim>, GateError> {
        let found = self.claims().get(&self.claim.name.name).await?;
        Ok(found.filter(|found| found.uid().as_ref() == Some(&self.claim.uid)))
    }

    async fn claim_now(
        &self,
        claim: &PersistentVolumeClaim,
        source: Option<&PersistentVolumeClaim>,
    ) -> Result<ClaimNow, GateError> {
        let touched = claim.annotations().get(mark::MOVE_TOUCHED);
        let lock = self.lock_on(claim).await?;
        // A change of a locked claim waits until the move has ended. A change that began earlier is visible
        // on the twin, and the move waits for it.
        let changes = if lock == Lock::Ours { source } else { Some(claim) };
        Ok(ClaimNow::Exists {
            at: as_read(claim),
            deleting: claim.metadata.deletion_timestamp.is_some(),
            lock,
            lost: reading::phase(claim) == "Lost",
            // Another client wrote an unreadable value: the claim is touched again.
            touched: touched.and_then(|text| text.parse().ok()),
            changing: changes.is_some_and(is_changing),
        })
    }

    /// Why the target will never be as large as the claim requests, if known: the request was raised after
    /// the target was created.
    fn remains_too_small(
        &self,
        claim: &PersistentVolumeClaim,
        target: &PersistentVolumeClaim,
    ) -> Option<String> {
        let Place::Site(site) = &self.target.place else {
            return None;
        };
        let (asked, there) = (facts::claim_size(claim).requested, facts::claim_size(target));
        let class = reading::class(site.cluster(), target)?;
        let is_short = asked > there.requested.max(there.capacity);
        (is_short && !class.allows_expansion).then(|| {
            format!(
                "the claim {} now requests {}, the new volume has {}, and its class {:?} in the cluster {} does not allow \
                 expansion: start the move again once the claim has grown, or choose another class",
                self.claim.name,
                quantity(asked),
                quantity(there.requested.max(there.capacity)),
                class.name,
                site.cluster_name()
            )
        })
    }

    async fn lock_on(&self, claim: &PersistentVolumeClaim) -> Result<Lock, GateError> {
        let Some(text) = claim.annotations().get(mark::MOVE) else {
            return Ok(Lock::Free);
        };
        let by: MoveUid = text.parse().map_err(|error| GateError::Lock {
            claim: self.claim.name.to_string(),
            error,
        })?;
        if by == self.by {
            return Ok(Lock::Ours);
        }
        let moves = self
            .home
            .within::<PartialObjectMeta<VolumeMove>>(&self.claim.name.namespace);
        let found = moves
            .find(|one| one.metadata.uid.as_deref() == Some(by.as_str()))
            .await?;
        Ok(Lock::Theirs {
            counts: !found.is_empty(),
            by,
        })
    }

    async fn virtual_volume(&self) -> Result<Option<PersistentVolume>, GateError> {
        Ok(self.volumes().get(self.volume().as_str()).await?)
    }

    fn described(
        &self,
        volume: &PersistentVolume,
        attached: Vec<String>,
    ) -> Result<VirtualVolume, GateError> {
        let mark = VolumeMark::read(volume.annotations());
        Ok(VirtualVolume {
            at: as_read(volume),
            serves: self.serves(volume),
            held_by: self.held_by(volume),
            mark: mark.map_err(|error| GateError::Volume {
                volume: volume.name_any(),
                error,
            })?,
            policy: facts::reclaim_policy(Some(reclaim_policy(volume))),
            bound: reading::is_bound(volume),
            deleting: volume.metadata.deletion_timestamp.is_some(),
            attached,
        })
    }

    fn serves(&self, volume: &PersistentVolume) -> Serves {
        let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        let Some(csi) = csi.filter(|csi| csi.driver == DRIVER_NAME) else {
            return Serves::Other("another driver".to_owned());
        };
        let handle: Option<VolumeId> = csi.volume_handle.parse().ok();
        let is_later = |of: &VolumeId| of.name == self.target.id.name && of.epoch > self.target.id.epoch;
        if handle.as_ref() == Some(&self.source.id) {
            Serves::Source
        } else if handle.as_ref() == Some(&self.target.id) {
            Serves::Target
        } else if self.recovers && handle == self.recovered_id() {
            Serves::Recovered
        } else if handle.as_ref().is_some_and(is_later) {
            Serves::Later
        } else {
            Serves::Other(csi.volume_handle.clone())
        }
    }

    fn held_by(&self, volume: &PersistentVolume) -> HeldBy {
        let Some(holder) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
            return HeldBy::Other("no claim".to_owned());
        };
        let (name, uid) = (
            facts::claim_name(holder),
            holder.uid.as_deref().unwrap_or_default(),
        );
        if name == self.claim.name && uid == self.claim.uid {
            HeldBy::Claim
        } else if name == self.claim.name && uid == self.by.as_str() {
            HeldBy::Move
        } else {
            HeldBy::Other(format!("the claim {name} with the uid {uid:?}"))
        }
    }

    /// A twin of another epoch may have the name of the source.
    async fn source_now(&self) -> Result<ObservedSource, GateError> {
        let found = match live_twin(&self.source.place).await {
            Live::Unknown(why) => return Ok(Live::Unknown(why).into()),
            Live::Known(found) => found,
        };
        match self.recovered_now().await {
            Err(error) => return Ok(Live::Unknown(error.to_string()).into()),
            Ok(Some(recovered)) => return Ok(recovered.into()),
            Ok(None) => {}
        }
        let twin = match found {
            Some((site, twin)) if self.is_source(site, &twin)? => Some(twin),
            _ => None,
        };
        let Place::Site(site) = &self.source.place else {
            return Ok(self.source_volume().await?.into());
        };
        let real = match self.real_there(site, twin.as_ref()).await {
            Err(error) => return Ok(Live::Unknown(error.to_string()).into()),
            Ok(real) => real,
        };
        let there = match &real {
            Some(real) => Some(self.remote_volume(site, twin.as_ref(), real).await?),
            None => None,
        };
        let now = match &twin {
            None => self.source_volume().await?,
            Some(twin) => {
                let mark = SourceMark::read(twin.annotations()).map_err(|error| unreadable(site, error))?;
                let may_be_gated = matches!(&mark, Some(SourceMark::Moving { by, .. }) if *by == self.by)
                    && site.remote_cluster().is_some()
                    && reading::phase(twin) == "Lost";
                if may_be_gated && !site.shows_volumes() {
                    Live::Unknown(format!(
                        "the claim {} is Lost, and the driver may not read PersistentVolumes there: grant it that right again, \
                         or delete the claim if its PersistentVolume does not exist",
                        site.place()
                    ))
                } else {
                    Live::Known(SourceTwin::Exists {
                        at: as_read(twin),
                        mark,
                        deleting: twin.metadata.deletion_timestamp.is_some(),
                        protected: has_finalizer(twin),
                        bound: reading::phase(twin) != "Pending",
                    })
                }
            }
        };
        Ok(ObservedSource {
            now,
            twin: twin.map(Box::new),
            real: real.map(Box::new),
            there,
        })
    }

    fn is_source(&self, site: &Site, twin: &PersistentVolumeClaim) -> Result<bool, GateError> {
        let is_twin = site.is_twin(self.volume(), twin);
        let epoch = epoch_of(twin.annotations()).map_err(|error| unreadable(site, error));
        Ok(is_twin && epoch? == self.source.id.epoch)
    }

    /// The source without its twin: only the PV that a move within one namespace has retained, if it exists.
    async fn source_volume(&self) -> Result<Live<SourceTwin>, GateError> {
        let Place::Site(site) = &self.source.place else {
            return Ok(Live::Known(SourceTwin::Gone { for_good: false }));
        };
        Ok(match self.source_without_twin(site).await {
            Err(error) => Live::Unknown(error.to_string()),
            Ok(None) => match self.has_data(site).await {
                Err(error) => Live::Unknown(error.to_string()),
                Ok(has_data) => Live::Known(SourceTwin::Gone { for_good: !has_data }),
            },
            Ok(Some(real)) => Live::Known(SourceTwin::Exists {
                at: as_read(&real),
                mark: SourceMark::read(real.annotations()).map_err(|error| unreadable(site, error))?,
                deleting: real.metadata.deletion_timestamp.is_some(),
                protected: false,
                bound: true,
            }),
        })
    }

    /// Whether a PV there may have the data of the source, whose twin does not exist: the twin may be created again
    /// for it. Without the right to read PVs, it is not.
    async fn has_data(&self, site: &Site) -> Result<bool, ApiError> {
        if !site.shows_volumes() {
            return Ok(site.cluster().rights().uncertain);
        }
        let may_be = |real: &PersistentVolume| {
            reclaim_policy(real) == ReclaimPolicy::Retain.as_str()
                && real.metadata.deletion_timestamp.is_none()
                && (holder(site, self.volume(), None, real) != Holder::Other || self.has_gated(site, real))
        };
        Ok(!site.volumes().find(may_be).await?.is_empty())
    }

    /// The target twin under the name of the claim, or what that name waits for.
    async fn target_with_name(
        &self,
    ) -> Result<Option<Result<(&Site, PersistentVolumeClaim), String>>, ApiError> {
        let (Some(name), Place::Site(site)) = (self.name_to_take(), &self.target.place) else {
            return Ok(None);
        };
        Ok(match self.named(site, name).await? {
            ClaimOfName::Target(_, Some(why)) => Some(Err(why)),
            ClaimOfName::Target(twin, None) => Some(Ok((site, *twin))),
            // Nothing keeps this twin any more, so its name becomes free.
            ClaimOfName::Source(twin) if is_superseded(&twin) && will_disappear(&twin) => {
                let place = format!("{}/{name}", site.namespace());
                Some(Err(format!("{place}, the twin of the source, is being deleted")))
            }
            ClaimOfName::Source(_) | ClaimOfName::Foreign | ClaimOfName::Nothing => None,
        })
    }

    /// Also returns the target twin, if it exists.
    async fn target_now(&self) -> Result<(Live<TargetTwin>, Option<PersistentVolumeClaim>), GateError> {
        let alone = |target| Ok((target, None));
        if matches!(self.target.place, Place::Gone) {
            return alone(Live::Known(TargetTwin::Gone));
        }
        let found = match self.target_with_name().await {
            Err(error) => return alone(Live::Unknown(error.to_string())),
            Ok(Some(Err(why))) => return alone(Live::Known(TargetTwin::TakesName(why))),
            Ok(Some(Ok(found))) => Live::Known(Some(found)),
            Ok(None) => live_twin(&self.target.place).await,
        };
        let found = match found {
            Live::Unknown(why) => return alone(Live::Unknown(why)),
            Live::Known(found) => found,
        };
        let Some((site, twin)) = found else {
            return alone(Live::Known(TargetTwin::Absent));
        };
        let foreign = |what: String| {
            alone(Live::Known(TargetTwin::Foreign(format!(
                "{}: {what}",
                site.place()
            ))))
        };
        let marks = match site
            .owner(self.volume())
            .recognise(twin.labels(), twin.annotations())
        {
            Ok(marks) => marks,
            Err(other @ Foreign::OtherEpoch { .. }) => {
                return foreign(match SourceMark::read(twin.annotations()) {
                    Ok(Some(SourceMark::Superseded { by, .. })) => kept_source(by.as_str()),
                    _ => other.to_string(),
                });
            }
            Err(other) => return foreign(other.to_string()),
        };
        if let Some(other) = self
            .not_of_this_move(&marks, &twin)
            .map_err(|error| unreadable(site, error))?
        {
            return foreign(other);
        }
        if self.recovers && is_superseded(&twin) {
            return alone(Live::Known(TargetTwin::Superseded));
        }
        let retained = match twins_volume(site, &twin).await {
            Ok(volume) => {
                volume.is_none_or(|volume| reclaim_policy(&volume) == ReclaimPolicy::Retain.as_str())
            }
            Err(error) => return alone(Live::Unknown(error.to_string())),
        };
        let there = TargetTwin::Exists {
            at: as_read(&twin),
            handed_over: marks.handed_over,
            retained,
            deleting: twin.metadata.deletion_timestamp.is_some(),
        };
        Ok((Live::Known(there), Some(twin)))
    }

    /// Why the twin does not belong to this move; `None` if it does.
    fn not_of_this_move(
        &self,
        marks: &Marks,
        twin: &PersistentVolumeClaim,
    ) -> Result<Option<String>, TwinMarkError> {
        Ok(match TargetMark::read(twin.labels(), twin.annotations())? {
            Some(mark) if mark.by != self.by => {
                Some(format!("the VolumeMove with the uid {} has created it", mark.by))
            }
            None if !marks.handed_over => Some("no VolumeMove has created it".to_owned()),
            Some(_) | None => None,
        })
    }
}

/// The source as it was read.
struct ObservedSource {
    now: Live<SourceTwin>,
    /// Its twin, if it exists.
    twin: Option<Box<PersistentVolumeClaim>>,
    /// The PV of a remote twin.
    real: Option<Box<PersistentVolume>>,
    there: Option<RemoteVolume>,
}

impl From<Live<SourceTwin>> for ObservedSource {
    fn from(now: Live<SourceTwin>) -> Self {
        Self {
            now,
            twin: None,
            real: None,
            there: None,
        }
    }
}

async fn live_twin(place: &Place) -> Live<Option<(&Site, PersistentVolumeClaim)>> {
    let site = match place {
        Place::Site(site) => site,
        Place::Unreachable(why) => return Live::Unknown(why.clone()),
        Place::Gone => return Live::Known(None),
    };
    match site.twins().get(site.name()).await {
        Ok(found) => Live::Known(found.map(|twin| (&**site, twin))),
        Err(error) => Live::Unknown(error.to_string()),
    }
}

/// The PV of a twin, if this driver may change it. Without those rights, the reclaim policy is neither set
/// nor restored, as for all volumes there.
pub(crate) async fn twins_volume(
    site: &Site,
    twin: &PersistentVolumeClaim,
) -> Result<Option<PersistentVolume>, ApiError> {
    let rights = site.cluster().rights();
    let name = reading::volume_name(twin).filter(|_| rights.volumes && rights.volume_changes);
    let Some(name) = name else {
        return Ok(None);
    };
    let found = site.volumes().get(name).await?;
    Ok(found.filter(|found| reading::is_bound_to(found, twin)))
}

fn will_disappear(twin: &PersistentVolumeClaim) -> bool {
    twin.metadata.deletion_timestamp.is_some() && !has_finalizer(twin)
}

fn is_superseded(twin: &PersistentVolumeClaim) -> bool {
    let mark = SourceMark::read(twin.annotations());
    matches!(mark, Ok(Some(SourceMark::Superseded { .. })))
}

fn unreadable(site: &Site, error: TwinMarkError) -> GateError {
    GateError::Twin {
        twin: site.place(),
        cluster: site.cluster_name(),
        error,
    }
}

pub(super) fn as_read(object: &impl ResourceExt) -> AsRead {
    AsRead::new(
        object.uid().unwrap_or_default(),
        object.resource_version().unwrap_or_default(),
    )
}

/// Whether size or attributes of a claim differ from its spec.
fn is_changing(claim: &PersistentVolumeClaim) -> bool {
    let size = facts::claim_size(claim);
    let wanted = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_attributes_class_name.as_ref());
    let status = claim.status.as_ref();
    let current = status.and_then(|status| status.current_volume_attributes_class_name.as_ref());
    let modifies = status.is_some_and(|status| status.modify_volume_status.is_some());
    let is_set = |class: Option<&String>| class.filter(|class| !class.is_empty()).cloned();
    size.growing_to().is_some() || size.stage.is_some() || modifies || is_set(wanted) != is_set(current)
}
