//! Retains the real data of a snapshot as long as the snapshot is in use: Kubernetes deletes the data as
//! soon as a client begins to delete the twin, for example with its namespace, and no finalizer of the
//! twin delays that. When the user's snapshot is deleted, the policy of the twin's content is restored.
//! Until then the user's content records which content has the data.

use kube::ResourceExt;
use serde_json::json;

use super::{
    observation::{RETAIN, real_content},
    site::SnapshotSite,
};
use crate::{
    cluster::{
        ApiError,
        snapshots::{VolumeSnapshot, VolumeSnapshotContent},
        unless_conflict,
    },
    observe::crash::{self, Step},
    volume::mark,
};

/// Retains the data of a twin, so that it survives a deletion of the twin; false if its content has
/// changed since it was read. `user` is the content of the user's snapshot, if it exists.
pub(super) async fn retain_data(
    site: &SnapshotSite,
    user: Option<&VolumeSnapshotContent>,
    content: &VolumeSnapshotContent,
) -> Result<bool, ApiError> {
    let noted = async {
        match user {
            Some(user) => annotate(site, user, mark::REAL_CONTENT, Some(&content.name_any())).await,
            None => Ok(()),
        }
    };
    let retained = async {
        if content.spec.deletion_policy == RETAIN {
            return Ok(true);
        }
        retain(site, content).await
    };
    let ((), retained) = futures::try_join!(noted, retained)?;
    Ok(retained)
}

/// Sets an annotation on the content of a user's snapshot, unless it has that value.
pub(super) async fn annotate(
    site: &SnapshotSite,
    user: &VolumeSnapshotContent,
    key: &str,
    value: Option<&str>,
) -> Result<(), ApiError> {
    if user.annotations().get(key).map(String::as_str) == value {
        return Ok(());
    }
    let patch = json!({"metadata": {"uid": user.uid(), "annotations": {key: value}}});
    let (contents, name) = (site.home().all::<VolumeSnapshotContent>(), user.name_any());
    let noted = contents.merge(&name, &patch);
    unless_conflict(crash::around(Step::SnapshotNote, noted).await).map(drop)
}

/// Sets the policy to Retain, and records the old one; false if the content has changed since it was read.
async fn retain(site: &SnapshotSite, content: &VolumeSnapshotContent) -> Result<bool, ApiError> {
    let patch = json!({
        "metadata": {
            "uid": content.uid(),
            "resourceVersion": content.resource_version(),
            "annotations": {
                mark::DELETION_POLICY_BEFORE: content.spec.deletion_policy,
                mark::DATA_OF: site.id().to_string(),
            },
        },
        "spec": {"deletionPolicy": RETAIN},
    });
    let (contents, name) = (site.contents(), content.name_any());
    let changed = crash::around(Step::SnapshotRetain, contents.merge(&name, &patch)).await;
    Ok(unless_conflict(changed)?.is_some())
}

/// Whether a policy was restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PolicyRestore {
    /// No policy had been replaced.
    Unnecessary,
    /// The policy was restored, or another client has changed the content: it has to be read again.
    Restored,
}

/// Restores the policy of a twin's content, if it was replaced.
pub(super) async fn restore_policy(
    site: &SnapshotSite,
    twin: &VolumeSnapshot,
) -> Result<PolicyRestore, ApiError> {
    let Some(content) = real_content(site, twin).await? else {
        return Ok(PolicyRestore::Unnecessary);
    };
    let Some(before) = content.annotations().get(mark::DELETION_POLICY_BEFORE) else {
        return Ok(PolicyRestore::Unnecessary);
    };
    let patch = json!({
        "metadata": {
            "uid": content.uid(),
            "resourceVersion": content.resource_version(),
            "annotations": {mark::DELETION_POLICY_BEFORE: null, mark::DATA_OF: null},
        },
        "spec": {"deletionPolicy": before},
    });
    let (contents, name) = (site.contents(), content.name_any());
    let changed = crash::around(Step::SnapshotPolicyBack, contents.merge(&name, &patch)).await;
    unless_conflict(changed).map(|_| PolicyRestore::Restored)
}

/// The content that keeps the data of a deleted twin, as the content of the user's snapshot records it.
pub(super) async fn retained_content(
    site: &SnapshotSite,
    user: &VolumeSnapshotContent,
) -> Result<Option<VolumeSnapshotContent>, ApiError> {
    let Some(name) = user.annotations().get(mark::REAL_CONTENT) else {
        return Ok(None);
    };
    let found = site.contents().get(name).await?;
    Ok(found.filter(|content| {
        let of = &content.spec.volume_snapshot_ref;
        content.metadata.deletion_timestamp.is_none()
            && of.namespace.as_deref() == Some(site.namespace())
            && of.name.as_deref() == Some(&site.name())
    }))
}

/// Whether the data of a content would be deleted without this driver's Retain.
pub(super) fn would_be_deleted(content: &VolumeSnapshotContent) -> bool {
    content.spec.deletion_policy != RETAIN || content.annotations().contains_key(mark::DELETION_POLICY_BEFORE)
}
