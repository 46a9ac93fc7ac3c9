//! Which pods the node has taken, and whether it takes one more. Whoever names the node of a pod goes past
//! the scheduler; a kubelet would say then that it is full. Pods that were taken are never judged again.

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

/// What the pods ask for that were taken.
#[derive(Default)]
pub(super) struct Admitted {
    pods: HashMap<String, Requests>,
    sum: Requests,
}

impl Admitted {
    /// This is seen of a pod now.
    pub(super) fn note(&mut self, key: &str, now: Option<&SeenPod>) {
        let asks = now.and_then(|it| it.requests.as_deref());
        match asks {
            Some(asks) => self.take(key, asks.iter().cloned().collect()),
            // One that was taken a moment ago is not seen so yet.
            None if now.is_some_and(|it| !it.state.claimed && !it.state.ended) => {}
            None => self.give_back(key),
        }
    }

    fn take(&mut self, key: &str, asks: Requests) {
        if self.pods.get(key) != Some(&asks) {
            self.give_back(key);
            add(&mut self.sum, &asks);
            self.pods.insert(key.to_owned(), asks);
        }
    }

    /// A pod is not taken after all, or not there any more.
    pub(super) fn give_back(&mut self, key: &str) {
        if let Some(before) = self.pods.remove(key) {
            subtract(&mut self.sum, &before);
        }
    }
}

impl Pods<'_> {
    /// Takes a pod, unless the node has too little left for it.
    pub(super) async fn admit(&self, home: &RawPod) -> Result<Option<Waiting>, ApiError> {
        let node = self.places.home.all::<Node>().get(&self.node).await?;
        let offered = node.and_then(|it| it.status).and_then(|it| it.allocatable);
        // Until it is known what the cluster has, nothing is kept from it.
        let Some(offered) = offered else { return Ok(None) };
        let offered = offered
            .into_iter()
            .map(|(name, amount)| (name, amount.0))
            .collect();
        let asks = Requesting::deserialize(&home.spec).unwrap_or_default().requests();
        let mut state = self.state();
        let admitted = &mut state.admitted;
        let key = home.key();
        admitted.give_back(&key);
        if let Some(why) = exceeded(&offered, &admitted.sum, &asks) {
            let message = format!(
                "{why}: wait for other pods of the node {} to end, or let this one be scheduled",
                self.node
            );
            return Ok(Some(Waiting {
                reason: "OutOfCapacity",
                message,
            }));
        }
        admitted.take(&key, asks);
        tracing::debug!(pod = home.name_any(), "the node takes a pod");
        Ok(None)
    }
}
