//! Reports on claims that wait for a pod which may run in a remote cluster, and that this cluster does not serve: it
//! cannot be used, or has no real class for them. For such claims no capacity is published, so that no pod is sent
//! there and `CreateVolume`, which would report the reason, is never called. Without this loop the user would only
//! read that nodes "did not have enough free storage".

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};

use super::{
    Settings, mirror,
    reports::Reports,
    twin_condition::TwinCondition,
    watched::{Claim, Watched, of_class},
};
use crate::{
    cluster::{ApiError, Cluster},
    fleet::{Registry, Remote, Unreachable},
    placement::{BindingMode, Class, KnownClasses, NoClass, served, ways_out},
    rounds::Rounds,
    topology::Node,
    volume::{ClusterId, DRIVER_NAME},
};

/// How long a claim waits before the warning: most get a node within a moment.
const WARN_AFTER: Duration = Duration::from_secs(15);
const NO_CLASS: &str = "NoRealClass";
const UNREACHABLE: &str = "ClusterUnreachable";
const REFUSED: &str = "ClusterRefused";
const CLOSED: &str = "ClusterClosed";
/// The reasons of this loop in the condition of a claim.
pub(super) const REASONS: [&str; 4] = [NO_CLASS, UNREACHABLE, REFUSED, CLOSED];

/// Claims of a virtual class that get no real class in a remote cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unserved {
    pub(super) class: String,
    /// Whether no claim of the class gets one; otherwise only claims that name no class.
    pub(super) all: bool,
    /// Why, and what can be done.
    pub(super) message: String,
}

/// Why no volume can be created in a remote cluster, whatever the claim: the reason, and what can be done.
fn unusable(remote: &Remote) -> Option<(&'static str, String)> {
    let (reason, why) = match (remote.reach(), remote.closed()) {
        (Err(error @ Unreachable::Refused { .. }), _) => (REFUSED, error.to_string()),
        (Err(error), _) => (UNREACHABLE, error.to_string()),
        (Ok(_), Some(closed)) => (
            CLOSED,
            format!("the cluster {} accepts no new volumes: {closed}", remote.id),
        ),
        (Ok(_), None) => return None,
    };
    let way_out = "See liqo-csi clusters, or let the pod run in another cluster";
    Some((reason, format!("{why}. {way_out}")))
}

/// What is not served in a remote cluster that can be used, as far as it can be observed now.
pub(super) fn unserved(home: &Cluster, remote: &Remote, settings: &Settings) -> Vec<Unserved> {
    let Ok(cluster) = remote.reach() else {
        return Vec::new();
    };
    let seen = cluster.views().classes.clone();
    if remote.closed().is_some() || *seen.version().borrow() == 0 {
        return Vec::new();
    }
    let real: Vec<Class> = seen.all().iter().map(|it| Class::clone(it)).collect();
    let known = if cluster.rights().classes {
        KnownClasses::Listed(&real)
    } else {
        KnownClasses::Unreadable
    };
    let allowed = &settings.allowed_classes;
    let classes = home.views().classes.all();
    // Claims of Immediate classes are served at home, before they have a pod.
    let ours = classes.iter().filter(|class| {
        class.provisioner == DRIVER_NAME && class.binding == BindingMode::WaitForFirstConsumer
    });
    let mut unserved: Vec<Unserved> = ours
        .filter_map(|class| {
            let no_class = served(class, allowed, &remote.classes, known, &remote.id).err()?;
            let (all, who, error) = match no_class {
                NoClass::All(error) => (true, "claims", error),
                NoClass::Unnamed(error) => (false, "claims that name no real class", error),
            };
            let ways = ways_out(remote, &class.name, allowed);
            Some(Unserved {
                class: class.name.clone(),
                all,
                message: format!(
                    "{who} of the class {} cannot have volumes in the cluster {}: {error}. {ways}",
                    class.name, remote.id
                ),
            })
        })
        .collect();
    unserved.sort_by(|a, b| a.class.cmp(&b.class));
    unserved
}

/// Why a claim waits: one cluster that does not serve it.
struct Finding {
    cluster: ClusterId,
    reason: &'static str,
    message: String,
}

/// A cluster that does not serve all claims.
struct ClusterState {
    remote: Arc<Remote>,
    unusable: Option<(&'static str, String)>,
    unserved: Vec<Unserved>,
    /// The nodes that represent it.
    nodes: Vec<Arc<Node>>,
}

impl ClusterState {
    /// Why it does not serve the claim, if so: the reason and the message.
    fn refusal(&self, claim: &Claim) -> Option<(&'static str, &str)> {
        if let Some((reason, message)) = &self.unusable {
            return Some((reason, message));
        }
        let concerns =
            |one: &&Unserved| claim.class.as_ref() == Some(&one.class) && (one.all || !claim.names_class);
        let unserved = self.unserved.iter().find(concerns)?;
        Some((NO_CLASS, &unserved.message))
    }
}

/// The loop that reports on claims that wait.
pub(super) struct WaitingClaims<'a> {
    home: &'a Cluster,
    registry: &'a Registry,
    watched: &'a Watched,
    settings: &'a Settings,
    reports: Reports,
    /// Since when each claim waits.
    waiting: HashMap<String, Instant>,
}

impl<'a> WaitingClaims<'a> {
    pub(super) fn new(
        home: &'a Cluster,
        registry: &'a Registry,
        watched: &'a Watched,
        settings: &'a Settings,
        reports: Reports,
    ) -> Self {
        Self {
            home,
            registry,
            watched,
            settings,
            reports,
            waiting: HashMap::new(),
        }
    }

    /// Claims without a selected node, of the classes whose volumes are created when there is a pod.
    fn waiting_claims(&self) -> Vec<Arc<Claim>> {
        let classes = self.home.views().classes.all();
        let delayed = classes.iter().filter(|class| {
            class.provisioner == DRIVER_NAME && class.binding == BindingMode::WaitForFirstConsumer
        });
        let unbound = delayed.flat_map(|class| self.watched.claims.of_topic(&of_class(&class.name)));
        unbound
            .filter(|claim| claim.pending && !claim.has_node && !claim.deleting)
            .collect()
    }

    /// The clusters that do not serve all claims, if a claim waits.
    fn clusters(&self, claims: &[Arc<Claim>]) -> Vec<ClusterState> {
        if claims.is_empty() {
            return Vec::new();
        }
        let nodes = self.home.views().nodes.all();
        let states = self.registry.all().into_iter().map(|remote| ClusterState {
            unusable: unusable(&remote),
            unserved: unserved(self.home, &remote, self.settings),
            nodes: nodes
                .iter()
                .filter(|node| remote.nodes.admits(node) && !node.has_driver())
                .cloned()
                .collect(),
            remote,
        });
        states
            .filter(|it| it.unusable.is_some() || !it.unserved.is_empty())
            .collect()
    }

    /// The clusters that do not serve the claim although its pods may run there.
    fn findings(&self, claim: &Claim, clusters: &[ClusterState]) -> Vec<Finding> {
        let found = clusters.iter().filter_map(|cluster| {
            let (reason, message) = cluster.refusal(claim)?;
            self.may_go(claim, cluster).then(|| Finding {
                cluster: cluster.remote.id.clone(),
                reason,
                message: message.to_owned(),
            })
        });
        found.collect()
    }

    /// Whether a pod that waits for the claim may be scheduled to a node of the cluster, and its namespace is
    /// offloaded to it.
    fn may_go(&self, claim: &Claim, cluster: &ClusterState) -> bool {
        let ClusterState { remote, nodes, .. } = cluster;
        let namespace = &claim.name.namespace;
        let pods = self.watched.pods.of_topic(&claim.name.to_string());
        let mut pods = pods
            .iter()
            .filter(|pod| pod.node.is_none() && !pod.waits_for_claims_gate);
        remote.namespaces.remote(namespace, &remote.id).is_ok()
            && pods.any(|pod| nodes.iter().any(|node| pod.consumer.selects(node)))
    }

    async fn report(&mut self, claim: &Claim, found: &[Finding]) -> Result<(), ApiError> {
        let Some(first) = found.first() else {
            return Ok(());
        };
        let mark = claim.mark();
        for one in found {
            self.reports
                .warn_about(one.cluster.as_str(), &mark, one.reason, &one.message)
                .await;
        }
        let messages: Vec<&str> = found.iter().map(|one| one.message.as_str()).collect();
        let condition = TwinCondition {
            status: "False",
            reason: first.reason,
            message: &messages.join("; "),
        };
        mirror::condition(self.home, claim, &mark, &condition).await
    }

    /// Replaces the condition of the claim if it still says that a cluster does not serve it.
    async fn take_back(&self, claim: &Claim) -> Result<(), ApiError> {
        if !claim.twin_condition.as_ref().is_some_and(|it| it.says_unserved) {
            return Ok(());
        }
        let condition = TwinCondition {
            status: "Unknown",
            reason: "Waiting",
            message: "the claim waits for a node to be selected",
        };
        mirror::condition(self.home, claim, &claim.mark(), &condition).await
    }
}

impl Rounds for WaitingClaims<'_> {
    const NAME: &'static str = "unserved";
    const RESYNC: Duration = Duration::from_mins(5);

    fn due(&self) -> Option<Duration> {
        let left = self
            .waiting
            .values()
            .map(|since| WARN_AFTER.saturating_sub(since.elapsed()));
        left.filter(|left| !left.is_zero()).min()
    }

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        vec![
            self.watched.claims.version(),
            self.watched.pods.changes_of(|pod| pod.node.is_none()),
            self.home.views().classes.version(),
            self.registry.changes(),
        ]
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        let claims = self.waiting_claims();
        let clusters = self.clusters(&claims);
        let mut waiting = HashMap::new();
        for claim in &claims {
            let found = self.findings(claim, &clusters);
            if found.is_empty() {
                self.take_back(claim).await?;
                continue;
            }
            let since = self.waiting.get(&claim.uid).copied();
            let since = since.unwrap_or_else(Instant::now);
            waiting.insert(claim.uid.clone(), since);
            if since.elapsed() >= WARN_AFTER {
                self.report(claim, &found).await?;
            }
        }
        self.waiting = waiting;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
