//! Copies are made where their source is, which the scheduler does not know: it obeys only the node that
//! is selected for a claim. This loop selects that node, as [`crate::placement`] decides: at once if only
//! one node can have the copy, or after the scheduler has selected a node without the source, which
//! `CreateVolume` records on the claim. If the pod may run on none of them, an event on the claim says so.
//!
//! The keys of the loop are pending claims with a source. A claim is checked when it, or a pod that waits
//! for it, changes; and again after a pause while its source does not exist, or no node is usable.

mod pauses;
mod pods;
mod source;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Node as KubeNode, PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde_json::json;
use tokio::{sync::watch, time::Instant};

use self::{pauses::Pauses, pods::WaitingPods, source::Found};
use super::{
    reports::Reports,
    watched::{Claim, Watched, claim_source},
};
use crate::{
    cluster::{
        ApiError, Cluster,
        events::{Events, Weight},
        facts,
        slim::SELECTED_NODE,
        view::{Changed, Feed},
    },
    observe::crash::{self, Step},
    placement::{BindingMode, Class, Consumer, NodeSelection, select_node_for_copy},
    rounds::Rounds,
    topology::{Node, NodeSelector},
    volume::{ClaimMark, DRIVER_NAME, mark},
};

/// The most nodes whose taints are read for one claim.
const MOST_READ: usize = 50;
/// How often a claim that keeps changing is read before a pause.
const CHECKS_AT_ONCE: usize = 4;
const REASON: &str = "SourceElsewhere";

/// The loop that selects nodes for copies.
pub(super) struct Sources<'a> {
    home: &'a Cluster,
    watched: &'a Watched,
    events: &'a Events,
    reports: Reports,
    claims: Feed<Claim>,
    pods: WaitingPods,
    pauses: Pauses,
    /// When all claims were checked last.
    all: Option<Instant>,
}

/// The result of a check of a claim.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// Nothing to do until it changes.
    Settled,
    /// A node was selected.
    Selected,
    /// The claim has changed in the meantime: Kubernetes writes to new claims, and the scheduler may be faster.
    Changed,
    /// Check it again after a pause; with the reason if users need an event.
    Again(Option<String>),
}

impl<'a> Sources<'a> {
    pub(super) fn new(home: &'a Cluster, watched: &'a Watched, events: &'a Events, reports: Reports) -> Self {
        Self {
            home,
            watched,
            events,
            reports,
            claims: watched.claims.feed(),
            pods: WaitingPods::new(&watched.pods),
            pauses: Pauses::default(),
            all: None,
        }
    }

    /// The claims to check in this round.
    fn due(&mut self) -> BTreeSet<String> {
        let mut keys = self.pauses.due();
        keys.extend(self.pods.take());
        let is_time = self.all.is_none_or(|when| when.elapsed() >= Self::RESYNC);
        match self.claims.take() {
            Changed::These(claims) if !is_time => {
                keys.extend(claims.iter().map(|claim| claim.name.to_string()));
            }
            _ => {
                self.all = Some(Instant::now());
                let all = self.watched.claims.all();
                let copies = all.iter().filter(|claim| claim.source.is_some());
                keys.extend(copies.map(|claim| claim.name.to_string()));
            }
        }
        keys
    }

    /// The class of a claim that waits for a node and a copy, if it is a class of this driver.
    fn class_of(&self, claim: &Claim) -> Option<Arc<Class>> {
        let waits = claim.source.is_some() && claim.pending && !claim.has_node && !claim.deleting;
        let class = self.home.views().classes.get(claim.class.as_ref()?)?;
        (waits && class.provisioner == DRIVER_NAME).then_some(class)
    }

    async fn check(&self, claim: &Claim, class: &Class) -> Result<Outcome, ApiError> {
        let claims = self.home.within::<PersistentVolumeClaim>(&claim.name.namespace);
        let Some(found) = claims.get(&claim.name.name).await? else {
            return Ok(Outcome::Settled);
        };
        let still_waits = found.uid().as_deref() == Some(&claim.uid)
            && found.spec.as_ref().is_some_and(|spec| spec.volume_name.is_none())
            && found.metadata.deletion_timestamp.is_none()
            && !found.annotations().contains_key(SELECTED_NODE);
        let Some(source) = claim_source(&found).filter(|_| still_waits) else {
            return Ok(Outcome::Settled);
        };
        let place = match source::find(self.home, &claim.name.namespace, &source, class).await? {
            Found::At(place) => place,
            Found::NotYet => return Ok(Outcome::Again(None)),
            Found::NotOurs => return Ok(Outcome::Settled),
        };
        let missed = found.annotations().contains_key(mark::SOURCE_AT);
        let waits = class.binding == BindingMode::WaitForFirstConsumer;
        let tried = self.pauses.selected(&claim.name.to_string(), &claim.uid);
        let pods = self.pods.of(&claim.name);
        let consumers: Vec<Option<&Consumer>> = if pods.is_empty() {
            vec![None]
        } else {
            pods.iter().map(|pod| Some(&pod.consumer)).collect()
        };
        let mut reason = String::new();
        for consumer in consumers {
            let nodes = match select_node_for_copy(&place, consumer, missed, waits, tried) {
                NodeSelection::ByScheduler => return Ok(Outcome::Settled),
                NodeSelection::Nowhere => continue,
                NodeSelection::FirstOf(nodes) => nodes,
            };
            match self.first_usable(claim, consumer, nodes).await? {
                Ok(node) => {
                    let why = format!("{source} is {}: the node {node} was selected", place.describe());
                    return self.select(&found, &node, &why).await;
                }
                Err(why) => reason = format!(" ({why})"),
            }
        }
        let who = match pods.as_slice() {
            [] => String::new(),
            [only] => format!(", where the pod {} may not run{reason}", only.consumer.name),
            [first, ..] => format!(
                ", where neither the pod {} nor others may run{reason}",
                first.consumer.name
            ),
        };
        Ok(Outcome::Again(Some(format!(
            "{source} is {}{who}. A copy can only be made there: let the pod run there",
            place.describe()
        ))))
    }

    /// The first of these nodes that the pod may use, given its taints and the other claims of the pod;
    /// or why none is usable.
    async fn first_usable(
        &self,
        claim: &Claim,
        consumer: Option<&Consumer>,
        nodes: Vec<String>,
    ) -> Result<Result<String, String>, ApiError> {
        let Some(pod) = consumer else {
            return Ok(nodes.into_iter().next().ok_or_else(String::new));
        };
        let constraints = self.constraints(claim, pod).await?;
        let mut why = String::new();
        for name in nodes.into_iter().take(MOST_READ) {
            let Some(found) = self.home.all::<KubeNode>().get(&name).await? else {
                continue;
            };
            let taints = facts::taints(&found);
            let node = facts::node(found.metadata, &[]);
            if let Some(constraint) = constraints.iter().find(|constraint| !constraint.admits(&node)) {
                why = format!("its claim {} is elsewhere", constraint.claim);
            } else if let Some(taint) = pod.kept_away_by(&taints) {
                why = format!("{name} has the taint {}", taint.key);
            } else {
                return Ok(Ok(name));
            }
        }
        Ok(Err(why))
    }

    /// The nodes to which the other claims of a pod are bound.
    async fn constraints(&self, claim: &Claim, pod: &Consumer) -> Result<Vec<NodeConstraint>, ApiError> {
        let claims = self.home.within::<PersistentVolumeClaim>(&pod.namespace);
        let mut constraints = Vec::new();
        for name in pod.claims.iter().filter(|name| **name != claim.name.name) {
            let Some(other) = claims.get(name).await? else {
                continue;
            };
            let volume = other.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
            let constraint = match (volume, other.annotations().get(SELECTED_NODE)) {
                (Some(volume), _) => {
                    let volume = self.home.all::<PersistentVolume>().get(volume).await?;
                    volume
                        .as_ref()
                        .and_then(facts::affinity)
                        .map(AllowedNodes::Admitted)
                }
                (None, Some(node)) => Some(AllowedNodes::Selected(node.clone())),
                (None, None) => None,
            };
            constraints.extend(constraint.map(|nodes| NodeConstraint {
                claim: name.clone(),
                nodes,
            }));
        }
        Ok(constraints)
    }

    async fn select(
        &self,
        claim: &PersistentVolumeClaim,
        node: &str,
        why: &str,
    ) -> Result<Outcome, ApiError> {
        let namespace = claim.namespace().unwrap_or_default();
        let claims = self.home.within::<PersistentVolumeClaim>(&namespace);
        let patch = json!({"metadata": {
            "uid": claim.uid(),
            "resourceVersion": claim.resource_version(),
            "annotations": {SELECTED_NODE: node},
        }});
        let name = claim.name_any();
        match crash::around(Step::SelectSourceNode, claims.merge(&name, &patch)).await {
            Err(error) if error.is_conflict() => return Ok(Outcome::Changed),
            other => other?,
        };
        let mark = ClaimMark {
            namespace,
            name,
            uid: claim.uid().unwrap_or_default(),
        };
        self.events
            .publish_on_claim(&mark, Weight::Normal, "NodeSelected", why)
            .await;
        Ok(Outcome::Selected)
    }

    async fn reconcile(&mut self, key: &str) -> Result<(), ApiError> {
        let Some(claim) = self.watched.claims.get(key) else {
            self.pauses.forget(key);
            return Ok(());
        };
        if claim.has_node && claim.pending {
            // The selected node may be removed from the claim again.
            self.pauses.settle(key);
            return Ok(());
        }
        let Some(class) = self.class_of(&claim) else {
            self.pauses.forget(key);
            return Ok(());
        };
        if self.pauses.is_paused(key, &claim.uid) {
            return Ok(());
        }
        let mut checked = self.check(&claim, &class).await;
        for _ in 1..CHECKS_AT_ONCE {
            if matches!(checked, Ok(Outcome::Changed)) {
                checked = self.check(&claim, &class).await;
            }
        }
        let outcome = match checked {
            Ok(outcome) => outcome,
            Err(error) => {
                self.pauses.retry(key, &claim.uid);
                return Err(error);
            }
        };
        match outcome {
            Outcome::Changed => drop(self.pauses.retry(key, &claim.uid)),
            Outcome::Settled => self.pauses.settle(key),
            Outcome::Selected => self.pauses.select(key, &claim.uid),
            Outcome::Again(why) => {
                // The first time no event is emitted: the view may just be about to show a pod or a node.
                let is_news = !self.pauses.retry(key, &claim.uid);
                if let Some(why) = why.filter(|_| !is_news) {
                    self.reports.warn(&claim.mark(), REASON, &why).await;
                }
            }
        }
        Ok(())
    }
}

/// The nodes to which another claim of the pod is bound.
struct NodeConstraint {
    claim: String,
    nodes: AllowedNodes,
}

enum AllowedNodes {
    /// The selected node.
    Selected(String),
    /// The node affinity of its PV.
    Admitted(NodeSelector),
}

impl NodeConstraint {
    fn admits(&self, node: &Node) -> bool {
        match &self.nodes {
            AllowedNodes::Selected(name) => *name == node.name,
            AllowedNodes::Admitted(selector) => selector.admits(node),
        }
    }
}

impl Rounds for Sources<'_> {
    const NAME: &'static str = "sources";
    const RESYNC: Duration = Duration::from_mins(5);
    /// Short, because the scheduler does not wait either.
    const GATHER: Duration = Duration::from_millis(10);

    fn due(&self) -> Option<Duration> {
        self.pauses.left()
    }

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        vec![
            self.watched.claims.version(),
            self.pods.changes(),
            self.home.views().classes.version(),
        ]
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        let mut outcome = Ok(());
        for key in self.due() {
            outcome = outcome.and(self.reconcile(&key).await);
        }
        outcome
    }
}
