//! The views of one cluster: its watched objects.

use k8s_openapi::api::storage::v1::{CSIDriver, CSIStorageCapacity, StorageClass};
use kube::{Api, Client, api::ApiResource, runtime::watcher};
use tokio_util::sync::CancellationToken;

use super::{
    budget::Budget,
    facts,
    rights::Rights,
    slim::{
        Attachment, CsiNode, Driver, OpenNode, PendingPod, SeenMove, Twin, Volume, attachment, csi_node,
        driver, node, open_node, pending_pod, seen_move, twin, volume,
    },
    view::View,
};
use crate::{
    api::{namespace_offloading::NamespaceOffloading, remote_cluster::RemoteCluster},
    placement::{Capacity, Class},
    topology::Node,
    volume::{ClusterId, mark},
};

pub struct Views {
    pub twins: View<Twin>,
    /// PVs, at home only: real, virtual and available ones.
    pub volumes: View<Volume>,
    pub nodes: View<Node>,
    /// Nodes that accept pods. Few installations need them.
    pub open_nodes: View<OpenNode>,
    /// All `RemoteCluster`s, at home only. Their kind may not be installed.
    pub remote_clusters: View<RemoteCluster>,
    /// All `NamespaceOffloading`s, at home only. Their kind may not be installed.
    pub offloadings: View<NamespaceOffloading>,
    /// All `VolumeMove`s, at home only, for their controller. Their kind may not be installed.
    pub moves: View<SeenMove>,
    /// Pods that wait for claims, at home only. Few installations need all of them.
    pub pending_pods: View<PendingPod>,
    pub csi_nodes: View<CsiNode>,
    pub classes: View<Class>,
    pub drivers: View<Driver>,
    /// The attachments that this driver has created.
    pub attachments: View<Attachment>,
    /// The capacities of real classes.
    pub capacities: View<Capacity>,
}

impl Views {
    pub(super) fn start(
        client: &Client,
        home: &ClusterId,
        namespace: &str,
        node_annotations: &'static [&'static str],
        stop: &CancellationToken,
    ) -> Self {
        let client = || client.clone();
        let everything = watcher::Config::default;
        let ours = || watcher::Config::default().labels(&mark::selector(home));
        let storage_namespace = namespace.to_owned();
        let csi_driver = ApiResource::erase::<CSIDriver>(&());
        Self {
            twins: View::start(Api::namespaced(client(), namespace), ours(), |it| twin(&it), stop),
            volumes: View::start(
                Api::all(client()),
                everything(),
                move |it| volume(&it, &storage_namespace),
                stop,
            ),
            nodes: View::start(
                Api::all(client()),
                everything(),
                move |it| Some(node(it, node_annotations)),
                stop,
            ),
            open_nodes: View::start(Api::all(client()), everything(), |it| open_node(&it), stop),
            remote_clusters: View::start(Api::all(client()), everything(), Some, stop),
            offloadings: View::start(Api::all(client()), everything(), Some, stop),
            moves: View::start(Api::all(client()), everything(), |it| Some(seen_move(&it)), stop),
            pending_pods: View::start(
                Api::all(client()),
                everything().fields("status.phase=Pending"),
                |it| pending_pod(&it),
                stop,
            ),
            csi_nodes: View::start(Api::all(client()), everything(), |it| Some(csi_node(it)), stop),
            classes: View::start(
                Api::all(client()),
                everything(),
                |it: StorageClass| Some(facts::class(&it)),
                stop,
            ),
            drivers: View::start(
                Api::all_with(client(), &csi_driver),
                everything(),
                |it| Some(driver(&it)),
                stop,
            ),
            attachments: View::start(Api::all(client()), ours(), |it| attachment(&it), stop),
            capacities: View::start(
                Api::all(client()),
                everything().labels(&format!("{}!={}", mark::MANAGED_BY, mark::MANAGED_BY_US)),
                |it: CSIStorageCapacity| Some(facts::capacity(&it)),
                stop,
            ),
        }
    }

    /// The views of a remote cluster: they depend on the rights there; PVs and attachments are not watched.
    pub(super) fn start_remote(
        client: &Client,
        home: &ClusterId,
        rights: Rights,
        budget: &Budget,
        stop: &CancellationToken,
    ) -> Self {
        let everything = watcher::Config::default;
        let mut views = Self::none();
        if rights.all_claims {
            let ours = everything().labels(&mark::selector(home));
            views.twins = View::start_within(Api::all(client.clone()), ours, |it| twin(&it), budget, stop);
        }
        if rights.nodes {
            let nodes = Api::all(client.clone());
            views.nodes = View::start_within(nodes, everything(), |it| Some(node(it, &[])), budget, stop);
            let nodes = Api::all(client.clone());
            views.open_nodes = View::start_within(nodes, everything(), |it| open_node(&it), budget, stop);
        }
        if rights.classes {
            let class = |it: StorageClass| Some(facts::class(&it));
            views.classes = View::start_within(Api::all(client.clone()), everything(), class, budget, stop);
        }
        if rights.capacities {
            let csi_nodes = Api::all(client.clone());
            views.csi_nodes =
                View::start_within(csi_nodes, everything(), |it| Some(csi_node(it)), budget, stop);
            let drivers = Api::all_with(client.clone(), &ApiResource::erase::<CSIDriver>(&()));
            views.drivers = View::start_within(drivers, everything(), |it| Some(driver(&it)), budget, stop);
            let capacity = |it: CSIStorageCapacity| Some(facts::capacity(&it));
            views.capacities =
                View::start_within(Api::all(client.clone()), everything(), capacity, budget, stop);
        }
        views
    }

    pub(super) fn none() -> Self {
        Self {
            twins: View::none(),
            volumes: View::none(),
            nodes: View::none(),
            open_nodes: View::none(),
            remote_clusters: View::none(),
            offloadings: View::none(),
            moves: View::none(),
            pending_pods: View::none(),
            csi_nodes: View::none(),
            classes: View::none(),
            drivers: View::none(),
            attachments: View::none(),
            capacities: View::none(),
        }
    }

    /// Waits for the first complete list of every view, except for those that few installations need.
    pub async fn complete(&self) {
        tokio::join!(
            self.twins.complete(),
            self.volumes.complete(),
            self.nodes.complete(),
            self.csi_nodes.complete(),
            self.classes.complete(),
            self.drivers.complete(),
            self.attachments.complete(),
            self.capacities.complete(),
        );
    }
}

/// The twins of one namespace, if the driver may not watch those of all.
pub(super) fn twins_of(
    client: &Client,
    home: &ClusterId,
    namespace: &str,
    budget: &Budget,
    stop: &CancellationToken,
) -> View<Twin> {
    let ours = watcher::Config::default().labels(&mark::selector(home));
    View::start_within(
        Api::namespaced(client.clone(), namespace),
        ours,
        |it| twin(&it),
        budget,
        stop,
    )
}
