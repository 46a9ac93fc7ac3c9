//! Adopts an existing PV for a new twin: observes the PV that a claim names, and sets its `claimRef` to
//! the twin. Whether the claim may have the PV is decided in [`crate::placement`].

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde_json::json;

use super::{
    CreateError, CreateRequest, Site, data_path,
    not_taken::rejected,
    observation::Observation,
    reading,
    record::{self, Adopted, Chosen},
};
use crate::{
    cluster::{ApiError, Cluster, facts, unless_conflict},
    observe::crash::{self, Step},
    placement::{
        AdoptFacts, AdoptRequest, AdoptStep, AdoptableVolume, ReclaimPolicy, VolumeOwner, adopt_step,
    },
    volume::{ClaimName, ImportRecord, adoptable_by, mark},
};

/// The PV that a claim asks to adopt.
pub(super) fn pv_to_adopt(claim: Option<&PersistentVolumeClaim>) -> Option<&str> {
    let wanted = claim?.annotations().get(mark::ADOPT)?;
    Some(wanted.as_str())
}

/// The PV that a twin was created for.
#[must_use]
pub fn adopted(twin: &PersistentVolumeClaim) -> Option<&str> {
    twin.annotations().get(mark::ADOPTED).map(String::as_str)
}

/// Why this driver cannot mount a PV; `None` if it can.
#[must_use]
pub fn unmountable(volume: &PersistentVolume) -> Option<String> {
    data_path::of(volume, None).err()
}

/// Sets the `claimRef` of the PV to the twin or, if that is done, creates the twin. The caller then
/// observes again.
pub(super) async fn adopt(
    site: &Site,
    request: &CreateRequest,
    observation: &mut Observation,
    wanted: String,
) -> Result<(), CreateError> {
    let found = site.home().all::<PersistentVolume>().get(&wanted).await?;
    let claim = observation.claim.as_ref();
    let facts = AdoptFacts {
        volume: match &found {
            Some(volume) => Some(observe(site, claim, volume).await?),
            None => None,
        },
        asked: requirements(site, request),
        name: wanted,
    };
    let step = adopt_step(&facts);
    let Some(volume) = found else {
        return match step {
            AdoptStep::Refuse(refusal) => Err(refusal.into()),
            // A PV that does not exist is refused.
            AdoptStep::Reserve | AdoptStep::Make => Ok(()),
        };
    };
    match step {
        AdoptStep::Refuse(refusal) => Err(refusal.into()),
        AdoptStep::Reserve => {
            if !Box::pin(observation.is_within_reach(site, request, &volume)).await? {
                return Err(CreateError::Elsewhere(format!(
                    "the PersistentVolume {} is not accessible from the selected node",
                    facts.name
                )));
            }
            reserve(site, &volume).await?;
            Ok(())
        }
        AdoptStep::Make => create_twin(site, request, observation, &volume).await,
    }
}

fn requirements(site: &Site, request: &CreateRequest) -> AdoptRequest {
    let spec = &request.spec;
    AdoptRequest {
        claim: spec.parameters.claim.clone(),
        bytes: spec.size.request(),
        mode: spec.capabilities.volume_mode(),
        access_modes: spec
            .capabilities
            .access_modes()
            .iter()
            .copied()
            .collect::<BTreeSet<_>>(),
        has_source: spec.source.is_some(),
        at_home: site.remote_cluster().is_none(),
    }
}

async fn observe(
    site: &Site,
    claim: Option<&PersistentVolumeClaim>,
    volume: &PersistentVolume,
) -> Result<AdoptableVolume, ApiError> {
    let spec = volume.spec.clone().unwrap_or_default();
    let policy = facts::reclaim_policy(spec.persistent_volume_reclaim_policy.as_deref());
    Ok(AdoptableVolume {
        permitted: permitted(site, volume).await?,
        retained: policy == ReclaimPolicy::Retain,
        deleting: volume.metadata.deletion_timestamp.is_some(),
        bytes: facts::volume_size(volume).unwrap_or_default(),
        mode: facts::volume_mode(spec.volume_mode.as_deref()),
        access_modes: facts::access_modes(spec.access_modes.iter().flatten()),
        unmountable: unmountable(volume),
        held: claim_ref_state(site, claim, volume).await?,
    })
}

/// The claim that may adopt a PV, unless its namespace was deleted and created again since then.
async fn permitted(site: &Site, volume: &PersistentVolume) -> Result<Option<ClaimName>, ApiError> {
    let Some(claim) = adoptable_by(volume.annotations()) else {
        return Ok(None);
    };
    let Ok(Some(record)) = ImportRecord::read(volume.annotations()) else {
        return Ok(None);
    };
    let namespace = site.home().all::<Namespace>().get(&claim.namespace).await?;
    let is_the_same = namespace.and_then(|found| found.uid()) == Some(record.claim.namespace_uid);
    Ok(is_the_same.then_some(claim))
}

/// The claim that a PV names, compared with the future twin.
async fn claim_ref_state(
    site: &Site,
    claim: Option<&PersistentVolumeClaim>,
    volume: &PersistentVolume,
) -> Result<VolumeOwner, ApiError> {
    let Some(named) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
        return Ok(VolumeOwner::None);
    };
    let uid = reading::holder_uid(volume).filter(|uid| !uid.is_empty());
    let name = facts::claim_name(named);
    if name.namespace == site.namespace() {
        if name.name == site.name() {
            return Ok(VolumeOwner::Twin {
                with_uid: uid.is_some(),
            });
        }
        let found = site.twins().get(&name.name).await?;
        return Ok(VolumeOwner::EarlierTwin {
            exists: found.is_some(),
            name: name.to_string(),
        });
    }
    let is_of_the_name = claim.is_some_and(|claim| {
        name == ClaimName {
            namespace: claim.namespace().unwrap_or_default(),
            name: claim.name_any(),
        }
    });
    Ok(if is_of_the_name {
        VolumeOwner::SameName {
            is_it: uid.is_some() && uid == claim.and_then(|claim| claim.metadata.uid.as_deref()),
        }
    } else {
        VolumeOwner::Other(name)
    })
}

/// Sets the `claimRef` of a PV to the twin, without a uid: Kubernetes writes that when it binds the two.
async fn reserve(site: &Site, volume: &PersistentVolume) -> Result<(), ApiError> {
    let patch = json!({
        "metadata": {"uid": volume.uid(), "resourceVersion": volume.resource_version()},
        "spec": {"claimRef": claim_ref(site.namespace(), site.name())},
    });
    let volumes = site.volumes();
    let name = volume.name_any();
    let reserved = crash::around(Step::AdoptReserve, volumes.merge(&name, &patch)).await;
    // On a conflict the caller reads the PV again.
    unless_conflict(reserved).map(drop)
}

/// A `claimRef` by name only, as a merge patch.
#[must_use]
pub fn claim_ref(namespace: &str, name: &str) -> serde_json::Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": namespace,
        "name": name,
        "uid": null,
        "resourceVersion": null,
    })
}

async fn create_twin(
    site: &Site,
    request: &CreateRequest,
    observation: &Observation,
    volume: &PersistentVolume,
) -> Result<(), CreateError> {
    let spec = volume.spec.clone().unwrap_or_default();
    let name = volume.name_any();
    let chosen = Chosen {
        // An empty name means "no class"; without a name Kubernetes would use the default class.
        class: spec.storage_class_name.as_deref().unwrap_or_default(),
        provisioner: None,
        node: None,
        access_modes: None,
        // A claim is bound only to a PV of the same attributes.
        attributes: spec.volume_attributes_class_name.as_deref(),
        source: None,
        adopted: Some(Adopted { volume: &name }),
    };
    let twin = record::twin(site, request, observation.claim.as_ref(), &chosen);
    let created = crash::around(Step::TwinCreate, site.twins().create(&twin)).await;
    created.map(drop).map_err(|error| rejected(site, error))
}

/// Removes the request to adopt from a claim whose volume exists: a copy of the claim, such as from a
/// backup, must not ask for the same PV. False if the claim has changed since it was read.
pub async fn remove_adopt_request(home: &Cluster, claim: &PersistentVolumeClaim) -> Result<bool, ApiError> {
    if pv_to_adopt(Some(claim)).is_none() {
        return Ok(true);
    }
    let claims = home.within::<PersistentVolumeClaim>(&claim.namespace().unwrap_or_default());
    let patch = json!({"metadata": {
        "uid": claim.uid(),
        "resourceVersion": claim.resource_version(),
        "annotations": {mark::ADOPT: null},
    }});
    let removed = crash::around(Step::SettleClaim, claims.merge(&claim.name_any(), &patch)).await;
    Ok(unless_conflict(removed)?.is_some())
}
