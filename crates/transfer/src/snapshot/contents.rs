//! The contents that an import creates, and whether a content of such a name is the expected one.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Resource, ResourceExt};

use super::RETAIN;
use crate::{
    cluster::snapshots::{
        ALLOW_MODE_CHANGE, ContentOf, VolumeSnapshot, VolumeSnapshotContent, VolumeSnapshotContentSpec,
    },
    placement::{ImportedContent, StoredSnapshot},
    volume::{ClusterId, DRIVER_NAME, SnapshotId, SnapshotImport, mark},
};

/// Annotations with the credentials with which the real driver deletes the data.
const DELETION_SECRET: &str = "snapshot.storage.kubernetes.io/deletion-secret-";

/// The storage of a content's data.
pub(super) fn stored_in(content: &VolumeSnapshotContent) -> StoredSnapshot {
    StoredSnapshot {
        content: content.name_any(),
        driver: content.spec.driver.clone(),
        handle: content.handle().unwrap_or_default().to_owned(),
        second: None,
    }
}

/// Compares an existing content with the expected one, which refers to this data and to the snapshot of this
/// namespace and name. `holder` is the existing snapshot of that name.
pub(super) fn imported(
    found: &VolumeSnapshotContent,
    data: &StoredSnapshot,
    (namespace, name): &(&str, String),
    holder: Option<&VolumeSnapshot>,
) -> ImportedContent {
    let of = &found.spec.volume_snapshot_ref;
    let is_its = found.spec.driver == data.driver
        && found.handle() == Some(data.handle.as_str())
        && of.namespace.as_deref() == Some(*namespace)
        && of.name.as_ref() == Some(name);
    let uid = of.uid.clone().filter(|uid| !uid.is_empty());
    if !is_its {
        ImportedContent::Foreign(found.name_any())
    } else if found.spec.driver != DRIVER_NAME && !is_retained(found) {
        ImportedContent::Unretained
    } else if is_leaving(found) {
        ImportedContent::Deleting(found.name_any())
    } else if uid.is_some() && uid != holder.and_then(ResourceExt::uid) {
        ImportedContent::Outlived(found.name_any())
    } else {
        ImportedContent::Sound
    }
}

pub(super) fn is_retained(content: &VolumeSnapshotContent) -> bool {
    content.spec.deletion_policy == RETAIN
}

pub(super) fn is_leaving<K: Resource>(object: &K) -> bool {
    object.meta().deletion_timestamp.is_some()
}

/// The second content of the data, for the twin. It is retained, and its policy is recorded, as for every
/// snapshot in use.
pub(super) fn twin_content(
    namespace: &str,
    real: &VolumeSnapshotContent,
    record: &SnapshotImport,
) -> VolumeSnapshotContent {
    let handle = real.handle().map(str::to_owned);
    let mut content = second(real, &record.real_content(), &real.spec.driver, handle);
    content
        .spec
        .volume_snapshot_class_name
        .clone_from(&real.spec.volume_snapshot_class_name);
    content.spec.volume_snapshot_ref = ObjectReference {
        namespace: Some(namespace.to_owned()),
        name: Some(record.key().twin()),
        ..ObjectReference::default()
    };
    let annotations = content.metadata.annotations.get_or_insert_default();
    let secrets = real
        .annotations()
        .iter()
        .filter(|(key, _)| key.starts_with(DELETION_SECRET));
    annotations.extend(secrets.map(|(key, value)| (key.clone(), value.clone())));
    let before = policy_before(record);
    annotations.extend(before.map(|policy| (mark::DELETION_POLICY_BEFORE.to_owned(), policy.to_owned())));
    content
}

/// The original policy of the data, if it differs from that of a snapshot in use.
pub(super) fn policy_before(record: &SnapshotImport) -> Option<&str> {
    Some(record.policy.as_str()).filter(|policy| *policy != RETAIN)
}

/// The content of the new snapshot, which refers to the twin.
pub(super) fn user_content(
    home: &ClusterId,
    policy: String,
    real: &VolumeSnapshotContent,
    record: &SnapshotImport,
) -> VolumeSnapshotContent {
    let id = SnapshotId::new(home.clone(), None, record.key()).to_string();
    let mut content = second(real, &record.user_content(), DRIVER_NAME, Some(id));
    content.spec.deletion_policy = policy;
    content.spec.volume_snapshot_class_name = Some(record.class.clone());
    content.spec.volume_snapshot_ref = ObjectReference {
        namespace: Some(record.namespace.clone()),
        name: Some(record.name.clone()),
        ..ObjectReference::default()
    };
    let annotations = content.metadata.annotations.get_or_insert_default();
    annotations.insert(mark::REAL_CONTENT.to_owned(), record.real_content());
    content
}

/// A retained content for existing data.
fn second(
    real: &VolumeSnapshotContent,
    name: &str,
    driver: &str,
    handle: Option<String>,
) -> VolumeSnapshotContent {
    let spec = VolumeSnapshotContentSpec {
        deletion_policy: RETAIN.to_owned(),
        driver: driver.to_owned(),
        source: ContentOf {
            snapshot_handle: handle,
            volume_handle: None,
        },
        source_volume_mode: real.spec.source_volume_mode.clone(),
        ..VolumeSnapshotContentSpec::default()
    };
    let mut content = VolumeSnapshotContent::new(name, spec);
    let allowed = real.annotations().get(ALLOW_MODE_CHANGE);
    content.metadata.annotations =
        allowed.map(|value| [(ALLOW_MODE_CHANGE.to_owned(), value.clone())].into());
    content
}
