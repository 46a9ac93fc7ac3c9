//! The fabric of this driver: `liqo-csi fabric`. It makes the namespaces in remote clusters that
//! `NamespaceOffloading`s ask for, the virtual nodes of `RemoteCluster`s that nobody else makes
//! nodes for, and runs the pods of these nodes. One replica does so at a time, under a lease.
//! Where Liqo is installed no namespace is offloaded: `NamespaceOffloading`s are Liqo's then.
//!
//! What is decided is in [`crate::offload`]; what is read and written is here.

#![allow(missing_docs, reason = "internal: a comment says why, not what the name says")]

mod brake;
mod leaving;
mod liqo;
mod marks;
mod meters;
mod namespaces;
mod node;
mod pace;
mod places;
mod pods;
mod ports;
mod raw;
mod reflect;
mod remote;
mod rights;
mod scheduling;
mod seen;
mod streams;

use liqo_csi_cluster::{api, cluster, controller, fleet, keyed, lease, queue, rounds};
use liqo_csi_model::{offload, placement, topology, volume};
use liqo_csi_observe as observe;

use std::{collections::BTreeSet, net::IpAddr};

use kube::ResourceExt;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use self::liqo::installed as liqo;
pub use self::pods::GivenUp;
pub use self::streams::{Metrics as StreamMetrics, SERVING_SIGNER, Settings as StreamSettings, Streams};
use self::{
    meters::Meters, node::NodeKeeper, places::Places, pods::Pods, ports::Endpoints, reflect::Reflection,
    scheduling::ForgottenLabels,
};
use crate::{
    cluster::Cluster,
    fleet::Registry,
    keyed::drive_keyed,
    lease::Lease,
    rounds::{LoopMetrics, drive},
    volume::ClusterId,
};

/// The name of its lease.
pub const LEASE: &str = "storage-liqo-io-fabric";

/// Why the fabric offloads no namespaces, while it does not.
pub type Idle = watch::Sender<Option<Rest>>;

/// Why it offloads none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rest {
    /// It does not know yet what there is, or may not do what it is there for: it is not ready.
    Unready(String),
    /// There are none, because the kind is not defined. All else of the fabric works: it is ready.
    Undefined,
}

/// How it runs.
#[derive(Clone)]
pub struct Settings {
    /// Namespace of its lease.
    pub namespace: String,
    /// Who holds the lease: the name of this pod.
    pub identity: String,
    /// Namespaces that are never offloaded, beside the one of this process.
    pub reserved: BTreeSet<String>,
    /// The address by which API servers call this process, if they do.
    pub address: Option<IpAddr>,
    /// Counts the remote pods that are given up.
    pub given_up: GivenUp,
}

/// Runs whenever this replica holds the lease, until `stop`; and serves streams whether it does or
/// not.
pub async fn run(
    home: Cluster,
    registry: Registry,
    settings: Settings,
    streams: Streams,
    metrics: LoopMetrics,
    idle: Idle,
    stop: CancellationToken,
) {
    let meters = Meters::default();
    let endpoints = Endpoints {
        address: settings.address,
        ports: streams.ports(),
    };
    let mut reserved = settings.reserved;
    reserved.insert(settings.namespace.clone());
    let lease = Lease::named(LEASE, &home, &settings.namespace, &settings.identity);
    let turn = async || {
        metrics.leads(true);
        // Until it was asked for the first time.
        let unasked = "it was not asked yet whether Liqo is installed";
        idle.send_replace(Some(Rest::Unready(unasked.to_owned())));
        let places = Places::new(&home, &registry);
        let reflection = Reflection::new(&places, &settings.namespace, &metrics, &idle);
        tokio::join!(
            namespaces::run(&places, &idle, &reserved, &metrics),
            drive(reflection, &metrics),
            drive(ForgottenLabels::new(&home, &idle), &metrics),
            virtual_nodes(&places, &endpoints, &meters, &settings.given_up, &metrics),
        );
    };
    let led = async {
        while !stop.is_cancelled() {
            Box::pin(stop.run_until_cancelled(lease.lead(turn))).await;
            metrics.leads(false);
            idle.send_replace(None);
        }
        lease.release().await;
    };
    let served = streams.serve(home.clone(), registry.clone(), meters.clone(), stop.clone());
    tokio::join!(led, served);
}

/// A cluster, and the node that the fabric makes for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Served {
    cluster: ClusterId,
    node: String,
}

/// Looks after each node that the fabric makes, and its pods.
async fn virtual_nodes(
    places: &Places<'_>,
    endpoints: &Endpoints,
    meters: &Meters,
    given_up: &GivenUp,
    metrics: &LoopMetrics,
) {
    let clusters = &places.home.views().remote_clusters;
    let served = || {
        let served = |cluster: &crate::api::remote_cluster::RemoteCluster| {
            Some(Served {
                node: cluster.fabric_node()?,
                cluster: cluster.name_any().parse().ok()?,
            })
        };
        places.forget_gone();
        clusters
            .all()
            .iter()
            .filter_map(|it| served(it))
            .collect::<BTreeSet<_>>()
    };
    let start = |Served { cluster, node }: Served| async move {
        let swept = watch::Sender::new(false);
        let pods = Pods::new(places, cluster.clone(), &node, meters, given_up, &swept);
        let keeper = NodeKeeper::new(
            places,
            cluster,
            node,
            endpoints.clone(),
            pods.at_home(),
            swept.subscribe(),
        );
        tokio::join!(drive(keeper, metrics), pods.run(metrics));
    };
    drive_keyed(served, vec![clusters.version()], start, |_| ()).await;
}

#[cfg(test)]
mod tests;
