//! The spec of the remote pod: that of the home pod, unchanged. The exceptions are here and in
//! [`super::volumes`]: fields that are left out, changed, or refused. Pods are read as JSON, because typed
//! definitions drop unknown fields; fields that the remote API server drops are found by [`super::kept`]
//! before the pod starts.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::{
    GATE,
    changes::{self, CARRIED as RECORD},
    volumes,
};
use crate::{offload::reflection::Kind, volume::marks_ownership};

/// Label of virtual nodes, here and in remote clusters that have their own.
const NODE_KIND: &str = "liqo.io/type";
const NODE_KIND_VIRTUAL: &str = "virtual-node";
/// The taint that keeps other pods off virtual nodes.
const TAINT: &str = "virtual-node.liqo.io/not-allowed";
/// The node labels that a pod may select in the remote cluster: what its images are built for.
const CARRIED_NODE_LABELS: [&str; 4] = [
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
/// Prefixes of labels and annotations that describe the home cluster, or belong to the fabric.
const OWN_KEYS: [&str; 4] = [
    "fabric.storage.liqo.io/",
    // Kubernetes copies these from the node.
    "topology.kubernetes.io/",
    "liqo.io/shadowPod",
    "kubectl.kubernetes.io/last-applied-configuration",
];
/// Prefixes of annotations that the kubelet, admission or the network wrote about the home pod: they would be
/// wrong on the remote pod.
const ABOUT_HOME: [&str; 8] = [
    "cni.projectcalico.org/containerID",
    "cni.projectcalico.org/podIP",
    "k8s.ovn.org/pod-networks",
    "k8s.v1.cni.cncf.io/network-status",
    "k8s.v1.cni.cncf.io/networks-status",
    "kubernetes.io/config.",
    "kubernetes.io/limit-ranger",
    "ovn.kubernetes.io/",
];
/// Fields that tie a pod to a machine or to objects of the home cluster.
const AT_HOME_ONLY: [&str; 5] = [
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "resourceClaims",
    "schedulingGroup",
];
/// Fields that are derived from the home pod's instead of being copied.
const DERIVED: [&str; 5] = [
    "affinity",
    "nodeSelector",
    "tolerations",
    "topologySpreadConstraints",
    "volumes",
];

/// Fields that have no effect once a pod has its node, or that concern the home cluster alone.
const LEFT_OUT: [&str; 13] = [
    "ephemeralContainers",
    "nodeName",
    "overhead",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "readinessGates",
    "runtimeClassName",
    "schedulerName",
    "schedulingGates",
    "serviceAccount",
    "serviceAccountName",
    "automountServiceAccountToken",
];

/// The largest pod, in KiB. Pods with sidecars have about 15.
const LARGEST: usize = 256;

/// Why a pod cannot run in a remote cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PodRefused {
    /// It uses a feature that exists only in the home cluster.
    #[error(
        "it has spec.{0}, which has a meaning in this cluster only: keep the pod on nodes of this cluster"
    )]
    AtHomeOnly(String),
    /// The fabric does not know what the field means.
    #[error(
        "it has spec.{0}, which this version of the fabric does not know: keep the pod on nodes of this cluster"
    )]
    Unknown(String),
    /// Larger than any reasonable pod: it would burden every client that watches pods.
    #[error(
        "it has {0} KiB, and pods of more than {LARGEST} KiB are not sent: put large values into ConfigMaps or Secrets, or \
         keep the pod on nodes of this cluster"
    )]
    TooLarge(usize),
}

/// The marks by which the fabric recognises a remote pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteMarks {
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

/// The settings for pods in the `RemoteCluster`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteSettings {
    /// Labels of the remote nodes that the pods may run on.
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations that are added to the pods, as JSON.
    pub tolerations: Vec<Value>,
    pub priority_class: Option<String>,
    /// The id of the home cluster: the copy of its root certificates is named after it.
    pub home: String,
    /// The names of claims in the remote cluster, where they differ.
    pub claims: BTreeMap<String, String>,
    /// Their runtime class, unless the pod has one of its own other than `liqo`.
    pub runtime_class: Option<String>,
}

/// The remote pod of a home pod, as JSON: its name, the marks, the gate, and no namespace.
pub fn remote_pod(home: &Value, marks: &RemoteMarks, settings: &RemoteSettings) -> Result<Value, PodRefused> {
    let none = Map::new();
    let spec = home["spec"].as_object().unwrap_or(&none);
    let mut remote = Map::new();
    for (field, value) in spec {
        let name = field.as_str();
        if AT_HOME_ONLY.contains(&name) && !is_empty(value) {
            return Err(PodRefused::AtHomeOnly(field.clone()));
        }
        if !value.is_null() && !LEFT_OUT.contains(&name) && !DERIVED.contains(&name) {
            remote.insert(field.clone(), value.clone());
        }
    }
    let (kept, tokens) = volumes::remote(spec.get("volumes"), settings)?;
    set(&mut remote, "volumes", kept);
    for field in ["containers", "initContainers"] {
        for container in array_mut(&mut remote, field) {
            without_mounts(container, &tokens);
            keep_paths(container, home);
            tell_account(container, spec);
            name_copies(container, &settings.home);
        }
    }
    remote.insert("affinity".into(), node_affinity(&home["spec"]));
    set(&mut remote, "nodeSelector", node_selector(spec, settings));
    set(&mut remote, "tolerations", tolerations(&home["spec"], settings));
    set(&mut remote, "topologySpreadConstraints", spread(home));
    let own = spec.get("runtimeClassName").and_then(Value::as_str);
    let own = own.filter(|class| *class != "liqo");
    if let Some(class) = own.or(settings.runtime_class.as_deref()) {
        remote.insert("runtimeClassName".into(), class.into());
    }
    if let Some(class) = &settings.priority_class {
        remote.insert("priorityClassName".into(), class.as_str().into());
    }
    // With a grace period of 0 its name would be free there while its containers still run. A negative one
    // means one second.
    let grace = spec.get("terminationGracePeriodSeconds").and_then(Value::as_i64);
    if grace.is_some_and(|seconds| seconds < 1) {
        remote.insert("terminationGracePeriodSeconds".into(), 1.into());
    }
    // The service account of the home pod does not exist there.
    remote.insert("serviceAccountName".into(), "default".into());
    remote.insert("automountServiceAccountToken".into(), false.into());
    remote.insert("schedulingGates".into(), json!([{ "name": GATE }]));
    let mut labels = carried_labels(home);
    labels.extend(marks.labels.clone());
    let mut annotations = carried_annotations(home);
    annotations.insert(RECORD.to_owned(), changes::record(home));
    annotations.extend(marks.annotations.clone());
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": home["metadata"]["name"], "labels": labels, "annotations": annotations},
        "spec": remote,
    });
    let bytes = pod.to_string().len();
    if bytes > LARGEST << 10 {
        return Err(PodRefused::TooLarge(bytes >> 10));
    }
    Ok(pod)
}

/// Whether every remote cluster refuses the pod, because it requires something of its own cluster. The
/// policies of the chart keep exactly these pods at home.
#[must_use]
pub fn is_homebound(home: &Value) -> bool {
    let spec = &home["spec"];
    let mut volumes = spec["volumes"].as_array().into_iter().flatten();
    AT_HOME_ONLY.iter().any(|field| !is_empty(&spec[field])) || volumes.any(volumes::is_homebound)
}

/// The fields of a pod that have another meaning in a remote cluster: for each the reason of an event, and its
/// note.
#[must_use]
pub fn caveats(home: &Value, cluster: &str) -> Vec<(&'static str, String)> {
    let spec = &home["spec"];
    let mut all = Vec::new();
    let mut required = vec!["podAffinity", "podAntiAffinity"];
    required
        .retain(|kind| !is_empty(&spec["affinity"][*kind]["requiredDuringSchedulingIgnoredDuringExecution"]));
    if !required.is_empty() {
        all.push((
            "PodAffinityIgnored",
            format!(
                "the pod requires a {}, which counts the cluster {cluster} as one node and does not apply between pods \
                 there: use topologySpreadConstraints to spread them over its nodes, or keep the pod on nodes of this \
                 cluster",
                required.join(" and a ")
            ),
        ));
    }
    let account = spec["serviceAccountName"].as_str().unwrap_or("default");
    if !matches!(account, "" | "default") && !volumes::tokens(spec.get("volumes")).is_empty() {
        all.push((
            "NoServiceAccountToken",
            format!(
                "the pod has no token of its service account {account} in the cluster {cluster}, so it cannot call the API \
                 server of this cluster or of that one: keep the pod on nodes of this cluster if it does, or set \
                 automountServiceAccountToken to false if it does not"
            ),
        ));
    }
    if spec["dnsPolicy"] == "None" {
        let servers = spec["dnsConfig"]["nameservers"].as_array().into_iter().flatten();
        let servers: Vec<&str> = servers.filter_map(Value::as_str).collect();
        all.push((
            "NameserversOfHome",
            format!(
                "the pod has the dnsPolicy None, and queries its nameservers ({}) from the cluster {cluster}, where these \
                 addresses may be other servers or none: use nameservers that the cluster reaches, or the dnsPolicy \
                 ClusterFirst, or keep the pod on nodes of this cluster",
                servers.join(", ")
            ),
        ));
    }
    all
}

/// The labels that are carried to the remote pod.
pub(super) fn carried_labels(home: &Value) -> BTreeMap<String, String> {
    carried(&home["metadata"]["labels"])
}

/// The annotations that are carried to the remote pod. Those that mark ownership are not: tools in the remote
/// cluster would consider the pod theirs, and prune it.
pub(super) fn carried_annotations(home: &Value) -> BTreeMap<String, String> {
    let mut carried = carried(&home["metadata"]["annotations"]);
    carried.retain(|key, _| is_carried_annotation(key));
    carried
}

fn is_carried(key: &str) -> bool {
    !OWN_KEYS.iter().any(|own| key.starts_with(own))
}

fn is_carried_annotation(key: &str) -> bool {
    is_carried(key) && !marks_ownership(key) && !ABOUT_HOME.iter().any(|one| key.starts_with(one))
}

/// The tolerations that are carried to the remote pod.
pub(super) fn carried_tolerations(spec: &Value) -> impl Iterator<Item = &Value> {
    let all = spec["tolerations"].as_array().into_iter().flatten();
    all.filter(|one| {
        let key = one["key"].as_str().unwrap_or_default();
        !key.is_empty() && key != TAINT
    })
}

/// The ephemeral containers of a home pod, changed for its remote pod.
pub(super) fn ephemeral_containers(home: &Value) -> Vec<Value> {
    let none = Map::new();
    let spec = home["spec"].as_object().unwrap_or(&none);
    let tokens = volumes::tokens(spec.get("volumes"));
    let all = home["spec"]["ephemeralContainers"]
        .as_array()
        .into_iter()
        .flatten();
    let carried = all.cloned().map(|mut container| {
        without_mounts(&mut container, &tokens);
        tell_account(&mut container, spec);
        container
    });
    carried.collect()
}

#[must_use]
pub fn claims(home: &Value) -> Vec<String> {
    let volumes = home["spec"]["volumes"].as_array().into_iter().flatten();
    volumes
        .filter_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str())
        .map(str::to_owned)
        .collect()
}

/// The names of the Secrets that a pod requires.
#[must_use]
pub fn secrets(home: &Value) -> BTreeSet<String> {
    let required = named(home)
        .into_iter()
        .filter(|one| one.kind == Kind::Secret && one.is_required);
    required.map(|one| one.name).collect()
}

/// The `ConfigMap`s and Secrets that a pod uses if there are such.
#[must_use]
pub fn configuration(home: &Value) -> Vec<(Kind, String)> {
    let all = named(home).into_iter();
    all.map(|one| (one.kind, one.name)).collect()
}

/// A `ConfigMap` or Secret that a pod names.
struct Reference {
    kind: Kind,
    name: String,
    is_required: bool,
}

fn named(home: &Value) -> Vec<Reference> {
    const KEYS: [(Kind, &str); 6] = [
        (Kind::ConfigMap, "configMap"),
        (Kind::ConfigMap, "configMapKeyRef"),
        (Kind::ConfigMap, "configMapRef"),
        (Kind::Secret, "secret"),
        (Kind::Secret, "secretKeyRef"),
        (Kind::Secret, "secretRef"),
    ];
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let spec = &home["spec"];
    let containers = ["containers", "initContainers"]
        .map(|field| list(&spec[field]))
        .concat();
    let variables = containers.iter().flat_map(|one| list(&one["env"]));
    let sources = containers.iter().flat_map(|one| list(&one["envFrom"]));
    let volumes = list(&spec["volumes"]);
    let projected = volumes.iter().flat_map(|one| list(&one["projected"]["sources"]));
    let used = variables
        .map(|one| one["valueFrom"].clone())
        .chain(sources)
        .chain(projected)
        .chain(volumes.iter().cloned())
        .flat_map(|one| KEYS.map(|(kind, key)| (kind, one[key].clone())))
        .filter_map(|(kind, source)| {
            let name = source["name"].as_str().or(source["secretName"].as_str())?;
            Some(Reference {
                kind,
                name: name.to_owned(),
                is_required: source["optional"] != true,
            })
        });
    let pulled = list(&spec["imagePullSecrets"]).into_iter().filter_map(|one| {
        Some(Reference {
            kind: Kind::Secret,
            name: one["name"].as_str()?.to_owned(),
            is_required: false,
        })
    });
    used.chain(pulled).collect()
}

/// The CSI drivers of a pod's inline volumes.
#[must_use]
pub fn inline_drivers(home: &Value) -> BTreeSet<String> {
    let volumes = home["spec"]["volumes"].as_array().into_iter().flatten();
    volumes
        .filter_map(|volume| volume["csi"]["driver"].as_str())
        .map(str::to_owned)
        .collect()
}

fn carried(pairs: &Value) -> BTreeMap<String, String> {
    let pairs = pairs.as_object().into_iter().flatten();
    pairs
        .filter(|(key, _)| is_carried(key))
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// Whether a list, an object or a flag has no effect.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::String(_) => false,
    }
}

fn set(spec: &mut Map<String, Value>, field: &str, value: Value) {
    if !is_empty(&value) {
        spec.insert(field.to_owned(), value);
    }
}

fn array_mut<'a>(spec: &'a mut Map<String, Value>, field: &str) -> impl Iterator<Item = &'a mut Value> {
    spec.get_mut(field)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
}

/// Removes the mounts of volumes that the remote pod does not have.
fn without_mounts(container: &mut Value, volumes: &[String]) {
    if let Some(mounts) = container["volumeMounts"].as_array_mut() {
        mounts.retain(|mount| !volumes.iter().any(|name| mount["name"] == name.as_str()));
    }
    if container["volumeMounts"].as_array().is_none_or(Vec::is_empty)
        && let Some(container) = container.as_object_mut()
    {
        container.remove("volumeMounts");
    }
}

/// Variables for the name of the service account get the one that the pod has at home.
fn tell_account(container: &mut Value, spec: &Map<String, Value>) {
    let Some(variables) = container["env"].as_array_mut() else {
        if let Some(container) = container.as_object_mut() {
            container.remove("env");
        }
        return;
    };
    let account = spec
        .get("serviceAccountName")
        .cloned()
        .unwrap_or_else(|| "default".into());
    for variable in variables {
        if variable["valueFrom"]["fieldRef"]["fieldPath"] == "spec.serviceAccountName" {
            *variable = json!({"name": variable["name"], "value": account});
        }
    }
}

/// Variables from the root certificates of home are from their copy.
fn name_copies(container: &mut Value, home: &str) {
    for (list, reference) in [
        ("env", "/valueFrom/configMapKeyRef"),
        ("envFrom", "/configMapRef"),
    ] {
        let all = container.get_mut(list).and_then(Value::as_array_mut);
        for one in all.into_iter().flatten() {
            volumes::name_copy(one.pointer_mut(reference), home);
        }
    }
}

/// Directories of a volume have the same name in every cluster: the variables that a `subPathExpr` uses get
/// the values of the home pod, even where the namespace or the node has another name in the remote cluster.
fn keep_paths(container: &mut Value, home: &Value) {
    let mounts = container["volumeMounts"].as_array().into_iter().flatten();
    let mut used: Vec<String> = mounts
        .filter_map(|mount| mount["subPathExpr"].as_str())
        .flat_map(references)
        .collect();
    let Some(variables) = container["env"].as_array_mut() else {
        return;
    };
    let mut next = 0;
    while let Some(name) = used.get(next).cloned() {
        next += 1;
        // Of variables with the same name the last one wins.
        let Some(variable) = variables.iter_mut().rfind(|one| one["name"] == name.as_str()) else {
            continue;
        };
        if let Some(value) = variable["value"].as_str() {
            let further = references(value)
                .filter(|one| !used.contains(one))
                .collect::<Vec<_>>();
            used.extend(further);
        } else if let Some(field) = variable["valueFrom"]["fieldRef"]["fieldPath"].as_str()
            && let Some(value) = field_of(home, field)
        {
            *variable = json!({"name": name, "value": value.replace('$', "$$")});
        }
    }
}

/// The names in `$(NAME)`, as Kubernetes expands them: `$$` is a dollar sign.
fn references(text: &str) -> impl Iterator<Item = String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            found.push(name.to_owned());
            rest = after;
        }
    }
    found.into_iter()
}

/// The value of a downward API field, as far as the home pod's own spec and metadata contain it, and the remote
/// pod's do not: labels and annotations that are carried have the same value there, also when they change.
fn field_of(home: &Value, path: &str) -> Option<String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    if let Some((map, key)) = path.strip_suffix("']").and_then(|path| path.split_once("['")) {
        let is_carried = match map {
            "metadata.labels" => is_carried(key),
            "metadata.annotations" => is_carried_annotation(key),
            _ => return None,
        };
        let map = map.trim_start_matches("metadata.");
        return (!is_carried).then(|| text(&home["metadata"][map][key]).unwrap_or_default());
    }
    match path {
        "metadata.name" | "metadata.namespace" | "metadata.uid" => {
            text(&home["metadata"][path.trim_start_matches("metadata.")])
        }
        "spec.nodeName" | "spec.serviceAccountName" => text(&home["spec"][path.trim_start_matches("spec.")]),
        _ => None,
    }
}

/// A remote pod never runs on a virtual node, so it cannot move on to a third cluster, or back. Of what it
/// requires of its node at home, the requirements for [`CARRIED_NODE_LABELS`] stay.
fn node_affinity(spec: &Value) -> Value {
    let required = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let own = required["nodeSelectorTerms"].as_array().into_iter().flatten();
    let mut terms: Vec<Vec<Value>> = own
        .filter_map(|term| term["matchExpressions"].as_array())
        .filter(|all| !all.iter().any(excludes_virtual_nodes))
        .map(|all| {
            let is_carried = |one: &&Value| CARRIED_NODE_LABELS.iter().any(|key| one["key"] == *key);
            all.iter().filter(is_carried).cloned().collect()
        })
        .collect();
    // A node has to meet one of the terms: one without such requirements allows every node.
    if terms.is_empty() || terms.iter().any(Vec::is_empty) {
        terms = vec![Vec::new()];
    }
    let terms = terms.into_iter().map(|mut all| {
        all.push(json!({"key": NODE_KIND, "operator": "NotIn", "values": [NODE_KIND_VIRTUAL]}));
        json!({ "matchExpressions": all })
    });
    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": terms.collect::<Vec<_>>(),
    }}})
}

/// Such a term is not what the pod's node meets.
fn excludes_virtual_nodes(requirement: &Value) -> bool {
    let mut values = requirement["values"].as_array().into_iter().flatten();
    requirement["key"] == NODE_KIND
        && requirement["operator"] == "NotIn"
        && values.any(|value| value == NODE_KIND_VIRTUAL)
}

fn node_selector(spec: &Map<String, Value>, settings: &RemoteSettings) -> Value {
    let own = spec
        .get("nodeSelector")
        .and_then(Value::as_object)
        .into_iter()
        .flatten();
    let own = own
        .filter(|(key, _)| CARRIED_NODE_LABELS.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()));
    let wished = settings.node_selector.iter();
    let wished = wished.map(|(key, value)| (key.clone(), value.as_str().into()));
    own.chain(wished).collect::<Map<_, _>>().into()
}

fn tolerations(spec: &Value, settings: &RemoteSettings) -> Value {
    carried_tolerations(spec)
        .chain(&settings.tolerations)
        .cloned()
        .collect::<Vec<_>>()
        .into()
}

/// The pods of a workload may be in several clusters: there they can only be spread as a preference. An API
/// server accepts one such constraint for each topology key; of a hard and a soft one, the hard one stays.
fn spread(home: &Value) -> Value {
    let all = home["spec"]["topologySpreadConstraints"].as_array();
    let mut all: Vec<Value> = all.into_iter().flatten().cloned().collect();
    all.sort_by_key(|one| one["whenUnsatisfiable"] != "DoNotSchedule");
    let mut softened: Vec<Value> = Vec::new();
    for mut one in all {
        one["whenUnsatisfiable"] = "ScheduleAnyway".into();
        select_by_keys(&mut one, &home["metadata"]["labels"]);
        if let Some(one) = one.as_object_mut() {
            one.remove("minDomains");
        }
        let same = |other: &&mut Value| other["topologyKey"] == one["topologyKey"];
        match softened.iter_mut().find(same) {
            None => softened.push(one),
            Some(other) if other["labelSelector"] == one["labelSelector"] => {
                let skew = |of: &Value| of["maxSkew"].as_i64().unwrap_or(1);
                other["maxSkew"] = skew(other).min(skew(&one)).into();
            }
            Some(_) => {}
        }
    }
    softened.into()
}

/// Moves `matchLabelKeys` into the selector, where the home API server may have added them already: the
/// remote one refuses a key that is in both.
fn select_by_keys(constraint: &mut Value, labels: &Value) {
    let Some(keys) = constraint
        .as_object_mut()
        .and_then(|one| one.remove("matchLabelKeys"))
    else {
        return;
    };
    let selector = &mut constraint["labelSelector"];
    for key in keys.as_array().into_iter().flatten().filter_map(Value::as_str) {
        let expressions = selector["matchExpressions"].as_array().into_iter().flatten();
        let is_selected = selector["matchLabels"].get(key).is_some()
            || expressions.into_iter().any(|one| one["key"] == key);
        // A key without a label on the pod is ignored, as in Kubernetes.
        let Some(value) = labels[key].as_str().filter(|_| !is_selected) else {
            continue;
        };
        let one = json!({"key": key, "operator": "In", "values": [value]});
        match selector["matchExpressions"].as_array_mut() {
            Some(expressions) => expressions.push(one),
            None => selector["matchExpressions"] = json!([one]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::reflection::name_of_copy;

    fn pod(spec: &Value) -> Value {
        json!({
            "metadata": {
                "name": "web",
                "labels": {"app": "web", "liqo.io/shadowPod": "true"},
                "annotations": {
                    "note": "kept", "fabric.storage.liqo.io/remote-cluster": "milan", "kubernetes.io/config.source": "api",
                    "argocd.argoproj.io/tracking-id": "shop:/Pod:shop/web",
                },
            },
            "spec": spec,
        })
    }

    fn made(spec: &Value) -> Value {
        let marks = RemoteMarks {
            labels: [("ours".to_owned(), "yes".to_owned())].into(),
            annotations: BTreeMap::new(),
        };
        remote_pod(&pod(spec), &marks, &RemoteSettings::default()).unwrap()
    }

    fn refused(spec: &Value) -> PodRefused {
        remote_pod(&pod(spec), &RemoteMarks::default(), &RemoteSettings::default()).unwrap_err()
    }

    /// A pod of a `StatefulSet`, as the API server returns it.
    fn usual() -> Value {
        json!({
            "automountServiceAccountToken": true,
            "containers": [{
                "name": "web", "image": "web:1", "resources": {"requests": {"cpu": "1"}},
                "env": [
                    {"name": "ACCOUNT", "valueFrom": {"fieldRef": {"fieldPath": "spec.serviceAccountName"}}},
                    {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                ],
                "volumeMounts": [
                    {"name": "data", "mountPath": "/data"},
                    {"name": "kube-api-access-x7k2p", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
                ],
            }],
            "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "hostname": "web-0",
            "nodeName": "milan", "preemptionPolicy": "PreemptLowerPriority", "priority": 0,
            "restartPolicy": "Always", "schedulerName": "default-scheduler", "securityContext": {},
            "serviceAccount": "runner", "serviceAccountName": "runner",
            "nodeSelector": {"kubernetes.io/os": "linux", "liqo.io/type": "virtual-node"},
            "affinity": {"nodeAffinity": {}},
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                {"key": "virtual-node.liqo.io/not-allowed", "operator": "Exists"},
                {"operator": "Exists"},
            ],
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data-web-0"}},
                {"name": "kube-api-access-x7k2p", "projected": {"sources": [
                    {"serviceAccountToken": {"path": "token"}},
                    {"configMap": {"name": "kube-root-ca.crt"}},
                ]}},
            ],
        })
    }

    #[test]
    fn a_usual_pod_is_carried_without_what_is_of_home() {
        let remote = made(&usual());
        assert_eq!(remote["metadata"]["labels"], json!({"app": "web", "ours": "yes"}));
        let annotations = remote["metadata"]["annotations"].as_object().unwrap();
        assert_eq!(annotations.keys().collect::<Vec<_>>(), [RECORD, "note"]);
        let spec = &remote["spec"];
        assert_eq!(
            spec["volumes"],
            json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data-web-0"}}])
        );
        let container = &spec["containers"][0];
        assert_eq!(
            container["volumeMounts"],
            json!([{"name": "data", "mountPath": "/data"}])
        );
        assert_eq!(container["env"][0], json!({"name": "ACCOUNT", "value": "runner"}));
        assert_eq!(
            container["env"][1]["valueFrom"]["fieldRef"]["fieldPath"],
            "spec.nodeName"
        );
        assert_eq!(spec["serviceAccountName"], "default");
        assert_eq!(spec["automountServiceAccountToken"], false);
        assert_eq!(spec["nodeSelector"], json!({"kubernetes.io/os": "linux"}));
        assert_eq!(spec["tolerations"].as_array().unwrap().len(), 1);
        assert_eq!(spec["schedulingGates"], json!([{"name": GATE}]));
        assert_eq!(spec["hostname"], "web-0");
        let hasty = made(&json!({"containers": [], "terminationGracePeriodSeconds": 0}));
        assert_eq!(hasty["spec"]["terminationGracePeriodSeconds"], 1);
        for field in LEFT_OUT
            .iter()
            .filter(|field| !field.contains("ccount") && **field != "schedulingGates")
        {
            assert_eq!(spec[field], Value::Null, "{field}");
        }
        assert_eq!(claims(&pod(&usual())), ["data-web-0"]);
    }

    #[test]
    fn what_is_of_home_only_is_refused_by_its_name() {
        let containers = json!([{"name": "a", "image": "a"}]);
        for (field, value) in [
            ("hostNetwork", json!(true)),
            ("hostPID", json!(true)),
            ("hostIPC", json!(true)),
            ("resourceClaims", json!([{"name": "gpu"}])),
            ("schedulingGroup", json!({"podGroupName": "a"})),
        ] {
            let mut spec = json!({ "containers": containers });
            spec[field] = value;
            assert_eq!(refused(&spec), PodRefused::AtHomeOnly(field.into()));
        }
        made(&json!({"containers": containers, "hostNetwork": false, "resourceClaims": []}));
    }

    #[test]
    fn fields_with_another_meaning_there_are_reported() {
        let reasons = |spec: &Value| {
            let all = caveats(&pod(spec), "milan");
            all.into_iter()
                .map(|(reason, note)| {
                    assert!(note.contains("milan") && note.contains("keep the pod"), "{note}");
                    reason
                })
                .collect::<Vec<_>>()
        };
        let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]});
        let preferred = json!({"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]});
        let mut of_default = usual();
        of_default["serviceAccountName"] = "default".into();
        let mut without_token = usual();
        without_token["volumes"].as_array_mut().unwrap().pop();
        for (spec, said) in [
            (usual(), vec!["NoServiceAccountToken"]),
            (of_default, vec![]),
            (without_token, vec![]),
            (
                json!({"affinity": {"podAntiAffinity": preferred}, "dnsPolicy": "Default"}),
                vec![],
            ),
            (
                json!({"affinity": {"podAntiAffinity": required}}),
                vec!["PodAffinityIgnored"],
            ),
            (
                json!({"affinity": {"podAffinity": required, "podAntiAffinity": required}}),
                vec!["PodAffinityIgnored"],
            ),
            (
                json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.0.0.53"]}}),
                vec!["NameserversOfHome"],
            ),
        ] {
            assert_eq!(reasons(&spec), said, "{spec}");
        }
    }

    /// The names that follow `before` in a text.
    fn names<'a>(text: &'a str, before: &str) -> BTreeSet<&'a str> {
        let all = text.split(before).skip(1);
        all.filter_map(|rest| rest.split(|it: char| !it.is_alphanumeric()).next())
            .collect()
    }

    #[test]
    fn the_policies_of_the_chart_hold_the_same_pods_at_home() {
        let chart = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../deploy/chart/liqo-csi/templates/offloading.yaml"
        );
        let chart = std::fs::read_to_string(chart).unwrap();
        let (_, policy) = chart.split_once("- name: whyHomebound").unwrap();
        let (policy, _) = policy.split_once("- name: homebound").unwrap();
        let mut fields = names(policy, "object.spec.?");
        fields.extend(names(policy, "has(object.spec."));
        assert_eq!(fields, AT_HOME_ONLY.into());
        for field in fields {
            for value in [json!(true), json!([{}]), json!({"podGroupName": "a"})] {
                assert!(is_homebound(&pod(&json!({field: value}))), "{field}");
            }
        }
        let (kinds, sources) = (names(policy, "has(v."), names(policy, "has(s."));
        assert_eq!(kinds, volumes::AT_HOME_ONLY.into());
        assert_eq!(sources, volumes::SOURCES_AT_HOME_ONLY.into());
        let with = |volume: Value| json!({"containers": [], "volumes": [volume]});
        let kinds = kinds.iter().map(|kind| with(json!({"name": "v", *kind: {}})));
        let sources = sources.iter().map(|source| json!({"sources": [{*source: {}}]}));
        let sources = sources.map(|sources| with(json!({"name": "v", "projected": sources})));
        for spec in kinds.chain(sources) {
            assert!(is_homebound(&pod(&spec)), "{spec}");
            assert!(matches!(refused(&spec), PodRefused::AtHomeOnly(_)), "{spec}");
        }
        // The volume that Kubernetes adds for the token is omitted from the remote pod.
        assert!(policy.contains("!v.name.startsWith('kube-api-access-')"));
        assert!(!is_homebound(&pod(&usual())));
        let mut token = usual();
        token["volumes"][1]["projected"]["sources"][1] = json!({"podCertificate": {}});
        assert!(is_homebound(&pod(&token)));
    }

    #[test]
    fn the_remote_cluster_says_where_its_pods_run() {
        let settings = RemoteSettings {
            node_selector: [("pool".to_owned(), "guests".to_owned())].into(),
            tolerations: vec![json!({"key": "guests", "operator": "Exists"})],
            priority_class: Some("low".into()),
            home: "home".into(),
            claims: BTreeMap::new(),
            runtime_class: Some("gvisor".into()),
        };
        let spec = |class| {
            json!({"containers": [], "runtimeClassName": class, "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 3},
            ]})
        };
        let made = |class| remote_pod(&pod(&spec(class)), &RemoteMarks::default(), &settings).unwrap();
        let remote = &made("liqo")["spec"];
        assert_eq!(remote["nodeSelector"], json!({"pool": "guests"}));
        assert_eq!(
            remote["tolerations"],
            json!([{"key": "guests", "operator": "Exists"}])
        );
        assert_eq!(remote["priorityClassName"], "low");
        assert_eq!(remote["runtimeClassName"], "gvisor");
        assert_eq!(made("kata")["spec"]["runtimeClassName"], "kata");
        let spread = &remote["topologySpreadConstraints"][0];
        assert_eq!(
            (&spread["whenUnsatisfiable"], &spread["minDomains"]),
            (&json!("ScheduleAnyway"), &Value::Null)
        );
    }

    #[test]
    fn a_pod_runs_there_on_machines_that_its_images_are_built_for() {
        let amd = json!({"key": "kubernetes.io/arch", "operator": "NotIn", "values": ["arm64"]});
        let zone = json!({"key": "zone", "operator": "Exists"});
        let virtual_nodes =
            |operator: &str| json!({"key": NODE_KIND, "operator": operator, "values": ["virtual-node"]});
        let real = virtual_nodes("NotIn");
        let both = json!([{"matchExpressions": [amd, real]}]);
        let any = json!([{"matchExpressions": [real]}]);
        for (own, wanted) in [
            (json!([]), &any),
            (
                json!([{"matchExpressions": [zone, amd, virtual_nodes("In")]}]),
                &both,
            ),
            (
                json!([{"matchExpressions": [amd]}, {"matchExpressions": [zone]}]),
                &any,
            ),
            // What the policies add for nodes of this cluster.
            (
                json!([{"matchExpressions": [amd, virtual_nodes("In")]}, {"matchExpressions": [real]}]),
                &both,
            ),
            (
                json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["milan"]}]}]),
                &any,
            ),
        ] {
            let required = json!({ "nodeSelectorTerms": own });
            let affinity =
                json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}});
            let made = made(&json!({"containers": [], "affinity": affinity}));
            let required =
                &made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
            assert_eq!(required["nodeSelectorTerms"], *wanted, "{own}");
        }
        let selector = json!({"beta.kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux"});
        let selecting = made(&json!({"containers": [], "nodeSelector": selector}));
        assert_eq!(selecting["spec"]["nodeSelector"], selector);
    }

    #[test]
    fn what_a_pod_is_configured_by_is_found_wherever_it_is_named() {
        let home = pod(&json!({
            "initContainers": [{"name": "i", "envFrom": [
                {"configMapRef": {"name": "c1"}}, {"secretRef": {"name": "s1", "optional": true}},
            ]}],
            "containers": [{"name": "a", "env": [
                {"name": "A", "value": "a"},
                {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "c2", "key": "b", "optional": true}}},
                {"name": "C", "valueFrom": {"secretKeyRef": {"name": "s2", "key": "c"}}},
            ]}],
            "volumes": [
                {"name": "a", "configMap": {"name": "c3"}},
                {"name": "b", "secret": {"secretName": "s3"}},
                {"name": "c", "projected": {"sources": [{"configMap": {"name": "c4"}}, {"secret": {"name": "s4"}}]}},
                {"name": "d", "emptyDir": {}},
            ],
            "imagePullSecrets": [{"name": "s5"}],
        }));
        let mut names: Vec<String> = configuration(&home).into_iter().map(|(_, name)| name).collect();
        names.sort_unstable();
        assert_eq!(names, ["c1", "c2", "c3", "c4", "s1", "s2", "s3", "s4", "s5"]);
        for (kind, name) in configuration(&home) {
            assert_eq!(kind == Kind::Secret, name.starts_with('s'), "{name}");
        }
        assert_eq!(secrets(&home), ["s2", "s3", "s4"].map(str::to_owned).into());
    }

    #[test]
    fn variables_from_certificates_of_home_are_from_the_copy() {
        let container = |name: &str| {
            json!({
                "name": "a",
                "env": [{"name": "CA", "valueFrom": {"configMapKeyRef": {"name": name, "key": "ca.crt"}}}],
                "envFrom": [{"configMapRef": {"name": name}}, {"secretRef": {"name": "s"}}],
            })
        };
        let pod = pod(&json!({"containers": [container("kube-root-ca.crt")]}));
        let settings = RemoteSettings {
            home: "home".into(),
            ..RemoteSettings::default()
        };
        let remote = remote_pod(&pod, &RemoteMarks::default(), &settings).unwrap();
        let copy = name_of_copy(Kind::ConfigMap, "kube-root-ca.crt", "home");
        assert_eq!(remote["spec"]["containers"][0], container(&copy));
    }

    #[test]
    fn what_is_set_is_carried_whatever_its_value() {
        let spec = json!({
            "containers": [], "enableServiceLinks": false, "hostUsers": false, "shareProcessNamespace": false,
            "terminationGracePeriodSeconds": 5, "subdomain": "", "securityContext": {}, "newFeature": {"on": false},
        });
        let remote = &made(&spec)["spec"];
        for (field, value) in spec.as_object().unwrap() {
            assert_eq!(remote[field], *value, "{field}");
        }
    }

    #[test]
    fn constraints_that_spread_pods_are_ones_that_an_api_server_takes() {
        let constraint = |when: &str, skew: i64, selector: Value| {
            json!({
                "topologyKey": "zone", "whenUnsatisfiable": when, "maxSkew": skew,
                "labelSelector": selector, "matchLabelKeys": ["app", "absent"],
            })
        };
        let of_web = json!({"matchLabels": {"app": "web"}});
        let spread = |constraints: Value| {
            made(&json!({"containers": [], "topologySpreadConstraints": constraints}))["spec"]
                ["topologySpreadConstraints"]
                .clone()
        };
        let both = spread(json!([
            constraint("ScheduleAnyway", 1, of_web.clone()),
            constraint("DoNotSchedule", 2, of_web.clone()),
        ]));
        let wanted = json!({"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": 1, "labelSelector": of_web});
        assert_eq!(both, json!([wanted]));
        let of_all = json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]});
        let unequal = spread(json!([
            constraint("ScheduleAnyway", 1, of_web),
            constraint("DoNotSchedule", 2, of_all.clone()),
        ]));
        let with_app = json!({"matchExpressions": [
            {"key": "tier", "operator": "Exists"}, {"key": "app", "operator": "In", "values": ["web"]},
        ]});
        assert_eq!(unequal.as_array().unwrap().len(), 1);
        assert_eq!(unequal[0]["labelSelector"], with_app);
        assert_eq!(unequal[0]["maxSkew"], 2);
        let merged = spread(json!([constraint("DoNotSchedule", 1, with_app.clone())]));
        assert_eq!(
            merged[0]["labelSelector"], with_app,
            "the home API server was first"
        );
    }

    /// The conformance tests of Kubernetes add such an annotation when the container has failed without it.
    #[test]
    fn a_directory_that_an_annotation_names_may_get_its_name_later() {
        let annotation = json!({"name": "DIRECTORY", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['directory']"}}});
        let spec = json!({"containers": [{
            "name": "a", "env": [annotation],
            "volumeMounts": [{"name": "data", "mountPath": "/a", "subPathExpr": "$(DIRECTORY)/a"}],
        }]});
        assert_eq!(made(&spec)["spec"]["containers"][0]["env"], json!([annotation]));
    }

    #[test]
    fn a_directory_of_a_volume_has_the_same_name_everywhere() {
        let from =
            |name: &str, field: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}});
        let spec = json!({"nodeName": "milan", "containers": [{
            "name": "a",
            "env": [
                from("NAMESPACE", "metadata.namespace"),
                from("NODE", "spec.nodeName"),
                from("APP", "metadata.labels['app']"),
                from("SOURCE", "metadata.annotations['kubernetes.io/config.source']"),
                {"name": "BOTH", "value": "$(APP)-$(NAMESPACE)-$$(NODE)"},
                from("ELSEWHERE", "metadata.namespace"),
                from("IP", "status.podIP"),
            ],
            "volumeMounts": [
                {"name": "data", "mountPath": "/c", "subPathExpr": "$(SOURCE)"},
                {"name": "data", "mountPath": "/a", "subPathExpr": "x/$(BOTH)"},
                {"name": "data", "mountPath": "/b", "subPathExpr": "$(IP)"},
            ],
        }]});
        let mut home = pod(&spec);
        home["metadata"]["namespace"] = "shop".into();
        let remote = remote_pod(&home, &RemoteMarks::default(), &RemoteSettings::default()).unwrap();
        assert_eq!(
            remote["spec"]["containers"][0]["env"],
            json!([
                {"name": "NAMESPACE", "value": "shop"},
                from("NODE", "spec.nodeName"),
                from("APP", "metadata.labels['app']"),
                {"name": "SOURCE", "value": "api"},
                {"name": "BOTH", "value": "$(APP)-$(NAMESPACE)-$$(NODE)"},
                from("ELSEWHERE", "metadata.namespace"),
                from("IP", "status.podIP"),
            ])
        );
    }
}
