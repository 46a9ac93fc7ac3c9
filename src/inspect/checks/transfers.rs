//! Imports, releases and moves that have begun and are not complete.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use super::{Finding, Installation};
use crate::{
    inspect::{cases, health::is_moving, names::full_name},
    volume::{ImportRecord, ReleaseRecord, adoptable_by, mark, moving::is_gated},
};

/// PVs with the record of an import, and the command that completes it.
pub(super) fn unfinished_imports(installation: &Installation) -> Vec<Finding> {
    let volumes = installation.storage.volumes.iter();
    let recorded = volumes.filter(|volume| volume.annotations().contains_key(mark::IMPORT));
    let found = recorded.map(|volume| {
        let object = format!("PersistentVolume {}", volume.name_any());
        let record = match ImportRecord::read(volume.annotations()) {
            Ok(Some(record)) => record,
            Ok(None) => {
                return Finding::error(object, "The record of its import is gone.", "Run doctor again.");
            }
            Err(error) => {
                return Finding::error(
                    object,
                    format!("It is being imported, and {error}. It is retained meanwhile."),
                    "Use the version of liqo-csi that began the import to complete it.",
                );
            }
        };
        let claim = record.claim.full_name();
        if adoptable_by(volume.annotations()).is_none() {
            return Finding::warning(
                object,
                format!("The import of the claim {claim} is being undone. The data is safe: the PersistentVolume is retained."),
                format!("liqo-csi import pvc {claim} --undo"),
            );
        }
        Finding::warning(
            object,
            format!("The import of the claim {claim} is not complete. The data is safe: the PersistentVolume is retained."),
            format!("liqo-csi import pvc {claim} continues it, and liqo-csi import pvc {claim} --undo undoes it."),
        )
    });
    found.collect()
}

/// PVs with the record of a release, twins with the mark of one although their PV has no record, and the
/// command that completes it.
pub(super) fn unfinished_releases(installation: &Installation) -> Vec<Finding> {
    let volumes = installation.storage.volumes.iter();
    let mut recorded = BTreeSet::new();
    let mut found = Vec::new();
    for volume in volumes.filter(|volume| volume.annotations().contains_key(mark::RELEASE)) {
        recorded.insert(volume.name_any());
        let object = format!("PersistentVolume {}", volume.name_any());
        found.push(match ReleaseRecord::read(volume.annotations()) {
            Ok(Some(record)) => unfinished_release(object, &record),
            Ok(None) => Finding::error(object, "The record of its release is gone.", "Run doctor again."),
            Err(error) => Finding::error(
                object,
                format!("It is being released, and {error}. It is retained meanwhile."),
                "Use the version of liqo-csi that began the release to complete it.",
            ),
        });
    }
    for twin in &installation.storage.twins {
        let spec = twin.spec.as_ref();
        let real = spec.and_then(|spec| spec.volume_name.as_ref());
        let Some(claim) = twin.annotations().get(mark::RELEASING) else {
            continue;
        };
        if real.is_some_and(|real| recorded.contains(real)) {
            continue;
        }
        found.push(Finding::warning(
            format!("PersistentVolumeClaim {}/{}", twin.namespace().unwrap_or_default(), twin.name_any()),
            format!("The release of the claim {claim} is not complete. Until it is, the driver neither uses nor repairs this twin."),
            format!("liqo-csi release pvc {claim} continues it, and liqo-csi release pvc {claim} --undo undoes it."),
        ));
    }
    found
}

/// Volumes that a move keeps from their pods, while the controller runs no moves.
pub(super) fn stopped_moves(installation: &Installation) -> Vec<Finding> {
    if installation.setup.runs_moves() != Some(false) {
        return Vec::new();
    }
    let storage = &installation.storage;
    let gated = storage
        .volumes
        .iter()
        .filter(|volume| is_gated(volume.annotations()));
    let gated = gated.map(|volume| {
        Finding::error(
            format!("PersistentVolume {}", volume.name_any()),
            "A move has gated it, so no pod starts with its claim, and the controller runs no moves (mover.enabled: false).",
            "Set mover.enabled: true in the values of the chart until the move has ended. `liqo-csi move cancel` ends it before its commit.",
        )
    });
    let is_removed = |claim: &&PersistentVolumeClaim| {
        is_moving(claim, storage) && cases::volume_of(claim, storage).is_none()
    };
    let removed = storage.claims.iter().filter(is_removed).map(|claim| {
        Finding::error(
            format!("PersistentVolumeClaim {}", full_name(claim)),
            "A move has deleted its PersistentVolume to create it again, so no pod starts with it, and the controller runs no moves (mover.enabled: false).",
            "Set mover.enabled: true in the values of the chart until the move has ended.",
        )
    });
    gated.chain(removed).collect()
}

fn unfinished_release(object: String, record: &ReleaseRecord) -> Finding {
    let claim = record.claim.full_name();
    if record.undone {
        return Finding::warning(
            object,
            format!(
                "The release of the claim {claim} is being undone. The data is safe: the PersistentVolume is retained."
            ),
            format!("liqo-csi release pvc {claim} --undo"),
        );
    }
    Finding::warning(
        object,
        format!(
            "The release of the claim {claim} is not complete. The data is safe: the PersistentVolume is retained."
        ),
        format!(
            "liqo-csi release pvc {claim} continues it, and liqo-csi release pvc {claim} --undo undoes it."
        ),
    )
}
