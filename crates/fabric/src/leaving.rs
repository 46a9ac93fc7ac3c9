//! The pods at home that may run in a remote cluster which their namespace leaves: which they
//! are, and their eviction.

use std::collections::{BTreeSet, HashMap};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;

use crate::{
    api::namespace_offloading::NamespaceOffloading,
    cluster::{ApiError, Cluster, Eviction},
    observe::crash::{self, Step},
    offload::{Claim, Placed, pods::FINALIZER},
};

const KIND: &str = "liqo.io/type";
const VIRTUAL: &str = "virtual-node";
const RUNTIME_CLASS: &str = "liqo";
/// So long after the end of an offloading was asked for, API servers may not have read it; and their clocks may
/// differ from ours by that.
const LATE: SignedDuration = SignedDuration::from_secs(10);

/// A namespace that leaves a cluster.
pub(super) struct Leaving<'a> {
    pub(super) home: &'a Cluster,
    /// Its name.
    pub(super) namespace: &'a str,
    /// The nodes that stand for the cluster.
    pub(super) nodes: BTreeSet<String>,
    /// When that was said. Pods that were made later are what they are by somebody's wish, such as
    /// a template that names the node.
    pub(super) said: Timestamp,
}

impl Leaving<'_> {
    /// The pods that may run there, or that have a node which does not run them any more.
    pub(super) async fn pods(&self) -> Result<Vec<Placed>, ApiError> {
        let pods = self.home.within::<Pod>(self.namespace);
        pods.pick(None, None, |pod| self.is_concerned(&pod).then(|| placed(&pod)))
            .await
    }

    fn is_concerned(&self, pod: &Pod) -> bool {
        let node = pod.spec.as_ref().and_then(|it| it.node_name.as_deref());
        // The API server's clock, and that of the replica which said it.
        let is_older = pod
            .creation_timestamp()
            .is_none_or(|made| made.0 <= self.said + LATE);
        let is_there = node.is_some_and(|node| self.nodes.contains(node));
        is_there && (may_run_there(pod) || (is_older && is_made_again(pod)))
    }

    /// Marks the twins whose claims at home are being deleted, gone, or others by now: a
    /// `StatefulSet` makes its claims again under the same names.
    pub(super) async fn mark(&self, claims: &mut [Claim]) -> Result<(), ApiError> {
        let at_home = self.home.within::<PersistentVolumeClaim>(self.namespace);
        // However many there are there, the ones here are read once.
        let found = at_home.pick(None, None, |it| Some((it.name_any(), it))).await?;
        let mut found: HashMap<String, PersistentVolumeClaim> = found.into_iter().collect();
        for claim in claims {
            // What nobody at home has asked for is not deleted with its namespace.
            claim.leaving = found.remove(&claim.name).map_or(claim.is_twin, |it| {
                it.metadata.deletion_timestamp.is_some() || is_of_another(claim, &it)
            });
        }
        Ok(())
    }
}

/// Whether a claim at home has another volume than that of this twin.
fn is_of_another(twin: &Claim, at_home: &PersistentVolumeClaim) -> bool {
    let its = at_home.spec.as_ref().and_then(|spec| spec.volume_name.as_ref());
    let ours = twin.volume.as_ref().filter(|_| twin.is_twin);
    its.zip(ours).is_some_and(|(its, ours)| its != ours)
}

/// Evicts the pods that wait for virtual nodes although their namespace is offloaded no more;
/// what their owners make next does not. Whether there were any.
pub(super) async fn evict_waiting(home: &Cluster, object: &NamespaceOffloading) -> Result<bool, ApiError> {
    let namespace = object.namespace().unwrap_or_default();
    let Some(said) = &object.metadata.deletion_timestamp else {
        return Ok(false);
    };
    let is_older = |pod: &Pod| {
        pod.creation_timestamp()
            .is_none_or(|made| made.0 <= said.0 + LATE)
    };
    let waits = |pod: &Pod| {
        let is_placed = pod.spec.as_ref().is_some_and(|it| it.node_name.is_some());
        !is_placed && is_older(pod) && is_made_again(pod) && waits_for_virtual_nodes(pod)
    };
    let pods = home.within::<Pod>(&namespace);
    let pods = pods.pick(None, None, |pod| waits(&pod).then(|| placed(&pod)));
    let mut pods = pods.await?;
    pods.retain(|pod| !pod.leaving);
    // Budgets do not protect pods that were never placed.
    evict(home, &namespace, &pods).await?;
    Ok(!pods.is_empty())
}

/// Evicts pods; one that may not go now does not keep the others. Why one may not, if so.
pub(super) async fn evict(
    home: &Cluster,
    namespace: &str,
    pods: &[Placed],
) -> Result<Option<String>, ApiError> {
    let mut outcome = Ok(None);
    for pod in pods {
        let evicted = home.evict(namespace, &pod.name, &pod.uid, false);
        let why = match crash::around(Step::OffloadEvict, evicted).await {
            Ok(Eviction::Accepted) => {
                tracing::info!(
                    namespace,
                    pod = pod.name,
                    "evicted a pod: its namespace leaves the cluster"
                );
                continue;
            }
            Ok(Eviction::Refused(why)) => Ok(Some(format!("{}: {why}", pod.name))),
            Err(error) => Err(error),
        };
        outcome = outcome.and(why);
    }
    outcome
}

fn may_run_there(pod: &Pod) -> bool {
    pod.finalizers().iter().any(|it| it == FINALIZER)
}

fn controller(pod: &Pod) -> Option<&str> {
    let owner = pod
        .owner_references()
        .iter()
        .find(|it| it.controller == Some(true))?;
    Some(&owner.kind)
}

/// Whether it is made anew, elsewhere, when it is gone.
fn is_made_again(pod: &Pod) -> bool {
    controller(pod).is_some_and(|kind| kind != "DaemonSet")
}

/// Whether the policy of an offloaded namespace lets it run on virtual nodes only. What its owner
/// makes next has no such affinity.
fn waits_for_virtual_nodes(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    if spec.runtime_class_name.as_deref() == Some(RUNTIME_CLASS) {
        return false;
    }
    let required = spec
        .affinity
        .as_ref()
        .and_then(|it| it.node_affinity.as_ref())
        .and_then(|it| it.required_during_scheduling_ignored_during_execution.as_ref());
    let mut terms = required
        .into_iter()
        .flat_map(|it| &it.node_selector_terms)
        .peekable();
    terms.peek().is_some()
        && terms.all(|term| {
            let mut expressions = term.match_expressions.iter().flatten();
            expressions.any(|it| {
                it.key == KIND && it.operator == "In" && it.values.iter().flatten().any(|it| it == VIRTUAL)
            })
        })
}

fn placed(pod: &Pod) -> Placed {
    let volumes = pod.spec.iter().flat_map(|it| it.volumes.iter().flatten());
    let claims = volumes.filter_map(|it| Some(it.persistent_volume_claim.as_ref()?.claim_name.clone()));
    Placed {
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        claims: claims.collect(),
        leaving: pod.metadata.deletion_timestamp.is_some(),
    }
}
