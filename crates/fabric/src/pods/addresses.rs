//! The pod network of the cluster, and events on pods about what their status does not show.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use tokio::time::Instant;

use super::{Pods, UNWATCHED, changes::reference};
use crate::{
    cluster::{ApiError, short},
    offload::{NotRouted, PodNetwork},
    raw::RawPod,
    refused::{self, WRITE_REFUSED},
};

/// Pods whose last report is remembered.
const MOST_REPORTED: usize = 10_000;

/// The default of `--event-ttl` of API servers.
const EVENT_TTL: Duration = Duration::from_hours(1);

/// The shortest time between two events on a pod, however often its remote pod changes.
const EACH: Duration = Duration::from_mins(1);

/// A remote pod that still exists after its grace period and this time needs help.
const OVERDUE: SignedDuration = SignedDuration::from_mins(1);

/// The last report on each pod: uid, text and time.
pub(super) type Reported = Mutex<BTreeMap<String, (String, String, Instant)>>;

/// The notes of events on the pods of each owner, by its uid, and their times.
#[derive(Default)]
pub(super) struct OwnerEvents(Mutex<BTreeMap<(String, String), Instant>>);

impl OwnerEvents {
    /// Whether no other pod of the same owner has an event with this note already. True for a pod without an owner.
    pub(super) fn is_new(&self, home: &RawPod, note: &str) -> bool {
        let mut owners = home.owner_references().iter();
        let Some(owner) = owners.find(|owner| owner.controller == Some(true)) else {
            return true;
        };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST_REPORTED {
            all.retain(|_, when| when.elapsed() < EVENT_TTL);
        }
        if all.len() >= MOST_REPORTED {
            all.clear();
        }
        let key = (owner.uid.clone(), short(note));
        if all.get(&key).is_some_and(|when| when.elapsed() < EVENT_TTL) {
            return false;
        }
        all.insert(key, Instant::now());
        true
    }
}

impl Pods<'_> {
    /// The pod network of the cluster, if there are routes to it.
    pub(super) fn network(&self) -> Option<PodNetwork> {
        self.remote_cluster()?.spec.fabric.as_ref()?.network.routed()
    }

    /// Emits an event on a pod whose addresses in the remote cluster are not routed, once for the same addresses.
    pub(super) async fn report_unroutable(
        &self,
        home: &RawPod,
        unroutable: &NotRouted,
        network: &PodNetwork,
    ) {
        let addresses = unroutable.to_string();
        if !self.is_new(home, &addresses) {
            return;
        }
        let cluster = &self.cluster;
        let note = format!(
            "its pod in the cluster {cluster} has the address {addresses}, which is not one of spec.fabric.network.podCIDRs \
             of RemoteCluster {cluster} ({network}): it has no address here, and no Service reaches it. Correct podCIDRs if \
             pods there have such addresses"
        );
        tracing::warn!(pod = home.key(), cluster = %cluster, "{note}");
        self.events
            .warn_object(reference(home), "AddressNotRouted", &note)
            .await;
    }

    /// Emits an event on a pod whose state is unknown although its cluster answers.
    pub(super) async fn report_unknown(&self, home: &RawPod, why: &str) {
        if self.is_new(home, why) {
            let note = format!(
                "the state of its pod in the cluster {} is unknown: {why}",
                self.cluster
            );
            self.events
                .warn_object(reference(home), "RemotePodUnknown", &note)
                .await;
        }
    }

    /// Emits an event on a pod that a policy or webhook, here or there, refuses or fails a write of the fabric.
    pub(super) async fn report_refused(&self, home: &RawPod, error: &ApiError) {
        let why = short(&error.to_string());
        if self.is_new(home, &why) {
            let note = refused::note("an object that this pod needs", &why);
            self.events
                .warn_object(reference(home), WRITE_REFUSED, &note)
                .await;
        }
    }

    pub(super) async fn report_unwatched(&self, home: &RawPod) {
        let note = format!(
            "the namespace of its pod in the cluster {} has more pods of this namespace than are watched there, so its \
             state is read every {} s. Offload fewer pods of one namespace",
            self.cluster,
            UNWATCHED.as_secs()
        );
        if self.is_new(home, &note) {
            self.events
                .warn_object(reference(home), "RemotePodNotWatched", &note)
                .await;
        }
    }

    /// Emits an event on a pod whose remote pod should have ended: this pod stays until it has.
    pub(super) async fn report_overdue(&self, home: &RawPod, remote: &RawPod) {
        let due = remote.metadata.deletion_timestamp.as_ref();
        if due.is_none_or(|due| Timestamp::now().duration_since(due.0) < OVERDUE) {
            return;
        }
        let finalizers = remote.finalizers();
        let why = if finalizers.is_empty() {
            let node = remote.spec["nodeName"].as_str().unwrap_or("none");
            format!(
                "its node there ({node}) has not confirmed that: if that node is lost, repair or remove it there"
            )
        } else {
            format!("it has the finalizers {}", finalizers.join(", "))
        };
        let note = format!(
            "its pod in the cluster {} was deleted and has not ended in its grace period, and this one stays until it has: {}",
            self.cluster,
            short(&why)
        );
        if self.is_new(home, &note) {
            self.events
                .warn_object(reference(home), "RemotePodLeaving", &note)
                .await;
        }
    }

    fn is_new(&self, home: &RawPod, what: &str) -> bool {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.len() >= MOST_REPORTED {
            reported.retain(|key, _| self.home.get(key).is_some());
        }
        let is_known = |(uid, before, when): &(String, String, Instant)| {
            uid == home.uid() && (before == what || when.elapsed() < EACH)
        };
        let key = home.key();
        if reported.get(&key).is_some_and(is_known) {
            return false;
        }
        reported.insert(key, (home.uid().to_owned(), what.to_owned(), Instant::now()));
        true
    }
}
