//! The steps that undo a release, at whichever step it stopped.
//!
//! ```text
//!  ──Withdraw──▶ the record says so: a concurrent release stops at its next read
//!     claim exists ──Touch──▶ (a concurrent release can only delete an older version) ────┐
//!     no claim, virtual PV exists ──RemakeClaim──▶ ──GiveVirtual──▶ ──Wake──▶ bound ──────┤
//!     no virtual PV, twin exists ──TouchTwin──▶ ──RemakeVirtual──▶ as above               │
//!     no twin ──ToImport──▶ the volume is imported: a new twin adopts it                  ▼
//!                        RestoreVirtual ──▶ UnmarkTwin ──▶ Restore (removes the record last)
//! ```
//!
//! The reclaim policy of the real PV is restored only if it has its twin: otherwise it is Released, and
//! Kubernetes would delete it at once.

use super::{Holder, MatchingVolume, ReleaseProgress, ReleasedClaim, TwinNow, VirtualNow};

/// The input of the decision, read live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseUndoFacts {
    /// What exists under the name of the claim.
    pub claim: ReleasedClaim,
    pub progress: ReleaseProgress,
    /// Whether the real PV's reclaim policy is Retain, and it is available to no other claim.
    pub secured: bool,
    pub virtual_volume: VirtualNow,
    pub twin: TwinNow,
    /// What the real PV names in its `claimRef`.
    pub holder: Holder,
    /// Whether the claim must be changed, so that Kubernetes reconciles it: it still has the mark of its
    /// creation, and the virtual PV that names it is already Bound.
    pub needs_wake: bool,
    /// Whether the real PV is being imported for this claim, as the last resort.
    pub importing: bool,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReleaseUndoStep {
    /// Record that the release is being undone, and make sure that the real PV is retained and available to
    /// no other claim.
    Withdraw,
    /// Make the virtual PV name the deleted claim, so that it is available to no other one.
    WithdrawVirtual,
    /// Change the claim, so that a concurrent release cannot delete it.
    Touch,
    /// Change the twin, so that a concurrent release cannot delete it.
    TouchTwin,
    /// Wait until the claim is deleted.
    AwaitClaimGone,
    /// Wait until the virtual PV is deleted.
    AwaitVirtualGone,
    /// Create it again, for the claim.
    RemakeVirtual,
    /// Create the claim again as recorded.
    RemakeClaim,
    /// Make the virtual PV name the existing claim, by its uid.
    GiveVirtual,
    /// Remove the mark of its creation from the claim: the change makes Kubernetes reconcile it.
    Wake,
    /// Wait until the claim is bound to the virtual PV.
    AwaitBound,
    /// Restore the reclaim policy of the virtual PV.
    RestoreVirtual,
    /// Remove the mark of the release from the twin.
    UnmarkTwin,
    /// Restore the reclaim policy of the real PV, and remove the record.
    Restore,
    /// Remove the record, but leave the real PV retained: another client has deleted the twin, and the policy
    /// is restored after the driver has created the twin again.
    RestoreRetained,
    /// Remove the mark of the undo from the claim.
    Untouch,
    /// Remove our finalizer from the twin, and wait until it is deleted.
    AwaitTwinGone,
    /// Turn the record into that of an import.
    ToImport,
    Import,
    Done,
    Refuse(ReleaseUndoRefusal),
}

impl ReleaseUndoStep {
    /// Describes the step in a dry run.
    #[must_use]
    pub fn in_words(&self) -> &'static str {
        match self {
            Self::Withdraw => "the release would be recorded as being undone",
            Self::WithdrawVirtual => "the virtual PersistentVolume would be protected from other claims",
            Self::Touch => "the claim would be marked, so that the release does not delete it",
            Self::TouchTwin => "the twin would be marked, so that the release does not delete it",
            Self::AwaitClaimGone => "the claim has to be deleted",
            Self::AwaitVirtualGone => "the virtual PersistentVolume has to be deleted",
            Self::RemakeVirtual => "the virtual PersistentVolume would be created again",
            Self::GiveVirtual => "the virtual PersistentVolume would name the claim again",
            Self::RemakeClaim => "the claim would be created again as recorded",
            Self::Wake => "the claim would be changed, so that Kubernetes reconciles it",
            Self::AwaitBound => "Kubernetes has to bind the two",
            Self::RestoreVirtual => "the reclaim policy of the virtual PersistentVolume would be restored",
            Self::UnmarkTwin => "the mark would be removed from the twin",
            Self::Restore => "the reclaim policy of the real PersistentVolume would be restored",
            Self::RestoreRetained => {
                "the driver would create the twin again, and the real PersistentVolume would be retained until then"
            }
            Self::Untouch => "the mark of the undo would be removed from the claim",
            Self::AwaitTwinGone => "the twin has to be deleted",
            Self::ToImport | Self::Import => "the volume would be imported again",
            Self::Done => "nothing remains to be done",
            Self::Refuse(_) => "it would be refused",
        }
    }
}

/// Why a release is not undone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseUndoRefusal {
    /// The claim of the real class exists.
    #[error(
        "the claim already has its real class: run the release again without --undo to complete it. `liqo-csi import pvc` then gives the claim a class of \
         this driver again"
    )]
    TooLate,
    #[error(
        "another claim of that name was created in the meantime, and it has or requests another volume. The data is safe on \
         the real PersistentVolume, which is retained. Delete that claim, and run this again"
    )]
    NameTaken,
    /// No volume is left that the claim could have.
    #[error(
        "the claim's virtual PersistentVolume and its twin were both deleted, so it cannot be repaired. The data is safe on the real \
         PersistentVolume, which is retained. Delete the claim, and run this again: it is created again, and the volume imported"
    )]
    NothingLeft,
    /// One of the PVs names another object.
    #[error("the PersistentVolume belongs to {0} now. Nothing was changed")]
    Held(String),
}

#[must_use]
pub fn release_undo_step(facts: &ReleaseUndoFacts) -> ReleaseUndoStep {
    let marked = matches!(facts.twin, TwinNow::Exists { releasing: true, .. });
    match (facts.progress, &facts.claim) {
        (ReleaseProgress::NotRecorded, _) if facts.importing => ReleaseUndoStep::Import,
        (ReleaseProgress::NotRecorded, _) if marked => ReleaseUndoStep::UnmarkTwin,
        (ReleaseProgress::NotRecorded, ReleasedClaim::Virtual { touched: true, .. }) => {
            ReleaseUndoStep::Untouch
        }
        (ReleaseProgress::NotRecorded, _) => ReleaseUndoStep::Done,
        (_, ReleasedClaim::Real { deleting: false, .. }) => {
            ReleaseUndoStep::Refuse(ReleaseUndoRefusal::TooLate)
        }
        (ReleaseProgress::Onward, _) => ReleaseUndoStep::Withdraw,
        // First of all, because another client has changed it: a twin may be being deleted.
        (ReleaseProgress::Back, _) if !facts.secured => ReleaseUndoStep::Withdraw,
        (ReleaseProgress::Back, _)
            if matches!(
                facts.virtual_volume,
                VirtualNow::Exists {
                    deleting: false,
                    offered: true,
                    ..
                }
            ) =>
        {
            ReleaseUndoStep::WithdrawVirtual
        }
        (ReleaseProgress::Back, claim) if claim.is_deleting() => ReleaseUndoStep::AwaitClaimGone,
        (ReleaseProgress::Back, _) => back(facts),
    }
}

fn back(facts: &ReleaseUndoFacts) -> ReleaseUndoStep {
    match &facts.claim {
        ReleasedClaim::Virtual {
            recorded: true,
            touched: false,
            ..
        } => return ReleaseUndoStep::Touch,
        ReleasedClaim::Other { has_volume: true, .. }
        | ReleasedClaim::Other {
            asks: MatchingVolume::Real | MatchingVolume::Neither,
            ..
        } => return ReleaseUndoStep::Refuse(ReleaseUndoRefusal::NameTaken),
        ReleasedClaim::Absent
        | ReleasedClaim::Virtual { .. }
        | ReleasedClaim::Real { .. }
        | ReleasedClaim::Other { .. } => {}
    }
    match &facts.virtual_volume {
        VirtualNow::Exists { deleting: true, .. } => ReleaseUndoStep::AwaitVirtualGone,
        VirtualNow::Exists {
            holder, as_before, ..
        } => match (holder, &facts.claim) {
            (Holder::Twin { .. }, _) => {
                ReleaseUndoStep::Refuse(ReleaseUndoRefusal::Held("a twin".to_owned()))
            }
            (Holder::Other(who), _) => ReleaseUndoStep::Refuse(ReleaseUndoRefusal::Held(who.clone())),
            (_, ReleasedClaim::Absent) => ReleaseUndoStep::RemakeClaim,
            (Holder::Gone, _) => ReleaseUndoStep::GiveVirtual,
            _ if facts.needs_wake => ReleaseUndoStep::Wake,
            (Holder::Claim { bound: true }, ReleasedClaim::Virtual { .. }) => restore(facts, *as_before),
            // Kubernetes also binds a claim without a volume name to the PV that names it.
            (Holder::Claim { .. }, _) => ReleaseUndoStep::AwaitBound,
        },
        VirtualNow::Absent => match (facts.twin, &facts.claim) {
            (
                TwinNow::Exists {
                    deleting: false,
                    touched: false,
                    ..
                },
                _,
            ) => ReleaseUndoStep::TouchTwin,
            (TwinNow::Exists { deleting: false, .. }, _) => ReleaseUndoStep::RemakeVirtual,
            (TwinNow::Exists { deleting: true, .. }, _) => ReleaseUndoStep::AwaitTwinGone,
            (TwinNow::Absent, ReleasedClaim::Absent) => match &facts.holder {
                Holder::Other(who) => ReleaseUndoStep::Refuse(ReleaseUndoRefusal::Held(who.clone())),
                _ => ReleaseUndoStep::ToImport,
            },
            (TwinNow::Absent, _) => ReleaseUndoStep::Refuse(ReleaseUndoRefusal::NothingLeft),
        },
    }
}

/// The claim is bound to its virtual PV: only policies and marks are left to restore.
fn restore(facts: &ReleaseUndoFacts, as_before: bool) -> ReleaseUndoStep {
    if !as_before {
        return ReleaseUndoStep::RestoreVirtual;
    }
    match facts.twin {
        TwinNow::Exists { releasing: true, .. } => ReleaseUndoStep::UnmarkTwin,
        TwinNow::Exists { deleting: false, .. } if facts.holder == (Holder::Twin { deleting: false }) => {
            ReleaseUndoStep::Restore
        }
        TwinNow::Exists { .. } | TwinNow::Absent => ReleaseUndoStep::RestoreRetained,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::release::tests::{BOUND, MARKED, NAMED, VIRTUAL, other, outer, real},
        *,
    };

    const TOUCHED: ReleasedClaim = ReleasedClaim::Virtual {
        recorded: true,
        deleting: false,
        touched: true,
    };
    const UNMARKED: TwinNow = TwinNow::Exists {
        releasing: false,
        touched: false,
        deleting: false,
    };
    const KEPT: TwinNow = TwinNow::Exists {
        releasing: true,
        touched: true,
        deleting: false,
    };

    fn step(
        claim: ReleasedClaim,
        progress: ReleaseProgress,
        virtual_volume: VirtualNow,
        twin: TwinNow,
    ) -> ReleaseUndoStep {
        release_undo_step(&ReleaseUndoFacts {
            claim,
            progress,
            secured: true,
            virtual_volume,
            twin,
            holder: match twin {
                TwinNow::Exists { deleting, .. } => Holder::Twin { deleting },
                TwinNow::Absent => Holder::Gone,
            },
            needs_wake: false,
            importing: false,
        })
    }

    #[test]
    fn a_virtual_pv_offered_to_others_is_withdrawn_before_any_refusal() {
        let mut there = outer(true, false, Holder::Gone);
        if let VirtualNow::Exists { offered, .. } = &mut there {
            *offered = true;
        }
        let taken = other(true, MatchingVolume::Virtual);
        let got = step(taken, ReleaseProgress::Back, there, MARKED);
        assert_eq!(got, ReleaseUndoStep::WithdrawVirtual);
    }

    #[test]
    fn the_claim_is_touched_before_waiting_for_its_binding() {
        for holder in [NAMED, BOUND] {
            let got = release_undo_step(&ReleaseUndoFacts {
                claim: TOUCHED,
                progress: ReleaseProgress::Back,
                secured: true,
                virtual_volume: outer(true, false, holder),
                twin: MARKED,
                holder: Holder::Twin { deleting: false },
                needs_wake: true,
                importing: false,
            });
            assert_eq!(got, ReleaseUndoStep::Wake);
        }
    }

    #[test]
    fn an_undo_reports_that_a_claim_has_neither_virtual_pv_nor_twin() {
        for claim in [TOUCHED, other(false, MatchingVolume::Virtual)] {
            let got = step(claim, ReleaseProgress::Back, VirtualNow::Absent, TwinNow::Absent);
            assert_eq!(got, ReleaseUndoStep::Refuse(ReleaseUndoRefusal::NothingLeft));
        }
    }

    #[test]
    fn an_undo_of_a_release_restores_an_existing_claim_in_order() {
        use ReleaseProgress::{Back, NotRecorded, Onward};
        let there = |retained| outer(retained, false, BOUND);
        for (at, (got, expected)) in [
            (
                step(VIRTUAL, Onward, there(true), MARKED),
                ReleaseUndoStep::Withdraw,
            ),
            (step(VIRTUAL, Back, there(true), MARKED), ReleaseUndoStep::Touch),
            (
                step(TOUCHED, Back, there(true), MARKED),
                ReleaseUndoStep::RestoreVirtual,
            ),
            (
                step(TOUCHED, Back, there(false), MARKED),
                ReleaseUndoStep::UnmarkTwin,
            ),
            (
                step(TOUCHED, Back, there(false), UNMARKED),
                ReleaseUndoStep::Restore,
            ),
            (
                step(TOUCHED, NotRecorded, there(false), UNMARKED),
                ReleaseUndoStep::Untouch,
            ),
            (
                step(VIRTUAL, NotRecorded, there(false), UNMARKED),
                ReleaseUndoStep::Done,
            ),
            (
                step(VIRTUAL, NotRecorded, there(false), MARKED),
                ReleaseUndoStep::UnmarkTwin,
            ),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(got, expected, "step {at}");
        }
    }

    #[test]
    fn an_undo_of_a_release_recreates_the_deleted_claim_and_virtual_pv() {
        let back = |claim, there, twin| step(claim, ReleaseProgress::Back, there, twin);
        let absent = || ReleasedClaim::Absent;
        let again = ReleasedClaim::Virtual {
            recorded: false,
            deleting: false,
            touched: false,
        };
        let dying = TwinNow::Exists {
            releasing: true,
            touched: false,
            deleting: true,
        };
        let outer = |deleting, holder| outer(true, deleting, holder);
        for (at, (got, expected)) in [
            (
                back(absent(), outer(false, Holder::Gone), MARKED),
                ReleaseUndoStep::RemakeClaim,
            ),
            (
                back(again.clone(), outer(false, Holder::Gone), MARKED),
                ReleaseUndoStep::GiveVirtual,
            ),
            (
                back(other(false, MatchingVolume::Virtual), outer(false, NAMED), MARKED),
                ReleaseUndoStep::AwaitBound,
            ),
            (
                back(again.clone(), outer(false, NAMED), MARKED),
                ReleaseUndoStep::AwaitBound,
            ),
            (
                back(again, outer(false, BOUND), MARKED),
                ReleaseUndoStep::RestoreVirtual,
            ),
            (
                back(absent(), outer(true, Holder::Gone), MARKED),
                ReleaseUndoStep::AwaitVirtualGone,
            ),
            (
                back(absent(), VirtualNow::Absent, MARKED),
                ReleaseUndoStep::TouchTwin,
            ),
            (
                back(absent(), VirtualNow::Absent, KEPT),
                ReleaseUndoStep::RemakeVirtual,
            ),
            (
                back(absent(), VirtualNow::Absent, dying),
                ReleaseUndoStep::AwaitTwinGone,
            ),
            (
                back(absent(), VirtualNow::Absent, TwinNow::Absent),
                ReleaseUndoStep::ToImport,
            ),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(got, expected, "step {at}");
        }
    }

    #[test]
    fn an_undo_restores_the_policy_only_with_a_healthy_twin() {
        let there = outer(false, false, BOUND);
        let dying = TwinNow::Exists {
            releasing: false,
            touched: false,
            deleting: true,
        };
        for twin in [dying, TwinNow::Absent] {
            let got = step(TOUCHED, ReleaseProgress::Back, there.clone(), twin);
            assert_eq!(got, ReleaseUndoStep::RestoreRetained, "{twin:?}");
        }
        let got = release_undo_step(&ReleaseUndoFacts {
            claim: TOUCHED,
            progress: ReleaseProgress::Back,
            secured: true,
            virtual_volume: there,
            twin: UNMARKED,
            holder: Holder::Gone,
            needs_wake: false,
            importing: false,
        });
        assert_eq!(got, ReleaseUndoStep::RestoreRetained, "the PV is not the twin's");
    }

    #[test]
    fn an_undo_leaves_the_volume_to_another_claim_that_has_it() {
        let mut facts = ReleaseUndoFacts {
            claim: ReleasedClaim::Absent,
            progress: ReleaseProgress::Back,
            secured: false,
            virtual_volume: VirtualNow::Absent,
            twin: TwinNow::Absent,
            holder: Holder::Other("shop/rescue".to_owned()),
            needs_wake: false,
            importing: false,
        };
        assert_eq!(release_undo_step(&facts), ReleaseUndoStep::Withdraw);
        facts.secured = true;
        assert!(matches!(
            release_undo_step(&facts),
            ReleaseUndoStep::Refuse(ReleaseUndoRefusal::Held(_))
        ));
    }

    #[test]
    fn a_mark_of_a_deleted_claim_is_removed() {
        use ReleaseProgress::NotRecorded;
        let got = step(ReleasedClaim::Absent, NotRecorded, VirtualNow::Absent, MARKED);
        assert_eq!(got, ReleaseUndoStep::UnmarkTwin);
    }

    #[test]
    fn an_undo_is_refused_once_the_claim_has_the_real_class() {
        for progress in [ReleaseProgress::Onward, ReleaseProgress::Back] {
            let got = step(real(false), progress, VirtualNow::Absent, TwinNow::Absent);
            assert_eq!(got, ReleaseUndoStep::Refuse(ReleaseUndoRefusal::TooLate));
        }
    }

    #[test]
    fn an_undo_is_refused_if_others_use_the_name_of_the_claim() {
        for claim in [
            other(true, MatchingVolume::Virtual),
            other(false, MatchingVolume::Neither),
        ] {
            let got = step(claim, ReleaseProgress::Back, VirtualNow::Absent, MARKED);
            assert_eq!(got, ReleaseUndoStep::Refuse(ReleaseUndoRefusal::NameTaken));
        }
    }

    #[test]
    fn the_undo_continues_as_an_import() {
        let got = release_undo_step(&ReleaseUndoFacts {
            claim: ReleasedClaim::Absent,
            progress: ReleaseProgress::NotRecorded,
            secured: false,
            virtual_volume: VirtualNow::Absent,
            twin: TwinNow::Absent,
            holder: Holder::Gone,
            needs_wake: false,
            importing: true,
        });
        assert_eq!(got, ReleaseUndoStep::Import);
    }
}
