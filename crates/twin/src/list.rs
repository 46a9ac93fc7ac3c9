//! Lists the volumes and their capabilities. Read live: a caller expects to see the volume that it has
//! just created. No component of Kubernetes lists volumes as they come and go; a health monitor, if one
//! is installed, does so every few minutes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use super::{PublishError, attach::capabilities_of, site};
use crate::{
    cluster::{ApiError, Cluster, facts},
    fleet::Registry,
    volume::{Capabilities, ClusterId, Epoch, Marks, VolumeId, VolumeName, mark, moving::SourceMark},
};

/// A volume in a list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listed {
    pub volume: VolumeName,
    /// How often it has moved.
    pub epoch: Epoch,
    /// The cluster of its twin.
    pub cluster: ClusterId,
    pub bytes: u64,
}

/// All volumes whose twins are handed over, in the order of their names. Those of unreachable clusters
/// are left out: a partial list is more useful than an error, although those volumes still exist.
pub async fn list(home: &Cluster, registry: &Registry) -> Result<Vec<Listed>, ApiError> {
    let ours = mark::selector(home.id());
    let twins = home.stored::<PersistentVolumeClaim>().list(Some(&ours)).await?;
    let mut volumes: Vec<Listed> = twins.iter().filter_map(|twin| listed(home, twin)).collect();
    for remote in registry.all() {
        let Ok(cluster) = remote.reach() else { continue };
        let places: Vec<_> = if cluster.rights().all_claims {
            vec![cluster.all::<PersistentVolumeClaim>()]
        } else {
            let named = remote.namespaces.named();
            named.map(|namespace| cluster.within(namespace)).collect()
        };
        for place in places {
            match place.list(Some(&ours)).await {
                Ok(twins) => volumes.extend(twins.iter().filter_map(|twin| listed(&cluster, twin))),
                Err(error) => tracing::warn!(%error, "a list lacks the volumes of a remote cluster"),
            }
        }
    }
    volumes.sort();
    // A source that was retained after a move is not a volume of its own.
    let latest: BTreeMap<_, _> = volumes.iter().map(|it| (it.volume.clone(), it.epoch)).collect();
    volumes.retain(|it| latest.get(&it.volume) == Some(&it.epoch));
    Ok(volumes)
}

fn listed(cluster: &Cluster, twin: &PersistentVolumeClaim) -> Option<Listed> {
    let marks = Marks::read(twin.labels(), twin.annotations()).ok()?;
    let source = SourceMark::read(twin.annotations());
    let has_moved = matches!(source, Ok(Some(SourceMark::Superseded { .. })));
    let exists = marks.handed_over && twin.metadata.deletion_timestamp.is_none() && !has_moved;
    let capacity = twin
        .status
        .as_ref()
        .and_then(|status| status.capacity.as_ref()?.get("storage"))
        // Kubernetes has not written it yet: the volume was handed over a moment ago.
        .or_else(|| facts::storage_request(twin));
    exists.then(|| Listed {
        volume: marks.volume,
        epoch: marks.epoch,
        cluster: cluster.id().clone(),
        bytes: capacity.and_then(facts::bytes).unwrap_or_default(),
    })
}

/// The capabilities of the volume; `None` if the volume does not exist.
pub async fn validate(
    home: &Cluster,
    registry: &Registry,
    id: &VolumeId,
) -> Result<Option<Capabilities>, PublishError> {
    let site = site::find_existing(home, registry, id)
        .await
        .map_err(|error| PublishError::Unreachable(error.to_string()))?;
    let Some(site) = site else { return Ok(None) };
    let twin = site.twins().get(site.name()).await?;
    let twin = twin.filter(|twin| site.is_twin(&id.name, twin));
    twin.as_ref().map(capabilities_of).transpose()
}
