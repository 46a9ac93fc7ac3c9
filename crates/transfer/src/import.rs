//! The steps of an import, taken one after the other.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde_json::json;

use super::{
    Context, TransferError, Waiting,
    look::{BOUND_BY_CONTROLLER, Looking, Scene},
    surroundings, undo,
    writing::{self, Making, change, change_volume, delete, old_claim, touch},
};
use crate::{
    cluster::{ApiError, slim::SELECTED_NODE},
    observe::crash::Step,
    placement::transfer::{
        ClaimNow, ImportFacts, ImportRefusal, ImportStep, Interruption, Obstacle, Progress, class_for,
        import_step, obstacles,
    },
    twin::reclaim_policy,
    volume::{ClaimName, ImportRecord, OldClaim, mark},
};

/// What is to be imported.
pub struct ImportRequest {
    /// The claim.
    pub claim: ClaimName,
    /// The virtual class that it is to have.
    pub class: Option<String>,
    /// Whether also what a deployment tool manages is imported.
    pub force_managed: bool,
}

/// Imports a claim, or goes on importing it.
pub async fn import(context: &Context<'_>, request: &ImportRequest) -> Result<(), TransferError> {
    let mut looking = Looking::default();
    let mut waiting = Waiting::new(context);
    let mut run = Run {
        context,
        request,
        begun: false,
        seen_gone: false,
        making: Making::default(),
    };
    loop {
        let scene = Box::pin(looking.look(context.cluster, &request.claim)).await?;
        if let Some(record) = &scene.record
            && request.class.as_ref().is_some_and(|class| *class != record.class)
        {
            return Err(run.refuse(Obstacle::BegunWith(record.class.clone())));
        }
        let facts = Box::pin(run.facts(&scene)).await?;
        let gone = facts.progress == Progress::NotRecorded
            && !matches!(facts.claim, ClaimNow::New { bound: true, .. });
        if run.begun && gone {
            // The claim is read before the PV: in between it may have been bound and settled.
            if std::mem::replace(&mut run.seen_gone, true) {
                return Err(TransferError::Undone("import", request.claim.clone()));
            }
            continue;
        }
        run.begun |= facts.progress == Progress::Permitted;
        let step = import_step(&facts);
        if context.dry_run {
            return run.tell_plan(&scene, step);
        }
        match step {
            ImportStep::Done => {
                (context.tell)("the claim is a volume of this driver");
                return Ok(());
            }
            ImportStep::Refuse(refusal) => {
                return Err(TransferError::NotImported(request.claim.clone(), refusal));
            }
            ImportStep::RollBack(why) => return Err(run.take_back(why).await),
            ImportStep::AwaitClaimGone => {
                let what = Box::pin(run.whats_holding(&scene)).await?;
                waiting.for_others(&what, None).await?;
            }
            ImportStep::AwaitDetached(node) => {
                let what = format!("the PersistentVolume is to be detached from the node {node}");
                waiting.for_others(&what, None).await?;
            }
            ImportStep::AwaitAdopted => {
                let why = Box::pin(run.last_warning(&scene)).await;
                waiting
                    .for_others(
                        "the controller is to make the volume of the PersistentVolume",
                        why,
                    )
                    .await?;
            }
            ImportStep::AwaitSettled => {
                waiting
                    .for_others("the claim is bound; the controller is to give the PersistentVolume its reclaim policy back", None)
                    .await?;
            }
            step => {
                Box::pin(run.take(&scene, &step)).await?;
                waiting.after(&step, &written(&scene, &step)).await?;
            }
        }
    }
}

/// What is remembered between the steps; nothing that the next run would need.
struct Run<'a> {
    context: &'a Context<'a>,
    request: &'a ImportRequest,
    /// Whether a record was seen.
    begun: bool,
    /// Whether the record was seen to be gone from a claim that was not bound.
    seen_gone: bool,
    making: Making,
}

impl Run<'_> {
    async fn facts(&self, scene: &Scene) -> Result<ImportFacts, TransferError> {
        let cluster = self.context.cluster;
        let claim = scene.claim_now();
        let progress = scene.progress();
        let mut facts = ImportFacts {
            secured: scene.is_secured() && scene.changed_record().is_none(),
            obstacles: Vec::new(),
            attached: None,
            unmakeable: self.making.unmakeable.clone(),
            progress,
            claim,
        };
        match (&facts.claim, &scene.volume) {
            (ClaimNow::Old { .. } | ClaimNow::Other { .. }, _) if progress != Progress::Withdrawn => {
                facts.obstacles = self.obstacles(scene).await?;
            }
            (ClaimNow::Absent, Some(volume)) => {
                let nodes = surroundings::attached(cluster, &volume.name_any()).await?;
                facts.attached = nodes.into_iter().next();
            }
            _ => {}
        }
        Ok(facts)
    }

    /// All that speaks against it.
    async fn obstacles(&self, scene: &Scene) -> Result<Vec<Obstacle>, TransferError> {
        let cluster = self.context.cluster;
        let classes = surroundings::classes(cluster).await?;
        let Some(claim) = &scene.claim else {
            return Ok(Vec::new());
        };
        let (claim, real) = surroundings::read(cluster, claim, scene.volume.as_ref(), &classes).await?;
        let mut found = obstacles(&claim, real.as_ref(), self.request.force_managed);
        if found == [Obstacle::Twin] || found == [Obstacle::Ours] {
            return Ok(found);
        }
        let wanted = self.request.class.as_deref();
        let class = match &scene.record {
            Some(record) => Ok(record.class.clone()),
            None => class_for(wanted, &classes),
        };
        let node = match &scene.volume {
            Some(volume) => Some(surroundings::node_for(cluster, volume).await?),
            None => None,
        };
        let class = class.map_err(|obstacle| found.push(obstacle)).ok();
        let node = node.and_then(|node| node.map_err(|obstacle| found.push(obstacle)).ok());
        if let (Some(class), Some(claim), Some(volume)) = (class, &scene.claim, &scene.volume) {
            let new = new_claim(
                &old_claim(claim, &scene.namespace_uid),
                &class,
                &volume.name_any(),
                node.as_deref(),
            )?;
            found.extend(writing::speaks_against(self.context, new, "import").await?);
        }
        Ok(found)
    }

    async fn take(&mut self, scene: &Scene, step: &ImportStep) -> Result<(), TransferError> {
        match (step, &scene.claim, &scene.volume, &scene.record) {
            (ImportStep::Mark, claim, Some(volume), record) => {
                let record = match (record, claim) {
                    (Some(record), _) => scene.changed_record().unwrap_or_else(|| record.clone()),
                    (None, Some(claim)) => self.record(claim, volume, &scene.namespace_uid).await?,
                    (None, None) => return Ok(()),
                };
                self.mark(scene, volume, &record).await
            }
            (ImportStep::DeleteClaim, Some(claim), ..) => self.delete(claim).await,
            (ImportStep::MakeClaim, _, Some(volume), Some(record)) => self.make(volume, record).await,
            (ImportStep::SelectNode, Some(claim), Some(volume), _) => self.select_node(claim, volume).await,
            (ImportStep::Untouch, Some(claim), ..) => {
                Ok(touch(self.context, claim, mark::IMPORT_UNDONE, false, Step::UndoUntouch).await?)
            }
            // Steps come from what is there.
            _ => Ok(()),
        }
    }

    async fn record(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        namespace_uid: &str,
    ) -> Result<ImportRecord, TransferError> {
        let classes = surroundings::classes(self.context.cluster).await?;
        let class = class_for(self.request.class.as_deref(), &classes);
        let class = class.map_err(|obstacle| self.refuse(obstacle))?;
        let policy = reclaim_policy(volume).to_owned();
        Ok(ImportRecord::new(class, policy, old_claim(claim, namespace_uid)))
    }

    /// Step 1: whatever happens from now on, the data stays.
    async fn mark(
        &self,
        scene: &Scene,
        volume: &PersistentVolume,
        record: &ImportRecord,
    ) -> Result<(), TransferError> {
        let name = volume.name_any();
        (self.context.tell)(&format!(
            "the PersistentVolume {name} is retained, and may be adopted by {}",
            self.request.claim
        ));
        let annotations = json!({
            mark::IMPORT: record.to_annotation()?,
            mark::ADOPT_FOR: self.request.claim.to_string(),
            mark::POLICY_BEFORE: null,
            BOUND_BY_CONTROLLER: null,
        });
        let spec = scene.secure_spec(volume, record);
        // What was written is read back by the next look.
        change_volume(self.context, volume, &annotations, Some(spec), Step::ImportMark).await?;
        Ok(())
    }

    /// Step 2: in exactly this version, so that whoever undoes the import meanwhile is heard.
    async fn delete(&self, claim: &PersistentVolumeClaim) -> Result<(), TransferError> {
        (self.context.tell)(&format!(
            "the claim {} is deleted, to be made again",
            self.request.claim
        ));
        let claims = self
            .context
            .cluster
            .within::<PersistentVolumeClaim>(&self.request.claim.namespace);
        Ok(delete(&claims, claim, Step::ImportDelete).await?)
    }

    /// Step 3.
    async fn make(&mut self, volume: &PersistentVolume, record: &ImportRecord) -> Result<(), TransferError> {
        let node = match surroundings::node_for(self.context.cluster, volume).await? {
            Ok(node) => node,
            Err(obstacle) => {
                self.making.unmakeable = Some(obstacle.to_string());
                return Ok(());
            }
        };
        let claim = new_claim(&record.claim, &record.class, &volume.name_any(), Some(&node))?;
        if self.making.is_first() {
            (self.context.tell)(&format!("the claim is made with the class {}", record.class));
        }
        self.making.make(self.context, claim, Step::ImportMake).await
    }

    /// It lost its node, as when that was not to be had any more.
    async fn select_node(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> Result<(), TransferError> {
        let node = surroundings::node_for(self.context.cluster, volume).await?;
        let node = match node {
            Ok(node) => node,
            Err(obstacle) => return Err(self.refuse(obstacle)),
        };
        let claims = self
            .context
            .cluster
            .within::<PersistentVolumeClaim>(&self.request.claim.namespace);
        let annotations = json!({SELECTED_NODE: node});
        change(&claims, claim, &annotations, None, Step::ImportSelect).await?;
        Ok(())
    }

    fn refuse(&self, obstacle: Obstacle) -> TransferError {
        let refusal = ImportRefusal::Obstacles(vec![obstacle]);
        TransferError::NotImported(self.request.claim.clone(), refusal)
    }

    async fn take_back(&self, why: Interruption) -> TransferError {
        let claim = self.request.claim.clone();
        (self.context.tell)(&format!("it cannot go on, and is taken back: {why}"));
        match Box::pin(undo::undo_import(self.context, &claim)).await {
            Ok(()) => TransferError::TakenBack("import", claim, why),
            Err(error) => TransferError::NotTakenBack {
                what: "import",
                claim,
                why,
                error: Box::new(error),
            },
        }
    }

    async fn whats_holding(&self, scene: &Scene) -> Result<String, ApiError> {
        let pods = surroundings::pods(self.context.cluster, &scene.name).await?;
        let names: Vec<&str> = pods.iter().map(|(pod, _)| pod.as_str()).collect();
        Ok(match names.as_slice() {
            [] => "the claim is to be gone".to_owned(),
            names => format!("the claim is to be gone, which the pods {} use", names.join(", ")),
        })
    }

    async fn last_warning(&self, scene: &Scene) -> Option<String> {
        let uid = scene.claim.as_ref()?.uid()?;
        self.context
            .cluster
            .newest_warning(&scene.name.namespace, &uid)
            .await
    }

    fn tell_plan(&self, scene: &Scene, step: ImportStep) -> Result<(), TransferError> {
        let claim = &self.request.claim;
        match step {
            ImportStep::Refuse(refusal) => Err(TransferError::NotImported(claim.clone(), refusal)),
            ImportStep::RollBack(why) => {
                (self.context.tell)(&format!("would be taken back: {why}"));
                Ok(())
            }
            ImportStep::Done => {
                (self.context.tell)("there is nothing to do: the claim is a volume of this driver");
                Ok(())
            }
            ImportStep::Mark | ImportStep::Untouch => {
                let volume = scene
                    .volume
                    .as_ref()
                    .map(ResourceExt::name_any)
                    .unwrap_or_default();
                (self.context.tell)(&format!(
                    "nothing speaks against it. The PersistentVolume {volume} would be retained, the claim {claim} deleted and made again with a class of \
                     this driver, and the PersistentVolume given to it"
                ));
                Ok(())
            }
            step => {
                (self.context.tell)(&format!("the import has begun; next {}", step.in_words()));
                Ok(())
            }
        }
    }
}

/// What a step writes.
fn written(scene: &Scene, step: &ImportStep) -> String {
    match (step, &scene.volume) {
        (ImportStep::Mark, Some(volume)) => format!("the PersistentVolume {}", volume.name_any()),
        _ => format!("the claim {}", scene.name),
    }
}

fn new_claim(
    old: &OldClaim,
    class: &str,
    volume: &str,
    node: Option<&str>,
) -> Result<PersistentVolumeClaim, serde_json::Error> {
    let mut claim = old.adopting(class, volume);
    if let Some(node) = node {
        claim["metadata"]["annotations"][SELECTED_NODE] = node.into();
    }
    serde_json::from_value(claim)
}
