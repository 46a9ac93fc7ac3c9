//! What to do next for a volume that is to grow, and what claim and twin have to say once it
//! has. The twin grows by its own driver's controllers; here is decided what they are asked
//! for, and what their word means to whoever asked us.

use crate::volume::{ClaimSize, ResizeStage, SizeRange};

/// What an expansion rests on.
#[derive(Clone, Copy, Debug)]
pub struct ExpandFacts<'a> {
    /// How large the volume has to become.
    pub wanted: SizeRange,
    /// The twin, as it is now.
    pub twin: ClaimSize,
    /// What users see of the volume, where the twin is at home and it matters.
    pub seen: Option<SeenSize>,
    /// What the driver's controller said when it failed, if it did.
    pub error: Option<&'a str>,
}

/// How large a volume is to its users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenSize {
    /// Its claim.
    pub claim: ClaimSize,
    /// Its virtual PV, in bytes.
    pub volume: u64,
}

/// The next step of an expansion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpandStep {
    /// The twin's earlier expansion is over, which nobody has told it.
    Finish,
    /// Ask the twin's class for so many bytes.
    Request(u64),
    /// Its controllers are at it.
    Wait,
    /// The volume has grown; whether a node has to follow.
    Done {
        /// Whether a node has to grow the file system.
        node: bool,
    },
    /// It is larger than it may become.
    TooLarge,
    /// The real driver refuses.
    Refused(RealRefusal),
}

/// Why the real driver does not let a volume grow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RealRefusal {
    /// It never will to this size, for this reason.
    #[error("{0}")]
    Infeasible(String),
    /// Not while pods use it.
    #[error("{0}")]
    InUse(String),
    /// For another reason.
    #[error("{0}")]
    Failed(String),
}

/// How csi-resizer writes the code of a driver that grows no volume in use.
pub const IN_USE: &str = "code = FailedPrecondition";

/// Decides what is next.
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
    // What is said of another size is about an earlier request.
    let said = facts.error.filter(|_| allocated == need);
    let infeasible = twin.stage == Some(ResizeStage::ControllerInfeasible);
    match said.map(str::to_owned) {
        Some(words) if infeasible => ExpandStep::Refused(RealRefusal::Infeasible(words)),
        Some(words) if words.contains(IN_USE) => ExpandStep::Refused(RealRefusal::InUse(words)),
        Some(words) => ExpandStep::Refused(RealRefusal::Failed(words)),
        None => ExpandStep::Wait,
    }
}

/// Whether the expansion of a twin at home is over, as its claim tells: pods never mount the
/// twin itself, so no kubelet ends its expansion, and until it is ended it does not grow again.
#[must_use]
pub fn has_finished(twin: ClaimSize, seen: SeenSize) -> bool {
    let waits = twin.stage.is_some_and(ResizeStage::waits_for_node);
    let Some(allocated) = twin.allocated.filter(|_| waits) else {
        return false;
    };
    // A claim that was lowered after the volume had grown never has all of it.
    let is_over = seen.claim.stage.is_none() && seen.claim.capacity >= seen.claim.requested;
    seen.claim.capacity >= allocated || (is_over && seen.volume >= allocated)
}

/// What a claim has to say because of its twin in another cluster, where no kubelet of ours
/// sees its pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimNews {
    /// It has grown to so many bytes.
    Grown(u64),
    /// The node there does not grow the file system.
    NodeInfeasible,
}

/// What is new for the claim of a remote twin.
#[must_use]
pub fn claim_news(claim: ClaimSize, twin: ClaimSize) -> Option<ClaimNews> {
    let waits = claim.stage.is_some_and(ResizeStage::waits_for_node);
    let allocated = claim.allocated.filter(|_| waits)?;
    if twin.capacity >= allocated && twin.stage.is_none() {
        return Some(ClaimNews::Grown(allocated));
    }
    let failed = twin.stage == Some(ResizeStage::NodeInfeasible);
    // csi-resizer tries again each time the claim says so, and keeps what it said.
    let is_new = twin.node_error.is_some() && twin.node_error != claim.node_error;
    (failed && is_new).then_some(ClaimNews::NodeInfeasible)
}

/// Whether a claim that says less than its twin in another cluster is to say as much. Never
/// while an expansion is under way, which would be set back, and never less.
#[must_use]
pub fn shows_less(claim: ClaimSize, volume: u64, twin: ClaimSize) -> bool {
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

    fn step(need: u64, twin: ClaimSize, seen: Option<SeenSize>, error: Option<&str>) -> ExpandStep {
        expand_step(&ExpandFacts {
            wanted: SizeRange::new(need.try_into().unwrap(), 0).unwrap(),
            twin,
            seen,
            error,
        })
    }

    #[test]
    fn a_twin_is_asked_once_and_waited_for() {
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
    fn a_node_has_to_follow_where_the_twin_says_so() {
        for stage in [
            ResizeStage::NodePending,
            ResizeStage::NodeInProgress,
            ResizeStage::NodeInfeasible,
        ] {
            let twin = staged(20, 10, 20, stage);
            assert_eq!(step(20, twin, None, None), ExpandStep::Done { node: true });
            // The claim was lowered after the volume had grown.
            assert_eq!(step(15, twin, None, None), ExpandStep::Done { node: true });
        }
    }

    #[test]
    fn an_earlier_expansion_is_finished_first() {
        let pending = staged(20, 10, 20, ResizeStage::NodePending);
        let seen = |claim, volume| Some(SeenSize { claim, volume });
        let ended = seen(size(30, 20), 20);
        assert_eq!(step(30, pending, ended, None), ExpandStep::Finish);
        // The node has not grown it yet, or it is not ours to finish.
        let pending_too = seen(staged(30, 10, 20, ResizeStage::NodePending), 20);
        assert_eq!(step(30, pending, pending_too, None), ExpandStep::Request(30));
        assert_eq!(step(30, pending, None, None), ExpandStep::Request(30));
        // By the size alone nothing is finished: after NodeResizeInfeasible csi-resizer calls
        // again with the same size.
        let refused = staged(20, 10, 20, ResizeStage::NodeInfeasible);
        assert_eq!(step(30, refused, ended, None), ExpandStep::Request(30));
    }

    #[test]
    fn a_claim_that_was_lowered_ends_the_expansion_of_its_twin() {
        let twin = staged(15, 10, 20, ResizeStage::NodePending);
        let claim = size(15, 15);
        assert!(has_finished(twin, SeenSize { claim, volume: 20 }));
        // Somebody grew the twin by itself: no node has been told.
        assert!(!has_finished(twin, SeenSize { claim, volume: 15 }));
        let claim = staged(15, 10, 15, ResizeStage::NodePending);
        assert!(!has_finished(twin, SeenSize { claim, volume: 20 }));
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
    fn what_the_real_driver_says_is_passed_on() {
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
    fn a_claim_follows_its_twin_elsewhere() {
        let waits = staged(20, 10, 20, ResizeStage::NodePending);
        assert_eq!(claim_news(waits, size(20, 20)), Some(ClaimNews::Grown(20)));
        assert_eq!(
            claim_news(waits, staged(20, 10, 20, ResizeStage::NodePending)),
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
        let news = Some(ClaimNews::NodeInfeasible);
        assert_eq!(claim_news(waits, refused(Some(1))), news);
        assert_eq!(claim_news(told, refused(Some(1))), None);
        assert_eq!(claim_news(told, refused(Some(2))), news);
        assert_eq!(claim_news(waits, refused(None)), None);
        assert_eq!(claim_news(size(20, 20), size(20, 20)), None);
    }

    #[test]
    fn a_claim_only_grows_and_not_into_an_expansion() {
        assert!(shows_less(size(10, 10), 10, size(10, 12)));
        assert!(!shows_less(size(10, 12), 12, size(10, 10)));
        assert!(!shows_less(size(20, 10), 10, size(20, 20)));
        let waits = staged(20, 10, 20, ResizeStage::NodePending);
        assert!(!shows_less(waits, 10, size(20, 20)));
        assert!(!shows_less(
            size(10, 10),
            10,
            staged(20, 12, 20, ResizeStage::NodePending)
        ));
    }
}
