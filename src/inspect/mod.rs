//! Reports about a cluster for users: it is read once ([`Storage`], [`Installation`]), judged without
//! further requests ([`rows`], [`checks`]), and printed elsewhere (`cli`). Nothing is ever written, and what
//! cannot be read is reported as unknown.

mod cases;
mod consumers;
mod events;
mod gravity;
mod health;
mod installation;
mod leftovers;
mod listing;
mod names;
mod offloading;
mod remote;
mod setup;
mod snapshots;
mod state;
mod storage;

pub(crate) mod checks;
pub(crate) mod rows;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;

pub(crate) use self::{
    installation::Installation,
    listing::Listing,
    names::Name,
    offloading::why_not_offloaded,
    setup::Setup,
    snapshots::{SnapshotRow, SnapshotState, Snapshots, snapshot_rows},
    state::State,
    storage::{Scope, Storage, home_id},
};
