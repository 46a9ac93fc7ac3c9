//! Every remote cluster is a `RemoteCluster`: an administrator declares it by one, or this
//! loop makes one for a cluster that a fabric declares. It says in its status how it is with
//! the cluster. Nothing is ever decided by what is written there.
//!
//! One that declares a cluster is held while volumes live there, or twins that became none,
//! and says which they are: without it nobody could delete their data. One that was made
//! here, and says no more than that, goes with the last volume when its fabric declares the
//! cluster no longer.

mod report;
mod status;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use kube::{Api, ResourceExt, api::ObjectMeta, runtime::watcher};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::{
    report::{ClusterReport, State, claims_in, reports, unfinished},
    status::Holdings,
};
use super::{
    Metrics, Settings,
    rounds::{Rounds, each},
    watched::Watched,
};
use crate::{
    api::remote_cluster::{DiscoveringFabric, RemoteCluster, RemoteClusterSpec, RemoteClusterStatus},
    cluster::{
        ApiError, Cause, Cluster, Lean, Objects, Precondition, has_finalizer, unless_conflict,
        view::{Slim, View},
    },
    fleet::{Link, Registry},
    observe::crash::{self, Step},
    placement::Fabric,
    volume::{ClusterId, mark},
};

/// Keeps a `RemoteCluster` while something of ours is there.
const FINALIZER: &str = "storage.liqo.io/volumes";

/// The loop that keeps them.
pub(super) struct Clusters<'a> {
    home: &'a Cluster,
    registry: &'a Registry,
    watched: &'a Watched,
    settings: &'a Settings,
    metrics: &'a Metrics,
    objects: View<Known>,
    _stops: DropGuard,
}

/// A `RemoteCluster` as it was seen.
#[derive(PartialEq)]
struct Known(RemoteCluster);

impl Slim for Known {
    fn topic(&self) -> &str {
        self.0.metadata.name.as_deref().unwrap_or_default()
    }
}

impl<'a> Clusters<'a> {
    pub(super) fn new(
        home: &'a Cluster,
        registry: &'a Registry,
        watched: &'a Watched,
        settings: &'a Settings,
        metrics: &'a Metrics,
    ) -> Self {
        let stop = CancellationToken::new();
        let all: Api<Lean<RemoteCluster>> = Api::all(home.client().clone());
        let known = |object| Some(Known(object));
        Self {
            home,
            registry,
            watched,
            settings,
            metrics,
            objects: View::start(all, watcher::Config::default(), known, &stop),
            _stops: stop.drop_guard(),
        }
    }

    fn all(&self) -> Objects<RemoteCluster> {
        self.home.all()
    }

    fn object(&self, id: &ClusterId) -> Option<Arc<Known>> {
        self.objects.get(id.as_str())
    }

    /// How many volumes live in a remote cluster.
    fn volumes(&self, id: &ClusterId) -> usize {
        if id == self.home.id() {
            return 0;
        }
        self.watched.count_in(id)
    }

    fn holdings(&self, object: &RemoteCluster, id: &ClusterId) -> Holdings {
        let remote = self.registry.get(id);
        let volumes = self.volumes(id);
        let is_leaving = object.metadata.deletion_timestamp.is_some();
        let declares = object.spec.discovered_from.is_none();
        Holdings {
            volumes,
            claims: if is_leaving && volumes > 0 {
                claims_in(self.watched, id)
            } else {
                Vec::new()
            },
            unfinished: match &remote {
                Ok(remote) if declares && volumes == 0 => unfinished(remote),
                Ok(_) | Err(_) => Ok(Vec::new()),
            },
            disputed: remote.is_ok_and(|remote| matches!(remote.link(), Link::Disputed(_))),
        }
    }

    /// The object of a cluster that is declared.
    async fn reconcile_declared(&self, report: &ClusterReport) -> Result<(), ApiError> {
        let discovered = discovered_from(report.fabric);
        let Some(known) = self.object(&report.id) else {
            return match discovered {
                Some(fabric) => self.create(&report.id, fabric).await,
                // It was deleted a moment ago.
                None => Ok(()),
            };
        };
        let Known(object) = &*known;
        if let (Some(fabric), Some(from)) = (discovered, &object.spec.discovered_from)
            && from.fabric != fabric
        {
            let patch = json!({"spec": {"discoveredFrom": {"fabric": fabric}}});
            let (all, name) = (self.all(), object.name_any());
            crash::around(Step::ClusterWrite, all.merge(&name, &patch)).await?;
        }
        let holdings = self.holdings(object, &report.id);
        if discovered.is_none() && !self.hold(object, &holdings).await? {
            return Ok(());
        }
        self.write(object, &status::declared(object, report, &holdings))
            .await
    }

    /// An object of a cluster that no fabric declares.
    async fn reconcile_undeclared(
        &self,
        object: &RemoteCluster,
        unread: &BTreeSet<&'static str>,
    ) -> Result<(), ApiError> {
        let Some(from) = &object.spec.discovered_from else {
            return Ok(());
        };
        let untouched = object.labels().get(mark::MANAGED_BY).map(String::as_str)
            == Some(mark::MANAGED_BY_US)
            && object.spec == RemoteClusterSpec::discovered(from.fabric);
        let unread = unread.contains(from.fabric.api_group());
        let id = object.name_any().parse().ok().filter(|id| self.volumes(id) > 0);
        let claims = id.map_or_else(Vec::new, |id| claims_in(self.watched, &id));
        if untouched && claims.is_empty() && !unread {
            let exactly = Precondition {
                uid: object.uid().unwrap_or_default(),
                resource_version: object.resource_version(),
            };
            let (all, name) = (self.all(), object.name_any());
            let deleted = crash::around(Step::ClusterWrite, all.delete(&name, exactly)).await;
            return unless_conflict(deleted.map(Some)).map(drop);
        }
        let status = status::undeclared(object, &claims, unread);
        self.write(object, &status).await
    }

    async fn create(&self, id: &ClusterId, fabric: DiscoveringFabric) -> Result<(), ApiError> {
        let mut object = RemoteCluster::new(id.as_str(), RemoteClusterSpec::discovered(fabric));
        object.metadata = ObjectMeta {
            labels: Some([(mark::MANAGED_BY.to_owned(), mark::MANAGED_BY_US.to_owned())].into()),
            ..object.metadata
        };
        let created = crash::around(Step::ClusterWrite, self.all().create(&object)).await;
        if let Err(error) = &created
            && matches!(error.cause, Cause::Invalid(_))
        {
            // An id may be a label that is no name of an object: it is used without one.
            tracing::warn!(cluster = %id, %error, "a cluster that was found cannot have a RemoteCluster");
            return Ok(());
        }
        created?;
        tracing::info!(cluster = %id, ?fabric, "a cluster was found: it has a RemoteCluster now");
        Ok(())
    }

    /// Keeps the finalizer of a declaration as it should be; false if there is no more to do.
    async fn hold(&self, object: &RemoteCluster, holdings: &Holdings) -> Result<bool, ApiError> {
        let held = has_finalizer(object, FINALIZER);
        let leaving = object.metadata.deletion_timestamp.is_some();
        if held == holdings.hold(held, leaving) || (leaving && !held) {
            return Ok(true);
        }
        let all = self.all();
        let changed = crash::around(Step::ClusterWrite, all.set_finalizer(object, FINALIZER, !held)).await;
        unless_conflict(changed)?;
        // Its new version is seen soon.
        Ok(false)
    }

    async fn write(&self, object: &RemoteCluster, status: &RemoteClusterStatus) -> Result<(), ApiError> {
        if object.status.as_ref() == Some(status) {
            return Ok(());
        }
        let (all, name, patch) = (self.all(), object.name_any(), status::patch(status));
        let written = crash::around(Step::ClusterWrite, all.merge_status(&name, &patch)).await;
        written.map(drop)
    }
}

fn discovered_from(fabric: Fabric) -> Option<DiscoveringFabric> {
    match fabric {
        Fabric::Native => None,
        Fabric::Liqo => Some(DiscoveringFabric::Liqo),
        Fabric::Kosmos => Some(DiscoveringFabric::Kosmos),
    }
}

impl Rounds for Clusters<'_> {
    const NAME: &'static str = "clusters";
    const RESYNC: Duration = Duration::from_mins(1);

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        vec![
            self.registry.changes(),
            self.objects.version(),
            self.watched.volumes.version(),
            self.home.views().nodes.version(),
            self.home.views().classes.version(),
        ]
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        let Some(unread) = self.registry.unread() else {
            return Ok(());
        };
        let reports = reports(self.home, self.registry, self.settings);
        self.metrics.fabrics_unread(&unread);
        let reachable = reports
            .iter()
            .map(|report| (report.id.as_str(), report.state == State::Ready));
        self.metrics.reachable(reachable);
        if *self.objects.version().borrow() == 0 {
            // It is to be looked at when they were listed.
            return Ok(());
        }
        let this = &*self;
        let reconciled = each(&reports, async |report| this.reconcile_declared(report).await).await;
        let declared: BTreeSet<&str> = reports.iter().map(|report| report.id.as_str()).collect();
        let objects = self.objects.all();
        let others = objects.iter().filter(|known| !declared.contains(known.topic()));
        let others = each(others, async |known| {
            this.reconcile_undeclared(&known.0, &unread).await
        })
        .await;
        reconciled.and(others)
    }
}

#[cfg(test)]
mod tests;
