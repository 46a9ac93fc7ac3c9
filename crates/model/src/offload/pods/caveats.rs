//! The fields of a pod that its remote cluster interprets differently, or ignores. Such a pod runs
//! there, and gets an event.

use std::{collections::BTreeSet, net::IpAddr};

use serde_json::Value;

use super::{
    hostname::long_hostname,
    spec::{
        CARRIED_NODE_LABELS, POD_AFFINITIES, PREFERRED, REQUIRED, RemoteSettings, as_carried,
        excludes_virtual_nodes, field_of, names_namespaces, path_variables, references,
    },
    volumes,
};
use crate::{
    offload::{
        cut,
        names::is_own_there,
        service_names::{add_namespaces, addresses, each_text, short_names},
    },
    volume::is_within,
};

/// Labels by which a pod selects virtual nodes, in addition to those in the domain liqo.io.
const OF_VIRTUAL_NODES: [&str; 3] = ["kubernetes.io/hostname", "kubernetes.io/role", "type"];
/// The fields of a container that may hold the name or the address of a Service.
const WITH_NAMES: [&str; 8] = [
    "args",
    "command",
    "env",
    "image",
    "lifecycle",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
];

/// Fields of a volume that name no server.
const WITHOUT_SERVER: [&str; 7] = [
    "configMap",
    "downwardAPI",
    "emptyDir",
    "name",
    "persistentVolumeClaim",
    "projected",
    "secret",
];
/// Kinds of which objects are not copied, and the attribute of an inline volume of this CSI driver that names one.
const BY_ATTRIBUTE: [(&str, &str, &str); 3] = [
    (
        "SecretProviderClass",
        "secrets-store.csi.k8s.io",
        "secretProviderClass",
    ),
    (
        "SecretProviderClass",
        "secrets-store-gke.csi.k8s.io",
        "secretProviderClass",
    ),
    ("Issuer", "csi.cert-manager.io", "csi.cert-manager.io/issuer-name"),
];
/// Such kinds, and the annotation of a pod that names one.
const BY_ANNOTATION: [(&str, &str); 4] = [
    ("NetworkAttachmentDefinition", "k8s.v1.cni.cncf.io/networks"),
    ("NetworkAttachmentDefinition", "v1.multus-cni.io/default-network"),
    ("IPPool", "cni.projectcalico.org/ipv4pools"),
    ("IPPool", "cni.projectcalico.org/ipv6pools"),
];
/// Reasons that concern all replicas of a workload alike: one event for all of them is enough.
const OF_ALL_REPLICAS: [&str; 4] = [
    "HostnameTooLong",
    "PodAffinityIgnored",
    "PriorityNotCarried",
    "TopologySpreadPreferred",
];
/// The longest name in an event.
const LONGEST_NAMED: usize = 128;
/// Prefixes of readiness gates of load balancers that send traffic to the addresses of pods: of Google, Tencent,
/// Alibaba and AWS.
const GATES_OF_BALANCERS: [&str; 4] = [
    "cloud.google.com/load-balancer-",
    "cloud.tencent.com/load-balancer-",
    "service.readiness.alibabacloud.com/",
    "target-health.",
];

/// The cluster and namespace in which a pod runs.
pub struct Destination<'a> {
    pub cluster: &'a str,
    /// The remote namespace.
    pub namespace: &'a str,
    /// Whether another namespace is offloaded under its own name.
    pub is_same_there: &'a (dyn Fn(&str) -> bool + Sync),
    /// Namespaces of this cluster, as far as short names in the pod may mean them.
    pub existing: BTreeSet<String>,
    /// Whether there are routes to the pods of the cluster.
    pub is_routed: bool,
    /// Labels by which the `clusterSelector` of the namespace and the `RemoteCluster` select the
    /// pod's node.
    pub selected: BTreeSet<String>,
    pub settings: &'a RemoteSettings,
}

/// The fields of a pod that have another meaning in a remote cluster: for each the reason of an event, and its
/// note.
#[must_use]
pub fn caveats(home: &Value, destination: &Destination<'_>) -> Vec<(&'static str, String)> {
    let (spec, cluster) = (&home["spec"], destination.cluster);
    let mut all = Vec::new();
    let labels = ignored_labels(spec, &destination.selected);
    if !labels.is_empty() {
        all.push((
            "NodeSelectorIgnored",
            format!(
                "the pod requires a node by {}: the virtual node of the cluster {cluster} meets that, and a node there need \
                 not: set pods.nodeSelector in RemoteCluster {cluster}, or keep the pod on nodes of this cluster",
                joined(&labels)
            ),
        ));
    }
    all.extend(pod_affinity(spec, cluster));
    all.extend(spread_preferred(spec, cluster));
    all.extend(priority_left_out(spec, destination));
    let account = spec["serviceAccountName"].as_str().unwrap_or("default");
    if !matches!(account, "" | "default") && volumes::has_token(spec) {
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
    all.extend(not_copied(home, destination));
    all.extend(gate_of_home(spec, destination));
    all.extend(agent_of_node(spec, cluster));
    all.extend(names_of_home(home, destination));
    all.extend(path_of_home(home, destination));
    all.extend(long_hostname(home, destination));
    all
}

/// Whether one event with this reason is enough for all pods of an owner.
#[must_use]
pub fn is_of_all_replicas(reason: &str) -> bool {
    OF_ALL_REPLICAS.contains(&reason)
}

/// The namespaces that short names such as `db.data` in a pod may mean.
#[must_use]
pub fn short_namespaces(home: &Value) -> BTreeSet<&str> {
    let mut all = BTreeSet::new();
    for (_, part) in with_names(&home["spec"]) {
        each_text(part, &mut |text| all.extend(short_names(text)));
    }
    all.remove(home["metadata"]["namespace"].as_str().unwrap_or_default());
    all
}

/// The fields of a pod that may hold the address of a Service, and the addresses in each.
#[must_use]
pub fn named_addresses(home: &Value) -> Vec<(String, BTreeSet<IpAddr>)> {
    let all = with_names(&home["spec"]).into_iter().map(|(place, part)| {
        let mut found = BTreeSet::new();
        each_text(part, &mut |text| found.extend(addresses(text)));
        (place, found)
    });
    all.filter(|(_, found)| !found.is_empty()).collect()
}

/// A pod that names objects of kinds that are not copied.
fn not_copied(home: &Value, destination: &Destination<'_>) -> Option<(&'static str, String)> {
    let mut all = BTreeSet::new();
    let text = |value: &Value| value.as_str().map(|it| cut(it, LONGEST_NAMED));
    for volume in volumes::all(&home["spec"]) {
        for (kind, driver, attribute) in BY_ATTRIBUTE {
            let named = text(&volume["csi"]["volumeAttributes"][attribute]);
            if let Some(named) = named.filter(|_| volume["csi"]["driver"] == driver) {
                let place = volume["name"].as_str().unwrap_or_default();
                all.insert(format!("{kind} {named} (spec.volumes[{place}])"));
            }
        }
    }
    for (kind, annotation) in BY_ANNOTATION {
        if let Some(named) = text(&home["metadata"]["annotations"][annotation]) {
            all.insert(format!("{kind} {named} (annotation {annotation})"));
        }
    }
    let note = format!(
        "the pod names objects of kinds that are not copied: {}. In the cluster {} those of the namespace {} or of that cluster \
         count, and without them it does not start or lacks what they give it: create them there, or keep the pod on nodes of \
         this cluster",
        joined(&all),
        destination.cluster,
        destination.namespace
    );
    (!all.is_empty()).then_some(("NotCopied", note))
}

/// Whether a volume of the pod may create Secrets when it is mounted.
#[must_use]
pub fn creates_secrets(home: &Value) -> bool {
    volumes::all(&home["spec"]).any(|volume| {
        let mut drivers = BY_ATTRIBUTE
            .iter()
            .filter(|(kind, ..)| *kind == "SecretProviderClass");
        drivers.any(|(_, driver, _)| volume["csi"]["driver"] == *driver)
    })
}

/// A pod with readiness gates of load balancers that do not reach it.
fn gate_of_home(spec: &Value, destination: &Destination<'_>) -> Option<(&'static str, String)> {
    let gates = spec["readinessGates"].as_array().into_iter().flatten();
    let gates = gates.filter_map(|gate| gate["conditionType"].as_str());
    let gates: BTreeSet<&str> = gates
        .filter(|gate| GATES_OF_BALANCERS.iter().any(|prefix| gate.starts_with(prefix)))
        .collect();
    let cluster = destination.cluster;
    let note = format!(
        "the pod has readiness gates of a load balancer ({}), which sends traffic to addresses of pods, and it has none here, as \
         there are no routes to the cluster {cluster} (spec.fabric.network of RemoteCluster {cluster} is Isolated): it does not \
         become ready. Set the mode Routed if there are routes, or keep the pod on nodes of this cluster",
        joined(&gates)
    );
    (!gates.is_empty() && !destination.is_routed).then_some(("ReadinessGateOfHome", note))
}

/// A pod of the account `default` of which a container has failed for the first time, with this new
/// status. Nearly all pods of that account have a token and few use it, so such a pod gets no
/// warning before.
#[must_use]
pub fn fails_without_token(home: &Value, status: &Value, cluster: &str) -> Option<(&'static str, String)> {
    let spec = &home["spec"];
    let is_of_default = matches!(spec["serviceAccountName"].as_str(), None | Some("" | "default"));
    let is_new = has_failed(status) && !has_failed(&home["status"]);
    (is_new && is_of_default && volumes::has_token(spec)).then(|| {
        let note = format!(
            "a container of the pod has failed, and it has no token of its service account default in the cluster {cluster}: if \
             it calls the API server, keep the pod on nodes of this cluster, or set automountServiceAccountToken to false if it \
             does not"
        );
        ("NoServiceAccountToken", note)
    })
}

fn has_failed(status: &Value) -> bool {
    let lists = ["containerStatuses", "initContainerStatuses"];
    let mut all = lists
        .iter()
        .flat_map(|list| status[*list].as_array().into_iter().flatten());
    all.any(|one| {
        let mut ends = ["state", "lastState"].iter();
        ends.any(|state| {
            one[*state]["terminated"]["exitCode"]
                .as_i64()
                .is_some_and(|it| it != 0)
        })
    })
}

/// A pod that names Services of namespaces with another name in the remote cluster, or that are not
/// there.
fn names_of_home(home: &Value, destination: &Destination<'_>) -> Vec<(&'static str, String)> {
    const REASON: &str = "NameOfHomeNamespace";
    let own = home["metadata"]["namespace"].as_str().unwrap_or_default();
    let (cluster, mut all) = (destination.cluster, Vec::new());
    let (mut of_own, mut of_others, mut others) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (place, part) in with_names(&home["spec"]) {
        let mut named = BTreeSet::new();
        add_namespaces(part, own, &mut named);
        each_text(part, &mut |text| {
            let existing = short_names(text).filter(|it| destination.existing.contains(*it));
            named.extend(existing.map(str::to_owned));
        });
        named.retain(|it| destination.leads_elsewhere(own, it));
        if named.remove(own) {
            of_own.insert(place.clone());
        }
        if !named.is_empty() {
            of_others.insert(place);
            others.extend(named);
        }
    }
    if !of_own.is_empty() {
        all.push((
            REASON,
            format!(
                "{} has a name in the namespace {own}, and that of the pod in the cluster {cluster} is {}, where such a name \
                 leads to nothing or to others: use the name of the Service alone, or the namespaceMappingStrategy \
                 EnforceSameName, or keep the pod on nodes of this cluster",
                joined(&of_own),
                destination.namespace
            ),
        ));
    }
    if !of_others.is_empty() {
        let of_api = if others.contains("default") {
            " (kubernetes.default is the API server of that cluster)"
        } else {
            ""
        };
        let way_out = if others.iter().any(|it| is_own_there(it)) {
            "Offload these with the namespaceMappingStrategy EnforceSameName"
        } else {
            "Use Services of namespaces that may have their own name there"
        };
        all.push((
            REASON,
            format!(
                "{} names Services in namespaces that are not offloaded under their own names ({}): in the cluster {cluster} \
                 such a name leads to nothing, or to what that cluster has under it{of_api}. {way_out}, or keep the pod on nodes \
                 of this cluster",
                joined(&of_others),
                joined(&others)
            ),
        ));
    }
    all
}

impl Destination<'_> {
    /// Whether names in a namespace do not lead to the same Services as at home, where the
    /// namespace of the pod is `own`.
    #[must_use]
    pub fn leads_elsewhere(&self, own: &str, namespace: &str) -> bool {
        namespace != self.namespace && (namespace == own || !(self.is_same_there)(namespace))
    }
}

/// A pod that sends to an agent on its node, by a variable with the address of the node. A variable that is not used as
/// a host name may be for logs only.
fn agent_of_node(spec: &Value, cluster: &str) -> Option<(&'static str, String)> {
    let mut found = BTreeSet::new();
    for (list, container) in containers(spec) {
        let mut texts = Vec::new();
        for field in ["args", "command", "env"] {
            each_text(&container[field], &mut |text| texts.push(text));
        }
        for variable in container["env"].as_array().into_iter().flatten() {
            let field = variable["valueFrom"]["fieldRef"]["fieldPath"].as_str();
            let name = variable["name"].as_str().unwrap_or_default();
            let (in_url, with_port) = (format!("//$({name})"), format!("$({name}):"));
            let is_host = name.contains("AGENT")
                || name.ends_with("_HOST")
                || texts
                    .iter()
                    .any(|text| text.contains(&in_url) || text.contains(&with_port));
            if is_host && matches!(field, Some("status.hostIP" | "status.hostIPs")) {
                let container = container["name"].as_str().unwrap_or_default();
                found.insert(format!("{name} of spec.{list}[{container}]"));
            }
        }
    }
    let note = format!(
        "the variable {} has the address of the pod's node, which is one of the cluster {cluster}: agents of DaemonSets of this \
         cluster do not run there. Run such an agent there, too, or keep the pod on nodes of this cluster",
        joined(&found)
    );
    (!found.is_empty()).then_some(("AgentOfNode", note))
}

/// The containers of a pod, each with the name of its list.
fn containers(spec: &Value) -> impl Iterator<Item = (&'static str, &Value)> {
    ["containers", "initContainers"].into_iter().flat_map(|list| {
        let all = spec[list].as_array().into_iter().flatten();
        all.map(move |container| (list, container))
    })
}

/// A pod with required affinity to other pods, which is only preferred in the remote cluster, or with terms about other
/// namespaces, which are left out.
fn pod_affinity(spec: &Value, cluster: &str) -> Vec<(&'static str, String)> {
    let required = POD_AFFINITIES.map(|kind| (kind, &spec["affinity"][kind][REQUIRED]));
    let (mut preferred, mut left_out) = (BTreeSet::new(), BTreeSet::new());
    for (kind, terms) in required {
        let terms = terms.as_array().into_iter().flatten();
        let weighted = spec["affinity"][kind][PREFERRED].as_array().into_iter().flatten();
        let weighted = weighted.map(|one| &one["podAffinityTerm"]);
        preferred.extend(terms.clone().filter(|it| !names_namespaces(it)).map(|_| kind));
        left_out.extend(
            terms
                .chain(weighted)
                .filter(|it| names_namespaces(it))
                .map(|_| kind),
        );
    }
    let of_required = format!(
        "the pod has required terms in its {}: the scheduler here counts the cluster {cluster} as one node, and the one there only \
         prefers it. If that is not enough, keep the pod on nodes of this cluster",
        joined(&preferred)
    );
    let of_others = format!(
        "the pod has terms with namespaces or a namespaceSelector in its {}: they do not apply in the cluster {cluster}, where \
         the namespaces are others. If that is not enough, keep the pod on nodes of this cluster",
        joined(&left_out)
    );
    let all = [(preferred, of_required), (left_out, of_others)].into_iter();
    let all = all.filter(|(kinds, _)| !kinds.is_empty());
    all.map(|(_, note)| ("PodAffinityIgnored", note)).collect()
}

/// A pod whose required spreading is only preferred in the remote cluster. Spreading over clusters
/// still works: the scheduler at home does it.
fn spread_preferred(spec: &Value, cluster: &str) -> Option<(&'static str, String)> {
    let all = spec["topologySpreadConstraints"].as_array().into_iter().flatten();
    let required: BTreeSet<&str> = all
        .filter(|one| one["whenUnsatisfiable"] == "DoNotSchedule")
        .filter_map(|one| one["topologyKey"].as_str())
        .filter(|key| !is_within(key.split_once('/').map_or("", |(domain, _)| domain), "liqo.io"))
        .collect();
    let note = format!(
        "the pod requires (DoNotSchedule) that pods are spread by {}: the scheduler here counts the cluster {cluster} as one \
         node, and the one there only prefers it (ScheduleAnyway). If that is not enough, keep the pod on nodes of this cluster",
        joined(&required)
    );
    (!required.is_empty()).then_some(("TopologySpreadPreferred", note))
}

/// A pod whose priority does not count in the remote cluster, if no other one was chosen for the pods there.
fn priority_left_out(spec: &Value, destination: &Destination<'_>) -> Option<(&'static str, String)> {
    let class = spec["priorityClassName"].as_str().unwrap_or_default();
    let priority = spec["priority"].as_i64();
    if class.is_empty() || priority == Some(0) || destination.settings.priority_class.is_some() {
        return None;
    }
    let cluster = destination.cluster;
    let value = priority.map_or_else(String::new, |it| format!(" ({it})"));
    let note = format!(
        "the pod has the PriorityClass {class}{value}, which is not carried to the cluster {cluster}: there the default priority of \
         that cluster counts. Set pods.priorityClassName in RemoteCluster {cluster}, or keep the pod on nodes of this cluster"
    );
    Some(("PriorityNotCarried", note))
}

/// A pod that names a directory of a volume by a variable with another value in the remote cluster.
fn path_of_home(home: &Value, destination: &Destination<'_>) -> Option<(&'static str, String)> {
    let paths = volumes::keep_data(&home["spec"]).then(|| paths_of_home(home, destination))?;
    let note = format!(
        "{}, which has another value in the cluster {}: a directory of a volume that is named by it is another one there. Use \
         subPathExpr, whose directories have one name in every cluster, or a name without the variable, or keep the pod on \
         nodes of this cluster",
        joined(&paths),
        destination.cluster
    );
    (!paths.is_empty()).then_some(("PathOfHome", note))
}

/// The fields with a path that uses a variable with another value in the remote cluster. Other uses may be for logs and
/// metrics only, and are ignored.
fn paths_of_home(home: &Value, destination: &Destination<'_>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let kept = as_carried(home.clone(), destination.settings);
    for (list, container) in containers(&home["spec"]) {
        let in_subpaths = path_variables(container);
        let mut differing = BTreeSet::<String>::new();
        let mut record = |field: &str, variable: &str| {
            let container = container["name"].as_str().unwrap_or_default();
            found.insert(format!("spec.{list}[{container}].{field} has $({variable})"));
        };
        for variable in container["env"].as_array().into_iter().flatten() {
            let name = variable["name"].as_str().unwrap_or_default();
            let field = variable["valueFrom"]["fieldRef"]["fieldPath"].as_str();
            let uses = uses(variable["value"].as_str().unwrap_or_default(), &differing);
            for used in uses.iter().filter(|one| one.is_path) {
                record("env", &used.variable);
            }
            let has_home_value = in_subpaths.iter().any(|it| it == name);
            let is_other =
                !has_home_value && field.is_some_and(|field| differs(home, &kept, field, destination));
            // Of variables with the same name the last one wins.
            if is_other || !uses.is_empty() {
                differing.insert(name.to_owned());
            } else {
                differing.remove(name);
            }
        }
        for field in ["command", "args"] {
            let all = container[field].as_array().into_iter().flatten();
            let uses = all
                .filter_map(Value::as_str)
                .flat_map(|text| uses(text, &differing));
            for used in uses.filter(|one| one.is_path) {
                record(field, &used.variable);
            }
        }
    }
    found
}

/// A variable in a text.
struct Use {
    variable: String,
    /// Whether the word around it is a path.
    is_path: bool,
}

/// Where a text uses these variables, except in URLs.
fn uses(text: &str, variables: &BTreeSet<String>) -> Vec<Use> {
    let words = text.split(|it: char| it.is_whitespace() || "=,;'\"".contains(it));
    let words = words.filter(|word| !word.contains("://"));
    let all = words.flat_map(|word| {
        let is_path = word.contains('/');
        references(word).map(move |variable| Use { variable, is_path })
    });
    all.filter(|one| variables.contains(&one.variable)).collect()
}

/// Whether a field of the downward API has another value in the remote cluster. Uids and addresses
/// differ for each pod anyway, so they do not count.
fn differs(home: &Value, kept: &Value, field: &str, destination: &Destination<'_>) -> bool {
    match field {
        "metadata.namespace" => home["metadata"]["namespace"] != destination.namespace,
        "metadata.name" | "metadata.uid" | "spec.serviceAccountName" => false,
        _ => field_of(home, kept, field).is_some(),
    }
}

/// The node labels that the pod itself requires, and that are not carried to the remote pod.
fn ignored_labels<'a>(spec: &'a Value, selected: &BTreeSet<String>) -> BTreeSet<&'a str> {
    let is_ignored = |key: &&str| {
        let domain = key.split_once('/').map_or("", |(domain, _)| domain);
        !CARRIED_NODE_LABELS.contains(key)
            && !OF_VIRTUAL_NODES.contains(key)
            && !is_within(domain, "liqo.io")
            && !selected.contains(*key)
    };
    let selector = spec["nodeSelector"].as_object().into_iter().flatten();
    let mut ignored: BTreeSet<&str> = selector.map(|(key, _)| key.as_str()).filter(is_ignored).collect();
    let required = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let terms = required["nodeSelectorTerms"].as_array().into_iter().flatten();
    let terms = terms
        .filter_map(|term| term["matchExpressions"].as_array())
        .filter(|all| !all.iter().any(excludes_virtual_nodes));
    let terms: Vec<BTreeSet<&str>> = terms
        .map(|all| {
            let keys = all.iter().filter_map(|one| one["key"].as_str());
            keys.filter(is_ignored).collect()
        })
        .collect();
    // A node has to meet one of them.
    if !terms.iter().any(BTreeSet::is_empty) {
        ignored.extend(terms.into_iter().flatten());
    }
    ignored
}

/// The fields that may hold the name of a Service, and their values.
fn with_names(spec: &Value) -> Vec<(String, &Value)> {
    let mut places = Vec::new();
    for (list, container) in containers(spec) {
        let name = container["name"].as_str().unwrap_or_default();
        let fields = WITH_NAMES.iter();
        places.extend(fields.map(|field| (format!("spec.{list}[{name}].{field}"), &container[*field])));
    }
    for volume in volumes::all(spec) {
        let name = volume["name"].as_str().unwrap_or_default();
        let kinds = volume.as_object().into_iter().flatten();
        let kinds = kinds.filter(|(kind, _)| !WITHOUT_SERVER.contains(&kind.as_str()));
        places.extend(kinds.map(|(_, server)| (format!("spec.volumes[{name}]"), server)));
    }
    places.push(("spec.dnsConfig".to_owned(), &spec["dnsConfig"]));
    places.push(("spec.hostAliases".to_owned(), &spec["hostAliases"]));
    places
}

fn joined<T: AsRef<str>>(all: &BTreeSet<T>) -> String {
    let all: Vec<String> = all.iter().map(|one| one.as_ref().to_owned()).collect();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use serde_json::json;

    use super::*;

    fn to(namespace: &str) -> Destination<'_> {
        Destination {
            cluster: "milan",
            namespace,
            is_same_there: &|namespace| namespace == "same",
            existing: ["data".to_owned(), "same".to_owned()].into(),
            is_routed: false,
            selected: ["country".to_owned()].into(),
            settings: settings(),
        }
    }

    fn settings() -> &'static RemoteSettings {
        static SETTINGS: LazyLock<RemoteSettings> = LazyLock::new(|| RemoteSettings {
            skip_labels: vec!["tier".to_owned()],
            ..RemoteSettings::default()
        });
        &SETTINGS
    }

    fn said(spec: &Value, namespace: &str) -> Vec<(&'static str, String)> {
        let all = caveats(
            &json!({"metadata": {"namespace": "shop"}, "spec": spec}),
            &to(namespace),
        );
        for (_, note) in &all {
            assert!(note.contains("milan") && note.contains("keep the pod"), "{note}");
        }
        all
    }

    #[test]
    fn node_requirements_that_are_not_carried_are_reported() {
        let ignored = |spec: &Value| {
            let all = said(spec, "shop");
            all.iter()
                .map(|(reason, note)| {
                    assert_eq!(*reason, "NodeSelectorIgnored");
                    note.split(": ")
                        .next()
                        .unwrap()
                        .trim_start_matches("the pod requires a node by ")
                        .to_owned()
                })
                .collect::<Vec<_>>()
        };
        let required = |terms: &[&[&str]]| {
            let terms = terms.iter().map(|keys| {
                let all = keys.iter().map(|key| match *key {
                    "real" => json!({"key": "liqo.io/type", "operator": "NotIn", "values": ["virtual-node"]}),
                    key => json!({"key": key, "operator": "Exists"}),
                });
                json!({"matchExpressions": all.collect::<Vec<_>>()})
            });
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": terms.collect::<Vec<_>>(),
            }}}})
        };
        for (spec, wanted) in [
            (
                json!({"nodeSelector": {
                    "kubernetes.io/os": "linux", "liqo.io/type": "virtual-node", "kubernetes.io/hostname": "milan",
                    "type": "virtual-kubelet", "topology.storage.liqo.io/cluster": "milan", "country": "it",
                }}),
                vec![],
            ),
            (
                json!({"nodeSelector": {"disk": "ssd", "gpu": "a"}}),
                vec!["disk, gpu"],
            ),
            (required(&[&["zone", "country"]]), vec!["zone"]),
            (
                required(&[&["zone", "liqo.io/type"], &["gpu", "real"]]),
                vec!["zone"],
            ),
            (required(&[&["zone"], &["liqo.io/type"]]), vec![]),
        ] {
            assert_eq!(ignored(&spec), wanted, "{spec}");
        }
    }

    #[test]
    fn service_names_with_the_home_namespace_are_reported() {
        let container = |field: &str, value: Value| json!({"containers": [{"name": "web", field: value}]});
        for (spec, place) in [
            (
                container("args", json!(["--db=db.shop.svc:5432"])),
                "spec.containers[web].args",
            ),
            (
                container("command", json!(["curl", "http://db.shop.svc.cluster.local/x"])),
                "spec.containers[web].command",
            ),
            (
                container("env", json!([{"name": "DB", "value": "db.shop.svc"}])),
                "spec.containers[web].env",
            ),
            (
                container("livenessProbe", json!({"httpGet": {"host": "db.shop.svc"}})),
                "spec.containers[web].livenessProbe",
            ),
            (
                json!({"dnsConfig": {"searches": ["shop.svc.cluster.local"]}}),
                "spec.dnsConfig",
            ),
            (
                json!({"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["db.shop.svc"]}]}),
                "spec.hostAliases",
            ),
            (
                json!({"volumes": [{"name": "nas", "nfs": {"server": "nfs.shop.svc.cluster.local", "path": "/"}}]}),
                "spec.volumes[nas]",
            ),
            (
                json!({"volumes": [{"name": "nas", "csi": {
                    "driver": "smb.csi.k8s.io", "volumeAttributes": {"source": "//smb.shop.svc/share"},
                }}]}),
                "spec.volumes[nas]",
            ),
            (
                container("image", json!("registry.shop.svc:5000/web:1")),
                "spec.containers[web].image",
            ),
            (
                container("env", json!([{"name": "DB", "value": "db.shop:5432"}])),
                "spec.containers[web].env",
            ),
        ] {
            let there = said(&spec, "shop-home");
            assert_eq!(there.len(), 1, "{spec}");
            assert_eq!(there[0].0, "NameOfHomeNamespace");
            assert!(there[0].1.starts_with(&format!("{place} ")), "{}", there[0].1);
            assert!(said(&spec, "shop").is_empty());
        }
        let there = said(
            &container("args", json!(["web.shop.svc", "db.data.svc", "db.same.svc"])),
            "shop",
        );
        assert_eq!((there.len(), there[0].0), (1, "NameOfHomeNamespace"));
        let note = &there[0].1;
        assert!(
            note.starts_with("spec.containers[web].args names") && note.contains(" (data): "),
            "{note}"
        );
        for other in [
            "db.shop.svc-2",
            "db.shop.example.com",
            "/etc/db.shop",
            "db.shop-home.svc",
            "db.same.svc",
            "db",
        ] {
            assert!(
                said(&container("args", json!([other])), "shop-home").is_empty(),
                "{other}"
            );
        }
    }

    #[test]
    fn short_names_of_services_elsewhere_are_reported_if_the_namespace_exists() {
        let args = |text: &str| json!({"containers": [{"name": "web", "args": [text]}]});
        let there = said(&args("--db=postgres://db.data/x"), "shop");
        assert_eq!((there.len(), there[0].0), (1, "NameOfHomeNamespace"));
        assert!(there[0].1.contains(" (data): "), "{}", there[0].1);
        for other in [
            "db.same:80",
            "https://example.com",
            "config.data.yaml",
            "x --data=db.data.x",
        ] {
            assert!(said(&args(other), "shop").is_empty(), "{other}");
        }
    }

    #[test]
    fn namespaces_that_cannot_have_their_own_name_there_get_no_such_advice() {
        let args = |text: &str| json!({"containers": [{"name": "web", "args": [text]}]});
        for (text, has_advice) in [
            ("https://kubernetes.default.svc", false),
            ("https://kubernetes.default.svc http://db.data.svc", true),
        ] {
            let there = said(&args(text), "shop");
            assert_eq!((there.len(), there[0].0), (1, "NameOfHomeNamespace"), "{text}");
            let note = &there[0].1;
            assert_eq!(note.contains("EnforceSameName"), has_advice, "{note}");
            assert!(
                note.contains("kubernetes.default is the API server of that cluster"),
                "{note}"
            );
        }
    }

    #[test]
    fn objects_of_kinds_that_are_not_copied_are_reported() {
        let inline = |driver: &str, attributes: Value| json!({"volumes": [{"name": "v", "csi": {"driver": driver, "volumeAttributes": attributes}}]});
        let noted = |annotations: Value, spec: Value| {
            let home = json!({"metadata": {"namespace": "shop", "annotations": annotations}, "spec": spec});
            let all = caveats(&home, &to("shop-home"));
            let all = all.into_iter().map(|(reason, note)| {
                assert_eq!(reason, "NotCopied");
                for words in ["milan", "namespace shop-home", "keep the pod"] {
                    assert!(note.contains(words), "{note}");
                }
                note
            });
            all.collect::<Vec<_>>().concat()
        };
        for (annotations, spec, wanted) in [
            (
                json!({}),
                inline(
                    "secrets-store.csi.k8s.io",
                    json!({"secretProviderClass": "vault"}),
                ),
                "SecretProviderClass vault (spec.volumes[v])",
            ),
            (
                json!({}),
                inline(
                    "csi.cert-manager.io",
                    json!({"csi.cert-manager.io/issuer-name": "ca"}),
                ),
                "Issuer ca (spec.volumes[v])",
            ),
            (
                json!({"k8s.v1.cni.cncf.io/networks": "macvlan"}),
                json!({}),
                "NetworkAttachmentDefinition macvlan (annotation k8s.v1.cni.cncf.io/networks)",
            ),
        ] {
            let note = noted(annotations, spec);
            assert!(note.contains(wanted), "{note}");
        }
        let others = json!({"k8s.v1.cni.cncf.io/network-status": "[]", "example.com/networks": "a"});
        assert_eq!(
            noted(others, inline("smb.csi.k8s.io", json!({"source": "nas"}))),
            ""
        );
    }

    #[test]
    fn agents_on_the_node_are_reported() {
        let with = |name: &str, field: &str, others: Value| {
            let mut env = vec![json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}})];
            env.extend(others.as_array().unwrap().iter().cloned());
            json!({"containers": [{"name": "web", "env": env}]})
        };
        let otlp = |value: &str| json!([{"name": "OTLP", "value": value}]);
        for (spec, variable) in [
            (
                with("DD_AGENT_HOST", "status.hostIP", json!([])),
                Some("DD_AGENT_HOST"),
            ),
            (
                with("HOST_IP", "status.hostIP", otlp("http://$(HOST_IP):4317")),
                Some("HOST_IP"),
            ),
            (with("NODE_IP", "status.hostIP", otlp("node=$(NODE_IP)")), None),
            (with("DB_HOST", "status.podIP", json!([])), None),
        ] {
            let there = said(&spec, "shop");
            assert_eq!(there.len(), usize::from(variable.is_some()), "{spec}");
            for (reason, note) in there {
                assert_eq!(reason, "AgentOfNode");
                let wanted = format!("variable {} of spec.containers[web]", variable.unwrap());
                assert!(note.contains(&wanted), "{note}");
            }
        }
    }

    #[test]
    fn gates_of_load_balancers_are_reported_without_routes() {
        let home = json!({"metadata": {"namespace": "shop"}, "spec": {"readinessGates": [
            {"conditionType": "InPlaceUpdateReady"}, {"conditionType": "target-health.elbv2.k8s.aws/web"},
        ]}});
        let all = caveats(&home, &to("shop"));
        assert_eq!((all.len(), all[0].0), (1, "ReadinessGateOfHome"));
        let note = &all[0].1;
        assert!(
            note.contains("(target-health.elbv2.k8s.aws/web)")
                && note.contains("milan")
                && note.contains("keep the pod"),
            "{note}"
        );
        let routed = Destination {
            is_routed: true,
            ..to("shop")
        };
        assert!(caveats(&home, &routed).is_empty());
    }

    /// A pod with this container, which has variables of the downward API, and this volume.
    fn with(container: &Value, volume: &Value) -> Value {
        let fields = [
            ("POD_NAMESPACE", "metadata.namespace"),
            ("NODE", "spec.nodeName"),
            ("NAME", "metadata.name"),
            ("ACCOUNT", "spec.serviceAccountName"),
            ("UID", "metadata.uid"),
            ("IP", "status.podIP"),
            ("TIER", "metadata.labels['tier']"),
            ("APP", "metadata.labels['app']"),
        ];
        let fields =
            fields.map(|(name, path)| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}));
        let mut container = container.clone();
        container["name"] = "db".into();
        let mut env = fields.to_vec();
        env.extend(container["env"].as_array().into_iter().flatten().cloned());
        container["env"] = env.into();
        let mut volume = volume.clone();
        volume["name"] = "v".into();
        json!({
            "metadata": {"namespace": "shop", "labels": {"tier": "gold", "app": "db"}},
            "spec": {"nodeName": "milan", "serviceAccountName": "db", "containers": [container], "volumes": [volume]},
        })
    }

    /// The uses of variables that are reported.
    fn places(pod: &Value, namespace: &str) -> String {
        let all = caveats(pod, &to(namespace)).into_iter().map(|(reason, note)| {
            assert_eq!(reason, "PathOfHome");
            assert!(note.contains("milan") && note.contains("keep the pod"), "{note}");
            note.split(", which has").next().unwrap().to_owned()
        });
        all.collect::<Vec<_>>().join("; ")
    }

    fn args(text: &str) -> Value {
        json!({ "args": [text] })
    }

    fn in_args(name: &str) -> String {
        format!("spec.containers[db].args has $({name})")
    }

    #[test]
    fn paths_that_expand_differently_there_are_reported_for_persistent_volumes() {
        let claim = json!({"persistentVolumeClaim": {"claimName": "data"}});
        for (container, wanted) in [
            (args("--dir=/data/$(POD_NAMESPACE)"), in_args("POD_NAMESPACE")),
            (args("--dir=/data/$(TIER)"), in_args("TIER")),
            (
                args("curl http://db/x; ls '/data/$(POD_NAMESPACE)'"),
                in_args("POD_NAMESPACE"),
            ),
            (
                json!({"command": ["run", "/data/$(NODE)"]}),
                "spec.containers[db].command has $(NODE)".to_owned(),
            ),
            (
                json!({"env": [{"name": "PGDATA", "value": "/data/$(POD_NAMESPACE)"}]}),
                "spec.containers[db].env has $(POD_NAMESPACE)".to_owned(),
            ),
            (
                json!({"env": [{"name": "DIR", "value": "$(POD_NAMESPACE)-db"}], "args": ["--dir=/data/$(DIR)"]}),
                in_args("DIR"),
            ),
        ] {
            assert_eq!(
                places(&with(&container, &claim), "shop-home"),
                wanted,
                "{container}"
            );
        }
        let by_namespace = args("/data/$(POD_NAMESPACE)");
        assert_eq!(
            places(&with(&by_namespace, &claim), "shop"),
            "",
            "it has the same name there"
        );
        let nfs = json!({"nfs": {"server": "nas", "path": "/"}});
        assert_eq!(
            places(&with(&by_namespace, &nfs), "shop-home"),
            in_args("POD_NAMESPACE")
        );
        let scratch = json!({"emptyDir": {}});
        assert_eq!(places(&with(&by_namespace, &scratch), "shop-home"), "");
    }

    #[test]
    fn a_priority_that_is_not_carried_is_reported() {
        for (spec, is_said) in [
            (json!({"priorityClassName": "high", "priority": 1000}), true),
            (json!({"priorityClassName": "low", "priority": -10}), true),
            (json!({"priorityClassName": "plain", "priority": 0}), false),
            (json!({"priority": 0}), false),
        ] {
            let there = said(&spec, "shop");
            assert_eq!(there.len(), usize::from(is_said), "{spec}: {there:?}");
            for (reason, note) in there {
                assert_eq!(reason, "PriorityNotCarried");
                assert!(
                    note.contains(spec["priorityClassName"].as_str().unwrap()),
                    "{note}"
                );
            }
        }
        let settings = RemoteSettings {
            priority_class: Some("theirs".to_owned()),
            ..RemoteSettings::default()
        };
        let there = Destination {
            settings: &settings,
            ..to("shop")
        };
        let pod = json!({"metadata": {"namespace": "shop"}, "spec": {"priorityClassName": "high", "priority": 1000}});
        assert!(
            caveats(&pod, &there).is_empty(),
            "an administrator has chosen one"
        );
    }

    #[test]
    fn variables_that_name_no_directory_of_a_volume_are_not_reported() {
        let claim = json!({"persistentVolumeClaim": {"claimName": "data"}});
        for container in [
            args("--namespace=$(POD_NAMESPACE)"),
            args("-l app.kubernetes.io/part-of=$(POD_NAMESPACE)"),
            args("cp /etc/a $(POD_NAMESPACE)"),
            args("http://db.$(POD_NAMESPACE).svc/x"),
            json!({
                "env": [{"name": "URL", "value": "http://db.$(POD_NAMESPACE).svc/x"}], "args": ["$(URL)/y"],
            }),
            // The directory has the same name there.
            json!({
                "env": [{"name": "DIR", "value": "tenants/$(POD_NAMESPACE)"}], "args": ["--dir=/data/$(DIR)"],
                "volumeMounts": [{"name": "v", "mountPath": "/data", "subPathExpr": "$(DIR)"}],
            }),
            json!({"env": [{"name": "POD_NAMESPACE", "value": "shop"}], "args": ["/data/$(POD_NAMESPACE)"]}),
            json!({"env": [{"name": "ATTRIBUTES", "value": "namespace=$(POD_NAMESPACE)"}]}),
            args("/data/$$(POD_NAMESPACE)"),
            args("/data/$(NAME)/$(ACCOUNT)/$(UID)/$(IP)/$(APP)/$(OTHER)"),
        ] {
            assert_eq!(places(&with(&container, &claim), "shop-home"), "", "{container}");
        }
    }

    #[test]
    fn spreading_that_is_only_preferred_there_is_reported() {
        let by = |key: &str, when: &str| json!({"topologyKey": key, "whenUnsatisfiable": when});
        let spec = |all: &[Value]| json!({ "topologySpreadConstraints": all });
        let hard = by("kubernetes.io/hostname", "DoNotSchedule");
        let there = said(
            &spec(&[hard, by("zone", "ScheduleAnyway"), by("rack", "DoNotSchedule")]),
            "shop",
        );
        assert_eq!((there.len(), there[0].0), (1, "TopologySpreadPreferred"));
        assert!(
            there[0].1.contains("by kubernetes.io/hostname, rack: "),
            "{}",
            there[0].1
        );
        let over_clusters = by("topology.storage.liqo.io/cluster", "DoNotSchedule");
        assert!(said(&spec(&[over_clusters, by("zone", "ScheduleAnyway")]), "shop").is_empty());
    }
}
