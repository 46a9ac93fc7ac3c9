//! What a move does to one claim's objects, and what it waits for. A step that changes an object
//! names the version of it that the decision rests on, a step that makes one is refused where
//! something is, and a step of the movers names its gate.

use std::fmt;

use super::{AsRead, Pass};
use crate::volume::{
    ReclaimPolicy,
    moving::{GateNote, MoveUid, SourceMark, TargetMark, Touch, VolumeMark},
};

/// One of the two sides of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Where the volume was.
    Source,
    /// Where it is to be.
    Target,
}

impl Side {
    /// In a word.
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

/// The next step for one claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimStep {
    /// Put the annotation and the finalizer of this move on the claim.
    Lock {
        /// The claim.
        claim: AsRead,
        /// The move.
        by: MoveUid,
    },
    /// Take them off.
    Unlock {
        /// The claim.
        claim: AsRead,
    },
    /// Write this on the claim, so that Kubernetes looks at it.
    Touch {
        /// The claim.
        claim: AsRead,
        /// What for.
        touch: Touch,
    },
    /// Make the twin at the target, with this mark and not handed over, where nothing is.
    MakeTarget {
        /// The mark.
        mark: TargetMark,
    },
    /// Make what is missing of temporary PVs (retained, marked), Secrets and movers.
    MakeHelpers(Side),
    /// Delete these.
    RemoveHelpers(Side),
    /// Have the movers begin a pass. They refuse one for an earlier gate than they have heard of.
    StartPass(Pass),
    /// Ask for the eviction of these pods.
    Evict(Vec<String>),
    /// Gate the PV, in one write: Retain, the uid of the move in `claimRef`, our finalizer, this
    /// note.
    Gate {
        /// The PV.
        volume: AsRead,
        /// The note.
        note: GateNote,
    },
    /// Write this on the twin at the source.
    MarkSource {
        /// The twin.
        source: AsRead,
        /// What.
        mark: SourceMark,
    },
    /// Have the PV name its claim again, by the uid in the note, and change nothing else: retained
    /// as it is, nobody deletes its volume should the claim be gone.
    GiveBack {
        /// The PV.
        volume: AsRead,
        /// The note.
        note: GateNote,
    },
    /// Give the PV its reclaim policy, replace the note by this mark, take our finalizer off.
    RestorePolicy {
        /// The PV.
        volume: AsRead,
        /// The policy.
        policy: ReclaimPolicy,
        /// The mark.
        mark: VolumeMark,
    },
    /// Write this mark on a PV that was not gated, so that a leader that still wants to gate it
    /// has an older version.
    RefuseGate {
        /// The PV.
        volume: AsRead,
        /// The mark.
        mark: VolumeMark,
    },
    /// Set the PV to Retain again.
    Retain {
        /// The PV.
        volume: AsRead,
    },
    /// Delete the PV: the object only, for it is retained, and no attachment names it.
    DeleteVolume {
        /// The PV.
        volume: AsRead,
    },
    /// Take its finalizers off a PV that is being deleted and that no attachment names.
    LetVolumeGo {
        /// The PV.
        volume: AsRead,
    },
    /// Make the PV of this side again from the manifest in the status, with this note, where
    /// nothing is.
    MakeVolume {
        /// Whose.
        of: Side,
        /// The note.
        note: GateNote,
    },
    /// Set the real PV of the target's twin to Retain.
    RetainTarget {
        /// The twin.
        target: AsRead,
    },
    /// Delete the twin that this move has made and not handed over.
    DeleteTarget {
        /// The twin.
        target: AsRead,
    },
    /// Take the mark of the move off the twin, and mark it as handed over.
    HandOver {
        /// The twin.
        target: AsRead,
        /// Whether its real PV is to be retained, as the user wants it.
        retain: bool,
    },
    /// After the commit, give the superseded twin the epoch after the target's, and remove its mark.
    /// This may take several writes, each of them with this step.
    RecoverSource {
        /// The twin.
        source: AsRead,
        /// The final reclaim policy of its volume.
        policy: ReclaimPolicy,
    },
    /// Mark the twin at the target as superseded by the recovered source.
    SupersedeTarget {
        /// The twin.
        target: AsRead,
    },
    /// Delete the superseded twin; its data goes if this is the policy.
    ReleaseSource {
        /// The twin.
        source: AsRead,
        /// The policy.
        policy: ReclaimPolicy,
    },
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Waiting {
    /// A cluster.
    #[error("at the {0}: {1}")]
    Silent(Side, String),
    /// The volume at the source.
    #[error("the volume at the source is gone: it can come back, or the move can be cancelled")]
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
    /// For the user to accept a possible loss.
    #[error(
        "{0}. Add LiveWrites to spec.acceptLoss of the VolumeMove (--accept-loss live of liqo-csi move volume), or grant the driver \
         these rights there"
    )]
    Consent(String),
    /// A resize or a modification.
    #[error("the size or the attributes of the claim are being changed")]
    Changing,
    /// A pass of the movers.
    #[error("{0}")]
    Pass(Pass),
    /// The helpers of a side are to be gone.
    #[error("the mover of the {0} and its objects are being deleted")]
    HelpersGone(Side),
    /// The twin of a side is to be gone.
    #[error("the twin at the {0} is being deleted")]
    TwinGone(Side),
    /// The twin at the target is to have the name of the claim.
    #[error("the new twin takes over the name of the claim: {0}")]
    TakesName(String),
    /// Kubernetes is to say that the claim is Lost.
    #[error("Kubernetes is to call the claim Lost")]
    Lost,
    /// Kubernetes is to bind claim and PV.
    #[error("Kubernetes is to bind the claim")]
    Bound,
    /// The claim is to be gone.
    #[error("the claim is being deleted")]
    ClaimGone,
    /// The PV is to be detached from these nodes.
    #[error("the PersistentVolume is attached to {}", .0.join(", "))]
    Detached(Vec<String>),
    /// Somebody else has the PV, or its name.
    #[error("the PersistentVolume belongs to {0}; nothing is done to it")]
    VolumeTaken(String),
    /// The status has no manifest of a PV that is gone.
    #[error("the PersistentVolume is gone, and there is no record from which it could be made again")]
    NoManifest,
    /// The time for which a copy is kept.
    #[error("the source is kept for a time")]
    Retention,
    /// The time for which both copies are kept, because the claim was deleted during the move.
    #[error("the claim was deleted while Kubernetes called it Lost: both copies are kept for a time")]
    BothKept,
    /// It is not known yet what speaks against the move.
    #[error("it is being looked at what speaks against the move")]
    Preflight,
    /// The user has paused the move.
    #[error("it is paused")]
    Paused,
    /// All is copied; the cut-over has not been asked for.
    #[error("nothing is left to copy before the cut-over, which is waited for")]
    CutOver,
    /// The move is gone and has come to nothing or to its end, and this is left of it.
    #[error(
        "the VolumeMove is gone after its commit: the volume is at the target, and what is left is not touched"
    )]
    CommittedWithoutMove,
}
