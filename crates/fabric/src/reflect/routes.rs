//! Which nodes of this cluster represent which remote clusters: it decides which endpoints are copied where.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use crate::{
    api::remote_cluster::RemoteCluster,
    cluster::Cluster,
    fleet::{NodeKind, Registry},
    offload::Routes,
};

/// The current routes, shared by all loops.
pub(super) struct Current {
    routes: Mutex<Option<Arc<Routes>>>,
    changes: watch::Sender<u64>,
}

impl Default for Current {
    fn default() -> Self {
        Self {
            routes: Mutex::default(),
            changes: watch::Sender::new(0),
        }
    }
}

impl Current {
    /// `None` until the nodes are listed.
    pub(super) fn get(&self) -> Option<Arc<Routes>> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes with the routes.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn set(&self, now: Option<Routes>) {
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        if routes.as_deref() != now.as_ref() {
            *routes = now.map(Arc::new);
            self.changes.send_modify(|count| *count += 1);
        }
    }
}

/// Whether there are routes to a cluster.
pub(super) fn is_routed(cluster: &RemoteCluster) -> bool {
    let fabric = cluster.spec.fabric.as_ref();
    fabric.is_some_and(|fabric| fabric.network.routed().is_some())
}

/// The routes; `None` until the nodes are listed.
pub(super) fn routes(home: &Cluster, registry: &Registry) -> Option<Routes> {
    let views = home.views();
    if *views.nodes.version().borrow() == 0 {
        return None;
    }
    let routed = |cluster: &str| {
        views
            .remote_clusters
            .get(cluster)
            .is_some_and(|it| is_routed(&it))
    };
    let nodes = views.nodes.all();
    let seen = nodes.iter().filter_map(|node| match registry.behind(node) {
        NodeKind::Real => None,
        NodeKind::Virtual(remote) => {
            let cluster = remote.id.to_string();
            let routed = routed(&cluster);
            Some((node.name.clone(), cluster, routed))
        }
        NodeKind::Disputed(clusters) => Some((node.name.clone(), clusters, false)),
    });
    // Also the fabric's nodes that were deleted by others: pods still name them.
    let clusters = views.remote_clusters.all();
    let named = clusters
        .iter()
        .filter_map(|it| Some((it.fabric_node()?, it.metadata.name.clone()?, is_routed(it))));
    Some(seen.chain(named).collect())
}
