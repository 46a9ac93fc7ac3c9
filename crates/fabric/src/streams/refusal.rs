//! Refusals of requests, and the answers for them. API servers pass the text on to their clients, so it is plain text, as
//! a kubelet's.

use std::time::Duration;

use axum::http::{HeaderValue, Response, StatusCode, header};
use http::Method;
use http_body_util::{BodyExt, Full};

use super::{Answer, request::Kind};
use crate::{cluster::ApiError, fleet::Unreachable};

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error(
        "Unauthorized: neither a certificate of this cluster's client CA nor a valid token was presented"
    )]
    Unauthenticated,
    #[error("Forbidden ({who}, verb={verb}, resource=nodes, subresource={part}, node={node})")]
    Forbidden {
        who: String,
        verb: &'static str,
        part: &'static str,
        node: String,
    },
    /// The path is not served.
    #[error("404 page not found")]
    NotServed,
    /// The path is not served with this method.
    #[error("it is not served with the method {0}")]
    Method(Method),
    #[error("the request needs an upgrade to SPDY/3.1 or websocket")]
    NoUpgrade,
    #[error("no virtual node has the port {0}")]
    NoNode(u16),
    /// There is no such pod, at home or in the remote cluster.
    #[error("{0}")]
    NoPod(String),
    /// The usage of pods is unknown.
    #[error("{0}")]
    NoUsage(String),
    /// The pod in the remote cluster does not belong to the home pod.
    #[error("{0}")]
    Foreign(String),
    #[error("this fabric has {0} open streams and accepts no more now")]
    Busy(usize),
    /// A read of the home or remote cluster failed.
    #[error("{0}")]
    Unknown(#[from] ApiError),
    #[error("{0}")]
    Unreachable(#[from] Unreachable),
    #[error("the cluster {0} has not answered within {1:?}")]
    Timeout(String, Duration),
    /// The answer of the remote cluster cannot be passed on.
    #[error("unexpected answer of the cluster {0}: {1}")]
    BadAnswer(String, String),
}

impl Refusal {
    fn status(&self) -> StatusCode {
        match self {
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::Forbidden { .. } => StatusCode::FORBIDDEN,
            Self::NotServed | Self::NoNode(_) | Self::NoPod(_) | Self::NoUsage(_) => StatusCode::NOT_FOUND,
            Self::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::NoUpgrade => StatusCode::BAD_REQUEST,
            Self::Foreign(_) => StatusCode::CONFLICT,
            Self::Busy(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Unknown(_) | Self::Unreachable(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Timeout(..) => StatusCode::GATEWAY_TIMEOUT,
            Self::BadAnswer(..) => StatusCode::BAD_GATEWAY,
        }
    }

    pub(super) fn answer(&self) -> Answer {
        text(self.status(), format!("{self}\n"))
    }

    /// The answer to a request of this kind.
    pub(super) fn answer_to(&self, kind: Kind) -> Answer {
        text(passed_on(kind, self.status()), format!("{self}\n"))
    }
}

/// The status with which an API server passes on the text of an answer. For logs it replaces the texts of other codes
/// by its own, such as "the server is currently unable to handle the request" (`GenericHttpResponseChecker`).
pub(super) fn passed_on(kind: Kind, status: StatusCode) -> StatusCode {
    match (kind, status) {
        (Kind::Exec | Kind::Attach | Kind::PortForward, _)
        | (_, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS) => status,
        (Kind::Logs, _) if status.is_client_error() => StatusCode::BAD_REQUEST,
        (Kind::Logs, _) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

pub(super) fn text(status: StatusCode, text: String) -> Answer {
    let body = Full::from(text).map_err(|never| match never {}).boxed_unsync();
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}
