//! The status of a move as far as decisions rest on it: its stage, and what its user wishes.

use super::AsRead;
use crate::volume::moving::{GateNumber, MoveUid, Phase};

/// The facts of a move, read after those of its claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveFacts {
    /// The version of the `VolumeMove`.
    pub at: AsRead,
    /// Its uid.
    pub uid: MoveUid,
    /// How far it is.
    pub stage: Stage,
    /// Whether our finalizer is on it.
    pub finalizer: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// What its user wishes.
    pub wishes: Wishes,
    /// What speaks against it; `None` as long as that is not known.
    pub obstacles: Option<Vec<String>>,
    /// What has lasted too long.
    pub overdue: OverDue,
}

/// How far a move is. Each change of it is one write, refused if the status was changed
/// meanwhile; so a later stage also says that an earlier one was completed *for this gate*.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Row 1: what speaks against it is being found, the claims are being locked.
    Checking,
    /// Row 2: target twins, temporary PVs and movers are being made.
    Preparing,
    /// Row 3: data is copied beside the users.
    Copying {
        /// The last gate there was.
        last: Option<GateNumber>,
    },
    /// Row 4: the PVs are being gated.
    Gating(GateNumber),
    /// Row 5: all are gated, the users go.
    Draining(GateNumber),
    /// Row 6: all are drained, the last pass runs.
    Finishing(GateNumber),
    /// Row 7: the last pass is done, both sides are being compared.
    Verifying(GateNumber),
    /// What was gated is being given back.
    Back {
        /// The last gate, if there was one.
        gate: Option<GateNumber>,
        /// How far back.
        to: BackTo,
        /// Why.
        why: Why,
    },
    /// Row 8 was written; rows 9 to 11.
    Committed(GateNumber),
    /// Row 12: the source is kept for a time.
    Retaining(GateNumber),
    /// The target was lost after the commit: the source is being recovered, under this gate.
    Recovering(GateNumber),
    /// It is over.
    Ended(Outcome),
}

/// How far back a move goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackTo {
    /// To the copying beside the users: it is tried again.
    Copying,
    /// To before the move.
    Start,
}

/// How a move has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The volumes are at the target.
    Done,
    /// Somebody cancelled it; they are where they were.
    Cancelled,
    /// It could not be done; they are where they were, or both copies were kept.
    Failed,
    /// The target was lost after the commit; the volumes are at the source, as they were at the commit.
    Recovered,
}

/// Why a move goes back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// Its user wants that, or has deleted it.
    #[error("it was cancelled")]
    Cancelled,
    /// Something speaks against it.
    #[error("{}", crate::placement::lines(.0))]
    Refused(Vec<String>),
    /// The claim is, or is being, deleted.
    #[error("a claim was deleted")]
    ClaimDeleted,
    /// Another move has it.
    #[error("a claim is being moved by the VolumeMove with the uid {0}")]
    Locked(MoveUid),
    /// The PV is not what it should be.
    #[error("the PersistentVolume {0}")]
    Volume(VolumeFault),
    /// Its PV is not in the status: gated, it could not be made again.
    #[error("the PersistentVolume is not recorded in the status")]
    NotRecorded,
    /// It is being resized or modified.
    #[error("the size or the attributes of a claim are being changed")]
    Changing,
    /// A pod has started before the gate was closed.
    #[error("pods use a claim: {0:?}")]
    InUse(Vec<String>),
    /// The gate of a claim is not closed any more.
    #[error("somebody has given a claim its PersistentVolume back")]
    GateOpen,
    /// The source is gone for good.
    #[error("the volume at the source is gone")]
    SourceGone,
    /// The target is gone for good.
    #[error("the target is gone")]
    TargetGone,
    /// Something else is in the place of the target's twin.
    #[error("the place of the new twin is taken: {0}")]
    InTheWay(String),
    /// Both sides differ after the last pass.
    #[error("both sides differ after the last pass: {0}")]
    Differs(String),
    /// The users did not go in time.
    #[error("the users of a claim did not go in time")]
    DrainOverdue,
    /// The users have been away for too long.
    #[error("the users have been away for longer than allowed")]
    DowntimeOverdue,
}

/// What is wrong with the PV of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeFault {
    /// There is none.
    #[error("is gone")]
    Gone,
    /// Its handle leads somewhere else.
    #[error("is not that of the source")]
    NotTheSource,
    /// It is being deleted.
    #[error("is being deleted")]
    Deleting,
    /// It belongs to somebody else, or to nobody.
    #[error("does not name the claim")]
    NotTheClaims,
    /// A write of an earlier gate has come late.
    #[error("was gated late")]
    GatedLate,
    /// The twin that it leads to is superseded.
    #[error("leads to data that has moved on")]
    MovedOn,
}

/// What the user of a move wishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub struct Wishes {
    /// That it be undone.
    pub cancel: bool,
    /// That the source is recovered if the target is lost after the commit.
    pub recover: bool,
    /// That nothing new be begun. It counts as long as no gate is closed.
    pub paused: bool,
    /// That the users be sent away now: on request, or by itself once enough is copied, and not
    /// at once again after that failed.
    pub cutover: bool,
    /// How the users go.
    pub quiesce: Quiesce,
}

/// How the users of a volume go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quiesce {
    /// They are waited for, and nothing is gated as long as there are any.
    Wait,
    /// They are evicted.
    Evict,
}

/// What has lasted too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverDue {
    /// The leaving of the users, since the gate.
    pub drain: bool,
    /// Their absence, since they left.
    pub downtime: bool,
    /// The time for which a copy is kept that is not needed.
    pub retention: bool,
}

impl Stage {
    /// The gate that is closed, or being closed, in this stage.
    #[must_use]
    pub fn gate(&self) -> Option<GateNumber> {
        match self {
            Self::Gating(gate)
            | Self::Draining(gate)
            | Self::Finishing(gate)
            | Self::Verifying(gate)
            | Self::Committed(gate)
            | Self::Retaining(gate)
            | Self::Recovering(gate) => Some(*gate),
            Self::Back { gate, .. } => *gate,
            Self::Checking | Self::Preparing | Self::Copying { .. } | Self::Ended(_) => None,
        }
    }

    /// The last gate that there was, so that the next one has another number.
    #[must_use]
    pub fn last_gate(&self) -> Option<GateNumber> {
        match self {
            Self::Copying { last } => *last,
            _ => self.gate(),
        }
    }

    /// Whether the move was committed: the volumes are at the target, or were until it was lost.
    #[must_use]
    pub fn is_committed(&self) -> bool {
        self.is_recovered()
            || matches!(
                self,
                Self::Committed(_) | Self::Retaining(_) | Self::Ended(Outcome::Done)
            )
    }

    /// Whether the source is being recovered after the commit, or was.
    #[must_use]
    pub fn is_recovered(&self) -> bool {
        matches!(self, Self::Recovering(_) | Self::Ended(Outcome::Recovered))
    }

    /// What people are told. `ready` says that all is copied and only the cut-over is waited for.
    #[must_use]
    pub fn phase(&self, ready: bool) -> Phase {
        match self {
            Self::Checking => Phase::Checking,
            Self::Preparing => Phase::Preparing,
            Self::Copying { .. } if ready => Phase::Ready,
            Self::Copying { .. } => Phase::Copying,
            Self::Gating(_) | Self::Draining(_) => Phase::Draining,
            Self::Finishing(_) | Self::Verifying(_) => Phase::Finishing,
            Self::Back { .. } => Phase::Returning,
            Self::Committed(_) => Phase::Committing,
            Self::Retaining(_) => Phase::Retaining,
            Self::Recovering(_) => Phase::Recovering,
            Self::Ended(Outcome::Done) => Phase::Done,
            Self::Ended(Outcome::Cancelled) => Phase::Cancelled,
            Self::Ended(Outcome::Failed) => Phase::Failed,
            Self::Ended(Outcome::Recovered) => Phase::Recovered,
        }
    }
}
