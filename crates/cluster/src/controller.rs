//! Runs a controller: handles keys as they are due, several at the same time, so that a slow one delays no
//! other. Unlike in [`crate::rounds`] there are no rounds.

use std::time::Duration;

use futures::{
    StreamExt,
    future::{pending, select_all},
    stream::FuturesUnordered,
};
use tokio::{
    sync::watch,
    time::{self, Instant},
};

use crate::{cluster::ApiError, queue::Queue, rounds::LoopMetrics};

/// What a controller waits for.
pub struct Next {
    /// They change whenever there may be work.
    pub triggers: Vec<watch::Receiver<u64>>,
    /// When it checks again even if nothing changes and no key is due.
    pub at: Instant,
    /// Whether keys that are due are handled now.
    pub works: bool,
}

/// A controller: establishes the desired state key by key. It may be aborted at any await: its earlier
/// writes are not undone.
#[allow(
    async_fn_in_trait,
    reason = "controllers are polled by the task that created them, never sent"
)]
pub trait Controller {
    /// Its name in logs and metrics.
    const NAME: &'static str;
    /// How many keys are handled at the same time.
    const AT_ONCE: usize;

    /// Adds the keys that have changed since the last call: all keys at first, and occasionally.
    async fn changes(&self, queue: &mut Queue) -> Next;

    /// Observes one key and takes the next steps; returns when to handle it again even if nothing changes.
    async fn reconcile(&self, key: &str) -> Result<Option<Duration>, ApiError>;

    /// A key was handled, successfully or not.
    fn reconciled(&self, _key: &str) {}
}

/// Runs a controller forever.
pub async fn control<C: Controller>(controller: &C, metrics: &LoopMetrics) {
    let (mut queue, mut running) = (Queue::default(), FuturesUnordered::new());
    loop {
        let Next {
            mut triggers,
            at,
            works,
        } = controller.changes(&mut queue).await;
        let free = if works { C::AT_ONCE - running.len() } else { 0 };
        for key in queue.take(free) {
            running.push(async move {
                let began = Instant::now();
                let outcome = controller.reconcile(&key).await;
                (key, outcome, began.elapsed())
            });
        }
        let has_room = works && running.len() < C::AT_ONCE;
        let next = has_room.then(|| queue.next()).flatten();
        let done = async {
            match running.next().await {
                Some(done) => done,
                None => pending().await,
            }
        };
        let changes = triggers.iter_mut().map(|trigger| Box::pin(trigger.changed()));
        tokio::select! {
            (key, outcome, took) = done => {
                metrics.round(C::NAME, outcome.is_ok(), took);
                match outcome {
                    Ok(again) => queue.done(&key, again),
                    Err(error) => queue.failed(&key, &error),
                }
                controller.reconciled(&key);
            }
            _changed = select_all(changes) => {}
            () = time::sleep_until(next.map_or(at, |it| it.min(at))) => {}
        }
    }
}
