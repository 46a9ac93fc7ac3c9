//! How much of one cluster is kept in memory: objects and bytes, over all its views. A
//! cluster that is larger than that, be it out of malice or because it is broken, is not
//! followed further, and says so; the others never notice.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::watch;

/// What one object costs beyond its text: keys, hash tables, reference counts.
const OVERHEAD: usize = 256;

/// How much is kept of one cluster. Cheap to clone.
#[derive(Clone)]
pub struct Budget(Arc<Shared>);

struct Shared {
    most_objects: usize,
    most_bytes: usize,
    objects: AtomicUsize,
    bytes: AtomicUsize,
    exhausted: watch::Sender<Option<String>>,
}

/// What one object takes of it, given back when it is dropped.
pub(super) struct Place {
    budget: Budget,
    bytes: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        let Shared { objects, bytes, .. } = &*self.budget.0;
        objects.fetch_sub(1, Ordering::Relaxed);
        bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Budget {
    /// Of the cluster we live in: more objects than any cluster has of what we watch.
    #[must_use]
    pub fn home() -> Self {
        Self::new(250_000, usize::MAX)
    }

    /// Of any other: a hundred of them must not fill our memory, yet tens of thousands of
    /// twins and thousands of nodes must fit.
    #[must_use]
    pub fn remote() -> Self {
        Self::new(60_000, 48 << 20)
    }

    /// Of one kind of object that a namespace has in its own hands: as many as anybody needs, and not so
    /// many that others notice.
    #[must_use]
    pub fn of_namespace(most_objects: usize) -> Self {
        Self::new(most_objects, 16 << 20)
    }

    pub(super) fn new(most_objects: usize, most_bytes: usize) -> Self {
        Self(Arc::new(Shared {
            most_objects,
            most_bytes,
            objects: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            exhausted: watch::Sender::new(None),
        }))
    }

    /// A place for an object whose text has so many bytes, if there is one left.
    pub(super) fn take(&self, text: usize) -> Option<Place> {
        let bytes = text.saturating_add(OVERHEAD);
        let place = Place {
            budget: self.clone(),
            bytes,
        };
        let shared = &*self.0;
        let objects = shared.objects.fetch_add(1, Ordering::Relaxed) + 1;
        let held = shared
            .bytes
            .fetch_add(bytes, Ordering::Relaxed)
            .saturating_add(bytes);
        (objects <= shared.most_objects && held <= shared.most_bytes).then_some(place)
    }

    /// How many objects are kept.
    #[must_use]
    pub fn objects(&self) -> usize {
        self.0.objects.load(Ordering::Relaxed)
    }

    /// The most objects there may be, wanted or not.
    pub(super) fn most_objects(&self) -> usize {
        self.0.most_objects
    }

    /// Notes that there is more than fits.
    pub(super) fn exhaust(&self, kind: &str) {
        let Shared {
            most_objects,
            most_bytes,
            ..
        } = &*self.0;
        let why = format!(
            "its list of {kind} is more than this driver keeps of one cluster, which is {most_objects} objects and {} MiB",
            most_bytes >> 20
        );
        self.0.exhausted.send_replace(Some(why));
    }

    /// Returns when there is more than fits, and what it was.
    pub async fn exhausted(&self) -> String {
        let mut news = self.0.exhausted.subscribe();
        loop {
            if let Some(why) = &*news.borrow_and_update() {
                return why.clone();
            }
            if news.changed().await.is_err() {
                // Never: we hold the sender.
                std::future::pending::<()>().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_given_back() {
        let budget = Budget::new(2, usize::MAX);
        let one = budget.take(1).unwrap();
        let two = budget.take(1).unwrap();
        assert!(budget.take(1).is_none());
        drop(one);
        let three = budget.take(1);
        assert!(three.is_some());
        drop((two, three));
        assert_eq!(budget.0.objects.load(Ordering::Relaxed), 0);
        assert_eq!(budget.0.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn bytes_count_as_well() {
        let budget = Budget::new(100, 10_000);
        assert!(budget.take(9_000).is_some_and(|_| budget.take(10_000).is_none()));
        assert!(budget.take(9_000).is_some());
    }
}
