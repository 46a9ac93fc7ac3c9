//! A remote pod is created when the copies of what it refers to are as new as the pod. Here, a pod never starts
//! with an older `ConfigMap` than there was when it was created, nor without one that is optional and exists.

use std::time::Duration;

use kube::ResourceExt;

use super::Pods;
use crate::{offload::pods::configuration, raw::RawPod};

/// The longest wait for a copy: some copies are never written.
pub(super) const LONGEST: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_millis(250);

impl Pods<'_> {
    /// The time until the next check, if the remote pod has to wait for copies.
    pub(super) fn wait_for_copies(&self, home: &RawPod) -> Option<Duration> {
        let (key, namespace) = (home.key(), home.namespace().unwrap_or_default());
        let named = configuration(&home.json());
        if self.places.has_current_copies(&namespace, &self.cluster, &named) {
            self.copying.forget(&key);
            return None;
        }
        let waited = self.copying.record(&key, home.uid());
        if waited >= self.longest_copying {
            tracing::info!(
                pod = key,
                cluster = %self.cluster,
                "creating a remote pod although copies of the objects it uses are missing or outdated"
            );
            return None;
        }
        Some(FIRST_PAUSE.max(waited / 2))
    }
}
