//! Metrics: open streams by kind, and outcomes of requests.

use std::sync::Arc;

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::request::Kind;

/// The streams of a process. Cheap to clone; exported only if registered.
#[derive(Clone, Default)]
pub struct Metrics {
    open: Family<Stream, Gauge>,
    requests: Family<Request, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Stream {
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    kind: Kind,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(super) enum Outcome {
    /// The remote cluster answered, and the answer was passed on.
    Relayed,
    /// It was not relayed, or there was no answer.
    Refused,
}

/// Counts as an open stream until it is dropped.
pub(super) struct Open {
    gauge: Gauge,
    _permit: OwnedSemaphorePermit,
}

impl Metrics {
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "liqo_csi_fabric_streams",
            "Streams that are open to pods in remote clusters, by kind",
            metrics.open.clone(),
        );
        registry.register(
            "liqo_csi_fabric_stream_requests",
            "Requests for streams to pods in remote clusters, by kind and outcome",
            metrics.requests.clone(),
        );
        metrics
    }

    /// Starts a stream, unless there are too many.
    pub(super) fn open(&self, kind: Kind, permits: &Arc<Semaphore>) -> Option<Open> {
        let permit = Arc::clone(permits).try_acquire_owned().ok()?;
        let gauge = self.open.get_or_create(&Stream { kind }).clone();
        gauge.inc();
        Some(Open {
            gauge,
            _permit: permit,
        })
    }

    pub(super) fn count(&self, kind: Kind, outcome: Outcome) {
        self.requests.get_or_create(&Request { kind, outcome }).inc();
    }

    #[cfg(test)]
    pub(super) fn open_now(&self, kind: Kind) -> i64 {
        self.open.get_or_create(&Stream { kind }).get()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}
