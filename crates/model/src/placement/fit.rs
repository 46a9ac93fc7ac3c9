//! Whether a node suits a real class. A twin has no pod, so the scheduler never checked that: its checks for
//! the real class are repeated here, for the selected node of the virtual claim, or to choose a node where
//! none is selected.

use std::{cmp::Reverse, collections::BTreeSet};

use super::{BindingMode, Class};
use crate::{
    topology::{LabelSelector, Node, NodeSelector, Segments},
    volume::{AccessMode, Capabilities, ClaimName, VolumeMode, VolumeName, digest},
};

/// Provisioner of classes with static volumes.
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// The driver of a real class, as its cluster describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RealDriver {
    /// The nodes whose `CSINode` lists it; `None` if it is not a CSI driver, or unknown.
    pub registered_on: Option<BTreeSet<String>>,
    /// Whether its `CSIDriver` has `storageCapacity: true`.
    pub publishes_capacity: bool,
}

/// A `CSIStorageCapacity` of a real driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    pub class: String,
    /// Its `nodeTopology`; `None` means no nodes.
    pub nodes: Option<LabelSelector>,
    pub capacity: Option<u64>,
    /// Bytes of the largest volume that can be provisioned.
    pub maximum: Option<u64>,
}

impl Capacity {
    /// Size of the largest volume, computed as the scheduler does.
    #[must_use]
    pub fn largest(&self) -> Option<u64> {
        self.maximum.or(self.capacity)
    }
}

/// A static PV that waits for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticVolume {
    pub name: String,
    pub class: String,
    pub capacity: u64,
    pub access_modes: BTreeSet<AccessMode>,
    pub volume_mode: VolumeMode,
    /// Where it is accessible; `None` means anywhere.
    pub affinity: Option<NodeSelector>,
    /// Whether it is in phase Available and not being deleted.
    pub available: bool,
    /// The claim it is reserved for.
    pub claim: Option<ClaimName>,
}

/// The requirements of a twin.
#[derive(Clone, Copy, Debug)]
pub struct TwinRequest<'a> {
    /// The volume whose data it holds.
    pub volume: &'a VolumeName,
    pub size: u64,
    pub capabilities: &'a Capabilities,
    /// Preferred topologies, best first.
    pub preferred: &'a [Segments],
}

impl TwinRequest<'_> {
    /// The position of a node in the list of preferred topologies.
    fn rank(&self, node: &Node) -> usize {
        let found = self.preferred.iter().position(|place| place.admits(&node.labels));
        found.unwrap_or(self.preferred.len())
    }
}

/// A real class with everything that decides where it works.
#[derive(Clone, Copy, Debug)]
pub struct ClassContext<'a> {
    pub class: &'a Class,
    pub driver: &'a RealDriver,
    /// The `CSIStorageCapacity` objects of the cluster, of any class.
    pub capacities: &'a [Capacity],
    /// The PVs of the cluster, of any class; only needed for [`NO_PROVISIONER`].
    pub volumes: &'a [StaticVolume],
}

/// Why a real class cannot provision a volume for a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The `allowedTopologies` exclude the node.
    #[error("the allowedTopologies of the class {class} exclude the node {node}")]
    Topology { class: String, node: String },
    /// The real driver does not run on the node.
    #[error("the driver {driver} of the class {class} does not run on the node {node}")]
    NoDriver {
        class: String,
        driver: String,
        node: String,
    },
    /// Not enough capacity.
    #[error("the class {class} has less than {size} bytes of capacity on the node {node}")]
    NoCapacity { class: String, node: String, size: u64 },
    /// No static volume fits.
    #[error(
        "no available volume of the class {class} on the node {node} has {size} bytes, the access modes and the volume mode of the claim"
    )]
    NoVolume { class: String, node: String, size: u64 },
}

/// Why no node can be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no node is suitable for the volume: {}",
    if .0.is_empty() { "the cluster has no node where this driver runs, or none of the requested ones".to_owned() }
    else { .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ") }
)]
pub struct NoNode(pub Vec<Unfit>);

impl<'a> ClassContext<'a> {
    /// Why the class cannot provision this volume for the node, if so.
    #[must_use]
    pub fn unfit(&self, node: &Node, ask: &TwinRequest<'_>) -> Option<Unfit> {
        let class = || self.class.name.clone();
        if let Some(excluded) = self.excluded(node) {
            return Some(excluded);
        }
        if self.is_static() {
            let found = self.available(Some(node), ask).next().is_some();
            return (!found).then(|| Unfit::NoVolume {
                class: class(),
                node: node.name.clone(),
                size: ask.size,
            });
        }
        let available = self.largest_on(node);
        (available < ask.size).then(|| Unfit::NoCapacity {
            class: class(),
            node: node.name.clone(),
            size: ask.size,
        })
    }

    /// Why the class can never provision a volume for the node, if so.
    pub(super) fn excluded(&self, node: &Node) -> Option<Unfit> {
        let (class, node_name) = (self.class.name.clone(), node.name.clone());
        if !self.class.allows(&node.labels) {
            return Some(Unfit::Topology {
                class,
                node: node_name,
            });
        }
        let absent = self
            .driver
            .registered_on
            .as_ref()
            .is_some_and(|nodes| !nodes.contains(&node.name));
        absent.then(|| Unfit::NoDriver {
            class,
            driver: self.class.provisioner.clone(),
            node: node_name,
        })
    }

    /// Whether the class has static volumes.
    #[must_use]
    pub fn is_static(&self) -> bool {
        self.class.provisioner == NO_PROVISIONER
    }

    /// Whether the scheduler would check the capacity of this class.
    pub(super) fn counts_capacity(&self) -> bool {
        self.driver.publishes_capacity && self.class.binding == BindingMode::WaitForFirstConsumer
    }

    /// The capacities that are published for the class on a node.
    pub(super) fn capacities_on(&self, node: &Node) -> impl Iterator<Item = &'a Capacity> {
        let class = &self.class.name;
        self.capacities.iter().filter(move |capacity| {
            let covers = |nodes: &LabelSelector| nodes.admits(&node.labels);
            capacity.class == *class && capacity.nodes.as_ref().is_some_and(covers)
        })
    }

    /// Size of the largest volume that the class can provision for a node; unlimited where no capacity
    /// counts.
    fn largest_on(&self, node: &Node) -> u64 {
        if !self.counts_capacity() {
            return u64::MAX;
        }
        self.capacities_on(node)
            .filter_map(Capacity::largest)
            .max()
            .unwrap_or_default()
    }

    /// Chooses a node for a volume without a pod: a preferred one, of those the one with the most capacity,
    /// and among equals a different one for each volume.
    pub fn choose_node<'n>(&self, nodes: &'n [Node], ask: &TwinRequest<'_>) -> Result<&'n Node, NoNode> {
        let mut reasons = Vec::new();
        let mut fitting = Vec::new();
        for node in nodes {
            match self.unfit(node, ask) {
                Some(reason) => reasons.push(reason),
                None => fitting.push(node),
            }
        }
        fitting
            .into_iter()
            .min_by_key(|node| {
                let lot = digest(16, [ask.volume.as_str(), node.name.as_str()]);
                (ask.rank(node), Reverse(self.largest_on(node)), lot)
            })
            .ok_or(NoNode(reasons))
    }

    /// Chooses the static volume of a twin: one that is already reserved for it, or else the smallest that
    /// fits.
    #[must_use]
    pub fn choose_volume(
        &self,
        twin: &ClaimName,
        node: Option<&Node>,
        ask: &TwinRequest<'_>,
    ) -> Option<&'a StaticVolume> {
        let reserved =
            |volume: &&StaticVolume| volume.claim.as_ref() == Some(twin) && volume.class == self.class.name;
        self.volumes.iter().find(reserved).or_else(|| {
            self.available(node, ask)
                .min_by_key(|volume| (volume.capacity, &volume.name))
        })
    }

    fn available(
        &self,
        node: Option<&Node>,
        ask: &TwinRequest<'_>,
    ) -> impl Iterator<Item = &'a StaticVolume> {
        self.free_on(node).filter(move |volume| {
            volume.capacity >= ask.size
                && volume.volume_mode == ask.capabilities.volume_mode()
                && volume.access_modes.is_superset(ask.capabilities.access_modes())
        })
    }

    /// Unclaimed volumes of the class that are accessible from the node.
    pub(super) fn free_on(&self, node: Option<&Node>) -> impl Iterator<Item = &'a StaticVolume> {
        let class = &self.class.name;
        self.volumes.iter().filter(move |volume| {
            let reached = match (&volume.affinity, node) {
                (Some(affinity), Some(node)) => affinity.admits(node),
                _ => true,
            };
            volume.class == *class && volume.available && volume.claim.is_none() && reached
        })
    }
}

#[cfg(test)]
pub(super) mod tests;
