//! The objects of a move: the gate of a claim (`gate`), the movers and the twin at the target (`movers`), and
//! the relay between movers whose clusters cannot reach each other (`relay`). Which step is next is decided
//! in `placement::moving` of the model; the loop that takes the steps is in the crate `controllers`.

#![allow(missing_docs, reason = "internal: a comment says why, not what the name says")]

pub mod gate;
pub mod movers;
pub mod relay;

use liqo_csi_cluster::{api, cluster, fleet};
use liqo_csi_model::{offload, placement, topology, volume};
use liqo_csi_observe as observe;
use liqo_csi_twin as twin;
