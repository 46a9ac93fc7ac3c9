//! One operation per volume at a time, and blocking work that stays guarded until
//! it truly ends. A second call for a busy volume is turned away, never queued:
//! its caller repeats it anyway.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{task, time};

/// The volumes with an operation under way. Only spares callers from each other;
/// nothing that must survive this process rests on it.
#[derive(Clone, Debug, Default)]
pub struct InFlight(Arc<Mutex<HashSet<String>>>);

/// Holds a volume. Clones share the hold, which ends with the last of them.
#[derive(Clone, Debug)]
pub struct Guard {
    _held: Arc<Held>,
}

#[derive(Debug)]
struct Held {
    volume: String,
    all: InFlight,
}

/// Another operation on the volume has not ended.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("another operation on volume {0} is still under way on this node")]
pub struct Busy(String);

/// Why blocking work gave no result.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Stuck {
    /// It still runs; the volume stays busy until it returns.
    #[error("{what} takes longer than {limit:?} and goes on in the background")]
    Slow {
        /// What was being done.
        what: String,
        /// How long it was waited for.
        limit: Duration,
    },
    /// It panicked, or the process is going down.
    #[error("{what} was broken off")]
    BrokenOff {
        /// What was being done.
        what: String,
    },
}

impl InFlight {
    /// Takes hold of a volume, or says that somebody has it.
    pub fn enter(&self, volume: &str) -> Result<Guard, Busy> {
        if !self.lock().insert(volume.to_owned()) {
            return Err(Busy(volume.to_owned()));
        }
        let held = Held {
            volume: volume.to_owned(),
            all: self.clone(),
        };
        Ok(Guard {
            _held: Arc::new(held),
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.lock().remove(&self.volume);
    }
}

impl Guard {
    /// Runs `work` on a thread that may block, and waits up to `limit`. A mount of a
    /// dead server can hang for minutes and cannot be cancelled, so the work itself
    /// keeps the volume held for as long as it runs.
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
            Ok(Err(_)) => Err(Stuck::BrokenOff { what: what.into() }),
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

    #[test]
    fn a_volume_is_held_until_the_last_clone_goes() {
        let all = InFlight::default();
        let guard = all.enter("a").unwrap();
        let clone = guard.clone();
        assert!(all.enter("b").is_ok());
        drop(guard);
        assert_eq!(all.enter("a").unwrap_err(), Busy("a".into()));
        drop(clone);
        assert!(all.enter("a").is_ok());
    }

    #[tokio::test]
    async fn work_that_outlives_its_caller_keeps_the_volume() {
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
        assert!(matches!(broken, Err(Stuck::BrokenOff { .. })));
        drop(guard);
        assert!(all.enter("a").is_ok());
    }
}
