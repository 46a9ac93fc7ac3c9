//! Copies `ConfigMap`s, Secrets and Services of offloaded namespaces to their remote namespaces, and `EndpointSlice`s
//! where pods reach each other; mirrors events on pods and claims back. Each pair of namespaces has a loop of its own, so
//! that a slow cluster delays no other. Where Liqo is installed nothing runs.

mod bindings;
mod copies;
mod mirror;
mod remote_events;
mod routes;
mod slices;
mod source;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use tokio::sync::{Semaphore, watch};
use tokio_util::task::AbortOnDropHandle;

use self::{
    bindings::Bindings,
    mirror::Mirror,
    routes::{Current, is_routed, routes},
};
pub(super) use self::{
    copies::{Copies, NoCopy},
    source::{Copied, MOST_COPIED, Source},
};
use super::{
    Idle, IdleReason,
    marks::{HOME, HOME_UID},
    places::Places,
    remote::Owner,
};
use crate::{
    cluster::{ApiError, Cluster, events::Events},
    offload::{Readiness, reflection::Marks},
    rounds::{LoopMetrics, Rounds, drive},
    volume::mark,
};

/// Full objects of one cluster in memory at the same time.
const AT_ONCE: usize = 4;

/// The loop that starts and stops the others.
pub(super) struct Reflection<'a> {
    places: &'a Places<'a>,
    metrics: &'a LoopMetrics,
    events: Events,
    idle: watch::Receiver<Option<IdleReason>>,
    /// Changes whenever `idle` does.
    wakes: watch::Receiver<u64>,
    _waking: AbortOnDropHandle<()>,
    bindings: Bindings<'a>,
    /// By namespace.
    sources: BTreeMap<String, Arc<Source>>,
    mirrors: BTreeMap<Place, Running>,
    /// By cluster.
    permits: BTreeMap<String, Arc<Semaphore>>,
    routes: Arc<Current>,
    /// Objects of each kind that are copied of a namespace.
    pub(super) most: usize,
}

/// A namespace in a remote cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// The namespace at home.
    namespace: String,
    /// The uid of its `NamespaceOffloading`: another one may have the same name later.
    offloading: String,
    cluster: String,
    /// The remote namespace.
    remote: String,
    /// Whether there are routes between the pods of the two clusters.
    routed: bool,
}

/// A loop for one place.
struct Running {
    there: Cluster,
    copies: Arc<Copies>,
    task: AbortOnDropHandle<()>,
}

impl<'a> Reflection<'a> {
    /// The loop runs while `idle` has no reason. `fabric` is the namespace of this process.
    pub(super) fn new(places: &'a Places<'a>, fabric: &str, metrics: &'a LoopMetrics, idle: &Idle) -> Self {
        let (wake, wakes) = watch::channel(0);
        let mut changes = idle.subscribe();
        let waking = tokio::spawn(async move {
            while changes.changed().await.is_ok() {
                wake.send_modify(|count| *count += 1);
            }
        });
        Self {
            places,
            metrics,
            events: Events::new(places.home.client().clone()),
            idle: idle.subscribe(),
            wakes,
            _waking: AbortOnDropHandle::new(waking),
            bindings: Bindings::new(places.home, fabric),
            sources: BTreeMap::new(),
            mirrors: BTreeMap::new(),
            permits: BTreeMap::new(),
            routes: Arc::default(),
            most: MOST_COPIED,
        }
    }

    /// Whether there is a reason to do nothing, or the first lists are not complete.
    fn is_idle(&self) -> bool {
        let views = self.places.home.views();
        let unread = |version: watch::Receiver<u64>| *version.borrow() == 0;
        self.idle.borrow().is_some()
            || unread(views.offloadings.version())
            || unread(views.remote_clusters.version())
    }

    /// The remote namespaces that exist, each with its cluster if that can be reached.
    async fn wanted(&self) -> BTreeMap<Place, Option<Cluster>> {
        let views = self.places.home.views();
        let clusters = views.remote_clusters.all();
        let clusters = clusters.iter().filter(|it| it.spec.fabric.is_some());
        let clusters: BTreeMap<String, bool> = clusters.map(|it| (it.name_any(), is_routed(it))).collect();
        let reached = clusters.keys().map(async |id| (id.clone(), self.reach(id).await));
        let reached: BTreeMap<String, Option<Cluster>> = join_all(reached).await.into_iter().collect();
        let mut places = BTreeMap::new();
        for offloading in views.offloadings.all() {
            let status = offloading.status.as_ref();
            let remote = status.and_then(|it| it.remote_namespace_name.clone());
            let (Some(remote), false) = (remote, offloading.is_leaving()) else {
                continue;
            };
            let there = clusters
                .iter()
                .filter(|(id, _)| offloading.readiness(id) == Some(Readiness::Created));
            for (cluster, &routed) in there {
                let place = Place {
                    namespace: offloading.namespace().unwrap_or_default(),
                    offloading: offloading.uid().unwrap_or_default(),
                    cluster: cluster.clone(),
                    remote: remote.clone(),
                    routed,
                };
                places.insert(place, reached.get(cluster).cloned().flatten());
            }
        }
        places
    }

    async fn reach(&self, cluster: &str) -> Option<Cluster> {
        let reached = self.places.reach(&cluster.parse().ok()?).await;
        reached.ok().map(|place| place.cluster)
    }

    async fn start(&mut self, place: Place, there: Cluster) -> Result<(), ApiError> {
        let home = self.places.home;
        let Some(namespace) = home.all::<Namespace>().get(&place.namespace).await? else {
            return Ok(());
        };
        let owner = self.places.owner(&namespace).await?;
        let marks = marks(&owner);
        let source = self.sources.entry(place.namespace.clone());
        let source =
            source.or_insert_with(|| Arc::new(Source::new(home, &place.namespace, &marks, self.most)));
        let permits = self.permits.entry(place.cluster.clone());
        let permits = permits.or_insert_with(|| Arc::new(Semaphore::new(AT_ONCE)));
        let mirror = Mirror::new(copies::Ends {
            home: home.clone(),
            there: there.clone(),
            remote: place.remote.clone(),
            owner,
            offloading: place.offloading.clone(),
            marks,
            source: Arc::clone(source),
            routed: place.routed,
            routes: Arc::clone(&self.routes),
            permits: Arc::clone(permits),
            events: self.events.clone(),
        });
        let (metrics, copies) = (self.metrics.clone(), mirror.copies());
        let task = tokio::spawn(async move { drive(mirror, &metrics).await });
        let running = Running {
            there,
            copies,
            task: AbortOnDropHandle::new(task),
        };
        tracing::info!(
            namespace = place.namespace,
            cluster = place.cluster,
            remote = place.remote,
            "copying the objects of a namespace"
        );
        self.mirrors.insert(place, running);
        Ok(())
    }
}

/// The labels and annotations of copies.
fn marks(owner: &Owner) -> Marks {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let home = owner.home.to_string();
    Marks {
        labels: [pair(mark::MANAGED_BY, mark::MANAGED_BY_US), pair(HOME, &home)].into(),
        annotations: [pair(HOME_UID, &owner.home_uid)].into(),
        home,
    }
}

impl Rounds for Reflection<'_> {
    const NAME: &'static str = "reflection";
    const RESYNC: Duration = Duration::from_mins(2);

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        let views = self.places.home.views();
        vec![
            views.offloadings.version(),
            views.remote_clusters.version(),
            self.places.registry().changes(),
            views.nodes.version(),
            self.wakes.clone(),
        ]
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        if self.is_idle() {
            self.mirrors.clear();
            self.sources.clear();
            self.places.publish_sources(&self.sources);
            self.places.publish_copies(BTreeMap::new());
            return Ok(());
        }
        let places = self.wanted().await;
        if places.keys().any(|place| place.routed) {
            self.routes.set(routes(self.places.home, self.places.registry()));
        }
        let is_same = |place: &Place, running: &Running| {
            let now = places.get(place).and_then(Option::as_ref);
            now.is_some_and(|now| now.is_same(&running.there)) && !running.task.is_finished()
        };
        self.mirrors.retain(|place, running| is_same(place, running));
        let namespaces: BTreeSet<String> = places.keys().map(|it| it.namespace.clone()).collect();
        self.sources.retain(|namespace, _| namespaces.contains(namespace));
        self.permits
            .retain(|cluster, _| places.keys().any(|it| it.cluster == *cluster));
        let mut outcome = self.bindings.reconcile(&namespaces).await;
        for (place, there) in places {
            let is_new = !self.mirrors.contains_key(&place) && self.bindings.has(&place.namespace);
            if let (true, Some(there)) = (is_new, there) {
                outcome = outcome.and(self.start(place, there).await);
            }
        }
        self.places.publish_sources(&self.sources);
        let copies = self.mirrors.iter().map(|(place, running)| {
            let of = (place.namespace.clone(), place.cluster.clone());
            (of, Arc::clone(&running.copies))
        });
        self.places.publish_copies(copies.collect());
        outcome
    }
}

#[cfg(test)]
mod tests;
