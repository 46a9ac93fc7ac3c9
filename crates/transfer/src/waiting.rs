//! The one way of waiting: for others to do their part, and before a step that has been taken is
//! taken again, for whoever takes back what it wrote would have it taken again for ever.

use std::{collections::HashMap, fmt::Debug, time::Duration};

use tokio::time::Instant;

use super::{Context, TransferError};

/// How often it is looked whether something has changed. Tests, which look a hundred times, stand in for
/// others that are quick.
const LOOK_AGAIN: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 300 });

/// How often at least a step is taken before it is given up, whatever the time.
pub(super) const ATTEMPTS: u32 = 20;

/// What is written does not stay.
#[derive(Debug, thiserror::Error)]
#[error(
    "{object} does not stay as this command writes it: it has tried {times} times within {:.1?}, and each time that was taken back, or the object \
     changed meanwhile. Probably a mutating webhook does that (`kubectl get mutatingwebhookconfigurations`), or another controller (the managedFields of \
     the object name it: `kubectl get -o yaml --show-managed-fields`). Stop it for this time, then run the same command again to go on, or with \
     --undo to take it back",
    .within
)]
pub struct NotKept {
    /// What is written.
    object: String,
    /// How often it was.
    times: u32,
    /// In which time.
    within: Duration,
}

/// Waits for others, and says once what for.
pub(super) struct Waiting<'a> {
    context: &'a Context<'a>,
    began: Instant,
    told: String,
    /// The steps that were taken, each with what it writes, and how often.
    taken: HashMap<String, u32>,
}

impl<'a> Waiting<'a> {
    pub(super) fn new(context: &'a Context<'a>) -> Self {
        Self {
            context,
            began: Instant::now(),
            told: String::new(),
            taken: HashMap::new(),
        }
    }

    /// Says what is waited for, and waits a moment. False when time is up.
    pub(super) async fn a_moment(&mut self, what: &str) -> bool {
        self.tell(what);
        let has_time = self.has_time();
        if has_time {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        has_time
    }

    /// Waits a moment; an error when time is up.
    pub(super) async fn for_others(&mut self, what: &str, why: Option<String>) -> Result<(), TransferError> {
        if self.a_moment(what).await {
            return Ok(());
        }
        Err(TransferError::StillWaiting {
            what: what.to_owned(),
            patience: self.context.patience,
            why,
        })
    }

    /// After a step that writes on this object: goes on at once the first time. If the same step
    /// had been taken before, what it did was taken back, or somebody else came before it: then it
    /// waits a moment before the next look, and when time is up it is an error.
    pub(super) async fn after(&mut self, step: &impl Debug, object: &str) -> Result<(), NotKept> {
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
        // One conflict is nobody's fault.
        if times > 2 {
            self.tell(&format!(
                "{object} is not yet as it is to be: this is tried again"
            ));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
        Ok(())
    }

    fn has_time(&self) -> bool {
        self.began.elapsed() < self.context.patience
    }

    fn tell(&mut self, what: &str) {
        if self.told != what {
            what.clone_into(&mut self.told);
            (self.context.tell)(what);
        }
    }
}
