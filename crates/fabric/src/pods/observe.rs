//! Reads the facts about one pod: the home pod, the pod of its name in its cluster, and why it must wait.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{Namespace, Node},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::ResourceExt;

use super::{
    POLL, Pods, SOON, UNWATCHED,
    act::Writer,
    claims::ClaimThere,
    configuration::REFLECTION_REFUSED,
    waits::{CLAIM_NOT_READY, Fingerprints},
};
use crate::{
    api::namespace_offloading::{NAME, NamespaceOffloading},
    cluster::{
        ApiError, Cause, Objects,
        facts::{is_out_of_service, is_ready},
        short,
    },
    marks::{HOME_UID, REMOTE_CLUSTER_UID},
    offload::{
        Readiness,
        pods::{
            Act, HomePod, PodFacts, RemoteMarks, RemotePod, Waiting, claims, decide_pod, is_finite, not_kept,
            refused_hostname, remote_pod,
        },
    },
    places::Place,
    raw::RawPod,
};

/// For pods younger than this, the objects that they need may have been created just before and not
/// be in the views yet.
const YOUNG: SignedDuration = SignedDuration::from_secs(30);

/// A pod as it was read, and what its writes need.
pub(super) struct Observed<'a> {
    pub(super) key: &'a str,
    pub(super) home: Option<Arc<RawPod>>,
    pub(super) remote: Option<Arc<RawPod>>,
    /// The remote namespace, or why there is none.
    pub(super) namespace: Result<String, String>,
    pub(super) place: Result<Place, String>,
    pub(super) home_uid: &'a str,
    /// The names of the pod's claims in the remote cluster.
    pub(super) claims: BTreeMap<String, String>,
    pub(super) fingerprints: Fingerprints,
    /// Whether live reads found the objects that the pod waits for and that are not watched.
    pub(super) read_live: bool,
}

impl Pods<'_> {
    /// Takes the next step for one pod. Returns the time until the next reconciliation, if nothing changes before.
    pub(super) async fn reconcile_pod(&self, key: &str) -> Result<Option<Duration>, ApiError> {
        let home_uid = self.places.home_uid().await?;
        let place = self.places.reach(&self.cluster).await;
        let Some(seen) = self.home.get(key) else {
            self.waits.forget(key);
            self.read_rate.forget(key);
            self.waited.forget(key);
            self.copying.forget(key);
            return self.sweep(key, home_uid, place, None).await;
        };
        let namespace = self.namespace(seen.state, seen.place(), seen.namespace());
        let remote = namespace.as_ref().ok();
        // Of an earlier pod of this name, whose namespace had another name there.
        if let Some(own) = remote
            && let Err(error) = self.sweep(key, home_uid, place.clone(), Some(own)).await
        {
            tracing::warn!(pod = key, %error, "an earlier pod in another remote namespace is not deleted yet");
        }
        let is_hidden = |namespace: &String| self.there.may_hide(namespace, seen.name());
        let is_hidden = remote.is_some_and(is_hidden);
        let remote = remote.and_then(|namespace| self.there.get(namespace, seen.name()));
        let fingerprints = self.fingerprints(&seen, remote.as_deref(), &namespace, &place);
        if seen.state.deleting.is_none()
            && let Some(left) = self.waits.remaining(key, fingerprints)
        {
            return Ok(Some(left));
        }
        // The digests differ: what has changed is in the full objects.
        self.wait_to_read(&seen).await;
        let pods = self.places.home.within::<RawPod>(seen.namespace());
        let home = pods.get_or_gone(seen.name()).await?;
        let Some(home) = home.filter(|it| it.uid() == seen.uid()).map(Arc::new) else {
            return Ok(Some(SOON));
        };
        let state = home.as_home();
        let mut observed = Observed {
            key,
            namespace: self.namespace(state, home.place(), seen.namespace()),
            place: place.and_then(|place| self.expect_uid(&home, place)),
            home: Some(Arc::clone(&home)),
            remote: None,
            home_uid,
            claims: BTreeMap::new(),
            fingerprints,
            read_live: false,
        };
        if observed.namespace.is_err()
            && !state.claimed
            && is_young(&home.metadata)
            && self.is_offloaded_by_now(seen.namespace()).await?
        {
            return Ok(Some(SOON));
        }
        let there = self.there(&mut observed, &home, remote.is_some()).await?;
        let facts = PodFacts {
            home: Some(state),
            obstacle: self.obstacle(&mut observed, &home, &there).await?,
            out_of_service: self.is_declared_out_of_service(&observed, &home, &there).await?,
            is_finite: is_finite(&home.spec),
            there,
        };
        let act = decide_pod(&facts);
        if act == Act::Make
            && let Some(pause) = self.wait_for_copies(&home)
        {
            return Ok(Some(pause));
        }
        if matches!(act, Act::ReportWaiting(_)) && !state.claimed {
            self.state().admitted.remove(key);
        }
        let may_rest = state.deleting.is_none() && matches!(act, Act::Reflect | Act::Nothing);
        let again = match (Writer { pods: self, observed }).carry_out(&facts, act).await {
            // A webhook that does not answer fails the write, too, and nothing else shows why the pod waits.
            Err(error)
                if error.is_refusal()
                    || error.is_transient() && !state.started && !is_young(&home.metadata) =>
            {
                self.report_refused(&home, &error).await;
                return Err(error);
            }
            again => again?,
        };
        if remote.is_none() && matches!(facts.there, RemotePod::Ours { .. }) {
            // No watch shows the remote pod, or not yet.
            if is_hidden {
                self.report_unwatched(&home).await;
            }
            let pause = if seen.runs { UNWATCHED } else { UNWATCHED / 6 };
            return Ok(Some(again.map_or(pause, |it| it.min(pause))));
        }
        if may_rest && again.is_none() {
            // A write shows in the view in a moment, and causes another reconciliation.
            self.waits.settle(key, fingerprints);
        }
        Ok(again)
    }

    /// The remote namespace in which the pod runs or will run.
    fn namespace(&self, state: HomePod, place: Option<(&str, &str)>, own: &str) -> Result<String, String> {
        match place {
            // Users can write the annotations, but cannot create a pod whose status says that it has started.
            Some((cluster, namespace)) if state.may_run() => {
                if cluster == self.cluster.as_str() {
                    Ok(namespace.to_owned())
                } else {
                    Err(format!("it belongs to the cluster {cluster}"))
                }
            }
            Some((_, namespace)) if state.claimed => {
                let mapped = self.mapped(own)?;
                if mapped == namespace {
                    return Ok(mapped);
                }
                Err(format!(
                    "its annotations name the remote namespace {namespace}, but its namespace is offloaded to {mapped}: \
                     delete the pod and create it again"
                ))
            }
            _ => self.mapped(own),
        }
    }

    /// The remote namespace that this one is mapped to.
    fn mapped(&self, namespace: &str) -> Result<String, String> {
        let remote = self.places.registry().get(&self.cluster);
        let remote = remote.map_err(|why| why.to_string())?;
        let mapped = remote.namespaces.remote(namespace, &self.cluster);
        mapped.map(str::to_owned).map_err(|why| why.to_string())
    }

    /// Whether the namespace is offloaded to the cluster and only the view is outdated: then a
    /// warning would be wrong.
    async fn is_offloaded_by_now(&self, namespace: &str) -> Result<bool, ApiError> {
        let objects = self.places.home.within::<NamespaceOffloading>(namespace);
        let found = objects.get_or_gone(NAME).await?;
        let ready = found.and_then(|it| it.readiness(self.cluster.as_str()));
        Ok(matches!(ready, Some(Readiness::Created)))
    }

    /// The cluster, unless the pod was claimed for another one at its address.
    fn expect_uid(&self, home: &RawPod, place: Place) -> Result<Place, String> {
        match home.annotation(REMOTE_CLUSTER_UID) {
            Some(expected) if home.as_home().claimed && expected != place.uid => Err(format!(
                "it belongs to the cluster with the uid {expected}, and now one with the uid {} answers for {}",
                place.uid, self.cluster
            )),
            _ => Ok(place),
        }
    }

    /// The pod of this name in the cluster. Read only if a watch has shown one, or if its absence matters.
    async fn there(
        &self,
        observed: &mut Observed<'_>,
        home: &RawPod,
        is_seen: bool,
    ) -> Result<RemotePod, ApiError> {
        let may_run = home.as_home().may_run();
        let (Ok(namespace), Ok(place)) = (&observed.namespace, &observed.place) else {
            let why = [observed.namespace.as_ref().err(), observed.place.as_ref().err()];
            let why = why.into_iter().flatten().next().cloned().unwrap_or_default();
            return Ok(if may_run {
                RemotePod::Unknown(why)
            } else {
                RemotePod::Unseen
            });
        };
        if !may_run && !is_seen {
            return Ok(RemotePod::Unseen);
        }
        // Only a live read from this cluster proves that the name is free.
        let found = match self.live(place, namespace, &home.name_any()).await {
            Err(error) if error.is_forbidden() || matches!(error.cause, Cause::Malformed(_)) => {
                return Ok(RemotePod::Unknown(error.to_string()));
            }
            found => found?,
        };
        observed.remote = found.map(Arc::new);
        let there = observed.classified();
        if !may_run || matches!(there, RemotePod::Ours { .. }) {
            return Ok(there);
        }
        if let Err(why) = place.verify(home.annotation(REMOTE_CLUSTER_UID)).await {
            return Ok(RemotePod::Unknown(why));
        }
        Ok(if observed.remote.is_none() {
            RemotePod::Gone
        } else {
            there
        })
    }

    /// The remote pod of this name, read live. 403 may mean that the namespace was deleted together with our
    /// role binding: then the pod is gone too.
    async fn live(&self, place: &Place, namespace: &str, name: &str) -> Result<Option<RawPod>, ApiError> {
        let _permit = self.reads.acquire().await.ok();
        let pods = place.cluster.within::<RawPod>(namespace);
        let found = pods.get_or_gone(name).await;
        match found {
            Ok(Some(found)) => plausible(&pods, found).map(Some),
            Err(error) if error.is_forbidden() => {
                let namespaces = place.cluster.all::<Namespace>();
                match namespaces.get_or_gone(namespace).await? {
                    None => Ok(None),
                    Some(_) => Err(error),
                }
            }
            found => found,
        }
    }

    /// Deletes the remote pods of a home pod that does not exist any more; with `own`, only those in other remote
    /// namespaces than that of the home pod which has its name now.
    async fn sweep(
        &self,
        key: &str,
        home_uid: &str,
        place: Result<Place, String>,
        own: Option<&str>,
    ) -> Result<Option<Duration>, ApiError> {
        let Some((namespace, name)) = key.split_once('/') else {
            return Ok(None);
        };
        let mut outcome = None;
        for remote in self.there.named(name) {
            if remote.home_key() != Some(key) || own == Some(remote.namespace()) {
                continue;
            }
            if let Some(left) = self.wait_to_sweep(key, remote.uid()).await {
                outcome = Some(outcome.map_or(left, |it: Duration| it.min(left)));
                continue;
            }
            let pods = self.places.home.within::<RawPod>(namespace);
            let live = pods.get_or_gone(name).await?;
            let is_of = |live: RawPod| {
                Some(live.uid()) == remote.home_pod_uid() || live.started() == Some(remote.uid())
            };
            if live.is_some_and(is_of) {
                // The view is behind, or the home pod is not on this node any more.
                outcome = Some(POLL);
                continue;
            }
            let found = match &place {
                Ok(there) => self.live(there, remote.namespace(), name).await?,
                Err(_) => None,
            };
            let Some(found) = found.filter(|it| it.uid() == remote.uid()) else {
                outcome = Some(POLL);
                continue;
            };
            let observed = Observed {
                key,
                home: None,
                namespace: Ok(remote.namespace().to_owned()),
                remote: Some(Arc::new(found)),
                place: place.clone(),
                home_uid,
                claims: BTreeMap::new(),
                fingerprints: Fingerprints { waiting: 0, full: 0 },
                read_live: false,
            };
            let facts = PodFacts {
                home: None,
                there: observed.classified(),
                obstacle: None,
                out_of_service: false,
                is_finite: false,
            };
            let again = Writer { pods: self, observed }
                .carry_out(&facts, decide_pod(&facts))
                .await?;
            outcome = outcome.or(again);
        }
        Ok(outcome)
    }

    /// The reason for a pod to wait whose cluster does not store this field.
    pub(super) fn field_not_kept(&self, field: &str) -> Waiting {
        Waiting {
            reason: "RemoteRefused",
            message: format!(
                "the cluster {} does not keep {field} as it was sent: its API server may be older than this one or have the \
                 feature disabled, or an admission webhook or policy there changes the field. Keep the pod on nodes of this \
                 cluster",
                self.cluster
            ),
        }
    }

    /// Whether the pod is being deleted, its cluster is unreachable, and an administrator has declared the node out
    /// of service: nothing runs there any more (KEP 2268).
    async fn is_declared_out_of_service(
        &self,
        observed: &Observed<'_>,
        home: &RawPod,
        there: &RemotePod,
    ) -> Result<bool, ApiError> {
        let node = home.spec["nodeName"].as_str();
        let ends = home.as_home().deleting;
        let (RemotePod::Unknown(_), Err(_), Some(_), Some(node)) = (there, &observed.place, ends, node)
        else {
            return Ok(false);
        };
        let node = self.places.home.all::<Node>().get(node).await?;
        Ok(node.is_some_and(|node| is_out_of_service(&node) && !is_ready(&node)))
    }

    /// Why a pod cannot be created or started in its cluster yet, if so.
    pub(super) async fn obstacle(
        &self,
        observed: &mut Observed<'_>,
        home: &RawPod,
        there: &RemotePod,
    ) -> Result<Option<Waiting>, ApiError> {
        let state = home.as_home();
        if state.started || state.deleting.is_some() {
            return Ok(None);
        }
        if let (
            RemotePod::Ours {
                gated: true,
                deleting: None,
                ..
            },
            Some(remote),
            true,
        ) = (there, &observed.remote, state.claimed)
        {
            // The fabric has not compared the created pod yet: the answer was lost, or another process created it.
            let wanted = remote_pod(&home.json(), &RemoteMarks::default(), &self.settings());
            let lost = wanted.ok().and_then(|wanted| not_kept(&wanted, &remote.json()));
            return Ok(lost.map(|field| self.field_not_kept(&field)));
        }
        if *there != RemotePod::Unseen {
            return Ok(None);
        }
        let waiting = |reason, message| Ok(Some(Waiting { reason, message }));
        if home.is_of_daemon_set() {
            let message = "it belongs to a DaemonSet, whose pods are for machines: keep the DaemonSet off this node, which \
                           represents a cluster, by an affinity: liqo.io/type NotIn virtual-node";
            return waiting("DaemonSetNotOffloaded", message.to_owned());
        }
        if let Err(why) = &observed.namespace {
            return waiting("OffloadingBackOff", why.clone());
        }
        if let Err(refused) = remote_pod(&home.json(), &RemoteMarks::default(), &self.settings()) {
            return waiting("PodNotSupported", refused.to_string());
        }
        let (Ok(namespace), Ok(place)) = (&observed.namespace, &observed.place) else {
            let why = observed.place.as_ref().err().cloned().unwrap_or_default();
            return waiting("RemoteUnreachable", why);
        };
        if let Some(refused) = refused_hostname(&home.json(), namespace) {
            return waiting("PodNotSupported", refused);
        }
        if !state.claimed {
            return if state.ended {
                Ok(None)
            } else {
                self.admit(home).await
            };
        }
        if let Some(unavailable) = self.unavailable_there(home, place, namespace).await? {
            observed.read_live = true;
            return Ok(Some(unavailable));
        }
        if let Some(why) = self.refused_copy(home) {
            return waiting(REFLECTION_REFUSED, why);
        }
        for claim in claims(&home.json()) {
            match self.claim_there(place, home, namespace, &claim).await? {
                ClaimThere::Named(there) => {
                    observed.claims.insert(claim, there);
                }
                ClaimThere::Missing(why) => return waiting(CLAIM_NOT_READY, why),
            }
        }
        Ok(None)
    }
}

/// Whether an object was created a moment ago.
pub(crate) fn is_young(metadata: &ObjectMeta) -> bool {
    let made = metadata.creation_timestamp.as_ref();
    made.is_some_and(|made| Timestamp::now().duration_since(made.0) < YOUNG)
}

/// A remote pod, or an error if its uid or name is malformed.
pub(super) fn plausible(pods: &Objects<RawPod>, found: RawPod) -> Result<RawPod, ApiError> {
    if found.is_plausible() {
        return Ok(found);
    }
    let why = "a pod has a name or uid that Kubernetes does not allow";
    Err(pods.failure("read", Cause::Malformed(why.to_owned())))
}

impl Observed<'_> {
    /// How the remote pod that was read is related to the home pod.
    pub(super) fn classified(&self) -> RemotePod {
        let Some(remote) = &self.remote else {
            return RemotePod::Unseen;
        };
        let is_ours = remote.annotation(HOME_UID) == Some(self.home_uid);
        remote.as_there(is_ours, self.key, self.home.as_deref())
    }

    /// The reason for a pod to wait that the cluster refuses.
    pub(super) fn refusal(error: &ApiError) -> Waiting {
        Waiting {
            reason: "RemoteRefused",
            message: short(&error.to_string()),
        }
    }
}
