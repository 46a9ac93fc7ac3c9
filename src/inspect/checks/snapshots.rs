//! Single snapshots that are not well, or that somebody has to decide about.

use super::{Finding, Installation, Severity};
use crate::inspect::{Name, Scope, SnapshotRow, SnapshotState, snapshot_rows};

/// Snapshots whose state needs somebody, and what is kept of those that are gone.
pub(super) fn unwell(installation: &Installation) -> Vec<Finding> {
    let rows = snapshot_rows(&installation.snapshots, &Scope::All);
    rows.into_iter().filter_map(finding).collect()
}

fn finding(row: SnapshotRow) -> Option<Finding> {
    let severity = match row.state {
        SnapshotState::Ready | SnapshotState::Guest | SnapshotState::Unknown => return None,
        // It is on its way.
        SnapshotState::Pending if row.message.is_empty() => return None,
        SnapshotState::TwinVanished => Severity::Error,
        SnapshotState::Pending | SnapshotState::Orphaned => Severity::Warning,
        SnapshotState::Deleting | SnapshotState::Retained => Severity::Note,
    };
    let name = |name: &Name| format!("VolumeSnapshot {}/{}", name.namespace, name.name);
    // Of one that is gone, the twin is what there is to look at.
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
