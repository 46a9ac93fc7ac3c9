//! `/healthz`, `/readyz` and `/metrics` over HTTP.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use futures::future::BoxFuture;
use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::Mutex,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::Metrics;

/// Longer than a busy process needs, shorter than the timeout of the kubelet's probe.
const CHECK_TIMEOUT: Duration = Duration::from_secs(3);

/// How long the result of the liveness check is reused. Every client may request it, and the check costs a
/// connection to our own socket.
const LIVE_FOR: Duration = Duration::from_secs(5);

type Check = Arc<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// The result of a check, and when it was obtained.
type Outcome = (Instant, Result<(), String>);

/// A check whose result is reused for a while by all clients.
#[derive(Clone)]
struct Kept {
    check: Check,
    last: Arc<Mutex<Option<Outcome>>>,
}

impl Kept {
    async fn outcome(&self) -> Result<(), String> {
        // Locked while the check runs: concurrent clients wait for its result.
        let mut last = self.last.lock().await;
        if let Some((when, outcome)) = &*last
            && when.elapsed() < LIVE_FOR
        {
            return outcome.clone();
        }
        let outcome = bounded(&self.check).await;
        *last = Some((Instant::now(), outcome.clone()));
        outcome
    }
}

/// The health and metrics endpoints of a process.
#[derive(Clone)]
pub struct Health {
    live: Kept,
    ready: Check,
    metrics: Metrics,
}

impl Health {
    /// A failing `live` means "restart the process", a failing `ready` means "not yet".
    pub fn new<L, R>(metrics: Metrics, live: L, ready: R) -> Self
    where
        L: Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync + 'static,
        R: Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync + 'static,
    {
        Self {
            live: Kept {
                check: Arc::new(live),
                last: Arc::default(),
            },
            ready: Arc::new(ready),
            metrics,
        }
    }

    fn router(self) -> Router {
        Router::new()
            .route(
                "/healthz",
                get(async |State(it): State<Self>| verdict(it.live.outcome().await)),
            )
            .route(
                "/readyz",
                get(async |State(it): State<Self>| verdict(bounded(&it.ready).await)),
            )
            .route("/metrics", get(async |State(it): State<Self>| page(&it.metrics)))
            .with_state(self)
    }

    /// Serves until `stop`, and cancels it if that is not possible.
    pub async fn serve(self, address: SocketAddr, stop: CancellationToken) -> io::Result<()> {
        // Without the endpoints kubelet restarts the process again and again, and nothing says why.
        let _cancels = stop.clone().drop_guard();
        let listener = listen(address).await.map_err(|error| {
            let why = format!("health and metrics cannot be served at {address}: {error}");
            io::Error::new(error.kind(), why)
        })?;
        tracing::info!(address = %listener.local_addr()?, "serving health and metrics");
        axum::serve(listener, self.router())
            .with_graceful_shutdown(stop.cancelled_owned())
            .await
    }
}

/// Listens on this address. `[::]` means all addresses, also those of IPv4, and also without IPv6 in the kernel.
pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    if address.ip() != IpAddr::from(Ipv6Addr::UNSPECIFIED) {
        return TcpListener::bind(address).await;
    }
    let Ok(socket) = TcpSocket::new_v6() else {
        return TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await;
    };
    // Some hosts set `net.ipv6.bindv6only`.
    SockRef::from(&socket).set_only_v6(false)?;
    socket.set_reuseaddr(true)?;
    match socket.bind(address) {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        bound => bound.and_then(|()| socket.listen(1024)),
    }
}

async fn bounded(check: &Check) -> Result<(), String> {
    tokio::time::timeout(CHECK_TIMEOUT, check())
        .await
        .unwrap_or_else(|_| Err("the check timed out".to_owned()))
}

fn verdict(outcome: Result<(), String>) -> Response {
    match outcome {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n").into_response(),
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::{body::Body, http::Request};
    use tokio::net::TcpStream;
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
    async fn all_addresses_are_those_of_both_families() {
        let listener = listen("[::]:0".parse().unwrap()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        if listener.local_addr().unwrap().is_ipv6() {
            TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.unwrap();
        }
        let taken = listen(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))).await;
        assert_eq!(taken.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[tokio::test]
    async fn a_process_whose_port_is_taken_ends() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let health = Health::new(
            Metrics::new("test", |_| {}),
            || Box::pin(async { Ok(()) }),
            || Box::pin(async { Ok(()) }),
        );
        let stop = CancellationToken::new();
        let why = health.serve(address, stop.clone()).await.unwrap_err();
        assert!(why.to_string().contains(&address.to_string()), "{why}");
        assert!(stop.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn frequent_liveness_probes_are_cheap() {
        let probes = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&probes);
        let health = Health::new(
            Metrics::new("test", |_| {}),
            move || {
                let probe = counted.fetch_add(1, Ordering::SeqCst);
                Box::pin(async move {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    if probe == 0 {
                        Ok(())
                    } else {
                        Err("the socket is gone".into())
                    }
                })
            },
            || Box::pin(async { Ok(()) }),
        );
        let ask = || async {
            let request = Request::get("/healthz").body(Body::empty()).unwrap();
            health.clone().router().oneshot(request).await.unwrap().status()
        };
        let all = futures::future::join_all((0..100).map(|_| ask())).await;
        assert!(all.iter().all(|status| *status == StatusCode::OK));
        assert_eq!(probes.load(Ordering::SeqCst), 1);
        tokio::time::sleep(LIVE_FOR).await;
        assert_eq!(
            ask().await,
            StatusCode::SERVICE_UNAVAILABLE,
            "it is checked again"
        );
    }

    #[tokio::test]
    async fn liveness_and_readiness_are_independent() {
        assert_eq!(ask("/healthz").await, (StatusCode::OK, "ok\n".into()));
        assert_eq!(
            ask("/readyz").await,
            (StatusCode::SERVICE_UNAVAILABLE, "no caches yet\n".into())
        );
        assert!(ask("/metrics").await.1.contains("liqo_csi_build"));
    }
}
