//! The fabric of this driver: `liqo-csi fabric`. It creates the remote namespaces of
//! `NamespaceOffloading`s, and the virtual nodes of `RemoteCluster`s for which no other tool creates
//! nodes, and runs the pods of these nodes. One replica does so at a time, under a lease.
//! Where Liqo is installed no namespace is offloaded: Liqo carries out `NamespaceOffloading`s then.
//!
//! Decisions are in [`crate::offload`]; reads and writes are here.

#![allow(missing_docs, reason = "internal: a comment says why, not what the name says")]

mod backoff;
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
mod refused;
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

pub const LEASE: &str = "storage-liqo-io-fabric";

/// Why the fabric offloads no namespaces; `None` while it does.
pub type Idle = watch::Sender<Option<IdleReason>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdleReason {
    /// Its objects are not listed yet, or Liqo is installed: it is not ready.
    Unready(String),
    /// The kind `NamespaceOffloading` is not defined. The rest of the fabric works: it is ready.
    Undefined,
}

#[derive(Clone)]
pub struct Settings {
    /// Namespace of the lease.
    pub namespace: String,
    /// The holder of the lease: the name of this pod.
    pub identity: String,
    /// Namespaces that are never offloaded, besides the one of this process.
    pub reserved: BTreeSet<String>,
    /// The address at which API servers call this process, if they do.
    pub address: Option<IpAddr>,
    pub given_up: GivenUp,
}

/// Runs the controllers while this replica holds the lease, until `stop`. Serves streams also without the lease.
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
    let term = async || {
        metrics.leads(true);
        let unchecked = "checking whether Liqo is installed";
        idle.send_replace(Some(IdleReason::Unready(unchecked.to_owned())));
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
            Box::pin(stop.run_until_cancelled(lease.lead(term))).await;
            metrics.leads(false);
            idle.send_replace(None);
        }
        lease.release().await;
    };
    let served = streams.serve(home.clone(), registry.clone(), meters.clone(), stop.clone());
    tokio::join!(led, served);
}

/// A cluster, and its virtual node that the fabric creates.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Served {
    cluster: ClusterId,
    node: String,
}

/// Runs the controllers of each virtual node of the fabric, and of its pods.
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
        places.forget_deleted();
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
