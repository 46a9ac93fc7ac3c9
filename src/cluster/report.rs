//! What the controller tells people about remote clusters, in the form in which
//! one process writes it and another reads it: JSON in a `ConfigMap`.

use serde::{Deserialize, Serialize};

/// Name of the `ConfigMap`, in the namespace of the driver.
pub const CONFIG_MAP: &str = "liqo-csi-clusters";
/// Key of the report in it.
pub const REPORT: &str = "report.json";

/// The report of one controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Changes when a field changes its meaning.
    pub version: u32,
    /// When it was written; it is written when something changes.
    pub written: String,
    /// By which pod.
    pub by: String,
    /// The clusters.
    pub clusters: Vec<ClusterReport>,
    /// API groups of fabrics that are installed and whose clusters cannot be read.
    #[serde(default)]
    pub unread: Vec<String>,
}

/// How it is with one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterReport {
    /// Its id.
    pub id: String,
    /// Who declared it; nobody, if it is empty.
    pub fabric: String,
    /// The object that did.
    pub object: String,
    /// Its state.
    pub state: State,
    /// Why, when it is not ready.
    pub message: String,
    /// Version of its API server.
    pub server_version: Option<String>,
    /// Its binding policy.
    pub policy: String,
    /// The nodes that stand for it.
    pub nodes: Vec<String>,
    /// How many volumes have their twin there.
    pub volumes: usize,
    /// The storage classes seen there.
    pub classes: Vec<String>,
    /// What we may not do there, and what that costs.
    pub limits: Vec<String>,
}

/// How it is with the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// Twins can be made there.
    Ready,
    /// It was not reached yet.
    Connecting,
    /// It does not answer.
    Unreachable,
    /// Its declaration or credentials cannot be used.
    Refused,
    /// Volumes are there, and nobody declares it (any more).
    Undeclared,
}
