//! Decides the next step of `CreateVolume` from observed facts. The caller executes the step, observes again,
//! and decides again, until it can answer or its deadline expires. Any call may be the first one after a
//! crash.
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
//!  └── AwaitGone: a twin that was never handed over is being deleted
//! ```

mod refusal;

use std::collections::BTreeSet;

pub use self::refusal::Refusal;
use super::is_loop;
use crate::{
    topology::AffinityError,
    volume::{Foreign, Part},
};

/// The input of the decision. All of it is read live, except that a watched twin may be used while the next
/// step is to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateFacts {
    /// The claim of the volume.
    pub claim: ClaimFact,
    /// The node that must reach the volume.
    pub target: Target,
    /// What exists under the name of the twin.
    pub twin: TwinFact,
    /// Whether a PV of the volume exists: then the volume was handed over to its user.
    pub virtual_pv: bool,
    /// Whether the virtual class has the reclaim policy Retain.
    pub retain: bool,
}

/// The claim, identified by its uid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimFact {
    /// The request names no claim.
    NotGiven,
    Live,
    /// It is absent, is being deleted, or was replaced by another one of the same name.
    Gone,
}

/// The node that must reach the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Any node.
    Any,
    /// This node; claim and request agree.
    Node(String),
    /// One of these nodes, which the request allows; no node was selected for the claim.
    OneOf(BTreeSet<String>),
    /// Claim and request name different nodes, so the request is outdated.
    Disagrees {
        /// Node selected for the claim; `None` if it was removed.
        selected: Option<String>,
        /// Topology in the request.
        requested: String,
    },
}

impl Target {
    /// Whether the volume may be provisioned for this node.
    #[must_use]
    pub fn allows(&self, node: &str) -> bool {
        match self {
            Self::Any | Self::Disagrees { .. } => true,
            Self::Node(only) => only == node,
            Self::OneOf(nodes) => nodes.contains(node),
        }
    }
}

/// What exists under the name of the twin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TwinFact {
    Absent,
    /// An object that is not ours.
    Foreign(Foreign),
    /// A copy of the claim that a fabric created before the twin existed, and that has no PV.
    Copied {
        /// Whether it has a deletion timestamp.
        deleting: bool,
    },
    Ours(Twin),
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about one object")]
pub struct Twin {
    pub handed_over: bool,
    /// Whether it has a deletion timestamp.
    pub deleting: bool,
    /// The parts in which the request differs from the one that the twin was created for.
    pub differences: Vec<Part>,
    /// Its provisioner, as annotated by Kubernetes.
    pub provisioner: Option<String>,
    /// Whether it was created with a node, because its class needs one or the request lists some.
    pub created_with_node: bool,
    /// The node that it has now.
    pub node: Option<String>,
    /// Whether it may be handed over before it is bound, because only its pod binds it.
    pub answered_early: bool,
    pub state: TwinState,
}

/// The binding of a twin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TwinState {
    /// Not bound.
    Pending(Prebinding),
    /// Bound to its PV.
    Bound(Reach),
    /// Its PV was deleted.
    Lost,
}

/// How a pending twin is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prebinding {
    /// By the provisioner of the real class.
    Provisioner,
    /// By Kubernetes: it names this static volume.
    Reserved(String),
    /// By this driver: this static volume fits, or is already reserved for it.
    Found(String),
    /// By this driver, but no static volume fits.
    NoneFits,
}

/// From where the PV of a bound twin is accessible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The PV was not read yet.
    Unread,
    /// From the target, or one of its nodes.
    FromTarget {
        /// Whether the PV's reclaim policy is Retain.
        retained: bool,
    },
    /// From other nodes, but not from the target.
    NotFromTarget,
    /// From no node.
    Nowhere(AffinityError),
    /// Wherever it is, the PV does not hold a copy of its source.
    NoCopy(&'static str),
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateStep {
    /// Create the twin.
    Create,
    /// Delete the copy of the claim that has the name of the twin.
    RemoveCopy,
    /// Reserve this static volume for the twin: `claimRef` with namespace and name.
    PreBind {
        /// Name of the PV.
        volume: String,
    },
    /// Wait until something changes; when the deadline expires answer a code that is not final.
    Wait,
    /// Wait until the twin is deleted; when the deadline expires answer a code that is not final.
    AwaitGone,
    /// Release a reserved static volume, delete exactly this version of the twin, wait until it is deleted,
    /// then do as [`Withdrawal::afterwards`] says.
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

/// Why a twin that was never handed over is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Withdrawal {
    /// The claim was deleted.
    ClaimGone,
    /// The request is outdated.
    NodeDisagrees,
    /// It was created for another node.
    OtherNode,
    /// It was created for a different request.
    Differs,
    /// The real driver removed the selected node: it cannot provision the volume there.
    DriverRefused,
    /// No static volume fits.
    NoVolume,
    /// Its PV is not accessible from the target.
    OutOfReach,
    /// Its provisioner serves virtual classes.
    Loops(String),
    /// Its PV was deleted.
    Lost,
    /// Its PV does not hold a copy of its source.
    NoCopy(&'static str),
}

/// What to do after a withdrawn twin was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Afterwards {
    DecideAgain,
    /// Answer that the volume cannot be on this node, for this reason.
    Elsewhere(String),
    /// Answer a final error.
    Refuse(Refusal),
}

impl Withdrawal {
    #[must_use]
    pub fn afterwards(&self) -> Afterwards {
        let elsewhere = |reason: &str| Afterwards::Elsewhere(reason.to_owned());
        match self {
            Self::ClaimGone | Self::NodeDisagrees | Self::OtherNode | Self::Differs | Self::Lost => {
                Afterwards::DecideAgain
            }
            Self::DriverRefused => {
                elsewhere("the driver of the real class cannot provision the volume for this node")
            }
            Self::NoVolume => elsewhere("no available volume of the real class fits on this node"),
            Self::OutOfReach => elsewhere(
                "the real class provisioned the volume where none of the requested nodes can access it",
            ),
            Self::Loops(provisioner) => Afterwards::Refuse(Refusal::Loops(provisioner.clone())),
            Self::NoCopy(flaw) => Afterwards::Refuse(Refusal::NoCopy(flaw)),
        }
    }
}

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

/// The volume was never handed over: whatever is wrong with the twin, it may be deleted.
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
    if twin.created_with_node && twin.node.is_none() {
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

/// The volume was handed over: no step here may lose its data.
///
/// If the claim was deleted meanwhile, success is still the answer. The reclaim policy is then applied to the
/// PV that csi-provisioner creates.
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

/// The PV does not exist yet, so its facts cannot mismatch.
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
