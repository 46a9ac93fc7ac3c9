//! `CreateSnapshot`: observe, decide, do one step, and repeat until the snapshot is cut, the request
//! fails or the deadline has passed.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use tokio::time::Instant;

use super::{
    SnapshotCreateError, SnapshotRequest, TakenSnapshot,
    observation::{SnapshotObservation, cut, reported_error},
    record,
    retain::retain_data,
    site::SnapshotSite,
};
use crate::{
    Site,
    cluster::{
        ApiError, Cause, Cluster, Precondition,
        events::Events,
        held_by,
        snapshots::{self, VolumeSnapshot, VolumeSnapshotClass, not_installed},
    },
    errors::FindError,
    fleet::Registry,
    moves::may_change,
    observe::crash::{self, Step},
    placement::{
        KnownSnapshotClasses, SnapshotClass, SnapshotRefusal, SnapshotStep, choose_snapshot_class,
        moving::ChangeDecision, snapshot_step,
    },
    reading, site,
    volume::VolumeId,
    waiter::settled_twin,
};

/// Creates the snapshot, or continues to. The call succeeds when the snapshot is cut, ready or not: from
/// then on its data does not change, and csi-snapshotter calls again until it is ready.
pub async fn create_snapshot(
    home: &Cluster,
    registry: &Registry,
    events: &Events,
    request: &SnapshotRequest,
    deadline: Instant,
) -> Result<TakenSnapshot, SnapshotCreateError> {
    let source = source(home, registry, &request.source).await?;
    let site = SnapshotSite::of_source(&source, request.key.clone());
    loop {
        let mut observation = SnapshotObservation::take(&site, request).await?;
        let awaited = match snapshot_step(&observation.facts) {
            SnapshotStep::Create => {
                observation.twin = make(&source, &site, request, deadline).await?;
                // A twin that exists but is not returned is not requested again without end.
                if observation.twin.is_none() && Instant::now() < deadline {
                    continue;
                }
                "taken"
            }
            SnapshotStep::Wait => "taken",
            SnapshotStep::GiveUp => {
                give_up(&site, observation.twin.as_ref()).await?;
                continue;
            }
            SnapshotStep::AwaitGone => "gone",
            SnapshotStep::Retain => {
                if retain_or_warn(&site, events, &observation).await? {
                    return answer(&site, events, &observation, &request.source).await;
                }
                continue;
            }
            SnapshotStep::Answer => return answer(&site, events, &observation, &request.source).await,
            SnapshotStep::Refuse(refusal) => return Err(refused(&site, refusal).await),
        };
        if !site.changed(observation.twin.as_ref(), deadline).await {
            return Err(still_waiting(&site, observation.twin.as_ref(), awaited).await);
        }
    }
}

/// The site of the volume's twin.
async fn source(home: &Cluster, registry: &Registry, id: &VolumeId) -> Result<Site, SnapshotCreateError> {
    match site::find_existing(home, registry, id).await {
        Ok(Some(site)) => Ok(site),
        Ok(None) => Err(SnapshotCreateError::NoVolume(id.to_string())),
        Err(FindError::NoRecord(why)) => Err(SnapshotCreateError::NoRecord(why)),
        Err(FindError::Unreachable(error)) => Err(SnapshotCreateError::Unreachable(error.to_string())),
        Err(FindError::Api(error)) => Err(error.into()),
    }
}

/// The claim of which the snapshot is taken, and its PV where that may be read.
struct Source {
    claim: PersistentVolumeClaim,
    volume: Option<PersistentVolume>,
}

/// Reads the twin of the volume. A volume that cannot have a snapshot is refused before anything is
/// created.
async fn read_source(site: &Site, id: &VolumeId, deadline: Instant) -> Result<Source, SnapshotCreateError> {
    let unsuitable = |why: String| Err(SnapshotCreateError::Unsuitable(why));
    let found = settled_twin(site, deadline).await.map_err(rejected)?;
    let Some(claim) = found.filter(|found| site.is_twin(&id.name, found)) else {
        return Err(SnapshotCreateError::NoVolume(id.to_string()));
    };
    let (place, cluster) = (site.place(), site.cluster_name());
    if reading::is_releasing(&claim) {
        return unsuitable(format!(
            "its twin {place} in the cluster {cluster} is being released (liqo-csi release pvc): create a snapshot with the real \
             class after that"
        ));
    }
    match may_change(site.home(), id, &claim).await {
        ChangeDecision::Allow => {}
        ChangeDecision::Later => {
            return unsuitable(
                "it is being moved to another place, where this snapshot would not be: create a snapshot when the move has ended"
                    .to_owned(),
            );
        }
        ChangeDecision::MovedOn(current) => {
            return unsuitable(format!(
                "it has moved, and {place} in the cluster {cluster} is the source of a move; the epoch of its data, which counts \
                 its moves, is {current}: delete this snapshot and create another one"
            ));
        }
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return unsuitable(format!(
            "its twin {place} in the cluster {cluster} is being deleted"
        ));
    }
    let (true, Some(name)) = (reading::phase(&claim) == "Bound", reading::volume_name(&claim)) else {
        return unsuitable(format!(
            "its twin {place} in the cluster {cluster} is not bound. In a remote cluster it may be bound only when its pod arrives \
             there"
        ));
    };
    if !site.shows_volumes() {
        return Ok(Source { claim, volume: None });
    }
    let Some(volume) = site.volumes().get(name).await.map_err(rejected)? else {
        return unsuitable(format!(
            "its PersistentVolume {name} in the cluster {cluster} does not exist"
        ));
    };
    if reading::driver(&volume).is_none() {
        return unsuitable(format!(
            "its PersistentVolume {name} in the cluster {cluster} is not a CSI volume, and only those have snapshots"
        ));
    }
    Ok(Source {
        claim,
        volume: Some(volume),
    })
}

/// Creates the twin; `None` if it exists, most likely from an earlier call: the caller reads it.
async fn make(
    source: &Site,
    site: &SnapshotSite,
    request: &SnapshotRequest,
    deadline: Instant,
) -> Result<Option<VolumeSnapshot>, SnapshotCreateError> {
    let seen = read_source(source, &request.source, deadline).await?;
    let class = class(source, request, seen.volume.as_ref().and_then(reading::driver)).await?;
    let claim = seen.claim.name_any();
    let twin = record::twin(site, request, &claim, seen.volume.as_ref(), class);
    let created = crash::around(Step::SnapshotCreate, site.snapshots().create(&twin)).await;
    match created {
        Ok(created) => Ok(created),
        Err(error) if matches!(error.cause, Cause::NotFound(_)) && not_installed(site.cluster()).await => {
            Err(SnapshotCreateError::NotInstalled(site.cluster_name()))
        }
        Err(error) => Err(rejected(error)),
    }
}

/// The class of the twin, with the name that it has in its cluster.
async fn class(
    source: &Site,
    request: &SnapshotRequest,
    driver: Option<&str>,
) -> Result<Option<String>, SnapshotCreateError> {
    let cluster = source.cluster();
    let named = request.parameters.real_class.as_deref();
    let mapping = source.remote_cluster().map(|remote| &remote.classes.snapshots);
    let named = named.map(|name| {
        let mapped = mapping.and_then(|mapping| mapping.get(name));
        mapped.map_or(name, String::as_str)
    });
    let read = match named {
        Some(name) => {
            let class = cluster.all::<VolumeSnapshotClass>().get(name).await;
            class.map(|class| class.iter().map(VolumeSnapshotClass::read).collect())
        }
        None => snapshots::classes(cluster).await,
    };
    let classes: Vec<SnapshotClass> = match read {
        Ok(classes) => classes,
        Err(error) if error.is_forbidden() => {
            return Ok(choose_snapshot_class(
                named,
                KnownSnapshotClasses::Unreadable,
                driver,
                cluster.id(),
            )?);
        }
        Err(error) if matches!(error.cause, Cause::NotFound(_)) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    if classes.is_empty() && not_installed(cluster).await {
        return Err(SnapshotCreateError::NotInstalled(cluster.id().to_string()));
    }
    let known = KnownSnapshotClasses::Listed(&classes);
    Ok(choose_snapshot_class(named, known, driver, cluster.id())?)
}

/// An object that the API server rejects as invalid or forbidden is rejected again on a retry, and
/// nothing was created: a final error. All other errors may be temporary.
fn rejected(error: ApiError) -> SnapshotCreateError {
    match error.cause {
        Cause::Forbidden(_) | Cause::Invalid(_) | Cause::NotFound(_) => {
            SnapshotCreateError::NotAccepted(error)
        }
        Cause::Timeout(_)
        | Cause::Unavailable(_)
        | Cause::Unauthorized(_)
        | Cause::Conflict(_)
        | Cause::Malformed(_) => SnapshotCreateError::Api(error),
    }
}

/// Deletes exactly this version of a twin for which no client waits: one that is cut in the meantime has
/// another version, and is returned to the caller.
async fn give_up(site: &SnapshotSite, twin: Option<&VolumeSnapshot>) -> Result<(), ApiError> {
    let Some(twin) = twin else { return Ok(()) };
    tracing::info!(
        snapshot = site.place(),
        cluster = site.cluster_name(),
        "no client waits for the snapshot any more: deleting it"
    );
    let exactly = Precondition {
        uid: twin.uid().unwrap_or_default(),
        resource_version: twin.resource_version(),
    };
    let (snapshots, name) = (site.snapshots(), twin.name_any());
    match crash::around(Step::SnapshotGiveUp, snapshots.delete(&name, exactly)).await {
        Err(error) if error.is_conflict() => Ok(()),
        other => other,
    }
}

/// Applies the user's deletion policy Retain; without the right to do so, emits an event. False if the
/// content has changed since it was read.
async fn retain_or_warn(
    site: &SnapshotSite,
    events: &Events,
    observation: &SnapshotObservation,
) -> Result<bool, SnapshotCreateError> {
    let Some(content) = &observation.real_content else {
        return Ok(true);
    };
    let user = observation.user_content.as_ref();
    match retain_data(site, user, content).await {
        Err(error) if error.is_forbidden() => {
            if let Some(user) = user {
                let note =
                    format!("The deletion policy Retain cannot be applied to the real snapshot: {error}");
                events.warn_content(user, "RetainNotApplied", &note).await;
            }
            Ok(true)
        }
        other => Ok(other?),
    }
}

async fn answer(
    site: &SnapshotSite,
    events: &Events,
    observation: &SnapshotObservation,
    source: &VolumeId,
) -> Result<TakenSnapshot, SnapshotCreateError> {
    warn_not_ready(site, events, observation).await;
    let twin = observation.twin.as_ref();
    let marks = twin.and_then(|twin| site.recognise(twin).ok());
    twin.zip(marks)
        .and_then(|(twin, marks)| cut(site.id(), marks, twin))
        .ok_or_else(|| SnapshotCreateError::NoVolume(source.to_string()))
}

/// Emits an event on the user's snapshot if it is taken, but the snapshot controllers report why it is not
/// ready: an answer cannot contain that.
async fn warn_not_ready(site: &SnapshotSite, events: &Events, observation: &SnapshotObservation) {
    let twin = observation
        .twin
        .as_ref()
        .filter(|twin| !snapshots::is_ready(twin));
    let (Some(why), Some(user)) = (twin.and_then(reported_error), &observation.user_content) else {
        return;
    };
    let note = format!(
        "The snapshot was taken, but it is not ready to use: {why} (snapshot {} in cluster {})",
        site.place(),
        site.cluster_name()
    );
    let snapshot = user.spec.volume_snapshot_ref.clone();
    events.warn_object(snapshot, "SnapshotNotReady", &note).await;
}

async fn refused(site: &SnapshotSite, refusal: SnapshotRefusal) -> SnapshotCreateError {
    // If the kinds are not installed, the content does not exist either.
    if refusal == SnapshotRefusal::GivenUp && not_installed(site.cluster()).await {
        return SnapshotCreateError::NotInstalled(site.cluster_name());
    }
    SnapshotCreateError::Refused {
        twin: site.place(),
        cluster: site.cluster_name(),
        refusal,
    }
}

async fn still_waiting(
    site: &SnapshotSite,
    twin: Option<&VolumeSnapshot>,
    awaited: &'static str,
) -> SnapshotCreateError {
    let why = match twin {
        Some(twin) => match reported_error(twin) {
            None => {
                let uid = twin.uid().unwrap_or_default();
                let warning = site.cluster().newest_warning(site.namespace(), &uid).await;
                warning.or_else(|| held_by(twin))
            }
            reported => reported,
        },
        None => None,
    };
    SnapshotCreateError::StillWaiting {
        twin: site.place(),
        cluster: site.cluster_name(),
        awaited,
        why,
    }
}
