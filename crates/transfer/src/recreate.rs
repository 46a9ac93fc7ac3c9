//! Creates the original claim again, and has it bound without delay.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{
    Context, TransferError,
    writing::{Creation, change},
};
use crate::{
    cluster::ApiError,
    observe::crash::Step,
    volume::{ClaimName, mark},
};

/// Creates the original claim again, for an undo.
pub(super) async fn recreate(
    context: &Context<'_>,
    claim: Value,
    creation: &mut Creation,
    step: Step,
) -> Result<(), TransferError> {
    let claim: PersistentVolumeClaim = serde_json::from_value(claim)?;
    let name = ClaimName {
        namespace: claim.namespace().unwrap_or_default(),
        name: claim.name_any(),
    };
    if creation.is_first() {
        (context.report)("creating the original claim again");
    }
    creation.create(context, claim, step).await?;
    match creation.unmakeable.take() {
        Some(why) => Err(TransferError::NotMadeAgain { claim: name, why }),
        None => Ok(()),
    }
}

/// Removes the mark with which a claim was created. The PV controller processes a claim when it changes, and
/// not when a PV names it, which is the case by now; otherwise it would notice only at its next resync.
pub(super) async fn trigger_binding(
    context: &Context<'_>,
    claim: &PersistentVolumeClaim,
    step: Step,
) -> Result<(), ApiError> {
    let claims = context
        .cluster
        .within::<PersistentVolumeClaim>(&claim.namespace().unwrap_or_default());
    let annotations = json!({mark::AWAITS_VOLUME: null});
    change(&claims, claim, &annotations, None, step).await.map(drop)
}
