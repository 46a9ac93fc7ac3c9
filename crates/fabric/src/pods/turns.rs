//! How often the status of a home pod is written because its remote pod has another one. That costs
//! this cluster, and others decide how often: what turns a pod ready or not, or ends it, is written
//! at once, all else once a second.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time;

use super::Pods;
use crate::{
    brake::Brake,
    pace::Pace,
    seen::{Digests, SeenPod},
};

const EACH: Duration = Duration::from_secs(1);
/// So many transitions come at once: more than a pod has when it starts.
const TRANSITIONS: u32 = 10;

/// Whose status was written of late, by uid.
#[derive(Default)]
pub(super) struct Turns(Mutex<Taken>);

#[derive(Default)]
struct Taken {
    paces: HashMap<String, Pace>,
    /// When those that are over were forgotten: that takes as long as there are.
    forgot: Option<time::Instant>,
}

impl Turns {
    /// Takes a turn, or says in what time there is one.
    pub(super) fn take(&self, uid: &str, is_transition: bool) -> Result<(), Duration> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = time::Instant::now();
        if taken.forgot.is_none_or(|it| it + EACH <= now) {
            taken.forgot = Some(now);
            taken.paces.retain(|_, pace| !pace.is_idle());
        }
        let pace = taken
            .paces
            .entry(uid.to_owned())
            .or_insert_with(|| Pace::new(EACH));
        pace.take(if is_transition { TRANSITIONS } else { 1 })
    }
}

/// So many remote pods a second are looked up here, whatever they say for whom they run, and so many at once.
const EACH_LOOK: Duration = Duration::from_millis(20);
const LOOKS: u32 = 200;

/// Remote pods that run for nobody: which were looked at of late, by home pod and uid, and how fast
/// they are. Their cluster invents as many as it pleases, and need not delete them.
pub(super) struct Swept(Mutex<(Brake<String>, Pace)>);

impl Default for Swept {
    fn default() -> Self {
        Self(Mutex::new((Brake::default(), Pace::new(EACH_LOOK))))
    }
}

/// What came of asking for a turn.
enum Turn {
    Taken,
    Wait(Duration),
    Held(Duration),
}

impl Swept {
    fn turn(&self, key: &str, uid: &str) -> Turn {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (brake, pace) = &mut *state;
        let uid = uid.to_owned();
        if let Some(left) = brake.holds(key, &uid) {
            return Turn::Held(left);
        }
        if let Err(wait) = pace.take(LOOKS) {
            return Turn::Wait(wait);
        }
        brake.note(key.to_owned(), uid);
        Turn::Taken
    }
}

/// So many pods a second are read here because of what is seen there, and so many at once.
const EACH_READ: Duration = Duration::from_millis(10);
const READS_AT_ONCE: u32 = 2000;

/// How the pods here were seen when they were read last. Their cluster makes nobody read them as fast as
/// it changes its own.
pub(super) struct Looks(Mutex<(HashMap<String, Digests>, Pace)>);

impl Default for Looks {
    fn default() -> Self {
        Self(Mutex::new((HashMap::new(), Pace::new(EACH_READ))))
    }
}

impl Looks {
    /// Takes a turn to read a pod that is seen like this, or says in what time there is one.
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
    /// Returns when a pod may be read: at once if it has changed here.
    pub(super) async fn may_read(&self, seen: &SeenPod) {
        while let Err(wait) = self.looks.take(seen.key(), seen.digests) {
            time::sleep(wait).await;
        }
    }

    /// In what time a remote pod that runs for nobody is looked at again, if it was of late. Otherwise it
    /// is looked at now, or as soon as it is its turn.
    pub(super) async fn swept_of_late(&self, key: &str, uid: &str) -> Option<Duration> {
        loop {
            match self.sweeps.turn(key, uid) {
                Turn::Taken => return None,
                Turn::Held(left) => return Some(left),
                Turn::Wait(wait) => time::sleep(wait).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn transitions_come_at_once_and_all_else_once_a_second() {
        let turns = Turns::default();
        assert_eq!(turns.take("a", false), Ok(()));
        assert_eq!(turns.take("a", false), Err(EACH));
        assert_eq!(turns.take("b", false), Ok(()), "each pod has its own");
        assert_eq!(turns.take("a", true), Ok(()));
        let more = (0..1000).take_while(|_| turns.take("a", true).is_ok()).count();
        assert_eq!(more, 8, "whoever flips is slowed down too");
        time::sleep(EACH).await;
        assert_eq!(turns.take("a", true), Ok(()));
        assert!(turns.take("a", false).is_err());
        time::sleep(Duration::from_mins(1)).await;
        assert_eq!(turns.take("c", false), Ok(()));
        assert_eq!(turns.0.lock().unwrap().paces.len(), 1, "others are forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_has_pods_here_read_only_so_fast() {
        let looks = Looks::default();
        let seen = |status| Digests {
            metadata: 1,
            spec: 1,
            status,
        };
        assert_eq!(looks.take("a", seen(1)), Ok(()));
        let many = |most: usize| (0..most).take_while(|_| looks.take("a", seen(1)).is_ok()).count();
        assert_eq!(many(5000), 2000);
        assert_eq!(looks.take("a", seen(2)), Ok(()), "it has changed here");
        assert!(looks.take("a", seen(2)).is_err());
        time::sleep(Duration::from_secs(1)).await;
        let more = (0..5000).take_while(|_| looks.take("a", seen(2)).is_ok()).count();
        assert_eq!(more, 100);
    }
}
