//! The rows of `liqo-csi volumes`: one for each volume of this driver.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde::Serialize;

use super::{
    Scope, State, Storage,
    cases::{Case, cases, class_name, class_of, volume_name, without_volume},
    consumers::consumer,
    gravity::gravity,
    health::health,
    names::{Name, reach},
    remote,
};
use crate::{
    cluster::{facts, slim::SELECTED_NODE},
    topology::CLUSTER_KEY,
    volume::{ClaimSize, quantity},
};

/// A volume, as `-o json` prints it. Fields are added, never renamed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    /// Name of the volume: of the virtual PV, and in the labels of the twin.
    pub(crate) volume: String,
    /// The claim, also a deleted one whose name only the twin has.
    pub(crate) claim: Option<Name>,
    /// The virtual class.
    pub(crate) class: Option<String>,
    /// The requested size, or the capacity of a bound volume, as Kubernetes writes quantities.
    pub(crate) size: Option<String>,
    /// The requested size during an expansion.
    pub(crate) growing_to: Option<String>,
    pub(crate) state: State,
    /// The reason, as a sentence; empty if there is no problem.
    pub(crate) message: String,
    /// What to do, if that is known.
    pub(crate) advice: String,
    pub(crate) twin: Option<Name>,
    pub(crate) real_class: Option<String>,
    /// The PV of the twin.
    pub(crate) real_volume: Option<String>,
    /// The cluster of the twin, or of the selected node; `null` before that is known.
    pub(crate) cluster: Option<String>,
    /// Whether a pod waits because it can only run where the data is.
    pub(crate) held_by_gravity: bool,
    /// The reason, even if `message` has another one.
    #[serde(skip)]
    pub(crate) gravity: Option<String>,
    /// The nodes that can reach the volume: `["*"]` for all of the cluster, the selected one before the
    /// volume exists, `null` if that is unknown.
    pub(crate) nodes: Option<Vec<String>>,
}

/// The volumes of this driver: those with a claim first, by its name.
pub(crate) fn rows(storage: &Storage, scope: &Scope) -> Vec<Row> {
    let all = cases(storage).into_iter().chain(without_volume(storage));
    let mut rows: Vec<Row> = all
        .filter(|(_, case)| is_in(case, scope))
        .map(|(name, case)| row(&name, &case, storage))
        .collect();
    rows.sort_by(|a, b| {
        let key = |row: &Row| (row.claim.is_none(), row.claim.clone(), row.volume.clone());
        key(a).cmp(&key(b))
    });
    rows
}

/// A volume without its claim belongs to the namespace of the claim.
fn is_in(case: &Case<'_>, scope: &Scope) -> bool {
    let Scope::Namespace(asked) = scope else {
        return true;
    };
    claim_of(case).is_some_and(|claim| claim.namespace == *asked)
}

fn claim_of(case: &Case<'_>) -> Option<Name> {
    if let Some(claim) = case.claim {
        return Some(Name::of(claim));
    }
    let marked = case.marks.as_ref().and_then(|marks| marks.claim.as_ref());
    let marked = marked.map(|claim| Name {
        namespace: claim.namespace.clone(),
        name: claim.name.clone(),
    });
    marked.or_else(|| {
        let reference = case.volume?.spec.as_ref()?.claim_ref.as_ref()?;
        Some(Name {
            namespace: reference.namespace.clone()?,
            name: reference.name.clone()?,
        })
    })
}

fn row(name: &str, case: &Case<'_>, storage: &Storage) -> Row {
    let mut health = health(case, storage);
    let pull = case
        .claim
        .zip(case.volume)
        .and_then(|(claim, volume)| gravity(claim, volume, storage));
    let pulled = pull.as_ref().map(|pull| pull.message.clone());
    if let Some(pull) = pull
        && health.message.is_empty()
    {
        (health.message, health.advice) = (pull.message, pull.advice);
    }
    let growing = case.claim.map(facts::claim_size);
    let growing = growing.filter(|size| size.growing_to().is_some());
    let volume_class = |volume| class_of(volume).map(str::to_owned);
    let real_class = case.twin.and_then(class_name).map(str::to_owned);
    let cluster = case.id.as_ref().map(|id| id.cluster.to_string());
    Row {
        volume: name.to_owned(),
        claim: claim_of(case),
        class: case
            .claim
            .and_then(class_name)
            .map(str::to_owned)
            .or_else(|| volume_class(case.volume?)),
        size: growing.map_or_else(|| size(case), |size| Some(quantity(size.capacity))),
        growing_to: growing.and_then(ClaimSize::growing_to).map(quantity),
        state: health.state,
        message: health.message,
        advice: health.advice,
        twin: case.twin.map(Name::of).or_else(|| remote::twin(case.volume?)),
        held_by_gravity: pulled.is_some(),
        gravity: pulled,
        real_class: real_class
            .or_else(|| volume_class(case.real?))
            .or_else(|| remote::real_class(case.volume?)),
        real_volume: case.real.map(ResourceExt::name_any),
        cluster: cluster.or_else(|| expected_cluster(case, storage)),
        nodes: nodes(case, storage),
    }
}

/// The cluster of a volume that was not handed over: that of its twin, or that of the node selected for its
/// pod. Before that it is unknown.
fn expected_cluster(case: &Case<'_>, storage: &Storage) -> Option<String> {
    if case.twin.is_some() {
        // The twins that are read are in this cluster.
        return storage.home.as_ref().map(ToString::to_string);
    }
    let claim = case.claim?;
    let pinned = || consumer(claim, storage)?.spec.as_ref()?.node_name.as_ref();
    let node = claim.annotations().get(SELECTED_NODE).or_else(pinned)?;
    let node = storage.nodes.iter().find(|known| known.name == *node)?;
    node.labels.get(CLUSTER_KEY).cloned()
}

fn size(case: &Case<'_>) -> Option<String> {
    let granted =
        |volume: &PersistentVolume| Some(volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?.0.clone());
    let asked = |claim: &PersistentVolumeClaim| {
        let resources = claim.spec.as_ref()?.resources.as_ref()?;
        Some(resources.requests.as_ref()?.get("storage")?.0.clone())
    };
    case.volume
        .and_then(granted)
        .or_else(|| case.claim.and_then(asked))
        .or_else(|| case.real.and_then(granted))
        .or_else(|| case.twin.and_then(asked))
}

fn nodes(case: &Case<'_>, storage: &Storage) -> Option<Vec<String>> {
    let Some(volume) = case.volume.or_else(|| {
        case.real
            .filter(|_| case.claim.is_none_or(|it| volume_name(it).is_none()))
    }) else {
        let selected = case.claim.or(case.twin)?.annotations().get(SELECTED_NODE)?;
        return Some(vec![selected.clone()]);
    };
    if !storage.nodes.is_complete() {
        return None;
    }
    let reached = reach(volume, storage);
    if !reached.is_empty() && storage.is_everywhere(&reached) {
        return Some(vec!["*".to_owned()]);
    }
    Some(reached.into_iter().map(|node| node.name.clone()).collect())
}

#[cfg(test)]
mod tests;
