//! Suitable and unsuitable nodes.

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
        ..Node::default()
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
    preferred: Vec<Segments>,
}

impl World {
    fn new(provisioner: &str) -> Self {
        Self {
            class: class("real", provisioner),
            driver: RealDriver::default(),
            capacities: Vec::new(),
            volumes: Vec::new(),
            preferred: Vec::new(),
        }
    }

    fn surroundings(&self) -> ClassContext<'_> {
        ClassContext {
            class: &self.class,
            driver: &self.driver,
            capacities: &self.capacities,
            volumes: &self.volumes,
        }
    }

    fn unfit(&self, node_name: &str, size: u64) -> Option<Unfit> {
        let capabilities = filesystem(&[AccessMode::ReadWriteOnce]);
        let volume = VolumeName::from_request("v");
        let ask = TwinRequest {
            volume: &volume,
            size,
            capabilities: &capabilities,
            preferred: &self.preferred,
        };
        self.surroundings().unfit(&node(node_name), &ask)
    }

    fn node_for(&self, request: &str, nodes: &[Node], size: u64) -> Result<String, NoNode> {
        let capabilities = filesystem(&[AccessMode::ReadWriteOnce]);
        let volume = VolumeName::from_request(request);
        let ask = TwinRequest {
            volume: &volume,
            size,
            capabilities: &capabilities,
            preferred: &self.preferred,
        };
        self.surroundings()
            .choose_node(nodes, &ask)
            .map(|node| node.name.clone())
    }

    fn volume_for(&self, node_name: Option<&str>, size: u64, modes: &[AccessMode]) -> Option<String> {
        let capabilities = filesystem(modes);
        let volume = VolumeName::from_request("v");
        let ask = TwinRequest {
            volume: &volume,
            size,
            capabilities: &capabilities,
            preferred: &self.preferred,
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
fn nodes_outside_the_allowed_topologies_do_not_fit() {
    let mut world = World::new("real.example");
    world.class.allowed_topologies = vec![super::super::AllowedTopology(vec![(
        "host".into(),
        vec!["n1".into()],
    )])];
    assert_eq!(world.unfit("n1", GIB), None);
    assert!(matches!(world.unfit("n2", GIB), Some(Unfit::Topology { .. })));
}

#[test]
fn nodes_without_the_driver_do_not_fit() {
    let mut world = World::new("real.example");
    assert_eq!(world.unfit("n1", GIB), None, "not a CSI driver: not known");
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
    assert_eq!(world.unfit("n3", GIB), None, "storageCapacity is false");

    world.driver.publishes_capacity = true;
    assert_eq!(world.unfit("n1", 2 * GIB), None);
    assert!(
        matches!(world.unfit("n1", 3 * GIB), Some(Unfit::NoCapacity { .. })),
        "the maximum decides"
    );
    assert!(matches!(
        world.unfit("n2", 2 * GIB),
        Some(Unfit::NoCapacity { .. })
    ));
    assert!(
        matches!(world.unfit("n3", 1), Some(Unfit::NoCapacity { .. })),
        "nothing published"
    );

    world.class.binding = BindingMode::Immediate;
    assert_eq!(
        world.unfit("n3", 99 * GIB),
        None,
        "the scheduler ignores it for an Immediate class"
    );
}

#[test]
fn the_node_with_the_most_capacity_is_chosen() {
    let mut world = World::new("real.example");
    world.driver.publishes_capacity = true;
    world.capacities = vec![capacity(&["n1"], 5 * GIB, None), capacity(&["n2"], 9 * GIB, None)];
    let nodes = ["n1", "n2", "n3"].map(node);
    assert_eq!(world.node_for("v", &nodes, GIB).unwrap(), "n2");
    let none = world.node_for("v", &nodes, 10 * GIB).unwrap_err();
    assert_eq!(none.0.len(), 3);
    assert!(none.to_string().contains("bytes of capacity"), "{none}");
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

#[test]
fn preferred_topologies_come_before_capacity() {
    let mut world = World::new("real.example");
    world.driver.publishes_capacity = true;
    world.capacities = vec![
        capacity(&["n1"], 9 * GIB, None),
        capacity(&["n2"], 5 * GIB, None),
        capacity(&["n3"], GIB, None),
    ];
    let nodes = ["n1", "n2", "n3"].map(node);
    let place = |name: &str| Segments::default().with("host", name);
    assert_eq!(world.node_for("v", &nodes, GIB).unwrap(), "n1");
    world.preferred = vec![place("n3"), place("n2"), place("n1")];
    assert_eq!(world.node_for("v", &nodes, GIB).unwrap(), "n3");
    // The first allowed node with enough capacity.
    assert_eq!(world.node_for("v", &nodes, 2 * GIB).unwrap(), "n2");
    assert_eq!(world.node_for("v", &nodes[..1], GIB).unwrap(), "n1");
    world.preferred = vec![Segments::default().with("zone", "elsewhere")];
    assert_eq!(world.node_for("v", &nodes, GIB).unwrap(), "n1");
}
