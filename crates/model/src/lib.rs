//! The model: volumes, placement, topology, offloaded namespaces, and every decision about them.
//!
//! Pure: facts in, a decision out. It uses neither kube nor tonic, never waits and reads no clock, so that it
//! can be tested without an API server.

#![allow(missing_docs, reason = "internal: a comment says why, not what the name says")]

pub mod access;
pub mod offload;
pub mod placement;
pub mod topology;
pub mod volume;
