//! A claim that is made again as it was, and how it is bound without delay.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{
    Context, TransferError,
    writing::{Making, change},
};
use crate::{
    cluster::ApiError,
    observe::crash::Step,
    volume::{ClaimName, mark},
};

/// Makes a claim as it was, as an undo does.
pub(super) async fn make_again(
    context: &Context<'_>,
    claim: Value,
    making: &mut Making,
    step: Step,
) -> Result<(), TransferError> {
    let claim: PersistentVolumeClaim = serde_json::from_value(claim)?;
    let name = ClaimName {
        namespace: claim.namespace().unwrap_or_default(),
        name: claim.name_any(),
    };
    if making.is_first() {
        (context.tell)("the claim is made again as it was");
    }
    making.make(context, claim, step).await?;
    match making.unmakeable.take() {
        Some(why) => Err(TransferError::NotMadeAgain { claim: name, why }),
        None => Ok(()),
    }
}

/// Takes the mark off a claim that it was made with. Kubernetes looks at a claim when that changes, and
/// not when a PV names it, as one does by now; it would see so only in its next round.
pub(super) async fn wake(
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
