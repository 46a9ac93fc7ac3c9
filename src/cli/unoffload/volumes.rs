//! What becomes of the volumes in remote clusters that a namespace leaves, as far as it is done at
//! home. The rest is the fabric's, which looks there again before it deletes a namespace.

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

/// What would be done about them.
pub(super) fn prospect(fate: Volumes, namespaces: &[String], volumes: &[&Row]) -> String {
    let namespaces = namespaces.join(", ");
    match fate {
        Volumes::Delete => format!(
            "Claims to be deleted with their data: {}. Data of PersistentVolumes that have Retain stay. Also to be deleted: the namespaces that were made for {namespaces} \
             in other clusters, with all claims that somebody has made there.",
            volumes.len()
        ),
        Volumes::Retain => format!(
            "Claims that stay, with their data in other clusters: {}. To be deleted: the namespaces that were made for \
             {namespaces} there, unless somebody has made claims in them.",
            volumes.len()
        ),
        Volumes::Hold => format!("No volume of this driver holds {namespaces}."),
    }
}

/// Sets the virtual `PersistentVolumes` to Retain, which the controller does to those there. Nothing
/// is deleted by that, so one that fails ends it all.
pub(super) async fn retain(cluster: &Cluster, volumes: &[&Row], storage: &Storage) -> Outcome {
    let all = cluster.all::<PersistentVolume>();
    for row in volumes {
        let found = claim_and_volume(row, storage);
        // What its owner has given up is not kept for him.
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

/// Deletes the claims. One that fails does not keep the others; it holds its namespace there.
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
                "{}: deleted; its data stay, for its PersistentVolume {} has Retain",
                named(row),
                volume.name_any()
            ),
            Ok(()) => println!("{}: deleted, and its data go", named(row)),
            Err(error) => failed.push(format!("{}: {error}", named(row))),
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(format!(
        "claims could not be deleted, and hold their namespaces in other clusters, which are being unoffloaded: {}. Run \
         this again",
        failed.join("; ")
    )
    .into())
}

fn has_retain(volume: &PersistentVolume) -> bool {
    let spec = volume.spec.as_ref();
    spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref()) == Some("Retain")
}

/// The claim of a volume and its `PersistentVolume`, while both are there. A claim of that name may be another
/// one, with another volume.
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
