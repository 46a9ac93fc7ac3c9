//! What the remote pod looks like. Every field of a pod has its rule here or in [`super::volumes`]:
//! carried as it is, left out, changed, or refused. A field that has no rule is refused by its
//! name, so that nothing is lost in silence when Kubernetes has a new one. Pods are read field by
//! field, because typed definitions drop what they do not know.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{
    GATE,
    changes::{self, CARRIED as RECORD},
    volumes,
};
use crate::volume::marks_ownership;

/// Label of virtual nodes, here and in remote clusters that have their own.
const NODE_KIND: &str = "liqo.io/type";
const NODE_KIND_VIRTUAL: &str = "virtual-node";
/// The taint that keeps other pods off virtual nodes.
const TAINT: &str = "virtual-node.liqo.io/not-allowed";
/// What a pod may ask of its node there.
const CARRIED_NODE_LABELS: [&str; 2] = ["kubernetes.io/os", "kubernetes.io/arch"];
/// Keys of labels and annotations that speak about the home cluster, or belong to the fabric.
const OWN_KEYS: [&str; 4] = [
    "fabric.storage.liqo.io/",
    // Kubernetes copies these from the node.
    "topology.kubernetes.io/",
    "liqo.io/shadowPod",
    "kubectl.kubernetes.io/last-applied-configuration",
];
/// Keys of annotations that were written about the pod here, by the kubelet, admission or the
/// network: there they would lie.
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
/// Its pods would be there what they are here: bound to one machine.
const PLACE_OF_HOME: [&str; 3] = ["hostNetwork", "hostPID", "hostIPC"];

/// Fields of the spec that are carried as they are.
const CARRIED: [&str; 19] = [
    "activeDeadlineSeconds",
    "containers",
    "dnsConfig",
    "dnsPolicy",
    "enableServiceLinks",
    "hostAliases",
    "hostname",
    "hostnameOverride",
    "hostUsers",
    "imagePullSecrets",
    "initContainers",
    "os",
    "resources",
    "restartPolicy",
    "securityContext",
    "setHostnameAsFQDN",
    "shareProcessNamespace",
    "subdomain",
    "terminationGracePeriodSeconds",
];
/// Fields that have served when a pod has its node, or that concern the home cluster alone.
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

/// The largest pod, in KiB. Those with sidecars have 15.
const LARGEST: usize = 256;

/// Why a pod cannot run in a remote cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PodRefused {
    /// It asks for what is only in the cluster that it was made in.
    #[error(
        "it has spec.{0}, which means something in this cluster only: keep the pod on nodes of this cluster"
    )]
    AtHomeOnly(String),
    /// The fabric does not know what the field means.
    #[error(
        "it has spec.{0}, which this version of the fabric does not know: keep the pod on nodes of this cluster"
    )]
    Unknown(String),
    /// It is larger than what anybody means by a pod: it would weigh on all that know of it.
    #[error(
        "it has {0} KiB, and pods of more than {LARGEST} KiB are not sent: put large values into ConfigMaps or Secrets, or \
         keep the pod on nodes of this cluster"
    )]
    TooLarge(usize),
}

/// By what the remote pod is known as ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteMarks {
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
}

/// What the `RemoteCluster` says of pods there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteSettings {
    /// Labels of the nodes that they may run on.
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations that they get, as pods have them.
    pub tolerations: Vec<Value>,
    /// Their priority class.
    pub priority_class: Option<String>,
    /// The id of the home cluster: the copy of its certificates is named after it.
    pub home: String,
    /// Their runtime class, unless the pod has one of its own other than `liqo`.
    pub runtime_class: Option<String>,
}

/// The remote pod of a home pod, as JSON: its name, the marks, the gate, and no namespace.
pub fn remote_pod(home: &Value, marks: &RemoteMarks, settings: &RemoteSettings) -> Result<Value, PodRefused> {
    let none = Map::new();
    let spec = home["spec"].as_object().unwrap_or(&none);
    let mut remote = Map::new();
    for (field, value) in spec {
        match field.as_str() {
            _ if is_unset(value) => {}
            known if CARRIED.contains(&known) => {
                remote.insert(field.clone(), value.clone());
            }
            known if LEFT_OUT.contains(&known) => {}
            known if PLACE_OF_HOME.contains(&known) => return Err(PodRefused::AtHomeOnly(field.clone())),
            "resourceClaims" | "schedulingGroup" => return Err(PodRefused::AtHomeOnly(field.clone())),
            // Written below.
            "affinity" | "nodeSelector" | "tolerations" | "topologySpreadConstraints" | "volumes" => {}
            _ => return Err(PodRefused::Unknown(field.clone())),
        }
    }
    let (kept, tokens) = volumes::remote(spec.get("volumes"), &settings.home)?;
    set(&mut remote, "volumes", kept);
    for field in ["containers", "initContainers"] {
        for container in array_mut(&mut remote, field) {
            without_mounts(container, &tokens);
            tell_account(container, spec);
        }
    }
    remote.insert("affinity".into(), real_nodes_only());
    set(&mut remote, "nodeSelector", node_selector(spec, settings));
    set(&mut remote, "tolerations", tolerations(&home["spec"], settings));
    set(&mut remote, "topologySpreadConstraints", spread(spec));
    let own = spec.get("runtimeClassName").and_then(Value::as_str);
    let own = own.filter(|class| *class != "liqo");
    if let Some(class) = own.or(settings.runtime_class.as_deref()) {
        remote.insert("runtimeClassName".into(), class.into());
    }
    if let Some(class) = &settings.priority_class {
        remote.insert("priorityClassName".into(), class.as_str().into());
    }
    // With no time to end, its name would be free there while it still runs. Less than none
    // means one second.
    let grace = spec.get("terminationGracePeriodSeconds").and_then(Value::as_i64);
    if grace.is_some_and(|seconds| seconds < 1) {
        remote.insert("terminationGracePeriodSeconds".into(), 1.into());
    }
    // Who it is at home is nobody there.
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

/// The labels of a home pod that its remote pod has.
pub(super) fn carried_labels(home: &Value) -> BTreeMap<String, String> {
    carried(&home["metadata"]["labels"])
}

/// The annotations of a home pod that its remote pod has. Tools there would take it for theirs by
/// some of the others, and prune it.
pub(super) fn carried_annotations(home: &Value) -> BTreeMap<String, String> {
    let mut carried = carried(&home["metadata"]["annotations"]);
    carried.retain(|key, _| !marks_ownership(key) && !ABOUT_HOME.iter().any(|one| key.starts_with(one)));
    carried
}

/// The tolerations of a home pod that its remote pod has.
pub(super) fn carried_tolerations(spec: &Value) -> impl Iterator<Item = &Value> {
    let all = spec["tolerations"].as_array().into_iter().flatten();
    all.filter(|one| {
        let key = one["key"].as_str().unwrap_or_default();
        !key.is_empty() && key != TAINT
    })
}

/// The ephemeral containers of a home pod, as its remote pod has them.
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

/// The names of the claims that a pod uses.
#[must_use]
pub fn claims(home: &Value) -> Vec<String> {
    let volumes = home["spec"]["volumes"].as_array().into_iter().flatten();
    volumes
        .filter_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str())
        .map(str::to_owned)
        .collect()
}

fn carried(pairs: &Value) -> BTreeMap<String, String> {
    let pairs = pairs.as_object().into_iter().flatten();
    pairs
        .filter(|(key, _)| !OWN_KEYS.iter().any(|own| key.starts_with(own)))
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// Whether a field says no more than its absence does.
fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::String(_) => false,
    }
}

fn set(spec: &mut Map<String, Value>, field: &str, value: Value) {
    if !is_unset(&value) {
        spec.insert(field.to_owned(), value);
    }
}

fn array_mut<'a>(spec: &'a mut Map<String, Value>, field: &str) -> impl Iterator<Item = &'a mut Value> {
    spec.get_mut(field)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
}

/// Takes the mounts of volumes out that the remote pod does not have.
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

/// A variable that is to hold the pod's service account holds the one that it has at home.
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

/// It never goes on from there to a third cluster, or back.
fn real_nodes_only() -> Value {
    let real = json!({"key": NODE_KIND, "operator": "NotIn", "values": [NODE_KIND_VIRTUAL]});
    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [real]}],
    }}})
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

/// The pods of a workload may be in several clusters: here they can only be asked to spread.
fn spread(spec: &Map<String, Value>) -> Value {
    let all = spec.get("topologySpreadConstraints").and_then(Value::as_array);
    let softened = all.into_iter().flatten().cloned().map(|mut one| {
        one["whenUnsatisfiable"] = "ScheduleAnyway".into();
        if let Some(one) = one.as_object_mut() {
            one.remove("minDomains");
        }
        one
    });
    softened.collect::<Vec<_>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// As the API server has a pod of a `StatefulSet`.
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
        let spec = json!({"containers": containers, "newFeature": {"on": true}});
        assert_eq!(refused(&spec), PodRefused::Unknown("newFeature".into()));
        made(&json!({"containers": containers, "hostNetwork": false, "newFeature": {}}));
    }

    #[test]
    fn the_remote_cluster_says_where_its_pods_run() {
        let settings = RemoteSettings {
            node_selector: [("pool".to_owned(), "guests".to_owned())].into(),
            tolerations: vec![json!({"key": "guests", "operator": "Exists"})],
            priority_class: Some("low".into()),
            home: "home".into(),
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
}
