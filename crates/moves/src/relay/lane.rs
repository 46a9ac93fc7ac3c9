//! One connection between the two ends, made of two forwarded ports, again and again: a
//! connection waits at the source until that speaks, and only then is the target dialled.
//! So a target sees no connections that nobody uses.

use std::{
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

/// Between two attempts, at first and at most.
const PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// One of the connections of a move.
pub(super) struct Lane {
    number: u32,
    relay: Arc<Relay>,
}

/// Which end a connection failed at.
#[derive(Debug, thiserror::Error)]
enum LaneError {
    #[error("the source's port {0}: {1}")]
    Source(String, TunnelError),
    #[error("the target's port {0}: {1}")]
    Target(String, TunnelError),
}

impl Lane {
    pub(super) fn new(number: u32, relay: Arc<Relay>) -> Self {
        Self { number, relay }
    }

    /// Dials for ever.
    pub(super) async fn run(self) {
        let (mut pause, mut said) = (PAUSE, String::new());
        loop {
            let carried = AtomicU64::new(0);
            let outcome = self.connect(&carried).await;
            let bytes = carried.into_inner();
            let lane = self.number;
            if bytes > 0 {
                (pause, said) = (PAUSE, String::new());
            }
            match outcome {
                Ok(()) => tracing::debug!(lane, bytes, "a connection was closed by its ends"),
                Err(error) => {
                    let error = error.to_string();
                    // A pod that is not there yet is worth one line, not one for each attempt.
                    if error != said {
                        tracing::warn!(lane, bytes, error, "a connection failed; dialling again");
                        said = error;
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// One connection from beginning to end.
    async fn connect(&self, carried: &AtomicU64) -> Result<(), LaneError> {
        let Relay { source, target, .. } = &*self.relay;
        let at_source = |error| LaneError::Source(source.port.to_string(), error);
        let at_target = |error| LaneError::Target(target.port.to_string(), error);

        let mut from = Tunnel::open(source).await.map_err(at_source)?;
        let Some(first) = from.first().await.map_err(at_source)? else {
            return Ok(());
        };
        let mut to = Tunnel::open(target).await.map_err(at_target)?;
        self.pass(first, &mut to.writer, carried)
            .await
            .map_err(at_target)?;
        // Either direction alone is of no use: TLS needs both.
        let outcome = tokio::select! {
            up = self.forward(&mut from.reader, &mut to.writer, carried) => {
                up.map_err(|error| error.of(at_source, at_target))
            }
            down = self.forward(&mut to.reader, &mut from.writer, carried) => {
                down.map_err(|error| error.of(at_target, at_source))
            }
        };
        tokio::join!(from.close(), to.close());
        outcome
    }

    /// Passes on what one end says until it closes the connection. Reads no more while the
    /// other end takes no more, so that at most one frame is held here.
    async fn forward(
        &self,
        from: &mut TunnelReader,
        to: &mut TunnelWriter,
        carried: &AtomicU64,
    ) -> Result<(), ForwardError> {
        let mut pings = pings();
        loop {
            tokio::select! {
                biased;
                _ = pings.tick() => to.ping().await.map_err(ForwardError::Writing)?,
                frame = from.next() => match frame.map_err(ForwardError::Reading)? {
                    Some(frame) => self.pass(frame, to, carried).await.map_err(ForwardError::Writing)?,
                    None => return Ok(()),
                },
            }
        }
    }

    async fn pass(
        &self,
        frame: Frame,
        to: &mut TunnelWriter,
        carried: &AtomicU64,
    ) -> Result<(), TunnelError> {
        let bytes = frame.len();
        if let Some(wait) = self.relay.bandwidth.reserve(bytes) {
            tokio::time::sleep(wait).await;
        }
        to.send(frame).await?;
        carried.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// Whether it was the reading or the writing end that failed.
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
