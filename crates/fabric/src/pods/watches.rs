//! Watches of the remote pods of one cluster, in the remote namespaces of the fabric: it has no rights in others.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

use kube::{Api, runtime::watcher};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    cluster::{
        Cluster, Lean,
        view::{Changed, Feed, View, ViewBudgets},
    },
    marks::HOME,
    seen::{SeenPod, SentPod},
    volume::ClusterId,
};

/// Pods watched in a namespace. Further ones are polled.
const MOST_PODS: usize = 5000;

pub(super) struct Watches {
    /// The id of the home cluster, by which the remote pods are selected.
    home: ClusterId,
    cluster: ClusterId,
    pods: View<SeenPod>,
    /// Pods watched in each namespace.
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
    pub(super) fn new(home: &ClusterId, cluster: &ClusterId, pods: &View<SeenPod>) -> Self {
        Self {
            home: home.clone(),
            cluster: cluster.clone(),
            pods: pods.clone(),
            most: MOST_PODS,
            state: Mutex::default(),
        }
    }

    /// Watches exactly these namespaces of the cluster; none while it does not answer, so that outdated views are
    /// dropped.
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
        // At most one remote pod of each home pod uses the budget of the namespace. Others, which the cluster may
        // invent, use that of the cluster.
        let (id, home) = (self.cluster.clone(), self.pods.clone());
        let is_own = move |it: &SeenPod| {
            let home = it.home_key().and_then(|key| home.get(key));
            home.is_some_and(|home| it.is_remote_of(&home, id.as_str()))
        };
        let budgets = ViewBudgets::from(cluster.budget()).and_own(self.most, is_own);
        let view = View::start_within(pods, ours, |pod| SeenPod::remote(&pod), budgets, &stop);
        Watched {
            feed: view.feed(),
            view,
            _stops: stop.drop_guard(),
        }
    }

    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Arc<SeenPod>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state
            .namespaces
            .get(namespace)?
            .view
            .get(&format!("{namespace}/{name}"))
    }

    /// Whether a pod may exist although the view does not have it.
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

    /// The pods that have changed since the last call, before and after the change; `None` if any may have changed.
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

    pub(super) fn all(&self) -> Vec<Arc<SeenPod>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state
            .namespaces
            .values()
            .flat_map(|watched| watched.view.all())
            .collect()
    }

    /// Change whenever a pod changes.
    pub(super) fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state
            .namespaces
            .values()
            .map(|watched| watched.view.version())
            .collect()
    }

    /// Whether the first list of each namespace is complete.
    pub(super) fn are_complete(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.cluster.is_some()
            && state
                .namespaces
                .values()
                .all(|watched| *watched.view.version().borrow() > 0)
    }
}
