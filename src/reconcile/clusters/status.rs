//! What the status of a `RemoteCluster` says, and whether it may go: not while
//! something of ours is there.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Value, json};

use super::{FINALIZER, some_of};
use crate::cluster::{
    remote_cluster::{REACHABLE, READY, RemoteCluster},
    report::{ClusterReport, State},
};

/// What of ours is in a cluster.
#[derive(Debug)]
pub(super) struct Holdings {
    /// Claims whose volumes live there.
    pub(super) volumes: Vec<String>,
    /// Claims for which there are twins that nobody was given (yet), or why that
    /// cannot be told.
    pub(super) unfinished: Result<Vec<String>, String>,
    /// Whether somebody else declares the cluster too.
    pub(super) disputed: bool,
}

impl Holdings {
    /// Whether its `RemoteCluster` is to be held; what cannot be told changes
    /// nothing. Deleting a disputed one is the way out of the dispute.
    pub(super) fn hold(&self, held: bool, leaving: bool) -> bool {
        if self.disputed {
            return held && !leaving;
        }
        let unfinished = self.unfinished.as_ref();
        !self.volumes.is_empty() || unfinished.map_or(held, |twins| !twins.is_empty())
    }

    fn message(&self) -> String {
        match &self.unfinished {
            _ if !self.volumes.is_empty() => format!(
                "it is being deleted, but volumes live there and would be out of reach: {}. Delete their claims, or move \
                 their data, and it goes",
                some_of(&self.volumes)
            ),
            Ok(twins) => format!(
                "it is being deleted, but twins that nobody was given are there, of the claims {}. They are removed after \
                 the grace period of the driver, and it goes",
                some_of(twins)
            ),
            Err(why) => format!(
                "it is being deleted, but whether twins that nobody was given are there cannot be told: {why}. It goes when \
                 they are gone; if that cluster is gone for good, take off the finalizer {FINALIZER}"
            ),
        }
    }
}

/// The status as it should be; conditions that say what they said keep their age.
pub(super) fn status(object: &RemoteCluster, report: &ClusterReport, holdings: &Holdings) -> Value {
    let before = object.status.as_ref().map(|status| status.conditions.as_slice());
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        let known = before.unwrap_or_default().iter().find(|one| one.type_ == kind);
        let since = known.filter(|one| one.status == status);
        Condition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            last_transition_time: since.map_or_else(
                || Time(jiff::Timestamp::now()),
                |one| one.last_transition_time.clone(),
            ),
            observed_generation: object.metadata.generation,
        }
    };
    let (reachable, reason) = match report.state {
        State::Ready => ("True", "Answers"),
        State::Connecting => ("Unknown", "Connecting"),
        State::Unreachable => ("False", "Unreachable"),
        State::Refused | State::Undeclared => ("Unknown", "Refused"),
    };
    let leaving = object.metadata.deletion_timestamp.is_some();
    let ready = if leaving {
        condition(READY, "False", "HoldsVolumes", &holdings.message())
    } else if report.state == State::Ready {
        let message = if report.nodes.is_empty() {
            "no node stands for it yet: no pod can get there"
        } else if report.limits.is_empty() {
            "twins can be made there"
        } else {
            "twins can be made there, within the limits that the status names"
        };
        condition(READY, "True", "Usable", message)
    } else {
        condition(READY, "False", reason, &report.message)
    };
    let mut status = json!({
        "observedGeneration": object.metadata.generation,
        "conditions": [ready, condition(REACHABLE, reachable, reason, &report.message)],
    });
    let mut set = |key: &str, value: Value| {
        if let Some(status) = status.as_object_mut() {
            status.insert(key.to_owned(), value);
        }
    };
    if let Some(version) = &report.server_version {
        set("serverVersion", json!(version));
    }
    if !report.classes.is_empty() {
        set("classes", json!(report.classes));
    }
    if !report.limits.is_empty() {
        set("limits", json!(report.limits));
    }
    if !report.message.is_empty() {
        set("lastError", json!(report.message));
    }
    status
}

/// The status with what it no longer says taken out of the old one.
pub(super) fn whole(mut status: Value) -> Value {
    for key in ["serverVersion", "classes", "limits", "lastError"] {
        if status[key].is_null() {
            status[key] = Value::Null;
        }
    }
    status
}
