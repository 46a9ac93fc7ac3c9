//! Moves against two fake API servers, with what Kubernetes, the provisioner and movers would do
//! (`world`): whole ones (`whole`), ones whose controller dies at each of its writes (`deaths`),
//! a target that is lost (`lost`), what people do meanwhile (`people`), what speaks against one (`preflight`), and what is left of
//! one whose `VolumeMove` is gone (`leftovers`).

mod deaths;
mod leftovers;
mod lost;
mod people;
mod preflight;
mod whole;
mod world;
