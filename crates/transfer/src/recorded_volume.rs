//! The PV with the record of a transfer, as it was last observed. The record and the location of the data
//! are only on this PV: if another client deletes it, no other object in the cluster has them.

use std::fmt::{self, Display, Formatter};

use k8s_openapi::{api::core::v1::PersistentVolume, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::ResourceExt;
use serde_json::Value;

use super::TransferError;
use crate::{cluster::Cluster, volume::ClaimName};

/// The PV whose record was observed, if one was.
#[derive(Default)]
pub(super) struct RecordedVolume {
    seen: Option<PersistentVolume>,
}

impl RecordedVolume {
    /// Keeps a PV that has a record.
    pub(super) fn remember(&mut self, volume: &PersistentVolume) {
        self.seen = Some(volume.clone());
    }

    /// Reads the PV again; `None` if none was observed. It is an error if it is gone.
    pub(super) async fn reread(
        &self,
        cluster: &Cluster,
        claim: &ClaimName,
        what: &'static str,
    ) -> Result<Option<PersistentVolume>, TransferError> {
        let Some(seen) = &self.seen else {
            return Ok(None);
        };
        let found = cluster.all::<PersistentVolume>().get(&seen.name_any()).await?;
        match found.filter(|found| found.uid() == seen.uid()) {
            Some(found) => Ok(Some(found)),
            None => Err(TransferError::VolumeDeleted {
                what,
                claim: claim.clone(),
                volume: Box::new(DeletedVolume::new(seen)?),
            }),
        }
    }
}

/// A PV that was deleted, and a manifest to create it again.
#[derive(Debug)]
pub struct DeletedVolume {
    name: String,
    /// The CSI driver and volume handle of the data, if it has them.
    place: Option<(String, String)>,
    manifest: Value,
}

impl DeletedVolume {
    /// Keeps all fields that a client can set, including the record, so that the transfer can continue after
    /// the PV is created again.
    fn new(seen: &PersistentVolume) -> Result<Self, serde_json::Error> {
        let source = seen.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        let again = PersistentVolume {
            metadata: ObjectMeta {
                name: seen.metadata.name.clone(),
                labels: seen.metadata.labels.clone(),
                annotations: seen.metadata.annotations.clone(),
                ..ObjectMeta::default()
            },
            spec: seen.spec.clone(),
            status: None,
        };
        Ok(Self {
            name: seen.name_any(),
            place: source.map(|source| (source.driver.clone(), source.volume_handle.clone())),
            manifest: serde_json::to_value(again)?,
        })
    }
}

impl Display for DeletedVolume {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "the PersistentVolume {}, which was retained: its data is still in the storage",
            self.name
        )?;
        if let Some((driver, handle)) = &self.place {
            write!(out, " (driver {driver}, volume handle {handle})")?;
        }
        write!(
            out,
            ". To continue, create it again, and run the same command again:\nkubectl create -f - <<'END'\n{}\nEND",
            self.manifest
        )
    }
}
