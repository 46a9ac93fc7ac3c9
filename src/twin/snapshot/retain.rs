//! The deletion policy of a snapshot's real data follows the user's: Retain is set on the
//! content of the twin, and taken back when the snapshot is to be deleted after all.

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

/// Sets the policy to Retain, and notes what it was.
pub(super) async fn retain(site: &SnapshotSite, content: &VolumeSnapshotContent) -> Result<(), ApiError> {
    let patch = json!({
        "metadata": {
            "uid": content.uid(),
            "resourceVersion": content.resource_version(),
            "annotations": {mark::DELETION_POLICY_BEFORE: content.spec.deletion_policy},
        },
        "spec": {"deletionPolicy": RETAIN},
    });
    let (contents, name) = (site.contents(), content.name_any());
    let changed = crash::around(Step::SnapshotRetain, contents.merge(&name, &patch)).await;
    unless_conflict(changed).map(drop)
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
    let Some(content) = real_content(site, twin).await else {
        return Ok(PolicyBack::NoNeed);
    };
    let Some(before) = content.annotations().get(mark::DELETION_POLICY_BEFORE) else {
        return Ok(PolicyBack::NoNeed);
    };
    let patch = json!({
        "metadata": {
            "uid": content.uid(),
            "resourceVersion": content.resource_version(),
            "annotations": {mark::DELETION_POLICY_BEFORE: null},
        },
        "spec": {"deletionPolicy": before},
    });
    let (contents, name) = (site.contents(), content.name_any());
    let changed = crash::around(Step::SnapshotPolicyBack, contents.merge(&name, &patch)).await;
    unless_conflict(changed).map(|_| PolicyBack::Given)
}
