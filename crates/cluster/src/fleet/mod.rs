//! The remote clusters, from all sources of declarations. This module answers: which cluster a node
//! represents, which namespace there corresponds to a namespace here, and how the cluster is reached. No
//! other module knows which fabric is installed.
//!
//! ```text
//!  RemoteCluster ─┐
//!  Liqo ──────────┼─ sources ─▶ declared ─▶ keeper ─▶ one link per cluster ─▶ Remote
//!  Kosmos ────────┘                                   (vetted, probed, rotated)
//! ```

mod declaration;
mod installed;
mod keeper;
mod kosmos;
pub mod kubeconfig;
mod link;
mod liqo;
mod native;
mod registry;

#[cfg(any(test, feature = "testkit"))]
pub use self::kosmos::KOSMOS;
pub use self::{
    keeper::{Settings, keep},
    link::{Connected, Link},
    registry::{AccessFacts, Closed, NodeKind, Registry, Remote, Unreachable},
};
use crate::topology::{Node, VIRTUAL_NODE};

/// The annotations by which a node names the cluster that it represents.
pub const NODE_ANNOTATIONS: &[&str] = &[kosmos::CLUSTER];

/// The label of virtual nodes that the documentation recommends, and its value.
const RECOMMENDED_LABEL: (&str, &str) = ("type", "virtual-kubelet");

/// Whether a node is a virtual node, by its own labels: no kubelet runs there.
#[must_use]
pub fn is_virtual(node: &Node) -> bool {
    let (key, value) = RECOMMENDED_LABEL;
    node.labels.contains_key(VIRTUAL_NODE)
        || node.labels.get(key).is_some_and(|it| it == value)
        || liqo::is_virtual(node)
        || kosmos::is_virtual(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_each_fabric_are_recognised_as_virtual() {
        for (key, value, expected) in [
            ("liqo.io/type", "virtual-node", true),
            ("liqo.io/type", "physical", false),
            ("kosmos.io/node", "", true),
            ("type", "virtual-kubelet", true),
            (VIRTUAL_NODE, "true", true),
            ("zone", "a", false),
        ] {
            let node = Node {
                labels: [(key.to_owned(), value.to_owned())].into(),
                ..Node::default()
            };
            assert_eq!(is_virtual(&node), expected, "{key}={value}");
        }
    }
}
