//! A pod of a virtual node and the pod that runs for it in a remote cluster, decided from what
//! both are: what is done next, what the remote pod looks like, and what the home pod's status
//! says. Nothing is read or written here.
//!
//! Whatever crashes, an identity (a pod's namespace, name and uid) runs at most once:
//!
//! 1. The home pod gets a finalizer, and is told where it is to run.
//! 2. The remote pod is made *gated*: a scheduling gate keeps it from starting.
//! 3. The home pod gets `status.startTime`, and a condition that names the remote pod; from then
//!    on it may have run.
//! 4. The gate is taken off the remote pod that is named.
//! 5. The home pod goes when the remote cluster says that its pod is gone, and not before.
//!
//! A remote pod that is made late, by a request that was under way for long, stays gated and is
//! deleted: its home pod went, or names another one. One that may have run and is gone is never
//! made again.

mod changes;
mod decision;
mod kept;
mod spec;
mod status;
mod volumes;

pub use self::{
    changes::{CARRIED, Change, Patch},
    decision::{Act, End, HomePod, PodFacts, There, Waiting, decide_pod},
    kept::not_kept,
    spec::{
        PodRefused, RemoteMarks, RemoteSettings, caveats, claims, inline_drivers, is_homebound, remote_pod,
        secrets,
    },
    status::{
        STARTED, UNSCHEDULABLE, final_status, is_transition, least_final_status, remote_status,
        started_status, unreachable_status, waiting_status,
    },
};

/// The scheduling gate of a remote pod that must not start yet.
pub const GATE: &str = "fabric.storage.liqo.io/home-pod-started";
/// Keeps a home pod until its remote pod is gone.
pub const FINALIZER: &str = "fabric.storage.liqo.io/remote-pod";
