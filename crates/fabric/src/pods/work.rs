//! What is to be looked at: each key by one at a time, again when it changed meanwhile, and after
//! a pause of its own when that failed. Unlike in [`crate::queue::Queue`], no key waits for the
//! slowest.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use tokio::time::Instant;

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Keys that wait, and those that are looked at now.
#[derive(Default)]
pub(super) struct Work {
    due: BTreeMap<String, Instant>,
    busy: HashSet<String>,
    /// How long each that failed paused last.
    pauses: HashMap<String, Duration>,
}

impl Work {
    /// This has changed. What has failed pauses all the same.
    pub(super) fn add(&mut self, key: String) {
        let now = Instant::now();
        let waits = self.pauses.contains_key(&key);
        let due = self.due.entry(key).or_insert(now);
        if !waits {
            *due = (*due).min(now);
        }
    }

    /// Up to so many keys that are due; they are busy from now on.
    pub(super) fn take(&mut self, most: usize) -> Vec<String> {
        let now = Instant::now();
        let is_free = |key: &String| !self.busy.contains(key);
        let due = self
            .due
            .iter()
            .filter(|(key, when)| **when <= now && is_free(key));
        let taken: Vec<String> = due.take(most).map(|(key, _)| key.clone()).collect();
        for key in &taken {
            self.due.remove(key);
            self.busy.insert(key.clone());
        }
        taken
    }

    /// A key was looked at, and is to be again after so long even if nothing changes.
    pub(super) fn done(&mut self, key: &str, again: Option<Duration>) {
        self.busy.remove(key);
        self.pauses.remove(key);
        if let Some(after) = again {
            let when = Instant::now() + after;
            let due = self.due.entry(key.to_owned()).or_insert(when);
            *due = (*due).min(when);
        }
    }

    /// A key could not be seen to.
    pub(super) fn failed(&mut self, key: &str) {
        self.busy.remove(key);
        let pause = self.pauses.get(key).map_or(FIRST_PAUSE, |last| *last * 2);
        let pause = pause.min(LONGEST_PAUSE);
        self.due.insert(key.to_owned(), Instant::now() + pause);
        self.pauses.insert(key.to_owned(), pause);
    }

    /// When the next key is due that nobody looks at.
    pub(super) fn next(&self) -> Option<Instant> {
        let waiting = self.due.iter().filter(|(key, _)| !self.busy.contains(*key));
        waiting.map(|(_, when)| *when).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_key_is_looked_at_by_one_at_a_time() {
        let mut work = Work::default();
        work.add("a".into());
        work.add("b".into());
        assert_eq!(work.take(1), ["a"]);
        work.add("a".into());
        assert_eq!(work.take(9), ["b"], "a is busy");
        work.done("a", None);
        assert_eq!(work.take(9), ["a"], "it changed meanwhile");
        work.done("a", None);
        work.done("b", Some(Duration::from_secs(5)));
        assert!(work.take(9).is_empty());
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(work.take(9), ["b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_pauses_longer_and_longer() {
        let mut work = Work::default();
        work.add("a".into());
        let mut pause = FIRST_PAUSE;
        for _ in 0..3 {
            assert_eq!(work.take(9), ["a"]);
            work.failed("a");
            work.add("a".into());
            assert!(work.take(9).is_empty(), "a change does not shorten the pause");
            tokio::time::advance(pause).await;
            pause *= 2;
        }
    }
}
