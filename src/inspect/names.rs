//! Names of objects, and phrases of messages for users.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{Resource, ResourceExt};
use serde::Serialize;

use super::Storage;
use crate::{cluster::facts, topology::Node, volume::mark};

/// A name in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Name {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Name {
    pub(super) fn of(claim: &PersistentVolumeClaim) -> Self {
        Self {
            namespace: claim.namespace().unwrap_or_default(),
            name: claim.name_any(),
        }
    }
}

pub(super) fn full_name<K: Resource>(object: &K) -> String {
    match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    }
}

/// The nodes that can reach a PV.
pub(super) fn reach<'a>(volume: &PersistentVolume, storage: &'a Storage) -> Vec<&'a Node> {
    let affinity = facts::affinity(volume);
    let admits = |node: &&Node| affinity.as_ref().is_none_or(|affinity| affinity.admits(node));
    storage.nodes.iter().filter(admits).collect()
}

pub(super) fn real_state(volume: &PersistentVolume) -> &str {
    volume
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("in no phase")
}

pub(super) fn finalizers(claim: &PersistentVolumeClaim) -> String {
    let readable = |finalizer: &String| match finalizer.as_str() {
        "kubernetes.io/pvc-protection" => "pods".to_owned(),
        mark::TWIN_FINALIZER => "this driver".to_owned(),
        other => other.to_owned(),
    };
    let holders: Vec<_> = claim.finalizers().iter().map(readable).collect();
    if holders.is_empty() {
        "no finalizers".to_owned()
    } else {
        holders.join(" and ")
    }
}
