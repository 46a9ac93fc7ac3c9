//! The declaration of a cluster by a fabric, and its credentials.

use std::{collections::BTreeSet, fmt, sync::Arc};

use kube::Client;
use tokio::sync::watch;

#[cfg(test)]
use crate::cluster::testing::FakeApi;
use crate::{
    api::{namespace_offloading::NamespaceOffloading, remote_cluster::RemoteCluster},
    cluster::view::View,
    fleet::kubeconfig::Allowed,
    placement::{Adjustments, Declared},
    volume::ClusterId,
};

/// A Secret, by namespace and name.
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

/// The location of the credentials of a cluster.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Credentials {
    /// In a key of a Secret.
    Secret {
        secret: SecretRef,
        key: String,
        /// The Secret in which this driver keeps a renewed kubeconfig, if it renews any.
        renewed: Option<SecretRef>,
    },
    /// In the declaring object itself.
    Inline(Arc<[u8]>),
    /// Missing, for this reason.
    Missing(String),
}

/// One cluster, as one fabric declares it.
#[derive(Clone)]
pub(super) struct ClusterDeclaration {
    pub(super) declared: Declared,
    pub(super) leaving: bool,
    pub(super) credentials: Credentials,
    pub(super) allowed: Allowed,
    /// Whether the author may declare this cluster. A declaration that is not trusted is shown in the
    /// status, so that the user can fix it, unless another fabric declares the cluster.
    pub(super) believed: bool,
}

/// The inputs of the sources.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) client: Client,
    /// The `RemoteCluster`s of the home cluster.
    pub(super) remote_clusters: View<RemoteCluster>,
    /// The `NamespaceOffloading`s of the home cluster.
    pub(super) offloadings: View<NamespaceOffloading>,
    pub(super) namespace: String,
    /// What kubeconfigs of `RemoteCluster`s and Kosmos may contain.
    pub(super) allowed: Allowed,
    /// The namespaces in which Liqo's objects are trusted.
    pub(super) liqo_tenants: BTreeSet<String>,
}

#[cfg(test)]
impl Context {
    /// The inputs for a fake home cluster, without `RemoteCluster`s and offloaded namespaces.
    pub(super) async fn fake(api: &FakeApi) -> Self {
        Self {
            client: api.cluster_unwatched().await.client().clone(),
            remote_clusters: View::none(),
            offloadings: View::none(),
            namespace: "ours".into(),
            allowed: Allowed::default(),
            liqo_tenants: BTreeSet::new(),
        }
    }
}

/// The watched objects of one fabric.
pub(super) trait Source: Send {
    /// The clusters that they declare; `None` until all objects have been read.
    fn declarations(&self) -> Option<Vec<ClusterDeclaration>>;
    /// Settings for clusters that other fabrics declare.
    fn adjustments(&self) -> Vec<(ClusterId, Adjustments)> {
        Vec::new()
    }
    /// They change whenever the declarations may have changed.
    fn triggers(&self) -> Vec<watch::Receiver<u64>>;
}
