//! The pods that wait to be scheduled, by the claims they wait for.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Pod, Toleration as KubeToleration};
use kube::{Api, ResourceExt, runtime::watcher};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    cluster::{
        Cluster, facts,
        slim::claims_of,
        view::{Changed, Feed, Slim, View},
    },
    placement::{Consumer, Toleration},
    volume::ClaimName,
};

/// The pods that wait to be scheduled.
pub(super) struct WaitingPods {
    pods: View<Consumer>,
    changes: Feed<Consumer>,
    /// The pods that are known to have waited for a claim, by its key.
    by_claim: HashMap<String, BTreeSet<String>>,
    _stops: DropGuard,
}

impl Slim for Consumer {
    fn topic(&self) -> &str {
        &self.namespace
    }
}

impl WaitingPods {
    pub(super) fn start(home: &Cluster) -> Self {
        let stop = CancellationToken::new();
        let unscheduled = watcher::Config::default().fields("status.phase=Pending,spec.nodeName=");
        let pods = View::start(
            Api::all(home.client().clone()),
            unscheduled,
            |pod| consumer(&pod),
            &stop,
        );
        Self {
            changes: pods.feed(),
            pods,
            by_claim: HashMap::new(),
            _stops: stop.drop_guard(),
        }
    }

    pub(super) fn version(&self) -> watch::Receiver<u64> {
        self.pods.version()
    }

    #[cfg(test)]
    pub(super) async fn complete(&self) {
        self.pods.complete().await;
    }

    /// The keys of the claims whose pods have changed.
    pub(super) fn take(&mut self) -> BTreeSet<String> {
        let pods = match self.changes.take() {
            Changed::These(pods) => pods,
            Changed::Everything => {
                self.by_claim.clear();
                self.pods.all()
            }
        };
        let mut keys = BTreeSet::new();
        for pod in pods {
            let pod_key = format!("{}/{}", pod.namespace, pod.name);
            let is_there = self.pods.get(&pod_key).is_some();
            for claim in &pod.claims {
                let key = format!("{}/{claim}", pod.namespace);
                let waiting = self.by_claim.entry(key.clone()).or_default();
                if is_there {
                    waiting.insert(pod_key.clone());
                } else {
                    waiting.remove(&pod_key);
                }
                if waiting.is_empty() {
                    self.by_claim.remove(&key);
                }
                keys.insert(key);
            }
        }
        keys
    }

    /// The pods that wait for a claim.
    pub(super) fn of(&self, claim: &ClaimName) -> Vec<Arc<Consumer>> {
        let known = self.by_claim.get(&claim.to_string());
        let pods = known.into_iter().flatten().filter_map(|key| self.pods.get(key));
        pods.filter(|pod| pod.claims.contains(&claim.name)).collect()
    }
}

fn consumer(pod: &Pod) -> Option<Consumer> {
    let spec = pod.spec.as_ref()?;
    let is_scheduled = spec.node_name.as_ref().is_some_and(|node| !node.is_empty());
    let claims: Vec<String> = claims_of(pod).collect();
    if is_scheduled || claims.is_empty() || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let affinity = spec.affinity.as_ref().and_then(|it| it.node_affinity.as_ref());
    let required = affinity.and_then(|it| it.required_during_scheduling_ignored_during_execution.as_ref());
    Some(Consumer {
        namespace: pod.namespace().unwrap_or_default(),
        name: pod.name_any(),
        claims,
        node_labels: spec.node_selector.clone().unwrap_or_default(),
        affinity: required.map(facts::node_selector),
        tolerations: spec.tolerations.iter().flatten().filter_map(toleration).collect(),
    })
}

/// One of a kind that is not known tolerates nothing.
fn toleration(toleration: &KubeToleration) -> Option<Toleration> {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let key = given(&toleration.key);
    let value = match toleration.operator.as_deref() {
        Some("Exists") => None,
        None | Some("" | "Equal") if key.is_some() => Some(toleration.value.clone().unwrap_or_default()),
        _ => return None,
    };
    Some(Toleration {
        key,
        value,
        effect: given(&toleration.effect),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;
    use crate::placement::Taint;

    fn pod(spec: &Value) -> Pod {
        from_value(json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec})).unwrap()
    }

    #[test]
    fn reads_what_a_pod_asks_of_its_node() {
        let required = json!({"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "zone", "operator": "In", "values": ["a"]},
        ]}]});
        let read = consumer(&pod(&json!({
            "containers": [],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
            "nodeSelector": {"disk": "ssd"},
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
            "tolerations": [{"key": "virtual", "operator": "Exists"}, {"operator": "Lt", "key": "x", "value": "1"}],
        })))
        .unwrap();
        assert_eq!(
            (read.claims.len(), read.node_labels.len(), read.tolerations.len()),
            (1, 1, 1)
        );
        assert_eq!(read.affinity.as_ref().unwrap().terms.len(), 1);
        let taint = Taint {
            key: "virtual".into(),
            value: "x".into(),
            effect: "NoSchedule".into(),
        };
        assert_eq!(read.kept_away_by(&[taint]), None);
    }

    #[test]
    fn a_pod_that_has_a_node_or_no_claim_does_not_wait() {
        let claims = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
        assert_eq!(consumer(&pod(&json!({"containers": []}))), None);
        assert_eq!(
            consumer(&pod(
                &json!({"containers": [], "volumes": claims, "nodeName": "n1"})
            )),
            None
        );
    }
}
