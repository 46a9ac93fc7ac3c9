//! Where the twin of a snapshot is: in the namespace of its volume's twin, since a snapshot is always of
//! a claim in its own namespace. Also waits for changes there.

use std::{pin::pin, sync::Arc, time::Duration};

use futures::StreamExt;
use kube::{
    Api, ResourceExt,
    api::{WatchEvent, WatchParams},
};
use tokio::time::Instant;

use super::{
    SnapshotSiteError,
    list::places,
    observation::{is_cut, reported_error},
};
use crate::{
    Site,
    cluster::{
        ApiError, Cluster, Lean, Objects,
        snapshots::{VolumeSnapshot, VolumeSnapshotContent},
    },
    fleet::{Registry, Remote},
    identity::is_other,
    volume::{ForeignSnapshot, SnapshotId, SnapshotKey, SnapshotMarks, SnapshotPlace, mark},
};

/// The longest time between two reads.
const RECHECK: Duration = Duration::from_secs(5);
/// Time between reads where a watch is not possible.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(crate) struct SnapshotSite {
    home: Cluster,
    cluster: Cluster,
    /// The remote cluster; `None` at home.
    remote: Option<Arc<Remote>>,
    namespace: String,
    key: SnapshotKey,
}

impl SnapshotSite {
    /// The site of a snapshot: the namespace of the volume's twin.
    pub(super) fn of_source(site: &Site, key: SnapshotKey) -> Self {
        Self {
            home: site.home().clone(),
            cluster: site.cluster().clone(),
            remote: site.remote_cluster().cloned(),
            namespace: site.namespace().to_owned(),
            key,
        }
    }

    /// The site that an id names; `None` if the snapshot exists nowhere.
    pub(crate) async fn of(
        home: &Cluster,
        registry: &Registry,
        id: &SnapshotId,
    ) -> Result<Option<Self>, SnapshotSiteError> {
        let at = |cluster: &Cluster, remote: Option<Arc<Remote>>, namespace: String| Self {
            home: home.clone(),
            cluster: cluster.clone(),
            remote,
            namespace,
            key: id.key.clone(),
        };
        if id.cluster == *home.id() {
            // This driver's ids name no other place in the home cluster.
            let is_there = id.place == SnapshotPlace::Home;
            return Ok(is_there.then(|| at(home, None, home.storage_namespace().to_owned())));
        }
        let remote = registry.get(&id.cluster)?;
        let cluster = remote.reach()?;
        let namespace = match &id.place {
            SnapshotPlace::Home => None,
            SnapshotPlace::Namespace(name) => Some(name.clone()),
            SnapshotPlace::Hashed(_) => hashed(home, &remote, &cluster, id).await?,
        };
        Ok(namespace.map(|namespace| at(&cluster, Some(remote), namespace)))
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    pub(crate) fn home(&self) -> &Cluster {
        &self.home
    }

    /// Whether the data is retained while the snapshot exists: if another client deletes the twin,
    /// Kubernetes deletes the data at once, and no finalizer of the twin delays that.
    pub(super) fn keeps_data(&self) -> bool {
        let wanted = self.remote.as_ref().is_none_or(|remote| remote.protect);
        wanted && self.cluster.rights().snapshot_contents
    }

    /// Why what its cluster lacks may exist nevertheless.
    pub(super) async fn other_cluster(&self) -> Result<Option<String>, ApiError> {
        match &self.remote {
            Some(remote) => is_other(&self.home, &self.cluster, remote).await,
            None => Ok(None),
        }
    }

    /// Name of its cluster, for messages.
    pub(crate) fn cluster_name(&self) -> String {
        self.cluster.id().to_string()
    }

    pub(crate) fn name(&self) -> String {
        self.key.twin()
    }

    /// Name of the content that Kubernetes created for the user's snapshot.
    pub(crate) fn user_content_name(&self) -> Option<String> {
        self.key.content()
    }

    /// Namespace and name of the twin, for messages.
    pub(crate) fn place(&self) -> String {
        format!("{}/{}", self.namespace, self.name())
    }

    pub(crate) fn id(&self) -> SnapshotId {
        let namespace = self.remote.is_some().then_some(self.namespace.as_str());
        SnapshotId::new(self.cluster.id().clone(), namespace, self.key.clone())
    }

    pub(crate) fn snapshots(&self) -> Objects<VolumeSnapshot> {
        self.cluster.within(&self.namespace)
    }

    pub(crate) fn contents(&self) -> Objects<VolumeSnapshotContent> {
        self.cluster.all()
    }

    /// The marks of an object, if it is the twin.
    pub(crate) fn recognise(&self, found: &VolumeSnapshot) -> Result<SnapshotMarks, ForeignSnapshot> {
        SnapshotMarks::recognise(self.home.id(), &self.key, found.labels(), found.annotations())
    }

    /// Waits until the twin is deleted or differs from `seen` in a relevant way; false when the deadline
    /// has passed. The watch is only a hint: the caller reads the twin again. It starts at the version
    /// that was seen, without a list: for a kind that seldom changes the API server answers a list only
    /// once its cache is known to be current, which takes a tenth of a second.
    pub(super) async fn changed(&self, seen: Option<&VolumeSnapshot>, deadline: Instant) -> bool {
        let recheck = deadline.min(Instant::now() + RECHECK);
        let changed = tokio::time::timeout_at(recheck, self.watch_change(seen));
        if let Ok(false) = changed.await {
            // The twin cannot be watched, or not now.
            tokio::time::sleep_until(recheck.min(Instant::now() + PAUSE)).await;
        }
        Instant::now() < deadline
    }

    /// Whether a watch reports that the twin is deleted or has changed; false when the watch has ended.
    async fn watch_change(&self, seen: Option<&VolumeSnapshot>) -> bool {
        let Some((seen, version)) = seen.and_then(|seen| Some((seen, seen.resource_version()?))) else {
            return false;
        };
        let twins: Api<Lean<VolumeSnapshot>> =
            Api::namespaced(self.cluster.client().clone(), &self.namespace);
        let this = WatchParams::default().fields(&format!("metadata.name={}", self.name()));
        let Ok(events) = twins.watch(&this, &version).await else {
            return false;
        };
        let mut events = pin!(events);
        while let Some(Ok(event)) = events.next().await {
            match event {
                WatchEvent::Added(Lean(now)) | WatchEvent::Modified(Lean(now)) => {
                    if differs(seen, &now) {
                        return true;
                    }
                }
                WatchEvent::Deleted(_) => return true,
                WatchEvent::Bookmark(_) => {}
                WatchEvent::Error(_) => return false,
            }
        }
        false
    }
}

/// Whether a twin has changed in what a call waits for, or reports when the deadline has passed.
fn differs(seen: &VolumeSnapshot, now: &VolumeSnapshot) -> bool {
    let state = |twin: &VolumeSnapshot| {
        let deleting = twin.metadata.deletion_timestamp.is_some();
        (deleting, is_cut(twin), reported_error(twin))
    };
    state(seen) != state(now)
}

/// The namespace whose name is too long for an id. If it is not offloaded any more, it is looked up among
/// the existing snapshots: only those record its name.
async fn hashed(
    home: &Cluster,
    remote: &Arc<Remote>,
    cluster: &Cluster,
    id: &SnapshotId,
) -> Result<Option<String>, SnapshotSiteError> {
    if let Some(named) = remote.namespaces.named().find(|name| id.place.is(name)) {
        return Ok(Some(named.to_owned()));
    }
    let ours = format!("{},{}={}", mark::selector(home.id()), mark::SNAPSHOT, id.key);
    for place in places(cluster, remote) {
        let found = listed(&place, &ours).await?;
        let namespaces = found.iter().filter_map(ResourceExt::namespace);
        if let Some(namespace) = namespaces.into_iter().find(|name| id.place.is(name)) {
            return Ok(Some(namespace));
        }
    }
    let unknown = if cluster.rights().all_claims {
        is_other(home, cluster, remote).await?
    } else {
        Some(format!(
            "the id {id} names its namespace in the cluster {} by a hash, and no namespace that is offloaded now has that hash",
            cluster.id()
        ))
    };
    unknown.map_or(Ok(None), |why| Err(SnapshotSiteError::Unknown(why)))
}

async fn listed(place: &Objects<VolumeSnapshot>, labels: &str) -> Result<Vec<VolumeSnapshot>, ApiError> {
    place.list(Some(labels)).await
}
