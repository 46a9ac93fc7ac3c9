//! Observability of a process: logs, metrics, health endpoints. And the crash points by which tests abort it
//! at a chosen step.

#![allow(missing_docs, reason = "internal: a comment says why, not what the name says")]

pub mod crash;
pub mod health;
pub mod log;
pub mod metrics;
mod process;

pub use metrics::Metrics;
