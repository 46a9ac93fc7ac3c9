//! Where a copy of a snapshot or of a volume can be created, in nodes of the home cluster, and when this
//! driver selects the node. The scheduler does not know sources: all it respects is the selected node of a
//! claim. So a single possible node is selected at once; of several the scheduler may find one itself, and
//! only after it has chosen a wrong one this driver selects one that the pod may use.

use crate::{
    placement::Consumer,
    topology::{Node, NodeSelector, Segments},
    volume::{ClusterId, RestoreTopology},
};

/// Nodes that a message names.
const NAMED: usize = 5;

/// The source of a copy, as far as it restricts the location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Original {
    /// A volume, and from where it is accessible; `None` means anywhere in its cluster.
    Volume(Option<NodeSelector>),
    Snapshot {
        /// From where its volume was accessible, if known.
        reached_from: Option<NodeSelector>,
        /// The `restoreTopology` of the new volume's class.
        restore: Option<RestoreTopology>,
    },
}

/// The nodes that can have a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourcePlace {
    /// The cluster of the source, unless that is the home cluster.
    remote: Option<ClusterId>,
    nodes: Vec<Node>,
    /// Whether its cluster has nodes that cannot.
    is_part: bool,
}

impl SourcePlace {
    /// The nodes for a copy of a source in this cluster. For the storage of a remote cluster it does not
    /// matter which of its virtual nodes is chosen.
    #[must_use]
    pub fn of(original: &Original, cluster: &ClusterId, home: &ClusterId, nodes: &[Node]) -> Self {
        let whole = Segments::of_cluster(cluster);
        let is_home = cluster == home;
        let there = nodes
            .iter()
            .filter(|node| whole.admits(&node.labels) && node.has_driver() == is_home);
        let all: Vec<&Node> = there.collect();
        let selector = match original {
            Original::Volume(selector) => selector.as_ref(),
            Original::Snapshot {
                restore: Some(RestoreTopology::Cluster),
                ..
            } => None,
            Original::Snapshot { reached_from, .. } => reached_from.as_ref(),
        };
        // Zonal storage can usually restore its snapshots in other zones, too.
        let may_reach_further = matches!(original, Original::Snapshot { restore: None, .. });
        let mut chosen = all.clone();
        if let Some(selector) = selector.filter(|_| is_home) {
            chosen.retain(|node| selector.admits(node));
            if may_reach_further && chosen.len() != 1 {
                chosen.clone_from(&all);
            }
        }
        chosen.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Self {
            remote: (!is_home).then(|| cluster.clone()),
            is_part: chosen.len() < all.len(),
            nodes: chosen.into_iter().cloned().collect(),
        }
    }

    /// Whether this node can have the copy.
    #[must_use]
    pub fn has(&self, node: &str) -> bool {
        self.nodes.iter().any(|one| one.name == node)
    }

    /// Where the copy can be; continues "the snapshot backup is".
    #[must_use]
    pub fn describe(&self) -> String {
        let mut names: Vec<&str> = self
            .nodes
            .iter()
            .take(NAMED)
            .map(|node| node.name.as_str())
            .collect();
        if self.nodes.len() > NAMED {
            names.push("others");
        }
        let names = names.join(" or ");
        match &self.remote {
            Some(cluster) if self.nodes.is_empty() => {
                format!("in the cluster {cluster}, which no node represents now")
            }
            Some(cluster) => format!("in the cluster {cluster}, reached through {names}"),
            None if self.is_part && self.nodes.is_empty() => {
                "in this cluster, which now has no node that can have its copy".to_owned()
            }
            None if self.is_part => format!("in this cluster, where only {names} can have its copy"),
            None => "in this cluster".to_owned(),
        }
    }
}

/// How the node of a claim is selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeSelection {
    /// Not by this driver (yet): by the scheduler, or once a pod uses the claim.
    ByScheduler,
    /// By this driver: the first of these that the pod may use, considering taints and the other claims of
    /// the pod.
    FirstOf(Vec<String>),
    /// Not at all: the pod can run on none of them.
    Nowhere,
}

/// Decides how the node of a claim is selected, for one of the pods that wait for it, if any. `missed`: the
/// scheduler has chosen a wrong node before. `waits`: the class is `WaitForFirstConsumer`. The first `tried`
/// nodes come last: they were selected before without success.
#[must_use]
pub fn select_node_for_copy(
    place: &SourcePlace,
    consumer: Option<&Consumer>,
    missed: bool,
    waits: bool,
    tried: usize,
) -> NodeSelection {
    let (one, none) = (place.nodes.len() == 1, place.nodes.is_empty());
    let usable: Vec<&Node> = match consumer {
        Some(pod) => place.nodes.iter().filter(|node| pod.selects(node)).collect(),
        None => place.nodes.iter().collect(),
    };
    if none || (usable.is_empty() && (one || missed)) {
        return NodeSelection::Nowhere;
    }
    if !one && (!missed || (consumer.is_none() && waits)) {
        return NodeSelection::ByScheduler;
    }
    let first = tried % usable.len();
    let names = usable[first..].iter().chain(&usable[..first]);
    NodeSelection::FirstOf(names.map(|node| node.name.clone()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{CLUSTER_KEY, NODE_KEY, Requirement, Term};

    fn home() -> ClusterId {
        "home".parse().unwrap()
    }

    fn nodes() -> Vec<Node> {
        let real = |name: &str, zone: &str| {
            let labels = [(CLUSTER_KEY, "home"), (NODE_KEY, name), ("zone", zone)];
            (
                name.to_owned(),
                labels.map(|(key, value)| (key.to_owned(), value.to_owned())),
            )
        };
        let standing = |name: &str| {
            let labels = [(CLUSTER_KEY, "milan"), ("type", "virtual"), ("zone", "a")];
            (
                name.to_owned(),
                labels.map(|(key, value)| (key.to_owned(), value.to_owned())),
            )
        };
        [
            real("n2", "a"),
            real("n1", "a"),
            real("n3", "b"),
            standing("to-milan"),
            standing("to-milan-2"),
        ]
        .into_iter()
        .map(|(name, labels)| Node {
            name,
            labels: labels.into(),
            ..Node::default()
        })
        .collect()
    }

    fn selector(key: &str, value: &str) -> NodeSelector {
        NodeSelector {
            terms: vec![Term {
                expressions: vec![Requirement::is_in(key, [value])],
                fields: Vec::new(),
            }],
        }
    }

    fn place(original: &Original, cluster: &str) -> SourcePlace {
        SourcePlace::of(original, &cluster.parse().unwrap(), &home(), &nodes())
    }

    fn names(place: &SourcePlace) -> Vec<&str> {
        place.nodes.iter().map(|node| node.name.as_str()).collect()
    }

    fn snapshot(reached_from: Option<NodeSelector>, restore: Option<RestoreTopology>) -> Original {
        Original::Snapshot {
            reached_from,
            restore,
        }
    }

    #[test]
    fn a_clone_is_placed_on_nodes_that_reach_its_source() {
        let zone = Original::Volume(Some(selector("zone", "a")));
        assert_eq!(names(&place(&zone, "home")), ["n1", "n2"], "not on virtual nodes");
        assert_eq!(names(&place(&Original::Volume(None), "home")), ["n1", "n2", "n3"]);
        let there = Original::Volume(Some(selector(CLUSTER_KEY, "milan")));
        assert_eq!(names(&place(&there, "milan")), ["to-milan", "to-milan-2"]);
    }

    #[test]
    fn a_snapshot_is_restored_in_its_cluster_unless_only_one_node_had_the_volume() {
        let one = || Some(selector(NODE_KEY, "n2"));
        let zone = || Some(selector("zone", "a"));
        assert_eq!(names(&place(&snapshot(one(), None), "home")), ["n2"]);
        for (reached_from, restore, expected) in [
            (zone(), None, 3),
            (zone(), Some(RestoreTopology::Source), 2),
            (one(), Some(RestoreTopology::Cluster), 3),
            (None, Some(RestoreTopology::Source), 3),
            // Its node was deleted; the real driver may still have the storage.
            (Some(selector(NODE_KEY, "n9")), None, 3),
        ] {
            let place = place(&snapshot(reached_from, restore), "home");
            assert_eq!(place.nodes.len(), expected);
        }
        assert_eq!(place(&snapshot(None, None), "rome").nodes.len(), 0);
    }

    #[test]
    fn the_description_names_the_cluster_and_nodes_of_the_source() {
        for (original, cluster, expected) in [
            (snapshot(None, None), "home", "in this cluster"),
            (
                snapshot(Some(selector(NODE_KEY, "n2")), None),
                "home",
                "in this cluster, where only n2 can have its copy",
            ),
            (
                snapshot(None, None),
                "milan",
                "in the cluster milan, reached through to-milan or to-milan-2",
            ),
            (
                snapshot(None, None),
                "rome",
                "in the cluster rome, which no node represents now",
            ),
        ] {
            assert_eq!(place(&original, cluster).describe(), expected);
        }
    }

    fn pod(node: &str) -> Consumer {
        Consumer {
            node_labels: [(NODE_KEY.to_owned(), node.to_owned())].into(),
            ..Consumer::default()
        }
    }

    fn first_of(names: &[&str]) -> NodeSelection {
        NodeSelection::FirstOf(names.iter().map(|&name| name.to_owned()).collect())
    }

    #[test]
    fn a_single_possible_node_is_selected_at_once() {
        let place = place(&snapshot(Some(selector(NODE_KEY, "n2")), None), "home");
        assert_eq!(
            select_node_for_copy(&place, None, false, true, 0),
            first_of(&["n2"])
        );
        assert_eq!(
            select_node_for_copy(&place, Some(&pod("n2")), false, true, 0),
            first_of(&["n2"])
        );
        assert_eq!(
            select_node_for_copy(&place, Some(&pod("n1")), false, true, 0),
            NodeSelection::Nowhere
        );
    }

    #[test]
    fn of_several_nodes_one_is_selected_after_the_scheduler_missed() {
        let place = place(&snapshot(None, None), "home");
        for consumer in [None, Some(pod("n1")), Some(pod("elsewhere"))] {
            assert_eq!(
                select_node_for_copy(&place, consumer.as_ref(), false, true, 0),
                NodeSelection::ByScheduler
            );
        }
        assert_eq!(
            select_node_for_copy(&place, None, true, true, 0),
            NodeSelection::ByScheduler,
            "its pod may come"
        );
        assert_eq!(
            select_node_for_copy(&place, None, true, false, 0),
            first_of(&["n1", "n2", "n3"])
        );
        assert_eq!(
            select_node_for_copy(&place, Some(&pod("n3")), true, true, 0),
            first_of(&["n3"])
        );
        assert_eq!(
            select_node_for_copy(&place, Some(&pod("elsewhere")), true, true, 0),
            NodeSelection::Nowhere
        );
        let any = Consumer::default();
        assert_eq!(
            select_node_for_copy(&place, Some(&any), true, true, 4),
            first_of(&["n2", "n3", "n1"])
        );
    }

    #[test]
    fn without_possible_nodes_none_is_selected() {
        let place = place(&snapshot(None, None), "rome");
        for missed in [false, true] {
            assert_eq!(
                select_node_for_copy(&place, None, missed, true, 0),
                NodeSelection::Nowhere
            );
        }
    }
}
