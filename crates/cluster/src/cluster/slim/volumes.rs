//! The fields of PVs at home. Three kinds are kept: real PVs, virtual PVs, and available ones. One watch
//! returns them all; other PVs are dropped on arrival.

use std::{iter, sync::Arc};

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use tokio::sync::watch;

use super::facts;
use crate::{
    cluster::view::{Slim, View},
    placement::{ReclaimPolicy, StaticVolume, moving::policy_wanted},
    volume::{
        ClaimMark, ClaimName, ClusterId, DRIVER_NAME, Epoch, VolumeId, VolumeIdError, VolumeName, mark,
        moving::{VolumeMark, is_gated},
        twin_in, twin_volume_in,
    },
};

/// Topic of PVs that belong to no cluster: it is not a valid cluster id.
const OTHER_VERSION: &str = "/other-version";
const FREE: &str = "/free";
const MOVERS: &str = "/movers";

/// A PV that matters to this driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Volume {
    /// A real PV: it is bound to, or reserved for, a claim of the storage namespace.
    Real(Arc<RealVolume>),
    Virtual(Arc<VirtualVolume>),
    /// A virtual PV that was created by another version of this driver: only its name can be read.
    OtherVersion(String),
    /// A temporary PV of a mover. It does not show what the user wants of the volume.
    Movers(Arc<MoversVolume>),
    /// An available PV.
    Free(Arc<StaticVolume>),
}

/// The PV through which a mover reads or writes a twin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoversVolume {
    pub name: String,
    /// The volume of its twin.
    pub id: VolumeId,
}

/// A PV that is bound to, or reserved for, a claim of the storage namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about one object")]
pub struct RealVolume {
    pub name: String,
    /// The name of the twin.
    pub twin: String,
    /// The uid of the twin; empty while the PV is only reserved.
    pub twin_uid: String,
    pub phase: String,
    pub deleting: bool,
    /// Whether its reclaim policy is Retain.
    pub retain: bool,
    /// Whether this driver replaced its reclaim policy.
    pub policy_replaced: bool,
    /// Whether it has the record of an import.
    pub imported: bool,
    /// Whether it has the record of a release.
    pub released: bool,
}

/// A virtual PV.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about one object")]
pub struct VirtualVolume {
    pub name: String,
    pub uid: String,
    pub volume: VolumeName,
    pub cluster: ClusterId,
    pub epoch: Epoch,
    /// The twin, if its name does not follow from the volume's.
    pub twin: Option<ClaimName>,
    /// The twin's PV, if it was known when the volume was handed over.
    pub real: Option<String>,
    pub bytes: u64,
    pub class: String,
    /// The claim in its `claimRef`.
    pub claim: Option<ClaimMark>,
    /// Whether it is bound to that claim.
    pub bound: bool,
    pub deleting: bool,
    /// Whether the user has set its reclaim policy to Retain.
    pub retain: bool,
    /// Whether it has the gate of a move.
    pub gated: bool,
}

impl VirtualVolume {
    #[must_use]
    pub fn id(&self) -> VolumeId {
        VolumeId {
            cluster: self.cluster.clone(),
            name: self.volume.clone(),
            epoch: self.epoch,
        }
    }
}

/// The topic of a real PV is its twin; that of a virtual one the cluster of its twin and, if it has another name than
/// its volume, the volume; that of an available one its class.
impl Slim for Volume {
    fn topic(&self) -> &str {
        match self {
            Self::Real(volume) => &volume.twin,
            Self::Virtual(volume) => volume.cluster.as_str(),
            Self::OtherVersion(_) => OTHER_VERSION,
            Self::Movers(_) => MOVERS,
            Self::Free(_) => FREE,
        }
    }

    fn topics(&self) -> impl Iterator<Item = &str> {
        let further = match self {
            Self::Free(volume) => Some(volume.class.as_str()),
            Self::Virtual(volume) => Some(volume.volume.as_str()).filter(|its| *its != volume.name),
            Self::Real(_) | Self::OtherVersion(_) | Self::Movers(_) => None,
        };
        iter::once(self.topic()).chain(further)
    }
}

impl Volume {
    /// The name of the `PersistentVolume`.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Real(volume) => &volume.name,
            Self::Virtual(volume) => &volume.name,
            Self::OtherVersion(name) => name,
            Self::Movers(volume) => &volume.name,
            Self::Free(volume) => &volume.name,
        }
    }

    #[must_use]
    pub fn as_real(&self) -> Option<&Arc<RealVolume>> {
        match self {
            Self::Real(volume) => Some(volume),
            Self::Virtual(_) | Self::OtherVersion(_) | Self::Movers(_) | Self::Free(_) => None,
        }
    }

    #[must_use]
    pub fn as_virtual(&self) -> Option<&Arc<VirtualVolume>> {
        match self {
            Self::Virtual(volume) => Some(volume),
            Self::Real(_) | Self::OtherVersion(_) | Self::Movers(_) | Self::Free(_) => None,
        }
    }

    #[must_use]
    pub fn as_free(&self) -> Option<&Arc<StaticVolume>> {
        match self {
            Self::Free(volume) => Some(volume),
            Self::Real(_) | Self::Virtual(_) | Self::OtherVersion(_) | Self::Movers(_) => None,
        }
    }

    fn as_movers(&self) -> Option<&Arc<MoversVolume>> {
        match self {
            Self::Movers(volume) => Some(volume),
            Self::Real(_) | Self::Virtual(_) | Self::OtherVersion(_) | Self::Free(_) => None,
        }
    }

    fn other_version(&self) -> Option<&String> {
        match self {
            Self::OtherVersion(name) => Some(name),
            Self::Real(_) | Self::Virtual(_) | Self::Movers(_) | Self::Free(_) => None,
        }
    }
}

// A twin, a cluster and a class may have the same name: PVs of other kinds are filtered out.
impl View<Volume> {
    /// The PVs of the twin with this name, and those reserved for it.
    #[must_use]
    pub fn of_twin(&self, name: &str) -> Vec<Arc<RealVolume>> {
        let all = self.of_topic(name);
        all.iter()
            .filter_map(|volume| volume.as_real().cloned())
            .collect()
    }

    /// The real PV of this name.
    #[must_use]
    pub fn real(&self, name: &str) -> Option<Arc<RealVolume>> {
        self.get(name)?.as_real().cloned()
    }

    /// The virtual PV of this name.
    #[must_use]
    pub fn virtual_volume(&self, name: &str) -> Option<Arc<VirtualVolume>> {
        self.get(name)?.as_virtual().cloned()
    }

    /// All virtual PVs.
    #[must_use]
    pub fn virtual_volumes(&self) -> Vec<Arc<VirtualVolume>> {
        let all = self.all();
        all.iter()
            .filter_map(|volume| volume.as_virtual().cloned())
            .collect()
    }

    /// Whether this is an additional PV of a volume, which a user has created besides the one that is named
    /// after the volume. Only the latter counts for settings of the volume, unless only the former has a claim.
    #[must_use]
    pub fn is_further(&self, volume: &VirtualVolume) -> bool {
        let name = volume.volume.as_str();
        let own = || self.virtual_volume(name);
        let counts = |own: Arc<VirtualVolume>| own.id() == volume.id() && (own.bound || !volume.bound);
        volume.name != name && own().is_some_and(counts)
    }

    /// The PVs of a volume that do not have its name.
    #[must_use]
    pub fn under_other_names(&self, name: &VolumeName) -> Vec<Arc<VirtualVolume>> {
        let all = self.of_topic(name.as_str());
        let virtual_ones = all.iter().filter_map(|volume| volume.as_virtual().cloned());
        virtual_ones
            .filter(|volume| volume.volume == *name && volume.name != name.as_str())
            .collect()
    }

    /// The virtual PVs of volumes whose twins are in this cluster.
    #[must_use]
    pub fn virtual_volumes_in(&self, cluster: &ClusterId) -> Vec<Arc<VirtualVolume>> {
        let all = self.of_topic(cluster.as_str());
        all.iter()
            .filter_map(|volume| volume.as_virtual().cloned())
            .collect()
    }

    /// The PVs of movers.
    #[must_use]
    pub fn of_movers(&self) -> Vec<Arc<MoversVolume>> {
        let all = self.of_topic(MOVERS);
        all.iter()
            .filter_map(|volume| volume.as_movers().cloned())
            .collect()
    }

    /// Names of PVs that only another version of this driver can read.
    #[must_use]
    pub fn of_other_versions(&self) -> Vec<String> {
        let all = self.of_topic(OTHER_VERSION);
        all.iter()
            .filter_map(|volume| volume.other_version().cloned())
            .collect()
    }

    /// The available PVs of a class; of all classes if none is given.
    #[must_use]
    pub fn free(&self, class: Option<&str>) -> Vec<StaticVolume> {
        let all = self.of_topic(class.unwrap_or(FREE));
        let free = all.iter().filter_map(|volume| volume.as_free());
        free.map(|volume| StaticVolume::clone(volume)).collect()
    }

    /// Counts the changes of available PVs.
    #[must_use]
    pub fn changes_of_free(&self) -> watch::Receiver<u64> {
        self.changes_of(|volume| volume.as_free().is_some())
    }
}

/// The fields of a virtual PV; `None` for other PVs.
#[must_use]
pub fn virtual_volume(volume: &PersistentVolume, storage_namespace: &str) -> Option<Arc<VirtualVolume>> {
    self::volume(volume, storage_namespace)?.as_virtual().cloned()
}

/// The fields of a PV at home.
pub(in crate::cluster) fn volume(volume: &PersistentVolume, storage_namespace: &str) -> Option<Volume> {
    let spec = volume.spec.as_ref()?;
    if let Some(csi) = spec.csi.as_ref().filter(|csi| csi.driver == DRIVER_NAME) {
        let id: VolumeId = match csi.volume_handle.parse() {
            Ok(id) => id,
            Err(VolumeIdError::UnknownVersion(_)) => return Some(Volume::OtherVersion(volume.name_any())),
            Err(VolumeIdError::Foreign(_)) => return None,
        };
        let name = volume.name_any();
        if volume.labels().contains_key(mark::MOVE) {
            return Some(Volume::Movers(Arc::new(MoversVolume { name, id })));
        }
        let annotations = volume.annotations();
        let wanted = policy_wanted(
            reclaim_policy(volume),
            VolumeMark::read(annotations).ok().flatten().as_ref(),
        );
        return Some(Volume::Virtual(Arc::new(VirtualVolume {
            name,
            uid: volume.uid().unwrap_or_default(),
            volume: id.name,
            cluster: id.cluster,
            epoch: id.epoch,
            twin: csi.volume_attributes.as_ref().and_then(twin_in),
            real: csi.volume_attributes.as_ref().and_then(twin_volume_in),
            bytes: facts::volume_size(volume).unwrap_or_default(),
            class: spec.storage_class_name.clone().unwrap_or_default(),
            claim: spec.claim_ref.as_ref().map(|claim| ClaimMark {
                namespace: claim.namespace.clone().unwrap_or_default(),
                name: claim.name.clone().unwrap_or_default(),
                uid: claim.uid.clone().unwrap_or_default(),
            }),
            bound: phase(volume) == Some("Bound"),
            deleting: volume.metadata.deletion_timestamp.is_some(),
            retain: wanted == ReclaimPolicy::Retain,
            gated: is_gated(annotations),
        })));
    }
    let claim = spec.claim_ref.as_ref();
    let of_twin = claim.filter(|claim| claim.namespace.as_deref() == Some(storage_namespace));
    let Some(claim) = of_twin else {
        return free_volume(volume).map(|free| Volume::Free(Arc::new(free)));
    };
    Some(Volume::Real(Arc::new(RealVolume {
        name: volume.name_any(),
        twin: claim.name.clone().unwrap_or_default(),
        twin_uid: claim.uid.clone().unwrap_or_default(),
        phase: phase(volume).unwrap_or_default().to_owned(),
        deleting: volume.metadata.deletion_timestamp.is_some(),
        retain: reclaim_policy(volume) == ReclaimPolicy::Retain,
        policy_replaced: volume.annotations().contains_key(mark::POLICY_BEFORE),
        imported: volume.annotations().contains_key(mark::IMPORT),
        released: volume.annotations().contains_key(mark::RELEASE),
    })))
}

fn phase(volume: &PersistentVolume) -> Option<&str> {
    volume.status.as_ref()?.phase.as_deref()
}

fn reclaim_policy(volume: &PersistentVolume) -> ReclaimPolicy {
    let spec = volume.spec.as_ref();
    let policy = spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    facts::reclaim_policy(policy)
}

/// A PV in the phase Available. One that is provisioned for a claim never has that phase; those with the
/// annotation of a provisioner, such as sig-storage-local-static-provisioner, may have it.
#[must_use]
pub fn free_volume(volume: &PersistentVolume) -> Option<StaticVolume> {
    Some(facts::static_volume(volume)).filter(|read| read.available)
}
