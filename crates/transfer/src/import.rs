//! Runs the steps of an import.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde_json::json;

use super::{
    Context, ObjectMissing, TransferError, Waiter, environment,
    observer::{BOUND_BY_CONTROLLER, Observed, Observer},
    undo,
    writing::{self, Creation, change, change_volume, delete, old_claim, touch},
};
use crate::{
    cluster::{ApiError, facts, slim::SELECTED_NODE},
    observe::crash::Step,
    placement::transfer::{
        ClaimNow, ImportFacts, ImportRefusal, ImportStep, Interruption, Obstacle, Progress, class_for,
        import_step, obstacles,
    },
    twin::reclaim_policy,
    volume::{ClaimName, ImportRecord, OldClaim, SpecError, can_be_attached, mark},
};

pub struct ImportRequest {
    pub claim: ClaimName,
    /// The virtual class for the claim.
    pub class: Option<String>,
    /// Whether claims that a deployment tool manages are imported, too.
    pub force_managed: bool,
}

/// Imports a claim, or continues an import.
pub async fn import(context: &Context<'_>, request: &ImportRequest) -> Result<(), TransferError> {
    let mut reads = Observer::default();
    let mut waiter = Waiter::new(context);
    let mut run = Run {
        context,
        request,
        begun: false,
        seen_gone: false,
        creation: Creation::default(),
    };
    loop {
        let observed = Box::pin(reads.observe(context.cluster, &request.claim)).await?;
        if let Some(record) = &observed.record
            && request.class.as_ref().is_some_and(|class| *class != record.class)
        {
            return Err(run.refuse(Obstacle::BegunWith(record.class.clone())));
        }
        let facts = Box::pin(run.facts(&observed)).await?;
        let gone = facts.progress == Progress::NotRecorded
            && !matches!(facts.claim, ClaimNow::New { bound: true, .. });
        if run.begun && gone {
            // The claim is read before the PV: in between, the claim may have been bound and the record
            // removed.
            if std::mem::replace(&mut run.seen_gone, true) {
                return Err(TransferError::Undone("import", request.claim.clone()));
            }
            continue;
        }
        run.begun |= facts.progress == Progress::Permitted;
        let step = import_step(&facts);
        if context.dry_run {
            return run.report_plan(&observed, step);
        }
        match step {
            ImportStep::Done => {
                (context.report)("the claim has a volume of this driver");
                return Ok(());
            }
            ImportStep::Refuse(refusal) => {
                return Err(TransferError::NotImported(request.claim.clone(), refusal));
            }
            ImportStep::RollBack(why) => return Err(run.roll_back(why).await),
            ImportStep::AwaitClaimGone => {
                let what = Box::pin(run.deletion_wait(&observed)).await?;
                waiter.wait_for(&what, None).await?;
            }
            ImportStep::AwaitDetached(node) => {
                let what = format!("waiting for the PersistentVolume to be detached from the node {node}");
                waiter.wait_for(&what, None).await?;
            }
            ImportStep::AwaitAdopted => {
                let why = Box::pin(run.last_warning(&observed)).await;
                waiter
                    .wait_for("waiting for the controller to adopt the PersistentVolume", why)
                    .await?;
            }
            ImportStep::AwaitSettled => {
                waiter
                    .wait_for("waiting for the controller to restore the reclaim policy of the PersistentVolume; the claim is bound", None)
                    .await?;
            }
            step => {
                Box::pin(run.take(&observed, &step)).await?;
                waiter
                    .after_step(&step, &written_object(&observed, &step))
                    .await?;
            }
        }
    }
}

/// State between the steps of this run; a later run does not need it.
struct Run<'a> {
    context: &'a Context<'a>,
    request: &'a ImportRequest,
    /// Whether a record was seen.
    begun: bool,
    /// Whether a claim that was not bound was observed without the record.
    seen_gone: bool,
    creation: Creation,
}

impl Run<'_> {
    async fn facts(&self, observed: &Observed) -> Result<ImportFacts, TransferError> {
        let cluster = self.context.cluster;
        let claim = observed.claim_now();
        let progress = observed.progress();
        let mut facts = ImportFacts {
            secured: observed.is_secured() && observed.changed_record().is_none(),
            obstacles: Vec::new(),
            attached: None,
            unmakeable: self.creation.unmakeable.clone(),
            progress,
            claim,
        };
        match (&facts.claim, &observed.volume) {
            (ClaimNow::Old { .. } | ClaimNow::Other { .. }, _) if progress != Progress::Withdrawn => {
                facts.obstacles = self.obstacles(observed).await?;
            }
            (ClaimNow::Absent, Some(volume)) => {
                let nodes = environment::attached(cluster, &volume.name_any()).await?;
                facts.attached = nodes.into_iter().next();
            }
            _ => {}
        }
        Ok(facts)
    }

    /// All obstacles to the import.
    async fn obstacles(&self, observed: &Observed) -> Result<Vec<Obstacle>, TransferError> {
        let cluster = self.context.cluster;
        let classes = environment::classes(cluster).await?;
        let Some(claim) = &observed.claim else {
            return Ok(Vec::new());
        };
        let (claim, real) = environment::read(cluster, claim, observed.volume.as_ref(), &classes).await?;
        let mut found = obstacles(&claim, real.as_ref(), self.request.force_managed);
        if found == [Obstacle::Twin] || found == [Obstacle::Ours] {
            return Ok(found);
        }
        let modes = observed
            .claim
            .as_ref()
            .and_then(|claim| claim.spec.as_ref()?.access_modes.as_ref());
        if !can_be_attached(&facts::access_modes(modes.into_iter().flatten())) {
            found.push(Obstacle::Unmountable(SpecError::NotAttachable.to_string()));
        }
        let wanted = self.request.class.as_deref();
        let class = match &observed.record {
            Some(record) => Ok(record.class.clone()),
            None => class_for(wanted, &classes),
        };
        let node = match &observed.volume {
            Some(volume) => Some(environment::node_for(cluster, volume).await?),
            None => None,
        };
        let class = class.map_err(|obstacle| found.push(obstacle)).ok();
        let node = node.and_then(|node| node.map_err(|obstacle| found.push(obstacle)).ok());
        if let (Some(class), Some(claim), Some(volume)) = (class, &observed.claim, &observed.volume) {
            let new = new_claim(
                &old_claim(claim, &observed.namespace_uid),
                &class,
                &volume.name_any(),
                node.as_deref(),
            )?;
            found.extend(writing::find_blockers(self.context, new, "import").await?);
        }
        Ok(found)
    }

    async fn take(&mut self, observed: &Observed, step: &ImportStep) -> Result<(), TransferError> {
        match (step, &observed.claim, &observed.volume, &observed.record) {
            (ImportStep::Mark, claim, Some(volume), record) => {
                let record = match (record, claim) {
                    (Some(record), _) => observed.changed_record().unwrap_or_else(|| record.clone()),
                    (None, Some(claim)) => self.record(claim, volume, &observed.namespace_uid).await?,
                    (None, None) => return Err(ObjectMissing::of(step).into()),
                };
                self.mark(observed, volume, &record).await
            }
            (ImportStep::DeleteClaim, Some(claim), ..) => self.delete(claim).await,
            (ImportStep::MakeClaim, _, Some(volume), Some(record)) => self.make(volume, record).await,
            (ImportStep::SelectNode, Some(claim), Some(volume), _) => self.select_node(claim, volume).await,
            (ImportStep::Untouch, Some(claim), ..) => {
                Ok(touch(self.context, claim, mark::IMPORT_UNDONE, false, Step::UndoUntouch).await?)
            }
            _ => Err(ObjectMissing::of(step).into()),
        }
    }

    async fn record(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        namespace_uid: &str,
    ) -> Result<ImportRecord, TransferError> {
        let classes = environment::classes(self.context.cluster).await?;
        let class = class_for(self.request.class.as_deref(), &classes);
        let class = class.map_err(|obstacle| self.refuse(obstacle))?;
        let policy = reclaim_policy(volume).to_owned();
        Ok(ImportRecord::new(class, policy, old_claim(claim, namespace_uid)))
    }

    /// Step 1: from now on, the data is retained whatever happens.
    async fn mark(
        &self,
        observed: &Observed,
        volume: &PersistentVolume,
        record: &ImportRecord,
    ) -> Result<(), TransferError> {
        let name = volume.name_any();
        (self.context.report)(&format!(
            "the PersistentVolume {name} is retained, and the driver may adopt it for {}",
            self.request.claim
        ));
        let annotations = json!({
            mark::IMPORT: record.to_annotation()?,
            mark::ADOPT_FOR: self.request.claim.to_string(),
            mark::POLICY_BEFORE: null,
            BOUND_BY_CONTROLLER: null,
        });
        let spec = observed.secure_spec(volume, record);
        // The next observation reads what was written.
        change_volume(self.context, volume, &annotations, Some(spec), Step::ImportMark).await?;
        Ok(())
    }

    /// Step 2: in exactly this version, so that an undo in the meantime makes the deletion fail.
    async fn delete(&self, claim: &PersistentVolumeClaim) -> Result<(), TransferError> {
        (self.context.report)(&format!(
            "deleting the claim {}, to create it again",
            self.request.claim
        ));
        let claims = self
            .context
            .cluster
            .within::<PersistentVolumeClaim>(&self.request.claim.namespace);
        Ok(delete(&claims, claim, Step::ImportDelete).await?)
    }

    async fn make(&mut self, volume: &PersistentVolume, record: &ImportRecord) -> Result<(), TransferError> {
        let node = match environment::node_for(self.context.cluster, volume).await? {
            Ok(node) => node,
            Err(obstacle) => {
                self.creation.unmakeable = Some(obstacle.to_string());
                return Ok(());
            }
        };
        let claim = new_claim(&record.claim, &record.class, &volume.name_any(), Some(&node))?;
        if self.creation.is_first() {
            (self.context.report)(&format!("creating the claim with the class {}", record.class));
        }
        self.creation.create(self.context, claim, Step::ImportMake).await
    }

    /// The claim has lost its selected node, for example because that node could not serve it.
    async fn select_node(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> Result<(), TransferError> {
        let node = environment::node_for(self.context.cluster, volume).await?;
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

    async fn roll_back(&self, why: Interruption) -> TransferError {
        let claim = self.request.claim.clone();
        (self.context.report)(&format!("cannot continue, rolling back: {why}"));
        match Box::pin(undo::undo_import(self.context, &claim)).await {
            Ok(()) => TransferError::RolledBack("import", claim, why),
            Err(error) => TransferError::RollbackFailed {
                what: "import",
                claim,
                why,
                error: Box::new(error),
            },
        }
    }

    async fn deletion_wait(&self, observed: &Observed) -> Result<String, ApiError> {
        let pods = environment::pods(self.context.cluster, &observed.name).await?;
        let names: Vec<&str> = pods.iter().map(|(pod, _)| pod.as_str()).collect();
        Ok(match names.as_slice() {
            [] => "waiting for the claim to be deleted".to_owned(),
            names => format!(
                "waiting for the claim to be deleted; it is used by the pods {}",
                names.join(", ")
            ),
        })
    }

    async fn last_warning(&self, observed: &Observed) -> Option<String> {
        let uid = observed.claim.as_ref()?.uid()?;
        self.context
            .cluster
            .newest_warning(&observed.name.namespace, &uid)
            .await
    }

    fn report_plan(&self, observed: &Observed, step: ImportStep) -> Result<(), TransferError> {
        let claim = &self.request.claim;
        match step {
            ImportStep::Refuse(refusal) => Err(TransferError::NotImported(claim.clone(), refusal)),
            ImportStep::RollBack(why) => {
                (self.context.report)(&format!("would be rolled back: {why}"));
                Ok(())
            }
            ImportStep::Done => {
                (self.context.report)("there is nothing to do: the claim has a volume of this driver");
                Ok(())
            }
            ImportStep::Mark | ImportStep::Untouch => {
                let volume = observed
                    .volume
                    .as_ref()
                    .map(ResourceExt::name_any)
                    .unwrap_or_default();
                (self.context.report)(&format!(
                    "the import is possible (dry run). The PersistentVolume {volume} would be retained, and the claim {claim} deleted and created again with a class of \
                     this driver, which adopts the PersistentVolume"
                ));
                Ok(())
            }
            step => {
                (self.context.report)(&format!(
                    "the import has begun; the next step: {}",
                    step.in_words()
                ));
                Ok(())
            }
        }
    }
}

/// The object that a step writes.
fn written_object(observed: &Observed, step: &ImportStep) -> String {
    match (step, &observed.volume) {
        (ImportStep::Mark, Some(volume)) => format!("the PersistentVolume {}", volume.name_any()),
        _ => format!("the claim {}", observed.name),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{claim, empty_cluster, quiet};

    #[tokio::test]
    async fn a_step_without_its_object_is_an_error() {
        use ImportStep::{DeleteClaim, MakeClaim, Mark, SelectNode, Untouch};
        let (_api, cluster) = empty_cluster().await;
        let (context, claim) = (quiet(&cluster), claim());
        let mut reads = Observer::default();
        let observed = Box::pin(reads.observe(&cluster, &claim)).await.unwrap();
        let mut run = Run {
            context: &context,
            request: &ImportRequest {
                claim,
                class: None,
                force_managed: false,
            },
            begun: true,
            seen_gone: false,
            creation: Creation::default(),
        };
        for step in [Mark, DeleteClaim, MakeClaim, SelectNode, Untouch] {
            let taken = run.take(&observed, &step).await;
            assert!(
                matches!(taken, Err(TransferError::ObjectMissing(_))),
                "{step:?}: {taken:?}"
            );
        }
    }
}
