//! The deadline of a call: it passes a little before the caller's, so that the caller gets the reason
//! and not only "deadline exceeded".

use std::time::Duration;

use tokio::time::Instant;
use tonic::metadata::MetadataMap;

/// The longest deadline, and that of callers that set none (csi-sanity): as long as kubelet and the controller manager
/// wait for a volume.
const MAX_DEADLINE: Duration = Duration::from_mins(2);
/// The share of the caller's time that is reserved for the answer.
const MARGIN: u32 = 10;
const LONGEST_MARGIN: Duration = Duration::from_secs(1);

/// The time by which a call must be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(Instant);

impl Deadline {
    /// The deadline of a call that came with this metadata.
    #[must_use]
    pub fn of(metadata: &MetadataMap) -> Self {
        let given = metadata
            .get("grpc-timeout")
            .and_then(|value| parse(value.to_str().ok()?));
        let time = given.map_or(MAX_DEADLINE, |time| {
            time.saturating_sub(LONGEST_MARGIN.min(time / MARGIN))
                .min(MAX_DEADLINE)
        });
        Self(Instant::now() + time)
    }

    /// A deadline this far away.
    #[must_use]
    pub fn after(time: Duration) -> Self {
        Self(Instant::now() + time)
    }

    /// The time of the deadline.
    #[must_use]
    pub fn at(self) -> Instant {
        self.0
    }

    /// Whether it has passed.
    #[must_use]
    pub fn passed(self) -> bool {
        Instant::now() >= self.0
    }
}

/// `grpc-timeout` is up to eight digits and a unit.
fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let amount: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(amount.checked_mul(3600)?)),
        "M" => Some(Duration::from_secs(amount.checked_mul(60)?)),
        "S" => Some(Duration::from_secs(amount)),
        "m" => Some(Duration::from_millis(amount)),
        "u" => Some(Duration::from_micros(amount)),
        "n" => Some(Duration::from_nanos(amount)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_of_grpc_timeouts_is_parsed() {
        assert_eq!(parse("9999m"), Some(Duration::from_millis(9999)));
        assert_eq!(parse("10S"), Some(Duration::from_secs(10)));
        assert_eq!(parse("2H"), Some(Duration::from_hours(2)));
        for odd in ["", "S", "10", "-1S", "10s", "1é"] {
            assert_eq!(parse(odd), None, "{odd}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn our_deadline_is_before_that_of_the_caller() {
        let mut metadata = MetadataMap::new();
        metadata.insert("grpc-timeout", "10S".parse().unwrap());
        assert_eq!(Deadline::of(&metadata), Deadline::after(Duration::from_secs(9)));
        assert_eq!(Deadline::of(&MetadataMap::new()), Deadline::after(MAX_DEADLINE));
    }
}
