//! The rhythm of a controller: one key after another as it is due, some of them at the same time, and
//! nobody waits for the slowest. Unlike in [`crate::rounds`] there are no rounds.

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
    /// Change whenever there may be something to do.
    pub triggers: Vec<watch::Receiver<u64>>,
    /// When it looks again although nothing changes, and no key is due.
    pub at: Instant,
    /// Whether keys that are due are looked at now.
    pub works: bool,
}

/// Something that brings about what is wanted, key by key. It may be given up at any await: whatever it
/// did so far is done.
#[allow(
    async_fn_in_trait,
    reason = "controllers are polled by the task that made them, never sent"
)]
pub trait Controller {
    /// Its name in logs and metrics.
    const NAME: &'static str;
    /// So many keys are looked at at the same time.
    const AT_ONCE: usize;

    /// Adds what has changed since the last call, everything at first and now and then.
    async fn changes(&self, queue: &mut Queue) -> Next;

    /// Looks at one key and does what is next; when to look again although nothing changes.
    async fn reconcile(&self, key: &str) -> Result<Option<Duration>, ApiError>;

    /// A key was looked at, whatever came of it.
    fn looked_at(&self, _key: &str) {}
}

/// Runs a controller for ever.
pub async fn control<C: Controller>(controller: &C, metrics: &LoopMetrics) {
    let (mut queue, mut running) = (Queue::default(), FuturesUnordered::new());
    loop {
        let Next {
            mut triggers,
            at,
            works,
        } = controller.changes(&mut queue).await;
        let room = if works { C::AT_ONCE - running.len() } else { 0 };
        for key in queue.take(room) {
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
                controller.looked_at(&key);
            }
            _changed = select_all(changes) => {}
            () = time::sleep_until(next.map_or(at, |it| it.min(at))) => {}
        }
    }
}
