//! Connecting to the cluster this process runs in, or to the one of a kubeconfig.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::header::{HeaderValue, USER_AGENT};
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioExecutor};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Client, Config,
    client::{ClientBuilder, ConfigExt},
    config::{InClusterError, InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tower::{BoxError, ServiceBuilder};

use super::{
    ApiError, AwaitedVolumes, Calls, Cluster, Inner, REMOTE_LISTS, RecentLists, Rights, Views,
    budget::Budget,
    cap::{Cap, Limits},
    view::SILENCE,
    watches::Watches,
};
use crate::volume::{CarriedAnnotations, ClusterId, ClusterIdError};

/// How audit logs know us.
const OUR_AGENT: &str = concat!("liqo-csi/", env!("CARGO_PKG_VERSION"));

/// The peer of a stream that is as quiet as this is probed.
pub const KEEPALIVE: Duration = Duration::from_secs(30);
/// Between two probes.
pub const KEEPALIVE_PROBES: Duration = Duration::from_secs(10);
/// Who answers none of so many is gone.
pub const MOST_PROBES: u32 = 4;

/// Name of a cluster in messages before its id is known.
const UNKNOWN: &str = "unknown";

/// Lives as long as its cluster, in every cluster.
const ETERNAL_NAMESPACE: &str = "kube-system";

/// How to treat a cluster.
#[derive(Clone)]
pub struct Settings {
    /// Its id; the uid of its namespace kube-system when not given.
    pub id: Option<ClusterId>,
    /// Namespace of the twins.
    pub storage_namespace: String,
    /// The annotations of claims that twins carry.
    pub carried: CarriedAnnotations,
    /// The annotations by which a node says which cluster is behind it.
    pub node_annotations: &'static [&'static str],
    /// How calls on it are made.
    pub calls: Calls,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Not in a pod, and no kubeconfig given.
    #[error("this is no pod with a service account ({0}); outside a cluster pass --kubeconfig")]
    InCluster(#[from] InClusterError),
    /// The kubeconfig is unusable.
    #[error("the kubeconfig cannot be used: {0}")]
    Kubeconfig(#[from] KubeconfigError),
    /// The client cannot be built from it.
    #[error("no client can be made: {0}")]
    Client(#[from] kube::Error),
    /// There is nothing to connect to.
    #[error("no cluster is configured: {0}; pass --kubeconfig")]
    Unconfigured(#[from] InferConfigError),
    /// There is no answer.
    #[error("the API server does not answer: {0}")]
    Silent(String),
    /// The cluster's identity cannot be read.
    #[error("the cluster's id is not known: {0}; pass --cluster-id")]
    Unidentified(#[from] ApiError),
    /// The cluster's identity makes no id.
    #[error(transparent)]
    Id(#[from] ClusterIdError),
}

impl Cluster {
    /// Connects, and starts the views. They run until `stop`.
    pub async fn connect(
        kubeconfig: Option<&Path>,
        settings: Settings,
        stop: &CancellationToken,
    ) -> Result<Self, ConnectError> {
        let config = match kubeconfig {
            Some(path) => from_file(path).await?,
            None => Config::incluster()?,
        };
        Self::from_config(config, settings, stop).await
    }

    /// Connects only to look around, with the rights of whoever looks: nothing
    /// is watched, and the cluster is not asked who it is. Without a kubeconfig
    /// it is found as kubectl does.
    pub async fn visit(kubeconfig: Option<&Path>, call_timeout: Duration) -> Result<Self, ConnectError> {
        Self::visit_as(kubeconfig, &KubeConfigOptions::default(), call_timeout).await
    }

    /// As `visit`, by another entry of the kubeconfig than its current one.
    pub async fn visit_as(
        kubeconfig: Option<&Path>,
        entry: &KubeConfigOptions,
        call_timeout: Duration,
    ) -> Result<Self, ConnectError> {
        let is_chosen = entry.context.is_some() || entry.cluster.is_some() || entry.user.is_some();
        let config = match kubeconfig {
            Some(path) => Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, entry).await?,
            None if is_chosen => Config::from_kubeconfig(entry).await?,
            None => Config::infer().await?,
        };
        Self::visit_by(config, UNKNOWN, call_timeout).await
    }

    /// As `visit`, with these settings. Errors name the cluster by `name`.
    pub async fn visit_by(config: Config, name: &str, call_timeout: Duration) -> Result<Self, ConnectError> {
        let client = client(config, call_timeout, Limits::HOME, &Watches::default())?;
        let answer = tokio::time::timeout(call_timeout, client.apiserver_version()).await;
        match answer {
            Err(_) => Err(ConnectError::Silent(format!("nothing within {call_timeout:?}"))),
            Ok(Err(error)) if !matches!(error, kube::Error::Api(_)) => {
                Err(ConnectError::Silent(super::plain(&error)))
            }
            Ok(_) => unwatched(client, name, call_timeout),
        }
    }

    pub(super) async fn from_config(
        config: Config,
        settings: Settings,
        stop: &CancellationToken,
    ) -> Result<Self, ConnectError> {
        let timeout = settings.calls.timeout;
        let client = |watches: &Watches| client(config.clone(), timeout, Limits::HOME, watches);
        let id = match settings.id.clone() {
            Some(id) => id,
            None => identify(client(&Watches::default())?, timeout).await?,
        };
        let client = client(&Watches::of(id.as_str(), &settings.calls.metrics))?;
        Ok(Self::assemble(id, client, settings, stop))
    }

    fn assemble(id: ClusterId, client: Client, settings: Settings, stop: &CancellationToken) -> Self {
        let stop = stop.child_token();
        let annotations = settings.node_annotations;
        let views = Views::start(&client, &id, &settings.storage_namespace, annotations, &stop);
        Self(Arc::new(Inner {
            home: id.clone(),
            id,
            client,
            storage_namespace: settings.storage_namespace,
            carried: settings.carried,
            calls: settings.calls,
            views,
            rights: Rights::ALL,
            budget: Budget::home(),
            lists: None,
            recent: RecentLists::default(),
            awaited: AwaitedVolumes::default(),
            node_annotations: annotations,
            by_namespace: Mutex::default(),
            by_namespace_changes: watch::Sender::default(),
            stop: stop.clone(),
            _stops: stop.drop_guard(),
        }))
    }

    /// A remote cluster. Its watches end with the last handle on it.
    pub(crate) fn remote(
        id: ClusterId,
        home: &ClusterId,
        client: Client,
        rights: Rights,
        calls: Calls,
    ) -> Self {
        let stop = CancellationToken::new();
        let budget = Budget::remote();
        let views = Views::start_remote(&client, home, rights, &budget, &stop);
        Self(Arc::new(Inner {
            id,
            client,
            storage_namespace: String::new(),
            carried: CarriedAnnotations::default(),
            calls,
            views,
            home: home.clone(),
            rights,
            budget,
            lists: Some(Arc::new(Semaphore::new(REMOTE_LISTS))),
            recent: RecentLists::default(),
            awaited: AwaitedVolumes::default(),
            node_annotations: &[],
            by_namespace: Mutex::default(),
            by_namespace_changes: watch::Sender::default(),
            stop: stop.clone(),
            _stops: stop.drop_guard(),
        }))
    }
}

/// A client of a remote cluster, which is believed little.
pub fn remote_client(config: Config, id: &ClusterId, calls: &Calls) -> Result<Client, kube::Error> {
    let watches = Watches::of(id.as_str(), &calls.metrics);
    client(config, calls.timeout, Limits::REMOTE, &watches)
}

/// A client of a remote cluster for streams of bytes that may be as long as they like, and be quiet
/// for as long: there is no cap on answers and no timeout but that of connecting. Nothing is to be
/// parsed of what it brings.
pub fn stream_client(mut config: Config, connect_timeout: Duration) -> Result<Client, kube::Error> {
    config.default_retry = false;
    config.connect_timeout = Some(connect_timeout);
    config.read_timeout = None;
    // What is compressed comes when there is enough of it, and a log is to come as it is written.
    config.disable_compression = true;
    config
        .headers
        .push((USER_AGENT, HeaderValue::from_static(OUR_AGENT)));
    if config.proxy_url.is_some() {
        return Ok(ClientBuilder::try_from(config)?.build());
    }
    // As kube would make it, but for the options of its sockets: key strokes are sent at once, and
    // a peer that is gone without a word is found out.
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_nodelay(true);
    connector.set_keepalive(Some(KEEPALIVE));
    connector.set_keepalive_interval(Some(KEEPALIVE_PROBES));
    connector.set_keepalive_retries(Some(MOST_PROBES));
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(client);
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

/// A client of the cluster of a kubeconfig, or of the one we run in, which is believed little
/// either way.
pub async fn client_for(kubeconfig: Option<&Path>, call_timeout: Duration) -> Result<Client, ConnectError> {
    let config = match kubeconfig {
        Some(path) => from_file(path).await?,
        None => Config::incluster()?,
    };
    Ok(client(config, call_timeout, Limits::REMOTE, &Watches::default())?)
}

/// A client that is bounded in time and size, and tells the audit log who asks.
pub(super) fn client(
    mut config: Config,
    call_timeout: Duration,
    limits: Limits,
    watches: &Watches,
) -> Result<Client, kube::Error> {
    // kube would retry for minutes; sidecars give up after seconds.
    config.default_retry = false;
    config.connect_timeout = Some(call_timeout);
    // A request whose connection died in silence would otherwise hold a watch for many minutes.
    config.read_timeout = Some(SILENCE);
    config.reset_reader_on_write = true;
    config
        .headers
        .push((USER_AGENT, HeaderValue::from_static(OUR_AGENT)));
    Ok(ClientBuilder::try_from(config)?
        .with_layer(&Cap::new(limits))
        .with_layer(watches)
        .build())
}

async fn from_file(path: &Path) -> Result<Config, ConnectError> {
    let file = Kubeconfig::read_from(path)?;
    Ok(Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?)
}

async fn identify(client: Client, call_timeout: Duration) -> Result<ClusterId, ConnectError> {
    let cluster = unwatched(client, UNKNOWN, call_timeout)?;
    let namespace = cluster.all::<Namespace>().get(ETERNAL_NAMESPACE).await?;
    let uid = namespace.and_then(|it| it.metadata.uid).unwrap_or_default();
    Ok(uid.parse()?)
}

/// A cluster to read from, of which nothing is watched.
fn unwatched(client: Client, name: &str, call_timeout: Duration) -> Result<Cluster, ConnectError> {
    let id: ClusterId = name.parse()?;
    let none = Rights::default();
    let calls = Calls::without_metrics(call_timeout);
    Ok(Cluster::remote(id.clone(), &id, client, none, calls))
}
