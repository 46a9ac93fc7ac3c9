//! What a volume may be used for during and after a move: turns the marks on its twin, and on its twins
//! in other clusters, into the facts on which [`crate::placement::moving`] decides.

use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{ResourceExt, core::PartialObjectMeta};
use tokio::time::Instant;

use super::{PublishError, Site};
use crate::{
    api::volume_move::VolumeMove,
    cluster::{Cluster, slim},
    fleet::Registry,
    placement::moving::{
        AttachDecision, AttachFacts, Caller, ChangeDecision, Live, attach_decision, change_decision,
        is_left_alone,
    },
    volume::{
        ClaimMark, ClaimName, Epoch, Marks, VolumeId,
        moving::{MoveUid, SourceMark, TwinMarkError, TwinMarks},
    },
};

/// How long the first view of the twins of a namespace may take. After that a cluster that does not show
/// them is treated as unreachable.
const FIRST_VIEW: Duration = Duration::from_secs(2);

/// Whether a `VolumeMove` of this uid may exist; only then its marks count. They are read only where there is a mark,
/// and all of them only if the view does not show it. If they cannot be read, or the kind is unknown, it may exist.
pub async fn exists(home: &Cluster, by: &MoveUid) -> bool {
    let is_it = |one: &PartialObjectMeta<VolumeMove>| one.metadata.uid.as_deref() == Some(by.as_str());
    let seen = home.views().moves.all();
    if let Some(seen) = seen.iter().find(|seen| seen.uid == by.as_str()) {
        let moves = home.within::<PartialObjectMeta<VolumeMove>>(&seen.name.namespace);
        let found = moves.get_or_gone(&seen.name.name).await;
        return found.map_or(true, |found| found.is_some_and(|found| is_it(&found)));
    }
    let found = home.all::<PartialObjectMeta<VolumeMove>>().find(is_it).await;
    found.map_or(true, |found| !found.is_empty())
}

/// Whether one of the moves that wrote these marks may exist. A source that was rolled back keeps its mark, which does
/// not count: the moves are not read for it.
async fn any_exists(home: &Cluster, marks: &Result<TwinMarks, TwinMarkError>) -> bool {
    let Ok(marks) = marks else { return true };
    let source = match &marks.source {
        Some(SourceMark::Moving { by, .. }) => Some(by),
        Some(SourceMark::Superseded { .. } | SourceMark::RolledBack { .. }) | None => None,
    };
    let target = marks.target.as_ref().map(|target| &target.by);
    for by in source.into_iter().chain(target) {
        if exists(home, by).await {
            return true;
        }
    }
    false
}

/// Whether a move owns a twin, so that no other operation may use it; from the twin as it was read.
pub async fn is_of_move(home: &Cluster, twin: &PersistentVolumeClaim) -> bool {
    is_left_alone_now(home, &marks_of(twin)).await
}

/// Reads whether the move exists only if the decision depends on it.
async fn is_left_alone_now(home: &Cluster, marks: &Result<TwinMarks, TwinMarkError>) -> bool {
    if is_left_alone(marks, |_| false) {
        return true;
    }
    is_left_alone(marks, |_| true) && any_exists(home, marks).await
}

/// The same for a twin in a view; assumes that the move exists.
#[must_use]
pub fn is_seen_of_move(twin: &slim::Twin) -> bool {
    is_left_alone(&twin.moves, |_| true)
}

fn marks_of(twin: &PersistentVolumeClaim) -> Result<TwinMarks, TwinMarkError> {
    TwinMarks::read(twin.labels(), twin.annotations())
}

/// Whether the twin may be changed, snapshotted or copied.
pub(super) async fn may_change(
    home: &Cluster,
    id: &VolumeId,
    twin: &PersistentVolumeClaim,
) -> ChangeDecision {
    let marks = marks_of(twin);
    let current = match &marks {
        Ok(TwinMarks {
            source: Some(SourceMark::Superseded { epoch, .. }),
            ..
        }) => *epoch,
        _ => id.epoch,
    };
    change_decision(id.epoch, current, is_left_alone_now(home, &marks).await)
}

/// Whether a volume at home may be attached, according to its twin as it was just read.
pub(super) async fn may_publish(
    home: &Cluster,
    registry: &Registry,
    id: &VolumeId,
    caller: &Caller,
    twin: &PersistentVolumeClaim,
) -> Result<(), PublishError> {
    let marks = Marks::read(twin.labels(), twin.annotations());
    let (claim, epoch) = marks.map_or((None, id.epoch), |marks| (marks.claim, marks.epoch));
    let seen = ObservedTwin {
        epoch,
        moves: &marks_of(twin),
        claim: claim.as_ref(),
    };
    decide_publish(home, registry, id, caller, seen).await
}

/// Whether a pod in the remote cluster of the volume may use it, according to the view of its twin.
/// Nothing is attached for that pod, and while that cluster is unreachable no pod starts there.
pub async fn may_publish_elsewhere(
    home: &Cluster,
    registry: &Registry,
    id: &VolumeId,
    caller: &Caller,
    remembered: Option<&ClaimName>,
) -> Result<(), PublishError> {
    let Ok(Some(site)) = Site::of_volume(home, registry, id, remembered) else {
        return Ok(());
    };
    let Some(twin) = site.seen().filter(|twin| twin.volume == id.name) else {
        return Ok(());
    };
    let seen = ObservedTwin {
        epoch: twin.epoch,
        moves: &twin.moves,
        claim: twin.claim.as_ref(),
    };
    decide_publish(home, registry, id, caller, seen).await
}

/// The marks of a twin.
struct ObservedTwin<'a> {
    epoch: Epoch,
    moves: &'a Result<TwinMarks, TwinMarkError>,
    /// The claim for which the twin was created.
    claim: Option<&'a ClaimMark>,
}

async fn decide_publish(
    home: &Cluster,
    registry: &Registry,
    id: &VolumeId,
    caller: &Caller,
    seen: ObservedTwin<'_>,
) -> Result<(), PublishError> {
    let volume = &id.name;
    let marks = seen.moves.as_ref().map_err(|error| {
        PublishError::Unusable(format!(
            "it is not known whether the volume {volume} has moved: the marks on its twin in the cluster {} are not readable: \
             {error}. Install the version of this driver that has written them",
            id.cluster
        ))
    })?;
    let exists = match caller {
        Caller::User => any_exists(home, seen.moves).await,
        Caller::Mover { by, .. } => exists(home, by).await,
    };
    let facts = AttachFacts {
        asked: id.epoch,
        epoch: seen.epoch,
        source: marks.source.clone(),
        target: marks.target.clone(),
        exists,
        highest: highest(home, registry, id, seen.claim).await,
    };
    match attach_decision(&Live::Known(facts), caller) {
        AttachDecision::Allow => Ok(()),
        decision => Err(PublishError::Moved {
            volume: volume.clone(),
            cluster: id.cluster.clone(),
            decision,
        }),
    }
}

/// The highest epoch of a handed-over twin of the volume in the remote clusters that answer: after a
/// restore of the home cluster from a backup, the PV is from before the move. Twins at home are not
/// counted: they were lost together with the newer PV.
pub async fn highest(home: &Cluster, registry: &Registry, id: &VolumeId, claim: Option<&ClaimMark>) -> Epoch {
    let Some(claim) = claim else { return id.epoch };
    let epochs = registry.all().into_iter().map(|remote| async move {
        let cluster = remote.reach().ok()?;
        let namespace = remote.namespaces.remote(&claim.namespace, &remote.id).ok()?;
        let view = cluster.twins_in(namespace);
        if *view.version().borrow() == 0 {
            let began = view.outdated_since().unwrap_or_else(Instant::now);
            tokio::time::timeout_at(began + FIRST_VIEW, view.complete())
                .await
                .ok()?;
        }
        let twin = view.get(&format!("{namespace}/{}", claim.name))?;
        let is_its = twin.volume == id.name && twin.handed_over && cluster.id() != home.id();
        is_its.then_some(twin.epoch)
    });
    let found = join_all(epochs).await.into_iter().flatten().max();
    found.map_or(id.epoch, |found| found.max(id.epoch))
}
