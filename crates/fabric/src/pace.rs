//! A rate limit with a burst, for work that other clients cause.

use std::time::Duration;

use tokio::time::Instant;

#[derive(Debug)]
pub(super) struct Pace {
    /// The time between two actions.
    each: Duration,
    /// When the actions so far would have ended without a burst.
    taken: Option<Instant>,
}

impl Pace {
    pub(super) const fn new(each: Duration) -> Self {
        Self { each, taken: None }
    }

    /// Permits one action, or returns the time to wait. `burst` actions may come at once.
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

    /// Whether the full burst is available again.
    pub(super) fn is_idle(&self) -> bool {
        self.taken.is_none_or(|it| it <= Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use tokio::time;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_followed_by_five_a_second() {
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
