//! Reads and writes one remote namespace.

use std::collections::BTreeMap;

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, PersistentVolume, PersistentVolumeClaim, Secret, Service},
    discovery::v1::EndpointSlice,
};
use kube::{ResourceExt, api::ObjectMeta, core::PartialObjectMeta};

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

/// Objects read at the same time.
const AT_ONCE: usize = 16;

/// The namespace at home that remote ones are mapped to.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    pub(super) home: ClusterId,
    pub(super) home_uid: String,
    pub(super) namespace: String,
    pub(super) namespace_uid: String,
}

/// What to read about one of the driver's namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// Whether twins can be created in it.
    Usable {
        /// Also whether pods can be created.
        pods: bool,
    },
    /// Which claims it has.
    Claims {
        /// Also whether their volumes are retained.
        retained: bool,
    },
    /// Only whether it exists.
    Presence,
}

impl Owner {
    /// Reads live which namespace of this name the cluster has.
    pub(super) async fn observe(&self, there: &Cluster, name: &str, question: Question) -> Seen {
        self.read(there, name, question)
            .await
            .unwrap_or_else(|error| Seen::Unknown(error.to_string()))
    }

    async fn read(&self, there: &Cluster, name: &str, question: Question) -> Result<Seen, ApiError> {
        let Some(found) = there.all::<Namespace>().get(name).await? else {
            return Ok(Seen::Absent);
        };
        if let Some(why) = self.why_foreign(&found, name) {
            return Ok(Seen::Foreign(why));
        }
        let (mut claims, mut usable) = (Vec::new(), Ok(()));
        match question {
            Question::Claims { retained } => claims = claims_in(there, name, retained).await?,
            Question::Usable { pods } => {
                usable = if !may_within(there, name, "create", "", "persistentvolumeclaims").await? {
                    Err(Readiness::Failed(format!(
                        "the namespace {name} exists, but this driver may not create claims in it: see remoteAccess.level \
                         fabric of the chart"
                    )))
                } else if pods {
                    rights::take(there, name, "pods").await?
                } else {
                    // Another tool runs the pods, and this fabric copies what they need. Without
                    // the rights for that, claims still work.
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

    /// Why a namespace does not belong to this owner, if so. Without the label of the home namespace its uid decides: an
    /// administrator may have removed that label, and the policies there do not require it for the deletion.
    fn why_foreign(&self, found: &Namespace, name: &str) -> Option<String> {
        let (labels, annotations) = (found.labels(), found.annotations());
        let taken = |by: &str| {
            Some(format!(
                "the cluster has a namespace {name} already, {by}; it is not used. Choose another name, or have it deleted \
                 there"
            ))
        };
        let Some(home) = labels.get(HOME) else {
            return taken("which this driver did not create");
        };
        if *home != self.home.as_str() || annotations.get(HOME_UID) != Some(&self.home_uid) {
            return taken(&format!("which belongs to another home cluster ({home})"));
        }
        if let Some(namespace) = labels.get(HOME_NAMESPACE).filter(|it| **it != self.namespace) {
            return taken(&format!(
                "which belongs to the namespace {namespace} of this cluster"
            ));
        }
        if annotations.get(HOME_NAMESPACE_UID) != Some(&self.namespace_uid) {
            return taken("which belongs to another or an earlier namespace of this cluster");
        }
        None
    }

    /// Creates the namespace, unless one of that name exists.
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
        let create = async |labels: &BTreeMap<String, String>| {
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
        match create(&labels).await {
            // The policies of an older chart in the remote cluster refuse such a label. Those of
            // this version require it.
            Err(refused) if refused.is_refusal() => {
                labels.remove(PodSecurity::LABEL);
                match create(&labels).await {
                    Err(error) if error.is_refusal() => return Err(refused),
                    created => created?,
                };
                tracing::warn!(
                    cluster = %there.id(),
                    name,
                    "created a remote namespace without a Pod Security label, which is refused there: {refused}"
                );
            }
            created => {
                created?;
            }
        }
        tracing::info!(cluster = %there.id(), name, home = self.namespace, "created a remote namespace");
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
        let exactly = |copy: PartialObjectMeta<K>| {
            let (uid, resource_version) = (copy.uid()?, copy.resource_version());
            let precondition = Precondition {
                uid,
                resource_version,
            };
            (copy.annotations().get(HOME_UID) == Some(&self.home_uid))
                .then(|| (copy.name_any(), precondition))
        };
        // The copies of a namespace may be larger together than a list may be, their metadata is not.
        let metadata = there.within::<PartialObjectMeta<K>>(namespace);
        for (name, exactly) in metadata.pick(Some(&ours), None, exactly).await? {
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
        tracing::info!(cluster = %there.id(), name, home = self.namespace, "deleted a remote namespace");
        Ok(())
    }
}

/// All claims of a namespace. The caller fills in `leaving`.
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
        // Claims of a move are never reported as retained: they keep the namespace until the move has ended.
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
                // Without the right to read it, it counts as not retained.
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

/// Runs these reads, some at a time, until one fails.
async fn in_order<T>(
    reads: impl Iterator<Item = impl Future<Output = Result<T, ApiError>>>,
) -> Result<Vec<T>, ApiError> {
    stream::iter(reads).buffered(AT_ONCE).try_collect().await
}

/// Whether a volume belongs to the claim of this uid and has the reclaim policy `Retain`.
fn is_retained(volume: &PersistentVolume, claim: &str) -> bool {
    let Some(spec) = &volume.spec else { return false };
    let bound_to = spec.claim_ref.as_ref().and_then(|it| it.uid.as_deref());
    volume.metadata.deletion_timestamp.is_none()
        && bound_to == Some(claim)
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
    async fn reads_run_concurrently_up_to_a_limit() {
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
