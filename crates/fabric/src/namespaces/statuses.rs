//! Writes the status of each `NamespaceOffloading`, and what there is to do at home.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use serde_json::json;
use tokio::{sync::watch, time::Instant};

use super::{AT_ONCE, FINALIZER, News, Offloadings, Policy};
use crate::{
    Rest,
    api::{
        namespace_offloading::{NAME, NamespaceOffloading, NamespaceOffloadingStatus, READY},
        remote_cluster::RemoteCluster,
    },
    cluster::{
        ApiError, Cause, has_finalizer, unless_conflict,
        view::{Changed, Feed, Slim},
    },
    controller::{Controller, Next},
    leaving, liqo,
    observe::crash::{self, Step as Write},
    offload::{self, ClusterState},
    pods::avoided_now,
    queue::Queue,
    scheduling,
};

/// How often it is asked whether Liqo is installed.
const ASK_FOR_LIQO: Duration = Duration::from_secs(20);
/// After a failure it is asked again so soon, and what was evicted is looked at again.
const SOON: Duration = Duration::from_secs(1);

/// The controller.
pub(super) struct Statuses<'a> {
    all: &'a Offloadings<'a>,
    news: News,
    policies: Feed<Policy>,
    asked: Mutex<Asked>,
}

/// What was answered when it was asked last who serves `NamespaceOffloading`s.
#[derive(Clone)]
struct Asked {
    /// How it shows that Liqo is installed, if it is.
    liqo: Option<String>,
    /// Whether the kind is defined.
    is_defined: bool,
    /// When it is asked next.
    next: Instant,
}

impl<'a> Statuses<'a> {
    pub(super) fn new(all: &'a Offloadings<'a>) -> Self {
        Self {
            news: News::new(all),
            policies: all.policies.feed(),
            asked: Mutex::new(Asked {
                liqo: None,
                is_defined: true,
                next: Instant::now(),
            }),
            all,
        }
    }

    /// Asks now and then whether Liqo is installed, and whether the kind is defined. What was found last
    /// counts until then.
    async fn ask(&self) -> Result<Asked, ApiError> {
        let known = |now: &Mutex<Asked>| now.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let known = known(&self.asked);
        if known.next > Instant::now() {
            return Ok(known);
        }
        let home = self.all.home;
        let unknown = |why| {
            home.all::<NamespaceOffloading>()
                .failure("tell who owns", Cause::Unavailable(why))
        };
        let asked = Asked {
            liqo: liqo::installed(home).await.map_err(unknown)?,
            is_defined: is_read(&home.views().offloadings.version())
                || liqo::defines_offloadings(home).await.map_err(unknown)?,
            next: Instant::now() + ASK_FOR_LIQO,
        };
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = asked.clone();
        Ok(asked)
    }

    /// Why nothing is done, if nothing is.
    fn idle(&self, asked: &Asked) -> Option<Rest> {
        let views = self.all.home.views();
        if let Some(how) = &asked.liqo {
            return Some(Rest::Unready(format!(
                "Liqo is installed ({how}), and NamespaceOffloadings are Liqo's: this fabric does nothing. What it made \
                 stays as it is"
            )));
        }
        if !is_read(&views.offloadings.version()) {
            return Some(if asked.is_defined {
                Rest::Unready("NamespaceOffloadings were not read yet".to_owned())
            } else {
                Rest::Undefined
            });
        }
        // A cluster that was not read yet may well be there.
        let all_read = self.all.places.registry().unread().is_some()
            && is_read(&views.remote_clusters.version())
            && is_read(&views.nodes.version());
        (!all_read).then(|| Rest::Unready("the RemoteClusters and the nodes were not read yet".to_owned()))
    }

    /// What is said of a namespace in one cluster: what was decided there. Until the cluster has answered
    /// that is what was said before.
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

    /// The clusters in which this fabric makes namespaces.
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
        let mut triggers = News::triggers(self.all);
        triggers.extend([self.all.news.subscribe(), self.all.policies.version()]);
        let asked = self.ask().await;
        if let Err(error) = &asked {
            tracing::warn!(%error, "nothing is done before it is known whether Liqo is installed");
        }
        let idle = match &asked {
            Ok(asked) => self.idle(asked),
            Err(_) => self.all.idle.borrow().clone(),
        };
        if *self.all.idle.borrow() != idle {
            match &idle {
                Some(Rest::Unready(why)) => tracing::warn!("{why}"),
                Some(Rest::Undefined) => tracing::info!(
                    "NamespaceOffloadings are not defined here, so no namespace is offloaded; to define them: \
                     liqo-csi crds --offloading | kubectl create -f -"
                ),
                None => {}
            }
            self.all.idle.send_replace(idle.clone());
        }
        let works = asked.is_ok() && idle.is_none();
        let mut at = Instant::now() + if asked.is_ok() { ASK_FOR_LIQO } else { SOON };
        if works {
            at = at.min(self.news.take(self.all, queue).0);
            for namespace in std::mem::take(&mut self.all.decided().changed) {
                queue.add(namespace);
            }
            let offloadings = &self.all.home.views().offloadings;
            match self.policies.take() {
                Changed::These(policies) => {
                    let namespaces = policies.iter().map(|it| it.topic());
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
        Next { triggers, at, works }
    }

    async fn reconcile(&self, namespace: &str) -> Result<Option<Duration>, ApiError> {
        let home = self.all.home;
        let objects = home.within::<NamespaceOffloading>(namespace);
        let Some(object) = objects.get(NAME).await? else {
            return Ok(None);
        };
        let leaving = object.is_leaving();
        let never = offload::never_offloaded(namespace, self.all.reserved).is_some();
        match (leaving, has_finalizer(&object, FINALIZER)) {
            (true, false) => return Ok(None),
            // It is offloaded nowhere, so there is nothing to clean up: it only gets a status that says so.
            (false, false) if never => {}
            (false, false) => {
                let held = objects.set_finalizer(&object, FINALIZER, true);
                unless_conflict(crash::around(Write::OffloadHold, held).await)?;
                return Ok(Some(SOON));
            }
            (_, true) => {}
        }
        let Some(found) = home.all::<Namespace>().get(namespace).await? else {
            return Ok(None);
        };
        // Before it is said to be offloaded, and before anything of it is taken away.
        scheduling::keep(home, &found, !leaving && !never).await?;
        let clusters = self.clusters();
        let decided = clusters
            .iter()
            .map(|cluster| (cluster.name_any(), self.state(&object, cluster)));
        let status = self.status(&object, &decided.collect());
        if object.status.as_ref() != Some(&status) {
            let patch = patch(&object, &status);
            let written = crash::around(Write::OffloadStatus, objects.merge_status(NAME, &patch)).await;
            unless_conflict(written)?;
            return Ok(Some(SOON));
        }
        let gone = status
            .remote_namespaces_conditions
            .values()
            .flatten()
            .all(|it| it.type_ != READY);
        if leaving && leaving::evict_waiting(home, &object).await? {
            return Ok(Some(SOON));
        }
        if leaving && gone {
            let freed = objects.set_finalizer(&object, FINALIZER, false);
            unless_conflict(crash::around(Write::OffloadLetGo, freed).await)?;
        }
        // The policy for new pods knows no time: what has ended is removed.
        Ok(avoided_now(&object).1)
    }
}

/// Replaces the status of exactly the object that was read: what is no more is taken out, which a merge patch
/// has to spell.
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
