//! The steps of an import.
//!
//! ```text
//!  old claim ──Mark──▶ PV retained, recorded, may be adopted
//!            ──DeleteClaim──▶ PV Released ──MakeClaim──▶ claim of class liqo
//!                                     (CreateVolume adopts the PV; a loop settles it)
//!                                     ──AwaitAdopted──▶ bound ──AwaitSettled──▶ Done
//! ```

use super::{ClaimNow, Interruption, NamedVolume, Obstacle, Progress};

/// The input of the decision, read live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportFacts {
    /// What exists under the name of the claim.
    pub claim: ClaimNow,
    pub progress: Progress,
    /// Whether the PV's reclaim policy is Retain, it is available to no other claim, and its record matches
    /// the old claim, as long as that exists.
    pub secured: bool,
    /// What blocks the import of the old claim.
    pub obstacles: Vec<Obstacle>,
    /// A node to which the PV is attached.
    pub attached: Option<String>,
    /// Why the API server refuses the claim of this driver's class, if it does.
    pub unmakeable: Option<String>,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImportStep {
    /// Retain the PV, record the PV and its claim on it, and permit its adoption.
    Mark,
    /// Remove the mark of an earlier undo from the old claim.
    Untouch,
    /// Delete exactly this version of the old claim.
    DeleteClaim,
    /// Wait until the claim is deleted.
    AwaitClaimGone,
    /// Wait until the PV is detached from this node.
    AwaitDetached(String),
    /// Create the claim of this driver's class.
    MakeClaim,
    SelectNode,
    /// Wait until it is bound.
    AwaitAdopted,
    /// Wait until the controller has removed the record from the PV.
    AwaitSettled,
    Done,
    /// Undo the import, because it cannot be completed.
    RollBack(Interruption),
    Refuse(ImportRefusal),
}

impl ImportStep {
    /// Describes the step in a dry run.
    #[must_use]
    pub fn in_words(&self) -> &'static str {
        match self {
            Self::Mark => "the PersistentVolume would be retained and marked",
            Self::Untouch => "the mark of an earlier undo would be removed from the claim",
            Self::DeleteClaim => "the claim would be deleted, to be created again",
            Self::AwaitClaimGone => "the claim has to be deleted",
            Self::AwaitDetached(_) => "the PersistentVolume has to be detached",
            Self::MakeClaim => "the claim would be created again with a class of this driver",
            Self::SelectNode => "a node would be selected for the claim",
            Self::AwaitAdopted => "the controller has to adopt the PersistentVolume",
            Self::AwaitSettled => "the controller has to restore the reclaim policy of the PersistentVolume",
            Self::Done => "nothing remains to be done",
            Self::RollBack(_) => "it would be undone",
            Self::Refuse(_) => "it would be refused",
        }
    }
}

/// Why an import is not started or continued.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportRefusal {
    /// There is neither a claim nor an import.
    #[error("there is no such claim, and no PersistentVolume that is being imported for it")]
    NoClaim,
    /// Everything that blocks it.
    #[error("{}", crate::placement::lines(.0))]
    Obstacles(Vec<Obstacle>),
    #[error(
        "this import is being undone: run the command with --undo until that is complete, then it can start again"
    )]
    Undoing,
    #[error(
        "another claim of that name was created in the meantime, and has a volume of its own. The data is safe on its PersistentVolume, \
         which is retained. Delete that claim (this deletes its volume), and run this again"
    )]
    NameTaken,
}

#[must_use]
pub fn import_step(facts: &ImportFacts) -> ImportStep {
    match facts.progress {
        Progress::NotRecorded => not_started(facts),
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
        Progress::Permitted => started(facts),
    }
}

fn not_started(facts: &ImportFacts) -> ImportStep {
    match facts.claim {
        ClaimNow::New { bound: true, .. } => ImportStep::Done,
        ClaimNow::Old { .. } | ClaimNow::New { .. } | ClaimNow::Other { .. }
            if !facts.obstacles.is_empty() =>
        {
            ImportStep::Refuse(ImportRefusal::Obstacles(facts.obstacles.clone()))
        }
        // Clear the mark of a previous undo, or the next undo would mistake it for its own.
        ClaimNow::Old { touched: true, .. } => ImportStep::Untouch,
        ClaimNow::Old { .. } => ImportStep::Mark,
        // Without a record the adoption is not permitted.
        ClaimNow::Absent | ClaimNow::New { .. } | ClaimNow::Other { .. } => {
            ImportStep::Refuse(ImportRefusal::NoClaim)
        }
    }
}

fn started(facts: &ImportFacts) -> ImportStep {
    if !facts.secured {
        // Another client has removed Retain or the record: restore them before the next step.
        return ImportStep::Mark;
    }
    match facts.claim {
        ClaimNow::Old { deleting: false, .. } if !facts.obstacles.is_empty() => {
            ImportStep::RollBack(Interruption::Obstacles(facts.obstacles.clone()))
        }
        // A concurrent undo may touch the claim in the very version that was read here.
        ClaimNow::Old {
            deleting: false,
            touched: true,
        } => ImportStep::Untouch,
        ClaimNow::Old { deleting: false, .. } => ImportStep::DeleteClaim,
        ClaimNow::Old { deleting: true, .. }
        | ClaimNow::New { deleting: true, .. }
        | ClaimNow::Other { deleting: true, .. } => ImportStep::AwaitClaimGone,
        ClaimNow::Absent => match (&facts.attached, &facts.unmakeable) {
            // Otherwise Kubernetes would detach the volume while the next claim uses it.
            (Some(node), _) => ImportStep::AwaitDetached(node.clone()),
            (None, Some(why)) => ImportStep::RollBack(Interruption::NotAccepted(why.clone())),
            (None, None) => ImportStep::MakeClaim,
        },
        ClaimNow::New { bound: true, .. } => ImportStep::AwaitSettled,
        ClaimNow::New { has_node: false, .. } => ImportStep::SelectNode,
        ClaimNow::New { .. } => ImportStep::AwaitAdopted,
        ClaimNow::Other { volume, .. } => match volume {
            NamedVolume::None | NamedVolume::Imported { .. } => ImportStep::RollBack(Interruption::NameTaken),
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
    fn steps_are_taken_in_order() {
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
    fn an_import_that_is_being_undone_stops_unless_the_undo_is_too_late() {
        let step = |claim| import_step(&facts(claim, Progress::Withdrawn));
        assert_eq!(step(new(false, true, true)), ImportStep::AwaitSettled);
        for claim in [OLD, ClaimNow::Absent, new(false, true, false)] {
            assert_eq!(step(claim), ImportStep::Refuse(ImportRefusal::Undoing));
        }
    }

    #[test]
    fn a_claim_deleted_before_the_import_ends_is_recreated() {
        let step = |claim| import_step(&facts(claim, Progress::Permitted));
        assert_eq!(step(new(true, true, true)), ImportStep::AwaitClaimGone);
        assert_eq!(step(ClaimNow::Absent), ImportStep::MakeClaim);
    }

    #[test]
    fn obstacles_prevent_an_import_or_roll_it_back_before_anything_is_deleted() {
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
            ImportStep::RollBack(Interruption::Obstacles(pod()))
        );
    }

    #[test]
    fn an_attached_volume_is_waited_for() {
        let mut facts = facts(ClaimNow::Absent, Progress::Permitted);
        facts.attached = Some("n1".into());
        assert_eq!(import_step(&facts), ImportStep::AwaitDetached("n1".into()));
    }

    #[test]
    fn a_claim_created_by_others_under_the_name_is_left_alone() {
        let step = |volume| import_step(&facts(other(volume), Progress::Permitted));
        assert_eq!(
            step(NamedVolume::None),
            ImportStep::RollBack(Interruption::NameTaken)
        );
        assert_eq!(
            step(NamedVolume::Another),
            ImportStep::Refuse(ImportRefusal::NameTaken)
        );
    }

    #[test]
    fn an_import_rolls_back_if_its_claim_is_refused() {
        let mut facts = facts(ClaimNow::Absent, Progress::Permitted);
        facts.unmakeable = Some("quota".into());
        assert_eq!(
            import_step(&facts),
            ImportStep::RollBack(Interruption::NotAccepted("quota".into()))
        );
    }

    proptest! {
        #[test]
        fn nothing_is_deleted_or_created_before_the_data_is_retained(
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
