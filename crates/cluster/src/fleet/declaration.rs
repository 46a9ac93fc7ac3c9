//! What a fabric says of its clusters, and where it says that.

use std::{collections::BTreeSet, fmt, sync::Arc};

use kube::Client;
use tokio::sync::watch;

use crate::{
    api::{namespace_offloading::NamespaceOffloading, remote_cluster::RemoteCluster},
    cluster::view::View,
    fleet::kubeconfig::Allowed,
    placement::{Adjustments, Declared},
    volume::ClusterId,
};

/// A secret as part of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SecretRef {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl fmt::Display for SecretRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret {}/{}", self.namespace, self.name)
    }
}

/// Where the credentials of a cluster are.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Credentials {
    /// In a key of a Secret.
    Secret {
        secret: SecretRef,
        key: String,
        /// The Secret in which this driver keeps what it has renewed, if it renews any.
        renewed: Option<SecretRef>,
    },
    /// In the declaring object itself.
    Inline(Arc<[u8]>),
    /// Nowhere, for this reason.
    Missing(String),
}

/// What a source says about one cluster.
#[derive(Clone)]
pub(super) struct ClusterDeclaration {
    pub(super) declared: Declared,
    /// Whether the declaration is being deleted.
    pub(super) leaving: bool,
    pub(super) credentials: Credentials,
    pub(super) allowed: Allowed,
    /// Whether it was written by whom this cluster is to be declared. What is not believed
    /// is shown, so that it can be mended, unless somebody else declares the cluster.
    pub(super) believed: bool,
}

/// What the sources need to know.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) client: Client,
    /// The `RemoteCluster`s of this cluster.
    pub(super) remote_clusters: View<RemoteCluster>,
    /// The `NamespaceOffloading`s of this cluster.
    pub(super) offloadings: View<NamespaceOffloading>,
    /// Namespace of this driver.
    pub(super) namespace: String,
    /// What kubeconfigs of `RemoteCluster`s and Kosmos may contain.
    pub(super) allowed: Allowed,
    /// The namespaces in which Liqo's objects are believed.
    pub(super) liqo_tenants: BTreeSet<String>,
}

/// The objects of one fabric, watched.
pub(super) trait Source: Send {
    /// What they declare now; `None` until all of them have been seen.
    fn declarations(&self) -> Option<Vec<ClusterDeclaration>>;
    /// What they say of clusters that others declare.
    fn adjustments(&self) -> Vec<(ClusterId, Adjustments)> {
        Vec::new()
    }
    /// Change whenever that may have changed.
    fn triggers(&self) -> Vec<watch::Receiver<u64>>;
}
