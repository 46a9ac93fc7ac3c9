//! Whose turn is it in `DeleteVolume`? The twin goes at once, but the volume is
//! deleted only when the twin's PV is gone: deleting the data behind it may fail
//! for hours, and whoever hears "deleted" forgets about it.
//!
//! ```text
//!  twin there ──DeleteTwin──▶ twin deleting ──AwaitTwin──▶ twin gone
//!                                                             │
//!      PV gone, or Released and retained ──▶ Done ◀───────────┤
//!      PV only reserved for it ──Unclaim──▶ Done              │
//!      PV retained by a rescue ──GiveBack──▶ AwaitVolume      │
//!      PV still there ──AwaitVolume───────────────────────────┘
//!  anything that cannot be read ──▶ Unavailable, never Done
//! ```

use crate::volume::Foreign;

/// Everything the decision rests on, all of it read live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteFacts {
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
    /// It cannot be told, for this reason.
    Unknown(String),
    /// Nothing.
    Absent,
    /// Something that is not ours.
    Foreign(Foreign),
    /// The twin.
    Ours {
        /// Whether it has a deletion timestamp.
        deleting: bool,
    },
}

/// The PV of the twin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TwinVolume {
    /// It cannot be told, for this reason.
    Unknown(String),
    /// There is none.
    Absent,
    /// This one was reserved for the twin but never bound.
    Reserved(String),
    /// This one is retained only because its data was rescued for a volume that is
    /// to be deleted now.
    Rescued(String),
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
    /// Give this PV the reclaim policy it had before its data was rescued.
    GiveBack(String),
    /// Answer success.
    Done,
    /// Answer that it cannot be told now, for this reason.
    Unavailable(String),
    /// Answer that it must not be deleted.
    Refuse(DeleteRefusal),
}

/// Why a volume is not deleted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeleteRefusal {
    /// Something else is in the twin's place.
    #[error("the twin's place is taken by an object that is not ours: {0}. It is left alone")]
    Foreign(Foreign),
    /// It is in use.
    #[error("the volume is still attached to the node {0}")]
    Attached(String),
}

/// Decides the next step of `DeleteVolume`.
#[must_use]
pub fn delete_step(facts: &DeleteFacts) -> DeleteStep {
    if let Some(node) = &facts.attached {
        return DeleteStep::Refuse(DeleteRefusal::Attached(node.clone()));
    }
    match &facts.twin {
        DeleteTwin::Unknown(reason) => DeleteStep::Unavailable(reason.clone()),
        DeleteTwin::Foreign(foreign) => DeleteStep::Refuse(DeleteRefusal::Foreign(foreign.clone())),
        DeleteTwin::Ours { deleting: false } => DeleteStep::DeleteTwin,
        DeleteTwin::Ours { deleting: true } => DeleteStep::AwaitTwin,
        DeleteTwin::Absent => without_twin(&facts.volume),
    }
}

/// What is left to do about the PV of a twin that is gone.
#[must_use]
pub fn without_twin(volume: &TwinVolume) -> DeleteStep {
    match volume {
        TwinVolume::Unknown(reason) => DeleteStep::Unavailable(reason.clone()),
        TwinVolume::Reserved(name) => DeleteStep::Unclaim(name.clone()),
        TwinVolume::Rescued(name) => DeleteStep::GiveBack(name.clone()),
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
            twin,
            volume,
            attached: None,
        })
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
    fn what_was_retained_to_rescue_it_is_deleted_all_the_same() {
        let step = decide(DeleteTwin::Absent, TwinVolume::Rescued("pv".into()));
        assert_eq!(step, DeleteStep::GiveBack("pv".into()));
    }

    #[test]
    fn foreign_or_attached_volumes_are_left_alone() {
        let foreign = DeleteTwin::Foreign(Foreign::OtherClaim("x".into()));
        assert!(matches!(
            decide(foreign, TwinVolume::Absent),
            DeleteStep::Refuse(DeleteRefusal::Foreign(_))
        ));
        let attached = DeleteFacts {
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
                DeleteTwin::Unknown("down".into()),
                DeleteTwin::Absent,
                DeleteTwin::Foreign(Foreign::OtherClaim("x".into())),
                DeleteTwin::Ours { deleting: false },
                DeleteTwin::Ours { deleting: true },
            ]),
            volume in select(vec![
                TwinVolume::Unknown("down".into()),
                TwinVolume::Absent,
                TwinVolume::Reserved("pv".into()),
                TwinVolume::Rescued("pv".into()),
                present(false, false), present(false, true), present(true, false), present(true, true),
            ]),
            attached in select(vec![None, Some("n1".to_owned())]),
        ) {
            let facts = DeleteFacts { twin, volume, attached };
            if delete_step(&facts) == DeleteStep::Done {
                prop_assert_eq!(&facts.twin, &DeleteTwin::Absent);
                prop_assert!(facts.volume == TwinVolume::Absent || facts.volume == present(true, true));
                prop_assert_eq!(facts.attached, None);
            }
        }
    }
}
