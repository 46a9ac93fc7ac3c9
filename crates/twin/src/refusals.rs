//! The remembered refusals of twins by remote clusters, in a `ConfigMap` of the driver's own namespace:
//! not on claims, which users can write, because a refusal makes the scheduler keep the pods of all users
//! away.
//!
//! The replica that serves `CreateVolume` writes the `ConfigMap`; the one that publishes capacities reads
//! it. It is a hint for the scheduler and not a record: if it is lost, pods only return to the scheduler
//! sooner.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, ResourceExt, api::ObjectMeta, runtime::watcher};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::{
        ApiError, Cluster, Lean, Objects,
        view::{Slim, View},
    },
    observe::crash::{self, Step},
    volume::Refused,
};

const NAME: &str = "liqo-csi-refusals";

/// The refusals in the `ConfigMap`.
#[derive(Debug, Default, PartialEq)]
pub struct Refusals(Vec<Refused>);

impl Refusals {
    /// Watches the `ConfigMap` in this namespace until `stop`.
    #[must_use]
    pub fn watch(home: &Cluster, namespace: &str, stop: &CancellationToken) -> View<Self> {
        let maps = Api::<Lean<ConfigMap>>::namespaced(home.client().clone(), namespace);
        let only = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
        View::start(
            maps,
            only,
            |map| (map.name_any() == NAME).then(|| read(&map)),
            stop,
        )
    }

    pub fn iter(&self) -> impl Iterator<Item = &Refused> {
        self.0.iter()
    }
}

impl Slim for Refusals {
    fn topic(&self) -> &str {
        NAME
    }
}

fn read(map: &ConfigMap) -> Refusals {
    let notes = map.data.iter().flat_map(BTreeMap::values);
    Refusals(notes.filter_map(|text| Refused::parse(text)).collect())
}

/// The refusals that are recorded in this namespace.
pub(super) async fn recorded(home: &Cluster, namespace: &str) -> Result<Vec<Refused>, ApiError> {
    let map = home.within::<ConfigMap>(namespace).get(NAME).await?;
    Ok(map.map(|map| read(&map).0).unwrap_or_default())
}

/// Records a refusal, and removes those that have expired.
pub(super) async fn record(
    home: &Cluster,
    namespace: &str,
    refused: &Refused,
    now: i64,
) -> Result<(), ApiError> {
    let maps = home.within::<ConfigMap>(namespace);
    let known = maps.get(NAME).await?.and_then(|map| map.data).unwrap_or_default();
    let key = refused.key();
    let parsed = |text: &String| Refused::parse(text);
    if known
        .get(&key)
        .and_then(parsed)
        .is_some_and(|known| known.covers(refused))
    {
        return Ok(());
    }
    let over = known
        .iter()
        .filter(|(_, text)| !parsed(text).is_some_and(|known| known.counts(now)));
    let mut changes: BTreeMap<&str, Option<String>> = over.map(|(key, _)| (key.as_str(), None)).collect();
    changes.insert(&key, Some(refused.to_string()));
    let patch = json!({ "data": changes });
    let first = ConfigMap {
        metadata: ObjectMeta {
            name: Some(NAME.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some([(key.clone(), refused.to_string())].into()),
        ..ConfigMap::default()
    };
    crash::around(Step::NoteRefusal, write(&maps, &patch, &first)).await
}

/// Patches the `ConfigMap`, or creates it.
async fn write(
    maps: &Objects<ConfigMap>,
    patch: &serde_json::Value,
    first: &ConfigMap,
) -> Result<(), ApiError> {
    if maps.merge(NAME, patch).await?.is_some() {
        return Ok(());
    }
    if maps.create(first).await?.is_none() {
        // Another replica has created it.
        maps.merge(NAME, patch).await?;
    }
    Ok(())
}
