//! Lines of text to and from a port of a pod, through an API server: orders for a mover, and its answers.

use axum::body::Bytes;

use super::{
    End,
    tunnel::{Frame, Tunnel, TunnelError},
};

/// The longest line that is accepted: one with the paths of some differences, each of maximum length. A pod
/// might send a line without end.
const MAX_LINE: usize = 256 << 10;

/// Why the connection failed.
#[derive(Debug, thiserror::Error)]
#[error("the port {port}: {why}")]
pub struct LinesError {
    port: String,
    why: String,
}

/// The connection.
pub struct Lines {
    tunnel: Tunnel,
    received: Vec<u8>,
    port: String,
}

impl Lines {
    /// Opens a connection. Whether a process listens on the port shows later.
    pub async fn open(end: &End) -> Result<Self, LinesError> {
        let port = end.port.to_string();
        match Tunnel::open(end).await {
            Ok(tunnel) => Ok(Self {
                tunnel,
                received: Vec::new(),
                port,
            }),
            Err(why) => Err(failed(port, &why)),
        }
    }

    pub async fn write_line(&mut self, line: &str) -> Result<(), LinesError> {
        let sent = self.tunnel.writer.send(Frame::of(format!("{line}\n").as_bytes()));
        sent.await.map_err(|why| failed(self.port.clone(), &why))
    }

    /// The next line, without a timeout; `None` when the pod has closed the connection.
    pub async fn read_line(&mut self) -> Result<Option<String>, LinesError> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                return Ok(Some(String::from_utf8_lossy(&line[..end]).into_owned()));
            }
            if self.received.len() > MAX_LINE {
                return Err(LinesError {
                    port: self.port.clone(),
                    why: "it sends a line that is too long".to_owned(),
                });
            }
            let sent = self.tunnel.first().await;
            match sent.map_err(|why| failed(self.port.clone(), &why))? {
                Some(frame) => self.received.extend_from_slice(frame.payload()),
                None => return Ok(None),
            }
        }
    }

    /// Closes the connection after the last line has arrived.
    pub async fn close(self) {
        self.tunnel.close().await;
    }
}

fn failed(port: String, why: &TunnelError) -> LinesError {
    LinesError {
        port,
        why: why.to_string(),
    }
}

impl Frame {
    /// A frame from this side to the pod.
    fn of(payload: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(payload.len() + 1);
        bytes.push(super::tunnel::DATA);
        bytes.extend_from_slice(payload);
        Self(Bytes::from(bytes))
    }

    fn payload(&self) -> &[u8] {
        &self.0[1..]
    }
}
