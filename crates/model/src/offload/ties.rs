//! Whether the claims of a pod tie it to the home cluster. Admission policies cannot read claims: pods with
//! claims in `LocalAndRemote` namespaces get a scheduling gate, which is removed by the decision here.
//! Otherwise a `StatefulSet` of another class would wait forever on a virtual node.

use serde_json::{Value, json};

/// The scheduling gate of a pod until its claims were looked up.
pub const CLAIMS_GATE: &str = "fabric.storage.liqo.io/claims";
/// Annotation of a claim or its class: "true" if remote clusters have a claim of the same name.
pub const IN_BOTH_CLUSTERS: &str = "fabric.storage.liqo.io/in-both-clusters";

const NODE_KIND: &str = "liqo.io/type";
const VIRTUAL_NODE: &str = "virtual-node";

/// Which driver provides the volume of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tie {
    /// This driver: the volume follows its pod, or the pod is scheduled to the volume.
    Ours,
    /// Another driver, in the home cluster only.
    Home,
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
    HoldHome,
    /// The pod waits, for this reason.
    Wait(String),
}

/// Considers all claims of a pod.
#[must_use]
pub fn gate_step(ties: &[Tie]) -> GateStep {
    if ties.contains(&Tie::Home) {
        return GateStep::HoldHome;
    }
    let mut unknown = ties.iter().filter_map(|tie| match tie {
        Tie::Unknown(why) => Some(why.clone()),
        Tie::Ours | Tie::Home | Tie::Both => None,
    });
    unknown.next().map_or(GateStep::Open, GateStep::Wait)
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
    fn one_claim_of_home_holds_the_pod_and_one_that_is_not_known_delays_it() {
        let unknown = || Tie::Unknown("it is not there".into());
        let wait = || GateStep::Wait("it is not there".into());
        for (ties, step) in [
            (vec![], GateStep::Open),
            (vec![Tie::Ours, Tie::Both], GateStep::Open),
            (vec![Tie::Ours, Tie::Home], GateStep::HoldHome),
            (vec![unknown(), Tie::Home], GateStep::HoldHome),
            (vec![Tie::Ours, unknown()], wait()),
        ] {
            assert_eq!(gate_step(&ties), step, "{ties:?}");
        }
    }

    #[test]
    fn terms_only_get_stricter() {
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
