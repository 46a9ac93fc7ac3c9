//! The reclaim policy of a twin's PV: Retain while the user wants to keep the data, or else the one from its
//! real class.

use crate::volume::ReclaimPolicy;

/// The input of the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyFacts {
    /// The policy of the virtual PV: what the user wants.
    pub wanted: ReclaimPolicy,
    /// The policy of the twin's PV.
    pub has: ReclaimPolicy,
    /// Whether this driver replaced the policy of the twin's PV.
    pub replaced: bool,
    /// Whether the PV is bound to its twin, which is not being deleted.
    pub bound: bool,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyStep {
    /// Set it to Retain, and record the previous policy.
    Retain,
    /// Restore the policy that was replaced.
    GiveBack,
    Leave,
}

/// Leaves the PV of an unhealthy twin to the recovery.
#[must_use]
pub fn policy_step(facts: PolicyFacts) -> PolicyStep {
    match (facts.wanted, facts.has) {
        _ if !facts.bound => PolicyStep::Leave,
        (ReclaimPolicy::Retain, ReclaimPolicy::Delete) => PolicyStep::Retain,
        (ReclaimPolicy::Delete, _) if facts.replaced => PolicyStep::GiveBack,
        _ => PolicyStep::Leave,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_follows_the_user_and_retain_set_by_others_stays() {
        use ReclaimPolicy::{Delete, Retain};
        for (wanted, has, replaced, expected) in [
            (Retain, Delete, false, PolicyStep::Retain),
            (Retain, Delete, true, PolicyStep::Retain),
            (Retain, Retain, true, PolicyStep::Leave),
            (Delete, Retain, true, PolicyStep::GiveBack),
            (Delete, Retain, false, PolicyStep::Leave),
            (Delete, Delete, true, PolicyStep::GiveBack),
            (Delete, Delete, false, PolicyStep::Leave),
        ] {
            let facts = PolicyFacts {
                wanted,
                has,
                replaced,
                bound: true,
            };
            assert_eq!(policy_step(facts), expected, "{facts:?}");
            let unbound = PolicyFacts {
                bound: false,
                ..facts
            };
            assert_eq!(policy_step(unbound), PolicyStep::Leave);
        }
    }
}
