//! How fast something may be done: events in a namespace, and one write that somebody undoes
//! again and again.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use crate::offload::reflection::Print;

/// The time that each event takes.
const EACH: Duration = Duration::from_millis(200);
/// How many may come at once.
const BURST: u32 = 10;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// Five a second, and a few at once.
#[derive(Default)]
pub(super) struct Pace {
    /// Until when all time is taken.
    taken: Option<Instant>,
}

impl Pace {
    /// Takes a turn, or says in what time there is one.
    pub(super) fn take(&mut self) -> Result<(), Duration> {
        let now = Instant::now();
        let next = self.taken.map_or(now, |it| it.max(now)) + EACH;
        let early = (next - now).saturating_sub(EACH * BURST);
        if !early.is_zero() {
            return Err(early);
        }
        self.taken = Some(next);
        Ok(())
    }
}

/// Writes of late. A controller there may insist on its own version of a copy: the two must
/// not write in turns as fast as they can.
#[derive(Default)]
pub(super) struct Brake(HashMap<String, Write>);

struct Write {
    print: Print,
    pause: Duration,
    until: Instant,
}

impl Brake {
    /// In what time this may be written to that object again; `None` if it may be now.
    pub(super) fn holds(&self, key: &str, print: &Print) -> Option<Duration> {
        let last = self.0.get(key).filter(|last| last.print == *print)?;
        let left = last.until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// This is written to that object.
    pub(super) fn note(&mut self, key: String, print: Print) {
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
    use serde_json::json;
    use tokio::time;

    use super::*;
    use crate::offload::reflection::{Kind, Marks, wanted};

    #[tokio::test(start_paused = true)]
    async fn events_come_at_five_a_second_after_a_few() {
        let mut pace = Pace::default();
        let mut at_once = || (0..100).take_while(|_| pace.take().is_ok()).count();
        assert_eq!(at_once(), 10);
        time::sleep(Duration::from_secs(1)).await;
        assert_eq!(at_once(), 5);
        time::sleep(Duration::from_mins(1)).await;
        assert_eq!(at_once(), 10);
        assert!(pace.take().is_err_and(|wait| wait <= EACH));
    }

    #[tokio::test(start_paused = true)]
    async fn who_insists_is_answered_ever_more_slowly() {
        let marks = Marks {
            home: "rome".into(),
            labels: [].into(),
            annotations: [].into(),
        };
        let print = |text: &str| {
            let object = json!({"metadata": {"name": "a"}, "data": {"a": text}});
            wanted(Kind::ConfigMap, object, &marks).unwrap().original.print
        };
        let mut brake = Brake::default();
        let mut last = Duration::ZERO;
        for _ in 0..10 {
            assert_eq!(brake.holds("a", &print("1")), None);
            brake.note("a".into(), print("1"));
            let pause = brake.holds("a", &print("1")).unwrap();
            assert!(pause > last || pause == LONGEST_PAUSE);
            assert_eq!(
                brake.holds("a", &print("2")),
                None,
                "a change at home waits for nothing"
            );
            last = pause;
            time::sleep(pause).await;
        }
        assert_eq!(last, LONGEST_PAUSE);
        time::sleep(3 * LONGEST_PAUSE).await;
        brake.note("a".into(), print("1"));
        assert_eq!(brake.holds("a", &print("1")), Some(FIRST_PAUSE));
    }
}
