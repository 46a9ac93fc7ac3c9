//! Imports an existing snapshot: gives it a class of this driver without copying its data, and undoes that.
//! This module runs the steps; [`crate::placement`] decides them, and `observer` reads the objects before
//! each step.
//!
//! The source of a `VolumeSnapshot` cannot be changed, and a twin must be in the namespace of the twins: so
//! the user's object is created again under its name. It gets a content of this driver, which refers to a
//! twin with a second content for the same data.

mod contents;
mod dry_run;
mod observer;
mod obstacles;
mod snapshots;

#[cfg(test)]
mod tests;

use kube::ResourceExt;
use serde_json::json;

use self::{
    contents::{policy_before, twin_content, user_content},
    dry_run::{find_rejections, rejection_of, try_to_create},
    observer::{Observed, Observer},
    snapshots::{new_user, twin},
};
use super::{
    Context, NotKept, ObjectMissing, Waiter,
    owners::keep_living_owners,
    writing::{change, delete},
};
use crate::{
    cluster::{
        ApiError, Objects,
        snapshots::{VolumeSnapshot, VolumeSnapshotContent},
    },
    observe::crash::{self, Step},
    placement::{
        SnapshotImportRefusal, SnapshotImportStep, SnapshotUndoRefusal, SnapshotUndoStep,
        snapshot_import_step, snapshot_undo_step,
    },
    volume::{ClaimName, ClusterId, SnapshotImport, SnapshotRecordError, mark},
};

const RETAIN: &str = "Retain";
/// The condition for deleting anything.
const SEEN: &str = "waiting for the snapshot-controller to observe that the data is retained";

pub struct SnapshotImportRequest {
    pub snapshot: ClaimName,
    /// The class of this driver for the snapshot.
    pub class: Option<String>,
    /// Whether snapshots that a deployment tool manages are imported, too.
    pub force_managed: bool,
    pub home: ClusterId,
}

/// Why an import is not complete.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotTransferError {
    /// It was not begun, or not continued.
    #[error("{0} is not imported:\n{1}")]
    NotImported(ClaimName, Box<SnapshotImportRefusal>),
    #[error("the import of {0} is not undone: {1}")]
    NotUndone(ClaimName, SnapshotUndoRefusal),
    #[error(
        "the import of {0} was rolled back, and the previous state is restored, because the API server refuses an object that it needs: {1}"
    )]
    RolledBack(ClaimName, String),
    #[error(
        "the import of {snapshot} cannot continue, because the API server refuses an object that it needs: {why}\nand it could not be rolled back: \
         {error}\nRun it with --undo to undo it, or without to continue once the object is accepted"
    )]
    RollbackFailed {
        snapshot: ClaimName,
        /// The message of the API server.
        why: String,
        /// Why the rollback failed.
        error: Box<SnapshotTransferError>,
    },
    /// The record cannot be read.
    #[error("the VolumeSnapshotContent {0}: {1}")]
    Record(String, SnapshotRecordError),
    /// The namespace was deleted, and has another uid now.
    #[error(
        "the VolumeSnapshotContent {content} was being imported for {snapshot} when that namespace was deleted; a namespace of the same name \
         may be another user's, so nothing is changed in it. The data is safe: the content is retained. To end the import, remove its annotation {}; its \
         deletion policy was {policy}",
        mark::IMPORT_SNAPSHOT
    )]
    OtherNamespace {
        snapshot: ClaimName,
        content: String,
        policy: String,
    },
    /// The snapshot cannot be serialized.
    #[error("the snapshot cannot be written as JSON: {0}")]
    Unwritable(#[from] serde_json::Error),
    /// Another program has not done its part in time.
    #[error("timed out {what}. The data is safe; run the same command again to continue")]
    StillWaiting { what: String },
    /// The written values do not persist.
    #[error(transparent)]
    NotKept(#[from] NotKept),
    #[error(transparent)]
    ObjectMissing(#[from] ObjectMissing),
    /// The API server cannot be reached, or refuses.
    #[error("{0}")]
    Api(#[from] ApiError),
}

/// Pauses; an error after the timeout.
async fn wait(waiter: &mut Waiter<'_>, what: &str) -> Result<(), SnapshotTransferError> {
    if waiter.pause(what).await {
        return Ok(());
    }
    Err(SnapshotTransferError::StillWaiting {
        what: what.to_owned(),
    })
}

/// Imports a snapshot, or continues an import.
pub async fn import_snapshot(
    context: &Context<'_>,
    request: &SnapshotImportRequest,
) -> Result<(), SnapshotTransferError> {
    let mut reads = Observer::default();
    let mut waiter = Waiter::new(context);
    let mut unmakeable = None;
    loop {
        let observed = Box::pin(reads.observe(context, request)).await?;
        let mut facts = observed.facts.clone();
        facts.unmakeable = unmakeable.take();
        if facts.would_begin() {
            let reported = Box::pin(find_rejections(context, request, &observed)).await?;
            facts.obstacles.extend(reported);
        }
        let step = snapshot_import_step(&facts);
        if context.dry_run {
            return report_plan(context, request, step);
        }
        let awaited = match step {
            SnapshotImportStep::Done => {
                (context.report)("the snapshot belongs to this driver");
                return Ok(());
            }
            SnapshotImportStep::Refuse(refusal) => {
                if refusal == SnapshotImportRefusal::Undone {
                    // Deletes what this run has created after the undo.
                    Box::pin(undo_snapshot_import(context, request)).await?;
                }
                return Err(SnapshotTransferError::NotImported(
                    request.snapshot.clone(),
                    Box::new(refusal),
                ));
            }
            SnapshotImportStep::RollBack(why) => return Err(roll_back_import(context, request, why).await),
            SnapshotImportStep::AwaitTwin => "waiting for its twin to become ready",
            SnapshotImportStep::AwaitSeen => SEEN,
            SnapshotImportStep::AwaitUserGone => "waiting for the original VolumeSnapshot to be deleted",
            SnapshotImportStep::AwaitUser => "waiting for the new VolumeSnapshot to become ready",
            SnapshotImportStep::AwaitForgotten => "waiting for its original content to be deleted",
            step => {
                unmakeable = Box::pin(take(context, request, &observed, &step)).await?;
                waiter
                    .after_step(&step, &written_object(request, &observed, &step))
                    .await?;
                continue;
            }
        };
        wait(&mut waiter, awaited).await?;
    }
}

/// Rolls back an import that cannot continue.
async fn roll_back_import(
    context: &Context<'_>,
    request: &SnapshotImportRequest,
    why: String,
) -> SnapshotTransferError {
    let snapshot = request.snapshot.clone();
    (context.report)(&format!("cannot continue, rolling back: {why}"));
    match Box::pin(undo_snapshot_import(context, request)).await {
        Ok(()) => SnapshotTransferError::RolledBack(snapshot, why),
        Err(error) => SnapshotTransferError::RollbackFailed {
            snapshot,
            why,
            error: Box::new(error),
        },
    }
}

/// Undoes an import that is not complete.
pub async fn undo_snapshot_import(
    context: &Context<'_>,
    request: &SnapshotImportRequest,
) -> Result<(), SnapshotTransferError> {
    let mut reads = Observer::default();
    let mut waiter = Waiter::new(context);
    loop {
        let observed = Box::pin(reads.observe(context, request)).await?;
        let step = snapshot_undo_step(&observed.facts);
        if context.dry_run && !matches!(step, SnapshotUndoStep::Refuse(_) | SnapshotUndoStep::Done) {
            (context.report)("the import would be undone; nothing was changed (dry run)");
            return Ok(());
        }
        match step {
            SnapshotUndoStep::Done => {
                (context.report)("the original snapshot is restored");
                return Ok(());
            }
            SnapshotUndoStep::Refuse(refusal) => {
                return Err(SnapshotTransferError::NotUndone(
                    request.snapshot.clone(),
                    refusal,
                ));
            }
            SnapshotUndoStep::AwaitSeen => wait(&mut waiter, SEEN).await?,
            SnapshotUndoStep::AwaitTwinGone => {
                wait(&mut waiter, "waiting for its twin to be deleted").await?;
            }
            SnapshotUndoStep::AwaitContentGone => {
                wait(&mut waiter, "waiting for the content of its twin to be deleted").await?;
            }
            step => {
                Box::pin(roll_back(context, &observed, &step)).await?;
                let written = undone_object(request, &observed, &step);
                waiter.after_step(&step, &written).await?;
            }
        }
    }
}

fn report_plan(
    context: &Context<'_>,
    request: &SnapshotImportRequest,
    step: SnapshotImportStep,
) -> Result<(), SnapshotTransferError> {
    match step {
        SnapshotImportStep::Refuse(refusal) => {
            return Err(SnapshotTransferError::NotImported(
                request.snapshot.clone(),
                Box::new(refusal),
            ));
        }
        SnapshotImportStep::Done => (context.report)("the snapshot belongs to this driver"),
        SnapshotImportStep::Mark => (context.report)("the import is possible; nothing was changed (dry run)"),
        _ => (context.report)("its import has begun and would continue; nothing was changed (dry run)"),
    }
    Ok(())
}

/// Takes one step of an import. Returns the message of the API server if it refuses an object.
async fn take(
    context: &Context<'_>,
    request: &SnapshotImportRequest,
    observed: &Observed,
    step: &SnapshotImportStep,
) -> Result<Option<String>, SnapshotTransferError> {
    let cluster = context.cluster;
    let contents = cluster.all::<VolumeSnapshotContent>();
    let stored = cluster.within::<VolumeSnapshot>(context.storage_namespace);
    let users = cluster.within::<VolumeSnapshot>(&request.snapshot.namespace);
    let (Some(real), Some(record)) = (&observed.real, &observed.plan) else {
        return Err(ObjectMissing::of(step).into());
    };
    match step {
        SnapshotImportStep::Mark => {
            (context.report)("retaining its content");
            secure(&contents, real, record).await?;
        }
        SnapshotImportStep::RetainContent => {
            let of_twin = observed.content.as_ref();
            let of_twin = of_twin.ok_or_else(|| ObjectMissing::of(step))?;
            restore_retention(&contents, of_twin, observed).await?;
        }
        SnapshotImportStep::MakeContent => {
            let of_twin = twin_content(context.storage_namespace, real, record);
            let made = crash::around(Step::SnapshotImportContent, contents.create(&of_twin)).await;
            return Ok(rejection_of(made)?);
        }
        SnapshotImportStep::MakeTwin => {
            let twin = twin(context, request, observed.affinity.clone(), real, record);
            let made = crash::around(Step::SnapshotImportTwin, stored.create(&twin)).await;
            return Ok(rejection_of(made)?);
        }
        SnapshotImportStep::DeleteUser => {
            let user = observed.user.as_ref();
            let user = user.ok_or_else(|| ObjectMissing::of(step))?;
            if let Some(why) = try_to_create(&users, new_user(record)?, record.user_content()).await? {
                return Ok(Some(why));
            }
            (context.report)("its twin is ready; creating the VolumeSnapshot again");
            delete(&users, user, Step::SnapshotImportDelete).await?;
        }
        SnapshotImportStep::MakeUserContent => {
            let policy = observed.virtual_policy(&record.class);
            let of_user = user_content(&request.home, policy, real, record);
            let made = crash::around(Step::SnapshotImportUserContent, contents.create(&of_user)).await;
            return Ok(rejection_of(made)?);
        }
        SnapshotImportStep::MakeUser => {
            let mut user = new_user(record)?;
            keep_living_owners(context, &mut user).await?;
            let made = crash::around(Step::SnapshotImportMake, users.create(&user)).await;
            return Ok(rejection_of(made)?);
        }
        SnapshotImportStep::Forget => {
            delete(&contents, real, Step::SnapshotImportForget).await?;
        }
        _ => return Err(ObjectMissing::of(step).into()),
    }
    Ok(None)
}

async fn roll_back(
    context: &Context<'_>,
    observed: &Observed,
    step: &SnapshotUndoStep,
) -> Result<(), SnapshotTransferError> {
    let cluster = context.cluster;
    let contents = cluster.all::<VolumeSnapshotContent>();
    let Observed {
        user,
        real,
        plan,
        twin,
        content: of_twin,
        ..
    } = observed;
    match (step, user, real, plan, twin, of_twin) {
        (SnapshotUndoStep::Touch | SnapshotUndoStep::Untouch, Some(user), ..) => {
            let users = cluster.within::<VolumeSnapshot>(&user.namespace().unwrap_or_default());
            let (mark, step) = if *step == SnapshotUndoStep::Touch {
                (Some("true"), Step::SnapshotUndoTouch)
            } else {
                (None, Step::SnapshotUndoUntouch)
            };
            change(&users, user, &json!({mark::IMPORT_UNDONE: mark}), None, step).await?;
        }
        (SnapshotUndoStep::Mark, _, Some(real), Some(record), ..) => secure(&contents, real, record).await?,
        (SnapshotUndoStep::RetainContent, .., Some(of_twin)) => {
            restore_retention(&contents, of_twin, observed).await?;
        }
        (SnapshotUndoStep::DeleteTwin, .., Some(twin), _) => {
            let stored = cluster.within::<VolumeSnapshot>(context.storage_namespace);
            delete(&stored, twin, Step::SnapshotUndoTwin).await?;
        }
        (SnapshotUndoStep::DeleteContent, .., Some(of_twin)) => {
            delete(&contents, of_twin, Step::SnapshotUndoContent).await?;
        }
        (SnapshotUndoStep::Restore, _, Some(real), Some(record), ..) => {
            let annotations = json!({mark::IMPORT_SNAPSHOT: null});
            let spec = json!({"deletionPolicy": record.policy});
            change(
                &contents,
                real,
                &annotations,
                Some(spec),
                Step::SnapshotUndoRestore,
            )
            .await?;
        }
        _ => return Err(ObjectMissing::of(step).into()),
    }
    Ok(())
}

/// The object that a step of an import writes.
fn written_object(request: &SnapshotImportRequest, observed: &Observed, step: &SnapshotImportStep) -> String {
    use SnapshotImportStep::{Forget, MakeContent, MakeTwin, MakeUserContent, Mark, RetainContent};
    match (step, &observed.real, &observed.plan) {
        (Mark | Forget, Some(real), _) => content(&real.name_any()),
        (RetainContent | MakeContent, _, Some(record)) => content(&record.real_content()),
        (MakeUserContent, _, Some(record)) => content(&record.user_content()),
        (MakeTwin, _, Some(record)) => format!("the twin {}", record.key().twin()),
        _ => format!("the VolumeSnapshot {}", request.snapshot),
    }
}

/// The object that a step of an undo writes.
fn undone_object(request: &SnapshotImportRequest, observed: &Observed, step: &SnapshotUndoStep) -> String {
    use SnapshotUndoStep::{DeleteContent, DeleteTwin, Mark, Restore, RetainContent};
    match (step, &observed.real, &observed.content, &observed.twin) {
        (Mark | Restore, Some(found), ..) | (RetainContent | DeleteContent, _, Some(found), _) => {
            content(&found.name_any())
        }
        (DeleteTwin, .., Some(twin)) => format!("the twin {}", twin.name_any()),
        _ => format!("the VolumeSnapshot {}", request.snapshot),
    }
}

fn content(name: &str) -> String {
    format!("the VolumeSnapshotContent {name}")
}

/// From now on, the data is retained whatever happens.
async fn secure(
    contents: &Objects<VolumeSnapshotContent>,
    real: &VolumeSnapshotContent,
    record: &SnapshotImport,
) -> Result<(), SnapshotTransferError> {
    let annotations = json!({mark::IMPORT_SNAPSHOT: record.text()?});
    let spec = json!({"deletionPolicy": RETAIN});
    change(contents, real, &annotations, Some(spec), Step::SnapshotImportMark).await?;
    Ok(())
}

/// Restores the original deletion policy of the twin's content.
async fn restore_retention(
    contents: &Objects<VolumeSnapshotContent>,
    of_twin: &VolumeSnapshotContent,
    observed: &Observed,
) -> Result<(), ApiError> {
    let annotations = match &observed.plan {
        Some(record) if observed.facts.recorded => {
            json!({mark::DELETION_POLICY_BEFORE: policy_before(record)})
        }
        // The record is gone; the copied policy on this content is kept.
        _ => json!({}),
    };
    let spec = json!({"deletionPolicy": RETAIN});
    change(
        contents,
        of_twin,
        &annotations,
        Some(spec),
        Step::SnapshotImportRetain,
    )
    .await?;
    Ok(())
}
