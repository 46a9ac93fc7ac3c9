//! The status of a move as far as decisions are based on it: its stage, and the requests of its user.

use super::AsRead;
use crate::volume::moving::{GateNumber, MoveUid, Phase};

/// The facts about a move, read after those about its claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveFacts {
    pub at: AsRead,
    pub uid: MoveUid,
    pub stage: Stage,
    pub finalizer: bool,
    pub deleting: bool,
    pub requested: Requested,
    /// What blocks the move; `None` before the preflight has completed.
    pub obstacles: Option<Vec<String>>,
    /// Which deadlines have passed.
    pub overdue: OverDue,
}

/// The stage of a move. Each change is one write, which fails if the status was changed meanwhile; a later
/// stage therefore implies that the earlier ones were completed *for this gate*.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Step 1: the preflight runs, and the claims are being locked.
    Checking,
    /// Step 2: target twins, temporary PVs and movers are being created.
    Preparing,
    /// Step 3: data is copied while pods use the volumes.
    Copying {
        /// The last gate, if there was one.
        last: Option<GateNumber>,
    },
    /// Step 4: the PVs are being gated.
    Gating(GateNumber),
    /// Step 5: all PVs are gated, pods and nodes release the volumes.
    Draining(GateNumber),
    /// Step 6: all volumes are drained, the last pass runs.
    Finishing(GateNumber),
    /// Step 7: the last pass is complete, both sides are being compared.
    Verifying(GateNumber),
    /// The gates are being removed.
    Rollback {
        gate: Option<GateNumber>,
        to: RollbackTo,
        why: RollbackReason,
    },
    /// Step 8, the commit, was written; steps 9 to 11 follow.
    Committed(GateNumber),
    /// Step 12: the source is kept for `retainSource`.
    Retaining(GateNumber),
    /// The target was lost after the commit: the source is being recovered, under this gate.
    Recovering(GateNumber),
    Ended(Outcome),
}

/// How far a move is rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RollbackTo {
    /// To copying: the cut-over will be tried again.
    Copying,
    /// To the state before the move.
    Start,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The volumes are at the target.
    Done,
    /// It was cancelled; the volumes are at the source.
    Cancelled,
    /// It failed; the volumes are at the source, or both copies were kept.
    Failed,
    /// It failed, because a volume at the source was lost before the commit. The copies of lost volumes are kept
    /// until the `VolumeMove` is deleted.
    SourceGone,
    /// The target was lost after the commit; the volumes are at the source, as they were at the commit.
    Recovered,
}

/// Why a move is rolled back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RollbackReason {
    /// The user cancelled or deleted it.
    #[error("it was cancelled")]
    Cancelled,
    /// The preflight, or a later step, found something that blocks the move.
    #[error("{}", crate::placement::lines(.0))]
    Refused(Vec<String>),
    #[error("a claim was deleted")]
    ClaimDeleted,
    #[error("a claim is being moved by the VolumeMove with the uid {0}")]
    Locked(MoveUid),
    #[error("the PersistentVolume {0}")]
    Volume(VolumeFault),
    /// The PV is not recorded in the status, so it could not be created again if it were gated.
    #[error("the PersistentVolume is not recorded in the status")]
    NotRecorded,
    #[error("the size or the attributes of a claim are being changed")]
    Changing,
    /// A pod started before the gate was closed.
    #[error("pods use a claim: {0:?}")]
    InUse(Vec<String>),
    #[error("the gate of a claim was opened by another client")]
    GateOpen,
    /// The twin, and no PV with its data is retained.
    #[error(
        "a volume at the source does not exist any more. What was copied of it may be incomplete, and is kept until the VolumeMove is \
         deleted"
    )]
    SourceGone,
    #[error("the target does not exist any more")]
    TargetGone,
    /// Another claim has the name of the target twin.
    #[error("the name of the new twin is taken: {0}")]
    InTheWay(String),
    #[error("both sides differ after the last pass: {0}")]
    Differs(String),
    /// The pods did not stop before the deadline.
    #[error("the pods and nodes of a claim did not release it in time")]
    DrainOverdue,
    /// The volumes could not be used for too long.
    #[error("the volumes could not be used for longer than allowed")]
    DowntimeOverdue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeFault {
    #[error("does not exist")]
    Gone,
    /// Its handle refers to another twin.
    #[error("is not that of the source")]
    NotTheSource,
    #[error("is being deleted")]
    Deleting,
    /// Its `claimRef` names another object, or none.
    #[error("does not name the claim")]
    NotTheClaims,
    /// A late write of an earlier gate has gated it.
    #[error("was gated by a late write")]
    GatedLate,
    #[error("refers to a superseded twin")]
    MovedOn,
}

/// What the user of a move requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub struct Requested {
    /// Roll the move back.
    pub cancel: bool,
    /// Recover the source if the target is lost after the commit.
    pub recover: bool,
    /// Start nothing new. It is ignored while a gate is closed.
    pub paused: bool,
    /// Start the cut-over now: at the request of the user, or automatically once enough is copied, but not
    /// directly after a cut-over that failed.
    pub cutover: bool,
    pub quiesce: Quiesce,
}

/// How pods stop using a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quiesce {
    /// The move waits until the user has stopped them, and gates nothing before.
    Wait,
    /// The move evicts them.
    Evict,
}

/// Which deadlines have passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverDue {
    /// The deadline of the drain, counted from the gate.
    pub drain: bool,
    /// The deadline of the downtime, counted from the drain.
    pub downtime: bool,
    /// The retention of the old copy.
    pub retention: bool,
}

impl Stage {
    /// The gate that is closed, or being closed or opened, in this stage.
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
            Self::Rollback { gate, .. } => *gate,
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

    /// Whether the move was committed: the volumes are at the target, or were before it was lost.
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

    /// The phase in the status. `ready` means that everything is copied and only the cut-over is missing.
    #[must_use]
    pub fn phase(&self, ready: bool) -> Phase {
        match self {
            Self::Checking => Phase::Checking,
            Self::Preparing => Phase::Preparing,
            Self::Copying { .. } if ready => Phase::Ready,
            Self::Copying { .. } => Phase::Copying,
            Self::Gating(_) | Self::Draining(_) => Phase::Draining,
            Self::Finishing(_) | Self::Verifying(_) => Phase::Finishing,
            Self::Rollback { .. } => Phase::Returning,
            Self::Committed(_) => Phase::Committing,
            Self::Retaining(_) => Phase::Retaining,
            Self::Recovering(_) => Phase::Recovering,
            Self::Ended(Outcome::Done) => Phase::Done,
            Self::Ended(Outcome::Cancelled) => Phase::Cancelled,
            Self::Ended(Outcome::Failed | Outcome::SourceGone) => Phase::Failed,
            Self::Ended(Outcome::Recovered) => Phase::Recovered,
        }
    }
}
