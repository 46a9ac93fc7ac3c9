//! The gRPC edge: CSI services, what their requests mean, what their errors are
//! called, and the server on a unix socket. gRPC types stop here.

mod authority;
mod call;
mod controller;
mod identity;
pub mod node;
mod observed;
mod parse;
pub mod registration;
pub mod server;
mod socket;
mod status;
mod turns;
pub mod work;

pub use call::Deadline;
pub use controller::Controller;
pub use identity::{Identity, Role};
pub use socket::{Endpoint, EndpointError};
pub use turns::Turns;
