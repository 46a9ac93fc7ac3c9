//! Does a node fit a real class? A twin has no pod, so no scheduler ever asked:
//! what it would have checked for the real class is checked here, for the one
//! node our own claim was given, or to choose a node where there is none.

use std::{cmp::Reverse, collections::BTreeSet};

use super::{BindingMode, Class};
use crate::{
    topology::{LabelSelector, Node, NodeSelector},
    volume::{AccessMode, Capabilities, ClaimName, VolumeMode, VolumeName, digest},
};

/// Provisioner of classes whose volumes somebody made beforehand.
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// What a cluster says about the driver behind a real class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RealDriver {
    /// The nodes whose `CSINode` has it; `None` when it is no CSI driver or cannot be told.
    pub registered_on: Option<BTreeSet<String>>,
    /// Whether its `CSIDriver` says that capacity is published and counts.
    pub publishes_capacity: bool,
}

/// A `CSIStorageCapacity` of a real driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// The class it is about.
    pub class: String,
    /// The nodes it is about; `None` means none.
    pub nodes: Option<LabelSelector>,
    /// Bytes left in total.
    pub capacity: Option<u64>,
    /// Bytes of the largest volume that can be made.
    pub maximum: Option<u64>,
}

impl Capacity {
    /// Size of the largest volume, as the scheduler reads it.
    #[must_use]
    pub fn largest(&self) -> Option<u64> {
        self.maximum.or(self.capacity)
    }
}

/// A PV that nobody provisions, waiting for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticVolume {
    /// Its name.
    pub name: String,
    /// Its class.
    pub class: String,
    /// Its size in bytes.
    pub capacity: u64,
    /// What it can be used for.
    pub access_modes: BTreeSet<AccessMode>,
    /// File system or raw device.
    pub volume_mode: VolumeMode,
    /// Where it can be reached; `None` means anywhere.
    pub affinity: Option<NodeSelector>,
    /// Whether it is in phase Available and not being deleted.
    pub available: bool,
    /// The claim it is reserved for.
    pub claim: Option<ClaimName>,
}

/// What a twin needs.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The volume it will hold.
    pub volume: &'a VolumeName,
    /// Its size in bytes.
    pub size: u64,
    /// Its capabilities.
    pub capabilities: &'a Capabilities,
}

/// A real class with everything that decides where it works.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// The class.
    pub class: &'a Class,
    /// The driver behind it.
    pub driver: &'a RealDriver,
    /// The capacities of the cluster, of any class.
    pub capacities: &'a [Capacity],
    /// The PVs of the cluster, of any class; only needed for [`NO_PROVISIONER`].
    pub volumes: &'a [StaticVolume],
}

/// Why a real class cannot make a volume for a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Excluded by the class.
    #[error("the allowedTopologies of the class {class} exclude the node {node}")]
    Topology {
        /// The real class.
        class: String,
        /// The node.
        node: String,
    },
    /// The real driver is not there.
    #[error("the driver {driver} of the class {class} does not run on the node {node}")]
    NoDriver {
        /// The real class.
        class: String,
        /// Its driver.
        driver: String,
        /// The node.
        node: String,
    },
    /// No room.
    #[error("the class {class} has no room for {size} bytes on the node {node}")]
    NoRoom {
        /// The real class.
        class: String,
        /// The node.
        node: String,
        /// What is needed.
        size: u64,
    },
    /// No volume was made beforehand.
    #[error(
        "no available volume of the class {class} on the node {node} has {size} bytes, the access modes and the volume mode of the claim"
    )]
    NoVolume {
        /// The real class.
        class: String,
        /// The node.
        node: String,
        /// What is needed.
        size: u64,
    },
}

/// Why no node can be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no node can have the volume: {}",
    if .0.is_empty() { "the cluster has no node where this driver runs".to_owned() }
    else { .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ") }
)]
pub struct NoNode(pub Vec<Unfit>);

impl<'a> Surroundings<'a> {
    /// Why the class cannot make this volume for the node, if so.
    #[must_use]
    pub fn unfit(&self, node: &Node, ask: &Ask<'_>) -> Option<Unfit> {
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
        let room = self.largest_on(node);
        (room < ask.size).then(|| Unfit::NoRoom {
            class: class(),
            node: node.name.clone(),
            size: ask.size,
        })
    }

    /// Why the class never makes any volume for the node, if so.
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

    /// Whether the volumes of the class are made beforehand.
    #[must_use]
    pub fn is_static(&self) -> bool {
        self.class.provisioner == NO_PROVISIONER
    }

    /// Whether the scheduler would look at the capacity of this class.
    pub(super) fn counts_capacity(&self) -> bool {
        self.driver.publishes_capacity && self.class.binding == BindingMode::WaitForFirstConsumer
    }

    /// The capacities published for the class on a node.
    pub(super) fn capacities_on(&self, node: &Node) -> impl Iterator<Item = &'a Capacity> {
        let class = &self.class.name;
        self.capacities.iter().filter(move |capacity| {
            let covers = |nodes: &LabelSelector| nodes.admits(&node.labels);
            capacity.class == *class && capacity.nodes.as_ref().is_some_and(covers)
        })
    }

    /// Size of the largest volume the class can make for a node; unlimited where nothing counts.
    fn largest_on(&self, node: &Node) -> u64 {
        if !self.counts_capacity() {
            return u64::MAX;
        }
        self.capacities_on(node)
            .filter_map(Capacity::largest)
            .max()
            .unwrap_or_default()
    }

    /// Chooses a node for a volume that nobody's pod waits for: the one with most
    /// room, and among equals a different one for each volume.
    pub fn choose_node<'n>(&self, nodes: &'n [Node], ask: &Ask<'_>) -> Result<&'n Node, NoNode> {
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
                (Reverse(self.largest_on(node)), lot)
            })
            .ok_or(NoNode(reasons))
    }

    /// Chooses the volume made beforehand that the twin gets: one that is already
    /// reserved for it, else the smallest that fits.
    #[must_use]
    pub fn choose_volume(
        &self,
        twin: &ClaimName,
        node: Option<&Node>,
        ask: &Ask<'_>,
    ) -> Option<&'a StaticVolume> {
        let reserved =
            |volume: &&StaticVolume| volume.claim.as_ref() == Some(twin) && volume.class == self.class.name;
        self.volumes.iter().find(reserved).or_else(|| {
            self.available(node, ask)
                .min_by_key(|volume| (volume.capacity, &volume.name))
        })
    }

    fn available(&self, node: Option<&Node>, ask: &Ask<'_>) -> impl Iterator<Item = &'a StaticVolume> {
        self.free_on(node).filter(move |volume| {
            volume.capacity >= ask.size
                && volume.volume_mode == ask.capabilities.volume_mode()
                && volume.access_modes.is_superset(ask.capabilities.access_modes())
        })
    }

    /// Volumes of the class that nobody has and the node reaches.
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
pub(super) mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{
        placement::class::tests::class,
        topology::{Requirement, Term},
        volume::{Access, Capability},
    };

    pub(in crate::placement) const GIB: u64 = 1 << 30;

    pub(in crate::placement) fn node(name: &str) -> Node {
        Node {
            name: name.to_owned(),
            labels: BTreeMap::from([("host".to_owned(), name.to_owned())]),
        }
    }

    pub(in crate::placement) fn capacity(nodes: &[&str], capacity: u64, maximum: Option<u64>) -> Capacity {
        Capacity {
            class: "real".to_owned(),
            nodes: Some(LabelSelector(vec![Requirement::is_in(
                "host",
                nodes.iter().copied(),
            )])),
            capacity: Some(capacity),
            maximum,
        }
    }

    pub(in crate::placement) fn local(name: &str, host: &str, capacity: u64) -> StaticVolume {
        StaticVolume {
            name: name.to_owned(),
            class: "real".to_owned(),
            capacity,
            access_modes: [AccessMode::ReadWriteOnce].into(),
            volume_mode: VolumeMode::Filesystem,
            affinity: Some(NodeSelector {
                terms: vec![Term {
                    expressions: vec![Requirement::is_in("host", [host])],
                    fields: Vec::new(),
                }],
            }),
            available: true,
            claim: None,
        }
    }

    fn filesystem(modes: &[AccessMode]) -> Capabilities {
        Capabilities::new(modes.iter().map(|&mode| Capability {
            mode,
            access: Access::Mount {
                fs_type: None,
                flags: Vec::new(),
            },
        }))
        .unwrap()
    }

    struct World {
        class: Class,
        driver: RealDriver,
        capacities: Vec<Capacity>,
        volumes: Vec<StaticVolume>,
    }

    impl World {
        fn new(provisioner: &str) -> Self {
            Self {
                class: class("real", provisioner),
                driver: RealDriver::default(),
                capacities: Vec::new(),
                volumes: Vec::new(),
            }
        }

        fn surroundings(&self) -> Surroundings<'_> {
            Surroundings {
                class: &self.class,
                driver: &self.driver,
                capacities: &self.capacities,
                volumes: &self.volumes,
            }
        }

        fn unfit(&self, node_name: &str, size: u64) -> Option<Unfit> {
            let capabilities = filesystem(&[AccessMode::ReadWriteOnce]);
            let volume = VolumeName::from_request("v");
            let ask = Ask {
                volume: &volume,
                size,
                capabilities: &capabilities,
            };
            self.surroundings().unfit(&node(node_name), &ask)
        }

        fn node_for(&self, request: &str, nodes: &[Node], size: u64) -> Result<String, NoNode> {
            let capabilities = filesystem(&[AccessMode::ReadWriteOnce]);
            let volume = VolumeName::from_request(request);
            let ask = Ask {
                volume: &volume,
                size,
                capabilities: &capabilities,
            };
            self.surroundings()
                .choose_node(nodes, &ask)
                .map(|node| node.name.clone())
        }

        fn volume_for(&self, node_name: Option<&str>, size: u64, modes: &[AccessMode]) -> Option<String> {
            let capabilities = filesystem(modes);
            let volume = VolumeName::from_request("v");
            let ask = Ask {
                volume: &volume,
                size,
                capabilities: &capabilities,
            };
            let twin = ClaimName {
                namespace: "liqo-storage".into(),
                name: "twin".into(),
            };
            let node = node_name.map(node);
            self.surroundings()
                .choose_volume(&twin, node.as_ref(), &ask)
                .map(|volume| volume.name.clone())
        }
    }

    #[test]
    fn allowed_topologies_exclude() {
        let mut world = World::new("real.example");
        world.class.allowed_topologies = vec![super::super::AllowedTopology(vec![(
            "host".into(),
            vec!["n1".into()],
        )])];
        assert_eq!(world.unfit("n1", GIB), None);
        assert!(matches!(world.unfit("n2", GIB), Some(Unfit::Topology { .. })));
    }

    #[test]
    fn the_driver_has_to_be_there() {
        let mut world = World::new("real.example");
        assert_eq!(world.unfit("n1", GIB), None, "not a CSI driver: cannot be told");
        world.driver.registered_on = Some(["n2".to_owned()].into());
        assert!(matches!(world.unfit("n1", GIB), Some(Unfit::NoDriver { .. })));
        assert_eq!(world.unfit("n2", GIB), None);
    }

    #[test]
    fn capacity_counts_as_for_the_scheduler() {
        let mut world = World::new("real.example");
        world.capacities = vec![
            capacity(&["n1"], 10 * GIB, Some(2 * GIB)),
            capacity(&["n1", "n2"], GIB, None),
            Capacity {
                nodes: None,
                ..capacity(&[], 99 * GIB, None)
            },
            Capacity {
                class: "other".into(),
                ..capacity(&["n2"], 99 * GIB, None)
            },
        ];
        assert_eq!(
            world.unfit("n3", GIB),
            None,
            "the driver does not say that it counts"
        );

        world.driver.publishes_capacity = true;
        assert_eq!(world.unfit("n1", 2 * GIB), None);
        assert!(
            matches!(world.unfit("n1", 3 * GIB), Some(Unfit::NoRoom { .. })),
            "the maximum decides"
        );
        assert!(matches!(world.unfit("n2", 2 * GIB), Some(Unfit::NoRoom { .. })));
        assert!(
            matches!(world.unfit("n3", 1), Some(Unfit::NoRoom { .. })),
            "nothing published"
        );

        world.class.binding = BindingMode::Immediate;
        assert_eq!(
            world.unfit("n3", 99 * GIB),
            None,
            "nobody looks for an Immediate class"
        );
    }

    #[test]
    fn the_node_with_most_room_is_chosen() {
        let mut world = World::new("real.example");
        world.driver.publishes_capacity = true;
        world.capacities = vec![capacity(&["n1"], 5 * GIB, None), capacity(&["n2"], 9 * GIB, None)];
        let nodes = ["n1", "n2", "n3"].map(node);
        assert_eq!(world.node_for("v", &nodes, GIB).unwrap(), "n2");
        let none = world.node_for("v", &nodes, 10 * GIB).unwrap_err();
        assert_eq!(none.0.len(), 3);
        assert!(none.to_string().contains("no room"), "{none}");
        assert!(
            world
                .node_for("v", &[], GIB)
                .unwrap_err()
                .to_string()
                .contains("no node")
        );
    }

    #[test]
    fn equal_nodes_share_the_volumes() {
        let world = World::new("real.example");
        let nodes = ["n1", "n2", "n3"].map(node);
        let chosen: BTreeSet<String> = (0..50)
            .map(|n| world.node_for(&format!("v{n}"), &nodes, GIB).unwrap())
            .collect();
        assert_eq!(chosen.len(), 3);
        assert_eq!(world.node_for("v", &nodes, GIB), world.node_for("v", &nodes, GIB));
    }

    #[test]
    fn the_smallest_fitting_volume_is_chosen() {
        use AccessMode::{ReadWriteMany, ReadWriteOnce};
        let mut world = World::new(NO_PROVISIONER);
        let spoil = |change: &dyn Fn(&mut StaticVolume)| {
            let mut volume = local("spoilt", "n1", GIB);
            change(&mut volume);
            volume
        };
        world.volumes = vec![
            local("large", "n1", 5 * GIB),
            local("right", "n1", 2 * GIB),
            local("small", "n1", GIB / 2),
            local("elsewhere", "n2", GIB),
            spoil(&|v| v.available = false),
            spoil(&|v| v.volume_mode = VolumeMode::Block),
            spoil(&|v| v.class = "other".into()),
            spoil(&|v| {
                v.claim = Some(ClaimName {
                    namespace: "x".into(),
                    name: "y".into(),
                });
            }),
        ];
        let once = &[ReadWriteOnce];
        assert_eq!(world.volume_for(Some("n1"), GIB, once).as_deref(), Some("right"));
        assert_eq!(
            world.volume_for(Some("n1"), 3 * GIB, once).as_deref(),
            Some("large")
        );
        assert_eq!(world.volume_for(None, GIB, once).as_deref(), Some("elsewhere"));
        assert_eq!(world.volume_for(Some("n1"), 6 * GIB, once), None);
        assert_eq!(
            world.volume_for(Some("n1"), GIB, &[ReadWriteOnce, ReadWriteMany]),
            None
        );
        assert_eq!(world.unfit("n2", GIB), None);
        assert!(matches!(world.unfit("n3", GIB), Some(Unfit::NoVolume { .. })));
    }

    #[test]
    fn a_reserved_volume_is_found_again() {
        let mut world = World::new(NO_PROVISIONER);
        let mut reserved = local("reserved", "n1", 9 * GIB);
        reserved.claim = Some(ClaimName {
            namespace: "liqo-storage".into(),
            name: "twin".into(),
        });
        world.volumes = vec![local("smaller", "n1", GIB), reserved];
        let chosen = world.volume_for(Some("n1"), GIB, &[AccessMode::ReadWriteOnce]);
        assert_eq!(chosen.as_deref(), Some("reserved"));
    }
}
