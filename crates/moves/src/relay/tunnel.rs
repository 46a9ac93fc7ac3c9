//! One forwarded port: a `WebSocket` to an API server, on whose first channel bytes come from
//! the pod and go to it. Frames are as long as they come (kubelets send 32 KiB), not the 4 KiB
//! of kube's own `Portforwarder`, and pings tell a connection that is dead from a quiet one.

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

/// For a port to be forwarded.
const OPENING: Duration = Duration::from_secs(20);
/// Pings are sent this often.
const PING: Duration = Duration::from_secs(10);
/// For a pod to take one frame. It may well be waiting for its disk.
const STALL: Duration = Duration::from_mins(1);
/// Who does not even answer pings for so long is gone. A ping may wait for a frame before it.
const SILENCE: Duration = STALL.saturating_add(Duration::from_secs(30));
/// For an API server to hear that a connection is over.
const FAREWELL: Duration = Duration::from_secs(1);

/// The longest frame, and so what a lane holds in memory, in each direction and twice: once
/// read, once being written.
pub(super) const LONGEST: usize = 256 << 10;
/// What is read from, and written to, an API server at a time.
const BUFFER: usize = 64 << 10;

/// The channel of the port's bytes. With one port the other is that of errors.
pub(super) const DATA: u8 = 0;
const ERRORS: u8 = 1;

/// Why a port is not, or no longer, forwarded.
#[derive(Debug, thiserror::Error)]
pub(super) enum TunnelError {
    #[error("the API server does not forward it: {0}")]
    Refused(String),
    #[error("the API server did not forward it within {OPENING:?}")]
    Slow,
    #[error("its node does not reach it: {0}")]
    Unreached(String),
    #[error("the connection to the API server broke: {0}")]
    Broken(#[from] tungstenite::Error),
    #[error("nothing was heard for {SILENCE:?}, no answer to a ping either")]
    Silent,
    #[error("the pod took nothing for {STALL:?}")]
    Stalled,
    #[error("the API server said what has no place in a forwarded port: {0}")]
    Protocol(&'static str),
}

/// A connection to an API server.
pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Io for S {}

type Socket = WebSocketStream<Box<dyn Io>>;

/// A forwarded port.
pub(super) struct Tunnel {
    pub(super) reader: TunnelReader,
    pub(super) writer: TunnelWriter,
}

/// What comes from the pod.
pub(super) struct TunnelReader {
    socket: SplitStream<Socket>,
    port: u16,
    announced: [bool; 2],
    heard: Instant,
}

/// What goes to the pod.
pub(super) struct TunnelWriter(SplitSink<Socket, Message>);

/// Bytes from one pod in the form in which they go to the other: behind the channel's number.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame(pub(super) Bytes);

impl Frame {
    pub(super) fn len(&self) -> usize {
        self.0.len() - 1
    }
}

impl Tunnel {
    /// Has the port forwarded. Whether anybody listens there shows later.
    pub(super) async fn open(end: &End) -> Result<Self, TunnelError> {
        let pods = Pod::url_path(&(), Some(end.port.namespace()));
        let request = kube::core::Request::new(pods).portforward(end.port.pod(), &[end.port.port()]);
        let request = request.map_err(|error| TunnelError::Refused(error.to_string()))?;
        let connection = timeout(OPENING, end.client.connect(request)).await;
        let connection = connection
            .map_err(|_| TunnelError::Slow)?
            .map_err(|error| TunnelError::Refused(crate::cluster::plain(&error)))?;
        // Nothing has been read yet, so that nothing is lost by taking it apart.
        let raw = connection.into_stream().into_inner();
        Ok(Self::over(Box::new(raw), end.port.port()).await)
    }

    /// A port that is forwarded over this connection, on which nothing was said yet.
    pub(super) async fn over(raw: Box<dyn Io>, port: u16) -> Self {
        let limits = WebSocketConfig::default()
            .read_buffer_size(BUFFER)
            .write_buffer_size(BUFFER)
            .max_write_buffer_size(BUFFER + 2 * LONGEST)
            .max_frame_size(Some(LONGEST))
            .max_message_size(Some(LONGEST));
        let socket = WebSocketStream::from_raw_socket(raw, Role::Client, Some(limits)).await;
        let (sink, stream) = socket.split();
        Self {
            reader: TunnelReader {
                socket: stream,
                port,
                announced: [false; 2],
                heard: Instant::now(),
            },
            writer: TunnelWriter(sink),
        }
    }

    /// Waits until the pod says something. `None` if it closed the connection instead.
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
    /// Tells the API server that this was all, and waits until it has heard so: a connection
    /// that is dropped with something unread is reset, and what was said last is lost.
    pub(super) async fn close(mut self) {
        let said = async {
            self.writer.0.close().await?;
            while let Some(message) = self.reader.socket.next().await {
                message?;
            }
            Ok::<(), tungstenite::Error>(())
        };
        // One that does not answer is dropped.
        let _ = timeout(FAREWELL, said).await;
    }
}

impl TunnelReader {
    /// What the pod says next; `None` when it has closed the connection. May be cancelled
    /// without losing anything.
    pub(super) async fn next(&mut self) -> Result<Option<Frame>, TunnelError> {
        loop {
            let message = timeout_at(self.heard + SILENCE, self.socket.next()).await;
            let message = message.map_err(|_| TunnelError::Silent)?;
            self.heard = Instant::now();
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
                Err(TunnelError::Protocol("another port than was asked for"))
            };
        }
        match channel {
            DATA if payload.is_empty() => Ok(None),
            DATA => Ok(Some(Frame(bytes))),
            ERRORS => {
                let told = String::from_utf8_lossy(&payload[..payload.len().min(1024)]);
                Err(TunnelError::Unreached(told.trim().to_owned()))
            }
            _ => Err(TunnelError::Protocol("a message on an unknown channel")),
        }
    }
}

impl TunnelWriter {
    /// Says something to the pod. Comes back when it is on its way: a pod that does not read
    /// holds up whoever says something to it.
    pub(super) async fn send(&mut self, frame: Frame) -> Result<(), TunnelError> {
        self.write(Message::Binary(frame.0)).await
    }

    /// Asks the API server for a sign of life.
    pub(super) async fn ping(&mut self) -> Result<(), TunnelError> {
        self.write(Message::Ping(Bytes::new())).await
    }

    async fn write(&mut self, message: Message) -> Result<(), TunnelError> {
        let sent = timeout(STALL, self.0.send(message)).await;
        Ok(sent.map_err(|_| TunnelError::Stalled)??)
    }
}

/// When a connection is to be pinged: it may be busy in the other direction only.
pub(super) fn pings() -> Interval {
    let mut pings = interval(PING);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pings
}
