//! The stage of a move in its status, from which the next leader continues. Each stage of
//! `placement::moving` has one representation; any other one is an error, so that no leader continues from a
//! guess.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    placement::moving::{Outcome, RollbackReason, RollbackTo, Stage, VolumeFault},
    volume::moving::GateNumber,
};

/// The stage from which the driver continues.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MoveStage {
    /// The step of the protocol.
    pub name: StageName,

    /// The number of the last gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 1))]
    pub gate: Option<GateNumber>,

    /// How far it rolls back: to copying while pods run, or to the state before the move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    // It is omitted and never null, which kubectl refuses in an enum of a definition.
    #[schemars(with = "Destination")]
    pub back_to: Option<Destination>,

    /// Why it rolls back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Cause>,
}

/// A step of the protocol.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum StageName {
    Checking,
    Preparing,
    Copying,
    Gating,
    Draining,
    Finishing,
    Verifying,
    Returning,
    Committed,
    Retaining,
    Done,
    Cancelled,
    Failed,
    Recovering,
    Recovered,
}

/// How far a move rolls back.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Destination {
    Copying,
    Start,
}

/// Why a move rolls back.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// The reason.
    pub reason: BackReason,

    /// The objects concerned, such as pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<String>,
}

/// The reason of a rollback.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum BackReason {
    Cancelled,
    Refused,
    ClaimDeleted,
    ClaimLocked,
    VolumeGone,
    VolumeNotOfSource,
    VolumeDeleting,
    VolumeNotOfClaim,
    VolumeGatedLate,
    VolumeMovedOn,
    VolumeNotRecorded,
    ClaimChanging,
    ClaimInUse,
    GateOpened,
    SourceGone,
    TargetGone,
    TargetTaken,
    ContentDiffers,
    DrainDeadlineExceeded,
    MaxDowntimeExceeded,
}

/// A stage that this driver never writes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is in the stage {name:?}, and {why}: this driver never writes that")]
pub struct UnreadableStage {
    name: StageName,
    why: &'static str,
}

impl From<&Stage> for MoveStage {
    fn from(stage: &Stage) -> Self {
        let plain = |name, gate| Self {
            name,
            gate,
            back_to: None,
            why: None,
        };
        match stage {
            Stage::Checking => plain(StageName::Checking, None),
            Stage::Preparing => plain(StageName::Preparing, None),
            Stage::Copying { last } => plain(StageName::Copying, *last),
            Stage::Gating(gate) => plain(StageName::Gating, Some(*gate)),
            Stage::Draining(gate) => plain(StageName::Draining, Some(*gate)),
            Stage::Finishing(gate) => plain(StageName::Finishing, Some(*gate)),
            Stage::Verifying(gate) => plain(StageName::Verifying, Some(*gate)),
            Stage::Rollback { gate, to, why } => Self {
                name: StageName::Returning,
                gate: *gate,
                back_to: Some(match to {
                    RollbackTo::Copying => Destination::Copying,
                    RollbackTo::Start => Destination::Start,
                }),
                why: Some(Cause::of(why)),
            },
            Stage::Committed(gate) => plain(StageName::Committed, Some(*gate)),
            Stage::Retaining(gate) => plain(StageName::Retaining, Some(*gate)),
            Stage::Recovering(gate) => plain(StageName::Recovering, Some(*gate)),
            Stage::Ended(Outcome::Recovered) => plain(StageName::Recovered, None),
            Stage::Ended(Outcome::Done) => plain(StageName::Done, None),
            Stage::Ended(Outcome::Cancelled) => plain(StageName::Cancelled, None),
            Stage::Ended(Outcome::Failed) => plain(StageName::Failed, None),
            Stage::Ended(Outcome::SourceGone) => Self {
                why: Some(Cause::of(&RollbackReason::SourceGone)),
                ..plain(StageName::Failed, None)
            },
        }
    }
}

impl TryFrom<&MoveStage> for Stage {
    type Error = UnreadableStage;

    fn try_from(of: &MoveStage) -> Result<Self, UnreadableStage> {
        let wrong = |why| UnreadableStage { name: of.name, why };
        let lost = Cause::of(&RollbackReason::SourceGone);
        let has_lost = of.name == StageName::Failed && of.why == Some(lost);
        if of.name != StageName::Returning && (of.back_to.is_some() || of.why.is_some() && !has_lost) {
            return Err(wrong("it has a destination of a rollback"));
        }
        let gated = |stage: fn(GateNumber) -> Self| of.gate.map(stage).ok_or(wrong("it has no gate"));
        let ungated = |stage| match of.gate {
            Some(_) => Err(wrong("it has a gate")),
            None => Ok(stage),
        };
        match of.name {
            StageName::Checking => ungated(Self::Checking),
            StageName::Preparing => ungated(Self::Preparing),
            StageName::Copying => Ok(Self::Copying { last: of.gate }),
            StageName::Gating => gated(Self::Gating),
            StageName::Draining => gated(Self::Draining),
            StageName::Finishing => gated(Self::Finishing),
            StageName::Verifying => gated(Self::Verifying),
            StageName::Committed => gated(Self::Committed),
            StageName::Retaining => gated(Self::Retaining),
            StageName::Recovering => gated(Self::Recovering),
            StageName::Recovered => ungated(Self::Ended(Outcome::Recovered)),
            StageName::Done => ungated(Self::Ended(Outcome::Done)),
            StageName::Cancelled => ungated(Self::Ended(Outcome::Cancelled)),
            StageName::Failed if has_lost => ungated(Self::Ended(Outcome::SourceGone)),
            StageName::Failed => ungated(Self::Ended(Outcome::Failed)),
            StageName::Returning => {
                let (Some(to), Some(cause)) = (of.back_to, &of.why) else {
                    return Err(wrong("the destination or the cause of the rollback is missing"));
                };
                Ok(Self::Rollback {
                    gate: of.gate,
                    to: match to {
                        Destination::Copying => RollbackTo::Copying,
                        Destination::Start => RollbackTo::Start,
                    },
                    why: cause
                        .read()
                        .ok_or(wrong("the details of its cause are invalid"))?,
                })
            }
        }
    }
}

impl Cause {
    fn of(why: &RollbackReason) -> Self {
        let (reason, details) = match why {
            RollbackReason::Cancelled => (BackReason::Cancelled, Vec::new()),
            RollbackReason::Refused(obstacles) => (BackReason::Refused, obstacles.clone()),
            RollbackReason::ClaimDeleted => (BackReason::ClaimDeleted, Vec::new()),
            RollbackReason::Locked(by) => (BackReason::ClaimLocked, vec![by.to_string()]),
            RollbackReason::Volume(VolumeFault::Gone) => (BackReason::VolumeGone, Vec::new()),
            RollbackReason::Volume(VolumeFault::NotTheSource) => (BackReason::VolumeNotOfSource, Vec::new()),
            RollbackReason::Volume(VolumeFault::Deleting) => (BackReason::VolumeDeleting, Vec::new()),
            RollbackReason::Volume(VolumeFault::NotTheClaims) => (BackReason::VolumeNotOfClaim, Vec::new()),
            RollbackReason::Volume(VolumeFault::GatedLate) => (BackReason::VolumeGatedLate, Vec::new()),
            RollbackReason::Volume(VolumeFault::MovedOn) => (BackReason::VolumeMovedOn, Vec::new()),
            RollbackReason::NotRecorded => (BackReason::VolumeNotRecorded, Vec::new()),
            RollbackReason::Changing => (BackReason::ClaimChanging, Vec::new()),
            RollbackReason::InUse(pods) => (BackReason::ClaimInUse, pods.clone()),
            RollbackReason::GateOpen => (BackReason::GateOpened, Vec::new()),
            RollbackReason::SourceGone => (BackReason::SourceGone, Vec::new()),
            RollbackReason::TargetGone => (BackReason::TargetGone, Vec::new()),
            RollbackReason::InTheWay(what) => (BackReason::TargetTaken, vec![what.clone()]),
            RollbackReason::Differs(path) => (BackReason::ContentDiffers, vec![path.clone()]),
            RollbackReason::DrainOverdue => (BackReason::DrainDeadlineExceeded, Vec::new()),
            RollbackReason::DowntimeOverdue => (BackReason::MaxDowntimeExceeded, Vec::new()),
        };
        Self { reason, details }
    }

    fn read(&self) -> Option<RollbackReason> {
        let none = |why| self.details.is_empty().then_some(why);
        let only = || match self.details.as_slice() {
            [only] => Some(only.clone()),
            _ => None,
        };
        match self.reason {
            BackReason::Cancelled => none(RollbackReason::Cancelled),
            BackReason::Refused => Some(RollbackReason::Refused(self.details.clone())),
            BackReason::ClaimDeleted => none(RollbackReason::ClaimDeleted),
            BackReason::ClaimLocked => only()?.parse().ok().map(RollbackReason::Locked),
            BackReason::VolumeGone => none(RollbackReason::Volume(VolumeFault::Gone)),
            BackReason::VolumeNotOfSource => none(RollbackReason::Volume(VolumeFault::NotTheSource)),
            BackReason::VolumeDeleting => none(RollbackReason::Volume(VolumeFault::Deleting)),
            BackReason::VolumeNotOfClaim => none(RollbackReason::Volume(VolumeFault::NotTheClaims)),
            BackReason::VolumeGatedLate => none(RollbackReason::Volume(VolumeFault::GatedLate)),
            BackReason::VolumeMovedOn => none(RollbackReason::Volume(VolumeFault::MovedOn)),
            BackReason::VolumeNotRecorded => none(RollbackReason::NotRecorded),
            BackReason::ClaimChanging => none(RollbackReason::Changing),
            BackReason::ClaimInUse => Some(RollbackReason::InUse(self.details.clone())),
            BackReason::GateOpened => none(RollbackReason::GateOpen),
            BackReason::SourceGone => none(RollbackReason::SourceGone),
            BackReason::TargetGone => none(RollbackReason::TargetGone),
            BackReason::TargetTaken => only().map(RollbackReason::InTheWay),
            BackReason::ContentDiffers => only().map(RollbackReason::Differs),
            BackReason::DrainDeadlineExceeded => none(RollbackReason::DrainOverdue),
            BackReason::MaxDowntimeExceeded => none(RollbackReason::DowntimeOverdue),
        }
    }
}
