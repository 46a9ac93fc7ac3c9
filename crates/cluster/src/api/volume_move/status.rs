//! The status of a `VolumeMove`: how far it is, for people and for the next leader.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::{Schema, json_schema};
use serde::{Deserialize, Serialize};

use super::{BackReason, MoveStage, Route};
use crate::{api::conditions, volume::Epoch};

/// How far a move is.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMoveStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// How far it is: Checking, Preparing, Copying, Ready, Draining, Finishing, Committing,
    /// Retaining and then Done; or Returning and then Copying, Cancelled or Failed; or, when the target was
    /// lost after the commit, Recovering and then Recovered. Whoever waits for the end waits for one of
    /// Done, Cancelled, Failed and Recovered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,

    /// What the driver goes on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<MoveStage>,

    /// Checked, Converged, Gated, Drained, Verified, Committed, SourceReleased, Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,

    /// What is waited for, in a sentence, when that takes longer than a few seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,

    /// What speaks against it. Absent as long as that is not known; empty if it is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preflight: Option<Vec<String>>,

    /// What is lost by it, claim by claim: what the passes have found, without which the move does not go
    /// on as long as acceptLoss does not name it; and what was written at a target that was lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lossy: Vec<String>,

    /// The claims, and how far each is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub claims: Vec<ClaimStatus>,

    /// How the data travels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    // As in the stage.
    #[schemars(with = "Route")]
    pub route: Option<Route>,

    /// How long the pass that is under way will take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_left: Option<String>,

    /// For how long nobody can use the volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downtime: Option<Downtime>,

    /// How often the pods were kept away for too long. After three times they are not sent away again
    /// before the spec is changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overruns: Option<Overruns>,

    /// When Kubernetes stopped to start pods with the volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub gated_at: Option<Time>,

    /// When the volumes became those at the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub committed_at: Option<Time>,

    /// Until when a copy is kept that is not needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub retained_until: Option<Time>,
}

/// How far one claim is.
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

    /// How often its volume has moved, this move included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 1))]
    pub epoch: Option<Epoch>,

    /// Where its volume was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<TwinReference>,

    /// Where it is to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<TwinReference>,

    /// The size of its PersistentVolume, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<i64>,

    /// Why nothing of it is copied while its pods run, if that is so: they are away for the
    /// whole copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold: Option<String>,

    /// How many passes were made.
    #[serde(default)]
    pub passes: i32,

    /// The bytes of its files, or of its device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Progress>,

    /// Its files and directories, if it is no device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Progress>,

    /// How many bytes are copied in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<i64>,

    /// What both sides hold, as hashes: the same if they are equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roots: Option<RootHashes>,

    /// The node where the source was read before its pods were sent away: if it can be read there
    /// again, only what has changed is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mover_node: Option<String>,

    /// The PersistentVolumes that its volume had and is to have, as the driver makes them again.
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

/// How much of something is copied.
#[derive(KubeSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// How much there is.
    pub total: i64,

    /// How much of it is the same on both sides.
    pub done: i64,

    /// How much was sent, all passes together.
    pub sent: i64,
}

/// What both sides hold.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootHashes {
    /// The source.
    pub source: String,

    /// The target.
    pub target: String,
}

/// For how long nobody can use the volumes.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Downtime {
    /// How long copying what is left will take, as the passes so far tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<String>,

    /// Why nothing is predicted: all of a source has to be read again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,

    /// Since when nobody uses them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub since: Option<Time>,

    /// How long it took, from when Kubernetes started no pod with them any more until it did again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actual: Option<String>,
}

/// How often the pods were kept away for too long, one time after the other.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overruns {
    /// What has taken too long.
    pub reason: BackReason,

    /// How often.
    pub count: i32,

    /// The generation of the spec with which that was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
}

fn time(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time", "nullable": true })
}
