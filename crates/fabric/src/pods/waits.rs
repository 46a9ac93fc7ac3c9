//! Pods that are not read for a while: waiting pods with back-off, because each check costs requests to a cluster,
//! and pods in their desired state for several minutes. A change in a view ends the pause.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::Pods;
use crate::{
    backoff::Backoff,
    places::Place,
    seen::{SeenPod, digest},
};

const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// The reason of a pod that waits for a claim in its cluster.
pub(super) const CLAIM_NOT_READY: &str = "ClaimNotReady";
/// Remote claims are not watched, and usually become ready without a change here.
const LONGEST_FOR_CLAIMS: Duration = Duration::from_secs(8);
/// Pods with these reasons wait for objects that are watched, unless a live read gave the reason.
const SEEN: [&str; 4] = [
    "DaemonSetNotOffloaded",
    "OffloadingBackOff",
    "PodNotSupported",
    "RemoteUnreachable",
];
/// Pods in their desired state are read again after this time, and up to half of it more.
const SETTLED: Duration = Duration::from_mins(10);

/// Digests of all that is known about a pod without a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprints {
    /// The digest of everything but the status at home, whose writes must not end the pause.
    pub(super) waiting: u64,
    /// The digest of everything.
    pub(super) full: u64,
}

/// The pods that are not read for a while, by `namespace/name`.
#[derive(Default)]
pub(super) struct Waits(Mutex<Known>);

#[derive(Default)]
struct Known {
    waiting: Backoff<u64>,
    /// The pods in their desired state.
    settled: Backoff<u64>,
}

impl Waits {
    /// The time until a pod with these fingerprints is read again, if it need not be now.
    pub(super) fn remaining(&self, key: &str, fingerprints: Fingerprints) -> Option<Duration> {
        let known = self.lock();
        let waits = known.waiting.remaining(key, &fingerprints.waiting);
        waits.or_else(|| known.settled.remaining(key, &fingerprints.full))
    }

    /// Records that the pod waits, and whether live reads gave the reason; returns when to reconcile it again.
    pub(super) fn record(
        &self,
        key: &str,
        fingerprints: Fingerprints,
        reason: &str,
        read_live: bool,
    ) -> Duration {
        let longest = match reason {
            CLAIM_NOT_READY => LONGEST_FOR_CLAIMS,
            seen if SEEN.contains(&seen) && !read_live => SETTLED,
            _ => LONGEST_PAUSE,
        };
        let mut known = self.lock();
        known.settled.forget(key);
        known
            .waiting
            .pause(key.to_owned(), fingerprints.waiting, FIRST_PAUSE, longest)
    }

    /// The pod with these fingerprints is in its desired state.
    pub(super) fn settle(&self, key: &str, fingerprints: Fingerprints) {
        // Spreads the reads of pods that settle together.
        let share = u32::try_from(digest(key) % 100).unwrap_or_default();
        let pause = SETTLED + SETTLED * share / 200;
        let mut known = self.lock();
        known.waiting.forget(key);
        known
            .settled
            .pause(key.to_owned(), fingerprints.full, pause, pause);
    }

    pub(super) fn forget(&self, key: &str) {
        let mut known = self.lock();
        known.waiting.forget(key);
        known.settled.forget(key);
    }

    pub(super) fn waiting(&self) -> BTreeSet<String> {
        self.lock().waiting.keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pods<'_> {
    /// The fingerprints of the home pod, its remote namespace and pod, the cluster that answers or why none
    /// does, and the settings for remote pods.
    pub(super) fn fingerprints(
        &self,
        home: &SeenPod,
        remote: Option<&SeenPod>,
        namespace: &Result<String, String>,
        place: &Result<Place, String>,
    ) -> Fingerprints {
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
        Fingerprints {
            waiting,
            full: digest((waiting, home.digests.status, network)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The status at home matters only to those that do not wait.
    fn of(waiting: u64) -> Fingerprints {
        Fingerprints {
            waiting,
            full: waiting + 10,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn settled_pods_are_not_read_until_they_change() {
        let waits = Waits::default();
        waits.settle("a", of(1));
        assert!(waits.remaining("a", of(1)) >= Some(SETTLED));
        let status = Fingerprints { full: 12, ..of(1) };
        assert_eq!(waits.remaining("a", status), None, "its status has changed");
        assert!(waits.waiting().is_empty(), "it waits for nothing");
        tokio::time::advance(SETTLED * 2).await;
        assert_eq!(waits.remaining("a", of(1)), None, "it is read now and then");
    }

    #[tokio::test(start_paused = true)]
    async fn pods_that_wait_for_claims_are_checked_every_eight_seconds() {
        let waits = Waits::default();
        let pauses: Vec<u64> = (0..4)
            .map(|_| waits.record("a", of(1), CLAIM_NOT_READY, false).as_secs())
            .collect();
        assert_eq!(pauses, [2, 4, 8, 8]);
    }

    /// No watch shows that a driver was installed there, or a Secret replaced here.
    #[tokio::test(start_paused = true)]
    async fn waits_decided_by_live_reads_are_rechecked_without_a_change() {
        let waits = Waits::default();
        let longest = |key: &str, read_live| {
            let pauses = (0..20).map(|_| waits.record(key, of(1), "PodNotSupported", read_live));
            pauses.max().unwrap()
        };
        assert_eq!(longest("driver", true), LONGEST_PAUSE);
        assert_eq!(longest("field", false), SETTLED);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_pods_back_off_until_they_change() {
        let waits = Waits::default();
        assert_eq!(waits.remaining("a", of(1)), None);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let pause = waits.record("a", of(1), "RemoteRefused", false);
            assert_eq!(waits.remaining("a", of(1)), Some(pause));
            tokio::time::advance(pause).await;
            assert_eq!(waits.remaining("a", of(1)), None);
            pauses.push(pause.as_secs());
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60, 60]);
        waits.record("a", of(1), "RemoteRefused", false);
        assert_eq!(waits.remaining("a", of(2)), None, "it has changed");
        assert_eq!(waits.record("a", of(2), "RemoteRefused", false), FIRST_PAUSE);
        assert_eq!(waits.waiting(), ["a".to_owned()].into());
        waits.forget("a");
        assert_eq!(waits.remaining("a", of(2)), None);
    }
}
