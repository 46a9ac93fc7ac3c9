//! The state of the objects of one claim that is being moved, of its users, and of the copy. It is read live,
//! and before the status of the move.

use std::fmt;

use crate::volume::{
    Epoch, ReclaimPolicy,
    moving::{GateNote, GateNumber, MoveUid, SourceMark, Touch, VolumeMark},
};

use super::Users;

/// An object in exactly the version that was read. A write names uid and version, and fails if the object was
/// changed or recreated since.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AsRead {
    uid: String,
    version: String,
}

impl AsRead {
    #[must_use]
    pub fn new(uid: String, version: String) -> Self {
        Self { uid, version }
    }

    #[must_use]
    pub fn uid(&self) -> &str {
        &self.uid
    }

    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }
}

/// The result of a live read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Live<T> {
    /// The cluster is unreachable, or the object cannot be read, for this reason. This never counts as
    /// absence.
    Unknown(String),
    Known(T),
}

impl<T> Live<T> {
    #[must_use]
    pub fn as_known(&self) -> Option<&T> {
        match self {
            Self::Known(said) => Some(said),
            Self::Unknown(_) => None,
        }
    }
}

/// The facts about one claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimFacts {
    /// The claim, if it has the uid in the move.
    pub claim: ClaimNow,
    /// The PV with the name of its volume.
    pub volume: VolumeNow,
    pub source: Live<SourceTwin>,
    /// The PV of a remote source, if the driver may change it or a move has gated it.
    pub there: Option<RemoteVolume>,
    pub target: Live<TargetTwin>,
    /// Whether an administrator declared the cluster of the target out of service, and its nodes are not ready.
    pub target_out_of_service: bool,
    /// Whether both twins are in one namespace of a remote cluster: there the source has no claim after the
    /// commit.
    pub same_namespace: bool,
    /// The epoch of the target twin.
    pub epoch: Epoch,
    /// Temporary PVs, Secrets, movers and their attachments at the source.
    pub source_helpers: Live<Helpers>,
    pub target_helpers: Live<Helpers>,
    pub users: Live<Users>,
    /// Why the driver may not detect writers at the source; `None` also if the user accepts that.
    pub unwatched: Option<String>,
    pub copied: Live<Copied>,
    /// The record in the status, which exists since before the first gate.
    pub recorded: Option<Recorded>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimNow {
    /// The claim does not exist; one of that name with another uid does not count.
    Absent,
    Exists {
        at: AsRead,
        /// If it is being deleted, our finalizer keeps it.
        deleting: bool,
        lock: Lock,
        /// Whether its phase is Lost: no pod with it is started.
        lost: bool,
        /// The last change for which it was touched.
        touched: Option<Touch>,
        /// Whether size or attributes are being changed, or it has less than it requests.
        changing: bool,
    },
}

/// The lock on a claim: annotation and finalizer of a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lock {
    Free,
    Ours,
    /// The lock of another move.
    Theirs {
        by: MoveUid,
        /// Whether that move exists.
        counts: bool,
    },
}

/// The PV with the name of the claim's volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeNow {
    Absent,
    Exists(VirtualVolume),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualVolume {
    pub at: AsRead,
    /// The twin to which its handle refers.
    pub serves: Serves,
    /// The object in its `claimRef`.
    pub held_by: HeldBy,
    /// The mark of a move on it.
    pub mark: Option<VolumeMark>,
    pub policy: ReclaimPolicy,
    /// Whether its phase is Bound.
    pub bound: bool,
    pub deleting: bool,
    /// The nodes with a `VolumeAttachment` that names it: csi-attacher needs the PV to detach them.
    pub attached: Vec<String>,
}

/// The PV of a source in a remote cluster, which is gated there as well: pods there could start with the twin.
/// It then names the claim of the mover, which mounts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteVolume {
    /// The twin, which is the claim of this PV. No move locks it.
    pub twin: ClaimNow,
    pub twin_uid: String,
    /// The PV. It is held by the claim if it names the twin, and by the move if it names the mover's claim.
    pub volume: VirtualVolume,
    /// The policy that a Retain of this driver has replaced, if it did.
    pub policy_before: Option<ReclaimPolicy>,
    pub mover_claim: MoverClaim,
}

/// The claim in a remote cluster with which the mover of a source mounts a gated PV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoverClaim {
    Absent,
    /// The PV names it.
    Named {
        bound: bool,
    },
    /// The PV does not name it.
    Unused(AsRead),
    Leaving,
}

/// The twin to which the handle of a PV refers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Serves {
    Source,
    /// The target, in the epoch of this move.
    Target,
    /// The source, in the epoch after the target's: it was recovered after the commit.
    Recovered,
    /// A later epoch of the volume: another move has moved it again.
    Later,
    /// Something else, with this handle.
    Other(String),
}

/// The object in the `claimRef` of a PV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeldBy {
    /// The claim, with its uid.
    Claim,
    /// This move: the name of the claim, and the uid of the move.
    Move,
    /// Another object, as error messages name it.
    Other(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceTwin {
    Gone {
        /// Whether its cluster answers that neither the twin nor a retained PV with its data exists. Otherwise it may
        /// exist again: its twin is created again for that PV, or its cluster is declared again.
        for_good: bool,
    },
    Exists {
        at: AsRead,
        /// The mark of a move on it.
        mark: Option<SourceMark>,
        deleting: bool,
        /// Whether the finalizer of this driver keeps it.
        protected: bool,
        /// Whether it has ever been bound. A twin that was created again is first without its volume.
        bound: bool,
    },
    /// It exists in the epoch after the target's: it was recovered after the commit.
    Recovered,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetTwin {
    /// Its cluster is no longer declared.
    Gone,
    Absent,
    /// A claim that this move has not created.
    Foreign(String),
    /// It takes over the name of the claim, which the source had; this is why it waits.
    TakesName(String),
    /// It was lost, exists again, and is marked as superseded: the volume is at the source.
    Superseded,
    /// The twin of this move and this epoch.
    Exists {
        at: AsRead,
        handed_over: bool,
        /// Whether the reclaim policy of its real PV is Retain.
        retained: bool,
        deleting: bool,
    },
}

/// The objects that a move needs in addition to the twins, on one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Helpers {
    Absent,
    /// Some objects are missing.
    Incomplete,
    /// All objects exist, and the mover responds.
    Ready,
    /// The objects are being deleted.
    Leaving,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// A pass while pods use the volume.
    Warm,
    /// The last pass, under this gate.
    Final(GateNumber),
    /// The comparison of both sides, under this gate.
    Verify(GateNumber),
    /// Removes the journal from the target's volume, which is then equal to the source's. Only after the
    /// commit of this gate: a rollback before it would have to read everything again.
    Finish(GateNumber),
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warm => "the data is being copied",
            Self::Final(_) => "the last changes are being copied",
            Self::Verify(_) => "both sides are being compared",
            Self::Finish(_) => "the journal is being removed from the new volume",
        })
    }
}

/// The progress of the copy, as the movers report it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// The current pass.
    pub running: Option<Pass>,
    /// Whether the last warm pass found few changes.
    pub converged: bool,
    /// The gate under which the last pass was completed.
    pub finished: Option<GateNumber>,
    /// The gate under which both sides were compared, and the result.
    pub compared: Option<(GateNumber, Roots)>,
    /// The gate after whose commit the journal was removed from the target's volume.
    pub journal_off: Option<GateNumber>,
    /// Why the target cannot have the data of the source, or will never be as large as the claim requests.
    pub too_small: Option<String>,
}

/// The result of the comparison of both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roots {
    Equal,
    /// They differ, for example in this path.
    Differ(String),
}

/// What the status records of a claim; the manifest of its PV is recorded with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The reclaim policy of the PV before the gate.
    pub policy: ReclaimPolicy,
    pub claim_uid: String,
}

impl Recorded {
    /// The note of a gate of this move.
    pub(super) fn note(&self, by: &MoveUid, gate: GateNumber) -> GateNote {
        GateNote {
            by: by.clone(),
            gate,
            policy: self.policy,
            claim_uid: self.claim_uid.clone(),
        }
    }
}

impl ClaimFacts {
    /// What the gate of this move has changed on the PV, if it was not restored.
    pub(super) fn note_of(&self, by: &MoveUid) -> Option<&GateNote> {
        let VolumeNow::Exists(volume) = &self.volume else {
            return None;
        };
        let note = volume.mark.as_ref().and_then(VolumeMark::note);
        note.filter(|note| note.by == *by)
    }

    /// The note of this move on the PV of a remote source.
    pub(super) fn note_there(&self, by: &MoveUid) -> Option<&GateNote> {
        let mark = self.there.as_ref()?.volume.mark.as_ref();
        mark?.note().filter(|note| note.by == *by)
    }

    /// The facts on which the gate of a remote source is opened and closed: twin and PV there, instead of claim
    /// and PV at home.
    pub(super) fn seen_there(&self, remote: &RemoteVolume) -> Self {
        Self {
            claim: remote.twin.clone(),
            volume: VolumeNow::Exists(remote.volume.clone()),
            recorded: Some(Recorded {
                policy: remote.volume.policy,
                claim_uid: remote.twin_uid.clone(),
            }),
            there: None,
            ..self.clone()
        }
    }

    /// Whether the claim was deleted during the move and its data is retained. Then both copies are kept,
    /// because a user may have deleted the claim in the belief that Lost means lost data.
    pub(super) fn is_kept(&self, by: &MoveUid) -> bool {
        self.claim == ClaimNow::Absent && self.note_of(by).is_some()
    }
}
