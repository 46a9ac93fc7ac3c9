//! Events about what was found, told once and then now and again: a loop finds
//! the same thing every round, and a user reads it once.

use std::{
    collections::{HashMap, hash_map::Entry},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    cluster::events::{Events, Weight},
    volume::ClaimMark,
};

const AGAIN: Duration = Duration::from_hours(1);

/// Remembers what was told.
pub(super) struct Reports {
    events: Events,
    told: HashMap<(String, &'static str), Instant>,
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
        self.told.retain(|_, since| since.elapsed() < AGAIN);
        if let Entry::Vacant(untold) = self.told.entry((on.uid.clone(), reason)) {
            untold.insert(Instant::now());
            tracing::warn!(claim = %on.name, namespace = %on.namespace, reason, "{note}");
            self.events.warn(on, reason, note).await;
        }
    }

    /// Whether anything was told of an object.
    pub(super) fn any(&self, uid: &str) -> bool {
        self.told.keys().any(|(told, _)| told == uid)
    }

    /// Tells that an object is well again, and forgets what was told of it.
    pub(super) async fn well(&mut self, on: &ClaimMark, reason: &'static str, note: &str) {
        self.told.retain(|(told, _), _| *told != on.uid);
        tracing::info!(claim = %on.name, namespace = %on.namespace, reason, "{note}");
        self.events.tell(on, Weight::Normal, reason, note).await;
    }
}
