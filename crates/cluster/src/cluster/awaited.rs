//! The PVs whose end somebody waits for. Nothing rests on this but what a call costs: whoever
//! deletes a volume whose twin is gone would otherwise look for its PV among all there are,
//! again in every call.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use crate::volume::VolumeName;

/// Deletions that another replica ended are forgotten when there are so many.
const MOST: usize = 20_000;

/// The names of twins' PVs, by the volumes that are being deleted.
#[derive(Default)]
pub struct AwaitedVolumes(Mutex<HashMap<VolumeName, String>>);

impl AwaitedVolumes {
    /// The PV that was the twin's when it was seen last.
    #[must_use]
    pub fn get(&self, volume: &VolumeName) -> Option<String> {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.get(volume).cloned()
    }

    /// Notes the PV that a call has waited for in vain; `None` when the volume is gone.
    pub fn note(&self, volume: &VolumeName, name: Option<String>) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() >= MOST {
            names.clear();
        }
        match name {
            Some(name) => names.insert(volume.clone(), name),
            None => names.remove(volume),
        };
    }
}
