//! Publishes `CSIStorageCapacity` for our classes, of the room that [`CapacityViews`] sees.
//! New objects come before old ones go: a node that has none is hidden from all
//! claims of the class.

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
    shown: View<Shown>,
    /// What remote clusters did not take a moment ago.
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
            shown: View::start(capacities, ours, |it| Some(shown(&it)), &stop),
            refusals: Refusals::watch(home, &settings.namespace, &stop),
            _stops: stop.drop_guard(),
        }
    }

    fn wanted(&self) -> Vec<Published> {
        let rooms = CapacityViews::collect(self.home, self.registry, self.watched.volumes.free(None));
        let now = jiff::Timestamp::now().as_second();
        let noted = self.refusals.all();
        let refused: Vec<&Refused> = noted
            .iter()
            .flat_map(|notes| notes.iter())
            .filter(|refused| refused.counts(now))
            .collect();
        let (allowed, anywhere) = (&self.settings.allowed_classes, Segments::default());
        rooms
            .virtual_classes()
            .filter(|class| class.binding == BindingMode::WaitForFirstConsumer)
            .flat_map(|class| rooms.of(class, allowed, &refused, &anywhere))
            .collect()
    }

    async fn set(&self, wanted: &Published) -> Result<(), ApiError> {
        let Some(shown) = self.shown.get(&self.key(&wanted.name)) else {
            let created =
                crash::around(Step::CapacityWrite, self.published.create(&self.object(wanted))).await;
            return created.map(|_| ());
        };
        let room = &wanted.room;
        if shown.capacity == Some(room.capacity()) && shown.maximum == Some(room.maximum()) {
            return Ok(());
        }
        let patch = json!({
            "capacity": quantity(wanted.room.capacity()),
            "maximumVolumeSize": quantity(wanted.room.maximum()),
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
            capacity: Some(Quantity(quantity(wanted.room.capacity()))),
            maximum_volume_size: Some(Quantity(quantity(wanted.room.maximum()))),
        }
    }
}

impl Rounds for Capacities<'_> {
    const NAME: &'static str = "capacity";
    const RESYNC: Duration = Duration::from_mins(1);

    /// When the next refusal counts no more: nobody tells that either.
    fn due(&self) -> Option<Duration> {
        let now = jiff::Timestamp::now().as_second();
        let noted = self.refusals.all();
        let counting = noted
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
            self.shown.version(),
            self.registry.changes(),
        ]
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        self.shown.complete().await;
        let wanted = self.wanted();
        each(&wanted, |wanted| self.set(wanted)).await?;

        let names: BTreeSet<&str> = wanted.iter().map(|wanted| wanted.name.as_str()).collect();
        let shown = self.shown.all();
        let obsolete = shown.iter().filter(|shown| !names.contains(shown.name.as_str()));
        each(obsolete, async |shown: &Arc<Shown>| {
            let exactly = Precondition {
                uid: shown.uid.clone(),
                resource_version: None,
            };
            let deleted = self.published.delete(&shown.name, exactly);
            match crash::around(Step::CapacityDelete, deleted).await {
                // Another object of this name: the next round looks at it.
                Err(error) if error.is_conflict() => Ok(()),
                other => other.map(drop),
            }
        })
        .await
    }
}

/// A capacity that is published. Its topic is its name.
#[derive(Debug, PartialEq)]
struct Shown {
    name: String,
    uid: String,
    capacity: Option<u64>,
    maximum: Option<u64>,
}

impl Slim for Shown {
    fn topic(&self) -> &str {
        &self.name
    }
}

fn shown(object: &CSIStorageCapacity) -> Shown {
    let read = facts::capacity(object);
    Shown {
        name: object.name_any(),
        uid: object.uid().unwrap_or_default(),
        capacity: read.capacity,
        maximum: read.maximum,
    }
}

#[cfg(test)]
mod tests;
