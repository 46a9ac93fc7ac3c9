//! Holds back what would be done again and again: a write that somebody undoes, or refuses, a look at what
//! has not changed.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// What was done of late, each by what it was. Two that insist must not write in turns as fast as
/// they can.
pub(super) struct Brake<P> {
    last: HashMap<String, Last<P>>,
    /// When those that are over were forgotten: that takes as long as there are.
    forgot: Option<Instant>,
}

struct Last<P> {
    print: P,
    pause: Duration,
    until: Instant,
}

impl<P> Default for Brake<P> {
    fn default() -> Self {
        Self {
            last: HashMap::new(),
            forgot: None,
        }
    }
}

impl<P: PartialEq> Brake<P> {
    /// In what time this may be done to that object again; `None` if it may be now.
    pub(super) fn holds(&self, key: &str, print: &P) -> Option<Duration> {
        let last = self.last.get(key).filter(|last| last.print == *print)?;
        let left = last.until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// This is done to that object.
    pub(super) fn note(&mut self, key: String, print: P) {
        self.pause(key, print, FIRST_PAUSE, LONGEST_PAUSE);
    }

    /// This is done to that object, and then not again for so long, which doubles.
    pub(super) fn pause(&mut self, key: String, print: P, first: Duration, longest: Duration) -> Duration {
        let now = Instant::now();
        if self.forgot.is_none_or(|it| it + FIRST_PAUSE <= now) {
            self.forgot = Some(now);
            self.last.retain(|_, last| now < last.until + 2 * LONGEST_PAUSE);
        }
        let last = self.last.get(&key).filter(|last| last.print == print);
        let pause = last.map_or(first, |last| (last.pause * 2).min(longest));
        let until = now + pause;
        self.last.insert(key, Last { print, pause, until });
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
