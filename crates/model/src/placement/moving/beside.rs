//! What other calls may do while, and after, a volume moves: attach it, detach it, change it,
//! delete it. Every one of them reads the objects itself; none asks the move.

use crate::volume::{
    Epoch, ReclaimPolicy, RecordError, mark,
    moving::{MoveUid, SourceMark, TargetMark, TwinMarkError, TwinMarks, VolumeMark},
};

use super::{Live, NodeHealth, Side, UserPod};

/// What a twin and its surroundings say to whoever wants to use a volume of this handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beside {
    /// The epoch in the handle of the call.
    pub asked: Epoch,
    /// The epoch of the twin.
    pub epoch: Epoch,
    /// The mark of a source on it.
    pub source: Option<SourceMark>,
    /// The mark of a target on it: it is not handed over.
    pub target: Option<TargetMark>,
    /// Whether there is a move of the uid in these marks, or of the mover's, read live.
    pub exists: bool,
    /// The highest epoch of a twin of this volume that is handed over in a cluster that answers.
    pub highest: Epoch,
}

/// Who wants to attach a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A pod of the user.
    User,
    /// A mover, as the attributes of its temporary PV say.
    Mover {
        /// Its move.
        by: MoveUid,
        /// The side that it reads or writes.
        side: Side,
    },
}

/// What this driver writes on no PV.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the volume attribute {key} has the value {0:?}, which this driver never writes", key = mark::MOVER)]
pub struct CallerError(String);

impl Caller {
    /// Who calls, as an attribute of the PV says that only those of movers have.
    pub fn read(attribute: Option<&str>) -> Result<Self, CallerError> {
        let Some(text) = attribute else {
            return Ok(Self::User);
        };
        let mover = || {
            let (side, by) = text.split_once(':')?;
            let side = match side {
                "source" => Side::Source,
                "target" => Side::Target,
                _ => return None,
            };
            let by = by.parse().ok()?;
            Some(Self::Mover { by, side })
        };
        mover().ok_or_else(|| CallerError(text.to_owned()))
    }
}

/// The answer to `ControllerPublish`, which asks before it attaches and again after.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishBeside {
    /// It may.
    #[error("nothing speaks against it")]
    Go,
    /// Later.
    #[error("the volume is being moved; its pods start when that is over, or was undone")]
    Moving,
    /// The cluster of the twin does not answer.
    #[error("it is not known whether the volume has moved: {0}")]
    Silent(String),
    /// The data of this handle is not the volume's any more.
    #[error(
        "the volume has moved on: this handle is of its epoch {asked}, and the data is in epoch {current}. A cluster or a node that \
         was restored from a backup still has the old one"
    )]
    MovedOn {
        /// That of the handle.
        asked: Epoch,
        /// That of the data.
        current: Epoch,
    },
    /// A mover has come too late.
    #[error("the move of this mover is over")]
    MoveOver,
}

/// Decides whether a volume may be attached.
#[must_use]
pub fn publish_beside(facts: &Live<Beside>, caller: &Caller) -> PublishBeside {
    let facts = match facts {
        Live::Silent(why) => return PublishBeside::Silent(why.clone()),
        Live::Known(facts) => facts,
    };
    let current = match &facts.source {
        Some(SourceMark::Superseded { epoch, .. }) => facts.highest.max(*epoch),
        _ => facts.highest.max(facts.epoch),
    };
    if current > facts.asked || facts.epoch != facts.asked {
        return PublishBeside::MovedOn {
            asked: facts.asked,
            current,
        };
    }
    let moving = match &facts.source {
        Some(SourceMark::Moving { by, .. }) if facts.exists => Some(by),
        _ => None,
    };
    let made_by = facts.target.as_ref().map(|mark| &mark.by);
    match caller {
        // The twin of a target is nobody's as long as it is marked, whether the move exists or not.
        Caller::User if moving.is_some() || made_by.is_some() => PublishBeside::Moving,
        Caller::User => PublishBeside::Go,
        // A target that is handed over has users: a mover that comes late would write beside them.
        Caller::Mover { by, side } => match side {
            _ if !facts.exists => PublishBeside::MoveOver,
            Side::Target if made_by != Some(by) => PublishBeside::MoveOver,
            Side::Source if moving.is_some_and(|other| other != by) => PublishBeside::MoveOver,
            Side::Source | Side::Target => PublishBeside::Go,
        },
    }
}

/// The answer to `ControllerUnpublish` of a virtual PV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetachBeside {
    /// It may be detached.
    Go,
    /// Later: this pod may still write there.
    Later(String),
}

/// Decides whether a volume may be detached from a node, by what a move has written on its PV and by
/// the pods there that use the claim. A kubelet that starts again while the PV is gated does not find
/// the volume of a pod that still runs, and lets it go; and an attachment that is being deleted since
/// then still is when the PV names its claim again. A pod that has yet to start waits for that
/// deletion then. A mark that cannot be read may be a gate's.
#[must_use]
pub fn detach_beside(
    mark: &Result<Option<VolumeMark>, RecordError>,
    pods: &[UserPod],
    node: NodeHealth,
) -> DetachBeside {
    let may_write = |pod: &&UserPod| match mark {
        Ok(None) => false,
        Ok(Some(VolumeMark::GivenBack { .. })) => !pod.pending,
        Ok(Some(VolumeMark::Gated(_))) | Err(_) => true,
    };
    match pods.iter().find(may_write) {
        Some(pod) if node == NodeHealth::Ready => DetachBeside::Later(pod.name.clone()),
        _ => DetachBeside::Go,
    }
}

/// The answer to `CreateSnapshot`, `ControllerExpand` and `ControllerModify`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeBeside {
    /// It may be.
    Go,
    /// Later: the claim is locked, and what is compared must not change.
    Later,
    /// Never: the handle is of another epoch than the data, which is of this one. Existing
    /// snapshots of it answer all the same.
    MovedOn(Epoch),
}

/// Decides whether a volume may be snapshotted, or changed.
#[must_use]
pub fn change_beside(asked: Epoch, current: Epoch, locked: bool, snapshot: bool) -> ChangeBeside {
    if asked != current {
        ChangeBeside::MovedOn(current)
    } else if locked && !snapshot {
        ChangeBeside::Later
    } else {
        ChangeBeside::Go
    }
}

/// The reclaim policy that the user wants of a virtual PV. The Retain of a gate is not the user's
/// wish, and never becomes that of a real PV.
#[must_use]
pub fn policy_wanted(policy: ReclaimPolicy, mark: Option<&VolumeMark>) -> ReclaimPolicy {
    mark.and_then(VolumeMark::note).map_or(policy, |note| note.policy)
}

/// Whether loops have to keep off a twin, and nobody but a move deletes it: it is a move's, its
/// data is elsewhere, or what it says about moves cannot be read. `may_exist` says whether there
/// may be a move of a uid; if there is none, a mark of it does not count.
#[must_use]
pub fn is_left_alone(marks: &Result<TwinMarks, TwinMarkError>, may_exist: impl Fn(&MoveUid) -> bool) -> bool {
    let Ok(TwinMarks { target, source }) = marks else {
        return true;
    };
    let is_source = match source {
        Some(SourceMark::Superseded { .. }) => true,
        Some(SourceMark::Moving { by, .. }) => may_exist(by),
        Some(SourceMark::GivenBack { .. }) | None => false,
    };
    is_source || target.as_ref().is_some_and(|target| may_exist(&target.by))
}
