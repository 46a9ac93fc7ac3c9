//! Deleting a snapshot: its twin, which Kubernetes keeps until its data is gone. Whatever
//! deletes reads live.

use std::time::Duration;

use kube::ResourceExt;
use tokio::time::Instant;

use super::{
    SnapshotDeleteError,
    observation::{said_about, user_content},
    retain::{PolicyBack, give_policy_back, kept, would_be_deleted},
    site::SnapshotSite,
};
use crate::{
    cluster::{
        ApiError, Cluster, Precondition,
        events::Events,
        snapshots::{VolumeSnapshot, VolumeSnapshotContent},
    },
    fleet::Registry,
    observe::crash::{self, Step},
    volume::{SnapshotId, SnapshotImport, imported_content},
};

/// The snapshot-controller looks at the deletion policy of a content as it saw it last. If
/// that is Retain when the twin goes, the content stays, and nobody ever deletes it; if it is
/// Delete, the data goes.
pub const CONTROLLER_SEES: Duration = Duration::from_secs(1);

/// Deletes the snapshot, or goes on deleting it.
pub async fn delete_snapshot(
    home: &Cluster,
    registry: &Registry,
    events: &Events,
    id: &SnapshotId,
    deadline: Instant,
) -> Result<(), SnapshotDeleteError> {
    let Some(site) = SnapshotSite::of(home, registry, id).await? else {
        return Ok(());
    };
    let deleted = delete_at(&site, deadline).await;
    if let Err(error) = &deleted {
        tell(&site, events, error).await;
    }
    deleted
}

async fn delete_at(site: &SnapshotSite, deadline: Instant) -> Result<(), SnapshotDeleteError> {
    loop {
        let found = site.snapshots().get(&site.name()).await.map_err(not_taken)?;
        let Some(twin) = found else {
            return nothing_left_behind(site).await;
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
            match give_policy_back(site, &twin).await.map_err(not_taken)? {
                PolicyBack::Given => tokio::time::sleep(CONTROLLER_SEES).await,
                PolicyBack::NoNeed => delete_twin(site, &twin).await.map_err(not_taken)?,
            }
            if Instant::now() < deadline {
                continue;
            }
        }
        if !site.changed(Some(&twin), deadline).await {
            return Err(still_there(site, &twin).await);
        }
    }
}

/// Without its twin, the data of a snapshot may still be there: whoever deleted the twin did not
/// delete that.
async fn nothing_left_behind(site: &SnapshotSite) -> Result<(), SnapshotDeleteError> {
    let user = match user_content(site).await? {
        Some(user) => Some(user),
        None => imported(site).await?,
    };
    let Some(user) = user else { return Ok(()) };
    match kept(site, &user).await.map_err(not_taken)? {
        Some(content) if would_be_deleted(&content) => Err(SnapshotDeleteError::LeftBehind {
            twin: site.place(),
            cluster: site.cluster_name(),
            content: content.name_any(),
        }),
        // The class of the real snapshot retains it.
        Some(_) | None => Ok(()),
    }
}

/// The content that a snapshot is being imported from: until that ends, the data is its, too.
async fn imported_from(site: &SnapshotSite) -> Result<Option<String>, ApiError> {
    if site.user_content_name().is_some() {
        // Made by a request: nothing was imported.
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

/// The content of the user's snapshot, if that was imported.
async fn imported(site: &SnapshotSite) -> Result<Option<VolumeSnapshotContent>, ApiError> {
    let contents = site.home().all::<VolumeSnapshotContent>();
    contents.get(&imported_content(&site.id().key)).await
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

fn not_taken(error: ApiError) -> SnapshotDeleteError {
    if error.is_forbidden() {
        SnapshotDeleteError::NotAccepted(error)
    } else {
        SnapshotDeleteError::Api(error)
    }
}

async fn still_there(site: &SnapshotSite, twin: &VolumeSnapshot) -> SnapshotDeleteError {
    let uid = twin.uid().unwrap_or_default();
    let warning = site.cluster().newest_warning(site.namespace(), &uid).await;
    SnapshotDeleteError::StillWaiting {
        twin: site.place(),
        cluster: site.cluster_name(),
        why: warning.or_else(|| said_about(twin)),
    }
}

/// csi-snapshotter's own event says that the deletion failed, but not why.
async fn tell(site: &SnapshotSite, events: &Events, error: &SnapshotDeleteError) {
    if let Ok(Some(content)) = user_content(site).await {
        events
            .warn_content(&content, "SnapshotNotDeleted", &error.to_string())
            .await;
    }
}
