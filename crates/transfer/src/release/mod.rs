//! The steps of a release, taken one after the other.

mod look;
mod sidecars;
mod undo;

#[cfg(test)]
mod tests;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde_json::{Value, json};

pub use self::undo::undo_release;
use self::{
    look::{Looking, Scene, class_of},
    sidecars::Sidecars,
};
use super::{
    Context, TransferError, Waiting,
    again::wake,
    look::BOUND_BY_CONTROLLER,
    surroundings,
    writing::{Making, change, change_volume, delete, old_claim, reference, speaks_against, touch},
};
use crate::{
    cluster::ApiError,
    observe::crash::Step,
    placement::transfer::{
        Interruption, Obstacle, ReleaseFacts, ReleaseProgress, ReleaseStep, ReleasedClaim, ReleasedTwin,
        release_obstacles, release_step,
    },
    twin::{reclaim_policy, remove_finalizer},
    volume::{ClaimName, OldClaim, OldVolume, ReleaseRecord, Released, mark},
};

/// What is to be released.
pub struct ReleaseRequest {
    /// The claim.
    pub claim: ClaimName,
    /// Whether also what a deployment tool manages is released.
    pub force_managed: bool,
}

/// Releases a claim, or goes on releasing it.
pub async fn release(context: &Context<'_>, request: &ReleaseRequest) -> Result<(), TransferError> {
    let mut looking = Looking::default();
    let mut waiting = Waiting::new(context);
    let mut sidecars = Sidecars::default();
    let mut run = Run {
        context,
        request,
        begun: false,
        seen_gone: false,
        making: Making::default(),
    };
    loop {
        let scene = Box::pin(looking.look(context, &request.claim)).await?;
        if unmark_stray(context, &mut waiting, &scene).await? {
            continue;
        }
        let facts = Box::pin(run.facts(&scene)).await?;
        let is_over = matches!(facts.claim, ReleasedClaim::Real { bound: true, .. });
        if run.begun && facts.progress == ReleaseProgress::NotRecorded && !is_over {
            // The claim is read before the PV: in between it may have been bound and settled.
            if std::mem::replace(&mut run.seen_gone, true) {
                return Err(TransferError::Undone("release", request.claim.clone()));
            }
            continue;
        }
        run.begun |= facts.progress == ReleaseProgress::Onward;
        let step = release_step(&facts);
        if step == ReleaseStep::MarkTwin && scene.record.is_none() {
            run.tell_snapshots().await?;
        }
        if context.dry_run {
            return run.tell_plan(&scene, step);
        }
        match step {
            ReleaseStep::Done => {
                (context.tell)(&already(&scene));
                return Ok(());
            }
            ReleaseStep::Refuse(refusal) => {
                return Err(TransferError::NotReleased(request.claim.clone(), refusal));
            }
            ReleaseStep::RollBack(why) => return Err(run.take_back(why).await),
            ReleaseStep::AwaitClaimGone => {
                let pods = surroundings::pods(context.cluster, &scene.name).await?;
                let names: Vec<&str> = pods.iter().map(|(pod, _)| pod.as_str()).collect();
                let what = match names.as_slice() {
                    [] => "the claim is to be gone".to_owned(),
                    names => format!(
                        "the claim is to be gone, which the pods {} use: delete them, they cannot start on it any more",
                        names.join(", ")
                    ),
                };
                waiting.for_others(&what, None).await?;
            }
            ReleaseStep::AwaitDetached(node) => {
                let what = format!("the volume is to be detached from the node {node}");
                waiting.for_others(&what, None).await?;
            }
            ReleaseStep::AwaitFinalizer | ReleaseStep::AwaitVirtualGone => {
                if let Some(outer) = &scene.outer {
                    let secured = scene.is_secured();
                    Box::pin(sidecars.let_go(context, &mut waiting, outer, secured)).await?;
                }
            }
            ReleaseStep::AwaitTwinGone => {
                if let Some(twin) = &scene.twin {
                    remove_finalizer(context.cluster, twin).await?;
                }
                waiting.for_others("the twin is to be gone", None).await?;
            }
            ReleaseStep::AwaitBound => {
                let why = Box::pin(scene.last_warning(context)).await;
                waiting
                    .for_others("Kubernetes is to bind the claim to its PersistentVolume", why)
                    .await?;
            }
            step => {
                let taken = match Box::pin(run.take(&scene, &step)).await {
                    Ok(()) => waiting
                        .after(&step, &written(&scene, &step))
                        .await
                        .map_err(Into::into),
                    Err(error) => Err(error),
                };
                if let Err(error) = taken {
                    return Err(run.stopped(&scene, &step, error).await);
                }
            }
        }
    }
}

/// What a step writes.
fn written(scene: &Scene, step: &ReleaseStep) -> String {
    use ReleaseStep::{DeleteTwin, DeleteVirtual, GiveReal, MarkTwin, Record, RetainVirtual, Settle};
    match (step, &scene.outer, &scene.twin, &scene.real) {
        (Record | GiveReal | Settle, _, _, Some(volume))
        | (RetainVirtual | DeleteVirtual, Some(volume), ..) => {
            format!("the PersistentVolume {}", volume.name_any())
        }
        (MarkTwin | DeleteTwin, _, Some(twin), _) => in_words(twin),
        _ => format!("the claim {}", scene.name),
    }
}

/// A twin, as messages name it.
fn in_words(twin: &PersistentVolumeClaim) -> String {
    format!(
        "the twin {}/{}",
        twin.namespace().unwrap_or_default(),
        twin.name_any()
    )
}

fn already(scene: &Scene) -> String {
    let class = scene.real.as_ref().map(class_of).unwrap_or_default();
    match class {
        "" => "the claim has no volume of this driver".to_owned(),
        class => format!("the claim has the class {class}, and no volume of this driver"),
    }
}

/// What is remembered between the steps; nothing that the next run would need.
struct Run<'a> {
    context: &'a Context<'a>,
    request: &'a ReleaseRequest,
    /// Whether a record was seen.
    begun: bool,
    /// Whether the record was seen to be gone from a claim that was not bound.
    seen_gone: bool,
    making: Making,
}

impl Run<'_> {
    async fn facts(&self, scene: &Scene) -> Result<ReleaseFacts, TransferError> {
        let claim = scene.claim_now();
        let progress = scene.progress();
        let mut facts = ReleaseFacts {
            progress,
            secured: scene.is_secured() && scene.changed_record().is_none(),
            virtual_volume: scene.virtual_now(),
            twin: scene.twin_now(),
            holder: scene.real_holder(),
            needs_wake: scene.is_overlooked(scene.real.as_ref()),
            leaving: scene.is_leaving(),
            obstacles: Vec::new(),
            attached: None,
            unmakeable: self.making.unmakeable.clone(),
            claim,
        };
        match facts.claim {
            ReleasedClaim::Virtual { .. }
            | ReleasedClaim::Other { .. }
            | ReleasedClaim::Real { bound: false, .. }
                if progress == ReleaseProgress::NotRecorded =>
            {
                facts.obstacles = self.obstacles(scene).await?;
            }
            ReleasedClaim::Virtual { deleting: false, .. } if progress == ReleaseProgress::Onward => {
                facts.obstacles = self.obstacles(scene).await?;
            }
            _ => {
                for volume in scene.volumes() {
                    let nodes = surroundings::attached(self.context.cluster, &volume).await?;
                    facts.attached = facts.attached.or_else(|| nodes.into_iter().next());
                }
            }
        }
        Ok(facts)
    }

    /// All that speaks against it.
    async fn obstacles(&self, scene: &Scene) -> Result<Vec<Obstacle>, TransferError> {
        let cluster = self.context.cluster;
        let Some(claim) = &scene.claim else {
            return Ok(Vec::new());
        };
        let classes = surroundings::classes(cluster).await?;
        let (seen, outer) = surroundings::read(cluster, claim, scene.outer.as_ref(), &classes).await?;
        let twin = match &scene.twin {
            Some(twin) => {
                let (claim, volume) =
                    surroundings::read(cluster, twin, scene.real.as_ref(), &classes).await?;
                Some(ReleasedTwin { claim, volume })
            }
            None => None,
        };
        let twin_name = scene
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
        if let (Some(real), true) = (&scene.real, scene.outer.is_some()) {
            let new = new_claim(&old_claim(claim, &scene.namespace_uid), real)?;
            found.extend(speaks_against(self.context, new, "release").await?);
        }
        Ok(found)
    }

    async fn take(&mut self, scene: &Scene, step: &ReleaseStep) -> Result<(), TransferError> {
        let context = self.context;
        match (step, &scene.claim, &scene.outer, &scene.twin, &scene.real) {
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
                (context.tell)("the driver leaves the twin alone from now on");
                mark_twin(
                    context,
                    twin,
                    TwinMark::Releasing(&self.request.claim),
                    Step::ReleaseMark,
                )
                .await?;
            }
            (ReleaseStep::Record, claim, outer, twin, Some(real)) => {
                let record = match (&scene.record, claim, outer, twin) {
                    (Some(record), ..) => scene.changed_record().unwrap_or_else(|| record.clone()),
                    (None, Some(claim), Some(outer), Some(twin)) => {
                        record(old_claim(claim, &scene.namespace_uid), outer, twin, real)?
                    }
                    _ => return Ok(()),
                };
                self.secure(scene, real, &record).await?;
            }
            (ReleaseStep::RetainVirtual, _, Some(outer), ..) => {
                let spec = json!({"persistentVolumeReclaimPolicy": "Retain"});
                change_volume(context, outer, &json!({}), Some(spec), Step::ReleaseRetain).await?;
            }
            (ReleaseStep::DeleteClaim, Some(claim), ..) => {
                (context.tell)(&format!(
                    "the claim {} is deleted, to be made again",
                    self.request.claim
                ));
                let claims = context
                    .cluster
                    .within::<PersistentVolumeClaim>(&scene.name.namespace);
                delete(&claims, claim, Step::ReleaseClaim).await?;
            }
            (ReleaseStep::DeleteVirtual, _, Some(outer), ..) => {
                (context.tell)("the virtual PersistentVolume is deleted");
                let volumes = context.cluster.all::<PersistentVolume>();
                delete(&volumes, outer, Step::ReleaseVirtual).await?;
            }
            (ReleaseStep::DeleteTwin, _, _, Some(twin), _) => {
                (context.tell)("the twin is deleted; its PersistentVolume is retained");
                let twins = context
                    .cluster
                    .within::<PersistentVolumeClaim>(&twin.namespace().unwrap_or_default());
                delete(&twins, twin, Step::ReleaseTwin).await?;
            }
            (ReleaseStep::GiveReal, Some(claim), .., Some(real)) => {
                let spec = json!({"claimRef": reference(claim)});
                change_volume(context, real, &json!({}), Some(spec), Step::ReleaseGive).await?;
            }
            (ReleaseStep::Wake, Some(claim), ..) => wake(context, claim, Step::ReleaseWake).await?,
            (ReleaseStep::MakeClaim, .., Some(real)) => self.make(scene, real).await?,
            (ReleaseStep::Settle, .., Some(real)) => self.settle(scene, real).await?,
            // Steps come from what is there.
            _ => {}
        }
        Ok(())
    }

    /// Whatever happens from now on, the data stays.
    async fn secure(
        &self,
        scene: &Scene,
        real: &PersistentVolume,
        record: &ReleaseRecord,
    ) -> Result<(), TransferError> {
        let name = real.name_any();
        (self.context.tell)(&format!("the PersistentVolume {name} is retained"));
        let annotations = json!({
            mark::RELEASE: record.to_annotation()?,
            mark::POLICY_BEFORE: null,
            BOUND_BY_CONTROLLER: null,
        });
        let spec = scene.secure_spec(real, record);
        // What was written is read back by the next look.
        change_volume(self.context, real, &annotations, Some(spec), Step::ReleaseRecord).await?;
        Ok(())
    }

    async fn make(&mut self, scene: &Scene, real: &PersistentVolume) -> Result<(), TransferError> {
        let Some(record) = &scene.record else {
            return Ok(());
        };
        let claim = new_claim(&record.claim, real)?;
        if self.making.is_first() {
            (self.context.tell)(&format!("the claim is made with the class {}", class_of(real)));
        }
        self.making.make(self.context, claim, Step::ReleaseMake).await
    }

    /// The claim has its volume: the PV is as the user wanted it, and forgets all the rest in
    /// the same write.
    async fn settle(&self, scene: &Scene, real: &PersistentVolume) -> Result<(), TransferError> {
        let Some(record) = &scene.record else {
            return Ok(());
        };
        let policy = record.final_policy();
        let annotations = json!({mark::RELEASE: null, mark::POLICY_BEFORE: null});
        let spec = json!({"persistentVolumeReclaimPolicy": policy});
        if change_volume(self.context, real, &annotations, Some(spec), Step::ReleaseSettle).await? {
            (self.context.tell)(&format!(
                "the claim is bound; its PersistentVolume has the reclaim policy {policy}"
            ));
        }
        Ok(())
    }

    /// A release that cannot even be recorded has not begun: its mark does not stay either.
    async fn stopped(&self, scene: &Scene, step: &ReleaseStep, error: TransferError) -> TransferError {
        let refused = match &error {
            TransferError::Api(error) => error.is_refusal(),
            TransferError::NotKept(_) => true,
            _ => false,
        };
        if let (true, ReleaseStep::Record, None, Some(twin)) = (refused, step, &scene.record, &scene.twin) {
            // What fails here as well is told by the next run, and by `doctor`.
            let _ = mark_twin(self.context, twin, TwinMark::Off, Step::UnreleaseMark).await;
        }
        error
    }

    async fn take_back(&self, why: Interruption) -> TransferError {
        let claim = self.request.claim.clone();
        (self.context.tell)(&format!("it cannot go on, and is taken back: {why}"));
        match Box::pin(undo_release(self.context, &claim)).await {
            Ok(()) => TransferError::TakenBack("release", claim, why),
            Err(error) => TransferError::NotTakenBack {
                what: "release",
                claim,
                why,
                error: Box::new(error),
            },
        }
    }

    async fn tell_snapshots(&self) -> Result<(), ApiError> {
        let snapshots = surroundings::snapshots(self.context.cluster, &self.request.claim).await?;
        if !snapshots.is_empty() {
            (self.context.tell)(&format!(
                "the VolumeSnapshots {} of the claim stay, as snapshots of this driver: as long as they are wanted, it has to stay too",
                snapshots.join(", ")
            ));
        }
        Ok(())
    }

    fn tell_plan(&self, scene: &Scene, step: ReleaseStep) -> Result<(), TransferError> {
        let claim = &self.request.claim;
        let told = match step {
            ReleaseStep::Refuse(refusal) => {
                return Err(TransferError::NotReleased(claim.clone(), refusal));
            }
            ReleaseStep::RollBack(why) => format!("would be taken back: {why}"),
            ReleaseStep::Done => format!("there is nothing to do: {}", already(scene)),
            ReleaseStep::MarkTwin | ReleaseStep::Untouch if scene.record.is_none() => {
                let real = scene.real.as_ref();
                format!(
                    "nothing speaks against it. The claim {claim} would be deleted and made again with the class {}, and its PersistentVolume would be {}, \
                     which has the data",
                    real.map(class_of).unwrap_or_default(),
                    real.map(ResourceExt::name_any).unwrap_or_default()
                )
            }
            step => format!("the release has begun; next {}", step.in_words()),
        };
        (self.context.tell)(&told);
        Ok(())
    }
}

/// What stands on a twin about the release of its volume.
enum TwinMark<'a> {
    /// It is being released for this claim.
    Releasing(&'a ClaimName),
    /// That is being undone: whoever would delete the twin has an older version.
    Undone,
    /// Nothing.
    Off,
}

/// Takes the mark off a twin whose release was never recorded, and whose claim is gone: the
/// driver would leave it alone for ever. True if there is something to look at again.
async fn unmark_stray(
    context: &Context<'_>,
    waiting: &mut Waiting<'_>,
    scene: &Scene,
) -> Result<bool, TransferError> {
    let Some(stray) = scene.stray.as_ref().filter(|_| !context.dry_run) else {
        return Ok(false);
    };
    (context.tell)(&format!(
        "the twin {} was marked for an earlier claim of that name, and is so no more",
        stray.name_any()
    ));
    mark_twin(context, stray, TwinMark::Off, Step::UnreleaseMark).await?;
    waiting.after(&Step::UnreleaseMark, &in_words(stray)).await?;
    Ok(true)
}

/// Marks the twin in exactly this version. False if it has another one meanwhile.
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

/// The claim that gets the real PV.
fn real_claim(old: &OldClaim, real: &PersistentVolume) -> OldClaim {
    let spec = real.spec.as_ref();
    let attributes = spec.and_then(|spec| spec.volume_attributes_class_name.as_deref());
    old.released(class_of(real), &real.name_any(), attributes)
}

fn new_claim(old: &OldClaim, real: &PersistentVolume) -> Result<PersistentVolumeClaim, serde_json::Error> {
    serde_json::from_value(real_claim(old, real).as_before(&real.name_any()))
}
