//! The steps of a move for one claim, and what it waits for. A step that changes an object names the version
//! in the decision, a step that creates one fails if it exists, and a step of the movers names its gate.

use std::fmt;

use super::{AsRead, Pass};
use crate::volume::{
    ReclaimPolicy, mark,
    moving::{GateNote, MoveUid, SourceMark, TargetMark, Touch, VolumeMark},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Source,
    Target,
}

impl Side {
    /// `source` or `target`, for labels and messages.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Target => "target",
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimStep {
    /// Add annotation and finalizer of this move to the claim.
    Lock { claim: AsRead, by: MoveUid },
    /// Remove them.
    Unlock { claim: AsRead },
    /// Write this annotation on the claim, so that Kubernetes reconciles it.
    Touch { claim: AsRead, touch: Touch },
    /// Create the twin at the target, with this mark and not handed over, if it does not exist.
    MakeTarget { mark: TargetMark },
    /// Create missing temporary PVs (retained, marked), Secrets and movers.
    MakeHelpers(Side),
    /// Delete them.
    RemoveHelpers(Side),
    /// Delete the mover of the source, which is created again in this move. Its PV stays.
    PauseSource,
    /// Order a pass from the movers. They reject a pass for an earlier gate than the highest they know.
    StartPass(Pass),
    /// Evict these pods.
    Evict(Vec<String>),
    /// Gate the PV, in one write: Retain, the uid of the move in `claimRef`, our finalizer, this note.
    Gate { volume: AsRead, note: GateNote },
    /// Write this mark on the source twin.
    MarkSource { source: AsRead, mark: SourceMark },
    /// Restore the uid of the claim in the PV, from the note, and nothing else: the PV stays retained, so
    /// that its volume is not deleted if the claim does not exist any more.
    RestoreClaimRef { volume: AsRead, note: GateNote },
    /// Restore the reclaim policy of the PV, replace the note by this mark, and remove our finalizer.
    RestorePolicy {
        volume: AsRead,
        policy: ReclaimPolicy,
        mark: VolumeMark,
    },
    /// Write this mark on a PV that is not gated, so that a late gate write of an old leader fails with its
    /// older version.
    RefuseGate { volume: AsRead, mark: VolumeMark },
    /// Set the PV to Retain again.
    Retain { volume: AsRead },
    /// Delete the PV object: it is retained, and no attachment names it.
    DeleteVolume { volume: AsRead },
    /// Remove the finalizers of a PV that is being deleted and that no attachment names.
    RemoveVolumeFinalizers { volume: AsRead },
    /// Create the PV of this side again from the manifest in the status, with this note, if it does not
    /// exist.
    MakeVolume { of: Side, note: GateNote },
    /// Set the real PV of the target twin to Retain.
    RetainTarget { target: AsRead },
    /// Delete the twin that this move has created and not handed over.
    DeleteTarget { target: AsRead },
    /// Remove the mark of the move from the twin, and mark it as handed over.
    HandOver {
        target: AsRead,
        /// Whether its real PV has the policy Retain afterwards, as the user wants.
        retain: bool,
    },
    /// After the commit, give the superseded twin the epoch after the target's, and remove its mark.
    /// This may take several writes, each of them with this step.
    RecoverSource {
        source: AsRead,
        /// The final reclaim policy of its volume.
        policy: ReclaimPolicy,
    },
    /// Mark the twin at the target as superseded by the recovered source.
    SupersedeTarget {
        /// The twin.
        target: AsRead,
    },
    /// Delete the superseded twin; with the policy Delete also its data.
    ReleaseSource { source: AsRead, policy: ReclaimPolicy },
    /// Take this step in the cluster of a remote source: the claim is its twin, the PV that of the twin. To gate
    /// it, the claim of the mover is created if it does not exist, and the PV names that claim. A policy Retain that
    /// it did not have before the gate replaces the one before, which is recorded as for every twin.
    There(Box<ClaimStep>),
    /// Delete the claim of the mover in the cluster of a remote source, whose PV does not name it.
    RemoveMoverClaim { claim: AsRead },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Waiting {
    /// A cluster, or an object in it, at this side.
    #[error("at the {0}: {1}")]
    Unknown(Side, String),
    #[error(
        "the claim at the source does not exist or is not bound. The move continues when it is bound, and can be cancelled"
    )]
    SourceGone,
    /// The twin at the target, after the commit.
    #[error(
        "the new twin does not exist or is not usable. If it is lost permanently, liqo-csi move recover-source recovers the \
         source as it was at the commit: what was written since then is lost"
    )]
    TargetGone,
    /// Why the requested recovery of the source is not possible.
    #[error("the source is not recovered: {0}")]
    NotRecovered(String),
    /// Pods, or nodes that still have the volume.
    #[error("used by {}", .0.join(", "))]
    Users(Vec<String>),
    /// Why pods cannot be evicted.
    #[error("the pods cannot be evicted yet: {}", .0.join("; "))]
    NotEvicted(Vec<String>),
    /// The user has to accept a possible loss.
    #[error(
        "{0}. Add LiveWrites to spec.acceptLoss of the VolumeMove (--accept-loss live of liqo-csi move volume), or grant the driver \
         these rights there"
    )]
    Consent(String),
    /// The user has to accept that these snapshots stay at the source.
    #[error("{}", .0.join("; "))]
    Snapshots(Vec<String>),
    #[error("the size or the attributes of the claim are being changed")]
    Changing,
    #[error("{0}")]
    Pass(Pass),
    #[error("the mover of the {0} and its objects are being deleted")]
    HelpersGone(Side),
    #[error("the twin at the {0} is being deleted")]
    TwinGone(Side),
    /// The target twin takes over the name of the claim.
    #[error("the new twin takes over the name of the claim: {0}")]
    TakesName(String),
    #[error("waiting for Kubernetes to set the claim to Lost")]
    Lost,
    #[error("waiting for Kubernetes to bind the claim")]
    Bound,
    #[error("the claim is being deleted")]
    ClaimGone,
    /// The PV has to be detached from these nodes.
    #[error("the PersistentVolume is attached to {}", .0.join(", "))]
    Detached(Vec<String>),
    /// Another object has the PV, or its name.
    #[error("the PersistentVolume belongs to {0}, and is not changed")]
    VolumeTaken(String),
    #[error("the PersistentVolume does not exist, and there is no record from which to create it again")]
    NoManifest,
    #[error("the source is kept until retainSource ends")]
    Retention,
    /// Both copies are kept for `retainSource`, because the claim was deleted during the move.
    #[error("the claim was deleted while it was Lost: both copies are kept until retainSource ends")]
    BothKept,
    /// The preflight has no result yet.
    #[error("preflight checks are running")]
    Preflight,
    #[error("the move is paused")]
    Paused,
    /// Everything is copied, but the cut-over was not requested.
    #[error("nothing is left to copy before the cut-over: waiting for it to be requested")]
    CutOver,
    /// The target twin has the marks from before it was handed over. It is not known whether its volume is the right one.
    #[error(
        "the volume is at the target, and its twin there is marked as not handed over, as in a cluster that was restored from a \
         backup of before the commit: no pod gets it. If its PersistentVolume has the data, annotate the twin with {}=true, and \
         then remove its label {}",
        mark::HANDED_OVER,
        mark::MOVE
    )]
    MarkedAgain,
    /// The `VolumeMove` was deleted, and some of its objects are left.
    #[error(
        "the VolumeMove was deleted after its commit: the volume is at the target, and the remaining objects are not changed"
    )]
    CommittedWithoutMove,
}
