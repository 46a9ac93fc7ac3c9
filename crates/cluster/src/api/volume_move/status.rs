//! The status of a `VolumeMove`: its progress, for users and for the next leader.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::{Schema, json_schema};
use serde::{Deserialize, Serialize};

use super::{BackReason, MoveStage, Route};
use crate::{api::conditions, volume::Epoch};

/// Progress of a move.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMoveStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// The phase: Checking, Preparing, Copying, Ready, Draining, Finishing, Committing, Retaining
    /// and then Done; or Returning and then Copying, Cancelled or Failed; or, if the target was lost
    /// after the commit, Recovering and then Recovered. The move has ended in the phases Done,
    /// Cancelled, Failed and Recovered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,

    /// The stage from which the driver continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<MoveStage>,

    /// Checked, Converged, Gated, Drained, Verified, Committed, SourceReleased, Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,

    /// What the move waits for, if that takes longer than a few seconds, and why the last orders to
    /// movers failed, if they did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,

    /// What blocks the move. Absent until the preflight checks are done; empty if nothing does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preflight: Option<Vec<String>>,

    /// Losses, by claim: those that the passes have detected, and what was written at a lost target.
    /// The move does not continue until acceptLoss contains the detected ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lossy: Vec<String>,

    /// The claims, and the progress of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub claims: Vec<ClaimStatus>,

    /// Route of the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    // Omitted, never null: see `back_to` in the stage.
    #[schemars(with = "Route")]
    pub route: Option<Route>,

    /// Estimated remaining time of the current pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_left: Option<String>,

    /// How long the volumes are unavailable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downtime: Option<Downtime>,

    /// How often the cut-over took too long. After three times there is no other one until the spec
    /// is changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overruns: Option<Overruns>,

    /// The time since which Kubernetes starts no pods with the volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub gated_at: Option<Time>,

    /// When the move was committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub committed_at: Option<Time>,

    /// The time until which the copy that is not used any more is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub retained_until: Option<Time>,
}

/// Progress of one claim.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimStatus {
    /// Its name.
    pub name: String,

    /// Its uid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,

    /// The volumeHandle that its PersistentVolume had before the move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_handle: Option<String>,

    /// How often its volume has moved, including this move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 1))]
    pub epoch: Option<Epoch>,

    /// The twin before the move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<TwinReference>,

    /// The twin after the move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<TwinReference>,

    /// The size of its PersistentVolume, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<i64>,

    /// Why it cannot be copied while its pods run, if so: they are stopped for the whole copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold: Option<String>,

    /// Number of passes.
    #[serde(default)]
    pub passes: i32,

    /// The bytes of its files, or of its device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Progress>,

    /// Its files and directories, if it is no device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Progress>,

    /// Bytes copied per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<i64>,

    /// Hashes over the content of both sides, which are the same if the content is equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roots: Option<RootHashes>,

    /// The node where the source was read before its pods were stopped: if it can be read there
    /// again, only changes are read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mover_node: Option<String>,

    /// The old and the new PersistentVolume of its volume, from which the driver creates them
    /// again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
}

/// The twin of a claim.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TwinReference {
    /// The id of its cluster.
    pub cluster: String,

    /// Its namespace.
    pub namespace: String,

    /// Its name.
    pub name: String,

    /// Its storage class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,

    /// The nodes of the home cluster from which its volume could be used, if not all could: at most
    /// 16, those first from which all volumes of the move could be used. Only of a source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub nodes: Vec<String>,
}

/// Progress of the copying.
#[derive(KubeSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Total amount.
    pub total: i64,

    /// Amount that is the same on both sides.
    pub done: i64,

    /// Amount that was sent in all passes together.
    pub sent: i64,
}

/// Hashes over the content of both sides.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootHashes {
    /// The source.
    pub source: String,

    /// The target.
    pub target: String,
}

/// How long the volumes are unavailable.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Downtime {
    /// Estimated time to copy the rest, based on the passes so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<String>,

    /// Why there is no prediction: all of a source has to be read again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,

    /// The time since which no pod uses them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub since: Option<Time>,

    /// The actual time during which Kubernetes started no pod with them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actual: Option<String>,
}

/// How often the cut-over took too long in succession.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overruns {
    /// Which limit was exceeded.
    pub reason: BackReason,

    /// Number of times.
    pub count: i32,

    /// The generation of the spec of these attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
}

fn time(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time", "nullable": true })
}
