//! The pods that wait to be scheduled, by their claims.

use std::{collections::BTreeSet, sync::Arc};

use tokio::sync::watch;

use crate::{
    cluster::{
        slim::PendingPod,
        view::{Changed, Feed, View},
    },
    volume::ClaimName,
};

pub(super) struct WaitingPods {
    pods: View<PendingPod>,
    changes: Feed<PendingPod>,
}

impl WaitingPods {
    pub(super) fn new(pods: &View<PendingPod>) -> Self {
        Self {
            changes: pods.feed(),
            pods: pods.clone(),
        }
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.pods.changes_of(|pod| pod.node.is_none())
    }

    /// The keys of the claims whose pods have changed.
    pub(super) fn take(&mut self) -> BTreeSet<String> {
        let pods = match self.changes.take() {
            Changed::These(pods) => pods,
            Changed::Everything => self.pods.all(),
        };
        let waiting = pods.iter().filter(|pod| pod.node.is_none());
        waiting.flat_map(|pod| pod.claims.iter().cloned()).collect()
    }

    /// The pods that wait for a claim.
    pub(super) fn of(&self, claim: &ClaimName) -> Vec<Arc<PendingPod>> {
        let mut pods = self.pods.of_topic(&claim.to_string());
        pods.retain(|pod| pod.node.is_none());
        pods
    }
}
