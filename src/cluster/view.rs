//! A view: a watch whose objects are kept as slim values, with wake-ups for
//! those who wait for one of them to change.
//!
//! A full object costs ten to thirty KiB, most of it `managedFields`; a slim
//! value a few hundred bytes. That, and one connection per kind instead of one
//! per waiter, is what lets one controller wait for thousands of volumes.

use std::{
    collections::{BTreeSet, HashMap},
    fmt::Debug,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Duration,
};

use futures::{StreamExt, TryStreamExt};
use kube::{
    Api, Resource, ResourceExt,
    runtime::{WatchStreamExt, watcher},
};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A watch that goes silent is noticed this much later, plus five seconds.
/// Nobody's correctness depends on it: whoever waits also looks for himself.
const WATCH_SECONDS: u32 = 60;
const PAGE: u32 = 250;
/// More than any cluster has of what we watch. What does not end is not listed on.
const MOST_OBJECTS: usize = 250_000;
/// Before it is tried again.
const DISGUST: Duration = Duration::from_mins(1);

/// What a view keeps of an object.
pub trait Slim: Send + Sync + 'static {
    /// What those who wait for it wait on. Several objects may share a topic.
    fn topic(&self) -> &str;
}

/// A kept watch. Cheap to clone.
pub struct View<S>(Arc<Shared<S>>);

impl<S> Clone for View<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct Shared<S> {
    state: RwLock<State<S>>,
    /// Counts events; never zero once the first list is complete.
    version: watch::Sender<u64>,
}

struct State<S> {
    objects: HashMap<String, Arc<S>>,
    topics: HashMap<String, BTreeSet<String>>,
    listeners: HashMap<String, watch::Sender<()>>,
}

impl<S: Slim> View<S> {
    /// A view of nothing, for ever complete.
    #[must_use]
    pub fn none() -> Self {
        let view = Self::empty();
        view.0.version.send_replace(1);
        view
    }

    fn empty() -> Self {
        Self(Arc::new(Shared {
            state: RwLock::new(State {
                objects: HashMap::new(),
                topics: HashMap::new(),
                listeners: HashMap::new(),
            }),
            version: watch::Sender::new(0),
        }))
    }

    /// Watches until `stop`, keeping what `slim` makes of the objects it wants.
    pub fn start<K, F>(api: Api<K>, config: watcher::Config, slim: F, stop: &CancellationToken) -> Self
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
        F: Fn(K) -> Option<S> + Send + 'static,
    {
        let view = Self::empty();
        let keeper = view.clone();
        let stop = stop.clone();
        let config = config.timeout(WATCH_SECONDS).page_size(PAGE);
        tokio::spawn(async move {
            stop.run_until_cancelled(keeper.keep(api, config, slim)).await;
        });
        view
    }

    async fn keep<K, F>(self, api: Api<K>, config: watcher::Config, slim: F)
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
        F: Fn(K) -> Option<S>,
    {
        let mut listed = HashMap::new();
        let watch = || watcher(api.clone(), config.clone()).default_backoff().boxed();
        let mut events = watch();
        loop {
            if listed.len() > MOST_OBJECTS {
                tracing::warn!("a list does not end: what it shows is not taken");
                listed.clear();
                tokio::time::sleep(DISGUST).await;
                events = watch();
            }
            match events.try_next().await {
                Ok(Some(watcher::Event::Init)) => listed.clear(),
                Ok(Some(watcher::Event::InitApply(object))) => {
                    let key = key(&object);
                    if let Some(value) = slim(object) {
                        listed.insert(key, Arc::new(value));
                    }
                }
                Ok(Some(watcher::Event::InitDone)) => self.replace(std::mem::take(&mut listed)),
                Ok(Some(watcher::Event::Apply(object))) => {
                    let key = key(&object);
                    self.set(&key, slim(object).map(Arc::new));
                }
                Ok(Some(watcher::Event::Delete(object))) => self.set(&key(&object), None),
                Ok(None) => return,
                // The stream backs off and goes on by itself.
                Err(error) => tracing::warn!(%error, "a watch was interrupted"),
            }
        }
    }

    fn replace(&self, listed: HashMap<String, Arc<S>>) {
        let mut state = self.write();
        state.topics.clear();
        for (key, value) in &listed {
            let topic = value.topic().to_owned();
            state.topics.entry(topic).or_default().insert(key.clone());
        }
        state.objects = listed;
        // What vanished during a gap in the watch must wake its waiters too.
        for listener in state.listeners.values() {
            listener.send_replace(());
        }
        drop(state);
        self.0.version.send_modify(|version| *version += 1);
    }

    fn set(&self, key: &str, value: Option<Arc<S>>) {
        let mut state = self.write();
        let mut touched = Vec::new();
        if let Some(old) = state.objects.remove(key) {
            state.leave(old.topic(), key);
            touched.push(old);
        }
        if let Some(new) = value {
            let topic = new.topic().to_owned();
            state.topics.entry(topic).or_default().insert(key.to_owned());
            state.objects.insert(key.to_owned(), Arc::clone(&new));
            touched.push(new);
        }
        for value in &touched {
            if let Some(listener) = state.listeners.get(value.topic()) {
                listener.send_replace(());
            }
        }
        drop(state);
        if !touched.is_empty() {
            self.0.version.send_modify(|version| *version += 1);
        }
    }

    /// The object with this key: its name, or `namespace/name`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Arc<S>> {
        self.read().objects.get(key).cloned()
    }

    /// Everything.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<S>> {
        self.read().objects.values().cloned().collect()
    }

    /// The objects of a topic.
    #[must_use]
    pub fn of_topic(&self, topic: &str) -> Vec<Arc<S>> {
        let state = self.read();
        let keys = state.topics.get(topic).into_iter().flatten();
        keys.filter_map(|key| state.objects.get(key).cloned()).collect()
    }

    /// From now on, changes of a topic.
    #[must_use]
    pub fn subscribe(&self, topic: &str) -> Changes<S> {
        let mut state = self.write();
        let listener = state.listeners.entry(topic.to_owned()).or_default();
        Changes {
            receiver: Some(listener.subscribe()),
            topic: topic.to_owned(),
            view: self.clone(),
        }
    }

    /// Counts all changes; zero until the first list is complete.
    #[must_use]
    pub fn version(&self) -> watch::Receiver<u64> {
        self.0.version.subscribe()
    }

    /// Waits for the first complete list.
    pub async fn complete(&self) {
        let mut version = self.version();
        // Only fails when the view is gone, and we hold it.
        let _held = version.wait_for(|version| *version > 0).await;
    }

    fn read(&self) -> RwLockReadGuard<'_, State<S>> {
        self.0.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State<S>> {
        self.0.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> State<S> {
    fn leave(&mut self, topic: &str, key: &str) {
        if let Some(keys) = self.topics.get_mut(topic) {
            keys.remove(key);
            if keys.is_empty() {
                self.topics.remove(topic);
            }
        }
    }
}

fn key<K: Resource>(object: &K) -> String {
    match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    }
}

/// Changes of one topic since the last look.
pub struct Changes<S: Slim> {
    receiver: Option<watch::Receiver<()>>,
    topic: String,
    view: View<S>,
}

impl<S: Slim> Changes<S> {
    /// Returns after a change, or after `at_most`: a watch may lag or be cut, so
    /// the caller looks for himself every now and then.
    pub async fn next(&mut self, at_most: Duration) {
        if let Some(receiver) = &mut self.receiver {
            let _timed_out = tokio::time::timeout(at_most, receiver.changed()).await;
        }
    }
}

impl<S: Slim> Drop for Changes<S> {
    fn drop(&mut self) {
        self.receiver = None;
        let mut state = self.view.write();
        if state
            .listeners
            .get(&self.topic)
            .is_some_and(watch::Sender::is_closed)
        {
            state.listeners.remove(&self.topic);
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;
    use crate::cluster::testing::{Act, FakeApi, Fault};

    const LONG: Duration = Duration::from_secs(10);

    #[derive(Debug, PartialEq)]
    struct Color(String);

    impl Slim for Color {
        fn topic(&self) -> &str {
            &self.0
        }
    }

    /// Keeps the config maps that have a colour.
    async fn colors(api: &FakeApi) -> (View<Color>, CancellationToken) {
        let client = api.cluster_unwatched().await.client().clone();
        let stop = CancellationToken::new();
        let slim = |map: ConfigMap| Some(Color(map.data?.get("color")?.clone()));
        let view = View::start(Api::all(client), watcher::Config::default(), slim, &stop);
        view.complete().await;
        (view, stop)
    }

    fn paint(api: &FakeApi, name: &str, color: &str) {
        let path = format!("/api/v1/namespaces/ns/configmaps/{name}");
        api.put(&path, json!({"data": {"color": color}}));
    }

    async fn until(view: &View<Color>, topic: &str, count: usize) {
        let mut changes = view.subscribe(topic);
        let wait = async {
            while view.of_topic(topic).len() != count {
                changes.next(LONG).await;
            }
        };
        tokio::time::timeout(LONG, wait)
            .await
            .expect("the view never showed it");
    }

    #[tokio::test]
    async fn follows_objects_from_topic_to_topic() {
        let api = FakeApi::start().await;
        paint(&api, "a", "red");
        api.put("/api/v1/namespaces/ns/configmaps/plain", json!({}));
        let (view, _stop) = colors(&api).await;
        assert_eq!(view.all().len(), 1);
        assert_eq!(*view.get("ns/a").unwrap(), Color("red".into()));

        paint(&api, "b", "red");
        until(&view, "red", 2).await;
        paint(&api, "a", "blue");
        until(&view, "red", 1).await;
        until(&view, "blue", 1).await;
        api.remove("/api/v1/namespaces/ns/configmaps/b");
        until(&view, "red", 0).await;
    }

    #[tokio::test]
    async fn a_change_before_the_wait_is_not_missed() {
        let api = FakeApi::start().await;
        let (view, _stop) = colors(&api).await;
        let mut changes = view.subscribe("red");
        paint(&api, "a", "red");
        until(&view, "red", 1).await;
        let hour = Duration::from_hours(1);
        tokio::time::timeout(LONG, changes.next(hour))
            .await
            .expect("the change was missed");
    }

    #[tokio::test]
    async fn survives_cut_watches_and_versions_that_are_too_old() {
        let api = FakeApi::start().await;
        let (view, _stop) = colors(&api).await;
        paint(&api, "a", "red");
        until(&view, "red", 1).await;
        api.fault(Fault::new("GET", "configmaps", Act::Gone).times(1));
        api.fault(Fault::new("GET", "configmaps", Act::Refuse(500)).times(2));
        api.cut_watches();
        api.remove("/api/v1/namespaces/ns/configmaps/a");
        paint(&api, "b", "red");
        paint(&api, "c", "red");
        until(&view, "red", 2).await;
        assert!(view.get("ns/a").is_none());
    }

    #[tokio::test]
    async fn listeners_leave_nothing_behind() {
        let view = View::<Color>::none();
        let (one, two) = (view.subscribe("red"), view.subscribe("red"));
        drop(one);
        assert_eq!(view.read().listeners.len(), 1);
        drop(two);
        assert_eq!(view.read().listeners.len(), 0);
    }
}
