//! The warning events of a cluster, for the message of a call that failed. They are only listed for that,
//! not watched, and concurrent failures share one list.

use std::{collections::HashMap, sync::Arc};

use k8s_openapi::api::core::v1::Event;

use super::{Cluster, short};

/// The newest warning about each object of a namespace, by its uid.
pub(super) type Warnings = HashMap<String, String>;

impl Cluster {
    /// The newest warning about the object with this uid, if events may be listed there.
    pub async fn newest_warning(&self, namespace: &str, uid: &str) -> Option<String> {
        let warnings = self.warnings(namespace).await;
        warnings.get(uid).cloned()
    }

    async fn warnings(&self, namespace: &str) -> Arc<Warnings> {
        let read = || async {
            let events = self.within::<Event>(namespace);
            let mut told = events
                .pick(None, Some("type=Warning"), |event| {
                    let seen = event.last_timestamp.map(|time| time.0);
                    let noted = event.event_time.map(|time| time.0);
                    let message = short(event.message?.trim());
                    Some((seen.max(noted), event.involved_object.uid?, message))
                })
                .await
                .unwrap_or_default();
            told.sort_by_key(|(when, ..)| *when);
            told.into_iter().map(|(_, uid, message)| (uid, message)).collect()
        };
        self.0.recent.warnings.get(namespace, read).await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::cluster::testing::FakeApi;

    #[tokio::test]
    async fn the_newest_warning_about_each_object_is_listed_once_for_all() {
        let api = FakeApi::start().await;
        for (name, uid, kind, minute) in [
            ("old", "a", "Warning", 1),
            ("new", "a", "Warning", 2),
            ("fine", "a", "Normal", 3),
            ("other", "b", "Warning", 1),
        ] {
            let event = json!({
                "type": kind, "message": name, "involvedObject": {"uid": uid},
                "lastTimestamp": format!("2026-01-01T00:0{minute}:00Z"),
            });
            api.put(&format!("/api/v1/namespaces/shop/events/{name}"), event);
        }
        let cluster = api.cluster_unwatched().await;
        let (first, second) = tokio::join!(
            cluster.newest_warning("shop", "a"),
            cluster.newest_warning("shop", "b")
        );
        assert_eq!(first.as_deref(), Some("new"));
        assert_eq!(second.as_deref(), Some("other"));
        assert_eq!(cluster.newest_warning("shop", "c").await, None);
        let lists = api
            .requests()
            .iter()
            .filter(|call| call.ends_with("/events"))
            .count();
        assert_eq!(lists, 1);
    }
}
