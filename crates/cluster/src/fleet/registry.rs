//! The current state of the remote clusters: which exist, which nodes represent them, and how each is
//! reached.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Deref,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use kube::Client;
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::watch;

use super::link::{Changes, Link, config_of};
use crate::{
    access::TokenFacts,
    cluster::{Cluster, plain, stream_client},
    placement::{Behind, Declared, behind},
    topology::Node,
    volume::ClusterId,
};

/// The remote clusters. Cheap to clone.
#[derive(Clone)]
pub struct Registry {
    remotes: watch::Sender<Arc<Remotes>>,
    /// Changes whenever anything about a remote cluster changes.
    changes: Changes,
    /// Changes whenever a twin in that cluster changes.
    twins: Arc<Mutex<BTreeMap<ClusterId, TwinChanges>>>,
    /// Changes whenever a twin in any of them changes.
    all_twins: Changes,
    /// The API groups whose declarations cannot be read; `None` before the first read.
    unread: watch::Sender<Option<BTreeSet<&'static str>>>,
}

type Remotes = BTreeMap<ClusterId, Arc<Remote>>;

/// Counts the changes of twins in a cluster.
#[derive(Clone)]
pub(super) struct TwinChanges {
    cluster: Changes,
    all: Changes,
}

impl TwinChanges {
    pub(super) fn notify(&self) {
        for changes in [&self.cluster, &self.all] {
            changes.send_modify(|count| *count += 1);
        }
    }
}

/// A remote cluster: its declaration and its connection.
pub struct Remote {
    pub(super) declared: Declared,
    /// Why no new volumes are created there, if so.
    pub(super) closed: Option<Closed>,
    pub(super) link: watch::Receiver<Link>,
    pub(super) access: Option<Arc<AccessFacts>>,
}

/// Facts about the credentials with which the driver reaches a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessFacts {
    /// The fingerprint of the kubeconfig that a user or a repository wrote.
    pub seed: String,
    /// The claims of the token in use, which the driver may have renewed; `None` if it does not belong to a
    /// service account.
    pub token: Option<TokenFacts>,
}

impl Deref for Remote {
    type Target = Declared;

    fn deref(&self) -> &Declared {
        &self.declared
    }
}

/// Why a cluster accepts no new volumes, while existing ones are still served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// Its declaration is being deleted, and waits for the existing volumes.
    Leaving,
    /// The classes, policy and protection in its `RemoteCluster` cannot be read.
    Unread,
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Leaving => "its RemoteCluster is being deleted",
            Self::Unread => "the RemoteClusters cannot be read, and the classes in this one are unknown",
        })
    }
}

/// Why a remote cluster cannot be used now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
    /// It is not declared, or not any more.
    #[error("the cluster {0} is not known to this driver: `liqo-csi clusters` lists the known ones")]
    Unknown(ClusterId),
    #[error("the cluster {cluster} ({object}) cannot be used: {why}")]
    Refused {
        cluster: ClusterId,
        object: String,
        why: String,
    },
    #[error("the cluster {cluster} was not reached yet: {why}")]
    Connecting { cluster: ClusterId, why: String },
    #[error("the cluster {cluster} is unreachable: {why}")]
    NoAnswer {
        cluster: ClusterId,
        /// The error of the last attempt.
        why: String,
    },
}

impl Remote {
    /// The cluster, if it can be reached.
    pub fn reach(&self) -> Result<Cluster, Unreachable> {
        let cluster = || self.id.clone();
        match self.link() {
            Link::Up(connected) => Ok(connected.cluster.clone()),
            Link::Connecting(why) => Err(Unreachable::Connecting {
                cluster: cluster(),
                why,
            }),
            Link::Refused(why) | Link::Disputed(why) => Err(Unreachable::Refused {
                cluster: cluster(),
                object: self.object.clone(),
                why,
            }),
            Link::Unreachable(cause) => Err(Unreachable::NoAnswer {
                cluster: cluster(),
                why: cause.to_string(),
            }),
        }
    }

    /// The vetted kubeconfig; `None` while the cluster does not answer.
    #[must_use]
    pub fn kubeconfig(&self) -> Option<SecretString> {
        match self.link() {
            Link::Up(connected) => connected.kubeconfig.clone(),
            Link::Connecting(_) | Link::Unreachable(_) | Link::Refused(_) | Link::Disputed(_) => None,
        }
    }

    /// A client of its API server for streams, without timeouts except for connecting: see
    /// [`stream_client`].
    pub async fn stream_client(&self, connect_timeout: Duration) -> Result<Client, Unreachable> {
        let refused = |why: String| Unreachable::Refused {
            cluster: self.id.clone(),
            object: self.object.clone(),
            why,
        };
        // The reason, if the cluster is not reached.
        self.reach()?;
        let text = self.kubeconfig();
        let text = text.ok_or_else(|| refused("its kubeconfig is not kept".to_owned()))?;
        let vetted = serde_json::from_str(text.expose_secret());
        // Errors of serde quote the input.
        let vetted = vetted.map_err(|_| refused("its kubeconfig cannot be read again".to_owned()))?;
        let config = config_of(vetted).await.map_err(refused)?;
        stream_client(config, connect_timeout)
            .map_err(|error| refused(format!("cannot create a client: {}", plain(&error))))
    }

    /// Why no new volumes are created there, if so.
    #[must_use]
    pub fn closed(&self) -> Option<Closed> {
        self.closed
    }

    /// Facts about its credentials; `None` while there are none.
    #[must_use]
    pub fn access(&self) -> Option<&AccessFacts> {
        self.access.as_deref()
    }

    /// The state of the connection. A cluster that is not the recorded one is refused: it lacks all twins, which
    /// would count as deleted or lost.
    #[must_use]
    pub fn link(&self) -> Link {
        let link = self.link.borrow().clone();
        if let (Link::Up(connected), Some(recorded)) = (&link, &self.uid)
            && let Some(uid) = connected.uid.as_ref().filter(|uid| *uid != recorded)
        {
            return Link::Refused(self.another_cluster(uid));
        }
        link
    }

    /// Why a cluster with this uid, which is not the recorded one, is not used, and the ways out.
    #[must_use]
    pub fn another_cluster(&self, uid: &str) -> String {
        let (id, object) = (&self.id, &self.object);
        let way_out = match self.fabric {
            None => format!(
                "run liqo-csi disconnect {id} --local-only --the-cluster-is-gone, and connect this one afterwards"
            ),
            Some(_) => format!("delete the RemoteCluster {id}, which is then created again for this one"),
        };
        format!(
            "the kubeconfig of {id} leads to another cluster than before (its namespace kube-system has the uid {uid}), which does \
             not have what was created in {id}, so its answers are ignored. Give {object} the kubeconfig of the one before or, if \
             that is gone for good, {way_out}"
        )
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.declared.fmt(f)
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self {
            remotes: watch::Sender::default(),
            changes: watch::Sender::new(0),
            twins: Arc::default(),
            all_twins: watch::Sender::new(0),
            unread: watch::Sender::default(),
        }
    }
}

impl Registry {
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Remote>> {
        self.remotes.borrow().values().cloned().collect()
    }

    pub fn get(&self, id: &ClusterId) -> Result<Arc<Remote>, Unreachable> {
        let known = self.remotes.borrow().get(id).cloned();
        known.ok_or_else(|| Unreachable::Unknown(id.clone()))
    }

    /// The kind of a node of the home cluster, with the cluster that it represents.
    #[must_use]
    pub fn behind(&self, node: &Node) -> NodeKind {
        if node.has_driver() {
            return NodeKind::Real;
        }
        let remotes = self.remotes.borrow();
        match behind(node, remotes.values().map(|remote| &remote.declared)) {
            Behind::Itself => NodeKind::Real,
            Behind::Remote(declared) => match remotes.get(&declared.id) {
                Some(remote) => NodeKind::Virtual(Arc::clone(remote)),
                None => NodeKind::Real,
            },
            Behind::Disputed(ids) => {
                let names: Vec<&str> = ids.into_iter().map(ClusterId::as_str).collect();
                NodeKind::Disputed(names.join(", "))
            }
        }
    }

    /// Changes whenever anything about a remote cluster changes, except for the twins there.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Changes whenever a twin in this cluster changes, also after it is connected again.
    #[must_use]
    pub fn twin_changes(&self, cluster: &ClusterId) -> watch::Receiver<u64> {
        // In one step, or the counter may be dropped before it has a subscriber.
        self.with_twins(cluster, |twins| twins.cluster.subscribe())
    }

    /// Changes whenever a twin in any remote cluster changes.
    #[must_use]
    pub fn all_twin_changes(&self) -> watch::Receiver<u64> {
        self.all_twins.subscribe()
    }

    /// Whether all declarations were read: before that, a missing cluster may exist.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.unread().is_some_and(|groups| groups.is_empty())
    }

    /// The API groups of installed fabrics whose objects cannot be read; `None` while they may not have been
    /// read yet.
    #[must_use]
    pub fn unread(&self) -> Option<BTreeSet<&'static str>> {
        self.unread.borrow().clone()
    }

    /// For links, to signal a change of their state.
    pub(super) fn notifier(&self) -> Changes {
        self.changes.clone()
    }

    /// For the link to a cluster, to signal a change of a twin there.
    pub(super) fn twin_notifier(&self, cluster: &ClusterId) -> TwinChanges {
        self.with_twins(cluster, TwinChanges::clone)
    }

    fn with_twins<T>(&self, cluster: &ClusterId, read: impl FnOnce(&TwinChanges) -> T) -> T {
        let mut twins = self.twins.lock().unwrap_or_else(PoisonError::into_inner);
        let known = twins.entry(cluster.clone()).or_insert_with(|| TwinChanges {
            cluster: watch::Sender::new(0),
            all: self.all_twins.clone(),
        });
        read(known)
    }

    pub(super) fn replace(&self, remotes: Remotes, unread: BTreeSet<&'static str>) {
        let mut twins = self.twins.lock().unwrap_or_else(PoisonError::into_inner);
        twins.retain(|id, changes| remotes.contains_key(id) || changes.cluster.receiver_count() > 0);
        drop(twins);
        self.remotes.send_replace(Arc::new(remotes));
        self.unread.send_replace(Some(unread));
        self.changes.send_modify(|count| *count += 1);
    }
}

#[derive(Clone, Debug)]
pub enum NodeKind {
    /// A real node.
    Real,
    /// A virtual node of this cluster.
    Virtual(Arc<Remote>),
    /// A node that the declarations of several clusters select.
    Disputed(String),
}

#[cfg(any(test, feature = "testkit"))]
impl Registry {
    /// A registry of clusters that do not change.
    pub fn fixed(remotes: impl IntoIterator<Item = (Declared, Link)>) -> Self {
        Self::partial(remotes, [])
    }

    /// The same clusters, all being deleted.
    #[must_use]
    pub fn leaving(self) -> Self {
        let leaving = |remote: Arc<Remote>| Remote {
            declared: remote.declared.clone(),
            closed: Some(Closed::Leaving),
            link: remote.link.clone(),
            access: remote.access.clone(),
        };
        let remotes = self.all().into_iter().map(leaving);
        let remotes = remotes.map(|remote| (remote.id.clone(), Arc::new(remote)));
        self.replace(remotes.collect(), BTreeSet::new());
        self
    }

    /// The same clusters with these credentials.
    #[must_use]
    pub fn with_access(self, access: &AccessFacts) -> Self {
        let reached = |remote: Arc<Remote>| Remote {
            declared: remote.declared.clone(),
            closed: remote.closed,
            link: remote.link.clone(),
            access: Some(Arc::new(access.clone())),
        };
        let remotes = self.all().into_iter().map(reached);
        let remotes = remotes.map(|remote| (remote.id.clone(), Arc::new(remote)));
        self.replace(remotes.collect(), BTreeSet::new());
        self
    }

    /// The same registry, where the objects of some fabrics cannot be read.
    pub fn partial(
        remotes: impl IntoIterator<Item = (Declared, Link)>,
        unread: impl IntoIterator<Item = &'static str>,
    ) -> Self {
        let registry = Self::default();
        let known = remotes.into_iter().map(|(declared, link)| {
            let remote = Remote {
                declared,
                closed: None,
                access: None,
                link: watch::Sender::new(link).subscribe(),
            };
            (remote.id.clone(), Arc::new(remote))
        });
        registry.replace(known.collect(), unread.into_iter().collect());
        registry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_counted_for_known_clusters_and_for_subscribers() {
        let milan: ClusterId = "milan".parse().unwrap();
        let registry = Registry::fixed([(Declared::plain("milan"), Link::Connecting(String::new()))]);
        let subscriber = registry.twin_changes(&milan);
        registry.replace(BTreeMap::new(), BTreeSet::new());
        // The cluster may be declared again.
        registry.twin_notifier(&milan).notify();
        assert!(subscriber.has_changed().unwrap());
        drop(subscriber);
        registry.replace(BTreeMap::new(), BTreeSet::new());
        assert!(registry.twins.lock().unwrap().is_empty());
    }
}
