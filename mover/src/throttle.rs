//! The bandwidth limit of a move: a token bucket that all lanes share.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// The size of a burst after a pause.
const BURST: Duration = Duration::from_millis(100);

/// Limits the number of bytes per second.
#[derive(Debug)]
pub struct Throttle {
    rate: Option<f64>,
    /// When the bytes so far would have been sent at the allowed rate.
    paid: Mutex<Instant>,
}

impl Throttle {
    /// At most this many bytes per second; `None` means no limit.
    #[must_use]
    pub fn new(bytes_per_second: Option<std::num::NonZeroU64>) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a rate need not be exact")]
        let rate = bytes_per_second.map(|rate| rate.get() as f64);
        Self {
            rate,
            paid: Mutex::new(Instant::now()),
        }
    }

    /// Counts these bytes as sent, and returns how long to wait before sending them.
    #[must_use]
    pub fn reserve(&self, bytes: usize) -> Option<Duration> {
        self.debt(bytes, Instant::now())
    }

    fn debt(&self, bytes: usize, now: Instant) -> Option<Duration> {
        let rate = self.rate?;
        let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = (*paid).max(now.checked_sub(BURST).unwrap_or(now));
        #[expect(clippy::cast_precision_loss, reason = "a frame is no longer than 4 MiB")]
        let cost = Duration::from_secs_f64(bytes as f64 / rate);
        *paid = begin + cost;
        paid.checked_duration_since(now).filter(|wait| !wait.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_throttle_allows_the_rate_plus_a_tenth_in_a_second() {
        let throttle = Throttle::new(std::num::NonZeroU64::new(1000));
        let start = Instant::now() + Duration::from_secs(5);
        let (mut now, mut sent) = (start, 0);
        while now < start + Duration::from_secs(1) {
            now += throttle.debt(100, now).unwrap_or_default();
            sent += 100;
        }
        assert!((1000..=1200).contains(&sent), "{sent}");
        assert_eq!(Throttle::new(None).debt(1 << 30, now), None);
    }
}
