//! The pods of one virtual node: each is looked at when it, its remote pod or its cluster has
//! changed. What is decided is in [`crate::offload::pods`]; [`look`] gathers the facts, [`act`]
//! writes.

mod act;
mod addresses;
mod changes;
mod look;
mod services;
mod turns;
mod usage;
mod waits;
mod watches;
mod work;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{
    StreamExt,
    future::{pending, select_all},
    stream::FuturesUnordered,
};
use kube::{Api, runtime::watcher};
use tokio::{sync::watch, time};
use tokio_util::sync::CancellationToken;

use self::{
    addresses::Told,
    changes::Sent,
    turns::{Swept, Turns},
    waits::Waits,
    watches::Watches,
    work::Work,
};
use super::{brake::Brake, meters::Meters, places::Places, raw::RawPod};
use crate::{
    api::{fabric::RemotePods, remote_cluster::RemoteCluster},
    cluster::{
        ApiError, Lean,
        events::Events,
        view::{Changed, Feed, View},
    },
    offload::{Readiness, pods::RemoteSettings},
    volume::ClusterId,
};

/// How many pods of a cluster are looked at at the same time.
const AT_ONCE: usize = 32;
/// All are looked at so often, whatever watches say.
const RESYNC: Duration = Duration::from_mins(1);
/// What waits for something that no watch tells of is looked at so often.
const POLL: Duration = Duration::from_secs(2);
/// Until the pods of a cluster that answers again should have been listed.
const LONGEST_LIST: Duration = Duration::from_secs(30);
/// Before it is asked again whether a cluster answers.
const RETRY: Duration = Duration::from_secs(2);

/// The pods of one virtual node.
pub(super) struct Pods<'a> {
    places: &'a Places<'a>,
    cluster: ClusterId,
    node: String,
    /// Where it is asked what the pods use.
    meters: &'a Meters,
    home: View<RawPod>,
    there: Watches,
    outside: Told,
    turns: Turns,
    sweeps: Swept,
    /// Which remote pods were deleted of late, by home pod: uid and grace.
    deleted: Mutex<Brake<(String, u32)>>,
    /// Whether all remote pods were looked at since the cluster answers.
    swept: &'a watch::Sender<bool>,
    sent: Sent,
    waits: Waits,
    events: Events,
    _stops: tokio_util::sync::DropGuard,
}

impl<'a> Pods<'a> {
    pub(super) fn new(
        places: &'a Places<'a>,
        cluster: ClusterId,
        node: &str,
        meters: &'a Meters,
        swept: &'a watch::Sender<bool>,
    ) -> Self {
        let stop = CancellationToken::new();
        let of_node = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
        let all: Api<Lean<RawPod>> = Api::all(places.home.client().clone());
        Self {
            home: View::start(all, of_node, Some, &stop),
            there: Watches::new(places.home.id()),
            outside: Told::default(),
            turns: Turns::default(),
            sweeps: Swept::default(),
            deleted: Mutex::default(),
            places,
            cluster,
            node: node.to_owned(),
            meters,
            swept,
            sent: Sent::default(),
            waits: Waits::default(),
            events: Events::new(places.home.client().clone()),
            _stops: stop.drop_guard(),
        }
    }

    /// Looks after them, and says what they use and which Services lead to none of them, for ever.
    pub(super) async fn run(self) {
        tokio::join!(self.look_after(), self.meter(), self.watch_services());
    }

    async fn look_after(&self) {
        // What is not known at home looks as if it were to be swept.
        self.home.complete().await;
        // Without what they say of networks, pods would lose their addresses for a moment.
        self.places.home.views().remote_clusters.complete().await;
        let feed = self.home.feed();
        let (mut work, mut running) = (Work::default(), FuturesUnordered::new());
        let mut resync = time::Instant::now();
        let mut sweep = Sweep::default();
        let mut surroundings = self.surroundings();
        let mut network = self.network();
        loop {
            // From now on: a change while this one looks is not missed.
            let mut triggers = self.triggers();
            let answers = self.follow().await;
            triggers.extend(self.there.triggers());
            let now = self.network();
            if now != network {
                // All pods have other addresses here.
                (network, resync) = (now, time::Instant::now());
            }
            self.note_changes(&feed, &mut work, &mut resync);
            if has_changed(&mut surroundings) {
                for key in self.waits.keys() {
                    work.add(key);
                }
            }
            for key in work.take(AT_ONCE - running.len()) {
                let look = self.reconcile(key.clone());
                running.push(async move { (key, look.await) });
            }
            let is_swept = answers && (*self.swept.borrow() || sweep.is_over(&self.there));
            if !answers {
                sweep = Sweep::default();
            }
            self.swept
                .send_if_modified(|swept| std::mem::replace(swept, is_swept) != is_swept);
            let has_room = running.len() < AT_ONCE;
            let next = [
                has_room.then(|| work.next()).flatten(),
                Some(resync),
                (!answers).then(|| time::Instant::now() + RETRY),
            ];
            let next = next.into_iter().flatten().min().unwrap_or(resync);
            let done = async {
                match running.next().await {
                    Some(done) => done,
                    None => pending().await,
                }
            };
            let changes = triggers.iter_mut().map(|trigger| Box::pin(trigger.changed()));
            tokio::select! {
                (key, outcome) = done => {
                    sweep.note(&key);
                    note_outcome(&mut work, &key, outcome);
                }
                _changed = select_all(changes) => {}
                () = time::sleep_until(next) => {}
            }
        }
    }

    /// What the `RemoteCluster` says of the cluster now.
    fn spec(&self) -> Option<Arc<RemoteCluster>> {
        let clusters = &self.places.home.views().remote_clusters;
        clusters.get(self.cluster.as_str())
    }

    /// What it says of pods.
    fn settings(&self) -> RemoteSettings {
        let object = self.spec();
        let fabric = object.as_ref().and_then(|it| it.spec.fabric.as_ref());
        let pods = fabric.map(|fabric| fabric.pods.clone()).unwrap_or_default();
        remote_settings(&pods, self.places.home.id())
    }

    /// Follows the cluster as it is reached now; whether it answers.
    async fn follow(&self) -> bool {
        let place = self.places.reach(&self.cluster).await.ok();
        let cluster = place.as_ref().map(|place| &place.cluster);
        self.there.follow(cluster, &self.namespaces());
        cluster.is_some()
    }

    /// The namespaces there in which pods of ours may be.
    fn namespaces(&self) -> BTreeSet<String> {
        let offloadings = self.places.home.views().offloadings.all();
        let named = offloadings.iter().filter_map(|one| {
            let is_there = matches!(
                one.readiness(self.cluster.as_str())?,
                Readiness::Created | Readiness::Terminating(_)
            );
            let name = one.status.as_ref()?.remote_namespace_name.clone()?;
            is_there.then_some(name)
        });
        // Where pods were made, whatever became of their NamespaceOffloading. What others say of a pod
        // before it was claimed, or started, names no namespace that is watched.
        let pods = self.home.all();
        let may_run = pods.iter().filter(|pod| pod.as_home().may_run());
        let placed = may_run.filter_map(|pod| pod.place());
        let placed = placed
            .filter(|(cluster, _)| *cluster == self.cluster.as_str())
            .map(|(_, namespace)| namespace.to_owned());
        named.chain(placed).collect()
    }

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        let mut all = self.surroundings();
        all.push(self.home.version());
        all
    }

    /// Which clusters there are and how they are, and which namespaces are there: what waits may
    /// wait for these.
    fn surroundings(&self) -> Vec<watch::Receiver<u64>> {
        let views = self.places.home.views();
        vec![
            self.places.registry().changes(),
            views.offloadings.version(),
            views.remote_clusters.version(),
        ]
    }

    fn note_changes(&self, feed: &Feed<RawPod>, work: &mut Work, resync: &mut time::Instant) {
        let (home, there) = (feed.take(), self.there.changed());
        match (home, there) {
            (Changed::These(home), Some(there)) if *resync > time::Instant::now() => {
                for pod in home {
                    work.add(pod.key());
                }
                for key in there.iter().filter_map(|pod| pod.home_key()) {
                    work.add(key.to_owned());
                }
            }
            _ => {
                *resync = time::Instant::now() + RESYNC;
                for pod in self.home.all() {
                    work.add(pod.key());
                }
                let there = self.there.all();
                for key in there.iter().filter_map(|pod| pod.home_key()) {
                    work.add(key.to_owned());
                }
            }
        }
    }
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
    began: time::Instant,
    /// Those that are still to be looked at, once all were seen.
    left: Option<BTreeSet<String>>,
}

impl Default for Sweep {
    fn default() -> Self {
        Self {
            began: time::Instant::now(),
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

fn note_outcome(work: &mut Work, key: &str, outcome: Result<Option<Duration>, ApiError>) {
    match outcome {
        Ok(again) => work.done(key, again),
        Err(error) => {
            tracing::warn!(pod = key, %error, "a pod of a virtual node could not be seen to: it is tried again");
            work.failed(key);
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
        runtime_class: pods.runtime_class_name.clone(),
    }
}

#[cfg(test)]
mod tests;
