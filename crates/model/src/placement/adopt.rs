//! Adopting an existing PV instead of provisioning: the third source of `CreateVolume`, beside an empty
//! volume and a copy. Both the claim must request it and the PV permit it; otherwise any user could get the
//! data of any PV.
//!
//! ```text
//!  PV ── of the old, deleted claim ──Reserve──▶ of the twin, by name ──Make──▶ the twin
//!     ── of an earlier, deleted twin ──Reserve──▶
//!     ── of others, not permitted, not retained, too small, ... ──▶ Refuse
//! ```
//!
//! First the PV names the twin, without a uid, then the twin is created: so Kubernetes binds it at once. The
//! `claimRef` is never empty in between, so that no other claim is bound.

use std::collections::BTreeSet;

use crate::volume::{AccessMode, ClaimName, VolumeMode, quantity};

/// Why a PV is not adopted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdoptRefusal {
    /// It does not exist, or does not permit the adoption. The error is the same for both: PVs have no
    /// namespace, and a user who may create claims must not learn which exist.
    #[error(
        "there is no PersistentVolume {volume} that may be adopted by this claim: only an annotation storage.liqo.io/adopt-for={claim} on it, \
         which `liqo-csi import pvc` sets, permits that. If a backup has restored the annotation storage.liqo.io/adopt of the claim, \
         remove it: the claim then gets a new, empty volume"
    )]
    NotPermitted { volume: String, claim: ClaimName },
    #[error(
        "a PersistentVolume can be adopted only for a claim that the request names: csi-provisioner does with --extra-create-metadata"
    )]
    NoClaim,
    /// The volume should have a content source as well.
    #[error("a volume cannot both adopt the PersistentVolume {0} and be a copy of a source")]
    HasSource(String),
    /// It is in another cluster.
    #[error(
        "the PersistentVolume {0} is in the home cluster, and the claim's selected node represents a remote one: it cannot be adopted there"
    )]
    Remote(String),
    #[error("the PersistentVolume {0} is being deleted")]
    Deleting(String),
    /// Its data could be deleted before it is adopted.
    #[error(
        "the PersistentVolume {0} must have the reclaim policy Retain until it is adopted, or its data could be deleted: \
         run `liqo-csi import pvc` again"
    )]
    NotRetained(String),
    /// Its `claimRef` names another object.
    #[error("the PersistentVolume {volume} belongs to {holder}")]
    Held {
        volume: String,
        /// The owner, as error messages name it.
        holder: String,
    },
    /// It is smaller than requested.
    #[error("the PersistentVolume {volume} has {has}, and the claim requests {wanted}")]
    TooSmall {
        volume: String,
        has: String,
        wanted: String,
    },
    /// The volume modes differ.
    #[error("the PersistentVolume {volume} has the volume mode {has:?}, and the claim requests {wanted:?}")]
    OtherMode {
        volume: String,
        has: VolumeMode,
        wanted: VolumeMode,
    },
    #[error("the PersistentVolume {volume} lacks the access mode {missing} that the claim requests")]
    NoAccess { volume: String, missing: AccessMode },
    /// This driver cannot mount it, for this reason.
    #[error("{0}")]
    Unmountable(String),
}

/// What a PV names in its `claimRef`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeOwner {
    /// There is no `claimRef`.
    None,
    /// A claim with the name of the one that adopts the PV.
    SameName {
        /// Whether the uid is that of this claim.
        is_it: bool,
    },
    /// The twin of the volume, by name.
    Twin {
        /// Whether with a uid, which is that of a deleted twin.
        with_uid: bool,
    },
    /// Another twin, from an earlier attempt.
    EarlierTwin { name: String, exists: bool },
    /// Another claim.
    Other(ClaimName),
}

/// A PV that a claim requests to adopt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdoptableVolume {
    /// The claim that may adopt it.
    pub permitted: Option<ClaimName>,
    /// Whether its reclaim policy is Retain.
    pub retained: bool,
    pub deleting: bool,
    pub bytes: u64,
    pub mode: VolumeMode,
    pub access_modes: BTreeSet<AccessMode>,
    /// Why this driver cannot mount it, if so.
    pub unmountable: Option<String>,
    pub held: VolumeOwner,
}

/// The request for a volume that adopts a PV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdoptRequest {
    /// The claim, if the request names one.
    pub claim: Option<ClaimName>,
    /// Least size in bytes.
    pub bytes: u64,
    pub mode: VolumeMode,
    pub access_modes: BTreeSet<AccessMode>,
    /// Whether the volume has a content source as well.
    pub has_source: bool,
    /// Whether the selected node is in the home cluster.
    pub at_home: bool,
}

/// What the decision depends on, while there is no twin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdoptFacts {
    /// Name of the PV.
    pub name: String,
    /// The PV, if it exists.
    pub volume: Option<AdoptableVolume>,
    pub asked: AdoptRequest,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdoptStep {
    /// Make the PV name the twin, without a uid.
    Reserve,
    /// Create the twin.
    Make,
    /// Answer a final error.
    Refuse(AdoptRefusal),
}

/// The claim was read live, and has the uid that the request is for.
#[must_use]
pub fn adopt_step(facts: &AdoptFacts) -> AdoptStep {
    match refusal(facts) {
        Err(refusal) => AdoptStep::Refuse(refusal),
        Ok(VolumeOwner::Twin { with_uid: false }) => AdoptStep::Make,
        Ok(_) => AdoptStep::Reserve,
    }
}

fn refusal(facts: &AdoptFacts) -> Result<&VolumeOwner, AdoptRefusal> {
    let AdoptFacts { name, volume, asked } = facts;
    let volume_name = || name.clone();
    let Some(claim) = &asked.claim else {
        return Err(AdoptRefusal::NoClaim);
    };
    if asked.has_source {
        return Err(AdoptRefusal::HasSource(volume_name()));
    }
    // First, so that no other error reveals the PV to users who may not adopt it.
    let permitted = |volume: &&AdoptableVolume| volume.permitted.as_ref() == Some(claim);
    let Some(volume) = volume.as_ref().filter(permitted) else {
        return Err(AdoptRefusal::NotPermitted {
            volume: volume_name(),
            claim: claim.clone(),
        });
    };
    if !asked.at_home {
        return Err(AdoptRefusal::Remote(volume_name()));
    }
    if volume.deleting {
        return Err(AdoptRefusal::Deleting(volume_name()));
    }
    if let Some(why) = &volume.unmountable {
        return Err(AdoptRefusal::Unmountable(why.clone()));
    }
    if volume.bytes < asked.bytes {
        return Err(AdoptRefusal::TooSmall {
            volume: volume_name(),
            has: quantity(volume.bytes),
            wanted: quantity(asked.bytes),
        });
    }
    if volume.mode != asked.mode {
        return Err(AdoptRefusal::OtherMode {
            volume: volume_name(),
            has: volume.mode,
            wanted: asked.mode,
        });
    }
    if let Some(missing) = asked.access_modes.difference(&volume.access_modes).next() {
        return Err(AdoptRefusal::NoAccess {
            volume: volume_name(),
            missing: *missing,
        });
    }
    if !volume.retained {
        return Err(AdoptRefusal::NotRetained(volume_name()));
    }
    let held_by = |holder: String| AdoptRefusal::Held {
        volume: volume_name(),
        holder,
    };
    match &volume.held {
        VolumeOwner::None => Err(held_by(
            "no claim: any claim may be bound to it at any moment".to_owned(),
        )),
        VolumeOwner::SameName { is_it: true } => Err(held_by("the claim itself".to_owned())),
        VolumeOwner::EarlierTwin { name, exists: true } => Err(held_by(format!(
            "the twin {name} of an earlier attempt, which still exists: `liqo-csi import pvc {claim} --undo` deletes it; then import the claim again"
        ))),
        VolumeOwner::Other(other) => Err(held_by(format!("the claim {other}"))),
        held => Ok(held),
    }
}

/// The state of an imported PV whose twin is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts about several objects"
)]
pub struct SettleFacts {
    pub imported: bool,
    /// Whether it is bound to the twin, which was handed over and is not being deleted.
    pub is_twins: bool,
    /// Whether the virtual PV is Bound, to a claim that exists and names it.
    pub is_users: bool,
    /// Whether the reclaim policy of the virtual PV is Retain.
    pub retain: bool,
}

/// The reclaim policy that the PV has after the import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    /// The policy before the import.
    PolicyBefore,
    /// Retain, and a record of the policy before the import.
    Retain,
}

/// Whether an import is complete. Until the virtual PV is bound only the record protects the data:
/// csi-provisioner may still delete the volume that it was given.
#[must_use]
pub fn settle_step(facts: SettleFacts) -> Option<Settle> {
    if !(facts.imported && facts.is_twins && facts.is_users) {
        return None;
    }
    Some(if facts.retain {
        Settle::Retain
    } else {
        Settle::PolicyBefore
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> ClaimName {
        "shop/data".parse().unwrap()
    }

    fn facts(held: VolumeOwner) -> AdoptFacts {
        AdoptFacts {
            name: "pv".into(),
            volume: Some(AdoptableVolume {
                permitted: Some(claim()),
                retained: true,
                deleting: false,
                bytes: 2 << 30,
                mode: VolumeMode::Filesystem,
                access_modes: [AccessMode::ReadWriteOnce, AccessMode::ReadWriteMany].into(),
                unmountable: None,
                held,
            }),
            asked: AdoptRequest {
                claim: Some(claim()),
                bytes: 1 << 30,
                mode: VolumeMode::Filesystem,
                access_modes: [AccessMode::ReadWriteOnce].into(),
                has_source: false,
                at_home: true,
            },
        }
    }

    #[test]
    fn the_volume_is_reserved_for_the_twin_before_the_twin_is_created() {
        for held in [
            VolumeOwner::SameName { is_it: false },
            VolumeOwner::Twin { with_uid: true },
            VolumeOwner::EarlierTwin {
                name: "liqo-storage/u0".into(),
                exists: false,
            },
        ] {
            assert_eq!(adopt_step(&facts(held.clone())), AdoptStep::Reserve, "{held:?}");
        }
        let reserved = VolumeOwner::Twin { with_uid: false };
        assert_eq!(adopt_step(&facts(reserved)), AdoptStep::Make);
    }

    #[test]
    fn volumes_that_are_free_or_of_other_claims_are_not_adopted() {
        for held in [
            VolumeOwner::None,
            VolumeOwner::SameName { is_it: true },
            VolumeOwner::EarlierTwin {
                name: "liqo-storage/u0".into(),
                exists: true,
            },
            VolumeOwner::Other("bank/data".parse().unwrap()),
        ] {
            let step = adopt_step(&facts(held.clone()));
            assert!(
                matches!(step, AdoptStep::Refuse(AdoptRefusal::Held { .. })),
                "{held:?}: {step:?}"
            );
        }
    }

    #[test]
    fn a_volume_is_not_adopted_without_its_permission_for_the_claim() {
        for permitted in [None, Some("bank/data".parse().unwrap())] {
            let mut facts = facts(VolumeOwner::Twin { with_uid: false });
            facts.volume.as_mut().unwrap().permitted = permitted;
            let step = adopt_step(&facts);
            assert!(
                matches!(step, AdoptStep::Refuse(AdoptRefusal::NotPermitted { .. })),
                "{step:?}"
            );
        }
    }

    #[test]
    fn an_unsuitable_adoption_is_refused_with_its_reason() {
        type Break = fn(&mut AdoptFacts);
        type Expected = fn(&AdoptRefusal) -> bool;
        let table: [(&str, Break, Expected); 9] = [
            (
                "absent",
                |it| it.volume = None,
                |it| matches!(it, AdoptRefusal::NotPermitted { .. }),
            ),
            (
                "no claim",
                |it| it.asked.claim = None,
                |it| matches!(it, AdoptRefusal::NoClaim),
            ),
            (
                "a copy",
                |it| it.asked.has_source = true,
                |it| matches!(it, AdoptRefusal::HasSource(_)),
            ),
            (
                "remote",
                |it| it.asked.at_home = false,
                |it| matches!(it, AdoptRefusal::Remote(_)),
            ),
            (
                "deleting",
                |it| it.volume.as_mut().unwrap().deleting = true,
                |it| matches!(it, AdoptRefusal::Deleting(_)),
            ),
            (
                "not retained",
                |it| it.volume.as_mut().unwrap().retained = false,
                |it| matches!(it, AdoptRefusal::NotRetained(_)),
            ),
            (
                "small",
                |it| it.asked.bytes = 3 << 30,
                |it| matches!(it, AdoptRefusal::TooSmall { .. }),
            ),
            (
                "raw",
                |it| it.asked.mode = VolumeMode::Block,
                |it| matches!(it, AdoptRefusal::OtherMode { .. }),
            ),
            (
                "unmountable",
                |it| it.volume.as_mut().unwrap().unmountable = Some("iscsi".into()),
                |it| matches!(it, AdoptRefusal::Unmountable(_)),
            ),
        ];
        for (what, break_it, expected) in table {
            let mut facts = facts(VolumeOwner::SameName { is_it: false });
            break_it(&mut facts);
            let step = adopt_step(&facts);
            assert!(
                matches!(&step, AdoptStep::Refuse(refusal) if expected(refusal)),
                "{what}: {step:?}"
            );
        }
        let mut facts = facts(VolumeOwner::SameName { is_it: false });
        facts.asked.access_modes = [AccessMode::ReadOnlyMany].into();
        assert!(matches!(
            adopt_step(&facts),
            AdoptStep::Refuse(AdoptRefusal::NoAccess { .. })
        ));
    }

    #[test]
    fn an_import_ends_only_after_the_users_claim_is_bound() {
        let all = SettleFacts {
            imported: true,
            is_twins: true,
            is_users: true,
            retain: false,
        };
        assert_eq!(settle_step(all), Some(Settle::PolicyBefore));
        assert_eq!(
            settle_step(SettleFacts { retain: true, ..all }),
            Some(Settle::Retain)
        );
        for facts in [
            SettleFacts {
                imported: false,
                ..all
            },
            SettleFacts {
                is_twins: false,
                ..all
            },
            SettleFacts {
                is_users: false,
                ..all
            },
        ] {
            assert_eq!(settle_step(facts), None, "{facts:?}");
        }
    }
}
