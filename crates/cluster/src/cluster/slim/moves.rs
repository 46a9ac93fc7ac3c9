//! The fields of `VolumeMove`s that are kept at home: enough to know when to reconcile one.

use kube::{ResourceExt, core::PartialObjectMeta};

use crate::{
    api::volume_move::VolumeMove,
    cluster::view::Slim,
    volume::{ClaimName, mark},
};

/// A `VolumeMove`. Its topic is its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenMove {
    pub name: ClaimName,
    pub uid: String,
    /// Counts the changes of the spec, and the deletion. Changes of the status by this driver do not count.
    generation: i64,
    /// Whether it has the driver's finalizer.
    held: bool,
}

impl Slim for SeenMove {
    fn topic(&self) -> &str {
        &self.name.namespace
    }
}

/// Only the metadata is read, so that objects which this version cannot read are seen as well.
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
