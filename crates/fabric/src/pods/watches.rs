//! The remote pods of one cluster, watched in the namespaces where the fabric has made some: it
//! may look into no others.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

use kube::{Api, runtime::watcher};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    cluster::{
        Budget, Cluster, Lean,
        view::{Changed, Feed, Room, View},
    },
    marks::HOME,
    seen::{SeenPod, SentPod},
    volume::ClusterId,
};

/// So many pods of a namespace are watched. Of more, each is read now and then.
const MOST_PODS: usize = 5000;

/// The watches.
pub(super) struct Watches {
    /// The cluster whose pods are selected.
    home: ClusterId,
    pods: View<SeenPod>,
    /// So many pods are watched of each namespace.
    most: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    cluster: Option<Cluster>,
    namespaces: BTreeMap<String, Watched>,
}

struct Watched {
    view: View<SeenPod>,
    feed: Feed<SeenPod>,
    _stops: DropGuard,
}

impl Watches {
    pub(super) fn new(home: &ClusterId, pods: &View<SeenPod>) -> Self {
        Self {
            home: home.clone(),
            pods: pods.clone(),
            most: MOST_PODS,
            state: Mutex::default(),
        }
    }

    /// From now on, these namespaces of this cluster are watched; none while it does not answer.
    /// What was seen before is forgotten then: it may have changed in silence.
    pub(super) fn follow(&self, cluster: Option<&Cluster>, namespaces: &BTreeSet<String>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = match (&state.cluster, cluster) {
            (Some(before), Some(now)) => before.is_same(now),
            (None, None) => true,
            _ => false,
        };
        if !is_same {
            *state = State {
                cluster: cluster.cloned(),
                namespaces: BTreeMap::new(),
            };
        }
        let Some(cluster) = cluster else { return };
        state.namespaces.retain(|name, _| namespaces.contains(name));
        for name in namespaces {
            if !state.namespaces.contains_key(name) {
                state.namespaces.insert(name.clone(), self.watch(cluster, name));
            }
        }
    }

    fn watch(&self, cluster: &Cluster, namespace: &str) -> Watched {
        let stop = CancellationToken::new();
        let ours = watcher::Config::default().labels(&format!("{HOME}={}", self.home));
        let pods: Api<Lean<SentPod>> = Api::namespaced(cluster.client().clone(), namespace);
        // What the cluster invents is its own.
        let home = self.pods.clone();
        let is_own = move |it: &SeenPod| it.home_key().is_some_and(|key| home.get(key).is_some());
        let room = Room::from(cluster.budget()).and_own(Budget::of_namespace(self.most), is_own);
        let view = View::start_within(pods, ours, |pod| SeenPod::remote(&pod), room, &stop);
        Watched {
            feed: view.feed(),
            view,
            _stops: stop.drop_guard(),
        }
    }

    /// The pod of this name, as it was seen last.
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Arc<SeenPod>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state
            .namespaces
            .get(namespace)?
            .view
            .get(&format!("{namespace}/{name}"))
    }

    /// Whether a pod may be there although it is not seen.
    pub(super) fn may_hide(&self, namespace: &str, name: &str) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let watched = state.namespaces.get(namespace);
        watched.is_some_and(|it| it.view.is_full() || it.view.is_too_large(&format!("{namespace}/{name}")))
    }

    #[cfg(test)]
    pub(super) fn watch_at_most(&mut self, most: usize) {
        self.most = most;
    }

    /// The pods of this name in all namespaces.
    pub(super) fn named(&self, name: &str) -> Vec<Arc<SeenPod>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let namespaces = state.namespaces.iter();
        namespaces
            .filter_map(|(namespace, watched)| watched.view.get(&format!("{namespace}/{name}")))
            .collect()
    }

    /// What has changed since the last call, each as it was and as it is; `None` if all have to be
    /// looked at, also those that are not there any more.
    pub(super) fn changed(&self) -> Option<Vec<Arc<SeenPod>>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut all, mut everything) = (Vec::new(), false);
        for watched in state.namespaces.values() {
            match watched.feed.take() {
                Changed::Everything => everything = true,
                Changed::These(these) => all.extend(these),
            }
        }
        (!everything).then_some(all)
    }

    /// All pods that were seen.
    pub(super) fn all(&self) -> Vec<Arc<SeenPod>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state
            .namespaces
            .values()
            .flat_map(|watched| watched.view.all())
            .collect()
    }

    /// Change whenever a pod does.
    pub(super) fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state
            .namespaces
            .values()
            .map(|watched| watched.view.version())
            .collect()
    }

    /// Whether all pods were seen.
    pub(super) fn are_complete(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.cluster.is_some()
            && state
                .namespaces
                .values()
                .all(|watched| *watched.view.version().borrow() > 0)
    }
}
