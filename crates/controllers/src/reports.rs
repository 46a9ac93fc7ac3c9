//! Events about what was found, told once and then now and again: a loop finds
//! the same thing every round, and a user reads it once.

use std::{collections::HashMap, time::Duration};

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

    /// Warns on a claim, unless that was done within the last hour.
    pub(super) async fn warn(&mut self, on: &ClaimMark, reason: &'static str, note: &str) {
        self.warn_about("", on, reason, note).await;
    }

    /// Warns on a claim as `warn` does, of one of several things that can be wrong with
    /// it at a time.
    pub(super) async fn warn_about(&mut self, about: &str, on: &ClaimMark, reason: &'static str, note: &str) {
        let report = Report {
            uid: on.uid.clone(),
            reason,
            about: about.to_owned(),
        };
        if self.is_due(&report) {
            tracing::warn!(claim = %on.name, namespace = %on.namespace, reason, "{note}");
            if self.events.warn(on, reason, note).await {
                self.note(report);
            }
        }
    }

    /// Warns on an object of any kind, unless it was told the same within the last hour.
    pub(super) async fn warn_object(&mut self, on: &ObjectReference, reason: &'static str, note: &str) {
        let report = Report {
            uid: on.uid.clone().unwrap_or_default(),
            reason,
            about: note.to_owned(),
        };
        if self.is_due(&report) {
            let (kind, namespace, name) = (on.kind.as_deref(), on.namespace.as_deref(), on.name.as_deref());
            tracing::warn!(kind, name, namespace, reason, "{note}");
            if self.events.warn_object(on.clone(), reason, note).await {
                self.note(report);
            }
        }
    }

    fn is_due(&self, report: &Report) -> bool {
        self.told.get(report).is_none_or(|since| since.elapsed() >= AGAIN)
    }

    /// It was told. What is to be told again anyway is forgotten now and not at each question, which would
    /// take as long as there are reports.
    fn note(&mut self, report: Report) {
        self.told.retain(|_, since| since.elapsed() < AGAIN);
        self.told.insert(report, Instant::now());
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
