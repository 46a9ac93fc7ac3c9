//! Carries out what [`crate::placement::recovery`] decides about the data of a volume whose twin is
//! unhealthy: reads the requested facts, and makes one write at a time.

use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements,
};
use kube::ResourceExt;
use serde_json::json;

use super::watched::VirtualVolume;
pub(super) use crate::placement::recovery::{Goal, Rescue};
use crate::{
    cluster::{ApiError, slim, unless_conflict},
    fleet::Registry,
    observe::crash::{self, Step},
    placement::recovery::{
        self as model, FoundVolumes, Holder, Keep, KeepWrite, Read, RealVolume, RecoveryFacts, RecoveryStep,
        Twin, TwinNow, Usage, recovery_step, usage,
    },
    twin::{
        Site, has_finalizer, highest, holder, holder_uid, is_bound, is_copy, is_marked, is_of_move,
        is_releasing, mark_holder, metadata, other_cluster, reading::volume_name, reclaim_policy,
        remove_copy, remove_finalizer, retain, twins_claim,
    },
    volume::{ClaimMark, Marks, VolumeId, VolumeName, mark, moving::is_gated},
};

type Facts = RecoveryFacts<PersistentVolumeClaim, PersistentVolume>;

/// How often everything is read again at once because an object has changed in between.
const RESTARTS: usize = 3;
/// More than any recovery needs; a limit for the case that a webhook undoes the writes.
pub(super) const STEPS: usize = 12;

/// The PVs one of which may be bound to the twin.
pub(super) struct RealVolumes<'a> {
    pub(super) site: &'a Site,
    pub(super) volume: &'a VolumeName,
    /// The PV that the virtual PV records.
    pub(super) remembered: Option<&'a str>,
    pub(super) twin: Option<String>,
}

impl RealVolumes<'_> {
    fn facts(&self, real: PersistentVolume) -> RealVolume<PersistentVolume> {
        RealVolume {
            name: real.name_any(),
            bound: self.is_bound(&real),
            holder: holder(self.site, self.volume, self.remembered, &real),
            marked: is_marked(self.site, self.volume, &real),
            retained: reclaim_policy(&real) == "Retain",
            deleting: real.metadata.deletion_timestamp.is_some(),
            releasing: real.annotations().contains_key(mark::RELEASE),
            object: real,
        }
    }

    fn is_bound(&self, real: &PersistentVolume) -> bool {
        self.twin.is_some() && holder_uid(real) == self.twin.as_deref()
    }

    fn found(&self, reals: impl IntoIterator<Item = PersistentVolume>) -> FoundVolumes<PersistentVolume> {
        FoundVolumes::Found(reals.into_iter().map(|real| self.facts(real)).collect())
    }

    /// Reads the PV of this name.
    pub(super) async fn read(
        &self,
        name: &str,
        or_out_of_reach: bool,
    ) -> Result<FoundVolumes<PersistentVolume>, ApiError> {
        match self.site.volumes().get(name).await {
            Err(error) if or_out_of_reach && error.is_forbidden() => Ok(out_of_reach(name, &error)),
            found => Ok(self.found(found?)),
        }
    }

    /// Finds all candidates. PVs of remote clusters are not watched.
    async fn find(&self) -> Result<FoundVolumes<PersistentVolume>, ApiError> {
        let volumes = self.site.volumes();
        if self.site.remote_cluster().is_some() {
            let may_be = |real: &PersistentVolume| {
                self.is_bound(real) || holder(self.site, self.volume, self.remembered, real) != Holder::Other
            };
            return Ok(self.found(volumes.find(may_be).await?));
        }
        let mut found = Vec::new();
        for seen in self.site.cluster().views().volumes.of_twin(self.site.name()) {
            found.extend(volumes.get(&seen.name).await?);
        }
        Ok(self.found(found))
    }

    /// Marks or retains a PV, with `step` as its crash point; `None` if the PV has changed.
    pub(super) async fn keep(
        &self,
        keep: Keep<'_, PersistentVolume>,
        step: Step,
    ) -> Result<Option<FoundVolumes<PersistentVolume>>, ApiError> {
        let real = &keep.real.object;
        let written = match keep.write {
            KeepWrite::MarkHolder => mark_holder(self.site, self.volume, real.clone()).await,
            KeepWrite::Retain => retain(self.site, self.volume, real, step).await,
        };
        match written {
            Err(error) if keep.or_out_of_reach && error.is_forbidden() => {
                Ok(Some(out_of_reach(&keep.real.name, &error)))
            }
            written => Ok(written?.map(|real| self.found([real]))),
        }
    }
}

fn out_of_reach(real: &str, why: &ApiError) -> FoundVolumes<PersistentVolume> {
    FoundVolumes::OutOfReach {
        real: real.to_owned(),
        why: why.to_string(),
    }
}

/// The recovery of a volume whose twin is unhealthy.
pub(super) struct Recovery<'a> {
    pub(super) site: &'a Site,
    pub(super) registry: &'a Registry,
    pub(super) volume: &'a VirtualVolume,
    /// The twin in the view.
    pub(super) seen: Option<&'a slim::Twin>,
}

impl Recovery<'_> {
    pub(super) async fn recover(&self, goal: Goal) -> Result<Rescue, ApiError> {
        self.run(goal, Read::NotYet).await
    }

    /// Retains the data of a twin that may not be read (any more), for this reason.
    pub(super) async fn retain_unread(&self, why: &ApiError) -> Result<Rescue, ApiError> {
        self.run(Goal::Rescue, Read::Known(TwinNow::Unreadable(why.to_string())))
            .await
    }

    /// Removes the finalizer of a twin whose data has to be retained.
    pub(super) async fn release(&self) -> Result<(), ApiError> {
        let (volume, twin) = (&self.volume.volume, self.site.place());
        match self.recover(Goal::Release).await? {
            Rescue::Underway => {
                tracing::info!(%volume, twin, "removed the finalizer of the released volume's twin; its data is retained");
            }
            Rescue::Held { real, why } => tracing::warn!(
                %volume, twin, real, why,
                "the finalizer blocks the deletion of a released volume's twin: its data has to be retained, and its PersistentVolume cannot be"
            ),
            _ => {}
        }
        Ok(())
    }

    async fn run(
        &self,
        mut goal: Goal,
        twin: Read<TwinNow<PersistentVolumeClaim>>,
    ) -> Result<Rescue, ApiError> {
        let site = self.site;
        let step = if goal == Goal::Release {
            Step::Retain
        } else {
            Step::Rescue
        };
        // After the first write the recovery is in progress, even if it stops early: the next round continues.
        let mut begun = None;
        'again: for _ in 0..RESTARTS {
            let mut facts = self.facts(twin.clone());
            let mut user = None;
            for _ in 0..STEPS {
                match recovery_step(goal, &facts) {
                    RecoveryStep::ReadUsage => {
                        let (claim, usage) = self.claim_and_usage(goal).await?;
                        (user, facts.usage) = (claim, Read::Known(usage));
                    }
                    RecoveryStep::ReadTwin => {
                        let twin = match site.twins().get(site.name()).await {
                            // In a namespace that is being deleted, this driver may lose its rights before the twin is deleted.
                            Err(error) if error.is_forbidden() && goal == Goal::Rescue => {
                                TwinNow::Unreadable(error.to_string())
                            }
                            found => self.twin_now(found?, user.as_ref()).await?,
                        };
                        facts.twin = Read::Known(twin);
                    }
                    RecoveryStep::ReadHighest => {
                        let claim = self.volume.claim.as_ref();
                        let highest = highest(site.home(), self.registry, &self.volume.id(), claim).await;
                        facts.highest = Read::Known(highest);
                        if let Some(why) = other_cluster(site).await? {
                            facts.not_there = Some(why);
                        }
                    }
                    RecoveryStep::ReadReal {
                        name,
                        or_out_of_reach,
                    } => {
                        facts.reals = Read::Known(self.reals(&facts).read(name, or_out_of_reach).await?);
                    }
                    RecoveryStep::FindRemembered => {
                        let seen = self.seen.and_then(|twin| twin.real_volume.as_deref());
                        let remembered = seen.or(self.volume.real.as_deref());
                        let reals = self.reals(&facts);
                        facts.reals = Read::Known(match remembered.filter(|name| !name.is_empty()) {
                            Some(name) => reals.read(name, false).await?,
                            None => reals.find().await?,
                        });
                    }
                    RecoveryStep::FindReals => {
                        facts.reals = Read::Known(self.reals(&facts).find().await?);
                    }
                    RecoveryStep::Keep(keep) => match self.reals(&facts).keep(keep, step).await? {
                        Some(reals) => facts.reals = Read::Known(reals),
                        None => continue 'again,
                    },
                    RecoveryStep::RemoveFinalizer { twin, then, kept } => {
                        return match (remove_finalizer(site.cluster(), twin).await, kept) {
                            (Err(error), Some(real)) if error.is_forbidden() => Ok(Rescue::Kept {
                                real: real.to_owned(),
                                why: error.to_string(),
                            }),
                            (outcome, _) => outcome.map(|_| then),
                        };
                    }
                    RecoveryStep::RemoveCopy(copy) => {
                        remove_copy(site, copy).await?;
                        facts.twin = Read::NotYet;
                    }
                    RecoveryStep::CreateTwin(real) => {
                        let Some(claim) = user.take().zip(self.volume.claim.clone()) else {
                            continue 'again;
                        };
                        let rebuilt = rebuild_twin(site, self.volume, claim, real);
                        let made = crash::around(Step::TwinAgain, site.twins().create(&rebuilt)).await;
                        let Some(twin) = made? else {
                            // Another object has this name now: the next round reads it.
                            return Ok(Rescue::FalseAlarm);
                        };
                        facts.twin = Read::Known(TwinNow::Ours(self.twin(twin).await));
                        (goal, begun) = (Goal::Reunite, Some(Rescue::Underway));
                    }
                    RecoveryStep::PassOn { real, twin } => {
                        begun = Some(Rescue::Underway);
                        if bind_to_twin(site, real, twin).await? {
                            break 'again;
                        }
                        continue 'again;
                    }
                    RecoveryStep::Report(rescue) => return Ok(begun.unwrap_or(rescue)),
                }
            }
        }
        // The next round reads the result.
        Ok(begun.unwrap_or(Rescue::FalseAlarm))
    }

    fn facts(&self, twin: Read<TwinNow<PersistentVolumeClaim>>) -> Facts {
        RecoveryFacts {
            epoch: self.volume.epoch,
            rights: self.site.cluster().rights().volume_changes,
            not_there: self
                .volume
                .claim
                .as_ref()
                .and_then(|claim| not_offloaded(self.site, claim)),
            usage: Read::NotYet,
            twin,
            highest: Read::NotYet,
            reals: Read::NotYet,
        }
    }

    fn reals(&self, facts: &Facts) -> RealVolumes<'_> {
        RealVolumes {
            site: self.site,
            volume: &self.volume.volume,
            remembered: self.volume.real.as_deref(),
            twin: match &facts.twin {
                Read::Known(TwinNow::Ours(twin)) => twin.object.uid(),
                Read::Known(TwinNow::Unreadable(_)) => self.seen.map(|twin| twin.uid.clone()),
                _ => None,
            },
        }
    }

    /// The claim, if it exists, and how the volume is used.
    async fn claim_and_usage(&self, goal: Goal) -> Result<(Option<PersistentVolumeClaim>, Usage), ApiError> {
        let (home, mark) = (self.site.home(), self.volume.claim.as_ref());
        let claim = async {
            match mark.filter(|_| goal != Goal::Release) {
                Some(mark) => {
                    home.within::<PersistentVolumeClaim>(&mark.namespace)
                        .get(&mark.name)
                        .await
                }
                None => Ok(None),
            }
        };
        let virtual_pvs = home.all::<PersistentVolume>();
        let (claim, virtual_pv) = tokio::try_join!(claim, virtual_pvs.get(&self.volume.name))?;
        let claim = claim.filter(|claim| {
            claim.uid().as_ref() == mark.map(|mark| &mark.uid) && claim.metadata.deletion_timestamp.is_none()
        });
        let usage = usage(
            claim.is_some(),
            virtual_pv.map(|virtual_pv| self.virtual_volume(&virtual_pv)),
        );
        Ok((claim, usage))
    }

    fn virtual_volume(&self, virtual_pv: &PersistentVolume) -> model::VirtualVolume {
        let csi = virtual_pv.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        let id: Option<VolumeId> = csi.and_then(|csi| csi.volume_handle.parse().ok());
        model::VirtualVolume {
            same: id.is_some_and(|id| id == self.volume.id()),
            gated: is_gated(virtual_pv.annotations()),
            bound: is_bound(virtual_pv),
            deleting: virtual_pv.metadata.deletion_timestamp.is_some(),
            retained: reclaim_policy(virtual_pv) == "Retain",
            releasing: virtual_pv.annotations().contains_key(mark::RELEASE),
        }
    }

    /// The object with the name of the twin. A copy of the claim is possible only if the claim exists.
    async fn twin_now(
        &self,
        found: Option<PersistentVolumeClaim>,
        user: Option<&PersistentVolumeClaim>,
    ) -> Result<TwinNow<PersistentVolumeClaim>, ApiError> {
        let Some(twin) = found else {
            return Ok(TwinNow::Absent);
        };
        if let Some(claim) = user
            && twin.metadata.deletion_timestamp.is_none()
            && is_copy(self.site, claim, &twin).await?
        {
            return Ok(TwinNow::Copy(twin));
        }
        let owner = self.site.owner(&self.volume.volume);
        Ok(match owner.recognise(twin.labels(), twin.annotations()) {
            Ok(_) => TwinNow::Ours(self.twin(twin).await),
            Err(foreign) => TwinNow::Foreign(foreign),
        })
    }

    async fn twin(&self, twin: PersistentVolumeClaim) -> Twin<PersistentVolumeClaim> {
        let phase = twin.status.as_ref().and_then(|status| status.phase.as_deref());
        Twin {
            deleting: twin.metadata.deletion_timestamp.is_some(),
            releasing: is_releasing(&twin),
            of_move: is_of_move(self.site.home(), &twin).await,
            finalizer: has_finalizer(&twin),
            pending: phase.unwrap_or("Pending") == "Pending",
            real: volume_name(&twin).map(str::to_owned),
            object: twin,
        }
    }
}

/// Why a twin is not created again in its namespace of a remote cluster: if the namespace is not
/// offloaded any more, the namespace of that name may belong to another user.
fn not_offloaded(site: &Site, claim: &ClaimMark) -> Option<String> {
    let remote = site.remote_cluster()?;
    let now = remote.namespaces.remote(&claim.namespace, &remote.id);
    (now.ok() != Some(site.namespace())).then(|| {
        format!(
            "its namespace {} is not offloaded to the cluster {} as {} any more; offload it under that name again",
            claim.namespace,
            remote.id,
            site.namespace()
        )
    })
}

/// Sets the `claimRef` of a PV to the new twin. False if the PV has changed.
async fn bind_to_twin(
    site: &Site,
    real: &PersistentVolume,
    twin: &PersistentVolumeClaim,
) -> Result<bool, ApiError> {
    let patch = json!({
        "metadata": {"uid": real.uid(), "resourceVersion": real.resource_version()},
        "spec": {"claimRef": {"uid": twin.uid(), "resourceVersion": null}},
    });
    let bound = crash::around(Step::PassOn, site.volumes().merge(&real.name_any(), &patch)).await;
    Ok(unless_conflict(bound)?.is_some())
}

/// The twin, rebuilt from claim and PV.
fn rebuild_twin(
    site: &Site,
    volume: &VirtualVolume,
    (user, mark): (PersistentVolumeClaim, ClaimMark),
    real: &PersistentVolume,
) -> PersistentVolumeClaim {
    let marks = Marks {
        home: site.home().id().clone(),
        volume: volume.volume.clone(),
        claim: Some(twins_claim(&volume.volume, mark)),
        request_name: volume.name.clone(),
        // The request is not recorded anywhere else; CreateVolume is not called for a volume that has its PV.
        fingerprint: None,
        handed_over: true,
        epoch: site.epoch(),
    };
    let rules = site.home().carried_annotations();
    let carried = rules.carried(user.labels(), user.annotations());
    let (labels, annotations) = carried.with(&marks);
    let (real_spec, claim_spec) = (
        real.spec.clone().unwrap_or_default(),
        user.spec.unwrap_or_default(),
    );
    PersistentVolumeClaim {
        metadata: metadata(site, labels, annotations),
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: claim_spec.access_modes,
            volume_mode: real_spec.volume_mode,
            // An empty name means "no class"; without a name Kubernetes would use the default class.
            storage_class_name: Some(real_spec.storage_class_name.unwrap_or_default()),
            resources: Some(VolumeResourceRequirements {
                requests: real_spec.capacity,
                limits: None,
            }),
            volume_name: real.metadata.name.clone(),
            // A claim is bound only to a PV of the same attributes.
            volume_attributes_class_name: real_spec.volume_attributes_class_name,
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}
