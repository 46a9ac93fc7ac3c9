//! The steps that undo a release, taken one after the other.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use serde_json::json;

use super::{
    TwinMark, in_words,
    look::{Looking, Scene},
    mark_twin, real_claim,
    sidecars::Sidecars,
    unmark_stray,
};
use crate::{
    Context, ImportRequest, TransferError, Waiting,
    again::{make_again, wake},
    import,
    look::BOUND_BY_CONTROLLER,
    naming::reference_to,
    observe::crash::{self, Step},
    placement::transfer::{ReleaseProgress, ReleaseUndoFacts, ReleaseUndoStep, release_undo_step},
    twin::remove_finalizer,
    volume::{ClaimName, ImportRecord, ReleaseRecord, mark},
    writing::{Making, change_volume, reference, touch},
};

/// Undoes the release of a claim, or goes on undoing it.
pub async fn undo_release(context: &Context<'_>, name: &ClaimName) -> Result<(), TransferError> {
    let mut looking = Looking::default();
    let mut waiting = Waiting::new(context);
    let mut sidecars = Sidecars::default();
    let mut making = Making::default();
    let mut ended: Option<&'static str> = None;
    loop {
        let scene = Box::pin(looking.look(context, name)).await?;
        if unmark_stray(context, &mut waiting, &scene).await? {
            continue;
        }
        if ended.is_some() && scene.progress() == ReleaseProgress::Onward {
            // Somebody has begun anew.
            return Ok(());
        }
        let step = release_undo_step(&ReleaseUndoFacts {
            claim: scene.claim_now(),
            progress: scene.progress(),
            secured: scene.is_secured(),
            virtual_volume: scene.virtual_now(),
            twin: scene.twin_now(),
            holder: scene.real_holder(),
            needs_wake: scene.is_overlooked(scene.outer.as_ref()),
            importing: scene.importing,
        });
        if context.dry_run {
            return plan(context, name, &step);
        }
        match step {
            ReleaseUndoStep::Done => {
                (context.tell)(ended.unwrap_or("there is no release to undo"));
                return Ok(());
            }
            ReleaseUndoStep::Refuse(refusal) => {
                return Err(TransferError::StillReleased(name.clone(), refusal));
            }
            ReleaseUndoStep::Import => return again(context, name).await,
            ReleaseUndoStep::AwaitClaimGone => waiting.for_others("the claim is to be gone", None).await?,
            ReleaseUndoStep::AwaitVirtualGone => {
                if let Some(outer) = &scene.outer {
                    let secured = scene.is_secured();
                    Box::pin(sidecars.let_go(context, &mut waiting, outer, secured)).await?;
                }
            }
            ReleaseUndoStep::AwaitTwinGone => {
                if let Some(twin) = &scene.twin {
                    remove_finalizer(context.cluster, twin).await?;
                }
                waiting.for_others("the twin is to be gone", None).await?;
            }
            ReleaseUndoStep::AwaitBound => {
                waiting
                    .for_others("Kubernetes is to bind the claim to its PersistentVolume", None)
                    .await?;
            }
            ReleaseUndoStep::RemakeClaim => {
                if let Some(record) = &scene.record {
                    let claim = record.claim.as_before(&record.volume.name);
                    Box::pin(make_again(context, claim, &mut making, Step::UnreleaseMake)).await?;
                }
                waiting.after(&step, &written(&scene, &step)).await?;
            }
            step => {
                let is_last = Box::pin(take(context, &scene, &step)).await?;
                waiting.after(&step, &written(&scene, &step)).await?;
                if is_last {
                    ended = Some(match step {
                        ReleaseUndoStep::RestoreRetained => {
                            "the release is undone; the driver makes the twin again, of the same PersistentVolume"
                        }
                        _ => "everything is as it was before the release",
                    });
                    // From now on its user may delete it.
                    looking = Looking::default();
                }
            }
        }
    }
}

/// What a step writes.
fn written(scene: &Scene, step: &ReleaseUndoStep) -> String {
    use ReleaseUndoStep::{
        GiveVirtual, RemakeVirtual, Restore, RestoreRetained, RestoreVirtual, ToImport, TouchTwin,
        UnmarkTwin, Withdraw,
    };
    let volume = |name: &str| format!("the PersistentVolume {name}");
    match (step, &scene.outer, &scene.twin, &scene.real, &scene.record) {
        (Withdraw | Restore | RestoreRetained | ToImport, _, _, Some(real), _) => volume(&real.name_any()),
        (GiveVirtual | RestoreVirtual, Some(outer), ..) => volume(&outer.name_any()),
        (RemakeVirtual, .., Some(record)) => volume(&record.volume.name),
        (TouchTwin | UnmarkTwin, _, Some(twin), ..) => in_words(twin),
        _ => format!("the claim {}", scene.name),
    }
}

fn plan(context: &Context<'_>, name: &ClaimName, step: &ReleaseUndoStep) -> Result<(), TransferError> {
    match step {
        ReleaseUndoStep::Refuse(refusal) => {
            return Err(TransferError::StillReleased(name.clone(), refusal.clone()));
        }
        ReleaseUndoStep::Done => (context.tell)("there is no release to undo"),
        step => (context.tell)(&format!(
            "the claim would be a volume of this driver as before; next {}",
            step.in_words()
        )),
    }
    Ok(())
}

/// What the driver had made is gone: it makes it anew, of the same PV.
async fn again(context: &Context<'_>, name: &ClaimName) -> Result<(), TransferError> {
    (context.tell)("the volume is imported again");
    let request = ImportRequest {
        claim: name.clone(),
        class: None,
        // It was in nobody else's care, or that was accepted.
        force_managed: true,
    };
    Box::pin(import(context, &request)).await
}

/// Takes a step. True if there is nothing left to undo after it.
async fn take(context: &Context<'_>, scene: &Scene, step: &ReleaseUndoStep) -> Result<bool, TransferError> {
    match (step, &scene.claim, &scene.outer, &scene.twin) {
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
            // Else it was marked, and not yet recorded.
            return Ok(unmarked && scene.record.is_none());
        }
        (ReleaseUndoStep::TouchTwin, _, _, Some(twin)) => {
            mark_twin(context, twin, TwinMark::Undone, Step::UnreleaseTouchTwin).await?;
        }
        (ReleaseUndoStep::Wake, Some(claim), ..) => wake(context, claim, Step::UnreleaseWake).await?,
        (ReleaseUndoStep::GiveVirtual, Some(claim), Some(outer), _) => {
            let spec = json!({"claimRef": reference(claim)});
            let annotations = json!({BOUND_BY_CONTROLLER: null});
            change_volume(context, outer, &annotations, Some(spec), Step::UnreleaseGive).await?;
        }
        _ => {
            if let (Some(real), Some(record)) = (&scene.real, &scene.record) {
                return from_record(context, scene, step, real, record).await;
            }
        }
    }
    Ok(false)
}

/// The steps that need the record.
async fn from_record(
    context: &Context<'_>,
    scene: &Scene,
    step: &ReleaseUndoStep,
    real: &PersistentVolume,
    record: &ReleaseRecord,
) -> Result<bool, TransferError> {
    match (step, &scene.outer) {
        (ReleaseUndoStep::Withdraw, _) => {
            (context.tell)("the release does not go on any more; the real PersistentVolume is retained");
            let mut undone = record.clone();
            undone.undone = true;
            let annotations = json!({
                mark::RELEASE: undone.to_annotation()?,
                mark::POLICY_BEFORE: null,
                BOUND_BY_CONTROLLER: null,
            });
            let spec = scene.secure_spec(real, record);
            change_volume(context, real, &annotations, Some(spec), Step::UnreleaseWithdraw).await?;
        }
        (ReleaseUndoStep::WithdrawVirtual, Some(outer)) => {
            let spec = json!({"claimRef": reference_to(&scene.name, &record.claim.uid)});
            let annotations = json!({BOUND_BY_CONTROLLER: null});
            change_volume(context, outer, &annotations, Some(spec), Step::UnreleaseGive).await?;
        }
        (ReleaseUndoStep::RemakeVirtual, _) => {
            (context.tell)("the virtual PersistentVolume is made again");
            let outer = serde_json::from_value(record.volume.again(&scene.name, &record.claim.uid))?;
            let volumes = context.cluster.all::<PersistentVolume>();
            // None: somebody was faster; the next look tells who.
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
                (context.tell)("both PersistentVolumes have their reclaim policies back");
            }
            return Ok(restored);
        }
        (ReleaseUndoStep::RestoreRetained, _) => {
            (context.tell)(
                "somebody has deleted the twin; the real PersistentVolume stays retained until the driver has made the twin again",
            );
            let annotations = json!({mark::RELEASE: null, mark::POLICY_BEFORE: record.given_back()});
            return Ok(change_volume(context, real, &annotations, None, Step::UnreleaseRestore).await?);
        }
        (ReleaseUndoStep::ToImport, _) => to_import(context, scene, real, record).await?,
        // Steps come from what is there.
        _ => {}
    }
    Ok(false)
}

/// The record of the release becomes that of an import: undone in turn, that would leave what
/// the release was to leave.
async fn to_import(
    context: &Context<'_>,
    scene: &Scene,
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
        mark::ADOPT_FOR: scene.name.to_string(),
    });
    // Named by name only it would be bound to the claim, whatever its class, before it is adopted.
    let spec = json!({"claimRef": reference_to(&record.twin(), &record.twin_uid)});
    change_volume(context, real, &annotations, Some(spec), Step::UnreleaseImport).await?;
    Ok(())
}
