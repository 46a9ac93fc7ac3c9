//! Admission of pods to the node, as in a kubelet: pods that name their node bypass the scheduler, and may not fit.
//! An admitted pod stays admitted.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde::Deserialize;

use super::Pods;
use crate::{
    cluster::ApiError,
    offload::{
        pods::Waiting,
        requests::{Requesting, Requests, add, exceeded, subtract},
    },
    raw::RawPod,
    seen::SeenPod,
};

/// The requests of the admitted pods.
#[derive(Default)]
pub(super) struct Admitted {
    pods: HashMap<String, Requests>,
    sum: Requests,
}

impl Admitted {
    /// Updates the requests of a pod as the view has it.
    pub(super) fn record(&mut self, key: &str, now: Option<&SeenPod>) {
        let requests = now.and_then(|it| it.requests.as_deref());
        match requests {
            Some(requests) => self.add(key, requests.iter().cloned().collect()),
            // The view may still show a pod as not claimed that was admitted a moment ago.
            None if now.is_some_and(|it| !it.state.claimed && !it.state.ended) => {}
            None => self.remove(key),
        }
    }

    fn add(&mut self, key: &str, requests: Requests) {
        if self.pods.get(key) != Some(&requests) {
            self.remove(key);
            add(&mut self.sum, &requests);
            self.pods.insert(key.to_owned(), requests);
        }
    }

    pub(super) fn remove(&mut self, key: &str) {
        if let Some(before) = self.pods.remove(key) {
            subtract(&mut self.sum, &before);
        }
    }
}

impl Pods<'_> {
    /// Admits a pod, unless the node has too little left for it.
    pub(super) async fn admit(&self, home: &RawPod) -> Result<Option<Waiting>, ApiError> {
        let node = self.places.home.all::<Node>().get(&self.node).await?;
        let offered = node.and_then(|it| it.status).and_then(|it| it.allocatable);
        // The capacity is unknown: no pod is refused for it.
        let Some(offered) = offered else { return Ok(None) };
        let offered = offered
            .into_iter()
            .map(|(name, amount)| (name, amount.0))
            .collect();
        let requests = Requesting::deserialize(&home.spec).unwrap_or_default().requests();
        let mut state = self.state();
        let admitted = &mut state.admitted;
        let key = home.key();
        admitted.remove(&key);
        if let Some(why) = exceeded(&offered, &admitted.sum, &requests) {
            let message = format!(
                "{why}: wait for other pods of the node {} to end, or let this one be scheduled",
                self.node
            );
            return Ok(Some(Waiting {
                reason: "OutOfCapacity",
                message,
            }));
        }
        admitted.add(&key, requests);
        tracing::debug!(pod = home.name_any(), "admitted a pod");
        Ok(None)
    }
}
