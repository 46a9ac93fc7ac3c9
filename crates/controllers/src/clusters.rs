//! Every remote cluster has a `RemoteCluster`: an administrator creates it to declare the cluster, or
//! this loop creates it for a discovered cluster. The loop writes the state of the cluster to the status,
//! on which no decision is based.
//!
//! A `RemoteCluster` that declares a cluster has a finalizer while volumes, snapshots or unfinished twins
//! exist there, and its status names them: without it their data could not be deleted. One that this loop
//! created, and that no user has edited, is deleted with the last volume once the fabric no longer
//! declares the cluster.

mod report;
mod status;

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use kube::{ResourceExt, api::ObjectMeta};
use serde_json::json;
use tokio::{sync::watch, time::Instant};

use self::{
    report::{ClusterReport, Moves, claims_in, mover_of, report, unfinished},
    status::RemainingObjects,
};
use super::{Metrics, Settings, watched::Watched};
use crate::{
    api::{
        remote_cluster::{DiscoveringFabric, RemoteCluster, RemoteClusterSpec, RemoteClusterStatus},
        volume_move::VolumeMove,
    },
    cluster::{
        ApiError, Cause, Cluster, Objects, Precondition, has_finalizer,
        slim::Volume,
        unless_conflict,
        view::{Changed, Feed, Slim},
    },
    fleet::{Link, Registry, Remote},
    observe::crash::{self, Step},
    queue::Queue,
    rounds::Rounds,
    volume::{ClusterId, mark},
};

/// Blocks the deletion of a `RemoteCluster` while objects of this driver exist in the cluster.
const FINALIZER: &str = "storage.liqo.io/volumes";

/// The loop that reconciles `RemoteCluster`s.
pub(super) struct Clusters<'a> {
    reconciler: Reconciler<'a>,
    metrics: &'a Metrics,
    objects: Feed<RemoteCluster>,
    volumes: Feed<Volume>,
    /// Changes that concern all clusters.
    shared: Vec<watch::Receiver<u64>>,
    twins: HashMap<ClusterId, watch::Receiver<u64>>,
    /// When to reconcile all clusters again.
    all: Instant,
    /// The clusters to reconcile.
    queue: Queue,
    has_failed: bool,
}

/// Reconciles the object of one cluster.
struct Reconciler<'a> {
    home: &'a Cluster,
    registry: &'a Registry,
    watched: &'a Watched,
    settings: &'a Settings,
}

impl<'a> Clusters<'a> {
    pub(super) fn new(
        home: &'a Cluster,
        registry: &'a Registry,
        watched: &'a Watched,
        settings: &'a Settings,
        metrics: &'a Metrics,
    ) -> Self {
        let views = home.views();
        let shared = [registry.changes(), views.nodes.version(), views.classes.version()];
        Self {
            metrics,
            objects: views.remote_clusters.feed(),
            volumes: watched.volumes.feed(),
            shared: shared.into(),
            twins: HashMap::new(),
            all: Instant::now(),
            queue: Queue::default(),
            has_failed: false,
            reconciler: Reconciler {
                home,
                registry,
                watched,
                settings,
            },
        }
    }

    /// Queues the clusters about which something has changed: their object, their volumes, or twins where
    /// no volumes are. Queues all of them after a change that concerns all, and at every resync.
    fn queue_changes(&mut self) {
        let changes = (self.objects.take(), self.volumes.take());
        let concerns_all = self.shared.iter().any(|it| it.has_changed().unwrap_or(true));
        let (Changed::These(objects), Changed::These(volumes), false, true) =
            (changes.0, changes.1, concerns_all, self.all > Instant::now())
        else {
            return self.queue_all();
        };
        for object in objects {
            self.queue.add(object.topic());
        }
        for volume in volumes.iter().filter_map(|volume| volume.as_virtual()) {
            if volume.cluster != *self.reconciler.home.id() {
                self.queue.add(volume.cluster.as_str());
            }
        }
        for (id, twins) in &mut self.twins {
            let has_changed = twins.has_changed().unwrap_or(true);
            twins.mark_unchanged();
            if has_changed && self.reconciler.volumes(id) == 0 {
                self.queue.add(id.as_str());
            }
        }
    }

    fn queue_all(&mut self) {
        self.all = Instant::now() + Self::RESYNC;
        self.shared.iter_mut().for_each(watch::Receiver::mark_unchanged);
        let Reconciler { home, registry, .. } = &self.reconciler;
        let remotes = registry.all();
        let is_ready = |remote: &Remote| matches!(remote.link(), Link::Up(_));
        let reachable = remotes
            .iter()
            .map(|remote| (remote.id.as_str(), is_ready(remote)));
        self.metrics.reachable(reachable);
        let expiry = remotes.iter().filter_map(|remote| {
            let token = remote.access()?.token.as_ref()?;
            Some((remote.id.as_str(), token.expires?))
        });
        self.metrics.expiry(expiry);
        self.twins.retain(|id, _| registry.get(id).is_ok());
        for remote in &remotes {
            self.queue.add(remote.id.as_str());
            let twins = self.twins.entry(remote.id.clone());
            twins
                .or_insert_with(|| registry.twin_changes(&remote.id))
                .mark_unchanged();
        }
        for object in home.views().remote_clusters.all() {
            self.queue.add(object.topic());
        }
    }
}

impl Reconciler<'_> {
    async fn reconcile(&self, name: &str, unread: &BTreeSet<&'static str>) -> Result<(), ApiError> {
        let id: Option<ClusterId> = name.parse().ok();
        let remote = id.and_then(|id| self.registry.get(&id).ok());
        if let Some(remote) = remote {
            let report = report(self.home, &remote, self.settings);
            return self.reconcile_declared(&report).await;
        }
        match self.home.views().remote_clusters.get(name) {
            Some(object) => self.reconcile_undeclared(&object, unread).await,
            None => Ok(()),
        }
    }

    fn all(&self) -> Objects<RemoteCluster> {
        self.home.all()
    }

    /// The number of volumes in a remote cluster.
    fn volumes(&self, id: &ClusterId) -> usize {
        if id == self.home.id() {
            return 0;
        }
        self.watched.volumes.count_of_topic(id.as_str())
    }

    /// The claims of twins in a cluster that are not handed over, or that a move has left there; or why
    /// they are not known.
    async fn unfinished(&self, remote: &Remote) -> Result<Result<Vec<String>, String>, ApiError> {
        let twins = match remote.reach() {
            Ok(cluster) => cluster.all_twins(),
            Err(why) => return Ok(Err(why.to_string())),
        };
        let moves = if twins.iter().any(|twin| mover_of(twin).is_some()) {
            self.moves(&remote.id).await?
        } else {
            Moves::default()
        };
        Ok(Ok(unfinished(&twins, &moves)))
    }

    async fn moves(&self, id: &ClusterId) -> Result<Moves, ApiError> {
        match self.home.all::<VolumeMove>().list(None).await {
            Ok(all) => Ok(Moves::of(&all, id)),
            Err(error) if matches!(error.cause, Cause::NotFound(_)) => Ok(Moves::default()),
            Err(error) => Err(error),
        }
    }

    async fn remaining(&self, object: &RemoteCluster, id: &ClusterId) -> Result<RemainingObjects, ApiError> {
        let remote = self.registry.get(id);
        let volumes = self.volumes(id);
        let snapshots = self.watched.snapshots.in_cluster(id);
        let has_snapshots = snapshots.as_ref().is_some_and(|all| !all.is_empty());
        let is_leaving = object.metadata.deletion_timestamp.is_some();
        let declares = object.spec.discovered_from.is_none();
        Ok(RemainingObjects {
            volumes,
            snapshots,
            claims: if is_leaving && volumes > 0 {
                claims_in(self.watched, id)
            } else {
                Vec::new()
            },
            unfinished: match &remote {
                Ok(remote) if declares && volumes == 0 && !has_snapshots => self.unfinished(remote).await?,
                Ok(_) | Err(_) => Ok(Vec::new()),
            },
            disputed: remote.is_ok_and(|remote| matches!(remote.link(), Link::Disputed(_))),
        })
    }

    /// Reconciles the object of a declared cluster.
    async fn reconcile_declared(&self, report: &ClusterReport) -> Result<(), ApiError> {
        let discovered = report
            .fabric
            .and_then(|fabric| DiscoveringFabric::named(fabric.name));
        let known = self.home.views().remote_clusters.get(report.id.as_str());
        let Some(object) = &known else {
            return match discovered {
                Some(fabric) => self.create(&report.id, fabric).await,
                // The RemoteCluster was deleted a moment ago.
                None => Ok(()),
            };
        };
        if let (Some(fabric), Some(from)) = (discovered, &object.spec.discovered_from)
            && from.fabric != fabric
        {
            let patch = json!({
                "metadata": {"uid": object.uid(), "resourceVersion": object.resource_version()},
                "spec": {"discoveredFrom": {"fabric": fabric}},
            });
            let (all, name) = (self.all(), object.name_any());
            let written = crash::around(Step::ClusterWrite, all.merge(&name, &patch)).await;
            unless_conflict(written)?;
        }
        let remaining = self.remaining(object, &report.id).await?;
        if discovered.is_none() && !self.reconcile_finalizer(object, &remaining).await? {
            return Ok(());
        }
        self.record_uid(object, report).await?;
        self.write(object, &status::declared(object, report, &remaining))
            .await
    }

    /// Records the uid of the cluster, so that another one that its kubeconfig leads to later is refused. The fabric
    /// records those of its clusters, because no two may be the same.
    async fn record_uid(&self, object: &RemoteCluster, report: &ClusterReport) -> Result<(), ApiError> {
        let is_known = object.spec.fabric.is_some() || object.cluster_uid().is_some();
        // The registry may still have the connection of a deleted RemoteCluster of this name.
        let is_of_another = report.object_uid.is_some() && report.object_uid != object.uid();
        let Some(uid) = report.uid.as_ref().filter(|_| !is_known && !is_of_another) else {
            return Ok(());
        };
        let patch = json!({
            "metadata": {"uid": object.uid(), "resourceVersion": object.resource_version()},
            "status": {"virtualNode": {"clusterUid": uid}},
        });
        let (all, name) = (self.all(), object.name_any());
        let written = crash::around(Step::ClusterWrite, all.merge_status(&name, &patch)).await;
        unless_conflict(written).map(drop)
    }

    /// Reconciles an object whose cluster no fabric declares.
    async fn reconcile_undeclared(
        &self,
        object: &RemoteCluster,
        unread: &BTreeSet<&'static str>,
    ) -> Result<(), ApiError> {
        let Some(from) = &object.spec.discovered_from else {
            return Ok(());
        };
        let untouched = mark::manager(object.labels()) == Some(mark::MANAGED_BY_US)
            && object.spec == RemoteClusterSpec::discovered(from.fabric);
        let unread = unread.contains(from.fabric.api_group());
        let id: Option<ClusterId> = object.name_any().parse().ok();
        let id = id.filter(|id| id != self.home.id());
        let claims = id
            .as_ref()
            .map_or_else(Vec::new, |id| claims_in(self.watched, id));
        let snapshots = match &id {
            Some(id) => self.watched.snapshots.in_cluster(id),
            None => Some(Vec::new()),
        };
        let is_empty = claims.is_empty() && snapshots.as_ref().is_some_and(Vec::is_empty);
        if untouched && is_empty && !unread {
            let exactly = Precondition {
                uid: object.uid().unwrap_or_default(),
                resource_version: object.resource_version(),
            };
            let (all, name) = (self.all(), object.name_any());
            let deleted = crash::around(Step::ClusterWrite, all.delete(&name, exactly)).await;
            return unless_conflict(deleted.map(Some)).map(drop);
        }
        let snapshots = snapshots.unwrap_or_default();
        let status = status::undeclared(object, &claims, &snapshots, unread);
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
            // An id may be valid as a label but not as the name of an object: the cluster is used without one.
            tracing::warn!(cluster = %id, %error, "a discovered cluster cannot have a RemoteCluster");
            return Ok(());
        }
        created?;
        tracing::info!(cluster = %id, ?fabric, "created the RemoteCluster of a discovered cluster");
        Ok(())
    }

    /// Adds or removes the finalizer of a declaration as required; false if the caller has to stop here.
    async fn reconcile_finalizer(
        &self,
        object: &RemoteCluster,
        remaining: &RemainingObjects,
    ) -> Result<bool, ApiError> {
        let present = has_finalizer(object, FINALIZER);
        let leaving = object.metadata.deletion_timestamp.is_some();
        if present == remaining.needs_finalizer(present, leaving) || (leaving && !present) {
            return Ok(true);
        }
        let all = self.all();
        let changed = crash::around(Step::ClusterWrite, all.set_finalizer(object, FINALIZER, !present)).await;
        unless_conflict(changed)?;
        // The view will show the new version, which triggers another reconciliation.
        Ok(false)
    }

    async fn write(&self, object: &RemoteCluster, status: &RemoteClusterStatus) -> Result<(), ApiError> {
        if object.status.as_ref() == Some(status) {
            return Ok(());
        }
        let all = self.all();
        let written = all.merge_status_of(object, status::patch(status));
        crash::around(Step::ClusterWrite, written).await.map(drop)
    }
}

impl Rounds for Clusters<'_> {
    const NAME: &'static str = "clusters";
    const RESYNC: Duration = Duration::from_mins(1);

    fn due(&self) -> Option<Duration> {
        self.queue.left()
    }

    fn has_failed(&self) -> bool {
        self.has_failed
    }

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        let Reconciler {
            home,
            registry,
            watched,
            ..
        } = &self.reconciler;
        let here = home.id().clone();
        let elsewhere = move |volume: &Volume| volume.as_virtual().is_some_and(|it| it.cluster != here);
        let mut triggers = self.shared.clone();
        triggers.extend([
            registry.all_twin_changes(),
            home.views().remote_clusters.version(),
            watched.volumes.changes_of(elsewhere),
        ]);
        triggers
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        let Reconciler { home, registry, .. } = self.reconciler;
        let Some(unread) = registry.unread() else {
            return Ok(());
        };
        self.reconciler.watched.snapshots.watch_if_installed(home).await;
        self.metrics.fabrics_unread(&unread);
        self.queue_changes();
        if *home.views().remote_clusters.version().borrow() == 0 {
            // The first list, once complete, triggers the next round.
            return Ok(());
        }
        let reconciler = &self.reconciler;
        let reconcile = async |name: String| reconciler.reconcile(&name, &unread).await;
        self.has_failed = !self.queue.work(reconcile).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
