//! `liqo-csi fabric`.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use tokio::sync::watch;
use uuid::Uuid;

use super::{
    Outcome,
    process::{duration, until_signalled},
};
use crate::{
    cluster::{self, Calls, Cluster, Settings},
    fabric,
    fleet::{self, Registry},
    observe::{
        Metrics,
        crash::take_orders_of_command,
        health::Health,
        log::{self, LogFormat},
    },
    rounds::LoopMetrics,
    volume::{CarriedAnnotations, ClusterId},
};

/// Creates virtual nodes and namespaces in remote clusters, as `RemoteClusters` with spec.fabric and
/// `NamespaceOffloadings` request them. It does nothing where Liqo is installed.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Namespace this process runs in: that of its lease, and of the Secrets with kubeconfigs.
    #[arg(long, env = "POD_NAMESPACE")]
    namespace: String,
    /// Namespaces that are never offloaded, in addition to kube-*: those of twins and of Liqo's tenants.
    #[arg(long, value_delimiter = ',')]
    never_offloaded: Vec<String>,
    /// Id of this cluster, as the controller has it [default: the uid of the namespace kube-system].
    #[arg(long)]
    cluster_id: Option<ClusterId>,
    /// Address of /metrics, /healthz and /readyz.
    #[arg(long, default_value = "[::]:9828")]
    metrics_address: SocketAddr,
    /// Address of logs, exec, attach, port-forward and metrics of the pods of virtual nodes. API
    /// servers connect to its port and the following ones: each virtual node has one.
    #[arg(long, default_value = "[::]:9829")]
    streams_address: SocketAddr,
    /// Number of ports, and therefore of virtual nodes that can have one.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    streams_ports: u16,
    /// Address at which API servers reach this pod; its serving certificate is for this address.
    #[arg(long, env = "POD_IP")]
    pod_ip: Option<IpAddr>,
    /// Longest time for one call to an API server.
    #[arg(long, default_value = "10s", value_parser = duration)]
    call_timeout: Duration,
    /// Allow a proxy in kubeconfigs of remote clusters.
    #[arg(long)]
    allow_proxy: bool,
    /// Format of log lines.
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
    /// Kubeconfig to use outside a cluster.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
}

pub(super) fn run(args: Args) -> Outcome {
    log::start(args.log_format);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(serve(args))
}

async fn serve(args: Args) -> Outcome {
    let stop = until_signalled()?;
    take_orders_of_command();
    let (mut loops_metrics, mut api_metrics) = (LoopMetrics::default(), cluster::Metrics::default());
    let (mut stream_metrics, mut given_up) = (fabric::StreamMetrics::default(), fabric::GivenUp::default());
    let metrics = Metrics::new("fabric", |registry| {
        stream_metrics = fabric::StreamMetrics::register(registry);
        given_up = fabric::GivenUp::register(registry);
        loops_metrics = LoopMetrics::register(registry);
        api_metrics = cluster::Metrics::register(registry);
    });
    let settings = Settings {
        id: args.cluster_id,
        // The fabric needs no twins at home.
        storage_namespace: args.namespace.clone(),
        carried: CarriedAnnotations::new([]),
        node_annotations: fleet::NODE_ANNOTATIONS,
        calls: Calls::new(args.call_timeout, api_metrics),
    };
    let home = Cluster::connect(args.kubeconfig.as_deref(), settings, &stop).await?;
    tracing::info!(cluster = %home.id(), "connected");

    let (idle, rests) = watch::channel(None);
    let ready = move || {
        let outcome = match &*rests.borrow() {
            Some(fabric::IdleReason::Unready(why)) => Err(why.clone()),
            Some(fabric::IdleReason::Undefined) | None => Ok(()),
        };
        Box::pin(async move { outcome }) as _
    };
    let health = Health::new(metrics, || Box::pin(async { Ok(()) }), ready);
    let health = tokio::spawn(health.serve(args.metrics_address, stop.clone()));

    let registry = Registry::default();
    let remotes = fleet::Settings {
        namespace: args.namespace.clone(),
        allow_proxy: args.allow_proxy,
        liqo_tenants: std::collections::BTreeSet::new(),
    };
    tokio::spawn(stop.clone().run_until_cancelled_owned(fleet::keep(
        registry.clone(),
        home.clone(),
        remotes,
    )));
    let identity = std::env::var("POD_NAME").unwrap_or_else(|_| Uuid::new_v4().to_string());
    let streams = fabric::StreamSettings {
        address: args.streams_address,
        ports: args.streams_ports,
        pod_ip: args.pod_ip,
        name: identity.clone(),
    };
    let streams = fabric::Streams::bind(streams, stream_metrics).await?;
    let settings = fabric::Settings {
        namespace: args.namespace,
        identity,
        reserved: args.never_offloaded.into_iter().collect(),
        address: args.pod_ip,
        given_up,
    };
    fabric::run(home, registry, settings, streams, loops_metrics, idle, stop).await;
    health.await??;
    Ok(())
}
