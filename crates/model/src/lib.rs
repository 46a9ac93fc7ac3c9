//! The model: what volumes, places and offloaded namespaces are, and every decision about them.
//!
//! Pure: facts in, a decision out. It knows neither kube nor tonic, waits for nothing and reads no
//! clock, so that all of it can be tested without an API server.

#![allow(missing_docs, reason = "internal: a comment says why, not what the name says")]

pub mod access;
pub mod offload;
pub mod placement;
pub mod topology;
pub mod volume;
