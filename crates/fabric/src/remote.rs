//! One namespace in one remote cluster: what is there, and the writes.

use std::collections::BTreeMap;

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, PersistentVolume, PersistentVolumeClaim, Secret, Service},
    discovery::v1::EndpointSlice,
};
use kube::{ResourceExt, api::ObjectMeta};

use super::{
    marks::{HOME, HOME_NAMESPACE, HOME_NAMESPACE_UID, HOME_UID},
    reflect::Copied,
    rights,
};
use crate::{
    api::fabric::PodSecurity,
    cluster::{ApiError, Cluster, Precondition, may_within, unless_conflict},
    observe::crash::{self, Step},
    offload::{Claim, Readiness, Seen, is_name},
    volume::{ClusterId, mark},
};

/// So many objects are read at the same time.
const AT_ONCE: usize = 16;

/// For whom a namespace is made.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    pub(super) home: ClusterId,
    pub(super) home_uid: String,
    pub(super) namespace: String,
    pub(super) namespace_uid: String,
}

/// What is wanted to be known of a namespace that is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// Whether twins can be made in it, and pods if the fabric runs them.
    Usable {
        /// Whether it does.
        pods: bool,
    },
    /// Which claims it holds.
    Claims {
        /// Whether their data stay when they go, too.
        retained: bool,
    },
    /// Neither.
    Presence,
}

impl Owner {
    /// What the cluster has under this name, read live.
    pub(super) async fn look(&self, there: &Cluster, name: &str, asked: Question) -> Seen {
        self.read(there, name, asked)
            .await
            .unwrap_or_else(|error| Seen::Unknown(error.to_string()))
    }

    async fn read(&self, there: &Cluster, name: &str, asked: Question) -> Result<Seen, ApiError> {
        let Some(found) = there.all::<Namespace>().get(name).await? else {
            return Ok(Seen::Absent);
        };
        if let Some(why) = self.disowns(&found, name) {
            return Ok(Seen::Foreign(why));
        }
        let (mut claims, mut usable) = (Vec::new(), Ok(()));
        match asked {
            Question::Claims { retained } => claims = claims_in(there, name, retained).await?,
            Question::Usable { pods } => {
                usable = if !may_within(there, name, "create", "", "persistentvolumeclaims").await? {
                    Err(Readiness::Failed(format!(
                        "the namespace {name} is there, but this driver may not make claims in it: see \
                         remoteAccess.level fabric of the chart"
                    )))
                } else if pods {
                    rights::take(there, name, "pods").await?
                } else {
                    // Others run the pods; what these need is copied by the fabric. Without that right,
                    // claims are served all the same.
                    if let Err(Readiness::Failed(why)) = rights::take(there, name, "configmaps").await? {
                        tracing::warn!(cluster = %there.id(), "nothing is copied: {why}");
                    }
                    Ok(())
                };
            }
            Question::Presence => {}
        }
        Ok(Seen::Ours {
            uid: found.uid().unwrap_or_default(),
            deleting: found.metadata.deletion_timestamp.is_some(),
            claims,
            usable,
        })
    }

    /// Why a namespace is not the one that was made for this owner, if it is not.
    fn disowns(&self, found: &Namespace, name: &str) -> Option<String> {
        let (labels, annotations) = (found.labels(), found.annotations());
        let taken = |by: &str| {
            Some(format!(
                "the cluster has a namespace {name} already, {by}; it is left as it is. Choose another name, or have it \
                 deleted there"
            ))
        };
        let Some(home) = labels.get(HOME) else {
            return taken("which this driver did not make");
        };
        if *home != self.home.as_str() || annotations.get(HOME_UID) != Some(&self.home_uid) {
            return taken(&format!("which belongs to another home cluster ({home})"));
        }
        let namespace = labels.get(HOME_NAMESPACE).map_or("", String::as_str);
        if namespace != self.namespace {
            return taken(&format!(
                "which belongs to the namespace {namespace} of this cluster"
            ));
        }
        if annotations.get(HOME_NAMESPACE_UID) != Some(&self.namespace_uid) {
            return taken("which belongs to an earlier namespace of this name");
        }
        None
    }

    /// Makes the namespace; nothing, if one of that name is there by now.
    pub(super) async fn create(
        &self,
        there: &Cluster,
        name: &str,
        security: PodSecurity,
    ) -> Result<(), ApiError> {
        let pairs = |all: &[(&str, &str)]| -> BTreeMap<String, String> {
            all.iter()
                .map(|&(key, value)| (key.to_owned(), value.to_owned()))
                .collect()
        };
        let mut labels = pairs(&[
            (mark::MANAGED_BY, mark::MANAGED_BY_US),
            (HOME, self.home.as_str()),
            (HOME_NAMESPACE, &self.namespace),
            (PodSecurity::LABEL, security.name()),
        ]);
        let make = async |labels: &BTreeMap<String, String>| {
            let namespace = Namespace {
                metadata: ObjectMeta {
                    name: Some(name.to_owned()),
                    labels: Some(labels.clone()),
                    annotations: Some(pairs(&[
                        (HOME_UID, &self.home_uid),
                        (HOME_NAMESPACE_UID, &self.namespace_uid),
                    ])),
                    ..ObjectMeta::default()
                },
                ..Namespace::default()
            };
            crash::around(Step::OffloadCreate, there.all::<Namespace>().create(&namespace)).await
        };
        match make(&labels).await {
            // The policies of an older chart there admit no such label. Those of this one require it.
            Err(refused) if refused.is_refusal() => {
                labels.remove(PodSecurity::LABEL);
                match make(&labels).await {
                    Err(error) if error.is_refusal() => return Err(refused),
                    made => made?,
                };
                tracing::warn!(
                    cluster = %there.id(),
                    name,
                    "made a namespace without a Pod Security label, which is refused there: {refused}"
                );
            }
            made => {
                made?;
            }
        }
        tracing::info!(cluster = %there.id(), name, home = self.namespace, "made a namespace");
        Ok(())
    }

    /// Deletes what was copied into the namespace.
    pub(super) async fn delete_copies(&self, there: &Cluster, namespace: &str) -> Result<(), ApiError> {
        self.delete_copies_of::<Secret>(there, namespace).await?;
        self.delete_copies_of::<ConfigMap>(there, namespace).await?;
        self.delete_copies_of::<EndpointSlice>(there, namespace).await?;
        self.delete_copies_of::<Service>(there, namespace).await
    }

    async fn delete_copies_of<K: Copied>(&self, there: &Cluster, namespace: &str) -> Result<(), ApiError> {
        let copies = there.within::<K>(namespace);
        let ours = format!(
            "{}={},{HOME}={}",
            mark::MANAGED_BY,
            mark::MANAGED_BY_US,
            self.home
        );
        let exactly = |copy: K| {
            let (uid, resource_version) = (copy.uid()?, copy.resource_version());
            let precondition = Precondition {
                uid,
                resource_version,
            };
            (copy.annotations().get(HOME_UID) == Some(&self.home_uid))
                .then(|| (copy.name_any(), precondition))
        };
        for (name, exactly) in copies.pick(Some(&ours), None, exactly).await? {
            if is_name(&name) {
                let deleted = crash::around(Step::ReflectDelete, copies.delete(&name, exactly)).await;
                unless_conflict(deleted.map(Some))?;
            }
        }
        Ok(())
    }

    /// Deletes the namespace of this uid.
    pub(super) async fn delete(&self, there: &Cluster, name: &str, uid: String) -> Result<(), ApiError> {
        let exactly = Precondition {
            uid,
            resource_version: None,
        };
        let all = there.all::<Namespace>();
        crash::around(Step::OffloadDelete, all.delete(name, exactly)).await?;
        tracing::info!(cluster = %there.id(), name, home = self.namespace, "deleted a namespace");
        Ok(())
    }
}

/// The claims of a namespace, whoever made them. Whether their likes at home are leaving is for
/// others to tell.
async fn claims_in(there: &Cluster, namespace: &str, retained: bool) -> Result<Vec<Claim>, ApiError> {
    let claims = there.within::<PersistentVolumeClaim>(namespace);
    let describe = |claim: PersistentVolumeClaim| {
        let described = Claim {
            is_twin: mark::manager(claim.labels()) == Some(mark::MANAGED_BY_US),
            name: claim.name_any(),
            volume: claim.annotations().get(mark::REQUEST_NAME).cloned(),
            leaving: false,
            retained: false,
        };
        // What belongs to a move holds the namespace until the move has ended.
        let moves =
            claim.labels().contains_key(mark::MOVE) || claim.annotations().contains_key(mark::SOURCE_OF);
        let volume = claim.spec.as_ref().and_then(|it| it.volume_name.clone());
        let volume = volume.filter(|volume| !moves && is_name(volume));
        Some((described, claim.uid()?, volume))
    };
    let volumes = there.all::<PersistentVolume>();
    let complete = async |(mut claim, uid, volume): (Claim, String, Option<String>)| {
        if let Some(volume) = volume.filter(|_| retained && claim.is_twin) {
            let volume = match volumes.get(&volume).await {
                // Then it is not known to be retained.
                Err(error) if error.is_forbidden() => None,
                found => found?,
            };
            claim.retained = volume.is_some_and(|volume| is_retained(&volume, &uid));
        }
        Ok(claim)
    };
    let found = claims.pick(None, None, describe).await?;
    in_order(found.into_iter().map(complete)).await
}

/// What all of these read, some of them at the same time. The first that fails ends it.
async fn in_order<T>(
    reads: impl Iterator<Item = impl Future<Output = Result<T, ApiError>>>,
) -> Result<Vec<T>, ApiError> {
    stream::iter(reads).buffered(AT_ONCE).try_collect().await
}

/// Whether a volume belongs to the claim of this uid, and stays when that goes.
fn is_retained(volume: &PersistentVolume, claim: &str) -> bool {
    let Some(spec) = &volume.spec else { return false };
    let holder = spec.claim_ref.as_ref().and_then(|it| it.uid.as_deref());
    volume.metadata.deletion_timestamp.is_none()
        && holder == Some(claim)
        && spec.persistent_volume_reclaim_policy.as_deref() == Some("Retain")
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn objects_are_read_some_at_a_time() {
        let (open, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let read = async |at: usize| {
            most.fetch_max(open.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            sleep(Duration::from_secs(1)).await;
            open.fetch_sub(1, Ordering::Relaxed);
            Ok(at)
        };
        let began = Instant::now();
        let all = in_order((0..3 * AT_ONCE).map(read)).await.unwrap();
        assert_eq!(all, (0..3 * AT_ONCE).collect::<Vec<_>>());
        assert_eq!(most.into_inner(), AT_ONCE);
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    }
}
