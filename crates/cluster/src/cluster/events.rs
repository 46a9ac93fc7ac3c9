//! Writes events on the user's claim and other objects: what failed, with the message of the cause.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::ObjectReference,
        events::v1::{Event, EventSeries},
    },
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use tokio::time::Instant;

use super::{
    plain,
    snapshots::{SNAPSHOT_GROUP, VolumeSnapshotContent},
};
use crate::{
    api::volume_move::VolumeMove,
    offload::cut,
    volume::{ClaimMark, DRIVER_NAME},
};

/// Events are informational: no operation waits long for them.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);
/// A repeated event within this time increases the count of the first one. Kubernetes keeps events for an
/// hour.
const SERIES: Duration = Duration::from_mins(6);
/// Maximum length of an object name in the API.
const LONGEST_NAME: usize = 253;
/// Maximum length of the note of an event in the API, in bytes.
const LONGEST_NOTE: usize = 1024;
/// The namespace of events on cluster-scoped objects.
const DEFAULT_NAMESPACE: &str = "default";

/// Normal or Warning.
pub use kube::runtime::events::EventType as Weight;

/// Writes events. Cheap to clone.
#[derive(Clone)]
pub struct Events {
    client: Client,
    instance: String,
    written: Arc<Mutex<HashMap<Key, Written>>>,
}

/// The identity of an event. The note of a written event cannot be changed.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    uid: String,
    reason: String,
    note: String,
    warning: bool,
}

#[derive(Clone)]
struct Written {
    name: String,
    count: i32,
    last: Instant,
}

impl Events {
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self {
            client,
            instance: std::env::var("POD_NAME").unwrap_or_else(|_| DRIVER_NAME.to_owned()),
            written: Arc::default(),
        }
    }

    /// Writes a warning on a claim. Never fails: errors are logged. Returns whether it was written.
    pub async fn warn(&self, claim: &ClaimMark, reason: &str, note: &str) -> bool {
        self.publish_on_claim(claim, Weight::Warning, reason, note).await
    }

    /// Writes an event on a claim. Never fails: errors are logged. Returns whether it was written.
    pub async fn publish_on_claim(
        &self,
        claim: &ClaimMark,
        weight: Weight,
        reason: &str,
        note: &str,
    ) -> bool {
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("PersistentVolumeClaim".to_owned()),
            namespace: Some(claim.namespace.clone()),
            name: Some(claim.name.clone()),
            uid: Some(claim.uid.clone()),
            ..ObjectReference::default()
        };
        self.write(about, weight, reason, note).await
    }

    /// Writes a warning on the content of a snapshot. Never fails: errors are logged.
    pub async fn warn_content(&self, content: &VolumeSnapshotContent, reason: &str, note: &str) {
        let about = ObjectReference {
            api_version: Some(format!("{SNAPSHOT_GROUP}/v1")),
            kind: Some("VolumeSnapshotContent".to_owned()),
            name: Some(content.name_any()),
            uid: content.uid(),
            ..ObjectReference::default()
        };
        self.write(about, Weight::Warning, reason, note).await;
    }

    /// Writes an event on a `VolumeMove`. Never fails: errors are logged.
    pub async fn publish_on_move(&self, of: &VolumeMove, weight: Weight, reason: &str, note: &str) {
        let about = ObjectReference {
            api_version: Some(VolumeMove::api_version(&()).into_owned()),
            kind: Some(VolumeMove::kind(&()).into_owned()),
            namespace: of.namespace(),
            name: Some(of.name_any()),
            uid: of.uid(),
            ..ObjectReference::default()
        };
        self.write(about, weight, reason, note).await;
    }

    /// Writes a warning on the object of this reference. Never fails: errors are logged. Returns whether it
    /// was written.
    pub async fn warn_object(&self, about: ObjectReference, reason: &str, note: &str) -> bool {
        self.write(about, Weight::Warning, reason, note).await
    }

    /// Writes an event of the type Normal on the object of this reference. Never fails: errors are logged.
    pub async fn note_object(&self, about: ObjectReference, reason: &str, note: &str) {
        self.write(about, Weight::Normal, reason, note).await;
    }

    /// Returns whether the event was written.
    async fn write(&self, about: ObjectReference, weight: Weight, reason: &str, note: &str) -> bool {
        let name = about.name.clone().unwrap_or_default();
        let namespace = about.namespace.clone().unwrap_or_default();
        let written = tokio::time::timeout(WRITE_TIMEOUT, self.publish(about, weight, reason, note)).await;
        let why = match written {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => plain(&error),
            Err(_) => "the API server does not answer in time".to_owned(),
        };
        tracing::warn!(object = %name, %namespace, reason, note, why, "cannot write an event");
        false
    }

    async fn publish(
        &self,
        about: ObjectReference,
        weight: Weight,
        reason: &str,
        note: &str,
    ) -> Result<(), kube::Error> {
        let namespace = about.namespace.clone();
        let namespace = namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
        let events: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let key = Key {
            uid: about.uid.clone().unwrap_or_default(),
            reason: reason.to_owned(),
            note: shortened(note),
            warning: weight == Weight::Warning,
        };
        let now = Timestamp::now();
        if let Some(again) = self.counted(&key) {
            let series = EventSeries {
                count: again.count,
                last_observed_time: MicroTime(now),
            };
            let patch = serde_json::json!({"series": series});
            let patched = events
                .patch(&again.name, &PatchParams::default(), &Patch::Merge(&patch))
                .await;
            match patched {
                // The event was deleted: it is written again.
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                other => return other.map(|_| ()),
            }
        }
        let name = event_name(about.name.as_deref().unwrap_or_default(), now);
        let event = Event {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(namespace),
                ..ObjectMeta::default()
            },
            action: Some("Provision".to_owned()),
            event_time: Some(MicroTime(now)),
            note: Some(key.note.clone()),
            reason: Some(reason.to_owned()),
            regarding: Some(about),
            reporting_controller: Some(DRIVER_NAME.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            type_: Some(if key.warning { "Warning" } else { "Normal" }.to_owned()),
            ..Event::default()
        };
        events.create(&PostParams::default(), &event).await?;
        let first = Written {
            name,
            count: 1,
            last: Instant::now(),
        };
        self.lock().insert(key, first);
        Ok(())
    }

    /// The earlier event, with an increased count.
    fn counted(&self, key: &Key) -> Option<Written> {
        let mut written = self.lock();
        written.retain(|_, one| one.last.elapsed() < SERIES);
        match written.entry(key.clone()) {
            Entry::Occupied(mut known) => {
                let one = known.get_mut();
                one.count += 1;
                one.last = Instant::now();
                Some(one.clone())
            }
            Entry::Vacant(_) => None,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Written>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn shortened(note: &str) -> String {
    if note.len() <= LONGEST_NOTE {
        return note.to_owned();
    }
    cut(note, LONGEST_NOTE - '…'.len_utf8())
}

/// The name of a claim, cut if it is too long, and a time: unique, as the names of Kubernetes' own events.
fn event_name(claim: &str, now: Timestamp) -> String {
    let when = format!(".{:x}", now.as_nanosecond());
    // The cut name must end with an allowed character.
    let kept = claim[..claim.floor_char_boundary(LONGEST_NAME - when.len())].trim_end_matches(['-', '.']);
    format!("{kept}{when}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::testing::FakeApi;

    fn claim(name: &str) -> ClaimMark {
        ClaimMark {
            namespace: "shop".into(),
            name: name.into(),
            uid: "7e3d".into(),
        }
    }

    #[test]
    fn event_names_are_valid_for_claim_names_of_any_length() {
        let now = Timestamp::now();
        for length in [1, 230, 236, 237, 250, 253] {
            for last in ["a", "-", "."] {
                let name = format!("{}{last}{}", "x".repeat(length - 1), "y".repeat(253 - length));
                let event = event_name(&name[..length.max(2).min(name.len())], now);
                assert!(event.len() <= LONGEST_NAME, "{event}");
                assert!(!event.contains("-.") && !event.contains(".."), "{event}");
            }
        }
        assert!(event_name("data", now).starts_with("data."));
    }

    #[tokio::test]
    async fn a_claim_with_a_long_name_gets_events() {
        let api = FakeApi::start().await;
        let events = Events::new(api.cluster_unwatched().await.client().clone());
        let long = claim(&"x".repeat(250));
        events.warn(&long, "TwinLost", "it is gone").await;
        events.warn(&long, "TwinLost", "it is gone").await;
        let written = api
            .store()
            .below("/apis/events.k8s.io/v1/namespaces/shop/events/");
        assert_eq!(written.len(), 1, "what is repeated is counted");
        let (event, about) = (&written[0], &written[0]["regarding"]);
        assert_eq!(about["name"], long.name);
        assert_eq!(event["series"]["count"], 2);
        events.warn(&long, "TwinLost", &"ä".repeat(600)).await;
        let notes = api
            .store()
            .below("/apis/events.k8s.io/v1/namespaces/shop/events/");
        assert_eq!(notes.len(), 2, "another note is another event");
        assert!(
            notes
                .iter()
                .all(|one| one["note"].as_str().unwrap().len() <= LONGEST_NOTE)
        );
        assert!(event["metadata"]["name"].as_str().unwrap().len() <= LONGEST_NAME);
    }
}
