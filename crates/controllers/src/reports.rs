//! Emits events about findings once, and again every hour: a loop has the same finding in every round,
//! and one event is enough for the user.

use std::{collections::HashMap, time::Duration};

use k8s_openapi::api::core::v1::ObjectReference;
use tokio::time::Instant;

use crate::{
    cluster::{
        events::{Events, Weight},
        short,
    },
    volume::ClaimMark,
};

const AGAIN: Duration = Duration::from_hours(1);

/// Remembers which events were emitted.
pub(super) struct Reports {
    events: Events,
    emitted: HashMap<Report, Instant>,
}

/// What is reported once.
#[derive(PartialEq, Eq, Hash)]
struct Report {
    uid: String,
    reason: &'static str,
    /// Distinguishes several findings with the same reason.
    about: String,
}

impl Reports {
    pub(super) fn new(events: Events) -> Self {
        Self {
            events,
            emitted: HashMap::new(),
        }
    }

    /// Warns on a claim, unless it did so within the last hour.
    pub(super) async fn warn(&mut self, on: &ClaimMark, reason: &'static str, note: &str) {
        self.warn_about("", on, reason, note).await;
    }

    /// Warns on a claim about something that is not a problem which could be over: the caller does so once.
    pub(super) async fn note(&self, on: &ClaimMark, reason: &'static str, note: &str) {
        tracing::warn!(claim = %on.name, namespace = %on.namespace, reason, "{note}");
        self.events.warn(on, reason, note).await;
    }

    /// Warns on a claim like `warn`, about one of several problems that it can have at the same time.
    pub(super) async fn warn_about(&mut self, about: &str, on: &ClaimMark, reason: &'static str, note: &str) {
        // Events are cut; the log and what is remembered would not be.
        let note = &short(note);
        let report = Report {
            uid: on.uid.clone(),
            reason,
            about: about.to_owned(),
        };
        if self.is_due(&report) {
            tracing::warn!(claim = %on.name, namespace = %on.namespace, reason, "{note}");
            if self.events.warn(on, reason, note).await {
                self.record(report);
            }
        }
    }

    /// Warns on an object of any kind, unless it emitted the same event within the last hour.
    pub(super) async fn warn_object(&mut self, on: &ObjectReference, reason: &'static str, note: &str) {
        let note = &short(note);
        let report = Report {
            uid: on.uid.clone().unwrap_or_default(),
            reason,
            about: note.clone(),
        };
        if self.is_due(&report) {
            let (kind, namespace, name) = (on.kind.as_deref(), on.namespace.as_deref(), on.name.as_deref());
            tracing::warn!(kind, name, namespace, reason, "{note}");
            if self.events.warn_object(on.clone(), reason, note).await {
                self.record(report);
            }
        }
    }

    fn is_due(&self, report: &Report) -> bool {
        self.emitted
            .get(report)
            .is_none_or(|since| since.elapsed() >= AGAIN)
    }

    /// Records an event. Expired records are removed here and not in `is_due`, where it would take time
    /// with every call.
    fn record(&mut self, report: Report) {
        self.emitted.retain(|_, since| since.elapsed() < AGAIN);
        self.emitted.insert(report, Instant::now());
    }

    /// Forgets the reports about an object that is healthy again.
    pub(super) fn forget(&mut self, on: &ObjectReference) {
        self.emitted
            .retain(|emitted, _| Some(&emitted.uid) != on.uid.as_ref());
    }

    /// Whether anything was reported about an object.
    pub(super) fn has_report(&self, uid: &str) -> bool {
        self.emitted.keys().any(|emitted| emitted.uid == uid)
    }

    /// Emits an event that an object is healthy again, and forgets the reports about it.
    pub(super) async fn recovered(&mut self, on: &ClaimMark, reason: &'static str, note: &str) {
        self.emitted.retain(|emitted, _| emitted.uid != on.uid);
        tracing::info!(claim = %on.name, namespace = %on.namespace, reason, "{note}");
        self.events
            .publish_on_claim(on, Weight::Normal, reason, note)
            .await;
    }
}
