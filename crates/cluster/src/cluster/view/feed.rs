//! The changes in a view, for consumers whose cost must depend only on the number of changes, not on the
//! number of objects.

use std::sync::{Arc, Mutex, PoisonError, Weak};

/// More than this many changes count as a change of everything.
const MOST: usize = 4096;

/// The changes since the last call.
#[derive(Debug)]
pub enum Changed<S> {
    /// Anything may have changed: at first, after a new list, or after very many changes.
    Everything,
    /// These objects have changed, each before and after the change.
    These(Vec<Arc<S>>),
}

/// The changes of a view for one consumer. They are collected until it is dropped.
pub struct Feed<S>(Arc<Mutex<Changed<S>>>);

impl<S> Feed<S> {
    /// What has changed since the last call; everything the first time.
    #[must_use]
    pub fn take(&self) -> Changed<S> {
        let mut changed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *changed, Changed::These(Vec::new()))
    }
}

/// The feeds of a view.
pub(super) struct Feeds<S>(Mutex<Vec<Weak<Mutex<Changed<S>>>>>);

impl<S> Default for Feeds<S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S> Feeds<S> {
    pub(super) fn add(&self) -> Feed<S> {
        let feed = Arc::new(Mutex::new(Changed::Everything));
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Arc::downgrade(&feed));
        Feed(feed)
    }

    /// Adds changed objects.
    pub(super) fn note(&self, objects: &[Arc<S>]) {
        self.each(|changed| {
            if let Changed::These(all) = changed {
                if all.len() + objects.len() > MOST {
                    *changed = Changed::Everything;
                } else {
                    all.extend_from_slice(objects);
                }
            }
        });
    }

    /// Everything may have changed.
    pub(super) fn note_everything(&self) {
        self.each(|changed| *changed = Changed::Everything);
    }

    fn each(&self, note: impl Fn(&mut Changed<S>)) {
        let mut feeds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        feeds.retain(|feed| {
            let Some(feed) = feed.upgrade() else { return false };
            note(&mut feed.lock().unwrap_or_else(PoisonError::into_inner));
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn these(feed: &Feed<u32>) -> Option<Vec<u32>> {
        match feed.take() {
            Changed::Everything => None,
            Changed::These(all) => Some(all.iter().map(|one| **one).collect()),
        }
    }

    #[test]
    fn each_feed_gets_each_change_once() {
        let feeds = Feeds::default();
        let (first, second) = (feeds.add(), feeds.add());
        assert_eq!(these(&first), None, "at first it is everything");
        feeds.note(&[Arc::new(1), Arc::new(2)]);
        feeds.note(&[Arc::new(3)]);
        assert_eq!(these(&first), Some(vec![1, 2, 3]));
        assert_eq!(these(&first), Some(vec![]));
        assert_eq!(these(&second), None);
        feeds.note_everything();
        feeds.note(&[Arc::new(4)]);
        assert_eq!(
            these(&first),
            None,
            "a new list says more than one change after it"
        );
    }

    #[test]
    fn too_many_changes_are_reported_as_everything() {
        let feeds = Feeds::default();
        let feed = feeds.add();
        drop(feed.take());
        let many: Vec<_> = (0..3000).map(Arc::new).collect();
        feeds.note(&many);
        feeds.note(&many);
        assert_eq!(these(&feed), None);
    }

    #[test]
    fn a_dropped_feed_collects_no_changes() {
        let feeds = Feeds::default();
        drop(feeds.add());
        feeds.note(&[Arc::new(1)]);
        assert!(feeds.0.lock().unwrap().is_empty());
    }
}
