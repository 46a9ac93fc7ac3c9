//! The gRPC services: the CSI services, the parsing of their requests, the codes of their errors, and
//! the server on a unix socket. gRPC types are not used outside this module.

mod authority;
mod call;
mod controller;
mod identity;
mod limiter;
pub mod node;
mod observed;
mod parse;
pub mod registration;
pub mod server;
mod snapshots;
mod socket;
mod status;
pub mod work;

pub use call::Deadline;
pub use controller::Controller;
pub use identity::{Identity, Role};
pub use limiter::CreateLimiter;
pub use socket::{Endpoint, EndpointError};
