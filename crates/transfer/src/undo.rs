//! Runs the steps that undo an import.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use serde_json::json;

use super::{
    Context, ObjectMissing, TransferError, Waiter,
    observer::{BOUND_BY_CONTROLLER, Observed, Observer},
    recreate::{recreate, trigger_binding},
    writing::{Creation, change_volume, delete, reference, touch},
};
use crate::{
    cluster::ApiError,
    observe::crash::Step,
    placement::transfer::{Progress, UndoFacts, UndoStep, undo_step},
    twin::remove_finalizer,
    volume::{ClaimName, ImportRecord, mark},
};

/// Undoes the import of a claim, or continues an undo.
pub async fn undo_import(context: &Context<'_>, name: &ClaimName) -> Result<(), TransferError> {
    let mut reads = Observer::default();
    let mut waiter = Waiter::new(context);
    let mut creation = Creation::default();
    let mut restored = false;
    loop {
        let observed = Box::pin(reads.observe(context.cluster, name)).await?;
        if restored && observed.progress() == Progress::Permitted {
            // Another import has begun.
            return Ok(());
        }
        let step = undo_step(&UndoFacts {
            claim: observed.claim_now(),
            progress: observed.progress(),
            secured: observed.is_secured(),
            holder: Box::pin(observed.holder(context)).await?,
            needs_wake: observed.is_overlooked(),
        });
        if context.dry_run {
            return plan(context, name, step);
        }
        match step {
            UndoStep::Done => {
                (context.report)(if restored {
                    "the state before the import is restored"
                } else {
                    "there is no import to undo"
                });
                return Ok(());
            }
            UndoStep::Refuse(refusal) => return Err(TransferError::NotUndone(name.clone(), refusal)),
            UndoStep::AwaitClaimGone => {
                waiter
                    .wait_for("waiting for the claim to be deleted", None)
                    .await?;
            }
            UndoStep::AwaitTwinGone => {
                Box::pin(remove_twin_finalizer(context, &observed)).await?;
                waiter
                    .wait_for("waiting for the twin to be deleted", None)
                    .await?;
            }
            UndoStep::AwaitBound => {
                waiter
                    .wait_for(
                        "waiting for Kubernetes to bind the claim to its PersistentVolume",
                        None,
                    )
                    .await?;
            }
            UndoStep::Restore => {
                if Box::pin(restore(context, &observed)).await? {
                    restored = true;
                    // From now on a deletion of the PV is no error.
                    reads = Observer::default();
                }
                waiter
                    .after_step(&step, &written_object(&observed, &step))
                    .await?;
            }
            step => {
                match step {
                    UndoStep::Remake => Box::pin(remake(context, &observed, &mut creation)).await?,
                    _ => Box::pin(take(context, &observed, &step)).await?,
                }
                waiter
                    .after_step(&step, &written_object(&observed, &step))
                    .await?;
            }
        }
    }
}

fn plan(context: &Context<'_>, name: &ClaimName, step: UndoStep) -> Result<(), TransferError> {
    match step {
        UndoStep::Refuse(refusal) => Err(TransferError::NotUndone(name.clone(), refusal)),
        UndoStep::Done => {
            (context.report)("there is no import to undo");
            Ok(())
        }
        step => {
            (context.report)(&format!(
                "the claim would get its PersistentVolume back; the next step: {}",
                step.in_words()
            ));
            Ok(())
        }
    }
}

async fn take(context: &Context<'_>, observed: &Observed, step: &UndoStep) -> Result<(), TransferError> {
    let claims = context
        .cluster
        .within::<PersistentVolumeClaim>(&observed.name.namespace);
    match (step, &observed.claim, &observed.volume, &observed.record) {
        (UndoStep::Forbid, _, Some(volume), Some(record)) => {
            (context.report)("the PersistentVolume is retained, and the driver may not adopt it any more");
            let annotations =
                json!({mark::ADOPT_FOR: null, mark::POLICY_BEFORE: null, BOUND_BY_CONTROLLER: null});
            let spec = observed.secure_spec(volume, record);
            change_volume(context, volume, &annotations, Some(spec), Step::UndoForbid).await?;
        }
        (UndoStep::Touch, Some(claim), ..) => {
            touch(context, claim, mark::IMPORT_UNDONE, true, Step::UndoTouch).await?;
        }
        (UndoStep::Untouch, Some(claim), ..) => {
            touch(context, claim, mark::IMPORT_UNDONE, false, Step::UndoUntouch).await?;
        }
        (UndoStep::DeleteNew, Some(claim), ..) => {
            (context.report)("deleting the claim that requests the PersistentVolume");
            // If the claim was bound meanwhile, its import may be complete and the PV not retained any more.
            // Then the claim has another version, and the deletion fails.
            delete(&claims, claim, Step::UndoDelete).await?;
        }
        (UndoStep::DeleteTwin, ..) => {
            if let Some(twin) = observed.twin(context).await? {
                (context.report)("deleting the twin; its PersistentVolume is retained");
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
        (UndoStep::Wake, Some(claim), ..) => trigger_binding(context, claim, Step::UndoWake).await?,
        _ => return Err(ObjectMissing::of(step).into()),
    }
    Ok(())
}

/// The object that a step writes.
fn written_object(observed: &Observed, step: &UndoStep) -> String {
    match (step, &observed.volume) {
        (UndoStep::Forbid | UndoStep::GiveBack | UndoStep::Restore, Some(volume)) => {
            format!("the PersistentVolume {}", volume.name_any())
        }
        (UndoStep::DeleteTwin, _) => format!("the twin of the claim {}", observed.name),
        _ => format!("the claim {}", observed.name),
    }
}

/// Creates the original claim again.
async fn remake(
    context: &Context<'_>,
    observed: &Observed,
    creation: &mut Creation,
) -> Result<(), TransferError> {
    let (Some(volume), Some(record)) = (&observed.volume, &observed.record) else {
        return Err(ObjectMissing::of(&UndoStep::Remake).into());
    };
    let claim = record.claim.as_before(&volume.name_any());
    recreate(context, claim, creation, Step::UndoRemake).await
}

/// Removes the driver's finalizer from the twin that is being deleted.
async fn remove_twin_finalizer(context: &Context<'_>, observed: &Observed) -> Result<(), ApiError> {
    match observed.twin(context).await? {
        Some(twin) => remove_finalizer(context.cluster, &twin).await.map(drop),
        None => Ok(()),
    }
}

/// Restores the reclaim policy of the PV, and removes the record in the same write.
async fn restore(context: &Context<'_>, observed: &Observed) -> Result<bool, TransferError> {
    let (Some(volume), Some(ImportRecord { policy, .. })) = (&observed.volume, &observed.record) else {
        return Err(ObjectMissing::of(&UndoStep::Restore).into());
    };
    let annotations = json!({mark::IMPORT: null, mark::ADOPT_FOR: null});
    let spec = json!({"persistentVolumeReclaimPolicy": policy});
    let restored = change_volume(context, volume, &annotations, Some(spec), Step::UndoRestore).await?;
    if restored {
        (context.report)(&format!(
            "restored the reclaim policy {policy} of the PersistentVolume"
        ));
    }
    Ok(restored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{claim, empty_cluster, quiet};

    #[tokio::test]
    async fn a_step_without_its_object_is_an_error() {
        use UndoStep::{DeleteNew, Forbid, GiveBack, Touch, Untouch, Wake};
        let (_api, cluster) = empty_cluster().await;
        let context = quiet(&cluster);
        let (mut reads, claim) = (Observer::default(), claim());
        let observed = Box::pin(reads.observe(&cluster, &claim)).await.unwrap();
        for step in [Forbid, Touch, Untouch, DeleteNew, GiveBack, Wake] {
            let taken = take(&context, &observed, &step).await;
            assert!(
                matches!(taken, Err(TransferError::ObjectMissing(_))),
                "{step:?}: {taken:?}"
            );
        }
        let remade = remake(&context, &observed, &mut Creation::default()).await;
        assert!(
            matches!(remade, Err(TransferError::ObjectMissing(_))),
            "{remade:?}"
        );
        let restored = restore(&context, &observed).await;
        assert!(
            matches!(restored, Err(TransferError::ObjectMissing(_))),
            "{restored:?}"
        );
    }
}
