//! The gate of a source in a remote cluster, on the PV of its twin. After the drain that PV names
//! the claim of the mover instead of the twin, so that no pod there starts with the twin:
//!
//! ```text
//! claim of the mover ── created, for the same PV and owned by the twin
//! PV of the source   ── Retain, and names the claim of the mover; the twin becomes Lost
//!                    ── names the twin again                          (rollback)
//! claim of the mover ── deleted
//! PV of the source   ── its own reclaim policy, once it is bound to the twin
//! ```
//!
//! After the commit the gate stays closed, because the twin has superseded data. When the source is released, the twin
//! is deleted, and with it the claim of the mover; then its PV gets the reclaim policy that the user wants. The PV
//! always names a uid, so that no other claim is bound to it.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{
    Applied, GateError, MovedVolume, Place,
    apply::{Exact, exactly, exactly_as, outcome, precondition},
    observe::as_read,
};
use crate::{
    cluster::{ApiError, facts},
    movers::{HelperError, claim_there, is_claim_there, name_of_claim_there},
    observe::crash::{self, Step},
    placement::moving::{
        AsRead, ClaimNow, ClaimStep, HeldBy, Lock, MoverClaim, RemoteVolume, Serves, Side, VirtualVolume,
    },
    twin::{Site, data_of, holder_uid, is_bound, is_bound_to, reading, reclaim_policy},
    volume::{
        ReclaimPolicy, mark,
        moving::{GateNote, GateNumber, VolumeMark, is_gated},
    },
};

impl MovedVolume {
    /// The PV of a remote source, if this driver may change it, or a move has gated it. If the twin has none, or does
    /// not exist, it is the one that this move has gated.
    pub(super) async fn real_there(
        &self,
        site: &Site,
        twin: Option<&PersistentVolumeClaim>,
    ) -> Result<Option<PersistentVolume>, ApiError> {
        let rights = site.cluster().rights();
        if site.remote_cluster().is_none() || !rights.volumes {
            return Ok(None);
        }
        let named = match twin.and_then(reading::volume_name) {
            Some(name) => site.volumes().get(name).await?,
            None => None,
        };
        match (named, twin) {
            (Some(real), Some(twin)) if is_bound_to(&real, twin) => {
                Ok(Some(real).filter(|real| rights.volume_changes || is_gated(real.annotations())))
            }
            (Some(real), _) if is_gated(real.annotations()) => Ok(Some(real)),
            _ => {
                let found = site.volumes().find(|real| self.has_gated(site, real)).await?;
                Ok(found.into_iter().next())
            }
        }
    }

    /// Whether this move has gated a PV with the data of the source, and has not restored its policy.
    pub(super) fn has_gated(&self, site: &Site, real: &PersistentVolume) -> bool {
        let annotations = real.annotations();
        let by = match VolumeMark::read(annotations) {
            Ok(Some(VolumeMark::Gated(note))) => Some(note.by),
            Ok(Some(VolumeMark::Ungated { by, .. })) if annotations.contains_key(mark::POLICY_BEFORE) => {
                Some(by)
            }
            _ => None,
        };
        annotations.get(mark::DATA_OF) == Some(&data_of(site, self.volume())) && by.as_ref() == Some(&self.by)
    }

    pub(super) async fn remote_volume(
        &self,
        site: &Site,
        twin: Option<&PersistentVolumeClaim>,
        real: &PersistentVolume,
    ) -> Result<RemoteVolume, GateError> {
        let mark = VolumeMark::read(real.annotations());
        let mark = mark.map_err(|error| GateError::Volume {
            volume: real.name_any(),
            error,
        })?;
        let policy_before = real.annotations().get(mark::POLICY_BEFORE);
        Ok(RemoteVolume {
            twin: twin.map_or(ClaimNow::Absent, twin_as_claim),
            twin_uid: twin.and_then(ResourceExt::uid).unwrap_or_default(),
            volume: VirtualVolume {
                at: as_read(real),
                serves: Serves::Source,
                held_by: self.held_there(site, twin, mark.as_ref(), real),
                mark,
                policy: facts::reclaim_policy(Some(reclaim_policy(real))),
                bound: is_bound(real),
                deleting: real.metadata.deletion_timestamp.is_some(),
                attached: Vec::new(),
            },
            policy_before: policy_before.map(|before| facts::reclaim_policy(Some(before))),
            mover_claim: self.mover_claim(site, real).await?,
        })
    }

    /// The twin may have been deleted since it was gated, or created again with another uid.
    fn held_there(
        &self,
        site: &Site,
        twin: Option<&PersistentVolumeClaim>,
        mark: Option<&VolumeMark>,
        real: &PersistentVolume,
    ) -> HeldBy {
        let Some(holder) = real.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
            return HeldBy::Other("no claim".to_owned());
        };
        let name = facts::claim_name(holder);
        let names = |claim: &str| name.namespace == site.namespace() && name.name == claim;
        let note = mark.and_then(VolumeMark::note);
        let is_gated_one = note.is_some_and(|note| holder_uid(real) == Some(note.claim_uid.as_str()));
        let is_twins = twin.map_or(note.is_none(), |twin| is_bound_to(real, twin));
        if names(site.name()) && (is_twins || is_gated_one) {
            HeldBy::Claim
        } else if names(&name_of_claim_there(self)) {
            HeldBy::Move
        } else {
            HeldBy::Other(format!("the claim {name} in the cluster {}", site.cluster_name()))
        }
    }

    async fn mover_claim(&self, site: &Site, real: &PersistentVolume) -> Result<MoverClaim, ApiError> {
        let found = site.twins().get(&name_of_claim_there(self)).await?;
        let Some(claim) = found.filter(|found| is_claim_there(self, found)) else {
            return Ok(MoverClaim::Absent);
        };
        Ok(if claim.metadata.deletion_timestamp.is_some() {
            MoverClaim::Leaving
        } else if is_bound_to(real, &claim) {
            MoverClaim::Named {
                bound: reading::phase(&claim) == "Bound",
            }
        } else {
            MoverClaim::Unused(as_read(&claim))
        })
    }

    /// Takes a step on the twin of a remote source and its PV.
    pub(super) async fn apply_there(&self, step: &ClaimStep) -> Result<Applied, GateError> {
        let (at, point, patch) = match step {
            ClaimStep::Gate { volume, note } => return self.gate_there(volume, note).await,
            ClaimStep::Touch { claim, touch } => {
                let Some((_, twin)) = self.exact_twin(Side::Source, claim).await? else {
                    return Ok(Applied::ChangedMeanwhile);
                };
                let patch = json!({"metadata": {"annotations": {mark::MOVE_TOUCHED: touch.to_string()}}});
                return twin.change(Step::MoveTouch, patch).await;
            }
            ClaimStep::RestoreClaimRef { volume, note } => {
                let name = self.site(Side::Source)?.name();
                let claim = json!({"name": name, "uid": note.claim_uid, "resourceVersion": null});
                (volume, Step::MoveOpenThere, json!({"spec": {"claimRef": claim}}))
            }
            ClaimStep::RestorePolicy { volume, policy, mark } => {
                return self.restore_policy_there(volume, *policy, mark).await;
            }
            ClaimStep::RefuseGate { volume, mark } => {
                let patch = json!({"metadata": {"annotations": {mark::GATE: self.written(mark)?}}});
                (volume, Step::MoveRefuseGate, patch)
            }
            _ => return Ok(Applied::NotHandled),
        };
        match self.exact_real(at).await? {
            Some((_, real)) => real.change(point, patch).await,
            None => Ok(Applied::ChangedMeanwhile),
        }
    }

    /// A Retain that replaces the policy from before the gate is that of this driver.
    async fn restore_policy_there(
        &self,
        at: &AsRead,
        policy: ReclaimPolicy,
        mark: &VolumeMark,
    ) -> Result<Applied, GateError> {
        let Some((_, real)) = self.exact_real(at).await? else {
            return Ok(Applied::ChangedMeanwhile);
        };
        let mut annotations = json!({mark::GATE: self.written(mark)?});
        let was = VolumeMark::read(real.object.annotations()).ok().flatten();
        let was = was.as_ref().and_then(VolumeMark::note);
        if policy == ReclaimPolicy::Delete {
            annotations[mark::POLICY_BEFORE] = Value::Null;
        } else if let Some(before) = was.map(|note| note.policy).filter(|before| *before != policy) {
            annotations[mark::POLICY_BEFORE] = before.as_str().into();
        }
        let patch = json!({
            "metadata": {"annotations": annotations},
            "spec": {"persistentVolumeReclaimPolicy": policy.as_str()},
        });
        real.change(Step::MoveOpenedThere, patch).await
    }

    /// Creates the claim of the mover first. It waits until the PV names it.
    async fn gate_there(&self, at: &AsRead, note: &GateNote) -> Result<Applied, GateError> {
        let Some((twin, real)) = self.exact_real(at).await? else {
            return Ok(Applied::ChangedMeanwhile);
        };
        let (site, name) = (self.site(Side::Source)?, name_of_claim_there(self));
        let Some(twin) = twin else {
            return Ok(Applied::ChangedMeanwhile);
        };
        let claim = match site.twins().get(&name).await? {
            Some(found) if !is_claim_there(self, &found) => {
                return Err(GateError::Helpers(HelperError::Foreign {
                    kind: "PersistentVolumeClaim".to_owned(),
                    name: format!("{}/{name}", site.namespace()),
                    cluster: site.cluster_name(),
                }));
            }
            Some(found) if found.metadata.deletion_timestamp.is_some() => None,
            Some(found) => Some(found),
            None => {
                let claim = claim_there(self, site, &twin);
                crash::around(Step::MoveMakeMoverClaim, site.twins().create(&claim)).await?
            }
        };
        let Some(claim) = claim else {
            return Ok(Applied::ChangedMeanwhile);
        };
        let patch = self.closing(site, note, claim.metadata.uid.as_deref())?;
        real.change(Step::MoveGateThere, patch).await
    }

    /// The patch of the PV that closes the gate.
    fn closing(&self, site: &Site, note: &GateNote, claim_uid: Option<&str>) -> Result<Value, GateError> {
        Ok(json!({
            "metadata": {"annotations": {
                mark::GATE: self.written(&VolumeMark::Gated(note.clone()))?,
                mark::DATA_OF: data_of(site, self.volume()),
            }},
            "spec": {
                "persistentVolumeReclaimPolicy": ReclaimPolicy::Retain.as_str(),
                "claimRef": {"name": name_of_claim_there(self), "uid": claim_uid, "resourceVersion": null},
            },
        }))
    }

    /// Whether the API server there would accept the gate: the claim of the mover, and the change of the PV. Without a
    /// gate there, it is not asked.
    pub(crate) async fn try_gate_there(&self) -> Result<Vec<Result<(), ApiError>>, GateError> {
        let Place::Site(site) = &self.source.place else {
            return Ok(Vec::new());
        };
        let twin = site.twins().get(site.name()).await?;
        let real = self.real_there(site, twin.as_ref()).await?;
        let (Some(twin), Some(real)) = (twin, real) else {
            return Ok(Vec::new());
        };
        let note = GateNote {
            by: self.by.clone(),
            gate: GateNumber::FIRST,
            policy: facts::reclaim_policy(Some(reclaim_policy(&real))),
            claim_uid: twin.uid().unwrap_or_default(),
        };
        // The claim has no uid yet.
        let patch = self.closing(site, &note, Some(self.by.as_str()))?;
        let claim = claim_there(self, site, &twin);
        Ok(vec![
            site.twins().try_create(&claim).await,
            site.volumes().try_merge(&real.name_any(), &patch).await,
        ])
    }

    pub(super) async fn remove_mover_claim(&self, at: &AsRead) -> Result<Applied, GateError> {
        let (site, name) = (self.site(Side::Source)?, name_of_claim_there(self));
        let twins = site.twins();
        let Some(claim) = exactly(site.twins(), &name, at).await? else {
            return Ok(Applied::ChangedMeanwhile);
        };
        let twin = twins.get(site.name()).await?;
        let real = self.real_there(site, twin.as_ref()).await?;
        // Another replica may have gated it again.
        if real.is_some_and(|real| holder_uid(&real) == claim.object.metadata.uid.as_deref()) {
            return Ok(Applied::ChangedMeanwhile);
        }
        let deleted = twins.delete(&name, precondition(at));
        outcome(crash::around(Step::MoveDeleteMoverClaim, deleted).await.map(Some))
    }

    /// The PV of the source in this version, with its twin.
    async fn exact_real(
        &self,
        at: &AsRead,
    ) -> Result<Option<(Option<PersistentVolumeClaim>, Exact<PersistentVolume>)>, GateError> {
        let site = self.site(Side::Source)?;
        let twin = site.twins().get(site.name()).await?;
        let twin = twin.filter(|twin| site.is_twin(self.volume(), twin));
        let real = self.real_there(site, twin.as_ref()).await?;
        let real = real.filter(|real| as_read(real) == *at);
        Ok(real.map(|real| (twin, exactly_as(site.volumes(), real))))
    }
}

fn twin_as_claim(twin: &PersistentVolumeClaim) -> ClaimNow {
    let touched = twin.annotations().get(mark::MOVE_TOUCHED);
    ClaimNow::Exists {
        at: as_read(twin),
        deleting: twin.metadata.deletion_timestamp.is_some(),
        lock: Lock::Free,
        lost: reading::phase(twin) == "Lost",
        touched: touched.and_then(|text| text.parse().ok()),
        changing: false,
    }
}
