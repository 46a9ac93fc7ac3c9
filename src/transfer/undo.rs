//! The steps that undo an import, taken one after the other.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{
    Context, TransferError, Waiting,
    look::{Looking, Scene},
};
use crate::{
    cluster::{ApiError, Objects, Precondition, unless_conflict},
    observe::crash::{self, Step},
    placement::transfer::{Progress, UndoFacts, UndoStep, undo_step},
    twin::{claim_ref, remove_finalizer},
    volume::{ClaimName, ImportRecord, mark},
};

/// Undoes the import of a claim, or goes on undoing it.
pub(crate) async fn undo_import(context: &Context<'_>, name: &ClaimName) -> Result<(), TransferError> {
    let mut looking = Looking::default();
    let mut waiting = Waiting::new(context);
    let mut restored = false;
    loop {
        let scene = Box::pin(looking.look(context.cluster, name)).await?;
        if restored && scene.progress() == Progress::Permitted {
            // Somebody has begun anew.
            return Ok(());
        }
        let step = undo_step(&UndoFacts {
            claim: scene.claim_now(),
            progress: scene.progress(),
            holder: Box::pin(scene.holder(context)).await?,
        });
        if context.dry_run {
            return plan(context, name, step);
        }
        match step {
            UndoStep::Done => {
                (context.tell)(if restored {
                    "everything is as it was before the import"
                } else {
                    "there is no import to undo"
                });
                return Ok(());
            }
            UndoStep::Refuse(refusal) => return Err(TransferError::NotUndone(name.clone(), refusal)),
            UndoStep::AwaitClaimGone => waiting.for_others("the claim is to be gone", None).await?,
            UndoStep::AwaitTwinGone => {
                Box::pin(let_go(context, &scene)).await?;
                waiting.for_others("the twin is to be gone", None).await?;
            }
            UndoStep::AwaitBound => {
                waiting
                    .for_others("Kubernetes is to bind the claim to its PersistentVolume", None)
                    .await?;
            }
            UndoStep::Restore => {
                restored |= Box::pin(restore(context, &scene)).await?;
            }
            step => Box::pin(take(context, &scene, &step)).await?,
        }
    }
}

fn plan(context: &Context<'_>, name: &ClaimName, step: UndoStep) -> Result<(), TransferError> {
    match step {
        UndoStep::Refuse(refusal) => Err(TransferError::NotUndone(name.clone(), refusal)),
        UndoStep::Done => {
            (context.tell)("there is no import to undo");
            Ok(())
        }
        step => {
            (context.tell)(&format!(
                "the claim would get its PersistentVolume back; next {}",
                step.in_words()
            ));
            Ok(())
        }
    }
}

async fn take(context: &Context<'_>, scene: &Scene, step: &UndoStep) -> Result<(), TransferError> {
    let claims = context
        .cluster
        .within::<PersistentVolumeClaim>(&scene.name.namespace);
    match (step, &scene.claim, &scene.volume, &scene.record) {
        (UndoStep::Forbid, _, Some(volume), _) => {
            (context.tell)("the PersistentVolume may not be adopted any more");
            let annotations = json!({mark::ADOPT_FOR: null});
            change(context, volume, &annotations, None, Step::UndoForbid).await?;
        }
        (UndoStep::Touch, Some(claim), ..) => {
            let patch = touched(claim, json!("true"));
            let done = crash::around(Step::UndoTouch, claims.merge(&scene.name.name, &patch)).await;
            unless_conflict(done)?;
        }
        (UndoStep::Untouch, Some(claim), ..) => untouch(context, claim).await?,
        (UndoStep::DeleteNew, Some(claim), ..) => {
            (context.tell)("the claim that asks for the PersistentVolume is deleted");
            delete(&claims, claim, Step::UndoDelete).await?;
        }
        (UndoStep::DeleteTwin, ..) => {
            if let Some(twin) = scene.twin(context).await? {
                (context.tell)("the twin is deleted; its PersistentVolume is retained");
                let twins = context
                    .cluster
                    .within::<PersistentVolumeClaim>(context.storage_namespace);
                delete(&twins, &twin, Step::UndoTwin).await?;
            }
        }
        (UndoStep::GiveBack, _, Some(volume), _) => {
            let spec = json!({"claimRef": claim_ref(&scene.name.namespace, &scene.name.name)});
            change(context, volume, &json!({}), Some(spec), Step::UndoGiveBack).await?;
        }
        (UndoStep::Remake, _, Some(volume), Some(record)) => {
            (context.tell)("the claim is made again as it was");
            let claim = serde_json::from_value(record.claim.as_before(&volume.name_any()))?;
            // None: somebody was faster; the next look tells who.
            crash::around(Step::UndoRemake, claims.create(&claim)).await?;
        }
        (UndoStep::TellVolume, Some(claim), Some(volume), _) => {
            let patch = json!({
                "metadata": {"uid": claim.uid(), "resourceVersion": claim.resource_version()},
                "spec": {"volumeName": volume.name_any()},
            });
            let done = crash::around(Step::UndoTell, claims.merge(&scene.name.name, &patch)).await;
            unless_conflict(done)?;
        }
        // Steps come from what is there.
        _ => {}
    }
    Ok(())
}

/// Takes our finalizer off the twin that is being deleted.
async fn let_go(context: &Context<'_>, scene: &Scene) -> Result<(), ApiError> {
    match scene.twin(context).await? {
        Some(twin) => remove_finalizer(context.cluster, &twin).await.map(drop),
        None => Ok(()),
    }
}

/// The PV gets its reclaim policy back, and forgets all the rest in the same write.
async fn restore(context: &Context<'_>, scene: &Scene) -> Result<bool, TransferError> {
    let (Some(volume), Some(ImportRecord { policy, .. })) = (&scene.volume, &scene.record) else {
        return Ok(false);
    };
    let annotations = json!({mark::IMPORT: null, mark::ADOPT_FOR: null});
    let spec = json!({"persistentVolumeReclaimPolicy": policy});
    let restored = change(context, volume, &annotations, Some(spec), Step::UndoRestore).await?;
    if restored {
        (context.tell)(&format!(
            "the PersistentVolume has its reclaim policy {policy} back"
        ));
    }
    Ok(restored)
}

/// False if the PV has changed meanwhile and has to be looked at again.
async fn change(
    context: &Context<'_>,
    volume: &PersistentVolume,
    annotations: &Value,
    spec: Option<Value>,
    step: Step,
) -> Result<bool, TransferError> {
    let mut patch = json!({"metadata": {
        "uid": volume.uid(),
        "resourceVersion": volume.resource_version(),
        "annotations": annotations,
    }});
    if let Some(spec) = spec {
        patch["spec"] = spec;
    }
    let volumes = context.cluster.all::<PersistentVolume>();
    let changed = crash::around(step, volumes.merge(&volume.name_any(), &patch)).await;
    Ok(unless_conflict(changed)?.is_some())
}

/// Deletes this claim in exactly this version: one that is bound meanwhile may be a volume
/// whose import has ended, and whose PV is retained no more. The next look tells.
async fn delete(
    claims: &Objects<PersistentVolumeClaim>,
    claim: &PersistentVolumeClaim,
    step: Step,
) -> Result<(), ApiError> {
    let exactly = Precondition {
        uid: claim.uid().unwrap_or_default(),
        resource_version: claim.resource_version(),
    };
    match crash::around(step, claims.delete(&claim.name_any(), exactly)).await {
        Err(error) if error.is_conflict() => Ok(()),
        other => other,
    }
}

fn touched(claim: &PersistentVolumeClaim, value: Value) -> Value {
    let mut patch = json!({"metadata": {"uid": claim.uid(), "annotations": {}}});
    patch["metadata"]["annotations"][mark::IMPORT_UNDONE] = value;
    patch
}

/// Takes the mark of an undo off the claim.
pub(super) async fn untouch(context: &Context<'_>, claim: &PersistentVolumeClaim) -> Result<(), ApiError> {
    let claims = context
        .cluster
        .within::<PersistentVolumeClaim>(&claim.namespace().unwrap_or_default());
    let patch = touched(claim, Value::Null);
    let done = crash::around(Step::UndoUntouch, claims.merge(&claim.name_any(), &patch)).await;
    unless_conflict(done).map(drop)
}
