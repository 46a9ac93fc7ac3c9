//! Slots of connections. Any pod can open a connection, so there are few slots for connections that are not authorized
//! yet, and the oldest of these is closed for a new one. Authorized connections have slots of their own.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::Refusal;

/// Authorized connections at a time.
const MOST: usize = 512;
/// Connections that are not authorized: in all, and of one address.
const MOST_UNAUTHORIZED: usize = 256;
const MOST_OF_ONE: usize = 64;

pub(super) struct Slots {
    permits: Arc<Semaphore>,
    unauthorized: Mutex<Unauthorized>,
}

/// Connections that are not authorized, in the order in which they came.
#[derive(Default)]
struct Unauthorized {
    next: u64,
    all: BTreeMap<u64, (IpAddr, CancellationToken)>,
}

/// The slot of one connection.
pub(super) struct Slot {
    slots: Arc<Slots>,
    number: u64,
    /// Cancelled when the connection has to be closed for another one.
    pub(super) cut: CancellationToken,
    permit: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Slots {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            permits: Arc::new(Semaphore::new(MOST)),
            unauthorized: Mutex::default(),
        })
    }

    /// A slot for a connection from this address. If there are too many that are not authorized, the
    /// oldest is closed.
    pub(super) fn take(self: &Arc<Self>, from: IpAddr) -> Slot {
        let mut unauthorized = self.unauthorized();
        let of_one = || {
            unauthorized
                .all
                .iter()
                .filter(|(_, (address, _))| *address == from)
        };
        let oldest = if of_one().count() >= MOST_OF_ONE {
            of_one().next().map(|(number, _)| *number)
        } else if unauthorized.all.len() >= MOST_UNAUTHORIZED {
            unauthorized.all.keys().next().copied()
        } else {
            None
        };
        if let Some((address, cut)) = oldest.and_then(|number| unauthorized.all.remove(&number)) {
            tracing::debug!(%address, "a connection that was not authorized yet is closed for a new one");
            cut.cancel();
        }
        let (number, cut) = (unauthorized.next, CancellationToken::new());
        unauthorized.next += 1;
        unauthorized.all.insert(number, (from, cut.clone()));
        Slot {
            slots: Arc::clone(self),
            number,
            cut,
            permit: Mutex::default(),
        }
    }

    fn unauthorized(&self) -> MutexGuard<'_, Unauthorized> {
        self.unauthorized.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// The caller is authorized: the connection is not closed for others.
    pub(super) fn authorize(&self) -> Result<(), Refusal> {
        let mut permit = self.permit.lock().unwrap_or_else(PoisonError::into_inner);
        if permit.is_none() {
            let acquired = Arc::clone(&self.slots.permits).try_acquire_owned();
            *permit = Some(acquired.map_err(|_| Refusal::Busy(MOST))?);
            self.slots.unauthorized().all.remove(&self.number);
        }
        Ok(())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.unauthorized().all.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn the_oldest_unauthorized_connection_of_an_address_is_closed_for_a_new_one() {
        let slots = Slots::new();
        let other = slots.take(from(1));
        let mut all: Vec<Slot> = (0..2 * MOST_OF_ONE).map(|_| slots.take(from(2))).collect();
        assert!(all[..MOST_OF_ONE].iter().all(|slot| slot.cut.is_cancelled()));
        assert!(all[MOST_OF_ONE..].iter().all(|slot| !slot.cut.is_cancelled()));
        assert!(!other.cut.is_cancelled());
        // From everywhere.
        for last in 3..3 + u8::try_from(MOST_UNAUTHORIZED / MOST_OF_ONE).unwrap() {
            all.extend((0..MOST_OF_ONE).map(|_| slots.take(from(last))));
        }
        assert!(other.cut.is_cancelled(), "the oldest goes");
        assert_eq!(slots.unauthorized().all.len(), MOST_UNAUTHORIZED);
        drop(all);
        assert!(slots.unauthorized().all.is_empty());
    }

    #[test]
    fn authorized_connections_stay() {
        let slots = Slots::new();
        let known: Vec<Slot> = (0..MOST)
            .map(|_| {
                let slot = slots.take(from(1));
                slot.authorize().unwrap();
                slot.authorize().unwrap();
                slot
            })
            .collect();
        assert!(matches!(slots.take(from(1)).authorize(), Err(Refusal::Busy(_))));
        let _unauthorized: Vec<Slot> = (0..2 * MOST_UNAUTHORIZED).map(|_| slots.take(from(2))).collect();
        assert!(known.iter().all(|slot| !slot.cut.is_cancelled()));
        drop(known);
        slots.take(from(1)).authorize().unwrap();
    }
}
