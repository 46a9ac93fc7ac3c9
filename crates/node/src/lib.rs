//! The life of volumes on one node: finding the real driver's socket, asking it
//! to stage and publish, mounting in-tree volumes ourselves, and remembering on
//! disk what was done. What kubelet forgets is taken off the node.
//!
//! What CSI callers send and get is translated by the gRPC services (`src/csi`); nothing here
//! talks to the API server, except to learn the cluster's id and to read a Secret
//! when that is allowed.

#![allow(missing_docs, reason = "internal: a comment says why, not what the name says")]

pub mod access;
pub mod blocking;
pub mod consumer;
pub mod direct;
pub mod driver;
pub mod error;
#[cfg(test)]
mod fake;
pub mod forgotten;
pub mod format;
pub mod home;
pub mod host;
pub mod in_flight;
#[cfg(test)]
mod life;
pub mod mountinfo;
pub mod mounts;
pub mod publication;
mod refused;
pub mod registry;
pub mod secrets;
pub mod state;
pub mod upkeep;
pub mod volumes;

use liqo_csi_model::volume;
use liqo_csi_observe as observe;
use liqo_csi_wire as wire;
