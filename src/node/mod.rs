//! The life of volumes on one node: finding the real driver's socket, asking it
//! to stage and publish, mounting in-tree volumes ourselves, and remembering on
//! disk what was done.
//!
//! What CSI callers send and get is translated by [`crate::csi`]; nothing here
//! talks to the API server, except to read a Secret when that is allowed.

pub mod access;
pub mod direct;
pub mod format;
pub mod host;
pub mod inflight;
pub mod mountinfo;
pub mod mounts;
pub mod state;
