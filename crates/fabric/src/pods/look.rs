//! What is known of one pod: the home pod, what its cluster has under its name, and what is in
//! the way.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolumeClaim};
use kube::ResourceExt;

use super::{POLL, Pods, act::Writer, waits::CLAIM_NOT_READY};
use crate::{
    cluster::{
        ApiError, Cause, Objects,
        facts::{is_out_of_service, is_ready},
        short,
    },
    marks::{HOME_POD_UID, HOME_UID, REMOTE_CLUSTER_UID},
    offload::pods::{PodFacts, RemoteMarks, There, Waiting, claims, decide_pod, remote_pod},
    places::Place,
    raw::RawPod,
    volume::mark,
};

/// A pod, and all that its writes need.
pub(super) struct Look<'a> {
    pub(super) key: &'a str,
    pub(super) home: Option<Arc<RawPod>>,
    pub(super) remote: Option<Arc<RawPod>>,
    /// The namespace there, if there is one.
    pub(super) namespace: Result<String, String>,
    pub(super) place: Result<Place, String>,
    pub(super) home_uid: &'a str,
    /// What is known without asking, if it waits with that.
    pub(super) print: u64,
}

impl Pods<'_> {
    /// Looks at one pod and does what is next; when to look again although nothing changes.
    pub(super) async fn reconcile(&self, key: String) -> Result<Option<Duration>, ApiError> {
        let home_uid = self.places.home_uid().await?;
        let Some(home) = self.home.get(&key) else {
            self.waits.forget(&key);
            let place = self.places.reach(&self.cluster).await;
            return self.sweep(&key, home_uid, place).await;
        };
        let place = self.place_of(&home).await;
        let namespace = self.namespace(&home);
        let remote = match &namespace {
            Ok(namespace) => self.there.get(namespace, &home.name_any()),
            Err(_) => None,
        };
        let mut look = Look {
            key: &key,
            home: Some(Arc::clone(&home)),
            remote,
            namespace,
            place,
            home_uid,
            print: 0,
        };
        let state = home.as_home();
        if !state.started && !state.ended && state.deleting.is_none() {
            look.print = self.print(&look);
            if let Some(left) = self.waits.holds(&key, look.print) {
                return Ok(Some(left));
            }
        }
        let there = self.there(&mut look, &home).await?;
        let facts = PodFacts {
            home: Some(state),
            obstacle: self.obstacle(&look, &home, &there).await?,
            out_of_service: self.is_declared_out_of_service(&look, &home, &there).await?,
            there,
        };
        Writer { pods: self, look }
            .carry_out(&facts, decide_pod(&facts))
            .await
    }

    /// The namespace in which the pod runs, or is to run.
    fn namespace(&self, home: &RawPod) -> Result<String, String> {
        let state = home.as_home();
        match home.place() {
            // Users can write it, but not that a pod has started when they make one.
            Some((cluster, namespace)) if state.may_run() => {
                if cluster == self.cluster.as_str() {
                    Ok(namespace.to_owned())
                } else {
                    Err(format!("it was made to run in the cluster {cluster}"))
                }
            }
            Some((_, namespace)) if state.claimed => {
                let mapped = self.mapped(home)?;
                if mapped == namespace {
                    return Ok(mapped);
                }
                Err(format!(
                    "its annotations say that it is to run in the namespace {namespace}, but its own is offloaded to {mapped}: \
                     make it anew"
                ))
            }
            _ => self.mapped(home),
        }
    }

    /// The namespace that the one of a pod has there.
    fn mapped(&self, home: &RawPod) -> Result<String, String> {
        let remote = self.places.registry().get(&self.cluster);
        let remote = remote.map_err(|why| why.to_string())?;
        let namespace = home.namespace().unwrap_or_default();
        let mapped = remote.namespaces.remote(&namespace, &self.cluster);
        mapped.map(str::to_owned).map_err(|why| why.to_string())
    }

    /// The cluster that the pod was given to, and not another one under its address.
    async fn place_of(&self, home: &RawPod) -> Result<Place, String> {
        let place = self.places.reach(&self.cluster).await?;
        match home.annotation(REMOTE_CLUSTER_UID) {
            Some(meant) if home.as_home().claimed && meant != place.uid => Err(format!(
                "it was given to the cluster with the uid {meant}, and now one with the uid {} answers for {}",
                place.uid, self.cluster
            )),
            _ => Ok(place),
        }
    }

    /// What the cluster has under the pod's name. It is asked itself where it matters that nothing
    /// is there.
    async fn there(&self, look: &mut Look<'_>, home: &RawPod) -> Result<There, ApiError> {
        let state = home.as_home();
        let (Ok(namespace), Ok(place)) = (&look.namespace, &look.place) else {
            let why = [look.namespace.as_ref().err(), look.place.as_ref().err()];
            let why = why.into_iter().flatten().next().cloned().unwrap_or_default();
            return Ok(if state.may_run() {
                There::Unknown(why)
            } else {
                There::Unseen
            });
        };
        if !state.may_run() || matches!(look.classified(), There::Ours { .. }) {
            return Ok(look.classified());
        }
        // Whatever was seen before, or elsewhere, frees no name.
        let found = match live(place, namespace, &home.name_any()).await {
            Err(error) if error.is_forbidden() => return Ok(There::Unknown(error.to_string())),
            found => found?,
        };
        look.remote = found.map(Arc::new);
        let there = look.classified();
        if matches!(there, There::Ours { .. }) {
            return Ok(there);
        }
        if let Err(why) = place.is_cluster(home.annotation(REMOTE_CLUSTER_UID)).await {
            return Ok(There::Unknown(why));
        }
        Ok(if look.remote.is_none() { There::Gone } else { there })
    }

    /// Deletes what runs for a home pod that is no more.
    async fn sweep(
        &self,
        key: &str,
        home_uid: &str,
        place: Result<Place, String>,
    ) -> Result<Option<Duration>, ApiError> {
        let Some((namespace, name)) = key.split_once('/') else {
            return Ok(None);
        };
        let mut outcome = None;
        for remote in self.there.named(name) {
            if remote.home_key() != Some(key) {
                continue;
            }
            if let Some(left) = self.swept_of_late(key, remote.uid()).await {
                outcome = Some(outcome.map_or(left, |it: Duration| it.min(left)));
                continue;
            }
            let pods = self.places.home.within::<RawPod>(namespace);
            let live = pods.get_or_gone(name).await?;
            if live.is_some_and(|live| Some(live.uid()) == remote.annotation(HOME_POD_UID)) {
                // It is just not seen yet, or has lost its node.
                outcome = Some(POLL);
                continue;
            }
            let look = Look {
                key,
                home: None,
                namespace: Ok(remote.namespace().unwrap_or_default()),
                remote: Some(remote),
                place: place.clone(),
                home_uid,
                print: 0,
            };
            let facts = PodFacts {
                home: None,
                there: look.classified(),
                obstacle: None,
                out_of_service: false,
            };
            let again = Writer { pods: self, look }
                .carry_out(&facts, decide_pod(&facts))
                .await?;
            outcome = outcome.or(again);
        }
        Ok(outcome)
    }

    /// Whether an administrator has marked the node of a pod that ends as one on which nothing runs
    /// any more, while nobody can be asked (KEP 2268).
    async fn is_declared_out_of_service(
        &self,
        look: &Look<'_>,
        home: &RawPod,
        there: &There,
    ) -> Result<bool, ApiError> {
        let node = home.spec["nodeName"].as_str();
        let ends = home.as_home().deleting;
        let (There::Unknown(_), Err(_), Some(_), Some(node)) = (there, &look.place, ends, node) else {
            return Ok(false);
        };
        let node = self.places.home.all::<Node>().get(node).await?;
        Ok(node.is_some_and(|node| is_out_of_service(&node) && !is_ready(&node)))
    }

    /// What is in the way of a pod that was not made yet.
    async fn obstacle(
        &self,
        look: &Look<'_>,
        home: &RawPod,
        there: &There,
    ) -> Result<Option<Waiting>, ApiError> {
        let state = home.as_home();
        if state.started || state.deleting.is_some() || *there != There::Unseen {
            return Ok(None);
        }
        let waiting = |reason, message| Ok(Some(Waiting { reason, message }));
        if home.is_of_daemon_set() {
            let message = "it belongs to a DaemonSet, whose pods are for machines: keep the DaemonSet off this node, which \
                           stands for a cluster, by an affinity: liqo.io/type NotIn virtual-node";
            return waiting("DaemonSetNotOffloaded", message.to_owned());
        }
        if let Err(why) = &look.namespace {
            return waiting("OffloadingBackOff", why.clone());
        }
        if let Err(refused) = remote_pod(&home.json(), &RemoteMarks::default(), &self.settings()) {
            return waiting("PodNotSupported", refused.to_string());
        }
        let (Ok(namespace), Ok(place)) = (&look.namespace, &look.place) else {
            let why = look.place.as_ref().err().cloned().unwrap_or_default();
            return waiting("RemoteUnreachable", why);
        };
        if !state.claimed {
            return Ok(None);
        }
        for claim in claims(&home.json()) {
            if let Some(why) = self.claim_is_missing(place, home, namespace, &claim).await? {
                return waiting(CLAIM_NOT_READY, why);
            }
        }
        Ok(None)
    }

    /// Why the claim of this name there is not the one that the pod means, if it is not.
    async fn claim_is_missing(
        &self,
        place: &Place,
        home: &RawPod,
        namespace: &str,
        name: &str,
    ) -> Result<Option<String>, ApiError> {
        let own = home.namespace().unwrap_or_default();
        let here = self.places.home.within::<PersistentVolumeClaim>(&own);
        let there = place.cluster.within::<PersistentVolumeClaim>(namespace);
        let (here, there) = tokio::try_join!(here.get(name), there.get(name))?;
        let cluster = &self.cluster;
        Ok(match (here, there) {
            (_, None) => Some(format!(
                "the cluster {cluster} has no claim {namespace}/{name} (yet): use a storage class of this driver, or make \
                 the claim there"
            )),
            (_, Some(there)) if there.metadata.deletion_timestamp.is_some() => Some(format!(
                "the claim {namespace}/{name} of the cluster {cluster} is being deleted"
            )),
            (None, Some(_)) => None,
            (Some(here), Some(there)) => {
                let of = there.annotations().get(mark::CLAIM_UID);
                (of != here.metadata.uid.as_ref()).then(|| {
                    format!(
                        "the claim {namespace}/{name} of the cluster {cluster} is not the twin of {own}/{name}: the data of \
                         this pod are not there"
                    )
                })
            }
        })
    }
}

/// The remote pod of this name, read live. Nothing is in a namespace that is gone, whose rights
/// went with it.
async fn live(place: &Place, namespace: &str, name: &str) -> Result<Option<RawPod>, ApiError> {
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

/// A remote pod, unless its uid or name is none.
pub(super) fn plausible(pods: &Objects<RawPod>, found: RawPod) -> Result<RawPod, ApiError> {
    if found.is_plausible() {
        return Ok(found);
    }
    let why = "a pod has a name or uid that Kubernetes does not give";
    Err(pods.failure("read", Cause::Malformed(why.to_owned())))
}

impl Look<'_> {
    /// What the remote pod is, as far as it was seen.
    pub(super) fn classified(&self) -> There {
        let Some(remote) = &self.remote else {
            return There::Unseen;
        };
        let is_ours = remote.annotation(HOME_UID) == Some(self.home_uid);
        remote.as_there(is_ours, self.key, self.home.as_deref())
    }

    /// What a pod says that a cluster does not take.
    pub(super) fn refusal(error: &ApiError) -> Waiting {
        Waiting {
            reason: "RemoteRefused",
            message: short(&error.to_string()),
        }
    }
}
