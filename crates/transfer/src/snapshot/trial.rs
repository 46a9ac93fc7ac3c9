//! Whether the API server takes what an import makes: tried without being made, before anything is
//! written, and what it says when it refuses.

use std::fmt::Debug;

use kube::Resource;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    SnapshotImportRequest, SnapshotTransferError,
    contents::{twin_content, user_content},
    look::Scene,
    snapshots::{new_user, twin},
};
use crate::{
    Context,
    cluster::{
        ApiError, Objects,
        snapshots::{VolumeSnapshot, VolumeSnapshotContent},
    },
    placement::SnapshotObstacle,
    writing::refused,
};

/// What speaks against the objects that the import would make. Rights, quotas and policies are the
/// same under the name that they are tried with.
pub(super) async fn would_not_be_accepted(
    context: &Context<'_>,
    request: &SnapshotImportRequest,
    scene: &Scene,
) -> Result<Vec<SnapshotObstacle>, SnapshotTransferError> {
    let (Some(real), Some(plan)) = (&scene.real, &scene.plan) else {
        return Ok(Vec::new());
    };
    let (cluster, stored) = (context.cluster, context.storage_namespace);
    let contents = cluster.all::<VolumeSnapshotContent>();
    let (twins, users) = (cluster.within(stored), cluster.within(&plan.namespace));
    let name = || format!("import-check-{}", plan.key());
    let of_user = user_content(&request.home, scene.virtual_policy(&plan.class), real, plan);
    let (of_twin, of_user, twin, user) = tokio::try_join!(
        tried(&contents, twin_content(stored, real, plan), name()),
        tried(&contents, of_user, name()),
        tried::<VolumeSnapshot>(&twins, twin(context, request, None, real, plan), name()),
        tried::<VolumeSnapshot>(&users, new_user(plan)?, name()),
    )?;
    let mut told: Vec<String> = [of_twin, of_user, twin, user].into_iter().flatten().collect();
    // A right that is missing is missing for both contents.
    told.dedup();
    Ok(told.into_iter().map(SnapshotObstacle::Unmakeable).collect())
}

/// What the API server says against making this object under this name.
pub(super) async fn tried<K>(
    objects: &Objects<K>,
    mut object: K,
    name: String,
) -> Result<Option<String>, ApiError>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    object.meta_mut().name = Some(name);
    unless_refused(objects.try_create(&object).await)
}

/// What the API server says, if it does not take what was sent.
pub(super) fn unless_refused<T>(outcome: Result<T, ApiError>) -> Result<Option<String>, ApiError> {
    match outcome {
        Ok(_) => Ok(None),
        Err(error) => refused(error).map(Some),
    }
}
