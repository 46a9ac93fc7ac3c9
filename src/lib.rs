//! `liqo-csi`: a CSI driver with a virtual storage class.
//!
//! This crate holds the gRPC services, the reports of `doctor` and `volumes`, and the command line.
//! They use the crates in `crates/`; `docs/architecture.md` says which crate uses which.

pub mod cli;
pub mod csi;
mod inspect;

use liqo_csi_cluster::{api, cluster, fleet, rounds};
use liqo_csi_controllers as controllers;
use liqo_csi_fabric as fabric;
use liqo_csi_model::{access, offload, placement, topology, volume};
use liqo_csi_moves as moves;
use liqo_csi_node as node;
use liqo_csi_observe as observe;
use liqo_csi_transfer as transfer;
use liqo_csi_twin as twin;
use liqo_csi_wire as wire;
