//! The writes that imports, releases and their undo have in common. Each applies only to the observed
//! version of an object; after a conflict the next observation shows the change.

use std::fmt::Debug;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{Resource, ResourceExt};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    Context, TransferError,
    owners::{DropReason, drop_unseen_owners, keep_living_owners_once},
    waiting::ATTEMPTS,
};
use crate::{
    cluster::{ApiError, Objects, Precondition, unless_conflict},
    observe::crash::{self, Step},
    placement::transfer::Obstacle,
    twin::claim_ref,
    volume::OldClaim,
};

/// Creates the new claim, and keeps the reason if that is refused.
#[derive(Default)]
pub(super) struct Creation {
    attempts: u32,
    /// The messages about dropped owners that were reported already.
    dropped: Vec<String>,
    pub(super) unmakeable: Option<String>,
}

impl Creation {
    /// Whether the creation was not tried yet.
    pub(super) fn is_first(&self) -> bool {
        self.attempts == 0
    }

    pub(super) async fn create(
        &mut self,
        context: &Context<'_>,
        mut claim: PersistentVolumeClaim,
        step: Step,
    ) -> Result<(), TransferError> {
        let claims = context
            .cluster
            .within::<PersistentVolumeClaim>(&claim.namespace().unwrap_or_default());
        keep_living_owners_once(context, &mut claim, &mut self.dropped).await?;
        let made = crash::around(step, claims.create(&claim)).await;
        let Err(error) = made else {
            // Or another client has created a claim: the next observation shows it.
            return Ok(());
        };
        self.attempts += 1;
        // A quota still counts the old claim for a moment after its deletion.
        let may_pass = error.is_forbidden() && self.attempts < ATTEMPTS;
        let why = refused(error)?;
        if !may_pass {
            self.unmakeable = Some(why);
        }
        Ok(())
    }
}

/// What prevents the creation of a claim: owners that cannot be read; quotas, policies and rights, by a dry
/// run under another name.
pub(super) async fn find_blockers(
    context: &Context<'_>,
    mut claim: PersistentVolumeClaim,
    what: &str,
) -> Result<Vec<Obstacle>, ApiError> {
    let mut found = Vec::new();
    for dropped in drop_unseen_owners(context, &mut claim).await {
        if let DropReason::Unreadable(error) = dropped.why {
            found.push(Obstacle::UnreadableOwner {
                kind: dropped.kind,
                name: dropped.name,
                why: error.to_string(),
            });
        }
    }
    claim.metadata.name = Some(format!("{what}-check-{}", uuid::Uuid::new_v4()));
    let claims = context
        .cluster
        .within::<PersistentVolumeClaim>(&claim.namespace().unwrap_or_default());
    if let Err(error) = claims.try_create(&claim).await {
        found.push(Obstacle::NotAccepted(refused(error)?));
    }
    Ok(found)
}

/// The message of the API server, if it refuses this content.
pub(super) fn refused(error: ApiError) -> Result<String, ApiError> {
    if error.is_refusal() {
        Ok(error.to_string())
    } else {
        Err(error)
    }
}

/// The record of a claim.
pub(super) fn old_claim(claim: &PersistentVolumeClaim, namespace_uid: &str) -> OldClaim {
    let owners = claim.metadata.owner_references.iter().flatten();
    OldClaim {
        namespace: claim.namespace().unwrap_or_default(),
        namespace_uid: namespace_uid.to_owned(),
        name: claim.name_any(),
        uid: claim.uid().unwrap_or_default(),
        labels: claim.labels().clone(),
        annotations: OldClaim::own_annotations(claim.annotations()),
        owners: owners
            .filter_map(|owner| serde_json::to_value(owner).ok())
            .collect(),
        spec: claim
            .spec
            .as_ref()
            .and_then(|spec| serde_json::to_value(spec).ok())
            .unwrap_or(Value::Null),
    }
}

/// The current old claim, if it was changed since it was recorded and is not being deleted.
pub(super) fn changed_since(
    recorded: &OldClaim,
    claim: Option<&PersistentVolumeClaim>,
    namespace_uid: &str,
) -> Option<OldClaim> {
    let is_old = |claim: &&PersistentVolumeClaim| {
        claim.metadata.uid.as_deref() == Some(&recorded.uid) && claim.metadata.deletion_timestamp.is_none()
    };
    let now = old_claim(claim.filter(is_old)?, namespace_uid);
    (now != *recorded).then_some(now)
}

/// The `claimRef` for an existing claim.
pub(super) fn reference(claim: &PersistentVolumeClaim) -> Value {
    let mut reference = claim_ref(&claim.namespace().unwrap_or_default(), &claim.name_any());
    reference["uid"] = claim.uid().into();
    reference
}

/// Changes a PV in exactly this version, as [`change`] does.
pub(super) async fn change_volume(
    context: &Context<'_>,
    volume: &PersistentVolume,
    annotations: &Value,
    spec: Option<Value>,
    step: Step,
) -> Result<bool, ApiError> {
    change(&context.cluster.all(), volume, annotations, spec, step).await
}

/// Changes an object in exactly this version. False after a conflict: it has to be observed again.
pub(super) async fn change<K>(
    objects: &Objects<K>,
    object: &K,
    annotations: &Value,
    spec: Option<Value>,
    step: Step,
) -> Result<bool, ApiError>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    let mut patch = json!({"metadata": {
        "uid": object.uid(),
        "resourceVersion": object.resource_version(),
        "annotations": annotations,
    }});
    if let Some(spec) = spec {
        patch["spec"] = spec;
    }
    let changed = crash::around(step, objects.merge(&object.name_any(), &patch)).await;
    Ok(unless_conflict(changed)?.is_some())
}

/// Deletes an object in exactly this version.
pub(super) async fn delete<K>(objects: &Objects<K>, object: &K, step: Step) -> Result<(), ApiError>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    let exactly = Precondition {
        uid: object.uid().unwrap_or_default(),
        resource_version: object.resource_version(),
    };
    match crash::around(step, objects.delete(&object.name_any(), exactly)).await {
        Err(error) if error.is_conflict() => Ok(()),
        other => other,
    }
}

/// Writes the mark of an undo on a claim, so that a concurrent deletion of the version before fails; or
/// removes the mark.
pub(super) async fn touch(
    context: &Context<'_>,
    claim: &PersistentVolumeClaim,
    key: &str,
    touched: bool,
    step: Step,
) -> Result<(), ApiError> {
    let claims = context
        .cluster
        .within::<PersistentVolumeClaim>(&claim.namespace().unwrap_or_default());
    let mut patch = json!({"metadata": {"uid": claim.uid(), "annotations": {}}});
    patch["metadata"]["annotations"][key] = if touched { "true".into() } else { Value::Null };
    let done = crash::around(step, claims.merge(&claim.name_any(), &patch)).await;
    unless_conflict(done).map(drop)
}
