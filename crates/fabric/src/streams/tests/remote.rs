//! The API server of a remote cluster, as far as it has streams.

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

/// What it does with every request.
#[derive(Clone)]
pub(super) enum Act {
    /// Opens a stream, and says what is said to it.
    Echo,
    /// Opens a stream, listens to the end, and says so many bytes then.
    HearFirst,
    /// Opens a stream, says this and leaves.
    Leave(&'static str),
    /// Says no.
    Refuse(u16, &'static str),
    /// Says that all is well, and opens no stream.
    Fine,
    /// Says nothing.
    Silent,
    /// Says all lines that there are, as often as there are more, until there is an empty one.
    Log(watch::Receiver<Vec<&'static str>>),
}

/// A request that came.
#[derive(Clone, Debug)]
pub(super) struct Came {
    pub(super) line: String,
    pub(super) headers: HeaderMap,
}

pub(super) struct Remote {
    pub(super) address: SocketAddr,
    came: Arc<Mutex<Vec<Came>>>,
    _stops: DropGuard,
}

impl Remote {
    pub(super) async fn start(act: Act) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let came = Arc::new(Mutex::new(Vec::new()));
        let (noted, stop) = (Arc::clone(&came), CancellationToken::new());
        tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (act, noted) = (act.clone(), Arc::clone(&noted));
                let service = service_fn(move |request| {
                    note(&noted, &request);
                    answer(act.clone(), request)
                });
                let connection = http1::Builder::new().serve_connection(TokioIo::new(socket), service);
                tokio::spawn(connection.with_upgrades());
            }
        }));
        Self {
            address,
            came,
            _stops: stop.drop_guard(),
        }
    }

    /// What was asked so far.
    pub(super) fn came(&self) -> Vec<Came> {
        self.came.lock().unwrap().clone()
    }
}

fn note(noted: &Mutex<Vec<Came>>, request: &Request<Incoming>) {
    noted.lock().unwrap().push(Came {
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
        Act::Silent => std::future::pending().await,
        Act::Fine => {}
        Act::Refuse(code, body) => {
            *answer.status_mut() = StatusCode::from_u16(code).unwrap();
            *answer.body_mut() = Full::from(body).boxed_unsync();
            answer
                .headers_mut()
                .insert("content-type", "application/json".parse().unwrap());
        }
        Act::Log(lines) => {
            let lines = stream::unfold((lines, 0), |(mut lines, said)| async move {
                let found = lines.wait_for(|all| all.len() > said).await;
                let line = found.map_or("", |all| all[said]);
                let frame = Frame::data(Bytes::from_static(line.as_bytes()));
                (!line.is_empty()).then(|| (Ok(frame), (lines, said + 1)))
            });
            *answer.body_mut() = StreamBody::new(lines.boxed()).boxed_unsync();
        }
        Act::Echo | Act::HearFirst | Act::Leave(_) => {
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move { converse(act, upgrade.await.unwrap()).await });
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

async fn converse(act: Act, stream: Upgraded) {
    let (mut reader, mut writer) = tokio::io::split(TokioIo::new(stream));
    match act {
        Act::HearFirst => {
            let mut heard = Vec::new();
            reader.read_to_end(&mut heard).await.unwrap();
            heard.reverse();
            writer.write_all(&heard).await.unwrap();
        }
        Act::Leave(words) => writer.write_all(words.as_bytes()).await.unwrap(),
        _ => {
            // Whoever leaves in the middle breaks it.
            let _ = tokio::io::copy(&mut reader, &mut writer).await;
        }
    }
    let _ = writer.shutdown().await;
}
