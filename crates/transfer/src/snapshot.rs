//! Giving an existing snapshot a class of this driver without copying its data, and taking that
//! back: the steps, one after the other. What comes next is decided in
//! [`crate::placement`]; what is read before each step is in `look`.
//!
//! The source of a `VolumeSnapshot` cannot be changed, and a twin has to be in the namespace of
//! twins: so the user's object is made anew, with its name, of a content of this driver that
//! leads to a twin with a second content for the same data.

mod contents;
mod look;
mod obstacles;
mod snapshots;
mod trial;

#[cfg(test)]
mod tests;

use kube::ResourceExt;
use serde_json::json;

use self::{
    contents::{policy_before, twin_content, user_content},
    look::{Looking, Scene},
    snapshots::{new_user, twin},
    trial::{tried, unless_refused, would_not_be_accepted},
};
use super::{
    Context, NotKept, Waiting,
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

/// As `deletionPolicy` spells it.
const RETAIN: &str = "Retain";
/// What is waited for before anything is deleted.
const SEEN: &str = "the snapshot-controller is to see that the data is retained";

/// What is to be imported.
pub struct SnapshotImportRequest {
    /// The snapshot.
    pub snapshot: ClaimName,
    /// The class of this driver that it is to have.
    pub class: Option<String>,
    /// Whether also what a deployment tool manages is imported.
    pub force_managed: bool,
    /// The id of this cluster.
    pub home: ClusterId,
}

/// Why an import did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotTransferError {
    /// It is not begun, or not gone on with.
    #[error("{0} is not imported:\n{1}")]
    NotImported(ClaimName, Box<SnapshotImportRefusal>),
    /// It is not undone.
    #[error("the import of {0} is not undone: {1}")]
    NotUndone(ClaimName, SnapshotUndoRefusal),
    /// It was undone.
    #[error(
        "the import of {0} was taken back, everything is as it was before: what it needs is not accepted: {1}"
    )]
    TakenBack(ClaimName, String),
    /// It was to be undone.
    #[error(
        "the import of {snapshot} has begun and cannot go on, because what it needs is not accepted: {why}\nand it could not be taken back: \
         {error}\nRun it with --undo to take it back, or without to go on when that is accepted"
    )]
    NotTakenBack {
        /// The snapshot.
        snapshot: ClaimName,
        /// What the API server says.
        why: String,
        /// Why it could not be taken back.
        error: Box<SnapshotTransferError>,
    },
    /// Its record cannot be read.
    #[error("the VolumeSnapshotContent {0}: {1}")]
    Record(String, SnapshotRecordError),
    /// The namespace is not that of the old snapshot.
    #[error(
        "the VolumeSnapshotContent {content} was being imported for {snapshot} when that namespace was deleted; one that has its name now \
         may be somebody else's, and gets nothing. The data is safe: the content is retained. To end the import, remove its annotation {}; its \
         deletion policy was {policy}",
        mark::IMPORT_SNAPSHOT
    )]
    OtherNamespace {
        /// The snapshot.
        snapshot: ClaimName,
        /// The content.
        content: String,
        /// The deletion policy that it had.
        policy: String,
    },
    /// What is written would make no sense.
    #[error("the snapshot cannot be written as JSON: {0}")]
    Unwritable(#[from] serde_json::Error),
    /// It takes longer than the caller has time.
    #[error("{what}. The data is safe; run the same command again to go on")]
    StillWaiting {
        /// What is waited for.
        what: String,
    },
    /// What is written does not stay.
    #[error(transparent)]
    NotKept(#[from] NotKept),
    /// The cluster cannot be asked, or refuses.
    #[error("{0}")]
    Api(#[from] ApiError),
}

/// Waits a moment; an error when time is up.
async fn wait(waiting: &mut Waiting<'_>, what: &str) -> Result<(), SnapshotTransferError> {
    if waiting.a_moment(what).await {
        return Ok(());
    }
    Err(SnapshotTransferError::StillWaiting {
        what: what.to_owned(),
    })
}

/// Imports a snapshot, or goes on importing it.
pub async fn import_snapshot(
    context: &Context<'_>,
    request: &SnapshotImportRequest,
) -> Result<(), SnapshotTransferError> {
    let mut looking = Looking::default();
    let mut waiting = Waiting::new(context);
    let mut unmakeable = None;
    loop {
        let scene = Box::pin(looking.look(context, request)).await?;
        let mut facts = scene.facts.clone();
        facts.unmakeable = unmakeable.take();
        if facts.would_begin() {
            let told = Box::pin(would_not_be_accepted(context, request, &scene)).await?;
            facts.obstacles.extend(told);
        }
        let step = snapshot_import_step(&facts);
        if context.dry_run {
            return tell_plan(context, request, step);
        }
        let awaited = match step {
            SnapshotImportStep::Done => {
                (context.tell)("the snapshot is one of this driver");
                return Ok(());
            }
            SnapshotImportStep::Refuse(refusal) => {
                if refusal == SnapshotImportRefusal::Undone {
                    // What this run has made after that nobody else knows of.
                    Box::pin(undo_snapshot_import(context, request)).await?;
                }
                return Err(SnapshotTransferError::NotImported(
                    request.snapshot.clone(),
                    Box::new(refusal),
                ));
            }
            SnapshotImportStep::RollBack(why) => return Err(give_up(context, request, why).await),
            SnapshotImportStep::AwaitTwin => "its twin is to be ready",
            SnapshotImportStep::AwaitSeen => SEEN,
            SnapshotImportStep::AwaitUserGone => "the VolumeSnapshot of before is to be gone",
            SnapshotImportStep::AwaitUser => "csi-snapshotter is to have the new VolumeSnapshot ready",
            SnapshotImportStep::AwaitForgotten => "its content of before is to be gone",
            step => {
                unmakeable = Box::pin(take(context, request, &scene, &step)).await?;
                waiting.after(&step, &written(request, &scene, &step)).await?;
                continue;
            }
        };
        wait(&mut waiting, awaited).await?;
    }
}

/// Takes an import back that cannot go on.
async fn give_up(
    context: &Context<'_>,
    request: &SnapshotImportRequest,
    why: String,
) -> SnapshotTransferError {
    let snapshot = request.snapshot.clone();
    (context.tell)(&format!("it cannot go on, and is taken back: {why}"));
    match Box::pin(undo_snapshot_import(context, request)).await {
        Ok(()) => SnapshotTransferError::TakenBack(snapshot, why),
        Err(error) => SnapshotTransferError::NotTakenBack {
            snapshot,
            why,
            error: Box::new(error),
        },
    }
}

/// Takes an import back that has not come to its end.
pub async fn undo_snapshot_import(
    context: &Context<'_>,
    request: &SnapshotImportRequest,
) -> Result<(), SnapshotTransferError> {
    let mut looking = Looking::default();
    let mut waiting = Waiting::new(context);
    loop {
        let scene = Box::pin(looking.look(context, request)).await?;
        let step = snapshot_undo_step(&scene.facts);
        if context.dry_run && !matches!(step, SnapshotUndoStep::Refuse(_) | SnapshotUndoStep::Done) {
            (context.tell)("the import would be taken back; nothing was changed");
            return Ok(());
        }
        match step {
            SnapshotUndoStep::Done => {
                (context.tell)("the snapshot is as it was before");
                return Ok(());
            }
            SnapshotUndoStep::Refuse(refusal) => {
                return Err(SnapshotTransferError::NotUndone(
                    request.snapshot.clone(),
                    refusal,
                ));
            }
            SnapshotUndoStep::AwaitSeen => wait(&mut waiting, SEEN).await?,
            SnapshotUndoStep::AwaitTwinGone => wait(&mut waiting, "its twin is to be gone").await?,
            SnapshotUndoStep::AwaitContentGone => {
                wait(&mut waiting, "the content of its twin is to be gone").await?;
            }
            step => {
                Box::pin(take_back(context, &scene, &step)).await?;
                let written = written_back(request, &scene, &step);
                waiting.after(&step, &written).await?;
            }
        }
    }
}

fn tell_plan(
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
        SnapshotImportStep::Done => (context.tell)("the snapshot is one of this driver"),
        SnapshotImportStep::Mark => (context.tell)("it would be imported; nothing was changed"),
        _ => (context.tell)("its import has begun, and would go on; nothing was changed"),
    }
    Ok(())
}

/// Takes one step of an import. What the API server says against an object that is to be made, if it
/// does not take it.
async fn take(
    context: &Context<'_>,
    request: &SnapshotImportRequest,
    scene: &Scene,
    step: &SnapshotImportStep,
) -> Result<Option<String>, SnapshotTransferError> {
    let cluster = context.cluster;
    let contents = cluster.all::<VolumeSnapshotContent>();
    let stored = cluster.within::<VolumeSnapshot>(context.storage_namespace);
    let users = cluster.within::<VolumeSnapshot>(&request.snapshot.namespace);
    let (Some(real), Some(record)) = (&scene.real, &scene.plan) else {
        return Ok(None);
    };
    match step {
        SnapshotImportStep::Mark => {
            (context.tell)("its content is retained from now on");
            secure(&contents, real, record).await?;
        }
        SnapshotImportStep::RetainContent => retain_again(&contents, scene).await?,
        SnapshotImportStep::MakeContent => {
            let of_twin = twin_content(context.storage_namespace, real, record);
            let made = crash::around(Step::SnapshotImportContent, contents.create(&of_twin)).await;
            return Ok(unless_refused(made)?);
        }
        SnapshotImportStep::MakeTwin => {
            let twin = twin(context, request, scene.affinity.clone(), real, record);
            let made = crash::around(Step::SnapshotImportTwin, stored.create(&twin)).await;
            return Ok(unless_refused(made)?);
        }
        SnapshotImportStep::DeleteUser => {
            let Some(user) = &scene.user else { return Ok(None) };
            if let Some(why) = tried(&users, new_user(record)?, record.user_content()).await? {
                return Ok(Some(why));
            }
            (context.tell)("its twin is ready: the VolumeSnapshot is made anew");
            delete(&users, user, Step::SnapshotImportDelete).await?;
        }
        SnapshotImportStep::MakeUserContent => {
            let policy = scene.virtual_policy(&record.class);
            let of_user = user_content(&request.home, policy, real, record);
            let made = crash::around(Step::SnapshotImportUserContent, contents.create(&of_user)).await;
            return Ok(unless_refused(made)?);
        }
        SnapshotImportStep::MakeUser => {
            let mut user = new_user(record)?;
            keep_living_owners(context, &mut user).await?;
            let made = crash::around(Step::SnapshotImportMake, users.create(&user)).await;
            return Ok(unless_refused(made)?);
        }
        SnapshotImportStep::Forget => {
            delete(&contents, real, Step::SnapshotImportForget).await?;
        }
        _ => {}
    }
    Ok(None)
}

/// Takes one step of an undo.
async fn take_back(
    context: &Context<'_>,
    scene: &Scene,
    step: &SnapshotUndoStep,
) -> Result<(), SnapshotTransferError> {
    let cluster = context.cluster;
    let contents = cluster.all::<VolumeSnapshotContent>();
    match (step, &scene.user, &scene.real, &scene.plan) {
        (SnapshotUndoStep::Touch | SnapshotUndoStep::Untouch, Some(user), ..) => {
            let users = cluster.within::<VolumeSnapshot>(&user.namespace().unwrap_or_default());
            let (mark, step) = if *step == SnapshotUndoStep::Touch {
                (Some("true"), Step::SnapshotUndoTouch)
            } else {
                (None, Step::SnapshotUndoUntouch)
            };
            change(&users, user, &json!({mark::IMPORT_UNDONE: mark}), None, step).await?;
        }
        (SnapshotUndoStep::Mark, _, Some(real), Some(record)) => secure(&contents, real, record).await?,
        (SnapshotUndoStep::RetainContent, ..) => retain_again(&contents, scene).await?,
        (SnapshotUndoStep::DeleteTwin, ..) => {
            let Some(twin) = &scene.twin else { return Ok(()) };
            let stored = cluster.within::<VolumeSnapshot>(context.storage_namespace);
            delete(&stored, twin, Step::SnapshotUndoTwin).await?;
        }
        (SnapshotUndoStep::DeleteContent, ..) => {
            let Some(of_twin) = &scene.content else {
                return Ok(());
            };
            delete(&contents, of_twin, Step::SnapshotUndoContent).await?;
        }
        (SnapshotUndoStep::Restore, _, Some(real), Some(record)) => {
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
        _ => {}
    }
    Ok(())
}

/// What a step of an import writes.
fn written(request: &SnapshotImportRequest, scene: &Scene, step: &SnapshotImportStep) -> String {
    use SnapshotImportStep::{Forget, MakeContent, MakeTwin, MakeUserContent, Mark, RetainContent};
    match (step, &scene.real, &scene.plan) {
        (Mark | Forget, Some(real), _) => content(&real.name_any()),
        (RetainContent | MakeContent, _, Some(record)) => content(&record.real_content()),
        (MakeUserContent, _, Some(record)) => content(&record.user_content()),
        (MakeTwin, _, Some(record)) => format!("the twin {}", record.key().twin()),
        _ => format!("the VolumeSnapshot {}", request.snapshot),
    }
}

/// What a step of an undo writes.
fn written_back(request: &SnapshotImportRequest, scene: &Scene, step: &SnapshotUndoStep) -> String {
    use SnapshotUndoStep::{DeleteContent, DeleteTwin, Mark, Restore, RetainContent};
    match (step, &scene.real, &scene.content, &scene.twin) {
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

/// Whatever happens from now on, the data stays.
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

/// Gives the twin's content back what it was made with.
async fn retain_again(contents: &Objects<VolumeSnapshotContent>, scene: &Scene) -> Result<(), ApiError> {
    let Some(of_twin) = &scene.content else {
        return Ok(());
    };
    let annotations = match &scene.plan {
        Some(record) if scene.facts.recorded => json!({mark::DELETION_POLICY_BEFORE: policy_before(record)}),
        // The record is gone; what was noted from it on this content stays.
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
