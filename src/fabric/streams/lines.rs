//! Connections on which something may still be asked. Any pod can open them, so whoever has not shown
//! yet that it may ask is given little room, and makes place for those who come later; whoever may is
//! not in their way.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::Refusal;

/// Connections of those who may ask, at a time.
const MOST: usize = 512;
/// Connections of all others, and of one address.
const MOST_STRANGERS: usize = 256;
const MOST_OF_ONE: usize = 64;

/// All of them.
pub(super) struct Lines {
    room: Arc<Semaphore>,
    strangers: Mutex<Strangers>,
}

/// In the order in which they came.
#[derive(Default)]
struct Strangers {
    next: u64,
    all: BTreeMap<u64, (IpAddr, CancellationToken)>,
}

/// One of them.
pub(super) struct Line {
    lines: Arc<Lines>,
    number: u64,
    /// It has to make place.
    pub(super) cut: CancellationToken,
    permit: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Lines {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            room: Arc::new(Semaphore::new(MOST)),
            strangers: Mutex::default(),
        })
    }

    /// A connection comes from this address. The oldest stranger goes if there are too many.
    pub(super) fn enter(self: &Arc<Self>, from: IpAddr) -> Line {
        let mut strangers = self.strangers();
        let of_one = || strangers.all.iter().filter(|(_, (address, _))| *address == from);
        let oldest = if of_one().count() >= MOST_OF_ONE {
            of_one().next().map(|(number, _)| *number)
        } else if strangers.all.len() >= MOST_STRANGERS {
            strangers.all.keys().next().copied()
        } else {
            None
        };
        if let Some((address, cut)) = oldest.and_then(|number| strangers.all.remove(&number)) {
            tracing::debug!(%address, "a connection on which nobody has shown who it is makes place for others");
            cut.cancel();
        }
        let (number, cut) = (strangers.next, CancellationToken::new());
        strangers.next += 1;
        strangers.all.insert(number, (from, cut.clone()));
        Line {
            lines: Arc::clone(self),
            number,
            cut,
            permit: Mutex::default(),
        }
    }

    fn strangers(&self) -> MutexGuard<'_, Strangers> {
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    /// Whoever calls may ask: the connection stays.
    pub(super) fn admit(&self) -> Result<(), Refusal> {
        let mut permit = self.permit.lock().unwrap_or_else(PoisonError::into_inner);
        if permit.is_none() {
            let room = Arc::clone(&self.lines.room).try_acquire_owned();
            *permit = Some(room.map_err(|_| Refusal::Busy(MOST))?);
            self.lines.strangers().all.remove(&self.number);
        }
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.lines.strangers().all.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn who_comes_often_is_in_nobody_else_s_way() {
        let lines = Lines::new();
        let other = lines.enter(from(1));
        let mut all: Vec<Line> = (0..2 * MOST_OF_ONE).map(|_| lines.enter(from(2))).collect();
        assert!(all[..MOST_OF_ONE].iter().all(|line| line.cut.is_cancelled()));
        assert!(all[MOST_OF_ONE..].iter().all(|line| !line.cut.is_cancelled()));
        assert!(!other.cut.is_cancelled());
        // From everywhere.
        for last in 3..3 + u8::try_from(MOST_STRANGERS / MOST_OF_ONE).unwrap() {
            all.extend((0..MOST_OF_ONE).map(|_| lines.enter(from(last))));
        }
        assert!(other.cut.is_cancelled(), "the oldest goes");
        assert_eq!(lines.strangers().all.len(), MOST_STRANGERS);
        drop(all);
        assert!(lines.strangers().all.is_empty());
    }

    #[test]
    fn who_may_ask_stays() {
        let lines = Lines::new();
        let known: Vec<Line> = (0..MOST)
            .map(|_| {
                let line = lines.enter(from(1));
                line.admit().unwrap();
                line.admit().unwrap();
                line
            })
            .collect();
        assert!(matches!(lines.enter(from(1)).admit(), Err(Refusal::Busy(_))));
        let _strangers: Vec<Line> = (0..2 * MOST_STRANGERS).map(|_| lines.enter(from(2))).collect();
        assert!(known.iter().all(|line| !line.cut.is_cancelled()));
        drop(known);
        lines.enter(from(1)).admit().unwrap();
    }
}
