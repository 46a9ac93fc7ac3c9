//! The final errors of `CreateVolume`, as events for the user of the claim.

use crate::{
    topology::AffinityError,
    volume::{Foreign, Part},
};

/// Why the volume is not created, or not handed over (again).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another object has the name of the twin.
    #[error(
        "the name of the twin is taken by an object that is not ours: {0}. If it is being deleted, the volume is created after that; \
         otherwise delete it if its data is not needed, or give the claim another name"
    )]
    Foreign(Foreign),
    /// The volume exists with other properties.
    #[error("a volume of this name exists with another {}", list(.0))]
    Differs(Vec<Part>),
    #[error("the claim was deleted, or replaced by another one of the same name")]
    ClaimGone,
    /// The request is outdated.
    #[error(
        "the request is for {requested}, but the claim's selected node is {}: a new request is needed",
        .selected.as_deref().unwrap_or("no longer set")
    )]
    NodeDisagrees {
        selected: Option<String>,
        requested: String,
    },
    #[error("the real class turned out to be virtual itself (provisioner {0}): name a real one")]
    Loops(String),
    #[error(
        "the volume was handed over before, but its twin was deleted: the data may be lost, and an empty new volume would hide that"
    )]
    Vanished,
    #[error(
        "the volume was handed over before, but its twin is being deleted: the controller retains its PV and creates the twin again for it"
    )]
    Losing,
    #[error(
        "the volume was handed over before, and is being released: `liqo-csi release pvc` completes that"
    )]
    Releasing,
    /// It is being moved, or has moved.
    #[error(
        "the volume was handed over before, and this twin belongs to a move: it does not hold the data, or not for long. If this \
         cluster was restored from a backup, restore the claim together with its PersistentVolume"
    )]
    Moves,
    #[error("the volume was handed over before, but the PV of its twin was deleted: the data may be lost")]
    Lost,
    /// It was handed over, and is not accessible from the requested nodes.
    #[error(
        "the volume was handed over before and cannot be accessed from the node that is selected now, or from any of the requested nodes"
    )]
    HandedOverElsewhere,
    /// It is accessible from no node.
    #[error(transparent)]
    Nowhere(AffinityError),
    #[error("the volume does not hold a copy of its source: {0}")]
    NoCopy(&'static str),
}

fn list(parts: &[Part]) -> String {
    let names: Vec<String> = parts.iter().map(ToString::to_string).collect();
    names.join(" and ")
}
