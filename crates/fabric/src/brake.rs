//! Holds back a write that somebody undoes, or refuses, again and again.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// Writes of late, each by what was written. Two that insist must not write in turns as fast as
/// they can.
pub(super) struct Brake<P>(HashMap<String, Write<P>>);

struct Write<P> {
    print: P,
    pause: Duration,
    until: Instant,
}

impl<P> Default for Brake<P> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<P: PartialEq> Brake<P> {
    /// In what time this may be written to that object again; `None` if it may be now.
    pub(super) fn holds(&self, key: &str, print: &P) -> Option<Duration> {
        let last = self.0.get(key).filter(|last| last.print == *print)?;
        let left = last.until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// This is written to that object.
    pub(super) fn note(&mut self, key: String, print: P) {
        let now = Instant::now();
        self.0.retain(|_, last| now < last.until + 2 * LONGEST_PAUSE);
        let last = self.0.get(&key).filter(|last| last.print == print);
        let pause = last.map_or(FIRST_PAUSE, |last| (last.pause * 2).min(LONGEST_PAUSE));
        let until = now + pause;
        self.0.insert(key, Write { print, pause, until });
    }
}

#[cfg(test)]
mod tests {
    use tokio::time;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_insists_is_answered_ever_more_slowly() {
        let mut brake = Brake::default();
        let mut last = Duration::ZERO;
        for _ in 0..10 {
            assert_eq!(brake.holds("a", &1), None);
            brake.note("a".into(), 1);
            let pause = brake.holds("a", &1).unwrap();
            assert!(pause > last || pause == LONGEST_PAUSE);
            assert_eq!(brake.holds("a", &2), None, "a change at home waits for nothing");
            last = pause;
            time::sleep(pause).await;
        }
        assert_eq!(last, LONGEST_PAUSE);
        time::sleep(3 * LONGEST_PAUSE).await;
        brake.note("a".into(), 1);
        assert_eq!(brake.holds("a", &1), Some(FIRST_PAUSE));
    }
}
