//! The controller of the pods of one virtual node: a pod is reconciled when it, its remote pod or its cluster
//! changes. Decisions are in [`crate::offload::pods`]; [`observe`] reads the facts, [`act`] writes.

mod act;
mod addresses;
mod admitted;
mod changes;
mod claims;
mod configuration;
mod given_up;
mod left;
mod observe;
mod rates;
mod services;
mod usage;
mod waits;
mod watches;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kube::{Api, ResourceExt, runtime::watcher};
use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

pub use self::given_up::GivenUp;
use self::{
    addresses::{OwnerEvents, Reported},
    admitted::Admitted,
    changes::Sent,
    given_up::Waited,
    left::Listed,
    rates::{ReadRate, StatusRates, SweepRate},
    waits::Waits,
    watches::Watches,
};
pub(super) use self::{given_up::avoided_now, observe::is_young};
use super::{
    backoff::Backoff,
    meters::Meters,
    places::Places,
    seen::{SeenPod, SentPod},
};
use crate::{
    api::{fabric::RemotePods, namespace_offloading::NAME, remote_cluster::RemoteCluster},
    cluster::{
        ApiError, Lean,
        events::Events,
        view::{Changed, Feed, View},
    },
    controller::{Controller, Next, control},
    offload::{PodNetwork, Readiness, pods::RemoteSettings},
    queue::Queue,
    raw::RawPod,
    rounds::LoopMetrics,
    volume::ClusterId,
};

/// All pods are reconciled at this interval, whether or not they changed.
const RESYNC: Duration = Duration::from_mins(1);
/// The interval of checks of pods that wait for something that is not watched.
const POLL: Duration = Duration::from_secs(2);
/// The pause after a write, unless a watch shows its effect before.
const SOON: Duration = Duration::from_secs(1);
/// The time after which the pods of a cluster that answers again should be listed.
const LONGEST_LIST: Duration = Duration::from_secs(30);
/// The pause between two attempts to reach the cluster.
const RETRY: Duration = Duration::from_secs(2);
/// The interval of reads of a remote pod that is not watched.
const UNWATCHED: Duration = Duration::from_secs(30);
/// Full remote pods read at the same time: what their cluster sends may be large.
const READS: usize = 8;

pub(super) struct Pods<'a> {
    places: &'a Places<'a>,
    cluster: ClusterId,
    node: String,
    meters: &'a Meters,
    home: View<SeenPod>,
    there: Watches,
    state: Mutex<State>,
    reads: Semaphore,
    reported: Reported,
    owners: OwnerEvents,
    status_rates: StatusRates,
    read_rate: ReadRate,
    sweep_rate: SweepRate,
    /// Remote pods that were deleted recently, by home pod: uid and grace period.
    deleted: Mutex<Backoff<(String, u32)>>,
    /// Whether all remote pods were reconciled since the cluster answers.
    swept: &'a watch::Sender<bool>,
    sent: Sent,
    waits: Waits,
    waited: Waited,
    /// Since when the creation of remote pods waits for current copies.
    copying: Waited,
    longest_copying: Duration,
    /// How long a Service has to lack endpoints before that is reported.
    lacking_after: Duration,
    existing: services::Existing,
    given_up: GivenUp,
    events: Events,
    _stops: tokio_util::sync::DropGuard,
}

struct State {
    feed: Option<Feed<SeenPod>>,
    /// When all pods are reconciled next.
    resync: Instant,
    answers: bool,
    sweep: Sweep,
    surroundings: Vec<watch::Receiver<u64>>,
    network: Option<PodNetwork>,
    /// The remote namespaces that the status of a `NamespaceOffloading` names.
    mapped: BTreeSet<String>,
    /// The other remote namespaces of this home cluster, as last listed.
    listed: Listed,
    /// The namespaces that the last event `NamespacesLeft` named.
    left: Vec<String>,
    placed: Placed,
    admitted: Admitted,
}

/// The remote namespaces of pods that may run, even without a `NamespaceOffloading`. Only these are watched:
/// before a pod is claimed or started, users can write any namespace into its annotations.
#[derive(Default)]
struct Placed {
    by_pod: HashMap<String, String>,
    pods: BTreeMap<String, usize>,
}

impl Placed {
    fn record(&mut self, key: &str, now: Option<&str>) {
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
            there: Watches::new(places.home.id(), &cluster, &home),
            home,
            state: Mutex::new(State {
                feed: None,
                resync: Instant::now(),
                answers: false,
                sweep: Sweep::default(),
                surroundings: surroundings(places),
                network: None,
                mapped: BTreeSet::new(),
                listed: Listed::new(),
                left: Vec::new(),
                placed: Placed::default(),
                admitted: Admitted::default(),
            }),
            reads: Semaphore::new(READS),
            reported: Reported::default(),
            owners: OwnerEvents::default(),
            status_rates: StatusRates::default(),
            read_rate: ReadRate::default(),
            sweep_rate: SweepRate::default(),
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
            lacking_after: services::LACKING_AFTER,
            existing: services::Existing::default(),
            given_up: given_up.clone(),
            events: Events::new(places.home.client().clone()),
            _stops: stop.drop_guard(),
        }
    }

    pub(super) fn at_home(&self) -> View<SeenPod> {
        self.home.clone()
    }

    /// Runs the pods, serves their usage, and emits events on Services that do not reach them. Never returns.
    pub(super) async fn run(self, metrics: &LoopMetrics) {
        tokio::join!(
            self.reconcile_pods(metrics),
            self.serve_usage(),
            self.watch_services()
        );
    }

    async fn reconcile_pods(&self, metrics: &LoopMetrics) {
        // A remote pod whose home pod is not listed yet would be deleted.
        self.home.complete().await;
        // Without the networks that they declare, pods would lose their addresses for a moment.
        self.places.home.views().remote_clusters.complete().await;
        let network = self.network();
        {
            let mut state = self.state();
            state.feed = Some(self.home.feed());
            (state.network, state.mapped) = (network, self.remote_namespaces());
        }
        control(self, metrics).await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remote_cluster(&self) -> Option<Arc<RemoteCluster>> {
        let clusters = &self.places.home.views().remote_clusters;
        clusters.get(self.cluster.as_str())
    }

    fn settings(&self) -> RemoteSettings {
        let pods = self.pods_spec().unwrap_or_default();
        remote_settings(&pods, self.places.home.id())
    }

    /// The node labels by which the `clusterSelector` of its namespace and the `RemoteCluster` select the node of a pod.
    fn selected_by_others(&self, home: &RawPod) -> BTreeSet<String> {
        let offloadings = &self.places.home.views().offloadings;
        let key = format!("{}/{NAME}", home.namespace().unwrap_or_default());
        let offloading = offloadings.get(&key);
        let terms = offloading
            .iter()
            .flat_map(|it| &it.spec.cluster_selector.node_selector_terms);
        let keys = terms
            .flat_map(|term| &term.match_expressions)
            .map(|one| one.key.clone());
        keys.chain(self.settings().node_selector.into_keys()).collect()
    }

    /// Whether a namespace is offloaded under its own name.
    fn keeps_its_name(&self, namespace: &str) -> bool {
        let offloadings = &self.places.home.views().offloadings;
        let offloading = offloadings.get(&format!("{namespace}/{NAME}"));
        offloading.is_some_and(|it| it.keeps_its_name())
    }

    /// The time after which pods that the cluster does not take are given up; `None` for never.
    fn give_up_after(&self) -> Option<Duration> {
        self.pods_spec()?.given_up_after()
    }

    fn pods_spec(&self) -> Option<RemotePods> {
        let object = self.remote_cluster()?;
        Some(object.spec.fabric.as_ref()?.pods.clone())
    }

    /// The remote namespaces that exist according to the status of their `NamespaceOffloading`.
    fn remote_namespaces(&self) -> BTreeSet<String> {
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

    /// Records in which namespace this home pod may run now, and its requests.
    fn record_pod(&self, state: &mut State, key: &str) {
        let pod = self.home.get(key);
        let place = pod
            .as_ref()
            .filter(|it| it.state.may_run())
            .and_then(|it| it.place());
        let here = place.filter(|(cluster, _)| *cluster == self.cluster.as_str());
        state.placed.record(key, here.map(|(_, namespace)| namespace));
        state.admitted.record(key, pod.as_deref());
    }

    fn queue_changed_home_pods(&self, state: &mut State, queue: &mut Queue) {
        match state.feed.as_ref().map(Feed::take) {
            Some(Changed::These(pods)) => {
                for pod in pods {
                    self.record_pod(state, pod.key());
                    queue.add(pod.key());
                }
            }
            Some(Changed::Everything) => {
                (state.placed, state.admitted) = (Placed::default(), Admitted::default());
                for pod in self.home.all() {
                    self.record_pod(state, pod.key());
                }
                state.resync = Instant::now();
            }
            None => {}
        }
    }

    /// Adds the pods whose remote pods have changed, and all pods when a resync is due.
    fn queue_changed_remote_pods(&self, state: &mut State, queue: &mut Queue) {
        let changed = self.there.changed();
        if let (Some(changed), true) = (changed, state.resync > Instant::now()) {
            for key in changed.iter().filter_map(|pod| pod.home_key()) {
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
        // Subscribed before anything is read, so that no change is missed.
        let mut triggers = surroundings(self.places);
        triggers.push(self.home.version());
        let place = self.places.reach(&self.cluster).await.ok();
        let cluster = place.as_ref().map(|place| &place.cluster);
        let (network, answers) = (self.network(), cluster.is_some());
        let listed = self.list_namespaces(place.as_ref()).await;
        let mut state = self.state();
        let state = &mut *state;
        if let Some(listed) = listed {
            state.listed = listed;
        }
        if has_changed(&mut state.surroundings) {
            state.mapped = self.remote_namespaces();
            for key in self.waits.waiting() {
                queue.add(key);
            }
        }
        self.queue_changed_home_pods(state, queue);
        let others = state.placed.pods.keys().chain(state.listed.keys());
        self.there
            .follow(cluster, &state.mapped.iter().chain(others).cloned().collect());
        triggers.extend(self.there.triggers());
        if network != state.network || (state.answers && !answers) {
            // All pods get other addresses here, or are not ready any more.
            (state.network, state.resync) = (network, Instant::now());
        }
        state.answers = answers;
        self.queue_changed_remote_pods(state, queue);
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
        self.reconcile_pod(key).await
    }

    fn reconciled(&self, key: &str) {
        self.state().sweep.remove(key);
    }
}

/// The clusters and their state, and the offloaded namespaces: pods may wait for a change of these.
fn surroundings(places: &Places<'_>) -> Vec<watch::Receiver<u64>> {
    let views = places.home.views();
    vec![
        places.registry().changes(),
        views.offloadings.version(),
        views.remote_clusters.version(),
    ]
}

/// Whether one has changed since the last call.
fn has_changed(versions: &mut [watch::Receiver<u64>]) -> bool {
    let mut has_changed = false;
    for version in versions {
        has_changed |= version.has_changed().unwrap_or_default();
        version.mark_unchanged();
    }
    has_changed
}

/// The first reconciliation of all remote pods since their cluster answers.
struct Sweep {
    began: Instant,
    /// The pods that were not reconciled yet, once all are listed.
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
    /// Whether each pod was reconciled. A namespace that cannot be watched is not waited for: the node would stay
    /// not ready, and the pods of other namespaces would be evicted.
    fn is_over(&mut self, there: &Watches) -> bool {
        if self.left.is_none() && (there.are_complete() || self.began.elapsed() > LONGEST_LIST) {
            let all = there.all();
            let keys = all.iter().filter_map(|pod| pod.home_key());
            self.left = Some(keys.map(str::to_owned).collect());
        }
        self.left.as_ref().is_some_and(BTreeSet::is_empty)
    }

    fn remove(&mut self, key: &str) {
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
