//! The writes that imports, releases and their undoing have in common. Each is made on exactly
//! what was looked at; whoever was faster is seen by the next look.

use std::fmt::Debug;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{Resource, ResourceExt};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{Context, TransferError, owners::keep_living_owners, waiting::ATTEMPTS};
use crate::{
    cluster::{ApiError, Objects, Precondition, unless_conflict},
    observe::crash::{self, Step},
    twin::claim_ref,
    volume::OldClaim,
};

/// Makes the new claim, and remembers why that may not be.
#[derive(Default)]
pub(super) struct Making {
    attempts: u32,
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
        keep_living_owners(context, &mut claim).await?;
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

/// Whether quotas, policies and rights let a claim be made, tried under another name.
pub(super) async fn would_not_be_accepted(
    context: &Context<'_>,
    mut claim: PersistentVolumeClaim,
    what: &str,
) -> Result<Option<String>, ApiError> {
    claim.metadata.name = Some(format!("{what}-check-{}", uuid::Uuid::new_v4()));
    let claims = context
        .cluster
        .within::<PersistentVolumeClaim>(&claim.namespace().unwrap_or_default());
    match claims.try_create(&claim).await {
        Ok(()) => Ok(None),
        Err(error) => refused(error).map(Some),
    }
}

/// What the API server says, if it is a refusal of this content.
fn refused(error: ApiError) -> Result<String, ApiError> {
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
