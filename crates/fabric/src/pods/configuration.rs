//! A remote pod is created when the copies of what it refers to are as new as the pod. Here, a pod never starts
//! with an older `ConfigMap` than there was when it was created, nor without one that is optional and exists.

use std::time::Duration;

use kube::ResourceExt;

use super::Pods;
use crate::{offload::pods::configuration, raw::RawPod};

/// A copy that is not there after this time may never be.
pub(super) const LONGEST: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_millis(250);

impl Pods<'_> {
    /// When to look again, if the remote pod waits for copies.
    pub(super) fn waits_for_copies(&self, home: &RawPod) -> Option<Duration> {
        let (key, namespace) = (home.key(), home.namespace().unwrap_or_default());
        let named = configuration(&home.json());
        if self.places.serve(&namespace, &self.cluster, &named) {
            self.copying.forget(&key);
            return None;
        }
        let waited = self.copying.note(&key, home.uid());
        if waited >= self.longest_copying {
            tracing::info!(
                pod = key,
                cluster = %self.cluster,
                "a pod starts although not all copies of what it refers to are as new as it is"
            );
            return None;
        }
        Some(FIRST_PAUSE.max(waited / 2))
    }
}
