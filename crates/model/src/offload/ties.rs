//! Whether the claims of a pod tie it to the home cluster. Admission policies cannot read claims: pods with
//! claims in offloaded namespaces get a scheduling gate, which is removed by the decision here.
//! Otherwise the scheduler would select a virtual node for a claim of another class, which is then never bound.

use serde_json::{Value, json};

use crate::topology::CLUSTER_KEY;

/// The scheduling gate of a pod until its claims were looked up.
pub const CLAIMS_GATE: &str = "fabric.storage.liqo.io/claims";
/// Annotation of a claim or its class: "true" if remote clusters have a claim of the same name.
pub const IN_BOTH_CLUSTERS: &str = "fabric.storage.liqo.io/in-both-clusters";

const NODE_KIND: &str = "liqo.io/type";
const VIRTUAL_NODE: &str = "virtual-node";
/// Labels, and a field, with the name of a cluster or of its virtual node.
const NAMES: [&str; 5] = [
    CLUSTER_KEY,
    "fabric.storage.liqo.io/cluster",
    "kubernetes.io/hostname",
    "liqo.io/remote-cluster-id",
    "metadata.name",
];

/// Which driver provides the volume of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tie {
    /// This driver: the volume follows its pod, or the pod is scheduled to the volume.
    Ours,
    /// The volume of this claim and driver is in the home cluster only.
    Home(String),
    /// An administrator declares that the volume is in both clusters.
    Both,
    /// Not known yet, and why.
    Unknown(String),
}

/// What happens to a pod with the gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GateStep {
    /// Remove the gate: the pod may run on any node.
    Open,
    /// The pod may run in the home cluster only.
    RequireHome,
    /// The pod waits, for this reason.
    Wait(String),
}

/// Considers all claims of a pod. `remote_only`: it may run on virtual nodes only.
#[must_use]
pub fn gate_step(ties: &[Tie], remote_only: bool) -> GateStep {
    let home = ties.iter().find_map(|tie| match tie {
        Tie::Home(volume) => Some(volume),
        Tie::Ours | Tie::Both | Tie::Unknown(_) => None,
    });
    match home {
        Some(volume) if remote_only => {
            return GateStep::Wait(format!(
                "the pod may run in remote clusters only, and the volume of {volume} is in this cluster only. Use \
                 a class of storage.liqo.io, or let the pod run here: by the strategy LocalAndRemote, and without a \
                 selector or affinity for virtual nodes. If the remote cluster has a claim of \
                 this name, annotate the claim or its class with {IN_BOTH_CLUSTERS}: \"true\""
            ));
        }
        Some(_) => return GateStep::RequireHome,
        None => {}
    }
    let unknown = ties.iter().find_map(|tie| match tie {
        Tie::Unknown(why) => Some(why.clone()),
        Tie::Ours | Tie::Home(_) | Tie::Both => None,
    });
    unknown.map_or(GateStep::Open, GateStep::Wait)
}

/// Whether a pod spec admits virtual nodes only: by its node selector, which also the `RuntimeClass` writes, or by
/// all of its required terms. `is_remote`: whether this is the name of a remote cluster, or of its virtual node. Other labels,
/// such as a region, may also be on real nodes.
#[must_use]
pub fn is_remote_only(spec: &Value, is_remote: impl Fn(&str) -> bool) -> bool {
    let is_virtual = |key: &str, value: &Value| match (key, value.as_str().unwrap_or_default()) {
        (NODE_KIND, kind) => kind == VIRTUAL_NODE,
        ("type", kind) => kind == "virtual-kubelet",
        (key, name) => NAMES.contains(&key) && is_remote(name),
    };
    let needs_virtual = |one: &Value| {
        let (key, values) = (one["key"].as_str().unwrap_or_default(), one["values"].as_array());
        one["operator"] == "In"
            && values.is_some_and(|all| !all.is_empty() && all.iter().all(|value| is_virtual(key, value)))
    };
    let is_virtual_only = |term: &Value| {
        let lists = ["matchExpressions", "matchFields"].into_iter();
        let mut all = lists.flat_map(|list| term[list].as_array().into_iter().flatten());
        all.any(needs_virtual)
    };
    let required = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let terms = required["nodeSelectorTerms"].as_array();
    let mut selected = spec["nodeSelector"].as_object().into_iter().flatten();
    selected.any(|(key, value)| is_virtual(key, value))
        || terms.is_some_and(|all| !all.is_empty() && all.iter().all(is_virtual_only))
}

/// The node selector terms of a gated pod that must stay at home: its own, each with one more requirement,
/// because Kubernetes allows only additions.
#[must_use]
pub fn held_at_home(terms: Option<&Value>) -> Value {
    let home = json!({"key": NODE_KIND, "operator": "NotIn", "values": [VIRTUAL_NODE]});
    let own = terms.and_then(Value::as_array).filter(|terms| !terms.is_empty());
    let Some(own) = own else {
        return json!([{"matchExpressions": [home]}]);
    };
    let held = own.iter().cloned().map(|mut term| {
        let has = |key: &str| term[key].as_array().is_some_and(|all| !all.is_empty());
        // A term without requirements matches no node; with this one alone it would match many.
        if has("matchExpressions") || has("matchFields") {
            match term["matchExpressions"].as_array_mut() {
                Some(all) if all.contains(&home) => {}
                Some(all) => all.push(home.clone()),
                None => term["matchExpressions"] = json!([home]),
            }
        }
        term
    });
    held.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_claim_keeps_the_pod_at_home_and_an_unknown_claim_delays_it() {
        let unknown = || Tie::Unknown("it is not there".into());
        let home = || Tie::Home("the claim shop/db".into());
        let wait = || GateStep::Wait("it is not there".into());
        for (ties, step) in [
            (vec![], GateStep::Open),
            (vec![Tie::Ours, Tie::Both], GateStep::Open),
            (vec![Tie::Ours, home()], GateStep::RequireHome),
            (vec![unknown(), home()], GateStep::RequireHome),
            (vec![Tie::Ours, unknown()], wait()),
        ] {
            assert_eq!(gate_step(&ties, false), step, "{ties:?}");
            let is_held = step == GateStep::RequireHome;
            match gate_step(&ties, true) {
                GateStep::Wait(why) if is_held => {
                    assert!(why.contains("the volume of the claim shop/db is in"), "{why}");
                }
                other => assert_eq!(other, step, "{ties:?}"),
            }
        }
    }

    #[test]
    fn a_pod_is_remote_only_by_its_selector_or_all_its_terms() {
        let kind =
            |operator: &str| json!({"key": "liqo.io/type", "operator": operator, "values": ["virtual-node"]});
        let terms = |terms: Value| json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}});
        let zone = json!({"key": "zone", "operator": "Exists"});
        let of = |key: &str, values: Value| json!({"key": key, "operator": "In", "values": values});
        for (spec, is) in [
            (json!({}), false),
            (json!({"nodeSelector": {"liqo.io/type": "virtual-node"}}), true),
            (json!({"nodeSelector": {"liqo.io/type": "other"}}), false),
            (json!({"nodeSelector": {"type": "virtual-kubelet"}}), true),
            (json!({"nodeSelector": {"type": "ssd"}}), false),
            (json!({"nodeSelector": {"kubernetes.io/hostname": "milan"}}), true),
            (
                json!({"nodeSelector": {"kubernetes.io/hostname": "home-1"}}),
                false,
            ),
            (
                json!({"nodeSelector": {"liqo.io/remote-cluster-id": "milan"}}),
                true,
            ),
            (
                json!({"nodeSelector": {"topology.storage.liqo.io/cluster": "milan"}}),
                true,
            ),
            (
                json!({"nodeSelector": {"topology.storage.liqo.io/cluster": "home"}}),
                false,
            ),
            (json!({"nodeSelector": {"region": "milan"}}), false),
            (
                terms(json!([{"matchExpressions": [of("kubernetes.io/hostname", json!(["milan"]))]}])),
                true,
            ),
            (
                terms(
                    json!([{"matchExpressions": [of("kubernetes.io/hostname", json!(["milan", "home-1"]))]}]),
                ),
                false,
            ),
            (
                terms(json!([
                    {"matchFields": [of("metadata.name", json!(["milan"]))]},
                    {"matchExpressions": [of("type", json!(["virtual-kubelet"]))]},
                ])),
                true,
            ),
            (terms(json!([])), false),
            (terms(json!([{"matchExpressions": [zone, kind("In")]}])), true),
            (
                terms(json!([{"matchExpressions": [kind("In")]}, {"matchExpressions": [zone]}])),
                false,
            ),
            (terms(json!([{"matchExpressions": [kind("NotIn")]}])), false),
        ] {
            assert_eq!(is_remote_only(&spec, |name| name == "milan"), is, "{spec}");
        }
    }

    #[test]
    fn the_home_requirement_is_added_to_each_affinity_term() {
        let home = json!({"key": "liqo.io/type", "operator": "NotIn", "values": ["virtual-node"]});
        let zone = json!({"key": "zone", "operator": "Exists"});
        let field = json!({"key": "metadata.name", "operator": "In", "values": ["n1"]});
        for (own, held) in [
            (None, json!([{"matchExpressions": [home]}])),
            (Some(json!([])), json!([{"matchExpressions": [home]}])),
            (
                Some(json!([{"matchExpressions": [zone]}, {"matchFields": [field]}, {}])),
                json!([
                    {"matchExpressions": [zone, home]},
                    {"matchFields": [field], "matchExpressions": [home]},
                    {},
                ]),
            ),
            (
                Some(json!([{"matchExpressions": [home]}])),
                json!([{"matchExpressions": [home]}]),
            ),
        ] {
            assert_eq!(held_at_home(own.as_ref()), held);
        }
    }
}
