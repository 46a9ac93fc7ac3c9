//! Observes an import: the claim, the PV and the record on it. Everything is read live, the claim before the
//! PV. So if the PV was ready to be imported and the claim is then deleted in the version that was read, no
//! undo can have happened in between.

use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{
    Context, TransferError,
    claim_ref::{claim_holder, is_claimable, is_kept, is_overlooked, reference_to},
    recorded_volume::RecordedVolume,
    writing::changed_since,
};
use crate::{
    cluster::{ApiError, Cluster, facts},
    placement::transfer::{ClaimNow, Holder, NamedVolume, Progress},
    twin::{adopted, is_bound},
    volume::{ClaimName, DRIVER_NAME, ImportRecord, adoptable_by, mark},
};

pub(super) use crate::cluster::facts::BOUND_BY_CONTROLLER;

/// The observed objects.
pub(super) struct Observed {
    pub(super) name: ClaimName,
    /// The uid of its namespace; empty if that does not exist.
    pub(super) namespace_uid: String,
    /// The claim of this name.
    pub(super) claim: Option<PersistentVolumeClaim>,
    /// The PV with the data.
    pub(super) volume: Option<PersistentVolume>,
    /// The record on the PV.
    pub(super) record: Option<ImportRecord>,
    /// The PV that the claim names, if that is another one.
    other: Option<PersistentVolume>,
}

/// Observes the same PV each time.
#[derive(Default)]
pub(super) struct Observer {
    volume: RecordedVolume,
}

impl Observer {
    pub(super) async fn observe(
        &mut self,
        cluster: &Cluster,
        name: &ClaimName,
    ) -> Result<Observed, TransferError> {
        let claims = cluster.within::<PersistentVolumeClaim>(&name.namespace);
        let volumes = cluster.all::<PersistentVolume>();
        let claim = claims.get(&name.name).await?;
        let named = claim.as_ref().and_then(volume_name);
        let volume = match self.volume.reread(cluster, name, "imported").await? {
            Some(known) => Some(known),
            None => match recorded(cluster, name, |volume| is_imported_for(name, volume)).await? {
                Some(found) => Some(found),
                None => match named {
                    Some(named) => volumes.get(named).await?,
                    None => None,
                },
            },
        };
        let record = match &volume {
            Some(volume) => ImportRecord::read(volume.annotations())
                .map_err(|error| TransferError::Record(volume.name_any(), error))?,
            None => None,
        };
        let namespace_uid = namespace_uid(cluster, name).await?;
        if let (Some(record), Some(volume)) = (&record, &volume)
            && Some(&record.claim.namespace_uid) != namespace_uid.as_ref()
        {
            return Err(TransferError::OtherNamespace {
                what: "imported",
                claim: name.clone(),
                volume: volume.name_any(),
                policy: record.policy.clone(),
            });
        }
        if let (Some(_), Some(volume)) = (&record, &volume) {
            self.volume.remember(volume);
        }
        let is_another =
            |named: &&str| volume.as_ref().and_then(|it| it.metadata.name.as_deref()) != Some(*named);
        let other = match named.filter(is_another) {
            Some(named) => volumes.get(named).await?,
            None => None,
        };
        Ok(Observed {
            name: name.clone(),
            namespace_uid: namespace_uid.unwrap_or_default(),
            claim,
            volume,
            record,
            other,
        })
    }
}

/// The uid of the namespace of a claim, if it exists.
pub(super) async fn namespace_uid(cluster: &Cluster, name: &ClaimName) -> Result<Option<String>, ApiError> {
    let namespace = cluster.all::<Namespace>().get(&name.namespace).await?;
    // Nothing can be created in a namespace that is being deleted.
    let stays = namespace.filter(|found| found.metadata.deletion_timestamp.is_none());
    Ok(stays.and_then(|found| found.uid()))
}

/// Whether a PV is being imported for a claim of this name.
pub(super) fn is_imported_for(name: &ClaimName, volume: &PersistentVolume) -> bool {
    let annotations = volume.annotations();
    if !annotations.contains_key(mark::IMPORT) {
        return false;
    }
    let recorded = ImportRecord::read(annotations).ok().flatten();
    let recorded = recorded.map(|record| record.claim.full_name());
    recorded.as_ref() == Some(name) || adoptable_by(annotations).as_ref() == Some(name)
}

/// The PV with the record of a claim of this name.
pub(super) async fn recorded(
    cluster: &Cluster,
    name: &ClaimName,
    is_its: impl Fn(&PersistentVolume) -> bool,
) -> Result<Option<PersistentVolume>, TransferError> {
    let mut found = cluster.all::<PersistentVolume>().find(is_its).await?;
    if found.len() > 1 {
        return Err(TransferError::Several {
            claim: name.clone(),
            volumes: found.iter().map(ResourceExt::name_any).collect(),
        });
    }
    Ok(found.pop())
}

pub(super) fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    let name = claim.spec.as_ref()?.volume_name.as_deref()?;
    (!name.is_empty()).then_some(name)
}

pub(super) fn phase(claim: &PersistentVolumeClaim) -> &str {
    let status = claim.status.as_ref();
    status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("Pending")
}

/// Whether a PV is a virtual one of this driver.
pub(super) fn is_virtual(volume: &PersistentVolume) -> bool {
    let source = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    source.is_some_and(|source| source.driver == DRIVER_NAME)
}

/// Whether a claim requests this class, and no more than the PV offers.
pub(super) fn asks_for(
    claim: &PersistentVolumeClaim,
    class: Option<&str>,
    volume: &PersistentVolume,
) -> bool {
    let (Some(spec), Some(its)) = (&claim.spec, &volume.spec) else {
        return false;
    };
    let modes = |of: Option<&Vec<String>>| facts::access_modes(of.into_iter().flatten());
    let bytes = facts::volume_size(volume).unwrap_or_default();
    // The PV controller binds no claim to a PV of another attributes class; it provisions another one.
    let attributes = |of: &Option<String>| of.clone().filter(|class| !class.is_empty());
    facts::claim_class(claim) == class
        && attributes(&spec.volume_attributes_class_name) == attributes(&its.volume_attributes_class_name)
        && facts::claim_size(claim).requested <= bytes
        && facts::volume_mode(spec.volume_mode.as_deref()) == facts::volume_mode(its.volume_mode.as_deref())
        && modes(spec.access_modes.as_ref()).is_subset(&modes(its.access_modes.as_ref()))
}

impl Observed {
    pub(super) fn progress(&self) -> Progress {
        match (&self.record, &self.volume) {
            (Some(_), Some(volume)) if volume.annotations().contains_key(mark::ADOPT_FOR) => {
                Progress::Permitted
            }
            (Some(_), _) => Progress::Withdrawn,
            (None, _) => Progress::NotRecorded,
        }
    }

    /// The record with the current old claim, if that was changed since.
    pub(super) fn changed_record(&self) -> Option<ImportRecord> {
        let mut record = self.record.clone()?;
        record.claim = changed_since(&record.claim, self.claim.as_ref(), &self.namespace_uid)?;
        Some(record)
    }

    pub(super) fn is_secured(&self) -> bool {
        let volume = self.volume.as_ref();
        volume.is_some_and(|volume| is_kept(volume) && !self.is_claimable(volume))
    }

    fn is_claimable(&self, volume: &PersistentVolume) -> bool {
        is_claimable(volume, &self.name, self.claim.as_ref())
    }

    /// The spec of a PV whose data is retained, and that no other claim can bind to.
    pub(super) fn secure_spec(&self, volume: &PersistentVolume, record: &ImportRecord) -> Value {
        let mut spec = json!({"persistentVolumeReclaimPolicy": "Retain"});
        if self.is_claimable(volume) {
            spec["claimRef"] = reference_to(&self.name, &record.claim.uid);
        }
        spec
    }

    /// Whether the PV controller has to be made to process the claim.
    pub(super) fn is_overlooked(&self) -> bool {
        is_overlooked(self.claim.as_ref(), self.volume.as_ref())
    }

    pub(super) fn claim_now(&self) -> ClaimNow {
        let Some(claim) = &self.claim else {
            return ClaimNow::Absent;
        };
        let annotations = claim.annotations();
        let deleting = claim.metadata.deletion_timestamp.is_some();
        let old = || ClaimNow::Old {
            deleting,
            touched: annotations.contains_key(mark::IMPORT_UNDONE),
        };
        let new = |bound| ClaimNow::New {
            deleting,
            has_node: annotations.contains_key(crate::cluster::slim::SELECTED_NODE),
            bound,
        };
        let Some(record) = &self.record else {
            // A claim with a virtual volume is the result of an import.
            return match self.other.as_ref().or(self.volume.as_ref()) {
                Some(volume) if is_virtual(volume) => new(phase(claim) == "Bound"),
                _ => old(),
            };
        };
        if claim.metadata.uid.as_deref() == Some(&record.claim.uid) {
            return old();
        }
        let data = self
            .volume
            .as_ref()
            .and_then(|volume| volume.metadata.name.as_deref());
        let adopts = annotations.get(mark::ADOPT).map(String::as_str) == data;
        // The bound PV counts more than the annotation, because users can write that.
        if let Some(other) = &self.other {
            let is_it = is_virtual(other)
                && match crate::twin::real_volume_of(other) {
                    Some(real) => Some(real.as_str()) == data,
                    None => adopts,
                };
            if is_it {
                return new(true);
            }
        } else if adopts {
            return new(false);
        }
        let named = match volume_name(claim) {
            None => NamedVolume::None,
            Some(named) if Some(named) == data => NamedVolume::Imported {
                bound: phase(claim) == "Bound" && self.volume.as_ref().is_some_and(is_bound),
            },
            Some(_) => NamedVolume::Another,
        };
        ClaimNow::Other {
            deleting,
            volume: named,
            fits: self.fits(claim, &record.claim.spec),
        }
    }

    /// Whether a claim of another client requests what the PV offers.
    fn fits(&self, claim: &PersistentVolumeClaim, old: &Value) -> bool {
        let class = old["storageClassName"].as_str();
        let volume = self.volume.as_ref();
        volume.is_some_and(|volume| asks_for(claim, class, volume))
    }

    /// The holder of the PV, by its `claimRef`.
    pub(super) async fn holder(&self, context: &Context<'_>) -> Result<Holder, ApiError> {
        let Some(volume) = &self.volume else {
            return Ok(Holder::Gone);
        };
        let Some(named) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
            return Ok(Holder::Gone);
        };
        let named = facts::claim_name(named);
        if named == self.name {
            return Ok(claim_holder(self.claim.as_ref(), volume));
        }
        if named.namespace != context.storage_namespace {
            return Ok(Holder::Other(format!("the claim {named}")));
        }
        Ok(match self.twin(context).await? {
            Some(twin) if adopted(&twin) != volume.metadata.name.as_deref() => {
                Holder::Other(format!("the claim {named}, which was not made for it"))
            }
            Some(twin) => Holder::Twin {
                deleting: twin.metadata.deletion_timestamp.is_some(),
            },
            None => Holder::Gone,
        })
    }

    /// The twin in the `claimRef` of the PV.
    pub(super) async fn twin(
        &self,
        context: &Context<'_>,
    ) -> Result<Option<PersistentVolumeClaim>, ApiError> {
        let spec = self.volume.as_ref().and_then(|volume| volume.spec.as_ref());
        let Some(named) = spec.and_then(|spec| spec.claim_ref.as_ref()) else {
            return Ok(None);
        };
        let twins = context
            .cluster
            .within::<PersistentVolumeClaim>(context.storage_namespace);
        twins.get(&facts::claim_name(named).name).await
    }
}
