//! `DeleteVolume`: deletes the twin, and waits until its PV is deleted, because only that proves that
//! the data is deleted. Every fact is read live, except that the volume is attached nowhere.

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
    identity::other_cluster,
    moves::is_of_move,
    reading::{self, twin_volume_in},
    reclaim::restore_reclaim_policy,
    site::{self, Found},
    waiter::TwinWaiter,
    withdraw::{clear_claim_ref, is_reservation},
};
use crate::{
    cluster::{ApiError, Cluster, Precondition, events::Events, facts, held_by, slim},
    fleet::Registry,
    observe::crash::{self, Step},
    placement::{
        DeleteFacts, DeleteRefusal, DeleteStep, DeleteTwin, ReclaimPolicy, TwinVolume, delete_step,
        recovery::Holder, without_twin,
    },
    volume::{ClaimMark, VolumeId, VolumeName, mark, moving::is_gated},
};

/// Deletes the volume, or continues to.
pub async fn delete(
    home: &Cluster,
    registry: &Registry,
    events: &Events,
    id: &VolumeId,
    deadline: Instant,
) -> Result<(), DeleteError> {
    let volume = &id.name;
    let mut claim = ClaimCheck::default();
    let Found { site, mut virtual_pv } = site::find(home, registry, id).await?;
    let Some(site) = site else {
        let virtual_pv = virtual_pv.and_then(|VirtualPv(virtual_pv)| virtual_pv);
        let nowhere = || "not found".to_owned();
        return match claim.any(home, id, virtual_pv.as_deref()).await? {
            Some(claim) => Err(refuse_claimed(events, id, nowhere(), claim).await),
            None if virtual_pv.is_some_and(|virtual_pv| is_gated(virtual_pv.annotations())) => {
                Err(DeleteError::Refused {
                    twin: nowhere(),
                    cluster: id.cluster.to_string(),
                    refusal: DeleteRefusal::Gated,
                })
            }
            None => Ok(()),
        };
    };
    let mut waiter = TwinWaiter::of(&site);
    let awaited_volumes = site.cluster().awaited_volumes();
    let mut real_volume = awaited_volumes.get(volume);
    // Read once: a twin that is being deleted is not attached again.
    let mut attached = attached_to(home, id).await?;
    loop {
        let observation = observe(
            &site,
            id,
            virtual_pv.take(),
            &mut claim,
            attached.take(),
            &mut real_volume,
        );
        let (facts, twin) = Box::pin(observation).await?;
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
                restore_policy(&site, volume, &retained).await?;
                continue;
            }
            DeleteStep::Done => {
                awaited_volumes.note(volume, None);
                return Ok(());
            }
            DeleteStep::Unavailable(why) => return Err(DeleteError::Unknown(why)),
            DeleteStep::Refuse(DeleteRefusal::Claimed(claim)) => {
                return Err(refuse_claimed(events, id, site.place(), claim).await);
            }
            DeleteStep::Refuse(refusal) => {
                return Err(DeleteError::Refused {
                    twin: site.place(),
                    cluster: site.cluster_name(),
                    refusal,
                });
            }
        };
        if !waiter.wait(deadline, || awaited.may_be_done(&site)).await {
            awaited_volumes.note(volume, real_volume);
            return Err(awaited.into_error(&site).await);
        }
    }
}

/// Refuses to delete a volume whose claim exists, with an event for the users of the claim.
async fn refuse_claimed(events: &Events, id: &VolumeId, twin: String, claim: ClaimMark) -> DeleteError {
    let note = format!(
        "The volume {} of this claim was not deleted. Kubernetes requested its deletion, because its PersistentVolume was \
         Released with the reclaim policy Delete, for example after a change of its claimRef; but this claim exists",
        id.name
    );
    events.warn(&claim, "VolumeNotDeleted", &note).await;
    DeleteError::Refused {
        twin,
        cluster: id.cluster.to_string(),
        refusal: DeleteRefusal::Claimed(claim),
    }
}

/// The object whose deletion is waited for.
enum Awaited {
    /// The twin, and then its PV if its name is known.
    Twin {
        volume: Option<String>,
    },
    Volume {
        name: String,
        message: Option<String>,
    },
}

impl Awaited {
    /// Whether the views suggest that the object is deleted, or will not be. The twin and its PV
    /// change several times before they are deleted.
    fn may_be_done(&self, site: &Site) -> bool {
        match self {
            Self::Twin { volume } => {
                let is_done = |twin: Arc<slim::Twin>| !twin.deleting;
                let volume = volume.as_ref();
                site.seen()
                    .map_or_else(|| volume.is_none_or(|name| may_be_deleted(site, name)), is_done)
            }
            Self::Volume { name, .. } => may_be_deleted(site, name),
        }
    }

    /// The error that names the object that still exists, and the reason that its PV reports.
    async fn into_error(self, site: &Site) -> DeleteError {
        let (what, why) = match self {
            Self::Twin { volume: Some(name) } if site.seen().is_none() && site.shows_volumes() => {
                let found = site.volumes().get(&name).await.ok().flatten();
                let message = found.and_then(|found| found.status?.message);
                (format!("the twin's PV {name}"), message)
            }
            Self::Twin { .. } => {
                let found = site.twins().get(site.name()).await.ok().flatten();
                (
                    format!("the twin {}", site.place()),
                    found.as_ref().and_then(held_by),
                )
            }
            Self::Volume { name, message } => (format!("the twin's PV {name}"), message),
        };
        DeleteError::StillWaiting {
            what,
            cluster: site.cluster_name(),
            why,
        }
    }
}

/// Whether the views suggest that a PV is deleted, or will not be.
fn may_be_deleted(site: &Site, name: &str) -> bool {
    let seen = site.cluster().views().volumes.of_twin(site.name());
    let seen = seen.iter().find(|seen| seen.name == *name);
    seen.is_none_or(|seen| seen.phase == "Failed" || seen.retain)
}

async fn observe(
    site: &Site,
    id: &VolumeId,
    virtual_pv: Option<VirtualPv>,
    claim: &mut ClaimCheck,
    attached: Option<String>,
    real_volume: &mut Option<String>,
) -> Result<(DeleteFacts, Option<PersistentVolumeClaim>), ApiError> {
    let (twins, volume) = (site.twins(), &id.name);
    let virtual_pv = async {
        match virtual_pv {
            Some(read) => Ok(read),
            None => VirtualPv::read(site.home(), volume).await,
        }
    };
    let (found, VirtualPv(virtual_pv)) = tokio::try_join!(twins.get(site.name()), virtual_pv)?;
    let virtual_pv = virtual_pv.as_deref();
    let claim = claim.any(site.home(), id, virtual_pv).await?;
    let owner = site.owner(volume);
    let owned_by_move = match &found {
        Some(found) => is_of_move(site.home(), found).await,
        None => false,
    };
    let recorded = || {
        let attributes = virtual_pv.and_then(|virtual_pv| remembered(virtual_pv, site.epoch()));
        attributes.and_then(twin_volume_in)
    };
    let twin = match &found {
        None => DeleteTwin::Absent,
        Some(found) => match owner.recognise(found.labels(), found.annotations()) {
            Err(_) if is_later_claim(site, volume, recorded(), found).await? => DeleteTwin::Absent,
            Err(foreign) => DeleteTwin::Foreign(foreign),
            Ok(_) if reading::is_releasing(found) => DeleteTwin::Releasing,
            Ok(_) if owned_by_move => DeleteTwin::OfMove,
            Ok(_) if found.metadata.deletion_timestamp.is_some() => DeleteTwin::Ours { deleting: true },
            Ok(_) => match copy_to_come(site).await? {
                Some(copy) => DeleteTwin::ToBeCopied(copy),
                None => DeleteTwin::Ours { deleting: false },
            },
        },
    };
    if let Some(name) = found.as_ref().and_then(reading::volume_name)
        && twin != DeleteTwin::Absent
    {
        *real_volume = Some(name.to_owned());
    } else if real_volume.is_none() {
        *real_volume = recorded();
    }
    let seen = match twin {
        DeleteTwin::Absent => {
            let occupant = found.as_ref().and_then(ResourceExt::uid);
            match find_volume(site, volume, occupant.as_deref(), real_volume).await? {
                TwinVolume::Absent => other_cluster(site)
                    .await?
                    .map_or(TwinVolume::Absent, TwinVolume::Unknown),
                found => found,
            }
        }
        // As long as the twin exists, the PV is not part of the decision.
        _ => TwinVolume::Absent,
    };
    Ok((
        DeleteFacts {
            claim,
            gated: virtual_pv.is_some_and(|virtual_pv| is_gated(virtual_pv.annotations())),
            twin,
            volume: seen,
            attached,
        },
        found,
    ))
}

/// A twin that will be a copy of the one at this site, and its claim. `CreateVolume` may succeed before that
/// copy is made, and from then on csi-provisioner does not protect the source.
pub async fn copy_to_come(site: &Site) -> Result<Option<String>, ApiError> {
    let (view, topic) = (site.view(), slim::copies_of(site.namespace(), site.name()));
    let copy = if view.outdated_since().is_none() {
        view.of_topic(&topic).pop()
    } else {
        let is_copy = |twin: &slim::Twin| twin.to_copy.as_ref() == Some(&topic);
        let ours = mark::selector(site.home().id());
        let pick = |claim| slim::twin(&claim).filter(is_copy);
        let copies = site.twins().pick(Some(&ours), None, pick).await?;
        copies.into_iter().next().map(Arc::new)
    };
    Ok(copy.map(|copy| {
        let claim = copy.claim.as_ref().map_or_else(String::new, |claim| {
            format!("the claim {}/{}, ", claim.namespace, claim.name)
        });
        let (namespace, name, cluster) = (&copy.namespace, &copy.name, site.cluster_name());
        format!("{claim}the twin {namespace}/{name} in the cluster {cluster}")
    }))
}

/// Whether a claim that is not marked as the twin was created after the twin was deleted. In a remote cluster names
/// are reused, so the volume of such a claim decides: a claim with this volume's data is the twin, and its labels or
/// annotations were changed. `recorded` is the PV that the virtual PV records.
async fn is_later_claim(
    site: &Site,
    volume: &VolumeName,
    recorded: Option<String>,
    found: &PersistentVolumeClaim,
) -> Result<bool, ApiError> {
    if site.remote_cluster().is_none() {
        return Ok(false);
    }
    let Some(name) = reading::volume_name(found) else {
        return Ok(true);
    };
    if !site.shows_volumes() {
        return Ok(recorded.as_deref() != Some(name));
    }
    let real = site.volumes().get(name).await?;
    Ok(real.is_none_or(|real| holder(site, volume, recorded.as_deref(), &real) != Holder::Ours))
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

/// The PV of a deleted twin: by its name if that is known, otherwise from the view, otherwise by a list
/// of all PVs. The list is needed once for a volume: the name is unknown only if `CreateVolume` succeeded
/// before the twin was bound, and the twin was deleted before this process saw it bound. A PV that
/// belongs to the occupant, a later claim with the twin's name, is excluded.
async fn find_volume(
    site: &Site,
    volume: &VolumeName,
    occupant: Option<&str>,
    known: &mut Option<String>,
) -> Result<TwinVolume, ApiError> {
    if !site.shows_volumes() && site.cluster().rights().uncertain {
        return Ok(TwinVolume::Unknown(format!(
            "the twin {} is deleted; it is not known whether its PersistentVolume is, because the API server of the cluster {} did \
             not say whether this driver may read it",
            site.place(),
            site.cluster_name()
        )));
    }
    if !site.shows_volumes() {
        // The documented limit of these rights: with the twin deleted, its PV is left to that cluster.
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
    // None of them is known to belong to this volume, but each may: the deletion is complete only when all of them
    // are resolved.
    let of_the_name = found.iter().map(|real| possible_volume(site, volume, real));
    let mut open = of_the_name.filter(|it| without_twin(it) != DeleteStep::Done);
    Ok(open.next().unwrap_or(TwinVolume::Absent))
}

/// A PV that may be the twin's. Retained data is not deleted on a guess.
fn possible_volume(site: &Site, volume: &VolumeName, real: &PersistentVolume) -> TwinVolume {
    match describe(site, real) {
        TwinVolume::RetainedByUs(name) => TwinVolume::Present {
            message: Some(format!(
                "this driver set it to Retain, and nothing shows whose data it has: annotate it with {}={} if it belongs to this \
                 volume, or remove its annotation {} if it does not",
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

/// Restores the reclaim policy of a PV that this driver retained, so that its provisioner deletes it. A
/// PV that waits for a new twin gets a uid in its `claimRef`, or Kubernetes would keep it reserved.
async fn restore_policy(site: &Site, volume: &VolumeName, name: &str) -> Result<(), ApiError> {
    let volumes = site.volumes();
    let Some(real) = volumes.get(name).await? else {
        return Ok(());
    };
    // No claim ever has the name of a volume as its uid.
    let holder = reading::holder_uid(&real)
        .filter(|uid| !uid.is_empty())
        .unwrap_or(volume.as_str());
    let spec = json!({"claimRef": {"uid": holder}});
    // On a conflict the caller observes the PV again.
    restore_reclaim_policy(site.cluster(), &real, spec)
        .await
        .map(drop)
}

fn describe(site: &Site, volume: &PersistentVolume) -> TwinVolume {
    let name = volume.name_any();
    let marked = |key| volume.annotations().contains_key(key);
    // An import or a release sets Retain for its own purpose; a deletion must not undo that.
    if marked(mark::POLICY_BEFORE) && !marked(mark::IMPORT) && !marked(mark::RELEASE) {
        return TwinVolume::RetainedByUs(name);
    }
    if is_reservation(volume, site.namespace(), site.name()) {
        // This driver reserves no PVs in remote clusters: another client did, and may clear its reservation.
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
