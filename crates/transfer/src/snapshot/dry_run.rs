//! Whether the API server accepts the objects of an import: a dry run before anything is written.

use std::fmt::Debug;

use itertools::Itertools;
use kube::Resource;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    SnapshotImportRequest, SnapshotTransferError,
    contents::{twin_content, user_content},
    observer::Observed,
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

/// Why the API server would refuse the objects of the import. Rights, quotas and policies do not depend on
/// the name, so the dry run uses another one.
pub(super) async fn find_rejections(
    context: &Context<'_>,
    request: &SnapshotImportRequest,
    observed: &Observed,
) -> Result<Vec<SnapshotObstacle>, SnapshotTransferError> {
    let (Some(real), Some(plan)) = (&observed.real, &observed.plan) else {
        return Ok(Vec::new());
    };
    let (cluster, stored) = (context.cluster, context.storage_namespace);
    let contents = cluster.all::<VolumeSnapshotContent>();
    let (twins, users) = (cluster.within(stored), cluster.within(&plan.namespace));
    let name = || format!("import-check-{}", plan.key());
    let of_user = user_content(&request.home, observed.virtual_policy(&plan.class), real, plan);
    let (of_twin, of_user, twin, user) = tokio::try_join!(
        try_to_create(&contents, twin_content(stored, real, plan), name()),
        try_to_create(&contents, of_user, name()),
        try_to_create::<VolumeSnapshot>(&twins, twin(context, request, None, real, plan), name()),
        try_to_create::<VolumeSnapshot>(&users, new_user(plan)?, name()),
    )?;
    let rejections = [of_twin, of_user, twin, user].into_iter().flatten();
    // A missing right is reported for both contents, and for both snapshots.
    Ok(rejections.unique().map(SnapshotObstacle::Unmakeable).collect())
}

/// The message of the API server if it refuses to create this object under this name, in a dry run.
pub(super) async fn try_to_create<K>(
    objects: &Objects<K>,
    mut object: K,
    name: String,
) -> Result<Option<String>, ApiError>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    object.meta_mut().name = Some(name);
    rejection_of(objects.try_create(&object).await)
}

/// The message of the API server, if it refused what was sent.
pub(super) fn rejection_of<T>(outcome: Result<T, ApiError>) -> Result<Option<String>, ApiError> {
    match outcome {
        Ok(_) => Ok(None),
        Err(error) => refused(error).map(Some),
    }
}
