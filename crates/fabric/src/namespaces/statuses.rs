//! The controller of each `NamespaceOffloading` at home: finalizer, label of the namespace, and status.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Resource, ResourceExt};
use serde_json::json;
use tokio::{sync::watch, time::Instant};

use super::{AT_ONCE, ChangeFeed, FINALIZER, Offloadings, Protection};
use crate::{
    IdleReason,
    api::{
        namespace_offloading::{NAME, NamespaceOffloading, NamespaceOffloadingStatus, READY},
        remote_cluster::RemoteCluster,
    },
    cluster::{
        ApiError, Cause,
        events::Events,
        has_finalizer, unless_conflict,
        view::{Changed, Feed, Slim, View},
    },
    controller::{Controller, Next},
    leaving, liqo,
    observe::crash::{self, Step as Write},
    offload::{self, ClusterState},
    pods::{avoided_now, is_young},
    queue::Queue,
    refused::{self, WRITE_REFUSED},
    scheduling,
};

/// The interval of the checks whether Liqo is installed.
const CHECK_LIQO: Duration = Duration::from_secs(20);
/// The pause after a failed check, a write or an eviction.
const SOON: Duration = Duration::from_secs(1);

pub(super) struct Statuses<'a> {
    all: &'a Offloadings<'a>,
    feed: ChangeFeed,
    protections: [Feed<Protection>; 2],
    kind_owner: Mutex<KindOwner>,
    events: Events,
}

/// Whether Liqo or this driver carries out `NamespaceOffloading`s, at the last check.
#[derive(Clone)]
struct KindOwner {
    /// The object that shows that Liqo is installed, if any.
    liqo: Option<String>,
    is_defined: bool,
    /// When this is checked next.
    next: Instant,
}

impl<'a> Statuses<'a> {
    pub(super) fn new(all: &'a Offloadings<'a>) -> Self {
        Self {
            feed: ChangeFeed::new(all),
            protections: all.protections.each_ref().map(View::feed),
            kind_owner: Mutex::new(KindOwner {
                liqo: None,
                is_defined: true,
                next: Instant::now(),
            }),
            events: Events::new(all.home.client().clone()),
            all,
        }
    }

    /// Checks whether Liqo is installed and the kind is defined. The result is reused until the next check is due.
    async fn kind_owner(&self) -> Result<KindOwner, ApiError> {
        let known = |now: &Mutex<KindOwner>| now.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let known = known(&self.kind_owner);
        if known.next > Instant::now() {
            return Ok(known);
        }
        let home = self.all.home;
        let unknown = |why| {
            home.all::<NamespaceOffloading>()
                .failure("find the owner of", Cause::Unavailable(why))
        };
        let owner = KindOwner {
            liqo: liqo::installed(home).await.map_err(unknown)?,
            is_defined: is_read(&home.views().offloadings.version())
                || liqo::defines_offloadings(home).await.map_err(unknown)?,
            next: Instant::now() + CHECK_LIQO,
        };
        *self.kind_owner.lock().unwrap_or_else(PoisonError::into_inner) = owner.clone();
        Ok(owner)
    }

    /// Why no namespace is offloaded, if so.
    fn idle(&self, owner: &KindOwner) -> Option<IdleReason> {
        let views = self.all.home.views();
        if let Some(how) = &owner.liqo {
            return Some(IdleReason::Unready(format!(
                "Liqo is installed ({how}), and carries out NamespaceOffloadings: this fabric does nothing. What it created \
                 stays as it is"
            )));
        }
        if !is_read(&views.offloadings.version()) {
            return Some(if owner.is_defined {
                IdleReason::Unready("NamespaceOffloadings are not listed yet".to_owned())
            } else {
                IdleReason::Undefined
            });
        }
        // Otherwise a RemoteCluster that is not listed yet would look deleted.
        let all_read = self.all.places.registry().unread().is_some()
            && is_read(&views.remote_clusters.version())
            && is_read(&views.nodes.version());
        (!all_read).then(|| IdleReason::Unready("RemoteClusters and nodes are not listed yet".to_owned()))
    }

    /// The state of a namespace in one cluster: the last decision there, or until the cluster answers what the status
    /// has.
    fn state(&self, object: &NamespaceOffloading, cluster: &RemoteCluster) -> ClusterState {
        let id = cluster.name_any();
        let selected = self.all.wanted(object, cluster);
        let published = object.readiness(&id);
        let key = (object.namespace().unwrap_or_default(), id);
        match self.all.decided().states.get(&key) {
            Some(state) if state.selected == selected => state.clone(),
            _ => ClusterState {
                selected,
                ready: published,
            },
        }
    }

    /// The desired status.
    fn status(
        &self,
        object: &NamespaceOffloading,
        decided: &BTreeMap<String, ClusterState>,
    ) -> NamespaceOffloadingStatus {
        let leaving = object.is_leaving();
        let conditions = decided
            .iter()
            .filter(|(_, it)| !leaving || it.ready.is_some())
            .map(|(id, it)| (id.clone(), self.all.conditions(object, id, it)));
        NamespaceOffloadingStatus {
            observed_generation: object.metadata.generation,
            remote_namespace_name: self.all.name(object).ok(),
            offloading_phase: Some(offload::phase(leaving, decided.values())),
            remote_namespaces_conditions: conditions.collect(),
            avoided_clusters: avoided_now(object).0,
        }
    }

    /// Emits an event on a `NamespaceOffloading` if a policy or webhook of this cluster refuses or fails a write for it: the
    /// status may not exist yet.
    async fn report_refused(&self, object: &NamespaceOffloading, error: &ApiError) {
        let note = refused::note("an object that this namespace needs", error);
        let about = object.object_ref(&());
        self.events.warn_object(about, WRITE_REFUSED, &note).await;
    }

    /// The clusters in which this fabric creates namespaces.
    fn clusters(&self) -> Vec<Arc<RemoteCluster>> {
        let mut all = self.all.home.views().remote_clusters.all();
        all.retain(|it| it.spec.fabric.is_some());
        all
    }
}

/// Whether the first list of a view is complete.
fn is_read(version: &watch::Receiver<u64>) -> bool {
    *version.borrow() > 0
}

impl Controller for Statuses<'_> {
    const NAME: &'static str = "namespaces";
    const AT_ONCE: usize = AT_ONCE;

    async fn changes(&self, queue: &mut Queue) -> Next {
        let mut triggers = ChangeFeed::triggers(self.all);
        triggers.push(self.all.decisions.subscribe());
        triggers.extend(self.all.protections.iter().map(View::version));
        let owner = self.kind_owner().await;
        if let Err(error) = &owner {
            tracing::warn!(%error, "waiting: it is unknown whether Liqo is installed");
        }
        let idle = match &owner {
            Ok(owner) => self.idle(owner),
            Err(_) => self.all.idle.borrow().clone(),
        };
        if *self.all.idle.borrow() != idle {
            match &idle {
                Some(IdleReason::Unready(why)) => tracing::warn!("{why}"),
                Some(IdleReason::Undefined) => tracing::info!(
                    "NamespaceOffloadings are not defined here, so no namespace is offloaded; to define them: \
                     liqo-csi crds --offloading | kubectl create -f -"
                ),
                None => {}
            }
            self.all.idle.send_replace(idle.clone());
        }
        let works = owner.is_ok() && idle.is_none();
        let mut at = Instant::now() + if owner.is_ok() { CHECK_LIQO } else { SOON };
        if works {
            at = at.min(self.feed.take(self.all, queue).0);
            for namespace in std::mem::take(&mut self.all.decided().changed) {
                queue.add(namespace);
            }
            let offloadings = &self.all.home.views().offloadings;
            for feed in &self.protections {
                match feed.take() {
                    Changed::These(changed) => {
                        let namespaces = changed.iter().map(|it| it.topic());
                        for namespace in namespaces.filter(|it| offloadings.count_of_topic(it) > 0) {
                            queue.add(namespace);
                        }
                    }
                    Changed::Everything => {
                        for object in offloadings.all() {
                            queue.add(object.topic());
                        }
                    }
                }
            }
        }
        Next { triggers, at, works }
    }

    async fn reconcile(&self, namespace: &str) -> Result<Option<Duration>, ApiError> {
        let objects = self.all.home.within::<NamespaceOffloading>(namespace);
        let Some(object) = objects.get(NAME).await? else {
            return Ok(None);
        };
        let outcome = self.reconcile_object(namespace, &object).await;
        // A webhook that does not answer fails the writes, too, and without status nothing else shows that.
        if let Err(error) = &outcome
            && (error.is_refusal()
                || error.is_transient() && object.status.is_none() && !is_young(&object.metadata))
        {
            self.report_refused(&object, error).await;
        }
        outcome
    }
}

impl Statuses<'_> {
    async fn reconcile_object(
        &self,
        namespace: &str,
        object: &NamespaceOffloading,
    ) -> Result<Option<Duration>, ApiError> {
        let home = self.all.home;
        let objects = home.within::<NamespaceOffloading>(namespace);
        let leaving = object.is_leaving();
        let never = offload::never_offloaded(namespace, self.all.reserved).is_some();
        match (leaving, has_finalizer(object, FINALIZER)) {
            (true, false) => return Ok(None),
            // Never offloaded, so there is nothing to clean up later: it needs no finalizer, only a status.
            (false, false) if never => {}
            (false, false) => {
                let added = objects.set_finalizer(object, FINALIZER, true);
                unless_conflict(crash::around(Write::OffloadHold, added).await)?;
                return Ok(Some(SOON));
            }
            (_, true) => {}
        }
        let Some(found) = home.all::<Namespace>().get(namespace).await? else {
            return Ok(None);
        };
        // The label before the status: pods must be scheduled accordingly once the status says that the namespace is
        // offloaded, and run at home again before anything is removed.
        scheduling::keep(home, &found, !leaving && !never).await?;
        let clusters = self.clusters();
        let decided = clusters
            .iter()
            .map(|cluster| (cluster.name_any(), self.state(object, cluster)));
        let status = self.status(object, &decided.collect());
        if object.status.as_ref() != Some(&status) {
            let patch = patch(object, &status);
            let written = crash::around(Write::OffloadStatus, objects.merge_status(NAME, &patch)).await;
            unless_conflict(written)?;
            return Ok(Some(SOON));
        }
        let gone = status
            .remote_namespaces_conditions
            .values()
            .flatten()
            .all(|it| it.type_ != READY);
        if leaving && leaving::evict_waiting(home, object).await? {
            return Ok(Some(SOON));
        }
        if leaving && gone {
            let removed = objects.set_finalizer(object, FINALIZER, false);
            unless_conflict(crash::around(Write::OffloadLetGo, removed).await)?;
        }
        // The admission policy for new pods cannot compare times: expired entries have to be removed.
        Ok(avoided_now(object).1)
    }
}

/// The merge patch that replaces the status of exactly the object that was read: removed entries need an explicit
/// null.
fn patch(object: &NamespaceOffloading, status: &NamespaceOffloadingStatus) -> serde_json::Value {
    let mut patch = json!({
        "metadata": {"uid": object.metadata.uid, "resourceVersion": object.metadata.resource_version},
        "status": status,
    });
    if status.avoided_clusters.is_empty() && object.status.iter().any(|it| !it.avoided_clusters.is_empty()) {
        patch["status"]["avoidedClusters"] = serde_json::Value::Null;
    }
    let before = object
        .status
        .iter()
        .flat_map(|it| it.remote_namespaces_conditions.keys());
    for cluster in before {
        if !status.remote_namespaces_conditions.contains_key(cluster) {
            patch["status"]["remoteNamespacesConditions"][cluster] = serde_json::Value::Null;
        }
    }
    patch
}
