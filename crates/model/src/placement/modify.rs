//! The next step when a volume gets another `VolumeAttributesClass`: the class of the twin is changed, and
//! the controllers of the real driver do the work.

use super::RealRefusal;

/// The state of a change (`status.modifyVolumeStatus`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModifyStage {
    /// In progress, or pending because the class does not exist.
    Underway,
    /// The driver rejects it.
    Infeasible,
}

/// The input of the decision.
#[derive(Clone, Copy, Debug)]
pub struct ModifyFacts<'a> {
    /// The desired class of the twin.
    pub wanted: &'a str,
    /// The class in the spec of the twin.
    pub requested: Option<&'a str>,
    /// The class in the status of the twin.
    pub current: Option<&'a str>,
    /// The unfinished change and its class.
    pub change: Option<(ModifyStage, &'a str)>,
    /// The error of the driver, if any.
    pub error: Option<&'a str>,
    /// The message of the change.
    pub progress: Option<&'a str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModifyStep {
    /// Request the class.
    Request,
    /// Wait for the controllers of the real driver.
    Wait,
    /// The twin has the class.
    Done,
    /// The real driver refuses.
    Refused(RealRefusal),
}

/// How csi-resizer reports that a change has failed and will be retried. The error itself may be from an
/// earlier change.
const HAS_FAILED: &str = "failed. Waiting for retry";

#[must_use]
pub fn modify_step(facts: &ModifyFacts<'_>) -> ModifyStep {
    if facts.requested != Some(facts.wanted) {
        return ModifyStep::Request;
    }
    let words = || facts.error.unwrap_or("no reason is given").to_owned();
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
    fn an_attributes_class_is_requested_once_and_then_awaited() {
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
        // The change back to the current class is not complete either.
        let back = ModifyFacts {
            change: Some((ModifyStage::Underway, "silver")),
            ..there
        };
        assert_eq!(modify_step(&back), ModifyStep::Wait);
    }

    #[test]
    fn only_results_for_the_requested_class_count() {
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
