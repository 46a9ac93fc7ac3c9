//! Decides the next step of a move of one or more volumes from the state of its objects: steps 1 to 12 of
//! docs/move.md, and the rollback from each of them.
//!
//! ```text
//!  Checking ─▶ Preparing ─▶ Copying ─▶ Gating n ─▶ Draining n ─▶ Finishing n ─▶ Verifying n
//!  lock        target,      passes     PV names    pods stop     last pass      equal?
//!              movers          ▲       the move                                   │ COMMIT: one
//!                              │          │ in time? cancelled? in use again?     │ status write
//!                              └ Rollback◀┴──────── (before the commit) ──────────┤
//!                                   │ PV names its claim, Bound, then its policy  ▼
//!                                   ▼                                         Committed n
//!                                 Ended                    source superseded, target handed over,
//!                                   ▲                      PV replaced, bound, claim unlocked
//!                                   └──────── Retaining ◀─────────────────────────┘
//! ```
//!
//! **The lock is the PV's `claimRef`**: while it names the move, Kubernetes sets the claim to Lost, schedules
//! no pod with it and makes no new mount of it. The only state is in the status of the `VolumeMove` and on the
//! objects, so that a new leader after a crash, or a second leader, decides the same. Late writes of an old
//! leader fail, because each step names the version of the object in its decision ([`AsRead`]), and each gate
//! has a number.
//!
//! For that, **the caller reads the objects first and the status last**: a status that is unchanged after the
//! objects were read was current while they were read.
//!
//! After the commit there is one way back only: if the target was lost and the user requests it, the source
//! is recovered under a new gate, in the epoch after the target's (`recover`).
//!
//! `claim` decides for one claim (with `gated`, `rollback`, `committed` for later stages), `all_claims` for
//! all together, `leftovers` without a `VolumeMove`, and `calls` for CSI calls and loops during or after a
//! move. The crate `moves` observes and changes the objects; the loop in `controllers::moves` takes the
//! steps.

mod all_claims;
mod calls;
mod claim;
mod committed;
mod facts;
mod gated;
mod leftovers;
mod recover;
mod rollback;
mod stage;
mod step;
mod users;

pub use all_claims::{MoveStep, StatusChange, move_step};
pub use calls::{
    AttachDecision, AttachFacts, Caller, CallerError, ChangeDecision, DetachDecision, attach_decision,
    change_decision, detach_decision, is_left_alone, policy_wanted,
};
pub use claim::{ClaimDecision, claim_step};
pub use facts::{
    AsRead, ClaimFacts, ClaimNow, Copied, HeldBy, Helpers, Live, Lock, MoverClaim, Pass, Recorded,
    RemoteVolume, Roots, Serves, SourceTwin, TargetTwin, VirtualVolume, VolumeNow,
};
pub use leftovers::leftover_step;
pub use stage::{
    MoveFacts, Outcome, OverDue, Quiesce, Requested, RollbackReason, RollbackTo, Stage, VolumeFault,
};
pub use step::{ClaimStep, Side, Waiting};
pub use users::{NodeHealth, UserNode, UserPod, Users};

#[cfg(test)]
mod tests;
