//! The connection to one remote cluster: vets its kubeconfig, creates a client, and then probes periodically
//! whether it answers and which rights the driver has there. Each connection has its own task, so that one
//! that hangs does not delay the others.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use secrecy::SecretString;
use tokio::{sync::watch, time};
use tokio_util::sync::CancellationToken;

use super::registry::TwinChanges;
use crate::{
    cluster::{Calls, Cause, Cluster, Rights, plain, remote_client, short},
    fleet::kubeconfig::{Allowed, vet},
    offload::is_uid,
    volume::ClusterId,
};

/// The interval of probes while the cluster answers.
const PROBE_INTERVAL: Duration = Duration::from_secs(15);
/// The interval while it does not.
const RETRY: Duration = Duration::from_secs(3);
/// Rights change seldom: they are checked with every fourth probe.
const RIGHTS_EVERY: u32 = 4;
/// The pause before a cluster that exceeded a limit is used again.
const LIMIT_PAUSE: Duration = Duration::from_mins(5);
/// A single failed probe may be an accident.
const LOST_IN_A_ROW: u32 = 2;

/// Counts the changes of remote clusters.
pub(super) type Changes = watch::Sender<u64>;

/// The state of the connection to a cluster.
#[derive(Clone)]
pub enum Link {
    /// It was not reached yet, and what it waits for.
    Connecting(String),
    /// It answers.
    Up(Arc<Connected>),
    /// It does not answer, or does not accept the credentials, and why.
    Unreachable(Cause),
    /// Its credentials cannot be used, and why.
    Refused(String),
    /// Its declaration contradicts another one, and how.
    Disputed(String),
}

impl Link {
    fn connected(&self) -> Option<&Connected> {
        match self {
            Self::Up(connected) => Some(connected),
            Self::Connecting(_) | Self::Unreachable(_) | Self::Refused(_) | Self::Disputed(_) => None,
        }
    }
}

/// Why a probe failed.
#[derive(Debug, PartialEq, Eq)]
enum ProbeError {
    /// It does not answer, or not as expected.
    Lost(Cause),
    /// It exceeds the budget of one cluster.
    TooMuch(String),
}

/// A cluster that answers.
pub struct Connected {
    pub cluster: Cluster,
    pub version: String,
    /// The uid of its namespace kube-system; `None` if the driver may not read it.
    pub uid: Option<String>,
    /// The vetted kubeconfig.
    pub kubeconfig: Option<SecretString>,
}

/// The credentials of a cluster, and what they may contain.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) text: Arc<[u8]>,
    pub(super) allowed: Allowed,
}

/// Connects, and keeps the state of the connection up to date until `stop`.
pub(super) fn start(
    changes: Changes,
    twin_changes: TwinChanges,
    id: ClusterId,
    home: ClusterId,
    access: Access,
    calls: Calls,
    stop: CancellationToken,
) -> watch::Receiver<Link> {
    let (link, known) = watch::channel(Link::Connecting("it has not answered yet".to_owned()));
    let prober = Prober {
        changes,
        twin_changes,
        id,
        home,
        calls,
        interval: PROBE_INTERVAL,
        link,
        kubeconfig: OnceLock::new(),
    };
    tokio::spawn(async move {
        stop.run_until_cancelled(Box::pin(prober.run(access))).await;
    });
    known
}

struct Prober {
    changes: Changes,
    twin_changes: TwinChanges,
    id: ClusterId,
    home: ClusterId,
    calls: Calls,
    /// The interval of probes while the cluster answers.
    interval: Duration,
    link: watch::Sender<Link>,
    /// The vetted kubeconfig.
    kubeconfig: OnceLock<SecretString>,
}

impl Prober {
    async fn run(self, access: Access) {
        let client = match self.client(&access).await {
            Ok(client) => client,
            Err(why) => {
                tracing::warn!(cluster = %self.id, why, "the kubeconfig of a remote cluster is refused");
                return self.set_link(Link::Refused(why));
            }
        };
        self.probe_and_notify(&client).await;
    }

    async fn probe_and_notify(&self, client: &Client) {
        tokio::select! {
            () = self.probe_forever(client) => {}
            () = self.forward_twin_changes() => {}
        }
    }

    async fn probe_forever(&self, client: &Client) {
        let (mut answered, mut lost) = (0_u32, 0_u32);
        loop {
            match self.probe(client, answered).await {
                Ok(()) => {
                    answered = answered.wrapping_add(1);
                    lost = 0;
                    if let Some(why) = self.wait_for_next_probe().await {
                        answered = 0;
                        self.stop_using(why).await;
                    }
                }
                Err(ProbeError::TooMuch(why)) => {
                    answered = 0;
                    self.stop_using(why).await;
                }
                Err(ProbeError::Lost(cause)) => {
                    lost += 1;
                    if lost >= LOST_IN_A_ROW || answered == 0 {
                        // After a reconnect all checks run again.
                        answered = 0;
                        let is_unchanged =
                            matches!(&*self.link.borrow(), Link::Unreachable(before) if *before == cause);
                        if !is_unchanged {
                            tracing::warn!(cluster = %self.id, why = %cause, "a remote cluster does not answer");
                            self.set_link(Link::Unreachable(cause));
                        }
                    }
                    time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Waits for the next probe; returns the reason if the cluster exceeds its budget meanwhile.
    async fn wait_for_next_probe(&self) -> Option<String> {
        let budget = self
            .link
            .borrow()
            .connected()
            .map(|connected| connected.cluster.budget().clone());
        let Some(budget) = budget else {
            time::sleep(self.interval).await;
            return None;
        };
        time::timeout(self.interval, budget.exhausted()).await.ok()
    }

    /// Stops using a cluster that sends too much, drops its data, and pauses.
    async fn stop_using(&self, why: String) {
        let why = format!("it sends too much: {why}");
        tracing::warn!(cluster = %self.id, why, "a remote cluster is not used");
        self.set_link(Link::Refused(why));
        time::sleep(LIMIT_PAUSE).await;
    }

    async fn client(&self, access: &Access) -> Result<Client, String> {
        let vetted = vet(&access.text, access.allowed).map_err(|refused| refused.to_string())?;
        let text = serde_json::to_string(&vetted);
        let text = text.map_err(|error| format!("its kubeconfig cannot be used: {error}"))?;
        self.kubeconfig.get_or_init(|| text.into());
        remote_client(config_of(vetted).await?, &self.id, &self.calls)
            .map_err(|error| format!("cannot create a client: {error}"))
    }

    /// Probes whether the cluster answers, and now and then which rights the driver has there.
    async fn probe(&self, client: &Client, answered: u32) -> Result<(), ProbeError> {
        let version = self.version(client).await?;
        if !answered.is_multiple_of(RIGHTS_EVERY) {
            return Ok(());
        }
        let connect = |rights| {
            let (id, calls) = (self.id.clone(), self.calls.clone());
            Cluster::remote(id, &self.home, client.clone(), rights, calls)
        };
        let before = self
            .link
            .borrow()
            .connected()
            .map(|connected| connected.cluster.rights());
        let asked = connect(Rights::default());
        let rights = Rights::review_all(&asked, before)
            .await
            .map_err(|error| ProbeError::Lost(Cause::Unavailable(error.to_string())))?;
        let uid = match asked.uid().await {
            Err(error) if !error.is_transient() => None,
            // The uid becomes part of an object of the home cluster, so only a valid one is accepted.
            found => found
                .map_err(|error| ProbeError::Lost(error.cause))?
                .filter(|uid| is_uid(uid)),
        };
        if let Some(connected) = self.link.borrow().connected()
            && answered > 0
            && connected.cluster.rights() == rights
            && connected.version == version
            && connected.uid == uid
        {
            return Ok(());
        }
        let cluster = connect(rights);
        self.fill(&cluster).await?;
        tracing::info!(cluster = %self.id, version, ?rights, "a remote cluster answers");
        let kubeconfig = self.kubeconfig.get().cloned();
        self.set_link(Link::Up(Arc::new(Connected {
            cluster,
            version,
            uid,
            kubeconfig,
        })));
        Ok(())
    }

    /// Reads the version of its API server.
    async fn version(&self, client: &Client) -> Result<String, ProbeError> {
        let (began, Calls { timeout, metrics, .. }) = (time::Instant::now(), &self.calls);
        let answer = match time::timeout(*timeout, client.apiserver_version()).await {
            Err(_) => Err(Cause::Timeout(*timeout)),
            Ok(Err(kube::Error::Api(status))) if status.code == 401 => {
                Err(Cause::Unauthorized(short(&status.message)))
            }
            Ok(Err(error)) => Err(Cause::Unavailable(plain(&error))),
            Ok(Ok(info)) => Ok(short(&info.git_version)),
        };
        let outcome = answer.as_ref().map(|_| ());
        metrics.record(self.id.as_str(), "read", outcome, began.elapsed());
        answer.map_err(ProbeError::Lost)
    }

    /// Waits until the watched objects are listed, as long as there is progress: a large and distant cluster
    /// needs many pages.
    async fn fill(&self, cluster: &Cluster) -> Result<(), ProbeError> {
        let complete = cluster.views().complete();
        tokio::pin!(complete);
        loop {
            let before = cluster.budget().objects();
            tokio::select! {
                () = &mut complete => return Ok(()),
                why = cluster.budget().exhausted() => return Err(ProbeError::TooMuch(why)),
                () = time::sleep(self.calls.timeout * 3) => {}
            }
            if cluster.budget().objects() <= before {
                let why = "its classes, nodes and twins could not be listed in time";
                return Err(ProbeError::Lost(Cause::Unavailable(why.to_owned())));
            }
        }
    }

    /// Forwards changes of twins in the cluster, also during a probe.
    async fn forward_twin_changes(&self) {
        let mut links = self.link.subscribe();
        loop {
            let link = links.borrow_and_update().clone();
            let twins = link.connected().map(|connected| connected.cluster.twin_changes());
            // Twins may have changed before this subscription.
            self.twin_changes.notify();
            let pass_on = async {
                if let Some(mut twins) = twins {
                    while twins.changed().await.is_ok() {
                        self.twin_changes.notify();
                    }
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                changed = links.changed() => if changed.is_err() { return },
                () = pass_on => {}
            }
        }
    }

    fn set_link(&self, link: Link) {
        self.link.send_replace(link);
        self.changes.send_modify(|count| *count += 1);
    }
}

/// The configuration of a vetted kubeconfig.
pub(super) async fn config_of(vetted: Kubeconfig) -> Result<Config, String> {
    let proxied = vetted
        .clusters
        .iter()
        .filter_map(|entry| entry.cluster.as_ref())
        .any(|cluster| cluster.proxy_url.is_some());
    let config = Config::from_custom_kubeconfig(vetted, &KubeConfigOptions::default()).await;
    let mut config = config.map_err(|error| format!("its kubeconfig cannot be used: {error}"))?;
    if !proxied {
        // kube would take the proxy of this process's environment, which is not meant for this cluster.
        config.proxy_url = None;
    }
    Ok(config)
}

#[cfg(any(test, feature = "testkit"))]
impl Link {
    /// A connection to the cluster `milan`, which answers.
    pub async fn up(there: &crate::cluster::testing::FakeApi, rights: crate::cluster::Rights) -> Self {
        let system = there.object("/api/v1/namespaces/kube-system");
        let uid = system.and_then(|it| it["metadata"]["uid"].as_str().map(str::to_owned));
        Self::Up(Arc::new(Connected {
            cluster: there.remote_cluster("milan", rights).await,
            version: "v1.36.3".into(),
            uid,
            kubeconfig: Some("{}".into()),
        }))
    }
}

#[cfg(test)]
mod tests;
