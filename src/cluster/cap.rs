//! A limit on the size of what an API server may answer, so that no cluster can
//! make us swallow more than we can hold. Watches are endless by nature and read
//! line by line: each line has the limit.

use std::{
    error::Error,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use axum::{
    body::{Bytes, HttpBody},
    http::{Request, Response},
};
use futures::StreamExt;
use http_body_util::{BodyExt, BodyStream, StreamBody, combinators::UnsyncBoxBody};
use kube::client::Body;
use tower::{BoxError, Layer, Service};

/// A page of objects is a few MiB, a single object at most 1.5 MiB.
const LONGEST_ANSWER: usize = 32 << 20;

/// The cap speaking.
#[derive(Debug, thiserror::Error)]
#[error("it is longer than {LONGEST_ANSWER} bytes")]
struct TooLong;

/// Caps the answers of the service below.
#[derive(Clone, Copy)]
pub(super) struct Cap;

impl<S> Layer<S> for Cap {
    type Service = Capped<S>;

    fn layer(&self, inner: S) -> Capped<S> {
        Capped(inner)
    }
}

#[derive(Clone)]
pub(super) struct Capped<S>(S);

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
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let endless = request
            .uri()
            .query()
            .is_some_and(|query| query.contains("watch=true"));
        let answer = self.0.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| capped(body, endless))) })
    }
}

fn capped<B>(body: B, endless: bool) -> UnsyncBoxBody<Bytes, BoxError>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let mut length = 0;
    let frames = BodyStream::new(body).map(move |frame| {
        let frame = frame.map_err(Into::into)?;
        if let Some(data) = frame.data_ref() {
            let line = data.iter().rposition(|&byte| byte == b'\n').filter(|_| endless);
            length = line.map_or(length + data.len(), |end| data.len() - end - 1);
        }
        if length > LONGEST_ANSWER {
            return Err(TooLong.into());
        }
        Ok(frame)
    });
    StreamBody::new(frames).boxed_unsync()
}

/// Whether this is the cap speaking.
pub(super) fn is_too_long(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<TooLong>() {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    async fn read(text: Vec<u8>, endless: bool) -> Result<usize, BoxError> {
        let read = capped(Full::new(Bytes::from(text)), endless).collect().await;
        read.map(|read| read.to_bytes().len())
    }

    #[tokio::test]
    async fn an_answer_has_a_limit_and_so_has_each_line_of_a_watch() {
        let long = || vec![b'x'; LONGEST_ANSWER + 1];
        for endless in [true, false] {
            let error = read(long(), endless).await.unwrap_err();
            assert!(is_too_long(error.as_ref()));
        }
        let mut lines = long();
        lines[10] = b'\n';
        assert!(read(lines.clone(), false).await.is_err());
        assert_eq!(read(lines, true).await.unwrap(), LONGEST_ANSWER + 1);
    }
}
