//! Warns on claims for which a remote cluster has no real class. For such claims no capacity may be
//! published, so that no pod is sent there and `CreateVolume`, which would report the reason, is never
//! called. Without this loop the user would only read that nodes "did not have enough free storage".

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use super::{
    Settings,
    reports::Reports,
    watched::{Claim, Watched},
};
use crate::{
    cluster::{ApiError, Cluster},
    fleet::{Registry, Remote},
    placement::{BindingMode, Class, KnownClasses, NoClass, served, ways_out},
    rounds::Rounds,
    volume::{ClaimMark, ClusterId, DRIVER_NAME},
};

/// How long a claim waits before the warning: most get a node within a moment.
const WARN_AFTER: Duration = Duration::from_secs(15);
const REASON: &str = "NoRealClass";

/// Claims of a virtual class that get no real class in a remote cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unserved {
    pub(super) class: String,
    /// Whether no claim of the class gets one; otherwise only claims that name no class.
    pub(super) all: bool,
    /// Why, and what can be done.
    pub(super) message: String,
}

/// What is not served in a remote cluster, as far as it can be observed now.
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

/// The loop that warns on claims.
pub(super) struct MissingClasses<'a> {
    home: &'a Cluster,
    registry: &'a Registry,
    watched: &'a Watched,
    settings: &'a Settings,
    reports: Reports,
    /// Since when each claim waits.
    waiting: HashMap<String, Instant>,
}

impl<'a> MissingClasses<'a> {
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

    /// Claims without a selected node, with each cluster that does not serve them, and why. Where their
    /// pods may run is not known here.
    fn unserved_claims(&self) -> Vec<(Arc<Claim>, ClusterId, String)> {
        let each = |remote: Arc<Remote>| {
            let unserved = unserved(self.home, &remote, self.settings).into_iter();
            unserved.map(|one| (Arc::clone(&remote), one)).collect::<Vec<_>>()
        };
        let unserved: Vec<_> = self.registry.all().into_iter().flat_map(each).collect();
        if unserved.is_empty() {
            return Vec::new();
        }
        let claims = self.watched.claims.all();
        let waiting = claims
            .into_iter()
            .filter(|claim| claim.pending && !claim.has_node && !claim.deleting);
        let by = |claim: Arc<Claim>| {
            let concerns = |(remote, one): &&(Arc<Remote>, Unserved)| {
                let there = remote.namespaces.remote(&claim.name.namespace, &remote.id);
                let is_unserved = one.all || !claim.names_class;
                claim.class.as_ref() == Some(&one.class) && is_unserved && there.is_ok()
            };
            let clusters = unserved.iter().filter(concerns);
            let warning = |(remote, one): &(Arc<Remote>, Unserved)| {
                (Arc::clone(&claim), remote.id.clone(), one.message.clone())
            };
            clusters.map(warning).collect::<Vec<_>>()
        };
        waiting.flat_map(by).collect()
    }
}

impl Rounds for MissingClasses<'_> {
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
            self.home.views().classes.version(),
            self.registry.changes(),
        ]
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        let claims = self.unserved_claims();
        let uids: HashSet<&str> = claims.iter().map(|(claim, ..)| claim.uid.as_str()).collect();
        self.waiting.retain(|uid, _| uids.contains(uid.as_str()));
        for (claim, cluster, message) in claims {
            let since = self.waiting.entry(claim.uid.clone()).or_insert_with(Instant::now);
            if since.elapsed() < WARN_AFTER {
                continue;
            }
            let mark = ClaimMark {
                namespace: claim.name.namespace.clone(),
                name: claim.name.name.clone(),
                uid: claim.uid.clone(),
            };
            self.reports
                .warn_about(cluster.as_str(), &mark, REASON, &message)
                .await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
