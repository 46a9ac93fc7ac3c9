//! Decides the next step of `DeleteVolume`. The twin is deleted at once, but success is answered only after
//! the twin's PV is deleted: deleting the data may fail for hours, and after a success csi-provisioner never
//! asks again.
//!
//! csi-provisioner calls `DeleteVolume` as soon as it sees a PV Released with the reclaim policy Delete. A PV
//! looks like that for a moment while a user restores its claim. While that claim exists, nothing is deleted.
//!
//! ```text
//!  the PV's claim exists, the volume is being released, moved or copied ──▶ Refuse
//!
//!  twin exists ──DeleteTwin──▶ twin deleting ──AwaitTwin──▶ twin deleted
//!                                                               │
//!      PV deleted, or Released and retained ──▶ Done ◀──────────┤
//!      PV only reserved for it ──Unclaim──▶ Done                │
//!      PV retained by us ──GiveBack──▶ AwaitVolume              │
//!      PV still exists ──AwaitVolume────────────────────────────┘
//!  anything that cannot be read ──▶ Unavailable, never Done
//! ```

use crate::volume::{ClaimMark, Foreign};

/// The input of the decision. All of it is read live, except attachments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteFacts {
    /// The claim that the volume belongs to, if it exists.
    pub claim: Option<ClaimMark>,
    /// Whether a move has gated the virtual PV: then its `claimRef` does not identify the claim.
    pub gated: bool,
    /// What exists under the name of the twin.
    pub twin: DeleteTwin,
    /// The PV of the twin, found by the twin or by its `claimRef`.
    pub volume: TwinVolume,
    /// A node to which the volume is still attached.
    pub attached: Option<String>,
}

/// What exists under the name of the twin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeleteTwin {
    Absent,
    /// An object that is not ours.
    Foreign(Foreign),
    Ours {
        /// Whether it has a deletion timestamp.
        deleting: bool,
    },
    /// The twin, whose volume is being released.
    Releasing,
    /// The twin, which is the source, the target or the retained source of a move.
    OfMove,
    /// The twin, of which this claim will have a copy.
    ToBeCopied(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TwinVolume {
    /// It could not be read, and why.
    Unknown(String),
    Absent,
    /// This PV was reserved for the twin but never bound.
    Reserved(String),
    /// This PV is retained only because this driver replaced its reclaim policy, and the volume should now be
    /// deleted.
    RetainedByUs(String),
    Present {
        name: String,
        /// Whether it is in phase Released or Failed.
        released: bool,
        /// Whether its reclaim policy is Retain.
        retain: bool,
        /// Its status message: why its deletion failed.
        message: Option<String>,
    },
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeleteStep {
    /// Delete the twin, by its uid.
    DeleteTwin,
    /// Wait until the twin is deleted.
    AwaitTwin,
    /// Wait until the PV is deleted.
    AwaitVolume {
        name: String,
        /// Why it still exists, if its status says.
        message: Option<String>,
    },
    /// Remove our `claimRef` from this PV.
    Unclaim(String),
    /// Restore the reclaim policy that this PV had before this driver replaced it.
    GiveBack(String),
    /// Answer success.
    Done,
    /// Answer that the state is unknown now, for this reason.
    Unavailable(String),
    /// Answer that the volume must not be deleted.
    Refuse(DeleteRefusal),
}

/// A virtual PV and its claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedVolume {
    /// Name of the PV.
    pub name: String,
    /// The claim in its `claimRef`.
    pub claim: ClaimMark,
}

/// A claim of the name in that `claimRef`, which may have another uid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExistingClaim {
    pub uid: String,
    /// The PV that it names, if any.
    pub volume: Option<String>,
    /// Whether Kubernetes has bound it to that PV.
    pub bound: bool,
}

impl ClaimedVolume {
    /// Whether this claim owns the PV. Either the PV names its uid, unless the claim has another PV; or the
    /// claim was bound to the PV, whatever uid the PV names now: Kubernetes calls such a claim Lost, but its
    /// pods still run.
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
    #[error(
        "the volume belongs to the claim {}/{}, which exists, so nothing is deleted. Its PersistentVolume was Released with the \
         reclaim policy Delete, which happens when a client changes its claimRef. To delete the volume, delete the claim",
        .0.namespace, .0.name
    )]
    Claimed(ClaimMark),
    /// Another object has the name of the twin.
    #[error(
        "the name of the twin is taken by an object that is not ours: {0}. It is not touched: restore its labels and annotations if \
         it is the twin, or delete it if its data is not needed"
    )]
    Foreign(Foreign),
    /// The claim gets the real volume.
    #[error(
        "the volume is being released, so its data must stay: `liqo-csi release pvc` completes that, and with --undo reverts it"
    )]
    Releasing,
    #[error(
        "the volume is being moved, and its PersistentVolume names no claim until the move is completed or undone: nothing is deleted. If its \
         claim was deleted, its reclaim policy is applied after the move"
    )]
    Gated,
    #[error(
        "the twin belongs to a move of the volume, and only the move deletes it, once it is no longer needed"
    )]
    Moves,
    /// It is in use.
    #[error("the volume is still attached to the node {0}")]
    Attached(String),
    /// A clone of it does not have the data yet.
    #[error(
        "{0} is a clone of the volume and does not have the data yet: in another cluster it may be copied only when a pod with the claim \
         is there. If the clone is not needed, delete its claim or, without one, its twin"
    )]
    ToBeCopied(String),
}

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
        DeleteTwin::ToBeCopied(claim) => DeleteStep::Refuse(DeleteRefusal::ToBeCopied(claim.clone())),
        DeleteTwin::Absent => without_twin(&facts.volume),
    }
}

/// The next step for the PV of a deleted twin.
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
        // A StatefulSet creates a claim of that name again, without the name of the old PV.
        assert!(!belongs("u2", None, false));
        assert!(!belongs("u2", Some("pvc-1"), false));
        assert!(!belongs("u2", Some("another"), true));
    }

    #[test]
    fn the_twin_is_deleted_before_its_volume_is_awaited() {
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
    fn the_claimref_of_a_reserved_volume_is_removed() {
        let step = decide(DeleteTwin::Absent, TwinVolume::Reserved("pv".into()));
        assert_eq!(step, DeleteStep::Unclaim("pv".into()));
    }

    #[test]
    fn the_policy_of_a_volume_retained_by_this_driver_is_restored() {
        let step = decide(DeleteTwin::Absent, TwinVolume::RetainedByUs("pv".into()));
        assert_eq!(step, DeleteStep::GiveBack("pv".into()));
    }

    #[test]
    fn a_volume_that_is_being_moved_is_not_deleted() {
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
        fn a_deletion_ends_only_when_the_volume_is_gone_or_retained(
            twin in select(vec![
                DeleteTwin::Absent,
                DeleteTwin::Foreign(Foreign::OtherClaim("x".into())),
                DeleteTwin::Ours { deleting: false },
                DeleteTwin::Ours { deleting: true },
                DeleteTwin::Releasing,
                DeleteTwin::OfMove,
                DeleteTwin::ToBeCopied("shop/copy".into()),
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
