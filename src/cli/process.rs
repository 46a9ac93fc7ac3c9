//! Termination signals, and durations in arguments.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that is cancelled when the process gets a signal to terminate.
pub(super) fn until_signalled() -> std::io::Result<CancellationToken> {
    let mut term = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stop = CancellationToken::new();
    let cancel = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping");
        cancel.cancel();
    });
    Ok(stop)
}

/// `500ms`, `90s`, `10m`, `1h30m`, `4m0s`: durations as Go writes them, without fractions.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration: write 500ms, 90s, 10m or 1h30m");
    let mut sum = Duration::ZERO;
    let mut rest = text;
    loop {
        let unit_at = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (amount, unit) = rest.split_at(unit_at);
        let ends = unit.find(|c: char| c.is_ascii_digit()).unwrap_or(unit.len());
        let amount: u64 = amount.parse().map_err(|_| wrong())?;
        let part = match &unit[..ends] {
            "ms" => Some(Duration::from_millis(amount)),
            "s" => Some(Duration::from_secs(amount)),
            "m" => amount.checked_mul(60).map(Duration::from_secs),
            "h" => amount.checked_mul(3600).map(Duration::from_secs),
            _ => None,
        };
        sum = part.and_then(|part| sum.checked_add(part)).ok_or_else(wrong)?;
        rest = &unit[ends..];
        if rest.is_empty() {
            return Ok(sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_the_command_line_are_parsed() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("10m"), Ok(Duration::from_mins(10)));
        assert_eq!(duration("4m0s"), Ok(Duration::from_mins(4)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_mins(90)));
        for odd in ["", "10", "m", "1h10", "10 m", "1.5h", "99999999999999999999s"] {
            assert!(duration(odd).is_err(), "{odd}");
        }
    }
}
