//! Runs work that blocks a thread, bounded in time, with the volume locked until the work truly ends.

use std::time::Duration;

use tokio::{task, time};

use super::in_flight::Guard;

/// Why blocking work has no result.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Stuck {
    /// The work is still running; the volume stays locked until it returns.
    #[error("{what} takes longer than {limit:?} and continues in the background")]
    Slow { what: String, limit: Duration },
    /// The work panicked, or the process is terminating.
    #[error("{what} was aborted")]
    Aborted { what: String },
}

impl Guard {
    /// Runs `work` on a thread that may block, and waits up to `limit`. A mount of a server that does not
    /// answer can hang for minutes and cannot be cancelled, so the work itself keeps the volume locked as
    /// long as it runs.
    pub async fn block<T: Send + 'static>(
        &self,
        what: impl Into<String>,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Stuck> {
        let held = self.clone();
        let running = task::spawn_blocking(move || {
            let result = work();
            drop(held);
            result
        });
        match time::timeout(limit, running).await {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(_)) => Err(Stuck::Aborted { what: what.into() }),
            Err(_) => Err(Stuck::Slow {
                what: what.into(),
                limit,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::in_flight::InFlight;

    #[tokio::test]
    async fn a_volume_stays_locked_while_work_outlives_its_caller() {
        let all = InFlight::default();
        let guard = all.enter("a").unwrap();
        let (release, released) = mpsc::channel::<()>();
        let slow = guard
            .block("waiting", Duration::from_millis(10), move || released.recv())
            .await;
        assert!(matches!(slow, Err(Stuck::Slow { .. })), "{slow:?}");
        drop(guard);
        assert!(all.enter("a").is_err());

        release.send(()).unwrap();
        let freed = async {
            while all.enter("a").is_err() {
                task::yield_now().await;
            }
        };
        time::timeout(Duration::from_secs(30), freed).await.unwrap();
    }

    #[tokio::test]
    async fn a_panic_frees_the_volume() {
        let all = InFlight::default();
        let guard = all.enter("a").unwrap();
        let broken = guard
            .block("failing", Duration::from_secs(30), || panic!("on purpose"))
            .await;
        assert!(matches!(broken, Err(Stuck::Aborted { .. })));
        drop(guard);
        assert!(all.enter("a").is_ok());
    }
}
