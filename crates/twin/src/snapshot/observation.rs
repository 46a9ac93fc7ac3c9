//! What `CreateSnapshot` observes, read live: the twin, and the content that Kubernetes created for the
//! user's snapshot.

use kube::ResourceExt;

use super::{SnapshotCreateError, SnapshotRequest, TakenSnapshot, site::SnapshotSite};
use crate::{
    cluster::{
        ApiError, Cluster, facts,
        snapshots::{VolumeSnapshot, VolumeSnapshotContent, is_ready},
    },
    placement::{SnapshotFacts, SnapshotTwin, UserContent, is_kept},
    volume::{DRIVER_NAME, SnapshotId, SnapshotKey, SnapshotMarks, mark},
};

/// As `deletionPolicy` spells it.
pub(super) const RETAIN: &str = "Retain";

/// The objects of one observation.
pub(super) struct SnapshotObservation {
    pub(super) facts: SnapshotFacts,
    pub(super) twin: Option<VolumeSnapshot>,
    pub(super) user_content: Option<VolumeSnapshotContent>,
    /// The content of the twin, where its deletion policy matters.
    pub(super) real_content: Option<VolumeSnapshotContent>,
}

impl SnapshotObservation {
    pub(super) async fn take(
        site: &SnapshotSite,
        request: &SnapshotRequest,
    ) -> Result<Self, SnapshotCreateError> {
        let (snapshots, name, id) = (site.snapshots(), site.name(), site.id());
        let (twin, user_content) =
            futures::try_join!(snapshots.get(&name), user_content(site.home(), &id.key))
                .map_err(not_allowed)?;
        let twin_fact = twin.as_ref().map(|twin| match site.recognise(twin) {
            Ok(marks) => SnapshotTwin::Ours {
                deleting: twin.metadata.deletion_timestamp.is_some(),
                same_source: marks.source == request.source.to_string(),
                cut: is_cut(twin),
            },
            Err(foreign) => SnapshotTwin::Foreign(foreign),
        });
        let content = content_fact(site, user_content.as_ref());
        let retained = user_content
            .as_ref()
            .is_some_and(|content| content.spec.deletion_policy == RETAIN);
        let is_kept = is_kept(retained, site.keeps_data(), content);
        let real_content = match &twin {
            Some(twin) if is_kept && is_cut(twin) => real_content(site, twin).await?,
            _ => None,
        };
        Ok(Self {
            facts: SnapshotFacts {
                twin: twin_fact.unwrap_or(SnapshotTwin::Absent),
                content,
                to_retain: real_content.as_ref().is_some_and(|content| {
                    content.spec.deletion_policy != RETAIN
                        || user_content
                            .as_ref()
                            .is_some_and(|user| !is_recorded(user, content))
                }),
            },
            twin,
            user_content,
            real_content,
        })
    }
}

/// If a right is missing, retrying does not help, and nothing was created.
fn not_allowed(error: ApiError) -> SnapshotCreateError {
    if error.is_forbidden() {
        SnapshotCreateError::NotAccepted(error)
    } else {
        SnapshotCreateError::Api(error)
    }
}

/// The contents in the home cluster with the id of the snapshot, whatever their names: also an import creates
/// one, and so do users and backup tools for a snapshot that exists.
pub(crate) async fn contents_with_id(
    home: &Cluster,
    id: &SnapshotId,
) -> Result<Vec<VolumeSnapshotContent>, ApiError> {
    let id = id.to_string();
    let is_its = |content: &VolumeSnapshotContent| {
        content.spec.driver == DRIVER_NAME && content.handle() == Some(id.as_str())
    };
    home.all::<VolumeSnapshotContent>().find(is_its).await
}

/// The content that Kubernetes created for the user's snapshot, if the request is for one.
pub(crate) async fn user_content(
    home: &Cluster,
    key: &SnapshotKey,
) -> Result<Option<VolumeSnapshotContent>, ApiError> {
    match key.content() {
        Some(name) => home.all::<VolumeSnapshotContent>().get(&name).await,
        None => Ok(None),
    }
}

fn content_fact(site: &SnapshotSite, content: Option<&VolumeSnapshotContent>) -> UserContent {
    match content {
        None if site.user_content_name().is_none() => UserContent::NotGiven,
        None => UserContent::Gone,
        Some(content) if content.metadata.deletion_timestamp.is_some() => UserContent::Deleting,
        Some(content) => UserContent::Live {
            answered: content
                .status
                .as_ref()
                .is_some_and(|status| status.snapshot_handle.is_some()),
        },
    }
}

/// The content of a twin, if it refers back to the twin. A content that may not be read counts as absent:
/// whether it is retained then depends on its own class.
pub(super) async fn real_content(
    site: &SnapshotSite,
    twin: &VolumeSnapshot,
) -> Result<Option<VolumeSnapshotContent>, ApiError> {
    let status = twin.status.as_ref();
    let Some(name) = status.and_then(|status| status.bound_volume_snapshot_content_name.as_deref()) else {
        return Ok(None);
    };
    let is_its = |content: &VolumeSnapshotContent| content.spec.volume_snapshot_ref.uid == twin.uid();
    match site.contents().get(name).await {
        Err(error) if error.is_forbidden() => {
            tracing::warn!(%error, snapshot = site.place(), "the content of a snapshot cannot be read");
            Ok(None)
        }
        found => Ok(found?.filter(is_its)),
    }
}

/// Whether the data of a twin is that of one point in time.
pub(super) fn is_cut(twin: &VolumeSnapshot) -> bool {
    twin.status
        .as_ref()
        .is_some_and(|status| status.creation_time.is_some())
}

/// Whether the content of a user's snapshot records which content keeps the data.
fn is_recorded(user: &VolumeSnapshotContent, content: &VolumeSnapshotContent) -> bool {
    user.annotations().get(mark::REAL_CONTENT) == content.metadata.name.as_ref()
}

/// The snapshot as the caller gets it; `None` if it is not cut.
pub(super) fn cut(id: SnapshotId, marks: SnapshotMarks, twin: &VolumeSnapshot) -> Option<TakenSnapshot> {
    let status = twin.status.as_ref()?;
    let cut_at = status.creation_time.as_ref()?.0;
    Some(TakenSnapshot {
        id,
        source: marks.source,
        bytes: status
            .restore_size
            .as_ref()
            .and_then(facts::bytes)
            .unwrap_or_default(),
        cut_at: (cut_at.as_second(), cut_at.subsec_nanosecond()),
        ready: is_ready(twin),
    })
}

/// The error that the snapshot controllers report in the status of a twin.
pub(super) fn reported_error(twin: &VolumeSnapshot) -> Option<String> {
    twin.status.as_ref()?.error.as_ref()?.message.clone()
}
