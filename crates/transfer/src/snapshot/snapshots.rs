//! The `VolumeSnapshot`s that an import creates: the twin, and the replacement of the user's. Their contents
//! are in `contents`.

use kube::api::ObjectMeta;
use serde_json::Value;

use super::SnapshotImportRequest;
use crate::{
    Context,
    cluster::snapshots::{SnapshotOf, VolumeSnapshot, VolumeSnapshotContent, VolumeSnapshotSpec},
    volume::{SnapshotImport, SnapshotMarks, SnapshotName, mark},
};

/// The twin, without its source volume, which is not known here.
pub(super) fn twin(
    context: &Context<'_>,
    request: &SnapshotImportRequest,
    affinity: Option<String>,
    real: &VolumeSnapshotContent,
    record: &SnapshotImport,
) -> VolumeSnapshot {
    let marks = SnapshotMarks {
        home: request.home.clone(),
        key: record.key(),
        source: String::new(),
        snapshot: Some(SnapshotName {
            namespace: record.namespace.clone(),
            name: record.name.clone(),
        }),
        request_name: record.request_name(),
    };
    let spec = VolumeSnapshotSpec {
        source: SnapshotOf {
            volume_snapshot_content_name: Some(record.real_content()),
            ..SnapshotOf::default()
        },
        volume_snapshot_class_name: real.spec.volume_snapshot_class_name.clone(),
    };
    let mut twin = VolumeSnapshot::new(&record.key().twin(), spec);
    let mut annotations = marks.annotations();
    annotations.extend(affinity.map(|text| (mark::SOURCE_AFFINITY.to_owned(), text)));
    twin.metadata.namespace = Some(context.storage_namespace.to_owned());
    twin.metadata.labels = Some(marks.labels());
    twin.metadata.annotations = Some(annotations);
    twin
}

/// The user's snapshot with a class of this driver.
pub(super) fn new_user(record: &SnapshotImport) -> Result<VolumeSnapshot, serde_json::Error> {
    let spec = VolumeSnapshotSpec {
        source: SnapshotOf {
            volume_snapshot_content_name: Some(record.user_content()),
            ..SnapshotOf::default()
        },
        volume_snapshot_class_name: Some(record.class.clone()),
    };
    let owners = serde_json::from_value(Value::Array(record.owners.clone()))?;
    let mut user = VolumeSnapshot::new(&record.name, spec);
    user.metadata = ObjectMeta {
        namespace: Some(record.namespace.clone()),
        name: Some(record.name.clone()),
        labels: Some(record.labels.clone()),
        annotations: Some(record.annotations.clone()),
        owner_references: Some(owners),
        ..ObjectMeta::default()
    };
    Ok(user)
}
