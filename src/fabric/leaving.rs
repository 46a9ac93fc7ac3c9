//! The pods at home that may run in a remote cluster which their namespace leaves: which they
//! are, and their eviction.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;

use super::remote::Owner;
use crate::{
    cluster::{ApiError, Cause, Cluster, Eviction},
    observe::crash::{self, Step},
    offload::{Claim, Placed, pods::FINALIZER},
};

const KIND: &str = "liqo.io/type";
const VIRTUAL: &str = "virtual-node";
const RUNTIME_CLASS: &str = "liqo";

/// A namespace that leaves a cluster.
pub(super) struct Leaving<'a> {
    pub(super) home: &'a Cluster,
    pub(super) owner: &'a Owner,
    /// The nodes that stand for the cluster.
    pub(super) nodes: BTreeSet<String>,
    /// When that was said. Pods that were made later are what they are by somebody's wish, such as
    /// a template that names the node.
    pub(super) said: Timestamp,
    /// Whether it leaves all clusters.
    pub(super) for_good: bool,
}

impl Leaving<'_> {
    /// The pods that may run there, or that wait for a place which they do not get any more.
    pub(super) async fn pods(&self) -> Result<Vec<Placed>, ApiError> {
        let pods = self.home.within::<Pod>(&self.owner.namespace);
        pods.pick(None, None, |pod| self.is_concerned(&pod).then(|| placed(&pod)))
            .await
    }

    fn is_concerned(&self, pod: &Pod) -> bool {
        let node = pod.spec.as_ref().and_then(|it| it.node_name.as_deref());
        let is_older = pod.creation_timestamp().is_none_or(|made| made.0 <= self.said);
        match node {
            Some(node) if self.nodes.contains(node) => {
                may_run_there(pod) || (is_older && controller(pod) != Some("DaemonSet"))
            }
            Some(_) => false,
            None => self.for_good && is_older && controller(pod).is_some() && waits_for_virtual_nodes(pod),
        }
    }

    /// Marks the claims whose likes at home are being deleted, or gone.
    pub(super) async fn mark(&self, claims: &mut [Claim]) -> Result<(), ApiError> {
        let at_home = self.home.within::<PersistentVolumeClaim>(&self.owner.namespace);
        for claim in claims {
            let found = at_home.get(&claim.name).await?;
            claim.leaving = found.is_none_or(|it| it.metadata.deletion_timestamp.is_some());
        }
        Ok(())
    }
}

/// Evicts pods; one that may not go now does not keep the others.
pub(super) async fn evict(home: &Cluster, namespace: &str, pods: &[Placed]) -> Result<(), ApiError> {
    let mut outcome = Ok(());
    for pod in pods {
        let evicted = home.evict(namespace, &pod.name, &pod.uid, false);
        let refused = match crash::around(Step::OffloadEvict, evicted).await {
            Ok(Eviction::Accepted) => {
                tracing::info!(
                    namespace,
                    pod = pod.name,
                    "evicted a pod: its namespace leaves the cluster"
                );
                Ok(())
            }
            Ok(Eviction::Refused(why)) => {
                let pods = home.within::<Pod>(namespace);
                Err(pods.failure("evict", Cause::Forbidden(format!("{}: {why}", pod.name))))
            }
            Err(error) => Err(error),
        };
        outcome = outcome.and(refused);
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
