//! The writes about one pod. Each names the uid of what it writes on, and most its version: what
//! changed meanwhile is looked at again.

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
    look::{Look, plausible},
};
use crate::{
    cluster::{ApiError, Objects, Precondition, unless_conflict},
    marks::{HOME, HOME_POD, HOME_POD_UID, HOME_UID, REMOTE_CLUSTER, REMOTE_CLUSTER_UID, REMOTE_NAMESPACE},
    observe::crash::{self, Step},
    offload::pods::{
        Act, End, FINALIZER, GATE, PodFacts, RemoteMarks, RemotePod, RemoteSettings, UNSCHEDULABLE, Waiting,
        caveats, decide_pod, final_status, is_transition, least_final_status, not_kept, remote_pod,
        remote_status, started_status, unreachable_status, waiting_status,
    },
    places::Place,
    raw::RawPod,
};

/// Label of home pods that may run in a remote cluster, as Liqo has it.
const SHADOWED: &str = "liqo.io/shadowPod";

/// Writes about one pod.
pub(super) struct Writer<'a> {
    pub(super) pods: &'a Pods<'a>,
    pub(super) look: Look<'a>,
}

impl Writer<'_> {
    /// Does what was decided; when to look again although nothing changes.
    pub(super) async fn carry_out(self, facts: &PodFacts, act: Act) -> Result<Option<Duration>, ApiError> {
        if let (Act::Make, Some(home), Ok(place), Ok(namespace)) =
            (&act, &self.look.home, &self.look.place, &self.look.namespace)
        {
            return match self.make(home, place, namespace).await? {
                Made::Now => Ok(Some(SOON)),
                Made::Refused(waiting) => self.act(facts, Act::ReportWaiting(waiting)).await,
                // Pods of others are not watched, and one of its own is not seen yet if the answer got lost.
                Made::Taken(found) => {
                    let home = home.clone();
                    let mut look = Look {
                        remote: found,
                        ..self.look
                    };
                    let there = look.classified();
                    let obstacle = self.pods.obstacle(&mut look, &home, &there).await?;
                    let facts = PodFacts {
                        there,
                        obstacle,
                        ..facts.clone()
                    };
                    let next = decide_pod(&facts);
                    Writer {
                        pods: self.pods,
                        look,
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
            self.pods.waits.forget(self.look.key);
        }
        if let Act::DeleteThere(grace) = act {
            return self.delete_there(grace).await.map(Some);
        }
        let Some(home) = &self.look.home else {
            return Ok(None);
        };
        match act {
            Act::ReportWaiting(waiting) => {
                let pause = self.say(home, &waiting).await?;
                let again = self.give_up_refused(home, &waiting).await?;
                return Ok(Some(again.map_or(pause, |it| it.min(pause))));
            }
            Act::Claim => self.claim(home).await?,
            Act::MarkStarted => {
                if let Some(remote) = &self.look.remote {
                    let status = started_status(&home.json(), remote.uid(), &now());
                    self.write_status(home, &status).await?;
                }
            }
            Act::Ungate => self.ungate().await?,
            Act::Reflect => return self.reflect(home).await,
            Act::End(end) => self.end(home, end).await?,
            Act::RemoveFinalizer => self.free(home).await?,
            Act::Nothing => return self.rest(home, facts).await,
            // Nobody answers whom it could be asked of, or it was made a moment ago.
            Act::Make | Act::DeleteThere(_) => return Ok(Some(POLL)),
        }
        Ok(None)
    }

    /// It says what it waits for, in an event too if that is new; for how long it is left alone.
    async fn say(&self, home: &RawPod, waiting: &Waiting) -> Result<Duration, ApiError> {
        let written = self.write_status(home, &waiting_status(waiting)).await?;
        if written.is_some() {
            self.tell(home, waiting.reason, &waiting.message).await;
        }
        let Look {
            key,
            prints,
            read_live,
            ..
        } = &self.look;
        Ok(self.pods.waits.note(key, *prints, waiting.reason, *read_live))
    }

    /// Tells in an event why a home pod, as it was, now waits, if that is new.
    async fn tell(&self, home: &RawPod, reason: &str, why: &str) {
        if home.status["reason"] != reason {
            let events = &self.pods.events;
            events.warn_object(reference(home), reason, why).await;
        }
    }

    /// What waits for its cluster is not ready meanwhile, and is looked at again.
    async fn rest(&self, home: &RawPod, facts: &PodFacts) -> Result<Option<Duration>, ApiError> {
        let RemotePod::Unknown(why) = &facts.there else {
            let may_come = facts.there == RemotePod::Unseen && !home.as_home().ended;
            return Ok(may_come.then_some(POLL));
        };
        tracing::debug!(pod = self.look.key, why, "it is not known how a pod is");
        if self.look.place.is_err() && !home.as_home().ended {
            self.write_status(home, &unreachable_status(&home.json(), &now()))
                .await?;
            if home.as_home().deleting.is_none() {
                let waits = &self.pods.waits;
                return Ok(Some(waits.note(
                    self.look.key,
                    self.look.prints,
                    "RemoteUnreachable",
                    false,
                )));
            }
        }
        if self.look.place.is_ok() {
            self.pods.tell_unknown(home, why).await;
        }
        Ok(Some(POLL))
    }

    async fn claim(&self, home: &RawPod) -> Result<(), ApiError> {
        let (Ok(place), Ok(namespace)) = (&self.look.place, &self.look.namespace) else {
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
        if unless_conflict(written)?.is_some() {
            for (reason, note) in caveats(&home.json(), self.pods.cluster.as_str()) {
                let events = &self.pods.events;
                events.warn_object(reference(home), reason, &note).await;
            }
        }
        Ok(())
    }

    async fn make(&self, home: &RawPod, place: &Place, namespace: &str) -> Result<Made, ApiError> {
        let name = home.name_any();
        let Some(owner) = place.cluster.all::<Namespace>().get(namespace).await? else {
            let message = format!(
                "the cluster {} has no namespace {namespace} any more",
                self.pods.cluster
            );
            let reason = "RemoteNamespaceMissing";
            return Ok(Made::Refused(Waiting { reason, message }));
        };
        let marks = RemoteMarks {
            labels: pairs([(HOME, self.pods.places.home.id().as_str())]),
            annotations: pairs([
                (HOME_UID, self.look.home_uid),
                (HOME_POD, self.look.key),
                (HOME_POD_UID, home.uid()),
            ]),
        };
        let settings = RemoteSettings {
            claims: self.look.claims.clone(),
            ..self.pods.settings()
        };
        let mut pod = match remote_pod(&home.json(), &marks, &settings) {
            Ok(pod) => pod,
            Err(refused) => {
                let message = refused.to_string();
                let reason = "PodNotSupported";
                return Ok(Made::Refused(Waiting { reason, message }));
            }
        };
        pod["metadata"]["namespace"] = namespace.into();
        // It has a controller: drains take it, and no ReplicaSet adopts it.
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
                    return Ok(Made::Refused(self.pods.drops(&field)));
                }
                tracing::info!(pod = self.look.key, cluster = %self.pods.cluster, namespace, "made a pod");
                Ok(Made::Now)
            }
            Ok(None) => {
                let found = pods.get(&name).await?;
                let found = found.map(|found| plausible(&pods, found)).transpose()?;
                Ok(Made::Taken(found.map(Arc::new)))
            }
            Err(error) if error.is_refusal() => Ok(Made::Refused(Look::refusal(&error))),
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

    /// When to look again, because something is to be tried again.
    async fn reflect(&self, home: &RawPod) -> Result<Option<Duration>, ApiError> {
        let Some((remote, pods)) = self.remote() else {
            return Ok(None);
        };
        let again = self.carry_changes(home, remote, &pods).await;
        if home.as_home().ended {
            return Ok(again);
        }
        let status = self.reflect_status(home, remote).await?;
        let waits = self.give_up(home, remote, &pods).await?;
        Ok([again, status, waits].into_iter().flatten().min())
    }

    /// When the status may be written, if it may not yet.
    async fn reflect_status(&self, home: &RawPod, remote: &RawPod) -> Result<Option<Duration>, ApiError> {
        let addresses = self.addresses(home, remote).await;
        let status = remote_status(&home.json(), &remote.json(), &addresses);
        if is_said(home, &status) {
            return Ok(None);
        }
        if let Err(wait) = self
            .pods
            .turns
            .take(home.uid(), is_transition(&home.status, &status))
        {
            return Ok(Some(wait));
        }
        let written = if remote.has_ended() {
            self.write_end(home, &status).await?
        } else {
            self.write_status(home, &status).await?
        };
        if written.is_some() && status["reason"] == UNSCHEDULABLE {
            let (cluster, why) = (&self.pods.cluster, status["message"].as_str().unwrap_or_default());
            let note = format!("no node of the cluster {cluster} takes it: {why}");
            self.tell(home, UNSCHEDULABLE, &note).await;
        }
        Ok(None)
    }

    /// By which addresses the pod is reached from here: those that pods of its cluster have.
    async fn addresses(&self, home: &RawPod, remote: &RawPod) -> Vec<IpAddr> {
        let Some(network) = self.pods.network() else {
            return Vec::new();
        };
        match network.addresses(&remote.status) {
            Ok(addresses) => addresses,
            Err(outside) => {
                self.pods.tell_outside(home, &outside, &network).await;
                Vec::new()
            }
        }
    }

    /// When to look again. A cluster that takes it and does not delete the pod is asked ever more rarely.
    async fn delete_there(&self, grace: Option<i64>) -> Result<Duration, ApiError> {
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
        let (name, print) = (remote.name_any(), (remote.uid().to_owned(), grace));
        let brake = || self.pods.deleted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left) = brake().holds(self.look.key, &print) {
            return Ok(left);
        }
        let deleted = pods.delete_within(&name, exactly, Some(grace));
        unless_conflict(crash::around(Step::PodDeleteThere, deleted).await.map(Some))?;
        brake().note(self.look.key.to_owned(), print);
        Ok(POLL)
    }

    /// Others have deleted the remote pod.
    async fn end(&self, home: &RawPod, end: End) -> Result<(), ApiError> {
        let (reason, message) = (
            "DeletedRemotely",
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
                tracing::info!(pod = self.look.key, message, "a pod is replaced");
                self.replace(home).await
            }
        }
    }

    /// Deletes the home pod, so that its controller creates another one.
    pub(super) async fn replace(&self, home: &RawPod) -> Result<(), ApiError> {
        let remote = self.look.remote.as_ref();
        let left = remote.and_then(|it| it.metadata.deletion_grace_period_seconds);
        let left = left.and_then(|it| u32::try_from(it).ok());
        let (pods, name) = (self.home_pods(home), home.name_any());
        let deleted = pods.delete_within(&name, exactly(home), left);
        unless_conflict(crash::around(Step::PodEnd, deleted).await.map(Some)).map(drop)
    }

    /// Nothing runs for it any more. Jobs count phases, so it ends in one.
    async fn free(&self, home: &RawPod) -> Result<(), ApiError> {
        let pods = self.home_pods(home);
        let name = home.name_any();
        let mut home = home.clone();
        if home.is_held() {
            let message = format!("its pod in the cluster {} is gone", self.pods.cluster);
            if let Some(status) = final_status(&home.json(), "Terminated", &message, &now()) {
                match self.write_end(&home, &status).await? {
                    Some(written) => home = written,
                    None => return Ok(()),
                }
            }
            let freed = pods.set_finalizer(&home, FINALIZER, false);
            if unless_conflict(crash::around(Step::PodLetGo, freed).await)?.is_none() {
                return Ok(());
            }
        }
        let deleted = pods.delete_within(&name, exactly(&home), Some(0));
        unless_conflict(crash::around(Step::PodFree, deleted).await.map(Some))?;
        tracing::info!(pod = self.look.key, "a pod of a virtual node has ended");
        Ok(())
    }

    /// Writes the status of a pod that ends. Where the pod is as large as an object can be, or the API server
    /// refuses the details, it ends all the same.
    async fn write_end(&self, home: &RawPod, status: &Value) -> Result<Option<RawPod>, ApiError> {
        match self.write_status(home, status).await {
            Err(error) if error.is_too_large() || error.is_refusal() => {
                self.write_status(home, &least_final_status(status)).await
            }
            written => written,
        }
    }

    /// Writes this patch of the status, unless it changes nothing. `None` if somebody else has
    /// changed the pod.
    async fn write_status(&self, home: &RawPod, status: &Value) -> Result<Option<RawPod>, ApiError> {
        if is_said(home, status) {
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
        let (Some(remote), Ok(place)) = (&self.look.remote, &self.look.place) else {
            return None;
        };
        let pods = place.cluster.within(&remote.namespace().unwrap_or_default());
        Some((remote, pods))
    }
}

/// Whether the status says just this already.
fn is_said(home: &RawPod, status: &Value) -> bool {
    let mut fields = status.as_object().into_iter().flatten();
    fields.all(|(field, value)| home.status[field] == *value)
}

/// What came of making a remote pod.
enum Made {
    Now,
    Refused(Waiting),
    /// The name is taken: by this pod, if there still is one.
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
