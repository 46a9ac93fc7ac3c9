//! Which calls are allowed during and after a move: to attach, detach, change or delete the volume. Each
//! caller reads the objects itself, without the `VolumeMove`.

use crate::volume::{
    Epoch, ReclaimPolicy, RecordError, mark,
    moving::{MoveUid, SourceMark, TargetMark, TwinMarkError, TwinMarks, VolumeMark},
};

use super::{Live, NodeHealth, Side, UserPod};

/// The facts about a volume handle, from its twin and the other twins of the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachFacts {
    /// The epoch in the volume handle of the call.
    pub asked: Epoch,
    pub epoch: Epoch,
    /// The mark of a source on the twin.
    pub source: Option<SourceMark>,
    /// The mark of a target on the twin, which is then not handed over.
    pub target: Option<TargetMark>,
    /// Whether a move with the uid in these marks, or of the mover, exists; read live.
    pub exists: bool,
    /// The highest epoch of a handed-over twin of this volume in a reachable cluster.
    pub highest: Epoch,
}

/// The caller that attaches a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A pod of the user.
    User,
    /// A mover, according to the attributes of its temporary PV.
    Mover { by: MoveUid, side: Side },
}

/// An attribute that this driver does not write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the volume attribute {key} has the value {0:?}, which this driver never writes", key = mark::MOVER)]
pub struct CallerError(String);

impl Caller {
    /// Reads the caller from the volume attribute that only PVs of movers have.
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

/// The decision for `ControllerPublish`, which checks before and after it attaches.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachDecision {
    #[error("the volume may be attached")]
    Allow,
    #[error("the volume is being moved; its pods start after the move was completed or rolled back")]
    Moving,
    /// The cluster of the twin is unreachable.
    #[error("it is not known whether the volume has moved: {0}")]
    Unknown(String),
    #[error(
        "the volume has moved: this handle is of its epoch {asked}, and the data is in epoch {current}. A cluster or a node that \
         was restored from a backup still has the old one"
    )]
    MovedOn { asked: Epoch, current: Epoch },
    #[error("the move of this mover has ended")]
    MoveOver,
}

#[must_use]
pub fn attach_decision(facts: &Live<AttachFacts>, caller: &Caller) -> AttachDecision {
    let facts = match facts {
        Live::Unknown(why) => return AttachDecision::Unknown(why.clone()),
        Live::Known(facts) => facts,
    };
    let current = match &facts.source {
        Some(SourceMark::Superseded { epoch, .. }) => facts.highest.max(*epoch),
        _ => facts.highest.max(facts.epoch),
    };
    if current > facts.asked || facts.epoch != facts.asked {
        return AttachDecision::MovedOn {
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
        // A target twin must not be used as long as it has its mark, even if the move does not exist.
        Caller::User if moving.is_some() || made_by.is_some() => AttachDecision::Moving,
        Caller::User => AttachDecision::Allow,
        // A handed-over target has users: a late mover would write at the same time.
        Caller::Mover { by, side } => match side {
            _ if !facts.exists => AttachDecision::MoveOver,
            Side::Target if made_by != Some(by) => AttachDecision::MoveOver,
            Side::Source if moving.is_some_and(|other| other != by) => AttachDecision::MoveOver,
            Side::Source | Side::Target => AttachDecision::Allow,
        },
    }
}

/// The decision for `ControllerUnpublish` of a virtual PV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetachDecision {
    Allow,
    /// Not yet: this pod may still write there.
    Later(String),
}

/// Decides by the mark of a move on the PV, and by the pods on the node that use the claim. A kubelet that
/// restarts while the PV is gated does not find the volume of a running pod, and reports it as unused; the
/// deletion of that attachment continues after the PV names its claim again. A pod that has not started then
/// waits for that deletion. An unreadable mark may be that of a gate.
#[must_use]
pub fn detach_decision(
    mark: &Result<Option<VolumeMark>, RecordError>,
    pods: &[UserPod],
    node: NodeHealth,
) -> DetachDecision {
    let may_write = |pod: &&UserPod| match mark {
        Ok(None) => false,
        Ok(Some(VolumeMark::Ungated { .. })) => !pod.pending,
        Ok(Some(VolumeMark::Gated(_))) | Err(_) => true,
    };
    match pods.iter().find(may_write) {
        Some(pod) if node == NodeHealth::Ready => DetachDecision::Later(pod.name.clone()),
        _ => DetachDecision::Allow,
    }
}

/// The decision for `CreateSnapshot`, copies, `ControllerExpand` and `ControllerModify`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeDecision {
    Allow,
    /// Not yet: the twin is gated. Its data must not change during the comparison, and a snapshot would be left behind
    /// at the source without the user's consent.
    Later,
    /// Never: the data is in this epoch, not in that of the handle. Existing snapshots are still reported.
    MovedOn(Epoch),
}

#[must_use]
pub fn change_decision(asked: Epoch, current: Epoch, gated: bool) -> ChangeDecision {
    if asked != current {
        ChangeDecision::MovedOn(current)
    } else if gated {
        ChangeDecision::Later
    } else {
        ChangeDecision::Allow
    }
}

/// The reclaim policy that the user wants for a virtual PV. The Retain of a gate is not, and is never applied
/// to a real PV.
#[must_use]
pub fn policy_wanted(policy: ReclaimPolicy, mark: Option<&VolumeMark>) -> ReclaimPolicy {
    mark.and_then(VolumeMark::note).map_or(policy, |note| note.policy)
}

/// Whether a twin belongs to a move, so that other loops must not change or delete it: a move uses it, its
/// data has moved, or its marks are unreadable. `may_exist` tells whether a move may exist: the mark of a
/// deleted move does not count.
#[must_use]
pub fn is_left_alone(marks: &Result<TwinMarks, TwinMarkError>, may_exist: impl Fn(&MoveUid) -> bool) -> bool {
    let Ok(TwinMarks { target, source }) = marks else {
        return true;
    };
    let is_source = match source {
        Some(SourceMark::Superseded { .. }) => true,
        Some(SourceMark::Moving { by, .. }) => may_exist(by),
        Some(SourceMark::RolledBack { .. }) | None => false,
    };
    is_source || target.as_ref().is_some_and(|target| may_exist(&target.by))
}
