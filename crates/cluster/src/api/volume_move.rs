//! `VolumeMove`: a request to move the volumes of some claims, and its state. The type is the custom
//! resource definition: `kubectl explain` prints its comments, and the API server enforces its rules.
//! `request` parses the spec; the status is in `status`, and the driver's state in it in `stage`, `plan` and
//! `memory`. `placement::moving` decides the next steps, and the controller of moves runs them.

// KubeSchema copies each struct into a function to read its schema.
#![allow(unreachable_pub)]
// An attribute of the struct does not reach these copies. Each of its bools is set independently.
#![allow(clippy::struct_excessive_bools)]
// kubectl shows the comments as they are.
#![allow(clippy::doc_markdown)]

mod memory;
mod plan;
mod request;
mod stage;
mod status;

use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, json_schema};
use serde::{Deserialize, Serialize};

pub use self::{
    memory::UnreadableMove,
    plan::{PlannedClaim, PlannedTwin},
    request::{MoveRequest, MoveTarget, RequestError},
    stage::{BackReason, Cause, Destination, MoveStage, StageName, UnreadableStage},
    status::{ClaimStatus, Downtime, Overruns, Progress, RootHashes, TwinReference, VolumeMoveStatus},
};

const DNS_SUBDOMAIN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
const QUANTITY: &str = r"^[0-9]{1,18}(\.[0-9]{1,9})?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$";
/// For how long a source is kept by default.
pub const RETAIN_SOURCE: &str = "24h";

/// The claims to move, the target, and options.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "storage.liqo.io",
    version = "v1alpha1",
    kind = "VolumeMove",
    plural = "volumemoves",
    shortname = "vmove",
    namespaced,
    status = "VolumeMoveStatus",
    derive = "PartialEq",
    doc = "A move of the volumes of some claims of its namespace to another node, cluster or storage class. The claims keep their names and uids.",
    validation = Rule::new("!oldSelf.spec.cancel || self.spec.cancel").message("a move that was cancelled stays cancelled"),
    validation = Rule::new("!self.spec.recoverSource || (has(self.status) && has(self.status.committedAt))").message("the source can be recovered only after the commit: cancel the move, or do not set recoverSource"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase", description = "Its phase"),
    printcolumn(name = "Claims", type_ = "string", json_path = ".spec.claims", description = "The claims"),
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.target.nodeName", description = "The target node"),
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.target.cluster", description = "The target cluster"),
    printcolumn(name = "Left", type_ = "string", json_path = ".status.timeLeft", description = "Estimated remaining time of the current pass"),
    printcolumn(name = "Downtime", type_ = "string", json_path = ".status.downtime.actual", description = "How long the volumes were unavailable"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Route", type_ = "string", json_path = ".status.route", description = "Route of the data", priority = 1),
    printcolumn(name = "Why", type_ = "string", json_path = ".status.stage.why.reason", description = "Why it failed or is retried", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.claims == oldSelf.claims").message("the claims of a move cannot be changed: cancel it and create another one"),
    validation = Rule::new("self.target == oldSelf.target").message("the target of a move cannot be changed: cancel it and create another one"),
    validation = Rule::new("self.quiesce == oldSelf.quiesce").message("quiesce cannot be changed: cancel the move and create another one"),
    validation = Rule::new("self.warm == oldSelf.warm && self.verify == oldSelf.verify && self.dryRun == oldSelf.dryRun").message("warm, verify and dryRun cannot be changed: cancel the move and create another one"),
    validation = Rule::new("self.transport.allow == oldSelf.transport.allow").message("of transport only the bandwidth can be changed"),
    validation = Rule::new("has(self.mover) == has(oldSelf.mover) && (!has(self.mover) || self.mover == oldSelf.mover)").message("the movers cannot be changed: cancel the move and create another one")
)]
pub struct VolumeMoveSpec {
    /// The claims whose volumes are moved, by name. All claims of one pod have to be moved
    /// together: with volumes in two places the pod could not run anywhere.
    #[schemars(length(min = 1, max = 8), inner(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub claims: Vec<String>,

    /// The target of the volumes.
    pub target: Target,

    /// When the cut-over begins.
    #[serde(default)]
    pub cutover: Cutover,

    /// How the pods that use the volumes are stopped.
    #[serde(default)]
    pub quiesce: QuiesceSpec,

    /// What is copied while pods use the volumes. Auto: the volume itself, if another pod can read
    /// it at the same time; otherwise nothing before the pods have stopped. Live: the volume
    /// itself, or the move is refused. Snapshot: not implemented, refused. None: nothing before the
    /// pods have stopped.
    #[serde(default)]
    pub warm: Warm,

    /// What is verified before the volumes are used at the target. Incremental: only what the last
    /// pass has touched is read back from disk; the rest was verified before. Full: everything is
    /// read again while the volumes are unavailable.
    #[serde(default)]
    pub verify: Verify,

    /// Route of the data.
    #[serde(default)]
    pub transport: Transport,

    /// Accepted losses. The move is refused if the volumes have snapshots and Snapshots is not accepted.
    /// If it detects other losses, or snapshots later, it waits until they are added here, or until what
    /// would be lost is removed. It does not detect extended attributes trusted.*, which are lost:
    /// do not move volumes with directories of overlayfs (as container engines have them) or gluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub accept_loss: Vec<Loss>,

    /// The movers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mover: Option<Mover>,

    /// How long the source is kept after the move.
    #[serde(default = "one_day")]
    #[schemars(schema_with = "super::duration")]
    pub retain_source: String,

    /// Pauses the move; ignored once the volumes are gated.
    #[serde(default)]
    pub paused: bool,

    /// Cancels the move; impossible after the commit. It cannot be set back to false.
    #[serde(default)]
    pub cancel: bool,

    /// If true, the driver recovers the source as it was at the commit, because the target is lost: its
    /// twin does not exist, its RemoteCluster was deleted, or its cluster is unreachable and its virtual
    /// node has the taint node.kubernetes.io/out-of-service. What was written at the target since the
    /// commit (status.committedAt) is lost. While the target is not lost, nothing is changed.
    #[serde(default)]
    pub recover_source: bool,

    /// If true, only the preflight checks run.
    #[serde(default)]
    pub dry_run: bool,
}

/// The target: a node, which may be a virtual one, or any node of a cluster.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.nodeName) != has(self.cluster)").message("name one target: nodeName or cluster"))]
pub struct Target {
    /// The node on which the volumes will be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub node_name: Option<String>,

    /// The id of the target cluster, as `kubectl get remoteclusters` lists it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub cluster: Option<String>,

    /// The real storage class there: that of a new claim, or one in the driver's allow-list. By
    /// default it is chosen as for a new claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub storage_class_name: Option<String>,

    /// The access modes of the twins there. By default those of the claims.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub access_modes: Vec<TargetAccessMode>,
}

/// An access mode.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum TargetAccessMode {
    ReadWriteOnce,
    ReadOnlyMany,
    ReadWriteMany,
    ReadWriteOncePod,
}

/// When the cut-over begins.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cutover {
    /// Auto: as soon as little is left to copy. Manual: when it is requested.
    #[serde(default)]
    pub mode: CutoverMode,

    /// Whether to begin the cut-over now, whatever the mode is.
    #[serde(default)]
    pub requested: bool,

    /// For how long the volumes may be unavailable. After that the move rolls back: pods get their
    /// volumes where they were, and copying continues.
    #[serde(default = "ten_minutes")]
    #[schemars(schema_with = "super::duration")]
    #[x_kube(validation = Rule::new("duration(self) > duration('0s')").message("maxDowntime has to be longer than 0s"))]
    pub max_downtime: String,

    /// Auto begins the cut-over after this many passes, however much is left.
    #[serde(default = "five")]
    #[schemars(range(min = 1, max = 100))]
    pub max_passes: i32,
}

/// What starts the cut-over.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum CutoverMode {
    #[default]
    Auto,
    Manual,
}

/// How the pods that use the volumes are stopped.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuiesceSpec {
    /// Wait: you stop the pods, and the driver waits for that. Evict: they are evicted; the pods
    /// that their controllers create instead start at the target.
    #[serde(default)]
    pub mode: QuiesceMode,

    /// How long the pods may take to stop. After that the move rolls back: pods get their volumes
    /// where they were, and copying continues.
    #[serde(default = "a_quarter_of_an_hour")]
    #[schemars(schema_with = "super::duration")]
    #[x_kube(validation = Rule::new("duration(self) > duration('0s')").message("deadline has to be longer than 0s"))]
    pub deadline: String,
}

/// Who stops the pods.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum QuiesceMode {
    #[default]
    Wait,
    Evict,
}

/// What is copied while volumes are in use.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Warm {
    #[default]
    Auto,
    Live,
    Snapshot,
    None,
}

/// What is verified.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Verify {
    #[default]
    Incremental,
    Full,
}

/// Route of the data.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transport {
    /// The allowed routes. Direct: from pod to pod, which is tried first. ApiServer: by
    /// port-forwards through the API servers of both clusters, if pods do not reach each other.
    #[serde(default = "all_routes")]
    #[schemars(length(min = 1, max = 2))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub allow: Vec<Route>,

    /// Maximum number of bytes per second, such as 64Mi. By default there is no limit, except the
    /// driver's limit for data through API servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity")]
    pub bandwidth: Option<Quantity>,
}

/// A route of the data.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Route {
    Direct,
    ApiServer,
}

/// Printed for every move, because the driver cannot detect it.
pub const UNSEEN: &str = "extended attributes trusted.* are neither detected nor copied: do not move volumes with \
                          directories of overlayfs (as container engines have them) or gluster";

/// The finding of the preflight about a twin that the `VolumeMove` with this uid keeps. `liqo-csi move undo` looks for it.
#[must_use]
pub fn kept_source(by: &str) -> String {
    format!(
        "it is the source of the VolumeMove with the uid {by}, and is kept until spec.retainSource of that one ends. To delete it \
         now, set that to 0s, or move back with liqo-csi move undo --delete-kept-copy"
    )
}

/// What a move may lose. ExtendedAttributes: security.*, except
/// security.capability, which is copied. Extended attributes trusted.* are always lost: a
/// move does not see them. InodeFlags: flags of files and directories, as those of chattr, also
/// those of directories with a project quota. Snapshots: those of the volume stay with its source,
/// and are deleted with it. LiveWrites: what pods of a remote cluster write to a source there during
/// the last pass, if the driver has no rights on PersistentVolumes and nodes there and detects only
/// pods that exist while it lists them. Unless it is accepted, such a move waits before its
/// cut-over.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Loss {
    ExtendedAttributes,
    InodeFlags,
    Snapshots,
    LiveWrites,
}

/// The movers.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mover {
    /// Their requests and limits, instead of the driver's defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<MoverResources>,

    /// The user that they run as, in namespaces that admit no other. Every file of the volumes has
    /// to belong to this user, and container runtimes have to give it access to devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4_294_967_294_i64))]
    pub run_as_user: Option<i64>,
}

/// Requests and limits of a pod.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoverResources {
    /// The guaranteed amounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<Amounts>,

    /// The maximum amounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Amounts>,
}

/// Amounts of resources.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amounts {
    /// Processor time, such as 500m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity")]
    pub cpu: Option<Quantity>,

    /// Memory, such as 256Mi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity")]
    pub memory: Option<Quantity>,
}

/// An amount, as text also where it was written as a number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "NumberOrText", into = "String")]
pub struct Quantity(pub String);

#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(i64),
    Text(String),
}

impl From<NumberOrText> for Quantity {
    fn from(written: NumberOrText) -> Self {
        Self(match written {
            NumberOrText::Number(number) => number.to_string(),
            NumberOrText::Text(text) => text,
        })
    }
}

impl From<Quantity> for String {
    fn from(quantity: Quantity) -> Self {
        quantity.0
    }
}

impl Default for Cutover {
    fn default() -> Self {
        Self {
            mode: CutoverMode::default(),
            requested: false,
            max_downtime: ten_minutes(),
            max_passes: five(),
        }
    }
}

impl Default for QuiesceSpec {
    fn default() -> Self {
        Self {
            mode: QuiesceMode::default(),
            deadline: a_quarter_of_an_hour(),
        }
    }
}

impl Default for Transport {
    fn default() -> Self {
        Self {
            allow: all_routes(),
            bandwidth: None,
        }
    }
}

fn one_day() -> String {
    RETAIN_SOURCE.to_owned()
}

fn ten_minutes() -> String {
    "10m".to_owned()
}

fn a_quarter_of_an_hour() -> String {
    "15m".to_owned()
}

fn five() -> i32 {
    5
}

fn all_routes() -> Vec<Route> {
    vec![Route::Direct, Route::ApiServer]
}

/// As Kubernetes accepts quantities: whole numbers without quotes, too.
fn quantity(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "anyOf": [{ "type": "integer" }, { "type": "string" }],
        "pattern": QUANTITY,
        "maxLength": 32,
        "nullable": true,
    })
}

#[cfg(test)]
mod tests;
