//! Where the source of a claim is, read live; only sources of pending claims are read.

use std::fmt;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use crate::{
    cluster::{
        ApiError, Cluster, facts,
        snapshots::{VolumeSnapshot, VolumeSnapshotContent},
    },
    placement::{Class, Original, SourcePlace},
    topology::Node,
    twin::source_affinity,
    volume::{ClusterId, DRIVER_NAME, Parameters, SnapshotId, SnapshotMarks, VolumeId},
    watched::ClaimSource,
};

/// The result of the search for a source.
pub(super) enum Found {
    /// The source can be copied at this place.
    At(SourcePlace),
    /// The source does not exist, or is not ready.
    NotYet,
    /// The source is not of this driver and cannot be copied; csi-provisioner reports that.
    NotOurs,
}

impl fmt::Display for ClaimSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Snapshot(name) => write!(f, "the snapshot {name}"),
            Self::Claim(name) => write!(f, "the volume of the claim {name}"),
        }
    }
}

/// Finds the source of a claim of this namespace and class.
pub(super) async fn find(
    home: &Cluster,
    namespace: &str,
    source: &ClaimSource,
    class: &Class,
) -> Result<Found, ApiError> {
    match source {
        ClaimSource::Snapshot(name) => of_snapshot(home, namespace, name, class).await,
        ClaimSource::Claim(name) => of_claim(home, namespace, name).await,
    }
}

async fn of_snapshot(home: &Cluster, namespace: &str, name: &str, class: &Class) -> Result<Found, ApiError> {
    let snapshot = home.within::<VolumeSnapshot>(namespace).get(name).await?;
    let status = snapshot.as_ref().and_then(|snapshot| snapshot.status.as_ref());
    let Some(content) = status.and_then(|status| status.bound_volume_snapshot_content_name.as_deref()) else {
        return Ok(Found::NotYet);
    };
    let Some(content) = home.all::<VolumeSnapshotContent>().get(content).await? else {
        return Ok(Found::NotYet);
    };
    if content.spec.driver != DRIVER_NAME {
        return Ok(Found::NotOurs);
    }
    let Some(handle) = content.status.and_then(|status| status.snapshot_handle) else {
        return Ok(Found::NotYet);
    };
    let Ok(id) = handle.parse::<SnapshotId>() else {
        return Ok(Found::NotOurs);
    };
    let mut reached_from = None;
    if id.cluster == *home.id() {
        let twin = home.stored::<VolumeSnapshot>().get(&id.key.twin()).await?;
        let ours = twin.filter(|twin| {
            SnapshotMarks::recognise(home.id(), &id.key, twin.labels(), twin.annotations()).is_ok()
        });
        let Some(twin) = ours else {
            return Ok(Found::NotYet);
        };
        reached_from = source_affinity(&twin);
    }
    let restore = class.parameters.get(Parameters::RESTORE_TOPOLOGY);
    let original = Original::Snapshot {
        reached_from,
        restore: restore.and_then(|said| said.parse().ok()),
    };
    Ok(place(home, &original, &id.cluster))
}

async fn of_claim(home: &Cluster, namespace: &str, name: &str) -> Result<Found, ApiError> {
    let claim = home.within::<PersistentVolumeClaim>(namespace).get(name).await?;
    let volume = claim.and_then(|claim| claim.spec?.volume_name);
    let Some(volume) = volume.filter(|name| !name.is_empty()) else {
        return Ok(Found::NotYet);
    };
    let Some(volume) = home.all::<PersistentVolume>().get(&volume).await? else {
        return Ok(Found::NotYet);
    };
    let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    let Some(csi) = csi.filter(|csi| csi.driver == DRIVER_NAME) else {
        return Ok(Found::NotOurs);
    };
    let Ok(id) = csi.volume_handle.parse::<VolumeId>() else {
        return Ok(Found::NotOurs);
    };
    Ok(place(
        home,
        &Original::Volume(facts::affinity(&volume)),
        &id.cluster,
    ))
}

fn place(home: &Cluster, original: &Original, cluster: &ClusterId) -> Found {
    let nodes = home.views().nodes.all();
    let nodes: Vec<Node> = nodes.iter().map(|node| Node::clone(node)).collect();
    Found::At(SourcePlace::of(original, cluster, home.id(), &nodes))
}
