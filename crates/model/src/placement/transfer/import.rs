//! The steps of an import.
//!
//! ```text
//!  old claim ──Mark──▶ PV retained, recorded, may be adopted
//!            ──DeleteClaim──▶ PV Released ──MakeClaim──▶ claim of class liqo
//!                                     (CreateVolume adopts the PV; a loop settles it)
//!                                     ──AwaitAdopted──▶ bound ──AwaitSettled──▶ Done
//! ```

use super::{ClaimNow, Interruption, NamedVolume, Obstacle, Progress};

/// What the decision rests on, read live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportFacts {
    /// What has the name of the claim.
    pub claim: ClaimNow,
    /// How far the import is.
    pub progress: Progress,
    /// Whether the PV's reclaim policy is Retain, nobody is offered it, and the old claim, while it
    /// is there, is as it is on record.
    pub secured: bool,
    /// What speaks against the import of the old claim.
    pub obstacles: Vec<Obstacle>,
    /// A node that the PV is attached to.
    pub attached: Option<String>,
    /// Whether the claim of this driver's class cannot be made, and why.
    pub unmakeable: Option<String>,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImportStep {
    /// Retain the PV, record on it what it and its claim were, permit its adoption.
    Mark,
    /// Take the mark of an earlier undo off the old claim.
    Untouch,
    /// Delete the old claim, in exactly this version.
    DeleteClaim,
    /// Wait until the claim is gone that is being deleted.
    AwaitClaimGone,
    /// Wait until the PV is attached to this node no more.
    AwaitDetached(String),
    /// Make the claim of this driver's class.
    MakeClaim,
    /// Select a node for it.
    SelectNode,
    /// Wait until it is bound.
    AwaitAdopted,
    /// Wait until the controller has taken the record off the PV.
    AwaitSettled,
    /// There is nothing left to do.
    Done,
    /// Undo it: it cannot be carried to its end.
    TakeBack(Interruption),
    /// Do nothing.
    Refuse(ImportRefusal),
}

impl ImportStep {
    /// What it would do, for whoever only asks.
    #[must_use]
    pub fn in_words(&self) -> &'static str {
        match self {
            Self::Mark => "the PersistentVolume would be retained and marked",
            Self::Untouch => "the mark of an earlier undo would be taken off the claim",
            Self::DeleteClaim => "the claim would be deleted, to be made again",
            Self::AwaitClaimGone => "the claim is to be gone",
            Self::AwaitDetached(_) => "the PersistentVolume is to be detached",
            Self::MakeClaim => "the claim would be made again with a class of this driver",
            Self::SelectNode => "a node would be selected for the claim",
            Self::AwaitAdopted => "the controller is to make the volume of the PersistentVolume",
            Self::AwaitSettled => "the controller is to give the PersistentVolume its reclaim policy back",
            Self::Done => "nothing is left to do",
            Self::TakeBack(_) => "it would be taken back",
            Self::Refuse(_) => "it would be refused",
        }
    }
}

/// Why an import does not begin, or is not gone on with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportRefusal {
    /// There is neither a claim nor an import.
    #[error("there is no such claim, and no PersistentVolume that is being imported for it")]
    NoClaim,
    /// All that speaks against it.
    #[error("{}", crate::placement::lines(.0))]
    Obstacles(Vec<Obstacle>),
    /// It is being undone.
    #[error("this import is being undone: run it with --undo until it is, then it can begin anew")]
    Undoing,
    /// Another claim of the name has a volume of its own.
    #[error(
        "a claim of that name was made while there was none, and has a volume of its own. The data is safe on its PersistentVolume, \
         which is retained. Delete that claim (its volume goes with it), and run this again"
    )]
    NameTaken,
}

/// Decides the next step.
#[must_use]
pub fn import_step(facts: &ImportFacts) -> ImportStep {
    match facts.progress {
        Progress::NotRecorded => beginning(facts),
        // The undo came too late.
        Progress::Withdrawn
            if matches!(
                facts.claim,
                ClaimNow::New {
                    deleting: false,
                    bound: true,
                    ..
                }
            ) =>
        {
            ImportStep::AwaitSettled
        }
        Progress::Withdrawn => ImportStep::Refuse(ImportRefusal::Undoing),
        Progress::Permitted => going_on(facts),
    }
}

fn beginning(facts: &ImportFacts) -> ImportStep {
    match facts.claim {
        ClaimNow::New { bound: true, .. } => ImportStep::Done,
        ClaimNow::Old { .. } | ClaimNow::New { .. } | ClaimNow::Other { .. }
            if !facts.obstacles.is_empty() =>
        {
            ImportStep::Refuse(ImportRefusal::Obstacles(facts.obstacles.clone()))
        }
        // What is left there from an undo must not be taken for that of the next one.
        ClaimNow::Old { touched: true, .. } => ImportStep::Untouch,
        ClaimNow::Old { .. } => ImportStep::Mark,
        // Without a record nobody permits the adoption.
        ClaimNow::Absent | ClaimNow::New { .. } | ClaimNow::Other { .. } => {
            ImportStep::Refuse(ImportRefusal::NoClaim)
        }
    }
}

fn going_on(facts: &ImportFacts) -> ImportStep {
    if !facts.secured {
        // Before anything else, whoever has changed it.
        return ImportStep::Mark;
    }
    match facts.claim {
        ClaimNow::Old { deleting: false, .. } if !facts.obstacles.is_empty() => {
            ImportStep::TakeBack(Interruption::Obstacles(facts.obstacles.clone()))
        }
        // It may be touched in the same version that is looked at here, by an undo of now.
        ClaimNow::Old {
            deleting: false,
            touched: true,
        } => ImportStep::Untouch,
        ClaimNow::Old { deleting: false, .. } => ImportStep::DeleteClaim,
        ClaimNow::Old { deleting: true, .. }
        | ClaimNow::New { deleting: true, .. }
        | ClaimNow::Other { deleting: true, .. } => ImportStep::AwaitClaimGone,
        ClaimNow::Absent => match (&facts.attached, &facts.unmakeable) {
            // Kubernetes would detach it under whoever has it next.
            (Some(node), _) => ImportStep::AwaitDetached(node.clone()),
            (None, Some(why)) => ImportStep::TakeBack(Interruption::NotAccepted(why.clone())),
            (None, None) => ImportStep::MakeClaim,
        },
        ClaimNow::New { bound: true, .. } => ImportStep::AwaitSettled,
        ClaimNow::New { has_node: false, .. } => ImportStep::SelectNode,
        ClaimNow::New { .. } => ImportStep::AwaitAdopted,
        ClaimNow::Other { volume, .. } => match volume {
            NamedVolume::None | NamedVolume::Imported { .. } => ImportStep::TakeBack(Interruption::NameTaken),
            NamedVolume::Another => ImportStep::Refuse(ImportRefusal::NameTaken),
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, sample::select};

    use super::*;

    const OLD: ClaimNow = ClaimNow::Old {
        deleting: false,
        touched: false,
    };

    fn new(deleting: bool, has_node: bool, bound: bool) -> ClaimNow {
        ClaimNow::New {
            deleting,
            has_node,
            bound,
        }
    }

    fn other(volume: NamedVolume) -> ClaimNow {
        ClaimNow::Other {
            deleting: false,
            volume,
            fits: true,
        }
    }

    fn facts(claim: ClaimNow, progress: Progress) -> ImportFacts {
        ImportFacts {
            claim,
            progress,
            secured: progress == Progress::Permitted,
            obstacles: Vec::new(),
            attached: None,
            unmakeable: None,
        }
    }

    fn pod() -> Vec<Obstacle> {
        vec![Obstacle::Pod {
            pod: "db-0".into(),
            over: false,
        }]
    }

    #[test]
    fn one_step_after_the_other() {
        use Progress::{NotRecorded, Permitted};
        for (claim, progress, expected) in [
            (OLD, NotRecorded, ImportStep::Mark),
            (
                ClaimNow::Old {
                    deleting: false,
                    touched: true,
                },
                NotRecorded,
                ImportStep::Untouch,
            ),
            (OLD, Permitted, ImportStep::DeleteClaim),
            (
                ClaimNow::Old {
                    deleting: true,
                    touched: false,
                },
                Permitted,
                ImportStep::AwaitClaimGone,
            ),
            (ClaimNow::Absent, Permitted, ImportStep::MakeClaim),
            (new(false, false, false), Permitted, ImportStep::SelectNode),
            (new(false, true, false), Permitted, ImportStep::AwaitAdopted),
            (new(false, true, true), Permitted, ImportStep::AwaitSettled),
            (new(false, true, true), NotRecorded, ImportStep::Done),
        ] {
            assert_eq!(
                import_step(&facts(claim.clone(), progress)),
                expected,
                "{claim:?}"
            );
        }
    }

    #[test]
    fn an_import_that_is_being_undone_is_left_to_that_unless_it_came_too_late() {
        let step = |claim| import_step(&facts(claim, Progress::Withdrawn));
        assert_eq!(step(new(false, true, true)), ImportStep::AwaitSettled);
        for claim in [OLD, ClaimNow::Absent, new(false, true, false)] {
            assert_eq!(step(claim), ImportStep::Refuse(ImportRefusal::Undoing));
        }
    }

    #[test]
    fn a_claim_deleted_before_the_end_is_made_again() {
        let step = |claim| import_step(&facts(claim, Progress::Permitted));
        assert_eq!(step(new(true, true, true)), ImportStep::AwaitClaimGone);
        assert_eq!(step(ClaimNow::Absent), ImportStep::MakeClaim);
    }

    #[test]
    fn obstacles_stop_it_before_it_begins_and_undo_it_before_anything_is_deleted() {
        let mut facts = facts(OLD, Progress::NotRecorded);
        facts.obstacles = pod();
        assert_eq!(
            import_step(&facts),
            ImportStep::Refuse(ImportRefusal::Obstacles(pod()))
        );
        facts.progress = Progress::Permitted;
        facts.secured = true;
        assert_eq!(
            import_step(&facts),
            ImportStep::TakeBack(Interruption::Obstacles(pod()))
        );
    }

    #[test]
    fn an_attached_volume_is_waited_for() {
        let mut facts = facts(ClaimNow::Absent, Progress::Permitted);
        facts.attached = Some("n1".into());
        assert_eq!(import_step(&facts), ImportStep::AwaitDetached("n1".into()));
    }

    #[test]
    fn a_name_taken_in_the_gap_is_left_alone() {
        let step = |volume| import_step(&facts(other(volume), Progress::Permitted));
        assert_eq!(
            step(NamedVolume::None),
            ImportStep::TakeBack(Interruption::NameTaken)
        );
        assert_eq!(
            step(NamedVolume::Another),
            ImportStep::Refuse(ImportRefusal::NameTaken)
        );
    }

    #[test]
    fn a_claim_that_is_not_accepted_is_given_up() {
        let mut facts = facts(ClaimNow::Absent, Progress::Permitted);
        facts.unmakeable = Some("quota".into());
        assert_eq!(
            import_step(&facts),
            ImportStep::TakeBack(Interruption::NotAccepted("quota".into()))
        );
    }

    proptest! {
        #[test]
        fn nothing_is_deleted_or_made_unless_the_data_is_safe(
            claim in select(vec![
                ClaimNow::Absent, OLD, ClaimNow::Old { deleting: true, touched: true },
                new(false, false, false), new(true, true, true), new(false, true, true),
                other(NamedVolume::None), other(NamedVolume::Another),
            ]),
            progress in select(vec![Progress::NotRecorded, Progress::Permitted, Progress::Withdrawn]),
            secured: bool,
            blocked: bool,
        ) {
            let mut facts = facts(claim, progress);
            facts.secured = secured;
            facts.obstacles = if blocked { pod() } else { Vec::new() };
            let step = import_step(&facts);
            let changes = [ImportStep::DeleteClaim, ImportStep::MakeClaim, ImportStep::SelectNode];
            if changes.contains(&step) {
                prop_assert!(secured);
                prop_assert_eq!(progress, Progress::Permitted);
            }
            if step == ImportStep::DeleteClaim {
                prop_assert!(!blocked);
            }
        }
    }
}
