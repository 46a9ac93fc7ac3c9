//! How fast events are told in a namespace.

use std::time::Duration;

use tokio::time::Instant;

/// The time that each event takes.
const EACH: Duration = Duration::from_millis(200);
/// How many may come at once.
const BURST: u32 = 10;

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

#[cfg(test)]
mod tests {
    use tokio::time;

    use super::*;

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
}
