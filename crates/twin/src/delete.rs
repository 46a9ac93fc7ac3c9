//! Deleting a volume: the twin at once, and then its PV is waited for, because
//! only that says that the data is gone. Every fact is read live, but for that nothing is
//! attached.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;

use super::{
    DeleteError, Site,
    attach::attached_to,
    claimed::{ClaimCheck, VirtualPv, remembered},
    data_of,
    finalizer::remove_finalizer,
    holder,
    moves::is_of_move,
    reading::{self, twin_volume_in},
    reclaim::give_policy_back,
    site::{self, Found},
    waiter::TwinWaiter,
    withdraw::{clear_claim_ref, is_reservation},
};
use crate::{
    cluster::{ApiError, Cluster, Precondition, events::Events, facts, slim},
    fleet::Registry,
    observe::crash::{self, Step},
    placement::{
        DeleteFacts, DeleteRefusal, DeleteStep, DeleteTwin, ReclaimPolicy, TwinVolume, delete_step,
        recovery::Holder, without_twin,
    },
    volume::{ClaimMark, VolumeId, VolumeName, mark, moving::is_gated},
};

/// Deletes the volume, or goes on deleting it.
pub async fn delete(
    home: &Cluster,
    registry: &Registry,
    events: &Events,
    id: &VolumeId,
    deadline: Instant,
) -> Result<(), DeleteError> {
    let volume = &id.name;
    let mut claim = ClaimCheck::default();
    let Found { site, mut outer } = site::find(home, registry, id).await?;
    let Some(site) = site else {
        let outer = outer.and_then(|VirtualPv(outer)| outer);
        let nowhere = || "not found".to_owned();
        return match claim.existing(home, outer.as_deref()).await? {
            Some(claim) => Err(claimed(events, id, nowhere(), claim).await),
            None if outer.is_some_and(|outer| is_gated(outer.annotations())) => Err(DeleteError::Refused {
                twin: nowhere(),
                cluster: id.cluster.to_string(),
                refusal: DeleteRefusal::Gated,
            }),
            None => Ok(()),
        };
    };
    let mut waiter = TwinWaiter::of(&site);
    let awaited_volumes = site.cluster().awaited_volumes();
    let mut real_volume = awaited_volumes.get(volume);
    // Asked once: a twin that is being deleted is attached nowhere any more.
    let mut attached = attached_to(home, id).await?;
    loop {
        let look = look(
            &site,
            volume,
            outer.take(),
            &mut claim,
            attached.take(),
            &mut real_volume,
        );
        let (facts, twin) = Box::pin(look).await?;
        let awaited = match delete_step(&facts) {
            DeleteStep::DeleteTwin => {
                if let Some(twin) = &twin {
                    delete_twin(&site, twin).await?;
                }
                continue;
            }
            DeleteStep::AwaitTwin => {
                if let Some(twin) = &twin
                    && !remove_finalizer(site.cluster(), twin).await?
                {
                    continue;
                }
                Awaited::Twin {
                    volume: real_volume.clone(),
                }
            }
            DeleteStep::AwaitVolume { name, message } => Awaited::Volume { name, message },
            DeleteStep::Unclaim(reserved) => {
                clear_claim_ref(site.cluster(), &reserved, site.name()).await?;
                continue;
            }
            DeleteStep::GiveBack(retained) => {
                give_back(&site, volume, &retained).await?;
                continue;
            }
            DeleteStep::Done => {
                awaited_volumes.note(volume, None);
                return Ok(());
            }
            DeleteStep::Unavailable(why) => return Err(DeleteError::Unknown(why)),
            DeleteStep::Refuse(DeleteRefusal::Claimed(claim)) => {
                return Err(claimed(events, id, site.place(), claim).await);
            }
            DeleteStep::Refuse(refusal) => {
                return Err(DeleteError::Refused {
                    twin: site.place(),
                    cluster: site.cluster_name(),
                    refusal,
                });
            }
        };
        if !waiter.wait(deadline, || awaited.may_be_over(&site)).await {
            awaited_volumes.note(volume, real_volume);
            return Err(awaited.still_there(&site).await);
        }
    }
}

/// The claim of the volume exists: whoever uses it hears what nearly happened.
async fn claimed(events: &Events, id: &VolumeId, twin: String, claim: ClaimMark) -> DeleteError {
    let note = format!(
        "The volume {} of this claim was to be deleted, because its PersistentVolume was Released with the reclaim policy \
         Delete, as when somebody changes its claimRef. Nothing was deleted, since this claim exists",
        id.name
    );
    events.warn(&claim, "VolumeNotDeleted", &note).await;
    DeleteError::Refused {
        twin,
        cluster: id.cluster.to_string(),
        refusal: DeleteRefusal::Claimed(claim),
    }
}

/// What has to go.
enum Awaited {
    /// The twin, and then its PV if that is known by now.
    Twin {
        volume: Option<String>,
    },
    Volume {
        name: String,
        message: Option<String>,
    },
}

impl Awaited {
    /// Whether it is gone, or will not go, as far as what is watched tells: both
    /// are changed several times on their way.
    fn may_be_over(&self, site: &Site) -> bool {
        match self {
            Self::Twin { volume } => {
                let is_over = |twin: Arc<slim::Twin>| !twin.deleting;
                let volume = volume.as_ref();
                site.seen()
                    .map_or_else(|| volume.is_none_or(|name| may_be_gone(site, name)), is_over)
            }
            Self::Volume { name, .. } => may_be_gone(site, name),
        }
    }

    /// What is still there, and why if its PV says so.
    async fn still_there(self, site: &Site) -> DeleteError {
        let (what, why) = match self {
            Self::Twin { volume: Some(name) } if site.seen().is_none() && site.shows_volumes() => {
                let found = site.volumes().get(&name).await.ok().flatten();
                let message = found.and_then(|found| found.status?.message);
                (format!("the twin's PV {name}"), message)
            }
            Self::Twin { .. } => (format!("the twin {}", site.place()), None),
            Self::Volume { name, message } => (format!("the twin's PV {name}"), message),
        };
        DeleteError::StillWaiting {
            what,
            cluster: site.cluster_name(),
            why,
        }
    }
}

/// Whether a PV is gone, or will not go, as far as what is watched tells.
fn may_be_gone(site: &Site, name: &str) -> bool {
    let seen = site.cluster().views().volumes.of_twin(site.name());
    let seen = seen.iter().find(|seen| seen.name == *name);
    seen.is_none_or(|seen| seen.phase == "Failed" || seen.retain)
}

async fn look(
    site: &Site,
    volume: &VolumeName,
    outer: Option<VirtualPv>,
    claim: &mut ClaimCheck,
    attached: Option<String>,
    real_volume: &mut Option<String>,
) -> Result<(DeleteFacts, Option<PersistentVolumeClaim>), ApiError> {
    let twins = site.twins();
    let outer = async {
        match outer {
            Some(read) => Ok(read),
            None => VirtualPv::read(site.home(), volume).await,
        }
    };
    let (found, VirtualPv(outer)) = tokio::try_join!(twins.get(site.name()), outer)?;
    let outer = outer.as_deref();
    let claim = claim.existing(site.home(), outer).await?;
    let owner = site.owner(volume);
    let is_moves = match &found {
        Some(found) => is_of_move(site.home(), found).await,
        None => false,
    };
    let twin = match &found {
        None => DeleteTwin::Absent,
        Some(found) => match owner.recognise(found.labels(), found.annotations()) {
            // Whoever made a claim of that name elsewhere did so after ours was gone.
            Err(_) if site.remote_cluster().is_some() => DeleteTwin::Absent,
            Err(foreign) => DeleteTwin::Foreign(foreign),
            Ok(_) if reading::is_releasing(found) => DeleteTwin::Releasing,
            Ok(_) if is_moves => DeleteTwin::OfMove,
            Ok(_) => DeleteTwin::Ours {
                deleting: found.metadata.deletion_timestamp.is_some(),
            },
        },
    };
    if let Some(name) = found.as_ref().and_then(reading::volume_name)
        && twin != DeleteTwin::Absent
    {
        *real_volume = Some(name.to_owned());
    } else if real_volume.is_none() {
        *real_volume = outer
            .and_then(|outer| remembered(outer, site.epoch()))
            .and_then(twin_volume_in);
    }
    let seen = match twin {
        DeleteTwin::Absent => {
            let occupant = found.as_ref().and_then(ResourceExt::uid);
            find_volume(site, volume, occupant.as_deref(), real_volume).await?
        }
        // While there is a twin, the PV decides nothing.
        _ => TwinVolume::Absent,
    };
    Ok((
        DeleteFacts {
            claim,
            gated: outer.is_some_and(|outer| is_gated(outer.annotations())),
            twin,
            volume: seen,
            attached,
        },
        found,
    ))
}

async fn delete_twin(site: &Site, twin: &PersistentVolumeClaim) -> Result<(), ApiError> {
    let exactly = Precondition {
        uid: twin.uid().unwrap_or_default(),
        resource_version: None,
    };
    let outcome = crash::around(Step::TwinDelete, site.twins().delete(&twin.name_any(), exactly)).await;
    match outcome {
        Err(error) if error.is_conflict() => Ok(()),
        other => other,
    }
}

/// The PV of a twin that is gone: the one whose name we know; without a name, what we watch,
/// or else every PV there is. That is once for a volume: nobody knows the name only where the
/// volume was answered for before it was bound, and its twin went before this process saw it.
/// What belongs to the occupant, a later claim of the twin's name, is not ours.
async fn find_volume(
    site: &Site,
    volume: &VolumeName,
    occupant: Option<&str>,
    known: &mut Option<String>,
) -> Result<TwinVolume, ApiError> {
    if !site.shows_volumes() && site.cluster().rights().uncertain {
        return Ok(TwinVolume::Unknown(format!(
            "the twin {} is gone; it is not known whether its PersistentVolume is, for the API server of the cluster {} \
             could not say whether it may be read",
            site.place(),
            site.cluster_name()
        )));
    }
    if !site.shows_volumes() {
        // A loss that was stated: with the twin gone, the rest is that cluster's own matter.
        return Ok(TwinVolume::Absent);
    }
    let volumes = site.volumes();
    let mut found = Vec::new();
    let seen = site.cluster().views().volumes.of_twin(site.name());
    if let Some(name) = known {
        found.extend(volumes.get(name).await?);
    } else if seen.is_empty() {
        let maybe_ours = |real: &PersistentVolume| holder(site, volume, None, real) != Holder::Other;
        found = volumes.find(maybe_ours).await?;
    } else {
        for seen in seen {
            found.extend(volumes.get(&seen.name).await?);
        }
    }
    let whose = |real: &PersistentVolume| holder(site, volume, known.as_deref(), real);
    let not_the_occupants =
        |real: &PersistentVolume| occupant.is_none() || reading::holder_uid(real) != occupant;
    found.retain(|real| not_the_occupants(real) && whose(real) != Holder::Other);
    if let Some(ours) = found.iter().find(|real| whose(real) == Holder::Ours) {
        *known = Some(ours.name_any());
        return Ok(describe(site, ours));
    }
    // Nothing shows which one it is, if any: all of them have to be dealt with.
    let of_the_name = found.iter().map(|real| doubted(site, volume, real));
    let mut open = of_the_name.filter(|it| without_twin(it) != DeleteStep::Done);
    Ok(open.next().unwrap_or(TwinVolume::Absent))
}

/// A PV that may be the twin's. Data that was retained is not deleted on a guess.
fn doubted(site: &Site, volume: &VolumeName, real: &PersistentVolume) -> TwinVolume {
    match describe(site, real) {
        TwinVolume::RetainedByUs(name) => TwinVolume::Present {
            message: Some(format!(
                "this driver set it to Retain, and nothing shows whose data it has: annotate it with {}={} if it is this volume's, or \
                 remove its annotation {} if it is not",
                mark::DATA_OF,
                data_of(site, volume),
                mark::POLICY_BEFORE
            )),
            name,
            released: false,
            retain: true,
        },
        other => other,
    }
}

/// Gives a PV that this driver retained the reclaim policy it had: whoever it was
/// retained for deletes it now. One that waits for a twin is released for it, or
/// Kubernetes would go on keeping it.
async fn give_back(site: &Site, volume: &VolumeName, name: &str) -> Result<(), ApiError> {
    let volumes = site.volumes();
    let Some(real) = volumes.get(name).await? else {
        return Ok(());
    };
    // No claim ever has this uid.
    let holder = reading::holder_uid(&real)
        .filter(|uid| !uid.is_empty())
        .unwrap_or(volume.as_str());
    let spec = json!({"claimRef": {"uid": holder}});
    // Whoever else was writing on it: the next look tells what it has become.
    give_policy_back(site.cluster(), &real, spec).await.map(drop)
}

fn describe(site: &Site, volume: &PersistentVolume) -> TwinVolume {
    let name = volume.name_any();
    let marked = |key| volume.annotations().contains_key(key);
    // The Retain of an import or a release is for whoever does that, and nothing that a deletion gives back.
    if marked(mark::POLICY_BEFORE) && !marked(mark::IMPORT) && !marked(mark::RELEASE) {
        return TwinVolume::RetainedByUs(name);
    }
    if is_reservation(volume, site.namespace(), site.name()) {
        // Elsewhere we reserve nothing: whoever did may free it.
        return match site.remote_cluster() {
            Some(_) => TwinVolume::Absent,
            None => TwinVolume::Reserved(name),
        };
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
