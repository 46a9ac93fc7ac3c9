//! Metrics of the time until watches begin or fail; their later events do not count.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use axum::http::{Request, Response, StatusCode};
use kube::client::Body;
use tokio::time::Instant;
use tower::{Layer, Service};

use super::calls::Metrics;

/// Records the watches of one cluster.
#[derive(Clone, Default)]
pub(super) struct Watches {
    cluster: String,
    metrics: Metrics,
}

impl Watches {
    pub(super) fn of(cluster: &str, metrics: &Metrics) -> Self {
        Self {
            cluster: cluster.to_owned(),
            metrics: metrics.clone(),
        }
    }
}

impl<S> Layer<S> for Watches {
    type Service = Recorded<S>;

    fn layer(&self, inner: S) -> Recorded<S> {
        Recorded {
            inner,
            watches: self.clone(),
        }
    }
}

#[derive(Clone)]
pub(super) struct Recorded<S> {
    inner: S,
    watches: Watches,
}

impl<S, B> Service<Request<Body>> for Recorded<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let query = request.uri().query().unwrap_or_default();
        let is_watch = query.contains("watch=true");
        let (began, answer) = (Instant::now(), self.inner.call(request));
        if !is_watch {
            return Box::pin(answer);
        }
        let Watches { cluster, metrics } = self.watches.clone();
        Box::pin(async move {
            let answer = answer.await;
            let outcome = answer
                .as_ref()
                .map_or("unavailable", |answer| outcome(answer.status()));
            metrics.observe(&cluster, "watch", outcome, began.elapsed());
            answer
        })
    }
}

/// The name of an outcome, as for other calls.
fn outcome(status: StatusCode) -> &'static str {
    match status.as_u16() {
        200..=299 => "success",
        403 => "forbidden",
        404 => "not_found",
        409 | 410 => "conflict",
        401 | 408 | 429 | 500..=599 => "unavailable",
        _ => "invalid",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus_client::registry::Registry;

    use crate::cluster::{
        Calls, Metrics,
        testing::{Act, FakeApi, Fault},
    };

    #[tokio::test]
    async fn watches_are_recorded_when_they_begin_or_fail() {
        let mut registry = Registry::default();
        let calls = Calls::new(Duration::from_secs(1), Metrics::register(&mut registry));
        let api = FakeApi::start().await;
        api.fault(Fault::new("GET", "/nodes", Act::RefuseWatch(403)).times(1));
        let cluster = api.cluster_with(calls).await;
        let text = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            text
        };
        cluster.views().nodes.complete().await;
        cluster.views().classes.complete().await;
        let count = |outcome: &str| {
            format!(
                r#"liqo_csi_api_request_seconds_count{{cluster="home",verb="watch",outcome="{outcome}"}}"#
            )
        };
        let recorded = async {
            while !text().contains(&count("success")) || !text().contains(&count("forbidden")) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let recorded = tokio::time::timeout(Duration::from_secs(10), recorded).await;
        assert!(recorded.is_ok(), "{}", text());
    }
}
