//! Whose turn is it in `DeleteVolume`? The twin goes at once, but the volume is
//! deleted only when the twin's PV is gone: deleting the data behind it may fail
//! for hours, and whoever hears "deleted" forgets about it.
//!
//! csi-provisioner asks as soon as it sees a PV Released with the reclaim policy Delete,
//! and so a PV looks for a moment when somebody gives it its claim back. While that claim
//! exists, nothing is deleted.
//!
//! ```text
//!  the PV's claim exists, the volume is being released or moved ──▶ Refuse
//!
//!  twin there ──DeleteTwin──▶ twin deleting ──AwaitTwin──▶ twin gone
//!                                                             │
//!      PV gone, or Released and retained ──▶ Done ◀───────────┤
//!      PV only reserved for it ──Unclaim──▶ Done              │
//!      PV retained by us ──GiveBack──▶ AwaitVolume            │
//!      PV still there ──AwaitVolume───────────────────────────┘
//!  anything that cannot be read ──▶ Unavailable, never Done
//! ```

use crate::volume::{ClaimMark, Foreign};

/// Everything the decision rests on, read live but for what is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteFacts {
    /// The claim that the volume belongs to, if it exists.
    pub claim: Option<ClaimMark>,
    /// Whether a move keeps the users of the volume away: its virtual PV names no claim then.
    pub gated: bool,
    /// What is in the twin's place.
    pub twin: DeleteTwin,
    /// The PV of the twin, found by the twin or by its `claimRef`.
    pub volume: TwinVolume,
    /// A node that we still hold the volume attached to.
    pub attached: Option<String>,
}

/// What is in the twin's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeleteTwin {
    /// Nothing.
    Absent,
    /// Something that is not ours.
    Foreign(Foreign),
    /// The twin.
    Ours {
        /// Whether it has a deletion timestamp.
        deleting: bool,
    },
    /// The twin, whose volume is being released.
    Releasing,
    /// The twin, which a move is making, is reading, or has left behind.
    OfMove,
}

/// The PV of the twin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TwinVolume {
    /// It is not known, for this reason.
    Unknown(String),
    /// There is none.
    Absent,
    /// This one was reserved for the twin but never bound.
    Reserved(String),
    /// This one is retained only because this driver replaced its reclaim policy, for a
    /// volume that is to be deleted now.
    RetainedByUs(String),
    /// There is one.
    Present {
        /// Its name.
        name: String,
        /// Whether it is in phase Released or Failed.
        released: bool,
        /// Whether its reclaim policy is Retain.
        retain: bool,
        /// Its status message: why its deletion failed.
        message: Option<String>,
    },
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeleteStep {
    /// Delete the twin, by its uid.
    DeleteTwin,
    /// Wait until the twin is gone.
    AwaitTwin,
    /// Wait until the PV is gone.
    AwaitVolume {
        /// Its name.
        name: String,
        /// Why it is still there, if Kubernetes says.
        message: Option<String>,
    },
    /// Take our `claimRef` off this PV.
    Unclaim(String),
    /// Give this PV the reclaim policy it had before this driver replaced it.
    GiveBack(String),
    /// Answer success.
    Done,
    /// Answer that it is not known now, for this reason.
    Unavailable(String),
    /// Answer that it must not be deleted.
    Refuse(DeleteRefusal),
}

/// What a virtual PV says about its claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedVolume {
    /// Name of the PV.
    pub name: String,
    /// The claim in its `claimRef`.
    pub claim: ClaimMark,
}

/// A claim of the name in that `claimRef`, which may be another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExistingClaim {
    /// Its uid.
    pub uid: String,
    /// The PV that it names; `None` if it names none.
    pub volume: Option<String>,
    /// Whether Kubernetes has bound it to that PV.
    pub bound: bool,
}

impl ClaimedVolume {
    /// Whether this claim is the one that the PV belongs to. It is the one that the PV
    /// names, unless it has another PV. It is also one that was bound to the PV, whatever
    /// uid the PV names now: Kubernetes calls such a claim Lost, but its pods still run.
    #[must_use]
    pub fn belongs_to(&self, claim: &ExistingClaim) -> bool {
        let is_named = claim.uid == self.claim.uid;
        match &claim.volume {
            None => is_named,
            Some(volume) => *volume == self.name && (is_named || claim.bound),
        }
    }
}

/// Why a volume is not deleted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeleteRefusal {
    /// Its claim exists.
    #[error(
        "the volume belongs to the claim {}/{}, which exists, so nothing is deleted. Its PersistentVolume was Released with the \
         reclaim policy Delete, as when somebody changes its claimRef. To delete the volume, delete the claim",
        .0.namespace, .0.name
    )]
    Claimed(ClaimMark),
    /// Something else is in the twin's place.
    #[error("the twin's place is taken by an object that is not ours: {0}. It is left alone")]
    Foreign(Foreign),
    /// Its claim is to have the real volume.
    #[error(
        "the volume is being released, and its data is to stay: `liqo-csi release pvc` ends that, and with --undo takes it back"
    )]
    Releasing,
    /// It is being moved.
    #[error(
        "the volume is being moved, and its PersistentVolume names no claim until that is over or undone: nothing is deleted. If its \
         claim was deleted, its data goes by its reclaim policy when the move has ended"
    )]
    Gated,
    /// The twin belongs to a move.
    #[error(
        "the twin belongs to a move of the volume, which deletes it when it does not need it any more; nothing else does"
    )]
    Moves,
    /// It is in use.
    #[error("the volume is still attached to the node {0}")]
    Attached(String),
}

/// Decides the next step of `DeleteVolume`.
#[must_use]
pub fn delete_step(facts: &DeleteFacts) -> DeleteStep {
    if let Some(claim) = &facts.claim {
        return DeleteStep::Refuse(DeleteRefusal::Claimed(claim.clone()));
    }
    if facts.gated {
        return DeleteStep::Refuse(DeleteRefusal::Gated);
    }
    if let Some(node) = &facts.attached {
        return DeleteStep::Refuse(DeleteRefusal::Attached(node.clone()));
    }
    match &facts.twin {
        DeleteTwin::Foreign(foreign) => DeleteStep::Refuse(DeleteRefusal::Foreign(foreign.clone())),
        DeleteTwin::Ours { deleting: false } => DeleteStep::DeleteTwin,
        DeleteTwin::Ours { deleting: true } => DeleteStep::AwaitTwin,
        DeleteTwin::Releasing => DeleteStep::Refuse(DeleteRefusal::Releasing),
        DeleteTwin::OfMove => DeleteStep::Refuse(DeleteRefusal::Moves),
        DeleteTwin::Absent => without_twin(&facts.volume),
    }
}

/// What is left to do about the PV of a twin that is gone.
#[must_use]
pub fn without_twin(volume: &TwinVolume) -> DeleteStep {
    match volume {
        TwinVolume::Unknown(reason) => DeleteStep::Unavailable(reason.clone()),
        TwinVolume::Reserved(name) => DeleteStep::Unclaim(name.clone()),
        TwinVolume::RetainedByUs(name) => DeleteStep::GiveBack(name.clone()),
        TwinVolume::Absent
        | TwinVolume::Present {
            released: true,
            retain: true,
            ..
        } => DeleteStep::Done,
        TwinVolume::Present { name, message, .. } => DeleteStep::AwaitVolume {
            name: name.clone(),
            message: message.clone(),
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, sample::select};

    use super::*;

    fn present(released: bool, retain: bool) -> TwinVolume {
        TwinVolume::Present {
            name: "pv".into(),
            released,
            retain,
            message: None,
        }
    }

    fn decide(twin: DeleteTwin, volume: TwinVolume) -> DeleteStep {
        delete_step(&DeleteFacts {
            claim: None,
            gated: false,
            twin,
            volume,
            attached: None,
        })
    }

    fn claim() -> ClaimMark {
        ClaimMark {
            namespace: "shop".into(),
            name: "data".into(),
            uid: "u1".into(),
        }
    }

    #[test]
    fn a_volume_belongs_to_the_claim_that_exists_and_names_it() {
        let volume = ClaimedVolume {
            name: "pvc-1".into(),
            claim: claim(),
        };
        let belongs = |uid: &str, named: Option<&str>, bound: bool| {
            volume.belongs_to(&ExistingClaim {
                uid: uid.into(),
                volume: named.map(str::to_owned),
                bound,
            })
        };
        assert!(belongs("u1", Some("pvc-1"), true));
        assert!(belongs("u1", Some("pvc-1"), false), "about to be bound");
        assert!(belongs("u1", None, false), "about to be bound");
        assert!(
            belongs("u2", Some("pvc-1"), true),
            "its claimRef was changed under it"
        );
        assert!(!belongs("u1", Some("another"), true));
        // A StatefulSet makes a claim of that name again, and it names the old PV at most by hand.
        assert!(!belongs("u2", None, false));
        assert!(!belongs("u2", Some("pvc-1"), false));
        assert!(!belongs("u2", Some("another"), true));
    }

    #[test]
    fn first_the_twin_then_its_volume() {
        let ours = |deleting| DeleteTwin::Ours { deleting };
        assert_eq!(decide(ours(false), present(false, false)), DeleteStep::DeleteTwin);
        assert_eq!(decide(ours(true), present(false, false)), DeleteStep::AwaitTwin);
        let waits = DeleteStep::AwaitVolume {
            name: "pv".into(),
            message: None,
        };
        for volume in [present(false, false), present(true, false), present(false, true)] {
            assert_eq!(decide(DeleteTwin::Absent, volume), waits);
        }
        assert_eq!(decide(DeleteTwin::Absent, present(true, true)), DeleteStep::Done);
        assert_eq!(decide(DeleteTwin::Absent, TwinVolume::Absent), DeleteStep::Done);
    }

    #[test]
    fn a_reserved_volume_is_freed() {
        let step = decide(DeleteTwin::Absent, TwinVolume::Reserved("pv".into()));
        assert_eq!(step, DeleteStep::Unclaim("pv".into()));
    }

    #[test]
    fn what_this_driver_retained_for_it_is_deleted_all_the_same() {
        let step = decide(DeleteTwin::Absent, TwinVolume::RetainedByUs("pv".into()));
        assert_eq!(step, DeleteStep::GiveBack("pv".into()));
    }

    #[test]
    fn what_is_being_moved_is_not_deleted() {
        let gated = DeleteFacts {
            claim: None,
            gated: true,
            twin: DeleteTwin::Ours { deleting: false },
            volume: present(true, false),
            attached: None,
        };
        assert_eq!(delete_step(&gated), DeleteStep::Refuse(DeleteRefusal::Gated));
        let of_move = decide(DeleteTwin::OfMove, present(false, false));
        assert_eq!(of_move, DeleteStep::Refuse(DeleteRefusal::Moves));
    }

    #[test]
    fn foreign_or_attached_volumes_are_left_alone() {
        let foreign = DeleteTwin::Foreign(Foreign::OtherClaim("x".into()));
        assert!(matches!(
            decide(foreign, TwinVolume::Absent),
            DeleteStep::Refuse(DeleteRefusal::Foreign(_))
        ));
        let attached = DeleteFacts {
            claim: None,
            gated: false,
            twin: DeleteTwin::Ours { deleting: false },
            volume: present(false, false),
            attached: Some("n1".into()),
        };
        assert_eq!(
            delete_step(&attached),
            DeleteStep::Refuse(DeleteRefusal::Attached("n1".into()))
        );
    }

    proptest! {
        #[test]
        fn done_means_that_it_was_seen_to_be_gone(
            twin in select(vec![
                DeleteTwin::Absent,
                DeleteTwin::Foreign(Foreign::OtherClaim("x".into())),
                DeleteTwin::Ours { deleting: false },
                DeleteTwin::Ours { deleting: true },
                DeleteTwin::Releasing,
                DeleteTwin::OfMove,
            ]),
            volume in select(vec![
                TwinVolume::Unknown("down".into()),
                TwinVolume::Absent,
                TwinVolume::Reserved("pv".into()),
                TwinVolume::RetainedByUs("pv".into()),
                present(false, false), present(false, true), present(true, false), present(true, true),
            ]),
            attached in select(vec![None, Some("n1".to_owned())]),
            claim in select(vec![None, Some(claim())]),
            gated in any::<bool>(),
        ) {
            let facts = DeleteFacts { claim, gated, twin, volume, attached };
            let step = delete_step(&facts);
            if facts.claim.is_some() || facts.gated || facts.twin == DeleteTwin::OfMove {
                prop_assert!(matches!(step, DeleteStep::Refuse(_)));
            }
            if step == DeleteStep::Done {
                prop_assert_eq!(&facts.twin, &DeleteTwin::Absent);
                prop_assert!(facts.volume == TwinVolume::Absent || facts.volume == present(true, true));
                prop_assert_eq!(facts.attached, None);
            }
        }
    }
}
