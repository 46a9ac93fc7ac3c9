//! The life of volumes on one node: finds the real driver's socket, calls it to stage and publish, mounts
//! in-tree volumes itself, and records on disk what was done. Volumes that kubelet forgets are unstaged.
//!
//! The gRPC services (`src/csi`) translate the calls of CSI; nothing here calls the API server, except to
//! read the cluster's id and, if that is allowed, Secrets.

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
pub mod max_volumes;
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
