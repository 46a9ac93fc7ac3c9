//! Runs a background loop: a round, then a pause until something changes or a time has passed; after a
//! failure the pauses grow.

use std::time::Duration;

use futures::{StreamExt, future::select_all, stream::FuturesUnordered};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};
use tokio::{
    sync::watch,
    time::{self, Instant},
};

use crate::{cluster::ApiError, observe::log::Ongoing, queue::AT_ONCE};

/// Changes come in bursts: one round handles all changes within this time.
pub const SETTLE: Duration = Duration::from_millis(300);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// The minimum, whatever the grace period is.
const MIN_ROUND_PAUSE: Duration = Duration::from_secs(1);
/// A round that takes longer is aborted; the next one continues.
const LONGEST_ROUND: Duration = Duration::from_mins(5);

/// Buckets from a read of an API server nearby to a round with calls to a slow cluster.
const SECONDS: [f64; 9] = [0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0, 300.0];

/// The metrics of background loops, which every process with such loops exports. Cheap to clone.
#[derive(Clone)]
pub struct LoopMetrics {
    leads: Gauge,
    reconciled: Family<Outcome, Counter>,
    took: Family<Controller, Histogram, fn() -> Histogram>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    controller: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Controller {
    controller: &'static str,
}

impl Default for LoopMetrics {
    fn default() -> Self {
        Self {
            leads: Gauge::default(),
            reconciled: Family::default(),
            took: Family::new_with_constructor(|| Histogram::new(SECONDS)),
        }
    }
}

impl LoopMetrics {
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "liqo_csi_reconcile_leader",
            "Whether this process runs the background controllers",
            metrics.leads.clone(),
        );
        registry.register(
            "liqo_csi_reconcile",
            "Rounds of the background controllers, by controller and outcome",
            metrics.reconciled.clone(),
        );
        registry.register_with_unit(
            "liqo_csi_reconcile",
            "How long a round of a background controller takes",
            Unit::Seconds,
            metrics.took.clone(),
        );
        metrics
    }

    pub fn leads(&self, leads: bool) {
        self.leads.set(leads.into());
    }

    pub(crate) fn round(&self, controller: &'static str, succeeded: bool, took: Duration) {
        let outcome = if succeeded { "success" } else { "error" };
        self.reconciled
            .get_or_create(&Outcome { controller, outcome })
            .inc();
        self.took
            .get_or_create(&Controller { controller })
            .observe(took.as_secs_f64());
    }
}

/// A background loop. A round compares the actual state with the desired one, and may be aborted at any
/// await: its earlier writes are not undone.
#[allow(
    async_fn_in_trait,
    reason = "loops are polled by the task that created them, never sent"
)]
pub trait Rounds {
    /// Its name in logs and metrics.
    const NAME: &'static str;
    /// The longest pause.
    const RESYNC: Duration;

    /// How long it collects changes before a round handles them.
    const GATHER: Duration = SETTLE;

    /// The time after which it acts on an observation, if there is one. A much longer pause would prolong
    /// that time.
    fn grace(&self) -> Option<Duration> {
        None
    }

    /// The time until the next scheduled work, even if nothing changes.
    fn due(&self) -> Option<Duration> {
        None
    }

    /// Whether a part of the last round failed and has to be retried.
    fn has_failed(&self) -> bool {
        false
    }

    /// They change whenever a round may have work.
    fn triggers(&self) -> Vec<watch::Receiver<u64>>;

    async fn round(&mut self) -> Result<(), ApiError>;
}

/// Runs a loop forever.
pub async fn drive<R: Rounds>(mut rounds: R, metrics: &LoopMetrics) {
    let mut triggers = rounds.triggers();
    let mut pause = FIRST_PAUSE;
    let mut trouble = Ongoing::default();
    loop {
        for trigger in &mut triggers {
            trigger.mark_unchanged();
        }
        let began = Instant::now();
        let outcome = time::timeout(LONGEST_ROUND, rounds.round()).await;
        let has_succeeded = matches!(outcome, Ok(Ok(()))) && !rounds.has_failed();
        metrics.round(R::NAME, has_succeeded, began.elapsed());
        match outcome {
            Ok(Ok(())) => {
                pause = FIRST_PAUSE;
                trouble.is_over();
                let at_most = [rounds.grace(), rounds.due()].into_iter().flatten().min();
                let at_most = at_most.unwrap_or(R::RESYNC);
                wait_for_trigger(
                    &mut triggers,
                    at_most.clamp(MIN_ROUND_PAUSE, R::RESYNC),
                    R::GATHER,
                )
                .await;
            }
            failed => {
                let why = match failed {
                    Ok(Err(error)) => error.to_string(),
                    _ => "the round timed out".to_owned(),
                };
                if trouble.is_news(&why) {
                    tracing::warn!(name = R::NAME, why, "a background round failed; retrying");
                }
                // Not at once, because the round itself may cause the changes.
                time::sleep(FIRST_PAUSE).await;
                wait_for_trigger(&mut triggers, pause, R::GATHER).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

async fn wait_for_trigger(triggers: &mut [watch::Receiver<u64>], at_most: Duration, gather: Duration) {
    if triggers.is_empty() {
        time::sleep(at_most).await;
        return;
    }
    let changes = triggers.iter_mut().map(|trigger| Box::pin(trigger.changed()));
    let _enough = time::timeout(at_most, select_all(changes)).await;
    time::sleep(gather).await;
}

/// Calls `act` for each item, a few at a time. An error does not stop the others; the first error is
/// returned.
pub async fn each<I, T, F>(items: I, mut act: impl FnMut(T) -> F) -> Result<(), ApiError>
where
    I: IntoIterator<Item = T>,
    F: Future<Output = Result<(), ApiError>>,
{
    let mut outcome = Ok(());
    let mut running = FuturesUnordered::new();
    for item in items {
        if running.len() == AT_ONCE {
            outcome = outcome.and(running.next().await.unwrap_or(Ok(())));
        }
        running.push(act(item));
    }
    while let Some(done) = running.next().await {
        outcome = outcome.and(done);
    }
    outcome
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    struct Counting {
        rounds: Arc<AtomicUsize>,
        trigger: watch::Receiver<u64>,
    }

    impl Rounds for Counting {
        const NAME: &'static str = "counting";
        const RESYNC: Duration = Duration::from_hours(1);

        fn triggers(&self) -> Vec<watch::Receiver<u64>> {
            vec![self.trigger.clone()]
        }

        async fn round(&mut self) -> Result<(), ApiError> {
            self.rounds.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_starts_after_a_change_and_after_the_resync_interval() {
        let (sender, trigger) = watch::channel(1);
        let rounds = Arc::new(AtomicUsize::new(0));
        let counting = Counting {
            rounds: Arc::clone(&rounds),
            trigger,
        };
        let metrics = LoopMetrics::default();
        let driven = drive(counting, &metrics);
        let watched = async {
            let settled = Duration::from_secs(5);
            time::sleep(settled).await;
            assert_eq!(rounds.load(Ordering::SeqCst), 1, "nothing changed");
            for n in 0..20 {
                sender.send_replace(n);
            }
            time::sleep(settled).await;
            assert_eq!(rounds.load(Ordering::SeqCst), 2, "a burst is one round");
            time::sleep(Counting::RESYNC + settled).await;
            assert_eq!(rounds.load(Ordering::SeqCst), 3, "time passed");
        };
        tokio::select! {
            () = driven => {}
            () = watched => {}
        }
    }

    /// Has work after ten seconds, even if nothing changes.
    struct Due(Counting);

    impl Rounds for Due {
        const NAME: &'static str = "due";
        const RESYNC: Duration = Duration::from_hours(1);

        fn due(&self) -> Option<Duration> {
            Some(Duration::from_secs(10))
        }

        fn triggers(&self) -> Vec<watch::Receiver<u64>> {
            self.0.triggers()
        }

        async fn round(&mut self) -> Result<(), ApiError> {
            self.0.round().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_due_time_ends_the_wait() {
        let (_sender, trigger) = watch::channel(1);
        let rounds = Arc::new(AtomicUsize::new(0));
        let due = Due(Counting {
            rounds: Arc::clone(&rounds),
            trigger,
        });
        let metrics = LoopMetrics::default();
        tokio::select! {
            () = drive(due, &metrics) => {}
            () = time::sleep(Duration::from_mins(1)) => {}
        }
        assert_eq!(rounds.load(Ordering::SeqCst), 6);
    }

    struct Failing(Counting);

    impl Rounds for Failing {
        const NAME: &'static str = "failing";
        const RESYNC: Duration = Duration::from_hours(1);

        fn triggers(&self) -> Vec<watch::Receiver<u64>> {
            self.0.triggers()
        }

        async fn round(&mut self) -> Result<(), ApiError> {
            self.0.round().await?;
            Err(ApiError::for_test(crate::cluster::Cause::Invalid("no".into())))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_during_back_off_is_not_missed() {
        let (sender, trigger) = watch::channel(1);
        let rounds = Arc::new(AtomicUsize::new(0));
        let failing = Failing(Counting {
            rounds: Arc::clone(&rounds),
            trigger,
        });
        let metrics = LoopMetrics::default();
        let watched = async {
            // Longer than the longest pause.
            time::sleep(Duration::from_mins(5)).await;
            let before = rounds.load(Ordering::SeqCst);
            sender.send_replace(2);
            time::sleep(Duration::from_secs(2)).await;
            assert!(rounds.load(Ordering::SeqCst) > before);
        };
        tokio::select! {
            () = drive(failing, &metrics) => {}
            () = watched => {}
        }
    }

    #[tokio::test]
    async fn all_of_many_keys_are_handled() {
        let done = AtomicUsize::new(0);
        let outcome = each(0..100, |_| async {
            tokio::task::yield_now().await;
            done.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
        .await;
        assert_eq!(outcome, Ok(()));
        assert_eq!(done.load(Ordering::SeqCst), 100);
    }
}
