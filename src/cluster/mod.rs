//! Clusters: a handle on one, bounded calls to its API server, and slim views of
//! what happens there. Whoever reads or writes a twin takes a [`Cluster`]; there
//! is no global client.

mod api;
mod cap;
mod connect;
pub mod events;
pub mod facts;
pub mod kubeconfig;
pub mod remote_cluster;
pub mod slim;
#[cfg(test)]
pub mod testing;
pub mod view;

use std::{sync::Arc, time::Duration};

use kube::{Client, Resource, core::NamespaceResourceScope};

pub use self::{
    api::{ApiError, Cause, Objects, Precondition},
    connect::{ConnectError, Settings},
    slim::Views,
};
use crate::volume::ClusterId;

/// A handle on one cluster. Cheap to clone.
#[derive(Clone)]
pub struct Cluster(Arc<Inner>);

struct Inner {
    id: ClusterId,
    client: Client,
    storage_namespace: String,
    call_timeout: Duration,
    views: Views,
}

impl Cluster {
    /// The cluster's id.
    #[must_use]
    pub fn id(&self) -> &ClusterId {
        &self.0.id
    }

    /// Where twins of home claims live.
    #[must_use]
    pub fn storage_namespace(&self) -> &str {
        &self.0.storage_namespace
    }

    /// The raw client, for watches and event recorders. Calls on it know no timeout.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    /// What the cluster looks like, a moment ago. Hints and wake-ups: whatever
    /// deletes or hands over reads live.
    #[must_use]
    pub fn views(&self) -> &Views {
        &self.0.views
    }

    /// Objects of a kind without namespaces, or of all namespaces.
    #[must_use]
    pub fn all<K>(&self) -> Objects<K>
    where
        K: Resource<DynamicType = ()>,
    {
        Objects::new(kube::Api::all(self.0.client.clone()), self)
    }

    /// Objects of a namespace.
    #[must_use]
    pub fn within<K>(&self, namespace: &str) -> Objects<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Objects::new(kube::Api::namespaced(self.0.client.clone(), namespace), self)
    }

    /// Objects of the namespace of twins.
    #[must_use]
    pub fn stored<K>(&self) -> Objects<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        self.within(self.storage_namespace())
    }
}
