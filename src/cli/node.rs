//! `liqo-csi node`.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use super::{Outcome, process::until_signalled};
use crate::{
    csi::{Endpoint, Identity, Readiness, Role, server},
    observe::{
        Metrics,
        health::Health,
        log::{self, LogFormat},
    },
};

/// Kubelet is root, and nobody else has business here.
const SOCKET_MODE: u32 = 0o600;
/// Below the 30 s Kubernetes gives a pod to terminate.
const GRACE: Duration = Duration::from_secs(20);

#[derive(clap::Args)]
pub(super) struct Args {
    /// Unix socket on which kubelet finds us.
    #[arg(
        long,
        default_value = "unix:///var/lib/kubelet/plugins/storage.liqo.io/csi.sock"
    )]
    endpoint: Endpoint,
    /// Kubelet's root directory.
    #[arg(long, default_value = "/var/lib/kubelet")]
    kubelet_root: PathBuf,
    /// Name of this node.
    #[arg(long, env = "NODE_NAME")]
    node_name: String,
    /// Id of this cluster [default: the uid of the namespace kube-system, read once].
    #[arg(long)]
    cluster_id: Option<String>,
    /// Most volumes on this node; 0 means no limit.
    #[arg(long, default_value_t = 0)]
    max_volumes: i64,
    /// Prefix under which paths of the host are visible.
    #[arg(long, default_value = "/")]
    host_root: PathBuf,
    /// Address of /metrics, /healthz and /readyz.
    #[arg(long, default_value = "0.0.0.0:9809")]
    metrics_address: SocketAddr,
    /// Whether Secrets that twins refer to may be read and handed to their drivers.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    secrets: bool,
    /// How log lines look.
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
}

pub(super) fn run(args: Args) -> Outcome {
    log::start(args.log_format);
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(serve(args))
}

async fn serve(args: Args) -> Outcome {
    let stop = until_signalled()?;
    let metrics = Metrics::new("node", |_| {});
    let ready = Readiness::always();

    let endpoint = args.endpoint.clone();
    let live = move || {
        let endpoint = endpoint.clone();
        Box::pin(async move { server::probe(&endpoint).await.map(|_| ()) }) as _
    };
    let health = Health::new(metrics.clone(), live, || Box::pin(async { Ok(()) }));
    let health = tokio::spawn(health.serve(args.metrics_address, stop.clone()));
    let settings = server::Settings {
        endpoint: args.endpoint,
        mode: SOCKET_MODE,
        grace: GRACE,
    };
    let routes = Identity::new(Role::Node, ready).routes();
    server::serve(settings, routes, metrics, stop).await?;
    health.await??;
    Ok(())
}
