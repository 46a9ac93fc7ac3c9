//! The part of unoffloading at home that concerns volumes in the remote clusters. The fabric does the rest,
//! and checks there again before it deletes a namespace.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use serde_json::json;

use crate::{
    cli::{Outcome, table::Table},
    cluster::{Cluster, Precondition},
    inspect::{Storage, rows::Row},
    offload::Volumes,
    twin::consumers::uses,
    volume::VolumeId,
};

const HEADER: [&str; 5] = ["CLAIM", "CLUSTER", "SIZE", "USED BY", "VOLUME"];

/// The volumes, and the pods that use them.
pub(super) async fn table(cluster: &Cluster, volumes: &[&Row]) -> Outcome<Table<5>> {
    let mut table = Table::new(HEADER);
    for row in volumes {
        let users = match &row.claim {
            Some(claim) => {
                let pods = cluster.within::<Pod>(&claim.namespace);
                let user = |pod: Pod| uses(&pod, &claim.name).then(|| pod.name_any());
                pods.pick(None, None, user).await?
            }
            None => Vec::new(),
        };
        table.row([
            named(row),
            row.cluster.clone().unwrap_or_default(),
            row.size.clone().unwrap_or_default(),
            users.join(","),
            row.volume.clone(),
        ]);
    }
    Ok(table)
}

/// What would happen to the volumes.
pub(super) fn prospect(fate: Volumes, namespaces: &[String], volumes: &[&Row], storage: &Storage) -> String {
    let namespaces = namespaces.join(", ");
    let claims = volumes
        .iter()
        .filter(|row| claim_and_volume(row, storage).is_some())
        .count();
    match fate {
        Volumes::Delete => format!(
            "Claims to be deleted with their data: {claims}. The data of PersistentVolumes with the policy Retain is kept. Also deleted: the namespaces that were created for {namespaces} \
             in other clusters, with all claims in them."
        ),
        Volumes::Retain => format!(
            "Claims to be kept, with their data in other clusters: {claims}. To be deleted: the namespaces that were created for \
             {namespaces} there, unless claims were created directly in them."
        ),
        Volumes::Hold => format!("No volume of this driver blocks unoffloading {namespaces}."),
    }
}

/// Sets the virtual `PersistentVolumes` to Retain, which the controller copies to those of the twins. That
/// deletes nothing, so the first error ends the command.
pub(super) async fn retain(cluster: &Cluster, volumes: &[&Row], storage: &Storage) -> Outcome {
    let all = cluster.all::<PersistentVolume>();
    for row in volumes {
        let found = claim_and_volume(row, storage);
        // The user has deleted this claim, so its volume is not retained.
        let Some((_, volume)) = found.filter(|(claim, _)| claim.metadata.deletion_timestamp.is_none()) else {
            continue;
        };
        let name = volume.name_any();
        let patch = json!({
            "metadata": {"uid": volume.uid()},
            "spec": {"persistentVolumeReclaimPolicy": "Retain"},
        });
        all.merge(&name, &patch).await.map_err(|error| {
            format!(
                "{}: its PersistentVolume {name} could not be set to Retain: {error}. Nothing was unoffloaded; run this \
                 again",
                named(row)
            )
        })?;
        println!("{}: PersistentVolume {name} has Retain", named(row));
    }
    Ok(())
}

/// Deletes the claims. An error of one does not stop the others, but blocks its namespace there.
pub(super) async fn delete(cluster: &Cluster, volumes: &[&Row], storage: &Storage) -> Outcome {
    let mut failed = Vec::new();
    for row in volumes {
        let found = claim_and_volume(row, storage);
        let Some((claim, volume, uid)) =
            found.and_then(|(claim, volume)| Some((claim, volume, claim.uid()?)))
        else {
            continue;
        };
        let exactly = Precondition {
            uid,
            resource_version: None,
        };
        let claims = cluster.within::<PersistentVolumeClaim>(&claim.namespace().unwrap_or_default());
        match claims.delete(&claim.name_any(), exactly).await {
            Ok(()) if has_retain(volume) => println!(
                "{}: deleted; its data is kept, because the policy of its PersistentVolume {} is Retain",
                named(row),
                volume.name_any()
            ),
            Ok(()) => println!("{}: deleted with its data", named(row)),
            Err(error) => failed.push(format!("{}: {error}", named(row))),
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(format!(
        "claims could not be deleted, so that their namespaces in other clusters are not unoffloaded: {}. Run \
         this again",
        failed.join("; ")
    )
    .into())
}

fn has_retain(volume: &PersistentVolume) -> bool {
    let spec = volume.spec.as_ref();
    spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref()) == Some("Retain")
}

/// The claim of a volume and its `PersistentVolume`, if both exist. A claim of that name may be a later one,
/// with another volume.
fn claim_and_volume<'a>(
    row: &Row,
    storage: &'a Storage,
) -> Option<(&'a PersistentVolumeClaim, &'a PersistentVolume)> {
    let name = row.claim.as_ref()?;
    let is_named = |it: &&PersistentVolumeClaim| {
        it.namespace().as_deref() == Some(name.namespace.as_str()) && it.name_any() == name.name
    };
    let claim = storage.claims.iter().find(is_named)?;
    let of_claim = claim.spec.as_ref()?.volume_name.as_deref()?;
    let volume = storage.volumes.iter().find(|it| it.name_any() == of_claim)?;
    let handle = &volume.spec.as_ref()?.csi.as_ref()?.volume_handle;
    let id: VolumeId = handle.parse().ok()?;
    (id.name.to_string() == row.volume).then_some((claim, volume))
}

fn named(row: &Row) -> String {
    let claim = row.claim.as_ref();
    claim
        .map(|it| format!("{}/{}", it.namespace, it.name))
        .unwrap_or_default()
}
