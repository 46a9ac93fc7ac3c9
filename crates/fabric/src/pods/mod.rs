//! The pods of one virtual node: each is looked at when it, its remote pod or its cluster has
//! changed. What is decided is in [`crate::offload::pods`]; [`look`] gathers the facts, [`act`]
//! writes.

mod act;
mod addresses;
mod admitted;
mod changes;
mod claims;
mod configuration;
mod given_up;
mod look;
mod services;
mod turns;
mod usage;
mod waits;
mod watches;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kube::{Api, runtime::watcher};
use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

pub use self::given_up::GivenUp;
pub(super) use self::given_up::avoided_now;
use self::{
    addresses::Told,
    admitted::Admitted,
    changes::Sent,
    given_up::Waited,
    turns::{Looks, Swept, Turns},
    waits::Waits,
    watches::Watches,
};
use super::{
    brake::Brake,
    meters::Meters,
    places::Places,
    seen::{SeenPod, SentPod},
};
use crate::{
    api::{fabric::RemotePods, remote_cluster::RemoteCluster},
    cluster::{
        ApiError, Lean,
        events::Events,
        view::{Changed, Feed, View},
    },
    controller::{Controller, Next, control},
    offload::{PodNetwork, Readiness, pods::RemoteSettings},
    queue::Queue,
    rounds::LoopMetrics,
    volume::ClusterId,
};

/// All are looked at so often, whatever watches say.
const RESYNC: Duration = Duration::from_mins(1);
/// What waits for something that no watch tells of is looked at so often.
const POLL: Duration = Duration::from_secs(2);
/// After a write whose effect a watch is about to tell.
const SOON: Duration = Duration::from_secs(1);
/// Until the pods of a cluster that answers again should have been listed.
const LONGEST_LIST: Duration = Duration::from_secs(30);
/// Before it is asked again whether a cluster answers.
const RETRY: Duration = Duration::from_secs(2);
/// What is not watched is read so often.
const UNWATCHED: Duration = Duration::from_secs(30);
/// So many remote pods are read whole at the same time: what their cluster sends may be large.
const READS: usize = 8;

/// The pods of one virtual node.
pub(super) struct Pods<'a> {
    places: &'a Places<'a>,
    cluster: ClusterId,
    node: String,
    /// Where it is asked what the pods use.
    meters: &'a Meters,
    home: View<SeenPod>,
    there: Watches,
    state: Mutex<State>,
    reads: Semaphore,
    outside: Told,
    turns: Turns,
    looks: Looks,
    sweeps: Swept,
    /// Which remote pods were deleted of late, by home pod: uid and grace.
    deleted: Mutex<Brake<(String, u32)>>,
    /// Whether all remote pods were looked at since the cluster answers.
    swept: &'a watch::Sender<bool>,
    sent: Sent,
    waits: Waits,
    waited: Waited,
    /// Since when remote pods are not made because a copy is behind.
    copying: Waited,
    longest_copying: Duration,
    given_up: GivenUp,
    events: Events,
    _stops: tokio_util::sync::DropGuard,
}

/// What is known from one turn to the next.
struct State {
    feed: Option<Feed<SeenPod>>,
    /// When all are looked at next.
    resync: Instant,
    answers: bool,
    sweep: Sweep,
    surroundings: Vec<watch::Receiver<u64>>,
    network: Option<PodNetwork>,
    /// The namespaces there that the status of a `NamespaceOffloading` names.
    mapped: BTreeSet<String>,
    placed: Placed,
    admitted: Admitted,
}

/// In which namespaces there pods may run, whatever became of their `NamespaceOffloading`. What others
/// say of a pod before it was claimed, or started, names no namespace that is watched.
#[derive(Default)]
struct Placed {
    by_pod: HashMap<String, String>,
    pods: BTreeMap<String, usize>,
}

impl Placed {
    fn note(&mut self, key: &str, now: Option<&str>) {
        if self.by_pod.get(key).map(String::as_str) == now {
            return;
        }
        if let Some(before) = self.by_pod.remove(key)
            && let Some(count) = self.pods.get_mut(&before)
        {
            *count -= 1;
            if *count == 0 {
                self.pods.remove(&before);
            }
        }
        if let Some(now) = now {
            self.by_pod.insert(key.to_owned(), now.to_owned());
            *self.pods.entry(now.to_owned()).or_default() += 1;
        }
    }
}

impl<'a> Pods<'a> {
    pub(super) fn new(
        places: &'a Places<'a>,
        cluster: ClusterId,
        node: &str,
        meters: &'a Meters,
        given_up: &GivenUp,
        swept: &'a watch::Sender<bool>,
    ) -> Self {
        let stop = CancellationToken::new();
        let of_node = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
        let all: Api<Lean<SentPod>> = Api::all(places.home.client().clone());
        let home = View::start(all, of_node, |it| Some(SeenPod::at_home(&it)), &stop);
        Self {
            there: Watches::new(places.home.id(), &home),
            home,
            state: Mutex::new(State {
                feed: None,
                resync: Instant::now(),
                answers: false,
                sweep: Sweep::default(),
                surroundings: surroundings(places),
                network: None,
                mapped: BTreeSet::new(),
                placed: Placed::default(),
                admitted: Admitted::default(),
            }),
            reads: Semaphore::new(READS),
            outside: Told::default(),
            turns: Turns::default(),
            looks: Looks::default(),
            sweeps: Swept::default(),
            deleted: Mutex::default(),
            places,
            cluster,
            node: node.to_owned(),
            meters,
            swept,
            sent: Sent::default(),
            waits: Waits::default(),
            waited: Waited::default(),
            copying: Waited::default(),
            longest_copying: configuration::LONGEST,
            given_up: given_up.clone(),
            events: Events::new(places.home.client().clone()),
            _stops: stop.drop_guard(),
        }
    }

    /// The home pods of the node.
    pub(super) fn at_home(&self) -> View<SeenPod> {
        self.home.clone()
    }

    /// Looks after them, and says what they use and which Services lead to none of them, for ever.
    pub(super) async fn run(self, metrics: &LoopMetrics) {
        tokio::join!(self.look_after(metrics), self.meter(), self.watch_services());
    }

    async fn look_after(&self, metrics: &LoopMetrics) {
        // What is not known at home looks as if it were to be swept.
        self.home.complete().await;
        // Without what they say of networks, pods would lose their addresses for a moment.
        self.places.home.views().remote_clusters.complete().await;
        let network = self.network();
        {
            let mut state = self.state();
            state.feed = Some(self.home.feed());
            (state.network, state.mapped) = (network, self.mapped_there());
        }
        control(self, metrics).await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the `RemoteCluster` says of the cluster now.
    fn spec(&self) -> Option<Arc<RemoteCluster>> {
        let clusters = &self.places.home.views().remote_clusters;
        clusters.get(self.cluster.as_str())
    }

    /// What it says of pods.
    fn settings(&self) -> RemoteSettings {
        let pods = self.pods_spec().unwrap_or_default();
        remote_settings(&pods, self.places.home.id())
    }

    /// After what time pods that no node takes are given up; `None` for never.
    fn give_up_after(&self) -> Option<Duration> {
        self.pods_spec()?.given_up_after()
    }

    fn pods_spec(&self) -> Option<RemotePods> {
        let object = self.spec()?;
        Some(object.spec.fabric.as_ref()?.pods.clone())
    }

    /// The namespaces there that are said to be there.
    fn mapped_there(&self) -> BTreeSet<String> {
        let offloadings = self.places.home.views().offloadings.all();
        let named = offloadings.iter().filter_map(|one| {
            let is_there = matches!(
                one.readiness(self.cluster.as_str())?,
                Readiness::Created | Readiness::Terminating(_)
            );
            let name = one.status.as_ref()?.remote_namespace_name.clone()?;
            is_there.then_some(name)
        });
        named.collect()
    }

    /// Notes where this home pod may run now, and what it asks for.
    fn note_pod(&self, state: &mut State, key: &str) {
        let pod = self.home.get(key);
        let place = pod
            .as_ref()
            .filter(|it| it.state.may_run())
            .and_then(|it| it.place());
        let here = place.filter(|(cluster, _)| *cluster == self.cluster.as_str());
        state.placed.note(key, here.map(|(_, namespace)| namespace));
        state.admitted.note(key, pod.as_deref());
    }

    /// Adds the home pods that have changed.
    fn note_home(&self, state: &mut State, queue: &mut Queue) {
        match state.feed.as_ref().map(Feed::take) {
            Some(Changed::These(pods)) => {
                for pod in pods {
                    self.note_pod(state, pod.key());
                    queue.add(pod.key());
                }
            }
            Some(Changed::Everything) => {
                (state.placed, state.admitted) = (Placed::default(), Admitted::default());
                for pod in self.home.all() {
                    self.note_pod(state, pod.key());
                }
                state.resync = Instant::now();
            }
            None => {}
        }
    }

    /// Adds those whose remote pods have changed, and all of them now and then.
    fn note_there(&self, state: &mut State, queue: &mut Queue) {
        let there = self.there.changed();
        if let (Some(there), true) = (there, state.resync > Instant::now()) {
            for key in there.iter().filter_map(|pod| pod.home_key()) {
                queue.add(key);
            }
            return;
        }
        state.resync = Instant::now() + RESYNC;
        for pod in self.home.all() {
            queue.add(pod.key());
        }
        for key in self.there.all().iter().filter_map(|pod| pod.home_key()) {
            queue.add(key);
        }
    }
}

impl Controller for Pods<'_> {
    const NAME: &'static str = "pods";
    const AT_ONCE: usize = 32;

    async fn changes(&self, queue: &mut Queue) -> Next {
        // From now on: a change while this one looks is not missed.
        let mut triggers = surroundings(self.places);
        triggers.push(self.home.version());
        let place = self.places.reach(&self.cluster).await.ok();
        let cluster = place.as_ref().map(|place| &place.cluster);
        let (network, answers) = (self.network(), cluster.is_some());
        let mut state = self.state();
        let state = &mut *state;
        if has_changed(&mut state.surroundings) {
            state.mapped = self.mapped_there();
            for key in self.waits.keys() {
                queue.add(key);
            }
        }
        self.note_home(state, queue);
        let placed = state.placed.pods.keys();
        self.there
            .follow(cluster, &state.mapped.iter().chain(placed).cloned().collect());
        triggers.extend(self.there.triggers());
        if network != state.network || (state.answers && !answers) {
            // All pods have other addresses here, or are not known to be ready any more.
            (state.network, state.resync) = (network, Instant::now());
        }
        state.answers = answers;
        self.note_there(state, queue);
        if !answers {
            state.sweep = Sweep::default();
        }
        let is_swept = answers && (*self.swept.borrow() || state.sweep.is_over(&self.there));
        self.swept
            .send_if_modified(|swept| std::mem::replace(swept, is_swept) != is_swept);
        let retry = (!answers).then(|| Instant::now() + RETRY);
        Next {
            triggers,
            at: retry.map_or(state.resync, |it| it.min(state.resync)),
            works: true,
        }
    }

    async fn reconcile(&self, key: &str) -> Result<Option<Duration>, ApiError> {
        self.look_at(key).await
    }

    fn looked_at(&self, key: &str) {
        self.state().sweep.note(key);
    }
}

/// Which clusters there are and how they are, and which namespaces are there: what waits may wait for
/// these.
fn surroundings(places: &Places<'_>) -> Vec<watch::Receiver<u64>> {
    let views = places.home.views();
    vec![
        places.registry().changes(),
        views.offloadings.version(),
        views.remote_clusters.version(),
    ]
}

/// Whether one has since the last call.
fn has_changed(versions: &mut [watch::Receiver<u64>]) -> bool {
    let mut has_changed = false;
    for version in versions {
        has_changed |= version.has_changed().unwrap_or_default();
        version.mark_unchanged();
    }
    has_changed
}

/// The first look at all remote pods since their cluster answers.
struct Sweep {
    began: Instant,
    /// Those that are still to be looked at, once all were seen.
    left: Option<BTreeSet<String>>,
}

impl Default for Sweep {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            left: None,
        }
    }
}

impl Sweep {
    /// Whether each was looked at. A namespace that cannot be watched is not waited for: the
    /// others' pods must not be evicted for it.
    fn is_over(&mut self, there: &Watches) -> bool {
        if self.left.is_none() && (there.are_complete() || self.began.elapsed() > LONGEST_LIST) {
            let all = there.all();
            let keys = all.iter().filter_map(|pod| pod.home_key());
            self.left = Some(keys.map(str::to_owned).collect());
        }
        self.left.as_ref().is_some_and(BTreeSet::is_empty)
    }

    /// A pod was looked at, whatever came of it.
    fn note(&mut self, key: &str) {
        if let Some(left) = &mut self.left {
            left.remove(key);
        }
    }
}

fn remote_settings(pods: &RemotePods, home: &ClusterId) -> RemoteSettings {
    let tolerations = pods.tolerations.iter().map(|one| serde_json::json!(one));
    RemoteSettings {
        home: home.as_str().to_owned(),
        node_selector: pods.node_selector.clone(),
        tolerations: tolerations.collect(),
        priority_class: pods.priority_class_name.clone(),
        claims: BTreeMap::new(),
        runtime_class: pods.runtime_class_name.clone(),
        skip_labels: pods.skip_labels.clone(),
        skip_annotations: pods.skip_annotations.clone(),
    }
}

#[cfg(test)]
mod tests;
