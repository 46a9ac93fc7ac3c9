//! `/healthz`, `/readyz` and `/metrics` over HTTP.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::Metrics;

/// Longer than a busy process needs, shorter than kubelet's patience.
const CHECK_TIMEOUT: Duration = Duration::from_secs(3);

type Check = Arc<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// What a process answers about itself.
#[derive(Clone)]
pub struct Health {
    live: Check,
    ready: Check,
    metrics: Metrics,
}

impl Health {
    /// `live` failing means "restart me", `ready` failing means "not yet".
    pub fn new<L, R>(metrics: Metrics, live: L, ready: R) -> Self
    where
        L: Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync + 'static,
        R: Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync + 'static,
    {
        Self {
            live: Arc::new(live),
            ready: Arc::new(ready),
            metrics,
        }
    }

    fn router(self) -> Router {
        Router::new()
            .route(
                "/healthz",
                get(async |State(it): State<Self>| verdict(&it.live).await),
            )
            .route(
                "/readyz",
                get(async |State(it): State<Self>| verdict(&it.ready).await),
            )
            .route("/metrics", get(async |State(it): State<Self>| page(&it.metrics)))
            .with_state(self)
    }

    /// Serves until `stop`.
    pub async fn serve(self, address: SocketAddr, stop: CancellationToken) -> std::io::Result<()> {
        let listener = tokio::net::TcpListener::bind(address).await?;
        tracing::info!(address = %listener.local_addr()?, "serving health and metrics");
        axum::serve(listener, self.router())
            .with_graceful_shutdown(stop.cancelled_owned())
            .await
    }
}

async fn verdict(check: &Check) -> Response {
    match tokio::time::timeout(CHECK_TIMEOUT, check()).await {
        Ok(Ok(())) => "ok\n".into_response(),
        Ok(Err(why)) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n").into_response(),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the check hangs\n").into_response(),
    }
}

fn page(metrics: &Metrics) -> Response {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match metrics.print() {
        Ok(page) => ([(header::CONTENT_TYPE, OPEN_METRICS)], page).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::Request};
    use tower::ServiceExt;

    use super::*;

    async fn ask(path: &str) -> (StatusCode, String) {
        let health = Health::new(
            Metrics::new("test", |_| {}),
            || Box::pin(async { Ok(()) }),
            || Box::pin(async { Err("no caches yet".into()) }),
        );
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = health.router().oneshot(request).await.unwrap();
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn live_and_ready_are_two_questions() {
        assert_eq!(ask("/healthz").await, (StatusCode::OK, "ok\n".into()));
        assert_eq!(
            ask("/readyz").await,
            (StatusCode::SERVICE_UNAVAILABLE, "no caches yet\n".into())
        );
        assert!(ask("/metrics").await.1.contains("liqo_csi_build"));
    }
}
