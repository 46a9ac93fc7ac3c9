use std::{collections::BTreeMap, fmt::Debug};

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{
    ResourceExt,
    api::{DynamicObject, ObjectList, WatchEvent},
    core::PartialObjectMeta,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;

fn claim() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "data",
            "namespace": "shop",
            "uid": "1",
            "labels": {"managedFields": "a label of that name", "metadata": "another"},
            "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {"f:phase": {}}}}],
            "deletionTimestamp": "2026-01-02T03:04:05Z",
        },
        "spec": {"storageClassName": "liqo", "volumeName": "a \"quoted\" name"},
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
    })
}

/// The same object, read with and without [`Lean`].
fn both_ways<K: DeserializeOwned>(object: &Value) -> (K, K) {
    let text = object.to_string();
    let Lean(lean) = serde_json::from_str(&text).unwrap();
    (lean, serde_json::from_str(&text).unwrap())
}

fn differ_in_managed_fields_only<K>(object: &Value)
where
    K: Resource + DeserializeOwned + PartialEq + Debug,
{
    let (lean, mut whole) = both_ways::<K>(object);
    assert!(whole.meta_mut().managed_fields.take().is_some());
    assert_eq!(lean, whole);
}

#[test]
fn lean_objects_lack_only_managed_fields() {
    differ_in_managed_fields_only::<PersistentVolumeClaim>(&claim());
    differ_in_managed_fields_only::<DynamicObject>(&claim());
    let mut pod = claim();
    pod["kind"] = "Pod".into();
    pod["spec"] = json!({"containers": [{"name": "app", "env": [{"name": "managedFields", "value": "x"}]}]});
    pod["status"] = Value::Null;
    differ_in_managed_fields_only::<Pod>(&pod);
}

#[test]
fn label_keys_named_managed_fields_or_metadata_are_kept() {
    let (lean, _) = both_ways::<PersistentVolumeClaim>(&claim());
    let labels: Vec<_> = lean.labels().keys().map(String::as_str).collect();
    assert_eq!(labels, ["managedFields", "metadata"]);
}

#[test]
fn lists_and_watch_events_are_read_the_same_way() {
    let list = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaimList",
        "metadata": {"resourceVersion": "7"}, "items": [claim(), claim()]});
    let list: ObjectList<Lean<PersistentVolumeClaim>> = serde_json::from_value(list).unwrap();
    assert_eq!(list.metadata.resource_version.as_deref(), Some("7"));
    assert!(list.items.iter().all(|item| item.managed_fields().is_empty()));

    let event = format!("{{\"type\":\"MODIFIED\",\"object\":{}}}", claim());
    let event: WatchEvent<Lean<PersistentVolumeClaim>> = serde_json::from_str(&event).unwrap();
    let WatchEvent::Modified(Lean(claim)) = event else {
        panic!("{event:?}");
    };
    assert_eq!(claim.name_any(), "data");
    assert!(claim.managed_fields().is_empty());
}

#[test]
fn malformed_objects_are_still_errors() {
    for broken in [
        r#"{"metadata": "none"}"#,
        r#"{"metadata": {"managedFields": ["#,
        "[]",
        r#"{"spec": 7}"#,
    ] {
        assert!(
            serde_json::from_str::<Lean<PersistentVolumeClaim>>(broken).is_err(),
            "{broken}"
        );
    }
}

#[test]
fn maps_without_metadata_pass_unchanged() {
    let text = r#"{"a": "b"}"#;
    let Lean(read): Lean<BTreeMap<String, String>> = serde_json::from_str(text).unwrap();
    assert_eq!(read, BTreeMap::from([("a".to_owned(), "b".to_owned())]));
}

#[test]
fn metadata_requests_ask_for_metadata_only() {
    assert!(Lean::<PartialObjectMeta<Pod>>::metadata_api());
    assert!(!Lean::<Pod>::metadata_api());
}
