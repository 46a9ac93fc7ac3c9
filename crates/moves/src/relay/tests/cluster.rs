//! A fake API server that forwards ports as kubelets do: to any process that listens on that port of this
//! machine's loopback.

use std::{
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{SinkExt, StreamExt};
use kube::{Client, Config};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::AbortHandle,
    time::timeout,
};
use tokio_tungstenite::{
    accept_hdr_async,
    tungstenite::{
        Message,
        handshake::server::{ErrorResponse, Request, Response},
    },
};

use crate::relay::End;

/// The size of containerd's frames.
const KUBELET_FRAME: usize = 32 << 10;

pub(crate) struct FakeCluster {
    address: std::net::SocketAddr,
    counts: Arc<Counts>,
    connections: Arc<Mutex<Vec<AbortHandle>>>,
    server: AbortHandle,
}

#[derive(Default)]
struct Counts {
    forwarded: AtomicUsize,
    to_pods: AtomicU64,
}

impl FakeCluster {
    pub(crate) async fn start() -> Self {
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (counts, connections) = (Arc::<Counts>::default(), Arc::<Mutex<Vec<_>>>::default());
        let (counter, alive) = (Arc::clone(&counts), Arc::clone(&connections));
        let server = tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let connection = tokio::spawn(forward(socket, Arc::clone(&counter)));
                alive.lock().unwrap().push(connection.abort_handle());
            }
        });
        Self {
            address,
            counts,
            connections,
            server: server.abort_handle(),
        }
    }

    /// A pod of this cluster that listens on this port.
    pub(crate) fn end(&self, pod: &str, port: u16) -> End {
        let config = Config::new(format!("http://{}", self.address).parse().unwrap());
        End {
            client: Client::try_from(config).unwrap(),
            port: format!("ns/{pod}:{port}").parse().unwrap(),
        }
    }

    /// The number of forwarded ports so far.
    pub(super) fn forwarded(&self) -> usize {
        self.counts.forwarded.load(Ordering::SeqCst)
    }

    /// The number of bytes to pods so far.
    pub(super) fn to_pods(&self) -> u64 {
        self.counts.to_pods.load(Ordering::SeqCst)
    }

    /// Breaks all connections.
    pub(super) fn cut(&self) {
        for connection in self.connections.lock().unwrap().drain(..) {
            connection.abort();
        }
    }
}

impl Drop for FakeCluster {
    fn drop(&mut self) {
        self.server.abort();
        self.cut();
    }
}

#[expect(clippy::result_large_err, reason = "the library's own type")]
async fn forward(socket: TcpStream, counts: Arc<Counts>) {
    let mut port = 0_u16;
    let answer = |request: &Request, mut response: Response| {
        let uri = request.uri();
        if uri.path() == "/api/v1/namespaces/ns/pods/forbidden/portforward" {
            let status = r#"{"kind":"Status","status":"Failure","reason":"Forbidden","code":403,"message":"you may not"}"#;
            let mut refusal = ErrorResponse::new(Some(status.to_owned()));
            *refusal.status_mut() = tokio_tungstenite::tungstenite::http::StatusCode::FORBIDDEN;
            return Err(refusal);
        }
        port = uri
            .query()
            .unwrap()
            .rsplit_once("ports=")
            .unwrap()
            .1
            .parse()
            .unwrap();
        let protocol = "v4.channel.k8s.io".parse().unwrap();
        response.headers_mut().insert("sec-websocket-protocol", protocol);
        Ok(response)
    };
    let Ok(socket) = accept_hdr_async(socket, answer).await else {
        return;
    };
    counts.forwarded.fetch_add(1, Ordering::SeqCst);
    let (mut sink, mut stream) = socket.split();
    let [low, high] = port.to_le_bytes();
    for channel in [0, 1] {
        let announced = sink.send(Message::binary(vec![channel, low, high])).await;
        announced.unwrap();
    }
    let pod = match TcpStream::connect(("127.0.0.1", port)).await {
        Ok(pod) => pod,
        Err(error) => {
            let told = [&[1], error.to_string().as_bytes()].concat();
            let _ = sink.send(Message::binary(told)).await;
            return;
        }
    };
    let (mut from_pod, mut to_pod) = pod.into_split();
    let up = async {
        let mut buffer = vec![0; KUBELET_FRAME + 1];
        while let Ok(read @ 1..) = from_pod.read(&mut buffer[1..]).await {
            if sink
                .send(Message::binary(buffer[..=read].to_vec()))
                .await
                .is_err()
            {
                return;
            }
        }
        let _ = sink.close().await;
    };
    let down = async {
        while let Some(Ok(message)) = stream.next().await {
            if let Message::Binary(bytes) = message {
                if to_pod.write_all(&bytes[1..]).await.is_err() {
                    return;
                }
                counts.to_pods.fetch_add(bytes.len() as u64 - 1, Ordering::SeqCst);
            }
        }
    };
    let mut down = pin!(down);
    tokio::select! {
        // Closing a connection on which unread data arrives resets it, and the data sent last may be lost.
        () = up => drop(timeout(Duration::from_secs(5), down).await),
        () = &mut down => {}
    }
}
