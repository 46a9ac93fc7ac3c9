//! Reads objects as JSON: which parts of an object at home are copied, and which parts of a remote object are
//! a copy.

use std::collections::{BTreeMap, BTreeSet};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, from_value, json};

use super::{
    COPIED_KEYS, Fingerprint, Found, HOME_OBJECT_UID, Kind, Marks, Original, ROOT_CERTIFICATES, SKIP,
    name_of_copy,
};
use crate::{
    offload::service_names::{addresses, namespaces, short_names},
    volume::{digest, has_domain, marks_ownership},
};

/// Digits of the hashes in a [`Fingerprint`].
const DIGITS: usize = 32;
/// Domains of keys that concern the object itself, never its copy: ours and Liqo's; those of tools
/// that would prune the copy as missing from their sources; and those of controllers in the remote
/// cluster that would copy a Secret into other namespaces, or publish a Service once more, without
/// a request of the users there. The holder of a lock renews it every two seconds, which must not
/// cause a write in each cluster.
const OWN_MEANING: [&str; 14] = [
    "control-plane.alpha.kubernetes.io",
    "liqo.io",
    "kubectl.kubernetes.io",
    "applyset.kubernetes.io",
    "config.k8s.io",
    "replicator.v1.mittwald.de",
    "reflector.v1.k8s.emberstack.com",
    "kubed.appscode.com",
    "external-dns.alpha.kubernetes.io",
    "external-dns.kubernetes.io",
    "tailscale.com",
    "cloud.google.com",
    "hnc.x-k8s.io",
    "mirror.linkerd.io",
];
/// Further such keys, in domains of Kubernetes: that of a Service that another proxy than kube-proxy serves, which the
/// remote cluster may not have, and the one by which Argo CD before version 3 recognises its objects.
const NOT_CARRIED: [&str; 3] = [
    "app.kubernetes.io/instance",
    "service.kubernetes.io/service-proxy-name",
    SOURCE_RANGES,
];
/// Annotation of a Service of type `LoadBalancer`. API servers refuse a Service of another type with it, as copies are.
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
/// Helm keeps its releases in Secrets of this type, or in `ConfigMap`s with such names: all manifests and
/// values of each revision. Helm in the remote cluster would list and uninstall them.
const HELM_RELEASE: (&str, &str) = ("helm.sh/release.v1", "sh.helm.release.v1.");

/// Types of Secrets that are credentials of the home cluster.
const CREDENTIALS: [&str; 2] = [
    "kubernetes.io/service-account-token",
    "bootstrap.kubernetes.io/token",
];
/// Annotations of Secrets that contain a token of a service account: in these, `OpenShift` keeps
/// the credentials of its registry.
const OF_AN_ACCOUNT: [&str; 2] = [
    "kubernetes.io/service-account.name",
    "openshift.io/internal-registry-auth-token.service-account",
];

/// How many namespaces, short names and addresses of one object are kept.
const MOST_NAMED: usize = 8;

type Pairs = BTreeMap<String, String>;

/// Why an object is not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotCopied {
    /// The user excluded it.
    #[error("it is marked {SKIP}")]
    Skipped,
    /// It belongs to its own cluster.
    #[error("it is for this cluster alone")]
    OfTheCluster,
    /// A token, or a Secret that holds one.
    #[error("it is a credential of this cluster")]
    Credential,
    /// Helm in the remote cluster would use it.
    #[error("it is a release of Helm")]
    HelmRelease,
    /// The name is reserved for the copy of another object.
    #[error("its name is that of the copy of {ROOT_CERTIFICATES}")]
    NameReserved,
}

/// The desired copy.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    pub original: Original,
    /// As it is created.
    pub object: Value,
}

/// The keys that were copied, as recorded on a copy.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Record {
    labels: Vec<String>,
    annotations: Vec<String>,
}

/// The desired copy of an object at home.
///
/// # Errors
/// The object is not copied.
pub fn wanted(kind: Kind, mut object: Value, marks: &Marks) -> Result<Wanted, NotCopied> {
    if let Some(why) = why_not_copied(kind, &object, &marks.home) {
        return Err(why);
    }
    let (labels, annotations) = metadata(&object);
    let name = text(&object["metadata"]["name"]);
    let copy = name_of_copy(kind, name, &marks.home);
    let (mut labels, mut annotations) = (carried(labels, marks), carried(annotations, marks));
    let record = Record {
        labels: labels.keys().cloned().collect(),
        annotations: annotations.keys().cloned().collect(),
    };
    labels.extend(marks.labels.clone());
    annotations.extend(marks.annotations.clone());
    annotations.insert(COPIED_KEYS.to_owned(), json!(record).to_string());
    let uid = text(&object["metadata"]["uid"]).to_owned();
    annotations.insert(HOME_OBJECT_UID.to_owned(), uid);
    let selector = match kind {
        Kind::Service => from_value(object["spec"]["selector"].clone()).unwrap_or_default(),
        Kind::ConfigMap | Kind::Secret | Kind::EndpointSlice => BTreeMap::new(),
    };
    let namespace = text(&object["metadata"]["namespace"]).to_owned();
    let families = Some(object["spec"]["ipFamilies"].clone());
    let families = families.filter(|it| kind == Kind::Service && says_something(it));
    let content = match kind {
        Kind::Service => json!({"spec": service(&object["spec"])}),
        Kind::ConfigMap | Kind::Secret => configuration(kind, object.take()),
        Kind::EndpointSlice => endpoints(&object),
    };
    let fingerprint = fingerprint(kind, &labels, &annotations, &content);
    let texts = texts(kind, &content["data"]);
    let mut object = json!({
        "apiVersion": kind.api_version(),
        "kind": format!("{kind:?}"),
        "metadata": {"name": copy, "labels": labels, "annotations": annotations},
    });
    extend(&mut object, content);
    // Not compared: the cluster chooses, if it does not have these, and never changes the first one.
    if let Some(families) = families {
        object["spec"]["ipFamilies"] = families;
    }
    Ok(Wanted {
        original: Original {
            copy,
            fingerprint,
            selector,
            namespaces: named_namespaces(&texts, &namespace),
            short_names: match kind {
                Kind::ConfigMap => first(texts.iter().flat_map(|it| short_names(it)).map(str::to_owned)),
                Kind::Secret | Kind::Service | Kind::EndpointSlice => BTreeSet::new(),
            },
            addresses: first(texts.iter().flat_map(|it| addresses(it))),
        },
        object,
    })
}

/// The values of a `ConfigMap` or Secret.
fn texts(kind: Kind, data: &Value) -> Vec<String> {
    let values = data
        .as_object()
        .into_iter()
        .flatten()
        .map(|(_, value)| text(value));
    match kind {
        Kind::ConfigMap => values.map(str::to_owned).collect(),
        Kind::Secret => {
            let values = values.filter_map(|value| STANDARD.decode(value).ok());
            values
                .map(|value| String::from_utf8_lossy(&value).into_owned())
                .collect()
        }
        Kind::Service | Kind::EndpointSlice => Vec::new(),
    }
}

/// The namespaces of Services in these texts, the own one first.
fn named_namespaces(texts: &[String], own: &str) -> BTreeSet<String> {
    let mut all: BTreeSet<_> = texts.iter().flat_map(|it| namespaces(it, own)).collect();
    let own = all.take(own);
    let all = own.into_iter().chain(all).take(MOST_NAMED);
    all.map(str::to_owned).collect()
}

/// At most [`MOST_NAMED`] different ones of these.
fn first<T: Ord>(all: impl Iterator<Item = T>) -> BTreeSet<T> {
    let mut first = BTreeSet::new();
    for one in all {
        if first.len() >= MOST_NAMED {
            break;
        }
        first.insert(one);
    }
    first
}

/// Why an object of the cluster `home` is not copied.
#[must_use]
pub fn why_not_copied(kind: Kind, object: &Value, home: &str) -> Option<NotCopied> {
    let metadata = &object["metadata"];
    let has = |key: &str| {
        ["labels", "annotations"]
            .iter()
            .any(|of| !metadata[*of][key].is_null())
    };
    let is_credential = || {
        let annotations = &metadata["annotations"];
        CREDENTIALS.contains(&text(&object["type"]))
            || OF_AN_ACCOUNT.iter().any(|key| annotations[*key].is_string())
    };
    let name = text(&metadata["name"]);
    match kind {
        _ if has(SKIP) => Some(NotCopied::Skipped),
        Kind::ConfigMap if name.starts_with(HELM_RELEASE.1) => Some(NotCopied::HelmRelease),
        Kind::ConfigMap if name == name_of_copy(kind, ROOT_CERTIFICATES, home) => {
            Some(NotCopied::NameReserved)
        }
        Kind::Secret if object["type"] == HELM_RELEASE.0 => Some(NotCopied::HelmRelease),
        Kind::Secret if is_credential() => Some(NotCopied::Credential),
        Kind::Service if name == "kubernetes" && metadata["namespace"] == "default" => {
            Some(NotCopied::OfTheCluster)
        }
        _ => None,
    }
}

/// What an object in the remote namespace is.
#[must_use]
pub fn found(kind: Kind, object: Value, marks: &Marks) -> Found {
    let meta = &object["metadata"];
    let version = text(&meta["resourceVersion"]).to_owned();
    let deleting = !meta["deletionTimestamp"].is_null();
    let immutable = object["immutable"] == true;
    let (labels, annotations) = metadata(&object);
    let ours = marks.are_on(&labels, &annotations);
    let (labels, annotations) = copied(labels, annotations, marks);
    let content = content_there(kind, object);
    Found {
        version,
        ours,
        deleting,
        immutable,
        fingerprint: fingerprint(kind, &labels, &annotations, &content),
    }
}

/// The merge patch from a copy to the desired one. It applies only to this version of the object.
#[must_use]
pub fn patch(kind: Kind, there: &Value, wanted: &Value, marks: &Marks) -> Value {
    let (labels, annotations) = metadata(there);
    let (labels, annotations) = copied(labels, annotations, marks);
    let mut before = json!({"metadata": {"labels": labels, "annotations": annotations}});
    extend(&mut before, content_there(kind, there.clone()));
    let mut after = wanted.clone();
    for key in ["apiVersion", "kind"] {
        after.as_object_mut().and_then(|it| it.remove(key));
    }
    for (of, key) in [("metadata", "name"), ("spec", "ipFamilies")] {
        after
            .get_mut(of)
            .and_then(Value::as_object_mut)
            .and_then(|it| it.remove(key));
    }
    let mut patch = difference(&before, &after);
    for key in ["uid", "resourceVersion"] {
        patch["metadata"][key] = there["metadata"][key].clone();
    }
    patch
}

fn carried(all: Pairs, marks: &Marks) -> Pairs {
    let stays = |key: &str| {
        NOT_CARRIED.contains(&key)
            || marks_ownership(key)
            || marks.labels.contains_key(key)
            || OWN_MEANING.iter().any(|own| has_domain(key, own))
    };
    all.into_iter().filter(|(key, _)| !stays(key)).collect()
}

/// The copied labels and annotations of a remote object, by its record of them.
fn copied(labels: Pairs, annotations: Pairs, marks: &Marks) -> (Pairs, Pairs) {
    let record = annotations.get(COPIED_KEYS);
    let record: Record = record
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    let keep = |all: Pairs, record: &[String], marks: &Pairs, own: &[&str]| -> Pairs {
        let is_copied =
            |key: &String| record.contains(key) || marks.contains_key(key) || own.contains(&key.as_str());
        all.into_iter().filter(|(key, _)| is_copied(key)).collect()
    };
    (
        keep(labels, &record.labels, &marks.labels, &[]),
        keep(
            annotations,
            &record.annotations,
            &marks.annotations,
            // Other clients may set the last one together with the type `LoadBalancer`. API servers refuse it with any
            // other type, so it is removed with the change of the type.
            &[COPIED_KEYS, HOME_OBJECT_UID, SOURCE_RANGES],
        ),
    )
}

fn configuration(kind: Kind, mut object: Value) -> Value {
    let mut content = Map::new();
    if kind == Kind::Secret {
        let of_type = match text(&object["type"]) {
            "" => "Opaque",
            given => given,
        };
        content.insert("type".to_owned(), of_type.into());
    }
    for key in ["data", "binaryData", "immutable"] {
        let value = object[key].take();
        if says_something(&value) {
            content.insert(key.to_owned(), value);
        }
    }
    content.into()
}

fn content_there(kind: Kind, object: Value) -> Value {
    match kind {
        Kind::Service => json!({"spec": service_there(&object["spec"])}),
        Kind::ConfigMap | Kind::Secret => configuration(kind, object),
        Kind::EndpointSlice => endpoints(&object),
    }
}

/// All fields of a slice: those that others add to an endpoint are compared as well.
fn endpoints(object: &Value) -> Value {
    let what_is_said = |of: &Value| -> Value {
        let all = of.as_object().into_iter().flatten();
        let all = all.filter(|(_, value)| *value == &Value::Bool(false) || says_something(value));
        all.map(|(key, value)| (key.clone(), value.clone()))
            .collect::<Map<_, _>>()
            .into()
    };
    let list = |key: &str| -> Vec<Value> {
        let all = object[key].as_array().into_iter().flatten();
        all.map(what_is_said).collect()
    };
    let mut content = json!({"addressType": object["addressType"], "endpoints": list("endpoints")});
    let ports = list("ports");
    if !ports.is_empty() {
        content["ports"] = ports.into();
    }
    content
}

/// The desired Service: addresses, node ports and load balancers are up to the remote cluster.
fn service(spec: &Value) -> Value {
    let mut copy = service_parts(spec, &["name", "protocol", "port", "targetPort", "appProtocol"]);
    let of_type = if is_external_name(spec) {
        "ExternalName"
    } else {
        "ClusterIP"
    };
    copy.insert("type".to_owned(), of_type.into());
    copy.into()
}

/// The same part of a copy, with the fields that others may have added.
fn service_there(spec: &Value) -> Value {
    let ports = [
        "name",
        "protocol",
        "port",
        "targetPort",
        "appProtocol",
        "nodePort",
    ];
    let mut copy = service_parts(spec, &ports);
    for key in ["type", "externalIPs", "loadBalancerSourceRanges"] {
        if says_something(&spec[key]) {
            copy.insert(key.to_owned(), spec[key].clone());
        }
    }
    copy.into()
}

fn service_parts(spec: &Value, of_port: &[&str]) -> Map<String, Value> {
    let part = |of: &Value, keys: &[&str]| -> Map<String, Value> {
        let kept = keys.iter().filter(|key| says_something(&of[**key]));
        kept.map(|&key| (key.to_owned(), of[key].clone())).collect()
    };
    let mut copy = part(
        spec,
        &[
            "selector",
            "sessionAffinity",
            "sessionAffinityConfig",
            "publishNotReadyAddresses",
            "internalTrafficPolicy",
            "ipFamilyPolicy",
        ],
    );
    if spec["clusterIP"] == "None" {
        copy.insert("clusterIP".to_owned(), "None".into());
    }
    if is_external_name(spec) {
        copy.insert("externalName".to_owned(), spec["externalName"].clone());
    }
    let ports = spec["ports"].as_array().into_iter().flatten();
    let ports: Vec<Value> = ports.map(|port| part(port, of_port).into()).collect();
    if !ports.is_empty() {
        copy.insert("ports".to_owned(), ports.into());
    }
    copy
}

fn is_external_name(spec: &Value) -> bool {
    spec["type"] == "ExternalName"
}

/// API servers omit empty values.
fn says_something(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::String(_) => true,
    }
}

fn fingerprint(kind: Kind, labels: &Pairs, annotations: &Pairs, content: &Value) -> Fingerprint {
    let fixed = match kind {
        Kind::ConfigMap => String::new(),
        Kind::Secret => digest(DIGITS, [text(&content["type"])]),
        Kind::EndpointSlice => text(&content["addressType"]).to_owned(),
        Kind::Service => {
            let spec = &content["spec"];
            let headless = spec["clusterIP"] == "None";
            format!("{}/{headless}", is_external_name(spec))
        }
    };
    Fingerprint {
        metadata: digest(
            DIGITS,
            [json!(labels), json!(annotations)]
                .map(|it| it.to_string())
                .iter()
                .map(String::as_str),
        ),
        content: digest(DIGITS, [content.to_string().as_str()]),
        fixed,
    }
}

pub(super) fn metadata(object: &Value) -> (Pairs, Pairs) {
    let pairs = |key: &str| -> Pairs {
        let all = object["metadata"][key].as_object().into_iter().flatten();
        all.map(|(key, value)| (key.clone(), text(value).to_owned()))
            .collect()
    };
    (pairs("labels"), pairs("annotations"))
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn extend(object: &mut Value, content: Value) {
    if let (Some(object), Value::Object(content)) = (object.as_object_mut(), content) {
        object.extend(content);
    }
}

fn difference(before: &Value, after: &Value) -> Value {
    let (Some(old), Some(new)) = (before.as_object(), after.as_object()) else {
        return after.clone();
    };
    let gone = old.keys().filter(|key| !new.contains_key(*key));
    let gone = gone.map(|key| (key.clone(), Value::Null));
    let changed = new.iter().filter(|(key, value)| old.get(*key) != Some(value));
    let changed = changed.map(|(key, value)| {
        let before = old.get(key).unwrap_or(&Value::Null);
        (key.clone(), difference(before, value))
    });
    gone.chain(changed).collect::<Map<_, _>>().into()
}
