//! What the controller and the node plugin have in common as processes.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that is cancelled when the process is asked to go.
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

/// `90s`, `10m`, `2h`: the durations Kubernetes components take on their command lines.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration: write 500ms, 90s, 10m or 2h");
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (amount, unit) = text.split_at(unit_at);
    let amount: u64 = amount.parse().map_err(|_| wrong())?;
    match unit {
        "ms" => Ok(Duration::from_millis(amount)),
        "s" => Ok(Duration::from_secs(amount)),
        "m" => amount.checked_mul(60).map(Duration::from_secs).ok_or_else(wrong),
        "h" => amount
            .checked_mul(3600)
            .map(Duration::from_secs)
            .ok_or_else(wrong),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_durations_as_kubernetes_writes_them() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("10m"), Ok(Duration::from_mins(10)));
        for odd in ["", "10", "m", "10 m", "1.5h", "99999999999999999999s"] {
            assert!(duration(odd).is_err(), "{odd}");
        }
    }
}
