//! A target's connection to its source: the lanes, the threads that serve them, and their end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use prost::Message as _;

use crate::{
    apply::{PendingFetches, ReceiveState, receive},
    error::Error,
    lanes::{Reader, TargetLanes},
    message::{FromSource, FromTarget, Ready, SourceMessage, TargetMessage},
    session::{ControlLane, SessionStatus},
    tree::Tree,
    wire::FrameKind,
};

pub(crate) struct Link {
    pub(crate) up: Reader,
    pub(crate) down: Arc<ControlLane>,
    pub(crate) state: Arc<ReceiveState>,
    pub(crate) status: Arc<SessionStatus>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Link {
    /// Starts receiving content for this tree, or for devices.
    pub(crate) fn new(lanes: TargetLanes, tree: Option<Arc<Tree>>) -> Self {
        let TargetLanes {
            up,
            down,
            data,
            cutter,
            direct,
        } = lanes;
        let status = Arc::new(SessionStatus::new(cutter));
        let down = ControlLane::new(down);
        let state = Arc::new(ReceiveState {
            tree,
            table: PendingFetches::default(),
            received: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            expected: AtomicU64::new(0),
            direct,
        });
        let mut threads = vec![down.keep_alive(&status)];
        threads.extend(data.into_iter().map(|lane| {
            let (state, status) = (Arc::clone(&state), Arc::clone(&status));
            thread::spawn(move || {
                if let Err(error) = receive(&state, lane, &status) {
                    status.fail(error);
                }
            })
        }));
        Self {
            up,
            down,
            state,
            status,
            threads,
        }
    }

    /// The next message of the source.
    pub(crate) fn next_message(&mut self) -> Result<SourceMessage, Error> {
        next_message(&mut self.up)
    }

    /// The source's message that a pass has begun.
    pub(crate) fn ready(&mut self) -> Result<Ready, Error> {
        match self.next_message()? {
            SourceMessage::Ready(ready) => {
                let expected = ready.used.max(ready.device_size);
                self.state.expected.store(expected, Ordering::Relaxed);
                self.state.settled.store(0, Ordering::Relaxed);
                Ok(ready)
            }
            _ => Err(Error::Protocol("it does not begin the pass".to_owned())),
        }
    }

    /// Ends the session because this side failed, and informs the source. If the connection broke, returns why
    /// the source ended it, if it reported that.
    pub(crate) fn fail(&mut self, error: Error) -> Error {
        let error = self.status.take_failure().unwrap_or(error);
        if !matches!(error, Error::Cut(_) | Error::Peer(_)) {
            self.send_last(TargetMessage::Failed(error.to_string()));
        }
        match self.read_last() {
            Some(reason) if error.is_cut() => reason,
            _ => error,
        }
    }

    /// Ends the session.
    pub(crate) fn end(&mut self) {
        self.send_last(TargetMessage::Bye(true));
        self.read_last();
    }

    fn send_last(&self, message: TargetMessage) {
        // If this fails, the source notices that the connection ends.
        let _ = self.down.send(&target_message(message), true);
    }

    /// Reads until the source has ended, too; returns its error, if it reported one.
    fn read_last(&mut self) -> Option<Error> {
        self.status.finish();
        loop {
            if let Err(error) = self.next_message() {
                return Some(error).filter(|error| matches!(error, Error::Peer(_)));
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.status.end();
        for thread in self.threads.drain(..) {
            // A lane that panicked has reported it.
            let _ = thread.join();
        }
    }
}

impl ReceiveState {
    /// Bytes of content that have arrived.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    pub(crate) fn is_direct(&self) -> bool {
        self.direct
    }

    /// Bytes of a device that are equal on both sides.
    pub(crate) fn settled(&self) -> Option<u64> {
        let is_device = self.tree.is_none();
        is_device.then(|| self.settled.load(Ordering::Relaxed))
    }

    /// Bytes in use in the source's file system; zero while that is unknown.
    pub(crate) fn expected(&self) -> u64 {
        self.expected.load(Ordering::Relaxed)
    }
}

pub(crate) fn target_message(message: TargetMessage) -> FromTarget {
    FromTarget {
        message: Some(message),
    }
}

pub(crate) fn next_message(up: &mut Reader) -> Result<SourceMessage, Error> {
    let message = FromSource::decode(up.next_of(FrameKind::Control)?)
        .map_err(|error| Error::Protocol(error.to_string()))?;
    match message.message {
        Some(SourceMessage::Failed(why)) => Err(Error::Peer(why)),
        Some(message) => Ok(message),
        None => Err(Error::Protocol("it sent an empty message".to_owned())),
    }
}
