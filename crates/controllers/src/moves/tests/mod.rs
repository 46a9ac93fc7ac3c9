//! Moves against two fake API servers, with fakes of Kubernetes, the provisioner and movers (`world`):
//! complete ones (`whole`), ones whose controller dies at each of its writes (`deaths`), ones whose target is
//! lost (`lost`), ones whose source is in a remote cluster (`remote`), actions of users in between
//! (`user_actions`), what blocks one (`preflight`), and what is left of one whose `VolumeMove` was deleted
//! (`leftovers`).

mod deaths;
mod leftovers;
mod lost;
mod preflight;
mod remote;
mod user_actions;
mod whole;
mod world;
