//! Making a snapshot: look, decide, do one step, look again, until it is cut or the caller's
//! time is up.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use tokio::time::Instant;

use super::{
    CutError, CutSnapshot, SnapshotRequest,
    observation::{Look, cut, said_about},
    record,
    retain::keep,
    site::SnapshotSite,
};
use crate::{
    DeleteError, Site,
    cluster::{
        ApiError, Cause, Cluster, Precondition,
        events::Events,
        snapshots::{self, VolumeSnapshot, VolumeSnapshotClass, not_installed},
    },
    fleet::Registry,
    moves::may_change,
    observe::crash::{self, Step},
    placement::{
        KnownSnapshotClasses, SnapshotClass, SnapshotRefusal, SnapshotStep, choose_snapshot_class,
        moving::ChangeBeside, snapshot_step,
    },
    reading, site,
    volume::VolumeId,
    waiter::settled_twin,
};

/// Makes the snapshot, or goes on making it. It is answered for when it is cut, ready or not:
/// from then on its data does not change any more, and csi-snapshotter asks again until it is
/// ready.
pub async fn create_snapshot(
    home: &Cluster,
    registry: &Registry,
    events: &Events,
    request: &SnapshotRequest,
    deadline: Instant,
) -> Result<CutSnapshot, CutError> {
    let source = source(home, registry, &request.source).await?;
    let site = SnapshotSite::beside(&source, request.key.clone());
    loop {
        let mut look = Look::take(&site, request).await?;
        let awaited = match snapshot_step(&look.facts) {
            SnapshotStep::Create => {
                look.twin = make(&source, &site, request, deadline).await?;
                // One that was there already, and is not shown, is not asked for without end.
                if look.twin.is_none() && Instant::now() < deadline {
                    continue;
                }
                "taken"
            }
            SnapshotStep::Wait => "taken",
            SnapshotStep::GiveUp => {
                give_up(&site, look.twin.as_ref()).await?;
                continue;
            }
            SnapshotStep::AwaitGone => "gone",
            SnapshotStep::Retain => {
                if retain_or_tell(&site, events, &look).await? {
                    return answer(&site, &look, &request.source);
                }
                continue;
            }
            SnapshotStep::Answer => return answer(&site, &look, &request.source),
            SnapshotStep::Refuse(refusal) => return Err(refused(&site, refusal).await),
        };
        if !site.changed(look.twin.as_ref(), deadline).await {
            return Err(still_waiting(&site, look.twin.as_ref(), awaited).await);
        }
    }
}

/// Where the twin of the volume is.
async fn source(home: &Cluster, registry: &Registry, id: &VolumeId) -> Result<Site, CutError> {
    match site::find_again(home, registry, id).await {
        Ok(Some(site)) => Ok(site),
        Ok(None) => Err(CutError::NoVolume(id.to_string())),
        Err(DeleteError::Api(error)) => Err(error.into()),
        Err(DeleteError::Unreachable(error)) => Err(CutError::Unreachable(error.to_string())),
        Err(other) => Err(CutError::Unreachable(other.to_string())),
    }
}

/// The claim that a snapshot is made of, and its PV where that may be read.
struct Source {
    claim: PersistentVolumeClaim,
    volume: Option<PersistentVolume>,
}

/// Looks at the twin of the volume: what cannot have a snapshot is refused before anything
/// is made.
async fn look_at_source(site: &Site, id: &VolumeId, deadline: Instant) -> Result<Source, CutError> {
    let unsuitable = |why: String| Err(CutError::Unsuitable(why));
    let found = settled_twin(site, deadline).await.map_err(not_taken)?;
    let Some(claim) = found.filter(|found| site.is_twin(&id.name, found)) else {
        return Err(CutError::NoVolume(id.to_string()));
    };
    let (place, cluster) = (site.place(), site.cluster_name());
    if reading::is_releasing(&claim) {
        return unsuitable(format!(
            "its twin {place} in the cluster {cluster} is being released (liqo-csi release pvc): make a snapshot of the real class when that \
             has ended"
        ));
    }
    if let ChangeBeside::MovedOn(current) = may_change(site.home(), id, &claim, true).await {
        return unsuitable(format!(
            "it has moved, and {place} in the cluster {cluster} is what is left of before; the epoch of its data, which counts its \
             moves, is {current}"
        ));
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return unsuitable(format!(
            "its twin {place} in the cluster {cluster} is being deleted"
        ));
    }
    let (true, Some(name)) = (reading::phase(&claim) == "Bound", reading::volume_name(&claim)) else {
        return unsuitable(format!(
            "its twin {place} in the cluster {cluster} is not bound. In a remote cluster it may be bound only when its pod \
             arrives there"
        ));
    };
    if !site.shows_volumes() {
        return Ok(Source { claim, volume: None });
    }
    let Some(volume) = site.volumes().get(name).await.map_err(not_taken)? else {
        return unsuitable(format!(
            "its PersistentVolume {name} in the cluster {cluster} is gone"
        ));
    };
    if reading::driver(&volume).is_none() {
        return unsuitable(format!(
            "its PersistentVolume {name} in the cluster {cluster} is no CSI volume, and only those have snapshots"
        ));
    }
    Ok(Source {
        claim,
        volume: Some(volume),
    })
}

/// Makes the twin; `None` if somebody was faster, most likely ourselves: the next look tells.
async fn make(
    source: &Site,
    site: &SnapshotSite,
    request: &SnapshotRequest,
    deadline: Instant,
) -> Result<Option<VolumeSnapshot>, CutError> {
    let seen = look_at_source(source, &request.source, deadline).await?;
    let class = class(source, request, seen.volume.as_ref().and_then(reading::driver)).await?;
    let claim = seen.claim.name_any();
    let twin = record::twin(site, request, &claim, seen.volume.as_ref(), class);
    let created = crash::around(Step::SnapshotCreate, site.snapshots().create(&twin)).await;
    match created {
        Ok(created) => Ok(created),
        Err(error) if matches!(error.cause, Cause::NotFound(_)) && not_installed(site.cluster()).await => {
            Err(CutError::NotInstalled(site.cluster_name()))
        }
        Err(error) => Err(not_taken(error)),
    }
}

/// The class of the twin, by the names of its cluster.
async fn class(
    source: &Site,
    request: &SnapshotRequest,
    driver: Option<&str>,
) -> Result<Option<String>, CutError> {
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
        return Err(CutError::NotInstalled(cluster.id().to_string()));
    }
    let known = KnownSnapshotClasses::Listed(&classes);
    Ok(choose_snapshot_class(named, known, driver, cluster.id())?)
}

/// What the API server does not take as a matter of principle it will not take in a minute
/// either, and nothing was made: a final error. Everything else may pass.
fn not_taken(error: ApiError) -> CutError {
    match error.cause {
        Cause::Forbidden(_) | Cause::Invalid(_) | Cause::NotFound(_) => CutError::NotAccepted(error),
        Cause::Timeout(_) | Cause::Unavailable(_) | Cause::Conflict(_) | Cause::Malformed(_) => {
            CutError::Api(error)
        }
    }
}

/// Deletes exactly this version of a twin that nobody waits for: one that was cut meanwhile
/// is another version, and is answered for.
async fn give_up(site: &SnapshotSite, twin: Option<&VolumeSnapshot>) -> Result<(), ApiError> {
    let Some(twin) = twin else { return Ok(()) };
    tracing::info!(
        snapshot = site.place(),
        cluster = site.cluster_name(),
        "nobody waits for the snapshot any more: it is deleted"
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

/// The data is to be retained; where we lack the right to see to it, the user must know. False if
/// somebody was faster, and all has to be read again.
async fn retain_or_tell(site: &SnapshotSite, events: &Events, look: &Look) -> Result<bool, CutError> {
    let Some(content) = &look.real_content else {
        return Ok(true);
    };
    let user = look.user_content.as_ref();
    match keep(site, user, content).await {
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

fn answer(site: &SnapshotSite, look: &Look, source: &VolumeId) -> Result<CutSnapshot, CutError> {
    let twin = look.twin.as_ref();
    let marks = twin.and_then(|twin| site.recognise(twin).ok());
    twin.zip(marks)
        .and_then(|(twin, marks)| cut(site.id(), marks, twin))
        .ok_or_else(|| CutError::NoVolume(source.to_string()))
}

async fn refused(site: &SnapshotSite, refusal: SnapshotRefusal) -> CutError {
    // Without the kinds there is no content either.
    if refusal == SnapshotRefusal::GivenUp && not_installed(site.cluster()).await {
        return CutError::NotInstalled(site.cluster_name());
    }
    CutError::Refused {
        twin: site.place(),
        cluster: site.cluster_name(),
        refusal,
    }
}

async fn still_waiting(
    site: &SnapshotSite,
    twin: Option<&VolumeSnapshot>,
    awaited: &'static str,
) -> CutError {
    let why = match twin {
        Some(twin) => match said_about(twin) {
            None => {
                let uid = twin.uid().unwrap_or_default();
                site.cluster().newest_warning(site.namespace(), &uid).await
            }
            said => said,
        },
        None => None,
    };
    CutError::StillWaiting {
        twin: site.place(),
        cluster: site.cluster_name(),
        awaited,
        why,
    }
}
