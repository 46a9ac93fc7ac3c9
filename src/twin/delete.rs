//! Deleting a volume: the twin at once, and then its PV is waited for, because
//! only that says that the data is gone. Every fact is read live.

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::VolumeAttachment,
};
use kube::ResourceExt;
use tokio::time::Instant;

use super::{
    DeleteError, TWIN_VOLUME, name_of,
    news::News,
    place_of, record,
    withdraw::{is_reservation, let_go, unclaim},
};
use crate::{
    cluster::{ApiError, Cluster, Precondition, facts},
    observe::{CrashPoint, crash_point},
    placement::{DeleteFacts, DeleteStep, DeleteTwin, ReclaimPolicy, TwinVolume, delete_step},
    volume::{Owner, VolumeName, mark},
};

/// Deletes the volume, or goes on deleting it.
pub async fn delete(home: &Cluster, volume: &VolumeName, deadline: Instant) -> Result<(), DeleteError> {
    let name = name_of(volume);
    let mut news = News::of(home, name);
    let mut real_volume = None;
    // Asked once: a twin that is being deleted is attached nowhere any more.
    let mut attached = attached_to(home, volume).await?;
    loop {
        let (facts, twin) = look(home, volume, attached.take(), &mut real_volume).await?;
        let awaited = match delete_step(&facts) {
            DeleteStep::DeleteTwin => {
                if let Some(twin) = &twin {
                    delete_twin(home, twin).await?;
                }
                continue;
            }
            DeleteStep::AwaitTwin => {
                if let Some(twin) = &twin
                    && !let_go(home, twin).await?
                {
                    continue;
                }
                Awaited::Twin
            }
            DeleteStep::AwaitVolume { name, message } => Awaited::Volume { name, message },
            DeleteStep::Unclaim(reserved) => {
                unclaim(home, &reserved, name).await?;
                continue;
            }
            DeleteStep::Done => return Ok(()),
            DeleteStep::Unavailable(why) => return Err(DeleteError::Unknown(why)),
            DeleteStep::Refuse(refusal) => {
                return Err(DeleteError::Refused {
                    twin: place_of(home, volume),
                    cluster: home.id().to_string(),
                    refusal,
                });
            }
        };
        if !news.wait(deadline, || awaited.may_be_over(home, volume)).await {
            return Err(awaited.still_there(home, volume));
        }
    }
}

/// What has to go.
enum Awaited {
    Twin,
    Volume { name: String, message: Option<String> },
}

impl Awaited {
    /// Whether it is gone, or will not go, as far as what is watched tells: both
    /// are changed several times on their way.
    fn may_be_over(&self, home: &Cluster, volume: &VolumeName) -> bool {
        match self {
            Self::Twin => {
                let seen = home.views().twins.get(&place_of(home, volume));
                seen.is_none_or(|twin| !twin.deleting)
            }
            Self::Volume { name, .. } => {
                let seen = home.views().volumes.of_topic(name_of(volume));
                let seen = seen.iter().find(|seen| seen.name == *name);
                seen.is_none_or(|seen| seen.phase == "Failed" || seen.retain)
            }
        }
    }

    fn still_there(self, home: &Cluster, volume: &VolumeName) -> DeleteError {
        let (what, why) = match self {
            Self::Twin => (format!("the twin {}", place_of(home, volume)), None),
            Self::Volume { name, message } => (format!("the twin's PV {name}"), message),
        };
        DeleteError::StillWaiting {
            what,
            cluster: home.id().to_string(),
            why,
        }
    }
}

async fn look(
    home: &Cluster,
    volume: &VolumeName,
    attached: Option<String>,
    real_volume: &mut Option<String>,
) -> Result<(DeleteFacts, Option<PersistentVolumeClaim>), ApiError> {
    let found = home
        .stored::<PersistentVolumeClaim>()
        .get(name_of(volume))
        .await?;
    let owner = Owner::of_volume(home.id().clone(), volume.clone());
    let twin = match &found {
        None => DeleteTwin::Absent,
        Some(found) => match owner.recognise(found.labels(), found.annotations()) {
            Err(foreign) => DeleteTwin::Foreign(foreign),
            Ok(_) => DeleteTwin::Ours {
                deleting: found.metadata.deletion_timestamp.is_some(),
            },
        },
    };
    if let Some(name) = found.as_ref().and_then(record::volume_name) {
        *real_volume = Some(name.to_owned());
    }
    let seen = match twin {
        DeleteTwin::Absent => find_volume(home, volume, real_volume).await?,
        // While there is a twin, the PV decides nothing.
        _ => TwinVolume::Absent,
    };
    Ok((
        DeleteFacts {
            twin,
            volume: seen,
            attached,
        },
        found,
    ))
}

async fn attached_to(home: &Cluster, volume: &VolumeName) -> Result<Option<String>, ApiError> {
    let ours = format!("{},{}={volume}", mark::selector(home.id()), mark::VOLUME);
    let held = home.all::<VolumeAttachment>().list(Some(&ours)).await?;
    Ok(held
        .into_iter()
        .next()
        .map(|attachment| attachment.spec.node_name))
}

async fn delete_twin(home: &Cluster, twin: &PersistentVolumeClaim) -> Result<(), ApiError> {
    let exactly = Precondition {
        uid: twin.uid().unwrap_or_default(),
        resource_version: None,
    };
    crash_point(CrashPoint::BeforeTwinDelete);
    let outcome = home
        .stored::<PersistentVolumeClaim>()
        .delete(&twin.name_any(), exactly)
        .await;
    crash_point(CrashPoint::AfterTwinDelete);
    match outcome {
        Err(error) if error.is_conflict() => Ok(()),
        other => other,
    }
}

/// The PV of a twin that is gone: by the name we know, by what the virtual PV
/// remembers, by what we watch, and if all that says nothing, by looking at
/// every PV there is. Only the last may conclude that there is none.
async fn find_volume(
    home: &Cluster,
    volume: &VolumeName,
    known: &mut Option<String>,
) -> Result<TwinVolume, ApiError> {
    let (volumes, twin) = (home.all::<PersistentVolume>(), name_of(volume));
    let mut names: Vec<String> = known.iter().cloned().collect();
    if names.is_empty() {
        names.extend(remembered(home, volume).await?);
        let seen = home.views().volumes.of_topic(twin);
        names.extend(seen.iter().map(|seen| seen.name.clone()));
    }
    let conclusive = !names.is_empty();
    for name in names {
        if let Some(found) = volumes.get(&name).await?.filter(|found| is_of(home, found, twin)) {
            *known = Some(name);
            return Ok(describe(home, &found, twin));
        }
    }
    if conclusive {
        return Ok(TwinVolume::Absent);
    }
    let all = volumes.list(None).await?;
    let found = all.iter().find(|found| is_of(home, found, twin));
    Ok(found.map_or(TwinVolume::Absent, |found| describe(home, found, twin)))
}

async fn remembered(home: &Cluster, volume: &VolumeName) -> Result<Option<String>, ApiError> {
    let found = home.all::<PersistentVolume>().get(volume.as_str()).await?;
    let attributes = found.and_then(|found| found.spec?.csi?.volume_attributes);
    let name = attributes.and_then(|mut attributes| attributes.remove(TWIN_VOLUME));
    Ok(name.filter(|name| !name.is_empty()))
}

fn is_of(home: &Cluster, volume: &PersistentVolume, twin: &str) -> bool {
    let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    claim.is_some_and(|claim| {
        claim.namespace.as_deref() == Some(home.storage_namespace()) && claim.name.as_deref() == Some(twin)
    })
}

fn describe(home: &Cluster, volume: &PersistentVolume, twin: &str) -> TwinVolume {
    let name = volume.name_any();
    if is_reservation(volume, home.storage_namespace(), twin) {
        return TwinVolume::Reserved(name);
    }
    let status = volume.status.as_ref();
    let phase = status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default();
    let policy = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    TwinVolume::Present {
        name,
        released: matches!(phase, "Released" | "Failed"),
        retain: facts::reclaim_policy(policy) == ReclaimPolicy::Retain,
        message: status.and_then(|status| status.message.clone()),
    }
}
