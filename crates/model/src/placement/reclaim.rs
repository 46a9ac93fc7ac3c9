//! Which reclaim policy the PV of a twin has to have: Retain while the user wants the data
//! to stay, or else the one that its real class gave it.

use crate::volume::ReclaimPolicy;

/// What the decision rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyFacts {
    /// The policy of the virtual PV: what the user wants.
    pub wanted: ReclaimPolicy,
    /// The policy of the twin's PV.
    pub has: ReclaimPolicy,
    /// Whether this driver replaced the policy of the twin's PV.
    pub replaced: bool,
    /// Whether the PV is bound to its twin, and nobody deletes that.
    pub bound: bool,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyStep {
    /// Set it to Retain, and note what it was.
    Retain,
    /// Give it the policy back that was replaced.
    GiveBack,
    /// Nothing.
    Leave,
}

/// Decides. The PV of a twin that is not well is a matter of its rescue.
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
    fn the_policy_follows_the_user_and_what_others_retain_stays() {
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
