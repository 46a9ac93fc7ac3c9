//! Sends the request to the API server of the remote pod and passes the answer on: the bytes of logs and streams are
//! copied unparsed. The caller of this module has authorized the request and verified the pod.

use std::{sync::Arc, time::Duration};

use axum::body::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode,
    header::{
        CONNECTION, CONTENT_TYPE, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_EXTENSIONS, SEC_WEBSOCKET_KEY,
        SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
    },
};
use http_body_util::{BodyExt, Limited};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use kube::{client::Body, core::Status};
use tokio::time::timeout;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::BoxError;

use super::{
    Answer, Refusal,
    copying::copy,
    metrics::Open,
    refusal::{passed_on, text},
    request::{Kind, StreamRequest},
    target::Target,
};
use crate::cluster::{plain, short};

/// Header with the version of the protocol inside a stream.
const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// The request headers that are passed on.
const REQUEST_HEADERS: [HeaderName; 5] = [
    STREAM_PROTOCOL,
    SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_VERSION,
    SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_EXTENSIONS,
];
/// The headers of the answer that are passed on.
const ANSWER_HEADERS: [HeaderName; 5] = [
    UPGRADE,
    STREAM_PROTOCOL,
    SEC_WEBSOCKET_ACCEPT,
    SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_EXTENSIONS,
];
/// Browsers send their token as a WebSocket protocol with this prefix. It must not reach the remote cluster.
const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";
/// Bytes that are read of an error.
const LONGEST_REFUSAL: usize = 64 << 10;
/// The timeout of the upgrade of both connections.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(super) struct Relay {
    /// The timeout of the answer of an API server.
    pub(super) answer: Duration,
    /// How long one side of a stream may send nothing after the other has closed.
    pub(super) linger: Duration,
    pub(super) streams: TaskTracker,
    /// Ends all streams.
    pub(super) cut: CancellationToken,
}

impl Relay {
    /// Relays a request. `upgrade` is of the caller's connection.
    pub(super) async fn relay(
        &self,
        stream: &StreamRequest,
        target: &Target,
        method: Method,
        headers: &HeaderMap,
        upgrade: OnUpgrade,
        open: Open,
    ) -> Result<Answer, Refusal> {
        if stream.kind == Kind::Logs {
            return self.log(stream, target, open).await;
        }
        let mut request = Request::new(Body::empty());
        *request.method_mut() = method;
        *request.uri_mut() = target.uri(&stream.path(&target.namespace))?;
        *request.headers_mut() = stream_headers(headers).ok_or(Refusal::NoUpgrade)?;
        let answer = self.send(target, request, true).await?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            return self.refused(stream, target, answer).await;
        }
        let passed = pick_headers(answer.headers(), &ANSWER_HEADERS);
        self.streams
            .spawn(self.clone().stream(upgrade, hyper::upgrade::on(answer), open));
        let mut answer = text(StatusCode::SWITCHING_PROTOCOLS, String::new());
        *answer.headers_mut() = passed;
        answer
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        Ok(answer)
    }

    /// Relays a log, which may last as long as its container.
    async fn log(&self, stream: &StreamRequest, target: &Target, open: Open) -> Result<Answer, Refusal> {
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = target.uri(&stream.path(&target.namespace))?;
        // The API server sends no headers before the container writes something.
        let answer = self.send(target, request, !stream.follows()).await?;
        if answer.status() != StatusCode::OK {
            return self.refused(stream, target, answer).await;
        }
        let kind = pick_headers(answer.headers(), &[CONTENT_TYPE]);
        // Counts as open until the body is dropped.
        let open = Arc::new(open);
        let body = answer
            .into_body()
            .map_frame(move |frame| {
                let _open = &open;
                frame
            })
            .map_err(BoxError::from);
        let mut answer = Response::new(body.boxed_unsync());
        *answer.headers_mut() = kind;
        Ok(answer)
    }

    async fn send(
        &self,
        target: &Target,
        request: Request<Body>,
        is_timed: bool,
    ) -> Result<Response<Body>, Refusal> {
        let most = if is_timed { self.answer } else { Duration::MAX };
        let cluster = || target.cluster.to_string();
        let sent = timeout(most, target.client.send(request)).await;
        sent.map_err(|_| Refusal::Timeout(cluster(), most))?
            .map_err(|error| Refusal::BadAnswer(cluster(), plain(&error)))
    }

    /// Passes on an error.
    async fn refused(
        &self,
        stream: &StreamRequest,
        target: &Target,
        answer: Response<Body>,
    ) -> Result<Answer, Refusal> {
        let (status, cluster) = (answer.status(), || target.cluster.to_string());
        if !status.is_client_error() && !status.is_server_error() {
            let why = format!("{status} to a request for a stream");
            return Err(Refusal::BadAnswer(cluster(), why));
        }
        if status == StatusCode::UNAUTHORIZED {
            // Clients would report that their user is not logged in here.
            let why = "it does not accept the credentials of its RemoteCluster".to_owned();
            return Err(Refusal::BadAnswer(cluster(), why));
        }
        let status = passed_on(stream.kind, status);
        let kind = pick_headers(answer.headers(), &[CONTENT_TYPE]);
        let body = Limited::new(answer.into_body(), LONGEST_REFUSAL).collect();
        let body = timeout(self.answer, body).await;
        let body = body.map_err(|_| Refusal::Timeout(cluster(), self.answer))?;
        let body = body.map_err(|error| Refusal::BadAnswer(cluster(), short(&error.to_string())))?;
        let body: Bytes = body.to_bytes();
        // Clients parse a Status in answer to a stream, but print the answer to a log.
        if stream.kind == Kind::Logs
            && let Ok(Status { message, .. }) = serde_json::from_slice(&body)
        {
            return Ok(text(status, short(&message)));
        }
        let mut answer = text(status, String::from_utf8_lossy(&body).into_owned());
        answer.headers_mut().extend(kind);
        Ok(answer)
    }

    /// Copies the bytes of both sides after their upgrades.
    async fn stream(self, home: OnUpgrade, there: OnUpgrade, open: Open) {
        let copied = async {
            let both = async { tokio::try_join!(home, there) };
            let (home, there) = timeout(UPGRADE_TIMEOUT, both).await??;
            copy(TokioIo::new(home), TokioIo::new(there), self.linger).await?;
            Ok::<(), BoxError>(())
        };
        match self.cut.run_until_cancelled(copied).await {
            Some(Ok(())) | None => {}
            // A client that closes early resets the connection.
            Some(Err(why)) => tracing::debug!(why = short(&why.to_string()), "a stream broke"),
        }
        drop(open);
    }
}

/// The headers for the remote API server; `None` if this is no request for a stream.
fn stream_headers(from: &HeaderMap) -> Option<HeaderMap> {
    let upgrade = from.get(UPGRADE)?;
    let is = |name: &str| upgrade.as_bytes().eq_ignore_ascii_case(name.as_bytes());
    if !is("SPDY/3.1") && !is("websocket") {
        return None;
    }
    let mut headers = pick_headers(from, &REQUEST_HEADERS);
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, upgrade.clone());
    if let Some(protocols) = without_tokens(from) {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, protocols);
    } else {
        headers.remove(SEC_WEBSOCKET_PROTOCOL);
    }
    Some(headers)
}

/// The `WebSocket` protocols, without those that are credentials.
fn without_tokens(from: &HeaderMap) -> Option<HeaderValue> {
    let protocols: Vec<&str> = from
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|protocol| !protocol.is_empty() && !protocol.starts_with(TOKEN_PROTOCOL))
        .collect();
    HeaderValue::from_str(&protocols.join(", "))
        .ok()
        .filter(|value| !value.is_empty())
}

fn pick_headers(headers: &HeaderMap, which: &[HeaderName]) -> HeaderMap {
    let mut copied = HeaderMap::new();
    for name in which {
        for value in headers.get_all(name) {
            copied.append(name.clone(), value.clone());
        }
    }
    copied
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        let all = all
            .iter()
            .map(|&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        all.collect()
    }

    #[test]
    fn stream_headers_are_passed_on_without_credentials() {
        let mut given = headers(&[
            ("connection", "Upgrade"),
            ("upgrade", "SPDY/3.1"),
            ("authorization", "Bearer secret"),
            ("cookie", "secret"),
            ("impersonate-user", "admin"),
            ("x-forwarded-for", "10.0.0.1"),
        ]);
        for version in ["v5.channel.k8s.io", "v4.channel.k8s.io"] {
            given.append(STREAM_PROTOCOL, HeaderValue::from_static(version));
        }
        let passed = stream_headers(&given).unwrap();
        let mut expected = headers(&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")]);
        for version in ["v5.channel.k8s.io", "v4.channel.k8s.io"] {
            expected.append(STREAM_PROTOCOL, HeaderValue::from_static(version));
        }
        assert_eq!(passed, expected);
    }

    #[test]
    fn a_token_among_websocket_protocols_is_not_passed_on() {
        let mut given = headers(&[("upgrade", "websocket"), ("sec-websocket-version", "13")]);
        for protocols in [
            "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0",
            "base64url.bearer.authorization.k8s.io.c2VjcmV0,v4.channel.k8s.io",
        ] {
            given.append(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocols));
        }
        let passed = stream_headers(&given).unwrap();
        assert_eq!(
            passed.get_all(SEC_WEBSOCKET_PROTOCOL).iter().collect::<Vec<_>>(),
            ["v5.channel.k8s.io, v4.channel.k8s.io"]
        );
        let only = headers(&[
            ("upgrade", "websocket"),
            (
                "sec-websocket-protocol",
                "base64url.bearer.authorization.k8s.io.c2VjcmV0",
            ),
        ]);
        assert!(
            !stream_headers(&only)
                .unwrap()
                .contains_key(SEC_WEBSOCKET_PROTOCOL)
        );
    }

    #[test]
    fn only_known_upgrades_are_passed_on() {
        assert!(stream_headers(&HeaderMap::new()).is_none());
        assert!(stream_headers(&headers(&[("upgrade", "h2c")])).is_none());
        assert!(stream_headers(&headers(&[("upgrade", "WebSocket")])).is_some());
    }
}
