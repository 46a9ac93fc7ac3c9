//! What the threads of one session share on either side: the first failure, which ends
//! all of them, and the pings that tell the peer that this side lives.

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

/// How long a lane that broke waits for what the peer says of it.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// How a session ends for all of its threads.
pub(crate) struct Fate {
    over: AtomicBool,
    failure: Mutex<Option<Error>>,
    cutter: Cutter,
    wake: Condvar,
    sleeping: Mutex<()>,
}

impl Fate {
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

    /// The same for a data lane. When a connection ends, so do the others, and what the peer
    /// says of it stands on the control lane: that may speak first.
    pub(crate) fn lane_failed(&self, error: Error) {
        if error.is_cut() {
            let sleep = lock(&self.sleeping);
            let spoken = |(): &mut ()| !self.is_over();
            drop(
                self.wake
                    .wait_timeout_while(sleep, LAST_WORDS, spoken)
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

    /// Why it failed; taken, because errors cannot be copied.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        lock(&self.failure).take()
    }

    /// What ends a thread because another one has failed.
    pub(crate) fn ended() -> Error {
        Error::Cut(std::io::Error::other("the session has ended"))
    }
}

/// A control lane that several threads write to.
pub(crate) struct Shared(Mutex<Writer>);

impl Shared {
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

    /// Tells the peer why this side gives up, unless somebody is stuck writing.
    pub(crate) fn last_words(&self, message: &impl prost::Message) {
        if let Ok(mut writer) = self.0.try_lock() {
            let said = writer.send(FrameKind::Control, &message.encode_to_vec());
            // The peer learns of it anyhow: the connection ends.
            let _ = said.and_then(|()| writer.flush());
        }
    }

    /// Pings until the session is over.
    pub(crate) fn keep_alive(self: &Arc<Self>, fate: &Arc<Fate>) -> thread::JoinHandle<()> {
        let (lane, fate) = (Arc::clone(self), Arc::clone(fate));
        thread::spawn(move || {
            loop {
                let sleep = lock(&fate.sleeping);
                if fate.is_over() {
                    return;
                }
                drop(
                    fate.wake
                        .wait_timeout(sleep, PING)
                        .unwrap_or_else(PoisonError::into_inner),
                );
                if fate.is_over() {
                    return;
                }
                // A lane that is being written to needs no ping.
                if let Ok(mut writer) = lane.0.try_lock() {
                    let pinged = writer.send(FrameKind::Ping, &[]).and_then(|()| writer.flush());
                    if let Err(error) = pinged {
                        fate.fail(error.into());
                    }
                }
            }
        })
    }
}

/// A panic elsewhere leaves nothing half done in what these locks hold.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
