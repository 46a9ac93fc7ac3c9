//! `liqo-csi node`.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::task::JoinSet;

use super::{
    Outcome,
    process::{duration, until_signalled},
};
use crate::{
    csi::{
        Endpoint, Identity, Role,
        node::{Node, NodeInfo},
        registration::{Registration, Verdict},
        server,
        work::Work,
    },
    node::{
        direct::Direct,
        driver::Drivers,
        forgotten::Forgotten,
        home,
        host::HostRoot,
        max_volumes::MaxVolumes,
        registry::{PLUGINS_REGISTRY, Registry},
        secrets::Secrets,
        state::State,
        volumes::Volumes,
    },
    observe::{
        Metrics,
        crash::take_orders,
        health::Health,
        log::{self, LogFormat},
    },
};

/// Only kubelet connects, as root.
const SOCKET_MODE: u32 = 0o600;
/// How long to wait for calls in flight, and then for work whose caller disconnected: together less than
/// the default grace period of a pod, 30 s.
const GRACE: Duration = Duration::from_secs(20);
const WORK_GRACE: Duration = Duration::from_secs(5);

#[derive(clap::Args)]
pub(super) struct Args {
    /// Unix socket to which kubelet connects.
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
    /// Maximum number of volumes on this node; 0 means what the real drivers can attach, which the controller
    /// writes to the `CSINode`.
    #[arg(long, default_value_t = 0)]
    max_volumes: i64,
    /// Prefix under which paths of the host are visible.
    #[arg(long, default_value = "/")]
    host_root: PathBuf,
    /// Address of /metrics, /healthz and /readyz.
    #[arg(long, default_value = "[::]:9818")]
    metrics_address: SocketAddr,
    /// Whether Secrets that twins refer to may be read and handed to their drivers.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    secrets: bool,
    /// Time without a call for a volume after which kubelet counts as having forgotten it. If no pod uses
    /// the volume, it is unstaged; if kubelet only asks to unstage it, mounts of pods are removed first.
    #[arg(long, default_value = "5m", value_parser = duration)]
    forgotten_after: Duration,
    /// Format of log lines.
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
}

/// The directory of the driver in kubelet's root.
const HOME: &str = "plugins/storage.liqo.io";
/// Mounts run on threads of their own; more than this many mean that storage servers do not answer.
const BLOCKING_THREADS: usize = 48;
/// A thread that was idle for this long ends.
const THREAD_KEEP_ALIVE: Duration = Duration::from_secs(5);

pub(super) fn run(args: Args) -> Outcome {
    log::start(args.log_format);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(THREAD_KEEP_ALIVE)
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(serve(args));
    // A mount that hangs in the kernel must not keep the process from ending.
    runtime.shutdown_background();
    outcome
}

async fn serve(args: Args) -> Outcome {
    let stop = until_signalled()?;
    let home = args.kubelet_root.join(HOME);
    std::fs::create_dir_all(&home).map_err(|error| format!("creating {}: {error}", home.display()))?;
    let info = NodeInfo {
        name: args.node_name.clone(),
        cluster: match &args.cluster_id {
            Some(id) => id.parse()?,
            None => home::cluster_id(home::client(), &home.join("cluster-id")).await?,
        },
        max_volumes: match args.max_volumes {
            // Outside a cluster there is no CSINode.
            0 => home::client().map_or(MaxVolumes::Fixed(0), MaxVolumes::Written),
            number => MaxVolumes::Fixed(number),
        },
    };
    take_orders(args.endpoint.folder());
    let metrics = Metrics::new("node", |_| {});
    let work = Work::default();
    let volumes = volumes(&args, &home)?;
    let forgotten = Forgotten::new(volumes.clone(), args.kubelet_root.clone());
    let node = Node::new(volumes, work.clone(), info);
    let registration = Registration::new(&args.kubelet_root.join(PLUGINS_REGISTRY), args.endpoint.clone());
    let health = health(metrics.clone(), args.endpoint.clone(), &registration);
    let routes = Identity::new(Role::Node).routes();
    let settings = server::Settings {
        endpoint: args.endpoint,
        mode: SOCKET_MODE,
        grace: GRACE,
    };

    let mut parts = JoinSet::<Outcome>::new();
    let served = server::serve(
        settings,
        routes.add_service(node.service()),
        metrics,
        stop.clone(),
    );
    parts.spawn(async { Ok(served.await?) });
    let registered = registration.serve(stop.clone());
    parts.spawn(async { Ok(registered.await?) });
    let watched = health.serve(args.metrics_address, stop.clone());
    parts.spawn(async { Ok(watched.await?) });
    let tended = forgotten.run(stop.clone());
    parts.spawn(async {
        tended.await;
        Ok(())
    });
    let mut outcome = Ok(());
    while let Some(ended) = parts.join_next().await {
        // If one of the tasks ends, the others end, too.
        stop.cancel();
        outcome = outcome.and(ended?);
    }

    // Callers may have disconnected; their operations are completed all the same.
    if tokio::time::timeout(WORK_GRACE, work.finished()).await.is_err() {
        tracing::warn!(grace = ?WORK_GRACE, "ending with operations in progress; the next start continues them");
    }
    outcome
}

fn volumes(args: &Args, home: &Path) -> Result<Volumes, Box<dyn std::error::Error + Send + Sync>> {
    let secrets = if args.secrets {
        Secrets::Readable(home::client().map_err(|reason| format!("secrets cannot be read: {reason}"))?)
    } else {
        Secrets::Forbidden
    };
    let registry = Registry::new(args.kubelet_root.clone(), args.endpoint.path().to_owned());
    let direct = Direct::new(HostRoot::new(args.host_root.clone()));
    let state = State::open(home.join("state"))?;
    Ok(Volumes::new(
        state,
        Drivers::new(registry, secrets),
        direct,
        args.forgotten_after,
    )?)
}

/// Live while the socket answers and kubelet can find it; ready once kubelet has registered the
/// plugin.
fn health(metrics: Metrics, endpoint: Endpoint, registration: &Registration) -> Health {
    let (socket, verdict) = (registration.socket(), registration.verdict());
    let live = move || {
        let (endpoint, socket) = (endpoint.clone(), socket.clone());
        Box::pin(async move {
            if !socket.exists() {
                return Err(format!("the registration socket {} is gone", socket.display()));
            }
            server::probe(&endpoint).await.map(|_| ())
        }) as _
    };
    let ready = move || {
        let verdict = match &*verdict.borrow() {
            Verdict::Registered => Ok(()),
            Verdict::Pending => Err("kubelet has not registered this node plugin yet".to_owned()),
            Verdict::Refused(why) => Err(format!("kubelet refused this node plugin: {why}")),
        };
        Box::pin(async move { verdict }) as _
    };
    Health::new(metrics, live, ready)
}
