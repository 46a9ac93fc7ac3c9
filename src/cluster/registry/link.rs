//! The connection to one remote cluster: its kubeconfig vetted, a client made, and
//! then asked every now and then whether it answers and what we may do there.
//! Each has a task of its own, so that one that hangs holds up no other.

use std::{sync::Arc, time::Duration};

use kube::{Client, Config, config::KubeConfigOptions};
use tokio::{sync::watch, time};
use tokio_util::sync::CancellationToken;

use super::Registry;
use crate::{
    cluster::{
        Cluster, Rights, api, connect,
        kubeconfig::{Allowed, vet},
    },
    volume::ClusterId,
};

/// Between two questions to a cluster that answers.
const REST: Duration = Duration::from_secs(15);
/// Between two questions to one that does not.
const RETRY: Duration = Duration::from_secs(3);
/// Rights change seldom: they are asked for every so many answers.
const RIGHTS_EVERY: u32 = 4;
/// A single answer that gets lost says little.
const LOST_IN_A_ROW: u32 = 2;

/// How it is with the connection to a cluster.
#[derive(Clone)]
pub enum Link {
    /// It was not reached yet, and what is waited for.
    Connecting(String),
    /// It answers.
    Up(Arc<Connected>),
    /// It does not answer, and why.
    Silent(String),
    /// Its credentials cannot be used, and why.
    Refused(String),
    /// Its declaration is at odds with another one, and how.
    Disputed(String),
}

/// A cluster that answers.
pub struct Connected {
    /// The cluster.
    pub cluster: Cluster,
    /// Version of its API server.
    pub version: String,
}

/// The credentials of a cluster and what they may contain.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) text: Arc<[u8]>,
    pub(super) allowed: Allowed,
}

/// Connects, and watches over the connection until `stop`.
pub(super) fn start(
    registry: Registry,
    id: ClusterId,
    home: ClusterId,
    way: Way,
    call_timeout: Duration,
    stop: CancellationToken,
) -> watch::Receiver<Link> {
    let (link, known) = watch::channel(Link::Connecting("it has not answered yet".to_owned()));
    let keeper = Keeper {
        registry,
        id,
        home,
        call_timeout,
        link,
    };
    tokio::spawn(async move {
        stop.run_until_cancelled(Box::pin(keeper.keep(way))).await;
    });
    known
}

struct Keeper {
    registry: Registry,
    id: ClusterId,
    home: ClusterId,
    call_timeout: Duration,
    link: watch::Sender<Link>,
}

impl Keeper {
    async fn keep(self, way: Way) {
        let client = match self.client(&way).await {
            Ok(client) => client,
            Err(why) => {
                tracing::warn!(cluster = %self.id, why, "the kubeconfig of a remote cluster is refused");
                return self.tell(Link::Refused(why));
            }
        };
        let (mut answered, mut lost) = (0_u32, 0_u32);
        loop {
            match self.ask(&client, answered).await {
                Ok(()) => {
                    answered = answered.wrapping_add(1);
                    lost = 0;
                    self.rest().await;
                }
                Err(why) => {
                    lost += 1;
                    if lost >= LOST_IN_A_ROW || answered == 0 {
                        // Whoever is back is asked everything again.
                        answered = 0;
                        tracing::warn!(cluster = %self.id, why, "a remote cluster does not answer");
                        self.tell(Link::Silent(why));
                    }
                    time::sleep(RETRY).await;
                }
            }
        }
    }

    async fn client(&self, way: &Way) -> Result<Client, String> {
        let vetted = vet(&way.text, way.allowed).map_err(|refused| refused.to_string())?;
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
        connect::client(config, self.call_timeout).map_err(|error| format!("no client can be made: {error}"))
    }

    /// Asks whether the cluster answers, and now and then what we may do there.
    async fn ask(&self, client: &Client, answered: u32) -> Result<(), String> {
        let version = time::timeout(self.call_timeout, client.apiserver_version()).await;
        let version = match version {
            Err(_) => return Err(format!("no answer within {:?}", self.call_timeout)),
            Ok(Err(error)) => return Err(api::chain(&error)),
            Ok(Ok(info)) => api::short(&info.git_version),
        };
        if !answered.is_multiple_of(RIGHTS_EVERY) {
            return Ok(());
        }
        let visitor =
            connect::nameless(client.clone(), self.call_timeout).map_err(|error| error.to_string())?;
        let rights = Rights::ask(&visitor).await.map_err(|error| error.to_string())?;
        if let Link::Up(connected) = &*self.link.borrow()
            && answered > 0
            && connected.cluster.rights() == rights
            && connected.version == version
        {
            return Ok(());
        }
        let (id, home) = (self.id.clone(), &self.home);
        let cluster = Cluster::remote(id, home, client.clone(), rights, self.call_timeout);
        let filled = time::timeout(self.call_timeout * 3, cluster.views().complete()).await;
        filled.map_err(|_| "its classes, nodes and twins could not be listed in time".to_owned())?;
        tracing::info!(cluster = %self.id, version, ?rights, "a remote cluster answers");
        self.tell(Link::Up(Arc::new(Connected { cluster, version })));
        Ok(())
    }

    /// Rests, and passes on that twins there change.
    async fn rest(&self) {
        let twins = match &*self.link.borrow() {
            Link::Up(connected) => Some(connected.cluster.views().twins.version()),
            Link::Connecting(_) | Link::Silent(_) | Link::Refused(_) | Link::Disputed(_) => None,
        };
        let until = time::Instant::now() + REST;
        let Some(mut twins) = twins else {
            return time::sleep_until(until).await;
        };
        twins.mark_unchanged();
        while let Ok(Ok(())) = time::timeout_at(until, twins.changed()).await {
            self.registry.stir();
        }
        time::sleep_until(until).await;
    }

    fn tell(&self, link: Link) {
        self.link.send_replace(link);
        self.registry.stir();
    }
}
