//! The PV that stands for a transfer, as it was seen last. What a transfer remembers stands on it,
//! and so does where the data is: once somebody has deleted it, nothing else in the cluster tells.

use std::fmt::{self, Display, Formatter};

use k8s_openapi::{api::core::v1::PersistentVolume, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::ResourceExt;
use serde_json::Value;

use super::TransferError;
use crate::{cluster::Cluster, volume::ClaimName};

/// The PV whose record was seen, if one was.
#[derive(Default)]
pub(super) struct Remembered {
    seen: Option<PersistentVolume>,
}

impl Remembered {
    /// Remembers a PV that has a record.
    pub(super) fn see(&mut self, volume: &PersistentVolume) {
        self.seen = Some(volume.clone());
    }

    /// The PV as it is now; `None` if none was seen. It is an error if it is gone.
    pub(super) async fn look_again(
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

/// A PV that somebody has deleted, and how to make it again.
#[derive(Debug)]
pub struct DeletedVolume {
    name: String,
    /// Where the data is, if a CSI driver has it: driver and handle.
    place: Option<(String, String)>,
    manifest: Value,
}

impl DeletedVolume {
    /// All that its creator could have written stays: the record, too, so that whoever makes it
    /// again can go on.
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
            ". To go on, make it again as it was, and run the same command again:\nkubectl create -f - <<'END'\n{}\nEND",
            self.manifest
        )
    }
}
