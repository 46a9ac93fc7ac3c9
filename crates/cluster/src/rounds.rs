//! The rhythm of a loop: a round, then a rest until something changes or enough
//! time has passed; after a failure a longer and longer one.

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

/// Changes come in bursts: one round serves those of this time.
pub const SETTLE: Duration = Duration::from_millis(300);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// Whatever the grace period.
const SHORTEST_REST: Duration = Duration::from_secs(1);
/// A round that takes longer is given up; the next one goes on where it was.
const LONGEST_ROUND: Duration = Duration::from_mins(5);

/// From a read of what is watched to a round that asks a slow cluster.
const SECONDS: [f64; 9] = [0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0, 300.0];

/// What every process with loops tells Prometheus of them. Cheap to clone.
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
    /// Registers the families.
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

/// One background loop. A round compares what is with how it should be and
/// may be given up at any await: whatever it did so far is done.
#[allow(
    async_fn_in_trait,
    reason = "loops are polled by the task that made them, never sent"
)]
pub trait Rounds {
    /// Its name in logs and metrics.
    const NAME: &'static str;
    /// How long it rests at most.
    const RESYNC: Duration;

    /// How long it lets changes gather before a round serves them.
    const GATHER: Duration = SETTLE;

    /// How long it waits before it acts on what it finds, if it does. To rest much longer
    /// than that would prolong it.
    fn grace(&self) -> Option<Duration> {
        None
    }

    /// In what time something has to be done although nothing changes.
    fn due(&self) -> Option<Duration> {
        None
    }

    /// Whether something failed in the last round that is tried again by itself.
    fn has_failed(&self) -> bool {
        false
    }

    /// Change whenever a round may find something to do.
    fn triggers(&self) -> Vec<watch::Receiver<u64>>;

    /// One round.
    async fn round(&mut self) -> Result<(), ApiError>;
}

/// Drives a loop for ever.
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
                rest(&mut triggers, at_most.clamp(SHORTEST_REST, R::RESYNC), R::GATHER).await;
            }
            failed => {
                let why = match failed {
                    Ok(Err(error)) => error.to_string(),
                    _ => "the round took too long".to_owned(),
                };
                if trouble.is_news(&why) {
                    tracing::warn!(
                        name = R::NAME,
                        why,
                        "a background round failed: it is tried again and again"
                    );
                }
                // Not at once, be it that the round itself makes what changes.
                time::sleep(FIRST_PAUSE).await;
                rest(&mut triggers, pause, R::GATHER).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

async fn rest(triggers: &mut [watch::Receiver<u64>], at_most: Duration, gather: Duration) {
    if triggers.is_empty() {
        time::sleep(at_most).await;
        return;
    }
    let changes = triggers.iter_mut().map(|trigger| Box::pin(trigger.changed()));
    let _enough = time::timeout(at_most, select_all(changes)).await;
    time::sleep(gather).await;
}

/// Does something for each of many objects, a few at a time. Where it fails the
/// others are done all the same; the first error is the round's.
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
    async fn a_change_starts_a_round_and_so_does_time() {
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

    /// Has something to do in ten seconds, whatever happens.
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
    async fn what_is_due_is_not_waited_for_longer() {
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
    async fn a_change_is_seen_while_a_failure_is_slept_on() {
        let (sender, trigger) = watch::channel(1);
        let rounds = Arc::new(AtomicUsize::new(0));
        let failing = Failing(Counting {
            rounds: Arc::clone(&rounds),
            trigger,
        });
        let metrics = LoopMetrics::default();
        let watched = async {
            // Long enough for the longest pause.
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
    async fn many_things_are_all_done() {
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
