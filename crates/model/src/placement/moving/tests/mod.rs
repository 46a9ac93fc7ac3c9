//! Tests of moves: each step (`table`), the rules that hold for all steps (`rules`), and a simulated world
//! where any event may happen at any time (`model`).

mod model;
mod rules;
mod table;
mod world;

use super::*;
use crate::volume::{
    Epoch, ReclaimPolicy,
    moving::{GateNote, GateNumber, MoveUid, SourceMark, Touch, VolumeMark},
};

const UID: &str = "6b5d1b2e-3c37-4f0e-9f0f-0d2c7ef1a222";
const OTHER: &str = "7c5d1b2e-3c37-4f0e-9f0f-0d2c7ef1a333";
const GATE: GateNumber = GateNumber::FIRST;

fn uid() -> MoveUid {
    UID.parse().unwrap()
}

fn other() -> MoveUid {
    OTHER.parse().unwrap()
}

fn at(what: &str) -> AsRead {
    AsRead::new(format!("uid-of-{what}"), "7".into())
}

fn epoch(number: u32) -> Epoch {
    number.to_string().parse().unwrap()
}

fn note(gate: GateNumber) -> GateNote {
    GateNote {
        by: uid(),
        gate,
        policy: ReclaimPolicy::Delete,
        claim_uid: "claim".into(),
    }
}

fn given_back(gate: GateNumber) -> VolumeMark {
    VolumeMark::Ungated { by: uid(), gate }
}

fn moving(gate: GateNumber) -> SourceMark {
    SourceMark::Moving { by: uid(), gate }
}

fn unmarked(gate: GateNumber) -> SourceMark {
    SourceMark::RolledBack { by: uid(), gate }
}

fn superseded() -> SourceMark {
    SourceMark::Superseded {
        by: uid(),
        epoch: epoch(1),
    }
}

fn of(stage: Stage) -> MoveFacts {
    MoveFacts {
        at: at("move"),
        uid: uid(),
        stage,
        finalizer: true,
        deleting: false,
        requested: Requested {
            cancel: false,
            recover: false,
            paused: false,
            cutover: true,
            quiesce: Quiesce::Evict,
        },
        obstacles: Some(Vec::new()),
        overdue: OverDue::default(),
    }
}

fn back(to: RollbackTo) -> Stage {
    Stage::Rollback {
        gate: Some(GATE),
        to,
        why: RollbackReason::Cancelled,
    }
}

/// A claim before the move.
fn idle() -> ClaimFacts {
    ClaimFacts {
        claim: ClaimNow::Exists {
            at: at("claim"),
            deleting: false,
            lock: Lock::Free,
            lost: false,
            touched: None,
            changing: false,
        },
        volume: VolumeNow::Exists(VirtualVolume {
            at: at("volume"),
            serves: Serves::Source,
            held_by: HeldBy::Claim,
            mark: None,
            policy: ReclaimPolicy::Delete,
            bound: true,
            deleting: false,
            attached: Vec::new(),
        }),
        source: Live::Known(SourceTwin::Exists {
            at: at("source"),
            mark: None,
            deleting: false,
            protected: true,
            bound: true,
        }),
        there: None,
        target: Live::Known(TargetTwin::Absent),
        target_out_of_service: false,
        same_namespace: false,
        epoch: epoch(1),
        source_helpers: Live::Known(Helpers::Absent),
        target_helpers: Live::Known(Helpers::Absent),
        users: Live::Known(Users::default()),
        unwatched: None,
        copied: Live::Known(Copied::default()),
        recorded: Some(Recorded {
            policy: ReclaimPolicy::Delete,
            claim_uid: "claim".into(),
        }),
    }
}

fn target(handed_over: bool) -> Live<TargetTwin> {
    Live::Known(TargetTwin::Exists {
        at: at("target"),
        handed_over,
        retained: false,
        deleting: false,
    })
}

impl ClaimFacts {
    fn volume(mut self, change: impl FnOnce(&mut VirtualVolume)) -> Self {
        match &mut self.volume {
            VolumeNow::Exists(volume) => change(volume),
            VolumeNow::Absent => panic!("there is no PV"),
        }
        self
    }

    fn without_volume(mut self) -> Self {
        self.volume = VolumeNow::Absent;
        self
    }

    fn without_claim(mut self) -> Self {
        self.claim = ClaimNow::Absent;
        self
    }

    fn locked(mut self) -> Self {
        if let ClaimNow::Exists { lock, .. } = &mut self.claim {
            *lock = Lock::Ours;
        }
        self
    }

    fn lost(mut self, is: bool) -> Self {
        if let ClaimNow::Exists { lost, .. } = &mut self.claim {
            *lost = is;
        }
        self
    }

    fn touched(mut self, touch: Touch) -> Self {
        if let ClaimNow::Exists { touched, .. } = &mut self.claim {
            *touched = Some(touch);
        }
        self
    }

    fn dying(mut self) -> Self {
        if let ClaimNow::Exists { deleting, .. } = &mut self.claim {
            *deleting = true;
        }
        self
    }

    fn changing(mut self) -> Self {
        if let ClaimNow::Exists { changing, .. } = &mut self.claim {
            *changing = true;
        }
        self
    }

    fn source(mut self, is: SourceMark) -> Self {
        if let Live::Known(SourceTwin::Exists { mark, .. }) = &mut self.source {
            *mark = Some(is);
        }
        self
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn pods(mut self, pods: Vec<UserPod>) -> Self {
        self.users = Live::Known(Users {
            pods,
            ..Users::default()
        });
        self
    }
}

/// A locked claim with all helpers, after the copy.
fn prepared() -> ClaimFacts {
    idle().locked().with(|facts| {
        facts.target = target(false);
        facts.source_helpers = Live::Known(Helpers::Ready);
        facts.target_helpers = Live::Known(Helpers::Ready);
        facts.copied = Live::Known(Copied {
            converged: true,
            ..Copied::default()
        });
    })
}

/// A claim whose gate is closed.
fn gated(gate: GateNumber) -> ClaimFacts {
    let volume = |volume: &mut VirtualVolume| {
        volume.held_by = HeldBy::Move;
        volume.policy = ReclaimPolicy::Retain;
        volume.mark = Some(VolumeMark::Gated(note(gate)));
        volume.bound = false;
    };
    prepared()
        .volume(volume)
        .source(moving(gate))
        .touched(Touch::Gated(gate))
        .lost(true)
}

/// A claim without users; the mover of the source is deleted, too.
fn drained() -> ClaimFacts {
    gated(GATE).with(|facts| facts.source_helpers = Live::Known(Helpers::Absent))
}

/// A claim after step 9: the old PV still exists.
fn handed_over() -> ClaimFacts {
    gated(GATE).source(superseded()).with(|facts| {
        facts.source_helpers = Live::Known(Helpers::Absent);
        facts.target_helpers = Live::Known(Helpers::Absent);
        facts.target = target(true);
    })
}

/// A claim whose PV refers to the target, but is not bound yet.
fn replaced() -> ClaimFacts {
    handed_over().volume(|volume| {
        volume.serves = Serves::Target;
        volume.held_by = HeldBy::Claim;
    })
}

/// A claim that is bound to its PV at the target.
fn arrived() -> ClaimFacts {
    replaced()
        .touched(Touch::Ungated(GATE))
        .lost(false)
        .volume(|volume| {
            volume.bound = true;
            volume.policy = ReclaimPolicy::Delete;
            volume.mark = Some(given_back(GATE));
        })
}

fn pod(leaving: bool) -> UserPod {
    UserPod {
        name: "shop/db-0".into(),
        has_node: true,
        leaving,
        pending: false,
    }
}

fn step(of: &MoveFacts, facts: &ClaimFacts) -> ClaimDecision {
    claim_step(of, facts)
}

/// The next change of the stage of a move with this one claim.
fn enters(of: &MoveFacts, facts: &ClaimFacts) -> Option<StatusChange> {
    match move_step(of, std::slice::from_ref(facts)) {
        MoveStep::Write { at: version, change } => {
            assert_eq!(version, at("move"), "in the version that was read");
            Some(change)
        }
        _ => None,
    }
}
