//! Allows one operation per volume at a time in one process. A second one is rejected, not queued: its
//! caller retries anyway. This only avoids useless work; correctness never depends on it, because other
//! replicas do not know about it.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

/// The volumes with an operation in progress.
#[derive(Clone, Debug, Default)]
pub struct InFlight(Arc<Mutex<HashSet<String>>>);

/// Locks a volume. Clones share the lock, which ends with the last of them.
#[derive(Clone, Debug)]
pub struct Guard {
    _locked: Arc<LockedVolume>,
}

#[derive(Debug)]
struct LockedVolume {
    volume: String,
    all: InFlight,
}

/// Another operation on the volume has not ended.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("another operation on {0} is in progress")]
pub struct Busy(String);

impl InFlight {
    /// Locks a volume, unless it is locked.
    pub fn enter(&self, volume: &str) -> Result<Guard, Busy> {
        if !self.lock().insert(volume.to_owned()) {
            return Err(Busy(volume.to_owned()));
        }
        let locked = LockedVolume {
            volume: volume.to_owned(),
            all: self.clone(),
        };
        Ok(Guard {
            _locked: Arc::new(locked),
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LockedVolume {
    fn drop(&mut self) {
        self.all.lock().remove(&self.volume);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_locked_until_the_last_guard_is_dropped() {
        let all = InFlight::default();
        let guard = all.enter("a").unwrap();
        let clone = guard.clone();
        assert!(all.enter("b").is_ok());
        drop(guard);
        assert_eq!(all.enter("a").unwrap_err(), Busy("a".into()));
        drop(clone);
        assert!(all.enter("a").is_ok());
    }
}
