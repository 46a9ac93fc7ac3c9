//! `VolumeMove`: the wish that the volumes of some claims be moved, and how far that is. The type
//! is the custom resource definition: its comments are what `kubectl explain` says, its rules are
//! what the API server enforces. What a spec says is parsed in `request`; the status is in
//! `status`, and what the driver reads of it in `stage`, `plan` and `memory`. What is done next is decided
//! in `placement::moving`, and done by `reconcile::moves`.

// KubeSchema copies each struct into a function to read its schema.
#![allow(unreachable_pub)]
// And this does not reach the copies where it stands on the struct: each of its bools is set by itself.
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
/// What Go's ParseDuration takes of it and people write: hours, minutes and seconds, in this order.
const DURATION: &str = "^([0-9]{1,5}h)?([0-9]{1,5}m)?([0-9]{1,5}s)?$";
const QUANTITY: &str = r"^[0-9]{1,18}(\.[0-9]{1,9})?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$";

/// What is to be moved, where to, and how.
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
    doc = "A move of the volumes of some claims of its namespace to another node, cluster or storage class. The claims stay as they are, with their names and uids.",
    validation = Rule::new("!oldSelf.spec.cancel || self.spec.cancel").message("a move that was cancelled stays cancelled"),
    validation = Rule::new("!self.spec.recoverSource || (has(self.status) && has(self.status.committedAt))").message("the source can be given back only after the commit: cancel the move, or do not set recoverSource"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase", description = "How far it is"),
    printcolumn(name = "Claims", type_ = "string", json_path = ".spec.claims", description = "What is moved"),
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.target.nodeName", description = "The node that it is moved to"),
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.target.cluster", description = "The cluster that it is moved to"),
    printcolumn(name = "Left", type_ = "string", json_path = ".status.timeLeft", description = "How long the copying will take"),
    printcolumn(name = "Downtime", type_ = "string", json_path = ".status.downtime.actual", description = "For how long nobody could use the volumes"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Route", type_ = "string", json_path = ".status.route", description = "How the data travels", priority = 1),
    printcolumn(name = "Why", type_ = "string", json_path = ".status.stage.why.reason", description = "Why it was given up, or is tried again", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.claims == oldSelf.claims").message("the claims of a move cannot be changed: cancel it and make another one"),
    validation = Rule::new("self.target == oldSelf.target").message("the target of a move cannot be changed: cancel it and make another one"),
    validation = Rule::new("self.quiesce == oldSelf.quiesce").message("how the users go cannot be changed: cancel the move and make another one"),
    validation = Rule::new("self.warm == oldSelf.warm && self.verify == oldSelf.verify && self.dryRun == oldSelf.dryRun").message("warm, verify and dryRun cannot be changed: cancel the move and make another one"),
    validation = Rule::new("self.transport.allow == oldSelf.transport.allow").message("of transport only the bandwidth can be changed"),
    validation = Rule::new("has(self.mover) == has(oldSelf.mover) && (!has(self.mover) || self.mover == oldSelf.mover)").message("the movers cannot be changed: cancel the move and make another one")
)]
pub struct VolumeMoveSpec {
    /// The claims whose volumes are moved, by name. What one pod mounts is moved together:
    /// with its volumes in two places it would fit nowhere.
    #[schemars(length(min = 1, max = 8), inner(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub claims: Vec<String>,

    /// Where the volumes are to be.
    pub target: Target,

    /// When the users are sent away.
    #[serde(default)]
    pub cutover: Cutover,

    /// How the users of the volumes go.
    #[serde(default)]
    pub quiesce: QuiesceSpec,

    /// What is copied while pods use the volumes. Auto: the volume itself, where another pod can read
    /// it beside them; otherwise nothing before the pods have stopped. Live: the volume itself, or the
    /// move is refused. Snapshot: not implemented, refused. None: nothing before the pods have stopped.
    #[serde(default)]
    pub warm: Warm,

    /// What is compared before the volumes are used at the target. Incremental: what the last
    /// pass has touched is read back from the disk; the rest was, when it was written. Full:
    /// everything is read again, while nobody can use the volumes.
    #[serde(default)]
    pub verify: Verify,

    /// How the data travels.
    #[serde(default)]
    pub transport: Transport,

    /// What may be lost. Nothing that the move sees is lost without being named here. It does not see
    /// attributes of the namespace trusted, which are lost: do not move volumes with directories of
    /// overlayfs (as container engines have them) or gluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub accept_loss: Vec<Loss>,

    /// The pods that copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mover: Option<Mover>,

    /// For how long the source is kept after the move.
    #[serde(default = "one_day")]
    #[schemars(schema_with = "duration")]
    pub retain_source: String,

    /// Whether nothing new is begun. It counts as long as the users have their volumes.
    #[serde(default)]
    pub paused: bool,

    /// Whether the move is undone. Once it was committed it cannot be. It stays true.
    #[serde(default)]
    pub cancel: bool,

    /// Whether the source is given back, as it was at the commit, because the target is lost: its twin
    /// does not exist any more, its RemoteCluster was deleted, or its cluster does not answer and its virtual
    /// node has the taint node.kubernetes.io/out-of-service. What was written at the target since the
    /// commit (status.committedAt) is lost by that. As long as the target is not lost nothing is done.
    #[serde(default)]
    pub recover_source: bool,

    /// Whether only what speaks against the move is looked for.
    #[serde(default)]
    pub dry_run: bool,
}

/// Where volumes are to be: on a node, which may be a virtual one, or anywhere in a cluster.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.nodeName) != has(self.cluster)").message("name one target: nodeName or cluster"))]
pub struct Target {
    /// The node from which the volumes can be used then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub node_name: Option<String>,

    /// The id of the cluster in which they are then, as `kubectl get remoteclusters` lists them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub cluster: Option<String>,

    /// The real storage class there: the one of a new claim, or one that the driver's allow-list has.
    /// Without it the class is chosen as for a new claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub storage_class_name: Option<String>,

    /// The access modes of the twins there. Without them they are those of the claims.
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

/// When the users are sent away.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cutover {
    /// Auto: as soon as little is left to copy. Manual: when it is requested.
    #[serde(default)]
    pub mode: CutoverMode,

    /// Whether the users are to be sent away now, whatever the mode is.
    #[serde(default)]
    pub requested: bool,

    /// For how long nobody may be able to use the volumes. After that they are given back where
    /// they were, and the move goes on copying.
    #[serde(default = "ten_minutes")]
    #[schemars(schema_with = "duration")]
    #[x_kube(validation = Rule::new("duration(self) > duration('0s')").message("without any downtime nothing can be moved"))]
    pub max_downtime: String,

    /// After how many passes beside the users the rest counts as little, however much it is.
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

/// How the users of volumes go.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuiesceSpec {
    /// Wait: you stop the pods, and the driver waits for that. Evict: they are evicted; what
    /// their controllers make anew starts at the target.
    #[serde(default)]
    pub mode: QuiesceMode,

    /// How long it may take the pods to go. After that the volumes are given back where they
    /// were, and the move goes on copying.
    #[serde(default = "a_quarter_of_an_hour")]
    #[schemars(schema_with = "duration")]
    #[x_kube(validation = Rule::new("duration(self) > duration('0s')").message("pods take time to go"))]
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

/// From what is copied while volumes are in use.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Warm {
    #[default]
    Auto,
    Live,
    Snapshot,
    None,
}

/// What is compared.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Verify {
    #[default]
    Incremental,
    Full,
}

/// How the data travels.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transport {
    /// The routes that may be taken. Direct: from pod to pod, which is tried first. ApiServer: by
    /// port-forwards through the API servers of both clusters, where pods do not reach each other.
    #[serde(default = "all_routes")]
    #[schemars(length(min = 1, max = 2))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub allow: Vec<Route>,

    /// How many bytes are sent in a second at most, such as 64Mi. Without it there is no limit,
    /// but for the one that the driver has for data through API servers.
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

/// What a move cannot say of the volume at hand, and so says of all.
pub const UNSEEN: &str = "attributes of the namespace trusted are neither seen nor carried over: do not move volumes with \
                          directories of overlayfs (as container engines have them) or gluster";

/// What a move may lose. ExtendedAttributes: those of the namespace security, but for
/// security.capability, which is kept. Attributes of the namespace trusted are lost in any case: a move
/// does not see them. InodeFlags: the flags immutable, append-only, nodump, encrypted and verity.
/// Snapshots: those of the volume stay with its source, and go with it. LiveWrites: what pods of a
/// remote cluster write to a source there during the last pass, where the driver has no rights on
/// PersistentVolumes and nodes and sees only the pods that exist while it looks. Without it such a move
/// waits before its cut-over.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Loss {
    ExtendedAttributes,
    InodeFlags,
    Snapshots,
    LiveWrites,
}

/// The pods that copy.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mover {
    /// What they request and are limited to, where the driver's own settings do not fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<MoverResources>,

    /// The user that they run as, in namespaces that admit no other. Every file of the volumes
    /// has to belong to it, and container runtimes have to give it their devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4_294_967_294_i64))]
    pub run_as_user: Option<i64>,
}

/// Requests and limits of a pod.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoverResources {
    /// What they are certain to get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<Amounts>,

    /// What they get at most.
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
    "24h".to_owned()
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

fn duration(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "minLength": 2, "maxLength": 18, "pattern": DURATION })
}

/// As Kubernetes itself takes quantities: whole numbers without quotes, too.
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
