//! The loop that carries out `NamespaceOffloading`s. What it decides stands in the status before
//! anything is done: whoever goes on after a crash finds there where something may have been made,
//! and twins are made only where the status says so.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::try_join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use serde_json::json;
use tokio::{sync::watch, time::Instant};

use super::{
    Idle,
    leaving::{self, Leaving},
    liqo,
    places::{Place, Places},
    remote::{Owner, Question},
    scheduling,
};
use crate::{
    api::{
        namespace_offloading::{
            NAME, NamespaceOffloading, NamespaceOffloadingStatus, READY, REQUIRED, RemoteCondition,
        },
        remote_cluster::RemoteCluster,
    },
    cluster::{
        ApiError, Cause, Cluster, Objects,
        facts::{is_out_of_service, is_ready},
        has_finalizer, short, unless_conflict,
        view::{Changed, Feed, Slim},
    },
    fleet::NodeKind,
    observe::crash::{self, Step as Write},
    offload::{self, ClusterState, Decision, Facts, Readiness, Seen, Step, Unselected, Volumes},
    queue::Queue,
    rounds::Rounds,
    topology::Node,
};

/// Keeps a `NamespaceOffloading` while a namespace of it may be in some cluster, and a
/// `RemoteCluster` while one may be there.
const FINALIZER: &str = "fabric.storage.liqo.io/remote-namespaces";
/// After something was written its effect is looked at so soon.
const SOON: Duration = Duration::from_secs(1);
/// What is waited for in a remote cluster is looked for so often.
const POLL: Duration = Duration::from_secs(5);
/// How often it is asked whether the rights in a namespace that is there are still there.
const CHECK_RIGHTS: Duration = Duration::from_mins(5);
/// How often it is asked whether Liqo is installed.
const ASK_FOR_LIQO: Duration = Duration::from_secs(20);

/// The loop.
pub(super) struct Namespaces<'a> {
    reconciler: Reconciler<'a>,
    idle: &'a Idle,
    objects: Feed<NamespaceOffloading>,
    /// Whatever concerns them all.
    shared: Vec<watch::Receiver<u64>>,
    /// When all are looked at next.
    all: Instant,
    /// When it is asked next whether Liqo is installed.
    ask: Instant,
    /// How it shows that Liqo is installed, if it is.
    liqo: Option<String>,
    queue: Queue,
    has_failed: bool,
}

struct Reconciler<'a> {
    home: &'a Cluster,
    places: &'a Places<'a>,
    /// Namespaces that are never offloaded.
    reserved: &'a BTreeSet<String>,
    /// When which namespace is looked at again although nothing changes.
    again: Mutex<BTreeMap<String, Instant>>,
    /// When the rights were last seen to be there, by namespace and cluster.
    checked: Mutex<HashMap<(String, String), Instant>>,
    /// What was refused last, by namespace and cluster: the namespace, or the eviction of a pod.
    refused: Mutex<HashMap<(String, String), String>>,
}

impl<'a> Namespaces<'a> {
    pub(super) fn new(places: &'a Places<'a>, idle: &'a Idle, reserved: &'a BTreeSet<String>) -> Self {
        let home = places.home;
        let views = home.views();
        Self {
            idle,
            objects: views.offloadings.feed(),
            shared: vec![
                places.registry().changes(),
                views.nodes.version(),
                views.remote_clusters.version(),
            ],
            all: Instant::now(),
            ask: Instant::now(),
            liqo: None,
            queue: Queue::default(),
            has_failed: false,
            reconciler: Reconciler {
                home,
                places,
                reserved,
                again: Mutex::default(),
                checked: Mutex::default(),
                refused: Mutex::default(),
            },
        }
    }

    fn note_changes(&mut self) {
        let now = Instant::now();
        for namespace in self.reconciler.due(now) {
            self.queue.add(namespace);
        }
        let concerns_all = self.shared.iter().any(|it| it.has_changed().unwrap_or(true));
        match self.objects.take() {
            Changed::These(objects) if !concerns_all && self.all > now => {
                for object in objects {
                    self.queue.add(object.topic());
                }
            }
            _ => {
                self.all = now + Self::RESYNC;
                self.shared.iter_mut().for_each(watch::Receiver::mark_unchanged);
                for object in self.reconciler.home.views().offloadings.all() {
                    self.queue.add(object.topic());
                }
            }
        }
    }

    /// Asks now and then whether Liqo is installed. What was found last counts until then.
    async fn look_for_liqo(&mut self) -> Result<(), ApiError> {
        if self.ask > Instant::now() {
            return Ok(());
        }
        let home = self.reconciler.home;
        self.liqo = liqo::installed(home).await.map_err(|why| {
            home.all::<NamespaceOffloading>()
                .failure("tell who owns", Cause::Unavailable(why))
        })?;
        self.ask = Instant::now() + ASK_FOR_LIQO;
        Ok(())
    }

    /// Why nothing is done, if nothing is.
    fn idle(&self) -> Option<String> {
        let views = self.reconciler.home.views();
        if let Some(how) = &self.liqo {
            return Some(format!(
                "Liqo is installed ({how}), and NamespaceOffloadings are Liqo's: this fabric does nothing. What it made \
                 stays as it is"
            ));
        }
        if *views.offloadings.version().borrow() == 0 {
            return Some(
                "NamespaceOffloadings were not read yet; if this lasts, define them: liqo-csi crds --offloading | \
                 kubectl create -f -"
                    .to_owned(),
            );
        }
        // A cluster that was not read yet may well be there.
        let is_read = self.reconciler.places.registry().unread().is_some()
            && *views.remote_clusters.version().borrow() > 0
            && *views.nodes.version().borrow() > 0;
        (!is_read).then(|| "the RemoteClusters and the nodes were not read yet".to_owned())
    }
}

impl Reconciler<'_> {
    async fn reconcile(&self, namespace: &str) -> Result<(), ApiError> {
        let objects = self.home.within::<NamespaceOffloading>(namespace);
        let Some(object) = objects.get(NAME).await? else {
            return Ok(());
        };
        let leaving = object.is_leaving();
        let never = offload::never_offloaded(namespace, self.reserved).is_some();
        match (leaving, has_finalizer(&object, FINALIZER)) {
            (true, false) => return Ok(()),
            // It is offloaded nowhere, so there is nothing to clean up: it only gets a status that says so.
            (false, false) if never => {}
            (false, false) => {
                let held = objects.set_finalizer(&object, FINALIZER, true);
                unless_conflict(crash::around(Write::OffloadHold, held).await)?;
                self.look_again(namespace, SOON);
                return Ok(());
            }
            (_, true) => {}
        }
        let Some(found) = self.home.all::<Namespace>().get(namespace).await? else {
            return Ok(());
        };
        // Before it is said to be offloaded, and before anything of it is taken away.
        scheduling::keep(self.home, &found, !leaving && !never).await?;
        let owner = self.places.owner(&found).await?;
        let name = self.name(&object);
        let clusters = self.clusters();
        let decided = clusters
            .iter()
            .map(|cluster| self.decide(&object, cluster, &owner, name.as_ref()));
        let decided = try_join_all(decided).await?.into_iter().collect();
        let status = status(&object, name.ok(), &decided);
        if object.status.as_ref() != Some(&status) {
            let patch = patch(&object, &status);
            let written = crash::around(Write::OffloadStatus, objects.merge_status(NAME, &patch)).await;
            unless_conflict(written)?;
            self.look_again(namespace, SOON);
            return Ok(());
        }
        self.act(&status, &owner, decided, &clusters).await?;
        let gone = status
            .remote_namespaces_conditions
            .values()
            .flatten()
            .all(|it| it.type_ != READY);
        if leaving && leaving::evict_waiting(self.home, &object).await? {
            self.look_again(namespace, SOON);
        } else if leaving && gone {
            let freed = objects.set_finalizer(&object, FINALIZER, false);
            unless_conflict(crash::around(Write::OffloadLetGo, freed).await)?;
        }
        Ok(())
    }

    /// What is to be in one cluster. Nothing is asked of one that never had the namespace.
    async fn decide(
        &self,
        object: &NamespaceOffloading,
        cluster: &RemoteCluster,
        owner: &Owner,
        name: Result<&String, &String>,
    ) -> Result<(String, Decision), ApiError> {
        let id = cluster.name_any();
        let wanted = self.wanted(object, cluster);
        let published = object.readiness(&id);
        let said = object
            .condition(&id, READY)
            .and_then(|it| it.last_transition_time.parse::<Timestamp>().ok());
        let since = said
            .and_then(|then| Duration::try_from(Timestamp::now().duration_since(then)).ok())
            .unwrap_or_default();
        let asked = match (&wanted, &published) {
            (Err(_), _) => Question::Claims {
                retained: object.volumes() != Volumes::Hold,
            },
            (Ok(()), Some(Readiness::Created)) if self.is_checked(&owner.namespace, &id) => {
                Question::Presence
            }
            (Ok(()), _) => Question::Usable {
                pods: cluster.fabric_node().is_some(),
            },
        };
        let mut is_silent = false;
        let mut seen = match name {
            _ if wanted.is_err() && published.is_none() => Seen::Absent,
            Err(why) => Seen::Foreign(why.clone()),
            Ok(name) => match self.reach(&id).await {
                Ok(there) => {
                    let seen = look(owner, &there, name, asked).await;
                    if matches!(
                        (asked, &seen),
                        (Question::Usable { .. }, Seen::Ours { usable: Ok(()), .. })
                    ) {
                        self.note_check(&owner.namespace, &id);
                    }
                    seen
                }
                Err(why) => {
                    is_silent = true;
                    Seen::Unknown(why)
                }
            },
        };
        let mut pods = Vec::new();
        if let (Some(Readiness::Terminating(_)), Some(said), true) = (&published, said, wanted.is_err()) {
            let leaving = Leaving {
                home: self.home,
                namespace: &owner.namespace,
                nodes: self.nodes_of(cluster),
                said,
            };
            if let Seen::Ours { claims, .. } = &mut seen {
                leaving.mark(claims).await?;
            }
            pods = leaving.pods().await?;
        }
        let facts = Facts {
            refused: self.refused(&owner.namespace, &id, &seen),
            out_of_service: wanted.is_err() && is_silent && self.is_declared_out_of_service(cluster).await?,
            wanted,
            published,
            since,
            pods,
            volumes: object.volumes(),
            seen,
        };
        Ok((id, offload::decide(facts)))
    }

    /// The nodes that stand for a cluster, also the one that the fabric makes while it is not there.
    fn nodes_of(&self, cluster: &RemoteCluster) -> BTreeSet<String> {
        let nodes = self.home.views().nodes.all();
        let id = cluster.name_any();
        let standing = nodes.iter().filter(|node| self.stands_for(node, &id));
        standing
            .map(|node| node.name.clone())
            .chain(cluster.fabric_node())
            .collect()
    }

    /// Whether an administrator has declared out of service the node of a cluster.
    async fn is_declared_out_of_service(&self, cluster: &RemoteCluster) -> Result<bool, ApiError> {
        let Some(name) = cluster.fabric_node() else {
            return Ok(false);
        };
        let node = self
            .home
            .all::<k8s_openapi::api::core::v1::Node>()
            .get(&name)
            .await?;
        Ok(node.is_some_and(|node| is_out_of_service(&node) && !is_ready(&node)))
    }

    /// Whether the namespace is to be in a cluster, or why not.
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
        // Rules that come later take nothing away.
        if !before && !strategies.is_empty() && !strategies.contains(&strategy) {
            return Err(Unselected::NotAdmitted(format!(
                "its RemoteCluster does not admit the strategy {strategy:?}"
            )));
        }
        let nodes = self.home.views().nodes.all();
        let nodes: Vec<&Node> = nodes
            .iter()
            .map(Arc::as_ref)
            .filter(|node| self.stands_for(node, &id))
            .collect();
        let selector = object.spec.cluster_selector.selector();
        if offload::selects(&selector, &nodes, before) {
            return Ok(());
        }
        unmet(if nodes.is_empty() {
            "no node stands for it, whose labels the clusterSelector could select"
        } else {
            "no node that stands for it meets the clusterSelector"
        })
    }

    fn stands_for(&self, node: &Node, id: &str) -> bool {
        matches!(self.places.registry().behind(node), NodeKind::Virtual(remote) if remote.id.as_str() == id)
    }

    async fn reach(&self, id: &str) -> Result<Place, String> {
        let id = id.parse().map_err(|_| format!("{id} is no id of a cluster"))?;
        self.places.reach(&id).await
    }

    /// Does what was decided, and says when to look again.
    async fn act(
        &self,
        status: &NamespaceOffloadingStatus,
        owner: &Owner,
        decided: BTreeMap<String, Decision>,
        clusters: &[Arc<RemoteCluster>],
    ) -> Result<(), ApiError> {
        let mut outcome = Ok(());
        for (id, Decision { state, step }) in decided {
            if let Some(Readiness::Creating(_) | Readiness::Terminating(_)) = state.ready {
                let is_quick = matches!(step, Some(Step::Create | Step::Delete(_)));
                self.look_again(&owner.namespace, if is_quick { SOON } else { POLL });
            }
            let (Some(step), Some(name)) = (step, &status.remote_namespace_name) else {
                continue;
            };
            let cluster = clusters.iter().find(|it| it.name_any() == id);
            let done = self.step(step, owner, name, &id, cluster.map(Arc::as_ref)).await;
            let refused = match &done {
                Ok(refused) => refused.clone(),
                Err(error) if error.is_refusal() => Some(error.to_string()),
                Err(_) => None,
            };
            self.note_refusal(&owner.namespace, &id, refused);
            outcome = outcome.and(done.map(drop));
        }
        outcome
    }

    /// Why it was refused by rules that may allow it later, if it was.
    async fn step(
        &self,
        step: Step,
        owner: &Owner,
        name: &str,
        id: &str,
        cluster: Option<&RemoteCluster>,
    ) -> Result<Option<String>, ApiError> {
        if let Step::Evict(pods) = step {
            return leaving::evict(self.home, &owner.namespace, &pods).await;
        }
        let Ok(Place { cluster: there, .. }) = self.reach(id).await else {
            return Ok(None);
        };
        match (step, cluster) {
            (Step::Create, Some(cluster)) if !has_finalizer(cluster, FINALIZER) => {
                self.look_again(&owner.namespace, SOON);
                self.hold(cluster, true).await?;
            }
            (Step::Create, Some(_)) => owner.create(&there, name).await?,
            (Step::Delete(uid), _) => owner.delete(&there, name, uid).await?,
            (Step::Create, None) | (Step::Evict(_), _) => {}
        }
        Ok(None)
    }

    async fn hold(&self, cluster: &RemoteCluster, wanted: bool) -> Result<(), ApiError> {
        let all: Objects<RemoteCluster> = self.home.all();
        let changed = all.set_finalizer(cluster, FINALIZER, wanted);
        unless_conflict(crash::around(Write::FabricHold, changed).await).map(drop)
    }

    /// Lets clusters go that are being deleted and have no namespace of ours any more.
    async fn release_clusters(&self) -> Result<(), ApiError> {
        let leaving = self.home.views().remote_clusters.all();
        let leaving = leaving
            .iter()
            .filter(|it| it.metadata.deletion_timestamp.is_some() && has_finalizer(&***it, FINALIZER));
        for cluster in leaving {
            let all = self.home.all::<NamespaceOffloading>().list(None).await?;
            let id = cluster.name_any();
            if all.iter().all(|one| one.condition(&id, READY).is_none()) {
                self.hold(cluster, false).await?;
            }
        }
        Ok(())
    }

    /// The clusters in which this fabric makes namespaces.
    fn clusters(&self) -> Vec<Arc<RemoteCluster>> {
        let mut all = self.home.views().remote_clusters.all();
        all.retain(|it| it.spec.fabric.is_some());
        all
    }

    /// The name in remote clusters: what was chosen once stays.
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

    fn look_again(&self, namespace: &str, after: Duration) {
        let mut again = self.again.lock().unwrap_or_else(PoisonError::into_inner);
        let when = again
            .entry(namespace.to_owned())
            .or_insert_with(|| Instant::now() + after);
        *when = (*when).min(Instant::now() + after);
    }

    /// The namespaces that are to be looked at again now.
    fn due(&self, now: Instant) -> BTreeSet<String> {
        let mut again = self.again.lock().unwrap_or_else(PoisonError::into_inner);
        let due = again.extract_if(.., |_, when| *when <= now);
        due.map(|(namespace, _)| namespace).collect()
    }

    fn next(&self) -> Option<Duration> {
        let again = self.again.lock().unwrap_or_else(PoisonError::into_inner);
        let next = again.values().min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Whether the rights there were seen lately. If they were removed since, pods can neither be created
    /// nor deleted.
    fn is_checked(&self, namespace: &str, cluster: &str) -> bool {
        let checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        let when = checked.get(&(namespace.to_owned(), cluster.to_owned()));
        when.is_some_and(|when| when.elapsed() < CHECK_RIGHTS)
    }

    fn note_check(&self, namespace: &str, cluster: &str) {
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        checked.retain(|_, when| when.elapsed() < CHECK_RIGHTS);
        checked.insert((namespace.to_owned(), cluster.to_owned()), Instant::now());
    }

    /// Notes what was refused, to say it in the status, until it is not any more.
    fn note_refusal(&self, namespace: &str, cluster: &str, why: Option<String>) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (namespace.to_owned(), cluster.to_owned());
        match why {
            Some(why) => refused.insert(key, why),
            None => refused.remove(&key),
        };
    }

    /// Why what was asked for last was refused: a namespace that is still not there, or an eviction.
    fn refused(&self, namespace: &str, cluster: &str, seen: &Seen) -> Option<String> {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (namespace.to_owned(), cluster.to_owned());
        if matches!(seen, Seen::Ours { deleting: true, .. } | Seen::Foreign(_)) {
            refused.remove(&key);
        }
        refused.get(&key).cloned()
    }
}

/// What the cluster has under this name. That it has nothing, or what is another's, counts only
/// from the cluster that is meant.
async fn look(owner: &Owner, place: &Place, name: &str, asked: Question) -> Seen {
    let seen = owner.look(&place.cluster, name, asked).await;
    match &seen {
        Seen::Absent | Seen::Foreign(_) => match place.is_cluster(None).await {
            Ok(()) => seen,
            Err(why) => Seen::Unknown(why),
        },
        Seen::Ours { .. } | Seen::Unknown(_) => seen,
    }
}

/// What is to stand in the status.
fn status(
    object: &NamespaceOffloading,
    name: Option<String>,
    decided: &BTreeMap<String, Decision>,
) -> NamespaceOffloadingStatus {
    let leaving = object.is_leaving();
    let states = || decided.values().map(|it| &it.state);
    let conditions = decided
        .iter()
        .filter(|(_, it)| !leaving || it.state.ready.is_some())
        .map(|(id, it)| (id.clone(), conditions(object, id, &it.state)));
    NamespaceOffloadingStatus {
        observed_generation: object.metadata.generation,
        remote_namespace_name: name,
        offloading_phase: Some(offload::phase(leaving, states())),
        remote_namespaces_conditions: conditions.collect(),
    }
}

fn conditions(object: &NamespaceOffloading, cluster: &str, state: &ClusterState) -> Vec<RemoteCondition> {
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
        Ok(()) => condition(REQUIRED, true, "ClusterSelected", "the cluster is selected"),
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

/// Replaces the status of exactly the object that was read: clusters that are no more are taken
/// out, which a merge patch has to spell.
fn patch(object: &NamespaceOffloading, status: &NamespaceOffloadingStatus) -> serde_json::Value {
    let mut patch = json!({
        "metadata": {"uid": object.metadata.uid, "resourceVersion": object.metadata.resource_version},
        "status": status,
    });
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

impl Rounds for Namespaces<'_> {
    const NAME: &'static str = "namespaces";
    const RESYNC: Duration = Duration::from_mins(2);

    fn due(&self) -> Option<Duration> {
        let next = [self.queue.left(), self.reconciler.next()];
        let ask = self.ask.saturating_duration_since(Instant::now());
        next.into_iter().flatten().chain([ask]).min()
    }

    fn has_failed(&self) -> bool {
        self.has_failed
    }

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        let mut triggers = self.shared.clone();
        triggers.push(self.reconciler.home.views().offloadings.version());
        triggers
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        self.look_for_liqo().await?;
        let idle = self.idle();
        if *self.idle.borrow() != idle {
            if let Some(why) = &idle {
                tracing::warn!("{why}");
            }
            self.idle.send_replace(idle.clone());
        }
        if idle.is_some() {
            return Ok(());
        }
        self.note_changes();
        let reconciler = &self.reconciler;
        let reconcile = async |namespace: String| reconciler.reconcile(&namespace).await;
        self.has_failed = !self.queue.work(reconcile).await;
        self.reconciler.release_clusters().await
    }
}
