//! What is kept of `VolumeMove`s at home: enough to know when to look at one.

use kube::{ResourceExt, core::PartialObjectMeta};

use crate::{
    api::volume_move::VolumeMove,
    cluster::view::Slim,
    volume::{ClaimName, mark},
};

/// A `VolumeMove`. Its topic is its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenMove {
    /// Its namespace and name.
    pub name: ClaimName,
    /// Its uid.
    pub uid: String,
    /// Counts the changes of what is asked for, and its deletion. What this driver writes into the
    /// status is no news to it.
    generation: i64,
    /// Whether our finalizer is on it.
    held: bool,
}

impl Slim for SeenMove {
    fn topic(&self) -> &str {
        &self.name.namespace
    }
}

/// Only the metadata is read: one that this driver cannot read is seen all the same.
pub(in crate::cluster) fn seen_move(of: &PartialObjectMeta<VolumeMove>) -> SeenMove {
    SeenMove {
        name: ClaimName {
            namespace: of.namespace().unwrap_or_default(),
            name: of.name_any(),
        },
        uid: of.uid().unwrap_or_default(),
        generation: of.metadata.generation.unwrap_or_default(),
        held: of.finalizers().iter().any(|one| one == mark::MOVE),
    }
}
