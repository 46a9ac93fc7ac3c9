//! `liqo-csi controller`.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use uuid::Uuid;

use super::{
    Outcome,
    process::{duration, until_signalled},
};
use crate::{
    api::volume_move::{Amounts, Quantity},
    cluster::{self, Calls, Cluster, Settings, events::Events},
    controllers,
    csi::{Controller, CreateLimiter, Endpoint, Identity, Role, server, work::Work},
    fleet::{self, Registry},
    moves::movers::HelperSettings,
    observe::{
        Metrics,
        crash::take_orders,
        health::Health,
        log::{self, LogFormat},
    },
    twin::Policy,
    volume::{CarriedAnnotations, ClusterId},
    wire::csi::controller_server::ControllerServer,
};

/// Sidecars in other containers of the pod connect with the group of the pod.
const SOCKET_MODE: u32 = 0o660;
/// Less than the 30 s that Kubernetes gives a pod to terminate.
const GRACE: Duration = Duration::from_secs(20);

#[derive(clap::Args)]
pub(super) struct Args {
    /// Unix socket to which the sidecars connect.
    #[arg(long, default_value = "unix:///csi/csi.sock")]
    endpoint: Endpoint,
    /// Namespace of the twins in this cluster.
    #[arg(long, default_value = "liqo-storage")]
    storage_namespace: String,
    /// Namespace this process runs in.
    #[arg(long, env = "POD_NAMESPACE")]
    namespace: String,
    /// Id of this cluster [default: the uid of the namespace kube-system].
    #[arg(long)]
    cluster_id: Option<ClusterId>,
    /// Address of /metrics, /healthz and /readyz.
    #[arg(long, default_value = "[::]:9808")]
    metrics_address: SocketAddr,
    /// Real classes that a claim may choose by annotation; none means the annotation is refused.
    #[arg(long, value_delimiter = ',')]
    allowed_classes: Vec<String>,
    /// Annotations of claims that twins carry; `example.com/*` means all annotations of a domain.
    #[arg(long, value_delimiter = ',')]
    carry_annotations: Vec<String>,
    /// Age after which a twin without a claim is deleted, if it was never handed over.
    #[arg(long, default_value = "10m", value_parser = duration)]
    orphan_grace: Duration,
    /// How many volumes are created at the same time; those that wait for a slow real class do not
    /// count.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    creations_at_once: u16,
    /// Longest time for one call to an API server.
    #[arg(long, default_value = "10s", value_parser = duration)]
    call_timeout: Duration,
    /// Allow a proxy in kubeconfigs of remote clusters and of Kosmos (in Liqo's it is always allowed).
    #[arg(long)]
    allow_proxy: bool,
    /// Namespaces that Liqo has for remote clusters: its objects in other namespaces are ignored.
    #[arg(long, value_delimiter = ',')]
    liqo_tenant_namespaces: Vec<String>,
    /// Image of the pods that move volumes: that of this driver; without it volumes cannot be moved.
    #[arg(long)]
    mover_image: Option<String>,
    /// Pull policy of that image.
    #[arg(long, default_value = "IfNotPresent")]
    mover_pull_policy: String,
    /// Secrets in --namespace for pulling it.
    #[arg(long, value_delimiter = ',')]
    mover_pull_secrets: Vec<String>,
    /// The most CPU that a `VolumeMove` may set as a request or limit of its movers [default: any].
    #[arg(long)]
    mover_max_cpu: Option<String>,
    /// The most memory that a `VolumeMove` may set as a request or limit of its movers [default: any].
    #[arg(long)]
    mover_max_memory: Option<String>,
    /// Service account of the pods that connect movers through API servers.
    #[arg(long, default_value = "liqo-csi-relay")]
    relay_service_account: String,
    /// Approve the serving certificates that pods of the fabric request.
    #[arg(long)]
    approve_serving_certificates: bool,
    /// Write to the `CSINode`s how many volumes the real drivers can attach.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    attach_limits: bool,
    /// Format of log lines.
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
    /// Namespace of the lease of the background loops [default: --namespace].
    #[arg(long)]
    lease_namespace: Option<String>,
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
    let (mut loops_metrics, mut api_metrics) = (controllers::Metrics::default(), cluster::Metrics::default());
    let metrics = Metrics::new("controller", |registry| {
        loops_metrics = controllers::Metrics::register(registry);
        api_metrics = cluster::Metrics::register(registry);
    });
    let settings = Settings {
        id: args.cluster_id,
        storage_namespace: args.storage_namespace,
        carried: CarriedAnnotations::new(args.carry_annotations),
        node_annotations: fleet::NODE_ANNOTATIONS,
        calls: Calls::new(args.call_timeout, api_metrics),
    };
    let home = Cluster::connect(args.kubeconfig.as_deref(), settings, &stop).await?;
    tracing::info!(cluster = %home.id(), twins = home.storage_namespace(), "connected");

    take_orders(args.endpoint.folder());
    let health = health(metrics.clone(), args.endpoint.clone());
    let health = tokio::spawn(health.serve(args.metrics_address, stop.clone()));

    let registry = Registry::default();
    let remotes = fleet::Settings {
        namespace: args.namespace.clone(),
        allow_proxy: args.allow_proxy,
        liqo_tenants: args.liqo_tenant_namespaces.into_iter().collect(),
    };
    tokio::spawn(stop.clone().run_until_cancelled_owned(fleet::keep(
        registry.clone(),
        home.clone(),
        remotes,
    )));

    let policy = Policy {
        allowed_classes: args.allowed_classes.into_iter().collect(),
        namespace: args
            .lease_namespace
            .clone()
            .unwrap_or_else(|| args.namespace.clone()),
    };
    let movers = args.mover_image.map(|image| HelperSettings {
        namespace: args.namespace,
        image,
        pull_policy: args.mover_pull_policy,
        pull_secrets: args.mover_pull_secrets,
        relay_account: args.relay_service_account,
        policy: policy.clone(),
        most: Amounts {
            cpu: args.mover_max_cpu.map(Quantity),
            memory: args.mover_max_memory.map(Quantity),
        },
    });
    let loops = controllers::run(
        home.clone(),
        registry.clone(),
        Events::new(home.client().clone()),
        controllers::Settings {
            namespace: policy.namespace.clone(),
            identity: std::env::var("POD_NAME").unwrap_or_else(|_| Uuid::new_v4().to_string()),
            grace: args.orphan_grace,
            allowed_classes: policy.allowed_classes.clone(),
            movers,
            approves_serving: args.approve_serving_certificates,
            limits_attachments: args.attach_limits,
        },
        loops_metrics,
        stop.clone(),
    );
    let work = Work::default();
    let creations = CreateLimiter::new(args.creations_at_once.into());
    let controller = Controller::new(home, registry, policy, work.clone(), creations);
    let routes = Identity::new(Role::Controller)
        .routes()
        .add_service(ControllerServer::new(controller));
    let socket = server::Settings {
        endpoint: args.endpoint,
        mode: SOCKET_MODE,
        grace: GRACE,
    };
    let serve = async {
        let served = server::serve(socket, routes, metrics, stop.clone()).await;
        stop.cancel();
        served
    };
    let (served, ()) = tokio::join!(serve, loops);
    served?;
    // A client that disconnected does not stop its work.
    let _timed_out = tokio::time::timeout(GRACE, work.finished()).await;
    health.await??;
    Ok(())
}

/// Live while the socket answers. Ready from the start: each call waits for the objects that it
/// needs.
fn health(metrics: Metrics, endpoint: Endpoint) -> Health {
    let live = move || {
        let endpoint = endpoint.clone();
        Box::pin(async move { server::probe(&endpoint).await.map(|_| ()) }) as _
    };
    Health::new(metrics, live, || Box::pin(async { Ok(()) }))
}
