//! The writes for one pod. Each has the uid of its object as precondition, and most the resourceVersion: after a
//! conflict the pod is reconciled again.

use std::{
    net::IpAddr,
    sync::{Arc, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{
    POLL, Pods, SOON,
    changes::reference,
    given_up::REFUSALS,
    observe::{Observed, is_young, plausible},
};
use crate::{
    cluster::{ApiError, Objects, Precondition, unless_conflict},
    marks::{HOME, HOME_POD, HOME_POD_UID, HOME_UID, REMOTE_CLUSTER, REMOTE_CLUSTER_UID, REMOTE_NAMESPACE},
    observe::crash::{self, Step},
    offload::pods::{
        Act, DELETED_REMOTELY, Destination, End, FINALIZER, GATE, PodFacts, RemoteMarks, RemotePod,
        RemoteSettings, UNSCHEDULABLE, Waiting, caveats, decide_pod, disrupted_status, ended_status,
        fails_without_token, final_status, is_of_all_replicas, is_transition, least_final_status, not_kept,
        remote_pod, remote_status, started_status, unreachable_status, waiting_status,
    },
    places::Place,
    raw::RawPod,
};

/// Liqo's label of home pods that may run in a remote cluster.
const SHADOWED: &str = "liqo.io/shadowPod";

pub(super) struct Writer<'a> {
    pub(super) pods: &'a Pods<'a>,
    pub(super) observed: Observed<'a>,
}

impl Writer<'_> {
    /// Carries out the decision. Returns the time until the next reconciliation, if nothing changes before.
    pub(super) async fn carry_out(self, facts: &PodFacts, act: Act) -> Result<Option<Duration>, ApiError> {
        if let (Act::Make, Some(home), Ok(place), Ok(namespace)) = (
            &act,
            &self.observed.home,
            &self.observed.place,
            &self.observed.namespace,
        ) {
            return match self.create(home, place, namespace).await? {
                Creation::Created | Creation::TooEarly => Ok(Some(SOON)),
                Creation::Refused(waiting) => self.act(facts, Act::ReportWaiting(waiting)).await,
                // Pods without our label are not watched, and our own is not in the view yet if the answer was lost.
                Creation::Taken(found) => {
                    let home = home.clone();
                    let mut observed = Observed {
                        remote: found,
                        ..self.observed
                    };
                    let there = observed.classified();
                    let obstacle = self.pods.obstacle(&mut observed, &home, &there).await?;
                    let facts = PodFacts {
                        there,
                        obstacle,
                        ..facts.clone()
                    };
                    let next = decide_pod(&facts);
                    Writer {
                        pods: self.pods,
                        observed,
                    }
                    .act(&facts, next)
                    .await
                }
            };
        }
        self.act(facts, act).await
    }

    async fn act(&self, facts: &PodFacts, act: Act) -> Result<Option<Duration>, ApiError> {
        if !matches!(act, Act::ReportWaiting(_) | Act::Nothing) {
            self.pods.waits.forget(self.observed.key);
        }
        if let Act::DeleteThere(grace) = act {
            return self.delete_remote(grace).await.map(Some);
        }
        let Some(home) = &self.observed.home else {
            return Ok(None);
        };
        match act {
            Act::ReportWaiting(mut waiting) => {
                if REFUSALS.contains(&waiting.reason)
                    && let Some(way_out) = self.way_out(home).await?
                {
                    waiting.message.push_str(". ");
                    waiting.message.push_str(&way_out);
                }
                let pause = self.report_waiting(home, &waiting).await?;
                let again = self.give_up_refused(home, &waiting).await?;
                return Ok(Some(again.map_or(pause, |it| it.min(pause))));
            }
            Act::Claim => self.claim(home).await?,
            Act::MarkStarted => {
                if let Some(remote) = &self.observed.remote {
                    self.report_differences(home).await?;
                    let status = started_status(&home.json(), remote.uid(), &now());
                    self.write_status(home, &status).await?;
                }
            }
            Act::Ungate => self.ungate().await?,
            Act::Reflect => return self.reflect(home).await,
            Act::End(end) => self.end(home, end).await?,
            Act::RemoveFinalizer => self.remove_finalizer(home).await?,
            Act::Nothing => return self.wait(home, facts).await,
            // The cluster is unreachable, or the pod was created a moment ago.
            Act::Make | Act::DeleteThere(_) => return Ok(Some(POLL)),
        }
        Ok(None)
    }

    /// Writes into the status what the pod waits for, and emits an event if that is new. Returns the time until the
    /// next check.
    async fn report_waiting(&self, home: &RawPod, waiting: &Waiting) -> Result<Duration, ApiError> {
        let written = self.write_status(home, &waiting_status(waiting)).await?;
        if written.is_some() {
            self.warn_once(home, waiting.reason, &waiting.message).await;
        }
        let Observed {
            key,
            fingerprints,
            read_live,
            ..
        } = &self.observed;
        Ok(self
            .pods
            .waits
            .record(key, *fingerprints, waiting.reason, *read_live))
    }

    /// Emits a warning unless the pod has this reason already.
    async fn warn_once(&self, home: &RawPod, reason: &str, why: &str) {
        if home.status["reason"] != reason {
            let events = &self.pods.events;
            events.warn_object(reference(home), reason, why).await;
        }
    }

    /// Nothing can be done now: a pod whose cluster is unreachable is not ready meanwhile.
    async fn wait(&self, home: &RawPod, facts: &PodFacts) -> Result<Option<Duration>, ApiError> {
        let RemotePod::Unknown(why) = &facts.there else {
            let may_come = facts.there == RemotePod::Unseen && !home.as_home().ended;
            return Ok(may_come.then_some(POLL));
        };
        tracing::debug!(
            pod = self.observed.key,
            why,
            "the state of a remote pod is unknown"
        );
        if self.observed.place.is_err() && !home.as_home().ended {
            self.write_status(home, &unreachable_status(&home.json(), &now()))
                .await?;
            if home.as_home().deleting.is_none() {
                let waits = &self.pods.waits;
                return Ok(Some(waits.record(
                    self.observed.key,
                    self.observed.fingerprints,
                    "RemoteUnreachable",
                    false,
                )));
            }
        }
        if self.observed.place.is_ok() {
            self.pods.report_unknown(home, why).await;
        }
        Ok(Some(POLL))
    }

    async fn claim(&self, home: &RawPod) -> Result<(), ApiError> {
        let (Ok(place), Ok(namespace)) = (&self.observed.place, &self.observed.namespace) else {
            return Ok(());
        };
        let finalizers = home.finalizers().iter().map(String::as_str).chain([FINALIZER]);
        let mut metadata = home.exactly();
        metadata["finalizers"] = finalizers.collect();
        metadata["labels"] = json!({SHADOWED: "true"});
        metadata["annotations"] = json!({
            REMOTE_CLUSTER: self.pods.cluster.as_str(),
            REMOTE_CLUSTER_UID: place.uid,
            REMOTE_NAMESPACE: namespace,
        });
        let pods = self.home_pods(home);
        let patch = json!({ "metadata": metadata });
        let written = crash::around(Step::PodClaim, pods.merge(&home.name_any(), &patch)).await;
        unless_conflict(written).map(drop)
    }

    /// Emits events about what differs for the pod in its cluster. Called before the write that lets it start: after a
    /// crash in between they are emitted again, not lost.
    async fn report_differences(&self, home: &RawPod) -> Result<(), ApiError> {
        let Ok(namespace) = &self.observed.namespace else {
            return Ok(());
        };
        // This is repeated if it fails, and the events below must not be.
        if let Ok(place) = &self.observed.place {
            self.pods.report_left_out(home, place, namespace).await?;
        }
        let pod = home.json();
        let destination = Destination {
            cluster: self.pods.cluster.as_str(),
            namespace,
            is_same_there: &|namespace| self.pods.keeps_its_name(namespace),
            existing: self.pods.existing(home, &pod).await,
            is_routed: self.pods.network().is_some(),
            selected: self.pods.selected_by_others(home),
            settings: &self.pods.settings(),
        };
        for (reason, note) in caveats(&pod, &destination) {
            if is_of_all_replicas(reason) && !self.pods.owners.is_new(home, &note) {
                continue;
            }
            let events = &self.pods.events;
            events.warn_object(reference(home), reason, &note).await;
        }
        self.pods.report_configuration(home, &destination).await;
        self.pods.report_addresses(home, &pod).await;
        Ok(())
    }

    async fn create(&self, home: &RawPod, place: &Place, namespace: &str) -> Result<Creation, ApiError> {
        let name = home.name_any();
        let Some(owner) = place.cluster.all::<Namespace>().get(namespace).await? else {
            let message = format!(
                "the cluster {} has no namespace {namespace} any more",
                self.pods.cluster
            );
            let reason = "RemoteNamespaceMissing";
            return Ok(Creation::Refused(Waiting { reason, message }));
        };
        let marks = RemoteMarks {
            labels: pairs([(HOME, self.pods.places.home.id().as_str())]),
            annotations: pairs([
                (HOME_UID, self.observed.home_uid),
                (HOME_POD, self.observed.key),
                (HOME_POD_UID, home.uid()),
            ]),
        };
        let settings = RemoteSettings {
            claims: self.observed.claims.clone(),
            ..self.pods.settings()
        };
        let mut pod = match remote_pod(&home.json(), &marks, &settings) {
            Ok(pod) => pod,
            Err(refused) => {
                let message = refused.to_string();
                let reason = "PodNotSupported";
                return Ok(Creation::Refused(Waiting { reason, message }));
            }
        };
        pod["metadata"]["namespace"] = namespace.into();
        // With a controller: `kubectl drain` evicts it, and no ReplicaSet adopts it.
        pod["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "v1", "kind": "Namespace", "name": namespace, "uid": owner.metadata.uid, "controller": true,
        }]);
        let pods = place.cluster.within::<RawPod>(namespace);
        let pod: RawPod = serde_json::from_value(pod)
            .map_err(|error| pods.failure("make", crate::cluster::Cause::Malformed(error.to_string())))?;
        match crash::around(Step::PodMake, pods.create(&pod)).await {
            Ok(Some(stored)) => {
                if let Some(field) = not_kept(&pod.json(), &stored.json()) {
                    let deleted = pods.delete(&name, exactly(&stored)).await;
                    unless_conflict(deleted.map(Some))?;
                    return Ok(Creation::Refused(self.pods.field_not_kept(&field)));
                }
                tracing::info!(pod = self.observed.key, cluster = %self.pods.cluster, namespace, "created a remote pod");
                Ok(Creation::Created)
            }
            Ok(None) => {
                let found = pods.get(&name).await?;
                let found = found.map(|found| plausible(&pods, found)).transpose()?;
                Ok(Creation::Taken(found.map(Arc::new)))
            }
            Err(error) if is_young(&home.metadata) && lacks_account(&error) => Ok(Creation::TooEarly),
            Err(error) if error.is_refusal() => Ok(Creation::Refused(Observed::refusal(&error))),
            Err(error) => Err(error),
        }
    }

    async fn ungate(&self) -> Result<(), ApiError> {
        let Some((remote, pods)) = self.remote() else {
            return Ok(());
        };
        let gates = remote.spec["schedulingGates"].as_array().into_iter().flatten();
        let others: Vec<&Value> = gates.filter(|gate| gate["name"] != GATE).collect();
        let patch = json!({"metadata": remote.exactly(), "spec": {"schedulingGates": others}});
        let written = crash::around(Step::PodUngate, pods.merge(&remote.name_any(), &patch)).await;
        unless_conflict(written).map(drop)
    }

    /// Copies changes to the remote pod and its status home. Returns the time until a retry, if one is due.
    async fn reflect(&self, home: &RawPod) -> Result<Option<Duration>, ApiError> {
        let Some((remote, pods)) = self.remote() else {
            return Ok(None);
        };
        self.pods.report_overdue(home, remote).await;
        let again = self.apply_changes(home, remote, &pods).await;
        if home.as_home().ended {
            return Ok(again);
        }
        let status = self.reflect_status(home, remote).await?;
        let waits = self.give_up(home, remote, &pods).await?;
        Ok([again, status, waits].into_iter().flatten().min())
    }

    /// Returns the time until the status may be written, if it may not yet.
    async fn reflect_status(&self, home: &RawPod, remote: &RawPod) -> Result<Option<Duration>, ApiError> {
        let addresses = self.addresses(home, remote).await;
        let status = remote_status(&home.json(), &remote.json(), &addresses);
        if has_status(home, &status) {
            return Ok(None);
        }
        if let Err(wait) = self
            .pods
            .status_rates
            .take(home.uid(), is_transition(&home.status, &status))
        {
            return Ok(Some(wait));
        }
        let written = if remote.has_ended() {
            self.write_end(home, &status).await?
        } else {
            self.write_status(home, &status).await?
        };
        let cluster = self.pods.cluster.as_str();
        if written.is_some()
            && let Some((reason, note)) = fails_without_token(&home.json(), &status, cluster)
        {
            let events = &self.pods.events;
            events.warn_object(reference(home), reason, &note).await;
        }
        if written.is_some() && status["reason"] == UNSCHEDULABLE && home.status["reason"] != UNSCHEDULABLE {
            let why = status["message"].as_str().unwrap_or_default();
            let is_gated = !remote.spec["schedulingGates"]
                .as_array()
                .is_none_or(Vec::is_empty);
            let way_out = if is_gated { None } else { self.way_out(home).await? };
            let way_out = way_out.map_or_else(|| ": ".to_owned(), |it| format!(". {it}. The reason there: "));
            let note = format!("it cannot be scheduled in the cluster {cluster}{way_out}{why}");
            self.warn_once(home, UNSCHEDULABLE, &note).await;
        }
        Ok(None)
    }

    /// The addresses at which the pod is reached from home.
    async fn addresses(&self, home: &RawPod, remote: &RawPod) -> Vec<IpAddr> {
        let Some(network) = self.pods.network() else {
            return Vec::new();
        };
        match network.addresses(&remote.status) {
            Ok(addresses) => addresses,
            Err(unroutable) => {
                self.pods.report_unroutable(home, &unroutable, &network).await;
                Vec::new()
            }
        }
    }

    /// Deletes the remote pod. A cluster that accepts that and keeps the pod gets the request with back-off.
    /// Returns the time until the next check.
    async fn delete_remote(&self, grace: Option<i64>) -> Result<Duration, ApiError> {
        let Some((remote, pods)) = self.remote() else {
            return Ok(POLL);
        };
        let own = || {
            remote.spec["terminationGracePeriodSeconds"]
                .as_i64()
                .unwrap_or(30)
        };
        let grace = grace.unwrap_or_else(own).max(1);
        let exactly = exactly(remote);
        let grace = u32::try_from(grace).unwrap_or(u32::MAX);
        let (name, deletion) = (remote.name_any(), (remote.uid().to_owned(), grace));
        let backoff = || self.pods.deleted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left) = backoff().remaining(self.observed.key, &deletion) {
            return Ok(left);
        }
        let deleted = pods.delete_within(&name, exactly, Some(grace));
        unless_conflict(crash::around(Step::PodDeleteThere, deleted).await.map(Some))?;
        backoff().record(self.observed.key.to_owned(), deletion);
        Ok(POLL)
    }

    /// The remote pod was deleted by another client.
    async fn end(&self, home: &RawPod, end: End) -> Result<(), ApiError> {
        let (reason, message) = (
            DELETED_REMOTELY,
            format!("its pod in the cluster {} was deleted there", self.pods.cluster),
        );
        match end {
            End::Failed => {
                if let Some(status) = final_status(&home.json(), reason, &message, &now()) {
                    self.write_status(home, &status).await?;
                }
                Ok(())
            }
            End::Deleted => {
                let disrupted = disrupted_status(&home.json(), reason, &message, &now());
                match self.write_status(home, &disrupted).await {
                    Ok(None) => return Ok(()),
                    Err(error) if !error.is_refusal() && !error.is_too_large() => return Err(error),
                    _ => {}
                }
                let note =
                    format!("{message}, so it is deleted here, too: its controller creates another one");
                tracing::info!(pod = self.observed.key, note, "a pod is replaced");
                let events = &self.pods.events;
                events.warn_object(reference(home), reason, &note).await;
                self.replace(home).await
            }
        }
    }

    /// Deletes the home pod, so that its controller creates another one.
    pub(super) async fn replace(&self, home: &RawPod) -> Result<(), ApiError> {
        let remote = self.observed.remote.as_ref();
        let left = remote.and_then(|it| it.metadata.deletion_grace_period_seconds);
        let left = left.and_then(|it| u32::try_from(it).ok());
        let (pods, name) = (self.home_pods(home), home.name_any());
        let deleted = pods.delete_within(&name, exactly(home), left);
        unless_conflict(crash::around(Step::PodEnd, deleted).await.map(Some)).map(drop)
    }

    /// Nothing runs for the home pod any more. Jobs count phases, so it gets a final one before it is deleted. The
    /// controller of a Job removes its own finalizer only then.
    async fn remove_finalizer(&self, home: &RawPod) -> Result<(), ApiError> {
        let pods = self.home_pods(home);
        let name = home.name_any();
        let mut home = home.clone();
        let cluster = &self.pods.cluster;
        let message = if home.has_our_finalizer() {
            format!("its pod in the cluster {cluster} is gone")
        } else {
            format!("it was deleted before it ran in the cluster {cluster}")
        };
        let seen = home.json();
        let status = ended_status(&seen).or_else(|| final_status(&seen, "Terminated", &message, &now()));
        if let Some(status) = status {
            match self.write_end(&home, &status).await? {
                Some(written) => home = written,
                None => return Ok(()),
            }
        }
        if home.has_our_finalizer() {
            let removed = pods.set_finalizer(&home, FINALIZER, false);
            if unless_conflict(crash::around(Step::PodLetGo, removed).await)?.is_none() {
                return Ok(());
            }
        }
        let deleted = pods.delete_within(&name, exactly(&home), Some(0));
        unless_conflict(crash::around(Step::PodFree, deleted).await.map(Some))?;
        tracing::info!(pod = self.observed.key, "a pod of a virtual node has ended");
        Ok(())
    }

    /// Writes the final status of a pod: without details if the object would be too large or the API server refuses
    /// them.
    async fn write_end(&self, home: &RawPod, status: &Value) -> Result<Option<RawPod>, ApiError> {
        match self.write_status(home, status).await {
            Err(error) if error.is_too_large() || error.is_refusal() => {
                self.write_status(home, &least_final_status(status)).await
            }
            written => written,
        }
    }

    /// Patches the status, unless that changes nothing. `None` if the pod has changed since it was read.
    async fn write_status(&self, home: &RawPod, status: &Value) -> Result<Option<RawPod>, ApiError> {
        if has_status(home, status) {
            return Ok(Some(home.clone()));
        }
        let patch = json!({"metadata": home.exactly(), "status": status});
        let (pods, name) = (self.home_pods(home), home.name_any());
        let written = pods.merge_status(&name, &patch);
        unless_conflict(crash::around(Step::PodStatus, written).await)
    }

    fn home_pods(&self, home: &RawPod) -> Objects<RawPod> {
        self.pods
            .places
            .home
            .within(&home.namespace().unwrap_or_default())
    }

    fn remote(&self) -> Option<(&RawPod, Objects<RawPod>)> {
        let (Some(remote), Ok(place)) = (&self.observed.remote, &self.observed.place) else {
            return None;
        };
        let pods = place.cluster.within(&remote.namespace().unwrap_or_default());
        Some((remote, pods))
    }
}

/// Whether the status has all these values.
fn has_status(home: &RawPod, status: &Value) -> bool {
    let mut fields = status.as_object().into_iter().flatten();
    fields.all(|(field, value)| home.status[field] == *value)
}

/// Whether the namespace has no service account yet: its cluster creates it a moment after the namespace.
fn lacks_account(error: &ApiError) -> bool {
    error.is_forbidden() && error.to_string().contains("serviceaccount \"default\" not found")
}

enum Creation {
    Created,
    /// The namespace there is younger than it has to be.
    TooEarly,
    Refused(Waiting),
    /// The name is taken by this pod, unless it was deleted meanwhile.
    Taken(Option<Arc<RawPod>>),
}

fn pairs<const N: usize>(all: [(&str, &str); N]) -> std::collections::BTreeMap<String, String> {
    all.into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

fn exactly(pod: &RawPod) -> Precondition {
    Precondition {
        uid: pod.uid().to_owned(),
        resource_version: None,
    }
}

fn now() -> String {
    format!("{:.0}", Timestamp::now())
}
