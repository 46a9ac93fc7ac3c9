//! A view: a watch that keeps a few fields of each object, and wakes up waiters when an object changes.
//!
//! A full object takes ten to thirty KiB, the kept fields a few hundred bytes. That, and one connection per
//! kind instead of one per waiter, lets one controller wait for thousands of volumes.

mod feed;
mod watching;

use std::{
    collections::{BTreeSet, HashMap},
    iter,
    sync::{
        Arc, Mutex, Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use tokio::{sync::watch, time::Instant};

use self::feed::Feeds;
pub use self::feed::{Changed, Feed};
pub(super) use self::watching::READ_TIMEOUT;
pub use self::watching::RUNS_AGAIN;
use super::budget::{Budget, Reservation};

/// The kept fields of an object.
pub trait Slim: PartialEq + Send + Sync + 'static {
    /// The key by which waiters subscribe. Several objects may share a topic.
    fn topic(&self) -> &str;

    /// All topics, if there are several.
    fn topics(&self) -> impl Iterator<Item = &str> {
        iter::once(self.topic())
    }

    /// The number of bytes of text in it. It counts for objects of remote clusters, which may be arbitrarily
    /// large.
    fn text(&self) -> usize {
        0
    }
}

/// A watch with its objects. Cheap to clone.
pub struct View<S>(Arc<Shared<S>>);

impl<S> Clone for View<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

type Begin<S> = Box<dyn FnOnce(View<S>) + Send>;

struct Shared<S> {
    /// Begins the watch; taken at the first read.
    begin: Mutex<Option<Begin<S>>>,
    begun: Once,
    state: RwLock<State<S>>,
    /// Counts events; never zero once the first list is complete.
    version: watch::Sender<u64>,
    feeds: Feeds<S>,
    counters: Mutex<Vec<Counter<S>>>,
    /// The keys of objects that are too large to be read.
    too_large: RwLock<BTreeSet<String>>,
    /// The size of the smallest object that was omitted since the last list, because the separate budget was
    /// exhausted; [`NOT_FULL`] if none was.
    smallest_omitted: AtomicUsize,
    /// Since when the view may be outdated.
    outdated: RwLock<Option<Instant>>,
    /// How many objects were returned.
    #[cfg(any(test, feature = "testkit"))]
    given: AtomicUsize,
}

const NOT_FULL: usize = usize::MAX;

/// Counts the changes of matching objects.
struct Counter<S> {
    matters: Box<dyn Fn(&S) -> bool + Send + Sync>,
    count: watch::Sender<u64>,
}

struct State<S> {
    objects: HashMap<String, KeptObject<S>>,
    topics: HashMap<String, BTreeSet<String>>,
    listeners: HashMap<String, watch::Sender<()>>,
}

/// An object, and its share of the cluster's budget.
struct KeptObject<S> {
    value: Arc<S>,
    reservation: Arc<Reservation>,
}

/// The budget of the cluster is exhausted.
struct Exhausted;

/// A budget does not allow an object of this many bytes.
struct OverBudget(usize);

/// The budgets of a view: that of its cluster, and a separate one for the objects of a served namespace. Its
/// users must not use up the budget of the whole cluster: when the separate budget is exhausted, the view
/// shows no more of these objects, and continues.
pub struct ViewBudgets<S> {
    cluster: Budget,
    own: Option<(Budget, IsOwn<S>)>,
    /// The watch begins after this: before, it is unknown which objects have the separate budget.
    ready: Mutex<Option<BoxFuture<'static, ()>>>,
}

type IsOwn<S> = Box<dyn Fn(&S) -> bool + Send + Sync>;

impl<S> From<&Budget> for ViewBudgets<S> {
    fn from(cluster: &Budget) -> Self {
        Self {
            cluster: cluster.clone(),
            own: None,
            ready: Mutex::default(),
        }
    }
}

impl<S: Slim> ViewBudgets<S> {
    /// Matching objects have a separate budget, of this many objects.
    #[must_use]
    pub fn and_own(self, most_objects: usize, is_own: impl Fn(&S) -> bool + Send + Sync + 'static) -> Self {
        Self {
            own: Some((self.cluster.of_namespace(most_objects), Box::new(is_own))),
            ..self
        }
    }

    /// Delays the watch until it is known which objects match.
    #[must_use]
    pub fn once(self, ready: impl Future<Output = ()> + Send + 'static) -> Self {
        Self {
            ready: Mutex::new(Some(ready.boxed())),
            ..self
        }
    }

    fn keep(&self, key: &str, value: S) -> Result<Result<KeptObject<S>, OverBudget>, Exhausted> {
        match &self.own {
            Some((own, is_own)) if is_own(&value) => Ok(KeptObject::new(own, key, value)),
            _ => KeptObject::new(&self.cluster, key, value)
                .map(Ok)
                .map_err(|_| Exhausted),
        }
    }

    /// Whether the separate budget allows an object of this many bytes.
    fn own_allows(&self, bytes: usize) -> bool {
        self.own
            .as_ref()
            .is_some_and(|(own, _)| own.reserve(bytes).is_some())
    }
}

impl<S: Slim> View<S> {
    /// An empty view, which is complete.
    #[must_use]
    pub fn none() -> Self {
        let view = Self::begun_by(None);
        view.0.version.send_replace(1);
        view.set_outdated(false);
        view
    }

    fn begun_by(begin: Option<Begin<S>>) -> Self {
        Self(Arc::new(Shared {
            begin: Mutex::new(begin),
            begun: Once::new(),
            state: RwLock::new(State {
                objects: HashMap::new(),
                topics: HashMap::new(),
                listeners: HashMap::new(),
            }),
            version: watch::Sender::new(0),
            feeds: Feeds::default(),
            counters: Mutex::default(),
            too_large: RwLock::default(),
            smallest_omitted: AtomicUsize::new(NOT_FULL),
            outdated: RwLock::new(Some(Instant::now())),
            #[cfg(any(test, feature = "testkit"))]
            given: AtomicUsize::default(),
        }))
    }

    /// Begins the watch, unless it has begun.
    fn begin(&self) {
        self.0.begun.call_once(|| {
            let begin = self.0.begin.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(begin) = begin {
                let since = self.0.outdated.write();
                *since.unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                begin(self.clone());
            }
        });
    }

    /// Since when the view may be outdated: from its start until the first list is complete, and from the
    /// first failure since the watch last worked. `None` while the watch works.
    #[must_use]
    pub fn outdated_since(&self) -> Option<Instant> {
        self.begin();
        *self.0.outdated.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_outdated(&self, outdated: bool) {
        let mut since = self.0.outdated.write().unwrap_or_else(PoisonError::into_inner);
        *since = outdated.then(|| since.unwrap_or_else(Instant::now));
    }

    /// Whether the object with this key exists and is not shown, because it is too large to be read.
    #[must_use]
    pub fn is_too_large(&self, key: &str) -> bool {
        let keys = self.0.too_large.read().unwrap_or_else(PoisonError::into_inner);
        keys.contains(key)
    }

    /// Makes the view outdated since this long ago.
    #[cfg(any(test, feature = "testkit"))]
    #[allow(
        clippy::missing_panics_doc,
        clippy::unwrap_used,
        reason = "only tests call it"
    )]
    pub fn backdate(&self, by: Duration) {
        let mut since = self.0.outdated.write().unwrap();
        *since = since.and_then(|since| since.checked_sub(by));
    }

    /// Keeps an object of a new list, if the budget allows it. An unchanged object is not counted twice, or
    /// a cluster could be listed again only while half of its budget is free.
    fn kept(
        &self,
        budgets: &ViewBudgets<S>,
        key: &str,
        value: S,
    ) -> Result<Result<KeptObject<S>, OverBudget>, Exhausted> {
        match self.read().objects.get(key) {
            Some(before) if *before.value == value => Ok(Ok(before.again())),
            _ => budgets.keep(key, value),
        }
    }

    /// Whether objects are not shown because their separate budget is exhausted.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.smallest_omitted() != NOT_FULL
    }

    fn smallest_omitted(&self) -> usize {
        self.0.smallest_omitted.load(Ordering::Relaxed)
    }

    fn replace(&self, listed: HashMap<String, KeptObject<S>>) {
        let mut state = self.write();
        state.topics.clear();
        for (key, kept) in &listed {
            state.enter(&*kept.value, key);
        }
        state.objects = listed;
        // Objects that were deleted during a gap in the watch must wake their waiters, too.
        for listener in state.listeners.values() {
            listener.send_replace(());
        }
        drop(state);
        self.0.feeds.note_everything();
        self.count(|_| true);
        self.0.version.send_modify(|version| *version += 1);
    }

    /// An update that changes none of the kept fields wakes no waiters.
    fn set(&self, key: &str, kept: Option<KeptObject<S>>) {
        let mut state = self.write();
        let before = state.objects.get(key).map(|it| &*it.value);
        if before == kept.as_ref().map(|it| &*it.value) {
            return;
        }
        let mut touched = Vec::new();
        if let Some(old) = state.objects.remove(key) {
            state.leave(&*old.value, key);
            touched.push(old.value);
        }
        if let Some(new) = kept {
            state.enter(&*new.value, key);
            touched.push(Arc::clone(&new.value));
            state.objects.insert(key.to_owned(), new);
        }
        for topic in touched.iter().flat_map(|value| value.topics()) {
            if let Some(listener) = state.listeners.get(topic) {
                listener.send_replace(());
            }
        }
        drop(state);
        self.0.feeds.note(&touched);
        self.count(|matters| touched.iter().any(|value| matters(value)));
        self.0.version.send_modify(|version| *version += 1);
    }

    /// Counts one more change for each counter that matches.
    fn count(&self, has_changed: impl Fn(&dyn Fn(&S) -> bool) -> bool) {
        let mut counters = self.0.counters.lock().unwrap_or_else(PoisonError::into_inner);
        counters.retain(|counter| !counter.count.is_closed());
        for counter in counters.iter().filter(|counter| has_changed(&counter.matters)) {
            counter.count.send_modify(|count| *count += 1);
        }
    }

    /// The object with this key: its name, or `namespace/name`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Arc<S>> {
        self.begin();
        let found = self.read().objects.get(key).map(KeptObject::value);
        self.given(found.iter().len());
        found
    }

    #[must_use]
    pub fn all(&self) -> Vec<Arc<S>> {
        self.begin();
        let all: Vec<_> = self.read().objects.values().map(KeptObject::value).collect();
        self.given(all.len());
        all
    }

    #[must_use]
    pub fn of_topic(&self, topic: &str) -> Vec<Arc<S>> {
        self.begin();
        let state = self.read();
        let keys = state.topics.get(topic).into_iter().flatten();
        let found: Vec<_> = keys
            .filter_map(|key| state.objects.get(key).map(KeptObject::value))
            .collect();
        self.given(found.len());
        found
    }

    #[cfg(not(any(test, feature = "testkit")))]
    #[expect(clippy::unused_self, reason = "tests count the returned objects")]
    const fn given(&self, _objects: usize) {}

    #[cfg(any(test, feature = "testkit"))]
    fn given(&self, objects: usize) {
        self.0.given.fetch_add(objects, Ordering::Relaxed);
    }

    /// How many objects were returned so far: the cost of the reads.
    #[cfg(any(test, feature = "testkit"))]
    #[must_use]
    pub fn objects_given(&self) -> usize {
        self.0.given.load(Ordering::Relaxed)
    }

    /// Whether it has no objects, and nothing waits for one.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.read();
        state.objects.is_empty() && state.listeners.is_empty()
    }

    /// How many objects a topic has.
    #[must_use]
    pub fn count_of_topic(&self, topic: &str) -> usize {
        self.begin();
        self.read().topics.get(topic).map_or(0, BTreeSet::len)
    }

    /// The changes of a topic from now on.
    #[must_use]
    pub fn subscribe(&self, topic: &str) -> Changes<S> {
        self.begin();
        let mut state = self.write();
        let listener = state.listeners.entry(topic.to_owned()).or_default();
        Changes {
            receiver: Some(listener.subscribe()),
            topic: topic.to_owned(),
            view: self.clone(),
        }
    }

    /// All changes, individually if possible.
    #[must_use]
    pub fn feed(&self) -> Feed<S> {
        self.begin();
        self.0.feeds.add()
    }

    /// Counts the changes of objects that match before or after the change.
    #[must_use]
    pub fn changes_of(&self, matters: impl Fn(&S) -> bool + Send + Sync + 'static) -> watch::Receiver<u64> {
        self.begin();
        let (count, changes) = watch::channel(0);
        let counter = Counter {
            matters: Box::new(matters),
            count,
        };
        let mut counters = self.0.counters.lock().unwrap_or_else(PoisonError::into_inner);
        counters.push(counter);
        changes
    }

    /// Counts all changes; zero until the first list is complete.
    #[must_use]
    pub fn version(&self) -> watch::Receiver<u64> {
        self.begin();
        self.0.version.subscribe()
    }

    /// Waits for the first complete list.
    pub async fn complete(&self) {
        let mut version = self.version();
        // Fails only if the view is dropped, and `self` holds it.
        let _held = version.wait_for(|version| *version > 0).await;
    }

    fn read(&self) -> RwLockReadGuard<'_, State<S>> {
        self.0.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State<S>> {
        self.0.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Slim> KeptObject<S> {
    fn new(budget: &Budget, key: &str, value: S) -> Result<Self, OverBudget> {
        // The key is stored twice, and often again as the topic.
        let bytes = 3 * key.len() + size_of::<S>() + value.text();
        Ok(Self {
            reservation: Arc::new(budget.reserve(bytes).ok_or(OverBudget(bytes))?),
            value: Arc::new(value),
        })
    }
}

impl<S> KeptObject<S> {
    fn again(&self) -> Self {
        Self {
            value: Arc::clone(&self.value),
            reservation: Arc::clone(&self.reservation),
        }
    }

    fn value(&self) -> Arc<S> {
        Arc::clone(&self.value)
    }
}

impl<S: Slim> State<S> {
    fn enter(&mut self, value: &S, key: &str) {
        for topic in value.topics() {
            self.topics
                .entry(topic.to_owned())
                .or_default()
                .insert(key.to_owned());
        }
    }

    fn leave(&mut self, value: &S, key: &str) {
        for topic in value.topics() {
            if let Some(keys) = self.topics.get_mut(topic) {
                keys.remove(key);
                if keys.is_empty() {
                    self.topics.remove(topic);
                }
            }
        }
    }
}

/// Changes of one topic since the last call.
pub struct Changes<S: Slim> {
    receiver: Option<watch::Receiver<()>>,
    topic: String,
    view: View<S>,
}

impl<S: Slim> Changes<S> {
    /// Returns after a change, or after `at_most`: a watch may be delayed or interrupted, so the caller has
    /// to read live now and then.
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
mod tests;
