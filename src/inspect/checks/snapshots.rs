//! Snapshots that have a problem, or about which a user has to decide.

use kube::ResourceExt;

use super::{Finding, Installation, Severity};
use crate::{
    inspect::{Name, Scope, SnapshotRow, SnapshotState, snapshot_rows},
    volume::{DRIVER_NAME, SnapshotImport},
};

/// Snapshots with a problem, and those whose data is kept after their deletion.
pub(super) fn problems(installation: &Installation) -> Vec<Finding> {
    let rows = snapshot_rows(&installation.snapshots, &Scope::All);
    rows.into_iter().filter_map(finding).collect()
}

/// Where a class for snapshots of this driver exists, the controller has a csi-snapshotter.
pub(super) fn snapshotter(installation: &Installation) -> Vec<Finding> {
    let setup = &installation.setup;
    if setup.controllers.iter().next().is_none() || setup.sidecar("csi-snapshotter").is_some() {
        return Vec::new();
    }
    let classes = installation.snapshots.classes.iter();
    classes
        .filter(|class| class.driver == DRIVER_NAME)
        .map(|class| {
            Finding::warning(
                format!("VolumeSnapshotClass {}", class.name_any()),
                "The controller has no csi-snapshotter: a snapshot of this class is never taken.",
                "Run helm upgrade, which adds it where the kinds of snapshots are defined, or set the chart's value \
                 controller.snapshotter.enabled to true.",
            )
        })
        .collect()
}

/// Contents with the record of an import, and the command that completes it.
pub(super) fn unfinished_imports(installation: &Installation) -> Vec<Finding> {
    let contents = installation.snapshots.contents.iter();
    let recorded = contents.filter_map(|content| {
        let object = format!("VolumeSnapshotContent {}", content.name_any());
        match SnapshotImport::read(content.annotations()) {
            Ok(None) => None,
            Err(error) => Some(Finding::error(
                object,
                format!("It is being imported, and {error}. It is retained meanwhile."),
                "Use the version of liqo-csi that began the import to complete it.",
            )),
            Ok(Some(record)) => {
                let snapshot = format!("{}/{}", record.namespace, record.name);
                Some(Finding::warning(
                    object,
                    format!("The import of the snapshot {snapshot} is not complete. The data is safe: the content is retained."),
                    format!(
                        "liqo-csi import snapshot {snapshot} continues it, and liqo-csi import snapshot {snapshot} --undo \
                         undoes it, as long as the original VolumeSnapshot exists."
                    ),
                ))
            }
        }
    });
    recorded.collect()
}

fn finding(row: SnapshotRow) -> Option<Finding> {
    let severity = match row.state {
        SnapshotState::Ready | SnapshotState::Guest | SnapshotState::Unknown => return None,
        // It is being created.
        SnapshotState::Pending if row.message.is_empty() => return None,
        SnapshotState::TwinVanished => Severity::Error,
        SnapshotState::Pending | SnapshotState::Orphaned => Severity::Warning,
        SnapshotState::Deleting | SnapshotState::Retained => Severity::Note,
    };
    let name = |name: &Name| format!("VolumeSnapshot {}/{}", name.namespace, name.name);
    // If the VolumeSnapshot is gone, the finding is about the twin.
    let object = match (&row.twin, &row.snapshot) {
        (Some(twin), _) if row.state == SnapshotState::Orphaned => Some(name(twin)),
        (_, Some(snapshot)) => Some(name(snapshot)),
        (twin, None) => twin.as_ref().map(name),
    };
    Some(Finding::new(
        severity,
        object.or(row.id).unwrap_or_default(),
        format!("{}: {}.", row.state.name(), row.message.trim_end_matches('.')),
        row.advice,
    ))
}
