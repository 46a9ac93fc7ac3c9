//! Limits on the answers of an API server, so that no cluster can exhaust the memory of this process.
//! Watches have no end and are read line by line: each line has the limits of an answer.
//!
//! The size of the text is not enough. Parsed, a JSON value of three bytes may become a struct of hundreds
//! of bytes, so the number of values is limited too. And an endless stream takes time of the whole process,
//! so the rate is limited.

use std::{
    error::Error,
    future::Future,
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Bytes, HttpBody},
    http::{Request, Response},
};
use futures::StreamExt;
use http_body_util::{BodyExt, BodyStream, StreamBody, combinators::UnsyncBoxBody};
use kube::client::Body;
use tokio::time::Instant;
use tower::{BoxError, Layer, Service};

#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Bytes of a page of a list.
    list: usize,
    /// Bytes of a single object, or of one line of a watch.
    object: usize,
    /// Bytes of an error answer.
    refusal: usize,
    /// JSON values in any of them.
    values: usize,
    /// Bytes per second, and the size of a burst.
    pace: Option<(usize, usize)>,
}

impl Limits {
    /// For the home cluster, which is trusted and may be large.
    pub(super) const HOME: Self = Self {
        // Pages are made smaller until they fit. Parsed, a page may take ten times as much.
        list: 8 << 20,
        object: 32 << 20,
        refusal: 32 << 20,
        values: usize::MAX,
        pace: None,
    };

    /// For a remote cluster. An object in etcd is at most 1.5 MiB, and more as JSON: writing a large copy of
    /// a Secret returns all of it. Other objects that are read seldom have more than some KiB.
    pub(super) const REMOTE: Self = Self {
        list: 4 << 20,
        object: 3 << 20,
        refusal: 64 << 10,
        values: 200_000,
        pace: Some((4 << 20, 64 << 20)),
    };

    /// The maximum number of bytes in the answer to a request.
    fn longest(&self, query: &str, refused: bool) -> usize {
        if refused {
            self.refusal
        } else if query.split('&').any(|it| it == "limit=1") {
            self.list.max(self.object)
        } else if query.contains("limit=") {
            self.list
        } else {
            self.object
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum LimitExceeded {
    #[error("it is longer than {0} bytes")]
    Bytes(usize),
    #[error("it has more than {0} values")]
    Values(usize),
}

/// Applies the limits to the answers of the inner service.
#[derive(Clone)]
pub(super) struct Cap {
    limits: Limits,
    pace: Arc<Pace>,
}

impl Cap {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            pace: Arc::new(Pace::new(limits.pace)),
        }
    }
}

impl<S> Layer<S> for Cap {
    type Service = Capped<S>;

    fn layer(&self, inner: S) -> Capped<S> {
        Capped {
            inner,
            cap: self.clone(),
        }
    }
}

#[derive(Clone)]
pub(super) struct Capped<S> {
    inner: S,
    cap: Cap,
}

impl<S, B> Service<Request<Body>> for Capped<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<UnsyncBoxBody<Bytes, BoxError>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let answer = self.inner.call(request);
        let Cap { limits, pace } = self.cap.clone();
        Box::pin(async move {
            let answer = answer.await?;
            let status = answer.status();
            let refused = status.is_client_error() || status.is_server_error();
            let reading = Reading {
                endless: query.contains("watch=true") && !refused,
                longest: limits.longest(&query, refused),
                most_values: limits.values,
                ..Reading::default()
            };
            Ok(answer.map(|body| capped(body, reading, pace)))
        })
    }
}

fn capped<B>(body: B, mut reading: Reading, pace: Arc<Pace>) -> UnsyncBoxBody<Bytes, BoxError>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let frames = BodyStream::new(body).then(move |frame| {
        let frame = frame.map_err(Into::into);
        let data = match &frame {
            Ok(frame) => frame.data_ref(),
            Err(_) => None,
        };
        let length = data.map_or(0, Bytes::len);
        let within = data.map_or(Ok(()), |data| reading.take(data));
        let pace = Arc::clone(&pace);
        async move {
            within?;
            pace.take(length).await;
            frame
        }
    });
    StreamBody::new(frames).boxed_unsync()
}

/// How much of an answer, or of a line of a watch, was read.
#[derive(Default)]
struct Reading {
    endless: bool,
    longest: usize,
    most_values: usize,
    bytes: usize,
    values: usize,
    in_text: bool,
    escaped: bool,
}

impl Reading {
    fn take(&mut self, data: &[u8]) -> Result<(), LimitExceeded> {
        if self.most_values == usize::MAX {
            let end = || data.iter().rposition(|&byte| byte == b'\n');
            let line = self.endless.then(end).flatten();
            self.bytes = line.map_or(self.bytes + data.len(), |end| data.len() - end - 1);
        } else {
            for &byte in data {
                self.count_byte(byte)?;
            }
        }
        if self.bytes > self.longest {
            return Err(LimitExceeded::Bytes(self.longest));
        }
        Ok(())
    }

    fn count_byte(&mut self, byte: u8) -> Result<(), LimitExceeded> {
        self.bytes += 1;
        match byte {
            // JSON text contains no literal newline.
            b'\n' if self.endless => {
                (self.bytes, self.values) = (0, 0);
                (self.in_text, self.escaped) = (false, false);
            }
            _ if self.escaped => self.escaped = false,
            b'\\' if self.in_text => self.escaped = true,
            b'"' => self.in_text = !self.in_text,
            b'{' | b'[' | b',' if !self.in_text => self.values += 1,
            _ => {}
        }
        if self.values > self.most_values {
            return Err(LimitExceeded::Values(self.most_values));
        }
        if self.bytes > self.longest {
            return Err(LimitExceeded::Bytes(self.longest));
        }
        Ok(())
    }
}

/// Limits the rate at which a cluster is read, so that an endless answer delays only its own reader.
struct Pace {
    /// Bytes per second, and the size of a burst.
    limits: Option<(usize, usize)>,
    /// When everything that was read would have been read at that rate.
    until: Mutex<Instant>,
}

impl Pace {
    fn new(limits: Option<(usize, usize)>) -> Self {
        Self {
            limits,
            until: Mutex::new(Instant::now()),
        }
    }

    async fn take(&self, bytes: usize) {
        if let Some(wait) = self.wait(bytes) {
            tokio::time::sleep(wait).await;
        }
    }

    fn wait(&self, bytes: usize) -> Option<Duration> {
        let (per_second, at_once) = self.limits?;
        let time = |bytes: usize| {
            let nanos = bytes as u128 * 1_000_000_000 / per_second.max(1) as u128;
            Duration::from_nanos(nanos.try_into().unwrap_or(u64::MAX))
        };
        let now = Instant::now();
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        *until = (*until).max(now) + time(bytes);
        until
            .checked_duration_since(now + time(at_once))
            .filter(|wait| !wait.is_zero())
    }
}

/// Whether the error is an exceeded limit.
pub(super) fn is_limit_exceeded(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<LimitExceeded>() {
            return true;
        }
        // An `io::Error` returns the source of its inner error, and hides the inner error itself.
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match wrapped {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        };
    }
    false
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    async fn read(text: Vec<u8>, limits: Limits, endless: bool) -> Result<usize, BoxError> {
        let reading = Reading {
            endless,
            longest: limits.list,
            most_values: limits.values,
            ..Reading::default()
        };
        let body = capped(Full::new(Bytes::from(text)), reading, Arc::new(Pace::new(None)));
        body.collect().await.map(|read| read.to_bytes().len())
    }

    #[tokio::test]
    async fn an_answer_has_a_limit_and_so_has_each_line_of_a_watch() {
        for limits in [Limits::HOME, Limits::REMOTE] {
            let long = || vec![b'x'; limits.list + 1];
            for endless in [true, false] {
                let error = read(long(), limits, endless).await.unwrap_err();
                assert!(is_limit_exceeded(error.as_ref()));
            }
            let mut lines = long();
            lines[10] = b'\n';
            assert!(read(lines.clone(), limits, false).await.is_err());
            assert_eq!(read(lines, limits, true).await.unwrap(), limits.list + 1);
        }
    }

    #[tokio::test]
    async fn many_small_values_exceed_the_limit() {
        let items = |count: usize| format!("{{\"items\":[{}]}}", vec!["{}"; count].join(","));
        let most = Limits::REMOTE.values;
        assert!(read(items(most / 3).into(), Limits::REMOTE, false).await.is_ok());
        let error = read(items(most / 2 + 1).into(), Limits::REMOTE, false).await;
        assert!(is_limit_exceeded(error.unwrap_err().as_ref()));
        let text = format!("\"\\\"{}\"", "{,".repeat(most));
        assert!(
            read(text.into(), Limits::REMOTE, false).await.is_ok(),
            "text is one value"
        );
        let lines = format!("{}\n", items(most / 3)).repeat(4);
        assert!(read(lines.into(), Limits::REMOTE, true).await.is_ok());
    }

    #[test]
    fn the_limit_of_an_answer_depends_on_the_request() {
        let limits = Limits::REMOTE;
        let (list, object) = (limits.longest("limit=100", false), limits.longest("", false));
        assert!(list > object && object > limits.longest("limit=100", true));
    }

    #[tokio::test(start_paused = true)]
    async fn an_endless_watch_is_read_at_a_limited_rate() {
        let pace = Pace::new(Some((1000, 5000)));
        let started = Instant::now();
        for _ in 0..5 {
            pace.take(1000).await;
        }
        assert_eq!(started.elapsed(), Duration::ZERO, "so much may come at once");
        for _ in 0..10 {
            pace.take(1000).await;
        }
        let (elapsed, expected) = (started.elapsed(), Duration::from_secs(10));
        assert!(elapsed >= expected && elapsed < expected * 2, "{elapsed:?}");
    }
}
