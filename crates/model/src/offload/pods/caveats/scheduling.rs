//! Scheduling constraints and the priority of a pod, which are preferences or do not apply in the remote cluster.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    super::spec::{
        CARRIED_NODE_LABELS, POD_AFFINITIES, PREFERRED, REQUIRED, excludes_virtual_nodes, names_namespaces,
    },
    Destination, joined,
};
use crate::volume::has_domain;

/// Labels by which a pod selects virtual nodes, in addition to those in the domain liqo.io.
const OF_VIRTUAL_NODES: [&str; 3] = ["kubernetes.io/hostname", "kubernetes.io/role", "type"];

/// The node labels that the pod itself requires, and that are not carried to the remote pod.
pub(super) fn ignored_labels<'a>(spec: &'a Value, selected: &BTreeSet<String>) -> BTreeSet<&'a str> {
    let is_ignored = |key: &&str| {
        !CARRIED_NODE_LABELS.contains(key)
            && !OF_VIRTUAL_NODES.contains(key)
            && !has_domain(key, "liqo.io")
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

/// A pod with required affinity to other pods, which is only preferred in the remote cluster, or with terms about other
/// namespaces, which are left out.
pub(super) fn pod_affinity(home: &Value, cluster: &str) -> Vec<(&'static str, String)> {
    let (spec, own) = (&home["spec"], &home["metadata"]["namespace"]);
    let required = POD_AFFINITIES.map(|kind| (kind, &spec["affinity"][kind][REQUIRED]));
    let (mut preferred, mut left_out) = (BTreeSet::new(), BTreeSet::new());
    for (kind, terms) in required {
        let terms = terms.as_array().into_iter().flatten();
        let weighted = spec["affinity"][kind][PREFERRED].as_array().into_iter().flatten();
        let weighted = weighted.map(|one| &one["podAffinityTerm"]);
        preferred.extend(
            terms
                .clone()
                .filter(|it| !names_namespaces(it, own))
                .map(|_| kind),
        );
        left_out.extend(
            terms
                .chain(weighted)
                .filter(|it| names_namespaces(it, own))
                .map(|_| kind),
        );
    }
    let of_required = format!(
        "the pod has required terms in its {}: the scheduler here counts the cluster {cluster} as one node, and the scheduler there \
         takes them as preferences. If that is not enough, keep the pod on nodes of this cluster",
        joined(&preferred)
    );
    let of_others = format!(
        "the pod has terms with other namespaces or a namespaceSelector in its {}: they do not apply in the cluster {cluster}, \
         where namespaces have other names or labels. If that is not enough, keep the pod on nodes of this cluster",
        joined(&left_out)
    );
    let all = [(preferred, of_required), (left_out, of_others)].into_iter();
    let all = all.filter(|(kinds, _)| !kinds.is_empty());
    all.map(|(_, note)| ("PodAffinityIgnored", note)).collect()
}

/// A pod whose required spreading is only preferred in the remote cluster. Spreading over clusters
/// still works: the scheduler at home does it.
pub(super) fn spread_preferred(spec: &Value, cluster: &str) -> Option<(&'static str, String)> {
    let all = spec["topologySpreadConstraints"].as_array().into_iter().flatten();
    let required: BTreeSet<&str> = all
        .filter(|one| one["whenUnsatisfiable"] == "DoNotSchedule")
        .filter_map(|one| one["topologyKey"].as_str())
        .filter(|key| !has_domain(key, "liqo.io"))
        .collect();
    let note = format!(
        "the pod requires (DoNotSchedule) that pods are spread by {}: the scheduler here counts the cluster {cluster} as one \
         node, and the one there only prefers it (ScheduleAnyway). If that is not enough, keep the pod on nodes of this cluster",
        joined(&required)
    );
    (!required.is_empty()).then_some(("TopologySpreadPreferred", note))
}

/// A pod whose priority does not count in the remote cluster, if no other one was chosen for the pods there.
pub(super) fn priority_left_out(
    spec: &Value,
    destination: &Destination<'_>,
) -> Option<(&'static str, String)> {
    let class = spec["priorityClassName"].as_str().unwrap_or_default();
    let priority = spec["priority"].as_i64();
    if class.is_empty() || priority == Some(0) || destination.settings.priority_class.is_some() {
        return None;
    }
    let cluster = destination.cluster;
    let value = priority.map_or_else(String::new, |it| format!(" ({it})"));
    let note = format!(
        "the pod has the PriorityClass {class}{value}, which is not carried to the cluster {cluster}: there it has the default \
         priority of that cluster. Set spec.fabric.pods.priorityClassName of RemoteCluster {cluster}, or keep the pod on nodes of \
         this cluster"
    );
    Some(("PriorityNotCarried", note))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::{
            super::spec::RemoteSettings,
            caveats,
            tests::{said, to},
        },
        *,
    };

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
