//! The relay of a move: where the two ends cannot reach each other, it dials both through
//! the API servers of their clusters and passes on what they say. What passes is TLS between
//! the two ends: nothing of it is parsed here, where the credentials of clusters are. What is
//! said is the business of the crate `mover`.

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

/// One end of a move: a port of a pod, and the cluster where that is.
#[derive(Clone)]
pub struct End {
    /// The API server that knows the pod.
    pub client: Client,
    /// Where the end listens. That may be on the loopback of its pod.
    pub port: PodPort,
}

/// The two ends of a move, and how much may pass between them.
pub struct Relay {
    /// Dials first, which here means: speaks first.
    pub source: End,
    /// Is dialled when the source has spoken.
    pub target: End,
    /// Bytes in a second, of all lanes and both directions.
    pub bandwidth: Throttle,
}

impl Relay {
    /// Keeps so many connections at hand for the source until `stop`. One that ends, or
    /// cannot be made, is dialled again, for as long as it takes.
    pub async fn run(self, connections: u32, stop: &CancellationToken) {
        let relay = Arc::new(self);
        let lanes = (0..connections).map(|number| Lane::new(number, Arc::clone(&relay)).run());
        tokio::select! {
            _ = join_all(lanes) => {}
            () = stop.cancelled() => {}
        }
    }
}
