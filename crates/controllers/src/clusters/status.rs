//! The status of a `RemoteCluster`, and whether it needs its finalizer: as long as objects of this driver
//! exist in the cluster.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Value, json};

use super::{
    FINALIZER,
    report::{ClusterReport, State, list_some},
};
use crate::{
    api::remote_cluster::{REACHABLE, READY, RemoteCluster, RemoteClusterStatus, UNAUTHORIZED},
    cluster::short,
};

/// The objects of this driver in a cluster.
#[derive(Debug)]
pub(super) struct RemainingObjects {
    pub(super) volumes: usize,
    /// The snapshots whose twins are there; `None` if unknown.
    pub(super) snapshots: Option<Vec<String>>,
    /// The claims of the volumes, if a message has to name them.
    pub(super) claims: Vec<String>,
    /// The claims whose twins were not handed over (yet), or why they cannot be read; only read if
    /// there are no volumes and snapshots.
    pub(super) unfinished: Result<Vec<String>, String>,
    /// Whether another object declares the cluster too.
    pub(super) disputed: bool,
}

impl RemainingObjects {
    /// Whether its `RemoteCluster` needs the finalizer; unknown facts change nothing. A disputed one can
    /// be deleted, because that resolves the dispute.
    pub(super) fn needs_finalizer(&self, present: bool, leaving: bool) -> bool {
        if self.disputed {
            return present && !leaving;
        }
        let is_used = |names: &Vec<String>| !names.is_empty();
        if self.volumes > 0 || self.snapshots.as_ref().is_some_and(is_used) {
            return true;
        }
        match (&self.snapshots, &self.unfinished) {
            (None, _) | (_, Err(_)) => present,
            (Some(_), Ok(twins)) => is_used(twins),
        }
    }

    fn message(&self) -> String {
        match (&self.unfinished, &self.snapshots) {
            _ if self.volumes > 0 => format!(
                "it is being deleted, but volumes exist in the cluster and would become inaccessible: {}. It is deleted when their \
                 claims are deleted or their data is moved",
                list_some(&self.claims)
            ),
            (_, Some(snapshots)) if !snapshots.is_empty() => format!(
                "it is being deleted, but snapshots exist in the cluster and would become inaccessible: {}. It is deleted when they \
                 and their VolumeSnapshotContents are deleted",
                list_some(snapshots)
            ),
            (_, None) => {
                "it is being deleted, but it is not known whether snapshots exist in the cluster: their contents in this \
                  cluster cannot be read. It is deleted when no snapshot is left"
                    .to_owned()
            }
            (Ok(twins), _) => format!(
                "it is being deleted, but twins that were never handed over, or that a move has left, exist in the cluster, of the \
                 claims {}. They are removed after the grace period of the driver or the end of the move; then it is deleted",
                list_some(twins)
            ),
            (Err(why), _) => format!(
                "it is being deleted, but it is not known whether unused twins exist in the cluster: {why}. It is deleted when no twin \
                 is left; if that cluster does not exist any more, remove the finalizer {FINALIZER}"
            ),
        }
    }
}

/// The desired status, reason and message of a condition.
type Wanted<'a> = (&'static str, &'static str, &'a str);

/// The status of a declared cluster.
pub(super) fn declared(
    object: &RemoteCluster,
    report: &ClusterReport,
    remaining: &RemainingObjects,
) -> RemoteClusterStatus {
    let (reachable, reason) = match report.state {
        State::Ready => ("True", "Answers"),
        State::Connecting => ("Unknown", "Connecting"),
        State::Unreachable => ("False", "Unreachable"),
        State::Unauthorized => ("False", UNAUTHORIZED),
        State::Refused => ("Unknown", "Refused"),
    };
    let discovered = report.fabric.is_some();
    let leaving = object.metadata.deletion_timestamp.is_some() && !discovered;
    let held = if leaving {
        remaining.message()
    } else {
        String::new()
    };
    let ready: Wanted<'_> = if leaving {
        ("False", "HoldsVolumes", &held)
    } else if report.state != State::Ready {
        ("False", reason, &report.message)
    } else if report.nodes.is_empty() {
        (
            "True",
            "Usable",
            "no virtual node represents it yet: no pod can run there",
        )
    } else if report.limits.is_empty() {
        ("True", "Usable", "twins can be created there")
    } else {
        let message = "twins can be created there, within the limits in the status";
        ("True", "Usable", message)
    };
    if let (State::Connecting, Some(before), false) = (report.state, &object.status, leaving)
        && !before.conditions.is_empty()
    {
        // A new leader is still connecting: the previous status is kept until the cluster answers.
        return RemoteClusterStatus {
            nodes: report.nodes.clone(),
            volumes: count(remaining.volumes),
            snapshots: count(remaining.snapshots.as_ref().map_or(0, Vec::len)),
            ..before.clone()
        };
    }
    RemoteClusterStatus {
        declared_by: discovered.then(|| report.object.clone()),
        nodes: report.nodes.clone(),
        volumes: count(remaining.volumes),
        snapshots: count(remaining.snapshots.as_ref().map_or(0, Vec::len)),
        server_version: report.server_version.clone(),
        classes: report.classes.clone(),
        limits: report.limits.clone(),
        credentials: report.credentials.clone(),
        last_error: Some(short(&report.message)).filter(|message| !message.is_empty()),
        ..with_conditions(object, ready, (reachable, reason, &report.message))
    }
}

/// The status of a discovered cluster that is not declared any more, or not yet; `unread`: whose
/// declaration cannot be read.
pub(super) fn undeclared(
    object: &RemoteCluster,
    claims: &[String],
    snapshots: &[String],
    unread: bool,
) -> RemoteClusterStatus {
    let fabric = object.spec.discovered_from.as_ref();
    let fabric = fabric.map_or_else(String::new, |from| format!("{:?}", from.fabric));
    let why = if unread {
        format!("the objects by which {fabric} declares it cannot be read: see the log of the controller")
    } else {
        format!("{fabric} does not declare it")
    };
    let are_there: Vec<String> = [("Volumes", claims), ("Snapshots", snapshots)]
        .into_iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(what, names)| format!("{what} are there: {}", list_some(names)))
        .collect();
    let message = if are_there.is_empty() {
        why
    } else {
        format!(
            "{why}. {}. They cannot be used by new pods or deleted until it is declared again, with the same id",
            are_there.join(". ")
        )
    };
    let wanted: Wanted<'_> = ("False", "Undeclared", &message);
    RemoteClusterStatus {
        volumes: count(claims.len()),
        snapshots: count(snapshots.len()),
        last_error: Some(short(&message)),
        ..with_conditions(object, wanted, ("Unknown", "Undeclared", &message))
    }
}

/// Conditions whose status is unchanged keep their transition time.
fn with_conditions(object: &RemoteCluster, ready: Wanted<'_>, reachable: Wanted<'_>) -> RemoteClusterStatus {
    let before = object.status.as_ref().map(|status| status.conditions.as_slice());
    let condition = |kind: &str, (status, reason, message): Wanted<'_>| {
        let known = before.unwrap_or_default().iter().find(|one| one.type_ == kind);
        let since = known.filter(|one| one.status == status);
        Condition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: short(message),
            last_transition_time: since.map_or_else(
                || Time(jiff::Timestamp::now()),
                |one| one.last_transition_time.clone(),
            ),
            observed_generation: object.metadata.generation,
        }
    };
    RemoteClusterStatus {
        observed_generation: object.metadata.generation,
        conditions: vec![condition(READY, ready), condition(REACHABLE, reachable)],
        virtual_node: object.status.as_ref().and_then(|it| it.virtual_node.clone()),
        ..RemoteClusterStatus::default()
    }
}

fn count(objects: usize) -> i64 {
    objects.try_into().unwrap_or(i64::MAX)
}

/// The merge patch that sets this status: missing fields are removed. The status of the virtual node is
/// written by the fabric.
pub(super) fn patch(status: &RemoteClusterStatus) -> Value {
    let mut whole = json!({
        "declaredBy": null, "nodes": null, "serverVersion": null, "classes": null, "limits": null, "lastError": null,
        "credentials": null,
    });
    if let (Some(whole), Ok(Value::Object(said))) = (whole.as_object_mut(), serde_json::to_value(status)) {
        whole.extend(said);
        whole.remove("virtualNode");
    }
    json!({"status": whole})
}
