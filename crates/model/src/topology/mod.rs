//! Topology of volumes: segments, our keys, selectors of Kubernetes, and how the affinity of a twin becomes
//! the topology of a CSI volume. Pure: no Kubernetes client, no gRPC, no clock.

mod accessible;
mod segments;
mod selector;

pub use accessible::{AffinityError, MAX_TOPOLOGIES, accessible, allowed};
pub use segments::{CLUSTER_KEY, FABRIC_NODE, NODE_KEY, Segments, VIRTUAL_NODE, node_value};
pub use selector::{
    LabelSelector, Labels, Node, NodeSelector, Operator, Requirement, Term, UnknownOperator, is_label,
};
