//! The state that the threads of one session share on either side: the first failure, which ends all of
//! them, and the pings that show the peer that this side is alive.
//!
//! A side that ends closes all lanes but that of the peer's control messages, and reads this one to its end, for two
//! reasons. The peer may have ended first, so that writing to it fails before the message that says why is read. And
//! the peer has then read the last message of this side, which a process that exits could not deliver any more. A peer
//! that does not end is waited for only for a while.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use crate::{
    error::Error,
    lanes::{Cutter, PING, Writer},
    wire::{FrameKind, WireError},
};

/// How long the peer may take to end after this side has.
const LAST_MESSAGES: Duration = Duration::from_secs(10);

/// The status of a session, shared by all its threads.
pub(crate) struct SessionStatus {
    over: AtomicBool,
    ended: AtomicBool,
    failure: Mutex<Option<Error>>,
    cutter: Cutter,
    wake: Condvar,
    sleeping: Mutex<()>,
}

impl SessionStatus {
    pub(crate) fn new(cutter: Cutter) -> Self {
        Self {
            over: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            failure: Mutex::new(None),
            cutter,
            wake: Condvar::new(),
            sleeping: Mutex::new(()),
        }
    }

    /// Ends the work of the session. The first failure is the one that is reported: others follow from it. A
    /// connection that breaks may itself follow from the failure that the peer reports.
    pub(crate) fn fail(&self, error: Error) {
        let mut failure = lock(&self.failure);
        let follows = |first: &Error| first.is_cut() && matches!(error, Error::Peer(_));
        if failure.as_ref().is_none_or(follows) {
            *failure = Some(error);
        }
        drop(failure);
        self.finish();
    }

    /// Ends the work of the session: only the peer's control messages are still read.
    pub(crate) fn finish(&self) {
        self.over.store(true, Ordering::SeqCst);
        drop(lock(&self.sleeping));
        self.wake.notify_all();
        self.cutter.cut_all_but_incoming();
    }

    /// Ends the session.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.finish();
        self.cutter.cut();
    }

    /// Ends a session that is over when the peer had time to end, too.
    fn end_in_time(&self) {
        let sleep = lock(&self.sleeping);
        let is_open = |(): &mut ()| !self.ended.load(Ordering::SeqCst);
        drop(
            self.wake
                .wait_timeout_while(sleep, LAST_MESSAGES, is_open)
                .unwrap_or_else(PoisonError::into_inner),
        );
        self.cutter.cut();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Why the session failed; taken, because errors cannot be cloned.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        lock(&self.failure).take()
    }

    /// The error of a thread that ends because another one has failed.
    pub(crate) fn ended() -> Error {
        Error::Cut(std::io::Error::other("the session has ended"))
    }
}

/// A control lane that several threads write to.
pub(crate) struct ControlLane(Mutex<Writer>);

impl ControlLane {
    pub(crate) fn new(writer: Writer) -> Arc<Self> {
        Arc::new(Self(Mutex::new(writer)))
    }

    pub(crate) fn send(&self, message: &impl prost::Message, flush: bool) -> Result<(), WireError> {
        let mut writer = lock(&self.0);
        writer.send(FrameKind::Control, &message.encode_to_vec())?;
        if flush {
            writer.flush()?;
        }
        Ok(())
    }

    pub(crate) fn flush(&self) -> Result<(), WireError> {
        lock(&self.0).flush()
    }

    /// Starts the thread that pings until the session is over, and then makes sure that it ends in time.
    pub(crate) fn keep_alive(self: &Arc<Self>, status: &Arc<SessionStatus>) -> thread::JoinHandle<()> {
        let (lane, status) = (Arc::clone(self), Arc::clone(status));
        thread::spawn(move || {
            loop {
                let sleep = lock(&status.sleeping);
                let goes_on = |(): &mut ()| !status.is_over();
                drop(
                    status
                        .wake
                        .wait_timeout_while(sleep, PING, goes_on)
                        .unwrap_or_else(PoisonError::into_inner),
                );
                if status.is_over() {
                    return status.end_in_time();
                }
                // A lane that is being written to needs no ping.
                if let Ok(mut writer) = lane.0.try_lock() {
                    let pinged = writer.send(FrameKind::Ping, &[]).and_then(|()| writer.flush());
                    if let Err(error) = pinged {
                        status.fail(error.into());
                    }
                }
            }
        })
    }
}

/// A panic of another thread leaves no partial state behind these locks.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
