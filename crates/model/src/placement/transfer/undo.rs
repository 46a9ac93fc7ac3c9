//! The steps that undo an import, wherever it stopped.
//!
//! ```text
//!  ──Forbid──▶ may not be adopted any more (a CreateVolume that is under way fails, or has
//!              made a twin for a claim that goes)
//!     old claim exists ──Touch──▶ (whoever would delete it has an older version) ──Restore──▶
//!     new claim exists ──DeleteNew──▶ gone ──DeleteTwin──▶ gone
//!     no claim ──Remake──▶ exists ──GiveBack──▶ PV names it by its uid ──Wake──▶ bound
//!                                                          ──Restore──▶ as before
//! ```
//!
//! A PV that named a claim that is not there yet would be the data of whoever gets that name,
//! as in a namespace that is deleted and made anew in that moment.
//!
//! Only when the PV is bound to its claim again it gets its reclaim policy back, and its
//! record is taken off in the same write.

use super::{ClaimNow, NamedVolume, Progress};

/// Whom the PV names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The claim of that name that exists, by its uid.
    Claim {
        /// Whether Kubernetes has bound the two.
        bound: bool,
    },
    /// Nobody who exists: a claim that is gone, a twin that is gone, or a name without a uid,
    /// which anybody may have one day.
    Gone,
    /// A twin that exists.
    Twin {
        /// Whether it is being deleted.
        deleting: bool,
    },
    /// Somebody else.
    Other(String),
}

/// What the decision rests on, read live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndoFacts {
    /// What has the name of the claim.
    pub claim: ClaimNow,
    /// How far the import is.
    pub progress: Progress,
    /// Whether the PV's reclaim policy is Retain, and nobody is offered it.
    pub secured: bool,
    /// Whom the PV names.
    pub holder: Holder,
    /// Whether the claim has the mark that it was made with, and Kubernetes knows that the PV names it.
    pub overlooked: bool,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UndoStep {
    /// Take the permission to adopt off the PV, and see that it is retained and nobody is offered it.
    Forbid,
    /// Write on the old claim.
    Touch,
    /// Delete the claim of this driver's class, by its uid.
    DeleteNew,
    /// Wait until the claim is gone that is being deleted.
    AwaitClaimGone,
    /// Delete the twin, which has the PV but was given to nobody.
    DeleteTwin,
    /// Take our finalizer off the twin that is being deleted, and wait until it is gone.
    AwaitTwinGone,
    /// Make the old claim again.
    Remake,
    /// Have the PV name the claim that exists, by its uid.
    GiveBack,
    /// Take the mark off the claim that it was made with: Kubernetes looks at it then.
    Wake,
    /// Wait until the claim is bound to the PV.
    AwaitBound,
    /// Give the PV its reclaim policy back and take the record off.
    Restore,
    /// Take the mark of the undo off the old claim.
    Untouch,
    /// There is nothing left to do.
    Done,
    /// Do nothing.
    Refuse(UndoRefusal),
}

impl UndoStep {
    /// What it would do, for whoever only asks.
    #[must_use]
    pub fn in_words(&self) -> &'static str {
        match self {
            Self::Forbid => "the permission to adopt the PersistentVolume would be taken back",
            Self::Touch => "the claim would be marked, so that the import does not delete it",
            Self::DeleteNew => "the claim of this driver's class would be deleted",
            Self::AwaitClaimGone => "the claim is to be gone",
            Self::DeleteTwin => "the twin would be deleted, its PersistentVolume being retained",
            Self::AwaitTwinGone => "the twin is to be gone",
            Self::GiveBack => "the PersistentVolume would name the claim again",
            Self::Remake => "the claim would be made again as it was",
            Self::Wake => "Kubernetes would be made to look at the claim",
            Self::AwaitBound => "Kubernetes is to bind the two",
            Self::Restore => "the PersistentVolume would get its reclaim policy back",
            Self::Untouch => "the mark of the undo would be taken off the claim",
            Self::Done => "nothing is left to do",
            Self::Refuse(_) => "it would be refused",
        }
    }
}

/// Why an import is not undone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UndoRefusal {
    /// It has come to its end.
    #[error(
        "the import has come to its end: the claim is bound to a volume of this driver, and the controller does the rest"
    )]
    Finished,
    /// A claim that was made in the gap has the name.
    #[error(
        "a claim of that name was made while there was none, and it has another volume, or asks for another one. The data is safe on \
         its PersistentVolume, which is retained. Delete that claim, and run this again"
    )]
    NameTaken,
    /// Somebody else has the PV.
    #[error("the PersistentVolume belongs to {0} now. Nothing is changed")]
    Held(String),
}

/// Decides the next step.
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
        // Before anything else, whoever has changed it: twins are deleted on the way.
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
        _ if facts.overlooked => UndoStep::Wake,
        ClaimNow::Old { touched: false, .. } => UndoStep::Touch,
        ClaimNow::Old { .. } => match holder {
            Holder::Claim { bound: true } => UndoStep::Restore,
            _ => give_back(holder),
        },
        ClaimNow::New { .. } => UndoStep::DeleteNew,
        ClaimNow::Absent => freed(holder).unwrap_or(UndoStep::Remake),
        ClaimNow::Other { volume, fits, .. } => match (volume, fits) {
            (NamedVolume::Imported { bound: true }, _) if *holder == (Holder::Claim { bound: true }) => {
                UndoStep::Restore
            }
            // Also one that names no PV is bound to that which names it.
            (NamedVolume::Imported { .. }, _) | (NamedVolume::None, true) => give_back(holder),
            (NamedVolume::None, false) | (NamedVolume::Another, _) => {
                UndoStep::Refuse(UndoRefusal::NameTaken)
            }
        },
    }
}

/// Has the PV name the claim that exists, and be bound to it.
fn give_back(holder: &Holder) -> UndoStep {
    freed(holder).unwrap_or(match holder {
        Holder::Claim { .. } => UndoStep::AwaitBound,
        _ => UndoStep::GiveBack,
    })
}

/// What comes before the PV can be anybody's: it is a twin's, or somebody else's.
fn freed(holder: &Holder) -> Option<UndoStep> {
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
            overlooked: false,
        })
    }

    #[test]
    fn kubernetes_is_made_to_look_at_a_claim_before_it_is_waited_for() {
        let mut facts = UndoFacts {
            claim: other(NamedVolume::Imported { bound: false }, true),
            progress: Progress::Withdrawn,
            secured: true,
            holder: NAMED,
            overlooked: true,
        };
        assert_eq!(undo_step(&facts), UndoStep::Wake);
        // Bound without: the mark does not stay.
        facts.claim = other(NamedVolume::Imported { bound: true }, true);
        facts.holder = BOUND;
        assert_eq!(undo_step(&facts), UndoStep::Wake);
        facts.overlooked = false;
        assert_eq!(undo_step(&facts), UndoStep::Restore);
    }

    #[test]
    fn a_claim_that_exists_is_kept_from_a_deletion_under_way_first() {
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
    fn first_the_new_claim_goes_then_its_twin_then_the_old_claim_comes_back() {
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
    fn a_claim_that_somebody_made_in_the_gap_gets_the_data_if_it_asks_for_the_like() {
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
    fn what_has_come_to_its_end_is_not_undone() {
        for progress in [Progress::NotRecorded, Progress::Permitted, Progress::Withdrawn] {
            let step = decide(new(true), progress, Holder::Twin { deleting: false });
            assert_eq!(step, UndoStep::Refuse(UndoRefusal::Finished));
        }
    }

    proptest! {
        #[test]
        fn the_policy_comes_back_only_to_a_volume_that_is_bound(
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
                overlooked: false,
            });
            if !secured {
                let changes_nothing = matches!(step, UndoStep::Forbid | UndoStep::Untouch | UndoStep::Done | UndoStep::Refuse(_));
                prop_assert!(changes_nothing, "{step:?} while the data may go");
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
            // Else it would be that of whoever has the name next.
            if step == UndoStep::GiveBack {
                let exists = matches!(claim, ClaimNow::Old { .. } | ClaimNow::Other { .. });
                prop_assert!(exists);
            }
            // While it may be adopted, nothing else is changed: a CreateVolume may be under way.
            if progress == Progress::Permitted {
                let is_first = matches!(step, UndoStep::Forbid | UndoStep::Refuse(UndoRefusal::Finished));
                prop_assert!(is_first);
            }
        }
    }
}
