//! The PVs whose deletion a call waits for. This only saves time: without it, each `DeleteVolume` call for a
//! volume whose twin is gone would search all PVs for the one of the twin.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use crate::volume::VolumeName;

/// Entries of deletions that another replica has completed are dropped at this number.
const MOST: usize = 20_000;

/// The names of the twins' PVs, by the volumes that are being deleted.
#[derive(Default)]
pub struct AwaitedVolumes(Mutex<HashMap<VolumeName, String>>);

impl AwaitedVolumes {
    /// The last known PV of the twin.
    #[must_use]
    pub fn get(&self, volume: &VolumeName) -> Option<String> {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.get(volume).cloned()
    }

    /// Sets the PV that a call has waited for; `None` once the volume is gone.
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
