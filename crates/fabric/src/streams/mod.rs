//! The kubelet's API for the pods that this fabric runs in remote clusters: logs, `exec`, `attach`
//! and `port-forward`, and what they use. The API server of this cluster calls it, at the address of
//! a virtual node; each of these has a port of its own, at which only its pods are found. What is
//! asked is asked again of the API server of the remote pod, and what that says is passed on:
//! nothing of a stream is parsed here.
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
    asked::Asked,
    certificate::Wanted,
    identity::{Caller, Gate, Part},
    metrics::Outcome,
    refusal::Refusal,
    relay::Relay,
    slots::{Slot, Slots},
    target::Finder,
};
use crate::{
    cluster::{Cluster, KEEPALIVE, KEEPALIVE_PROBES, MOST_PROBES},
    fleet::Registry,
    meters::Meters,
    ports::node_at,
};

/// Streams at a time. Each holds some dozen KiB.
const MOST_STREAMS: usize = 512;
/// For a caller to say who it is.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// For a caller to say what it wants, also after it was answered, if it has a certificate and if not.
const HEADERS: Duration = Duration::from_secs(30);
const HEADERS_OF_STRANGERS: Duration = Duration::from_secs(5);
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
    /// Where, at first.
    pub address: SocketAddr,
    /// At how many ports, from that of the address on.
    pub ports: u16,
    /// The address that API servers call, which the certificate is for: that of this pod.
    pub pod_ip: Option<IpAddr>,
    /// The name in the certificate.
    pub name: String,
}

/// The kubelet's API, listening.
pub struct Streams {
    listeners: Vec<(u16, TcpListener)>,
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
        let mut listeners = Vec::new();
        for after in 0..settings.ports {
            let mut address = settings.address;
            // Any free one, where none is named.
            if address.port() != 0 {
                let port = address.port().checked_add(after);
                address.set_port(port.ok_or_else(|| io::Error::other("there are no ports above 65535"))?);
            }
            let listener = TcpListener::bind(address).await?;
            listeners.push((listener.local_addr()?.port(), listener));
        }
        Ok(Self {
            listeners,
            wanted: Wanted {
                node: settings.name,
                address: settings.pod_ip,
            },
            metrics,
            bounds: Bounds::default(),
        })
    }

    /// The ports that there are for virtual nodes.
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
        let first = match certificate::self_signed(&self.wanted, &provider) {
            Ok(first) => first,
            Err(error) => return tracing::error!(%error, "logs, exec and the like are not served"),
        };
        let shown = watch::Sender::new(Arc::new(first));
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
            shown: shown.clone(),
            authority: authority.clone(),
        };
        let certificates = async {
            certificate::keep(&home, &self.wanted, &shown, &provider).await;
            std::future::pending::<()>().await;
        };
        let listening = async {
            // Before, nobody knows whose the ports are.
            home.views().remote_clusters.complete().await;
            tracing::info!(?ports, "serving logs, exec, attach and port-forward");
            // They are closed with this future: nobody is to call who would not be answered.
            let all = self.listeners.into_iter();
            join_all(all.map(|(port, listener)| Arc::clone(&kubelet).accept(port, listener, &tls))).await
        };
        let serving =
            Box::pin(async { tokio::join!(authority::keep(&home, &authority), certificates, listening) });
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
    ports: Arc<[u16]>,
    metrics: Metrics,
    bounds: Bounds,
    room: Arc<Semaphore>,
    slots: Arc<Slots>,
    connections: TaskTracker,
    /// Nothing more is asked from then on.
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
            gate: Gate::new(home.clone()),
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
            room: Arc::new(Semaphore::new(bounds.streams)),
            slots: Slots::new(),
            connections: TaskTracker::new(),
            closing: CancellationToken::new(),
        })
    }

    /// Takes connections at a port, for ever.
    async fn accept(self: Arc<Self>, port: u16, listener: TcpListener, tls: &Tls) {
        loop {
            let (socket, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be taken");
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
                        cut.run_until_cancelled(kubelet.converse(port, socket, acceptor, &slot))
                            .await
                    });
                }
                Err(error) => tracing::warn!(error, "a connection cannot be secured"),
            }
        }
    }

    /// One connection, until it is closed or has become a stream.
    async fn converse(self: Arc<Self>, port: u16, socket: TcpStream, tls: TlsAcceptor, slot: &Slot) {
        let prepared = prepare(&socket);
        let Ok(Ok(socket)) = timeout(HANDSHAKE, tls.accept(socket)).await else {
            return tracing::debug!("somebody called, and did not say who that is");
        };
        if let Err(error) = prepared {
            tracing::debug!(%error, "a connection cannot be watched over");
        }
        let shown = socket.get_ref().1.peer_certificates();
        let caller = shown.and_then(|chain| Caller::of_certificate(chain.first()?));
        let patience = if caller.is_some() {
            HEADERS
        } else {
            HEADERS_OF_STRANGERS
        };
        let service = service_fn(|request| {
            let (kubelet, caller) = (Arc::clone(&self), caller.clone());
            async move { Ok::<_, Infallible>(kubelet.answer(port, slot, caller.as_ref(), request).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(patience)
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

    /// The node that is called at this port.
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
        let outcome = Box::pin(self.relayed(port, slot, caller, &asked, request)).await;
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
        port: u16,
        slot: &Slot,
        caller: Option<&Caller>,
        asked: &Asked,
        mut request: Request<Incoming>,
    ) -> Result<Answer, Refusal> {
        let caller = self.gate.identify(caller, request.headers()).await?;
        let node = self.node(port)?;
        // Who may not is not told which pods there are.
        self.gate
            .admit(&caller, asked.kind.verb(), Part::Proxy, &node)
            .await?;
        slot.authorize()?;
        let Asked { namespace, pod, .. } = asked;
        let found = self.finder.pod(namespace, pod).await?;
        let is_here = |pod: &Pod| pod.spec.as_ref().and_then(|it| it.node_name.as_ref()) == Some(&node);
        let pod = found
            .filter(is_here)
            .ok_or_else(|| Refusal::NoPod(format!("there is no pod {namespace}/{pod} on the node {node}")))?;
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
