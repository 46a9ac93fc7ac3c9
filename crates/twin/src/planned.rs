//! The plan for a new twin.

use crate::volume::AccessMode;

/// The plan for a new twin.
#[derive(Debug)]
pub enum Plan {
    Make(Planned),
    /// The selected node cannot have the twin, or no node can; why.
    Unfit(String),
}

/// What is decided about a twin before it is created.
#[derive(Debug, Default)]
pub struct Planned {
    pub class: String,
    pub provisioner: Option<String>,
    /// The node that is selected for the twin.
    pub node: Option<String>,
    /// Access modes, if they differ from those of the request.
    pub access_modes: Option<Vec<AccessMode>>,
    /// Whether `CreateVolume` may succeed before the twin is bound.
    pub answered_early: bool,
}
