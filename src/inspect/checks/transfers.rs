//! Imports that have begun and not ended.

use kube::ResourceExt;

use super::{Finding, Installation};
use crate::volume::{ImportRecord, adoptable_by, mark};

/// PVs that are recorded as being imported, and the command that ends that.
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
                    "Use the version of liqo-csi that began the import to end it.",
                );
            }
        };
        let claim = record.claim.full_name();
        if adoptable_by(volume.annotations()).is_none() {
            return Finding::warning(
                object,
                format!("The import of the claim {claim} is being undone and has not ended. The data is safe: the PersistentVolume is retained."),
                format!("liqo-csi import pvc {claim} --undo"),
            );
        }
        Finding::warning(
            object,
            format!("The import of the claim {claim} has not ended. The data is safe: the PersistentVolume is retained."),
            format!("liqo-csi import pvc {claim} goes on with it, and liqo-csi import pvc {claim} --undo takes it back."),
        )
    });
    found.collect()
}
