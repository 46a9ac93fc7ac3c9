//! The remote clusters, whoever declared them. Three questions are answered: which
//! cluster is this node, which namespace there is this namespace, how is it
//! reached. Nobody else knows which fabric is installed.
//!
//! ```text
//!  RemoteCluster ─┐
//!  Liqo ──────────┼─ sources ─▶ declared ─▶ keeper ─▶ one link per cluster ─▶ Remote
//!  Kosmos ────────┘                                   (vetted, probed, rotated)
//! ```

mod declaration;
mod installed;
mod keeper;
mod kosmos;
pub mod kubeconfig;
mod link;
mod liqo;
mod native;
mod registry;

pub use self::{
    keeper::{Settings, keep},
    link::{Connected, Link},
    registry::{Closed, NodeKind, Registry, Remote, Unreachable},
};
