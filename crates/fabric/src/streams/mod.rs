//! The kubelet's API for the pods of this fabric: logs, `exec`, `attach`, `port-forward` and usage. The API server of
//! this cluster calls it at the address of a virtual node. Each virtual node has a port of its own, which serves only its
//! pods. A request is sent to the API server of the remote pod, and the answer passed on; streams are not parsed.
//!
//! ```text
//!  connection ─▶ identity: who calls, and may they ─▶ target: which remote pod ─▶ relay
//! ```

mod authority;
mod certificate;
mod copying;
mod identity;
mod metrics;
mod refusal;
mod relay;
mod request;
mod slots;
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
use futures::future::join_all;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use k8s_openapi::api::core::v1::Pod;
use rustls::{
    RootCertStore, ServerConfig,
    crypto::CryptoProvider,
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    time::{self, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::BoxError;

pub use self::certificate::SIGNER as SERVING_SIGNER;
pub use self::metrics::Metrics;
use self::{
    certificate::CertificateSpec,
    identity::{Authorizer, Caller, Part},
    metrics::Outcome,
    refusal::Refusal,
    relay::Relay,
    request::StreamRequest,
    slots::{Slot, Slots},
    target::Finder,
};
use crate::{
    cluster::{Cluster, KEEPALIVE, KEEPALIVE_PROBES, MOST_PROBES},
    fleet::Registry,
    meters::Meters,
    observe::health::listen,
    ports::node_at,
};

/// The maximum number of open streams. Each takes some dozen KiB.
const MOST_STREAMS: usize = 512;
/// The timeout of the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// The timeouts of the headers of each request, of callers with and without a certificate.
const HEADERS: Duration = Duration::from_secs(30);
const HEADERS_UNAUTHENTICATED: Duration = Duration::from_secs(5);
/// The timeout of the answer of a remote cluster, which has to reach the node of the pod.
const ANSWER: Duration = Duration::from_secs(30);
/// How long one side of a stream may send nothing after the other has closed.
const LINGER: Duration = Duration::from_mins(2);
/// How long streams may continue when this process stops.
const SHUTDOWN: Duration = Duration::from_secs(5);
/// The pause after a failed `accept`.
const RETRY: Duration = Duration::from_millis(200);

type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

/// How the kubelet's API is served.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address and first port.
    pub address: SocketAddr,
    /// The number of consecutive ports.
    pub ports: u16,
    /// The address of this pod, for the certificate.
    pub pod_ip: Option<IpAddr>,
    /// The node name in the certificate.
    pub name: String,
}

/// The kubelet's API, listening.
pub struct Streams {
    listeners: Vec<(u16, TcpListener)>,
    certificate: CertificateSpec,
    metrics: Metrics,
    bounds: Bounds,
}

/// Limits, which tests change.
#[derive(Clone, Copy)]
struct Bounds {
    streams: usize,
    answer: Duration,
    linger: Duration,
    shutdown: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            streams: MOST_STREAMS,
            answer: ANSWER,
            linger: LINGER,
            shutdown: SHUTDOWN,
        }
    }
}

impl Streams {
    /// Listens. Connections are answered once [`Self::serve`] runs.
    pub async fn bind(settings: Settings, metrics: Metrics) -> io::Result<Self> {
        let mut listeners = Vec::new();
        for after in 0..settings.ports {
            let mut address = settings.address;
            // Port 0 means any free port each time.
            if address.port() != 0 {
                let port = address.port().checked_add(after);
                address.set_port(port.ok_or_else(|| io::Error::other("there are no ports above 65535"))?);
            }
            let listener = listen(address).await?;
            listeners.push((listener.local_addr()?.port(), listener));
        }
        Ok(Self {
            listeners,
            certificate: CertificateSpec {
                node: settings.name,
                address: settings.pod_ip,
            },
            metrics,
            bounds: Bounds::default(),
        })
    }

    /// The ports for virtual nodes.
    pub(super) fn ports(&self) -> Arc<[u16]> {
        self.listeners.iter().map(|(port, _)| *port).collect()
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
        let first = match certificate::self_signed(&self.certificate, &provider) {
            Ok(first) => first,
            Err(error) => {
                return tracing::error!(%error, "logs, exec, attach and port-forward are not served");
            }
        };
        let serving = watch::Sender::new(Arc::new(first));
        let authority = watch::Sender::new(Arc::new(RootCertStore::empty()));
        let ports = self.ports();
        let kubelet = Kubelet::new(
            &home,
            registry,
            meters,
            Arc::clone(&ports),
            self.metrics,
            self.bounds,
        );
        let tls = Tls {
            provider: Arc::clone(&provider),
            serving: serving.clone(),
            authority: authority.clone(),
        };
        let certificates = async {
            certificate::keep(&home, &self.certificate, &serving, &provider).await;
            std::future::pending::<()>().await;
        };
        let listening = async {
            // The ports of the nodes are in the RemoteClusters.
            home.views().remote_clusters.complete().await;
            tracing::info!(?ports, "serving logs, exec, attach and port-forward");
            // The listeners are closed with this future, so that no connection is accepted and not served.
            let all = self.listeners.into_iter();
            join_all(all.map(|(port, listener)| Arc::clone(&kubelet).accept(port, listener, &tls))).await
        };
        let serving =
            Box::pin(async { tokio::join!(authority::keep(&home, &authority), certificates, listening) });
        if stop.run_until_cancelled(serving).await.is_none() {
            kubelet.end(self.bounds.shutdown).await;
        }
    }
}

/// The serving certificate, and the CAs of clients.
struct Tls {
    provider: Arc<CryptoProvider>,
    serving: watch::Sender<Arc<CertifiedKey>>,
    authority: watch::Sender<Arc<RootCertStore>>,
}

impl Tls {
    /// With the current certificates. Sessions are not resumed: each connection is authenticated.
    fn acceptor(&self) -> Result<TlsAcceptor, BoxError> {
        let builder = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()?;
        let roots = Arc::clone(&self.authority.borrow());
        let builder = if roots.is_empty() {
            builder.with_no_client_auth()
        } else {
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&self.provider));
            // Callers without a certificate may have a token.
            builder.with_client_cert_verifier(verifier.allow_unauthenticated().build()?)
        };
        let shown = SingleCertAndKey::from(Arc::clone(&self.serving.borrow()));
        let mut config = builder.with_cert_resolver(Arc::new(shown));
        // Upgrades need HTTP/1.1.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// Answers as a kubelet.
struct Kubelet {
    authorizer: Authorizer,
    finder: Finder,
    relay: Relay,
    meters: Meters,
    ports: Arc<[u16]>,
    metrics: Metrics,
    bounds: Bounds,
    permits: Arc<Semaphore>,
    slots: Arc<Slots>,
    connections: TaskTracker,
    /// Cancelled when no further request is accepted.
    closing: CancellationToken,
}

impl Kubelet {
    fn new(
        home: &Cluster,
        registry: Registry,
        meters: Meters,
        ports: Arc<[u16]>,
        metrics: Metrics,
        bounds: Bounds,
    ) -> Arc<Self> {
        Arc::new(Self {
            authorizer: Authorizer::new(home.clone()),
            finder: Finder::new(home.clone(), registry),
            relay: Relay {
                answer: bounds.answer,
                linger: bounds.linger,
                streams: TaskTracker::new(),
                cut: CancellationToken::new(),
            },
            meters,
            ports,
            metrics,
            bounds,
            permits: Arc::new(Semaphore::new(bounds.streams)),
            slots: Slots::new(),
            connections: TaskTracker::new(),
            closing: CancellationToken::new(),
        })
    }

    /// Accepts connections at a port. Never returns.
    async fn accept(self: Arc<Self>, port: u16, listener: TcpListener, tls: &Tls) {
        loop {
            let (socket, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection");
                    time::sleep(RETRY).await;
                    continue;
                }
            };
            let slot = self.slots.take(peer.ip());
            match tls.acceptor() {
                Ok(acceptor) => {
                    let kubelet = Arc::clone(&self);
                    self.connections.spawn(async move {
                        let cut = slot.cut.clone();
                        cut.run_until_cancelled(kubelet.serve_connection(port, socket, acceptor, &slot))
                            .await
                    });
                }
                Err(error) => tracing::warn!(error, "cannot configure TLS"),
            }
        }
    }

    /// Serves one connection, until it is closed or has become a stream.
    async fn serve_connection(self: Arc<Self>, port: u16, socket: TcpStream, tls: TlsAcceptor, slot: &Slot) {
        let prepared = prepare(&socket);
        let Ok(Ok(socket)) = timeout(HANDSHAKE, tls.accept(socket)).await else {
            return tracing::debug!("a TLS handshake failed");
        };
        if let Err(error) = prepared {
            tracing::debug!(%error, "cannot set keepalive on a connection");
        }
        let shown = socket.get_ref().1.peer_certificates();
        let caller = shown.and_then(|chain| Caller::of_certificate(chain.first()?));
        let header_timeout = if caller.is_some() {
            HEADERS
        } else {
            HEADERS_UNAUTHENTICATED
        };
        let service = service_fn(|request| {
            let (kubelet, caller) = (Arc::clone(&self), caller.clone());
            async move { Ok::<_, Infallible>(kubelet.answer(port, slot, caller.as_ref(), request).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(header_timeout)
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

    /// The virtual node with this port.
    fn node(&self, port: u16) -> Result<String, Refusal> {
        let clusters = self.finder.home().views().remote_clusters.all();
        node_at(&clusters, &self.ports, port).ok_or(Refusal::NoNode(port))
    }

    async fn answer(
        &self,
        port: u16,
        slot: &Slot,
        caller: Option<&Caller>,
        request: Request<Incoming>,
    ) -> Answer {
        let (method, uri) = (request.method(), request.uri());
        if uri.path() == usage::PATH {
            let answer = Box::pin(self.usage(port, slot, caller, request.headers(), method)).await;
            return answer.unwrap_or_else(|refusal| {
                tracing::debug!(why = %refusal, "a request for the usage of pods is refused");
                refusal.answer()
            });
        }
        let stream = StreamRequest::read(method, uri.path(), uri.query().unwrap_or_default());
        let stream = match stream {
            Ok(stream) => stream,
            Err(refusal) => return refusal.answer(),
        };
        // Boxed, because the future is large.
        let outcome = Box::pin(self.relayed(port, slot, caller, &stream, request)).await;
        let counted = match outcome {
            Ok(_) => Outcome::Relayed,
            Err(_) => Outcome::Refused,
        };
        self.metrics.count(stream.kind, counted);
        outcome.unwrap_or_else(|refusal| {
            let StreamRequest {
                kind, namespace, pod, ..
            } = &stream;
            tracing::info!(?kind, namespace, pod, why = %refusal, "a stream is refused");
            refusal.answer_to(*kind)
        })
    }

    async fn relayed(
        &self,
        port: u16,
        slot: &Slot,
        caller: Option<&Caller>,
        stream: &StreamRequest,
        mut request: Request<Incoming>,
    ) -> Result<Answer, Refusal> {
        let caller = self.authorizer.identify(caller, request.headers()).await?;
        let node = self.node(port)?;
        // Before the pod is read: a refused caller must not learn which pods exist.
        self.authorizer
            .authorize(&caller, stream.kind.verb(), Part::Proxy, &node)
            .await?;
        slot.authorize()?;
        let StreamRequest { namespace, pod, .. } = stream;
        let found = self.finder.pod(namespace, pod).await?;
        let is_here = |pod: &Pod| pod.spec.as_ref().and_then(|it| it.node_name.as_ref()) == Some(&node);
        let pod = found
            .filter(is_here)
            .ok_or_else(|| Refusal::NoPod(format!("there is no pod {namespace}/{pod} on the node {node}")))?;
        let target = self.finder.target(&pod).await?;
        let open = self.metrics.open(stream.kind, &self.permits);
        let open = open.ok_or(Refusal::Busy(self.bounds.streams))?;
        let (method, upgrade) = (request.method().clone(), hyper::upgrade::on(&mut request));
        self.relay
            .relay(stream, &target, method, request.headers(), upgrade, open)
            .await
    }

    /// Accepts no further requests, waits for open ones, and cuts those that do not end in time.
    async fn end(&self, shutdown: Duration) {
        self.closing.cancel();
        self.connections.close();
        self.relay.streams.close();
        let ended = async { tokio::join!(self.connections.wait(), self.relay.streams.wait()) };
        if timeout(shutdown, ended).await.is_err() {
            self.relay.cut.cancel();
            self.connections.wait().await;
            self.relay.streams.wait().await;
        }
    }
}

/// Sends keystrokes at once, and detects dead peers.
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
