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
use crate::{offload::reflection::Kind, volume::has_domain};

/// Label of virtual nodes, here and in remote clusters that have their own.
const NODE_KIND: &str = "liqo.io/type";
const NODE_KIND_VIRTUAL: &str = "virtual-node";
/// The taint that keeps other pods off virtual nodes.
const TAINT: &str = "virtual-node.liqo.io/not-allowed";
/// The node labels that a pod may select in the remote cluster: what its images are built for.
pub(super) const CARRIED_NODE_LABELS: [&str; 4] = [
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
/// Prefixes of labels and annotations that describe the home cluster, or belong to the fabric.
const OWN_KEYS: [&str; 3] = [
    "fabric.storage.liqo.io/",
    "liqo.io/shadowPod",
    "kubectl.kubernetes.io/last-applied-configuration",
];
/// Labels that API servers overwrite with those of the node (`PodTopologyLabels`).
const LABELS_OF_NODES: [&str; 2] = ["topology.kubernetes.io/region", "topology.kubernetes.io/zone"];
/// Prefixes of annotations that the kubelet, admission or the network wrote about the home pod: they would be
/// wrong on the remote pod.
const ABOUT_HOME: [&str; 7] = [
    "cni.projectcalico.org/containerID",
    "cni.projectcalico.org/podIP",
    "k8s.ovn.org/pod-networks",
    "k8s.v1.cni.cncf.io/network-status",
    "k8s.v1.cni.cncf.io/networks-status",
    "kubernetes.io/config.",
    "kubernetes.io/limit-ranger",
];
/// Annotations that Kube-OVN writes about the networks of a pod, with `ovn.kubernetes.io` or the name of a network before
/// that. Those that only users write (security groups, rates) are carried.
const BY_KUBE_OVN: [&str; 12] = [
    "allocated",
    "cidr",
    "gateway",
    "ip_address",
    "logical_router",
    "logical_switch",
    "mac_address",
    "pod_nic_type",
    "provider_network",
    "routed",
    "virtualmachine",
    "vlan_id",
];
/// Domains of annotations by which deployment tools recognise their objects: in the remote cluster they would
/// consider the pod theirs, and prune it. Their other annotations, such as those of Argo Workflows, are read by pods.
const TRACKING: [&str; 8] = [
    "argocd.argoproj.io",
    "configmanagement.gke.io",
    "configsync.gke.io",
    "fleet.cattle.io",
    "fluxcd.io",
    "kapp.k14s.io",
    "meta.helm.sh",
    "objectset.rio.cattle.io",
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

/// Affinities to other pods, and their fields.
pub(super) const POD_AFFINITIES: [&str; 2] = ["podAffinity", "podAntiAffinity"];
pub(super) const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
pub(super) const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

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

/// cluster-autoscaler removes no node with a pod that has another controller than these, unless this annotation
/// allows it. The controller of a remote pod is its namespace.
const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
const EVICTED_CONTROLLERS: [&str; 4] = ["Job", "ReplicaSet", "ReplicationController", "StatefulSet"];

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
    /// Keys of labels and of annotations that stay at home; one that ends with `*` is a prefix.
    pub skip_labels: Vec<String>,
    pub skip_annotations: Vec<String>,
}

/// The home pod as it is carried by these settings: without the labels and annotations that stay at home, and with
/// the names of copies in its containers, also in those that are added later.
#[must_use]
pub fn as_carried(mut home: Value, settings: &RemoteSettings) -> Value {
    for (field, skipped) in [
        ("labels", &settings.skip_labels),
        ("annotations", &settings.skip_annotations),
    ] {
        if let Some(pairs) = home["metadata"][field].as_object_mut() {
            pairs.retain(|key, _| !is_skipped(key, skipped));
        }
    }
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        let all = home["spec"].get_mut(list).and_then(Value::as_array_mut);
        for container in all.into_iter().flatten() {
            name_copies(container, &settings.home);
        }
    }
    home
}

fn is_skipped(key: &str, skipped: &[String]) -> bool {
    skipped.iter().any(|skipped| match skipped.strip_suffix('*') {
        Some(prefix) => key.starts_with(prefix),
        None => key == skipped,
    })
}

/// Whether remote pods do not have the label of this key from home, with these `skip_labels`.
#[must_use]
pub fn leaves_out_label(key: &str, skip_labels: &[String]) -> bool {
    !is_carried_label(key) || is_skipped(key, skip_labels)
}

/// The remote pod of a home pod, as JSON: its name, the marks, the gate, and no namespace.
pub fn remote_pod(home: &Value, marks: &RemoteMarks, settings: &RemoteSettings) -> Result<Value, PodRefused> {
    let none = Map::new();
    let kept = as_carried(home.clone(), settings);
    let spec = kept["spec"].as_object().unwrap_or(&none);
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
    set(&mut remote, "volumes", volumes::remote(&home["spec"], settings)?);
    for field in ["containers", "initContainers"] {
        for container in array_mut(&mut remote, field) {
            keep_paths(container, home, &kept);
            fill_account_name(container, spec);
        }
    }
    let mut labels = carried_labels(&kept);
    remote.insert("affinity".into(), affinity(home, &labels));
    set(&mut remote, "nodeSelector", node_selector(spec, settings));
    set(&mut remote, "tolerations", tolerations(&home["spec"], settings));
    set(
        &mut remote,
        "topologySpreadConstraints",
        spread(&home["spec"], &labels),
    );
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
    labels.extend(marks.labels.clone());
    let mut annotations = carried_annotations(&kept);
    annotations.insert(RECORD.to_owned(), changes::record(&kept));
    if is_safe_to_evict(home) {
        annotations.insert(SAFE_TO_EVICT.to_owned(), "true".to_owned());
    }
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
    AT_HOME_ONLY.iter().any(|field| !is_empty(&spec[field])) || volumes::are_homebound(spec)
}

/// The labels that are carried to the remote pod.
pub(super) fn carried_labels(home: &Value) -> BTreeMap<String, String> {
    let mut carried = carried(&home["metadata"]["labels"]);
    carried.retain(|key, _| is_carried_label(key));
    carried
}

/// The annotations that are carried to the remote pod.
pub(super) fn carried_annotations(home: &Value) -> BTreeMap<String, String> {
    let mut carried = carried(&home["metadata"]["annotations"]);
    carried.retain(|key, _| is_carried_annotation(key, home));
    carried
}

fn is_carried(key: &str) -> bool {
    !OWN_KEYS.iter().any(|own| key.starts_with(own))
}

fn is_carried_label(key: &str) -> bool {
    is_carried(key) && !LABELS_OF_NODES.contains(&key)
}

fn is_carried_annotation(key: &str, home: &Value) -> bool {
    let is_tracking = TRACKING.iter().any(|tool| has_domain(key, tool));
    is_carried(key)
        && !ABOUT_HOME.iter().any(|one| key.starts_with(one))
        && !is_by_kube_ovn(key)
        && (!is_tracking || names_field(&home["spec"], &format!("metadata.annotations['{key}']")))
}

fn is_by_kube_ovn(key: &str) -> bool {
    let name = key.split_once('/').map(|(_, name)| name);
    has_domain(key, "ovn.kubernetes.io") && name.is_some_and(|name| BY_KUBE_OVN.contains(&name))
}

/// Whether a variable or volume has this field of the downward API.
fn names_field(part: &Value, path: &str) -> bool {
    match part {
        Value::Object(all) => {
            all.get("fieldPath").is_some_and(|field| field == path)
                || all.values().any(|one| names_field(one, path))
        }
        Value::Array(all) => all.iter().any(|one| names_field(one, path)),
        _ => false,
    }
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
    let all = home["spec"]["ephemeralContainers"]
        .as_array()
        .into_iter()
        .flatten();
    let carried = all.cloned().map(|mut container| {
        fill_account_name(&mut container, spec);
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

/// `ConfigMap`s and Secrets, and for each whether it is required.
pub type Configuration = BTreeMap<(Kind, String), bool>;

/// The `ConfigMap`s and Secrets that a pod refers to. The CA certificates of its token's volume are not
/// included: its remote pod has no such volume.
#[must_use]
pub fn configuration(home: &Value) -> Configuration {
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
    let volumes = volumes::without_tokens(spec);
    let projected = volumes.iter().flat_map(|one| list(&one["projected"]["sources"]));
    let used = variables
        .map(|one| one["valueFrom"].clone())
        .chain(sources)
        .chain(projected)
        .chain(volumes.iter().copied().cloned())
        .flat_map(|one| KEYS.map(|(kind, key)| (kind, one[key].clone())))
        .filter_map(|(kind, source)| {
            let name = source["name"].as_str().or(source["secretName"].as_str())?;
            Some(((kind, name.to_owned()), source["optional"] != true))
        });
    let secret = |name: &str, is_required| ((Kind::Secret, name.to_owned()), is_required);
    let mounting = volumes.iter().copied().flat_map(volumes::secrets);
    let mounting = mounting.map(|name| secret(name, true));
    let pulled = spec["imagePullSecrets"].as_array().into_iter().flatten();
    let pulled = pulled.filter_map(|one| Some(secret(one["name"].as_str()?, false)));
    let mut all = Configuration::new();
    for (object, is_required) in used.chain(mounting).chain(pulled) {
        *all.entry(object).or_default() |= is_required;
    }
    all
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

/// Whether cluster-autoscaler would evict the home pod by default, from a node of its own cluster.
fn is_safe_to_evict(home: &Value) -> bool {
    let meta = &home["metadata"];
    let mut owners = meta["ownerReferences"].as_array().into_iter().flatten();
    let mut volumes = home["spec"]["volumes"].as_array().into_iter().flatten();
    let is_replaced = |owner: &Value| {
        owner["controller"] == true && EVICTED_CONTROLLERS.iter().any(|kind| owner["kind"] == *kind)
    };
    let is_local =
        |volume: &Value| volume["emptyDir"].is_object() && volume["emptyDir"]["medium"] != "Memory";
    meta["annotations"][SAFE_TO_EVICT].is_null() && owners.any(is_replaced) && !volumes.any(is_local)
}

fn carried(pairs: &Value) -> BTreeMap<String, String> {
    let pairs = pairs.as_object().into_iter().flatten();
    pairs
        .filter(|(key, _)| is_carried(key))
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// Whether a list, an object or a flag has no effect.
pub(super) fn is_empty(value: &Value) -> bool {
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

/// Variables for the name of the service account get the one that the pod has at home.
fn fill_account_name(container: &mut Value, spec: &Map<String, Value>) {
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
fn keep_paths(container: &mut Value, home: &Value, kept: &Value) {
    for name in path_variables(container) {
        let mut variables = container["env"].as_array_mut().into_iter().flatten();
        // If variables have the same name, the last one wins.
        if let Some(variable) = variables.rfind(|one| one["name"] == name.as_str())
            && let Some(field) = variable["valueFrom"]["fieldRef"]["fieldPath"].as_str()
            && let Some(value) = field_of(home, kept, field)
        {
            *variable = json!({"name": name, "value": value.replace('$', "$$")});
        }
    }
}

/// The variables that a `subPathExpr` uses, also through others.
pub(super) fn path_variables(container: &Value) -> Vec<String> {
    let mounts = container["volumeMounts"].as_array().into_iter().flatten();
    let mut used: Vec<String> = mounts
        .filter_map(|mount| mount["subPathExpr"].as_str())
        .flat_map(references)
        .collect();
    let mut next = 0;
    while let Some(name) = used.get(next) {
        let mut variables = container["env"].as_array().into_iter().flatten();
        let variable = variables.rfind(|one| one["name"] == name.as_str());
        let value = variable.and_then(|one| one["value"].as_str()).unwrap_or_default();
        let further = references(value)
            .filter(|one| !used.contains(one))
            .collect::<Vec<_>>();
        used.extend(further);
        next += 1;
    }
    used
}

/// The names in `$(NAME)`, as Kubernetes expands them: `$$` is a dollar sign.
pub(super) fn references(text: &str) -> impl Iterator<Item = String> {
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
pub(super) fn field_of(home: &Value, kept: &Value, path: &str) -> Option<String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    if let Some((map, key)) = path.strip_suffix("']").and_then(|path| path.split_once("['")) {
        let is_carried = match map {
            "metadata.labels" => is_carried_label(key),
            "metadata.annotations" => is_carried_annotation(key, home),
            _ => return None,
        };
        let map = map.trim_start_matches("metadata.");
        let (value, kept) = (&home["metadata"][map][key], &kept["metadata"][map][key]);
        return (!is_carried || value != kept).then(|| text(value).unwrap_or_default());
    }
    match path {
        "metadata.name" | "metadata.namespace" | "metadata.uid" => {
            text(&home["metadata"][path.trim_start_matches("metadata.")])
        }
        "spec.nodeName" | "spec.serviceAccountName" => text(&home["spec"][path.trim_start_matches("spec.")]),
        _ => None,
    }
}

fn affinity(home: &Value, labels: &BTreeMap<String, String>) -> Value {
    let (spec, own) = (&home["spec"], &home["metadata"]["namespace"]);
    let mut affinity = node_affinity(spec);
    for kind in POD_AFFINITIES {
        let preferred = preferred_terms(&spec["affinity"][kind], own, labels);
        if !preferred.is_empty() {
            affinity[kind] = json!({ PREFERRED: preferred });
        }
    }
    affinity
}

/// The terms of an affinity to other pods, of a pod of the namespace `own`. As with spreading, they can only be a preference
/// there.
fn preferred_terms(affinity: &Value, own: &Value, labels: &BTreeMap<String, String>) -> Vec<Value> {
    let list = |field: &str| affinity[field].as_array().into_iter().flatten();
    let required = list(REQUIRED).map(|term| json!({"weight": 100, "podAffinityTerm": term}));
    let mut all: Vec<Value> = list(PREFERRED).cloned().chain(required).collect();
    all.retain(|one| !names_namespaces(&one["podAffinityTerm"], own));
    for one in &mut all {
        let term = &mut one["podAffinityTerm"];
        // The list can only have the pod's own namespace, which is the default, and may have another name there.
        if let Some(term) = term.as_object_mut() {
            term.remove("namespaces");
        }
        for field in ["matchLabelKeys", "mismatchLabelKeys"] {
            take_keys(term, field, labels);
        }
    }
    all
}

/// Whether a term of a pod of the namespace `own` is about other namespaces, which are others in the remote cluster. An
/// empty selector is about all there are.
pub(super) fn names_namespaces(term: &Value, own: &Value) -> bool {
    let mut named = term["namespaces"].as_array().into_iter().flatten();
    named.any(|it| it != own) || !is_empty(&term["namespaceSelector"])
}

/// Takes a field with keys of labels out of a term. In its selector, into which the API server at home may have merged
/// them, those of labels that stay at home are deleted: such a selector would match no remote pod. An API server
/// refuses a key that is in both.
fn take_keys(term: &mut Value, field: &str, labels: &BTreeMap<String, String>) -> Vec<String> {
    let keys = term.as_object_mut().and_then(|term| term.remove(field));
    let keys = keys.as_ref().and_then(Value::as_array).into_iter().flatten();
    let keys: Vec<String> = keys.filter_map(Value::as_str).map(str::to_owned).collect();
    let expressions = term.pointer_mut("/labelSelector/matchExpressions");
    if let Some(expressions) = expressions.and_then(Value::as_array_mut) {
        let is_left_out = |key: &str| keys.iter().any(|it| it == key) && !labels.contains_key(key);
        expressions.retain(|one| !one["key"].as_str().is_some_and(is_left_out));
    }
    keys
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

/// Whether a requirement excludes virtual nodes: the node that was chosen for the pod does not meet such a term.
pub(super) fn excludes_virtual_nodes(requirement: &Value) -> bool {
    let mut values = requirement["values"].as_array().into_iter().flatten();
    let is_excluded = match requirement["operator"].as_str() {
        Some("DoesNotExist") => true,
        Some("NotIn") => values.any(|value| value == NODE_KIND_VIRTUAL),
        _ => false,
    };
    requirement["key"] == NODE_KIND && is_excluded
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
/// server accepts one such constraint for each topology key; of a hard and a soft one, the hard one stays. Nodes there have
/// no labels of this driver, and a scheduler does not score nodes without the key of a constraint at all.
fn spread(spec: &Value, labels: &BTreeMap<String, String>) -> Value {
    let all = spec["topologySpreadConstraints"].as_array();
    let mut all: Vec<Value> = all.into_iter().flatten().cloned().collect();
    all.retain(|one| !has_domain(one["topologyKey"].as_str().unwrap_or_default(), "liqo.io"));
    all.sort_by_key(|one| one["whenUnsatisfiable"] != "DoNotSchedule");
    let mut softened: Vec<Value> = Vec::new();
    for mut one in all {
        one["whenUnsatisfiable"] = "ScheduleAnyway".into();
        select_by_keys(&mut one, labels);
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

/// Moves `matchLabelKeys` into the selector, where the home API server may have added them already.
fn select_by_keys(constraint: &mut Value, labels: &BTreeMap<String, String>) {
    for key in take_keys(constraint, "matchLabelKeys", labels) {
        let selector = &mut constraint["labelSelector"];
        let expressions = selector["matchExpressions"].as_array().into_iter().flatten();
        let is_selected = selector["matchLabels"].get(&key).is_some()
            || expressions.into_iter().any(|one| one["key"] == key.as_str());
        // A key without a label on the pod is ignored, as in Kubernetes.
        let Some(value) = labels.get(&key).filter(|_| !is_selected) else {
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
mod tests;
