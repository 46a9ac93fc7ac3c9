//! Events on the user's claim: what went wrong, in the words of its cause.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};

use crate::volume::{ClaimMark, DRIVER_NAME};

/// An event is a courtesy: nobody waits long for it.
const PATIENCE: Duration = Duration::from_secs(2);
/// What the API accepts.
const LONGEST_NOTE: usize = 1024;

/// What an event tells: something expected, or something to look at.
pub use kube::runtime::events::EventType as Weight;

/// Writes events. Cheap to clone.
#[derive(Clone)]
pub struct Events(Recorder);

impl Events {
    /// A writer of events in the cluster of this client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        let reporter = Reporter {
            controller: DRIVER_NAME.to_owned(),
            instance: std::env::var("POD_NAME").ok(),
        };
        Self(Recorder::new(client, reporter))
    }

    /// Warns on a claim. Never fails: what cannot be written is logged.
    pub async fn warn(&self, claim: &ClaimMark, reason: &str, note: &str) {
        self.tell(claim, EventType::Warning, reason, note).await;
    }

    /// Tells something on a claim. Never fails: what cannot be written is logged.
    pub async fn tell(&self, claim: &ClaimMark, weight: Weight, reason: &str, note: &str) {
        let event = Event {
            type_: weight,
            reason: reason.to_owned(),
            note: Some(shortened(note)),
            action: "Provision".to_owned(),
            secondary: None,
        };
        let on = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("PersistentVolumeClaim".to_owned()),
            namespace: Some(claim.namespace.clone()),
            name: Some(claim.name.clone()),
            uid: Some(claim.uid.clone()),
            ..ObjectReference::default()
        };
        let written = tokio::time::timeout(PATIENCE, self.0.publish(&event, &on)).await;
        if !matches!(written, Ok(Ok(()))) {
            tracing::warn!(claim = %claim.name, namespace = %claim.namespace, reason, note, "an event could not be written");
        }
    }
}

fn shortened(note: &str) -> String {
    let end = note.floor_char_boundary(LONGEST_NOTE);
    note[..end].to_owned()
}
