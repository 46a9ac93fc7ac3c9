//! Runs the steps that undo a release.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use serde_json::json;

use super::{
    TwinMark, describe_twin, mark_twin,
    observer::{Observed, Observer},
    real_claim,
    sidecars::Sidecars,
    unmark_stray,
};
use crate::{
    Context, ImportRequest, ObjectMissing, TransferError, Waiter,
    claim_ref::reference_to,
    import,
    observe::crash::{self, Step},
    observer::BOUND_BY_CONTROLLER,
    placement::transfer::{ReleaseProgress, ReleaseUndoFacts, ReleaseUndoStep, release_undo_step},
    recreate::{recreate, trigger_binding},
    twin::remove_finalizer,
    volume::{ClaimName, ImportRecord, ReleaseRecord, mark},
    writing::{Creation, change_volume, reference, touch},
};

/// Undoes the release of a claim, or continues an undo.
pub async fn undo_release(context: &Context<'_>, name: &ClaimName) -> Result<(), TransferError> {
    let mut reads = Observer::default();
    let mut waiter = Waiter::new(context);
    let mut sidecars = Sidecars::default();
    let mut creation = Creation::default();
    let mut ended: Option<&'static str> = None;
    loop {
        let observed = Box::pin(reads.observe(context, name)).await?;
        if unmark_stray(context, &mut waiter, &observed).await? {
            continue;
        }
        if ended.is_some() && observed.progress() == ReleaseProgress::Onward {
            // Another release has begun.
            return Ok(());
        }
        let step = release_undo_step(&ReleaseUndoFacts {
            claim: observed.claim_now(),
            progress: observed.progress(),
            secured: observed.is_secured(),
            virtual_volume: observed.virtual_now(),
            twin: observed.twin_now(),
            holder: observed.real_holder(),
            needs_wake: observed.is_overlooked(observed.outer.as_ref()),
            importing: observed.importing,
        });
        if context.dry_run {
            return plan(context, name, &step);
        }
        match step {
            ReleaseUndoStep::Done => {
                (context.report)(ended.unwrap_or("there is no release to undo"));
                return Ok(());
            }
            ReleaseUndoStep::Refuse(refusal) => {
                return Err(TransferError::StillReleased(name.clone(), refusal));
            }
            ReleaseUndoStep::Import => return reimport(context, name).await,
            ReleaseUndoStep::AwaitClaimGone => {
                waiter
                    .wait_for("waiting for the claim to be deleted", None)
                    .await?;
            }
            ReleaseUndoStep::AwaitVirtualGone => {
                let outer = observed.outer.as_ref();
                let outer = outer.ok_or_else(|| ObjectMissing::of(&step))?;
                let secured = observed.is_secured();
                Box::pin(sidecars.await_finalizers(context, &mut waiter, outer, secured)).await?;
            }
            ReleaseUndoStep::AwaitTwinGone => {
                if let Some(twin) = &observed.twin {
                    remove_finalizer(context.cluster, twin).await?;
                }
                waiter
                    .wait_for("waiting for the twin to be deleted", None)
                    .await?;
            }
            ReleaseUndoStep::AwaitBound => {
                waiter
                    .wait_for(
                        "waiting for Kubernetes to bind the claim to its PersistentVolume",
                        None,
                    )
                    .await?;
            }
            ReleaseUndoStep::RemakeClaim => {
                let record = observed.record.as_ref();
                let record = record.ok_or_else(|| ObjectMissing::of(&step))?;
                let claim = record.claim.as_before(&record.volume.name);
                Box::pin(recreate(context, claim, &mut creation, Step::UnreleaseMake)).await?;
                waiter
                    .after_step(&step, &written_object(&observed, &step))
                    .await?;
            }
            step => {
                let is_last = Box::pin(take(context, &observed, &step)).await?;
                waiter
                    .after_step(&step, &written_object(&observed, &step))
                    .await?;
                if is_last {
                    ended = Some(match step {
                        ReleaseUndoStep::RestoreRetained => {
                            "the release is undone; the driver creates the twin again, with the same PersistentVolume"
                        }
                        _ => "the state before the release is restored",
                    });
                    // From now on a deletion of the PV is no error.
                    reads = Observer::default();
                }
            }
        }
    }
}

/// The object that a step writes.
fn written_object(observed: &Observed, step: &ReleaseUndoStep) -> String {
    use ReleaseUndoStep::{
        GiveVirtual, RemakeVirtual, Restore, RestoreRetained, RestoreVirtual, ToImport, TouchTwin,
        UnmarkTwin, Withdraw,
    };
    let volume = |name: &str| format!("the PersistentVolume {name}");
    match (
        step,
        &observed.outer,
        &observed.twin,
        &observed.real,
        &observed.record,
    ) {
        (Withdraw | Restore | RestoreRetained | ToImport, _, _, Some(real), _) => volume(&real.name_any()),
        (GiveVirtual | RestoreVirtual, Some(outer), ..) => volume(&outer.name_any()),
        (RemakeVirtual, .., Some(record)) => volume(&record.volume.name),
        (TouchTwin | UnmarkTwin, _, Some(twin), ..) => describe_twin(twin),
        _ => format!("the claim {}", observed.name),
    }
}

fn plan(context: &Context<'_>, name: &ClaimName, step: &ReleaseUndoStep) -> Result<(), TransferError> {
    match step {
        ReleaseUndoStep::Refuse(refusal) => {
            return Err(TransferError::StillReleased(name.clone(), refusal.clone()));
        }
        ReleaseUndoStep::Done => (context.report)("there is no release to undo"),
        step => (context.report)(&format!(
            "the claim would have a volume of this driver again; the next step: {}",
            step.in_words()
        )),
    }
    Ok(())
}

/// The objects of the driver are gone: creates them again by an import of the same PV.
async fn reimport(context: &Context<'_>, name: &ClaimName) -> Result<(), TransferError> {
    (context.report)("importing the volume again");
    let request = ImportRequest {
        claim: name.clone(),
        class: None,
        // When it was released, no tool managed it, or the user accepted that.
        force_managed: true,
    };
    Box::pin(import(context, &request)).await
}

/// Takes a step. True if nothing is left to undo after it.
async fn take(
    context: &Context<'_>,
    observed: &Observed,
    step: &ReleaseUndoStep,
) -> Result<bool, TransferError> {
    match (step, &observed.claim, &observed.outer, &observed.twin) {
        (ReleaseUndoStep::Touch, Some(claim), ..) => {
            touch(context, claim, mark::RELEASE_UNDONE, true, Step::UnreleaseTouch).await?;
        }
        (ReleaseUndoStep::Untouch, Some(claim), ..) => {
            touch(
                context,
                claim,
                mark::RELEASE_UNDONE,
                false,
                Step::UnreleaseUntouch,
            )
            .await?;
        }
        (ReleaseUndoStep::UnmarkTwin, _, _, Some(twin)) => {
            let unmarked = mark_twin(context, twin, TwinMark::Off, Step::UnreleaseMark).await?;
            // With a record, further steps follow.
            return Ok(unmarked && observed.record.is_none());
        }
        (ReleaseUndoStep::TouchTwin, _, _, Some(twin)) => {
            mark_twin(context, twin, TwinMark::Undone, Step::UnreleaseTouchTwin).await?;
        }
        (ReleaseUndoStep::Wake, Some(claim), ..) => {
            trigger_binding(context, claim, Step::UnreleaseWake).await?;
        }
        (ReleaseUndoStep::GiveVirtual, Some(claim), Some(outer), _) => {
            let spec = json!({"claimRef": reference(claim)});
            let annotations = json!({BOUND_BY_CONTROLLER: null});
            change_volume(context, outer, &annotations, Some(spec), Step::UnreleaseGive).await?;
        }
        _ => {
            let (Some(real), Some(record)) = (&observed.real, &observed.record) else {
                return Err(ObjectMissing::of(step).into());
            };
            return take_with_record(context, observed, step, real, record).await;
        }
    }
    Ok(false)
}

async fn take_with_record(
    context: &Context<'_>,
    observed: &Observed,
    step: &ReleaseUndoStep,
    real: &PersistentVolume,
    record: &ReleaseRecord,
) -> Result<bool, TransferError> {
    match (step, &observed.outer) {
        (ReleaseUndoStep::Withdraw, _) => {
            (context.report)("the release is stopped; the real PersistentVolume is retained");
            let mut undone = record.clone();
            undone.undone = true;
            let annotations = json!({
                mark::RELEASE: undone.to_annotation()?,
                mark::POLICY_BEFORE: null,
                BOUND_BY_CONTROLLER: null,
            });
            let spec = observed.secure_spec(real, record);
            change_volume(context, real, &annotations, Some(spec), Step::UnreleaseWithdraw).await?;
        }
        (ReleaseUndoStep::WithdrawVirtual, Some(outer)) => {
            let spec = json!({"claimRef": reference_to(&observed.name, &record.claim.uid)});
            let annotations = json!({BOUND_BY_CONTROLLER: null});
            change_volume(context, outer, &annotations, Some(spec), Step::UnreleaseGive).await?;
        }
        (ReleaseUndoStep::RemakeVirtual, _) => {
            (context.report)("creating the virtual PersistentVolume again");
            let outer = serde_json::from_value(record.volume.again(&observed.name, &record.claim.uid))?;
            let volumes = context.cluster.all::<PersistentVolume>();
            // `None`: another client was faster; the next observation shows it.
            crash::around(Step::UnreleaseVirtual, volumes.create(&outer)).await?;
        }
        (ReleaseUndoStep::RestoreVirtual, Some(outer)) => {
            let spec = json!({"persistentVolumeReclaimPolicy": record.volume.policy});
            change_volume(context, outer, &json!({}), Some(spec), Step::UnreleasePolicy).await?;
        }
        (ReleaseUndoStep::Restore, _) => {
            let annotations = json!({mark::RELEASE: null, mark::POLICY_BEFORE: record.replaced});
            let spec = json!({"persistentVolumeReclaimPolicy": record.policy});
            let restored =
                change_volume(context, real, &annotations, Some(spec), Step::UnreleaseRestore).await?;
            if restored {
                (context.report)("restored the reclaim policies of both PersistentVolumes");
            }
            return Ok(restored);
        }
        (ReleaseUndoStep::RestoreRetained, _) => {
            (context.report)(
                "the twin was deleted; the real PersistentVolume stays retained until the driver has created the twin again",
            );
            let annotations = json!({mark::RELEASE: null, mark::POLICY_BEFORE: record.given_back()});
            return Ok(change_volume(context, real, &annotations, None, Step::UnreleaseRestore).await?);
        }
        (ReleaseUndoStep::ToImport, _) => to_import(context, observed, real, record).await?,
        _ => return Err(ObjectMissing::of(step).into()),
    }
    Ok(false)
}

/// Turns the record of the release into that of an import: undoing that import would lead to the result of
/// the release.
async fn to_import(
    context: &Context<'_>,
    observed: &Observed,
    real: &PersistentVolume,
    record: &ReleaseRecord,
) -> Result<(), TransferError> {
    let class = record.claim.spec["storageClassName"].as_str().unwrap_or_default();
    let import = ImportRecord::new(
        class.to_owned(),
        record.final_policy().to_owned(),
        real_claim(&record.claim, real),
    );
    let annotations = json!({
        mark::RELEASE: null,
        mark::IMPORT: import.to_annotation()?,
        mark::ADOPT_FOR: observed.name.to_string(),
    });
    // Named without a uid, the claim would be bound to it before it is adopted, whatever its class.
    let spec = json!({"claimRef": reference_to(&record.twin(), &record.twin_uid)});
    change_volume(context, real, &annotations, Some(spec), Step::UnreleaseImport).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{claim, empty_cluster, quiet};

    #[tokio::test]
    async fn a_step_without_its_object_is_an_error() {
        use ReleaseUndoStep::{
            GiveVirtual, RemakeVirtual, Restore, RestoreRetained, RestoreVirtual, ToImport, Touch, TouchTwin,
            UnmarkTwin, Untouch, Wake, Withdraw, WithdrawVirtual,
        };
        let (_api, cluster) = empty_cluster().await;
        let context = quiet(&cluster);
        let observed = Observer::default().observe(&context, &claim()).await.unwrap();
        for step in [
            Withdraw,
            WithdrawVirtual,
            Touch,
            TouchTwin,
            RemakeVirtual,
            GiveVirtual,
            Wake,
            RestoreVirtual,
            UnmarkTwin,
            Restore,
            RestoreRetained,
            Untouch,
            ToImport,
        ] {
            let taken = take(&context, &observed, &step).await;
            assert!(
                matches!(taken, Err(TransferError::ObjectMissing(_))),
                "{step:?}: {taken:?}"
            );
        }
    }
}
