//! The connection to one remote cluster: its kubeconfig vetted, a client made, and
//! then asked every now and then whether it answers and what we may do there.
//! Each has a task of its own, so that one that hangs holds up no other.

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
    volume::ClusterId,
};

/// Between two questions to a cluster that answers.
const REST: Duration = Duration::from_secs(15);
/// Between two questions to one that does not.
const RETRY: Duration = Duration::from_secs(3);
/// Rights change seldom: they are asked for every so many answers.
const RIGHTS_EVERY: u32 = 4;
/// Before a cluster that sends too much is looked at again.
const TOO_MUCH: Duration = Duration::from_mins(5);
/// A single answer that gets lost says little.
const LOST_IN_A_ROW: u32 = 2;

/// Counts what has changed about remote clusters.
pub(super) type Changes = watch::Sender<u64>;

/// How it is with the connection to a cluster.
#[derive(Clone)]
pub enum Link {
    /// It was not reached yet, and what is waited for.
    Connecting(String),
    /// It answers.
    Up(Arc<Connected>),
    /// It does not answer, and why.
    Unreachable(String),
    /// Its credentials cannot be used, and why.
    Refused(String),
    /// Its declaration is at odds with another one, and how.
    Disputed(String),
}

impl Link {
    /// The cluster, if it answers.
    fn connected(&self) -> Option<&Connected> {
        match self {
            Self::Up(connected) => Some(connected),
            Self::Connecting(_) | Self::Unreachable(_) | Self::Refused(_) | Self::Disputed(_) => None,
        }
    }
}

/// Why a cluster cannot be used after it was asked.
#[derive(Debug, PartialEq, Eq)]
enum Trouble {
    /// It does not answer as it should.
    Lost(String),
    /// It is larger than what is kept of one cluster.
    TooMuch(String),
}

impl From<String> for Trouble {
    fn from(why: String) -> Self {
        Self::Lost(why)
    }
}

/// A cluster that answers.
pub struct Connected {
    /// The cluster.
    pub cluster: Cluster,
    /// Version of its API server.
    pub version: String,
    /// The kubeconfig by which it is reached, as it was vetted.
    pub kubeconfig: Option<SecretString>,
}

/// The credentials of a cluster and what they may contain.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) text: Arc<[u8]>,
    pub(super) allowed: Allowed,
}

/// Connects, and watches over the connection until `stop`.
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
    let keeper = Keeper {
        changes,
        twin_changes,
        id,
        home,
        calls,
        rest: REST,
        link,
        kubeconfig: OnceLock::new(),
    };
    tokio::spawn(async move {
        stop.run_until_cancelled(Box::pin(keeper.keep(access))).await;
    });
    known
}

struct Keeper {
    changes: Changes,
    twin_changes: TwinChanges,
    id: ClusterId,
    home: ClusterId,
    calls: Calls,
    /// Between two questions to it while it answers.
    rest: Duration,
    link: watch::Sender<Link>,
    /// What was vetted of its credentials.
    kubeconfig: OnceLock<SecretString>,
}

impl Keeper {
    async fn keep(self, access: Access) {
        let client = match self.client(&access).await {
            Ok(client) => client,
            Err(why) => {
                tracing::warn!(cluster = %self.id, why, "the kubeconfig of a remote cluster is refused");
                return self.tell(Link::Refused(why));
            }
        };
        self.look_after(&client).await;
    }

    async fn look_after(&self, client: &Client) {
        tokio::select! {
            () = self.keep_asking(client) => {}
            () = self.pass_changes_on() => {}
        }
    }

    async fn keep_asking(&self, client: &Client) {
        let (mut answered, mut lost) = (0_u32, 0_u32);
        loop {
            match self.ask(client, answered).await {
                Ok(()) => {
                    answered = answered.wrapping_add(1);
                    lost = 0;
                    if let Some(why) = self.rest().await {
                        answered = 0;
                        self.give_up(why).await;
                    }
                }
                Err(Trouble::TooMuch(why)) => {
                    answered = 0;
                    self.give_up(why).await;
                }
                Err(Trouble::Lost(why)) => {
                    lost += 1;
                    if lost >= LOST_IN_A_ROW || answered == 0 {
                        // Whoever is back is asked everything again.
                        answered = 0;
                        let goes_on =
                            matches!(&*self.link.borrow(), Link::Unreachable(before) if *before == why);
                        if !goes_on {
                            tracing::warn!(cluster = %self.id, why, "a remote cluster does not answer");
                            self.tell(Link::Unreachable(why));
                        }
                    }
                    time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Rests until it is asked again; or says why it must not be used any longer.
    async fn rest(&self) -> Option<String> {
        let budget = self
            .link
            .borrow()
            .connected()
            .map(|connected| connected.cluster.budget().clone());
        let Some(budget) = budget else {
            time::sleep(self.rest).await;
            return None;
        };
        time::timeout(self.rest, budget.exhausted()).await.ok()
    }

    /// What sends too much is not used, and let go, until it may have been mended.
    async fn give_up(&self, why: String) {
        let why = format!("it sends too much: {why}");
        tracing::warn!(cluster = %self.id, why, "a remote cluster is not used");
        self.tell(Link::Refused(why));
        time::sleep(TOO_MUCH).await;
    }

    async fn client(&self, access: &Access) -> Result<Client, String> {
        let vetted = vet(&access.text, access.allowed).map_err(|refused| refused.to_string())?;
        let text = serde_json::to_string(&vetted);
        let text = text.map_err(|error| format!("its kubeconfig cannot be used: {error}"))?;
        self.kubeconfig.get_or_init(|| text.into());
        remote_client(config_of(vetted).await?, &self.id, &self.calls)
            .map_err(|error| format!("no client can be made: {error}"))
    }

    /// Asks whether the cluster answers, and now and then what we may do there.
    async fn ask(&self, client: &Client, answered: u32) -> Result<(), Trouble> {
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
        let rights = Rights::ask(&connect(Rights::default()), before)
            .await
            .map_err(|error| error.to_string())?;
        if let Some(connected) = self.link.borrow().connected()
            && answered > 0
            && connected.cluster.rights() == rights
            && connected.version == version
        {
            return Ok(());
        }
        let cluster = connect(rights);
        self.fill(&cluster).await?;
        tracing::info!(cluster = %self.id, version, ?rights, "a remote cluster answers");
        let kubeconfig = self.kubeconfig.get().cloned();
        self.tell(Link::Up(Arc::new(Connected {
            cluster,
            version,
            kubeconfig,
        })));
        Ok(())
    }

    /// Asks for the version of its API server: whether it answers at all.
    async fn version(&self, client: &Client) -> Result<String, Trouble> {
        let (began, Calls { timeout, metrics }) = (time::Instant::now(), &self.calls);
        let answer = match time::timeout(*timeout, client.apiserver_version()).await {
            Err(_) => Err(Cause::Timeout(*timeout)),
            Ok(Err(error)) => Err(Cause::Unavailable(plain(&error))),
            Ok(Ok(info)) => Ok(short(&info.git_version)),
        };
        let outcome = answer.as_ref().map(|_| ());
        metrics.record(self.id.as_str(), "read", outcome, began.elapsed());
        answer.map_err(|cause| Trouble::Lost(cause.to_string()))
    }

    /// Waits until what is watched there is listed, for as long as there is progress: a
    /// large cluster that is far away needs many pages.
    async fn fill(&self, cluster: &Cluster) -> Result<(), Trouble> {
        let complete = cluster.views().complete();
        tokio::pin!(complete);
        loop {
            let before = cluster.budget().objects();
            tokio::select! {
                () = &mut complete => return Ok(()),
                why = cluster.budget().exhausted() => return Err(Trouble::TooMuch(why)),
                () = time::sleep(self.calls.timeout * 3) => {}
            }
            if cluster.budget().objects() <= before {
                return Err("its classes, nodes and twins could not be listed in time"
                    .to_owned()
                    .into());
            }
        }
    }

    /// Passes on that twins there change, also while the cluster is asked something.
    async fn pass_changes_on(&self) {
        let mut links = self.link.subscribe();
        loop {
            let link = links.borrow_and_update().clone();
            let twins = link.connected().map(|connected| connected.cluster.twin_changes());
            // They may have changed before we listened.
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

    fn tell(&self, link: Link) {
        self.link.send_replace(link);
        self.changes.send_modify(|count| *count += 1);
    }
}

/// What a kubeconfig says, once it is vetted.
pub(super) async fn config_of(vetted: Kubeconfig) -> Result<Config, String> {
    let proxied = vetted
        .clusters
        .iter()
        .filter_map(|entry| entry.cluster.as_ref())
        .any(|cluster| cluster.proxy_url.is_some());
    let config = Config::from_custom_kubeconfig(vetted, &KubeConfigOptions::default()).await;
    let mut config = config.map_err(|error| format!("its kubeconfig cannot be used: {error}"))?;
    if !proxied {
        // kube takes the one of our environment, which nobody meant for this.
        config.proxy_url = None;
    }
    Ok(config)
}

#[cfg(any(test, feature = "testkit"))]
impl Link {
    /// The way to the cluster `milan`, which answers.
    pub async fn up(there: &crate::cluster::testing::FakeApi, rights: crate::cluster::Rights) -> Self {
        Self::Up(Arc::new(Connected {
            cluster: there.remote_cluster("milan", rights).await,
            version: "v1.36.3".into(),
            kubeconfig: Some("{}".into()),
        }))
    }
}

#[cfg(test)]
mod tests;
