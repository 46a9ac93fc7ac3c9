//! What is watched: the objects of a namespace at home, once however many clusters it is in, and
//! the metadata of their copies in one remote namespace. Of what objects say only digests are
//! kept; the text of a Secret is read when it is compared or written, and forgotten.

use std::{
    fmt::Debug,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use kube::{
    Resource, ResourceExt,
    core::{NamespaceResourceScope, PartialObjectMeta},
    runtime::watcher,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::pace::Pace;
use crate::{
    cluster::{Cluster, Watched, view::Slim},
    offload::reflection::{Glimpse, Kind, Marks, Original, wanted},
};

/// A kind that is copied.
pub(super) trait Copied:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// Which.
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

/// Objects in one page of a list at home. A page of the largest Secrets must fit into memory.
const PAGE: u32 = 10;
/// All kinds.
pub(super) const KINDS: [Kind; 3] = [Kind::ConfigMap, Kind::Secret, Kind::Service];

/// A namespace at home.
pub(super) struct Source {
    objects: PerKind<Original>,
    /// How fast events are made in it.
    pace: Mutex<Pace>,
}

/// One view for each kind.
pub(super) struct PerKind<S> {
    config_maps: Watched<S>,
    secrets: Watched<S>,
    services: Watched<S>,
}

impl<S> PerKind<S> {
    pub(super) fn of(&self, kind: Kind) -> &Watched<S> {
        match kind {
            Kind::ConfigMap => &self.config_maps,
            Kind::Secret => &self.secrets,
            Kind::Service => &self.services,
        }
    }
}

/// Its topic is the name of its copy.
impl Slim for Original {
    fn topic(&self) -> &str {
        &self.copy
    }

    fn text(&self) -> usize {
        self.copy.len() + self.print.text()
    }
}

impl Slim for Glimpse {
    fn topic(&self) -> &str {
        &self.name
    }

    fn text(&self) -> usize {
        self.name.len() + self.version.len()
    }
}

impl Source {
    pub(super) fn new(home: &Cluster, namespace: &str, marks: &Marks) -> Self {
        fn watch<K: Copied>(home: &Cluster, namespace: &str, marks: &Marks) -> Watched<Original> {
            let marks = marks.clone();
            let original = move |it: K| Some(wanted(K::KIND, json(it), &marks).ok()?.original);
            home.watch_in(namespace, watcher::Config::default().page_size(PAGE), original)
        }
        Self {
            objects: PerKind {
                config_maps: watch::<ConfigMap>(home, namespace, marks),
                secrets: watch::<Secret>(home, namespace, marks),
                services: watch::<Service>(home, namespace, marks),
            },
            pace: Mutex::default(),
        }
    }

    pub(super) fn of(&self, kind: Kind) -> &Watched<Original> {
        self.objects.of(kind)
    }

    /// Whether an event may be made in the namespace now, or in what time.
    pub(super) fn take_turn(&self) -> Result<(), Duration> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The copies in a remote namespace.
pub(super) fn copies(there: &Cluster, namespace: &str, marks: &Marks) -> PerKind<Glimpse> {
    fn watch<K: Copied>(there: &Cluster, namespace: &str, marks: &Marks) -> Watched<Glimpse> {
        let pairs = marks.labels.iter().map(|(key, value)| format!("{key}={value}"));
        let ours = watcher::Config::default().labels(&pairs.collect::<Vec<_>>().join(","));
        let marks = marks.clone();
        let glimpse = move |it: PartialObjectMeta<K>| {
            let glimpse = Glimpse {
                name: it.name_any(),
                version: it.resource_version().unwrap_or_default(),
                ours: marks.are_on(it.labels(), it.annotations()),
                deleting: it.metadata.deletion_timestamp.is_some(),
            };
            is_name(&glimpse.name).then_some(glimpse)
        };
        there.watch_in(namespace, ours, glimpse)
    }
    PerKind {
        config_maps: watch::<ConfigMap>(there, namespace, marks),
        secrets: watch::<Secret>(there, namespace, marks),
        services: watch::<Service>(there, namespace, marks),
    }
}

/// Whether an object can be called so. Names from remote clusters become paths of requests here.
pub(super) fn is_name(name: &str) -> bool {
    let is_plain = |it: u8| matches!(it, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
    name.starts_with(|it: char| it.is_ascii_alphanumeric()) && name.len() <= 253 && name.bytes().all(is_plain)
}

/// Never fails: it was read from JSON.
pub(super) fn json<K: Serialize>(object: K) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}
