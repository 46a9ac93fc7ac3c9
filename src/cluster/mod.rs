//! Clusters: what the driver sees of them.

pub mod facts;
