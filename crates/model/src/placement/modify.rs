//! What to do next for a volume that is to have other attributes: the twin is given another
//! attributes class, and the real driver's controllers do the work.

use super::RealRefusal;

/// How far Kubernetes is with a change of attributes (`status.modifyVolumeStatus`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModifyStage {
    /// It is worked on, or waits for its class.
    Underway,
    /// The driver will not do it.
    Infeasible,
}

/// What a change of attributes rests on.
#[derive(Clone, Copy, Debug)]
pub struct ModifyFacts<'a> {
    /// The class that the twin is to have.
    pub wanted: &'a str,
    /// The class that it asks for.
    pub requested: Option<&'a str>,
    /// The class that it has.
    pub current: Option<&'a str>,
    /// The change that is not over, and its class.
    pub change: Option<(ModifyStage, &'a str)>,
    /// What the driver said when it failed, if it did.
    pub error: Option<&'a str>,
    /// What is said about the change.
    pub progress: Option<&'a str>,
}

/// The next step of a change of attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModifyStep {
    /// Ask for the class.
    Request,
    /// Its controllers are at it.
    Wait,
    /// The twin has the class.
    Done,
    /// The real driver refuses.
    Refused(RealRefusal),
}

/// How csi-resizer writes that a change has failed, while it says that it goes on otherwise. The
/// error itself may be left from an earlier change.
const HAS_FAILED: &str = "failed. Waiting for retry";

/// Decides what is next.
#[must_use]
pub fn modify_step(facts: &ModifyFacts<'_>) -> ModifyStep {
    if facts.requested != Some(facts.wanted) {
        return ModifyStep::Request;
    }
    let words = || facts.error.unwrap_or("it does not say why").to_owned();
    match facts.change {
        None if facts.current == Some(facts.wanted) => ModifyStep::Done,
        Some((ModifyStage::Infeasible, class)) if class == facts.wanted => {
            ModifyStep::Refused(RealRefusal::Infeasible(words()))
        }
        Some((ModifyStage::Underway, class)) if class == facts.wanted && has_failed(facts) => {
            ModifyStep::Refused(RealRefusal::Failed(words()))
        }
        _ => ModifyStep::Wait,
    }
}

fn has_failed(facts: &ModifyFacts<'_>) -> bool {
    facts.progress.is_some_and(|said| said.contains(HAS_FAILED))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: ModifyFacts<'_> = ModifyFacts {
        wanted: "gold",
        requested: Some("gold"),
        current: Some("silver"),
        change: None,
        error: None,
        progress: None,
    };

    #[test]
    fn a_class_is_asked_for_once_and_waited_for() {
        let other = ModifyFacts {
            requested: Some("silver"),
            ..FACTS
        };
        assert_eq!(modify_step(&other), ModifyStep::Request);
        assert_eq!(modify_step(&FACTS), ModifyStep::Wait);
        let underway = ModifyFacts {
            change: Some((ModifyStage::Underway, "gold")),
            ..FACTS
        };
        assert_eq!(modify_step(&underway), ModifyStep::Wait);
        let there = ModifyFacts {
            current: Some("gold"),
            ..FACTS
        };
        assert_eq!(modify_step(&there), ModifyStep::Done);
        // It goes back to the class that it has: that change is not over either.
        let back = ModifyFacts {
            change: Some((ModifyStage::Underway, "silver")),
            ..there
        };
        assert_eq!(modify_step(&back), ModifyStep::Wait);
    }

    #[test]
    fn only_what_is_said_of_this_class_counts() {
        let infeasible = |class| ModifyFacts {
            change: Some((ModifyStage::Infeasible, class)),
            error: Some("no such disk"),
            ..FACTS
        };
        let refused = RealRefusal::Infeasible("no such disk".into());
        assert_eq!(modify_step(&infeasible("gold")), ModifyStep::Refused(refused));
        assert_eq!(modify_step(&infeasible("bronze")), ModifyStep::Wait);

        let failed = ModifyFacts {
            change: Some((ModifyStage::Underway, "gold")),
            error: Some("no such disk"),
            progress: Some("Modifying volume to \"gold\" failed. Waiting for retry."),
            ..FACTS
        };
        let refused = RealRefusal::Failed("no such disk".into());
        assert_eq!(modify_step(&failed), ModifyStep::Refused(refused));
        let again = ModifyFacts {
            progress: Some("Modifying volume to \"gold\" is in progress."),
            ..failed
        };
        assert_eq!(modify_step(&again), ModifyStep::Wait);
    }
}
