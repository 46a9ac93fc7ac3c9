//! The snapshots of users, from their contents, by the cluster of their twins. Only a content with a
//! handle counts: without one there is no data to lose.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Api, ResourceExt, runtime::watcher};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    cluster::{
        Cluster,
        snapshots::{SNAPSHOT_GROUP, VolumeSnapshotContent, not_installed},
        view::{Slim, View},
    },
    volume::{ClusterId, DRIVER_NAME, SnapshotId},
};

/// How long to wait for the first list.
const FIRST_LIST: Duration = Duration::from_secs(5);

/// The contents of this driver's snapshots. Their kind may be installed later, or never.
pub(super) struct Snapshots {
    contents: View<Content>,
    is_installed: AtomicBool,
    _stops: DropGuard,
}

/// The content of a snapshot. Its topic is the cluster of the twin.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Content {
    cluster: ClusterId,
    /// Namespace and name of the user's snapshot.
    snapshot: String,
    pub(super) name: String,
    /// The id of the snapshot, which names the place of its data.
    pub(super) id: SnapshotId,
    uid: Option<String>,
    pub(super) deleting: bool,
}

impl Content {
    pub(super) fn user(&self) -> ObjectReference {
        let (namespace, name) = match self.snapshot.split_once('/') {
            Some((namespace, name)) => (Some(namespace.to_owned()), name),
            None => (None, self.snapshot.as_str()),
        };
        ObjectReference {
            api_version: Some(format!("{SNAPSHOT_GROUP}/v1")),
            kind: Some("VolumeSnapshot".to_owned()),
            namespace,
            name: Some(name.to_owned()),
            uid: self.uid.clone(),
            ..ObjectReference::default()
        }
    }
}

impl Slim for Content {
    fn topic(&self) -> &str {
        self.cluster.as_str()
    }
}

impl Snapshots {
    pub(super) fn start(home: &Cluster) -> Self {
        let stop = CancellationToken::new();
        let all = Api::all(home.client().clone());
        Self {
            contents: View::start(all, watcher::Config::default(), |it| content(&it), &stop),
            is_installed: AtomicBool::new(false),
            _stops: stop.drop_guard(),
        }
    }

    /// Starts the watch, once the kind is installed.
    pub(super) async fn watch_if_installed(&self, home: &Cluster) {
        if self.is_installed.load(Ordering::Relaxed) || not_installed(home).await {
            return;
        }
        self.is_installed.store(true, Ordering::Relaxed);
        let _listed = tokio::time::timeout(FIRST_LIST, self.contents.complete()).await;
    }

    /// The contents known so far of the snapshots whose twins are in a cluster.
    pub(super) fn contents_in(&self, cluster: &ClusterId) -> Vec<Arc<Content>> {
        self.contents.of_topic(cluster.as_str())
    }

    pub(super) fn version(&self) -> watch::Receiver<u64> {
        self.contents.version()
    }

    /// Names of the snapshots whose twins are in a cluster; `None` if they are not known.
    pub(super) fn in_cluster(&self, cluster: &ClusterId) -> Option<Vec<String>> {
        if !self.is_installed.load(Ordering::Relaxed) {
            return Some(Vec::new());
        }
        if *self.contents.version().borrow() == 0 {
            return None;
        }
        let there = self.contents.of_topic(cluster.as_str());
        let mut names: Vec<String> = there.iter().map(|content| content.snapshot.clone()).collect();
        names.sort();
        Some(names)
    }
}

fn content(content: &VolumeSnapshotContent) -> Option<Content> {
    let id: SnapshotId = content.handle()?.parse().ok()?;
    let user = &content.spec.volume_snapshot_ref;
    let snapshot = match (&user.namespace, &user.name) {
        (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
        _ => content.name_any(),
    };
    (content.spec.driver == DRIVER_NAME).then_some(Content {
        cluster: id.cluster.clone(),
        snapshot,
        name: content.name_any(),
        id,
        uid: user.uid.clone(),
        deleting: content.metadata.deletion_timestamp.is_some(),
    })
}
