//! Topology segments, and the keys of labels that this driver sets on nodes.

use std::{collections::BTreeMap, fmt};

use super::Labels;
use crate::volume::{ClusterId, digest};

/// Key on every node: the cluster that it runs in or represents.
pub const CLUSTER_KEY: &str = "topology.storage.liqo.io/cluster";
/// Key on real nodes only: the node itself.
pub const NODE_KEY: &str = "topology.storage.liqo.io/node";

/// Label on the virtual nodes of this driver's fabric: the cluster that it represents.
pub const FABRIC_NODE: &str = "fabric.storage.liqo.io/cluster";

/// Label on virtual nodes only, so that workloads for real nodes can avoid them.
pub const VIRTUAL_NODE: &str = "storage.liqo.io/virtual-node";

/// Longest value of a label.
const VALUE_MAX: usize = 63;
const KEPT: usize = 50;
const DIGITS: usize = 10;

/// Value of [`NODE_KEY`] on the node of this name: the name, or if that is too long for a label its beginning
/// and a hash.
#[must_use]
pub fn node_value(name: &str) -> String {
    if name.len() <= VALUE_MAX {
        return name.to_owned();
    }
    let start: String = name.chars().take(KEPT).collect();
    format!("{start}-{}", digest(DIGITS, [name]))
}

/// The topology of one place: every key must have its value.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Segments(BTreeMap<String, String>);

impl Segments {
    /// Anywhere in a cluster.
    #[must_use]
    pub fn of_cluster(cluster: &ClusterId) -> Self {
        Self([(CLUSTER_KEY.to_owned(), cluster.as_str().to_owned())].into())
    }

    /// One real node of a cluster.
    #[must_use]
    pub fn of_node(cluster: &ClusterId, node: &str) -> Self {
        Self::of_cluster(cluster).with(NODE_KEY, node_value(node))
    }

    /// The same place, with one more condition.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.insert(key.into(), value.into());
        self
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// The intersection of both places; `None` if they have no node in common.
    #[must_use]
    pub fn and(&self, other: &Self) -> Option<Self> {
        let mut both = self.0.clone();
        for (key, value) in &other.0 {
            if both
                .insert(key.clone(), value.clone())
                .is_some_and(|own| own != *value)
            {
                return None;
            }
        }
        Some(Self(both))
    }

    /// Whether every node of this place is also in the other one.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        other.0.iter().all(|(key, value)| self.0.get(key) == Some(value))
    }

    /// Whether a node with these labels is in this place.
    #[must_use]
    pub fn admits(&self, labels: &Labels) -> bool {
        self.0.iter().all(|(key, value)| labels.get(key) == Some(value))
    }

    #[must_use]
    pub fn into_map(self) -> BTreeMap<String, String> {
        self.0
    }
}

impl From<BTreeMap<String, String>> for Segments {
    fn from(segments: BTreeMap<String, String>) -> Self {
        Self(segments)
    }
}

impl fmt::Display for Segments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (key, value) in &self.0 {
            write!(f, "{separator}{key}={value}")?;
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn short_names_are_kept_and_long_ones_told_apart() {
        assert_eq!(node_value("worker-1"), "worker-1");
        let long = |end: &str| node_value(&format!("{}{end}", "n".repeat(70)));
        assert_ne!(long("a"), long("b"));
        assert_eq!(long("a").len(), KEPT + 1 + DIGITS);
    }

    #[test]
    fn a_node_is_within_its_cluster() {
        let home: ClusterId = "home".parse().unwrap();
        let (cluster, node) = (Segments::of_cluster(&home), Segments::of_node(&home, "n1"));
        assert!(node.is_within(&cluster) && node.is_within(&node));
        assert!(!cluster.is_within(&node));
        assert!(cluster.is_within(&Segments::default()));
    }

    proptest! {
        #[test]
        fn a_node_name_always_becomes_a_label_value(name in "[a-z0-9]([a-z0-9.-]{0,250}[a-z0-9])?") {
            let value = node_value(&name);
            prop_assert!(value.len() <= VALUE_MAX);
            prop_assert!(value.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)));
            prop_assert!(value.ends_with(|c: char| c.is_ascii_alphanumeric()));
        }
    }

    #[test]
    fn the_intersection_of_topologies_has_the_keys_of_both() {
        let home: ClusterId = "home".parse().unwrap();
        let (cluster, node) = (Segments::of_cluster(&home), Segments::of_node(&home, "worker-1"));
        assert_eq!(cluster.and(&node), Some(node.clone()));
        assert_eq!(node.and(&Segments::of_node(&home, "worker-2")), None);
        let zone = cluster.clone().with("zone", "a");
        assert_eq!(zone.and(&node), Some(node.with("zone", "a")));
    }

    #[test]
    fn a_topology_admits_nodes_with_all_its_labels() {
        let home: ClusterId = "home".parse().unwrap();
        let labels = Segments::of_node(&home, "worker-1").with("zone", "a").into_map();
        assert!(Segments::of_cluster(&home).admits(&labels));
        assert!(Segments::of_node(&home, "worker-1").admits(&labels));
        assert!(!Segments::of_node(&home, "worker-2").admits(&labels));
        assert!(!Segments::of_cluster(&home).with("disk", "ssd").admits(&labels));
    }
}
