//! Where the twin of a snapshot is: beside the twin of its volume, since snapshots do not
//! leave their namespace. How long something there is waited for is said here, too.

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
    observation::{is_cut, said_about},
};
use crate::{
    Site,
    cluster::{
        ApiError, Cluster, Lean, Objects,
        snapshots::{VolumeSnapshot, VolumeSnapshotContent},
    },
    fleet::{Registry, Remote},
    volume::{ForeignSnapshot, SnapshotId, SnapshotKey, SnapshotMarks, SnapshotPlace, mark},
};

/// The longest time without a look of one's own.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Between looks where nothing can be watched.
const PAUSE: Duration = Duration::from_secs(1);

/// Where the twin of a snapshot is.
#[derive(Clone)]
pub(crate) struct SnapshotSite {
    home: Cluster,
    cluster: Cluster,
    is_home: bool,
    /// Whether data there is to survive that somebody else deletes its twin.
    protect: bool,
    namespace: String,
    key: SnapshotKey,
}

impl SnapshotSite {
    /// Beside the twin of a volume.
    pub(super) fn beside(site: &Site, key: SnapshotKey) -> Self {
        Self {
            home: site.home().clone(),
            cluster: site.cluster().clone(),
            is_home: site.remote_cluster().is_none(),
            protect: site.remote_cluster().is_none_or(|remote| remote.protect),
            namespace: site.namespace().to_owned(),
            key,
        }
    }

    /// Where an id leads; `None` if the snapshot is seen to be nowhere.
    pub(crate) async fn of(
        home: &Cluster,
        registry: &Registry,
        id: &SnapshotId,
    ) -> Result<Option<Self>, SnapshotSiteError> {
        let at = |cluster: &Cluster, remote: Option<&Remote>, namespace: String| Self {
            home: home.clone(),
            cluster: cluster.clone(),
            is_home: remote.is_none(),
            protect: remote.is_none_or(|remote| remote.protect),
            namespace,
            key: id.key.clone(),
        };
        if id.cluster == *home.id() {
            // No other place of this cluster is in any id of ours.
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
        Ok(namespace.map(|namespace| at(&cluster, Some(&remote), namespace)))
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    pub(super) fn home(&self) -> &Cluster {
        &self.home
    }

    /// Whether its data is kept if somebody else deletes the twin: Kubernetes deletes it at once
    /// then, and no finalizer of the twin holds it up, so it is retained as long as it is there.
    pub(super) fn keeps_data(&self) -> bool {
        self.protect && self.cluster.rights().snapshot_contents
    }

    /// Name of its cluster, for people.
    pub(crate) fn cluster_name(&self) -> String {
        self.cluster.id().to_string()
    }

    /// Name of the twin.
    pub(crate) fn name(&self) -> String {
        self.key.twin()
    }

    /// Name of the content that Kubernetes made for the user's snapshot.
    pub(crate) fn user_content_name(&self) -> Option<String> {
        self.key.content()
    }

    /// Namespace and name of the twin, for people.
    pub(crate) fn place(&self) -> String {
        format!("{}/{}", self.namespace, self.name())
    }

    pub(super) fn id(&self) -> SnapshotId {
        let namespace = (!self.is_home).then_some(self.namespace.as_str());
        SnapshotId::new(self.cluster.id().clone(), namespace, self.key.clone())
    }

    /// The snapshots of its namespace.
    pub(crate) fn snapshots(&self) -> Objects<VolumeSnapshot> {
        self.cluster.within(&self.namespace)
    }

    /// The contents of its cluster.
    pub(crate) fn contents(&self) -> Objects<VolumeSnapshotContent> {
        self.cluster.all()
    }

    /// The marks of what is there, if it is the twin.
    pub(crate) fn recognise(&self, found: &VolumeSnapshot) -> Result<SnapshotMarks, ForeignSnapshot> {
        SnapshotMarks::recognise(self.home.id(), &self.key, found.labels(), found.annotations())
    }

    /// Waits until the twin is gone, or another one than was `seen` where that matters; false when
    /// time is up. It is only a hint: whoever is woken reads for himself. The watch begins at what
    /// was seen, without a list: of a kind that seldom changes the API server lists only once its
    /// cache is known to be current, which takes a tenth of a second.
    pub(super) async fn changed(&self, seen: Option<&VolumeSnapshot>, deadline: Instant) -> bool {
        let look_again = deadline.min(Instant::now() + LOOK_AGAIN);
        let told = tokio::time::timeout_at(look_again, self.is_told(seen));
        if let Ok(false) = told.await {
            // It may not be watched, or not now.
            tokio::time::sleep_until(look_again.min(Instant::now() + PAUSE)).await;
        }
        Instant::now() < deadline
    }

    /// Whether a watch says that the twin is gone or has changed; false when the watch has ended.
    async fn is_told(&self, seen: Option<&VolumeSnapshot>) -> bool {
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
                    if is_other(seen, &now) {
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

/// Whether a twin has changed in what a call waits for, or is told when it has waited in vain.
fn is_other(seen: &VolumeSnapshot, now: &VolumeSnapshot) -> bool {
    let state = |twin: &VolumeSnapshot| {
        let deleting = twin.metadata.deletion_timestamp.is_some();
        (deleting, is_cut(twin), said_about(twin))
    };
    state(seen) != state(now)
}

/// The namespace whose name is too long for an id. Where it is offloaded no more, it is looked
/// for among the snapshots that are there: nothing else has its name.
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
    if cluster.rights().all_claims {
        return Ok(None);
    }
    Err(SnapshotSiteError::Unknown(format!(
        "the id {id} names its namespace in the cluster {} by a hash, and none of those that are offloaded now has it",
        cluster.id()
    )))
}

async fn listed(place: &Objects<VolumeSnapshot>, labels: &str) -> Result<Vec<VolumeSnapshot>, ApiError> {
    place.list(Some(labels)).await
}
