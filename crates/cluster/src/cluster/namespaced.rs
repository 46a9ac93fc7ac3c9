//! Views of one namespace for temporary use: they end when they are dropped.

use std::{fmt::Debug, ops::Deref};

use kube::{Api, Resource, core::NamespaceResourceScope, runtime::watcher};
use serde::de::DeserializeOwned;
use tokio_util::sync::DropGuard;

use super::{
    Cluster,
    view::{Slim, View, ViewBudgets},
};

/// A view whose watch ends when this is dropped.
pub struct Watched<S> {
    view: View<S>,
    _stops: DropGuard,
}

impl<S> Deref for Watched<S> {
    type Target = View<S>;

    fn deref(&self) -> &View<S> {
        &self.view
    }
}

impl Cluster {
    /// Watches the matching objects of a kind in a namespace, beginning with the first read. They count
    /// towards the budget of the cluster, except for those with a budget of their own.
    pub fn watch_in<K, S, F>(
        &self,
        namespace: &str,
        those: watcher::Config,
        slim: F,
        budgets: impl FnOnce(ViewBudgets<S>) -> ViewBudgets<S>,
    ) -> Watched<S>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + Debug + DeserializeOwned + Send + 'static,
        S: Slim,
        F: Fn(K) -> Option<S> + Send + Sync + 'static,
    {
        let inner = &self.0;
        let stop = inner.stop.child_token();
        let api = Api::namespaced(inner.client.clone(), namespace);
        let budgets = budgets(ViewBudgets::from(&inner.budget));
        Watched {
            view: View::start_within(api, those, slim, budgets, &stop),
            _stops: stop.drop_guard(),
        }
    }
}
