//! A forwarded port: a `WebSocket` to an API server, whose first channel carries the bytes to and from the
//! pod. Frames are forwarded in their original size (kubelets send 32 KiB) instead of the 4 KiB of kube's
//! `Portforwarder`, and pings distinguish a dead connection from an idle one.

use std::time::Duration;

use axum::body::Bytes;
use futures::{
    SinkExt, StreamExt,
    stream::{SplitSink, SplitStream},
};
use k8s_openapi::api::core::v1::Pod;
use kube::Resource;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, Interval, MissedTickBehavior, interval, timeout, timeout_at},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        self, Message,
        protocol::{Role, WebSocketConfig},
    },
};

use super::End;

/// Timeout of the port-forward request.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// The interval of pings.
const PING: Duration = Duration::from_secs(10);
/// Timeout for a pod to accept one frame; it may be waiting for its disk.
const SEND_TIMEOUT: Duration = Duration::from_mins(1);
/// A connection without even an answer to pings for this long is dead. A ping may wait behind one frame.
const RECEIVE_TIMEOUT: Duration = SEND_TIMEOUT.saturating_add(Duration::from_secs(30));
/// Timeout for the API server to confirm the end of a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The longest frame. A lane has up to two of them in memory for each direction: one read, one being written.
pub(super) const MAX_FRAME: usize = 256 << 10;
/// The size of reads from, and writes to, an API server.
const BUFFER: usize = 64 << 10;

/// The channel of the port's data; the other channel of a port is that of errors.
pub(super) const DATA: u8 = 0;
const ERRORS: u8 = 1;

#[derive(Debug, thiserror::Error)]
pub(super) enum TunnelError {
    #[error("the API server does not forward the port: {0}")]
    Refused(String),
    #[error("the API server did not forward the port within {CONNECT_TIMEOUT:?}")]
    Slow,
    #[error("its node cannot connect to the port: {0}")]
    Unreached(String),
    #[error("the connection to the API server broke: {0}")]
    Broken(#[from] tungstenite::Error),
    #[error("nothing was received for {RECEIVE_TIMEOUT:?}, not even an answer to a ping")]
    NoTraffic,
    #[error("the pod accepted no data for {SEND_TIMEOUT:?}")]
    Stalled,
    #[error("unexpected message from the API server on a forwarded port: {0}")]
    Protocol(&'static str),
}

pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Io for S {}

type Socket = WebSocketStream<Box<dyn Io>>;

pub(super) struct Tunnel {
    pub(super) reader: TunnelReader,
    pub(super) writer: TunnelWriter,
}

/// The bytes from the pod.
pub(super) struct TunnelReader {
    socket: SplitStream<Socket>,
    port: u16,
    announced: [bool; 2],
    last_received: Instant,
}

/// The bytes to the pod.
pub(super) struct TunnelWriter(SplitSink<Socket, Message>);

/// Bytes from one pod in the format in which they are sent to the other: after the number of the channel.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame(pub(super) Bytes);

impl Frame {
    pub(super) fn len(&self) -> usize {
        self.0.len() - 1
    }
}

impl Tunnel {
    /// Opens a port-forward. Whether a process listens on the port shows later.
    pub(super) async fn open(end: &End) -> Result<Self, TunnelError> {
        let pods = Pod::url_path(&(), Some(end.port.namespace()));
        let request = kube::core::Request::new(pods).portforward(end.port.pod(), &[end.port.port()]);
        let request = request.map_err(|error| TunnelError::Refused(error.to_string()))?;
        let connection = timeout(CONNECT_TIMEOUT, end.client.connect(request)).await;
        let connection = connection
            .map_err(|_| TunnelError::Slow)?
            .map_err(|error| TunnelError::Refused(crate::cluster::plain(&error)))?;
        // Nothing was read yet, so no data is lost here.
        let raw = connection.into_stream().into_inner();
        Ok(Self::over(Box::new(raw), end.port.port()).await)
    }

    /// A port that is forwarded over this connection, on which nothing was sent yet.
    pub(super) async fn over(raw: Box<dyn Io>, port: u16) -> Self {
        let limits = WebSocketConfig::default()
            .read_buffer_size(BUFFER)
            .write_buffer_size(BUFFER)
            .max_write_buffer_size(BUFFER + 2 * MAX_FRAME)
            .max_frame_size(Some(MAX_FRAME))
            .max_message_size(Some(MAX_FRAME));
        let socket = WebSocketStream::from_raw_socket(raw, Role::Client, Some(limits)).await;
        let (sink, stream) = socket.split();
        Self {
            reader: TunnelReader {
                socket: stream,
                port,
                announced: [false; 2],
                last_received: Instant::now(),
            },
            writer: TunnelWriter(sink),
        }
    }

    /// Waits for the first data from the pod. `None` if it closed the connection instead.
    pub(super) async fn first(&mut self) -> Result<Option<Frame>, TunnelError> {
        let mut pings = pings();
        loop {
            tokio::select! {
                biased;
                _ = pings.tick() => self.writer.ping().await?,
                frame = self.reader.next() => return frame,
            }
        }
    }
}

impl Tunnel {
    /// Closes the connection and waits until the API server confirms it: dropping a connection with unread
    /// data resets it, and the last data sent would be lost.
    pub(super) async fn close(mut self) {
        let said = async {
            self.writer.0.close().await?;
            while let Some(message) = self.reader.socket.next().await {
                message?;
            }
            Ok::<(), tungstenite::Error>(())
        };
        // A connection without that confirmation is dropped.
        let _ = timeout(CLOSE_TIMEOUT, said).await;
    }
}

impl TunnelReader {
    /// The next data from the pod; `None` when it has closed the connection. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<Option<Frame>, TunnelError> {
        loop {
            let message = timeout_at(self.last_received + RECEIVE_TIMEOUT, self.socket.next()).await;
            let message = message.map_err(|_| TunnelError::NoTraffic)?;
            self.last_received = Instant::now();
            match message.transpose()? {
                None | Some(Message::Close(_)) => return Ok(None),
                Some(Message::Binary(bytes)) => {
                    if let Some(frame) = self.take(bytes)? {
                        return Ok(Some(frame));
                    }
                }
                Some(Message::Ping(_) | Message::Pong(_)) => {}
                Some(Message::Text(_) | Message::Frame(_)) => return Err(TunnelError::Protocol("text")),
            }
        }
    }

    fn take(&mut self, bytes: Bytes) -> Result<Option<Frame>, TunnelError> {
        let Some((&channel, payload)) = bytes.split_first() else {
            return Err(TunnelError::Protocol("a message without a channel"));
        };
        let announced = self.announced.get_mut(usize::from(channel));
        let announced = announced.ok_or(TunnelError::Protocol("a message on an unknown channel"))?;
        if !std::mem::replace(announced, true) {
            // The first message on each channel names the port.
            return if payload == self.port.to_le_bytes() {
                Ok(None)
            } else {
                Err(TunnelError::Protocol("another port than requested"))
            };
        }
        match channel {
            DATA if payload.is_empty() => Ok(None),
            DATA => Ok(Some(Frame(bytes))),
            ERRORS => {
                let text = String::from_utf8_lossy(&payload[..payload.len().min(1024)]);
                Err(TunnelError::Unreached(text.trim().to_owned()))
            }
            _ => Err(TunnelError::Protocol("a message on an unknown channel")),
        }
    }
}

impl TunnelWriter {
    /// Sends data to the pod; returns when it is sent, which a pod that does not read delays.
    pub(super) async fn send(&mut self, frame: Frame) -> Result<(), TunnelError> {
        self.write(Message::Binary(frame.0)).await
    }

    pub(super) async fn ping(&mut self) -> Result<(), TunnelError> {
        self.write(Message::Ping(Bytes::new())).await
    }

    async fn write(&mut self, message: Message) -> Result<(), TunnelError> {
        let sent = timeout(SEND_TIMEOUT, self.0.send(message)).await;
        Ok(sent.map_err(|_| TunnelError::Stalled)??)
    }
}

/// The interval of pings for a connection, which may be idle in one direction only.
pub(super) fn pings() -> Interval {
    let mut pings = interval(PING);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pings
}
