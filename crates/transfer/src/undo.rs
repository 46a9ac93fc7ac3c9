//! The steps that undo an import, taken one after the other.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use serde_json::json;

use super::{
    Context, TransferError, Waiting,
    again::{make_again, wake},
    look::{BOUND_BY_CONTROLLER, Looking, Scene},
    writing::{Making, change_volume, delete, reference, touch},
};
use crate::{
    cluster::ApiError,
    observe::crash::Step,
    placement::transfer::{Progress, UndoFacts, UndoStep, undo_step},
    twin::remove_finalizer,
    volume::{ClaimName, ImportRecord, mark},
};

/// Undoes the import of a claim, or goes on undoing it.
pub async fn undo_import(context: &Context<'_>, name: &ClaimName) -> Result<(), TransferError> {
    let mut looking = Looking::default();
    let mut waiting = Waiting::new(context);
    let mut making = Making::default();
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
            secured: scene.is_secured(),
            holder: Box::pin(scene.holder(context)).await?,
            needs_wake: scene.is_overlooked(),
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
                if Box::pin(restore(context, &scene)).await? {
                    restored = true;
                    // From now on its user may delete it.
                    looking = Looking::default();
                }
                waiting.after(&step, &written(&scene, &step)).await?;
            }
            step => {
                match step {
                    UndoStep::Remake => Box::pin(remake(context, &scene, &mut making)).await?,
                    _ => Box::pin(take(context, &scene, &step)).await?,
                }
                waiting.after(&step, &written(&scene, &step)).await?;
            }
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
        (UndoStep::Forbid, _, Some(volume), Some(record)) => {
            (context.tell)("the PersistentVolume is retained, and may not be adopted any more");
            let annotations =
                json!({mark::ADOPT_FOR: null, mark::POLICY_BEFORE: null, BOUND_BY_CONTROLLER: null});
            let spec = scene.secure_spec(volume, record);
            change_volume(context, volume, &annotations, Some(spec), Step::UndoForbid).await?;
        }
        (UndoStep::Touch, Some(claim), ..) => {
            touch(context, claim, mark::IMPORT_UNDONE, true, Step::UndoTouch).await?;
        }
        (UndoStep::Untouch, Some(claim), ..) => {
            touch(context, claim, mark::IMPORT_UNDONE, false, Step::UndoUntouch).await?;
        }
        (UndoStep::DeleteNew, Some(claim), ..) => {
            (context.tell)("the claim that asks for the PersistentVolume is deleted");
            // One that is bound meanwhile may be a volume whose import has ended, and whose PV is
            // retained no more: that is another version.
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
        (UndoStep::GiveBack, Some(claim), Some(volume), _) => {
            let spec = json!({"claimRef": reference(claim)});
            change_volume(context, volume, &json!({}), Some(spec), Step::UndoGiveBack).await?;
        }
        (UndoStep::Wake, Some(claim), ..) => wake(context, claim, Step::UndoWake).await?,
        // Steps come from what is there.
        _ => {}
    }
    Ok(())
}

/// What a step writes.
fn written(scene: &Scene, step: &UndoStep) -> String {
    match (step, &scene.volume) {
        (UndoStep::Forbid | UndoStep::GiveBack | UndoStep::Restore, Some(volume)) => {
            format!("the PersistentVolume {}", volume.name_any())
        }
        (UndoStep::DeleteTwin, _) => format!("the twin of the claim {}", scene.name),
        _ => format!("the claim {}", scene.name),
    }
}

/// The claim comes back as it was.
async fn remake(context: &Context<'_>, scene: &Scene, making: &mut Making) -> Result<(), TransferError> {
    if let (Some(volume), Some(record)) = (&scene.volume, &scene.record) {
        let claim = record.claim.as_before(&volume.name_any());
        make_again(context, claim, making, Step::UndoRemake).await?;
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
    let restored = change_volume(context, volume, &annotations, Some(spec), Step::UndoRestore).await?;
    if restored {
        (context.tell)(&format!(
            "the PersistentVolume has its reclaim policy {policy} back"
        ));
    }
    Ok(restored)
}
