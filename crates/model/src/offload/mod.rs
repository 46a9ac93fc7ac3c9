//! Offloading of namespaces and pods into remote clusters, decided from facts: names, cluster selectors,
//! routes, ports of virtual nodes, resources, the next step in a cluster, and the status. `pods` and
//! `reflection` have the pods and the copies. Nothing is read or written here.

mod bounds;
mod capacity;
mod claims;
mod decision;
mod names;
mod network;
pub mod pods;
mod ports;
pub mod reflection;
pub mod requests;
mod selector;
mod service_names;
mod status;
mod ties;
mod unreached;
pub mod usage;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::{
    bounds::{LONGEST_MESSAGE, cut, first_names, is_name, is_resource, is_uid},
    capacity::{Amounts, Offer, nanos, same_amount, share_of, share_of_free, stated},
    claims::{Claim, Volumes},
    decision::{Decision, Facts, Placed, Seen, Step, decide},
    names::{NameRefused, never_offloaded, remote_name},
    network::{NotRouted, PodNetwork, Routes, is_in_ranges},
    ports::{Port, assigned},
    selector::{ParseError, parse, selects, suggested},
    status::{ClusterState, Phase, Readiness, Unselected, phase},
    ties::{CLAIMS_GATE, GateStep, IN_BOTH_CLUSTERS, Tie, gate_step, held_at_home, is_remote_only},
    unreached::{Labels, Unreached},
};

/// How the namespace in a remote cluster is named.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MappingStrategy {
    /// The name of the namespace, followed by the id of this cluster.
    #[default]
    DefaultName,
    /// The name of the namespace.
    EnforceSameName,
    /// The name in `remoteNamespaceName`.
    SelectedName,
}
