//! Changes of a home pod after its remote pod was created, and how they are applied to it. What was carried
//! is recorded on the remote pod, so that only changes at home are carried: a value that the remote cluster
//! has replaced (another registry, its own defaults) stays until home changes that same value, and additions
//! there stay. Labels and annotations are corrected.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::spec;

/// Annotation of a remote pod: the mutable part of its home pod that was carried to it.
pub const CARRIED: &str = "fabric.storage.liqo.io/carried";

const CONTAINERS: [&str; 2] = ["containers", "initContainers"];
/// The resources of a container that Kubernetes can resize in place.
const RESIZABLE: [&str; 2] = ["cpu", "memory"];
/// Annotations with this prefix count only when a pod is created: API servers refuse to change them.
const APPARMOR_PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";

/// A change of a remote pod that is one request, and may be refused on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Change {
    Metadata,
    /// Containers for debugging are added.
    EphemeralContainers,
    /// CPU and memory.
    Resources,
    /// Images, deadline and tolerations. Last, because it records the outcome of the resize.
    Spec,
}

impl Change {
    /// All changes, in the order in which they are applied.
    pub const ALL: [Self; 4] = [
        Self::Metadata,
        Self::EphemeralContainers,
        Self::Resources,
        Self::Spec,
    ];

    /// The subresource to patch; `None` for the pod itself.
    #[must_use]
    pub fn subresource(self) -> Option<&'static str> {
        match self {
            Self::Metadata | Self::Spec => None,
            Self::EphemeralContainers => Some("ephemeralcontainers"),
            Self::Resources => Some("resize"),
        }
    }

    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::Metadata => "labels and annotations",
            Self::EphemeralContainers => "ephemeral containers",
            Self::Resources => "resources",
            Self::Spec => "images, deadline or tolerations",
        }
    }

    /// The merge patches, without a precondition, each of which makes part of the remote pod follow its home
    /// pod; none if it does already. After one patch was accepted, compute the others again.
    #[must_use]
    pub fn patches(self, home: &Value, remote: &Value) -> Vec<Patch> {
        let whole = |patch: Option<Value>| {
            let about = String::new();
            patch.map(|patch| Patch { about, patch }).into_iter().collect()
        };
        match self {
            Self::Metadata => whole(metadata(home, remote)),
            // A refused one can never be removed, and must not block the others.
            Self::EphemeralContainers => ephemeral_containers(home, remote),
            Self::Resources => whole(resources(home, remote)),
            Self::Spec => whole(changed_spec(home, remote)),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Patch {
    /// The container that it adds, if it is one of several additions; otherwise empty.
    pub about: String,
    pub patch: Value,
}

/// What a remote pod has from its home pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Record {
    labels: Vec<String>,
    annotations: Vec<String>,
    /// The mutable part of the home pod's spec, as it was carried.
    spec: Value,
}

/// The record for a remote pod that is created from this home pod.
pub(super) fn record(home: &Value) -> String {
    let keys = |pairs: BTreeMap<String, String>| pairs.into_keys().collect();
    let record = Record {
        labels: keys(spec::carried_labels(home)),
        annotations: keys(spec::carried_annotations(home)),
        spec: changeable(home),
    };
    json!(record).to_string()
}

/// The record of a remote pod. If another client removed it, the current home pod counts as
/// carried, so that only later changes at home are applied.
fn record_of(home: &Value, remote: &Value) -> Record {
    let written = remote["metadata"]["annotations"][CARRIED].as_str();
    let read = written.and_then(|text| serde_json::from_str(text).ok());
    read.unwrap_or_else(|| Record {
        spec: changeable(home),
        ..Record::default()
    })
}

/// The mutable part of a pod's spec, as far as it is carried.
fn changeable(home: &Value) -> Value {
    let spec = &home["spec"];
    let mut kept = Map::new();
    for field in CONTAINERS {
        let all = list(&spec[field]).map(|one| {
            let name = one["name"].as_str().unwrap_or_default().to_owned();
            (
                name,
                json!({"image": one["image"], "resources": resizable(&one["resources"])}),
            )
        });
        kept.insert(field.to_owned(), all.collect::<Map<_, _>>().into());
    }
    kept.insert("resources".to_owned(), resizable(&spec["resources"]));
    kept.insert(
        "activeDeadlineSeconds".to_owned(),
        spec["activeDeadlineSeconds"].clone(),
    );
    kept.insert(
        "tolerations".to_owned(),
        spec::carried_tolerations(spec).cloned().collect(),
    );
    kept.into()
}

fn resizable(resources: &Value) -> Value {
    let of = |kind: &str| -> Value {
        let amounts = RESIZABLE.iter().filter(|key| resources[kind][**key].is_string());
        amounts
            .map(|&key| (key.to_owned(), resources[kind][key].clone()))
            .collect::<Map<_, _>>()
            .into()
    };
    json!({"requests": of("requests"), "limits": of("limits")})
}

fn metadata(home: &Value, remote: &Value) -> Option<Value> {
    let before = record_of(home, remote);
    let (labels, annotations) = (spec::carried_labels(home), spec::carried_annotations(home));
    let there = &remote["metadata"];
    let changed_labels = pairs(&labels, &before.labels, &there["labels"]);
    let mut changed = pairs(&annotations, &before.annotations, &there["annotations"]);
    changed.retain(|key, _| !key.starts_with(APPARMOR_PREFIX));
    let after = Record {
        labels: labels.into_keys().collect(),
        annotations: annotations.into_keys().collect(),
        spec: before.spec.clone(),
    };
    let is_recorded = there["annotations"][CARRIED].is_string() && after == before;
    if is_recorded && changed.is_empty() && changed_labels.is_empty() {
        return None;
    }
    if !is_recorded {
        changed.insert(CARRIED.to_owned(), json!(after).to_string().into());
    }
    Some(json!({"metadata": {"labels": changed_labels, "annotations": changed}}))
}

/// The changes to labels or annotations there; those of others stay.
fn pairs(wanted: &BTreeMap<String, String>, before: &[String], there: &Value) -> Map<String, Value> {
    let set = wanted
        .iter()
        .filter(|(key, value)| there[key.as_str()] != value.as_str());
    let set = set.map(|(key, value)| (key.clone(), value.as_str().into()));
    let gone = before
        .iter()
        .filter(|key| !wanted.contains_key(*key) && !there[key.as_str()].is_null());
    set.chain(gone.map(|key| (key.clone(), Value::Null))).collect()
}

/// Existing ones can be neither changed nor removed, and are sent unchanged.
fn ephemeral_containers(home: &Value, remote: &Value) -> Vec<Patch> {
    let there = &remote["spec"]["ephemeralContainers"];
    let is_there = |name: &Value| list(there).any(|it| it["name"] == *name);
    let new = spec::ephemeral_containers(home)
        .into_iter()
        .filter(|it| !is_there(&it["name"]));
    new.map(|one| {
        let about = one["name"].as_str().unwrap_or_default().to_owned();
        let all: Vec<Value> = list(there).cloned().chain([one]).collect();
        let patch = json!({"spec": {"ephemeralContainers": all}});
        Patch { about, patch }
    })
    .collect()
}

fn resources(home: &Value, remote: &Value) -> Option<Value> {
    let record = record_of(home, remote).spec;
    let wanted = changeable(home);
    let mut patch = Map::new();
    for field in CONTAINERS {
        let mut is_changed = false;
        let resized = list(&remote["spec"][field]).cloned().map(|mut one| {
            let name = one["name"].as_str().unwrap_or_default().to_owned();
            let (wanted, before) = (&wanted[field][&name], &record[field][&name]);
            is_changed |= resize(&mut one["resources"], &wanted["resources"], &before["resources"]);
            one
        });
        let resized: Vec<Value> = resized.collect();
        if is_changed {
            patch.insert(field.to_owned(), resized.into());
        }
    }
    let mut of_pod = remote["spec"]["resources"].clone();
    if resize(&mut of_pod, &wanted["resources"], &record["resources"]) {
        patch.insert("resources".to_owned(), of_pod);
    }
    (!patch.is_empty()).then(|| json!({ "spec": patch }))
}

/// Applies the amounts that have changed at home; returns whether any differed there. Kubernetes does not
/// allow removing one.
fn resize(there: &mut Value, wanted: &Value, before: &Value) -> bool {
    let mut is_changed = false;
    for (kind, key, amount) in amounts(wanted) {
        if before[kind][key] != *amount && there[kind][key] != *amount {
            there[kind][key] = amount.clone();
            is_changed = true;
        }
    }
    is_changed
}

fn amounts(resources: &Value) -> impl Iterator<Item = (&'static str, &'static str, &Value)> {
    ["requests", "limits"].into_iter().flat_map(move |kind| {
        let all = RESIZABLE
            .into_iter()
            .map(move |key| (kind, key, &resources[kind][key]));
        all.filter(|(.., amount)| amount.is_string())
    })
}

fn changed_spec(home: &Value, remote: &Value) -> Option<Value> {
    let record = record_of(home, remote);
    let wanted = changeable(home);
    let there = &remote["spec"];
    let mut patch = Map::new();
    for field in CONTAINERS {
        if let Some(renewed) = with_images(&there[field], &wanted[field], &record.spec[field]) {
            patch.insert(field.to_owned(), renewed);
        }
    }
    let deadline = &wanted["activeDeadlineSeconds"];
    // Kubernetes only allows shortening it.
    let is_nearer = match (deadline.as_i64(), there["activeDeadlineSeconds"].as_i64()) {
        (Some(wanted), Some(there)) => wanted < there,
        (wanted, None) => wanted.is_some(),
        (None, Some(_)) => false,
    };
    if *deadline != record.spec["activeDeadlineSeconds"] && is_nearer {
        patch.insert("activeDeadlineSeconds".to_owned(), deadline.clone());
    }
    if let Some(all) = with_tolerations(
        &there["tolerations"],
        &wanted["tolerations"],
        &record.spec["tolerations"],
    ) {
        patch.insert("tolerations".to_owned(), all);
    }
    let after = Record {
        spec: settled(wanted, &record.spec, there),
        ..record.clone()
    };
    let is_recorded = remote["metadata"]["annotations"][CARRIED].is_string() && after == record;
    if is_recorded && patch.is_empty() {
        return None;
    }
    let annotations = json!({ CARRIED: json!(after).to_string() });
    Some(json!({"metadata": {"annotations": annotations}, "spec": patch}))
}

/// The containers with the images that have changed at home, if any differs there.
fn with_images(there: &Value, wanted: &Value, before: &Value) -> Option<Value> {
    let mut is_changed = false;
    let renewed = list(there).cloned().map(|mut one| {
        let name = one["name"].as_str().unwrap_or_default().to_owned();
        let image = &wanted[&name]["image"];
        if image.is_string() && before[&name]["image"] != *image && one["image"] != *image {
            one["image"] = image.clone();
            is_changed = true;
        }
        one
    });
    let renewed: Vec<Value> = renewed.collect();
    is_changed.then(|| renewed.into())
}

/// The tolerations with those that home has added or whose time it has changed.
fn with_tolerations(there: &Value, wanted: &Value, before: &Value) -> Option<Value> {
    let new = list(wanted).filter(|one| !list(before).any(|it| it == *one));
    let mut all: Vec<Value> = list(there).cloned().collect();
    for one in new {
        match all.iter_mut().find(|it| is_for_the_same(it, one)) {
            Some(known) => known.clone_from(one),
            None => all.push(one.clone()),
        }
    }
    let is_changed = !all.iter().eq(list(there));
    is_changed.then(|| all.into())
}

/// Whether two tolerations differ only in their time.
fn is_for_the_same(one: &Value, other: &Value) -> bool {
    let operator = |it: &Value| it["operator"].as_str().unwrap_or("Equal").to_owned();
    operator(one) == operator(other)
        && ["key", "value", "effect"]
            .iter()
            .all(|&field| one[field] == other[field])
}

/// What counts as carried: everything except amounts that the remote cluster has not accepted (yet).
fn settled(mut wanted: Value, before: &Value, there: &Value) -> Value {
    let settle = |wanted: &mut Value, before: &Value, there: &Value| {
        for (kind, key, amount) in amounts(&wanted.clone()) {
            if before[kind][key] != *amount && there[kind][key] != *amount {
                wanted[kind][key] = before[kind][key].clone();
            }
        }
    };
    for field in CONTAINERS {
        for one in list(&there[field]) {
            let name = one["name"].as_str().unwrap_or_default();
            if wanted[field][name].is_object() {
                settle(
                    &mut wanted[field][name]["resources"],
                    &before[field][name]["resources"],
                    &one["resources"],
                );
            }
        }
    }
    settle(
        &mut wanted["resources"],
        &before["resources"],
        &there["resources"],
    );
    wanted
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests;
