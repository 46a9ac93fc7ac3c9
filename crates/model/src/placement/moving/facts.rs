//! What there is of one claim that is being moved: the claim, its PV, both twins, who uses them,
//! and how far the copy is. Read live, and before the status of the move.

use std::fmt;

use crate::volume::{
    Epoch, ReclaimPolicy,
    moving::{GateNumber, MoveUid, SourceMark, Touch, VolumeMark},
};

use super::Users;

/// An object in exactly the version that was read. A write names both, and is refused when the
/// object was changed, or deleted and made again, meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AsRead {
    uid: String,
    version: String,
}

impl AsRead {
    /// Of this uid, in this `resourceVersion`.
    #[must_use]
    pub fn new(uid: String, version: String) -> Self {
        Self { uid, version }
    }

    /// The uid that the object must have.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// The `resourceVersion` that the object must have.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }
}

/// What a cluster says, if it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Live<T> {
    /// It does not answer, or this may not be read there, for this reason. It is never taken for
    /// an absence.
    Silent(String),
    /// It says this.
    Known(T),
}

impl<T> Live<T> {
    /// What it says, if it answers.
    #[must_use]
    pub fn as_known(&self) -> Option<&T> {
        match self {
            Self::Known(said) => Some(said),
            Self::Silent(_) => None,
        }
    }
}

/// The facts of one claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimFacts {
    /// The claim of the uid that is being moved.
    pub claim: ClaimNow,
    /// What has the name of its PV.
    pub volume: VolumeNow,
    /// The twin that it has, or had, at the source.
    pub source: Live<SourceTwin>,
    /// The twin that it is to have at the target.
    pub target: Live<TargetTwin>,
    /// Whether an administrator declared the cluster of the target out of service, and its nodes are not ready.
    pub target_off: bool,
    /// Whether both twins are in one namespace of a remote cluster: there the source has no claim after the
    /// commit.
    pub within: bool,
    /// The epoch that the volume has, or is to have, at the target.
    pub epoch: Epoch,
    /// Temporary PVs, Secrets, movers and their attachments at the source.
    pub source_helpers: Live<Helpers>,
    /// The same at the target.
    pub target_helpers: Live<Helpers>,
    /// Who uses the volume.
    pub users: Live<Users>,
    /// Why the driver may not detect writers at the source, unless the user accepts that.
    pub unwatched: Option<String>,
    /// How far the copy is.
    pub copied: Live<Copied>,
    /// What the status of the move has recorded of it, since before the first gate.
    pub recorded: Option<Recorded>,
}

/// The claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimNow {
    /// It is gone. A claim of that name with another uid is somebody else's.
    Absent,
    /// It is there.
    There {
        /// Its version.
        at: AsRead,
        /// Whether it is being deleted; our finalizer holds it.
        deleting: bool,
        /// Whose lock is on it.
        lock: Lock,
        /// Whether Kubernetes says that it is Lost: no pod with it is started any more.
        lost: bool,
        /// For what it was last touched.
        touched: Option<Touch>,
        /// Whether its size or its attributes are being changed, or it has less than it asks for.
        changing: bool,
    },
}

/// The lock on a claim: annotation and finalizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lock {
    /// There is none.
    Free,
    /// This move's.
    Ours,
    /// That of another move.
    Theirs {
        /// Its uid.
        by: MoveUid,
        /// Whether there is a move of that uid.
        counts: bool,
    },
}

/// What has the name of the claim's PV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeNow {
    /// Nothing.
    Absent,
    /// A PV.
    There(VirtualVolume),
}

/// A virtual PV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualVolume {
    /// Its version.
    pub at: AsRead,
    /// What its handle leads to.
    pub serves: Serves,
    /// Whom its `claimRef` names.
    pub held_by: HeldBy,
    /// What a move has written on it.
    pub mark: Option<VolumeMark>,
    /// Its reclaim policy.
    pub policy: ReclaimPolicy,
    /// Whether Kubernetes says that it is Bound.
    pub bound: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// The nodes for which a `VolumeAttachment` names it: csi-attacher needs it to detach.
    pub attached: Vec<String>,
}

/// What the handle of a PV leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Serves {
    /// The source.
    Source,
    /// The target, in the epoch of this move.
    Target,
    /// The source, in the epoch after the target's: it was recovered after the commit.
    Recovered,
    /// A later epoch of the volume: another move has taken it further.
    Later,
    /// Something else, by this handle.
    Else(String),
}

/// Whom a PV names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeldBy {
    /// The claim, by its uid.
    Claim,
    /// This move: the claim's name with the uid of the move.
    Move,
    /// Somebody else.
    Else(String),
}

/// The twin at the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceTwin {
    /// It is gone for good, or its cluster is.
    Gone,
    /// It is there.
    There {
        /// Its version.
        at: AsRead,
        /// What it says about moves.
        mark: Option<SourceMark>,
        /// Whether it is being deleted.
        deleting: bool,
    },
    /// It exists in the epoch after the target's: it was recovered after the commit.
    Recovered,
}

/// What is in the place of the twin at the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetTwin {
    /// The cluster is gone for good.
    Gone,
    /// Nothing.
    Absent,
    /// Something that this move has not made.
    Foreign(String),
    /// It takes over the name of the claim, which the source had, and this is waited for.
    TakesName(String),
    /// It was lost, exists again, and is marked as superseded: the volume is at the source.
    Superseded,
    /// The twin of this move and this epoch.
    There {
        /// Its version.
        at: AsRead,
        /// Whether it is handed over.
        handed_over: bool,
        /// Whether its real PV's reclaim policy is Retain.
        retained: bool,
        /// Whether it is being deleted.
        deleting: bool,
    },
}

/// What a move needs beside the twins, on one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Helpers {
    /// Nothing of it is there.
    Absent,
    /// Some of it is missing.
    Incomplete,
    /// All of it is there, and the mover answers.
    Ready,
    /// It is being deleted.
    Leaving,
}

/// A pass of the movers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// One beside the users.
    Warm,
    /// The last one, under this gate.
    Final(GateNumber),
    /// A comparison of both sides, under this gate.
    Verify(GateNumber),
    /// None any more: the target's volume is left as the source's is, without the journal. After the
    /// commit of this gate; before that, a move that goes back would have to read all of it again.
    Finish(GateNumber),
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warm => "the data is being copied",
            Self::Final(_) => "what is left is being copied",
            Self::Verify(_) => "both sides are being compared",
            Self::Finish(_) => "the journal is being taken off the new volume",
        })
    }
}

/// How far the copy is, as the movers say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// The pass that is under way.
    pub running: Option<Pass>,
    /// Whether the last warm pass found little.
    pub converged: bool,
    /// The gate under which the last pass has come to its end.
    pub finished: Option<GateNumber>,
    /// The gate under which both sides were compared, and what came out.
    pub compared: Option<(GateNumber, Roots)>,
    /// The gate after whose commit the journal was taken off the target's volume.
    pub journal_off: Option<GateNumber>,
    /// Why the target can never have what the source has, or never be as large as the claim asks.
    pub too_small: Option<String>,
}

/// What the comparison of both sides says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roots {
    /// They hold the same.
    Equal,
    /// They differ here.
    Differ(String),
}

/// What the status has recorded of a claim. With it the manifest of its PV is there too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The reclaim policy that the PV had before it was gated.
    pub policy: ReclaimPolicy,
    /// The uid of the claim.
    pub claim_uid: String,
}

impl ClaimFacts {
    /// What the gate of this move has taken from the PV, if it does not have it back.
    pub(super) fn note_of(&self, by: &MoveUid) -> Option<&crate::volume::moving::GateNote> {
        let VolumeNow::There(volume) = &self.volume else {
            return None;
        };
        let note = volume.mark.as_ref().and_then(VolumeMark::note);
        note.filter(|note| note.by == *by)
    }

    /// Whether somebody has deleted the claim and its data is still here, retained: both copies
    /// are kept, for a claim that Kubernetes called Lost is deleted by people who take its data
    /// for lost.
    pub(super) fn is_kept(&self, by: &MoveUid) -> bool {
        self.claim == ClaimNow::Absent && self.note_of(by).is_some()
    }
}
