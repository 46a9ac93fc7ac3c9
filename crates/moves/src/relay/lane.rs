//! One connection between the two ends, made of two forwarded ports, and opened again whenever it ends. It
//! connects to the target only after the source has sent something, so that a target has no idle connections.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{
    Relay,
    tunnel::{Frame, Tunnel, TunnelError, TunnelReader, TunnelWriter, pings},
};

/// The pause between two attempts, at first and at most.
const PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

pub(super) struct Lane {
    number: u32,
    relay: Arc<Relay>,
}

/// The end at which a connection failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum LaneError {
    #[error("the source's port {0}: {1}")]
    Source(String, TunnelError),
    #[error("the target's port {0}: {1}")]
    Target(String, TunnelError),
}

impl Lane {
    pub(super) fn new(number: u32, relay: Arc<Relay>) -> Self {
        Self { number, relay }
    }

    /// Connects again and again, without end.
    pub(super) async fn run(self) {
        let (mut pause, mut logged) = (PAUSE, String::new());
        loop {
            let forwarded = AtomicU64::new(0);
            let outcome = self.connect(&forwarded).await;
            let bytes = forwarded.into_inner();
            let lane = self.number;
            if bytes > 0 {
                (pause, logged) = (PAUSE, String::new());
            }
            match outcome {
                Ok(()) => tracing::debug!(lane, bytes, "a connection was closed by its ends"),
                Err(error) => {
                    let error = error.to_string();
                    // A pod that does not exist yet is logged once, not for each attempt.
                    if error != logged {
                        tracing::warn!(lane, bytes, error, "a connection failed; will reconnect");
                        logged = error;
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn connect(&self, forwarded: &AtomicU64) -> Result<(), LaneError> {
        let Relay { source, target, .. } = &*self.relay;
        let at_source = |error| LaneError::Source(source.port.to_string(), error);
        let at_target = |error| LaneError::Target(target.port.to_string(), error);

        let mut from = Tunnel::open(source).await.map_err(at_source)?;
        let Some(first) = from.first().await.map_err(at_source)? else {
            return Ok(());
        };
        let to = Tunnel::open(target).await.map_err(at_target)?;
        self.exchange(first, from, to, forwarded).await
    }

    /// Forwards data in both directions until one end has closed the connection.
    pub(super) async fn exchange(
        &self,
        first: Frame,
        mut from: Tunnel,
        mut to: Tunnel,
        forwarded: &AtomicU64,
    ) -> Result<(), LaneError> {
        let at_source = |error| LaneError::Source(self.relay.source.port.to_string(), error);
        let at_target = |error| LaneError::Target(self.relay.target.port.to_string(), error);
        self.pass(first, &mut to.writer, forwarded)
            .await
            .map_err(at_target)?;
        // TLS needs both directions.
        let outcome = tokio::select! {
            up = self.forward(&mut from.reader, &mut to.writer, forwarded) => {
                up.map_err(|error| error.of(at_source, at_target))
            }
            down = self.forward(&mut to.reader, &mut from.writer, forwarded) => {
                down.map_err(|error| error.of(at_target, at_source))
            }
        };
        tokio::join!(from.close(), to.close());
        outcome
    }

    /// Forwards data from one end until it closes the connection. Does not read while the other end does not
    /// accept data, so that at most one frame is held here.
    async fn forward(
        &self,
        from: &mut TunnelReader,
        to: &mut TunnelWriter,
        forwarded: &AtomicU64,
    ) -> Result<(), ForwardError> {
        let mut pings = pings();
        loop {
            tokio::select! {
                biased;
                // An end that has closed the connection may have sent data before, which the other direction
                // forwards until its end.
                _ = pings.tick() => if to.ping().await.is_err() {
                    return pending().await;
                },
                frame = from.next() => match frame.map_err(ForwardError::Reading)? {
                    Some(frame) => self.pass(frame, to, forwarded).await.map_err(ForwardError::Writing)?,
                    None => return Ok(()),
                },
            }
        }
    }

    async fn pass(
        &self,
        frame: Frame,
        to: &mut TunnelWriter,
        forwarded: &AtomicU64,
    ) -> Result<(), TunnelError> {
        let bytes = frame.len();
        if let Some(wait) = self.relay.bandwidth.reserve(bytes) {
            tokio::time::sleep(wait).await;
        }
        to.send(frame).await?;
        forwarded.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// Whether reading or writing failed.
enum ForwardError {
    Reading(TunnelError),
    Writing(TunnelError),
}

impl ForwardError {
    fn of(
        self,
        reading: impl FnOnce(TunnelError) -> LaneError,
        writing: impl FnOnce(TunnelError) -> LaneError,
    ) -> LaneError {
        match self {
            Self::Reading(error) => reading(error),
            Self::Writing(error) => writing(error),
        }
    }
}
