//! How fast something is done that others cause: so many a second, and a few at once.

use std::time::Duration;

use tokio::time::Instant;

/// A pace.
#[derive(Debug)]
pub(super) struct Pace {
    /// The time that each takes.
    each: Duration,
    /// Until when all time is taken.
    taken: Option<Instant>,
}

impl Pace {
    /// One at which each takes so long.
    pub(super) const fn new(each: Duration) -> Self {
        Self { each, taken: None }
    }

    /// Takes a turn, or says in what time there is one. So many may come at once.
    pub(super) fn take(&mut self, burst: u32) -> Result<(), Duration> {
        let now = Instant::now();
        let next = self.taken.map_or(now, |it| it.max(now)) + self.each;
        let early = (next - now).saturating_sub(self.each * burst);
        if !early.is_zero() {
            return Err(early);
        }
        self.taken = Some(next);
        Ok(())
    }

    /// Whether it was as if nothing had been done yet.
    pub(super) fn is_idle(&self) -> bool {
        self.taken.is_none_or(|it| it <= Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use tokio::time;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn five_a_second_come_after_a_few() {
        let mut pace = Pace::new(Duration::from_millis(200));
        let mut at_once = || (0..100).take_while(|_| pace.take(10).is_ok()).count();
        assert_eq!(at_once(), 10);
        time::sleep(Duration::from_secs(1)).await;
        assert_eq!(at_once(), 5);
        time::sleep(Duration::from_mins(1)).await;
        assert_eq!(at_once(), 10);
        assert!(
            pace.take(10)
                .is_err_and(|wait| wait <= Duration::from_millis(200))
        );
        assert!(!pace.is_idle());
        time::sleep(Duration::from_secs(2)).await;
        assert!(pace.is_idle());
    }
}
