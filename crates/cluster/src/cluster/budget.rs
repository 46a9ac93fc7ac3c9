//! Limits how much of one cluster is kept in memory: objects and bytes, over all its views. A larger
//! cluster, whether malicious or broken, is not watched further, and its status says so; other clusters are
//! not affected.

use std::{
    iter,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::sync::watch;

/// The memory of one object in addition to its text: keys, hash tables, reference counts.
const OVERHEAD: usize = 256;

/// The budget of one cluster. Cheap to clone.
#[derive(Clone)]
pub struct Budget(Arc<Shared>);

struct Shared {
    most_objects: usize,
    most_bytes: usize,
    objects: AtomicUsize,
    bytes: AtomicUsize,
    /// The limit of all namespaces of the cluster together.
    namespaces: Option<Budget>,
    /// Objects count there, too.
    outer: Option<Budget>,
    exhausted: watch::Sender<Option<String>>,
}

/// The share of one object, returned when it is dropped.
pub(super) struct Reservation {
    budget: Budget,
    bytes: usize,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        for Budget(shared) in self.budget.with_outer() {
            shared.objects.fetch_sub(1, Ordering::Relaxed);
            shared.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

impl Budget {
    /// For the home cluster: more objects than any cluster has of the watched kinds.
    #[must_use]
    pub fn home() -> Self {
        Self::new(250_000, usize::MAX)
    }

    /// For a remote cluster: a hundred of them must fit into memory, and so must tens of thousands of twins
    /// and thousands of nodes of one.
    #[must_use]
    pub fn remote() -> Self {
        Self::of_cluster(60_000, 48 << 20, 32 << 20)
    }

    /// For the objects of one kind that a namespace controls: enough for any use, and few enough not to
    /// affect others. All namespaces of a remote cluster have a limit together, because the cluster chooses the sizes.
    pub(super) fn of_namespace(&self, most_objects: usize) -> Self {
        let outer = self.0.namespaces.clone();
        Self::with(most_objects, 16 << 20, None, outer)
    }

    pub(super) fn new(most_objects: usize, most_bytes: usize) -> Self {
        Self::with(most_objects, most_bytes, None, None)
    }

    pub(super) fn of_cluster(
        most_objects: usize,
        most_bytes: usize,
        most_bytes_of_namespaces: usize,
    ) -> Self {
        let namespaces = Self::new(usize::MAX, most_bytes_of_namespaces);
        Self::with(most_objects, most_bytes, Some(namespaces), None)
    }

    fn with(most_objects: usize, most_bytes: usize, namespaces: Option<Self>, outer: Option<Self>) -> Self {
        Self(Arc::new(Shared {
            most_objects,
            most_bytes,
            objects: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            namespaces,
            outer,
            exhausted: watch::Sender::new(None),
        }))
    }

    fn with_outer(&self) -> impl Iterator<Item = &Self> {
        iter::once(self).chain(&self.0.outer)
    }

    /// Reserves the share of an object with this many bytes of text; `None` if the budget is exhausted.
    pub(super) fn reserve(&self, text: usize) -> Option<Reservation> {
        let bytes = text.saturating_add(OVERHEAD);
        let reservation = Reservation {
            budget: self.clone(),
            bytes,
        };
        let mut fits = true;
        for Self(shared) in self.with_outer() {
            let objects = shared.objects.fetch_add(1, Ordering::Relaxed) + 1;
            let held = shared
                .bytes
                .fetch_add(bytes, Ordering::Relaxed)
                .saturating_add(bytes);
            fits &= objects <= shared.most_objects && held <= shared.most_bytes;
        }
        fits.then_some(reservation)
    }

    /// The number of objects that are kept.
    #[must_use]
    pub fn objects(&self) -> usize {
        self.0.objects.load(Ordering::Relaxed)
    }

    /// The maximum number of objects that are read, including those that are not kept.
    pub(super) fn most_objects(&self) -> usize {
        self.0.most_objects
    }

    /// Records that the budget is exhausted.
    pub(super) fn exhaust(&self, kind: &str) {
        let Shared {
            most_objects,
            most_bytes,
            ..
        } = &*self.0;
        let why = format!(
            "its list of {kind} exceeds what this driver keeps of one cluster: {most_objects} objects and {} MiB",
            most_bytes >> 20
        );
        self.0.exhausted.send_replace(Some(why));
    }

    /// Returns the reason once the budget is exhausted.
    pub async fn exhausted(&self) -> String {
        let mut news = self.0.exhausted.subscribe();
        loop {
            if let Some(why) = &*news.borrow_and_update() {
                return why.clone();
            }
            if news.changed().await.is_err() {
                // Never: this value holds the sender.
                std::future::pending::<()>().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_reservation_frees_its_budget() {
        let budget = Budget::new(2, usize::MAX);
        let one = budget.reserve(1).unwrap();
        let two = budget.reserve(1).unwrap();
        assert!(budget.reserve(1).is_none());
        drop(one);
        let three = budget.reserve(1);
        assert!(three.is_some());
        drop((two, three));
        assert_eq!(budget.0.objects.load(Ordering::Relaxed), 0);
        assert_eq!(budget.0.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn all_namespaces_of_a_cluster_have_a_limit_together() {
        let cluster = Budget::of_cluster(10, 10_000, 10_000);
        let [one, other] = [cluster.of_namespace(10), cluster.of_namespace(10)];
        let held = one.reserve(6_000);
        assert!(held.is_some() && other.reserve(6_000).is_none());
        assert_eq!(cluster.objects(), 0, "its own limit is another one");
        drop(held);
        assert!(other.reserve(6_000).is_some());
    }

    #[test]
    fn bytes_count_as_well() {
        let budget = Budget::new(100, 10_000);
        assert!(
            budget
                .reserve(9_000)
                .is_some_and(|_| budget.reserve(10_000).is_none())
        );
        assert!(budget.reserve(9_000).is_some());
    }
}
