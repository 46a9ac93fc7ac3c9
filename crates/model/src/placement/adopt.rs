//! A volume that is not made, but is an existing PV: the third source of `CreateVolume`,
//! beside nothing and a copy. The claim wishes it and the PV permits it; one without the
//! other is nothing, or any user could have the data of any PV.
//!
//! ```text
//!  PV ── of the old claim, which is gone ──Reserve──▶ of the twin, by name ──Make──▶ the twin
//!     ── of an earlier twin that is gone ──Reserve──▶
//!     ── anybody else's, not permitted, not retained, too small, ... ──▶ Refuse
//! ```
//!
//! First the PV names the twin, without a uid, and then the twin is made: so Kubernetes binds
//! it at once. The PV names somebody all the time, so that nobody else is bound to it.

use std::collections::BTreeSet;

use crate::volume::{AccessMode, ClaimName, VolumeMode, quantity};

/// Why a PV is not adopted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdoptRefusal {
    /// It does not exist, or nobody permits it. Which of the two is nothing that whoever may
    /// make claims is told: PVs have no namespace.
    #[error(
        "there is no PersistentVolume {volume} that may be adopted by this claim: only an annotation storage.liqo.io/adopt-for={claim} on it, \
         which `liqo-csi import pvc` sets, permits that"
    )]
    NotPermitted {
        /// The PV.
        volume: String,
        /// The claim.
        claim: ClaimName,
    },
    /// The request is not from csi-provisioner, or without its extra metadata.
    #[error(
        "a PersistentVolume can be adopted only for a claim that the request names: csi-provisioner does with --extra-create-metadata"
    )]
    NoClaim,
    /// It should be filled with something as well.
    #[error("a volume cannot both adopt the PersistentVolume {0} and be a copy of a source")]
    HasSource(String),
    /// It is in another cluster.
    #[error(
        "the PersistentVolume {0} is in the home cluster, and the claim's selected node stands for another one: it cannot be adopted there"
    )]
    Remote(String),
    /// It is being deleted.
    #[error("the PersistentVolume {0} is being deleted")]
    Deleting(String),
    /// Its data is not safe meanwhile.
    #[error(
        "the PersistentVolume {0} has to have the reclaim policy Retain until it is adopted, or its data could be deleted: \
         run `liqo-csi import pvc` again"
    )]
    NotRetained(String),
    /// It is somebody else's.
    #[error("the PersistentVolume {volume} belongs to {holder}")]
    Held {
        /// The PV.
        volume: String,
        /// Whose it is.
        holder: String,
    },
    /// It is smaller than what is asked for.
    #[error("the PersistentVolume {volume} has {has}, and the claim asks for {wanted}")]
    TooSmall {
        /// The PV.
        volume: String,
        /// Its size.
        has: String,
        /// What is asked for.
        wanted: String,
    },
    /// A file system is asked for, and it is a device, or the other way round.
    #[error("the PersistentVolume {volume} has the volume mode {has:?}, and the claim asks for {wanted:?}")]
    OtherMode {
        /// The PV.
        volume: String,
        /// Its mode.
        has: VolumeMode,
        /// The mode asked for.
        wanted: VolumeMode,
    },
    /// It cannot be used so.
    #[error("the PersistentVolume {volume} lacks the access mode {missing} that the claim asks for")]
    NoAccess {
        /// The PV.
        volume: String,
        /// What it lacks.
        missing: AccessMode,
    },
    /// This driver cannot mount it.
    #[error("{0}")]
    Unmountable(String),
}

/// Whom a PV names in its `claimRef`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeHeld {
    /// Nobody.
    ByNobody,
    /// A claim with the name of the one that is to adopt it.
    ByClaimOfTheName {
        /// Whether it is that very claim, by its uid.
        is_it: bool,
    },
    /// The twin that is to be made.
    ByTwin {
        /// Whether it names the uid of one, which is gone.
        with_uid: bool,
    },
    /// Another twin, made in an earlier try.
    ByEarlierTwin {
        /// Its name.
        name: String,
        /// Whether it exists.
        exists: bool,
    },
    /// Another claim.
    ByOther(ClaimName),
}

/// A PV that a claim asks to adopt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdoptableVolume {
    /// The claim that may adopt it.
    pub permitted: Option<ClaimName>,
    /// Whether its reclaim policy is Retain.
    pub retained: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its volume mode.
    pub mode: VolumeMode,
    /// What it can be used for.
    pub access_modes: BTreeSet<AccessMode>,
    /// Why this driver cannot mount it, if it cannot.
    pub unmountable: Option<String>,
    /// Whom it names.
    pub held: VolumeHeld,
}

/// What a claim asks of the volume that it adopts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskedOfAdopted {
    /// The claim, if the request names one.
    pub claim: Option<ClaimName>,
    /// Least size in bytes.
    pub bytes: u64,
    /// Volume mode.
    pub mode: VolumeMode,
    /// Access modes.
    pub access_modes: BTreeSet<AccessMode>,
    /// Whether the volume is to be a copy as well.
    pub has_source: bool,
    /// Whether its selected node is one of the home cluster.
    pub at_home: bool,
}

/// What the decision rests on, while there is no twin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdoptFacts {
    /// Name of the PV.
    pub name: String,
    /// The PV, if it exists.
    pub volume: Option<AdoptableVolume>,
    /// What is asked of it.
    pub asked: AskedOfAdopted,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdoptStep {
    /// Have the PV name the twin, without a uid.
    Reserve,
    /// Make the twin.
    Make,
    /// Answer a final error.
    Refuse(AdoptRefusal),
}

/// Decides. The claim was read live, and has the uid that the request is for.
#[must_use]
pub fn adopt_step(facts: &AdoptFacts) -> AdoptStep {
    match refusal(facts) {
        Err(refusal) => AdoptStep::Refuse(refusal),
        Ok(VolumeHeld::ByTwin { with_uid: false }) => AdoptStep::Make,
        Ok(_) => AdoptStep::Reserve,
    }
}

fn refusal(facts: &AdoptFacts) -> Result<&VolumeHeld, AdoptRefusal> {
    let AdoptFacts { name, volume, asked } = facts;
    let volume_name = || name.clone();
    let Some(claim) = &asked.claim else {
        return Err(AdoptRefusal::NoClaim);
    };
    if asked.has_source {
        return Err(AdoptRefusal::HasSource(volume_name()));
    }
    // Before anything that would tell a stranger about it.
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
        VolumeHeld::ByNobody => Err(held_by(
            "nobody: it is offered to all claims, and may be bound at any moment".to_owned(),
        )),
        VolumeHeld::ByClaimOfTheName { is_it: true } => Err(held_by("the claim itself".to_owned())),
        VolumeHeld::ByEarlierTwin { name, exists: true } => Err(held_by(format!(
            "the twin {name} of an earlier try, which still exists: `liqo-csi import pvc {claim} --undo` takes it away, then import it again"
        ))),
        VolumeHeld::ByOther(other) => Err(held_by(format!("the claim {other}"))),
        held => Ok(held),
    }
}

/// What is seen of an imported PV whose twin is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts about several objects, each seen by itself"
)]
pub struct SettleFacts {
    /// Whether it carries the record of an import.
    pub imported: bool,
    /// Whether it is bound to the twin, which was handed over and is not being deleted.
    pub is_twins: bool,
    /// Whether the virtual PV is Bound, to a claim that exists and names it.
    pub is_users: bool,
    /// Whether the virtual PV is to be retained.
    pub retain: bool,
}

/// What an import leaves on the PV in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    /// The reclaim policy that it had before.
    PolicyBefore,
    /// Retain, and a note of the policy that it had before.
    Retain,
}

/// Whether an import has come to its end. Before the virtual PV is bound nothing but the
/// record keeps the data: csi-provisioner may still take back what it was given.
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

    fn facts(held: VolumeHeld) -> AdoptFacts {
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
            asked: AskedOfAdopted {
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
    fn first_the_volume_names_the_twin_and_then_it_is_made() {
        for held in [
            VolumeHeld::ByClaimOfTheName { is_it: false },
            VolumeHeld::ByTwin { with_uid: true },
            VolumeHeld::ByEarlierTwin {
                name: "liqo-storage/u0".into(),
                exists: false,
            },
        ] {
            assert_eq!(adopt_step(&facts(held.clone())), AdoptStep::Reserve, "{held:?}");
        }
        let reserved = VolumeHeld::ByTwin { with_uid: false };
        assert_eq!(adopt_step(&facts(reserved)), AdoptStep::Make);
    }

    #[test]
    fn what_is_somebody_elses_is_left_to_them() {
        for held in [
            VolumeHeld::ByNobody,
            VolumeHeld::ByClaimOfTheName { is_it: true },
            VolumeHeld::ByEarlierTwin {
                name: "liqo-storage/u0".into(),
                exists: true,
            },
            VolumeHeld::ByOther("bank/data".parse().unwrap()),
        ] {
            let step = adopt_step(&facts(held.clone()));
            assert!(
                matches!(step, AdoptStep::Refuse(AdoptRefusal::Held { .. })),
                "{held:?}: {step:?}"
            );
        }
    }

    #[test]
    fn a_wish_without_permission_is_nothing() {
        for permitted in [None, Some("bank/data".parse().unwrap())] {
            let mut facts = facts(VolumeHeld::ByTwin { with_uid: false });
            facts.volume.as_mut().unwrap().permitted = permitted;
            let step = adopt_step(&facts);
            assert!(
                matches!(step, AdoptStep::Refuse(AdoptRefusal::NotPermitted { .. })),
                "{step:?}"
            );
        }
    }

    #[test]
    fn whatever_does_not_fit_is_refused_before_anything_is_written() {
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
            let mut facts = facts(VolumeHeld::ByClaimOfTheName { is_it: false });
            break_it(&mut facts);
            let step = adopt_step(&facts);
            assert!(
                matches!(&step, AdoptStep::Refuse(refusal) if expected(refusal)),
                "{what}: {step:?}"
            );
        }
        let mut facts = facts(VolumeHeld::ByClaimOfTheName { is_it: false });
        facts.asked.access_modes = [AccessMode::ReadOnlyMany].into();
        assert!(matches!(
            adopt_step(&facts),
            AdoptStep::Refuse(AdoptRefusal::NoAccess { .. })
        ));
    }

    #[test]
    fn an_import_ends_when_the_users_claim_is_bound_and_not_before() {
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
