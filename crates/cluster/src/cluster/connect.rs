//! Connects to the cluster in which this process runs, or to that of a kubeconfig.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::header::{HeaderValue, USER_AGENT};
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioExecutor};
use kube::{
    Client, Config,
    client::{ClientBuilder, ConfigExt},
    config::{
        InClusterError, InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError, NamedContext,
    },
};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tower::{BoxError, ServiceBuilder};

use super::{
    ApiError, AwaitedVolumes, Calls, Cluster, Inner, REMOTE_LISTS, RecentLists, Rights, Views,
    budget::Budget,
    cap::{Cap, Limits},
    view::READ_TIMEOUT,
    watches::Watches,
};
use crate::volume::{CarriedAnnotations, ClusterId, ClusterIdError};

/// The user agent in audit logs.
const AGENT: &str = concat!("liqo-csi/", env!("CARGO_PKG_VERSION"));

/// An idle stream is probed after this time.
pub const KEEPALIVE: Duration = Duration::from_secs(30);
/// The interval of the probes.
pub const KEEPALIVE_PROBES: Duration = Duration::from_secs(10);
/// After this many unanswered probes the connection is closed.
pub const MOST_PROBES: u32 = 4;

/// Name of a cluster in messages before its id is known.
const UNKNOWN: &str = "unknown";

/// Settings of a connection.
#[derive(Clone)]
pub struct Settings {
    /// The id of the cluster; by default the uid of its namespace kube-system.
    pub id: Option<ClusterId>,
    pub storage_namespace: String,
    /// The annotations of claims that are copied to twins.
    pub carried: CarriedAnnotations,
    /// The annotations by which a node names the cluster that it represents.
    pub node_annotations: &'static [&'static str],
    pub calls: Calls,
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The process is not in a pod, and no kubeconfig is given.
    #[error("this is not a pod with a service account ({0}); outside a cluster pass --kubeconfig")]
    InCluster(#[from] InClusterError),
    #[error("the kubeconfig cannot be used: {0}")]
    Kubeconfig(#[from] KubeconfigError),
    /// The kubeconfig does not have the context that the user named.
    #[error("the kubeconfig {path} has no context {name}: it has {known}")]
    NoContext {
        name: String,
        path: String,
        known: String,
    },
    #[error("cannot create a client: {0}")]
    Client(#[from] kube::Error),
    #[error("no cluster is configured: {}; pass --kubeconfig", of_kubeconfig(.0))]
    Unconfigured(#[from] InferConfigError),
    #[error("the API server {server} does not answer: {why}")]
    NoAnswer { server: String, why: String },
    /// The cluster's id cannot be read.
    #[error("the cluster's id is unknown: {0}; pass --cluster-id")]
    Unidentified(#[from] ApiError),
    /// The uid is not a valid cluster id.
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

    /// Connects for a command, with the rights of the user: without watches, and without reading the
    /// cluster's id. Without a kubeconfig argument it is found as by kubectl.
    pub async fn connect_unwatched_as(
        kubeconfig: Option<&Path>,
        entry: &KubeConfigOptions,
        call_timeout: Duration,
    ) -> Result<Self, ConnectError> {
        let is_chosen = entry.context.is_some() || entry.cluster.is_some() || entry.user.is_some();
        let (file, path) = match kubeconfig {
            Some(path) => (Some(Kubeconfig::read_from(path)?), path.display().to_string()),
            None if is_chosen => (Some(Kubeconfig::read()?), found()),
            None => (None, String::new()),
        };
        let (config, current) = if let Some(file) = file {
            let current = file.current_context.clone();
            (of_entry(file, entry, &path).await?, current)
        } else {
            let found = Kubeconfig::read().ok();
            (Config::infer().await?, found.and_then(|it| it.current_context))
        };
        // With --cluster, the context is that of another cluster.
        let context = entry.context.as_ref().or(current.as_ref());
        let context = context.filter(|_| entry.cluster.is_none());
        let name = name(context.map(String::as_str), config.cluster_url.host()).to_owned();
        Self::connect_unwatched_with(config, &name, call_timeout).await
    }

    /// Connects with this configuration, without watches. Errors name the cluster by `name`.
    pub async fn connect_unwatched_with(
        config: Config,
        name: &str,
        call_timeout: Duration,
    ) -> Result<Self, ConnectError> {
        let server = config.cluster_url.to_string();
        let client = client(config, call_timeout, Limits::HOME, &Watches::default())?;
        let answer = tokio::time::timeout(call_timeout, client.apiserver_version()).await;
        let why = match answer {
            Err(_) => format!("no answer within {call_timeout:?}"),
            Ok(Err(error)) if !matches!(error, kube::Error::Api(_)) => super::plain(&error),
            Ok(_) => return unwatched(client, name, call_timeout),
        };
        Err(ConnectError::NoAnswer { server, why })
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
        let lists = Some(Arc::new(Semaphore::new(REMOTE_LISTS)));
        Self::other(id, home, client, rights, calls, lists)
    }

    /// A cluster other than the one in which the driver runs. Only with `lists` its lists are limited.
    fn other(
        id: ClusterId,
        home: &ClusterId,
        client: Client,
        rights: Rights,
        calls: Calls,
        lists: Option<Arc<Semaphore>>,
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
            lists,
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

/// A client of a remote cluster, with limits because that is not trusted.
pub fn remote_client(config: Config, id: &ClusterId, calls: &Calls) -> Result<Client, kube::Error> {
    let watches = Watches::of(id.as_str(), &calls.metrics);
    client(config, calls.timeout, Limits::REMOTE, &watches)
}

/// A client of a remote cluster for byte streams of any length, which may be idle for any time: without
/// limits on answers, and without a timeout except for connecting. Data from it must not be parsed.
pub fn stream_client(mut config: Config, connect_timeout: Duration) -> Result<Client, kube::Error> {
    config.default_retry = false;
    config.connect_timeout = Some(connect_timeout);
    config.read_timeout = None;
    // Compression would delay lines of a log until there are enough of them.
    config.disable_compression = true;
    config.headers.push((USER_AGENT, HeaderValue::from_static(AGENT)));
    if config.proxy_url.is_some() {
        return Ok(ClientBuilder::try_from(config)?.build());
    }
    // As kube does, but with other socket options: key strokes are sent at once, and a lost peer is
    // detected.
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

/// A client of the cluster of a kubeconfig, or of the one in which this process runs, with the limits for
/// remote clusters in both cases.
pub async fn client_for(kubeconfig: Option<&Path>, call_timeout: Duration) -> Result<Client, ConnectError> {
    let config = match kubeconfig {
        Some(path) => from_file(path).await?,
        None => Config::incluster()?,
    };
    Ok(client(config, call_timeout, Limits::REMOTE, &Watches::default())?)
}

/// A client with limits on time and size, and the user agent of this driver.
pub(super) fn client(
    mut config: Config,
    call_timeout: Duration,
    limits: Limits,
    watches: &Watches,
) -> Result<Client, kube::Error> {
    // kube would retry for minutes; sidecars time out after seconds.
    config.default_retry = false;
    config.connect_timeout = Some(call_timeout);
    // Otherwise a request on a dead connection would block a watch for many minutes.
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    config.headers.push((USER_AGENT, HeaderValue::from_static(AGENT)));
    Ok(ClientBuilder::try_from(config)?
        .with_layer(&Cap::new(limits))
        .with_layer(watches)
        .build())
}

/// Why there is no kubeconfig; users of a command do not expect to be in a pod.
fn of_kubeconfig(error: &InferConfigError) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// The kubeconfig that kubectl finds, for messages.
fn found() -> String {
    std::env::var("KUBECONFIG").unwrap_or_else(|_| "~/.kube/config".to_owned())
}

/// The context of this name in a kubeconfig, which errors name by `path`.
pub fn context<'a>(file: &'a Kubeconfig, name: &str, path: &str) -> Result<&'a NamedContext, ConnectError> {
    let found = file.contexts.iter().find(|it| it.name == name);
    found.ok_or_else(|| {
        let known: Vec<&str> = file.contexts.iter().map(|it| it.name.as_str()).collect();
        let known = if known.is_empty() {
            "none".to_owned()
        } else {
            known.join(", ")
        };
        ConnectError::NoContext {
            name: name.to_owned(),
            path: path.to_owned(),
            known,
        }
    })
}

/// The configuration of an entry of this kubeconfig, which errors name by `path`.
async fn of_entry(file: Kubeconfig, entry: &KubeConfigOptions, path: &str) -> Result<Config, ConnectError> {
    if let Some(name) = &entry.context {
        context(&file, name, path)?;
    }
    Ok(Config::from_custom_kubeconfig(file, entry).await?)
}

/// The name of a cluster in errors for users: the context, the host, or the first label of that, whichever can be an id.
fn name<'a>(context: Option<&'a str>, host: Option<&'a str>) -> &'a str {
    let label = host.and_then(|host| host.split('.').next());
    let mut names = [context, host, label].into_iter().flatten();
    names
        .find(|name| name.parse::<ClusterId>().is_ok())
        .unwrap_or(UNKNOWN)
}

async fn from_file(path: &Path) -> Result<Config, ConnectError> {
    let file = Kubeconfig::read_from(path)?;
    Ok(Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?)
}

async fn identify(client: Client, call_timeout: Duration) -> Result<ClusterId, ConnectError> {
    let cluster = unwatched(client, UNKNOWN, call_timeout)?;
    Ok(cluster.uid().await?.unwrap_or_default().parse()?)
}

/// A cluster without watches, of the user who runs a command.
fn unwatched(client: Client, name: &str, call_timeout: Duration) -> Result<Cluster, ConnectError> {
    let id: ClusterId = name.parse()?;
    let none = Rights::default();
    let calls = Calls::without_metrics(call_timeout);
    Ok(Cluster::other(id.clone(), &id, client, none, calls, None))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    async fn in_context(contexts: &[&str], name: &str) -> Result<Config, ConnectError> {
        let entries = contexts.iter().map(|it| {
            json!({"name": it, "context": {"cluster": "here", "user": "me", "namespace": format!("of-{it}")}})
        });
        let file = serde_json::from_value(json!({
            "clusters": [{"name": "here", "cluster": {"server": "https://192.0.2.1:6443"}}],
            "users": [{"name": "me", "user": {"token": "secret"}}],
            "contexts": entries.collect::<Vec<_>>(),
            "current-context": contexts.first(),
        }))
        .unwrap();
        let entry = KubeConfigOptions {
            context: Some(name.to_owned()),
            ..KubeConfigOptions::default()
        };
        of_entry(file, &entry, "milan.yaml").await
    }

    #[tokio::test]
    async fn a_server_that_does_not_answer_is_named() {
        let config = Config::new("http://127.0.0.1:1".parse().unwrap());
        let refused = Cluster::connect_unwatched_with(config, "milan", Duration::from_secs(30)).await;
        let refused = refused.err().unwrap().to_string();
        assert!(
            refused.starts_with("the API server http://127.0.0.1:1/ does not answer: "),
            "{refused}"
        );
    }

    #[test]
    fn errors_name_the_context_or_the_host() {
        const HOST: &str = "a0b1c2d3e4f5061728394a5b6c7d8e9f.gr7.eu-south-1.eks.amazonaws.com";
        for (context, host, expected) in [
            (Some("milan"), Some("192.0.2.1"), "milan"),
            (Some("admin@milan"), Some("192.0.2.1"), "192.0.2.1"),
            (
                Some("arn:aws:eks:eu-south-1:1:cluster/milan"),
                Some(HOST),
                "a0b1c2d3e4f5061728394a5b6c7d8e9f",
            ),
            (None, Some("milan.example"), "milan.example"),
            (None, Some("[2001:db8::1]"), UNKNOWN),
            (None, None, UNKNOWN),
        ] {
            assert_eq!(name(context, host), expected, "{context:?}, {host:?}");
        }
    }

    #[tokio::test]
    async fn the_named_context_is_used_and_an_error_lists_the_existing_ones() {
        let chosen = in_context(&["home", "milan"], "milan").await.unwrap();
        assert_eq!(chosen.default_namespace, "of-milan");
        for (contexts, known) in [(&["home", "milan"][..], "home, milan"), (&[], "none")] {
            let refused = in_context(contexts, "rome").await.err().unwrap();
            assert_eq!(
                refused.to_string(),
                format!("the kubeconfig milan.yaml has no context rome: it has {known}")
            );
        }
    }
}
