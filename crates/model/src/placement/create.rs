//! Whose turn is it in `CreateVolume`? One decision from what was observed; the
//! caller does the step, looks again, and decides again, until something is to
//! be answered or time is up. Any call may be the first one after a crash.
//!
//! ```text
//!                    claim gone, nodes disagree ──▶ Refuse
//!        ┌────────┐
//!  ┌────▶│ absent │
//!  │     └───┬────┘
//!  │ gone    │ Create                       (from here on no final answer ...)
//!  │     ┌───▼─────┐ real driver: elsewhere
//!  ├─────┤ pending ├─┐ claim gone, other node, class loops
//!  │     └───┬──▲──┘ │
//!  │         │  └────┼─ PreBind (static volumes), Wait
//!  │         │ bound │ Withdraw              (... until the twin is bound, or gone;
//!  │         │       │                        a remote one may be handed over before)
//!  │     ┌───▼─────┐ │
//!  ├─────┤ bound   ├─┘ not reachable from the node
//!  │     └───┬─────┘
//!  │         │ Retain, HandOver             (never withdrawn any more)
//!  │     ┌───▼─────────┐ deleted, lost, unreachable ──▶ Refuse, and report
//!  │     │ handed over ├──▶ Answer
//!  │     └─────────────┘
//!  └── AwaitGone: a twin that nobody was given is on its way out
//! ```

mod refusal;

use std::collections::BTreeSet;

pub use self::refusal::Refusal;
use super::is_loop;
use crate::{
    topology::AffinityError,
    volume::{Foreign, Part},
};

/// Everything the decision rests on. All of it is read live, except that a
/// watched twin may serve while there is nothing to do but wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateFacts {
    /// The claim the volume is for.
    pub claim: ClaimFact,
    /// The node that has to reach the volume.
    pub target: Target,
    /// What is in the twin's place.
    pub twin: TwinFact,
    /// Whether a PV of the volume exists: then it was given to its user.
    pub virtual_pv: bool,
    /// Whether the virtual class retains data.
    pub retain: bool,
}

/// The claim, known by its uid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimFact {
    /// The request names no claim.
    NotGiven,
    /// It is there.
    Live,
    /// It is absent, being deleted, or another one has its name.
    Gone,
}

/// The node that has to reach the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// None in particular.
    Any,
    /// This one; claim and request agree.
    Node(String),
    /// One of these, which the request allows; no node was selected for the claim.
    OneOf(BTreeSet<String>),
    /// The claim was given another node than the request, which thus is old.
    Disagrees {
        /// Node selected for the claim; `None` if it lost its node.
        selected: Option<String>,
        /// Place the request asks for.
        requested: String,
    },
}

impl Target {
    /// Whether the volume may be made for this node.
    #[must_use]
    pub fn allows(&self, node: &str) -> bool {
        match self {
            Self::Any | Self::Disagrees { .. } => true,
            Self::Node(only) => only == node,
            Self::OneOf(nodes) => nodes.contains(node),
        }
    }
}

/// What is in the twin's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TwinFact {
    /// Nothing.
    Absent,
    /// Something that is not ours.
    Foreign(Foreign),
    /// A copy of the claim that a fabric made before there was a twin, and that has no PV.
    Copied {
        /// Whether it has a deletion timestamp.
        deleting: bool,
    },
    /// The twin.
    Ours(Twin),
}

/// The twin.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts about one object, each seen by itself"
)]
pub struct Twin {
    /// Whether success was answered before.
    pub handed_over: bool,
    /// Whether it has a deletion timestamp.
    pub deleting: bool,
    /// In what the request differs from the one it was made for.
    pub differences: Vec<Part>,
    /// Who provisions it, as Kubernetes noted on it.
    pub provisioner: Option<String>,
    /// Whether it was given a node, because its class waits for one or the request asks
    /// for some.
    pub told_node: bool,
    /// The node it has now.
    pub node: Option<String>,
    /// Whether it may be answered for before it is bound: its pod is what binds it.
    pub answered_early: bool,
    /// How far it is.
    pub state: TwinState,
}

/// How far a twin is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TwinState {
    /// Not bound.
    Pending(Prebinding),
    /// Bound to its PV.
    Bound(Reach),
    /// Its PV is gone.
    Lost,
}

/// Who binds a pending twin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prebinding {
    /// The real class's provisioner.
    Provisioner,
    /// It was told its static volume; Kubernetes will bind it.
    Reserved(String),
    /// We, and this static volume fits or is reserved for it already.
    Found(String),
    /// We, and no static volume fits.
    NoneFits,
}

/// Who reaches the PV of a bound twin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The PV was not seen yet.
    Unread,
    /// The target, or one of its nodes.
    FromTarget {
        /// Whether the PV's reclaim policy is Retain.
        retained: bool,
    },
    /// Others, but not the target.
    NotFromTarget,
    /// Nobody.
    Nowhere(AffinityError),
    /// Whoever does: it does not hold what it should be a copy of.
    NoCopy(&'static str),
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateStep {
    /// Make the twin.
    Create,
    /// Delete the copy of the claim that is in the twin's place.
    RemoveCopy,
    /// Reserve this static volume for the twin: `claimRef` with namespace and name.
    PreBind {
        /// Name of the PV.
        volume: String,
    },
    /// Wait until something changes; when time is up answer a code that is not final.
    Wait,
    /// Wait until the twin is gone; when time is up answer a code that is not final.
    AwaitGone,
    /// Free a reserved static volume, delete exactly this twin in exactly this
    /// version, await that it is gone, then do as [`Withdrawal::afterwards`] says.
    Withdraw(Withdrawal),
    /// Set the reclaim policy of the twin's PV to Retain.
    Retain,
    /// Mark the twin as handed over.
    HandOver,
    /// Answer success.
    Answer,
    /// Answer a final error.
    Refuse(Refusal),
}

/// Why a twin that nobody was given is taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Withdrawal {
    /// The claim is gone.
    ClaimGone,
    /// The request is old.
    NodeDisagrees,
    /// It was made for another node.
    OtherNode,
    /// It was made for another request.
    Differs,
    /// The real driver took the node away: it cannot make the volume there.
    DriverRefused,
    /// No static volume fits.
    NoVolume,
    /// The target does not reach its PV.
    OutOfReach,
    /// Its provisioner serves virtual classes.
    Loops(String),
    /// Its PV is gone.
    Lost,
    /// Its PV does not hold what it should be a copy of.
    NoCopy(&'static str),
}

/// What follows when a withdrawn twin is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Afterwards {
    /// The next decision.
    DecideAgain,
    /// The answer that the node cannot work.
    Elsewhere(String),
    /// A final error.
    Refuse(Refusal),
}

impl Withdrawal {
    /// What follows when the twin is gone.
    #[must_use]
    pub fn afterwards(&self) -> Afterwards {
        let elsewhere = |reason: &str| Afterwards::Elsewhere(reason.to_owned());
        match self {
            Self::ClaimGone | Self::NodeDisagrees | Self::OtherNode | Self::Differs | Self::Lost => {
                Afterwards::DecideAgain
            }
            Self::DriverRefused => {
                elsewhere("the driver of the real class cannot make the volume for this node")
            }
            Self::NoVolume => elsewhere("no available volume of the real class fits on this node"),
            Self::OutOfReach => {
                elsewhere("the real class made the volume where no node reaches it that was asked for")
            }
            Self::Loops(provisioner) => Afterwards::Refuse(Refusal::Loops(provisioner.clone())),
            Self::NoCopy(flaw) => Afterwards::Refuse(Refusal::NoCopy(flaw)),
        }
    }
}

/// Decides the next step of `CreateVolume`.
#[must_use]
pub fn create_step(facts: &CreateFacts) -> CreateStep {
    match &facts.twin {
        TwinFact::Absent => without_twin(facts),
        TwinFact::Foreign(foreign) => CreateStep::Refuse(Refusal::Foreign(foreign.clone())),
        TwinFact::Copied { deleting } => match without_twin(facts) {
            CreateStep::Create if *deleting => CreateStep::AwaitGone,
            CreateStep::Create => CreateStep::RemoveCopy,
            refusal => refusal,
        },
        TwinFact::Ours(twin) => {
            if twin.handed_over || facts.virtual_pv {
                with_users_twin(facts, twin)
            } else {
                with_own_twin(facts, twin)
            }
        }
    }
}

fn without_twin(facts: &CreateFacts) -> CreateStep {
    if facts.virtual_pv {
        return CreateStep::Refuse(Refusal::Vanished);
    }
    if facts.claim == ClaimFact::Gone {
        return CreateStep::Refuse(Refusal::ClaimGone);
    }
    disagreement(&facts.target).map_or(CreateStep::Create, CreateStep::Refuse)
}

/// Nobody was given the volume: whatever is wrong with the twin, it may go.
fn with_own_twin(facts: &CreateFacts, twin: &Twin) -> CreateStep {
    if twin.deleting {
        return CreateStep::AwaitGone;
    }
    if let Some(provisioner) = twin.provisioner.as_deref().filter(|name| is_loop(name)) {
        return CreateStep::Withdraw(Withdrawal::Loops(provisioner.to_owned()));
    }
    if facts.claim == ClaimFact::Gone {
        return CreateStep::Withdraw(Withdrawal::ClaimGone);
    }
    match &twin.state {
        TwinState::Lost => CreateStep::Withdraw(Withdrawal::Lost),
        TwinState::Pending(_) if !twin.differences.is_empty() => CreateStep::Withdraw(Withdrawal::Differs),
        TwinState::Pending(prebinding) => pending(&facts.target, twin, prebinding),
        TwinState::Bound(reach) => {
            if let Some(refusal) = mismatch(facts, twin) {
                return CreateStep::Refuse(refusal);
            }
            match reach {
                Reach::NotFromTarget => CreateStep::Withdraw(Withdrawal::OutOfReach),
                Reach::NoCopy(flaw) => CreateStep::Withdraw(Withdrawal::NoCopy(flaw)),
                reach => bound(facts, twin, reach),
            }
        }
    }
}

fn pending(target: &Target, twin: &Twin, prebinding: &Prebinding) -> CreateStep {
    if disagreement(target).is_some() {
        return CreateStep::Withdraw(Withdrawal::NodeDisagrees);
    }
    if twin.told_node && twin.node.is_none() {
        return CreateStep::Withdraw(Withdrawal::DriverRefused);
    }
    if twin.node.as_ref().is_some_and(|node| !target.allows(node)) {
        return CreateStep::Withdraw(Withdrawal::OtherNode);
    }
    match prebinding {
        Prebinding::Provisioner if twin.answered_early => CreateStep::HandOver,
        Prebinding::Provisioner | Prebinding::Reserved(_) => CreateStep::Wait,
        Prebinding::Found(volume) => CreateStep::PreBind {
            volume: volume.clone(),
        },
        Prebinding::NoneFits => CreateStep::Withdraw(Withdrawal::NoVolume),
    }
}

/// The user was given the volume: nothing here may cost them their data.
///
/// If their claim is gone meanwhile, success is still the answer. The PV that
/// csi-provisioner then makes is what the reclaim policy is applied to.
fn with_users_twin(facts: &CreateFacts, twin: &Twin) -> CreateStep {
    if twin.deleting {
        return CreateStep::Refuse(Refusal::Losing);
    }
    match &twin.state {
        TwinState::Lost => CreateStep::Refuse(Refusal::Lost),
        TwinState::Pending(_) if twin.answered_early => early(facts, twin),
        TwinState::Pending(_) => CreateStep::Wait,
        TwinState::Bound(reach) => {
            if let Some(refusal) = mismatch(facts, twin) {
                return CreateStep::Refuse(refusal);
            }
            match reach {
                Reach::NotFromTarget if facts.claim != ClaimFact::Gone => {
                    CreateStep::Refuse(Refusal::HandedOverElsewhere)
                }
                reach => bound(facts, twin, reach),
            }
        }
    }
}

/// Nothing is known of the PV yet, so nothing about it can be wrong.
fn early(facts: &CreateFacts, twin: &Twin) -> CreateStep {
    match mismatch(facts, twin) {
        Some(refusal) => CreateStep::Refuse(refusal),
        None if twin.handed_over => CreateStep::Answer,
        None => CreateStep::HandOver,
    }
}

fn bound(facts: &CreateFacts, twin: &Twin, reach: &Reach) -> CreateStep {
    match reach {
        Reach::Unread => CreateStep::Wait,
        Reach::Nowhere(error) => CreateStep::Refuse(Refusal::Nowhere(error.clone())),
        Reach::NoCopy(flaw) => CreateStep::Refuse(Refusal::NoCopy(flaw)),
        Reach::FromTarget { retained: false } if facts.retain => CreateStep::Retain,
        Reach::FromTarget { .. } | Reach::NotFromTarget if twin.handed_over => CreateStep::Answer,
        Reach::FromTarget { .. } | Reach::NotFromTarget => CreateStep::HandOver,
    }
}

fn mismatch(facts: &CreateFacts, twin: &Twin) -> Option<Refusal> {
    if !twin.differences.is_empty() {
        return Some(Refusal::Differs(twin.differences.clone()));
    }
    if facts.claim == ClaimFact::Gone {
        return None;
    }
    disagreement(&facts.target)
}

fn disagreement(target: &Target) -> Option<Refusal> {
    match target {
        Target::Any | Target::Node(_) | Target::OneOf(_) => None,
        Target::Disagrees { selected, requested } => Some(Refusal::NodeDisagrees {
            selected: selected.clone(),
            requested: requested.clone(),
        }),
    }
}

#[cfg(test)]
mod tests;
