//! Why something that was asked is not done, and how that is told. API servers pass on what is
//! said here to whoever asked them, so it is plain text, as a kubelet's is.

use std::time::Duration;

use axum::http::{HeaderValue, Response, StatusCode, header};
use http::Method;
use http_body_util::{BodyExt, Full};

use super::Answer;
use crate::{cluster::ApiError, fleet::Unreachable};

/// Why something that was asked is not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    /// Whoever asks says not who that is, or it is not believed.
    #[error("Unauthorized: neither a certificate of this cluster's client CA nor a valid token was shown")]
    Stranger,
    /// Whoever asks may not.
    #[error("Forbidden ({who}, verb={verb}, resource=nodes, subresource={part}, node={node})")]
    Forbidden {
        who: String,
        verb: &'static str,
        part: &'static str,
        node: String,
    },
    /// It is none of what is served.
    #[error("404 page not found")]
    NotServed,
    /// It is served, but not by this method.
    #[error("it is not served by {0}")]
    Method(Method),
    /// It was not asked for as a stream.
    #[error("the request has to ask for an upgrade, to SPDY/3.1 or websocket")]
    NoUpgrade,
    /// No virtual node has the port at which it is asked for.
    #[error("no virtual node has the port {0}")]
    NoNode(u16),
    /// There is no such pod, at home or there.
    #[error("{0}")]
    NoPod(String),
    /// Nobody knows what pods use.
    #[error("{0}")]
    NoUsage(String),
    /// The pod there is not the one that runs for the pod at home.
    #[error("{0}")]
    Foreign(String),
    /// There are too many streams.
    #[error("this fabric has {0} streams open and takes no more now")]
    Busy(usize),
    /// A cluster cannot be asked which pod it is.
    #[error("{0}")]
    Unknown(#[from] ApiError),
    /// The remote cluster cannot be reached.
    #[error("{0}")]
    Unreachable(#[from] Unreachable),
    /// The remote cluster takes the request, and says nothing.
    #[error("the cluster {0} has not answered within {1:?}")]
    Silent(String, Duration),
    /// The remote cluster says what cannot be passed on.
    #[error("the cluster {0} did not answer as it should: {1}")]
    Broken(String, String),
}

impl Refusal {
    fn status(&self) -> StatusCode {
        match self {
            Self::Stranger => StatusCode::UNAUTHORIZED,
            Self::Forbidden { .. } => StatusCode::FORBIDDEN,
            Self::NotServed | Self::NoNode(_) | Self::NoPod(_) | Self::NoUsage(_) => StatusCode::NOT_FOUND,
            Self::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::NoUpgrade => StatusCode::BAD_REQUEST,
            Self::Foreign(_) => StatusCode::CONFLICT,
            Self::Busy(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Unknown(_) | Self::Unreachable(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Silent(..) => StatusCode::GATEWAY_TIMEOUT,
            Self::Broken(..) => StatusCode::BAD_GATEWAY,
        }
    }

    /// The answer that says so.
    pub(super) fn answer(&self) -> Answer {
        text(self.status(), format!("{self}\n"))
    }
}

/// An answer in plain text.
pub(super) fn text(status: StatusCode, text: String) -> Answer {
    let body = Full::from(text).map_err(|never| match never {}).boxed_unsync();
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}
