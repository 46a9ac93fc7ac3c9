//! Upkeep of a snapshot in use: retains its data, also if the snapshot was created before the driver
//! could do that, and reports the deletion of its twin.

use kube::ResourceExt;

use super::{
    SnapshotSiteError,
    observation::real_content,
    retain::{annotate, retain_data, retained_content},
    site::SnapshotSite,
};
use crate::{
    cluster::{ApiError, Cluster, snapshots::VolumeSnapshotContent},
    fleet::Registry,
    volume::{SnapshotId, mark},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotHealth {
    /// The snapshot is not in use, or not yet.
    Unused,
    /// The twin exists.
    Healthy {
        twin: String,
        /// Whether the data survives a deletion of the twin.
        is_kept: bool,
    },
    /// The twin is deleted, or being deleted by another client; the text says what happened to the data.
    Problem(String),
}

/// Checks and retains the snapshot with this id, and records a problem on the user's content.
pub async fn check_snapshot(
    home: &Cluster,
    registry: &Registry,
    content: &str,
    id: &SnapshotId,
) -> Result<SnapshotHealth, SnapshotSiteError> {
    let in_use = |content: &VolumeSnapshotContent| {
        content.metadata.deletion_timestamp.is_none() && content.handle() == Some(id.to_string().as_str())
    };
    let found = home.all::<VolumeSnapshotContent>().get(content).await?;
    let Some(user) = found.filter(in_use) else {
        return Ok(SnapshotHealth::Unused);
    };
    let Some(site) = SnapshotSite::of(home, registry, id).await? else {
        return Ok(SnapshotHealth::Problem(format!(
            "the snapshot does not exist in the cluster {} any more",
            id.cluster
        )));
    };
    let health = examine(&site, &user).await?;
    let problem = match &health {
        SnapshotHealth::Problem(what) => Some(what.as_str()),
        SnapshotHealth::Unused | SnapshotHealth::Healthy { .. } => None,
    };
    annotate(&site, &user, mark::TWIN_TROUBLE, problem).await?;
    Ok(health)
}

async fn examine(site: &SnapshotSite, user: &VolumeSnapshotContent) -> Result<SnapshotHealth, ApiError> {
    let (place, cluster) = (site.place(), site.cluster_name());
    let found = match site.snapshots().get(&site.name()).await {
        // For example because the namespace is not offloaded any more.
        Err(error) if error.is_forbidden() => {
            return Ok(SnapshotHealth::Problem(format!(
                "the state of its twin is unknown: {error}{}",
                data_state(site, user).await
            )));
        }
        found => found?,
    };
    let Some(twin) = found.filter(|found| site.recognise(found).is_ok()) else {
        return Ok(SnapshotHealth::Problem(format!(
            "its twin {place} in the cluster {cluster} was deleted{}",
            data_state(site, user).await
        )));
    };
    let real = if site.keeps_data() {
        real_content(site, &twin).await?
    } else {
        None
    };
    // A content that is being deleted cannot be retained any more.
    let real = real.filter(|real| real.metadata.deletion_timestamp.is_none());
    if let Some(real) = &real {
        retain_data(site, Some(user), real).await?;
    }
    if twin.metadata.deletion_timestamp.is_none() {
        return Ok(SnapshotHealth::Healthy {
            twin: twin.uid().unwrap_or_default(),
            is_kept: real.is_some(),
        });
    }
    let data = real.map_or_else(
        || ", and its data is not retained".to_owned(),
        |real| kept_by(&real.name_any()),
    );
    Ok(SnapshotHealth::Problem(format!(
        "another client is deleting its twin {place} in the cluster {cluster}{data}"
    )))
}

/// Whether the data of a snapshot without a twin is retained, as the end of a sentence.
async fn data_state(site: &SnapshotSite, user: &VolumeSnapshotContent) -> String {
    match retained_content(site, user).await {
        Ok(Some(real)) => kept_by(&real.name_any()),
        Ok(None) => ", and no VolumeSnapshotContent there is known to keep its data".to_owned(),
        Err(error) => format!("; it is not known whether its data is retained: {error}"),
    }
}

fn kept_by(content: &str) -> String {
    format!(
        ". Its data is kept by the VolumeSnapshotContent {content} there: to use the snapshot, create the twin again from that \
         (docs/snapshots.md, \"When a twin is deleted\")"
    )
}
