//! What a move of one or more volumes does next, from what is there now: rows 1 to 12 of its
//! protocol, and the way back from each of them.
//!
//! ```text
//!  Checking ─▶ Preparing ─▶ Copying ─▶ Gating n ─▶ Draining n ─▶ Finishing n ─▶ Verifying n
//!  lock        target,      passes     PV names    users go      last pass      equal?
//!              movers          ▲       the move                                   │ COMMIT: one
//!                              │          │ in time? cancelled? in use again?     │ status write
//!                              └── Back ◀─┴──────── (before the commit) ──────────┤
//!                                   │ PV names its claim, Bound, then its policy  ▼
//!                                   ▼                                         Committed n
//!                                 Ended                    source superseded, target handed over,
//!                                   ▲                      PV replaced, bound, claim unlocked
//!                                   └──────── Retaining ◀─────────────────────────┘
//! ```
//!
//! **The lock is the PV's `claimRef`**: while it names the move, Kubernetes calls the claim Lost,
//! schedules none of its pods and mounts nothing anew. The only memory is the status of the
//! `VolumeMove` and what stands on the objects; whoever comes next, after a crash or beside
//! another leader, decides the same. A leader that acts late on what it read early fails, for
//! every step that writes names what it has seen ([`AsRead`]) and every gate has a number.
//!
//! For that, **whoever observes reads the objects first and the status last**: a status that was
//! still true after an object was read cannot have been left before that.
//!
//! After the commit there is one way back only: if the target was lost and the user requests it, the source
//! is recovered under a new gate, in the epoch after the target's (`recover`).
//!
//! One claim is decided in `claim` (and, by rows, `gated`, `back`, `committed`), all together in
//! `whole`, what is left without a `VolumeMove` in `leftovers`, and what other calls may do beside
//! a move in `beside`, which the calls and loops of this driver ask. Claims, PVs and twins are
//! observed and changed by `twin/gate`, movers by `twin/movers`; the loop `reconcile/moves` carries
//! out what is decided.

mod back;
mod beside;
mod claim;
mod committed;
mod facts;
mod gated;
mod leftovers;
mod recover;
mod stage;
mod step;
mod users;
mod whole;

pub use beside::{
    Beside, Caller, CallerError, ChangeBeside, DetachBeside, PublishBeside, change_beside, detach_beside,
    is_left_alone, policy_wanted, publish_beside,
};
pub use claim::{ClaimDecision, claim_step};
pub use facts::{
    AsRead, ClaimFacts, ClaimNow, Copied, HeldBy, Helpers, Live, Lock, Pass, Recorded, Roots, Serves,
    SourceTwin, TargetTwin, VirtualVolume, VolumeNow,
};
pub use leftovers::leftover_step;
pub use stage::{BackTo, MoveFacts, Outcome, OverDue, Quiesce, Stage, VolumeFault, Why, Wishes};
pub use step::{ClaimStep, Side, Waiting};
pub use users::{NodeHealth, UserNode, UserPod, Users};
pub use whole::{MoveStep, StatusChange, move_step};

#[cfg(test)]
mod tests;
