//! The fields that this driver keeps of the objects of a cluster.

mod moves;
mod pods;
mod reflected;
mod volumes;

use std::{collections::BTreeMap, iter};

use k8s_openapi::api::{
    core::v1::{Node as KubeNode, PersistentVolumeClaim},
    storage::v1::{CSINode, CSINodeDriver, VolumeAttachment},
};
use kube::{ResourceExt, api::DynamicObject, core::PartialObjectMeta};

pub use self::{
    moves::SeenMove,
    pods::{GATED, OpenNode, PendingPod, claims_of, consumer, has_ended, is_ephemeral_claim, toleration},
    volumes::{MoversVolume, RealVolume, VirtualVolume, Volume, free_volume, virtual_volume},
};
pub(super) use self::{
    moves::seen_move,
    pods::{open_node, pending_pod},
    volumes::volume,
};
use super::{facts, has_finalizer, view::Slim};
use crate::{
    api::{namespace_offloading::NamespaceOffloading, remote_cluster::RemoteCluster},
    placement::{Capacity, Class, Phase, TwinHealth},
    topology::Node,
    volume::{
        Carried, ClaimMark, ClaimSize, DRIVER_NAME, DriverRequirements, Epoch, Marks, TokenRequests,
        VolumeName, digest, mark,
        moving::{TwinMarkError, TwinMarks, epoch_of},
    },
};

/// Annotation by which a scheduler (or this driver in its place) names the node of a claim's consumer.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// A twin. Its topics are its name and, until it has a volume, [`copies_of`] its source.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about one object")]
pub struct Twin {
    pub namespace: String,
    pub name: String,
    pub volume: VolumeName,
    pub phase: Phase,
    /// The selected node, if any.
    pub node: Option<String>,
    pub real_volume: Option<String>,
    pub deleting: bool,
    /// Whether it has the driver's finalizer.
    pub protected: bool,
    pub handed_over: bool,
    pub uid: String,
    /// The claim for which it was created.
    pub claim: Option<ClaimMark>,
    /// Digest of the labels and annotations that it carries of its claim.
    pub carried: String,
    pub size: ClaimSize,
    /// Digest of the attributes class in its status, if there is one.
    pub attributes: Option<String>,
    pub releasing: bool,
    /// The epoch of its volume.
    pub epoch: Epoch,
    /// Its marks about moves.
    pub moves: Result<TwinMarks, TwinMarkError>,
    /// The topic of the twin that it will be a copy of, until it has a volume.
    pub to_copy: Option<String>,
}

/// The topic of the twins that will be copies of this one.
#[must_use]
pub fn copies_of(namespace: &str, name: &str) -> String {
    format!("copies of {namespace}/{name}")
}

impl Twin {
    /// The facts for a diagnosis.
    #[must_use]
    pub fn health(&self) -> TwinHealth {
        TwinHealth {
            deleting: self.deleting,
            phase: self.phase,
            has_volume: self.real_volume.is_some(),
        }
    }
}

/// The drivers on a node. Its topic is the node's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiNode {
    pub node: String,
    pub drivers: Vec<String>,
    /// The topology keys of this driver, if it is among them.
    pub our_keys: Option<Vec<String>>,
    /// The number of volumes that those of them with a limit can have on the node.
    pub limits: BTreeMap<String, u32>,
}

/// A `CSIDriver`. Its topic is its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    pub name: String,
    pub attach: bool,
    /// Whether its capacity is published, and the scheduler considers it.
    pub publishes_capacity: bool,
    /// What its `CSIDriver` requests from kubelet.
    pub wants: DriverRequirements,
}

/// An attachment of a real volume that this driver has created. Its topic is the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    pub name: String,
    /// The volume that it attaches.
    pub volume: VolumeName,
    /// The epoch of that volume.
    pub epoch: Epoch,
    pub node: String,
    pub attached: bool,
    pub deleting: bool,
}

/// Its topic is its namespace.
impl Slim for NamespaceOffloading {
    fn topic(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }
}

impl Slim for RemoteCluster {
    fn topic(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }
}

impl Slim for Attachment {
    fn topic(&self) -> &str {
        self.volume.as_str()
    }
}

// Values of remote clusters report the size of their text.

impl Slim for Twin {
    fn topic(&self) -> &str {
        &self.name
    }

    fn topics(&self) -> impl Iterator<Item = &str> {
        iter::once(self.topic()).chain(self.to_copy.as_deref())
    }

    fn text(&self) -> usize {
        let options = [
            self.node.as_ref(),
            self.real_volume.as_ref(),
            self.attributes.as_ref(),
            self.to_copy.as_ref(),
        ];
        let optional: usize = options.into_iter().flatten().map(String::len).sum();
        let claim = self.claim.as_ref();
        let claim = claim.map_or(0, |it| it.namespace.len() + it.name.len() + it.uid.len());
        // Marks that can be read are short.
        let unreadable = self.moves.as_ref().map_or_else(|error| error.value.len(), |_| 0);
        let own = self.namespace.len() + self.name.len() + self.uid.len() + self.carried.len();
        own + unreadable + optional + claim
    }
}

impl Slim for Node {
    fn topic(&self) -> &str {
        &self.name
    }

    fn text(&self) -> usize {
        self.name.len() + pairs(&self.labels) + pairs(&self.annotations)
    }
}

impl Slim for CsiNode {
    fn topic(&self) -> &str {
        &self.node
    }

    fn text(&self) -> usize {
        let limits: usize = self.limits.keys().map(|driver| driver.len() + ENTRY).sum();
        self.node.len() + texts(&self.drivers) + limits + self.our_keys.as_deref().map_or(0, texts)
    }
}

impl Slim for Class {
    fn topic(&self) -> &str {
        &self.name
    }

    fn text(&self) -> usize {
        let topologies = self.allowed_topologies.iter().flat_map(|one| &one.0);
        let topologies: usize = topologies.map(|(key, values)| key.len() + texts(values)).sum();
        self.name.len() + self.provisioner.len() + pairs(&self.parameters) + topologies
    }
}

impl Slim for Driver {
    fn topic(&self) -> &str {
        &self.name
    }

    fn text(&self) -> usize {
        let tokens = self.wants.tokens.as_ref();
        self.name.len() + tokens.map_or(0, |tokens| texts(&tokens.audiences))
    }
}

impl Slim for Capacity {
    fn topic(&self) -> &str {
        &self.class
    }

    fn text(&self) -> usize {
        let terms = self.nodes.iter().flat_map(|nodes| &nodes.0);
        let terms: usize = terms
            .map(|term| term.key.len() + texts(&term.values) + ENTRY)
            .sum();
        self.class.len() + terms
    }
}

/// The memory of an entry of a list or map, in addition to its text.
const ENTRY: usize = 48;

fn texts(all: &[String]) -> usize {
    all.iter().map(|one| one.len() + ENTRY).sum()
}

fn pairs(all: &BTreeMap<String, String>) -> usize {
    all.iter()
        .map(|(key, value)| key.len() + value.len() + 2 * ENTRY)
        .sum()
}

/// The twin; `None` if the claim is not a twin.
#[must_use]
pub fn twin(claim: &PersistentVolumeClaim) -> Option<Twin> {
    if facts::bears_marks_of_its_twin(claim) {
        return None;
    }
    let marks = Marks::read(claim.labels(), claim.annotations()).ok()?;
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    Some(Twin {
        namespace: claim.namespace().unwrap_or_default(),
        name: claim.name_any(),
        volume: marks.volume,
        phase: Phase::read(phase),
        node: claim.annotations().get(SELECTED_NODE).cloned(),
        real_volume: claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()),
        deleting: claim.metadata.deletion_timestamp.is_some(),
        protected: has_finalizer(claim, mark::TWIN_FINALIZER),
        handed_over: marks.handed_over,
        uid: claim.uid().unwrap_or_default(),
        claim: marks.claim,
        carried: Carried::on_twin(claim.labels(), claim.annotations()).digest(),
        size: facts::claim_size(claim),
        attributes: attributes(claim),
        releasing: claim.annotations().contains_key(mark::RELEASING),
        epoch: marks.epoch,
        moves: TwinMarks::read(claim.labels(), claim.annotations()),
        to_copy: to_copy(claim),
    })
}

fn to_copy(claim: &PersistentVolumeClaim) -> Option<String> {
    let spec = claim.spec.as_ref()?;
    let source = spec.data_source.as_ref()?;
    let awaited = spec.volume_name.is_none() && claim.metadata.deletion_timestamp.is_none();
    let awaited = awaited && source.kind == "PersistentVolumeClaim";
    awaited.then(|| copies_of(&claim.namespace().unwrap_or_default(), &source.name))
}

/// A digest that changes when the attributes class in the status changes.
fn attributes(claim: &PersistentVolumeClaim) -> Option<String> {
    let status = claim.status.as_ref()?;
    let current = status.current_volume_attributes_class_name.as_deref();
    let change = status.modify_volume_status.as_ref();
    if current.is_none() && change.is_none() {
        return None;
    }
    let target = change.and_then(|change| change.target_volume_attributes_class_name.as_deref());
    let stage = change.map(|change| change.status.as_str());
    let conditions = [facts::MODIFYING_VOLUME, facts::MODIFY_VOLUME_ERROR];
    let conditions = conditions.map(|of_type| facts::condition(claim, of_type));
    let messages = conditions.into_iter().flatten();
    let messages = messages.map(|one| one.message.as_deref().unwrap_or_default());
    let parts = [current, target, stage].map(Option::unwrap_or_default);
    Some(digest(16, parts.into_iter().chain(messages)))
}

/// Only the metadata is kept: the status of a node is large and changes often.
pub(super) fn node(node: PartialObjectMeta<KubeNode>, annotations: &[&str]) -> Node {
    facts::node(node.metadata, annotations)
}

pub(super) fn csi_node(node: CSINode) -> CsiNode {
    let ours = node.spec.drivers.iter().find(|driver| driver.name == DRIVER_NAME);
    CsiNode {
        our_keys: ours.map(|driver| driver.topology_keys.clone().unwrap_or_default()),
        node: node.metadata.name.unwrap_or_default(),
        limits: node.spec.drivers.iter().filter_map(limit).collect(),
        drivers: node.spec.drivers.into_iter().map(|driver| driver.name).collect(),
    }
}

fn limit(driver: &CSINodeDriver) -> Option<(String, u32)> {
    let count = driver.allocatable.as_ref()?.count?;
    Some((driver.name.clone(), count.try_into().ok()?))
}

/// Read as plain JSON: `serviceAccountTokenInSecrets` is newer than the Kubernetes version of the types in
/// use.
pub(super) fn driver(driver: &DynamicObject) -> Driver {
    let spec = &driver.data["spec"];
    let flag = |name: &str, default| spec[name].as_bool().unwrap_or(default);
    let audiences = spec["tokenRequests"].as_array().map(|requests| {
        requests
            .iter()
            .map(|request| request["audience"].as_str().unwrap_or_default().to_owned())
            .collect()
    });
    Driver {
        name: driver.name_any(),
        attach: flag("attachRequired", true),
        publishes_capacity: flag("storageCapacity", false),
        wants: DriverRequirements {
            pod_info: flag("podInfoOnMount", false),
            republish: flag("requiresRepublish", false),
            tokens: audiences.map(|audiences| TokenRequests {
                audiences,
                in_secrets: flag("serviceAccountTokenInSecrets", false),
            }),
        },
    }
}

pub(super) fn attachment(attachment: &VolumeAttachment) -> Option<Attachment> {
    Some(Attachment {
        name: attachment.name_any(),
        volume: marked_volume(attachment.labels())?,
        epoch: epoch_of(attachment.annotations()).ok()?,
        node: attachment.spec.node_name.clone(),
        attached: attachment.status.as_ref().is_some_and(|status| status.attached),
        deleting: attachment.metadata.deletion_timestamp.is_some(),
    })
}

/// The volume of an object of this driver, by its label.
#[must_use]
pub fn marked_volume(labels: &BTreeMap<String, String>) -> Option<VolumeName> {
    VolumeName::parse(labels.get(mark::VOLUME)?)
}
