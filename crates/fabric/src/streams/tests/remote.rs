//! A fake API server of a remote cluster with streams.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use axum::body::Bytes;
use futures::{StreamExt, stream};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
    upgrade::Upgraded,
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::watch,
};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Its answer to every request.
#[derive(Clone)]
pub(super) enum Act {
    /// Opens a stream and echoes it.
    Echo,
    /// Opens a stream, reads to the end, and sends the bytes in reverse order.
    ReverseAtEnd,
    /// Opens a stream, sends this text and closes it.
    SendAndClose(&'static str),
    Refuse(u16, &'static str),
    /// Answers 200 without a stream.
    NoUpgrade,
    NoAnswer,
    /// Sends lines as they are added, until an empty one.
    Log(watch::Receiver<Vec<&'static str>>),
}

#[derive(Clone, Debug)]
pub(super) struct Received {
    pub(super) line: String,
    pub(super) headers: HeaderMap,
}

pub(super) struct Remote {
    pub(super) address: SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
    _stops: DropGuard,
}

impl Remote {
    pub(super) async fn start(act: Act) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let (log, stop) = (Arc::clone(&received), CancellationToken::new());
        tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (act, log) = (act.clone(), Arc::clone(&log));
                let service = service_fn(move |request| {
                    record(&log, &request);
                    answer(act.clone(), request)
                });
                let connection = http1::Builder::new().serve_connection(TokioIo::new(socket), service);
                tokio::spawn(connection.with_upgrades());
            }
        }));
        Self {
            address,
            received,
            _stops: stop.drop_guard(),
        }
    }

    pub(super) fn requests(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }
}

fn record(log: &Mutex<Vec<Received>>, request: &Request<Incoming>) {
    log.lock().unwrap().push(Received {
        line: format!("{} {}", request.method(), request.uri()),
        headers: request.headers().clone(),
    });
}

async fn answer(
    act: Act,
    mut request: Request<Incoming>,
) -> Result<Response<UnsyncBoxBody<Bytes, Infallible>>, Infallible> {
    let mut answer = Response::new(Empty::new().boxed_unsync());
    match act {
        Act::NoAnswer => std::future::pending().await,
        Act::NoUpgrade => {}
        Act::Refuse(code, body) => {
            *answer.status_mut() = StatusCode::from_u16(code).unwrap();
            *answer.body_mut() = Full::from(body).boxed_unsync();
            answer
                .headers_mut()
                .insert("content-type", "application/json".parse().unwrap());
        }
        Act::Log(lines) => {
            let lines = stream::unfold((lines, 0), |(mut lines, sent)| async move {
                let found = lines.wait_for(|all| all.len() > sent).await;
                let line = found.map_or("", |all| all[sent]);
                let frame = Frame::data(Bytes::from_static(line.as_bytes()));
                (!line.is_empty()).then(|| (Ok(frame), (lines, sent + 1)))
            });
            *answer.body_mut() = StreamBody::new(lines.boxed()).boxed_unsync();
        }
        Act::Echo | Act::ReverseAtEnd | Act::SendAndClose(_) => {
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move { run_stream(act, upgrade.await.unwrap()).await });
            *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            let asked = request.headers();
            for (name, value) in [
                ("connection", "Upgrade"),
                ("upgrade", asked["upgrade"].to_str().unwrap()),
                ("x-stream-protocol-version", "v4.channel.k8s.io"),
                ("set-cookie", "of=mine"),
            ] {
                answer.headers_mut().insert(name, value.parse().unwrap());
            }
        }
    }
    Ok(answer)
}

async fn run_stream(act: Act, stream: Upgraded) {
    let (mut reader, mut writer) = tokio::io::split(TokioIo::new(stream));
    match act {
        Act::ReverseAtEnd => {
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).await.unwrap();
            bytes.reverse();
            writer.write_all(&bytes).await.unwrap();
        }
        Act::SendAndClose(words) => writer.write_all(words.as_bytes()).await.unwrap(),
        _ => {
            // Fails if the client closes early.
            let _ = tokio::io::copy(&mut reader, &mut writer).await;
        }
    }
    let _ = writer.shutdown().await;
}
