//! The unstage calls of kubelet that were refused: a sign that it has forgotten a publication.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Since when kubelet has called only `NodeUnstageVolume` for a volume that is published. In memory:
/// starting again after a restart only takes longer.
#[derive(Clone, Default)]
pub(super) struct RefusedUnstages(Arc<Mutex<HashMap<String, Instant>>>);

impl RefusedUnstages {
    /// Records a refused unstage of a published volume.
    pub(super) fn record(&self, volume_id: &str) {
        self.lock()
            .entry(volume_id.to_owned())
            .or_insert_with(Instant::now);
    }

    /// Another call for the volume, or its end, resets the time.
    pub(super) fn clear(&self, volume_id: &str) {
        self.lock().remove(volume_id);
    }

    /// Whether kubelet has made such calls for this long.
    pub(super) fn has_lasted(&self, volume_id: &str, this_long: Duration) -> bool {
        self.lock()
            .get(volume_id)
            .is_some_and(|since| since.elapsed() >= this_long)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
