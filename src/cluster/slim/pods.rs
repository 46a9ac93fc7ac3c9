//! What is kept of pods that do not run yet, and of nodes that take pods.

use std::iter;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;

use crate::cluster::view::Slim;

/// A pod with claims that does not run yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its node, if it has one.
    pub node: Option<String>,
    /// Its claims, each with their namespace.
    pub claims: Vec<String>,
}

impl PendingPod {
    /// The names of its claims.
    pub fn claim_names(&self) -> impl Iterator<Item = &str> {
        let names = self.claims.iter();
        names.filter_map(|claim| claim.split_once('/').map(|(_, name)| name))
    }
}

/// It is about each of its claims, as `namespace/name`.
impl Slim for PendingPod {
    fn topic(&self) -> &str {
        &self.namespace
    }

    fn topics(&self) -> impl Iterator<Item = &str> {
        iter::once(self.topic()).chain(self.claims.iter().map(String::as_str))
    }
}

/// What is kept of a pod that does not run yet; `None` if it waits for no claim.
pub(in crate::cluster) fn pending_pod(pod: &Pod) -> Option<PendingPod> {
    let spec = pod.spec.as_ref()?;
    let namespace = pod.namespace().unwrap_or_default();
    let claims = claims_of(pod).map(|claim| format!("{namespace}/{claim}"));
    let claims: Vec<String> = claims.collect();
    let waits = !claims.is_empty() && pod.metadata.deletion_timestamp.is_none();
    waits.then(|| PendingPod {
        node: spec.node_name.clone().filter(|node| !node.is_empty()),
        uid: pod.uid().unwrap_or_default(),
        name: pod.name_any(),
        namespace,
        claims,
    })
}

/// The names of the claims of a pod's volumes.
pub fn claims_of(pod: &Pod) -> impl Iterator<Item = String> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(
        |volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(claim), _) => Some(claim.claim_name.clone()),
            // Kubernetes names the claim of a generic ephemeral volume so.
            (None, Some(_)) => Some(format!("{}-{}", pod.name_any(), volume.name)),
            (None, None) => None,
        },
    )
}

/// A node that an ordinary pod may be sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenNode {
    name: String,
}

impl Slim for OpenNode {
    fn topic(&self) -> &str {
        &self.name
    }

    fn text(&self) -> usize {
        self.name.len()
    }
}

/// What is kept of a node; `None` if an ordinary pod may not be sent there.
pub(in crate::cluster) fn open_node(node: &Node) -> Option<OpenNode> {
    let spec = node.spec.as_ref();
    let mut taints = spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let is_tainted = taints.any(|taint| taint.effect != "PreferNoSchedule");
    let is_cordoned = spec.is_some_and(|spec| spec.unschedulable == Some(true));
    (!is_tainted && !is_cordoned).then(|| OpenNode {
        name: node.name_any(),
    })
}
