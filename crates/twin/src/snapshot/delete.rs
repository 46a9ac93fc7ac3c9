//! `DeleteSnapshot`: deletes the twin, which Kubernetes keeps until its data is deleted. Everything
//! that a deletion depends on is read live.

use std::time::Duration;

use kube::ResourceExt;
use tokio::time::Instant;

use super::{
    SnapshotDeleteError, SnapshotSiteError,
    observation::{contents_with_id, reported_error, user_content},
    retain::{PolicyRestore, restore_policy, retained_content, would_be_deleted},
    site::SnapshotSite,
};
use crate::{
    cluster::{
        ApiError, Cluster, Precondition,
        events::Events,
        held_by,
        snapshots::{VolumeSnapshot, VolumeSnapshotContent},
    },
    fleet::Registry,
    observe::crash::{self, Step},
    volume::{SnapshotId, SnapshotImport},
};

/// How long the snapshot-controller may need to see a changed deletion policy. If it still sees Retain
/// when the twin is deleted, the content stays, and nothing ever deletes it; if it sees Delete, the data
/// is deleted.
pub const CONTROLLER_SEES: Duration = Duration::from_secs(1);

/// Deletes the snapshot, or continues to.
pub async fn delete_snapshot(
    home: &Cluster,
    registry: &Registry,
    events: &Events,
    id: &SnapshotId,
    deadline: Instant,
) -> Result<(), SnapshotDeleteError> {
    let deleted = match SnapshotSite::of(home, registry, id).await {
        Ok(Some(site)) => delete_at(&site, deadline).await,
        Ok(None) => Ok(()),
        Err(unknown) => Err(unknown.into()),
    };
    if let Err(error) = &deleted {
        warn_user(home, id, events, error).await;
    }
    deleted
}

async fn delete_at(site: &SnapshotSite, deadline: Instant) -> Result<(), SnapshotDeleteError> {
    loop {
        let found = site.snapshots().get(&site.name()).await.map_err(rejected)?;
        let Some(twin) = found else {
            return check_data_deleted(site).await;
        };
        if let Err(foreign) = site.recognise(&twin) {
            return Err(SnapshotDeleteError::Foreign {
                twin: site.place(),
                cluster: site.cluster_name(),
                foreign,
            });
        }
        if twin.metadata.deletion_timestamp.is_none() {
            if let Some(content) = imported_from(site).await? {
                return Err(SnapshotDeleteError::Importing { content });
            }
            match restore_policy(site, &twin).await.map_err(rejected)? {
                PolicyRestore::Restored => tokio::time::sleep(CONTROLLER_SEES).await,
                PolicyRestore::Unnecessary => delete_twin(site, &twin).await.map_err(rejected)?,
            }
            if Instant::now() < deadline {
                continue;
            }
        }
        if !site.changed(Some(&twin), deadline).await {
            return Err(still_exists(site, &twin).await);
        }
    }
}

/// Checks that the data is deleted, too, when the twin does not exist: if another client deleted the
/// twin, the data may be retained.
async fn check_data_deleted(site: &SnapshotSite) -> Result<(), SnapshotDeleteError> {
    if let Some(why) = site.other_cluster().await? {
        return Err(SnapshotSiteError::Unknown(why).into());
    }
    for user in user_contents(site.home(), &site.id()).await? {
        match retained_content(site, &user).await.map_err(rejected)? {
            Some(content) if would_be_deleted(&content) => {
                return Err(SnapshotDeleteError::LeftBehind {
                    twin: site.place(),
                    cluster: site.cluster_name(),
                    content: content.name_any(),
                });
            }
            // The class of the real snapshot retains it.
            Some(_) | None => {}
        }
    }
    Ok(())
}

/// The contents of the snapshot's users: the one that Kubernetes created or, if there is none, all with the
/// id of the snapshot.
async fn user_contents(home: &Cluster, id: &SnapshotId) -> Result<Vec<VolumeSnapshotContent>, ApiError> {
    match user_content(home, &id.key).await? {
        Some(content) => Ok(vec![content]),
        None => contents_with_id(home, id).await,
    }
}

/// The content from which a snapshot is being imported: until that ends, it has the same data.
async fn imported_from(site: &SnapshotSite) -> Result<Option<String>, ApiError> {
    if site.user_content_name().is_some() {
        // The snapshot was created by a request, not imported.
        return Ok(None);
    }
    let key = site.id().key;
    let is_its = |content: &VolumeSnapshotContent| {
        let record = SnapshotImport::read(content.annotations()).ok().flatten();
        record.is_some_and(|record| record.key() == key)
    };
    let contents = site.home().all::<VolumeSnapshotContent>();
    let found = contents.find(is_its).await?;
    Ok(found.first().map(ResourceExt::name_any))
}

async fn delete_twin(site: &SnapshotSite, twin: &VolumeSnapshot) -> Result<(), ApiError> {
    let exactly = Precondition {
        uid: twin.uid().unwrap_or_default(),
        resource_version: None,
    };
    let (snapshots, name) = (site.snapshots(), twin.name_any());
    match crash::around(Step::SnapshotDelete, snapshots.delete(&name, exactly)).await {
        Err(error) if error.is_conflict() => Ok(()),
        other => other,
    }
}

fn rejected(error: ApiError) -> SnapshotDeleteError {
    if error.is_forbidden() {
        SnapshotDeleteError::NotAccepted(error)
    } else {
        SnapshotDeleteError::Api(error)
    }
}

async fn still_exists(site: &SnapshotSite, twin: &VolumeSnapshot) -> SnapshotDeleteError {
    let uid = twin.uid().unwrap_or_default();
    let warning = site.cluster().newest_warning(site.namespace(), &uid).await;
    SnapshotDeleteError::StillWaiting {
        twin: site.place(),
        cluster: site.cluster_name(),
        why: warning.or_else(|| reported_error(twin)).or_else(|| held_by(twin)),
    }
}

/// Emits an event with the reason: csi-snapshotter's own event says that the deletion failed, but not why.
async fn warn_user(home: &Cluster, id: &SnapshotId, events: &Events, error: &SnapshotDeleteError) {
    for content in user_contents(home, id).await.unwrap_or_default() {
        events
            .warn_content(&content, "SnapshotNotDeleted", &error.to_string())
            .await;
    }
}
