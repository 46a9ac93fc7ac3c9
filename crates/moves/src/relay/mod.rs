//! The relay of a move: if the two ends cannot reach each other, it connects to both through the API servers
//! of their clusters and forwards their bytes. These are TLS between the two ends, and are not parsed here,
//! because the relay has the credentials of the clusters. The protocol of the ends is in the crate `mover`.

mod lane;
mod lines;
mod pod_port;
#[cfg(test)]
pub(crate) mod tests;
mod tunnel;

use std::sync::Arc;

use futures::future::join_all;
use kube::Client;
use mover::throttle::Throttle;
use tokio_util::sync::CancellationToken;

use self::lane::Lane;
pub use self::{
    lines::{Lines, LinesError},
    pod_port::{BadPodPort, PodPort},
};

/// One end of a move: a port of a pod in a cluster.
#[derive(Clone)]
pub struct End {
    /// A client of the API server of the pod's cluster.
    pub client: Client,
    /// The port, possibly on the loopback of the pod.
    pub port: PodPort,
}

/// The two ends of a move, and the bandwidth between them.
pub struct Relay {
    /// The end that sends first.
    pub source: End,
    /// The end that is connected after the source has sent something.
    pub target: End,
    /// Bytes per second, of all lanes in both directions.
    pub bandwidth: Throttle,
}

impl Relay {
    /// Keeps this many connections ready for the source until `stop`. A connection that ends or fails is
    /// opened again, without a limit of attempts.
    pub async fn run(self, connections: u32, stop: &CancellationToken) {
        let relay = Arc::new(self);
        let lanes = (0..connections).map(|number| Lane::new(number, Arc::clone(&relay)).run());
        tokio::select! {
            _ = join_all(lanes) => {}
            () = stop.cancelled() => {}
        }
    }
}
