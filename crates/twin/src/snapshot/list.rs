//! Lists snapshots, read live. Users see only those that are cut. csi-snapshotter requests one by its id,
//! which is read by its name; only users list them all.

use std::collections::HashMap;

use kube::ResourceExt;

use super::{SnapshotReadError, TakenSnapshot, observation::cut, site::SnapshotSite};
use crate::{
    cluster::{Cause, Cluster, Objects, snapshots::VolumeSnapshot},
    fleet::{Registry, Remote},
    volume::{ClusterId, SnapshotId, SnapshotKey, SnapshotMarks, mark},
};

/// Which snapshots to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotFilter<'a> {
    All,
    /// The snapshots of the volume with this id.
    Of(&'a str),
}

/// The snapshot with this id, if it is cut.
pub async fn find_snapshot(
    home: &Cluster,
    registry: &Registry,
    id: &SnapshotId,
) -> Result<Option<TakenSnapshot>, SnapshotReadError> {
    let Some(site) = SnapshotSite::of(home, registry, id).await? else {
        return Ok(None);
    };
    let found = site.snapshots().get(&site.name()).await?;
    Ok(found.and_then(|twin| {
        let marks = site.recognise(&twin).ok()?;
        cut(site.id(), marks, &twin)
    }))
}

/// The snapshots, in the order of their ids. Those of unreachable clusters are left out: a partial list
/// is more useful than an error, although those snapshots still exist.
pub async fn list_snapshots(
    home: &Cluster,
    registry: &Registry,
    filter: SnapshotFilter<'_>,
) -> Result<Vec<TakenSnapshot>, SnapshotReadError> {
    let ours = mark::snapshot_selector(home.id());
    let twins = match home.stored::<VolumeSnapshot>().list(Some(&ours)).await {
        // The kinds of snapshots are not installed.
        Err(error) if matches!(error.cause, Cause::NotFound(_)) => Vec::new(),
        other => other?,
    };
    let mut snapshots: Vec<TakenSnapshot> =
        twins.iter().filter_map(|twin| listed(home, home, twin)).collect();
    for remote in registry.all() {
        let Ok(cluster) = remote.reach() else { continue };
        for place in places(&cluster, &remote) {
            match place.list(Some(&ours)).await {
                Ok(twins) => snapshots.extend(twins.iter().filter_map(|twin| listed(home, &cluster, twin))),
                Err(error) if matches!(error.cause, Cause::NotFound(_)) => {}
                Err(error) => tracing::warn!(%error, "a list lacks the snapshots of a remote cluster"),
            }
        }
    }
    if let SnapshotFilter::Of(source) = filter {
        snapshots.retain(|one| one.source == source);
    }
    snapshots.sort_by_cached_key(|one| one.id.to_string());
    Ok(snapshots)
}

/// The uids of the twins in a cluster that are not being deleted, by the key of their snapshot; none from
/// namespaces that may not be listed.
pub async fn living_twins(
    home: &Cluster,
    registry: &Registry,
    cluster: &ClusterId,
) -> HashMap<SnapshotKey, String> {
    let ours = mark::snapshot_selector(home.id());
    let places = if cluster == home.id() {
        vec![home.stored()]
    } else {
        let remote = registry.get(cluster).ok();
        let reached = remote.and_then(|remote| Some((remote.reach().ok()?, remote)));
        reached.map_or_else(Vec::new, |(cluster, remote)| places(&cluster, &remote))
    };
    let mut living = HashMap::new();
    for place in places {
        let alive = |twin: VolumeSnapshot| {
            let marks = SnapshotMarks::read(twin.labels(), twin.annotations()).ok()?;
            let is_alive = twin.metadata.deletion_timestamp.is_none();
            is_alive.then(|| (marks.key, twin.uid().unwrap_or_default()))
        };
        match place.pick(Some(&ours), None, alive).await {
            Ok(twins) => living.extend(twins),
            Err(error) => {
                tracing::debug!(%error, "failed to list the twins of snapshots: reading them one by one");
            }
        }
    }
    living
}

/// The collections of a remote cluster that may contain our snapshots and that we may read.
pub(super) fn places(cluster: &Cluster, remote: &Remote) -> Vec<Objects<VolumeSnapshot>> {
    if cluster.rights().all_claims {
        return vec![cluster.all()];
    }
    let named = remote.namespaces.named();
    named.map(|namespace| cluster.within(namespace)).collect()
}

fn listed(home: &Cluster, cluster: &Cluster, twin: &VolumeSnapshot) -> Option<TakenSnapshot> {
    let marks = SnapshotMarks::read(twin.labels(), twin.annotations()).ok()?;
    if twin.metadata.deletion_timestamp.is_some() || twin.name_any() != marks.key.twin() {
        return None;
    }
    let namespace = twin.namespace();
    let namespace = namespace.as_deref().filter(|_| home.id() != cluster.id());
    let id = SnapshotId::new(cluster.id().clone(), namespace, marks.key.clone());
    cut(id, marks, twin)
}
