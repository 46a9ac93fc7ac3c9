//! Carries out `NamespaceOffloading`s. The decision is written to the status before the action: after a crash the
//! status shows where namespaces may exist, and twins are created only where it says so.
//!
//! Each cluster has its own controller ([`in_cluster`]), which decides and acts; another one
//! ([`statuses`]) writes their decisions. A slow cluster delays no other: its last state stays in the status until it
//! answers.

mod in_cluster;
mod statuses;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::{networking::v1::NetworkPolicy, policy::v1::PodDisruptionBudget};
use kube::{Api, Resource, ResourceExt, core::PartialObjectMeta, runtime::watcher};
use serde::de::DeserializeOwned;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use self::{in_cluster::InCluster, statuses::Statuses};
use super::{Idle, places::Places};
use crate::{
    api::{
        namespace_offloading::{NamespaceOffloading, READY, REQUIRED, RemoteCondition},
        remote_cluster::RemoteCluster,
    },
    cluster::{
        Cluster, has_finalizer, short,
        view::{Changed, Feed, Slim, View},
    },
    controller::control,
    fleet::NodeKind,
    keyed::drive_keyed,
    offload::{self, ClusterState, Readiness, Unselected},
    queue::Queue,
    rounds::LoopMetrics,
    topology::Node,
};

/// Keeps a `NamespaceOffloading` while one of its remote namespaces may exist, and a `RemoteCluster` while one may
/// exist there.
const FINALIZER: &str = "fabric.storage.liqo.io/remote-namespaces";
const RESYNC: Duration = Duration::from_mins(2);
/// Namespaces that one controller reconciles at the same time.
const AT_ONCE: usize = 8;

/// What the controllers share.
struct Offloadings<'a> {
    home: &'a Cluster,
    places: &'a Places<'a>,
    idle: &'a Idle,
    /// Namespaces that are never offloaded.
    reserved: &'a BTreeSet<String>,
    decided: Mutex<Decided>,
    /// Changes with `decided`.
    decisions: watch::Sender<u64>,
    protections: [View<Protection>; 2],
}

/// The name of a `NetworkPolicy` or a `PodDisruptionBudget` of this cluster, for a condition.
#[derive(Debug, PartialEq, Eq)]
struct Protection {
    namespace: String,
    name: String,
}

/// The text of the condition for each kind.
const UNPROTECTED: [&str; 2] = [
    "NetworkPolicies are not copied, nor are policies of other kinds, which are not named here; they protect no pods in that \
     cluster until they are created there, too",
    "PodDisruptionBudgets are not copied, and count for no drain there until they are created there, too, with a number \
     as minAvailable",
];

impl Protection {
    fn watch<K>(home: &Cluster, stop: &CancellationToken) -> View<Self>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug + Send + Sync + 'static,
    {
        let read = |it: PartialObjectMeta<K>| {
            Some(Self {
                namespace: it.namespace()?,
                name: it.name_any(),
            })
        };
        View::start(
            Api::all(home.client().clone()),
            watcher::Config::default(),
            read,
            stop,
        )
    }
}

impl Slim for Protection {
    fn topic(&self) -> &str {
        &self.namespace
    }
}

/// The last decisions, by namespace and cluster.
#[derive(Default)]
struct Decided {
    states: HashMap<(String, String), ClusterState>,
    /// The namespaces whose decisions have changed.
    changed: BTreeSet<String>,
}

/// Runs the controllers. Never returns.
pub(super) async fn run(
    places: &Places<'_>,
    idle: &Idle,
    reserved: &BTreeSet<String>,
    metrics: &LoopMetrics,
) {
    let stop = CancellationToken::new();
    let all = Offloadings {
        protections: [
            Protection::watch::<NetworkPolicy>(places.home, &stop),
            Protection::watch::<PodDisruptionBudget>(places.home, &stop),
        ],
        home: places.home,
        places,
        idle,
        reserved,
        decided: Mutex::default(),
        decisions: watch::Sender::default(),
    };
    let _stops = stop.drop_guard();
    let all = &all;
    let clusters = &all.home.views().remote_clusters;
    let served = || {
        let mut clusters = clusters.all();
        clusters.retain(|it| it.spec.fabric.is_some() || has_finalizer(&**it, FINALIZER));
        clusters.iter().map(|it| it.name_any()).collect()
    };
    let start = |cluster: String| async move { control(&InCluster::new(all, cluster), metrics).await };
    let statuses = Statuses::new(all);
    tokio::join!(
        control(&statuses, metrics),
        drive_keyed(served, vec![clusters.version()], start, |id| all
            .forget_cluster(id)),
    );
}

impl Offloadings<'_> {
    fn decided(&self) -> MutexGuard<'_, Decided> {
        self.decided.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, namespace: &str, cluster: &str, state: ClusterState) {
        let key = (namespace.to_owned(), cluster.to_owned());
        let mut decided = self.decided();
        if decided.states.get(&key) != Some(&state) {
            decided.states.insert(key, state);
            decided.changed.insert(namespace.to_owned());
            drop(decided);
            self.decisions.send_modify(|count| *count += 1);
        }
    }

    fn forget(&self, namespace: &str, cluster: &str) {
        let key = (namespace.to_owned(), cluster.to_owned());
        self.decided().states.remove(&key);
    }

    fn forget_cluster(&self, cluster: &str) {
        self.decided().states.retain(|(_, of), _| of != cluster);
    }

    /// Whether the namespace should exist in a cluster, or why not.
    fn wanted(&self, object: &NamespaceOffloading, cluster: &RemoteCluster) -> Result<(), Unselected> {
        let unmet = |why: &str| Err(Unselected::Unmet(why.to_owned()));
        if object.is_leaving() {
            return unmet("its NamespaceOffloading is being deleted");
        }
        if let Some(why) = offload::never_offloaded(&object.namespace().unwrap_or_default(), self.reserved) {
            return Err(Unselected::NotAdmitted(why));
        }
        if cluster.metadata.deletion_timestamp.is_some() {
            return unmet("the RemoteCluster is being deleted");
        }
        let id = cluster.name_any();
        let before = object.condition(&id, REQUIRED);
        let before = before.is_some_and(|it| it.status == "True");
        let rules = cluster.spec.fabric.as_ref().map(|fabric| &fabric.offload);
        let strategies = rules.map(|rules| rules.strategies.as_slice()).unwrap_or_default();
        let strategy = object.spec.namespace_mapping_strategy;
        // New rules do not remove namespaces that exist already.
        if !before && !strategies.is_empty() && !strategies.contains(&strategy) {
            return Err(Unselected::NotAdmitted(format!(
                "its RemoteCluster does not admit the strategy {strategy:?}"
            )));
        }
        let nodes = self.home.views().nodes.all();
        let nodes: Vec<&Node> = nodes
            .iter()
            .map(Arc::as_ref)
            .filter(|node| self.represents(node, &id))
            .collect();
        let selector = object.spec.cluster_selector.selector();
        if offload::selects(&selector, &nodes, before) {
            return Ok(());
        }
        unmet(if nodes.is_empty() {
            "no virtual node represents it, so the clusterSelector cannot select it"
        } else {
            "no virtual node of it matches the clusterSelector"
        })
    }

    /// The conditions of a namespace in a cluster.
    fn conditions(
        &self,
        object: &NamespaceOffloading,
        cluster: &str,
        state: &ClusterState,
    ) -> Vec<RemoteCondition> {
        let namespace = object.namespace().unwrap_or_default();
        let is_read = self.protections.iter().all(|it| *it.version().borrow() > 0);
        let names = is_read.then(|| {
            self.protections.each_ref().map(|view| {
                let all = view.of_topic(&namespace);
                all.iter().map(|it| it.name.clone()).collect()
            })
        });
        conditions(object, cluster, state, names.as_ref())
    }

    fn represents(&self, node: &Node, id: &str) -> bool {
        matches!(self.places.registry().behind(node), NodeKind::Virtual(remote) if remote.id.as_str() == id)
    }

    /// The name in remote clusters: once in the status, it stays.
    fn name(&self, object: &NamespaceOffloading) -> Result<String, String> {
        let chosen = object
            .status
            .as_ref()
            .and_then(|it| it.remote_namespace_name.clone());
        if let Some(name) = chosen.filter(|name| !name.is_empty()) {
            return Ok(name);
        }
        let spec = &object.spec;
        let namespace = object.namespace().unwrap_or_default();
        let selected = spec.remote_namespace_name.as_deref();
        let home = self.home.id().as_str();
        let name = offload::remote_name(spec.namespace_mapping_strategy, &namespace, selected, home);
        name.map_err(|why| why.to_string())
    }
}

/// The changes of all `NamespaceOffloading`s, for one controller.
struct ChangeFeed {
    objects: Feed<NamespaceOffloading>,
    /// Views whose changes concern all of them.
    shared: Mutex<Vec<watch::Receiver<u64>>>,
    /// When all are reconciled next.
    all: Mutex<Instant>,
}

impl ChangeFeed {
    fn new(all: &Offloadings<'_>) -> Self {
        Self {
            objects: all.home.views().offloadings.feed(),
            shared: Mutex::new(Self::shared(all)),
            all: Mutex::new(Instant::now()),
        }
    }

    fn shared(all: &Offloadings<'_>) -> Vec<watch::Receiver<u64>> {
        let views = all.home.views();
        vec![
            all.places.registry().changes(),
            views.nodes.version(),
            views.remote_clusters.version(),
        ]
    }

    fn triggers(all: &Offloadings<'_>) -> Vec<watch::Receiver<u64>> {
        let mut triggers = Self::shared(all);
        triggers.push(all.home.views().offloadings.version());
        triggers
    }

    /// Queues the namespaces to reconcile. Returns when all of them are due, and whether anything has changed.
    fn take(&self, all: &Offloadings<'_>, queue: &mut Queue) -> (Instant, bool) {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let concerns_all = shared.iter().any(|it| it.has_changed().unwrap_or(true));
        let mut has_changed = true;
        match self.objects.take() {
            Changed::These(objects) if !concerns_all && *next > Instant::now() => {
                has_changed = !objects.is_empty();
                for object in objects {
                    queue.add(object.topic());
                }
            }
            _ => {
                *next = Instant::now() + RESYNC;
                shared.iter_mut().for_each(watch::Receiver::mark_unchanged);
                for object in all.home.views().offloadings.all() {
                    queue.add(object.topic());
                }
            }
        }
        (*next, has_changed)
    }
}

/// The CRD, also Liqo's, allows two types of conditions only: therefore the message of one of them names what protects
/// the pods of the namespace in this cluster only.
fn conditions(
    object: &NamespaceOffloading,
    cluster: &str,
    state: &ClusterState,
    protections: Option<&[BTreeSet<String>; 2]>,
) -> Vec<RemoteCondition> {
    let condition = |type_: &str, holds: bool, reason: &str, message: &str| {
        let status = if holds { "True" } else { "False" };
        let before = object.condition(cluster, type_);
        let since = before
            .filter(|it| it.status == status && it.reason == reason && !it.last_transition_time.is_empty())
            .map(|it| it.last_transition_time.clone());
        RemoteCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            last_transition_time: since.unwrap_or_else(|| format!("{:.0}", Timestamp::now())),
            reason: reason.to_owned(),
            message: short(message),
        }
    };
    let mut all = vec![match &state.selected {
        Ok(()) => {
            let before = object
                .condition(cluster, REQUIRED)
                .filter(|it| it.status == "True");
            let selected = "the cluster is selected";
            let message = match protections {
                // The first lists are not complete: the last message is kept.
                None => before.map_or(selected, |it| &it.message).to_owned(),
                Some(protections) => {
                    let all = protections
                        .iter()
                        .zip(UNPROTECTED)
                        .filter(|(names, _)| !names.is_empty());
                    let all = all.map(|(names, what)| {
                        let names: Vec<&str> = names.iter().map(String::as_str).collect();
                        format!("; {what}: {}", names.join(", "))
                    });
                    [selected.to_owned()].into_iter().chain(all).collect()
                }
            };
            condition(REQUIRED, true, "ClusterSelected", &message)
        }
        Err(why) => {
            let (reason, message) = why.words();
            condition(REQUIRED, false, reason, message)
        }
    }];
    if let Some(ready) = &state.ready {
        let (reason, message) = ready.words();
        all.push(condition(READY, *ready == Readiness::Created, reason, message));
    }
    all
}
