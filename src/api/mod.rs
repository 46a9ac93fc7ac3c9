//! The kinds of objects that this driver defines, as the API server knows them.

pub mod remote_cluster;
