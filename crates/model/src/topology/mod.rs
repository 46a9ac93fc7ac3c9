//! Where data is reachable from: topology segments, our keys, the selectors of
//! Kubernetes, and how a twin's affinity becomes the topology of a CSI volume.
//! Pure: no Kubernetes client, no gRPC, no clock.

mod accessible;
mod segments;
mod selector;

pub use accessible::{AffinityError, MAX_TOPOLOGIES, accessible, allowed};
pub use segments::{CLUSTER_KEY, FABRIC_NODE, NODE_KEY, Segments, VIRTUAL_NODE, node_value};
pub use selector::{LabelSelector, Labels, Node, NodeSelector, Operator, Requirement, Term, UnknownOperator};
