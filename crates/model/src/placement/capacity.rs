//! What the scheduler must know about our classes: `CSIStorageCapacity` for every node, grouped into few
//! objects.
//!
//! The scheduler filters out nodes without an object, and those with too little capacity. So a node is
//! published with the capacity of the real class there: what the real driver publishes, zero where the class
//! can never work, and no limit where no capacity is published.

use std::collections::BTreeMap;

use super::ClassContext;
use crate::{
    topology::{CLUSTER_KEY, NODE_KEY, Node},
    volume::{ClusterId, digest},
};

/// "No limit": the API needs a number, and this one is a valid quantity.
const NO_LIMIT: u64 = 1 << 62;
/// Nodes per object, which keeps it well below the size limit of etcd.
const NODES_MAX: usize = 1000;

/// Capacity for volumes of a class on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AvailableCapacity {
    /// None: the class can never work there.
    Zero,
    /// What the real driver, or the static volumes, offer.
    Limited {
        /// Bytes of the largest volume.
        maximum: u64,
        /// Bytes in total, if known.
        capacity: Option<u64>,
    },
    /// No capacity is published.
    Unlimited,
}

impl AvailableCapacity {
    /// `capacity` of the object.
    #[must_use]
    pub fn capacity(self) -> u64 {
        match self {
            Self::Zero => 0,
            Self::Limited { maximum, capacity } => capacity.unwrap_or(maximum),
            Self::Unlimited => NO_LIMIT,
        }
    }

    /// The same, for volumes up to this size only.
    #[must_use]
    pub fn up_to(self, bytes: u64) -> Self {
        if self.maximum() <= bytes {
            return self;
        }
        limited(bytes, Some(self.capacity().min(bytes)))
    }

    /// `maximumVolumeSize` of the object, which the scheduler prefers.
    #[must_use]
    pub fn maximum(self) -> u64 {
        match self {
            Self::Zero => 0,
            Self::Limited { maximum, .. } => maximum,
            Self::Unlimited => NO_LIMIT,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Its name, derived from the class and the nodes, which cannot be changed.
    pub name: String,
    pub class: String,
    /// Label of the nodes.
    pub key: String,
    pub values: Vec<String>,
    /// The capacity on them.
    pub available: AvailableCapacity,
}

/// What to publish for a virtual class.
///
/// `possible` are the real classes its claims may get: the one chosen without an annotation, and those that
/// annotations may name. A node is published with the best of them: a wrong "full" is never corrected, while
/// a wrong "free" is, when the claim is rescheduled. Without any class nothing is hidden, so that
/// `CreateVolume` can report the reason to the user.
///
/// `remotes` is the capacity in each remote cluster, see [`capacity_in`]: its virtual nodes are published
/// together.
#[must_use]
pub fn publish(
    virtual_class: &str,
    possible: &[ClassContext<'_>],
    nodes: &[Node],
    remotes: &[(ClusterId, AvailableCapacity)],
) -> Vec<Published> {
    let mut groups: BTreeMap<(&str, AvailableCapacity), Vec<String>> = BTreeMap::new();
    for (cluster, available) in remotes {
        let values = groups.entry((CLUSTER_KEY, *available)).or_default();
        values.push(cluster.as_str().to_owned());
    }
    for node in nodes {
        // The node plugin runs on no other node, so no claim of ours may be scheduled there.
        if let Some(value) = node.labels.get(NODE_KEY) {
            let best = possible.iter().map(|class| capacity_on(node, class)).max();
            groups
                .entry((NODE_KEY, best.unwrap_or(AvailableCapacity::Unlimited)))
                .or_default()
                .push(value.clone());
        }
    }
    groups
        .into_iter()
        .flat_map(|((key, available), mut values)| {
            values.sort();
            let one = |values: &[String]| object(virtual_class, key, values, available);
            values.chunks(NODES_MAX).map(one).collect::<Vec<_>>()
        })
        .collect()
}

/// The capacity for a class anywhere in a remote cluster; `nodes` if they may be read. It is that of a single
/// volume. Without a possible class it is zero, so that the pod is scheduled elsewhere.
#[must_use]
pub fn capacity_in(possible: &[ClassContext<'_>], nodes: Option<&[Node]>) -> AvailableCapacity {
    let Some(nodes) = nodes.filter(|_| !possible.is_empty()) else {
        return if possible.is_empty() {
            AvailableCapacity::Zero
        } else {
            AvailableCapacity::Unlimited
        };
    };
    let best = |real: &ClassContext<'_>| {
        // Static volumes are bound in the remote cluster, where the pods are scheduled.
        if real.is_static() {
            return AvailableCapacity::Unlimited;
        }
        let rooms = nodes.iter().map(|node| capacity_on(node, real));
        rooms.max().unwrap_or(AvailableCapacity::Zero)
    };
    possible.iter().map(best).max().unwrap_or(AvailableCapacity::Zero)
}

fn object(class: &str, key: &str, values: &[String], available: AvailableCapacity) -> Published {
    // Only objects of other keys contain the key: those of real nodes existed first, and keep their names.
    let marked = (key != NODE_KEY).then_some(key);
    let parts = [class]
        .into_iter()
        .chain(marked)
        .chain(values.iter().map(String::as_str));
    Published {
        name: format!("storage-liqo-io-{}", digest(20, parts)),
        class: class.to_owned(),
        key: key.to_owned(),
        values: values.to_vec(),
        available,
    }
}

fn capacity_on(node: &Node, real: &ClassContext<'_>) -> AvailableCapacity {
    if real.excluded(node).is_some() {
        return AvailableCapacity::Zero;
    }
    if real.is_static() {
        let (mut maximum, mut total) = (0, 0_u64);
        for volume in real.free_on(Some(node)) {
            maximum = volume.capacity.max(maximum);
            total = total.saturating_add(volume.capacity);
        }
        return limited(maximum, Some(total));
    }
    if !real.counts_capacity() {
        return AvailableCapacity::Unlimited;
    }
    real.capacities_on(node)
        .filter_map(|published| Some(limited(published.largest()?, published.capacity)))
        .max()
        .unwrap_or(AvailableCapacity::Zero)
}

fn limited(maximum: u64, capacity: Option<u64>) -> AvailableCapacity {
    if maximum == 0 {
        return AvailableCapacity::Zero;
    }
    AvailableCapacity::Limited { maximum, capacity }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::{collection::vec, prelude::*, sample::select};

    use super::*;
    use crate::{
        placement::{
            AllowedTopology, Class, NO_PROVISIONER, RealDriver,
            class::tests::class,
            fit::tests::{GIB, capacity, local, node},
        },
        topology::Requirement,
        volume::ClaimName,
    };

    fn registered(name: &str) -> Node {
        let mut node = node(name);
        node.labels.insert(NODE_KEY.to_owned(), name.to_owned());
        node
    }

    fn nodes(names: &[&str]) -> Vec<Node> {
        names.iter().map(|name| registered(name)).collect()
    }

    fn surroundings<'a>(class: &'a Class, driver: &'a RealDriver) -> ClassContext<'a> {
        ClassContext {
            class,
            driver,
            capacities: &[],
            volumes: &[],
        }
    }

    fn rooms(published: &[Published]) -> Vec<(AvailableCapacity, Vec<&str>)> {
        published
            .iter()
            .map(|one| (one.available, one.values.iter().map(String::as_str).collect()))
            .collect()
    }

    #[test]
    fn nodes_with_equal_capacity_share_an_object() {
        let mut real = class("real", "real.example");
        real.allowed_topologies = vec![AllowedTopology(vec![(
            "host".into(),
            vec!["n1".into(), "n3".into(), "n4".into()],
        )])];
        let driver = RealDriver::default();
        let mut all = nodes(&["n3", "n1", "n2"]);
        all.push(node("without-our-plugin"));
        let published = publish("liqo", &[surroundings(&real, &driver)], &all, &[]);
        assert_eq!(
            rooms(&published),
            [
                (AvailableCapacity::Zero, vec!["n2"]),
                (AvailableCapacity::Unlimited, vec!["n1", "n3"])
            ]
        );
        assert!(
            published
                .iter()
                .all(|one| one.class == "liqo" && one.key == NODE_KEY)
        );
    }

    #[test]
    fn what_the_real_driver_publishes_is_mirrored() {
        let real = class("real", "real.example");
        let driver = RealDriver {
            registered_on: None,
            publishes_capacity: true,
        };
        let capacities = [
            capacity(&["n1", "n2"], 5 * GIB, Some(2 * GIB)),
            capacity(&["n2"], 3 * GIB, None),
        ];
        let real = ClassContext {
            capacities: &capacities,
            ..surroundings(&real, &driver)
        };
        let published = publish("liqo", &[real], &nodes(&["n1", "n2", "n3"]), &[]);
        let limited = |maximum, capacity| AvailableCapacity::Limited {
            maximum: maximum * GIB,
            capacity: Some(capacity * GIB),
        };
        assert_eq!(
            rooms(&published),
            [
                (AvailableCapacity::Zero, vec!["n3"]),
                (limited(2, 5), vec!["n1"]),
                (limited(3, 3), vec!["n2"]),
            ]
        );
    }

    #[test]
    fn the_capacity_of_a_static_class_is_its_free_volumes() {
        let real = class("real", NO_PROVISIONER);
        let driver = RealDriver::default();
        let mut taken = local("c", "n2", 9 * GIB);
        taken.claim = Some(ClaimName {
            namespace: "x".into(),
            name: "y".into(),
        });
        let volumes = [local("a", "n1", GIB), local("b", "n1", 2 * GIB), taken];
        let real = ClassContext {
            volumes: &volumes,
            ..surroundings(&real, &driver)
        };
        let available = AvailableCapacity::Limited {
            maximum: 2 * GIB,
            capacity: Some(3 * GIB),
        };
        let published = publish("liqo", &[real], &nodes(&["n1", "n2"]), &[]);
        assert_eq!(
            rooms(&published),
            [(AvailableCapacity::Zero, vec!["n2"]), (available, vec!["n1"])]
        );
    }

    #[test]
    fn the_class_with_the_most_capacity_counts() {
        let driver = RealDriver::default();
        let (here, anywhere) = (class("here", NO_PROVISIONER), class("anywhere", "x"));
        let both = [surroundings(&here, &driver), surroundings(&anywhere, &driver)];
        assert_eq!(
            rooms(&publish("liqo", &both, &nodes(&["n1"]), &[])),
            [(AvailableCapacity::Unlimited, vec!["n1"])]
        );
        assert_eq!(
            rooms(&publish("liqo", &[], &nodes(&["n1"]), &[])),
            [(AvailableCapacity::Unlimited, vec!["n1"])]
        );
    }

    #[test]
    fn a_remote_cluster_publishes_one_capacity() {
        let real = class("real", "real.example");
        let driver = RealDriver {
            registered_on: None,
            publishes_capacity: true,
        };
        let capacities = [
            capacity(&["r1"], 5 * GIB, Some(2 * GIB)),
            capacity(&["r2"], GIB, None),
        ];
        let there = [ClassContext {
            capacities: &capacities,
            ..surroundings(&real, &driver)
        }];
        let r_nodes = [node("r1"), node("r2"), node("r3")];
        let available = capacity_in(&there, Some(&r_nodes));
        assert_eq!((available.maximum(), available.capacity()), (2 * GIB, 5 * GIB));
        // Without a class or a node there is no capacity; unreadable nodes mean no limit.
        assert_eq!(capacity_in(&[], Some(&r_nodes)), AvailableCapacity::Zero);
        assert_eq!(capacity_in(&there, Some(&[])), AvailableCapacity::Zero);
        assert_eq!(capacity_in(&there, None), AvailableCapacity::Unlimited);
        assert_eq!(capacity_in(&[], None), AvailableCapacity::Zero);
        // A recently refused size is excluded.
        assert_eq!(
            (available.up_to(GIB).maximum(), available.up_to(9 * GIB)),
            (GIB, available)
        );
        assert_eq!(AvailableCapacity::Unlimited.up_to(0), AvailableCapacity::Zero);

        let id = |id: &str| id.parse().unwrap();
        let remotes = [
            (id("a"), available),
            (id("b"), AvailableCapacity::Zero),
            (id("c"), available),
        ];
        let told: Vec<_> = publish("liqo", &[], &[], &remotes)
            .into_iter()
            .map(|one| (one.key, one.values, one.available))
            .collect();
        let key = CLUSTER_KEY.to_owned();
        assert_eq!(
            told,
            [
                (key.clone(), vec!["b".to_owned()], AvailableCapacity::Zero),
                (key, vec!["a".to_owned(), "c".to_owned()], available),
            ]
        );
    }

    #[test]
    fn object_names_depend_only_on_class_and_nodes() {
        let name = |class: &str, names: &[&str]| publish(class, &[], &nodes(names), &[])[0].name.clone();
        assert_eq!(name("liqo", &["n1", "n2"]), name("liqo", &["n2", "n1"]));
        assert_ne!(name("liqo", &["n1", "n2"]), name("liqo", &["n1"]));
        assert_ne!(name("liqo", &["n1"]), name("other", &["n1"]));
    }

    proptest! {
        /// Every node with our plugin is in exactly one object, with its own capacity.
        #[test]
        fn each_node_is_in_exactly_one_object(sizes in vec(select(vec![0, 1, 2, 3]), 0..12)) {
            let real = class("real", "real.example");
            let driver = RealDriver { registered_on: None, publishes_capacity: true };
            let names: Vec<String> = (0..sizes.len()).map(|n| format!("n{n}")).collect();
            let capacities: Vec<_> = names
                .iter()
                .zip(&sizes)
                .map(|(name, size)| capacity(&[name], *size, None))
                .collect();
            let real = ClassContext { capacities: &capacities, ..surroundings(&real, &driver) };
            let all: Vec<Node> = names.iter().map(|name| registered(name)).collect();
            let published = publish("liqo", &[real], &all, &[]);

            prop_assert!(published.len() <= 4);
            let unique: BTreeSet<&str> = published.iter().map(|one| one.name.as_str()).collect();
            prop_assert_eq!(unique.len(), published.len());
            for (node, size) in all.iter().zip(&sizes) {
                let covers = |one: &&Published| {
                    Requirement::is_in(&one.key, one.values.clone()).admits(&node.labels)
                };
                let found: Vec<_> = published.iter().filter(covers).collect();
                prop_assert_eq!(found.len(), 1);
                prop_assert_eq!(found[0].available.maximum(), *size);
            }
        }
    }
}
