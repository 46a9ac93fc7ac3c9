//! The next step of an expansion, and what claim and twin report after it. The controllers of the real driver
//! expand the twin; decided here is the size that is requested, and what their status means for the caller.

use crate::volume::{ClaimSize, ResizeStage, SizeRange};

/// The input of the decision.
#[derive(Clone, Copy, Debug)]
pub struct ExpandFacts<'a> {
    /// The required size.
    pub wanted: SizeRange,
    /// The twin, read live.
    pub twin: ClaimSize,
    /// The size that users see, where the twin is at home and its expansion may have to be finished.
    pub seen: Option<ObservedSize>,
    /// The error of the real driver's controller, if any.
    pub error: Option<&'a str>,
}

/// The size of a volume as users see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedSize {
    pub claim: ClaimSize,
    /// Its virtual PV, in bytes.
    pub volume: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpandStep {
    /// Complete the twin's earlier expansion: no kubelet does that for a twin.
    Finish,
    /// Request this size of the twin.
    Request(u64),
    /// Wait for the controllers of the real driver.
    Wait,
    /// The volume has the size.
    Done {
        /// Whether a node must still grow the file system.
        node: bool,
    },
    /// The volume is larger than the limit.
    TooLarge,
    /// The real driver refuses.
    Refused(RealRefusal),
}

/// Why the real driver does not expand a volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RealRefusal {
    /// This size is infeasible, for this reason.
    #[error("{0}")]
    Infeasible(String),
    /// The volume cannot be expanded now: the driver expands none that is in use, or that has snapshots.
    #[error("{0}")]
    InUse(String),
    /// Another error.
    #[error("{0}")]
    Failed(String),
}

/// Part of csi-resizer's error if a driver cannot expand a volume in use.
pub const IN_USE: &str = "code = FailedPrecondition";

#[must_use]
pub fn expand_step(facts: &ExpandFacts<'_>) -> ExpandStep {
    let (need, twin) = (facts.wanted.required(), facts.twin);
    let allocated = twin.allocated.unwrap_or_default();
    let on_node = twin.stage.is_some_and(ResizeStage::is_on_node);
    if twin.capacity >= need || (on_node && allocated >= need) {
        if facts.wanted.limit().is_some_and(|limit| twin.capacity > limit) {
            return ExpandStep::TooLarge;
        }
        return ExpandStep::Done {
            node: on_node && twin.capacity < allocated,
        };
    }
    if facts.seen.is_some_and(|seen| has_finished(twin, seen)) {
        return ExpandStep::Finish;
    }
    if twin.requested != need {
        return ExpandStep::Request(need);
    }
    // An error at another size is from an earlier request.
    let said = facts.error.filter(|_| allocated == need);
    let infeasible = twin.stage == Some(ResizeStage::ControllerInfeasible);
    match said.map(str::to_owned) {
        Some(words) if infeasible => ExpandStep::Refused(RealRefusal::Infeasible(words)),
        Some(words) if words.contains(IN_USE) => ExpandStep::Refused(RealRefusal::InUse(words)),
        Some(words) => ExpandStep::Refused(RealRefusal::Failed(words)),
        None => ExpandStep::Wait,
    }
}

/// Whether the expansion of a twin at home is complete, according to its claim. Pods never mount the twin
/// itself, so no kubelet completes its expansion, and until that is done it cannot be expanded again.
#[must_use]
pub fn has_finished(twin: ClaimSize, seen: ObservedSize) -> bool {
    let waits = twin.stage.is_some_and(ResizeStage::waits_for_node);
    let Some(allocated) = twin.allocated.filter(|_| waits) else {
        return false;
    };
    // A claim whose request was lowered after the expansion never gets all of it.
    let is_over = seen.claim.stage.is_none() && seen.claim.capacity >= seen.claim.requested;
    seen.claim.capacity >= allocated || (is_over && seen.volume >= allocated)
}

/// An update of a claim by its remote twin, because the kubelet that mounts the twin is in the remote
/// cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimUpdate {
    /// The claim has grown to this size.
    Grown(u64),
    /// The remote node cannot grow the file system.
    NodeInfeasible,
}

/// The update for the claim of a remote twin.
#[must_use]
pub fn claim_update(claim: ClaimSize, twin: ClaimSize) -> Option<ClaimUpdate> {
    let waits = claim.stage.is_some_and(ResizeStage::waits_for_node);
    let allocated = claim.allocated.filter(|_| waits)?;
    if twin.capacity >= allocated && twin.stage.is_none() {
        return Some(ClaimUpdate::Grown(allocated));
    }
    let failed = twin.stage == Some(ResizeStage::NodeInfeasible);
    // csi-resizer retries each time the claim reports this, and keeps the error.
    let is_new = twin.node_error.is_some() && twin.node_error != claim.node_error;
    (failed && is_new).then_some(ClaimUpdate::NodeInfeasible)
}

/// Whether a claim must be raised to the size of its remote twin. Never during an expansion, which would be
/// reverted, and never lowered.
#[must_use]
pub fn must_be_raised(claim: ClaimSize, volume: u64, twin: ClaimSize) -> bool {
    let settled = claim.stage.is_none() && twin.stage.is_none() && claim.requested <= claim.capacity;
    settled && twin.capacity > volume
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(requested: u64, capacity: u64) -> ClaimSize {
        ClaimSize {
            requested,
            capacity,
            ..ClaimSize::default()
        }
    }

    fn staged(requested: u64, capacity: u64, allocated: u64, stage: ResizeStage) -> ClaimSize {
        ClaimSize {
            allocated: Some(allocated),
            stage: Some(stage),
            ..size(requested, capacity)
        }
    }

    fn step(need: u64, twin: ClaimSize, seen: Option<ObservedSize>, error: Option<&str>) -> ExpandStep {
        expand_step(&ExpandFacts {
            wanted: SizeRange::new(need.try_into().unwrap(), 0).unwrap(),
            twin,
            seen,
            error,
        })
    }

    #[test]
    fn a_twin_expansion_is_requested_once_and_then_awaited() {
        assert_eq!(step(20, size(10, 10), None, None), ExpandStep::Request(20));
        assert_eq!(step(20, size(20, 10), None, None), ExpandStep::Wait);
        let growing = staged(20, 10, 20, ResizeStage::ControllerInProgress);
        assert_eq!(step(20, growing, None, None), ExpandStep::Wait);
        assert_eq!(
            step(20, size(20, 20), None, None),
            ExpandStep::Done { node: false }
        );
    }

    #[test]
    fn node_expansion_is_required_when_the_twin_waits_for_it() {
        for stage in [
            ResizeStage::NodePending,
            ResizeStage::NodeInProgress,
            ResizeStage::NodeInfeasible,
        ] {
            let twin = staged(20, 10, 20, stage);
            assert_eq!(step(20, twin, None, None), ExpandStep::Done { node: true });
            // The claim was lowered after the expansion.
            assert_eq!(step(15, twin, None, None), ExpandStep::Done { node: true });
        }
    }

    #[test]
    fn an_earlier_expansion_is_finished_first() {
        let pending = staged(20, 10, 20, ResizeStage::NodePending);
        let seen = |claim, volume| Some(ObservedSize { claim, volume });
        let ended = seen(size(30, 20), 20);
        assert_eq!(step(30, pending, ended, None), ExpandStep::Finish);
        // The node has not grown the file system yet, or the expansion is not ours to complete.
        let pending_too = seen(staged(30, 10, 20, ResizeStage::NodePending), 20);
        assert_eq!(step(30, pending, pending_too, None), ExpandStep::Request(30));
        assert_eq!(step(30, pending, None, None), ExpandStep::Request(30));
        // Size alone completes nothing: after NodeResizeInfeasible csi-resizer calls again with the same
        // size.
        let refused = staged(20, 10, 20, ResizeStage::NodeInfeasible);
        assert_eq!(step(30, refused, ended, None), ExpandStep::Request(30));
    }

    #[test]
    fn lowering_a_claim_ends_the_expansion_of_its_twin() {
        let twin = staged(15, 10, 20, ResizeStage::NodePending);
        let claim = size(15, 15);
        assert!(has_finished(twin, ObservedSize { claim, volume: 20 }));
        // Another client has expanded the twin alone: no node was asked to grow the file system.
        assert!(!has_finished(twin, ObservedSize { claim, volume: 15 }));
        let claim = staged(15, 10, 15, ResizeStage::NodePending);
        assert!(!has_finished(twin, ObservedSize { claim, volume: 20 }));
    }

    #[test]
    fn a_lower_request_is_passed_on() {
        let refused = staged(50, 10, 50, ResizeStage::ControllerInfeasible);
        assert_eq!(step(20, refused, None, Some("too much")), ExpandStep::Request(20));
        let asked = ClaimSize {
            requested: 20,
            ..refused
        };
        assert_eq!(step(20, asked, None, Some("too much")), ExpandStep::Wait);
    }

    #[test]
    fn expansion_errors_of_the_real_driver_are_passed_on() {
        let refused = |stage, words| step(20, staged(20, 10, 20, stage), None, Some(words));
        let words = || "no".to_owned();
        assert_eq!(
            refused(ResizeStage::ControllerInfeasible, "no"),
            ExpandStep::Refused(RealRefusal::Infeasible(words()))
        );
        assert_eq!(
            refused(ResizeStage::ControllerInProgress, "no"),
            ExpandStep::Refused(RealRefusal::Failed(words()))
        );
        let in_use = "rpc error: code = FailedPrecondition desc = it is mounted";
        assert_eq!(
            refused(ResizeStage::ControllerInProgress, in_use),
            ExpandStep::Refused(RealRefusal::InUse(in_use.to_owned()))
        );
    }

    #[test]
    fn a_volume_is_never_larger_than_the_limit() {
        let facts = ExpandFacts {
            wanted: SizeRange::new(5, 8).unwrap(),
            twin: size(10, 10),
            seen: None,
            error: None,
        };
        assert_eq!(expand_step(&facts), ExpandStep::TooLarge);
    }

    #[test]
    fn the_claim_status_follows_a_twin_in_another_cluster() {
        let waits = staged(20, 10, 20, ResizeStage::NodePending);
        assert_eq!(claim_update(waits, size(20, 20)), Some(ClaimUpdate::Grown(20)));
        assert_eq!(
            claim_update(waits, staged(20, 10, 20, ResizeStage::NodePending)),
            None
        );
        let refused = |words| ClaimSize {
            node_error: words,
            ..staged(20, 10, 20, ResizeStage::NodeInfeasible)
        };
        let told = ClaimSize {
            node_error: Some(1),
            ..waits
        };
        let news = Some(ClaimUpdate::NodeInfeasible);
        assert_eq!(claim_update(waits, refused(Some(1))), news);
        assert_eq!(claim_update(told, refused(Some(1))), None);
        assert_eq!(claim_update(told, refused(Some(2))), news);
        assert_eq!(claim_update(waits, refused(None)), None);
        assert_eq!(claim_update(size(20, 20), size(20, 20)), None);
    }

    #[test]
    fn a_claim_is_raised_to_a_larger_twin_unless_an_expansion_is_under_way() {
        assert!(must_be_raised(size(10, 10), 10, size(10, 12)));
        assert!(!must_be_raised(size(10, 12), 12, size(10, 10)));
        assert!(!must_be_raised(size(20, 10), 10, size(20, 20)));
        let waits = staged(20, 10, 20, ResizeStage::NodePending);
        assert!(!must_be_raised(waits, 10, size(20, 20)));
        assert!(!must_be_raised(
            size(10, 10),
            10,
            staged(20, 12, 20, ResizeStage::NodePending)
        ));
    }
}
