#![doc = include_str!("../README.md")]

mod apply;
pub mod block;
mod clock;
mod compress;
pub mod control;
pub mod credentials;
pub mod entry;
pub mod error;
#[cfg(test)]
mod hostile;
mod journal;
pub mod lanes;
mod ledger;
mod link;
mod loss;
mod message;
pub mod path;
pub mod piece;
mod plan;
mod present;
pub mod program;
mod read;
mod scan;
mod session;
pub mod source;
pub mod target;
pub mod throttle;
mod tree;
pub mod verify;
mod wire;

pub use clock::LONGEST_WRITE;
pub use loss::LossKind;
