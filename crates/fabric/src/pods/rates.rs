//! Limits how fast a remote cluster can cause requests to this one. Status transitions (ready, not ready, ended) are
//! written at once, other status changes once a second for each pod.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time;

use super::Pods;
use crate::{
    backoff::Backoff,
    pace::Pace,
    seen::{Digests, SeenPod},
};

const EACH: Duration = Duration::from_secs(1);
/// Transitions that may come at once: more than a pod has when it starts.
const TRANSITIONS: u32 = 10;

/// Recent status writes, by uid of the pod.
#[derive(Default)]
pub(super) struct StatusRates(Mutex<Taken>);

#[derive(Default)]
struct Taken {
    paces: HashMap<String, Pace>,
    /// When idle entries were last removed. That takes time for each entry, so it is done rarely.
    pruned: Option<time::Instant>,
}

impl StatusRates {
    /// Permits a write of the status, or returns the time to wait.
    pub(super) fn take(&self, uid: &str, is_transition: bool) -> Result<(), Duration> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = time::Instant::now();
        if taken.pruned.is_none_or(|it| it + EACH <= now) {
            taken.pruned = Some(now);
            taken.paces.retain(|_, pace| !pace.is_idle());
        }
        let pace = taken
            .paces
            .entry(uid.to_owned())
            .or_insert_with(|| Pace::new(EACH));
        pace.take(if is_transition { TRANSITIONS } else { 1 })
    }
}

/// The rate of live reads here for remote pods whose home pod is not in the view.
const EACH_SWEEP: Duration = Duration::from_millis(20);
const SWEEPS_AT_ONCE: u32 = 200;

/// Recent checks of remote pods without a home pod. Their cluster can invent any number of them, and need not delete
/// them.
pub(super) struct SweepRate(Mutex<(Backoff<String>, Pace)>);

impl Default for SweepRate {
    fn default() -> Self {
        Self(Mutex::new((Backoff::default(), Pace::new(EACH_SWEEP))))
    }
}

enum Turn {
    Taken,
    Wait(Duration),
    BackOff(Duration),
}

impl SweepRate {
    fn turn(&self, key: &str, uid: &str) -> Turn {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (backoff, pace) = &mut *state;
        let uid = uid.to_owned();
        if let Some(left) = backoff.remaining(key, &uid) {
            return Turn::BackOff(left);
        }
        if let Err(wait) = pace.take(SWEEPS_AT_ONCE) {
            return Turn::Wait(wait);
        }
        backoff.record(key.to_owned(), uid);
        Turn::Taken
    }
}

/// The rate of live reads of home pods that changes in the remote cluster cause.
const EACH_READ: Duration = Duration::from_millis(10);
const READS_AT_ONCE: u32 = 2000;

/// The digests of home pods when they were last read. Changes in the remote cluster cause reads of unchanged
/// home pods only at this rate.
pub(super) struct ReadRate(Mutex<(HashMap<String, Digests>, Pace)>);

impl Default for ReadRate {
    fn default() -> Self {
        Self(Mutex::new((HashMap::new(), Pace::new(EACH_READ))))
    }
}

impl ReadRate {
    /// Permits a live read of a home pod with these digests, or returns the time to wait.
    fn take(&self, key: &str, seen: Digests) -> Result<(), Duration> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (read, pace) = &mut *state;
        if read.get(key) == Some(&seen) {
            return pace.take(READS_AT_ONCE);
        }
        read.insert(key.to_owned(), seen);
        Ok(())
    }

    pub(super) fn forget(&self, key: &str) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.0.remove(key);
    }
}

impl Pods<'_> {
    /// Waits until a home pod may be read; returns at once if the pod has changed at home.
    pub(super) async fn wait_to_read(&self, seen: &SeenPod) {
        while let Err(wait) = self.read_rate.take(seen.key(), seen.digests) {
            time::sleep(wait).await;
        }
    }

    /// Waits until a remote pod without a home pod may be checked. Returns the time to wait instead if it was checked
    /// recently.
    pub(super) async fn wait_to_sweep(&self, key: &str, uid: &str) -> Option<Duration> {
        loop {
            match self.sweep_rate.turn(key, uid) {
                Turn::Taken => return None,
                Turn::BackOff(left) => return Some(left),
                Turn::Wait(wait) => time::sleep(wait).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn transitions_are_written_at_once_and_other_changes_once_a_second() {
        let rates = StatusRates::default();
        assert_eq!(rates.take("a", false), Ok(()));
        assert_eq!(rates.take("a", false), Err(EACH));
        assert_eq!(rates.take("b", false), Ok(()), "each pod has its own");
        assert_eq!(rates.take("a", true), Ok(()));
        let more = (0..1000).take_while(|_| rates.take("a", true).is_ok()).count();
        assert_eq!(more, 8, "transitions are limited too");
        time::sleep(EACH).await;
        assert_eq!(rates.take("a", true), Ok(()));
        assert!(rates.take("a", false).is_err());
        time::sleep(Duration::from_mins(1)).await;
        assert_eq!(rates.take("c", false), Ok(()));
        assert_eq!(rates.0.lock().unwrap().paces.len(), 1, "others are forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn reads_of_unchanged_home_pods_are_limited() {
        let rate = ReadRate::default();
        let seen = |status| Digests {
            metadata: 1,
            spec: 1,
            status,
        };
        assert_eq!(rate.take("a", seen(1)), Ok(()));
        let many = |most: usize| (0..most).take_while(|_| rate.take("a", seen(1)).is_ok()).count();
        assert_eq!(many(5000), 2000);
        assert_eq!(rate.take("a", seen(2)), Ok(()), "it has changed here");
        assert!(rate.take("a", seen(2)).is_err());
        time::sleep(Duration::from_secs(1)).await;
        let more = (0..5000).take_while(|_| rate.take("a", seen(2)).is_ok()).count();
        assert_eq!(more, 100);
    }
}
