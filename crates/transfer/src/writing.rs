//! The writes that imports, releases and their undoing have in common. Each is made on exactly
//! what was looked at; whoever was faster is seen by the next look.

use std::fmt::Debug;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{Resource, ResourceExt};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    Context, TransferError,
    owners::{Why, drop_unseen_owners, keep_and_tell},
    waiting::ATTEMPTS,
};
use crate::{
    cluster::{ApiError, Objects, Precondition, unless_conflict},
    observe::crash::{self, Step},
    placement::transfer::Obstacle,
    twin::claim_ref,
    volume::OldClaim,
};

/// Makes the new claim, and remembers why that may not be.
#[derive(Default)]
pub(super) struct Making {
    attempts: u32,
    /// The owners without which it is made.
    dropped: Vec<String>,
    pub(super) unmakeable: Option<String>,
}

impl Making {
    /// Whether it is tried for the first time.
    pub(super) fn is_first(&self) -> bool {
        self.attempts == 0
    }

    pub(super) async fn make(
        &mut self,
        context: &Context<'_>,
        mut claim: PersistentVolumeClaim,
        step: Step,
    ) -> Result<(), TransferError> {
        let claims = context
            .cluster
            .within::<PersistentVolumeClaim>(&claim.namespace().unwrap_or_default());
        keep_and_tell(context, &mut claim, &mut self.dropped).await?;
        let made = crash::around(step, claims.create(&claim)).await;
        let Err(error) = made else {
            // Or somebody was faster: the next look tells who.
            return Ok(());
        };
        self.attempts += 1;
        // Quotas count the old claim for a moment after it is gone.
        let may_pass = error.is_forbidden() && self.attempts < ATTEMPTS;
        let why = refused(error)?;
        if !may_pass {
            self.unmakeable = Some(why);
        }
        Ok(())
    }
}

/// What speaks against making a claim: owners that cannot be read; quotas, policies and rights,
/// tried under another name.
pub(super) async fn speaks_against(
    context: &Context<'_>,
    mut claim: PersistentVolumeClaim,
    what: &str,
) -> Result<Vec<Obstacle>, ApiError> {
    let mut found = Vec::new();
    for dropped in drop_unseen_owners(context, &mut claim).await {
        if let Why::Unreadable(error) = dropped.why {
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

/// What the API server says, if it is a refusal of this content.
pub(super) fn refused(error: ApiError) -> Result<String, ApiError> {
    if error.is_refusal() {
        Ok(error.to_string())
    } else {
        Err(error)
    }
}

/// What is remembered of a claim.
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

/// The old claim as it is now, if somebody has changed it since it was recorded, and it is not being
/// deleted.
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

/// How a PV names a claim that exists.
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

/// Changes an object in exactly this version. False if it has another one meanwhile and has to be
/// looked at again.
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

/// Writes the mark of an undo on a claim, so that whoever would delete it has an older version;
/// or takes the mark off.
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
