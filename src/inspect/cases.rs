//! Groups the objects of each volume: its claim, its PV, its twin and the twin's PV, as far as they exist.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use super::Storage;
pub(super) use crate::cluster::facts::claim_class as class_name;
use crate::{
    cluster::facts,
    volume::{ClaimName, DRIVER_NAME, Epoch, Marks, VolumeId, VolumeIdError, VolumeName, mark},
};

const PROVISIONERS: [&str; 2] = [
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
];

/// The objects of one volume.
#[derive(Clone, Debug, Default)]
pub(super) struct Case<'a> {
    /// The user's claim.
    pub(super) claim: Option<&'a PersistentVolumeClaim>,
    /// The virtual PV.
    pub(super) volume: Option<&'a PersistentVolume>,
    /// The id in the virtual PV.
    pub(super) id: Option<VolumeId>,
    pub(super) twin: Option<&'a PersistentVolumeClaim>,
    /// The marks of the twin.
    pub(super) marks: Option<Marks>,
    /// The PV behind the twin.
    pub(super) real: Option<&'a PersistentVolume>,
}

impl Case<'_> {
    /// Whether a twin of this epoch belongs to the volume as the virtual PV names it, not to an earlier or
    /// later epoch.
    fn is_of(&self, epoch: Epoch) -> bool {
        self.id.as_ref().is_none_or(|id| id.epoch == epoch)
    }
}

/// All volumes of this driver, by name.
pub(super) fn cases(storage: &Storage) -> BTreeMap<String, Case<'_>> {
    let mut cases = BTreeMap::<String, Case<'_>>::new();
    for volume in &storage.volumes {
        if let Some(id) = id(volume) {
            let case = cases.entry(id.name.to_string()).or_default();
            case.volume = Some(volume);
            case.id = Some(id);
        } else if is_of_another_version(volume) {
            cases.entry(volume.name_any()).or_default().volume = Some(volume);
        }
    }
    let ours = storage.claims.iter().filter(|claim| is_ours(claim, storage));
    for claim in ours.filter(|claim| claim_instead(claim, storage).is_none()) {
        cases.entry(name_for(claim, storage)).or_default().claim = Some(claim);
    }
    for twin in &storage.twins {
        if let Ok(marks) = Marks::read(twin.labels(), twin.annotations()) {
            let case = cases.entry(marks.volume.to_string()).or_default();
            if case.is_of(marks.epoch) {
                case.twin = Some(twin);
                case.marks = Some(marks);
            }
        }
    }
    for real in &storage.volumes {
        if let Some((volume, epoch)) = volume_behind(real, storage) {
            let case = cases.entry(volume.to_string()).or_default();
            if case.is_of(epoch) {
                case.real = Some(real);
            }
        }
    }
    cases
}

/// The claims that name the PV of another claim: two claims cannot share it, so each is alone.
pub(super) fn without_volume(storage: &Storage) -> Vec<(String, Case<'_>)> {
    let ours = storage.claims.iter().filter(|claim| is_ours(claim, storage));
    let alone = ours.filter(|claim| claim_instead(claim, storage).is_some());
    alone
        .map(|claim| {
            let case = Case {
                claim: Some(claim),
                ..Case::default()
            };
            (requested_for(claim), case)
        })
        .collect()
}

/// The claim that the PV of this claim names, if that is another one.
pub(super) fn claim_instead(claim: &PersistentVolumeClaim, storage: &Storage) -> Option<ClaimName> {
    let volume = volume_of(claim, storage)?;
    let named = facts::claim_name(volume.spec.as_ref()?.claim_ref.as_ref()?);
    let is_it = Some(&named.namespace) == claim.metadata.namespace.as_ref()
        && Some(&named.name) == claim.metadata.name.as_ref();
    (!is_it).then_some(named)
}

/// Whether this driver serves the claim, or has served it.
pub(super) fn is_ours(claim: &PersistentVolumeClaim, storage: &Storage) -> bool {
    if let Some(volume) = volume_of(claim, storage) {
        return id(volume).is_some() || is_of_another_version(volume);
    }
    let asked = PROVISIONERS
        .iter()
        .any(|key| claim.annotations().get(*key).is_some_and(|by| by == DRIVER_NAME));
    let class = class_name(claim).and_then(|name| storage.classes.named(None, name));
    asked || class.is_some_and(|class| class.provisioner == DRIVER_NAME)
}

/// The PV a claim is bound to, if it exists.
pub(super) fn volume_of<'a>(
    claim: &PersistentVolumeClaim,
    storage: &'a Storage,
) -> Option<&'a PersistentVolume> {
    let name = volume_name(claim)?;
    storage.volumes.named(None, name)
}

pub(super) fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    let name = claim.spec.as_ref()?.volume_name.as_deref()?;
    (!name.is_empty()).then_some(name)
}

pub(super) fn class_of(volume: &PersistentVolume) -> Option<&str> {
    volume.spec.as_ref()?.storage_class_name.as_deref()
}

/// The volume id of a virtual PV; `None` for other PVs.
pub(super) fn id(volume: &PersistentVolume) -> Option<VolumeId> {
    // The temporary PV of a mover is not the PV of the volume.
    let is_movers = volume.labels().contains_key(mark::MOVE);
    (!is_movers).then(|| handle(volume))?
}

/// The same, also for the temporary PV of a mover.
pub(super) fn handle(volume: &PersistentVolume) -> Option<VolumeId> {
    let source = volume.spec.as_ref()?.csi.as_ref()?;
    (source.driver == DRIVER_NAME).then(|| source.volume_handle.parse().ok())?
}

/// Whether a PV of this driver can be read only by another version of it.
pub(super) fn is_of_another_version(volume: &PersistentVolume) -> bool {
    let source = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    source.is_some_and(|source| {
        source.driver == DRIVER_NAME
            && matches!(
                source.volume_handle.parse::<VolumeId>(),
                Err(VolumeIdError::UnknownVersion(_))
            )
    })
}

fn name_for(claim: &PersistentVolumeClaim, storage: &Storage) -> String {
    let known = volume_of(claim, storage).and_then(id);
    known.map_or_else(|| requested_for(claim), |id| id.name.to_string())
}

/// The name of the volume that csi-provisioner requests for a claim.
fn requested_for(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", claim.uid().unwrap_or_default())
}

/// The volume, and its epoch, whose data is in a PV of the storage namespace. The name of a twin is the uid
/// of its claim or the name of the volume, so the `claimRef` is enough even without the twin.
fn volume_behind(real: &PersistentVolume, storage: &Storage) -> Option<(VolumeName, Epoch)> {
    let claim: &ObjectReference = real.spec.as_ref()?.claim_ref.as_ref()?;
    let (namespace, name) = (claim.namespace.as_deref()?, claim.name.as_deref()?);
    if let Some(twin) = storage.twins.named(Some(namespace), name) {
        return Marks::read(twin.labels(), twin.annotations())
            .ok()
            .map(|marks| (marks.volume, marks.epoch));
    }
    if storage.namespace.as_deref() != Some(namespace) {
        return None;
    }
    VolumeName::of_home_twin(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::fixtures::{UID, storage};

    #[test]
    fn claim_pv_twin_and_real_pv_of_a_volume_are_found_together() {
        let storage = storage();
        let cases = cases(&storage);
        assert_eq!(cases.len(), 1, "{cases:#?}");
        let case = &cases[&format!("pvc-{UID}")];
        assert!(case.claim.is_some() && case.volume.is_some() && case.twin.is_some() && case.real.is_some());
    }

    #[test]
    fn a_volume_that_only_another_version_can_read_is_no_orphan() {
        let mut storage = storage();
        storage.claims = crate::inspect::Listing::default();
        let name = format!("pvc-{UID}");
        storage.volumes = storage.volumes.map(|mut volume| {
            let source = volume.spec.as_mut().and_then(|spec| spec.csi.as_mut());
            if let Some(source) = source.filter(|source| source.driver == DRIVER_NAME) {
                source.volume_handle = format!("v3:home:{name}:1");
            }
            volume
        });
        let case = &cases(&storage)[&name];
        assert!(case.volume.is_some() && case.id.is_none());
        let state = crate::inspect::health::health(case, &storage).state;
        assert_ne!(state, crate::inspect::State::Orphaned);
    }

    #[test]
    fn a_real_volume_is_known_without_its_twin() {
        let mut storage = storage();
        storage.twins = crate::inspect::Listing::default();
        assert!(cases(&storage)[&format!("pvc-{UID}")].real.is_some());
        storage.namespace = Some("elsewhere".into());
        assert!(cases(&storage)[&format!("pvc-{UID}")].real.is_none());
    }
}
