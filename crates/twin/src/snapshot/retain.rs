//! The real data of a snapshot is retained as long as the snapshot is in use: Kubernetes deletes
//! it as soon as somebody begins to delete the twin, as whoever deletes its namespace does, and
//! no finalizer of the twin holds that up. The policy that the content of the twin had is given
//! back when the snapshot is to be deleted. Until then the user's content says where the data is.

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

/// Sees to it that the data of a twin stays, whoever deletes the twin; false if somebody has
/// changed its content meanwhile, which has to be read again. `user` is the content of the user's
/// snapshot, if there is one.
pub(super) async fn keep(
    site: &SnapshotSite,
    user: Option<&VolumeSnapshotContent>,
    content: &VolumeSnapshotContent,
) -> Result<bool, ApiError> {
    let noted = async {
        match user {
            Some(user) => note(site, user, mark::REAL_CONTENT, Some(&content.name_any())).await,
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

/// Notes something on the content of a user's snapshot, unless it is noted there.
pub(super) async fn note(
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

/// Sets the policy to Retain, and notes what it was; false if the content has changed meanwhile.
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

/// Whether a policy was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PolicyBack {
    /// None was replaced.
    NoNeed,
    /// It was, or somebody else has changed the content: it has to be looked at again.
    Given,
}

/// Gives the content of a twin the policy back that was replaced, if one was.
pub(super) async fn give_policy_back(
    site: &SnapshotSite,
    twin: &VolumeSnapshot,
) -> Result<PolicyBack, ApiError> {
    let Some(content) = real_content(site, twin).await? else {
        return Ok(PolicyBack::NoNeed);
    };
    let Some(before) = content.annotations().get(mark::DELETION_POLICY_BEFORE) else {
        return Ok(PolicyBack::NoNeed);
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
    unless_conflict(changed).map(|_| PolicyBack::Given)
}

/// The content that keeps the data of a twin which is gone, as the content of the user's snapshot
/// has it on record.
pub(super) async fn kept(
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

/// Whether it is only because of this driver that the data of a content is still there.
pub(super) fn would_be_deleted(content: &VolumeSnapshotContent) -> bool {
    content.spec.deletion_policy != RETAIN || content.annotations().contains_key(mark::DELETION_POLICY_BEFORE)
}
