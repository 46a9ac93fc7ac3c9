//! Builds the twin as an object: its first version already records all that this driver needs to know
//! about the volume.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{
        PersistentVolumeClaim, PersistentVolumeClaimSpec, TypedLocalObjectReference,
        VolumeResourceRequirements,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{ResourceExt, api::ObjectMeta};

use super::{
    CreateRequest, Site,
    reading::{PROVISIONER, PROVISIONER_BETA, claim_mark},
};
use crate::{
    cluster::{facts, slim::SELECTED_NODE},
    placement::NO_PROVISIONER,
    volume::{AccessMode, Carried, ClaimMark, Fingerprint, Marks, VolumeMode, VolumeName, mark, quantity},
};

/// What was chosen for a new twin.
pub struct Chosen<'a> {
    pub class: &'a str,
    pub provisioner: Option<&'a str>,
    /// The selected node, in the annotation that a scheduler would write.
    pub node: Option<&'a str>,
    /// Access modes, if they differ from those of the request.
    pub access_modes: Option<&'a [AccessMode]>,
    /// The `VolumeAttributesClass`.
    pub attributes: Option<&'a str>,
    /// The data source.
    pub source: Option<TypedLocalObjectReference>,
    /// The existing PV to adopt.
    pub adopted: Option<Adopted<'a>>,
}

/// A PV for which a twin is created.
#[derive(Clone, Copy)]
pub struct Adopted<'a> {
    pub volume: &'a str,
}

pub fn twin(
    site: &Site,
    request: &CreateRequest,
    claim: Option<&PersistentVolumeClaim>,
    chosen: &Chosen<'_>,
) -> PersistentVolumeClaim {
    let marks = Marks {
        home: site.home().id().clone(),
        volume: request.volume.clone(),
        claim: claim.map(|claim| twins_claim(&request.volume, claim_mark(claim))),
        request_name: request.request_name.clone(),
        fingerprint: Some(Fingerprint::of(&request.spec)),
        handed_over: false,
        epoch: site.epoch(),
    };
    let carried = claim.map_or_else(Carried::default, |claim| {
        site.home()
            .carried_annotations()
            .carried(claim.labels(), claim.annotations())
    });
    let (labels, mut annotations) = carried.with(&marks);
    annotations.extend(binding_annotations(chosen));
    if let Some(adopted) = chosen.adopted {
        annotations.insert(mark::ADOPTED.to_owned(), adopted.volume.to_owned());
    }
    PersistentVolumeClaim {
        metadata: metadata(site, labels, annotations),
        spec: Some(spec(request, claim, chosen)),
        status: None,
    }
}

/// The claim in the marks of a twin. The PV of a volume may be bound to another claim later; its twins are
/// recognised by the uid of the claim for which the volume was created, which its name contains.
#[must_use]
pub fn twins_claim(volume: &VolumeName, claim: ClaimMark) -> ClaimMark {
    let made_for = volume.claim_uid().map(str::to_owned);
    ClaimMark {
        uid: made_for.unwrap_or(claim.uid),
        ..claim
    }
}

/// The metadata of a new twin, with the finalizer where this driver protects twins.
#[must_use]
pub fn metadata(
    site: &Site,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
) -> ObjectMeta {
    ObjectMeta {
        name: Some(site.name().to_owned()),
        namespace: Some(site.namespace().to_owned()),
        labels: Some(labels),
        annotations: Some(annotations),
        finalizers: site.protects().then(|| vec![mark::TWIN_FINALIZER.to_owned()]),
        ..ObjectMeta::default()
    }
}

fn spec(
    request: &CreateRequest,
    claim: Option<&PersistentVolumeClaim>,
    chosen: &Chosen<'_>,
) -> PersistentVolumeClaimSpec {
    let capabilities = &request.spec.capabilities;
    let mode = match capabilities.volume_mode() {
        VolumeMode::Filesystem => "Filesystem",
        VolumeMode::Block => "Block",
    };
    let size = size(request.spec.size.request(), claim);
    PersistentVolumeClaimSpec {
        access_modes: Some(match chosen.access_modes {
            Some(others) => others.iter().map(ToString::to_string).collect(),
            None => capabilities
                .access_modes()
                .iter()
                .map(ToString::to_string)
                .collect(),
        }),
        resources: Some(VolumeResourceRequirements {
            requests: Some([("storage".to_owned(), size)].into()),
            limits: None,
        }),
        storage_class_name: Some(chosen.class.to_owned()),
        data_source: chosen.source.clone(),
        volume_name: chosen.adopted.map(|adopted| adopted.volume.to_owned()),
        volume_mode: Some(mode.to_owned()),
        volume_attributes_class_name: chosen.attributes.map(str::to_owned),
        ..PersistentVolumeClaimSpec::default()
    }
}

/// A size in the notation of the claim at home, if the values are equal. Kosmos compares the requests of
/// both claims as text, and overwrites the twin with the claim at home where they differ.
#[must_use]
pub(super) fn size(bytes: u64, claim: Option<&PersistentVolumeClaim>) -> Quantity {
    let written = claim
        .and_then(facts::storage_request)
        .filter(|written| facts::bytes(written) == Some(bytes));
    written.cloned().unwrap_or_else(|| Quantity(quantity(bytes)))
}

/// The annotations that the scheduler and the controller manager would write one after the other: set at
/// creation, so that the provisioner starts without waiting for them.
fn binding_annotations(chosen: &Chosen<'_>) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::new();
    if let Some(node) = chosen.node {
        annotations.insert(SELECTED_NODE.to_owned(), node.to_owned());
    }
    if let Some(provisioner) = chosen.provisioner.filter(|name| *name != NO_PROVISIONER) {
        for key in [PROVISIONER, PROVISIONER_BETA] {
            annotations.insert(key.to_owned(), provisioner.to_owned());
        }
    }
    annotations
}
