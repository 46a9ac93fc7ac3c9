//! What a pod asks for that its remote cluster understands in another way, or not at all. Such a pod runs there, with
//! an event.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    spec::{CARRIED_NODE_LABELS, excludes_virtual_nodes, is_empty},
    volumes,
};
use crate::volume::is_within;

/// Labels by which a pod selects a virtual node, beside those in the domain liqo.io.
const OF_VIRTUAL_NODES: [&str; 3] = ["kubernetes.io/hostname", "kubernetes.io/role", "type"];
/// The fields of a container that may hold the name of a Service.
const WITH_NAMES: [&str; 7] = [
    "args",
    "command",
    "env",
    "lifecycle",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
];

/// Where a pod runs.
pub struct Destination<'a> {
    pub cluster: &'a str,
    /// The remote namespace.
    pub namespace: &'a str,
    /// Labels by which others than the pod select its node: the `clusterSelector` of its namespace, and the
    /// `RemoteCluster`.
    pub selected: BTreeSet<String>,
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
                joined(labels)
            ),
        ));
    }
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
    let namespace = home["metadata"]["namespace"].as_str().unwrap_or_default();
    let places = naming(spec, &format!("{namespace}.svc"));
    if namespace != destination.namespace && !places.is_empty() {
        all.push((
            "NameOfHomeNamespace",
            format!(
                "{} has a name with {namespace}.svc, and the namespace of the pod in the cluster {cluster} is {}, where such \
                 a name leads to nothing or to others: use the name of the Service alone, or the namespaceMappingStrategy \
                 EnforceSameName, or keep the pod on nodes of this cluster",
                joined(places),
                destination.namespace
            ),
        ));
    }
    all
}

/// The labels by which the pod itself requires its node, and that are not carried.
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

/// The fields that hold a host name in this domain, or the domain itself.
fn naming(spec: &Value, domain: &str) -> BTreeSet<String> {
    let mut places = BTreeSet::new();
    for list in ["containers", "initContainers"] {
        for container in spec[list].as_array().into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default();
            let fields = WITH_NAMES
                .iter()
                .filter(|field| names(&container[**field], domain));
            places.extend(fields.map(|field| format!("spec.{list}[{name}].{field}")));
        }
    }
    let of_pod = [
        ("dnsConfig", &spec["dnsConfig"]["searches"]),
        ("hostAliases", &spec["hostAliases"]),
    ];
    let of_pod = of_pod.into_iter().filter(|(_, value)| names(value, domain));
    places.extend(of_pod.map(|(field, _)| format!("spec.{field}")));
    places
}

fn names(part: &Value, domain: &str) -> bool {
    let continues = |next: Option<char>| next.is_some_and(|it| it.is_ascii_alphanumeric() || it == '-');
    match part {
        Value::String(text) => text.match_indices(domain).any(|(at, _)| {
            let (before, after) = (&text[..at], &text[at + domain.len()..]);
            !continues(before.chars().next_back()) && !continues(after.chars().next())
        }),
        Value::Array(all) => all.iter().any(|one| names(one, domain)),
        Value::Object(all) => all.values().any(|one| names(one, domain)),
        _ => false,
    }
}

fn joined<T: AsRef<str>>(all: BTreeSet<T>) -> String {
    let all: Vec<String> = all.into_iter().map(|one| one.as_ref().to_owned()).collect();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn to(namespace: &str) -> Destination<'_> {
        Destination {
            cluster: "milan",
            namespace,
            selected: ["country".to_owned()].into(),
        }
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
    fn a_requirement_of_the_node_that_is_not_carried_is_reported() {
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
    fn a_name_of_the_home_namespace_is_reported_where_it_leads_elsewhere() {
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
        ] {
            let there = said(&spec, "shop-home");
            assert_eq!(there.len(), 1, "{spec}");
            assert_eq!(there[0].0, "NameOfHomeNamespace");
            assert!(there[0].1.starts_with(&format!("{place} ")), "{}", there[0].1);
            assert!(said(&spec, "shop").is_empty());
        }
        for other in [
            "db.bookshop.svc",
            "db.shop.svc-2",
            "db.shop",
            "db.shop-home.svc",
            "db",
        ] {
            assert!(
                said(&container("args", json!([other])), "shop-home").is_empty(),
                "{other}"
            );
        }
    }
}
