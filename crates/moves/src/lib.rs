//! What a move does to objects: the gate of one claim (`gate`), the pods that copy and the twin at the
//! target (`movers`), and what connects two pods of clusters that cannot reach each other (`relay`).
//! When each is done is decided in the model's `placement::moving`; the loop that asks for it is the
//! controllers'.

#![allow(missing_docs, reason = "internal: a comment says why, not what the name says")]

pub mod gate;
pub mod movers;
pub mod relay;

use liqo_csi_cluster::{api, cluster, fleet};
use liqo_csi_model::{placement, topology, volume};
use liqo_csi_observe as observe;
use liqo_csi_twin as twin;
