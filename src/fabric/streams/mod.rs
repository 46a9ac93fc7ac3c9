//! The kubelet's API for the pods that this fabric runs in remote clusters: logs, `exec`, `attach`
//! and `port-forward`, and what they use. The API server of this cluster calls it, at the address of a virtual node;
//! one port serves all of them, for pods are found by namespace and name. What is asked is asked
//! again of the API server of the remote pod, and what that says is passed on: nothing of a stream
//! is parsed here.
//!
//! ```text
//!  connection ─▶ identity: who calls, and may they ─▶ target: which remote pod ─▶ relay
//! ```

mod asked;
mod authority;
mod certificate;
mod copying;
mod identity;
mod metrics;
mod refusal;
mod relay;
mod target;
mod usage;

use std::{
    convert::Infallible,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::body::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::CryptoProvider,
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{self, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::BoxError;

pub use self::metrics::Metrics;
use self::{
    asked::Asked,
    certificate::Wanted,
    identity::{Caller, Gate, Part},
    metrics::Outcome,
    refusal::Refusal,
    relay::Relay,
    target::Finder,
};
use crate::{
    cluster::{Cluster, KEEPALIVE, KEEPALIVE_PROBES, MOST_PROBES},
    fabric::meters::Meters,
    fleet::Registry,
};

/// Streams at a time. Each holds some dozen KiB.
const MOST_STREAMS: usize = 512;
/// Connections at a time on which something may still be asked.
const MOST_CONNECTIONS: usize = 512;
/// For a caller to say who it is.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// For a caller to say what it wants, also after it was answered.
const HEADERS: Duration = Duration::from_secs(30);
/// For a remote cluster to answer. It has to reach the node of the pod first.
const ANSWER: Duration = Duration::from_secs(30);
/// For one side of a stream to be silent when the other one has left.
const LINGER: Duration = Duration::from_mins(2);
/// For streams to end by themselves when this process is to end.
const FAREWELL: Duration = Duration::from_secs(5);
/// After a connection that could not be taken.
const RETRY: Duration = Duration::from_millis(200);

type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

/// How the kubelet's API is served.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where.
    pub address: SocketAddr,
    /// The address that API servers call, which the certificate is for: that of this pod.
    pub pod_ip: Option<IpAddr>,
    /// The name in the certificate.
    pub name: String,
    /// Whether the request for the certificate is approved by whoever made it.
    pub approve: bool,
}

/// The kubelet's API, listening.
pub struct Streams {
    listener: TcpListener,
    wanted: Wanted,
    metrics: Metrics,
    bounds: Bounds,
}

/// How much, and for how long.
#[derive(Clone, Copy)]
struct Bounds {
    streams: usize,
    answer: Duration,
    linger: Duration,
    farewell: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            streams: MOST_STREAMS,
            answer: ANSWER,
            linger: LINGER,
            farewell: FAREWELL,
        }
    }
}

impl Streams {
    /// Listens. Nothing is answered before it is served.
    pub async fn bind(settings: Settings, metrics: Metrics) -> io::Result<Self> {
        Ok(Self {
            listener: TcpListener::bind(settings.address).await?,
            wanted: Wanted {
                node: settings.name,
                address: settings.pod_ip,
                approve: settings.approve,
            },
            metrics,
            bounds: Bounds::default(),
        })
    }

    /// The port that virtual nodes have to name.
    pub fn port(&self) -> io::Result<u16> {
        Ok(self.listener.local_addr()?.port())
    }

    /// Serves until `stop`.
    pub(super) async fn serve(
        self,
        home: Cluster,
        registry: Registry,
        meters: Meters,
        stop: CancellationToken,
    ) {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let first = match certificate::self_signed(&self.wanted, &provider) {
            Ok(first) => first,
            Err(error) => return tracing::error!(%error, "logs, exec and the like are not served"),
        };
        let shown = watch::Sender::new(Arc::new(first));
        let authority = watch::Sender::new(Arc::new(RootCertStore::empty()));
        let kubelet = Kubelet::new(&home, registry, meters, self.metrics, self.bounds);
        let tls = Tls {
            provider: Arc::clone(&provider),
            shown: shown.clone(),
            authority: authority.clone(),
        };
        let certificates = async {
            certificate::keep(&home, &self.wanted, &shown, &provider).await;
            std::future::pending::<()>().await;
        };
        let serving = Box::pin(async {
            tokio::join!(
                authority::keep(&home, &authority),
                certificates,
                Arc::clone(&kubelet).accept(self.listener, tls)
            )
        });
        if stop.run_until_cancelled(serving).await.is_none() {
            kubelet.end(self.bounds.farewell).await;
        }
    }
}

/// What callers are shown, and whom they have to be certified by.
struct Tls {
    provider: Arc<CryptoProvider>,
    shown: watch::Sender<Arc<CertifiedKey>>,
    authority: watch::Sender<Arc<RootCertStore>>,
}

impl Tls {
    /// As it is now. Sessions are not resumed: each caller is known anew.
    fn acceptor(&self) -> Result<TlsAcceptor, BoxError> {
        let builder = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()?;
        let roots = Arc::clone(&self.authority.borrow());
        let builder = if roots.is_empty() {
            builder.with_no_client_auth()
        } else {
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&self.provider));
            // Who shows no certificate may show a token.
            builder.with_client_cert_verifier(verifier.allow_unauthenticated().build()?)
        };
        let shown = SingleCertAndKey::from(Arc::clone(&self.shown.borrow()));
        let mut config = builder.with_cert_resolver(Arc::new(shown));
        // Upgrades are of HTTP/1.1.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// Answers as a kubelet.
struct Kubelet {
    gate: Gate,
    finder: Finder,
    relay: Relay,
    meters: Meters,
    metrics: Metrics,
    bounds: Bounds,
    room: Arc<Semaphore>,
    connections: TaskTracker,
    /// Nothing more is asked from then on.
    closing: CancellationToken,
}

impl Kubelet {
    fn new(
        home: &Cluster,
        registry: Registry,
        meters: Meters,
        metrics: Metrics,
        bounds: Bounds,
    ) -> Arc<Self> {
        Arc::new(Self {
            gate: Gate::new(home.clone()),
            finder: Finder::new(home.clone(), registry),
            relay: Relay {
                answer: bounds.answer,
                linger: bounds.linger,
                streams: TaskTracker::new(),
                cut: CancellationToken::new(),
            },
            meters,
            metrics,
            bounds,
            room: Arc::new(Semaphore::new(bounds.streams)),
            connections: TaskTracker::new(),
            closing: CancellationToken::new(),
        })
    }

    /// Takes connections, for ever.
    async fn accept(self: Arc<Self>, listener: TcpListener, tls: Tls) {
        match listener.local_addr() {
            Ok(address) => tracing::info!(%address, "serving logs, exec, attach and port-forward"),
            Err(error) => tracing::warn!(%error, "serving logs, exec, attach and port-forward"),
        }
        let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        loop {
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
                return;
            };
            let socket = match listener.accept().await {
                Ok((socket, _)) => socket,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be taken");
                    time::sleep(RETRY).await;
                    continue;
                }
            };
            match tls.acceptor() {
                Ok(acceptor) => {
                    let kubelet = Arc::clone(&self);
                    self.connections
                        .spawn(async move { kubelet.converse(socket, acceptor, permit).await });
                }
                Err(error) => tracing::warn!(error, "a connection cannot be secured"),
            }
        }
    }

    /// One connection, until it is closed or has become a stream.
    async fn converse(self: Arc<Self>, socket: TcpStream, tls: TlsAcceptor, _permit: OwnedSemaphorePermit) {
        let prepared = prepare(&socket);
        let Ok(Ok(socket)) = timeout(HANDSHAKE, tls.accept(socket)).await else {
            return tracing::debug!("somebody called, and did not say who that is");
        };
        if let Err(error) = prepared {
            tracing::debug!(%error, "a connection cannot be watched over");
        }
        let shown = socket.get_ref().1.peer_certificates();
        let caller = shown.and_then(|chain| Caller::of_certificate(chain.first()?));
        let service = service_fn(|request| {
            let (kubelet, caller) = (Arc::clone(&self), caller.clone());
            async move { Ok::<_, Infallible>(kubelet.answer(caller.as_ref(), request).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS)
            .serve_connection(TokioIo::new(socket), service)
            .with_upgrades();
        tokio::pin!(connection);
        let ended = tokio::select! {
            ended = &mut connection => ended,
            () = self.closing.cancelled() => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = &mut connection => ended,
                    () = self.relay.cut.cancelled() => Ok(()),
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection broke");
        }
    }

    async fn answer(&self, caller: Option<&Caller>, request: Request<Incoming>) -> Answer {
        let (method, uri) = (request.method(), request.uri());
        if uri.path() == usage::PATH {
            let answer = Box::pin(self.usage(caller, request.headers(), method)).await;
            return answer.unwrap_or_else(|refusal| {
                tracing::debug!(why = %refusal, "what pods use is not said");
                refusal.answer()
            });
        }
        let asked = Asked::read(method, uri.path(), uri.query().unwrap_or_default());
        let asked = match asked {
            Ok(asked) => asked,
            Err(refusal) => return refusal.answer(),
        };
        // Its future is large.
        let outcome = Box::pin(self.relayed(caller, &asked, request)).await;
        let counted = match outcome {
            Ok(_) => Outcome::Relayed,
            Err(_) => Outcome::Refused,
        };
        self.metrics.count(asked.kind, counted);
        outcome.unwrap_or_else(|refusal| {
            let Asked {
                kind, namespace, pod, ..
            } = &asked;
            tracing::info!(?kind, namespace, pod, why = %refusal, "a stream is refused");
            refusal.answer()
        })
    }

    async fn relayed(
        &self,
        caller: Option<&Caller>,
        asked: &Asked,
        mut request: Request<Incoming>,
    ) -> Result<Answer, Refusal> {
        let caller = self.gate.identify(caller, request.headers()).await?;
        let pod = self.finder.pod(&asked.namespace, &asked.pod).await?;
        let node = pod
            .as_ref()
            .and_then(|pod| pod.spec.as_ref()?.node_name.as_deref());
        // Who may not on any node is not told which pods there are.
        self.gate
            .admit(&caller, asked.kind.verb(), Part::Proxy, node)
            .await?;
        let pod = pod.ok_or_else(|| {
            let Asked { namespace, pod, .. } = asked;
            Refusal::NoPod(format!("there is no pod {namespace}/{pod}"))
        })?;
        let target = self.finder.target(&pod).await?;
        let open = self.metrics.open(asked.kind, &self.room);
        let open = open.ok_or(Refusal::Busy(self.bounds.streams))?;
        let (method, upgrade) = (request.method().clone(), hyper::upgrade::on(&mut request));
        self.relay
            .relay(asked, &target, method, request.headers(), upgrade, open)
            .await
    }

    /// Takes nothing more, lets what is open end by itself for a while, then cuts it.
    async fn end(&self, farewell: Duration) {
        self.closing.cancel();
        self.connections.close();
        self.relay.streams.close();
        let ended = async { tokio::join!(self.connections.wait(), self.relay.streams.wait()) };
        if timeout(farewell, ended).await.is_err() {
            self.relay.cut.cancel();
            self.connections.wait().await;
            self.relay.streams.wait().await;
        }
    }
}

/// Key strokes are sent at once, and a caller that is gone without a word is found out.
fn prepare(socket: &TcpStream) -> io::Result<()> {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE_PROBES)
        .with_retries(MOST_PROBES);
    socket.set_nodelay(true)?;
    SockRef::from(socket).set_tcp_keepalive(&keepalive)
}

#[cfg(test)]
mod tests;
