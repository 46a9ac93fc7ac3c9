//! The fields of a pod that its remote cluster interprets differently, or ignores. Such a pod runs
//! there, and gets an event.

mod names;
mod paths;
mod scheduling;

use std::collections::BTreeSet;

use serde_json::Value;

pub use self::names::{named_addresses, short_namespaces};
use self::{
    names::names_of_home,
    paths::path_of_home,
    scheduling::{ignored_labels, pod_affinity, priority_left_out, spread_preferred},
};
use super::{hostname::long_hostname, spec::RemoteSettings, volumes};
use crate::offload::{cut, service_names::each_text};

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
/// The most variables of a container with the address of the node that are looked for in its texts.
const MOST_OF_NODE: usize = 16;
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
                "the pod requires a node by {}: that is checked for the virtual node of the cluster {cluster}, and \
                 not for the nodes there: set pods.nodeSelector in RemoteCluster {cluster}, or keep the pod on nodes of this cluster",
                joined(&labels)
            ),
        ));
    }
    all.extend(pod_affinity(home, cluster));
    all.extend(spread_preferred(spec, cluster));
    all.extend(priority_left_out(spec, destination));
    let account = spec["serviceAccountName"].as_str().unwrap_or("default");
    if !matches!(account, "" | "default") {
        all.extend(account_of_home(spec, account, cluster));
    }
    if spec["dnsPolicy"] == "None" {
        let servers = spec["dnsConfig"]["nameservers"].as_array().into_iter().flatten();
        let servers: Vec<&str> = servers.filter_map(Value::as_str).collect();
        all.push((
            "HomeNameservers",
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
    all.extend(localhost_profiles(spec, cluster));
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

/// A pod with a service account, which is `default` in the remote cluster. Whether metadata servers give it an identity
/// cannot be known.
fn account_of_home(spec: &Value, account: &str, cluster: &str) -> Option<(&'static str, String)> {
    if volumes::has_token(spec) {
        return Some((
            "NoServiceAccountToken",
            format!(
                "the pod has no token of its service account {account} in the cluster {cluster}, so it cannot call the API \
                 server of this cluster or of that one, and whatever derives an identity from the account (SPIFFE, workload \
                 identity) finds default there: keep the pod on nodes of this cluster if it needs the account, or set \
                 automountServiceAccountToken to false if it does not"
            ),
        ));
    }
    let driver = volumes::all(spec).find_map(|volume| volume["csi"]["driver"].as_str())?;
    Some((
        "OtherServiceAccount",
        format!(
            "the pod has the service account default in the cluster {cluster} instead of {account}. If the driver {driver} of one \
             of its volumes derives an identity from the account, as those of SPIFFE do, keep the pod on nodes of this cluster"
        ),
    ))
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
        "the pod names objects of kinds that are not copied: {}. In the cluster {} it needs objects of these names, in the namespace \
         {} or cluster-scoped; without them it does not start or lacks what they provide: create them there, or keep the pod on \
         nodes of this cluster",
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
    (!gates.is_empty() && !destination.is_routed).then_some(("HomeReadinessGate", note))
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

/// A pod that sends to an agent on its node, by a variable with the address of the node. A variable that is not used as
/// a host name may be for logs only.
fn agent_of_node(spec: &Value, cluster: &str) -> Option<(&'static str, String)> {
    let mut found = BTreeSet::new();
    for (list, container) in containers(spec) {
        let mut texts = Vec::new();
        for field in ["args", "command", "env"] {
            each_text(&container[field], &mut |text| texts.push(text));
        }
        let variables = container["env"].as_array().into_iter().flatten();
        let of_node = variables.filter(|variable| {
            let field = variable["valueFrom"]["fieldRef"]["fieldPath"].as_str();
            matches!(field, Some("status.hostIP" | "status.hostIPs"))
        });
        // Each is compared with all texts.
        for variable in of_node.take(MOST_OF_NODE) {
            let name = variable["name"].as_str().unwrap_or_default();
            // As Kubernetes and shells expand it.
            let uses = [format!("$({name})"), format!("${{{name}}}"), format!("${name}")];
            let is_host = name.contains("AGENT")
                || name.ends_with("_HOST")
                || uses.iter().any(|used| {
                    let (in_url, with_port) = (format!("//{used}"), format!("{used}:"));
                    texts
                        .iter()
                        .any(|text| text.contains(&in_url) || text.contains(&with_port))
                });
            if is_host {
                let container = container["name"].as_str().unwrap_or_default();
                found.insert(format!("{name} of spec.{list}[{container}]"));
            }
        }
    }
    let note = format!(
        "the variable {} has the address of the pod's node, which is in the cluster {cluster}: agents of DaemonSets of this \
         cluster do not run there. Run such an agent there, too, or keep the pod on nodes of this cluster",
        joined(&found)
    );
    (!found.is_empty()).then_some(("NodeAgentAddress", note))
}

/// A pod with a profile of seccomp or `AppArmor` that is a file on its node.
fn localhost_profiles(spec: &Value, cluster: &str) -> Option<(&'static str, String)> {
    let of_containers = containers(spec).map(|(list, container)| {
        let name = container["name"].as_str().unwrap_or_default();
        (format!("spec.{list}[{name}]"), &container["securityContext"])
    });
    let contexts = std::iter::once(("spec".to_owned(), &spec["securityContext"])).chain(of_containers);
    let named: BTreeSet<String> = contexts
        .flat_map(|(place, context)| {
            let profiles = ["seccompProfile", "appArmorProfile"].map(|field| (field, &context[field]));
            let of_nodes = profiles
                .into_iter()
                .filter(|(_, profile)| profile["type"] == "Localhost");
            of_nodes.map(move |(field, profile)| {
                let name = profile["localhostProfile"].as_str().unwrap_or_default();
                format!("{} ({place}.securityContext.{field})", cut(name, LONGEST_NAMED))
            })
        })
        .collect();
    let note = format!(
        "the pod has profiles of type Localhost, which are files on nodes. Without them on the nodes of the cluster {cluster} it \
         does not start there, and files of these names may be other profiles. Put them on its nodes, or keep the pod on nodes \
         of this cluster: {}",
        joined(&named)
    );
    (!named.is_empty()).then_some(("LocalhostProfile", note))
}

/// The containers of a pod, each with the name of its list.
fn containers(spec: &Value) -> impl Iterator<Item = (&'static str, &Value)> {
    ["containers", "initContainers"].into_iter().flat_map(|list| {
        let all = spec[list].as_array().into_iter().flatten();
        all.map(move |container| (list, container))
    })
}

/// Whether the command of a container is a script for a shell, as in `sh -c` and `bash -ec`.
fn runs_shell(container: &Value) -> bool {
    let lists = ["command", "args"].into_iter();
    let mut all = lists.flat_map(|list| container[list].as_array().into_iter().flatten());
    all.any(|one| {
        let flags = one
            .as_str()
            .and_then(|it| it.strip_prefix('-')?.strip_suffix('c'));
        flags.is_some_and(|it| it.chars().all(|flag| flag.is_ascii_alphabetic()))
    })
}

/// The variables that a shell expands in a text, as `$NAME` and `${NAME}`.
fn shell_references(text: &str) -> impl Iterator<Item = &str> {
    text.split('$').skip(1).filter_map(|rest| {
        let name = rest.strip_prefix('{').unwrap_or(rest);
        let is_of_name = |it: char| it.is_ascii_alphanumeric() || it == '_';
        let name = &name[..name.find(|it| !is_of_name(it)).unwrap_or(name.len())];
        (!name.is_empty()).then_some(name)
    })
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

    pub(super) fn to(namespace: &str) -> Destination<'_> {
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

    pub(super) fn said(spec: &Value, namespace: &str) -> Vec<(&'static str, String)> {
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
    fn profiles_on_nodes_are_reported() {
        let web = json!({"type": "Localhost", "localhostProfile": "web.json"});
        let of_pod = json!({"securityContext": {"seccompProfile": web}});
        let of_container =
            json!({"containers": [{"name": "web", "securityContext": {"appArmorProfile": web}}]});
        for (spec, place) in [
            (of_pod, "web.json (spec.securityContext.seccompProfile)"),
            (
                of_container,
                "web.json (spec.containers[web].securityContext.appArmorProfile)",
            ),
        ] {
            let there = said(&spec, "shop");
            assert_eq!((there.len(), there[0].0), (1, "LocalhostProfile"));
            assert!(there[0].1.contains(place), "{}", there[0].1);
        }
        let default = json!({"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}});
        assert!(said(&default, "shop").is_empty());
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
            (
                with("NODE_IP", "status.hostIP", otlp("http://${NODE_IP}:4317")),
                Some("NODE_IP"),
            ),
            (with("NODE_IP", "status.hostIP", otlp("node=$(NODE_IP)")), None),
            (with("DB_HOST", "status.podIP", json!([])), None),
        ] {
            let there = said(&spec, "shop");
            assert_eq!(there.len(), usize::from(variable.is_some()), "{spec}");
            for (reason, note) in there {
                assert_eq!(reason, "NodeAgentAddress");
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
        assert_eq!((all.len(), all[0].0), (1, "HomeReadinessGate"));
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
}
