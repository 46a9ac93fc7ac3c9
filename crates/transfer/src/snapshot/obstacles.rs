//! The obstacles to the import of a snapshot, from the existing objects.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, TypedLocalObjectReference};
use kube::ResourceExt;

use super::{SnapshotImportRequest, contents::is_leaving, observer::bound_content};
use crate::{
    Context,
    cluster::{
        ApiError,
        snapshots::{VolumeSnapshot, VolumeSnapshotContent, is_ready},
    },
    environment,
    owners::{DropReason, drop_unseen_owners},
    placement::SnapshotObstacle,
    volume::{DRIVER_NAME, managed_by, mark},
};

/// The prefix of Kubernetes' own finalizers of snapshots.
const OWN_FINALIZERS: &str = "snapshot.storage.kubernetes.io/";

/// All obstacles to importing this object.
pub(super) async fn find_obstacles(
    context: &Context<'_>,
    request: &SnapshotImportRequest,
    user: &VolumeSnapshot,
    real: Option<&VolumeSnapshotContent>,
) -> Result<Vec<SnapshotObstacle>, ApiError> {
    let mut obstacles = Vec::new();
    let is_ours = mark::manager(user.labels()) == Some(mark::MANAGED_BY_US);
    if is_ours || real.is_some_and(|real| real.spec.driver == DRIVER_NAME) {
        return Ok(vec![SnapshotObstacle::Ours]);
    }
    if user.annotations().contains_key(mark::IMPORT_UNDONE) {
        obstacles.push(SnapshotObstacle::Undoing);
    }
    if is_leaving(user) || real.is_some_and(is_leaving) {
        obstacles.push(SnapshotObstacle::Deleting);
    }
    match (real.filter(|_| is_ready(user)), bound_content(user)) {
        (None, Some(bound)) if real.is_none() => {
            obstacles.push(SnapshotObstacle::ContentGone(bound.to_owned()));
        }
        (None, _) => obstacles.push(SnapshotObstacle::NotReady),
        (Some(real), _) => {
            let status = real.status.as_ref();
            if real.spec.volume_snapshot_ref.uid != user.uid() {
                obstacles.push(SnapshotObstacle::Misbound(real.name_any()));
            }
            if status.is_some_and(|status| status.volume_group_snapshot_handle.is_some()) {
                obstacles.push(SnapshotObstacle::Grouped);
            }
            if status.is_none_or(|status| status.snapshot_handle.is_none()) {
                obstacles.push(SnapshotObstacle::NotReady);
            }
            let classes = environment::classes(context.cluster).await?;
            if !classes
                .iter()
                .any(|(_, provisioner)| *provisioner == real.spec.driver)
            {
                obstacles.push(SnapshotObstacle::NoRealClass(real.spec.driver.clone()));
            }
        }
    }
    let claims = context
        .cluster
        .within::<PersistentVolumeClaim>(&request.snapshot.namespace);
    let copies = claims
        .find(|claim| is_copy_of(claim, &request.snapshot.name))
        .await?;
    obstacles.extend(copies.iter().map(|copy| SnapshotObstacle::InUse(copy.name_any())));
    for dropped in drop_unseen_owners(context, &mut user.clone()).await {
        if let DropReason::Unreadable(error) = dropped.why {
            let why = error.to_string();
            obstacles.push(SnapshotObstacle::UnreadableOwner(dropped.kind, dropped.name, why));
        }
    }
    if !request.force_managed {
        if let Some((tool, key)) = managed_by(user.labels(), user.annotations()) {
            obstacles.push(SnapshotObstacle::Managed(tool, key));
        }
        let owners = user.metadata.owner_references.iter().flatten();
        let controller = owners.filter(|owner| owner.controller == Some(true));
        obstacles.extend(
            controller.map(|owner| SnapshotObstacle::Controlled(owner.kind.clone(), owner.name.clone())),
        );
    }
    let others = user
        .finalizers()
        .iter()
        .filter(|one| !one.starts_with(OWN_FINALIZERS));
    obstacles.extend(others.cloned().map(SnapshotObstacle::Finalizer));
    Ok(obstacles)
}

/// Whether a claim that is not bound yet uses the snapshot as its source.
fn is_copy_of(claim: &PersistentVolumeClaim, snapshot: &str) -> bool {
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    let is_its =
        |source: &TypedLocalObjectReference| source.kind == "VolumeSnapshot" && source.name == snapshot;
    let source = claim.spec.as_ref().and_then(|spec| spec.data_source.as_ref());
    phase != Some("Bound") && source.is_some_and(is_its)
}
