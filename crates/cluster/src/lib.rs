//! The API servers: the driver's custom resources, one cluster with what is watched of it, the
//! clusters that there are, and what background loops are made of: lease, queue and rounds.

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
