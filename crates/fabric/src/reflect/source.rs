//! The watches: of the objects of a namespace at home, shared by all its clusters, and of the metadata of their copies
//! in one remote namespace. Only digests of the content are kept, so that no Secret stays in memory, and the
//! namespaces of Services that it names. Of `EndpointSlice`s the endpoints are kept. They are watched where there are
//! routes, and where pods run without.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::{
    core::v1::{ConfigMap, Secret, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Resource, ResourceExt,
    core::{NamespaceResourceScope, PartialObjectMeta},
    runtime::watcher,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::sync::watch;

use crate::{
    cluster::{
        Cluster, Watched,
        view::{Changed, Feed, Slim, ViewBudgets},
    },
    offload::{
        is_name,
        reflection::{CopyMetadata, Kind, Marks, NotCopied, Original, Slice, name_of_original, wanted},
    },
    pace::Pace,
};

/// The interval of events in a namespace, after a burst.
const EACH_EVENT: Duration = Duration::from_millis(200);
const EVENTS_AT_ONCE: u32 = 10;

/// A kind that is copied.
pub(crate) trait Copied:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    const KIND: Kind;
}

impl Copied for ConfigMap {
    const KIND: Kind = Kind::ConfigMap;
}

impl Copied for Secret {
    const KIND: Kind = Kind::Secret;
}

impl Copied for Service {
    const KIND: Kind = Kind::Service;
}

impl Copied for EndpointSlice {
    const KIND: Kind = Kind::EndpointSlice;
}

/// Objects in one page of a list at home. A page of the largest Secrets must fit into memory.
const PAGE: u32 = 10;
/// Objects of each kind that are copied of a namespace: one namespace must not use up the memory for all others.
pub(crate) const MOST_COPIED: usize = 5000;
/// All kinds that are copied, with routes or without.
pub(super) const fn kinds(routed: bool) -> &'static [Kind] {
    const ALL: [Kind; 4] = [Kind::ConfigMap, Kind::Secret, Kind::Service, Kind::EndpointSlice];
    if routed { &ALL } else { ALL.split_at(3).0 }
}

/// The Services of a namespace that are marked not to be copied, by name: whether that was reported.
#[derive(Default)]
struct Skipped(Mutex<BTreeMap<String, bool>>, watch::Sender<u64>);

impl Skipped {
    fn note(&self, name: String, is_skipped: bool, most: usize) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_skipped {
            all.remove(&name);
        } else if all.len() < most && !all.contains_key(&name) {
            all.insert(name, false);
            self.1.send_modify(|count| *count += 1);
        }
    }
}

/// The watched objects of a namespace at home.
pub(crate) struct Source {
    objects: PerKind<Original, Slice>,
    skipped: Arc<Skipped>,
    namespace: String,
    /// The id of this cluster.
    home: String,
    /// Objects of each kind that are copied.
    pub(super) most: usize,
    /// The rate limit of events in the namespace.
    pace: Mutex<Pace>,
}

/// One view for each kind. A watch starts with its first use.
pub(super) struct PerKind<S, E = S> {
    config_maps: Watched<S>,
    secrets: Watched<S>,
    services: Watched<S>,
    slices: Watched<E>,
}

/// The view of one kind.
pub(super) enum Of<'a, S, E> {
    Objects(&'a Watched<S>),
    Slices(&'a Watched<E>),
}

impl<S, E> PerKind<S, E> {
    fn view(&self, kind: Kind) -> Of<'_, S, E> {
        match kind {
            Kind::ConfigMap => Of::Objects(&self.config_maps),
            Kind::Secret => Of::Objects(&self.secrets),
            Kind::Service => Of::Objects(&self.services),
            Kind::EndpointSlice => Of::Slices(&self.slices),
        }
    }
}

impl<S> PerKind<S> {
    pub(super) fn of(&self, kind: Kind) -> &Watched<S> {
        match self.view(kind) {
            Of::Objects(view) | Of::Slices(view) => view,
        }
    }
}

/// The changes of one kind at home.
pub(super) enum Changes {
    Objects(Feed<Original>),
    Slices(Feed<Slice>),
}

impl Changes {
    /// The names of the copies that may be outdated; `None` if all may be.
    pub(super) fn take(&self) -> Option<Vec<String>> {
        match self {
            Self::Objects(feed) => match feed.take() {
                Changed::These(all) => Some(all.iter().map(|it| it.copy.clone()).collect()),
                Changed::Everything => None,
            },
            Self::Slices(feed) => match feed.take() {
                Changed::These(all) => Some(all.iter().map(|it| it.name.clone()).collect()),
                Changed::Everything => None,
            },
        }
    }
}

impl Source {
    pub(crate) fn new(home: &Cluster, namespace: &str, marks: &Marks, most: usize) -> Self {
        fn own<S: Slim>(budgets: ViewBudgets<S>, most: usize) -> ViewBudgets<S> {
            budgets.and_own(most, |_| true)
        }
        fn watch<K: Copied>(
            home: &Cluster,
            namespace: &str,
            marks: &Marks,
            most: usize,
            skipped: &Arc<Skipped>,
        ) -> Watched<Original> {
            let (marks, skipped) = (marks.clone(), Arc::clone(skipped));
            let original = move |it: K| {
                let name = it.name_any();
                let wanted = wanted(K::KIND, json(it), &marks);
                if K::KIND == Kind::Service {
                    skipped.note(name, wanted == Err(NotCopied::Skipped), most);
                }
                Some(wanted.ok()?.original)
            };
            let those = watcher::Config::default().page_size(PAGE);
            home.watch_in(namespace, those, original, |budgets| own(budgets, most))
        }
        let skipped = Arc::default();
        Self {
            objects: PerKind {
                config_maps: watch::<ConfigMap>(home, namespace, marks, most, &skipped),
                secrets: watch::<Secret>(home, namespace, marks, most, &skipped),
                services: watch::<Service>(home, namespace, marks, most, &skipped),
                slices: home.watch_in(
                    namespace,
                    watcher::Config::default(),
                    |it: EndpointSlice| Slice::read(&json(it)),
                    |budgets| own(budgets, most),
                ),
            },
            skipped,
            namespace: namespace.to_owned(),
            home: marks.home.clone(),
            most,
            pace: Mutex::new(Pace::new(EACH_EVENT)),
        }
    }

    /// Whether there are more objects of this kind than are copied.
    pub(super) fn has_too_many(&self, kind: Kind) -> bool {
        match self.of(kind) {
            Of::Objects(view) => view.is_full(),
            Of::Slices(view) => view.is_full(),
        }
    }

    /// Whether an object at home has a copy of this name.
    fn has(&self, kind: Kind, copy: &str) -> bool {
        match self.of(kind) {
            Of::Objects(view) => view.count_of_topic(copy) > 0,
            Of::Slices(view) => {
                let original = name_of_original(kind, copy, &self.home);
                view.get(&format!("{}/{original}", self.namespace)).is_some()
            }
        }
    }

    async fn complete(&self, kind: Kind) {
        match self.of(kind) {
            Of::Objects(view) => view.complete().await,
            Of::Slices(view) => view.complete().await,
        }
    }

    pub(super) fn of(&self, kind: Kind) -> Of<'_, Original, Slice> {
        self.objects.view(kind)
    }

    /// The Services that are copied.
    pub(crate) fn services(&self) -> &Watched<Original> {
        &self.objects.services
    }

    pub(crate) fn slices(&self) -> &Watched<Slice> {
        &self.objects.slices
    }

    pub(super) fn version(&self, kind: Kind) -> watch::Receiver<u64> {
        match self.of(kind) {
            Of::Objects(view) => view.version(),
            Of::Slices(view) => view.version(),
        }
    }

    pub(super) fn changes(&self, kind: Kind) -> Changes {
        match self.of(kind) {
            Of::Objects(view) => Changes::Objects(view.feed()),
            Of::Slices(view) => Changes::Slices(view.feed()),
        }
    }

    /// The names that copies of this kind may have.
    pub(super) fn names(&self, kind: Kind) -> Vec<String> {
        match self.of(kind) {
            Of::Objects(view) => view.all().iter().map(|it| it.copy.clone()).collect(),
            Of::Slices(view) => view.all().iter().map(|it| it.name.clone()).collect(),
        }
    }

    /// Changes when a Service is seen to be marked not to be copied.
    pub(super) fn skips(&self) -> watch::Receiver<u64> {
        self.skipped.1.subscribe()
    }

    /// The marked Services that were not given before, as far as events on them are permitted now.
    pub(super) fn newly_skipped(&self) -> Vec<String> {
        let mut all = self.skipped.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = all.iter_mut().filter(|(_, is_reported)| !**is_reported);
        let new = new.take_while(|_| self.may_emit().is_ok());
        new.map(|(name, is_reported)| {
            *is_reported = true;
            name.clone()
        })
        .collect()
    }

    /// Permits an event in the namespace, or returns the time to wait.
    pub(crate) fn may_emit(&self) -> Result<(), Duration> {
        self.pace
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take(EVENTS_AT_ONCE)
    }
}

/// Views of the copies of these objects in a remote namespace.
pub(super) fn copies(
    there: &Cluster,
    namespace: &str,
    marks: &Marks,
    source: &Arc<Source>,
) -> PerKind<CopyMetadata> {
    fn watch<K: Copied>(
        there: &Cluster,
        namespace: &str,
        marks: &Marks,
        source: &Arc<Source>,
    ) -> Watched<CopyMetadata> {
        let pairs = marks.labels.iter().map(|(key, value)| format!("{key}={value}"));
        let ours = watcher::Config::default().labels(&pairs.collect::<Vec<_>>().join(","));
        let marks = marks.clone();
        let metadata = move |it: PartialObjectMeta<K>| {
            let metadata = CopyMetadata {
                name: it.name_any(),
                version: it.resource_version().unwrap_or_default(),
                ours: marks.are_on(it.labels(), it.annotations()),
                deleting: it.metadata.deletion_timestamp.is_some(),
            };
            is_name(&metadata.name).then_some(metadata)
        };
        let (here, whose) = (Arc::clone(source), Arc::clone(source));
        // There is at most one copy of each object.
        let most = 2 * source.most;
        there.watch_in(namespace, ours, metadata, |budgets| {
            budgets
                .and_own(most, move |it: &CopyMetadata| whose.has(K::KIND, &it.name))
                .once(async move { here.complete(K::KIND).await })
        })
    }
    PerKind {
        config_maps: watch::<ConfigMap>(there, namespace, marks, source),
        secrets: watch::<Secret>(there, namespace, marks, source),
        services: watch::<Service>(there, namespace, marks, source),
        slices: watch::<EndpointSlice>(there, namespace, marks, source),
    }
}

/// Never fails: it was read from JSON.
pub(super) fn json<K: Serialize>(object: K) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}
