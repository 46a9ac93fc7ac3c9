//! Lists that are needed only after a failure or for a rare request. Callers share a list, which is read at
//! most every two seconds: its cost must not grow with the number of failures.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time;

/// How long a list is reused.
const AGE: Duration = Duration::from_secs(2);

/// Recent lists, by their key. None is kept longer than that.
pub(super) struct Recent<T>(Mutex<HashMap<String, Slot<T>>>);

/// A list; callers during a read wait for its result.
type Slot<T> = Arc<tokio::sync::Mutex<Option<Arc<T>>>>;

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Send + Sync + 'static> Recent<T> {
    /// The list of this key, read unless it is recent. A failure is shared as well, so that waiting callers
    /// do not all wait for a server that does not answer.
    pub(super) async fn get<F>(&self, place: &str, read: impl FnOnce() -> F) -> Arc<T>
    where
        F: Future<Output = T>,
    {
        let slot = {
            let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            slots.retain(|name, slot| name == place || Arc::strong_count(slot) > 1);
            Arc::clone(slots.entry(place.to_owned()).or_default())
        };
        let mut held = slot.lock().await;
        if let Some(known) = &*held {
            return Arc::clone(known);
        }
        let outcome = Arc::new(read().await);
        *held = Some(Arc::clone(&outcome));
        drop(held);
        tokio::spawn(async move {
            time::sleep(AGE).await;
            *slot.lock().await = None;
        });
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn concurrent_reads_share_one_request() {
        let recent = Recent::default();
        let reads = AtomicUsize::new(0);
        let ask = async |place: &str| {
            let read = || async {
                time::sleep(Duration::from_millis(100)).await;
                reads.fetch_add(1, Ordering::SeqCst) + 1
            };
            *recent.get(place, read).await
        };
        let (first, second, elsewhere) = tokio::join!(ask("a"), ask("a"), ask("b"));
        assert_eq!((first, second), (first, first), "concurrent callers share it");
        assert_ne!(elsewhere, first);
        assert_eq!(ask("a").await, first);
        time::sleep(AGE + Duration::from_millis(10)).await;
        assert_eq!(ask("a").await, 3, "the list has expired");
        time::sleep(AGE + Duration::from_millis(10)).await;
        ask("c").await;
        assert_eq!(recent.0.lock().unwrap().len(), 1, "other lists are dropped");
    }
}
