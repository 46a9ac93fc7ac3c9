//! The final noes of `CreateVolume`, in words for whoever waits for the volume.

use crate::{
    topology::AffinityError,
    volume::{Foreign, Part},
};

/// Why there will be no volume, or why it is not handed over (again).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Something else is in the twin's place.
    #[error("the twin's place is taken by an object that is not ours: {0}. Rename or remove it")]
    Foreign(Foreign),
    /// The volume exists and is different.
    #[error("a volume of this name exists, made with another {}", list(.0))]
    Differs(Vec<Part>),
    /// Nobody waits for it.
    #[error("the claim is gone, or another one has its name now")]
    ClaimGone,
    /// The request is old.
    #[error(
        "the request asks for {requested}, but the claim's selected node is {}: it has to be asked for again",
        .selected.as_deref().unwrap_or("no longer set")
    )]
    NodeDisagrees {
        /// Node selected for the claim.
        selected: Option<String>,
        /// Place the request asks for.
        requested: String,
    },
    /// The real class is virtual.
    #[error("the real class turned out to be virtual itself (provisioner {0}): name a real one")]
    Loops(String),
    /// It was given away and is gone.
    #[error(
        "the volume was handed over before, but its twin is gone: the data may be lost, and an empty volume in its place would hide that"
    )]
    Vanished,
    /// It was given away and is being deleted.
    #[error(
        "the volume was handed over before, but its twin is being deleted: its PV is to be retained, and the twin made again onto it"
    )]
    Losing,
    /// It is being released.
    #[error("the volume was handed over before, and is being released: `liqo-csi release pvc` ends that")]
    Releasing,
    /// It is being moved, or has moved.
    #[error(
        "the volume was handed over before, and this twin of it belongs to a move: its data is not in it, or not for long. If this \
         cluster was restored from a backup, restore the claim together with its PersistentVolume"
    )]
    Moves,
    /// It was given away and its PV is gone.
    #[error("the volume was handed over before, but the PV of its twin is gone: the data may be lost")]
    Lost,
    /// It was given away and is somewhere else.
    #[error(
        "the volume was handed over before and cannot be reached from the node that was selected now, or from any that is asked for now"
    )]
    HandedOverElsewhere,
    /// Nobody reaches it.
    #[error(transparent)]
    Nowhere(AffinityError),
    /// It does not hold what it should be a copy of.
    #[error("the volume does not hold a copy of its source: {0}")]
    NoCopy(&'static str),
}

fn list(parts: &[Part]) -> String {
    let names: Vec<String> = parts.iter().map(ToString::to_string).collect();
    names.join(" and ")
}
