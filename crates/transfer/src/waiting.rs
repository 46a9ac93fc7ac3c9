//! Waits for other programs to do their part, and before a step is repeated: if another client reverts its
//! write, it would be repeated without a pause forever.

use std::{collections::HashMap, fmt::Debug, time::Duration};

use tokio::time::Instant;

use super::{Context, TransferError};

/// How often the objects are observed. In tests, which observe them often, the other programs are fast.
const POLL_INTERVAL: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 300 });

/// How often a step is repeated at least before the command fails, whatever the time.
pub(super) const ATTEMPTS: u32 = 20;

/// The written values do not persist.
#[derive(Debug, thiserror::Error)]
#[error(
    "the changes of {object} do not persist: this command has tried {times} times within {:.1?}, and each time the change was reverted, or the object \
     was changed concurrently. The cause is probably a mutating webhook (`kubectl get mutatingwebhookconfigurations`), or another controller (the managedFields of \
     the object name it: `kubectl get -o yaml --show-managed-fields`). Stop it temporarily, then run the same command again to continue, or with \
     --undo to undo it",
    .within
)]
pub struct NotKept {
    /// The object that is written.
    object: String,
    /// The number of attempts.
    times: u32,
    /// The time since the first attempt.
    within: Duration,
}

/// Waits, and reports what for whenever that changes.
pub(super) struct Waiter<'a> {
    context: &'a Context<'a>,
    began: Instant,
    reported: String,
    /// The steps that were taken, each with the object that it writes, and how often.
    taken: HashMap<String, u32>,
}

impl<'a> Waiter<'a> {
    pub(super) fn new(context: &'a Context<'a>) -> Self {
        Self {
            context,
            began: Instant::now(),
            reported: String::new(),
            taken: HashMap::new(),
        }
    }

    /// Reports what it waits for, and pauses. False after the timeout.
    pub(super) async fn pause(&mut self, what: &str) -> bool {
        self.report(what);
        let has_time = self.has_time();
        if has_time {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        has_time
    }

    /// Pauses; an error after the timeout.
    pub(super) async fn wait_for(&mut self, what: &str, why: Option<String>) -> Result<(), TransferError> {
        if self.pause(what).await {
            return Ok(());
        }
        Err(TransferError::StillWaiting {
            what: what.to_owned(),
            timeout: self.context.timeout,
            why,
        })
    }

    /// To be called after a step that writes on this object: returns at once the first time. If the same
    /// step was taken before, its write was reverted, or another client was faster: then it pauses before
    /// the next observation, and is an error after the timeout.
    pub(super) async fn after_step(&mut self, step: &impl Debug, object: &str) -> Result<(), NotKept> {
        let times = self.taken.entry(format!("{step:?} of {object}")).or_default();
        *times += 1;
        let times = *times;
        if times == 1 {
            return Ok(());
        }
        if times > ATTEMPTS && !self.has_time() {
            return Err(NotKept {
                object: object.to_owned(),
                times,
                within: self.began.elapsed(),
            });
        }
        // A single conflict is normal.
        if times > 2 {
            self.report(&format!(
                "the change of {object} was reverted or conflicted; retrying"
            ));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        Ok(())
    }

    fn has_time(&self) -> bool {
        self.began.elapsed() < self.context.timeout
    }

    fn report(&mut self, what: &str) {
        if self.reported != what {
            what.clone_into(&mut self.reported);
            (self.context.report)(what);
        }
    }
}
