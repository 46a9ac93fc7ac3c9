//! The same request to the API server of the remote pod, and what comes of it: a log is passed on
//! as it comes, and once a stream is open its bytes are copied, whatever they mean. Whether the
//! caller may, and which pod it is, was decided before.

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
    asked::{Asked, Kind},
    copying::copy,
    metrics::Open,
    refusal::text,
    target::Target,
};
use crate::cluster::{plain, short};

/// By which both ends agree on how the channels in a stream are used.
const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// What a request says of the stream that is to be.
const ASKED: [HeaderName; 5] = [
    STREAM_PROTOCOL,
    SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_VERSION,
    SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_EXTENSIONS,
];
/// What the answer says of it.
const ANSWERED: [HeaderName; 5] = [
    UPGRADE,
    STREAM_PROTOCOL,
    SEC_WEBSOCKET_ACCEPT,
    SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_EXTENSIONS,
];
/// A browser's token comes as a protocol of this name. It is of this cluster, and for nobody else.
const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";
/// What is read of an answer that says no.
const LONGEST_REFUSAL: usize = 64 << 10;
/// For a caller to take the answer that begins a stream.
const OPENING: Duration = Duration::from_secs(10);

/// How requests are relayed.
#[derive(Clone)]
pub(super) struct Relay {
    /// For an API server to answer.
    pub(super) answer: Duration,
    /// For one side of a stream to be silent when the other has left.
    pub(super) linger: Duration,
    /// The streams that are open.
    pub(super) streams: TaskTracker,
    /// Ends them.
    pub(super) cut: CancellationToken,
}

impl Relay {
    /// Does in the remote cluster what is asked here. `upgrade` is of the caller's connection.
    pub(super) async fn relay(
        &self,
        asked: &Asked,
        target: &Target,
        method: Method,
        headers: &HeaderMap,
        upgrade: OnUpgrade,
        open: Open,
    ) -> Result<Answer, Refusal> {
        if asked.kind == Kind::Logs {
            return self.log(asked, target, open).await;
        }
        let mut request = Request::new(Body::empty());
        *request.method_mut() = method;
        *request.uri_mut() = target.uri(&asked.path(&target.namespace))?;
        *request.headers_mut() = stream_headers(headers).ok_or(Refusal::NoUpgrade)?;
        let answer = self.send(target, request, true).await?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            return self.refused(asked, target, answer).await;
        }
        let passed = copied(answer.headers(), &ANSWERED);
        self.streams
            .spawn(self.clone().stream(upgrade, hyper::upgrade::on(answer), open));
        let mut answer = text(StatusCode::SWITCHING_PROTOCOLS, String::new());
        *answer.headers_mut() = passed;
        answer
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        Ok(answer)
    }

    /// A log: text that may go on for as long as its container.
    async fn log(&self, asked: &Asked, target: &Target, open: Open) -> Result<Answer, Refusal> {
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = target.uri(&asked.path(&target.namespace))?;
        // An API server says nothing before there is something to say.
        let answer = self.send(target, request, !asked.follows()).await?;
        if answer.status() != StatusCode::OK {
            return self.refused(asked, target, answer).await;
        }
        let kind = copied(answer.headers(), &[CONTENT_TYPE]);
        // Held for as long as the body is.
        let held = Arc::new(open);
        let body = answer
            .into_body()
            .map_frame(move |frame| {
                let _held = &held;
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
        sent.map_err(|_| Refusal::Silent(cluster(), most))?
            .map_err(|error| Refusal::Broken(cluster(), plain(&error)))
    }

    /// An answer that says no, as it was said.
    async fn refused(
        &self,
        asked: &Asked,
        target: &Target,
        answer: Response<Body>,
    ) -> Result<Answer, Refusal> {
        let (status, cluster) = (answer.status(), || target.cluster.to_string());
        if !status.is_client_error() && !status.is_server_error() {
            let why = format!("it says {status} to a request for a stream");
            return Err(Refusal::Broken(cluster(), why));
        }
        let kind = copied(answer.headers(), &[CONTENT_TYPE]);
        let body = Limited::new(answer.into_body(), LONGEST_REFUSAL).collect();
        let body = timeout(self.answer, body).await;
        let body = body.map_err(|_| Refusal::Silent(cluster(), self.answer))?;
        let body = body.map_err(|error| Refusal::Broken(cluster(), short(&error.to_string())))?;
        let said: Bytes = body.to_bytes();
        // Whoever asked for a stream reads a Status; who asked for a log takes it for text.
        if asked.kind == Kind::Logs
            && let Ok(Status { message, .. }) = serde_json::from_slice(&said)
        {
            return Ok(text(status, short(&message)));
        }
        let mut answer = text(status, String::from_utf8_lossy(&said).into_owned());
        answer.headers_mut().extend(kind);
        Ok(answer)
    }

    /// Passes on what is said on both sides, once they have stopped to speak HTTP.
    async fn stream(self, home: OnUpgrade, there: OnUpgrade, open: Open) {
        let copied = async {
            let both = async { tokio::try_join!(home, there) };
            let (home, there) = timeout(OPENING, both).await??;
            copy(TokioIo::new(home), TokioIo::new(there), self.linger).await?;
            Ok::<(), BoxError>(())
        };
        match self.cut.run_until_cancelled(copied).await {
            Some(Ok(())) | None => {}
            // Whoever leaves in the middle resets the connection.
            Some(Err(why)) => tracing::debug!(why = short(&why.to_string()), "a stream broke"),
        }
        drop(open);
    }
}

/// What is said to an API server of a stream, if one is asked for that it is known to be.
fn stream_headers(asked: &HeaderMap) -> Option<HeaderMap> {
    let upgrade = asked.get(UPGRADE)?;
    let is = |name: &str| upgrade.as_bytes().eq_ignore_ascii_case(name.as_bytes());
    if !is("SPDY/3.1") && !is("websocket") {
        return None;
    }
    let mut headers = copied(asked, &ASKED);
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, upgrade.clone());
    if let Some(protocols) = without_tokens(asked) {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, protocols);
    } else {
        headers.remove(SEC_WEBSOCKET_PROTOCOL);
    }
    Some(headers)
}

/// The protocols of a `WebSocket`, without those that are credentials.
fn without_tokens(asked: &HeaderMap) -> Option<HeaderValue> {
    let protocols: Vec<&str> = asked
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

fn copied(headers: &HeaderMap, which: &[HeaderName]) -> HeaderMap {
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
    fn what_is_said_of_a_stream_is_passed_on_and_no_credential() {
        let mut asked = headers(&[
            ("connection", "Upgrade"),
            ("upgrade", "SPDY/3.1"),
            ("authorization", "Bearer secret"),
            ("cookie", "secret"),
            ("impersonate-user", "admin"),
            ("x-forwarded-for", "10.0.0.1"),
        ]);
        for version in ["v5.channel.k8s.io", "v4.channel.k8s.io"] {
            asked.append(STREAM_PROTOCOL, HeaderValue::from_static(version));
        }
        let passed = stream_headers(&asked).unwrap();
        let mut expected = headers(&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")]);
        for version in ["v5.channel.k8s.io", "v4.channel.k8s.io"] {
            expected.append(STREAM_PROTOCOL, HeaderValue::from_static(version));
        }
        assert_eq!(passed, expected);
    }

    #[test]
    fn a_token_among_the_protocols_of_a_websocket_stays_here() {
        let mut asked = headers(&[("upgrade", "websocket"), ("sec-websocket-version", "13")]);
        for protocols in [
            "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0",
            "base64url.bearer.authorization.k8s.io.c2VjcmV0,v4.channel.k8s.io",
        ] {
            asked.append(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocols));
        }
        let passed = stream_headers(&asked).unwrap();
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
    fn only_what_is_known_to_be_a_stream_is_asked_for() {
        assert!(stream_headers(&HeaderMap::new()).is_none());
        assert!(stream_headers(&headers(&[("upgrade", "h2c")])).is_none());
        assert!(stream_headers(&headers(&[("upgrade", "WebSocket")])).is_some());
    }
}
