//! Looking at a cluster for people: what is there is read once ([`Storage`],
//! [`Installation`]), judged without asking again ([`rows`], [`checks`]), and
//! printed elsewhere (`cli`). Nothing is ever written, and what may not be read
//! is said instead of guessed: rights end where they end.

mod cases;
mod consumers;
mod events;
mod gravity;
mod health;
mod installation;
mod leftovers;
mod listing;
mod offloading;
mod remote;
mod setup;
mod snapshots;
mod state;
mod storage;
mod words;

pub(crate) mod checks;
pub(crate) mod rows;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;

pub(crate) use self::{
    installation::Installation,
    listing::Listing,
    offloading::why_nobody_offloads,
    setup::Setup,
    snapshots::{SnapshotRow, SnapshotState, Snapshots, snapshot_rows},
    state::State,
    storage::{Scope, Storage, home_id},
    words::Name,
};
