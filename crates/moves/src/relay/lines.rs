//! A conversation in lines of text with a port of a pod, through an API server: orders for a
//! mover, and what it answers.

use axum::body::Bytes;

use super::{
    End,
    tunnel::{Frame, Tunnel, TunnelError},
};

/// The longest line that is listened to: with the paths of some differences, each as long as a
/// path can be. A pod is not believed to come to an end.
const LONGEST_LINE: usize = 256 << 10;

/// Why there is no conversation, or none any more.
#[derive(Debug, thiserror::Error)]
#[error("the port {port}: {why}")]
pub struct LinesError {
    port: String,
    why: String,
}

/// A conversation.
pub struct Lines {
    tunnel: Tunnel,
    heard: Vec<u8>,
    port: String,
}

impl Lines {
    /// Begins one. Whether anybody listens there shows later.
    pub async fn open(end: &End) -> Result<Self, LinesError> {
        let port = end.port.to_string();
        match Tunnel::open(end).await {
            Ok(tunnel) => Ok(Self {
                tunnel,
                heard: Vec::new(),
                port,
            }),
            Err(why) => Err(failed(port, &why)),
        }
    }

    /// Says a line.
    pub async fn say(&mut self, line: &str) -> Result<(), LinesError> {
        let said = self.tunnel.writer.send(Frame::of(format!("{line}\n").as_bytes()));
        said.await.map_err(|why| failed(self.port.clone(), &why))
    }

    /// What is said next, for as long as that takes; `None` when the other side is gone.
    pub async fn hear(&mut self) -> Result<Option<String>, LinesError> {
        loop {
            if let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.heard.drain(..=end).collect();
                return Ok(Some(String::from_utf8_lossy(&line[..end]).into_owned()));
            }
            if self.heard.len() > LONGEST_LINE {
                return Err(LinesError {
                    port: self.port.clone(),
                    why: "it says a line that does not end".to_owned(),
                });
            }
            let said = self.tunnel.first().await;
            match said.map_err(|why| failed(self.port.clone(), &why))? {
                Some(frame) => self.heard.extend_from_slice(frame.payload()),
                None => return Ok(None),
            }
        }
    }

    /// Ends it, so that what was said last arrives.
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
    /// For the pod, from us.
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
