//! A snapshot that is in use: its data is kept, also where it was made before that could be, and
//! somebody is told when its twin goes.

use kube::ResourceExt;

use super::{
    SnapshotSiteError,
    observation::real_content,
    retain::{keep, kept, note},
    site::SnapshotSite,
};
use crate::{
    cluster::{ApiError, Cluster, snapshots::VolumeSnapshotContent},
    fleet::Registry,
    volume::{SnapshotId, mark},
};

/// How it stands with a snapshot that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotHealth {
    /// It is not in use any more, or not yet.
    Unused,
    /// Its twin, the object with this uid, is there.
    Well {
        /// The uid of the twin.
        twin: String,
        /// Whether the data survives that somebody deletes the twin.
        is_kept: bool,
    },
    /// Its twin is gone, or being deleted by somebody else; this says what of the data.
    Trouble(String),
}

/// Looks after the snapshot of this id, whose user has this content, and notes there how it is.
pub async fn look_after_snapshot(
    home: &Cluster,
    registry: &Registry,
    content: &str,
    id: &SnapshotId,
) -> Result<SnapshotHealth, SnapshotSiteError> {
    let in_use = |content: &VolumeSnapshotContent| {
        let handle = content
            .status
            .as_ref()
            .and_then(|it| it.snapshot_handle.as_deref());
        content.metadata.deletion_timestamp.is_none() && handle == Some(id.to_string().as_str())
    };
    let found = home.all::<VolumeSnapshotContent>().get(content).await?;
    let Some(user) = found.filter(in_use) else {
        return Ok(SnapshotHealth::Unused);
    };
    let Some(site) = SnapshotSite::of(home, registry, id).await? else {
        return Ok(SnapshotHealth::Trouble(format!(
            "nothing in the cluster {} has its id any more",
            id.cluster
        )));
    };
    let health = examine(&site, &user).await?;
    let trouble = match &health {
        SnapshotHealth::Trouble(what) => Some(what.as_str()),
        SnapshotHealth::Unused | SnapshotHealth::Well { .. } => None,
    };
    note(&site, &user, mark::TWIN_TROUBLE, trouble).await?;
    Ok(health)
}

async fn examine(site: &SnapshotSite, user: &VolumeSnapshotContent) -> Result<SnapshotHealth, ApiError> {
    let (place, cluster) = (site.place(), site.cluster_name());
    let found = match site.snapshots().get(&site.name()).await {
        // As in a namespace that is not offloaded any more.
        Err(error) if error.is_forbidden() => {
            return Ok(SnapshotHealth::Trouble(format!(
                "it is not known how its twin is: {error}{}",
                left(site, user).await
            )));
        }
        found => found?,
    };
    let Some(twin) = found.filter(|found| site.recognise(found).is_ok()) else {
        return Ok(SnapshotHealth::Trouble(format!(
            "its twin {place} in the cluster {cluster} was deleted{}",
            left(site, user).await
        )));
    };
    let real = if site.keeps_data() {
        real_content(site, &twin).await?
    } else {
        None
    };
    // What is being deleted cannot be kept any more.
    let real = real.filter(|real| real.metadata.deletion_timestamp.is_none());
    if let Some(real) = &real {
        keep(site, Some(user), real).await?;
    }
    if twin.metadata.deletion_timestamp.is_none() {
        return Ok(SnapshotHealth::Well {
            twin: twin.uid().unwrap_or_default(),
            is_kept: real.is_some(),
        });
    }
    let data = real.map_or_else(
        || ", and nothing keeps its data".to_owned(),
        |real| kept_by(&real.name_any()),
    );
    Ok(SnapshotHealth::Trouble(format!(
        "somebody deletes its twin {place} in the cluster {cluster}{data}"
    )))
}

/// What is left of a snapshot whose twin is gone.
async fn left(site: &SnapshotSite, user: &VolumeSnapshotContent) -> String {
    match kept(site, user).await {
        Ok(Some(real)) => kept_by(&real.name_any()),
        Ok(None) => ", and nothing there is known to keep its data".to_owned(),
        Err(error) => format!("; it is not known whether its data is kept: {error}"),
    }
}

fn kept_by(content: &str) -> String {
    format!(
        ". Its data is kept by the VolumeSnapshotContent {content} there: make the twin again from that \
         (docs/snapshots.md, \"When a twin is deleted\") to use the snapshot"
    )
}
