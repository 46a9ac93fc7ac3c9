//! Wraps every call: a span, a log line, metrics, and a panic turned into INTERNAL instead of a
//! broken stream. Bodies are never read: they hold secrets.

use std::{panic::AssertUnwindSafe, time::Instant};

use axum::{extract::Request, middleware::Next, response::Response};
use futures::FutureExt;
use tonic::{Code, Status, body::Body};
use tracing::{Instrument, Span, field::Empty};

use crate::observe::{Metrics, metrics::code_name};

/// Runs one call and reports it.
pub(super) async fn observed(metrics: Metrics, request: Request, next: Next) -> Response {
    let call = Call::begin(metrics, request.uri().path());
    let span = call.span.clone();
    let answer = AssertUnwindSafe(next.run(request))
        .catch_unwind()
        .instrument(span)
        .await;
    let response = answer.unwrap_or_else(|_| {
        let status = Status::internal("the driver hit a bug while serving this call; its log has the panic");
        status.into_http::<Body>().map(axum::body::Body::new)
    });
    // A unary call that fails has its status in the headers; one that succeeds, in the trailers.
    let status = Status::from_header_map(response.headers());
    call.end(status.as_ref());
    response
}

/// A call in progress. If it is dropped before its end, it was cancelled: tonic drops the handler
/// when the client disconnects or its deadline passes.
struct Call {
    metrics: Metrics,
    method: String,
    begun: Instant,
    span: Span,
    ended: bool,
}

impl Call {
    fn begin(metrics: Metrics, path: &str) -> Self {
        let name = path.rsplit('/').next().unwrap_or(path);
        Self {
            metrics,
            method: path.to_owned(),
            begun: Instant::now(),
            span: tracing::info_span!("rpc", method = name, volume = Empty),
            ended: false,
        }
    }

    fn end(mut self, status: Option<&Status>) {
        self.ended = true;
        let code = status.map_or(Code::Ok, Status::code);
        self.report(code, status.map_or("", Status::message));
    }

    fn report(&self, code: Code, message: &str) {
        let took = self.begun.elapsed();
        self.metrics.operation(&self.method, code, took);
        let _in_span = self.span.enter();
        let (code, ms) = (code_name(code), took.as_millis());
        if code != "OK" {
            tracing::warn!(code, ms, message, "call failed");
        } else if changes_something(&self.method) {
            tracing::info!(ms, "call served");
        } else {
            tracing::debug!(ms, "call served");
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.ended {
            self.report(Code::Cancelled, "the client disconnected");
        }
    }
}

/// Sidecars and kubelet send read-only calls all the time; only calls that change something are
/// logged.
fn changes_something(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    !(name.contains("Get") || name == "Probe" || name.starts_with("List") || name.starts_with("Validate"))
}
