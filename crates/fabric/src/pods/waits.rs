//! Pods of which nothing is read for a while: those that wait, and have said so, ever more rarely, for a
//! cluster is asked each time; those that are as they should be, for long. At once, when something
//! changes of what can be seen without asking.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::Pods;
use crate::{
    brake::Brake,
    places::Place,
    seen::{SeenPod, digest},
};

const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// The reason of a pod that waits for a claim there.
pub(super) const CLAIM_NOT_READY: &str = "ClaimNotReady";
/// What waits for a claim waits for something that comes by itself, and that nobody watches there.
const LONGEST_FOR_CLAIMS: Duration = Duration::from_secs(8);
/// Pods with these reasons wait for objects that are watched, unless a live read gave the reason.
const SEEN: [&str; 4] = [
    "DaemonSetNotOffloaded",
    "OffloadingBackOff",
    "PodNotSupported",
    "RemoteUnreachable",
];
/// What is as it should be is read again after so long, and up to half as much more.
const SETTLED: Duration = Duration::from_mins(10);

/// What is known without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prints {
    /// Of everything but the status at home, which says that the pod waits.
    pub(super) waiting: u64,
    /// Of everything.
    pub(super) whole: u64,
}

/// Those of which nothing is read for a while, by `namespace/name`.
#[derive(Default)]
pub(super) struct Waits(Mutex<Known>);

#[derive(Default)]
struct Known {
    waiting: Brake<u64>,
    /// Those that are as they should be.
    settled: Brake<u64>,
}

impl Waits {
    /// For how long a pod is left alone, of which this was known when it was looked at.
    pub(super) fn holds(&self, key: &str, prints: Prints) -> Option<Duration> {
        let known = self.lock();
        let waits = known.waiting.holds(key, &prints.waiting);
        waits.or_else(|| known.settled.holds(key, &prints.whole))
    }

    /// Records that the pod waits, and whether live reads gave the reason; returns when to reconcile it again.
    pub(super) fn note(&self, key: &str, prints: Prints, reason: &str, read_live: bool) -> Duration {
        let longest = match reason {
            CLAIM_NOT_READY => LONGEST_FOR_CLAIMS,
            seen if SEEN.contains(&seen) && !read_live => SETTLED,
            _ => LONGEST_PAUSE,
        };
        let mut known = self.lock();
        known.settled.forget(key);
        known
            .waiting
            .pause(key.to_owned(), prints.waiting, FIRST_PAUSE, longest)
    }

    /// A pod is as it should be, as far as this is known.
    pub(super) fn settle(&self, key: &str, prints: Prints) {
        // What was seen together is not read together.
        let share = u32::try_from(digest(key) % 100).unwrap_or_default();
        let pause = SETTLED + SETTLED * share / 200;
        let mut known = self.lock();
        known.waiting.forget(key);
        known.settled.pause(key.to_owned(), prints.whole, pause, pause);
    }

    /// It waits no more.
    pub(super) fn forget(&self, key: &str) {
        let mut known = self.lock();
        known.waiting.forget(key);
        known.settled.forget(key);
    }

    /// Those that wait.
    pub(super) fn keys(&self) -> BTreeSet<String> {
        self.lock().waiting.keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pods<'_> {
    /// What is known without asking: the pod, where it is to run, what is seen there, which cluster
    /// answers, or why none does, and how it is to be made there and reached from here.
    pub(super) fn prints(
        &self,
        home: &SeenPod,
        remote: Option<&SeenPod>,
        namespace: &Result<String, String>,
        place: &Result<Place, String>,
    ) -> Prints {
        let waiting = digest((
            home.digests.metadata,
            home.digests.spec,
            remote.map(|it| (it.uid(), it.digests)),
            namespace,
            place.as_ref().map(|place| &place.uid),
            format!("{:?}", self.settings()),
            self.give_up_after(),
        ));
        let network = self.network().map(|it| it.to_string());
        Prints {
            waiting,
            whole: digest((waiting, home.digests.status, network)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The status at home matters only to those that do not wait.
    fn of(waiting: u64) -> Prints {
        Prints {
            waiting,
            whole: waiting + 10,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_as_it_should_be_is_left_alone_until_anything_changes() {
        let waits = Waits::default();
        waits.settle("a", of(1));
        assert!(waits.holds("a", of(1)) >= Some(SETTLED));
        let status = Prints { whole: 12, ..of(1) };
        assert_eq!(waits.holds("a", status), None, "its status has changed");
        assert!(waits.keys().is_empty(), "it waits for nothing");
        tokio::time::advance(SETTLED * 2).await;
        assert_eq!(waits.holds("a", of(1)), None, "it is read now and then");
    }

    #[tokio::test(start_paused = true)]
    async fn claims_come_by_themselves() {
        let waits = Waits::default();
        let pauses: Vec<u64> = (0..4)
            .map(|_| waits.note("a", of(1), CLAIM_NOT_READY, false).as_secs())
            .collect();
        assert_eq!(pauses, [2, 4, 8, 8]);
    }

    /// No watch shows that a driver was installed there, or a Secret replaced here.
    #[tokio::test(start_paused = true)]
    async fn reasons_from_live_reads_are_checked_again_soon() {
        let waits = Waits::default();
        let longest = |key: &str, read_live| {
            let pauses = (0..20).map(|_| waits.note(key, of(1), "PodNotSupported", read_live));
            pauses.max().unwrap()
        };
        assert_eq!(longest("driver", true), LONGEST_PAUSE);
        assert_eq!(longest("field", false), SETTLED);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_is_asked_for_ever_more_rarely_until_something_changes() {
        let waits = Waits::default();
        assert_eq!(waits.holds("a", of(1)), None);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let pause = waits.note("a", of(1), "RemoteRefused", false);
            assert_eq!(waits.holds("a", of(1)), Some(pause));
            tokio::time::advance(pause).await;
            assert_eq!(waits.holds("a", of(1)), None);
            pauses.push(pause.as_secs());
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60, 60]);
        waits.note("a", of(1), "RemoteRefused", false);
        assert_eq!(waits.holds("a", of(2)), None, "it has changed");
        assert_eq!(waits.note("a", of(2), "RemoteRefused", false), FIRST_PAUSE);
        assert_eq!(waits.keys(), ["a".to_owned()].into());
        waits.forget("a");
        assert_eq!(waits.holds("a", of(2)), None);
    }
}
