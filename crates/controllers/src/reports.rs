//! Events about what was found, told once and then now and again: a loop finds
//! the same thing every round, and a user reads it once.

use std::{
    collections::{HashMap, hash_map::Entry},
    time::Duration,
};

use k8s_openapi::api::core::v1::ObjectReference;
use tokio::time::Instant;

use crate::{
    cluster::events::{Events, Weight},
    volume::ClaimMark,
};

const AGAIN: Duration = Duration::from_hours(1);

/// Remembers what was told.
pub(super) struct Reports {
    events: Events,
    told: HashMap<Report, Instant>,
}

/// What is told once.
#[derive(PartialEq, Eq, Hash)]
struct Report {
    uid: String,
    reason: &'static str,
    /// What of several things of that reason, if there can be more than one.
    about: String,
}

impl Reports {
    pub(super) fn new(events: Events) -> Self {
        Self {
            events,
            told: HashMap::new(),
        }
    }

    /// Warns on an object, unless that was done within the last hour.
    pub(super) async fn warn(&mut self, on: &ClaimMark, reason: &'static str, note: &str) {
        self.warn_about("", on, reason, note).await;
    }

    /// Warns on an object as `warn` does, of one of several things that can be wrong with
    /// it at a time.
    pub(super) async fn warn_about(&mut self, about: &str, on: &ClaimMark, reason: &'static str, note: &str) {
        self.told.retain(|_, since| since.elapsed() < AGAIN);
        let report = Report {
            uid: on.uid.clone(),
            reason,
            about: about.to_owned(),
        };
        if let Entry::Vacant(untold) = self.told.entry(report) {
            tracing::warn!(claim = %on.name, namespace = %on.namespace, reason, "{note}");
            if self.events.warn(on, reason, note).await {
                untold.insert(Instant::now());
            }
        }
    }

    /// Warns on a user's snapshot, unless that was done within the last hour.
    pub(super) async fn warn_snapshot(&mut self, on: &ObjectReference, reason: &'static str, note: &str) {
        self.told.retain(|_, since| since.elapsed() < AGAIN);
        let report = Report {
            uid: on.uid.clone().unwrap_or_default(),
            reason,
            about: note.to_owned(),
        };
        if let Entry::Vacant(untold) = self.told.entry(report) {
            let (namespace, snapshot) = (on.namespace.as_deref(), on.name.as_deref());
            tracing::warn!(snapshot, namespace, reason, "{note}");
            if self.events.warn_snapshot(on, reason, note).await {
                untold.insert(Instant::now());
            }
        }
    }

    /// Forgets what was told of a snapshot: it is well.
    pub(super) fn forget(&mut self, on: &ObjectReference) {
        self.told.retain(|told, _| Some(&told.uid) != on.uid.as_ref());
    }

    /// Whether anything was told of an object.
    pub(super) fn any(&self, uid: &str) -> bool {
        self.told.keys().any(|told| told.uid == uid)
    }

    /// Tells that an object is well again, and forgets what was told of it.
    pub(super) async fn well(&mut self, on: &ClaimMark, reason: &'static str, note: &str) {
        self.told.retain(|told, _| told.uid != on.uid);
        tracing::info!(claim = %on.name, namespace = %on.namespace, reason, "{note}");
        self.events.tell(on, Weight::Normal, reason, note).await;
    }
}
