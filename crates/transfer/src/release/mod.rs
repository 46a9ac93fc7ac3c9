//! Runs the steps of a release.

mod observer;
mod sidecars;
mod undo;

#[cfg(test)]
mod tests;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde_json::{Value, json};

pub use self::undo::undo_release;
use self::{
    observer::{Observed, Observer, class_of, volume_id},
    sidecars::Sidecars,
};
use super::{
    Context, ObjectMissing, TransferError, Waiter, environment,
    observer::BOUND_BY_CONTROLLER,
    recreate::trigger_binding,
    writing::{Creation, change, change_volume, delete, find_blockers, old_claim, reference, touch},
};
use crate::{
    cluster::ApiError,
    observe::crash::Step,
    placement::transfer::{
        Interruption, Obstacle, ReleaseFacts, ReleaseProgress, ReleaseStep, ReleasedClaim, ReleasedTwin,
        release_obstacles, release_step,
    },
    twin::{reclaim_policy, remove_finalizer, second_pvs},
    volume::{ClaimName, OldClaim, OldVolume, ReleaseRecord, Released, mark},
};

pub struct ReleaseRequest {
    pub claim: ClaimName,
    /// Whether claims that a deployment tool manages are released, too.
    pub force_managed: bool,
}

/// Releases a claim, or continues a release.
pub async fn release(context: &Context<'_>, request: &ReleaseRequest) -> Result<(), TransferError> {
    let mut reads = Observer::default();
    let mut waiter = Waiter::new(context);
    let mut sidecars = Sidecars::default();
    let mut run = Run {
        context,
        request,
        begun: false,
        seen_gone: false,
        creation: Creation::default(),
    };
    loop {
        let observed = Box::pin(reads.observe(context, &request.claim)).await?;
        if unmark_stray(context, &mut waiter, &observed).await? {
            continue;
        }
        let facts = Box::pin(run.facts(&observed)).await?;
        let is_over = matches!(facts.claim, ReleasedClaim::Real { bound: true, .. });
        if run.begun && facts.progress == ReleaseProgress::NotRecorded && !is_over {
            // The claim is read before the PV: in between, the claim may have been bound and the record
            // removed.
            if std::mem::replace(&mut run.seen_gone, true) {
                return Err(TransferError::Undone("release", request.claim.clone()));
            }
            continue;
        }
        run.begun |= facts.progress == ReleaseProgress::Onward;
        let step = release_step(&facts);
        if step == ReleaseStep::MarkTwin && observed.record.is_none() {
            run.report_snapshots().await?;
        }
        if context.dry_run {
            return run.report_plan(&observed, step);
        }
        match step {
            ReleaseStep::Done => {
                (context.report)(&current_state(&observed));
                return Ok(());
            }
            ReleaseStep::Refuse(refusal) => {
                return Err(TransferError::NotReleased(request.claim.clone(), refusal));
            }
            ReleaseStep::RollBack(why) => return Err(run.roll_back(why).await),
            ReleaseStep::AwaitClaimGone => {
                let pods = environment::pods(context.cluster, &observed.name).await?;
                let names: Vec<&str> = pods.iter().map(|(pod, _)| pod.as_str()).collect();
                let what = match names.as_slice() {
                    [] => "waiting for the claim to be deleted".to_owned(),
                    names => format!(
                        "waiting for the claim to be deleted; the pods {} use it: delete them, because they cannot start any more",
                        names.join(", ")
                    ),
                };
                waiter.wait_for(&what, None).await?;
            }
            ReleaseStep::AwaitDetached(node) => {
                let what = format!("waiting for the volume to be detached from the node {node}");
                waiter.wait_for(&what, None).await?;
            }
            ReleaseStep::AwaitFinalizer | ReleaseStep::AwaitVirtualGone => {
                let outer = observed.outer.as_ref();
                let outer = outer.ok_or_else(|| ObjectMissing::of(&step))?;
                let secured = observed.is_secured();
                Box::pin(sidecars.await_finalizers(context, &mut waiter, outer, secured)).await?;
            }
            ReleaseStep::AwaitTwinGone => {
                if let Some(twin) = &observed.twin {
                    remove_finalizer(context.cluster, twin).await?;
                }
                waiter
                    .wait_for("waiting for the twin to be deleted", None)
                    .await?;
            }
            ReleaseStep::AwaitBound => {
                let why = Box::pin(observed.last_warning(context)).await;
                waiter
                    .wait_for(
                        "waiting for Kubernetes to bind the claim to its PersistentVolume",
                        why,
                    )
                    .await?;
            }
            step => {
                let taken = match Box::pin(run.take(&observed, &step)).await {
                    Ok(()) => waiter
                        .after_step(&step, &written_object(&observed, &step))
                        .await
                        .map_err(Into::into),
                    Err(error) => Err(error),
                };
                if let Err(error) = taken {
                    return Err(run.failed(&observed, &step, error).await);
                }
            }
        }
    }
}

/// The object that a step writes.
fn written_object(observed: &Observed, step: &ReleaseStep) -> String {
    use ReleaseStep::{DeleteTwin, DeleteVirtual, GiveReal, MarkTwin, Record, RetainVirtual, Settle};
    match (step, &observed.outer, &observed.twin, &observed.real) {
        (Record | GiveReal | Settle, _, _, Some(volume))
        | (RetainVirtual | DeleteVirtual, Some(volume), ..) => {
            format!("the PersistentVolume {}", volume.name_any())
        }
        (MarkTwin | DeleteTwin, _, Some(twin), _) => describe_twin(twin),
        _ => format!("the claim {}", observed.name),
    }
}

fn describe_twin(twin: &PersistentVolumeClaim) -> String {
    format!(
        "the twin {}/{}",
        twin.namespace().unwrap_or_default(),
        twin.name_any()
    )
}

fn current_state(observed: &Observed) -> String {
    let class = observed.real.as_ref().map(class_of).unwrap_or_default();
    match class {
        "" => "the claim has no volume of this driver".to_owned(),
        class => format!("the claim has the class {class}, and no volume of this driver"),
    }
}

/// State between the steps of this run; a later run does not need it.
struct Run<'a> {
    context: &'a Context<'a>,
    request: &'a ReleaseRequest,
    /// Whether a record was seen.
    begun: bool,
    /// Whether a claim that was not bound was observed without the record.
    seen_gone: bool,
    creation: Creation,
}

impl Run<'_> {
    async fn facts(&self, observed: &Observed) -> Result<ReleaseFacts, TransferError> {
        let claim = observed.claim_now();
        let progress = observed.progress();
        let mut facts = ReleaseFacts {
            progress,
            secured: observed.is_secured() && observed.changed_record().is_none(),
            virtual_volume: observed.virtual_now(),
            twin: observed.twin_now(),
            holder: observed.real_holder(),
            needs_wake: observed.is_overlooked(observed.real.as_ref()),
            leaving: observed.is_leaving(),
            obstacles: Vec::new(),
            attached: None,
            unmakeable: self.creation.unmakeable.clone(),
            claim,
        };
        match facts.claim {
            ReleasedClaim::Virtual { .. }
            | ReleasedClaim::Other { .. }
            | ReleasedClaim::Real { bound: false, .. }
                if progress == ReleaseProgress::NotRecorded =>
            {
                facts.obstacles = self.obstacles(observed).await?;
            }
            ReleasedClaim::Virtual { deleting: false, .. } if progress == ReleaseProgress::Onward => {
                facts.obstacles = self.obstacles(observed).await?;
            }
            _ => {
                for volume in observed.volumes() {
                    let nodes = environment::attached(self.context.cluster, &volume).await?;
                    facts.attached = facts.attached.or_else(|| nodes.into_iter().next());
                }
            }
        }
        Ok(facts)
    }

    /// All obstacles to the release.
    async fn obstacles(&self, observed: &Observed) -> Result<Vec<Obstacle>, TransferError> {
        let cluster = self.context.cluster;
        let Some(claim) = &observed.claim else {
            return Ok(Vec::new());
        };
        let classes = environment::classes(cluster).await?;
        let (seen, outer) = environment::read(cluster, claim, observed.outer.as_ref(), &classes).await?;
        let twin = match &observed.twin {
            Some(twin) => {
                let (claim, volume) =
                    environment::read(cluster, twin, observed.real.as_ref(), &classes).await?;
                Some(ReleasedTwin { claim, volume })
            }
            None => None,
        };
        let twin_name = observed
            .twin_name
            .as_ref()
            .map(ClaimName::to_string)
            .unwrap_or_default();
        let mut found = release_obstacles(
            &seen,
            outer.as_ref(),
            &twin_name,
            twin.as_ref(),
            self.request.force_managed,
        );
        if let Some(outer) = &observed.outer
            && let Some(id) = volume_id(outer)
        {
            let others = second_pvs(cluster, &id, &outer.name_any()).await?;
            if !others.is_empty() {
                found.push(Obstacle::SecondVolumes(others));
            }
        }
        if let (Some(real), true) = (&observed.real, observed.outer.is_some()) {
            let new = new_claim(&old_claim(claim, &observed.namespace_uid), real)?;
            found.extend(find_blockers(self.context, new, "release").await?);
        }
        Ok(found)
    }

    async fn take(&mut self, observed: &Observed, step: &ReleaseStep) -> Result<(), TransferError> {
        let context = self.context;
        match (
            step,
            &observed.claim,
            &observed.outer,
            &observed.twin,
            &observed.real,
        ) {
            (ReleaseStep::Untouch, Some(claim), ..) => {
                touch(
                    context,
                    claim,
                    mark::RELEASE_UNDONE,
                    false,
                    Step::UnreleaseUntouch,
                )
                .await?;
            }
            (ReleaseStep::MarkTwin, _, _, Some(twin), _) => {
                (context.report)("the driver does not change the twin from now on");
                mark_twin(
                    context,
                    twin,
                    TwinMark::Releasing(&self.request.claim),
                    Step::ReleaseMark,
                )
                .await?;
            }
            (ReleaseStep::Record, claim, outer, twin, Some(real)) => {
                let record = match (&observed.record, claim, outer, twin) {
                    (Some(record), ..) => observed.changed_record().unwrap_or_else(|| record.clone()),
                    (None, Some(claim), Some(outer), Some(twin)) => {
                        record(old_claim(claim, &observed.namespace_uid), outer, twin, real)?
                    }
                    _ => return Err(ObjectMissing::of(step).into()),
                };
                self.secure(observed, real, &record).await?;
            }
            (ReleaseStep::RetainVirtual, _, Some(outer), ..) => {
                let spec = json!({"persistentVolumeReclaimPolicy": "Retain"});
                change_volume(context, outer, &json!({}), Some(spec), Step::ReleaseRetain).await?;
            }
            (ReleaseStep::DeleteClaim, Some(claim), ..) => {
                (context.report)(&format!(
                    "deleting the claim {}, to create it again",
                    self.request.claim
                ));
                let claims = context
                    .cluster
                    .within::<PersistentVolumeClaim>(&observed.name.namespace);
                delete(&claims, claim, Step::ReleaseClaim).await?;
            }
            (ReleaseStep::DeleteVirtual, _, Some(outer), ..) => {
                (context.report)("deleting the virtual PersistentVolume");
                let volumes = context.cluster.all::<PersistentVolume>();
                delete(&volumes, outer, Step::ReleaseVirtual).await?;
            }
            (ReleaseStep::DeleteTwin, _, _, Some(twin), _) => {
                (context.report)("deleting the twin; its PersistentVolume is retained");
                let twins = context
                    .cluster
                    .within::<PersistentVolumeClaim>(&twin.namespace().unwrap_or_default());
                delete(&twins, twin, Step::ReleaseTwin).await?;
            }
            (ReleaseStep::GiveReal, Some(claim), .., Some(real)) => {
                let spec = json!({"claimRef": reference(claim)});
                change_volume(context, real, &json!({}), Some(spec), Step::ReleaseGive).await?;
            }
            (ReleaseStep::Wake, Some(claim), ..) => {
                trigger_binding(context, claim, Step::ReleaseWake).await?;
            }
            (step @ (ReleaseStep::MakeClaim | ReleaseStep::Settle), .., Some(real)) => {
                let record = observed.record.as_ref();
                let record = record.ok_or_else(|| ObjectMissing::of(step))?;
                if *step == ReleaseStep::MakeClaim {
                    self.make(record, real).await?;
                } else {
                    self.settle(record, real).await?;
                }
            }
            _ => return Err(ObjectMissing::of(step).into()),
        }
        Ok(())
    }

    /// From now on, the data is retained whatever happens.
    async fn secure(
        &self,
        observed: &Observed,
        real: &PersistentVolume,
        record: &ReleaseRecord,
    ) -> Result<(), TransferError> {
        let name = real.name_any();
        (self.context.report)(&format!("the PersistentVolume {name} is retained"));
        let annotations = json!({
            mark::RELEASE: record.to_annotation()?,
            mark::POLICY_BEFORE: null,
            BOUND_BY_CONTROLLER: null,
        });
        let spec = observed.secure_spec(real, record);
        // The next observation reads what was written.
        change_volume(self.context, real, &annotations, Some(spec), Step::ReleaseRecord).await?;
        Ok(())
    }

    async fn make(&mut self, record: &ReleaseRecord, real: &PersistentVolume) -> Result<(), TransferError> {
        let claim = new_claim(&record.claim, real)?;
        if self.creation.is_first() {
            (self.context.report)(&format!("creating the claim with the class {}", class_of(real)));
        }
        self.creation.create(self.context, claim, Step::ReleaseMake).await
    }

    /// The claim is bound: restores the PV as the user wants it, and removes the record in the same write.
    async fn settle(&self, record: &ReleaseRecord, real: &PersistentVolume) -> Result<(), TransferError> {
        let policy = record.final_policy();
        let annotations = json!({mark::RELEASE: null, mark::POLICY_BEFORE: null});
        let spec = json!({"persistentVolumeReclaimPolicy": policy});
        if change_volume(self.context, real, &annotations, Some(spec), Step::ReleaseSettle).await? {
            (self.context.report)(&format!(
                "the claim is bound; its PersistentVolume has the reclaim policy {policy}"
            ));
        }
        Ok(())
    }

    /// If the record could not be written, the release has not begun: removes the mark from the twin, too.
    async fn failed(&self, observed: &Observed, step: &ReleaseStep, error: TransferError) -> TransferError {
        let refused = match &error {
            TransferError::Api(error) => error.is_refusal(),
            TransferError::NotKept(_) => true,
            _ => false,
        };
        if let (true, ReleaseStep::Record, None, Some(twin)) =
            (refused, step, &observed.record, &observed.twin)
        {
            // If this fails, the next run and `doctor` report the mark.
            let _ = mark_twin(self.context, twin, TwinMark::Off, Step::UnreleaseMark).await;
        }
        error
    }

    async fn roll_back(&self, why: Interruption) -> TransferError {
        let claim = self.request.claim.clone();
        (self.context.report)(&format!("cannot continue, rolling back: {why}"));
        match Box::pin(undo_release(self.context, &claim)).await {
            Ok(()) => TransferError::RolledBack("release", claim, why),
            Err(error) => TransferError::RollbackFailed {
                what: "release",
                claim,
                why,
                error: Box::new(error),
            },
        }
    }

    async fn report_snapshots(&self) -> Result<(), ApiError> {
        let snapshots = environment::snapshots(self.context.cluster, &self.request.claim).await?;
        if !snapshots.is_empty() {
            (self.context.report)(&format!(
                "the VolumeSnapshots {} of the claim remain snapshots of this driver: do not uninstall it as long as they are needed",
                snapshots.join(", ")
            ));
        }
        Ok(())
    }

    fn report_plan(&self, observed: &Observed, step: ReleaseStep) -> Result<(), TransferError> {
        let claim = &self.request.claim;
        let reported = match step {
            ReleaseStep::Refuse(refusal) => {
                return Err(TransferError::NotReleased(claim.clone(), refusal));
            }
            ReleaseStep::RollBack(why) => format!("would be rolled back: {why}"),
            ReleaseStep::Done => format!("there is nothing to do: {}", current_state(observed)),
            ReleaseStep::MarkTwin | ReleaseStep::Untouch if observed.record.is_none() => {
                let real = observed.real.as_ref();
                format!(
                    "the release is possible (dry run). The claim {claim} would be deleted and created again with the class {}, and its PersistentVolume would be {}, \
                     which has the data",
                    real.map(class_of).unwrap_or_default(),
                    real.map(ResourceExt::name_any).unwrap_or_default()
                )
            }
            step => format!("the release has begun; the next step: {}", step.in_words()),
        };
        (self.context.report)(&reported);
        Ok(())
    }
}

/// The marks on a twin about the release of its volume.
enum TwinMark<'a> {
    /// It is being released for this claim.
    Releasing(&'a ClaimName),
    /// The release is being undone. The mark changes the twin's version, so that a concurrent deletion fails.
    Undone,
    /// No mark.
    Off,
}

/// Removes the mark from a twin whose release was never recorded, and whose claim is gone: otherwise the
/// driver would never manage the twin again. True if the objects have to be observed again.
async fn unmark_stray(
    context: &Context<'_>,
    waiter: &mut Waiter<'_>,
    observed: &Observed,
) -> Result<bool, TransferError> {
    let Some(stray) = observed.stray.as_ref().filter(|_| !context.dry_run) else {
        return Ok(false);
    };
    (context.report)(&format!(
        "the twin {} was marked for an earlier claim of that name; removing the mark",
        stray.name_any()
    ));
    mark_twin(context, stray, TwinMark::Off, Step::UnreleaseMark).await?;
    waiter
        .after_step(&Step::UnreleaseMark, &describe_twin(stray))
        .await?;
    Ok(true)
}

/// Marks the twin in exactly this version. False after a conflict.
async fn mark_twin(
    context: &Context<'_>,
    twin: &PersistentVolumeClaim,
    to: TwinMark<'_>,
    step: Step,
) -> Result<bool, ApiError> {
    let twins = context
        .cluster
        .within::<PersistentVolumeClaim>(&twin.namespace().unwrap_or_default());
    let annotations = match to {
        TwinMark::Releasing(claim) => {
            json!({mark::RELEASING: claim.to_string(), mark::RELEASE_UNDONE: null})
        }
        TwinMark::Undone => json!({mark::RELEASE_UNDONE: "true"}),
        TwinMark::Off => json!({mark::RELEASING: null, mark::RELEASE_UNDONE: null}),
    };
    change(&twins, twin, &annotations, None, step).await
}

fn record(
    claim: OldClaim,
    outer: &PersistentVolume,
    twin: &PersistentVolumeClaim,
    real: &PersistentVolume,
) -> Result<ReleaseRecord, serde_json::Error> {
    let mut spec = serde_json::to_value(&outer.spec)?;
    if let Value::Object(spec) = &mut spec {
        spec.remove("claimRef");
    }
    let mut annotations = outer.annotations().clone();
    annotations.remove(BOUND_BY_CONTROLLER);
    let volume = OldVolume {
        name: outer.name_any(),
        policy: reclaim_policy(outer).to_owned(),
        labels: outer.labels().clone(),
        annotations,
        spec,
    };
    Ok(ReleaseRecord::new(Released {
        policy: reclaim_policy(real).to_owned(),
        replaced: real.annotations().get(mark::POLICY_BEFORE).cloned(),
        twin: (
            twin.namespace().unwrap_or_default(),
            twin.name_any(),
            twin.uid().unwrap_or_default(),
        ),
        volume,
        claim,
    }))
}

/// The record of the claim that is bound to the real PV.
fn real_claim(old: &OldClaim, real: &PersistentVolume) -> OldClaim {
    let spec = real.spec.as_ref();
    let attributes = spec.and_then(|spec| spec.volume_attributes_class_name.as_deref());
    old.released(class_of(real), &real.name_any(), attributes)
}

fn new_claim(old: &OldClaim, real: &PersistentVolume) -> Result<PersistentVolumeClaim, serde_json::Error> {
    serde_json::from_value(real_claim(old, real).as_before(&real.name_any()))
}
