//! Access to API servers: the driver's custom resources, a client of one cluster with its watches, the set
//! of known clusters, and the tools of background loops: lease, queue and rounds.

#![allow(missing_docs, reason = "internal: a comment says why, not what the name says")]

pub mod api;
pub mod cluster;
pub mod controller;
pub mod fleet;
pub mod keyed;
pub mod lease;
pub mod queue;
pub mod rounds;

use liqo_csi_model::{access, offload, placement, topology, volume};
use liqo_csi_observe as observe;
