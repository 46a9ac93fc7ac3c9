//! The state that the threads of one session share on either side: the first failure, which ends all of
//! them, and the pings that show the peer that this side is alive.

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

/// How long a broken lane waits for the peer's error message.
const FINAL_MESSAGE_TIMEOUT: Duration = Duration::from_millis(300);

/// The status of a session, shared by all its threads.
pub(crate) struct SessionStatus {
    over: AtomicBool,
    failure: Mutex<Option<Error>>,
    cutter: Cutter,
    wake: Condvar,
    sleeping: Mutex<()>,
}

impl SessionStatus {
    pub(crate) fn new(cutter: Cutter) -> Self {
        Self {
            over: AtomicBool::new(false),
            failure: Mutex::new(None),
            cutter,
            wake: Condvar::new(),
            sleeping: Mutex::new(()),
        }
    }

    /// Ends the session. The first failure is the one that is reported: others follow from it.
    pub(crate) fn fail(&self, error: Error) {
        lock(&self.failure).get_or_insert(error);
        self.end();
    }

    /// The same for a data lane. When a connection ends, so do the others, and the peer's reason arrives on
    /// the control lane: that is given time to report it.
    pub(crate) fn lane_failed(&self, error: Error) {
        if error.is_cut() {
            let sleep = lock(&self.sleeping);
            let spoken = |(): &mut ()| !self.is_over();
            drop(
                self.wake
                    .wait_timeout_while(sleep, FINAL_MESSAGE_TIMEOUT, spoken)
                    .unwrap_or_else(PoisonError::into_inner),
            );
        }
        self.fail(error);
    }

    /// Ends the session, whose work is done or has failed.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        drop(lock(&self.sleeping));
        self.wake.notify_all();
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

    /// Sends the peer the reason why this side ends, unless another thread is blocked writing.
    pub(crate) fn send_final(&self, message: &impl prost::Message) {
        if let Ok(mut writer) = self.0.try_lock() {
            let message = writer.send(FrameKind::Control, &message.encode_to_vec());
            // The peer notices anyway that the connection ends.
            let _ = message.and_then(|()| writer.flush());
        }
    }

    /// Pings until the session is over.
    pub(crate) fn keep_alive(self: &Arc<Self>, status: &Arc<SessionStatus>) -> thread::JoinHandle<()> {
        let (lane, status) = (Arc::clone(self), Arc::clone(status));
        thread::spawn(move || {
            loop {
                let sleep = lock(&status.sleeping);
                if status.is_over() {
                    return;
                }
                drop(
                    status
                        .wake
                        .wait_timeout(sleep, PING)
                        .unwrap_or_else(PoisonError::into_inner),
                );
                if status.is_over() {
                    return;
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
