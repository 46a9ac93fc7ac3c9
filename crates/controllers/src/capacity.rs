//! Publishes `CSIStorageCapacity` objects for the classes of this driver, as [`CapacityViews`] computes
//! them. New objects are created before old ones are deleted: the scheduler hides a node without one from
//! all claims of the class.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::{
    api::storage::v1::CSIStorageCapacity,
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{LabelSelector, LabelSelectorRequirement},
    },
};
use kube::{Api, ResourceExt, api::ObjectMeta, runtime::watcher};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Settings, watched::Watched};
use crate::{
    cluster::{
        ApiError, Cluster, Objects, Precondition, facts,
        view::{Slim, View},
    },
    fleet::Registry,
    observe::crash::{self, Step},
    placement::{BindingMode, Published},
    rounds::{Rounds, each},
    topology::Segments,
    twin::{CapacityViews, Refusals},
    volume::{Refused, mark, quantity},
};

/// The loop that publishes capacities.
pub(super) struct Capacities<'a> {
    home: &'a Cluster,
    registry: &'a Registry,
    watched: &'a Watched,
    settings: &'a Settings,
    published: Objects<CSIStorageCapacity>,
    /// What is published now.
    current: View<PublishedCapacity>,
    /// The remembered refusals of remote clusters.
    refusals: View<Refusals>,
    _stops: DropGuard,
}

impl<'a> Capacities<'a> {
    pub(super) fn new(
        home: &'a Cluster,
        registry: &'a Registry,
        watched: &'a Watched,
        settings: &'a Settings,
    ) -> Self {
        let stop = CancellationToken::new();
        let ours = watcher::Config::default().labels(&mark::selector(home.id()));
        let capacities = Api::namespaced(home.client().clone(), &settings.namespace);
        Self {
            home,
            registry,
            watched,
            settings,
            published: home.within(&settings.namespace),
            current: View::start(capacities, ours, |it| Some(current(&it)), &stop),
            refusals: Refusals::watch(home, &settings.namespace, &stop),
            _stops: stop.drop_guard(),
        }
    }

    fn wanted(&self) -> Vec<Published> {
        let views = CapacityViews::collect(self.home, self.registry, self.watched.volumes.free(None));
        let now = jiff::Timestamp::now().as_second();
        let recorded = self.refusals.all();
        let refused: Vec<&Refused> = recorded
            .iter()
            .flat_map(|notes| notes.iter())
            .filter(|refused| refused.counts(now))
            .collect();
        let (allowed, anywhere) = (&self.settings.allowed_classes, Segments::default());
        views
            .virtual_classes()
            .filter(|class| class.binding == BindingMode::WaitForFirstConsumer)
            .flat_map(|class| views.of(class, allowed, &refused, &anywhere))
            .collect()
    }

    async fn set(&self, wanted: &Published) -> Result<(), ApiError> {
        let Some(current) = self.current.get(&self.key(&wanted.name)) else {
            let created =
                crash::around(Step::CapacityWrite, self.published.create(&self.object(wanted))).await;
            return created.map(|_| ());
        };
        let available = &wanted.available;
        if current.capacity == Some(available.capacity()) && current.maximum == Some(available.maximum()) {
            return Ok(());
        }
        let patch = json!({
            "capacity": quantity(wanted.available.capacity()),
            "maximumVolumeSize": quantity(wanted.available.maximum()),
        });
        let changed = crash::around(Step::CapacityWrite, self.published.merge(&wanted.name, &patch)).await;
        changed.map(|_| ())
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.settings.namespace)
    }

    fn object(&self, wanted: &Published) -> CSIStorageCapacity {
        let labels = [
            (mark::MANAGED_BY, mark::MANAGED_BY_US),
            (mark::HOME_CLUSTER, self.home.id().as_str()),
        ];
        CSIStorageCapacity {
            metadata: ObjectMeta {
                name: Some(wanted.name.clone()),
                labels: Some(
                    labels
                        .map(|(key, value)| (key.to_owned(), value.to_owned()))
                        .into(),
                ),
                ..ObjectMeta::default()
            },
            storage_class_name: wanted.class.clone(),
            node_topology: Some(LabelSelector {
                match_labels: None,
                match_expressions: Some(vec![LabelSelectorRequirement {
                    key: wanted.key.clone(),
                    operator: "In".to_owned(),
                    values: Some(wanted.values.clone()),
                }]),
            }),
            capacity: Some(Quantity(quantity(wanted.available.capacity()))),
            maximum_volume_size: Some(Quantity(quantity(wanted.available.maximum()))),
        }
    }
}

impl Rounds for Capacities<'_> {
    const NAME: &'static str = "capacity";
    const RESYNC: Duration = Duration::from_mins(1);

    /// When the next refusal expires: no view reports that.
    fn due(&self) -> Option<Duration> {
        let now = jiff::Timestamp::now().as_second();
        let recorded = self.refusals.all();
        let counting = recorded
            .iter()
            .flat_map(|notes| notes.iter())
            .filter(|refused| refused.counts(now));
        let ends = counting.map(|refused| refused.until).min()?;
        Some(Duration::from_secs((ends - now).unsigned_abs()))
    }

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        let views = self.home.views();
        vec![
            views.classes.version(),
            views.nodes.version(),
            views.csi_nodes.version(),
            views.drivers.version(),
            views.capacities.version(),
            self.watched.volumes.changes_of_free(),
            self.refusals.version(),
            self.current.version(),
            self.registry.changes(),
        ]
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        self.current.complete().await;
        let wanted = self.wanted();
        each(&wanted, |wanted| self.set(wanted)).await?;

        let names: BTreeSet<&str> = wanted.iter().map(|wanted| wanted.name.as_str()).collect();
        let current = self.current.all();
        let obsolete = current
            .iter()
            .filter(|current| !names.contains(current.name.as_str()));
        each(obsolete, async |current: &Arc<PublishedCapacity>| {
            let exactly = Precondition {
                uid: current.uid.clone(),
                resource_version: None,
            };
            let deleted = self.published.delete(&current.name, exactly);
            match crash::around(Step::CapacityDelete, deleted).await {
                // Another object has this name: the next round reads it.
                Err(error) if error.is_conflict() => Ok(()),
                other => other.map(drop),
            }
        })
        .await
    }
}

/// A published capacity. Its topic is its name.
#[derive(Debug, PartialEq)]
struct PublishedCapacity {
    name: String,
    uid: String,
    capacity: Option<u64>,
    maximum: Option<u64>,
}

impl Slim for PublishedCapacity {
    fn topic(&self) -> &str {
        &self.name
    }
}

fn current(object: &CSIStorageCapacity) -> PublishedCapacity {
    let read = facts::capacity(object);
    PublishedCapacity {
        name: object.name_any(),
        uid: object.uid().unwrap_or_default(),
        capacity: read.capacity,
        maximum: read.maximum,
    }
}

#[cfg(test)]
mod tests;
