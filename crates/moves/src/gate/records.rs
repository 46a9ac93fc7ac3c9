//! Computes what the status of a move records of a claim's PV: the PV before the gate and, at the commit, the
//! one that replaces it. Either can be created again from its record.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use super::{GateError, MovedVolume, observe::twins_volume};
use crate::{
    cluster::facts,
    movers::node_affinity,
    placement::moving::{Side, VirtualVolume, policy_wanted},
    topology::{Segments, accessible},
    twin::{Site, TWIN_CLASS, TWIN_NAME, TWIN_NAMESPACE, TWIN_VOLUME, reading},
    volume::moving::{CommitRecord, Manifest, MoveRecordError, SourceRecord, TwinReference},
};

impl MovedVolume {
    /// The PV in the version of the decision; `None` if it has changed since.
    pub async fn source_record(&self, seen: &VirtualVolume) -> Result<Option<SourceRecord>, GateError> {
        let Some(volume) = self.exact_volume(&seen.at).await? else {
            return Ok(None);
        };
        let whole = serde_json::to_value(&volume.object).map_err(|error| self.unwritable(error))?;
        let source = Manifest::of(&whole).map_err(|error| self.unrecordable(error))?;
        Ok(Some(SourceRecord {
            claim: self.claim.clone(),
            // The policy of the user, not the Retain of an earlier gate.
            policy: policy_wanted(seen.policy, seen.mark.as_ref()),
            source,
        }))
    }

    /// The PV that replaces this one, for the current twin at the target.
    pub async fn commit_record(&self, of: &SourceRecord) -> Result<CommitRecord, GateError> {
        let site = self.site(Side::Target)?;
        let unbound = || GateError::Unbound {
            twin: site.place(),
            cluster: site.cluster_name(),
        };
        let twin = site.twins().get(site.name()).await?;
        let twin = twin.filter(|twin| site.is_twin(self.volume(), twin));
        let twin = twin.ok_or_else(unbound)?;
        let real = twins_volume(site, &twin).await?;
        let places = if site.remote_cluster().is_some() {
            vec![Segments::of_cluster(site.cluster().id())]
        } else {
            let real = real.as_ref().ok_or_else(unbound)?;
            let nodes = reading::nodes(&self.home);
            let places = accessible(self.home.id(), facts::affinity(real).as_ref(), &nodes);
            places.map_err(|error| GateError::Nowhere {
                twin: site.place(),
                error,
            })?
        };
        let affinity = serde_json::to_value(node_affinity(places)).map_err(|error| self.unwritable(error))?;
        let there = TwinReference {
            handle: self.target.id.clone(),
            attributes: attributes(site, self.name_to_take(), &twin, real.as_ref()),
            affinity,
            bytes: bytes(&twin, real.as_ref()),
        };
        let target = of.source.for_twin(&there);
        target
            .and_then(|target| CommitRecord::new(of.clone(), target))
            .map_err(|error| self.unrecordable(error))
    }

    fn unrecordable(&self, error: MoveRecordError) -> GateError {
        GateError::Record {
            volume: self.volume().clone(),
            error,
        }
    }
}

/// The same volume attributes as in the response of `CreateVolume`.
fn attributes(
    site: &Site,
    to_take: Option<&str>,
    twin: &PersistentVolumeClaim,
    real: Option<&PersistentVolume>,
) -> BTreeMap<String, String> {
    BTreeMap::from([
        (TWIN_NAMESPACE.to_owned(), site.namespace().to_owned()),
        (TWIN_NAME.to_owned(), to_take.unwrap_or(site.name()).to_owned()),
        (
            TWIN_VOLUME.to_owned(),
            real.map(ResourceExt::name_any).unwrap_or_default(),
        ),
        (
            TWIN_CLASS.to_owned(),
            reading::class_name(twin).unwrap_or_default().to_owned(),
        ),
    ])
}

/// An unbound twin counts with its requested size.
fn bytes(twin: &PersistentVolumeClaim, real: Option<&PersistentVolume>) -> u64 {
    let size = facts::claim_size(twin);
    let of_real = real.and_then(facts::volume_size);
    of_real.unwrap_or_else(|| size.capacity.max(size.requested))
}
