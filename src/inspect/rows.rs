//! One line for each volume of this driver: what `liqo-csi volumes` shows.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde::Serialize;

use super::{
    Scope, State, Storage,
    cases::{Case, cases, class_name, class_of, volume_name},
    consumers::consumer,
    gravity::gravity,
    health::health,
    remote,
    words::{Name, reach},
};
use crate::{
    cluster::{facts, slim::SELECTED_NODE},
    topology::CLUSTER_KEY,
    volume::{ClaimSize, quantity},
};

/// A volume, in the words of `-o json`. Fields are added, never renamed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    /// Name of the volume: of the virtual PV, and in the labels of the twin.
    pub(crate) volume: String,
    /// The claim, even if it is gone and only the twin remembers it.
    pub(crate) claim: Option<Name>,
    /// The virtual class.
    pub(crate) class: Option<String>,
    /// Requested, or once bound granted, as Kubernetes writes quantities.
    pub(crate) size: Option<String>,
    /// The size it is growing to, while it is.
    pub(crate) growing_to: Option<String>,
    /// How it is.
    pub(crate) state: State,
    /// Why, in a sentence; empty when all is well.
    pub(crate) message: String,
    /// The way out, if there is one to know.
    pub(crate) advice: String,
    /// The twin.
    pub(crate) twin: Option<Name>,
    /// The real class.
    pub(crate) real_class: Option<String>,
    /// The PV of the twin.
    pub(crate) real_volume: Option<String>,
    /// The cluster of the twin, or where it is going to be; `null` before that is known.
    pub(crate) cluster: Option<String>,
    /// Whether a pod waits because it can only run where the data is.
    pub(crate) held_by_gravity: bool,
    /// Why exactly, whatever else there is to say.
    #[serde(skip)]
    pub(crate) gravity: Option<String>,
    /// The nodes the volume can be reached from: `["*"]` for all of the cluster,
    /// before it exists the one selected for it, `null` when that is not known.
    pub(crate) nodes: Option<Vec<String>>,
}

/// The volumes of this driver: those with a claim first, by its name.
pub(crate) fn rows(storage: &Storage, scope: &Scope) -> Vec<Row> {
    let cases: BTreeMap<String, Case<'_>> = cases(storage);
    let mut rows: Vec<Row> = cases
        .iter()
        .filter(|(_, case)| is_in(case, scope))
        .map(|(name, case)| row(name, case, storage))
        .collect();
    rows.sort_by(|a, b| {
        let key = |row: &Row| (row.claim.is_none(), row.claim.clone(), row.volume.clone());
        key(a).cmp(&key(b))
    });
    rows
}

/// Leftovers belong to the namespace their claim was in.
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
        cluster: cluster.or_else(|| cluster_to_be(case, storage)),
        nodes: nodes(case, storage),
    }
}

/// The cluster of a volume that nobody was given yet: where its twin is seen, or where
/// its pod was sent. Before that nobody knows.
fn cluster_to_be(case: &Case<'_>, storage: &Storage) -> Option<String> {
    if case.twin.is_some() {
        // A twin that can be seen is in this cluster.
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
