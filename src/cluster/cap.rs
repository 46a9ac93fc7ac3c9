//! A limit on the size of what an API server may answer, so that no cluster can
//! make us swallow more than we can hold. Watches are endless by nature and are
//! exempt: they are read line by line.

use std::{
    error::Error,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use axum::http::{Request, Response};
use http_body_util::{LengthLimitError, Limited};
use kube::client::Body;
use tower::{BoxError, Layer, Service};

/// A page of objects is a few MiB, a single object at most 1.5 MiB.
const LONGEST_ANSWER: usize = 32 << 20;

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
{
    type Response = Response<Limited<B>>;
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
        let limit = if endless { usize::MAX } else { LONGEST_ANSWER };
        let answer = self.0.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| Limited::new(body, limit))) })
    }
}

/// Whether this is the cap speaking.
pub(super) fn is_too_long(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<LengthLimitError>() {
            return true;
        }
        next = error.source();
    }
    false
}
