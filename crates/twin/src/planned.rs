//! How a twin is to be made.

use crate::volume::AccessMode;

/// How a twin is to be made.
#[derive(Debug)]
pub enum Plan {
    /// Like this.
    Make(Planned),
    /// Not for this node, or for none.
    Unfit(String),
}

/// What is decided about a twin before it is made.
#[derive(Debug, Default)]
pub struct Planned {
    pub class: String,
    pub provisioner: Option<String>,
    /// The node it is told.
    pub node: Option<String>,
    /// The access modes it has instead of those asked for.
    pub access_modes: Option<Vec<AccessMode>>,
    /// Whether it may be answered for before it is bound.
    pub answered_early: bool,
}
