//! Reads live whether the claim of a volume exists; while it does, `DeleteVolume` must not delete the
//! data.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use super::reading;
use crate::{
    cluster::{
        ApiError, Cluster, facts,
        slim::{self, VirtualVolume},
    },
    placement::{ClaimedVolume, ExistingClaim},
    volume::{ClaimMark, DRIVER_NAME, Epoch, VolumeId, VolumeName, mark},
};

/// Set by Kubernetes on a claim that it has bound.
const BOUND: &str = "pv.kubernetes.io/bind-completed";

/// The virtual PV of a volume: the one with its name or, if that does not exist, one that a user has created for the
/// same data under another name.
pub(super) async fn virtual_volume(
    home: &Cluster,
    volume: &VolumeName,
) -> Result<Option<PersistentVolume>, ApiError> {
    let volumes = home.all::<PersistentVolume>();
    let is_ours = |found: &PersistentVolume| {
        let source = found.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        source.is_some_and(|source| source.driver == DRIVER_NAME)
    };
    let found = volumes.get(volume.as_str()).await?.filter(is_ours);
    if found.is_some() {
        return Ok(found);
    }
    let others = under_other_names(home, volume).await?;
    let other = others.iter().find(|other| other.bound).or(others.first());
    Ok(match other {
        Some(other) => volumes.get(&other.name).await?.filter(is_ours),
        None => None,
    })
}

/// The PVs of a volume that do not have its name. They are listed while their watch does not work: one that the view does
/// not show may have a claim.
async fn under_other_names(home: &Cluster, volume: &VolumeName) -> Result<Vec<Arc<VirtualVolume>>, ApiError> {
    let seen = &home.views().volumes;
    if seen.outdated_since().is_none() {
        return Ok(seen.under_other_names(volume));
    }
    let other = |found: PersistentVolume| {
        let found = slim::virtual_volume(&found, home.storage_namespace())?;
        (found.volume == *volume && found.name != volume.as_str()).then_some(found)
    };
    home.all::<PersistentVolume>().pick(None, None, other).await
}

/// The PVs of a volume besides that of its claim, which has the name `own`, read live, in words. Users create several
/// for the same data, for example to rescue or share it; those of movers do not count.
pub async fn second_pvs(home: &Cluster, id: &VolumeId, own: &str) -> Result<Vec<String>, ApiError> {
    let described = |found: PersistentVolume| {
        let name = found.name_any();
        let spec = found.spec.as_ref()?;
        let csi = spec.csi.as_ref().filter(|csi| csi.driver == DRIVER_NAME)?;
        let is_second = csi.volume_handle.parse().ok().as_ref() == Some(id)
            && name != own
            && !found.labels().contains_key(mark::MOVE);
        let of = spec.claim_ref.as_ref();
        let of = of.map(|claim| format!(" (of the claim {})", facts::claim_name(claim)));
        is_second.then(|| format!("{name}{}", of.unwrap_or_default()))
    };
    home.all::<PersistentVolume>().pick(None, None, described).await
}

/// The claim whose name a virtual PV has in its `claimRef`, read live. Its uid may differ: a move that
/// gates the PV writes its own uid there.
pub(super) async fn named_claim(
    home: &Cluster,
    virtual_pv: &PersistentVolume,
) -> Result<Option<PersistentVolumeClaim>, ApiError> {
    let Some(named) = virtual_pv.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
        return Ok(None);
    };
    let claims = home.within::<PersistentVolumeClaim>(named.namespace.as_deref().unwrap_or_default());
    claims.get(named.name.as_deref().unwrap_or_default()).await
}

/// The virtual PV of a volume as it was read, if it exists.
pub(super) struct VirtualPv(pub(super) Option<Box<PersistentVolume>>);

impl VirtualPv {
    pub(super) async fn read(home: &Cluster, volume: &VolumeName) -> Result<Self, ApiError> {
        Ok(Self(virtual_volume(home, volume).await?.map(Box::new)))
    }

    /// The attributes that describe the twin of this epoch: after a move the PV records another twin.
    pub(super) fn of_epoch(&self, epoch: Epoch) -> Option<&BTreeMap<String, String>> {
        remembered(self.0.as_deref()?, epoch)
    }
}

/// The attributes of a virtual PV that describe the twin; `None` if that is of another epoch.
pub(super) fn remembered(virtual_pv: &PersistentVolume, epoch: Epoch) -> Option<&BTreeMap<String, String>> {
    let is_another = epoch_served(virtual_pv).is_some_and(|served| served != epoch);
    reading::attributes(virtual_pv).filter(|_| !is_another)
}

/// The epoch in the volume handle of a virtual PV, if the handle can be parsed.
pub(super) fn epoch_served(virtual_pv: &PersistentVolume) -> Option<Epoch> {
    let source = virtual_pv.spec.as_ref()?.csi.as_ref()?;
    let id: VolumeId = source.volume_handle.parse().ok()?;
    Some(id.epoch)
}

/// Reads the claims of a volume repeatedly, each until it is deleted: no other claim ever gets its uid.
#[derive(Default)]
pub(super) struct ClaimCheck {
    deleted: Vec<ClaimMark>,
    /// The PVs under other names, if they had to be listed.
    listed: Option<Vec<Arc<VirtualVolume>>>,
}

impl ClaimCheck {
    /// A claim that has the volume, if one exists: through the virtual PV, or through another PV that a user has
    /// created for the same data, for example to rescue it.
    pub(super) async fn any(
        &mut self,
        home: &Cluster,
        id: &VolumeId,
        virtual_pv: Option<&PersistentVolume>,
    ) -> Result<Option<ClaimMark>, ApiError> {
        let found = self.existing(home, virtual_pv).await?;
        if found.is_some() {
            return Ok(found);
        }
        let others = match self.listed.take() {
            Some(listed) => listed,
            None => under_other_names(home, &id.name).await?,
        };
        if home.views().volumes.outdated_since().is_some() {
            self.listed = Some(others.clone());
        }
        for seen in others.into_iter().filter(|seen| seen.id() == *id) {
            let volume = home.all::<PersistentVolume>().get(&seen.name).await?;
            if let Some(claim) = self.existing(home, volume.as_ref()).await? {
                return Ok(Some(claim));
            }
        }
        Ok(None)
    }

    /// The claim that a virtual PV is bound to, if it exists.
    async fn existing(
        &mut self,
        home: &Cluster,
        volume: Option<&PersistentVolume>,
    ) -> Result<Option<ClaimMark>, ApiError> {
        let Some(volume) = volume.and_then(claimed) else {
            return Ok(None);
        };
        let named = &volume.claim;
        if self.deleted.contains(named) {
            return Ok(None);
        }
        let claims = home.within::<PersistentVolumeClaim>(&named.namespace);
        let found = claims.get(&named.name).await?;
        let existing = found.filter(|found| volume.belongs_to(&existing(found)));
        if existing.is_none() {
            self.deleted.push(volume.claim);
        }
        Ok(existing.as_ref().map(reading::claim_mark))
    }
}

fn claimed(volume: &PersistentVolume) -> Option<ClaimedVolume> {
    let claim = volume.spec.as_ref()?.claim_ref.clone()?;
    Some(ClaimedVolume {
        name: volume.name_any(),
        claim: ClaimMark {
            namespace: claim.namespace?,
            name: claim.name?,
            uid: claim.uid.unwrap_or_default(),
        },
    })
}

fn existing(claim: &PersistentVolumeClaim) -> ExistingClaim {
    ExistingClaim {
        uid: claim.uid().unwrap_or_default(),
        volume: reading::volume_name(claim).map(str::to_owned),
        bound: claim.annotations().contains_key(BOUND),
    }
}
