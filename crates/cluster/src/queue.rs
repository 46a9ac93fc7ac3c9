//! A work queue of changed keys. Each key is in it once however often it changed; keys are handled in the
//! order in which they are due, and each only once at a time. A key that fails is retried after a pause of
//! its own, which grows; it delays no other key. The cost of a change does not depend on the number of keys.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use futures::{StreamExt, stream};
use tokio::time::Instant;

use crate::{cluster::ApiError, observe::log::Ongoing, volume::digest};

/// How many keys one loop handles at the same time.
pub const AT_ONCE: usize = 8;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// Keys that wait to be handled.
#[derive(Default)]
pub struct Queue {
    /// The time at which each key is due.
    due: HashMap<String, Instant>,
    order: BTreeSet<(Instant, String)>,
    /// The keys that are being handled and, if one has changed meanwhile, when it is due.
    busy: HashMap<String, Option<Instant>>,
    /// The keys that failed when they were last handled.
    failures: HashMap<String, Failure>,
}

/// The last failure of a key.
struct Failure {
    pause: Duration,
    error: Ongoing,
}

impl Queue {
    /// Adds a changed key. A key that failed stays paused.
    pub fn add(&mut self, key: impl Into<String>) {
        let key = key.into();
        if !(self.failures.contains_key(&key) && self.due.contains_key(&key)) {
            self.put(key, Instant::now());
        }
    }

    /// Makes a key due at this time, unless it is due earlier.
    fn put(&mut self, key: String, when: Instant) {
        if let Some(changed) = self.busy.get_mut(&key) {
            *changed = Some(changed.map_or(when, |it| it.min(when)));
            return;
        }
        let before = self.due.get(&key).copied();
        if before.is_some_and(|it| it <= when) {
            return;
        }
        self.drop_due(&key);
        self.order.insert((when, key.clone()));
        self.due.insert(key, when);
    }

    fn drop_due(&mut self, key: &str) {
        if let Some((key, when)) = self.due.remove_entry(key) {
            self.order.remove(&(when, key));
        }
    }

    /// When the next key is due that is not being handled.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.order.first().map(|(when, _)| *when)
    }

    /// The time until the next key is due.
    #[must_use]
    pub fn left(&self) -> Option<Duration> {
        let next = self.next()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn due(&self) -> impl Iterator<Item = String> {
        let now = Instant::now();
        let due = self.order.iter().take_while(move |(when, _)| *when <= now);
        due.map(|(_, key)| key.clone())
    }

    /// Up to `most` keys that are due; they count as busy from now on.
    pub fn take(&mut self, most: usize) -> Vec<String> {
        let taken: Vec<String> = self.due().take(most).collect();
        for key in &taken {
            self.drop_due(key);
            self.busy.insert(key.clone(), None);
        }
        taken
    }

    /// A key was handled, and has to be handled again after this time even if nothing changes.
    pub fn done(&mut self, key: &str, again: Option<Duration>) {
        self.failures.remove(key);
        let again = again.map(|after| Instant::now() + after);
        let changed = self.busy.remove(key).flatten();
        if let Some(when) = again.into_iter().chain(changed).min() {
            self.put(key.to_owned(), when);
        }
    }

    /// A key failed: pauses it. The same error is logged once.
    pub fn failed(&mut self, key: &str, error: &ApiError) {
        let failure = self.failures.entry(key.to_owned());
        let failure = failure
            .and_modify(|last| last.pause = LONGEST_PAUSE.min(last.pause * 2))
            .or_insert_with(|| Failure {
                pause: FIRST_PAUSE,
                error: Ongoing::default(),
            });
        if failure.error.is_news(error.to_string()) {
            tracing::warn!(key, %error, "reconciling an object failed; retrying");
        }
        let pause = failure.pause;
        self.busy.remove(key);
        self.drop_due(key);
        self.put(key.to_owned(), Instant::now() + pause + spread(key, pause));
    }

    /// Handles every key that is due, a few at a time. False if some failed; they stay in the queue.
    pub async fn work<F>(&mut self, reconcile: impl Fn(String) -> F) -> bool
    where
        F: Future<Output = Result<(), ApiError>>,
    {
        // The keys stay due until they are handled, because this function may be aborted at any time.
        let keys: Vec<String> = self.due().collect();
        let mut outcomes = stream::iter(keys)
            .map(|key| {
                let done = reconcile(key.clone());
                async move { (key, done.await) }
            })
            .buffer_unordered(AT_ONCE);
        let mut has_succeeded = true;
        while let Some((key, outcome)) = outcomes.next().await {
            self.drop_due(&key);
            match outcome {
                Ok(()) => self.done(&key, None),
                Err(error) => {
                    has_succeeded = false;
                    self.failed(&key, &error);
                }
            }
        }
        has_succeeded
    }
}

/// Up to half of a pause, different for each key: keys that failed together are not retried together.
fn spread(key: &str, pause: Duration) -> Duration {
    let digest = digest(2, [key]);
    let share = u32::from_str_radix(&digest, 16).unwrap_or_default() % 100;
    pause * share / 200
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, collections::BTreeSet};

    use tokio::time;

    use super::*;
    use crate::cluster::Cause;

    /// The keys that were handled, while these fail.
    async fn work(queue: &mut Queue, failing: &[&str]) -> (bool, BTreeSet<String>) {
        let seen = RefCell::new(BTreeSet::new());
        let all_well = queue
            .work(async |key: String| {
                let fails = failing.contains(&key.as_str());
                assert!(seen.borrow_mut().insert(key), "each once");
                if fails {
                    return Err(ApiError::for_test(Cause::Invalid("no".into())));
                }
                Ok(())
            })
            .await;
        (all_well, seen.into_inner())
    }

    fn keys(keys: &[&str]) -> BTreeSet<String> {
        keys.iter().map(|&key| key.to_owned()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_key_backs_off_alone() {
        let mut queue = Queue::default();
        for key in ["a", "b", "a"] {
            queue.add(key);
        }
        assert_eq!(work(&mut queue, &["a"]).await, (false, keys(&["a", "b"])));
        queue.add("a");
        queue.add("b");
        assert_eq!(
            work(&mut queue, &[]).await,
            (true, keys(&["b"])),
            "a change does not shorten the pause"
        );
        let first = queue.left().unwrap();
        assert!((FIRST_PAUSE..FIRST_PAUSE * 2).contains(&first), "{first:?}");
        time::sleep(first).await;
        assert_eq!(work(&mut queue, &["a"]).await, (false, keys(&["a"])));
        let second = queue.left().unwrap();
        assert!(
            second >= FIRST_PAUSE * 2 && second < FIRST_PAUSE * 4,
            "{second:?}"
        );
        time::sleep(second).await;
        assert_eq!(work(&mut queue, &[]).await, (true, keys(&["a"])));
        assert_eq!(queue.left(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_aborted_round_keeps_its_keys() {
        let mut queue = Queue::default();
        queue.add("a");
        let hanging = queue.work(|_| std::future::pending());
        assert!(time::timeout(Duration::from_secs(1), hanging).await.is_err());
        assert_eq!(work(&mut queue, &[]).await, (true, keys(&["a"])));
    }

    #[tokio::test(start_paused = true)]
    async fn keys_are_taken_in_due_order_and_not_while_they_are_being_handled() {
        let mut queue = Queue::default();
        queue.add("b");
        time::advance(Duration::from_millis(1)).await;
        queue.add("a");
        queue.add("b");
        assert_eq!(queue.take(1), ["b"]);
        queue.add("b");
        assert_eq!(queue.take(9), ["a"], "b is busy");
        queue.done("b", None);
        assert_eq!(queue.take(9), ["b"], "it changed meanwhile");
        queue.done("b", Some(Duration::from_secs(5)));
        queue.done("a", None);
        assert_eq!(queue.left(), Some(Duration::from_secs(5)));
        assert!(queue.take(9).is_empty());
        time::advance(Duration::from_secs(5)).await;
        assert_eq!(queue.take(9), ["b"]);
    }
}
