//! What only the background loops look at: claims, the PVs of volumes, pods that
//! start, and the attachments Kubernetes made for us. The replica that runs no
//! loops does not pay for these watches.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{Api, ResourceExt, runtime::watcher};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::twin_condition::{self, Said};
use crate::{
    cluster::{
        Cluster, facts,
        slim::{SELECTED_NODE, free_volume},
        snapshots::SNAPSHOT_GROUP,
        view::{Slim, View},
    },
    placement::{ReclaimPolicy, StaticVolume},
    twin::{twin_in, twin_volume_in},
    volume::{
        CarriedAnnotations, ClaimMark, ClaimName, ClaimSize, ClusterId, DRIVER_NAME, VolumeId, VolumeIdError,
        VolumeName,
    },
};

const PROVISIONERS: [&str; 2] = [
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
];
/// Annotation of a claim whose PV nobody named.
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// Topics of PVs that are in no cluster: no cluster has such an id.
const OTHER_VERSION: &str = "/other-version";
const STATIC: &str = "/static";

/// The views of the loops. Their watches end when it is dropped.
pub(super) struct Watched {
    pub(super) claims: View<Claim>,
    pub(super) volumes: View<Volume>,
    pub(super) starting: View<Starting>,
    pub(super) outer: View<Outer>,
    _stops: DropGuard,
}

/// A claim that is provisioned by us, or bound by name to a PV that may be ours, or not
/// bound yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) name: ClaimName,
    pub(super) uid: String,
    pub(super) class: Option<String>,
    pub(super) pending: bool,
    pub(super) has_node: bool,
    pub(super) deleting: bool,
    /// What it is to be a copy of, as long as it is not bound.
    pub(super) source: Option<ClaimSource>,
    /// How large it is.
    pub(super) size: ClaimSize,
    /// Digest of what its twin is to carry.
    pub(super) carried: String,
    /// What it says about its twin.
    pub(super) said: Option<Said>,
}

/// What a claim is to be a copy of: an object of its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ClaimSource {
    /// The `VolumeSnapshot` of this name.
    Snapshot(String),
    /// The claim of this name.
    Claim(String),
}

/// A PV that matters to the loops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Volume {
    /// The PV that users of a volume see.
    Virtual(Box<VirtualVolume>),
    /// The same, made by another version of this driver: the name of the PV is all that can be read.
    OtherVersion(String),
    /// One that is free.
    Static(Box<StaticVolume>),
}

/// The PV that users of a volume see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VirtualVolume {
    /// Name of the PV.
    pub(super) name: String,
    pub(super) volume: VolumeName,
    /// The cluster of its twin.
    pub(super) cluster: ClusterId,
    /// The twin, where its name does not follow from the volume's.
    pub(super) twin: Option<ClaimName>,
    /// The twin's PV, where it was known when the volume was answered for.
    pub(super) real: Option<String>,
    /// Its size in bytes.
    pub(super) bytes: u64,
    /// Its virtual class.
    pub(super) class: String,
    pub(super) claim: Option<ClaimMark>,
    pub(super) bound: bool,
    pub(super) deleting: bool,
    pub(super) retain: bool,
}

/// A pod that has a node but does not run yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Starting {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) node: String,
    pub(super) claims: Vec<String>,
}

/// An attachment of a volume, made by Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outer {
    /// Name of the PV.
    pub(super) volume: String,
    pub(super) node: String,
}

impl Slim for Claim {
    fn topic(&self) -> &str {
        &self.name.namespace
    }
}

impl Slim for Volume {
    fn topic(&self) -> &str {
        match self {
            Self::Virtual(volume) => volume.cluster.as_str(),
            Self::OtherVersion(_) => OTHER_VERSION,
            Self::Static(_) => STATIC,
        }
    }
}

impl Slim for Starting {
    fn topic(&self) -> &str {
        &self.namespace
    }
}

impl Slim for Outer {
    fn topic(&self) -> &str {
        &self.node
    }
}

impl Watched {
    pub(super) fn start(home: &Cluster) -> Self {
        let stop = CancellationToken::new();
        let client = || home.client().clone();
        let rules = home.carried_annotations().clone();
        let everything = watcher::Config::default;
        // The few that are on their way: claims of all others are bound long since.
        let starting_pods = everything().fields("status.phase=Pending,spec.nodeName!=");
        Self {
            claims: View::start(
                Api::all(client()),
                everything(),
                move |it| claim(&it, &rules),
                &stop,
            ),
            volumes: View::start(Api::all(client()), everything(), |it| volume(&it), &stop),
            starting: View::start(Api::all(client()), starting_pods, |it| starting(&it), &stop),
            outer: View::start(Api::all(client()), everything(), |it| outer(&it), &stop),
            _stops: stop.drop_guard(),
        }
    }

    pub(super) async fn complete(&self) {
        tokio::join!(
            self.claims.complete(),
            self.volumes.complete(),
            self.starting.complete(),
            self.outer.complete(),
        );
    }

    /// The PVs of our volumes.
    pub(super) fn virtual_volumes(&self) -> Vec<VirtualVolume> {
        ours(&self.volumes.all()).cloned().collect()
    }

    /// The PVs of our volumes whose twins are in this cluster.
    pub(super) fn virtual_volumes_in(&self, cluster: &ClusterId) -> Vec<VirtualVolume> {
        ours(&self.volumes.of_topic(cluster.as_str())).cloned().collect()
    }

    /// How many PVs of our volumes there are whose twins are in this cluster.
    pub(super) fn count_in(&self, cluster: &ClusterId) -> usize {
        self.volumes.count_of_topic(cluster.as_str())
    }

    /// Our volumes whose twins are in this cluster.
    pub(super) fn volumes_in(&self, cluster: &ClusterId) -> HashSet<VolumeName> {
        let there = self.volumes.of_topic(cluster.as_str());
        ours(&there).map(|volume| volume.volume.clone()).collect()
    }

    /// All our volumes.
    pub(super) fn all_volumes(&self) -> HashSet<VolumeName> {
        let all = self.volumes.all();
        ours(&all).map(|volume| volume.volume.clone()).collect()
    }

    /// Names of the PVs of our volumes that only another version of this driver can read.
    pub(super) fn volumes_of_other_versions(&self) -> Vec<String> {
        let volumes = self.volumes.of_topic(OTHER_VERSION);
        let names = volumes.iter().filter_map(|volume| match volume.as_ref() {
            Volume::OtherVersion(name) => Some(name.clone()),
            Volume::Virtual(_) | Volume::Static(_) => None,
        });
        names.collect()
    }

    /// The clusters that our volumes are in.
    pub(super) fn clusters_of_volumes(&self) -> BTreeSet<ClusterId> {
        let topics = self.volumes.topics();
        topics.iter().filter_map(|topic| topic.parse().ok()).collect()
    }

    /// Our volume whose PV has this name.
    pub(super) fn virtual_volume(&self, name: &str) -> Option<VirtualVolume> {
        match self.volumes.get(name)?.as_ref() {
            Volume::Virtual(volume) => Some(VirtualVolume::clone(volume)),
            Volume::OtherVersion(_) | Volume::Static(_) => None,
        }
    }

    /// The PVs that are free.
    pub(super) fn static_volumes(&self) -> Vec<StaticVolume> {
        let volumes = self.volumes.of_topic(STATIC);
        let theirs = volumes.iter().filter_map(|volume| match volume.as_ref() {
            Volume::Virtual(_) | Volume::OtherVersion(_) => None,
            Volume::Static(volume) => Some(StaticVolume::clone(volume)),
        });
        theirs.collect()
    }

    /// The claim of this mark, if it is still the same one.
    pub(super) fn claim(&self, mark: &ClaimMark) -> Option<Arc<Claim>> {
        let claim = self.claims.get(&format!("{}/{}", mark.namespace, mark.name))?;
        (claim.uid == mark.uid).then_some(claim)
    }
}

fn ours(volumes: &[Arc<Volume>]) -> impl Iterator<Item = &VirtualVolume> {
    volumes.iter().filter_map(|volume| match volume.as_ref() {
        Volume::Virtual(volume) => Some(volume.as_ref()),
        Volume::OtherVersion(_) | Volume::Static(_) => None,
    })
}

fn claim(claim: &PersistentVolumeClaim, rules: &CarriedAnnotations) -> Option<Claim> {
    let annotations = claim.annotations();
    let ours = |key: &&str| annotations.get(*key).is_some_and(|value| value == DRIVER_NAME);
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    let pending = phase.unwrap_or("Pending") == "Pending";
    let by_name = !annotations.contains_key(BOUND_BY_CONTROLLER);
    (pending || by_name || PROVISIONERS.iter().any(ours)).then(|| Claim {
        name: ClaimName {
            namespace: claim.namespace().unwrap_or_default(),
            name: claim.name_any(),
        },
        uid: claim.uid().unwrap_or_default(),
        class: claim
            .spec
            .as_ref()
            .and_then(|spec| spec.storage_class_name.clone()),
        pending,
        has_node: annotations.contains_key(SELECTED_NODE),
        deleting: claim.metadata.deletion_timestamp.is_some(),
        source: claim_source(claim).filter(|_| pending),
        size: facts::claim_size(claim),
        carried: rules.carried(claim.labels(), annotations).digest(),
        said: twin_condition::said(claim),
    })
}

/// What a claim is to be a copy of. Sources of other kinds are other people's business.
pub(super) fn claim_source(claim: &PersistentVolumeClaim) -> Option<ClaimSource> {
    let source = claim.spec.as_ref()?.data_source.as_ref()?;
    match (source.api_group.as_deref(), source.kind.as_str()) {
        (Some(SNAPSHOT_GROUP), "VolumeSnapshot") => Some(ClaimSource::Snapshot(source.name.clone())),
        (None | Some(""), "PersistentVolumeClaim") => Some(ClaimSource::Claim(source.name.clone())),
        _ => None,
    }
}

fn volume(volume: &PersistentVolume) -> Option<Volume> {
    let spec = volume.spec.as_ref()?;
    if let Some(csi) = spec.csi.as_ref().filter(|csi| csi.driver == DRIVER_NAME) {
        let id: VolumeId = match csi.volume_handle.parse() {
            Ok(id) => id,
            Err(VolumeIdError::UnknownVersion(_)) => return Some(Volume::OtherVersion(volume.name_any())),
            Err(VolumeIdError::Foreign(_)) => return None,
        };
        let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
        let policy = facts::reclaim_policy(spec.persistent_volume_reclaim_policy.as_deref());
        return Some(Volume::Virtual(Box::new(VirtualVolume {
            name: volume.name_any(),
            volume: id.name,
            cluster: id.cluster,
            twin: csi.volume_attributes.as_ref().and_then(twin_in),
            real: csi.volume_attributes.as_ref().and_then(twin_volume_in),
            bytes: facts::volume_size(volume).unwrap_or_default(),
            class: spec.storage_class_name.clone().unwrap_or_default(),
            claim: spec.claim_ref.as_ref().map(|claim| ClaimMark {
                namespace: claim.namespace.clone().unwrap_or_default(),
                name: claim.name.clone().unwrap_or_default(),
                uid: claim.uid.clone().unwrap_or_default(),
            }),
            bound: phase == Some("Bound"),
            deleting: volume.metadata.deletion_timestamp.is_some(),
            retain: policy == ReclaimPolicy::Retain,
        })));
    }
    free_volume(volume).map(|free| Volume::Static(Box::new(free)))
}

fn starting(pod: &Pod) -> Option<Starting> {
    let spec = pod.spec.as_ref()?;
    let node = spec.node_name.clone().filter(|node| !node.is_empty())?;
    let claims = claims_of(pod);
    let waits = !claims.is_empty() && pod.metadata.deletion_timestamp.is_none();
    waits.then(|| Starting {
        namespace: pod.namespace().unwrap_or_default(),
        name: pod.name_any(),
        node,
        claims,
    })
}

/// The claims of a pod's volumes, by name.
pub(super) fn claims_of(pod: &Pod) -> Vec<String> {
    let name = pod.name_any();
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let claims = volumes.filter_map(
        |volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(claim), _) => Some(claim.claim_name.clone()),
            // Kubernetes names the claim of a generic ephemeral volume so.
            (None, Some(_)) => Some(format!("{name}-{}", volume.name)),
            (None, None) => None,
        },
    );
    claims.collect()
}

fn outer(attachment: &VolumeAttachment) -> Option<Outer> {
    let spec = &attachment.spec;
    let volume = spec.source.persistent_volume_name.clone()?;
    (spec.attacher == DRIVER_NAME).then(|| Outer {
        volume,
        node: spec.node_name.clone(),
    })
}
