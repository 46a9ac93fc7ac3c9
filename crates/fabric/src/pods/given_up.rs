//! Gives up pods that no node of their cluster takes or that the cluster refuses, so that their controllers create
//! others elsewhere. The decision is in [`crate::offload::pods`]. A home pod then ends as after any deletion of its
//! remote pod.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Event;
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject},
    core::GroupVersionKind,
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::{SOON, act::Writer, changes::reference, configuration::REFLECTION_REFUSED};
use crate::{
    api::namespace_offloading::{AvoidedCluster, NAME, NamespaceOffloading, PodOffloadingStrategy},
    cluster::{ApiError, Cluster, Objects, Precondition, short, unless_conflict},
    observe::crash::{self, Step},
    offload::pods::{
        Avoided, DeferredFacts, Unplaced, UnplacedFacts, UnplacedStep, Waiting, claims, decide_unplaced,
        irreplaceable, replaceable, still_avoided, unplaced,
    },
    raw::RawPod,
};

/// The policy by which new pods avoid the clusters in the status of their namespace.
const POLICY: &str = "avoided-clusters.storage.liqo.io";
/// Events by which cluster-autoscaler and Karpenter report that they add a node for a pod.
const SCALES_UP: [&str; 2] = ["TriggeredScaleUp", "Nominated"];
/// The longest time that autoscalers wait for a node that they add, by default.
const LONGEST_SCALE_UP: SignedDuration = SignedDuration::from_mins(15);
/// Reasons of pods that their cluster refuses or cannot run. None of them has started.
pub(super) const REFUSALS: [&str; 6] = [
    "OffloadingBackOff",
    "OutOfCapacity",
    "PodNotSupported",
    REFLECTION_REFUSED,
    "RemoteNameTaken",
    "RemoteRefused",
];
/// The pause before a pod is checked again if its `NamespaceOffloading` does not allow to give it up now.
const AGAIN: Duration = Duration::from_mins(1);

/// How many remote pods were given up. Cheap to clone; exported only if registered.
#[derive(Clone, Default)]
pub struct GivenUp(Family<Labels, Counter>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    cluster: String,
}

impl GivenUp {
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "liqo_csi_fabric_pods_given_up",
            "Pods that were given up because no node there took them, or their cluster refused them, by cluster",
            metrics.0.clone(),
        );
        metrics
    }

    fn count(&self, cluster: &str) {
        let cluster = cluster.to_owned();
        self.0.get_or_create(&Labels { cluster }).inc();
    }

    #[cfg(test)]
    pub(super) fn total(&self, cluster: &str) -> u64 {
        let cluster = cluster.to_owned();
        self.0.get_or_create(&Labels { cluster }).get()
    }
}

/// Since when pods wait for something: a uid and the time, by home pod.
#[derive(Default)]
pub(super) struct Waited(Mutex<HashMap<String, (String, Instant)>>);

impl Waited {
    /// How long this uid has been waiting.
    pub(super) fn record(&self, key: &str, uid: &str) -> Duration {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get(key) {
            Some((known, since)) if known == uid => since.elapsed(),
            _ => {
                all.insert(key.to_owned(), (uid.to_owned(), Instant::now()));
                Duration::ZERO
            }
        }
    }

    pub(super) fn forget(&self, key: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(key);
    }
}

enum Verdict {
    /// The pod is given up now: the status records which cluster new pods avoid.
    GiveUp,
    /// The pod waits; the time until the next check, if there is one.
    Wait(Option<Duration>),
}

impl Writer<'_> {
    /// Gives up a pod that its cluster has refused for too long. Returns the time until the next check, if there is one.
    pub(super) async fn give_up_refused(
        &self,
        home: &RawPod,
        waiting: &Waiting,
    ) -> Result<Option<Duration>, ApiError> {
        let is_refused = REFUSALS.contains(&waiting.reason);
        let pod = is_refused.then(|| replaceable(self.pods.cluster.as_str(), &home.json(), &waiting.message));
        let Some(pod) = pod.flatten() else {
            self.pods.waited.forget(self.observed.key);
            return Ok(None);
        };
        match self.judge(home, None, &pod).await? {
            Verdict::Wait(time) => Ok(time),
            Verdict::GiveUp => {
                self.replace(home).await?;
                let what = "refuses it, and it was deleted before it started";
                self.report_given_up(home, what, &pod.why).await;
                Ok(Some(SOON))
            }
        }
    }

    /// Gives up a remote pod that has been without a node for too long. Returns the time until the next check, if
    /// there is one.
    pub(super) async fn give_up(
        &self,
        home: &RawPod,
        remote: &RawPod,
        pods: &Objects<RawPod>,
    ) -> Result<Option<Duration>, ApiError> {
        let Some(pod) = unplaced(self.pods.cluster.as_str(), &home.json(), &remote.json()) else {
            self.pods.waited.forget(self.observed.key);
            return Ok(None);
        };
        match self.judge(home, Some(remote), &pod).await? {
            Verdict::Wait(time) => Ok(time),
            Verdict::GiveUp => {
                self.delete_unplaced(home, remote, pods, &pod.why).await?;
                Ok(Some(SOON))
            }
        }
    }

    /// The way out for a pod that its cluster does not take, if it stays there because of its data or its controller.
    pub(super) async fn way_out(&self, home: &RawPod) -> Result<Option<String>, ApiError> {
        let Some(claim) = self.pods.claim_with_data(home).await? else {
            return self.why_it_stays(home).await;
        };
        let (cluster, own) = (&self.pods.cluster, home.namespace().unwrap_or_default());
        Ok(Some(format!(
            "The data of its claim {claim} is in the cluster {cluster}: to run it here, move it with liqo-csi move volume \
             {claim} -n {own} --target-node NODE --evict"
        )))
    }

    /// Why a pod that its cluster does not take stays there, and the way out, if it would be given up with another
    /// controller.
    async fn why_it_stays(&self, home: &RawPod) -> Result<Option<String>, ApiError> {
        let offloadings = &self.pods.places.home.views().offloadings;
        let seen = offloadings.get(&format!("{}/{NAME}", home.namespace().unwrap_or_default()));
        let are_given_up =
            seen.is_some_and(|it| may_run_anywhere(&it)) && self.pods.give_up_after().is_some();
        let why = irreplaceable(self.pods.cluster.as_str(), &home.json()).filter(|_| are_given_up);
        Ok(if why.is_some() && self.is_tied(home).await? {
            None
        } else {
            why
        })
    }

    async fn judge(
        &self,
        home: &RawPod,
        remote: Option<&RawPod>,
        pod: &Unplaced,
    ) -> Result<Verdict, ApiError> {
        let namespace = home.namespace().unwrap_or_default();
        let seen = self
            .pods
            .places
            .home
            .views()
            .offloadings
            .get(&format!("{namespace}/{NAME}"));
        let known = seen.map(|it| avoided(&it)).unwrap_or_default();
        let mut facts = UnplacedFacts {
            pod,
            cluster: self.pods.cluster.as_str(),
            waited: self
                .pods
                .waited
                .record(self.observed.key, remote.unwrap_or(home).uid()),
            give_up_after: self.pods.give_up_after(),
            avoided: &known,
            now: Timestamp::now().as_second(),
            deferred: None,
        };
        match decide_unplaced(&facts) {
            UnplacedStep::Read => {}
            UnplacedStep::StayFor(time) => return Ok(Verdict::Wait(Some(time))),
            UnplacedStep::Stay | UnplacedStep::GiveUp(_) => return Ok(Verdict::Wait(None)),
        }
        let objects = self.pods.places.home.within::<NamespaceOffloading>(&namespace);
        let Some(offloading) = objects.get(NAME).await? else {
            return Ok(Verdict::Wait(Some(AGAIN)));
        };
        let known = avoided(&offloading);
        facts.avoided = &known;
        facts.deferred = Some(self.deferred_facts(home, remote, &offloading).await?);
        Ok(match decide_unplaced(&facts) {
            UnplacedStep::GiveUp(all) => {
                let wait = self.record_avoided(home, &objects, &offloading, &all).await?;
                wait.map_or(Verdict::GiveUp, |wait| Verdict::Wait(Some(wait)))
            }
            UnplacedStep::StayFor(time) => Verdict::Wait(Some(time)),
            UnplacedStep::Stay | UnplacedStep::Read => Verdict::Wait(None),
        })
    }

    async fn deferred_facts(
        &self,
        home: &RawPod,
        remote: Option<&RawPod>,
        offloading: &NamespaceOffloading,
    ) -> Result<DeferredFacts, ApiError> {
        Ok(DeferredFacts {
            may_run_anywhere: may_run_anywhere(offloading),
            is_avoidable: has_policy(self.pods.places.home).await,
            is_tied: self.is_tied(home).await?,
            scales_up: match remote {
                Some(remote) => self.scales_up(remote).await?,
                None => false,
            },
        })
    }

    /// Whether the data of a claim of the pod may be in that cluster only.
    async fn is_tied(&self, home: &RawPod) -> Result<bool, ApiError> {
        for claim in claims(&home.json()) {
            if !self.pods.is_anywhere(home, &claim).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether an autoscaler there reports that it adds a node for the pod. Where events cannot be read, only
    /// `nominatedNodeName` shows it.
    async fn scales_up(&self, remote: &RawPod) -> Result<bool, ApiError> {
        let Ok(place) = &self.observed.place else {
            return Ok(false);
        };
        let events = place
            .cluster
            .within::<Event>(&remote.namespace().unwrap_or_default());
        let of_pod = format!("involvedObject.uid={}", remote.uid());
        let is_recent = |event: &Event| {
            let times = [
                event.last_timestamp.as_ref().map(|it| it.0),
                event.event_time.as_ref().map(|it| it.0),
                event.metadata.creation_timestamp.as_ref().map(|it| it.0),
            ];
            let last = times.into_iter().flatten().max();
            last.is_some_and(|last| Timestamp::now().duration_since(last) < LONGEST_SCALE_UP)
        };
        let reports_it = |event: &Event| event.reason.as_deref().is_some_and(|it| SCALES_UP.contains(&it));
        let found = events.pick(None, Some(&of_pod), |it| {
            (reports_it(&it) && is_recent(&it)).then_some(())
        });
        match found.await {
            Err(error) if error.is_forbidden() => Ok(false),
            found => Ok(!found?.is_empty()),
        }
    }

    /// Records which clusters new pods avoid, before the pod is deleted: the next one may be created at once. Returns
    /// the time until a retry, if it is not recorded.
    async fn record_avoided(
        &self,
        home: &RawPod,
        objects: &Objects<NamespaceOffloading>,
        offloading: &NamespaceOffloading,
        all: &[Avoided],
    ) -> Result<Option<Duration>, ApiError> {
        let all: Vec<AvoidedCluster> = all.iter().map(written).collect();
        let patch = json!({
            "metadata": {"uid": offloading.metadata.uid, "resourceVersion": offloading.metadata.resource_version},
            "status": {"avoidedClusters": all},
        });
        let written = crash::around(Step::PodAvoid, objects.merge_status(NAME, &patch)).await;
        let Some(now) = unless_conflict(written)? else {
            return Ok(Some(SOON));
        };
        if now.status.is_some_and(|it| it.avoided_clusters == all) {
            return Ok(None);
        }
        let note = "the cluster does not take it, but it is not given up: the CustomResourceDefinition \
                    namespaceoffloadings.offloading.liqo.io is older than this driver, or Liqo's, and does not keep \
                    status.avoidedClusters. Apply what liqo-csi crds --offloading prints";
        let events = &self.pods.events;
        events
            .warn_object(reference(home), "DefinitionOutdated", note)
            .await;
        Ok(Some(AGAIN))
    }

    /// Deletes the remote pod, unless it has changed since it was read: it may have a node by now.
    async fn delete_unplaced(
        &self,
        home: &RawPod,
        remote: &RawPod,
        pods: &Objects<RawPod>,
        why: &str,
    ) -> Result<(), ApiError> {
        let exactly = Precondition {
            uid: remote.uid().to_owned(),
            resource_version: remote.metadata.resource_version.clone(),
        };
        let name = remote.name_any();
        // The API server deletes a pod without a node at once.
        let deleted = pods.delete_within(&name, exactly, Some(1));
        let deleted = crash::around(Step::PodGiveUp, deleted).await;
        if unless_conflict(deleted.map(Some))?.is_none() {
            return Ok(());
        }
        let what = "cannot schedule it, and its pod there was deleted before it started";
        self.report_given_up(home, what, why).await;
        Ok(())
    }

    async fn report_given_up(&self, home: &RawPod, what: &str, why: &str) {
        let (cluster, why) = (&self.pods.cluster, short(why));
        tracing::info!(pod = self.observed.key, %cluster, why, "a pod is given up: its cluster {what}");
        self.pods.waited.forget(self.observed.key);
        self.pods.given_up.count(cluster.as_str());
        let note = format!(
            "the cluster {cluster} {what}. Its controller creates another one, which prefers other clusters for a while. The \
             reason there: {why}"
        );
        let events = &self.pods.events;
        events
            .warn_object(reference(home), "RemotePodGivenUp", &note)
            .await;
    }
}

/// Whether new pods of the namespace may run at home or in remote clusters.
fn may_run_anywhere(offloading: &NamespaceOffloading) -> bool {
    let strategy = offloading.spec.pod_offloading_strategy;
    strategy == PodOffloadingStrategy::LocalAndRemote && !offloading.is_leaving()
}

/// Whether new pods avoid the clusters in the status of their namespace: the chart creates that policy where the
/// API server serves such policies.
async fn has_policy(home: &Cluster) -> bool {
    let kind = GroupVersionKind::gvk(
        "admissionregistration.k8s.io",
        "v1",
        "MutatingAdmissionPolicyBinding",
    );
    let bindings: Api<DynamicObject> = Api::all_with(home.client().clone(), &ApiResource::from_gvk(&kind));
    let found = timeout(home.calls().timeout, bindings.get(POLICY)).await;
    matches!(found, Ok(Ok(_)))
}

fn avoided(offloading: &NamespaceOffloading) -> Vec<Avoided> {
    let seconds = |text: &str| text.parse::<Timestamp>().map_or(0, Timestamp::as_second);
    let all = offloading.status.iter().flat_map(|it| &it.avoided_clusters);
    all.map(|it| Avoided {
        controller: it.controller.clone(),
        cluster: it.cluster.clone(),
        since: seconds(&it.since),
        until: seconds(&it.until),
    })
    .collect()
}

fn written(avoided: &Avoided) -> AvoidedCluster {
    let time = |seconds| Timestamp::from_second(seconds).map_or_else(|_| String::new(), |it| it.to_string());
    AvoidedCluster {
        controller: avoided.controller.clone(),
        cluster: avoided.cluster.clone(),
        since: time(avoided.since),
        until: time(avoided.until),
    }
}

/// The clusters that new pods of a namespace still avoid, and the time until the first entry
/// expires.
pub(crate) fn avoided_now(offloading: &NamespaceOffloading) -> (Vec<AvoidedCluster>, Option<Duration>) {
    let now = Timestamp::now().as_second();
    let all = still_avoided(&avoided(offloading), now);
    let left = all.iter().map(|it| it.until.saturating_sub(now)).min();
    let left = left
        .and_then(|it| u64::try_from(it).ok())
        .map(Duration::from_secs);
    (all.iter().map(written).collect(), left)
}
