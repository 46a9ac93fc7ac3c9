//! The controller of the remote namespaces in one cluster: it decides, and acts once the decision is in the status.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use tokio::time::Instant;

use super::{AT_ONCE, ChangeFeed, FINALIZER, Offloadings};
use crate::{
    api::{
        namespace_offloading::{NAME, NamespaceOffloading, READY},
        remote_cluster::RemoteCluster,
    },
    cluster::{
        ApiError, Objects,
        facts::{is_out_of_service, is_ready},
        has_finalizer, unless_conflict,
    },
    controller::{Controller, Next},
    leaving::{self, Leaving},
    observe::crash::{self, Step as Write},
    offload::{self, Decision, Facts, Readiness, Seen, Step, Volumes},
    places::Place,
    queue::Queue,
    remote::{Owner, Question},
    rights,
};

/// The pause after a write.
const SOON: Duration = Duration::from_secs(1);
/// The interval of reads while a namespace is being created or deleted there: it is not watched.
const POLL: Duration = Duration::from_secs(5);
/// The interval of the checks of the rights in an existing namespace.
const CHECK_RIGHTS: Duration = Duration::from_mins(5);
/// The key of the cluster itself. No namespace has it.
const ITSELF: &str = "";

pub(super) struct InCluster<'a> {
    all: &'a Offloadings<'a>,
    id: String,
    feed: ChangeFeed,
    known: Mutex<HashMap<String, Known>>,
}

/// The memory about a remote namespace.
#[derive(Default)]
struct Known {
    /// When the rights were last confirmed.
    checked: Option<Instant>,
    /// Since when they are granted, but not effective yet.
    granted: Option<Instant>,
    /// The last refusal: of the namespace, or of the eviction of a pod.
    refused: Option<String>,
    /// What the status says, and since when this process has seen that.
    published: Option<(Readiness, Instant)>,
    /// Whether the copies in a namespace that leaves were deleted.
    emptied: bool,
}

impl<'a> InCluster<'a> {
    pub(super) fn new(all: &'a Offloadings<'a>, id: String) -> Self {
        Self {
            feed: ChangeFeed::new(all),
            known: Mutex::default(),
            all,
            id,
        }
    }

    fn known<T>(&self, namespace: &str, act: impl FnOnce(&mut Known) -> T) -> T {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        act(known.entry(namespace.to_owned()).or_default())
    }

    fn forget(&self, namespace: &str) {
        self.all.forget(namespace, &self.id);
        self.known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(namespace);
    }

    async fn decide(
        &self,
        object: &NamespaceOffloading,
        cluster: &RemoteCluster,
        owner: &Owner,
        name: Result<&String, &String>,
    ) -> Result<Decision, ApiError> {
        let namespace = owner.namespace.as_str();
        let wanted = self.all.wanted(object, cluster);
        let published = object.readiness(&self.id);
        let changed_at = object
            .condition(&self.id, READY)
            .and_then(|it| it.last_transition_time.parse::<Timestamp>().ok());
        let seen = self.known(namespace, |it| it.seen_for(published.as_ref()));
        // A replica whose clock is ahead of this one wrote a time in the future.
        let since = changed_at
            .map(|then| Duration::try_from(Timestamp::now().duration_since(then)).unwrap_or(seen))
            .unwrap_or_default();
        let is_checked = self.known(namespace, |it| {
            it.emptied &= wanted.is_err();
            it.checked.is_some_and(|when| when.elapsed() < CHECK_RIGHTS)
        });
        let question = match (&wanted, &published) {
            (Err(_), _) => Question::Claims {
                retained: object.volumes() != Volumes::Hold,
            },
            // Checked now and then: without the rights pods can neither be created nor deleted.
            (Ok(()), Some(Readiness::Created)) if is_checked => Question::Presence,
            (Ok(()), _) => Question::Usable {
                pods: cluster.fabric_node().is_some(),
            },
        };
        let mut is_unreachable = false;
        let mut seen = match name {
            Err(why) => Seen::Foreign(why.clone()),
            Ok(name) => match self.reach().await {
                Ok(there) => observe(owner, &there, name, question).await,
                Err(why) => {
                    is_unreachable = true;
                    Seen::Unknown(why)
                }
            },
        };
        if let (Question::Usable { .. }, Seen::Ours { usable, .. }) = (question, &mut seen) {
            self.known(namespace, |known| known.check_rights(usable));
        }
        let mut pods = Vec::new();
        if let (Some(Readiness::Terminating(_)), Some(since), true) =
            (&published, changed_at, wanted.is_err())
        {
            let leaving = Leaving {
                home: self.all.home,
                namespace,
                nodes: self.nodes(cluster),
                since,
            };
            if let Seen::Ours { claims, .. } = &mut seen {
                leaving.mark_claims(claims).await?;
            }
            pods = leaving.pods().await?;
        }
        Ok(offload::decide(Facts {
            refused: self.refused(namespace, &seen),
            out_of_service: wanted.is_err()
                && is_unreachable
                && self.is_declared_out_of_service(cluster).await?,
            wanted,
            published,
            since,
            pods,
            volumes: object.volumes(),
            seen,
        }))
    }

    /// The virtual nodes of the cluster, including the fabric's while it does not exist.
    fn nodes(&self, cluster: &RemoteCluster) -> BTreeSet<String> {
        let nodes = self.all.home.views().nodes.all();
        let virtual_nodes = nodes.iter().filter(|node| self.all.represents(node, &self.id));
        virtual_nodes
            .map(|node| node.name.clone())
            .chain(cluster.fabric_node())
            .collect()
    }

    /// Whether an administrator has declared the node of the cluster out of service.
    async fn is_declared_out_of_service(&self, cluster: &RemoteCluster) -> Result<bool, ApiError> {
        let Some(name) = cluster.fabric_node() else {
            return Ok(false);
        };
        let node = self
            .all
            .home
            .all::<k8s_openapi::api::core::v1::Node>()
            .get(&name)
            .await?;
        Ok(node.is_some_and(|node| is_out_of_service(&node) && !is_ready(&node)))
    }

    async fn reach(&self) -> Result<Place, String> {
        let id = self.id.parse();
        let id = id.map_err(|_| format!("{} is no id of a cluster", self.id))?;
        self.all.places.reach(&id).await
    }

    /// Returns why an eviction was refused, if it may be allowed later.
    async fn step(
        &self,
        step: Step,
        owner: &Owner,
        name: &str,
        cluster: &RemoteCluster,
    ) -> Result<Option<String>, ApiError> {
        if let Step::Evict(pods) = step {
            return leaving::evict(self.all.home, &owner.namespace, &pods).await;
        }
        let Ok(Place { cluster: there, .. }) = self.reach().await else {
            return Ok(None);
        };
        match step {
            Step::Create if !has_finalizer(cluster, FINALIZER) => self.set_finalizer(cluster, true).await?,
            Step::Create => {
                let fabric = cluster.spec.fabric.as_ref();
                let security = fabric.map(|it| it.pod_security).unwrap_or_default();
                owner.create(&there, name, security).await?;
            }
            Step::Delete(uid) => owner.delete(&there, name, uid).await?,
            // Where other tools run the pods, there may be pods that this fabric does not know.
            Step::DeleteCopies if cluster.fabric_node().is_none() => {}
            Step::DeleteCopies if self.known(&owner.namespace, |it| it.emptied) => {}
            Step::DeleteCopies => {
                owner.delete_copies(&there, name).await?;
                self.known(&owner.namespace, |it| it.emptied = true);
            }
            Step::Evict(_) => {}
        }
        Ok(None)
    }

    async fn set_finalizer(&self, cluster: &RemoteCluster, wanted: bool) -> Result<(), ApiError> {
        let all: Objects<RemoteCluster> = self.all.home.all();
        let changed = all.set_finalizer(cluster, FINALIZER, wanted);
        unless_conflict(crash::around(Write::FabricHold, changed).await).map(drop)
    }

    /// Removes the finalizer of a cluster that is being deleted and has no remote namespace any more.
    async fn release(&self, cluster: &RemoteCluster) -> Result<(), ApiError> {
        if cluster.metadata.deletion_timestamp.is_none() || !has_finalizer(cluster, FINALIZER) {
            return Ok(());
        }
        let is_there = |one: NamespaceOffloading| one.condition(&self.id, READY).map(drop);
        let offloadings = self.all.home.all::<NamespaceOffloading>();
        if offloadings.pick(None, None, is_there).await?.is_empty() {
            self.set_finalizer(cluster, false).await?;
        }
        Ok(())
    }

    /// Why the last creation or eviction was refused, if it still matters.
    fn refused(&self, namespace: &str, seen: &Seen) -> Option<String> {
        self.known(namespace, |known| {
            if matches!(seen, Seen::Ours { deleting: true, .. } | Seen::Foreign(_)) {
                known.refused = None;
            }
            known.refused.clone()
        })
    }
}

impl Known {
    /// For how long this process has seen this in the status.
    fn seen_for(&mut self, published: Option<&Readiness>) -> Duration {
        let is_same = |(before, _): &(Readiness, Instant)| Some(before) == published;
        self.published = match self.published.take().filter(is_same) {
            Some(seen) => Some(seen),
            None => published.map(|now| (now.clone(), Instant::now())),
        };
        self.published
            .as_ref()
            .map(|(_, since)| since.elapsed())
            .unwrap_or_default()
    }

    /// Rights that were granted take some time to become effective.
    fn check_rights(&mut self, usable: &mut Result<(), Readiness>) {
        self.checked = usable.is_ok().then(Instant::now);
        let Err(Readiness::Creating(why)) = usable else {
            self.granted = None;
            return;
        };
        let granted = *self.granted.get_or_insert_with(Instant::now);
        if granted.elapsed() >= rights::EFFECTIVE_AFTER {
            *usable = Err(Readiness::Failed(std::mem::take(why)));
        }
    }
}

impl Controller for InCluster<'_> {
    const NAME: &'static str = "remote-namespaces";
    const AT_ONCE: usize = AT_ONCE;

    async fn changes(&self, queue: &mut Queue) -> Next {
        let triggers = ChangeFeed::triggers(self.all);
        let works = self.all.idle.borrow().is_none();
        let mut at = Instant::now() + SOON;
        if works {
            let (next, has_changed) = self.feed.take(self.all, queue);
            at = next;
            if has_changed {
                queue.add(ITSELF);
            }
        }
        Next { triggers, at, works }
    }

    async fn reconcile(&self, namespace: &str) -> Result<Option<Duration>, ApiError> {
        let home = self.all.home;
        let Some(cluster) = home.views().remote_clusters.get(&self.id) else {
            return Ok(None);
        };
        if namespace == ITSELF {
            return self.release(&cluster).await.map(|()| None);
        }
        let object = home.within::<NamespaceOffloading>(namespace).get(NAME).await?;
        let is_concerned = |object: &NamespaceOffloading| {
            let may_be_there = object.readiness(&self.id).is_some();
            let is_wanted = || self.all.wanted(object, &cluster).is_ok();
            cluster.spec.fabric.is_some() && has_finalizer(object, FINALIZER) && (may_be_there || is_wanted())
        };
        let Some(object) = object.filter(is_concerned) else {
            self.forget(namespace);
            return Ok(None);
        };
        let Some(found) = home.all::<Namespace>().get(namespace).await? else {
            return Ok(None);
        };
        let owner = self.all.places.owner(&found).await?;
        let name = self.all.name(&object);
        let Decision { state, step } = self.decide(&object, &cluster, &owner, name.as_ref()).await?;
        self.all.record(namespace, &self.id, state.clone());
        let again = match state.ready {
            Some(Readiness::Creating(_) | Readiness::Terminating(_)) => Some(POLL),
            _ => None,
        };
        let status = object.status.as_ref();
        let published = status.and_then(|it| it.remote_namespaces_conditions.get(&self.id));
        let is_published = published == Some(&self.all.conditions(&object, &self.id, &state))
            && status.is_some_and(|it| it.remote_namespace_name == name.clone().ok());
        let (Some(step), Ok(name), true) = (step, name, is_published) else {
            return Ok(again);
        };
        let is_quick = matches!(step, Step::Create | Step::Delete(_));
        let done = self.step(step, &owner, &name, &cluster).await;
        let refused = match &done {
            Ok(refused) => refused.clone(),
            Err(error) if error.is_refusal() => Some(error.to_string()),
            Err(_) => None,
        };
        self.known(namespace, |it| it.refused = refused);
        done.map(|_| if is_quick { Some(SOON) } else { again })
    }
}

/// Reads the namespace of this name. That it is absent or another's is believed only after a live check that the same
/// cluster answers.
async fn observe(owner: &Owner, place: &Place, name: &str, question: Question) -> Seen {
    let seen = owner.observe(&place.cluster, name, question).await;
    match &seen {
        Seen::Absent | Seen::Foreign(_) => match place.verify(None).await {
            Ok(()) => seen,
            Err(why) => Seen::Unknown(why),
        },
        Seen::Ours { .. } | Seen::Unknown(_) => seen,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn granted_rights_must_become_effective_in_time() {
        let mut known = Known::default();
        let given = || Err(Readiness::Creating("given".to_owned()));
        for _ in 0..3 {
            let mut usable = given();
            known.check_rights(&mut usable);
            assert_eq!(usable, given());
        }
        tokio::time::advance(rights::EFFECTIVE_AFTER).await;
        let mut usable = given();
        known.check_rights(&mut usable);
        assert_eq!(usable, Err(Readiness::Failed("given".to_owned())));
        known.check_rights(&mut Ok(()));
        assert!(known.checked.is_some());
        let mut usable = given();
        known.check_rights(&mut usable);
        assert_eq!(usable, given(), "they were removed and granted again");
        assert!(known.checked.is_none());
    }
}
