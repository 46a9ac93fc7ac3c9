//! The size of a claim and the state of its expansion, from its `spec` and `status`. The decisions are in
//! [`crate::placement`].

use std::str::FromStr;

/// The state of an expansion, as in `status.allocatedResourceStatuses` (KEP-1790).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeStage {
    /// The driver's controller expands the volume.
    ControllerInProgress,
    /// The driver's controller rejects the size permanently.
    ControllerInfeasible,
    /// A node has to grow the file system.
    NodePending,
    /// A node grows the file system.
    NodeInProgress,
    /// The node rejects the size permanently.
    NodeInfeasible,
    /// A stage that this driver does not know.
    Unknown,
}

impl ResizeStage {
    /// Whether the volume itself has grown, and only the node is left.
    #[must_use]
    pub fn is_on_node(self) -> bool {
        match self {
            Self::NodePending | Self::NodeInProgress | Self::NodeInfeasible => true,
            Self::ControllerInProgress | Self::ControllerInfeasible | Self::Unknown => false,
        }
    }

    /// Whether a node may still complete it.
    #[must_use]
    pub fn waits_for_node(self) -> bool {
        matches!(self, Self::NodePending | Self::NodeInProgress)
    }
}

impl FromStr for ResizeStage {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "ControllerResizeInProgress" => Self::ControllerInProgress,
            "ControllerResizeInfeasible" => Self::ControllerInfeasible,
            "NodeResizePending" => Self::NodePending,
            "NodeResizeInProgress" => Self::NodeInProgress,
            "NodeResizeInfeasible" => Self::NodeInfeasible,
            _ => Self::Unknown,
        })
    }
}

/// The size of a claim, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClaimSize {
    pub requested: u64,
    /// Its capacity; zero before it is bound.
    pub capacity: u64,
    /// The size of the current or last expansion.
    pub allocated: Option<u64>,
    /// The state of that expansion; `None` if it is complete.
    pub stage: Option<ResizeStage>,
    /// Whether the driver's controller, or the node, reported an error. No decision depends on it, but it
    /// makes a change of the claim visible to callers that wait for one.
    pub has_error: bool,
    /// A hash of the error that the node reported, to detect a new one.
    pub node_error: Option<u64>,
}

impl ClaimSize {
    /// The size to which the claim is growing; `None` while it has the requested size.
    #[must_use]
    pub fn growing_to(self) -> Option<u64> {
        let target = self.requested.max(self.stage.and(self.allocated).unwrap_or(0));
        (self.capacity > 0 && target > self.capacity).then_some(target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resize_stages_are_parsed_from_kubernetes_names() {
        for (text, stage, on_node) in [
            (
                "ControllerResizeInProgress",
                ResizeStage::ControllerInProgress,
                false,
            ),
            (
                "ControllerResizeInfeasible",
                ResizeStage::ControllerInfeasible,
                false,
            ),
            ("NodeResizePending", ResizeStage::NodePending, true),
            ("NodeResizeInProgress", ResizeStage::NodeInProgress, true),
            ("NodeResizeInfeasible", ResizeStage::NodeInfeasible, true),
            ("SomethingNew", ResizeStage::Unknown, false),
        ] {
            assert_eq!(text.parse(), Ok(stage));
            assert_eq!(stage.is_on_node(), on_node, "{text}");
        }
    }

    #[test]
    fn a_claim_grows_to_its_requested_or_allocated_size() {
        let size = ClaimSize {
            requested: 2,
            capacity: 1,
            ..ClaimSize::default()
        };
        assert_eq!(size.growing_to(), Some(2));
        let lowered = ClaimSize {
            requested: 1,
            allocated: Some(3),
            stage: Some(ResizeStage::NodePending),
            ..size
        };
        assert_eq!(lowered.growing_to(), Some(3));
        let grown = ClaimSize {
            capacity: 3,
            ..lowered
        };
        assert_eq!(grown.growing_to(), None);
        assert_eq!(ClaimSize::default().growing_to(), None);
    }
}
