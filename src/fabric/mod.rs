//! The fabric of this driver: `liqo-csi fabric`. It makes the namespaces in remote clusters that
//! `NamespaceOffloading`s ask for, says how they are, and takes them away again when nothing would
//! be lost. One replica does so at a time, under a lease. Who runs the pods in them is not its
//! business, and where Liqo is installed it does nothing: `NamespaceOffloading`s are Liqo's then.
//!
//! What is decided is in [`crate::offload`]; what is read and written is here.

mod liqo;
#[expect(dead_code, reason = "pods are marked next")]
mod marks;
mod namespaces;
mod remote;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::namespaces::Namespaces;
use crate::{
    cluster::Cluster,
    fleet::Registry,
    reconcile::{Lease, Metrics, drive},
};

const LEASE: &str = "storage-liqo-io-fabric";

/// Why the fabric does nothing, while it does not.
pub type Idle = watch::Sender<Option<String>>;

/// How it runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Namespace of its lease.
    pub namespace: String,
    /// Who holds the lease: the name of this pod.
    pub identity: String,
}

/// Runs whenever this replica holds the lease, until `stop`.
pub async fn run(
    home: Cluster,
    registry: Registry,
    settings: Settings,
    metrics: Metrics,
    idle: Idle,
    stop: CancellationToken,
) {
    let lease = Lease::named(LEASE, &home, &settings.namespace, &settings.identity);
    let turn = async || {
        metrics.leads(true);
        drive(Namespaces::new(&home, &registry, &idle), &metrics).await;
    };
    while !stop.is_cancelled() {
        stop.run_until_cancelled(lease.lead(turn)).await;
        metrics.leads(false);
        idle.send_replace(None);
    }
    lease.release().await;
}

#[cfg(test)]
mod tests;
