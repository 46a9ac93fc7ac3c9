//! Clusters: a handle on one, bounded calls to its API server, and views of its objects with few fields.
//! Code that reads or writes a twin gets a [`Cluster`] as an argument; there is no global client.

mod api;
mod awaited;
mod budget;
mod calls;
mod cap;
mod connect;
pub mod events;
mod evict;
pub mod facts;
mod finalizers;
mod lean;
mod namespaced;
mod owners;
mod pages;
mod recent;
mod rights;
mod services;
pub mod slim;
pub mod snapshots;
mod static_volumes;
#[cfg(any(test, feature = "testkit"))]
#[allow(
    clippy::expect_used,
    clippy::new_without_default,
    clippy::pedantic,
    clippy::unwrap_used,
    reason = "only tests call it"
)]
pub mod testing;
pub mod view;
mod views;
mod warnings;
mod watches;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::{
    authentication::v1::TokenRequest,
    core::v1::{Namespace, ServiceAccount},
};
use kube::{
    Client, Resource,
    api::{ApiResource, DynamicObject, ObjectMeta, PostParams},
    core::NamespaceResourceScope,
};
use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use self::connect::{KEEPALIVE, KEEPALIVE_PROBES, MOST_PROBES, remote_client, stream_client};
pub use self::{
    api::{ApiError, Cause, Objects, Precondition, plain, short, unless_conflict},
    awaited::AwaitedVolumes,
    budget::Budget,
    calls::{Calls, Metrics},
    connect::{ConnectError, Settings, client_for, context},
    evict::Eviction,
    finalizers::{has_finalizer, held_by},
    lean::Lean,
    namespaced::Watched,
    owners::OwnerNow,
    rights::{Rights, may_within},
    views::Views,
};
use self::{
    recent::Recent,
    services::ServiceAddresses,
    view::{Slim, View},
    warnings::Warnings,
};
use crate::{
    placement::{SnapshotClass, StaticVolume},
    topology::Node,
    volume::{CarriedAnnotations, ClusterId},
};

/// Objects in one page of a list of the home cluster.
const HOME_PAGE: u32 = 250;
/// Objects in one page of a list of a remote cluster: few, so that a page fits into memory however large the
/// objects are.
const REMOTE_PAGE: u32 = 50;
/// How many lists of one remote cluster are read at the same time.
const REMOTE_LISTS: usize = 2;

/// How long a namespace without twins is watched after the last read of its view.
const UNUSED: Duration = Duration::from_hours(1);

/// A namespace that exists as long as its cluster: its uid identifies the cluster.
pub const KUBE_SYSTEM: &str = "kube-system";

/// A handle on one cluster. Cheap to clone.
#[derive(Clone)]
pub struct Cluster(Arc<Inner>);

struct Inner {
    id: ClusterId,
    client: Client,
    storage_namespace: String,
    carried: CarriedAnnotations,
    calls: Calls,
    views: Views,
    /// The home cluster of the twins: this cluster or, for a remote one, that in which the driver runs.
    home: ClusterId,
    rights: Rights,
    budget: Budget,
    /// Limits concurrent lists, in a remote cluster.
    lists: Option<Arc<Semaphore>>,
    recent: RecentLists,
    awaited: AwaitedVolumes,
    /// The annotations of nodes that are kept.
    node_annotations: &'static [&'static str],
    /// Watches of single namespaces, if the driver may not watch all.
    by_namespace: Mutex<BTreeMap<String, WatchedNamespace>>,
    /// Counts the changes in those.
    by_namespace_changes: watch::Sender<u64>,
    stop: CancellationToken,
    _stops: DropGuard,
}

/// The watch of the twins in a namespace.
struct WatchedNamespace {
    view: View<slim::Twin>,
    /// When the view was last requested.
    used: Instant,
    _stops: DropGuard,
}

#[derive(Default)]
struct RecentLists {
    warnings: Recent<Warnings>,
    snapshot_classes: Recent<Result<Vec<SnapshotClass>, ApiError>>,
    static_volumes: Recent<Result<Vec<StaticVolume>, ApiError>>,
    service_addresses: Recent<ServiceAddresses>,
    service_ranges: Recent<Vec<String>>,
}

impl Cluster {
    #[must_use]
    pub fn id(&self) -> &ClusterId {
        &self.0.id
    }

    /// The uid that identifies the cluster: that of its namespace kube-system, read live.
    pub async fn uid(&self) -> Result<Option<String>, ApiError> {
        let found = self.all::<Namespace>().get(KUBE_SYSTEM).await?;
        Ok(found.and_then(|it| it.metadata.uid))
    }

    /// The namespace of the twins of home claims.
    #[must_use]
    pub fn storage_namespace(&self) -> &str {
        &self.0.storage_namespace
    }

    /// The annotations of home claims that are copied to their twins.
    #[must_use]
    pub fn carried_annotations(&self) -> &CarriedAnnotations {
        &self.0.carried
    }

    /// Whether this is the same handle: after a reconnect or a change of rights there is another one.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The raw client, for watches and event recorders. It has no timeouts.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    /// Recent copies of objects, for hints and wake-ups: code that deletes or hands over reads live.
    #[must_use]
    pub fn views(&self) -> &Views {
        &self.0.views
    }

    #[must_use]
    pub fn calls(&self) -> &Calls {
        &self.0.calls
    }

    /// The rights of the driver in the cluster.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.0.rights
    }

    /// The view of the twins in a namespace, which is watched from now on. Namespaces come and go: each new watch
    /// ends those of unused namespaces without twins.
    #[must_use]
    pub fn twins_in(&self, namespace: &str) -> View<slim::Twin> {
        let inner = &self.0;
        if inner.rights.all_claims {
            return inner.views.twins.clone();
        }
        let now = Instant::now();
        let mut watched = inner.by_namespace.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = watched.get_mut(namespace) {
            known.used = now;
            return known.view.clone();
        }
        watched.retain(|_, one| now.duration_since(one.used) < UNUSED || !one.view.is_idle());
        let stop = inner.stop.child_token();
        let view = views::twins_of(&inner.client, &inner.home, namespace, &inner.budget, &stop);
        let (mut version, changes) = (view.version(), inner.by_namespace_changes.clone());
        tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
            while version.changed().await.is_ok() {
                changes.send_modify(|count| *count += 1);
            }
        }));
        let started = WatchedNamespace {
            view: view.clone(),
            used: now,
            _stops: stop.drop_guard(),
        };
        watched.insert(namespace.to_owned(), started);
        view
    }

    /// Changes whenever a watched twin changes.
    #[must_use]
    pub fn twin_changes(&self) -> watch::Receiver<u64> {
        if self.0.rights.all_claims {
            self.0.views.twins.version()
        } else {
            self.0.by_namespace_changes.subscribe()
        }
    }

    /// The PVs whose deletion a call waits for.
    #[must_use]
    pub fn awaited_volumes(&self) -> &AwaitedVolumes {
        &self.0.awaited
    }

    /// A node with this metadata, without the annotations that are not kept.
    #[must_use]
    pub fn node(&self, metadata: ObjectMeta) -> Node {
        facts::node(metadata, self.0.node_annotations)
    }

    /// Waits for the first complete list of a view, which may begin only now, for at most the timeout of a
    /// call.
    pub async fn filled<K, S>(&self, view: &View<S>) -> Result<(), ApiError>
    where
        K: Resource<DynamicType = ()>,
        S: Slim,
    {
        let most = self.calls().timeout;
        let filled = tokio::time::timeout(most, view.complete()).await;
        filled.map_err(|_| self.all::<K>().error("watch", "", Cause::Timeout(most)))
    }

    #[must_use]
    pub fn budget(&self) -> &Budget {
        &self.0.budget
    }

    /// All watched twins.
    #[must_use]
    pub fn all_twins(&self) -> Vec<Arc<slim::Twin>> {
        let mut twins = self.views().twins.all();
        let watched = self.0.by_namespace.lock().unwrap_or_else(PoisonError::into_inner);
        twins.extend(watched.values().flat_map(|one| one.view.all()));
        twins
    }

    /// Objects of a kind without namespaces, or of all namespaces.
    #[must_use]
    pub fn all<K>(&self) -> Objects<K>
    where
        K: Resource<DynamicType = ()>,
    {
        Objects::new(kube::Api::all(self.0.client.clone()), self)
    }

    #[must_use]
    pub fn within<K>(&self, namespace: &str) -> Objects<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Objects::new(kube::Api::namespaced(self.0.client.clone(), namespace), self)
    }

    /// Objects of a kind that is known only at run time; in a namespace, if the kind is namespaced.
    #[must_use]
    pub fn dynamic(&self, kind: &ApiResource, namespace: Option<&str>) -> Objects<DynamicObject> {
        let client = self.0.client.clone();
        let api = match namespace {
            Some(namespace) => kube::Api::namespaced_with(client, namespace, kind),
            None => kube::Api::all_with(client, kind),
        };
        Objects::of_type(api, kind, self)
    }

    /// Requests a token of a service account.
    pub async fn request_token(
        &self,
        namespace: &str,
        account: &str,
        wanted: &TokenRequest,
    ) -> Result<TokenRequest, ApiError> {
        let accounts: kube::Api<ServiceAccount> = kube::Api::namespaced(self.0.client.clone(), namespace);
        let described = || format!("a token of ServiceAccount {namespace}/{account}");
        let params = PostParams::default();
        let call = || accounts.create_token_request(account, &params, wanted);
        api::bounded(self.calls(), self.id().as_str(), "get", described, call).await
    }

    /// Objects of the namespace of the twins.
    #[must_use]
    pub fn stored<K>(&self) -> Objects<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        self.within(self.storage_namespace())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::time;

    use super::{testing::FakeApi, *};
    use crate::volume::mark;

    #[tokio::test]
    async fn unused_namespaces_without_twins_are_not_watched_for_ever() {
        let api = FakeApi::start().await;
        let labels = json!({
            mark::MANAGED_BY: mark::MANAGED_BY_US, mark::HOME_CLUSTER: "home",
            mark::VOLUME: "pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111",
        });
        api.put(
            "/api/v1/namespaces/shop/persistentvolumeclaims/data",
            json!({"metadata": {"labels": labels}}),
        );
        let rights = Rights {
            all_claims: false,
            ..Rights::ALL
        };
        let cluster = api.remote_cluster("milan", rights).await;
        let unused = cluster.twins_in("ci-1");
        let waited_for = cluster.twins_in("ci-2");
        for view in [&unused, &waited_for, &cluster.twins_in("shop")] {
            view.complete().await;
        }
        let _changes = waited_for.subscribe("data");
        time::pause();
        time::advance(UNUSED).await;
        time::resume();
        drop(cluster.twins_in("ci-3"));
        let watched = cluster.0.by_namespace.lock().unwrap();
        assert!(watched.keys().eq(["ci-2", "ci-3", "shop"]));
    }
}
