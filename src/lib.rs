//! `liqo-csi`: a CSI driver behind a virtual storage class.
//!
//! Dependencies point one way: the pure domain (`crates/model`) knows nothing of
//! Kubernetes or gRPC; adapters know the domain; edges know both; the command
//! line wires them. `docs/architecture.md` has the picture.

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
