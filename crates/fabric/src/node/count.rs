//! What the nodes of a remote cluster are and offer, and how that cluster wants to be labelled.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::ResourceExt;
use tokio::time::{Instant, timeout};

use super::object::{KIND, VIRTUAL};
use crate::{
    api::fabric::{CapacitySource, Fabric, LabelSource},
    cluster::{ApiError, facts::is_ready},
    offload::{Amounts, is_label, share_of, stated, suggested},
    places::Place,
};

/// It is counted so often.
const RECOUNT: Duration = Duration::from_mins(1);
/// The lease of the node waits for no longer than this for a cluster with many nodes.
const LONGEST: Duration = Duration::from_secs(15);

/// Labels of the nodes there that count where all have them alike.
const UNIFORM: [&str; 2] = ["kubernetes.io/os", "kubernetes.io/arch"];

/// What is known of the nodes there.
#[derive(Clone, Debug, Default)]
pub(super) struct Counted {
    /// What they offer, if that is known.
    pub(super) amounts: Option<Amounts>,
    /// Labels that all of them have alike: operating system and architecture.
    pub(super) uniform: BTreeMap<String, String>,
    /// Labels that the cluster suggests for the node that stands for it.
    pub(super) suggested: BTreeMap<String, String>,
    /// What could not be read, if something could not.
    pub(super) trouble: Option<String>,
}

impl Counted {
    /// What the cluster says of itself, in one map: no suggestion is called as one of [`UNIFORM`].
    pub(super) fn labels(&self) -> BTreeMap<String, String> {
        let both = self.suggested.iter().chain(&self.uniform);
        both.map(|(key, value)| (key.clone(), value.clone())).collect()
    }
}

/// Counts now and then.
#[derive(Debug)]
pub(super) struct Census {
    last: Counted,
    when: Option<Instant>,
}

impl Census {
    /// One that knows which labels the cluster said of itself before.
    pub(super) fn after(labels: BTreeMap<String, String>) -> Self {
        let (uniform, suggested) = labels
            .into_iter()
            .partition(|(key, _)| UNIFORM.contains(&key.as_str()));
        Self {
            last: Counted {
                uniform,
                suggested,
                ..Counted::default()
            },
            when: None,
        }
    }

    /// What is known. The cluster is asked if it answers and was not asked a moment ago; what it
    /// does not say now is what it said last.
    pub(super) async fn count(&mut self, fabric: &Fabric, place: Option<&Place>) -> Counted {
        let is_recent = self.when.is_some_and(|when| when.elapsed() < RECOUNT);
        if let Some(place) = place.filter(|_| !is_recent) {
            self.when = Some(Instant::now());
            let asked = timeout(LONGEST, self.ask(fabric, place)).await;
            self.last.trouble = asked
                .unwrap_or_else(|_| Some(format!("the cluster has not listed its nodes within {LONGEST:?}")));
        }
        self.known(fabric)
    }

    /// What is known without asking.
    pub(super) fn known(&self, fabric: &Fabric) -> Counted {
        let mut known = self.last.clone();
        if fabric.capacity.source == CapacitySource::Static {
            known.amounts = Some(stated(&fabric.capacity.amounts));
        }
        if fabric.labels_from.is_none() {
            known.suggested.clear();
        }
        known
    }

    /// Asks for everything; what could not be read, if something could not.
    async fn ask(&mut self, fabric: &Fabric, place: &Place) -> Option<String> {
        let mut troubles = Vec::new();
        match nodes(place).await {
            Ok(open) => {
                // Where no node takes pods just now, the next one is as the last was.
                if !open.is_empty() {
                    self.last.uniform = uniform(&open);
                }
                let offers = open.iter().map(|(_, amounts)| amounts);
                self.last.amounts = Some(share_of(offers, fabric.capacity.share));
            }
            // Nothing is wrong where nobody needs them.
            Err(_) if fabric.capacity.source == CapacitySource::Static => {}
            Err(error) => troubles.push(format!(
                "its capacity is not known: {error}; set spec.fabric.capacity.source to Static"
            )),
        }
        if let Some(source) = &fabric.labels_from {
            match labels(place, source).await {
                Ok(labels) => self.last.suggested = labels,
                Err(error) => troubles.push(format!("the labels that it suggests are not known: {error}")),
            }
        }
        (!troubles.is_empty()).then(|| troubles.join("; "))
    }
}

async fn labels(place: &Place, source: &LabelSource) -> Result<BTreeMap<String, String>, ApiError> {
    let all = place.cluster.within::<ConfigMap>(&source.namespace);
    let found = all.get(&source.name).await?;
    Ok(suggested(found.and_then(|it| it.data).unwrap_or_default()))
}

/// The nodes there that take pods of anybody.
async fn nodes(place: &Place) -> Result<Vec<(BTreeMap<String, String>, Amounts)>, ApiError> {
    let nodes = place.cluster.all::<Node>();
    nodes
        .pick(None, None, |node| takes_pods(&node).then(|| offer(&node)))
        .await
}

fn uniform(open: &[(BTreeMap<String, String>, Amounts)]) -> BTreeMap<String, String> {
    let mut uniform = open.first().map(|(labels, _)| labels.clone()).unwrap_or_default();
    uniform.retain(|key, value| open.iter().all(|(labels, _)| labels.get(key) == Some(value)));
    uniform
}

fn takes_pods(node: &Node) -> bool {
    let labels = node.labels();
    let is_virtual = labels.get(KIND).map(String::as_str) == Some(VIRTUAL)
        || labels.get("type").map(String::as_str) == Some("virtual-kubelet");
    let spec = node.spec.as_ref();
    let is_closed = spec.and_then(|it| it.unschedulable).unwrap_or_default();
    let mut taints = spec.into_iter().flat_map(|it| it.taints.iter().flatten());
    let is_tainted = taints.any(|it| it.effect != "PreferNoSchedule");
    is_ready(node) && !is_virtual && !is_closed && !is_tainted
}

/// What one node is and offers.
fn offer(node: &Node) -> (BTreeMap<String, String>, Amounts) {
    let labels = node
        .labels()
        .iter()
        .filter(|(key, value)| UNIFORM.contains(&key.as_str()) && is_label(value));
    let labels = labels.map(|(key, value)| (key.clone(), value.clone())).collect();
    let amounts = node.status.iter().flat_map(|it| it.allocatable.iter().flatten());
    let amounts = amounts
        .map(|(name, amount)| (name.clone(), amount.0.clone()))
        .collect();
    (labels, amounts)
}
