//! The addresses of remote pods: which are believed; and what pods are told that no status says.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{Pods, UNWATCHED, changes::reference};
use crate::{
    cluster::{ApiError, short},
    offload::{NotRouted, PodNetwork},
    raw::RawPod,
};

/// Of so many pods it is remembered what they were told.
const MOST_TOLD: usize = 10_000;

/// However often the addresses change, it is told so often.
const EACH: Duration = Duration::from_mins(1);

/// What pods were told: by pod, with its uid, what, and when.
pub(super) type Told = Mutex<BTreeMap<String, (String, String, Instant)>>;

impl Pods<'_> {
    /// The pod network of the cluster, if there are routes to it.
    pub(super) fn network(&self) -> Option<PodNetwork> {
        self.spec()?.spec.fabric.as_ref()?.network.routed()
    }

    /// Says on a pod, once for the addresses that it has, why it has none here.
    pub(super) async fn tell_outside(&self, home: &RawPod, outside: &NotRouted, network: &PodNetwork) {
        let addresses = outside.to_string();
        if !self.is_news(home, &addresses) {
            return;
        }
        let cluster = &self.cluster;
        let note = format!(
            "its pod in the cluster {cluster} has the address {addresses}, which is not one of spec.fabric.network.podCIDRs \
             of RemoteCluster {cluster} ({network}): it has no address here, and no Service leads to it. Mend podCIDRs if \
             pods there have such addresses"
        );
        tracing::warn!(pod = home.key(), cluster = %cluster, "{note}");
        self.events
            .warn_object(reference(home), "AddressNotRouted", &note)
            .await;
    }

    /// Says on a pod why it is not known how it is although its cluster answers.
    pub(super) async fn tell_unknown(&self, home: &RawPod, why: &str) {
        if self.is_news(home, why) {
            let note = format!(
                "it is not known how its pod in the cluster {} is: {why}",
                self.cluster
            );
            self.events
                .warn_object(reference(home), "RemotePodUnknown", &note)
                .await;
        }
    }

    /// Emits an event on a pod that a policy or webhook, here or there, refuses or fails a write of the fabric.
    pub(super) async fn tell_refused(&self, home: &RawPod, error: &ApiError) {
        let why = short(&error.to_string());
        if self.is_news(home, &why) {
            let note = format!("the fabric cannot write what the pod needs next, and tries again: {why}");
            self.events
                .warn_object(reference(home), "WriteRefused", &note)
                .await;
        }
    }

    /// Says on a pod that its remote pod is not watched.
    pub(super) async fn tell_unwatched(&self, home: &RawPod) {
        let note = format!(
            "the namespace of its pod in the cluster {} has more pods of this namespace than are watched there: how it is \
             is read every {} s. Offload fewer pods of one namespace",
            self.cluster,
            UNWATCHED.as_secs()
        );
        if self.is_news(home, &note) {
            self.events
                .warn_object(reference(home), "RemotePodNotWatched", &note)
                .await;
        }
    }

    fn is_news(&self, home: &RawPod, what: &str) -> bool {
        let mut told = self.outside.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= MOST_TOLD {
            told.retain(|key, _| self.home.get(key).is_some());
        }
        let is_known = |(uid, before, when): &(String, String, Instant)| {
            uid == home.uid() && (before == what || when.elapsed() < EACH)
        };
        let key = home.key();
        if told.get(&key).is_some_and(is_known) {
            return false;
        }
        told.insert(key, (home.uid().to_owned(), what.to_owned(), Instant::now()));
        true
    }
}
