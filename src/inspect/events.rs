//! Reads the events about an object: the newest relevant message, and times.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::{Resource, ResourceExt};

use super::Listing;

/// The newest warning about this object.
pub(super) fn warning<'a, K: Resource>(events: &'a Listing<Event>, object: &K) -> Option<&'a str> {
    newest(events, object, |event| event.type_.as_deref() == Some("Warning"))
}

fn newest<'a, K: Resource>(
    events: &'a Listing<Event>,
    object: &K,
    like: impl Fn(&Event) -> bool,
) -> Option<&'a str> {
    let uid = object.uid();
    events
        .iter()
        .filter(|event| event.involved_object.uid == uid && like(event))
        .max_by_key(|event| time(event))
        .and_then(|event| event.message.as_deref())
}

/// The time of the first known event with this reason about the object.
pub(super) fn first<K: Resource>(events: &Listing<Event>, object: &K, reason: &str) -> Option<Timestamp> {
    let uid = object.uid();
    events
        .iter()
        .filter(|event| event.involved_object.uid == uid && event.reason.as_deref() == Some(reason))
        .filter_map(|event| {
            let precise = event.event_time.as_ref().map(|time| time.0);
            precise.or(event.first_timestamp.as_ref().map(|time| time.0))
        })
        .min()
}

/// The last time; old and new reporters write different fields.
pub(super) fn time(event: &Event) -> Option<Timestamp> {
    let series = event
        .series
        .as_ref()
        .and_then(|series| series.last_observed_time.as_ref());
    let precise = series.or(event.event_time.as_ref()).map(|time| time.0);
    precise.max(event.last_timestamp.as_ref().map(|time| time.0))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PersistentVolumeClaim;
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn the_newest_warning_counts() {
        let claim: PersistentVolumeClaim = from_value(json!({"metadata": {"uid": "u"}})).unwrap();
        let event = |uid: &str, kind: &str, time: &str, message: &str| {
            from_value(json!({
                "metadata": {}, "involvedObject": {"uid": uid}, "type": kind,
                "lastTimestamp": time, "message": message,
            }))
            .unwrap()
        };
        let events = Listing::of(vec![
            event("u", "Warning", "2026-01-01T00:00:02Z", "second"),
            event("u", "Warning", "2026-01-01T00:00:01Z", "first"),
            event("u", "Normal", "2026-01-01T00:00:03Z", "normal"),
            event("other", "Warning", "2026-01-01T00:00:04Z", "other"),
        ]);
        assert_eq!(warning(&events, &claim), Some("second"));
        assert_eq!(warning(&Listing::default(), &claim), None);
    }
}
