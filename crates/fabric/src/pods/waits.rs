//! Pods that wait, and have said so. Each is looked at ever more rarely, for a cluster is asked each
//! time; at once, when something changes of what can be seen without asking.

use std::{
    collections::{BTreeSet, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::json;
use tokio::time::Instant;

use super::{Pods, look::Look};

const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// The reason of a pod that waits for a claim there.
pub(super) const CLAIM_NOT_READY: &str = "ClaimNotReady";
/// What waits for a claim waits for something that comes by itself, and that nobody watches there.
const LONGEST_FOR_CLAIMS: Duration = Duration::from_secs(8);

/// Those that wait, by `namespace/name`.
#[derive(Default)]
pub(super) struct Waits(Mutex<HashMap<String, Wait>>);

struct Wait {
    print: u64,
    pause: Duration,
    until: Instant,
}

impl Waits {
    /// For how long a pod is left alone, of which this was known when it was looked at.
    pub(super) fn holds(&self, key: &str, print: u64) -> Option<Duration> {
        let waits = self.lock();
        let wait = waits.get(key).filter(|wait| wait.print == print)?;
        let left = wait.until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// A pod waits for this reason, of which this is known; for how long it is left alone.
    pub(super) fn note(&self, key: &str, print: u64, reason: &str) -> Duration {
        let longest = if reason == CLAIM_NOT_READY {
            LONGEST_FOR_CLAIMS
        } else {
            LONGEST_PAUSE
        };
        let mut waits = self.lock();
        let before = waits.get(key).filter(|wait| wait.print == print);
        let pause = before.map_or(FIRST_PAUSE, |wait| (wait.pause * 2).min(longest));
        let until = Instant::now() + pause;
        waits.insert(key.to_owned(), Wait { print, pause, until });
        pause
    }

    /// It waits no more.
    pub(super) fn forget(&self, key: &str) {
        self.lock().remove(key);
    }

    /// All of them.
    pub(super) fn keys(&self) -> BTreeSet<String> {
        self.lock().keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Wait>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pods<'_> {
    /// What is known without asking: the pod but for its status, which says that it waits; where it
    /// is to run; what is seen there; which cluster answers, or why none does.
    pub(super) fn print(&self, look: &Look<'_>) -> u64 {
        let mut print = DefaultHasher::new();
        if let Some(home) = &look.home {
            let meta = &home.metadata;
            let text = json!([
                meta.uid,
                meta.labels,
                meta.annotations,
                meta.finalizers,
                meta.owner_references,
                home.spec,
            ]);
            text.to_string().hash(&mut print);
        }
        let remote = look.remote.as_ref().map(|it| &it.metadata);
        let remote = remote.map(|it| (&it.uid, &it.resource_version));
        remote.hash(&mut print);
        look.namespace.hash(&mut print);
        let place = look.place.as_ref().map(|place| &place.uid);
        place.hash(&mut print);
        format!("{:?}", self.settings()).hash(&mut print);
        print.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn claims_come_by_themselves() {
        let waits = Waits::default();
        let pauses: Vec<u64> = (0..4)
            .map(|_| waits.note("a", 1, CLAIM_NOT_READY).as_secs())
            .collect();
        assert_eq!(pauses, [2, 4, 8, 8]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_is_asked_for_ever_more_rarely_until_something_changes() {
        let waits = Waits::default();
        assert_eq!(waits.holds("a", 1), None);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let pause = waits.note("a", 1, "RemoteRefused");
            assert_eq!(waits.holds("a", 1), Some(pause));
            tokio::time::advance(pause).await;
            assert_eq!(waits.holds("a", 1), None);
            pauses.push(pause.as_secs());
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60, 60]);
        waits.note("a", 1, "RemoteRefused");
        assert_eq!(waits.holds("a", 2), None, "it has changed");
        assert_eq!(waits.note("a", 2, "RemoteRefused"), FIRST_PAUSE);
        assert_eq!(waits.keys(), ["a".to_owned()].into());
        waits.forget("a");
        assert_eq!(waits.holds("a", 2), None);
    }
}
