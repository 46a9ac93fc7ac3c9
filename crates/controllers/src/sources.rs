//! Copies are made where their source is, and the scheduler does not know that: all that it
//! obeys is the node selected for a claim. So this loop selects one, as
//! [`crate::placement`] says: at once where only one node can have the copy, or after the
//! scheduler has missed them all, which `CreateVolume` notes on the claim. Where the pod may
//! run on none of them, the claim says so.
//!
//! Its keys are claims that wait with a source. One is looked at when it, or a pod that waits
//! for it, changes; and again after a pause while its source cannot be found, or no node was
//! of use.

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
    placement::{BindingMode, Class, Consumer, NodeSelection, Taint, select_node_for_copy},
    rounds::Rounds,
    topology::{Node, NodeSelector},
    volume::{ClaimMark, DRIVER_NAME, mark},
};

/// Nodes whose taints are read to find one for a claim.
const MOST_READ: usize = 50;
/// How often a claim that changes all the time is looked at before it is left alone a while.
const LOOKS_AT_ONCE: usize = 4;
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
    /// When all claims were to be looked at last.
    all: Option<Instant>,
}

/// What came of a look at a claim.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// Nothing is to be done until it changes.
    Settled,
    /// It was given a node.
    Selected,
    /// It has changed meanwhile: Kubernetes writes on new claims, and the scheduler may be faster.
    Changed,
    /// It is to be looked at again, for this reason; people may have to hear it.
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

    /// The claims that this round looks at.
    fn due(&mut self) -> BTreeSet<String> {
        let mut keys = self.pauses.over();
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

    /// The class of a claim that waits for a node and a copy, if it is one of ours.
    fn class_of(&self, claim: &Claim) -> Option<Arc<Class>> {
        let waits = claim.source.is_some() && claim.pending && !claim.has_node && !claim.deleting;
        let class = self.home.views().classes.get(claim.class.as_ref()?)?;
        (waits && class.provisioner == DRIVER_NAME).then_some(class)
    }

    async fn look(&self, claim: &Claim, class: &Class) -> Result<Outcome, ApiError> {
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
        let mut kept_away = String::new();
        for consumer in consumers {
            let nodes = match select_node_for_copy(&place, consumer, missed, waits, tried) {
                NodeSelection::ByScheduler => return Ok(Outcome::Settled),
                NodeSelection::Nowhere => continue,
                NodeSelection::FirstOf(nodes) => nodes,
            };
            match self.first_usable(claim, consumer, nodes).await? {
                Ok(node) => {
                    let told = format!("{source} is {}: the node {node} was selected", place.describe());
                    return self.select(&found, &node, &told).await;
                }
                Err(why) => kept_away = format!(" ({why})"),
            }
        }
        let who = match pods.as_slice() {
            [] => String::new(),
            [only] => format!(", where the pod {} may not run{kept_away}", only.consumer.name),
            [first, ..] => format!(
                ", where neither the pod {} nor others may run{kept_away}",
                first.consumer.name
            ),
        };
        Ok(Outcome::Again(Some(format!(
            "{source} is {}{who}. A copy can only be made there: let the pod run there",
            place.describe()
        ))))
    }

    /// The first of these nodes that the pod may use, as its taints and the other claims of
    /// the pod have it; or why there is none.
    async fn first_usable(
        &self,
        claim: &Claim,
        consumer: Option<&Consumer>,
        nodes: Vec<String>,
    ) -> Result<Result<String, String>, ApiError> {
        let Some(pod) = consumer else {
            return Ok(nodes.into_iter().next().ok_or_else(String::new));
        };
        let bonds = self.bonds(claim, pod).await?;
        let mut why = String::new();
        for name in nodes.into_iter().take(MOST_READ) {
            let Some(found) = self.home.all::<KubeNode>().get(&name).await? else {
                continue;
            };
            let taints = taints(&found);
            let node = facts::node(found.metadata, &[]);
            if let Some(bond) = bonds.iter().find(|bond| !bond.admits(&node)) {
                why = format!("its claim {} is elsewhere", bond.claim);
            } else if let Some(taint) = pod.kept_away_by(&taints) {
                why = format!("{name} has the taint {}", taint.key);
            } else {
                return Ok(Ok(name));
            }
        }
        Ok(Err(why))
    }

    /// What the other claims of a pod say about its node.
    async fn bonds(&self, claim: &Claim, pod: &Consumer) -> Result<Vec<Bond>, ApiError> {
        let claims = self.home.within::<PersistentVolumeClaim>(&pod.namespace);
        let mut bonds = Vec::new();
        for name in pod.claims.iter().filter(|name| **name != claim.name.name) {
            let Some(other) = claims.get(name).await? else {
                continue;
            };
            let volume = other.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
            let bond = match (volume, other.annotations().get(SELECTED_NODE)) {
                (Some(volume), _) => {
                    let volume = self.home.all::<PersistentVolume>().get(volume).await?;
                    volume.as_ref().and_then(facts::affinity).map(Where::Admitted)
                }
                (None, Some(node)) => Some(Where::Selected(node.clone())),
                (None, None) => None,
            };
            bonds.extend(bond.map(|place| Bond {
                claim: name.clone(),
                place,
            }));
        }
        Ok(bonds)
    }

    async fn select(
        &self,
        claim: &PersistentVolumeClaim,
        node: &str,
        told: &str,
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
            .tell(&mark, Weight::Normal, "NodeSelected", told)
            .await;
        Ok(Outcome::Selected)
    }

    async fn reconcile(&mut self, key: &str) -> Result<(), ApiError> {
        let Some(claim) = self.watched.claims.get(key) else {
            self.pauses.forget(key);
            return Ok(());
        };
        if claim.has_node && claim.pending {
            // It may lose that again.
            self.pauses.settle(key);
            return Ok(());
        }
        let Some(class) = self.class_of(&claim) else {
            self.pauses.forget(key);
            return Ok(());
        };
        if self.pauses.rests(key, &claim.uid) {
            return Ok(());
        }
        let mut looked = self.look(&claim, &class).await;
        for _ in 1..LOOKS_AT_ONCE {
            if matches!(looked, Ok(Outcome::Changed)) {
                looked = self.look(&claim, &class).await;
            }
        }
        let outcome = match looked {
            Ok(outcome) => outcome,
            Err(error) => {
                self.pauses.again(key, &claim.uid);
                return Err(error);
            }
        };
        match outcome {
            Outcome::Changed => drop(self.pauses.again(key, &claim.uid)),
            Outcome::Settled => self.pauses.settle(key),
            Outcome::Selected => self.pauses.select(key, &claim.uid),
            Outcome::Again(why) => {
                // A pod or a node may just be about to be seen.
                let is_news = !self.pauses.again(key, &claim.uid);
                if let Some(why) = why.filter(|_| !is_news) {
                    let mark = ClaimMark {
                        namespace: claim.name.namespace.clone(),
                        name: claim.name.name.clone(),
                        uid: claim.uid.clone(),
                    };
                    self.reports.warn(&mark, REASON, &why).await;
                }
            }
        }
        Ok(())
    }
}

/// What another claim of the pod says about its node.
struct Bond {
    claim: String,
    place: Where,
}

enum Where {
    /// It was selected.
    Selected(String),
    /// The PV admits it.
    Admitted(NodeSelector),
}

impl Bond {
    fn admits(&self, node: &Node) -> bool {
        match &self.place {
            Where::Selected(name) => *name == node.name,
            Where::Admitted(selector) => selector.admits(node),
        }
    }
}

fn taints(node: &KubeNode) -> Vec<Taint> {
    let Some(spec) = &node.spec else {
        return Vec::new();
    };
    let own = spec.taints.iter().flatten().map(|taint| Taint {
        key: taint.key.clone(),
        value: taint.value.clone().unwrap_or_default(),
        effect: taint.effect.clone(),
    });
    let cordon = spec.unschedulable.unwrap_or_default().then(Taint::of_cordon);
    own.chain(cordon).collect()
}

impl Rounds for Sources<'_> {
    const NAME: &'static str = "sources";
    const RESYNC: Duration = Duration::from_mins(5);
    /// The scheduler does not wait either.
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
