//! What kubelet was refused: a sign that it has forgotten what is published.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Since when kubelet asks to unstage volumes that are published, and for nothing else
/// about them. In memory: to begin anew after a restart only takes longer.
#[derive(Clone, Default)]
pub(super) struct Refused(Arc<Mutex<HashMap<String, Instant>>>);

impl Refused {
    /// Kubelet is told that the volume is published.
    pub(super) fn note(&self, volume_id: &str) {
        self.lock()
            .entry(volume_id.to_owned())
            .or_insert_with(Instant::now);
    }

    /// Kubelet asked for something else, or there is nothing to ask for any more.
    pub(super) fn clear(&self, volume_id: &str) {
        self.lock().remove(volume_id);
    }

    /// Whether kubelet has asked for so long.
    pub(super) fn has_lasted(&self, volume_id: &str, this_long: Duration) -> bool {
        self.lock()
            .get(volume_id)
            .is_some_and(|since| since.elapsed() >= this_long)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
