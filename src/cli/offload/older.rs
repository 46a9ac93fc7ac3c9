//! Pods that existed before their namespace was offloaded, or before its strategy changed: they lack the
//! node affinity and tolerations of new pods. They are listed and not changed.

use k8s_openapi::api::core::v1::{NodeSelectorTerm, Pod};
use kube::{
    ResourceExt,
    api::{ApiResource, DynamicObject},
};
use serde_json::json;

use crate::{
    api::namespace_offloading::PodOffloadingStrategy,
    cluster::{Cluster, slim},
    offload::{first_names, pods::is_homebound},
};

const TAINT: &str = "virtual-node.liqo.io/not-allowed";
const NODE_TYPE: &str = "liqo.io/type";
const CLASS: &str = "liqo";
/// How many pods are named.
const MOST_NAMED: usize = 10;

/// Prints which pods of the namespace may run on other nodes than new ones; nothing, if there are none.
pub(super) async fn print(cluster: &Cluster, namespace: &str, strategy: PodOffloadingStrategy) {
    // Untyped: the typed Pod drops fields that it does not know, and one of them may keep the pod at home.
    let older = cluster
        .dynamic(&ApiResource::erase::<Pod>(&()), Some(namespace))
        .find(|pod| differs(pod, strategy))
        .await;
    // A user who may offload a namespace may lack the right to read its pods.
    let text = match older {
        Ok(older) => describe(&older),
        Err(error) => Some(format!(
            "the podOffloadingStrategy applies to new pods only, and whether older ones exist is unknown: {error}"
        )),
    };
    if let Some(text) = text {
        println!("{namespace}: {text}");
    }
}

fn describe(older: &[DynamicObject]) -> Option<String> {
    let names: Vec<String> = older.iter().map(ResourceExt::name_any).collect();
    (!older.is_empty()).then(|| {
        format!(
            "the podOffloadingStrategy applies to new pods only; these existed before: {}. To \
             replace them: kubectl rollout restart",
            first_names(&names, MOST_NAMED)
        )
    })
}

/// Whether the strategy gives a new pod other tolerations or node affinity.
fn differs(object: &DynamicObject, strategy: PodOffloadingStrategy) -> bool {
    let Ok(pod) = object.clone().try_parse::<Pod>() else {
        return false;
    };
    let pod = &pod;
    let Some(spec) = &pod.spec else { return false };
    let owners = pod.metadata.owner_references.iter().flatten();
    let is_aside = pod.annotations().contains_key("kubernetes.io/config.mirror")
        || owners
            .into_iter()
            .any(|it| it.kind == "DaemonSet" && it.controller == Some(true));
    if is_aside || slim::has_ended(pod) || spec.runtime_class_name.as_deref() == Some(CLASS) {
        return false;
    }
    let mut tolerations = spec.tolerations.iter().flatten();
    let tolerates = tolerations.any(|it| {
        matches!(it.key.as_deref(), None | Some("" | TAINT))
            && matches!(it.effect.as_deref(), None | Some("" | "NoExecute"))
    });
    match strategy {
        PodOffloadingStrategy::Local => tolerates && !requires(pod, "NotIn"),
        PodOffloadingStrategy::Remote => !tolerates || !requires(pod, "In"),
        PodOffloadingStrategy::LocalAndRemote => {
            !tolerates && !is_homebound(&json!(object)) || requires(pod, "In") || requires(pod, "NotIn")
        }
    }
}

/// Whether the pod can run only on virtual nodes (`In`), or only on real ones (`NotIn`).
fn requires(pod: &Pod, operator: &str) -> bool {
    let affinity = pod.spec.as_ref().and_then(|it| it.affinity.as_ref());
    let node = affinity.and_then(|it| it.node_affinity.as_ref());
    let required = node.and_then(|it| it.required_during_scheduling_ignored_during_execution.as_ref());
    let says = |term: &NodeSelectorTerm| {
        let mut all = term.match_expressions.iter().flatten();
        all.any(|it| it.key == NODE_TYPE && it.operator == operator)
    };
    required.is_some_and(|it| it.node_selector_terms.iter().all(says))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn pod(spec: &Value) -> DynamicObject {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec});
        pod["spec"]["containers"] = json!([]);
        from_value(pod).unwrap()
    }

    fn affinity(operator: &str) -> Value {
        let expression = json!({"key": NODE_TYPE, "operator": operator, "values": ["virtual-node"]});
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}})
    }

    #[test]
    fn pods_without_the_scheduling_fields_of_new_pods_are_found() {
        use PodOffloadingStrategy::{Local, LocalAndRemote, Remote};
        let ours = json!([{"key": TAINT, "operator": "Exists", "effect": "NoExecute"}]);
        let all = json!([{"operator": "Exists"}]);
        for (spec, differ) in [
            (json!({}), vec![LocalAndRemote, Remote]),
            (
                json!({"tolerations": [{"key": "gpu"}]}),
                vec![LocalAndRemote, Remote],
            ),
            (json!({"tolerations": ours}), vec![Local, Remote]),
            (json!({"tolerations": all}), vec![Local, Remote]),
            (
                json!({"tolerations": ours, "affinity": affinity("In")}),
                vec![Local, LocalAndRemote],
            ),
            (
                json!({"tolerations": all, "affinity": affinity("NotIn")}),
                vec![LocalAndRemote, Remote],
            ),
            (json!({"hostNetwork": true}), vec![Remote]),
            (json!({"schedulingGroup": {"podGroupName": "a"}}), vec![Remote]),
            (
                json!({"volumes": [{"name": "v", "projected": {"sources": [{"clusterTrustBundle": {"path": "a"}}]}}]}),
                vec![Remote],
            ),
            (json!({"runtimeClassName": "liqo"}), vec![]),
        ] {
            for strategy in [Local, LocalAndRemote, Remote] {
                let is = differs(&pod(&spec), strategy);
                assert_eq!(is, differ.contains(&strategy), "{strategy:?}: {spec}");
            }
        }
    }

    #[test]
    fn daemon_set_and_ended_pods_are_not_reported_as_different() {
        let mut ended = pod(&json!({}));
        ended.data["status"] = json!({"phase": "Succeeded"});
        let mut agent = pod(&json!({}));
        let owner = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "a", "uid": "b", "controller": true}]);
        agent.metadata.owner_references = from_value(owner).unwrap();
        for pod in [ended, agent] {
            assert!(!differs(&pod, PodOffloadingStrategy::Remote));
        }
    }

    #[test]
    fn long_lists_of_pods_are_shortened() {
        assert_eq!(describe(&[]), None);
        let many = vec![pod(&json!({})); MOST_NAMED + 2];
        assert!(describe(&many).unwrap().contains("web and 2 more"));
    }
}
