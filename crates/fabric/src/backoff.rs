//! Back-off for actions that would be repeated without end: writes that another client reverts or
//! the API server refuses, and reads of unchanged objects.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// The last action on each object, with a fingerprint of it. Two clients that undo each other's writes must not
/// write as fast as they can.
pub(super) struct Backoff<P> {
    last: HashMap<String, Last<P>>,
    /// When expired entries were last removed. That takes time for each entry, so it is done
    /// rarely.
    pruned: Option<Instant>,
}

struct Last<P> {
    fingerprint: P,
    pause: Duration,
    until: Instant,
}

impl<P> Default for Backoff<P> {
    fn default() -> Self {
        Self {
            last: HashMap::new(),
            pruned: None,
        }
    }
}

impl<P: PartialEq> Backoff<P> {
    /// The time until this action may be repeated on the object; `None` if it may be now.
    pub(super) fn remaining(&self, key: &str, fingerprint: &P) -> Option<Duration> {
        let last = self
            .last
            .get(key)
            .filter(|last| last.fingerprint == *fingerprint)?;
        let left = last.until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    pub(super) fn record(&mut self, key: String, fingerprint: P) {
        self.pause(key, fingerprint, FIRST_PAUSE, LONGEST_PAUSE);
    }

    /// Records the action and returns the pause before the next one, which doubles each time.
    pub(super) fn pause(
        &mut self,
        key: String,
        fingerprint: P,
        first: Duration,
        longest: Duration,
    ) -> Duration {
        let now = Instant::now();
        if self.pruned.is_none_or(|it| it + FIRST_PAUSE <= now) {
            self.pruned = Some(now);
            self.last.retain(|_, last| now < last.until + 2 * LONGEST_PAUSE);
        }
        let last = self.last.get(&key).filter(|last| last.fingerprint == fingerprint);
        let pause = last.map_or(first, |last| (last.pause * 2).min(longest));
        let until = now + pause;
        self.last.insert(
            key,
            Last {
                fingerprint,
                pause,
                until,
            },
        );
        pause
    }

    pub(super) fn forget(&mut self, key: &str) {
        self.last.remove(key);
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &String> {
        self.last.keys()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn repeated_actions_back_off_up_to_the_longest_pause() {
        let mut backoff = Backoff::default();
        let mut last = Duration::ZERO;
        for _ in 0..10 {
            assert_eq!(backoff.remaining("a", &1), None);
            backoff.record("a".into(), 1);
            let pause = backoff.remaining("a", &1).unwrap();
            assert!(pause > last || pause == LONGEST_PAUSE);
            assert_eq!(
                backoff.remaining("a", &2),
                None,
                "a change at home waits for nothing"
            );
            last = pause;
            time::sleep(pause).await;
        }
        assert_eq!(last, LONGEST_PAUSE);
        time::sleep(3 * LONGEST_PAUSE).await;
        backoff.record("a".into(), 1);
        assert_eq!(backoff.remaining("a", &1), Some(FIRST_PAUSE));
    }
}
