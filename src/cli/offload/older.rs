//! Pods that existed before their namespace was offloaded, or before its strategy changed: they lack the
//! node affinity and tolerations of new pods. They are listed and not changed.

use k8s_openapi::api::core::v1::{NodeSelectorTerm, Pod};
use kube::ResourceExt;

use crate::{
    api::namespace_offloading::PodOffloadingStrategy,
    cluster::{ApiError, Cluster, slim},
};

const TAINT: &str = "virtual-node.liqo.io/not-allowed";
const NODE_TYPE: &str = "liqo.io/type";
const CLASS: &str = "liqo";
/// How many pods are named.
const MOST_NAMED: usize = 10;

/// Prints which pods of the namespace may run on other nodes than new ones; nothing, if there are none.
pub(super) async fn print(
    cluster: &Cluster,
    namespace: &str,
    strategy: PodOffloadingStrategy,
) -> Result<(), ApiError> {
    let older = cluster
        .within::<Pod>(namespace)
        .find(|pod| differs(pod, strategy))
        .await?;
    if let Some(text) = describe(&older) {
        println!("{namespace}: {text}");
    }
    Ok(())
}

fn describe(older: &[Pod]) -> Option<String> {
    let names: Vec<String> = older.iter().take(MOST_NAMED).map(ResourceExt::name_any).collect();
    let more = older.len().saturating_sub(MOST_NAMED);
    let and = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    (!older.is_empty()).then(|| {
        format!(
            "the podOffloadingStrategy applies to new pods only; these existed before: {}{and}. To \
             replace them: kubectl rollout restart",
            names.join(", ")
        )
    })
}

/// Whether the strategy gives a new pod other tolerations or node affinity.
fn differs(pod: &Pod, strategy: PodOffloadingStrategy) -> bool {
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
            !tolerates && !is_homebound(pod) || requires(pod, "In") || requires(pod, "NotIn")
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

/// Whether the pod stays in this cluster with every strategy, as the admission policy for new pods decides.
fn is_homebound(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let mut volumes = spec.volumes.iter().flatten();
    [spec.host_network, spec.host_pid, spec.host_ipc].contains(&Some(true))
        || spec.resource_claims.as_ref().is_some_and(|it| !it.is_empty())
        || volumes.any(|it| {
            let sources = it.projected.iter().flat_map(|it| it.sources.iter().flatten());
            let is_own = !it.name.starts_with("kube-api-access-");
            it.host_path.is_some()
                || it.ephemeral.is_some()
                || is_own && sources.into_iter().any(|one| one.service_account_token.is_some())
        })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn pod(spec: &Value) -> Pod {
        let mut pod = json!({"metadata": {"name": "web"}, "spec": spec});
        pod["spec"]["containers"] = json!([]);
        from_value(pod).unwrap()
    }

    fn affinity(operator: &str) -> Value {
        let expression = json!({"key": NODE_TYPE, "operator": operator, "values": ["virtual-node"]});
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}})
    }

    #[test]
    fn pods_that_lack_what_new_ones_get_differ() {
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
            (json!({"runtimeClassName": "liqo"}), vec![]),
        ] {
            for strategy in [Local, LocalAndRemote, Remote] {
                let is = differs(&pod(&spec), strategy);
                assert_eq!(is, differ.contains(&strategy), "{strategy:?}: {spec}");
            }
        }
    }

    #[test]
    fn pods_of_nodes_and_pods_that_ended_never_do() {
        let mut ended = pod(&json!({}));
        ended.status = from_value(json!({"phase": "Succeeded"})).unwrap();
        let mut agent = pod(&json!({}));
        let owner = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "a", "uid": "b", "controller": true}]);
        agent.metadata.owner_references = from_value(owner).unwrap();
        for pod in [ended, agent] {
            assert!(!differs(&pod, PodOffloadingStrategy::Remote));
        }
    }

    #[test]
    fn not_all_names_are_told() {
        assert_eq!(describe(&[]), None);
        let many = vec![pod(&json!({})); MOST_NAMED + 2];
        assert!(describe(&many).unwrap().contains("web and 2 more"));
    }
}
