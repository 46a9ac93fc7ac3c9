//! The capacity and common labels of the nodes of a remote cluster, and the labels that the cluster suggests.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{
    ResourceExt,
    api::{ApiResource, DynamicObject},
};
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::object::{KIND, VIRTUAL};
use crate::{
    api::{
        self,
        fabric::{CapacitySource, Fabric, LabelSource},
    },
    cluster::{ApiError, facts::is_ready, slim, view::View},
    offload::{
        Amounts, Offer,
        requests::{Requests, add},
        share_of, share_of_free, stated, suggested,
    },
    placement::{Consumer, Taint, Toleration},
    places::Place,
    seen::{SeenPod, SentPod},
    topology::is_label,
};

const RECOUNT: Duration = Duration::from_mins(1);
/// The timeout of one count: the lease of the node is not renewed meanwhile.
const LONGEST: Duration = Duration::from_secs(15);

/// Pods on nodes that have not terminated.
const PLACED: &str = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed";

/// Labels that the virtual node gets if all nodes there have the same value.
pub(super) const COMMON_LABELS: [&str; 2] = ["kubernetes.io/os", "kubernetes.io/arch"];

/// A feature of the kubelet's API, which the fabric implements itself.
const OF_KUBELET_API: &str = "ExtendWebSocketsToKubelet";
/// Features of a node, and bytes of each.
const MOST_FEATURES: usize = 64;
const LONGEST_FEATURE: usize = 128;

#[derive(Clone, Debug, Default)]
pub(super) struct Counted {
    /// The capacity, if known.
    pub(super) amounts: Option<Amounts>,
    /// The labels of [`COMMON_LABELS`] that all nodes have in common.
    pub(super) uniform: BTreeMap<String, String>,
    /// Labels that the cluster suggests for its virtual node.
    pub(super) suggested: BTreeMap<String, String>,
    /// The features that all nodes declare, if known: Kubernetes schedules pods by them, and refuses changes.
    pub(super) features: Option<BTreeSet<String>>,
    /// What could not be read, if anything.
    pub(super) problem: Option<String>,
    /// Why the node offers nothing, if the right to measure free capacity is missing.
    pub(super) refused: Option<String>,
}

/// The home pods of the node, and the uid of their cluster.
pub(super) struct AtHome<'a> {
    pub(super) pods: &'a View<SeenPod>,
    pub(super) uid: &'a str,
}

impl Counted {
    /// The labels of the cluster in one map: no suggestion has a key of [`COMMON_LABELS`].
    pub(super) fn labels(&self) -> BTreeMap<String, String> {
        let both = self.suggested.iter().chain(&self.uniform);
        both.map(|(key, value)| (key.clone(), value.clone())).collect()
    }
}

#[derive(Debug)]
pub(super) struct Counter {
    last: Counted,
    /// The offered part of the free capacity.
    free: Offer,
    began: Instant,
    when: Option<Instant>,
}

impl Counter {
    /// A counter that starts with the recorded labels of the cluster.
    pub(super) fn after(labels: BTreeMap<String, String>) -> Self {
        let (uniform, suggested) = labels
            .into_iter()
            .partition(|(key, _)| COMMON_LABELS.contains(&key.as_str()));
        Self {
            last: Counted {
                uniform,
                suggested,
                ..Counted::default()
            },
            free: Offer::default(),
            began: Instant::now(),
            when: None,
        }
    }

    /// Counts, if the cluster answers and the last count is not recent. What cannot be read now keeps its last value.
    pub(super) async fn count(
        &mut self,
        fabric: &Fabric,
        place: Option<&Place>,
        home: &AtHome<'_>,
    ) -> Counted {
        let is_recent = self.when.is_some_and(|when| when.elapsed() < RECOUNT);
        if let Some(place) = place.filter(|_| !is_recent) {
            self.when = Some(Instant::now());
            let read = timeout(LONGEST, self.read(fabric, place, home)).await;
            self.last.problem = read.unwrap_or_else(|_| {
                Some(format!(
                    "the cluster has not listed its nodes, and pods if they count, within {LONGEST:?}"
                ))
            });
        }
        self.known(fabric)
    }

    /// The result of the last count.
    pub(super) fn known(&self, fabric: &Fabric) -> Counted {
        let mut known = self.last.clone();
        match fabric.capacity.source {
            CapacitySource::Nodes => {}
            CapacitySource::Free => known.amounts = self.free.amounts().cloned(),
            CapacitySource::Static => known.amounts = Some(stated(&fabric.capacity.amounts)),
        }
        if fabric.labels_from.is_none() {
            known.suggested.clear();
        }
        known
    }

    /// Reads everything. Returns what could not be read, if anything.
    async fn read(&mut self, fabric: &Fabric, place: &Place, home: &AtHome<'_>) -> Option<String> {
        let mut problems = Vec::new();
        self.last.refused = None;
        let pods = Consumer {
            node_labels: fabric.pods.node_selector.clone(),
            tolerations: fabric.pods.tolerations.iter().filter_map(toleration).collect(),
            ..Consumer::default()
        };
        match nodes(place, &pods).await {
            Ok(open) => {
                // If no node takes pods now, the next one is assumed to have the labels and features of the last.
                if !open.is_empty() {
                    self.last.uniform = uniform(&open);
                    self.last.features = open.iter().map(|it| it.features.clone()).reduce(|a, b| &a & &b);
                }
                let offers = open.iter().map(|node| &node.amounts);
                self.last.amounts = Some(share_of(offers, fabric.capacity.share));
                if fabric.capacity.source == CapacitySource::Free {
                    problems.extend(self.measure_free(&open, fabric.capacity.share, place, home).await);
                }
            }
            // With a static capacity the nodes are not needed.
            Err(_) if fabric.capacity.source == CapacitySource::Static => {}
            Err(error) => problems.push(format!(
                "its capacity is unknown: {error}; set spec.fabric.capacity.source to Static"
            )),
        }
        if let Some(source) = &fabric.labels_from {
            match labels(place, source).await {
                Ok(labels) => self.last.suggested = labels,
                Err(error) => problems.push(format!("the labels that it suggests are unknown: {error}")),
            }
        }
        (!problems.is_empty()).then(|| problems.join("; "))
    }

    /// Measures the free capacity of these nodes. Returns why that failed, if it did. Without the right nothing is
    /// offered: neither the full capacity nor an old measurement is what the user configured.
    async fn measure_free(
        &mut self,
        open: &[Open],
        share: u32,
        place: &Place,
        home: &AtHome<'_>,
    ) -> Option<String> {
        let offers = || open.iter().map(|node| &node.amounts);
        let (free, problem) = match requested(place, open, home).await {
            Ok(requested) => (share_of_free(offers(), &requested, share), None),
            Err(error) if error.is_forbidden() => {
                let why = format!(
                    "the node offers nothing, because its free capacity is unknown: {error}. Set \
                     remoteAccess.freeCapacity=true in the release there, or spec.fabric.capacity.source to Nodes"
                );
                self.last.refused = Some(why.clone());
                (share_of(offers(), 0), Some(why))
            }
            Err(error) => return Some(format!("its free capacity is unknown: {error}")),
        };
        self.free.measure(free, self.began.elapsed());
        problem
    }
}

/// The requests of pods on these nodes. Of remote pods only what exceeds the requests of their home pods counts: the
/// scheduler at home subtracts the rest.
async fn requested(place: &Place, open: &[Open], home: &AtHome<'_>) -> Result<Requests, ApiError> {
    // A home pod that is not in the view yet would count twice.
    home.pods.complete().await;
    let nodes: HashSet<&str> = open.iter().map(|node| &*node.name).collect();
    let sum = Mutex::new(Requests::new());
    let count = |pod: SentPod| -> Option<()> {
        if pod.node().is_some_and(|node| nodes.contains(&*node)) {
            let own = SeenPod::remote(&pod).and_then(|remote| {
                let own = home.pods.get(remote.home_key()?)?;
                remote.runs_for(&own, home.uid).then_some(own)
            });
            let requests = pod.requests_beyond(own.as_deref());
            add(&mut sum.lock().unwrap_or_else(PoisonError::into_inner), &requests);
        }
        // Keeps only the sum in memory, and one page at a time.
        None
    };
    place
        .cluster
        .all::<SentPod>()
        .pick(None, Some(PLACED), count)
        .await?;
    Ok(sum.into_inner().unwrap_or_else(PoisonError::into_inner))
}

async fn labels(place: &Place, source: &LabelSource) -> Result<BTreeMap<String, String>, ApiError> {
    let all = place.cluster.within::<ConfigMap>(&source.namespace);
    let found = all.get(&source.name).await?;
    Ok(suggested(found.and_then(|it| it.data).unwrap_or_default()))
}

/// A node there that takes pods of the fabric.
struct Open {
    name: String,
    /// The labels with the keys of [`COMMON_LABELS`].
    labels: BTreeMap<String, String>,
    amounts: Amounts,
    features: BTreeSet<String>,
}

/// The nodes there that take such pods. Read untyped: the typed `Node` has no `declaredFeatures`.
async fn nodes(place: &Place, pods: &Consumer) -> Result<Vec<Open>, ApiError> {
    let nodes = place.cluster.dynamic(&ApiResource::erase::<Node>(&()), None);
    let open = |object: DynamicObject| {
        let features = features(&object.data["status"]["declaredFeatures"]);
        let node: Node = serde_json::from_value(serde_json::to_value(object).ok()?).ok()?;
        takes(&node, pods).then(|| offer(&node, features))
    };
    nodes.pick(None, None, open).await
}

/// The features that a node declares, if Kubernetes accepts their names.
fn features(declared: &Value) -> BTreeSet<String> {
    let is_word = |it: &str| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let is_name = |it: &&str| {
        it.len() <= LONGEST_FEATURE
            && it.starts_with(|first: char| first.is_ascii_uppercase())
            && it.split('/').all(is_word)
            && *it != OF_KUBELET_API
    };
    let all = declared.as_array().into_iter().flatten();
    let names = all.filter_map(Value::as_str).filter(is_name);
    names.take(MOST_FEATURES).map(str::to_owned).collect()
}

fn toleration(of: &api::fabric::Toleration) -> Option<Toleration> {
    slim::toleration(&k8s_openapi::api::core::v1::Toleration {
        key: Some(of.key.clone()),
        operator: of.operator.clone(),
        value: of.value.clone(),
        effect: of.effect.clone(),
        toleration_seconds: None,
    })
}

fn uniform(open: &[Open]) -> BTreeMap<String, String> {
    let mut uniform = open.first().map(|node| node.labels.clone()).unwrap_or_default();
    uniform.retain(|key, value| open.iter().all(|node| node.labels.get(key) == Some(value)));
    uniform
}

fn takes(node: &Node, pods: &Consumer) -> bool {
    let labels = node.labels();
    let is_virtual = labels.get(KIND).map(String::as_str) == Some(VIRTUAL)
        || labels.get("type").map(String::as_str) == Some("virtual-kubelet");
    let spec = node.spec.as_ref();
    let is_closed = spec.and_then(|it| it.unschedulable).unwrap_or_default();
    let taints = spec.into_iter().flat_map(|it| it.taints.iter().flatten());
    let taints: Vec<Taint> = taints
        .map(|taint| Taint {
            key: taint.key.clone(),
            value: taint.value.clone().unwrap_or_default(),
            effect: taint.effect.clone(),
        })
        .collect();
    let mut wanted = pods.node_labels.iter();
    let is_selected = wanted.all(|(key, value)| labels.get(key) == Some(value));
    is_ready(node) && !is_virtual && !is_closed && is_selected && pods.kept_away_by(&taints).is_none()
}

fn offer(node: &Node, features: BTreeSet<String>) -> Open {
    let labels = node
        .labels()
        .iter()
        .filter(|(key, value)| COMMON_LABELS.contains(&key.as_str()) && is_label(value));
    let labels = labels.map(|(key, value)| (key.clone(), value.clone())).collect();
    let amounts = node.status.iter().flat_map(|it| it.allocatable.iter().flatten());
    let amounts = amounts
        .map(|(name, amount)| (name.clone(), amount.0.clone()))
        .collect();
    Open {
        name: node.name_any(),
        labels,
        amounts,
        features,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_nodes_that_tolerate_the_pods_of_the_fabric_are_counted() {
        let node = |labels: &serde_json::Value, taint: Option<&str>| -> Node {
            let taints = taint.map(|key| json!({"key": key, "effect": "NoSchedule"}));
            serde_json::from_value(json!({
                "metadata": {"labels": labels},
                "spec": {"taints": taints.into_iter().collect::<Vec<_>>()},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            }))
            .unwrap()
        };
        let guests = Consumer {
            node_labels: [("pool".to_owned(), "guests".to_owned())].into(),
            tolerations: toleration(&api::fabric::Toleration {
                key: "guests".into(),
                operator: Some("Exists".into()),
                ..Default::default()
            })
            .into_iter()
            .collect(),
            ..Consumer::default()
        };
        let (pool, other) = (json!({"pool": "guests"}), json!({}));
        let anybody = Consumer::default();
        for (node, of_guests, of_anybody) in [
            (node(&pool, Some("guests")), true, false),
            (node(&pool, None), true, true),
            (node(&other, Some("guests")), false, false),
            (node(&other, None), false, true),
            (node(&pool, Some("theirs")), false, false),
        ] {
            assert_eq!(
                (takes(&node, &guests), takes(&node, &anybody)),
                (of_guests, of_anybody)
            );
        }
    }
}
