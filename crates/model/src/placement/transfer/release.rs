//! The steps of a release: a claim of this driver's class becomes one of the real class, and the data is not
//! copied.
//!
//! ```text
//!  claim of this driver ──MarkTwin──▶ the controllers and CSI calls no longer touch the twin
//!      ──Record──▶ real PV retained, recorded ──RetainVirtual──▶ virtual PV retained
//!      ──DeleteClaim──▶ ──DeleteVirtual──▶ ──DeleteTwin──▶ real PV Released, retained
//!      ──MakeClaim──▶ exists ──GiveReal──▶ real PV names it by its uid ──Wake──▶ bound
//!      ──Settle──▶ Done
//! ```

use super::{Holder, Interruption, Obstacle};

/// What exists under the name of the claim that is released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReleasedClaim {
    Absent,
    /// The claim of this driver's class.
    Virtual {
        /// Whether it is the claim in the record, or there is no record.
        recorded: bool,
        /// Whether it is being deleted.
        deleting: bool,
        /// Whether an undo has changed it.
        touched: bool,
    },
    /// A claim that names the real PV.
    Real {
        /// Whether it is being deleted.
        deleting: bool,
        /// Whether Kubernetes has bound the two.
        bound: bool,
    },
    /// Another claim, created in the meantime by a controller.
    Other {
        /// Whether it is being deleted.
        deleting: bool,
        /// Whether it has, or requests, another PV.
        has_volume: bool,
        /// Which volume its spec matches.
        asks: MatchingVolume,
    },
}

impl ReleasedClaim {
    /// Whether it exists and is being deleted.
    #[must_use]
    pub fn is_deleting(&self) -> bool {
        match self {
            Self::Absent => false,
            Self::Virtual { deleting, .. } | Self::Real { deleting, .. } | Self::Other { deleting, .. } => {
                *deleting
            }
        }
    }
}

/// Which volume the spec of a claim matches that was created in the meantime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchingVolume {
    /// The real PV.
    Real,
    /// The virtual PV, even if deleted.
    Virtual,
    Neither,
}

/// The record of a release on the real PV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseProgress {
    NotRecorded,
    /// The record exists; the release continues.
    Onward,
    /// The record exists, and says that the release is being undone.
    Back,
}

/// The virtual PV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VirtualNow {
    /// It was deleted.
    Absent,
    Exists {
        /// Whether it is being deleted.
        deleting: bool,
        /// Whether its reclaim policy is Retain.
        retained: bool,
        /// Whether it has the reclaim policy that it had before the release.
        as_before: bool,
        /// Whether another claim of the same name could be bound to it.
        offered: bool,
        /// Whether it has csi-provisioner's finalizer.
        finalizer: bool,
        /// What it names in its `claimRef`.
        holder: Holder,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TwinNow {
    /// It was deleted.
    Absent,
    Exists {
        /// Whether it is marked as being released.
        releasing: bool,
        /// Whether an undo has changed it.
        touched: bool,
        /// Whether it is being deleted.
        deleting: bool,
    },
}

/// The input of the decision, read live, the claim first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseFacts {
    /// What exists under the name of the claim.
    pub claim: ReleasedClaim,
    pub progress: ReleaseProgress,
    /// Whether the real PV's reclaim policy is Retain, it is available to no other claim, and its record
    /// matches the old claim, as long as that exists.
    pub secured: bool,
    pub virtual_volume: VirtualNow,
    pub twin: TwinNow,
    /// What the real PV names in its `claimRef`.
    pub holder: Holder,
    /// Whether the claim must be changed, so that Kubernetes reconciles it: it still has the mark of its
    /// creation, and the real PV that names it is already Bound.
    pub needs_wake: bool,
    pub leaving: bool,
    /// What blocks the release of the claim.
    pub obstacles: Vec<Obstacle>,
    /// A node to which one of the PVs is attached.
    pub attached: Option<String>,
    /// Why the API server refuses the claim of the real class, if it does.
    pub unmakeable: Option<String>,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReleaseStep {
    /// Mark the twin, so that the driver does not touch it.
    MarkTwin,
    /// Retain the real PV, and record the volume and its claim on it.
    Record,
    /// Remove the mark of an earlier undo from the claim.
    Untouch,
    /// Retain the virtual PV.
    RetainVirtual,
    /// Delete exactly this version of the claim.
    DeleteClaim,
    /// Wait until the claim is deleted.
    AwaitClaimGone,
    /// Wait until both PVs are detached from this node.
    AwaitDetached(String),
    /// Wait until csi-provisioner has removed its finalizer from the virtual PV, which it does once that is
    /// retained; or remove it instead.
    AwaitFinalizer,
    /// Delete exactly this version of the virtual PV.
    DeleteVirtual,
    /// Wait until it is deleted.
    AwaitVirtualGone,
    /// Delete exactly this version of the twin.
    DeleteTwin,
    /// Remove our finalizer from it, and wait until it is deleted.
    AwaitTwinGone,
    /// Create the claim of the real class.
    MakeClaim,
    /// Make the real PV name the existing claim, by its uid.
    GiveReal,
    /// Remove the mark of its creation from the claim: the change makes Kubernetes reconcile it.
    Wake,
    /// Wait until the claim is bound to the real PV.
    AwaitBound,
    /// Set the final reclaim policy of the real PV, and remove the record.
    Settle,
    Done,
    /// Undo the release, because it cannot be completed.
    RollBack(Interruption),
    Refuse(ReleaseRefusal),
}

impl ReleaseStep {
    /// Describes the step in a dry run.
    #[must_use]
    pub fn in_words(&self) -> &'static str {
        match self {
            Self::MarkTwin => "the twin would be marked",
            Self::Record => "the real PersistentVolume would be retained",
            Self::Untouch => "the mark of an earlier undo would be removed from the claim",
            Self::RetainVirtual => "the virtual PersistentVolume would be retained",
            Self::DeleteClaim => "the claim would be deleted, to be created again",
            Self::AwaitClaimGone => "the claim has to be deleted",
            Self::AwaitDetached(_) => "the volume has to be detached",
            Self::AwaitFinalizer => {
                "csi-provisioner has to remove its finalizer from the virtual PersistentVolume"
            }
            Self::DeleteVirtual => "the virtual PersistentVolume would be deleted",
            Self::AwaitVirtualGone => "the virtual PersistentVolume has to be deleted",
            Self::DeleteTwin => "the twin would be deleted, and its PersistentVolume retained",
            Self::AwaitTwinGone => "the twin has to be deleted",
            Self::GiveReal => "the real PersistentVolume would name the claim",
            Self::MakeClaim => "the claim would be created again with the real class",
            Self::Wake => "the claim would be changed, so that Kubernetes reconciles it",
            Self::AwaitBound => "Kubernetes has to bind the two",
            Self::Settle => "the reclaim policy of the real PersistentVolume would be restored",
            Self::Done => "nothing remains to be done",
            Self::RollBack(_) => "it would be undone",
            Self::Refuse(_) => "it would be refused",
        }
    }
}

/// Why a release is not started or continued.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseRefusal {
    /// There is neither a claim nor a release.
    #[error("there is no such claim, and no PersistentVolume that is being released for it")]
    NoClaim,
    /// Everything that blocks it.
    #[error("{}", crate::placement::lines(.0))]
    Obstacles(Vec<Obstacle>),
    #[error(
        "this release is being undone: run the command with --undo until that is complete, then it can start again"
    )]
    Undoing,
    #[error(
        "another claim of that name was created in the meantime, and has a volume of its own. The data is safe on its PersistentVolume, \
         which is retained. Delete that claim (this deletes its volume), and run this again"
    )]
    NameTaken,
    /// The real PV names another object.
    #[error("the PersistentVolume belongs to {0} now. Nothing was changed")]
    Held(String),
}

#[must_use]
pub fn release_step(facts: &ReleaseFacts) -> ReleaseStep {
    match facts.progress {
        ReleaseProgress::NotRecorded => not_started(facts),
        ReleaseProgress::Onward => started(facts),
        // The undo came too late.
        ReleaseProgress::Back if matches!(facts.claim, ReleasedClaim::Real { .. }) => started(facts),
        ReleaseProgress::Back => ReleaseStep::Refuse(ReleaseRefusal::Undoing),
    }
}

fn is_marked(facts: &ReleaseFacts) -> bool {
    matches!(
        facts.twin,
        TwinNow::Exists {
            releasing: true,
            touched: false,
            ..
        }
    )
}

fn not_started(facts: &ReleaseFacts) -> ReleaseStep {
    let found = || facts.obstacles.clone();
    match facts.claim {
        ReleasedClaim::Real { bound: true, .. } => ReleaseStep::Done,
        _ if !facts.obstacles.is_empty() && is_marked(facts) => {
            ReleaseStep::RollBack(Interruption::Obstacles(found()))
        }
        _ if !facts.obstacles.is_empty() => ReleaseStep::Refuse(ReleaseRefusal::Obstacles(found())),
        // Clear the mark of a previous undo, or the next undo would mistake it for its own.
        ReleasedClaim::Virtual { touched: true, .. } => ReleaseStep::Untouch,
        ReleasedClaim::Virtual { .. } if is_marked(facts) => ReleaseStep::Record,
        ReleasedClaim::Virtual { .. } => ReleaseStep::MarkTwin,
        ReleasedClaim::Absent | ReleasedClaim::Real { .. } | ReleasedClaim::Other { .. } => {
            ReleaseStep::Refuse(ReleaseRefusal::NoClaim)
        }
    }
}

fn started(facts: &ReleaseFacts) -> ReleaseStep {
    if !facts.secured {
        // First of all, because another client has changed it.
        return ReleaseStep::Record;
    }
    if facts.claim.is_deleting() {
        return ReleaseStep::AwaitClaimGone;
    }
    match &facts.claim {
        ReleasedClaim::Virtual { recorded: true, .. } => with_claim(facts),
        ReleasedClaim::Other { has_volume: true, .. } => ReleaseStep::Refuse(ReleaseRefusal::NameTaken),
        ReleasedClaim::Virtual { recorded: false, .. }
        | ReleasedClaim::Other {
            asks: MatchingVolume::Virtual | MatchingVolume::Neither,
            ..
        } => ReleaseStep::RollBack(Interruption::NameTaken),
        ReleasedClaim::Absent | ReleasedClaim::Real { .. } | ReleasedClaim::Other { .. } => {
            without_claim(facts)
        }
    }
}

/// The claim of this driver exists: the release can still be stopped before its deletion.
fn with_claim(facts: &ReleaseFacts) -> ReleaseStep {
    if !facts.obstacles.is_empty() {
        return ReleaseStep::RollBack(Interruption::Obstacles(facts.obstacles.clone()));
    }
    match facts.twin {
        // The mark precedes the record, so it was removed by an undo: one that found no record is complete.
        TwinNow::Exists { releasing: false, .. } => {
            return ReleaseStep::RollBack(Interruption::Unmarked);
        }
        TwinNow::Exists { touched: true, .. } => return ReleaseStep::MarkTwin,
        TwinNow::Exists { .. } | TwinNow::Absent => {}
    }
    if matches!(facts.claim, ReleasedClaim::Virtual { touched: true, .. }) {
        // An undo changes the claim to protect it: then the version to delete is outdated.
        return ReleaseStep::Untouch;
    }
    match facts.virtual_volume {
        VirtualNow::Exists { retained: false, .. } => ReleaseStep::RetainVirtual,
        VirtualNow::Exists { .. } | VirtualNow::Absent => ReleaseStep::DeleteClaim,
    }
}

/// Deletes the driver's objects, the virtual PV before the twin that it refers to; then gives the real PV to
/// the claim.
fn without_claim(facts: &ReleaseFacts) -> ReleaseStep {
    if matches!(facts.twin, TwinNow::Exists { deleting: false, .. }) && !is_marked(facts) {
        return ReleaseStep::MarkTwin;
    }
    if matches!(facts.virtual_volume, VirtualNow::Exists { retained: false, .. }) {
        return ReleaseStep::RetainVirtual;
    }
    let is_ours = facts.virtual_volume != VirtualNow::Absent || facts.twin != TwinNow::Absent;
    if let Some(node) = &facts.attached
        && (is_ours || !matches!(facts.holder, Holder::Claim { .. }))
    {
        // Otherwise Kubernetes would detach the volume while the next claim uses it.
        return ReleaseStep::AwaitDetached(node.clone());
    }
    if let VirtualNow::Exists {
        deleting, finalizer, ..
    } = facts.virtual_volume
    {
        return match (finalizer, deleting) {
            (true, _) => ReleaseStep::AwaitFinalizer,
            (false, true) => ReleaseStep::AwaitVirtualGone,
            (false, false) => ReleaseStep::DeleteVirtual,
        };
    }
    match facts.twin {
        TwinNow::Exists { deleting: false, .. } if facts.leaving => {
            return ReleaseStep::RollBack(Interruption::VolumeLeaves);
        }
        TwinNow::Exists { deleting: false, .. } => return ReleaseStep::DeleteTwin,
        TwinNow::Exists { deleting: true, .. } => return ReleaseStep::AwaitTwinGone,
        TwinNow::Absent => {}
    }
    match (&facts.claim, &facts.holder) {
        (_, Holder::Twin { .. }) => ReleaseStep::AwaitTwinGone,
        (_, Holder::Other(who)) => ReleaseStep::Refuse(ReleaseRefusal::Held(who.clone())),
        (ReleasedClaim::Absent, _) => match &facts.unmakeable {
            Some(why) => ReleaseStep::RollBack(Interruption::NotAccepted(why.clone())),
            None => ReleaseStep::MakeClaim,
        },
        (_, Holder::Gone) => ReleaseStep::GiveReal,
        _ if facts.needs_wake => ReleaseStep::Wake,
        (ReleasedClaim::Real { bound: true, .. }, Holder::Claim { bound: true }) => ReleaseStep::Settle,
        // Kubernetes also binds a claim without a volume name to the PV that names it.
        (_, Holder::Claim { .. }) => ReleaseStep::AwaitBound,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::{prelude::*, sample::select};

    use super::*;

    pub(in crate::placement::transfer) const VIRTUAL: ReleasedClaim = ReleasedClaim::Virtual {
        recorded: true,
        deleting: false,
        touched: false,
    };
    pub(in crate::placement::transfer) const MARKED: TwinNow = TwinNow::Exists {
        releasing: true,
        touched: false,
        deleting: false,
    };
    pub(in crate::placement::transfer) const NAMED: Holder = Holder::Claim { bound: false };
    pub(in crate::placement::transfer) const BOUND: Holder = Holder::Claim { bound: true };
    const UNMARKED: TwinNow = TwinNow::Exists {
        releasing: false,
        touched: false,
        deleting: false,
    };
    const DELETING: TwinNow = TwinNow::Exists {
        releasing: true,
        touched: false,
        deleting: true,
    };

    pub(in crate::placement::transfer) fn outer(
        retained: bool,
        deleting: bool,
        holder: Holder,
    ) -> VirtualNow {
        VirtualNow::Exists {
            deleting,
            retained,
            as_before: !retained,
            offered: false,
            finalizer: false,
            holder,
        }
    }

    pub(in crate::placement::transfer) fn real(bound: bool) -> ReleasedClaim {
        ReleasedClaim::Real {
            deleting: false,
            bound,
        }
    }

    pub(in crate::placement::transfer) fn other(has_volume: bool, asks: MatchingVolume) -> ReleasedClaim {
        ReleasedClaim::Other {
            deleting: false,
            has_volume,
            asks,
        }
    }

    fn facts(
        claim: ReleasedClaim,
        virtual_volume: VirtualNow,
        twin: TwinNow,
        holder: Holder,
    ) -> ReleaseFacts {
        ReleaseFacts {
            claim,
            progress: ReleaseProgress::Onward,
            secured: true,
            virtual_volume,
            twin,
            holder,
            needs_wake: false,
            obstacles: Vec::new(),
            leaving: false,
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
        use VirtualNow::Absent;
        let twins = || Holder::Twin { deleting: false };
        let there = |retained| outer(retained, false, BOUND);
        let going = outer(true, true, Holder::Gone);
        let no_claim = || ReleasedClaim::Absent;
        let deleting = ReleasedClaim::Virtual {
            recorded: true,
            deleting: true,
            touched: false,
        };
        for (at, (facts, expected)) in [
            (
                facts(VIRTUAL, there(false), MARKED, twins()),
                ReleaseStep::RetainVirtual,
            ),
            (
                facts(VIRTUAL, there(true), MARKED, twins()),
                ReleaseStep::DeleteClaim,
            ),
            (
                facts(deleting, there(true), MARKED, twins()),
                ReleaseStep::AwaitClaimGone,
            ),
            (
                facts(no_claim(), there(true), MARKED, twins()),
                ReleaseStep::DeleteVirtual,
            ),
            (
                facts(no_claim(), going, MARKED, twins()),
                ReleaseStep::AwaitVirtualGone,
            ),
            (
                facts(no_claim(), Absent, MARKED, twins()),
                ReleaseStep::DeleteTwin,
            ),
            (
                facts(no_claim(), Absent, DELETING, twins()),
                ReleaseStep::AwaitTwinGone,
            ),
            (
                facts(no_claim(), Absent, TwinNow::Absent, Holder::Gone),
                ReleaseStep::MakeClaim,
            ),
            (
                facts(real(false), Absent, TwinNow::Absent, Holder::Gone),
                ReleaseStep::GiveReal,
            ),
            (
                facts(real(false), Absent, TwinNow::Absent, NAMED),
                ReleaseStep::AwaitBound,
            ),
            (
                facts(real(true), Absent, TwinNow::Absent, BOUND),
                ReleaseStep::Settle,
            ),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(release_step(&facts), expected, "step {at}");
        }
    }

    #[test]
    fn the_claim_is_touched_before_waiting_for_its_binding() {
        for (bound, holder) in [(false, NAMED), (true, BOUND)] {
            let mut facts = facts(real(bound), VirtualNow::Absent, TwinNow::Absent, holder);
            facts.needs_wake = true;
            assert_eq!(release_step(&facts), ReleaseStep::Wake, "bound: {bound}");
        }
    }

    #[test]
    fn a_release_first_marks_the_twin_and_then_writes_its_record() {
        let there = outer(false, false, BOUND);
        let mut facts = facts(VIRTUAL, there, UNMARKED, Holder::Twin { deleting: false });
        facts.progress = ReleaseProgress::NotRecorded;
        facts.secured = false;
        assert_eq!(release_step(&facts), ReleaseStep::MarkTwin);
        facts.twin = MARKED;
        assert_eq!(release_step(&facts), ReleaseStep::Record);
        facts.obstacles = pod();
        assert_eq!(
            release_step(&facts),
            ReleaseStep::RollBack(Interruption::Obstacles(pod()))
        );
        facts.twin = UNMARKED;
        assert_eq!(
            release_step(&facts),
            ReleaseStep::Refuse(ReleaseRefusal::Obstacles(pod()))
        );
        facts.claim = real(true);
        assert_eq!(release_step(&facts), ReleaseStep::Done, "it is of a real class");
    }

    #[test]
    fn a_virtual_pv_is_not_deleted_while_it_is_attached_or_has_its_finalizer() {
        let mut facts = facts(
            ReleasedClaim::Absent,
            VirtualNow::Exists {
                deleting: false,
                retained: true,
                as_before: false,
                offered: false,
                finalizer: true,
                holder: Holder::Gone,
            },
            MARKED,
            Holder::Twin { deleting: false },
        );
        assert_eq!(release_step(&facts), ReleaseStep::AwaitFinalizer);
        facts.attached = Some("n1".into());
        assert_eq!(release_step(&facts), ReleaseStep::AwaitDetached("n1".into()));
        facts.virtual_volume = outer(false, false, Holder::Gone);
        assert_eq!(
            release_step(&facts),
            ReleaseStep::RetainVirtual,
            "another client changed it"
        );
    }

    #[test]
    fn a_release_rolls_back_if_the_mark_of_the_twin_was_removed() {
        let there = || outer(false, false, BOUND);
        let facts = |twin| facts(VIRTUAL, there(), twin, Holder::Twin { deleting: false });
        assert_eq!(
            release_step(&facts(UNMARKED)),
            ReleaseStep::RollBack(Interruption::Unmarked)
        );
        let touched = TwinNow::Exists {
            releasing: true,
            touched: true,
            deleting: false,
        };
        assert_eq!(release_step(&facts(touched)), ReleaseStep::MarkTwin);
    }

    #[test]
    fn a_twin_is_kept_while_its_volume_is_being_deleted() {
        let twins = Holder::Twin { deleting: false };
        let mut facts = facts(ReleasedClaim::Absent, VirtualNow::Absent, MARKED, twins);
        assert_eq!(release_step(&facts), ReleaseStep::DeleteTwin);
        facts.attached = Some("n1".into());
        assert_eq!(release_step(&facts), ReleaseStep::AwaitDetached("n1".into()));
        facts.attached = None;
        facts.leaving = true;
        assert_eq!(
            release_step(&facts),
            ReleaseStep::RollBack(Interruption::VolumeLeaves)
        );
    }

    #[test]
    fn a_claim_created_by_others_gets_the_released_volume_only_if_it_matches() {
        let step = |claim, holder| {
            let gone = (VirtualNow::Absent, TwinNow::Absent);
            release_step(&facts(claim, gone.0, gone.1, holder))
        };
        let free = |claim| step(claim, Holder::Gone);
        assert_eq!(free(other(false, MatchingVolume::Real)), ReleaseStep::GiveReal);
        assert_eq!(
            step(other(false, MatchingVolume::Real), NAMED),
            ReleaseStep::AwaitBound
        );
        for asks in [MatchingVolume::Virtual, MatchingVolume::Neither] {
            let expected = ReleaseStep::RollBack(Interruption::NameTaken);
            assert_eq!(free(other(false, asks)), expected, "{asks:?}");
        }
        assert_eq!(
            free(other(true, MatchingVolume::Real)),
            ReleaseStep::Refuse(ReleaseRefusal::NameTaken)
        );
    }

    #[test]
    fn a_release_that_is_being_undone_stops_unless_the_undo_is_too_late() {
        let mut facts = facts(VIRTUAL, VirtualNow::Absent, TwinNow::Absent, BOUND);
        facts.progress = ReleaseProgress::Back;
        assert_eq!(release_step(&facts), ReleaseStep::Refuse(ReleaseRefusal::Undoing));
        facts.claim = real(true);
        assert_eq!(release_step(&facts), ReleaseStep::Settle);
    }

    proptest! {
        #[test]
        fn nothing_is_deleted_before_the_data_of_a_release_is_retained(
            claim in select(vec![
                ReleasedClaim::Absent, VIRTUAL, real(false), real(true),
                other(false, MatchingVolume::Real), other(false, MatchingVolume::Neither), other(true, MatchingVolume::Real),
            ]),
            progress in select(vec![ReleaseProgress::NotRecorded, ReleaseProgress::Onward, ReleaseProgress::Back]),
            there in select(vec![
                VirtualNow::Absent, outer(false, false, BOUND), outer(true, false, Holder::Gone),
                outer(true, true, Holder::Gone),
            ]),
            twin in select(vec![TwinNow::Absent, UNMARKED, MARKED, DELETING]),
            holder in select(vec![Holder::Gone, NAMED, BOUND, Holder::Twin { deleting: false }]),
            secured: bool,
            blocked: bool,
            leaving: bool,
            attached: bool,
        ) {
            let mut facts = facts(claim.clone(), there.clone(), twin, holder);
            facts.progress = progress;
            facts.secured = secured;
            facts.leaving = leaving;
            facts.attached = attached.then(|| "n1".to_owned());
            facts.obstacles = if blocked { pod() } else { Vec::new() };
            let step = release_step(&facts);
            let deletes = [ReleaseStep::DeleteClaim, ReleaseStep::DeleteVirtual, ReleaseStep::DeleteTwin];
            if deletes.contains(&step) {
                prop_assert!(secured, "the real PV is retained");
                prop_assert_ne!(progress, ReleaseProgress::NotRecorded);
                let retained = !matches!(there, VirtualNow::Exists { retained: false, .. });
                prop_assert!(retained, "so is the virtual one");
                prop_assert_ne!(twin, UNMARKED, "the driver does not touch the twin");
            }
            if step == ReleaseStep::DeleteClaim {
                prop_assert!(!blocked);
            }
            if step == ReleaseStep::DeleteTwin {
                prop_assert_eq!(twin, MARKED);
                prop_assert_eq!(there, VirtualNow::Absent);
                prop_assert!(!leaving, "the real PV would be deleted with it");
                prop_assert!(!attached);
            }
            // Otherwise the next claim of that name would get the data.
            if step == ReleaseStep::GiveReal {
                prop_assert_ne!(&claim, &ReleasedClaim::Absent);
                prop_assert!(!attached);
            }
            if step == ReleaseStep::Settle {
                prop_assert_eq!(claim, real(true));
                prop_assert_eq!(twin, TwinNow::Absent);
            }
        }
    }
}
