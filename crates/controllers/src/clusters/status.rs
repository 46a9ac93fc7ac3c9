//! What the status of a `RemoteCluster` says, and whether it may go: not while
//! something of ours is there.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Value, json};

use super::{
    FINALIZER,
    report::{ClusterReport, State, some_of},
};
use crate::{
    api::remote_cluster::{REACHABLE, READY, RemoteCluster, RemoteClusterStatus},
    cluster::short,
};

/// What of ours is in a cluster.
#[derive(Debug)]
pub(super) struct Holdings {
    /// How many volumes live there.
    pub(super) volumes: usize,
    /// The snapshots whose twins are there; `None` if that is not known.
    pub(super) snapshots: Option<Vec<String>>,
    /// The claims of the volumes, where they are to be named.
    pub(super) claims: Vec<String>,
    /// Where neither are: claims for which there are twins that nobody was given (yet), or
    /// why that is not known.
    pub(super) unfinished: Result<Vec<String>, String>,
    /// Whether somebody else declares the cluster too.
    pub(super) disputed: bool,
}

impl Holdings {
    /// Whether its `RemoteCluster` is to be held; what is not known changes
    /// nothing. Deleting a disputed one is the way out of the dispute.
    pub(super) fn hold(&self, held: bool, leaving: bool) -> bool {
        if self.disputed {
            return held && !leaving;
        }
        let is_used = |names: &Vec<String>| !names.is_empty();
        if self.volumes > 0 || self.snapshots.as_ref().is_some_and(is_used) {
            return true;
        }
        match (&self.snapshots, &self.unfinished) {
            (None, _) | (_, Err(_)) => held,
            (Some(_), Ok(twins)) => is_used(twins),
        }
    }

    fn message(&self) -> String {
        match (&self.unfinished, &self.snapshots) {
            _ if self.volumes > 0 => format!(
                "it is being deleted, but volumes live there and would be out of reach: {}. Delete their claims, or move \
                 their data, and it goes",
                some_of(&self.claims)
            ),
            (_, Some(snapshots)) if !snapshots.is_empty() => format!(
                "it is being deleted, but snapshots are there and would be out of reach: {}. Delete them, and their contents \
                 if those stay, and it goes",
                some_of(snapshots)
            ),
            (_, None) => {
                "it is being deleted, but it is not known whether snapshots are there: their contents in this \
                          cluster cannot be read. It goes when none is there"
                    .to_owned()
            }
            (Ok(twins), _) => format!(
                "it is being deleted, but twins that nobody was given, or that a move has left, are there, of the claims {}. \
                 They are removed when the grace period of the driver or the move is over, and it goes",
                some_of(twins)
            ),
            (Err(why), _) => format!(
                "it is being deleted, but it is not known whether twins that nobody uses are there: {why}. It goes when \
                 they are gone; if that cluster is gone for good, take off the finalizer {FINALIZER}"
            ),
        }
    }
}

/// A condition as it should be: status, reason and message.
type Wanted<'a> = (&'static str, &'static str, &'a str);

/// The status of a cluster that is declared.
pub(super) fn declared(
    object: &RemoteCluster,
    report: &ClusterReport,
    holdings: &Holdings,
) -> RemoteClusterStatus {
    let (reachable, reason) = match report.state {
        State::Ready => ("True", "Answers"),
        State::Connecting => ("Unknown", "Connecting"),
        State::Unreachable => ("False", "Unreachable"),
        State::Refused => ("Unknown", "Refused"),
    };
    let discovered = report.fabric.is_some();
    let leaving = object.metadata.deletion_timestamp.is_some() && !discovered;
    let held = if leaving {
        holdings.message()
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
            "no node stands for it yet: no pod can get there",
        )
    } else if report.limits.is_empty() {
        ("True", "Usable", "twins can be made there")
    } else {
        let message = "twins can be made there, within the limits that the status names";
        ("True", "Usable", message)
    };
    if let (State::Connecting, Some(before), false) = (report.state, &object.status, leaving)
        && !before.conditions.is_empty()
    {
        // The leader has just begun: what was known is known until there is an answer.
        return RemoteClusterStatus {
            nodes: report.nodes.clone(),
            volumes: count(holdings.volumes),
            snapshots: count(holdings.snapshots.as_ref().map_or(0, Vec::len)),
            ..before.clone()
        };
    }
    RemoteClusterStatus {
        declared_by: discovered.then(|| report.object.clone()),
        nodes: report.nodes.clone(),
        volumes: count(holdings.volumes),
        snapshots: count(holdings.snapshots.as_ref().map_or(0, Vec::len)),
        server_version: report.server_version.clone(),
        classes: report.classes.clone(),
        limits: report.limits.clone(),
        credentials: report.credentials.clone(),
        last_error: Some(short(&report.message)).filter(|message| !message.is_empty()),
        ..with_conditions(object, ready, (reachable, reason, &report.message))
    }
}

/// The status of a discovered cluster that is declared no longer, or not yet; `unread`: as far
/// as can be read.
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
        .map(|(what, names)| format!("{what} are there: {}", some_of(names)))
        .collect();
    let message = if are_there.is_empty() {
        why
    } else {
        format!(
            "{why}. {}. They can be neither used anew nor deleted until it is declared again, under this very id",
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

/// Conditions that say what they said keep their age.
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

/// The merge patch that makes the status this one: what it does not say is taken out. What is
/// known of the virtual node is the fabric's to write.
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
