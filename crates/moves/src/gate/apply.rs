//! Takes one step of a move on the claim and its PV. Each write is for exactly the version on which the
//! decision was based: if another client wrote first, the step is decided again.

use std::fmt::Debug;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{Resource, ResourceExt};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{Applied, GateError, MovedVolume};
use crate::{
    cluster::{ApiError, Objects, Precondition},
    observe::crash::{self, Step},
    placement::moving::{AsRead, ClaimStep, Side},
    volume::{
        ReclaimPolicy, mark,
        moving::{GateNote, MoveUid, Touch, VolumeMark},
    },
};

impl MovedVolume {
    /// Takes this step, if it is one of this module.
    pub async fn apply(&self, step: &ClaimStep) -> Result<Applied, GateError> {
        match step {
            ClaimStep::Lock { claim, by } => self.lock(claim, by).await,
            ClaimStep::Unlock { claim } => self.unlock(claim).await,
            ClaimStep::Touch { claim, touch } => self.touch(claim, *touch).await,
            ClaimStep::Gate { volume, note } => self.gate(volume, note).await,
            ClaimStep::RestoreClaimRef { volume, note } => self.restore_claim_ref(volume, note).await,
            ClaimStep::RestorePolicy { volume, policy, mark } => {
                self.restore_policy(volume, *policy, mark).await
            }
            ClaimStep::RefuseGate { volume, mark } => self.refuse_gate(volume, mark).await,
            ClaimStep::Retain { volume } => self.retain(volume).await,
            ClaimStep::DeleteVolume { volume } => self.delete_volume(volume).await,
            ClaimStep::RemoveVolumeFinalizers { volume } => self.remove_volume_finalizers(volume).await,
            ClaimStep::MakeVolume { of, note } => self.make_volume(*of, note).await,
            ClaimStep::MarkSource { source, mark } => self.mark_source(source, mark).await,
            ClaimStep::RetainTarget { target } => self.retain_target(target).await,
            ClaimStep::DeleteTarget { target } => self.delete_target(target).await,
            ClaimStep::HandOver { target, retain } => Box::pin(self.hand_over(target, *retain)).await,
            ClaimStep::RecoverSource { source, policy } => {
                Box::pin(self.recover_source(source, *policy)).await
            }
            ClaimStep::SupersedeTarget { target } => self.supersede_target(target).await,
            ClaimStep::ReleaseSource { source, policy } => {
                Box::pin(self.release_source(source, *policy)).await
            }
            ClaimStep::There(step) => Box::pin(self.apply_there(step)).await,
            ClaimStep::RemoveMoverClaim { claim } => self.remove_mover_claim(claim).await,
            ClaimStep::MakeTarget { .. }
            | ClaimStep::MakeHelpers(_)
            | ClaimStep::RemoveHelpers(_)
            | ClaimStep::PauseSource
            | ClaimStep::StartPass(_)
            | ClaimStep::Evict(_) => Ok(Applied::NotHandled),
        }
    }

    async fn lock(&self, at: &AsRead, by: &MoveUid) -> Result<Applied, GateError> {
        let Some(claim) = exactly(self.claims(), &self.claim.name.name, at).await? else {
            return Ok(Applied::ChangedMeanwhile);
        };
        let patch = json!({"metadata": {
            "annotations": {mark::MOVE: by.as_str()},
            "finalizers": finalizers(&claim.object, true),
        }});
        claim.change(Step::MoveLock, patch).await
    }

    async fn unlock(&self, at: &AsRead) -> Result<Applied, GateError> {
        let Some(claim) = exactly(self.claims(), &self.claim.name.name, at).await? else {
            return Ok(Applied::ChangedMeanwhile);
        };
        let patch = json!({"metadata": unlocked(&claim.object)});
        claim.change(Step::MoveUnlock, patch).await
    }

    async fn touch(&self, at: &AsRead, touch: Touch) -> Result<Applied, GateError> {
        let Some(claim) = exactly(self.claims(), &self.claim.name.name, at).await? else {
            return Ok(Applied::ChangedMeanwhile);
        };
        let patch = json!({"metadata": {"annotations": {mark::MOVE_TOUCHED: touch.to_string()}}});
        claim.change(Step::MoveTouch, patch).await
    }

    /// One write for all fields. The API server rejects it for a PV that is being deleted, which cannot get a
    /// new finalizer.
    async fn gate(&self, at: &AsRead, note: &GateNote) -> Result<Applied, GateError> {
        let Some(volume) = self.exact_volume(at).await? else {
            return Ok(Applied::ChangedMeanwhile);
        };
        let patch = json!({
            "metadata": {
                "annotations": {mark::GATE: self.written(&VolumeMark::Gated(note.clone()))?},
                "finalizers": finalizers(&volume.object, true),
            },
            "spec": {
                "persistentVolumeReclaimPolicy": ReclaimPolicy::Retain.as_str(),
                "claimRef": {"uid": note.by.as_str()},
            },
        });
        volume.change(Step::MoveGate, patch).await
    }

    /// Only the uid: with the policy in the same write, csi-provisioner would delete a volume that it still
    /// sees as Released.
    async fn restore_claim_ref(&self, at: &AsRead, note: &GateNote) -> Result<Applied, GateError> {
        let patch = json!({"spec": {"claimRef": {"uid": note.claim_uid}}});
        self.change_volume(at, Step::MoveGiveBack, patch).await
    }

    async fn restore_policy(
        &self,
        at: &AsRead,
        policy: ReclaimPolicy,
        mark: &VolumeMark,
    ) -> Result<Applied, GateError> {
        let Some(volume) = self.exact_volume(at).await? else {
            return Ok(Applied::ChangedMeanwhile);
        };
        let patch = json!({
            "metadata": {
                "annotations": {mark::GATE: self.written(mark)?},
                "finalizers": finalizers(&volume.object, false),
            },
            "spec": {"persistentVolumeReclaimPolicy": policy.as_str()},
        });
        volume.change(Step::MoveRestorePolicy, patch).await
    }

    async fn refuse_gate(&self, at: &AsRead, mark: &VolumeMark) -> Result<Applied, GateError> {
        let patch = json!({"metadata": {"annotations": {mark::GATE: self.written(mark)?}}});
        self.change_volume(at, Step::MoveRefuseGate, patch).await
    }

    async fn retain(&self, at: &AsRead) -> Result<Applied, GateError> {
        let patch = json!({"spec": {"persistentVolumeReclaimPolicy": ReclaimPolicy::Retain.as_str()}});
        self.change_volume(at, Step::MoveRetain, patch).await
    }

    async fn delete_volume(&self, at: &AsRead) -> Result<Applied, GateError> {
        let volumes = self.volumes();
        let deleted = volumes.delete(self.volume().as_str(), precondition(at));
        outcome(crash::around(Step::MoveDeleteVolume, deleted).await.map(Some))
    }

    async fn remove_volume_finalizers(&self, at: &AsRead) -> Result<Applied, GateError> {
        let patch = json!({"metadata": {"finalizers": []}});
        self.change_volume(at, Step::MoveLetVolumeGo, patch).await
    }

    async fn make_volume(&self, of: Side, note: &GateNote) -> Result<Applied, GateError> {
        let Some((claim, manifest)) = self.records.manifest(of) else {
            return Err(GateError::NoRecord(self.volume().clone()));
        };
        let recovered = self.recovered_manifest()?;
        let manifest = recovered.as_ref().unwrap_or(manifest);
        let volume = manifest
            .to_volume(&claim.name, note)
            .and_then(serde_json::from_value);
        let volume: PersistentVolume = volume.map_err(|error| self.unwritable(error))?;
        outcome(crash::around(Step::MoveMakeVolume, self.volumes().create(&volume)).await)
    }

    pub(super) async fn exact_volume(
        &self,
        at: &AsRead,
    ) -> Result<Option<Exact<PersistentVolume>>, ApiError> {
        exactly(self.volumes(), self.volume().as_str(), at).await
    }

    async fn change_volume(&self, at: &AsRead, step: Step, patch: Value) -> Result<Applied, GateError> {
        change(&self.volumes(), self.volume().as_str(), at, step, patch).await
    }

    pub(super) fn written(&self, mark: &VolumeMark) -> Result<String, GateError> {
        mark.to_annotation().map_err(|error| self.unwritable(error))
    }

    pub(super) fn unwritable(&self, error: serde_json::Error) -> GateError {
        GateError::Unwritable {
            volume: self.volume().to_string(),
            error,
        }
    }
}

pub(super) struct Exact<K> {
    objects: Objects<K>,
    pub(super) object: K,
    at: AsRead,
}

/// Reads an object before a change; `None` if it has another version.
pub(super) async fn exactly<K>(
    objects: Objects<K>,
    name: &str,
    at: &AsRead,
) -> Result<Option<Exact<K>>, ApiError>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    let found = objects.get(name).await?;
    let same = found.filter(|found| super::observe::as_read(found) == *at);
    Ok(same.map(|object| Exact {
        objects,
        object,
        at: at.clone(),
    }))
}

/// An object that was just read, with that version.
pub(super) fn exactly_as<K: Resource>(objects: Objects<K>, object: K) -> Exact<K> {
    Exact {
        at: super::observe::as_read(&object),
        objects,
        object,
    }
}

impl<K> Exact<K>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    /// Changes it, if it still has that version.
    pub(super) async fn change(&self, step: Step, patch: Value) -> Result<Applied, GateError> {
        change(&self.objects, &self.object.name_any(), &self.at, step, patch).await
    }
}

async fn change<K>(
    objects: &Objects<K>,
    name: &str,
    at: &AsRead,
    step: Step,
    mut patch: Value,
) -> Result<Applied, GateError>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    patch["metadata"]["uid"] = at.uid().into();
    patch["metadata"]["resourceVersion"] = at.version().into();
    outcome(crash::around(step, objects.merge(name, &patch)).await)
}

/// A conflict means that the object was changed meanwhile: it was deleted or recreated, has another version,
/// or exists already.
pub(crate) fn outcome<T>(written: Result<Option<T>, ApiError>) -> Result<Applied, GateError> {
    Ok(match crate::cluster::unless_conflict(written)? {
        Some(_) => Applied::Done,
        None => Applied::ChangedMeanwhile,
    })
}

pub(super) fn precondition(at: &AsRead) -> Precondition {
    Precondition {
        uid: at.uid().to_owned(),
        resource_version: Some(at.version().to_owned()),
    }
}

/// The metadata in the merge patch that unlocks a claim.
#[must_use]
pub fn unlocked(claim: &PersistentVolumeClaim) -> Value {
    json!({
        "annotations": {mark::MOVE: null, mark::MOVE_TOUCHED: null},
        "finalizers": finalizers(claim, false),
    })
}

/// The finalizers of an object, with or without the one of moves.
fn finalizers(object: &impl ResourceExt, moving: bool) -> Vec<String> {
    let mut finalizers = object.finalizers().to_vec();
    finalizers.retain(|one| one != mark::MOVE);
    if moving {
        finalizers.push(mark::MOVE.to_owned());
    }
    finalizers
}
