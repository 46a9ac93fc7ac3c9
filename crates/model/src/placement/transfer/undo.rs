//! The steps that undo an import, at whichever step it stopped.
//!
//! ```text
//!  ──Forbid──▶ may not be adopted any more (a concurrent CreateVolume fails, or has
//!              created a twin for a claim that is deleted here)
//!     old claim exists ──Touch──▶ (an import can only delete an older version) ──Restore──▶
//!     new claim exists ──DeleteNew──▶ deleted ──DeleteTwin──▶ deleted
//!     no claim ──Remake──▶ exists ──GiveBack──▶ PV names it by its uid ──Wake──▶ bound
//!                                                          ──Restore──▶ as before
//! ```
//!
//! The PV must not name a claim that does not exist yet: any user who gets that name would get the data, for
//! example in a namespace that is deleted and created again at that moment.
//!
//! The reclaim policy of the PV is restored only after the PV is bound to its claim again, and its record is
//! removed in the same write.

use super::{ClaimNow, NamedVolume, Progress};

/// What a PV names in its `claimRef`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The existing claim of that name, by its uid.
    Claim {
        /// Whether Kubernetes has bound the two.
        bound: bool,
    },
    /// A deleted claim, a deleted twin, or a name without a uid, which any later claim of that name matches.
    Gone,
    /// An existing twin.
    Twin {
        /// Whether it is being deleted.
        deleting: bool,
    },
    /// Another object.
    Other(String),
}

/// The input of the decision, read live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndoFacts {
    /// What exists under the name of the claim.
    pub claim: ClaimNow,
    pub progress: Progress,
    /// Whether the PV's reclaim policy is Retain, and it is available to no other claim.
    pub secured: bool,
    /// What the PV names in its `claimRef`.
    pub holder: Holder,
    /// Whether the claim must be changed, so that Kubernetes reconciles it: it still has the mark of its
    /// creation, and the PV that names it is already Bound.
    pub needs_wake: bool,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UndoStep {
    /// Forbid the adoption of the PV, and make sure that it is retained and available to no other claim.
    Forbid,
    /// Change the old claim, so that a concurrent import cannot delete it.
    Touch,
    /// Delete the claim of this driver's class, by its uid.
    DeleteNew,
    /// Wait until the claim is deleted.
    AwaitClaimGone,
    /// Delete the twin, which has the PV but was never handed over.
    DeleteTwin,
    /// Remove our finalizer from the twin that is being deleted, and wait until it is deleted.
    AwaitTwinGone,
    /// Create the old claim again.
    Remake,
    /// Make the PV name the existing claim, by its uid.
    GiveBack,
    /// Remove the mark of its creation from the claim: the change makes Kubernetes reconcile it.
    Wake,
    /// Wait until the claim is bound to the PV.
    AwaitBound,
    /// Restore the reclaim policy of the PV, and remove the record.
    Restore,
    /// Remove the mark of the undo from the old claim.
    Untouch,
    Done,
    Refuse(UndoRefusal),
}

impl UndoStep {
    /// Describes the step in a dry run.
    #[must_use]
    pub fn in_words(&self) -> &'static str {
        match self {
            Self::Forbid => "the permission to adopt the PersistentVolume would be removed",
            Self::Touch => "the claim would be marked, so that the import does not delete it",
            Self::DeleteNew => "the claim of this driver's class would be deleted",
            Self::AwaitClaimGone => "the claim has to be deleted",
            Self::DeleteTwin => "the twin would be deleted, and its PersistentVolume retained",
            Self::AwaitTwinGone => "the twin has to be deleted",
            Self::GiveBack => "the PersistentVolume would name the claim again",
            Self::Remake => "the claim would be created again as recorded",
            Self::Wake => "the claim would be changed, so that Kubernetes reconciles it",
            Self::AwaitBound => "Kubernetes has to bind the two",
            Self::Restore => "the reclaim policy of the PersistentVolume would be restored",
            Self::Untouch => "the mark of the undo would be removed from the claim",
            Self::Done => "nothing remains to be done",
            Self::Refuse(_) => "it would be refused",
        }
    }
}

/// Why an import is not undone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UndoRefusal {
    /// It is too late: the claim is bound.
    #[error(
        "the import can no longer be undone: the claim is bound to a volume of this driver, and the controller completes the import"
    )]
    Finished,
    #[error(
        "another claim of that name was created in the meantime, and it has or requests another volume. The data is safe on \
         its PersistentVolume, which is retained. Delete that claim, and run this again"
    )]
    NameTaken,
    /// The PV names another object.
    #[error("the PersistentVolume belongs to {0} now. Nothing was changed")]
    Held(String),
}

#[must_use]
pub fn undo_step(facts: &UndoFacts) -> UndoStep {
    match (facts.progress, &facts.claim) {
        (Progress::NotRecorded, ClaimNow::Old { touched: true, .. }) => UndoStep::Untouch,
        (
            _,
            ClaimNow::New {
                bound: true,
                deleting: false,
                ..
            },
        ) => UndoStep::Refuse(UndoRefusal::Finished),
        (Progress::NotRecorded, _) => UndoStep::Done,
        (Progress::Permitted, _) => UndoStep::Forbid,
        // First of all, because another client has changed it: later steps delete twins.
        (Progress::Withdrawn, _) if !facts.secured => UndoStep::Forbid,
        (Progress::Withdrawn, _) => withdrawn(facts),
    }
}

fn withdrawn(facts: &UndoFacts) -> UndoStep {
    let holder = &facts.holder;
    match &facts.claim {
        ClaimNow::Old { deleting: true, .. }
        | ClaimNow::New { deleting: true, .. }
        | ClaimNow::Other { deleting: true, .. } => UndoStep::AwaitClaimGone,
        _ if facts.needs_wake => UndoStep::Wake,
        ClaimNow::Old { touched: false, .. } => UndoStep::Touch,
        ClaimNow::Old { .. } => match holder {
            Holder::Claim { bound: true } => UndoStep::Restore,
            _ => bind_to_claim(holder),
        },
        ClaimNow::New { .. } => UndoStep::DeleteNew,
        ClaimNow::Absent => release_from_owner(holder).unwrap_or(UndoStep::Remake),
        ClaimNow::Other { volume, fits, .. } => match (volume, fits) {
            (NamedVolume::Imported { bound: true }, _) if *holder == (Holder::Claim { bound: true }) => {
                UndoStep::Restore
            }
            // Kubernetes also binds a claim without a volume name to the PV that names it.
            (NamedVolume::Imported { .. }, _) | (NamedVolume::None, true) => bind_to_claim(holder),
            (NamedVolume::None, false) | (NamedVolume::Another, _) => {
                UndoStep::Refuse(UndoRefusal::NameTaken)
            }
        },
    }
}

/// The steps until the PV names the existing claim and is bound to it.
fn bind_to_claim(holder: &Holder) -> UndoStep {
    release_from_owner(holder).unwrap_or(match holder {
        Holder::Claim { .. } => UndoStep::AwaitBound,
        _ => UndoStep::GiveBack,
    })
}

/// The step that is needed while the PV names a twin or another object.
fn release_from_owner(holder: &Holder) -> Option<UndoStep> {
    match holder {
        Holder::Claim { .. } | Holder::Gone => None,
        Holder::Twin { deleting: false } => Some(UndoStep::DeleteTwin),
        Holder::Twin { deleting: true } => Some(UndoStep::AwaitTwinGone),
        Holder::Other(who) => Some(UndoStep::Refuse(UndoRefusal::Held(who.clone()))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, sample::select};

    use super::*;

    const NAMED: Holder = Holder::Claim { bound: false };
    const BOUND: Holder = Holder::Claim { bound: true };

    fn old(deleting: bool, touched: bool) -> ClaimNow {
        ClaimNow::Old { deleting, touched }
    }

    fn new(bound: bool) -> ClaimNow {
        ClaimNow::New {
            deleting: false,
            has_node: true,
            bound,
        }
    }

    fn other(volume: NamedVolume, fits: bool) -> ClaimNow {
        ClaimNow::Other {
            deleting: false,
            volume,
            fits,
        }
    }

    fn decide(claim: ClaimNow, progress: Progress, holder: Holder) -> UndoStep {
        undo_step(&UndoFacts {
            claim,
            progress,
            secured: true,
            holder,
            needs_wake: false,
        })
    }

    #[test]
    fn the_claim_is_touched_before_waiting_for_its_binding() {
        let mut facts = UndoFacts {
            claim: other(NamedVolume::Imported { bound: false }, true),
            progress: Progress::Withdrawn,
            secured: true,
            holder: NAMED,
            needs_wake: true,
        };
        assert_eq!(undo_step(&facts), UndoStep::Wake);
        // Kubernetes bound it without the touch: the mark is still removed.
        facts.claim = other(NamedVolume::Imported { bound: true }, true);
        facts.holder = BOUND;
        assert_eq!(undo_step(&facts), UndoStep::Wake);
        facts.needs_wake = false;
        assert_eq!(undo_step(&facts), UndoStep::Restore);
    }

    #[test]
    fn an_undo_first_prevents_the_deletion_of_an_existing_claim() {
        use Progress::{NotRecorded, Permitted, Withdrawn};
        let (twin, claim) = (Holder::Gone, BOUND);
        assert_eq!(
            decide(old(false, false), Permitted, claim.clone()),
            UndoStep::Forbid
        );
        assert_eq!(
            decide(old(false, false), Withdrawn, claim.clone()),
            UndoStep::Touch
        );
        assert_eq!(
            decide(old(false, true), Withdrawn, claim.clone()),
            UndoStep::Restore
        );
        assert_eq!(
            decide(old(false, true), NotRecorded, claim.clone()),
            UndoStep::Untouch
        );
        assert_eq!(decide(old(false, false), NotRecorded, claim), UndoStep::Done);
        assert_eq!(decide(old(true, true), Withdrawn, twin), UndoStep::AwaitClaimGone);
    }

    #[test]
    fn an_undo_deletes_the_new_claim_then_its_twin_and_recreates_the_old_claim() {
        let step = |claim, holder| decide(claim, Progress::Withdrawn, holder);
        let twin = |deleting| Holder::Twin { deleting };
        assert_eq!(step(new(false), twin(false)), UndoStep::DeleteNew);
        assert_eq!(step(ClaimNow::Absent, twin(false)), UndoStep::DeleteTwin);
        assert_eq!(step(ClaimNow::Absent, twin(true)), UndoStep::AwaitTwinGone);
        assert_eq!(step(ClaimNow::Absent, Holder::Gone), UndoStep::Remake);
        let made = |bound| other(NamedVolume::Imported { bound }, true);
        assert_eq!(step(made(false), Holder::Gone), UndoStep::GiveBack);
        assert_eq!(step(made(false), NAMED), UndoStep::AwaitBound);
        assert_eq!(step(made(true), BOUND), UndoStep::Restore);
    }

    #[test]
    fn a_matching_claim_created_by_others_meanwhile_gets_the_data() {
        let step = |claim, holder| decide(claim, Progress::Withdrawn, holder);
        let theirs = |fits| other(NamedVolume::None, fits);
        assert_eq!(step(theirs(true), Holder::Gone), UndoStep::GiveBack);
        assert_eq!(step(theirs(true), NAMED), UndoStep::AwaitBound);
        for claim in [theirs(false), other(NamedVolume::Another, true)] {
            assert_eq!(
                step(claim, Holder::Gone),
                UndoStep::Refuse(UndoRefusal::NameTaken)
            );
        }
    }

    #[test]
    fn a_completed_import_is_not_undone() {
        for progress in [Progress::NotRecorded, Progress::Permitted, Progress::Withdrawn] {
            let step = decide(new(true), progress, Holder::Twin { deleting: false });
            assert_eq!(step, UndoStep::Refuse(UndoRefusal::Finished));
        }
    }

    proptest! {
        #[test]
        fn the_policy_is_restored_only_on_a_bound_volume(
            claim in select(vec![
                ClaimNow::Absent, old(false, false), old(false, true), old(true, true), new(false), new(true),
                other(NamedVolume::None, true), other(NamedVolume::Imported { bound: false }, true),
                other(NamedVolume::Imported { bound: true }, true), other(NamedVolume::Another, false),
            ]),
            progress in select(vec![Progress::NotRecorded, Progress::Permitted, Progress::Withdrawn]),
            holder in select(vec![
                NAMED, BOUND, Holder::Gone, Holder::Twin { deleting: false },
                Holder::Twin { deleting: true }, Holder::Other("bank/x".into()),
            ]),
            secured: bool,
        ) {
            let step = undo_step(&UndoFacts {
                claim: claim.clone(),
                progress,
                secured,
                holder: holder.clone(),
                needs_wake: false,
            });
            if !secured {
                let changes_nothing = matches!(step, UndoStep::Forbid | UndoStep::Untouch | UndoStep::Done | UndoStep::Refuse(_));
                prop_assert!(changes_nothing, "{step:?} while the data is not retained");
            }
            if step == UndoStep::Restore {
                prop_assert_eq!(&holder, &BOUND);
                prop_assert_eq!(progress, Progress::Withdrawn);
                let is_bound = matches!(
                    claim,
                    ClaimNow::Old { deleting: false, touched: true }
                        | ClaimNow::Other { volume: NamedVolume::Imported { bound: true }, .. }
                );
                prop_assert!(is_bound);
            }
            // Otherwise the next claim of that name would get the data.
            if step == UndoStep::GiveBack {
                let exists = matches!(claim, ClaimNow::Old { .. } | ClaimNow::Other { .. });
                prop_assert!(exists);
            }
            // While it may be adopted, nothing else is changed: a CreateVolume may be in progress.
            if progress == Progress::Permitted {
                let is_first = matches!(step, UndoStep::Forbid | UndoStep::Refuse(UndoRefusal::Finished));
                prop_assert!(is_first);
            }
        }
    }
}
