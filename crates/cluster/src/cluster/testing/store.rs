//! The objects of a fake API server, by path: `/api/v1/persistentvolumes/x`.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
};

use serde_json::{Value, json};
use tokio::sync::watch;

/// Objects, and the history of their changes.
pub struct Store {
    inner: Mutex<Inner>,
    version: watch::Sender<u64>,
    cut: watch::Sender<u64>,
}

#[derive(Default)]
struct Inner {
    objects: BTreeMap<String, Value>,
    log: Vec<LoggedChange>,
}

/// One change of one object.
#[derive(Clone, Debug)]
pub(super) struct LoggedChange {
    pub(super) version: u64,
    pub(super) path: String,
    pub(super) kind: &'static str,
    pub(super) object: Value,
}

/// Why a change was refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Absent,
    Exists,
    Conflict(String),
    /// The patch has another uid, which is immutable.
    Another,
    /// The patch adds a finalizer to an object that is being deleted.
    LateFinalizer,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            inner: Mutex::default(),
            version: watch::Sender::new(0),
            cut: watch::Sender::new(0),
        }
    }
}

impl Store {
    pub fn get(&self, path: &str) -> Option<Value> {
        self.lock().objects.get(path).cloned()
    }

    /// Objects whose path starts with this, such as a collection's.
    pub fn below(&self, prefix: &str) -> Vec<Value> {
        let inner = self.lock();
        let found = inner.objects.iter().filter(|(path, _)| path.starts_with(prefix));
        found.map(|(_, object)| object.clone()).collect()
    }

    pub fn version(&self) -> u64 {
        *self.version.borrow()
    }

    /// Goes back to an earlier version, as after a restored backup. The objects stay.
    pub fn rewind(&self, version: u64) {
        self.lock().log.retain(|it| it.version <= version);
        self.version.send_replace(version);
    }

    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    pub(super) fn cuts(&self) -> watch::Receiver<u64> {
        self.cut.subscribe()
    }

    pub(super) fn cut_watches(&self) {
        self.cut.send_modify(|cuts| *cuts += 1);
    }

    /// Objects of a collection; one without namespace holds those of all namespaces.
    pub(super) fn collection(&self, collection: &str) -> Vec<Value> {
        let inner = self.lock();
        let found = inner.objects.iter().filter(|(path, _)| belongs(path, collection));
        found.map(|(_, object)| object.clone()).collect()
    }

    pub(super) fn since(&self, version: u64, collection: &str) -> Vec<LoggedChange> {
        let inner = self.lock();
        let news = inner.log.iter().filter(|it| it.version > version);
        news.filter(|it| belongs(&it.path, collection)).cloned().collect()
    }

    pub fn put(&self, path: &str, mut object: Value) -> Value {
        let mut inner = self.lock();
        let (namespace, name) = names(path);
        let metadata = &mut object["metadata"];
        metadata["name"] = name.into();
        if let Some(namespace) = namespace {
            metadata["namespace"] = namespace.into();
        }
        let old = inner.objects.get(path);
        if metadata["uid"].is_null() {
            let known = old.map(|old| old["metadata"]["uid"].clone());
            metadata["uid"] = known.unwrap_or_else(|| uuid::Uuid::new_v4().to_string().into());
        }
        if metadata["creationTimestamp"].is_null() {
            metadata["creationTimestamp"] = jiff::Timestamp::now().strftime("%FT%TZ").to_string().into();
        }
        let kind = if old.is_some() { "MODIFIED" } else { "ADDED" };
        self.record(&mut inner, path, kind, object)
    }

    pub fn remove(&self, path: &str) {
        let mut inner = self.lock();
        if let Some(object) = inner.objects.get(path).cloned() {
            self.record(&mut inner, path, "DELETED", object);
        }
    }

    pub(super) fn create(&self, path: &str, object: Value) -> Result<Value, Refused> {
        if self.get(path).is_some() {
            return Err(Refused::Exists);
        }
        Ok(self.put(path, object))
    }

    pub(super) fn merge(&self, path: &str, change: &Value, lists: Lists) -> Result<Value, Refused> {
        let mut object = self.get(path).ok_or(Refused::Absent)?;
        let expected = &change["metadata"]["resourceVersion"];
        if !expected.is_null() && *expected != object["metadata"]["resourceVersion"] {
            return Err(Refused::Conflict("the object has been modified".into()));
        }
        let uid = &change["metadata"]["uid"];
        if !uid.is_null() && *uid != object["metadata"]["uid"] {
            return Err(Refused::Another);
        }
        let before = object["metadata"].clone();
        merge(&mut object, change, lists);
        let mut finalizers = object["metadata"]["finalizers"].as_array().into_iter().flatten();
        let known = |one: &Value| {
            before["finalizers"]
                .as_array()
                .is_some_and(|known| known.contains(one))
        };
        if !before["deletionTimestamp"].is_null() && !finalizers.all(known) {
            return Err(Refused::LateFinalizer);
        }
        let kept = object["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|kept| !kept.is_empty());
        if !object["metadata"]["deletionTimestamp"].is_null() && !kept {
            self.remove(path);
            return Ok(object);
        }
        Ok(self.put(path, object))
    }

    pub(super) fn delete(&self, path: &str, preconditions: &Value) -> Result<Value, Refused> {
        let mut object = self.get(path).ok_or(Refused::Absent)?;
        for key in ["uid", "resourceVersion"] {
            let expected = &preconditions[key];
            if !expected.is_null() && *expected != object["metadata"][key] {
                return Err(Refused::Conflict(format!("precondition failed: {key}")));
            }
        }
        let held = object["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|held| !held.is_empty());
        if held {
            let now = jiff::Timestamp::now().strftime("%FT%TZ").to_string();
            object["metadata"]["deletionTimestamp"] = now.into();
            return Ok(self.put(path, object));
        }
        self.remove(path);
        Ok(object)
    }

    /// An evicted pod is being deleted until its kubelet has stopped it.
    pub(super) fn evict(&self, path: &str, dry: bool) -> Result<Value, Refused> {
        let mut pod = self.get(path).ok_or(Refused::Absent)?;
        if !dry {
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            self.put(path, pod);
        }
        Ok(json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
    }

    fn record(&self, inner: &mut Inner, path: &str, kind: &'static str, mut object: Value) -> Value {
        let version = self.version() + 1;
        object["metadata"]["resourceVersion"] = version.to_string().into();
        if kind == "DELETED" {
            inner.objects.remove(path);
        } else {
            inner.objects.insert(path.to_owned(), object.clone());
        }
        let change = LoggedChange {
            version,
            path: path.to_owned(),
            kind,
            object: object.clone(),
        };
        inner.log.push(change);
        self.version.send_replace(version);
        object
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }
}

/// How a patch handles lists.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lists {
    /// It replaces them, as RFC 7386 has it.
    Whole,
    /// It merges their items by `type`, as a strategic merge patch does with conditions.
    ByType,
    /// It replaces them, and creates the object if it does not exist.
    Applied,
}

fn merge(object: &mut Value, patch: &Value, lists: Lists) {
    if let (Lists::ByType, Some(there), Some(changes)) = (lists, object.as_array_mut(), patch.as_array()) {
        if changes.iter().any(|it| it["$patch"] == "replace") {
            *there = changes
                .iter()
                .filter(|it| it["$patch"].is_null())
                .cloned()
                .collect();
            return;
        }
        for change in changes {
            match there.iter_mut().find(|one| one["type"] == change["type"]) {
                Some(one) => merge(one, change, lists),
                None => there.push(change.clone()),
            }
        }
        return;
    }
    let Value::Object(changes) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (key, change) in changes {
        if change.is_null() {
            if let Some(map) = object.as_object_mut() {
                map.remove(key);
            }
        } else {
            merge(&mut object[key], change, lists);
        }
    }
}

/// Splits `/api/v1/namespaces/ns/pods/x` into namespace and name.
fn names(path: &str) -> (Option<String>, String) {
    let parts: Vec<_> = path.split('/').collect();
    let namespace = parts.iter().position(|part| *part == "namespaces");
    let namespace = namespace
        .filter(|at| at + 3 < parts.len())
        .map(|at| parts[at + 1].to_owned());
    (namespace, parts[parts.len() - 1].to_owned())
}

fn belongs(path: &str, collection: &str) -> bool {
    let Some((parent, _)) = path.rsplit_once('/') else {
        return false;
    };
    if parent == collection {
        return true;
    }
    let Some((group, plural)) = collection.rsplit_once('/') else {
        return false;
    };
    let below = parent
        .strip_prefix(group)
        .and_then(|rest| rest.strip_prefix("/namespaces/"));
    below
        .and_then(|rest| rest.split_once('/'))
        .is_some_and(|(_, kind)| kind == plural)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collection_without_namespace_contains_all_namespaces() {
        let path = "/api/v1/namespaces/a/pods/x";
        assert!(belongs(path, "/api/v1/namespaces/a/pods"));
        assert!(belongs(path, "/api/v1/pods"));
        assert!(!belongs(path, "/api/v1/namespaces/b/pods"));
        assert!(!belongs(path, "/api/v1/services"));
        assert!(belongs("/api/v1/nodes/n", "/api/v1/nodes"));
        assert_eq!(names(path), (Some("a".into()), "x".into()));
        assert_eq!(names("/api/v1/namespaces/a"), (None, "a".into()));
    }
}
