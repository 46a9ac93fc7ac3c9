//! A work queue: keys of what has changed, each taken once however often it changed. A key that
//! fails is tried again after a pause of its own, which grows; it delays no other.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use futures::{StreamExt, stream};
use tokio::time::Instant;

use crate::{cluster::ApiError, volume::digest};

/// How many things one loop does at once.
pub const AT_ONCE: usize = 8;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// Keys that wait for their turn.
#[derive(Default)]
pub struct Queue {
    /// When each is due.
    due: BTreeMap<String, Instant>,
    /// How long each that failed paused last.
    pauses: HashMap<String, Duration>,
}

impl Queue {
    /// This has changed. What failed a moment ago is looked at when its pause is over.
    pub fn add(&mut self, key: impl Into<String>) {
        self.due.entry(key.into()).or_insert_with(Instant::now);
    }

    /// In what time the next key is due.
    #[must_use]
    pub fn left(&self) -> Option<Duration> {
        let next = self.due.values().min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Looks at every key that is due, a few at a time. False if some failed; they stay.
    pub async fn work<F>(&mut self, reconcile: impl Fn(String) -> F) -> bool
    where
        F: Future<Output = Result<(), ApiError>>,
    {
        let now = Instant::now();
        let due = self.due.iter().filter(|(_, when)| **when <= now);
        let keys: Vec<String> = due.map(|(key, _)| key.clone()).collect();
        let mut outcomes = stream::iter(keys)
            .map(|key| {
                let done = reconcile(key.clone());
                async move { (key, done.await) }
            })
            .buffer_unordered(AT_ONCE);
        let mut has_succeeded = true;
        while let Some((key, outcome)) = outcomes.next().await {
            let Err(error) = outcome else {
                self.due.remove(&key);
                self.pauses.remove(&key);
                continue;
            };
            tracing::warn!(key, %error, "what changed could not be seen to: it is tried again");
            has_succeeded = false;
            let pause = self.pauses.get(&key).map_or(FIRST_PAUSE, |last| *last * 2);
            let pause = pause.min(LONGEST_PAUSE);
            self.due
                .insert(key.clone(), Instant::now() + pause + spread(&key, pause));
            self.pauses.insert(key, pause);
        }
        has_succeeded
    }
}

/// Up to half a pause, another one for each key: what failed together is not tried together.
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

    /// What was looked at, where these fail.
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
    async fn what_fails_pauses_by_itself() {
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
    async fn a_round_that_is_given_up_forgets_nothing() {
        let mut queue = Queue::default();
        queue.add("a");
        let hanging = queue.work(|_| std::future::pending());
        assert!(time::timeout(Duration::from_secs(1), hanging).await.is_err());
        assert_eq!(work(&mut queue, &[]).await, (true, keys(&["a"])));
    }
}
