//! Finds and evicts the home pods that may run in a remote cluster which their namespace leaves.

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
/// The admission policies of API servers may see the deletion of the `NamespaceOffloading` this much later, and
/// their clocks may differ from this one by as much.
const ADMISSION_DELAY: SignedDuration = SignedDuration::from_secs(10);

/// A namespace that leaves a cluster.
pub(super) struct Leaving<'a> {
    pub(super) home: &'a Cluster,
    pub(super) namespace: &'a str,
    /// The virtual nodes of the cluster.
    pub(super) nodes: BTreeSet<String>,
    /// Since when the status reports that. Pods created later are on the node because their
    /// template requires it.
    pub(super) since: Timestamp,
}

impl Leaving<'_> {
    /// The pods that may run in the cluster, or are assigned to a node that will not run them any more.
    pub(super) async fn pods(&self) -> Result<Vec<Placed>, ApiError> {
        let pods = self.home.within::<Pod>(self.namespace);
        pods.pick(None, None, |pod| self.is_concerned(&pod).then(|| placed(&pod)))
            .await
    }

    fn is_concerned(&self, pod: &Pod) -> bool {
        let node = pod.spec.as_ref().and_then(|it| it.node_name.as_deref());
        // Compares the clock of the API server with that of the replica that wrote the condition.
        let is_older = pod
            .creation_timestamp()
            .is_none_or(|made| made.0 <= self.since + ADMISSION_DELAY);
        let is_there = node.is_some_and(|node| self.nodes.contains(node));
        is_there && (may_run_there(pod) || (is_older && is_recreated_elsewhere(pod)))
    }

    /// Marks the twins whose claims at home are being deleted, were deleted, or are other claims by now: a
    /// `StatefulSet` creates its claims again under the same names.
    pub(super) async fn mark_claims(&self, claims: &mut [Claim]) -> Result<(), ApiError> {
        let at_home = self.home.within::<PersistentVolumeClaim>(self.namespace);
        // One list instead of a read for each remote claim.
        let found = at_home.pick(None, None, |it| Some((it.name_any(), it))).await?;
        let mut found: HashMap<String, PersistentVolumeClaim> = found.into_iter().collect();
        for claim in claims {
            // A remote claim that is no twin was created there, and must not be deleted with its namespace.
            claim.leaving = found.remove(&claim.name).map_or(claim.is_twin, |it| {
                it.metadata.deletion_timestamp.is_some() || is_of_another(claim, &it)
            });
        }
        Ok(())
    }
}

/// Whether a claim at home has another volume than this twin's.
fn is_of_another(twin: &Claim, at_home: &PersistentVolumeClaim) -> bool {
    let its = at_home.spec.as_ref().and_then(|spec| spec.volume_name.as_ref());
    let ours = twin.volume.as_ref().filter(|_| twin.is_twin);
    its.zip(ours).is_some_and(|(its, ours)| its != ours)
}

/// Evicts pending pods that may run on virtual nodes only, although their namespace is not
/// offloaded any more. Their replacements have no such affinity. Returns whether there were any.
pub(super) async fn evict_waiting(home: &Cluster, object: &NamespaceOffloading) -> Result<bool, ApiError> {
    let namespace = object.namespace().unwrap_or_default();
    let Some(deleted) = &object.metadata.deletion_timestamp else {
        return Ok(false);
    };
    let is_older = |pod: &Pod| {
        pod.creation_timestamp()
            .is_none_or(|made| made.0 <= deleted.0 + ADMISSION_DELAY)
    };
    let waits = |pod: &Pod| {
        let is_placed = pod.spec.as_ref().is_some_and(|it| it.node_name.is_some());
        !is_placed && is_older(pod) && is_recreated_elsewhere(pod) && waits_for_virtual_nodes(pod)
    };
    let pods = home.within::<Pod>(&namespace);
    let pods = pods.pick(None, None, |pod| waits(&pod).then(|| placed(&pod)));
    let mut pods = pods.await?;
    pods.retain(|pod| !pod.leaving);
    // Budgets do not protect pods that were never placed.
    evict(home, &namespace, &pods).await?;
    Ok(!pods.is_empty())
}

/// Evicts pods. Returns why an eviction was refused, if one was; the others are evicted all the same.
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

/// Whether its controller creates another pod, which may run on another node.
fn is_recreated_elsewhere(pod: &Pod) -> bool {
    controller(pod).is_some_and(|kind| kind != "DaemonSet")
}

/// Whether the pod may run on virtual nodes only, as the policy of offloaded namespaces demands.
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
