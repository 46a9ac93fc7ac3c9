//! What an operator sees of a running process: log lines, metrics, health. And
//! the crash points through which tests make it die at the worst moment.

#![allow(missing_docs, reason = "internal: a comment says why, not what the name says")]

pub mod crash;
pub mod health;
pub mod log;
pub mod metrics;
mod process;

pub use metrics::Metrics;
