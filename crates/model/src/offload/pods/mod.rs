//! A pod of a virtual node and its remote pod, decided from both objects: the next step, what the remote pod
//! looks like, and the status of the home pod. Nothing is read or written here.
//!
//! Whichever component crashes, a pod (namespace, name and uid) runs at most once:
//!
//! 1. The home pod gets a finalizer, and a record of where it runs.
//! 2. The remote pod is created *gated*: a scheduling gate keeps it from starting.
//! 3. The home pod gets `status.startTime`, and a condition that names the remote pod; from then
//!    on it may have run.
//! 4. The gate of that remote pod is removed.
//! 5. The home pod is deleted once the remote cluster confirms that its pod is deleted, not before.
//!
//! A remote pod that is created late, by a delayed request, stays gated and is deleted: its home pod was
//! deleted, or names another one. A remote pod that may have run and is gone is never created again.

mod caveats;
mod changes;
mod decision;
mod hostname;
mod kept;
mod spec;
mod status;
mod unplaced;
mod volumes;

pub use self::{
    caveats::{
        Destination, caveats, creates_secrets, fails_without_token, is_of_all_replicas, named_addresses,
        short_namespaces,
    },
    changes::{CARRIED, Change, Patch},
    decision::{Act, End, HomePod, PodFacts, RemotePod, Waiting, decide_pod},
    hostname::refused_hostname,
    kept::not_kept,
    spec::{
        Configuration, PodRefused, RemoteMarks, RemoteSettings, as_carried, claims, configuration,
        inline_drivers, is_homebound, leaves_out_label, remote_pod,
    },
    status::{
        DELETED_REMOTELY, STARTED, UNSCHEDULABLE, disrupted_status, ended_status, final_status, is_finite,
        is_transition, least_final_status, remote_status, started_status, unreachable_status, waiting_status,
    },
    unplaced::{
        Avoided, DeferredFacts, Unplaced, UnplacedFacts, UnplacedStep, decide_unplaced, irreplaceable,
        replaceable, still_avoided, unplaced,
    },
};

/// The scheduling gate of a remote pod that must not start yet.
pub const GATE: &str = "fabric.storage.liqo.io/home-pod-started";
/// Finalizer of a home pod whose remote pod may exist.
pub const FINALIZER: &str = "fabric.storage.liqo.io/remote-pod";
