//! The PV and claim by which a mover at home mounts a twin. They are of this driver, so that no pod mounts
//! the twin itself, and the mover can use a volume together with the user's pod. The PV is retained, has no
//! class, is reserved for its claim, and is marked with the move.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectReference,
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeSpec,
    VolumeNodeAffinity, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{ResourceExt, api::ObjectMeta};
use serde_json::{Value, json};

use super::{
    GateError, HelperError, MovedVolume,
    names::{Names, Role},
};
use crate::{
    cluster::facts,
    gate::twins_volume,
    placement::moving::Side,
    topology::{Segments, accessible},
    twin::{Site, TWIN_CLASS, TWIN_NAME, TWIN_NAMESPACE, TWIN_VOLUME, reading},
    volume::{AccessMode, DRIVER_NAME, ReclaimPolicy, VolumeMode, mark},
};

/// The PV of a mover; or why it cannot be created yet.
pub(super) async fn volume(
    moved: &MovedVolume,
    side: Side,
    namespace: &str,
) -> Result<Result<PersistentVolume, String>, GateError> {
    let outer = outer(moved).await?;
    let spec = match side {
        Side::Source => Ok(source(moved, outer)?),
        Side::Target => target(moved, &outer).await?,
    };
    Ok(spec.map(|spec| {
        let names = Names::of(moved);
        let name = names.of_role(Role::Mover(side));
        PersistentVolume {
            metadata: names.metadata(name.clone(), None, side),
            spec: Some(PersistentVolumeSpec {
                claim_ref: Some(ObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("PersistentVolumeClaim".to_owned()),
                    namespace: Some(namespace.to_owned()),
                    name: Some(name),
                    ..ObjectReference::default()
                }),
                persistent_volume_reclaim_policy: Some(ReclaimPolicy::Retain.as_str().to_owned()),
                storage_class_name: None,
                ..spec
            }),
            status: None,
        }
    }))
}

/// The patch after which such a PV can be bound to a new claim of the same name.
pub(super) fn naming_no_uid(volume: &PersistentVolume) -> Value {
    json!({
        "metadata": {"uid": volume.metadata.uid, "resourceVersion": volume.metadata.resource_version},
        "spec": {"claimRef": {"uid": null, "resourceVersion": null}},
    })
}

pub(super) fn claim(
    moved: &MovedVolume,
    side: Side,
    namespace: &str,
    volume: &PersistentVolume,
) -> PersistentVolumeClaim {
    let names = Names::of(moved);
    let spec = volume.spec.clone().unwrap_or_default();
    PersistentVolumeClaim {
        metadata: names.metadata(names.of_role(Role::Mover(side)), Some(namespace), side),
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: spec.access_modes,
            volume_mode: spec.volume_mode,
            resources: Some(VolumeResourceRequirements {
                requests: spec.capacity,
                limits: None,
            }),
            // An empty name means "no class"; without a name it would get the default class.
            storage_class_name: Some(String::new()),
            volume_name: Some(volume.name_any()),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}

/// The claim with which the mover of a remote source mounts its PV while that is gated there. Kubernetes deletes it
/// with the twin.
pub(crate) fn claim_there(
    moved: &MovedVolume,
    site: &Site,
    twin: &PersistentVolumeClaim,
) -> PersistentVolumeClaim {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "PersistentVolumeClaim".to_owned(),
        name: twin.name_any(),
        uid: twin.uid().unwrap_or_default(),
        ..OwnerReference::default()
    };
    let name = name_of_claim_there(moved);
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            owner_references: Some(vec![owner]),
            ..Names::of(moved).metadata(name, Some(site.namespace()), Side::Source)
        },
        spec: twin.spec.clone().map(|spec| PersistentVolumeClaimSpec {
            data_source: None,
            data_source_ref: None,
            selector: None,
            ..spec
        }),
        status: None,
    }
}

pub(crate) fn name_of_claim_there(moved: &MovedVolume) -> String {
    Names::of(moved).of_role(Role::Mover(Side::Source))
}

pub(crate) fn is_claim_there(moved: &MovedVolume, claim: &PersistentVolumeClaim) -> bool {
    Names::of(moved).is_ours(claim, Side::Source)
}

/// The access modes of the moved volume.
pub(super) fn access_modes(outer: &PersistentVolume) -> BTreeSet<AccessMode> {
    let modes = outer.spec.as_ref().and_then(|spec| spec.access_modes.as_ref());
    facts::access_modes(modes.into_iter().flatten())
}

pub(super) fn is_block(outer: &PersistentVolume) -> bool {
    let mode = outer.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref());
    facts::volume_mode(mode) == VolumeMode::Block
}

/// Its size in bytes, if it is of mode Block.
pub(super) fn device(outer: &PersistentVolume) -> Option<u64> {
    is_block(outer).then(|| facts::volume_size(outer).unwrap_or_default())
}

/// The virtual PV, gated or not.
pub(super) async fn outer(moved: &MovedVolume) -> Result<PersistentVolume, GateError> {
    let found = moved.volumes().get(moved.volume().as_str()).await?;
    let name = moved.volume().clone();
    Ok(found.ok_or(HelperError::NoVolume(name))?)
}

/// A second PV for the volume of the source, read-only.
fn source(moved: &MovedVolume, outer: PersistentVolume) -> Result<PersistentVolumeSpec, GateError> {
    let name = moved.volume().clone();
    let spec = outer.spec.unwrap_or_default();
    let handle = moved.source.id.to_string();
    let csi = spec.csi.filter(|csi| csi.volume_handle == handle);
    let csi = csi.ok_or(HelperError::NoVolume(name))?;
    let mut attributes = csi.volume_attributes.clone().unwrap_or_default();
    attributes.insert(mark::MOVER.to_owned(), caller(moved, Side::Source));
    Ok(PersistentVolumeSpec {
        access_modes: spec.access_modes,
        capacity: spec.capacity,
        volume_mode: spec.volume_mode,
        mount_options: spec.mount_options,
        node_affinity: spec.node_affinity,
        csi: Some(CSIPersistentVolumeSource {
            read_only: Some(true),
            volume_attributes: Some(attributes),
            ..csi
        }),
        ..PersistentVolumeSpec::default()
    })
}

/// The PV for the mover of the target; or why not yet.
async fn target(
    moved: &MovedVolume,
    outer: &PersistentVolume,
) -> Result<Result<PersistentVolumeSpec, String>, GateError> {
    let site = moved.site(Side::Target)?;
    let Some(twin) = site.twins().get(site.name()).await? else {
        return Ok(Err(format!("the twin {} does not exist", site.place())));
    };
    let Some(real) = twins_volume(site, &twin).await? else {
        let said = crate::twin::last_warning(site, &twin).await;
        let said = said.map_or_else(String::new, |said| format!(": {said}"));
        return Ok(Err(format!("the twin {} is not bound yet{said}", site.place())));
    };
    let nodes = reading::nodes(&moved.home);
    let places = match accessible(moved.home.id(), facts::affinity(&real).as_ref(), &nodes) {
        Ok(places) => places,
        Err(error) => return Ok(Err(format!("the twin {}: {error}", site.place()))),
    };
    if let Some(earlier) = earlier_target(moved).await? {
        return Ok(Err(format!(
            "the PersistentVolume {earlier} of an earlier move of this claim is not detached yet: \
             kubectl get volumeattachments names its node"
        )));
    }
    let spec = twin.spec.clone().unwrap_or_default();
    let fs_type = outer
        .spec
        .as_ref()
        .and_then(|spec| spec.csi.as_ref()?.fs_type.clone());
    let attributes = BTreeMap::from([
        (TWIN_NAMESPACE.to_owned(), site.namespace().to_owned()),
        (TWIN_NAME.to_owned(), site.name().to_owned()),
        (TWIN_VOLUME.to_owned(), real.name_any()),
        (
            TWIN_CLASS.to_owned(),
            spec.storage_class_name.clone().unwrap_or_default(),
        ),
        (mark::MOVER.to_owned(), caller(moved, Side::Target)),
    ]);
    Ok(Ok(PersistentVolumeSpec {
        access_modes: spec.access_modes,
        capacity: real.spec.and_then(|spec| spec.capacity),
        volume_mode: spec.volume_mode,
        node_affinity: Some(node_affinity(places)),
        csi: Some(CSIPersistentVolumeSource {
            driver: DRIVER_NAME.to_owned(),
            volume_handle: moved.target.id.to_string(),
            fs_type,
            volume_attributes: Some(attributes),
            ..CSIPersistentVolumeSource::default()
        }),
        ..PersistentVolumeSpec::default()
    }))
}

/// The PV of an earlier move that has the same handle as the target's. csi-attacher finds the PV of an attachment by
/// its name, and Kubernetes keeps an attachment while a pod on that node uses the handle: with a second PV, the new
/// mover would get the real volume of the earlier move, which was deleted.
async fn earlier_target(moved: &MovedVolume) -> Result<Option<String>, GateError> {
    let ours = Names::of(moved).of_role(Role::Mover(Side::Target));
    let found = moved.mover_volumes(Side::Target).await?;
    Ok(found.into_iter().find(|name| *name != ours))
}

/// How `ControllerPublish` recognizes a mover.
fn caller(moved: &MovedVolume, side: Side) -> String {
    format!("{}:{}", side.as_str(), moved.by)
}

/// The affinity of a PV that is accessible from these places, as csi-provisioner writes it.
pub(crate) fn node_affinity(places: Vec<Segments>) -> VolumeNodeAffinity {
    let requirement = |(key, value)| NodeSelectorRequirement {
        key,
        operator: "In".to_owned(),
        values: Some(vec![value]),
    };
    let term = |place: Segments| NodeSelectorTerm {
        match_expressions: Some(place.into_map().into_iter().map(requirement).collect()),
        match_fields: None,
    };
    VolumeNodeAffinity {
        required: Some(NodeSelector {
            node_selector_terms: places.into_iter().map(term).collect(),
        }),
    }
}
